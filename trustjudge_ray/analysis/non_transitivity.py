"""Non-transitivity ratio: the share of k-subsets of a question's responses whose verdicts fit no ordering."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis.comparisons import Comparisons, RuleOutcomes
from trustjudge_ray.analysis.layout import Indices, Layout, plain_rows, ratio_rows, stacked
from trustjudge_ray.analysis.readouts import Floats
from trustjudge_ray.analysis.transitivity import (
    FAULTS,
    MOST_RESPONSES,
    UNKNOWN,
    chance_of_fault,
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
    ties and either side alike otherwise. It has no interval.
    """
    field = _field(layout, comparisons)
    counts = _Counts.empty(comparisons, sizes, layout.questions)
    for width in np.unique(field.width[field.width >= 3]):
        questions = np.flatnonzero(field.width == width)
        exact = [k for k in sizes if not must_sample(int(width), k)]
        variants = sum(len(found.tolerances) for found in comparisons.by_rule.values())
        step = max(int(_RELATION_BYTES // (variants * width**2)), 1)
        for start in range(0, len(questions) if exact else 0, step):
            _count(counts, comparisons, field, questions[start : start + step], int(width), exact)
        for k in set(sizes) - set(exact):
            _sample(counts, comparisons, field, questions, int(width), k, seed, layout)
    rows = []
    lost: dict[bytes, dict[int, dict[str, Floats]]] = {}
    for rule, found in comparisons.by_rule.items():
        signature = np.where(found.valid, -1, found.status).tobytes()
        if signature not in lost:
            lost[signature] = _lost(layout, comparisons, field, found, counts.complete[rule], sizes)
        for k in sizes:
            rows += _rule_rows(layout, comparisons, rule, k, counts, lost[signature][k], confidence)
    return rows, _warnings(field, comparisons, sizes)


@dataclass(frozen=True, slots=True)
class _Counts:
    """By verdict rule and k: complete subsets (T, Q), and those with a fault, by its name (T, Q)."""

    complete: dict[str, dict[int, Floats]]
    faulty: dict[str, dict[int, dict[str, Floats]]]

    @classmethod
    def empty(cls, comparisons: Comparisons, sizes: Sequence[int], questions: int) -> "_Counts":
        shape = {rule: (len(found.tolerances), questions) for rule, found in comparisons.by_rule.items()}
        return cls(
            {rule: {k: np.zeros(size) for k in sizes} for rule, size in shape.items()},
            {rule: {k: {fault: np.zeros(size) for fault in FAULTS} for k in sizes} for rule, size in shape.items()},
        )


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
    counts: _Counts, comparisons: Comparisons, field: _Field, questions: Indices, width: int, sizes: Sequence[int]
) -> None:
    """Count exactly and enter the counts of these questions."""
    values = np.concatenate([found.outcomes for found in comparisons.by_rule.values()])
    table = _tables(values, comparisons, field, questions, width)
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
    counts: _Counts,
    comparisons: Comparisons,
    field: _Field,
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
            table = _tables(verdict.outcomes, comparisons, field, np.array([question]), width)[:, 0]
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
    counts: _Counts,
    lost: dict[str, Floats],
    confidence: float,
) -> list[pl.DataFrame]:
    found, complete = comparisons.by_rule[rule], counts.complete[rule][k]
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
    rows = ratio_rows(layout, every, np.concatenate(list(faulty.values())), cases, lost, confidence)
    valid = comparisons.counted(found.valid, None, layout)
    ties = np.stack([comparisons.counted(found.valid, outcome == 0, layout) for outcome in found.outcomes])
    shape = (len(ties), len(layout.categories))
    chance, totals = np.full(shape, np.nan), np.zeros(shape)
    for c, questions in enumerate(layout.categories.values()):
        totals[:, c] = complete[:, questions].sum(axis=1)
        total = valid[questions].sum()
        if total:
            shares = ties[:, questions].sum(axis=1) / total
            chance[:, c] = [chance_of_fault(share, k) for share in shares]
    return [rows, plain_rows(layout, {**keys, "metric": "chance_non_transitivity_ratio"}, chance, totals)]


def _warnings(field: _Field, comparisons: Comparisons, sizes: Sequence[int]) -> list[str]:
    return [
        f"non_transitivity at k = {k}, judge '{comparisons.judge}', protocol '{comparisons.protocol}': {sampled} "
        f"questions have over {MOST_RESPONSES} compared responses or too many subsets, so their counts are estimated "
        f"from {SAMPLED_SUBSETS} random subsets each"
        for k in sizes
        for sampled in (sum(must_sample(int(width), k) for width in field.width),)
        if sampled
    ]
