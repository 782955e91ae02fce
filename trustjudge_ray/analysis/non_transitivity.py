"""Non-transitivity ratio: the share of k-subsets of a question's responses whose verdicts fit no ordering."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis.bounds import BY_DESIGN, bound_rows
from trustjudge_ray.analysis.chance import chance_of_fault, faults_over_chance, over_chance_rows
from trustjudge_ray.analysis.comparisons import Comparisons, RuleOutcomes
from trustjudge_ray.analysis.layout import Indices, Layout, plain_rows, ratio_rows, stacked
from trustjudge_ray.analysis.readouts import Floats
from trustjudge_ray.analysis.transitivity import (
    FAULTS,
    MOST_RESPONSES,
    UNKNOWN,
    Relations,
    SubsetCounts,
    count_subsets,
    must_sample,
    sample_subsets,
)
from trustjudge_ray.identity import seed_of

SAMPLED_SUBSETS: Final = 10_000
"""Random subsets for each question that has too many to count."""
_RELATION_BYTES: Final = 50_000_000


@dataclass(frozen=True, slots=True)
class _Field:
    """The pairs of a question as entries (i, j) of a table, for the responses that two or more pairs have.

    Attributes:
        rows: numbers of the pairs that are in a table; i < j: (rows,), their places; flip: −1 where i is b, else 1.
        width: (Q,), how many responses each question's table has.
        asked: (Q,), whether any pair was.
    """

    rows: Indices
    i: Indices
    j: Indices
    flip: NDArray[np.int8]
    width: Indices
    asked: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SubsetsByRule:
    """Subsets of every question, by verdict rule and k.

    Attributes:
        complete: (T, Q) with every pair valid.
        faulty: by fault (T, Q), those of them with a triple of it.
        lost: by reason (Q,), the others of questions with a comparison.
        field: the pairs as they were arranged.
    """

    complete: dict[str, dict[int, Floats]]
    faulty: dict[str, dict[int, dict[str, Floats]]]
    lost: dict[str, dict[int, dict[str, Floats]]]
    field: _Field

    @classmethod
    def empty(cls, field: _Field, comparisons: Comparisons, sizes: Sequence[int], questions: int) -> "SubsetsByRule":
        """Nothing counted yet."""
        shape = {rule: (len(found.tolerances), questions) for rule, found in comparisons.by_rule.items()}
        return cls(
            {rule: {k: np.zeros(size) for k in sizes} for rule, size in shape.items()},
            {rule: {k: {fault: np.zeros(size) for fault in FAULTS} for k in sizes} for rule, size in shape.items()},
            {},
            field,
        )


def non_transitivity_rows(
    layout: Layout, comparisons: Comparisons, sizes: Sequence[int], confidence: float, seed: int = 0
) -> tuple[list[pl.DataFrame], list[str]]:
    """METRICS `non_transitivity_<fault>` for every fault, verdict rule, tolerance and k, and warnings.

    Cases are the k-subsets with every pair valid, hits those with a triple of the fault: `ratio` any intransitive
    one, `circular` and `equivalence` the reference's types (by the order of the questions' ids; a subset can count
    under both), `strict_cycle`, `chain` and `ties` types that do not depend on the numbering. Excluded are the other
    k-subsets of the responses of questions with a comparison: `never_asked` if a pair of theirs is not in the plan,
    else `missing_order` if one is in one order only, else `identical` if one is of equal texts and left out, else the
    last status by name among their pairs'.

    Where subsets are too many to count, counts are estimated from SAMPLED_SUBSETS random ones of each question, and a
    warning says so. Questions are drawn from independently, so the error of drawing is part of how their shares
    differ, which is what the interval is made of.

    `chance_non_transitivity_ratio` is what pairs would give that are drawn each on its own, with the same share of
    ties (`tie_rate` has it) and either side alike otherwise, without an interval;
    `non_transitivity_ratio_minus_chance` is the difference, with one. `non_transitivity_ratio_lowest` and `_highest`
    are the ratio if none, or all, of the subsets that were asked for and lost held a fault.

    A plan that closes few triples (a matching, an anchor, one order, a share of pairs in both) leaves no subset, or an
    odd choice of them: a warning says so.
    """
    found = subset_counts(layout, comparisons, sizes, seed)
    rows = []
    for rule in comparisons.by_rule:
        for k in sizes:
            rows += _rule_rows(layout, comparisons, rule, k, found, confidence)
    return rows, _warnings(layout, found.field, comparisons, sizes, next(iter(found.lost.values()), {}))


def subset_counts(layout: Layout, comparisons: Comparisons, sizes: Sequence[int], seed: int = 0) -> SubsetsByRule:
    """Count, or where there are too many estimate, the subsets of every question under every rule and tolerance."""
    field, draws = _field(layout, comparisons), _Draws.of(layout, seed)
    counts = SubsetsByRule.empty(field, comparisons, sizes, layout.questions)
    for width in np.unique(field.width[field.width >= 3]):
        questions = np.flatnonzero(field.width == width)
        exact = [k for k in sizes if not must_sample(int(width), k)]
        variants = sum(len(found.tolerances) for found in comparisons.by_rule.values())
        step = max(int(_RELATION_BYTES // (variants * width**2)), 1)
        for start in range(0, len(questions) if exact else 0, step):
            _count(counts, comparisons, questions[start : start + step], int(width), exact)
        sampled = sorted(set(sizes) - set(exact))
        for question in questions if sampled else []:
            _count(counts, comparisons, np.array([question]), int(width), sampled, draws)
    known: dict[bytes, dict[int, dict[str, Floats]]] = {}
    for rule, found in comparisons.by_rule.items():
        signature = np.where(found.valid, -1, found.status).tobytes()
        if signature not in known:
            known[signature] = _lost(layout, comparisons, field, found, counts.complete[rule], draws)
        counts.lost[rule] = known[signature]
    return counts


@dataclass(frozen=True, slots=True)
class _Draws:
    """Random subsets of the responses of a question: the same ones whatever is counted among them.

    Attributes:
        names: (Q,) ids of the questions.
    """

    seed: int
    names: tuple[str, ...]

    @classmethod
    def of(cls, layout: Layout, seed: int) -> "_Draws":
        named = layout.responses.group_by("question", maintain_order=True).agg(pl.col("question_id").first())
        return cls(seed, tuple(named["question_id"].to_list()))

    def counted(self, table: Relations, question: int, k: int, faults: Sequence[str]) -> SubsetCounts:
        """What `count_subsets` counts in the lanes (V, n, n) of one question, estimated: shares of the drawn subsets
        times all subsets."""
        rng = np.random.default_rng(seed_of(str(self.seed), self.names[question], str(k)))
        found = sample_subsets(table, k, SAMPLED_SUBSETS, rng, faults)
        complete = np.round(found.complete * (comb(table.shape[1], k) / SAMPLED_SUBSETS))
        share = complete / np.maximum(found.complete, 1)
        return SubsetCounts(complete, {fault: faulty * share for fault, faulty in found.faulty.items()})


def _field(layout: Layout, comparisons: Comparisons) -> _Field:
    count = len(layout.responses)
    degree = np.bincount(comparisons.first, minlength=count) + np.bincount(comparisons.second, minlength=count)
    inside = degree >= 2
    owner = layout.responses["question"].to_numpy()
    width = np.bincount(owner[inside], minlength=layout.questions)
    before: Indices = np.cumsum(inside) - inside
    place = before - (np.cumsum(width) - width)[owner] if count else before
    rows = np.flatnonzero(inside[comparisons.first] & inside[comparisons.second])
    a, b = place[comparisons.first[rows]], place[comparisons.second[rows]]
    asked = np.bincount(comparisons.question, minlength=layout.questions) > 0
    flip = np.where(a < b, 1, -1).astype(np.int8)
    return _Field(rows, np.minimum(a, b), np.maximum(a, b), flip, width, asked)


def _tables(
    values: NDArray[np.int8], comparisons: Comparisons, field: _Field, questions: Indices, width: int
) -> NDArray[np.int8]:
    """(V, questions, width, width) from (V, P): each pair's value at its place, UNKNOWN where none was asked."""
    table = np.full((len(values), len(questions), width, width), UNKNOWN, dtype=np.int8)
    of_question = comparisons.question[field.rows]
    here = np.isin(of_question, questions)
    lane = np.searchsorted(questions, of_question[here])
    signed = values[:, field.rows[here]]
    signed = np.where(np.abs(signed.astype(np.int16)) <= 1, signed * field.flip[here], UNKNOWN).astype(np.int8)
    table[:, lane, field.i[here], field.j[here]] = signed
    return table


