"""Non-transitivity ratio: the share of k-subsets of a question's responses whose verdicts fit no ordering."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis.bounds import bound_rows
from trustjudge_ray.analysis.chance import chance_of_fault, faults_over_chance, over_chance_rows
from trustjudge_ray.analysis.comparisons import Comparisons, RuleOutcomes
from trustjudge_ray.analysis.layout import Indices, Layout, plain_rows, ratio_rows, stacked
from trustjudge_ray.analysis.readouts import Floats
from trustjudge_ray.analysis.transitivity import (
    FAULTS,
    MOST_RESPONSES,
    UNKNOWN,
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
    else the last status by name among their pairs'. Where subsets are too many to count, counts are estimated from
    random ones and a warning says so.

    `chance_non_transitivity_ratio` is what pairs would give that are drawn each on its own, with the same share of
    ties (`tie_rate` has it) and either side alike otherwise, without an interval;
    `non_transitivity_ratio_minus_chance` is the difference, with one. `non_transitivity_ratio_lowest` and `_highest`
    are the ratio if none, or all, of the subsets that were asked for and lost held a fault.

    A plan that closes few triples (a matching, an anchor, one order) leaves no subset, or an odd choice of them: a
    warning says so.
    """
    found = subset_counts(layout, comparisons, sizes, seed)
    rows = []
    for rule in comparisons.by_rule:
        for k in sizes:
            rows += _rule_rows(layout, comparisons, rule, k, found, confidence)
    return rows, _warnings(layout, found.field, comparisons, sizes, next(iter(found.lost.values()), {}))


