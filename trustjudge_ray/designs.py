"""What a plan can and cannot show, in words, before it is paid for. No Ray."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import comb

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from trustjudge_ray.analysis.non_transitivity import SAMPLED_SUBSETS, SPARSE
from trustjudge_ray.analysis.transitivity import UNKNOWN, count_subsets, must_sample, sample_subsets
from trustjudge_ray.config import Config
from trustjudge_ray.identity import seed_of

PAIR = ["question_id", "response_a", "response_b"]


@dataclass
class Meetings:
    """Who meets whom in a plan, summed bucket by bucket.

    Attributes:
        possible: pairs of responses to one question: the round robin.
        asked: of them, how many a judge is asked about; in_both: in both orders.
        models: of the corpus; met: pairs of them that a judge compares.
    """

    possible: int = 0
    asked: int = 0
    in_both: int = 0
    models: set[str] = field(default_factory=set)
    met: set[tuple[str, str]] = field(default_factory=set)

    def add(self, responses: pa.Table, tasks: pa.Table) -> None:
        """Add the whole questions of a bucket."""
        counts = responses["question_id"].value_counts().field("counts").to_pylist()
        self.possible += sum(comb(count, 2) for count in counts)
        self.models |= set(responses["model"].unique().to_pylist())
        asked = tasks.filter(pc.and_(pc.is_valid(tasks["response_b"]), pc.is_null(tasks["status"])))
        orders = asked.group_by(PAIR).aggregate([("order", "count_distinct")])["order_count_distinct"]
        self.asked += len(orders)
        self.in_both += pc.sum(pc.equal(orders, 2)).as_py() or 0
        names = asked.group_by(["model_a", "model_b"]).aggregate([])
        self.met |= set(zip(names["model_a"].to_pylist(), names["model_b"].to_pylist(), strict=True))

    def groups(self) -> int:
        """How many groups of models never meet, directly or through others."""
        place = {model: i for i, model in enumerate(sorted(self.models))}
        ends = np.array([(place[a], place[b]) for a, b in sorted(self.met)], dtype=np.int64).reshape(-1, 2)
        links = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(len(place), len(place)))
        return int(connected_components(links, directed=False)[0])


@dataclass(frozen=True, slots=True)
class Closed:
    """How many subsets of k responses the plan closes, in the mean question: every pair asked about in both orders.

    Attributes:
        possible: of all responses; inside: of those that any order of two pairs or more asks about.
        subsets: closed.
        questions: in how many of the questions there is one.
    """

    possible: float
    inside: float
    subsets: float
    questions: int


def closed(responses: pa.Table, tasks: pa.Table, k: int, identical: bool) -> Closed:
    """Count what these whole questions close.

    Args:
        identical: whether pairs of equal texts count as asked.
    """
    sizes = responses["question_id"].value_counts().to_pylist()
    found = [_closed(question, pairs, k) for question, pairs in sorted(_pairs(tasks, identical).items())]
    total = max(len(sizes), 1)
    return Closed(
        sum(comb(row["counts"], k) for row in sizes) / total,
        sum(inside for inside, _ in found) / total,
        sum(subsets for _, subsets in found) / total,
        sum(subsets > 0 for _, subsets in found),
    )


Pairs = dict[tuple[str, str], set[str]]
"""The orders in which pairs of responses are asked about."""


def _pairs(tasks: pa.Table, identical: bool) -> dict[str, Pairs]:
    found: dict[str, Pairs] = {}
    for row in tasks.select([*PAIR, "order", "status"]).to_pylist():
        same = identical and row["status"] == "identical"
        if row["response_b"] is not None and (row["status"] is None or same):
            pair = (row["response_a"], row["response_b"])
            orders = found.setdefault(row["question_id"], {}).setdefault(pair, set())
            orders |= {"AB", "BA"} if same else {row["order"]}
    return found


def _closed(question: str, pairs: Pairs, k: int) -> tuple[int, float]:
    """Of one question: subsets of the responses that two pairs or more have, and how many of them are closed."""
    names, degree = np.unique([name for pair in pairs for name in pair], return_counts=True)
    place = {name: i for i, name in enumerate(names[degree >= 2].tolist())}
    both = [pair for pair, orders in pairs.items() if len(orders) == 2 and set(pair) <= place.keys()]
    n = len(place)
    if len(both) == comb(n, 2):
        return comb(n, k), comb(n, k)
    relations: NDArray[np.int8] = np.full((1, n, n), UNKNOWN, dtype=np.int8)
    for a, b in both:
        i, j = sorted((place[a], place[b]))
        relations[0, i, j] = 0
    if not must_sample(n, k):
        return comb(n, k), int(count_subsets(relations, [k], faults=())[k].complete[0])
    rng = np.random.default_rng(seed_of("closed", question, str(k)))
    drawn = sample_subsets(relations, k, SAMPLED_SUBSETS, rng, faults=()).complete[0]
    return comb(n, k), float(drawn) / SAMPLED_SUBSETS * comb(n, k)


_RANKINGS = {
    "full": "every model meets every other on every question that both answered",
    "blocks": "from the pairs of the drawn responses; for a ranking alone matching needs fewer judgments",
    "matching": "for the fewest judgments",
    "anchor": "but only through the anchor, which is discouraged: every difference rests on the anchor's answers, and "
    "models much better or worse than it are hard to tell apart",
}


def supports(
    config: Config,
    kinds: Collection[str],
    meetings: Meetings,
    questions: int,
    subsets: Mapping[int, Closed],
    sampled: int,
) -> Iterator[str]:
    """What the protocols and the design can and cannot show, a sentence each.

    Args:
        kinds: of the protocols.
        questions: of the whole plan; sampled: those that `subsets`, by k, is about.
    """
    if "compare" not in kinds or not meetings.asked:
        yield f"no comparisons{_why_none(config, meetings)}: {_WITHOUT_COMPARISONS}; {_without(kinds)}"
        return
    yield from _ranking(config, meetings)
    yield _position(meetings)
    if not meetings.in_both:
        yield (
            "no pair is asked about in both orders: no verdicts, so no conflict and no non-transitivity ratio; "
            "plan.orders both or share gives them"
        )
        return
    if "score" in kinds:
        anchor = ", each with the anchor" if config.plan.design == "anchor" else ""
        yield f"conflict ratio: yes, from {meetings.in_both:,} pairs in both orders{anchor}"
    else:
        yield "conflict ratio: no, there are no scores"
    for k, found in sorted(subsets.items()):
        yield f"non-transitivity ratio, k = {k}: {_subsets(k, found, questions, sampled)}"
    if any(found.possible and (not found.subsets or _is_sparse(found)) for found in subsets.values()):
        yield "non-transitivity needs plan.design blocks (with plan.block at least k) or full, and plan.orders both"


_WITHOUT_COMPARISONS = "no conflict ratio, no non-transitivity ratio"


def _without(kinds: Collection[str]) -> str:
    return "ranking by mean score only" if "score" in kinds else "no ranking"


def _why_none(config: Config, meetings: Meetings) -> str:
    if config.plan.design == "anchor" and config.plan.anchor not in meetings.models:
        return f", as no answer is by plan.anchor '{config.plan.anchor}'"
    return ""


def _ranking(config: Config, meetings: Meetings) -> Iterator[str]:
    share = meetings.asked / meetings.possible
    of_all = f"{meetings.asked:,} of {meetings.possible:,} pairs of the round robin ({share:.1%})"
    yield f"ranking: yes, {_RANKINGS[config.plan.design]}; {of_all}"
    groups = meetings.groups()
    if groups > 1:
        yield f"ranking: {groups} groups of models never meet, directly or through others, and are ranked apart"


def _position(meetings: Meetings) -> str:
    """What can be said about the order of showing."""
    if not meetings.in_both:
        return (
            "position bias: no flip rate and no order effect, as no pair is shown both ways; the ranking corrects for "
            "the order by which answers happened to be shown first"
        )
    share = meetings.in_both / meetings.asked
    return (
        f"position bias: yes, flip rate and order effect from {meetings.in_both:,} pairs in both orders ({share:.0%})"
    )


def _subsets(k: int, found: Closed, questions: int, sampled: int) -> str:
    if not found.possible:
        return f"no, no sampled question has {k} answers"
    of_all = f"of {round(found.possible * questions):,} subsets of {k} answers to a question"
    if not found.subsets:
        return f"no, the plan closes none {of_all}"
    some = f"about {round(found.subsets * questions):,} {of_all}, in {found.questions} of {sampled} sampled questions"
    if _is_sparse(found):
        return f"hardly, it would rest on {some}, whose pairs all happen to be in both orders"
    return f"yes, from {some}"


def _is_sparse(found: Closed) -> bool:
    """As `evaluate` will call it."""
    return found.subsets < SPARSE * found.inside