def _count(
    counts: SubsetsByRule,
    comparisons: Comparisons,
    questions: Indices,
    width: int,
    sizes: Sequence[int],
    draws: _Draws | None = None,
) -> None:
    """Count and enter the counts of these questions; with `draws`, estimates for the one question that there is."""
    values = np.concatenate([found.outcomes for found in comparisons.by_rule.values()])
    table = _tables(values, comparisons, counts.field, questions, width)
    shape = table.shape[:2]
    lanes = table.reshape(-1, width, width)
    for k, found in _subsets(lanes, sizes, tuple(FAULTS), draws, int(questions[0])).items():
        start = 0
        for rule, verdict in comparisons.by_rule.items():
            mine = slice(start, start + len(verdict.tolerances))
            counts.complete[rule][k][:, questions] = found.complete.reshape(shape)[mine]
            for fault, faulty in found.faulty.items():
                counts.faulty[rule][k][fault][:, questions] = faulty.reshape(shape)[mine]
            start = mine.stop


def _subsets(
    lanes: Relations, sizes: Sequence[int], faults: Sequence[str], draws: _Draws | None, question: int
) -> dict[int, SubsetCounts]:
    if draws is None:
        return count_subsets(lanes, sizes, faults)
    return {k: draws.counted(lanes, question, k, faults) for k in sizes}