def subset_counts(layout: Layout, comparisons: Comparisons, sizes: Sequence[int], seed: int = 0) -> SubsetsByRule:
    """Count, or where there are too many estimate, the subsets of every question under every rule and tolerance."""
    field = _field(layout, comparisons)
    counts = SubsetsByRule.empty(field, comparisons, sizes, layout.questions)
    for width in np.unique(field.width[field.width >= 3]):
        questions = np.flatnonzero(field.width == width)
        exact = [k for k in sizes if not must_sample(int(width), k)]
        variants = sum(len(found.tolerances) for found in comparisons.by_rule.values())
        step = max(int(_RELATION_BYTES // (variants * width**2)), 1)
        for start in range(0, len(questions) if exact else 0, step):
            _count(counts, comparisons, questions[start : start + step], int(width), exact)
        for k in set(sizes) - set(exact):
            _sample(counts, comparisons, questions, int(width), k, seed, layout)
    known: dict[bytes, dict[int, dict[str, Floats]]] = {}
    for rule, found in comparisons.by_rule.items():
        signature = np.where(found.valid, -1, found.status).tobytes()
        if signature not in known:
            known[signature] = _lost(layout, comparisons, field, found, counts.complete[rule], sizes)
        counts.lost[rule] = known[signature]
    return counts


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
    counts: SubsetsByRule, comparisons: Comparisons, questions: Indices, width: int, sizes: Sequence[int]
) -> None:
    """Count exactly and enter the counts of these questions."""
    values = np.concatenate([found.outcomes for found in comparisons.by_rule.values()])
    table = _tables(values, comparisons, counts.field, questions, width)
    shape = table.shape[:2]
    for k, found in count_subsets(table.reshape(-1, width, width), sizes).items():
        start = 0
        for rule, verdict in comparisons.by_rule.items():
            mine = slice(start, start + len(verdict.tolerances))
            counts.complete[rule][k][:, questions] = found.complete.reshape(shape)[mine]
            for fault, faulty in found.faulty.items():
                counts.faulty[rule][k][fault][:, questions] = faulty.reshape(shape)[mine]
            start = mine.stop


def _sample(
    counts: SubsetsByRule,
    comparisons: Comparisons,
    questions: Indices,
    width: int,
    k: int,
    seed: int,
    layout: Layout,
) -> None:
    """Estimate, from random subsets, and enter the counts of these questions scaled to all their subsets."""
    names = layout.responses.group_by("question", maintain_order=True).agg(pl.col("question_id").first())["question_id"]
    for question in questions:
        for rule, verdict in comparisons.by_rule.items():
            table = _tables(verdict.outcomes, comparisons, counts.field, np.array([question]), width)[:, 0]
            rng = np.random.default_rng(seed_of(str(seed), names[int(question)], str(k)))
            found = sample_subsets(table, k, SAMPLED_SUBSETS, rng)
            scale = comb(width, k) / SAMPLED_SUBSETS
            complete = np.round(found.complete * scale)
            counts.complete[rule][k][:, question] = complete
            for fault, faulty in found.faulty.items():
                share = faulty / np.maximum(found.complete, 1)
                counts.faulty[rule][k][fault][:, question] = share * complete


def _lost(
    layout: Layout,
    comparisons: Comparisons,
    field: _Field,
    found: RuleOutcomes,
    complete: dict[int, Floats],
    sizes: Sequence[int],
) -> dict[int, dict[str, Floats]]:
    """By k and reason the subsets (Q,) that are not complete under a rule.

    Reasons are let in one after the other: what becomes complete with the next one is lost to that one.
    """
    possible = {k: np.array([comb(int(n), k) for n in layout.sizes], dtype=np.float64) * field.asked for k in sizes}
    before: dict[int, Floats] = {k: complete[k][0] for k in sizes}
    lost: dict[int, dict[str, Floats]] = {k: {} for k in sizes}
    statuses = comparisons.pairs.statuses
    present = sorted({statuses[code] for code in np.unique(found.status[~found.valid])})
    holed = np.unique(comparisons.question[~found.valid])
    for n, reason in enumerate(present):
        let_in = found.valid | np.isin(found.status, [statuses.index(name) for name in present[: n + 1]])
        values = np.where(let_in, 0, UNKNOWN).astype(np.int8)[None]
        after = {k: before[k].copy() for k in sizes}
        for width in np.unique(field.width[holed][field.width[holed] >= 3]):
            questions = holed[field.width[holed] == width]
            exact = [k for k in sizes if not must_sample(int(width), k)]
            if exact:
                table = _tables(values, comparisons, field, questions, int(width))[0]
                for k, counted in count_subsets(table, exact, faults=()).items():
                    after[k][questions] = counted.complete
        for k in sizes:
            lost[k][reason] = after[k] - before[k]
        before = after
    for k in sizes:
        sampled = np.array([must_sample(int(width), k) for width in field.width], dtype=bool)
        rest = possible[k] - before[k]
        lost[k]["never_asked"] = np.where(sampled, 0, rest)
        lost[k]["incomplete_estimated"] = np.where(sampled, rest, 0)
    return lost


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
    told = []
    for k in sizes:
        big = np.array([must_sample(int(width), k) for width in field.width], dtype=bool)
        if big.any():
            told.append(
                f"non_transitivity at k = {k}, {about}: {big.sum()} questions have over {MOST_RESPONSES} compared "
                f"responses or too many subsets, so their counts are estimated from {SAMPLED_SUBSETS} random subsets "
                "each"
            )
        possible = np.array([comb(int(n), k) for n in layout.sizes]) * field.asked * ~big
        planned = (possible - lost[k]["never_asked"] * ~big).sum()
        inside = (np.array([comb(int(width), k) for width in field.width]) * ~big).sum()
        if possible.sum() and planned < SPARSE * max(inside, 1):
            told.append(_sparse(k, about, int(planned), int(possible.sum())))
    one_order = comparisons.pairs.asked.any() and not comparisons.pairs.asked.all(axis=1).any()
    if one_order:
        told.append(
            f"{about}: no pair was asked about in both orders, so there are no verdicts and no non_transitivity"
        )
    return told


def _sparse(k: int, about: str, planned: int, possible: int) -> str:
    if not planned:
        return (
            f"non_transitivity at k = {k}, {about}: not computed. The plan closes none of {possible:,} subsets of "
            f"{k} responses; the designs `full` and `blocks` do"
        )
    return (
        f"non_transitivity at k = {k}, {about}: rests on the {planned:,} of {possible:,} subsets whose pairs a sparse "
        "plan happens to hold, which need not be like the others; the designs `full` and `blocks` choose theirs at "
        "random or take all"
    )