def _lost(
    layout: Layout,
    comparisons: Comparisons,
    field: _Field,
    found: RuleOutcomes,
    complete: dict[int, Floats],
    draws: _Draws,
) -> dict[int, dict[str, Floats]]:
    """By k and reason the subsets (Q,) that are not complete under a rule.

    Reasons are let in one after the other: what becomes complete with the next one is lost to that one. What a plan
    never meant to have comes last: a subset without it is not lost to the judge too.
    """
    sizes = list(complete)
    possible = {k: np.array([comb(int(n), k) for n in layout.sizes], dtype=np.float64) * field.asked for k in sizes}
    before: dict[int, Floats] = {k: complete[k][0] for k in sizes}
    lost: dict[int, dict[str, Floats]] = {k: {} for k in sizes}
    statuses = comparisons.pairs.statuses
    present = sorted(
        {statuses[code] for code in np.unique(found.status[~found.valid])}, key=lambda name: (name in BY_DESIGN, name)
    )
    holed = np.unique(comparisons.question[~found.valid])
    for n, reason in enumerate(present):
        let_in = found.valid | np.isin(found.status, [statuses.index(name) for name in present[: n + 1]])
        after = _let_in(let_in, comparisons, field, holed, before, draws)
        for k in sizes:
            lost[k][reason] = after[k] - before[k]
        before = after
    for k in sizes:
        lost[k]["never_asked"] = possible[k] - before[k]
    return lost


def _let_in(
    valid: NDArray[np.bool_],
    comparisons: Comparisons,
    field: _Field,
    holed: Indices,
    before: dict[int, Floats],
    draws: _Draws,
) -> dict[int, Floats]:
    """By k (Q,) complete subsets if these pairs were valid; `holed` are the questions that may have more of them than
    `before`."""
    values = np.where(valid, 0, UNKNOWN).astype(np.int8)[None]
    after = {k: counts.copy() for k, counts in before.items()}
    for width in np.unique(field.width[holed][field.width[holed] >= 3]):
        questions = holed[field.width[holed] == width]
        exact = [k for k in before if not must_sample(int(width), k)]
        table = _tables(values, comparisons, field, questions, int(width))[0]
        for k, counted in count_subsets(table, exact, faults=()).items() if exact else ():
            after[k][questions] = counted.complete
        for k in before.keys() - exact:
            for lane, question in enumerate(questions):
                after[k][question] = draws.counted(table[lane : lane + 1], int(question), k, ()).complete[0]
    return after


def _rule_rows(
    layout: Layout,
    comparisons: Comparisons,
    rule: str,
    k: int,
    counts: SubsetsByRule,
    confidence: float,
) -> list[pl.DataFrame]:
    found, complete, lost = comparisons.by_rule[rule], counts.complete[rule][k], counts.lost[rule][k]
    keys = {
        "judge": comparisons.judge,
        "protocol": comparisons.protocol,
        "verdict_rule": rule,
        "k": k,
        "tolerance": np.array(found.tolerances),
    }
    faulty = counts.faulty[rule][k]
    every = stacked(keys, [f"non_transitivity_{fault}" for fault in faulty], len(complete))
    cases = np.tile(complete, (len(faulty), 1))
    rows = [ratio_rows(layout, every, np.concatenate(list(faulty.values())), cases, lost, confidence)]
    rows.append(bound_rows(layout, keys, "non_transitivity_ratio", faulty["ratio"], complete, lost, confidence))
    ties = np.stack([comparisons.counted(found.valid, outcome == 0, layout) for outcome in found.outcomes])
    valid = np.broadcast_to(comparisons.counted(found.valid, None, layout), ties.shape)
    return rows + _chance_rows(layout, keys, (faulty["ratio"], complete, ties, valid), k, confidence)


def _chance_rows(
    layout: Layout, keys: dict[str, Any], counts: tuple[Floats, Floats, Floats, Floats], k: int, confidence: float
) -> list[pl.DataFrame]:
    """What chance gives, and the ratio less it, from (T, Q) faulty and complete subsets, ties and valid pairs."""
    shape = (len(counts[0]), len(layout.categories))
    chance, totals, over = np.full(shape, np.nan), np.zeros(shape), []
    for c, questions in enumerate(layout.categories.values()):
        faulty, complete, ties, valid = (part[:, questions] for part in counts)
        totals[:, c] = complete.sum(axis=1)
        if valid.sum():
            chance[:, c] = [chance_of_fault(share, k) for share in ties.sum(axis=1) / valid.sum(axis=1)]
        over.append(faults_over_chance(faulty, complete, ties, valid, k, confidence))
    return [
        plain_rows(layout, {**keys, "metric": "chance_non_transitivity_ratio"}, chance, totals),
        over_chance_rows(layout, {**keys, "metric": "non_transitivity_ratio_minus_chance"}, over, totals),
    ]


SPARSE: Final = 0.9
"""Below this share of closed subsets, among those of the responses that were compared at all, a plan is sparse."""


def _warnings(
    layout: Layout, field: _Field, comparisons: Comparisons, sizes: Sequence[int], lost: dict[int, dict[str, Floats]]
) -> list[str]:
    """Which ratios are estimates, and which rest on what a sparse plan happened to close."""
    about = f"judge '{comparisons.judge}', protocol '{comparisons.protocol}'"
    asked = comparisons.pairs.asked
    if asked.any() and not asked.all(axis=1).any():
        return [
            f"{about}: no pair was asked about in both orders, so there are no verdicts, no conflict_ratio and no "
            "non_transitivity"
        ]
    told = []
    for k in sizes:
        big = np.array([must_sample(int(width), k) for width in field.width], dtype=bool)
        if big.any():
            told.append(
                f"non_transitivity at k = {k}, {about}: {big.sum()} questions have over {MOST_RESPONSES} compared "
                f"responses or too many subsets, so their counts are estimated from {SAMPLED_SUBSETS} random subsets "
                "each"
            )
        possible = (np.array([comb(int(n), k) for n in layout.sizes]) * field.asked).sum()
        never = sum(lost[k][reason].sum() for reason in _NOT_PLANNED if reason in lost[k])
        inside = sum(comb(int(width), k) for width in field.width)
        if possible and possible - never < SPARSE * max(inside, 1):
            told.append(_sparse(k, about, round(possible - never), int(possible)))
    return told


_NOT_PLANNED: Final = ("never_asked", "missing_order")


def _sparse(k: int, about: str, planned: int, possible: int) -> str:
    if not planned:
        return (
            f"non_transitivity at k = {k}, {about}: not computed. The plan closes none of {possible:,} subsets of "
            f"{k} responses; the designs `full` and `blocks`, with both orders of every pair, do"
        )
    return (
        f"non_transitivity at k = {k}, {about}: rests on the {planned:,} of {possible:,} subsets all of whose pairs a "
        "sparse plan happens to hold in both orders, which need not be like the others; the designs `full` and "
        "`blocks`, with both orders of every pair, choose theirs at random or take all"
    )
