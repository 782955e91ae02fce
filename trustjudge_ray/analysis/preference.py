"""Does a judge prefer answers of one kind (longer ones, its own family's), and more than others do on the same pairs?

A preference alone is no bias: the longer answer may be the better one. So beside the judge's share stands that of a
reference (people, other judges) on the same pairs, and the paired difference of the two. What it can say is bounded by
noise: whoever guesses is drawn to one half, so a judge noisier than its reference shows a difference towards one half
without any bias, and a noisy reference makes a judge look biased the other way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis.comparisons import Comparisons
from trustjudge_ray.analysis.inference import (
    Array,
    RatioIntervals,
    linearised,
    mean_intervals,
    widest_without_spread,
)
from trustjudge_ray.analysis.layout import Indices, Layout, ratio_rows
from trustjudge_ray.analysis.readouts import Floats
from trustjudge_ray.analysis.verdicts import UNDEFINED, Outcomes

Reasons = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Marked:
    """Which side of P pairs is of the kind in question.

    Attributes:
        side: (P,) +1 where a is and b is not, −1 where b is and a is not, 0 elsewhere.
        why: (P,) where side is 0, the place of the reason in `reasons`.
    """

    side: NDArray[np.int8]
    why: Reasons
    reasons: Sequence[str]


@dataclass(frozen=True, slots=True)
class Reference:
    """What others say about the P pairs.

    Attributes:
        outcomes: (T, P), or (1, P) for all tolerances: +1 a better, −1 b better, 0 equal, UNDEFINED.
        unknown, equal: what it is called where they are UNDEFINED, and 0.
    """

    outcomes: Outcomes
    unknown: str
    equal: str


def preference_rows(
    layout: Layout,
    comparisons: Comparisons,
    metric: str,
    marked: Marked,
    references: Mapping[str, Mapping[str, Reference]],
    confidence: float,
) -> list[pl.DataFrame]:
    """METRICS of one judge and comparison protocol, by verdict rule and tolerance.

    `<metric>`: of the pairs of which one answer is of the kind and which the judge decides, the share that goes to it.
    For each reference `<metric>_<reference>`, the reference's share over the pairs that it decides too, and
    `<metric>_minus_<reference>`, the judge's share less the reference's over these. `excluded_by`: the pair's status,
    why neither or both are of the kind, `tie` (the judge's), and why the reference does not decide.

    Args:
        references: by name, then by verdict rule.
    """
    rows = []
    for rule, found in comparisons.by_rule.items():
        keys = {"judge": comparisons.judge, "protocol": comparisons.protocol, "verdict_rule": rule}
        chosen = np.flatnonzero(found.valid & (marked.side != 0))
        unmarked = _unmarked(layout, comparisons, rule, marked)
        for place, tolerance in enumerate(found.tolerances):
            pairs = _Pairs(comparisons.question[chosen], marked.side[chosen], found.outcomes[place][chosen])
            others = {name: (by_rule[rule], place) for name, by_rule in references.items()}
            about = keys | {"tolerance": tolerance}
            rows += _of_one(layout, about, metric, pairs, unmarked, chosen, others, confidence)
    return rows


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Pairs that have a verdict, one of whose answers is of the kind: question, side and outcome of each."""

    question: Indices
    side: NDArray[np.int8]
    outcome: Outcomes


def _of_one(
    layout: Layout,
    about: dict[str, Any],
    metric: str,
    pairs: _Pairs,
    unmarked: dict[str, Floats],
    chosen: Indices,
    references: Mapping[str, tuple[Reference, int]],
    confidence: float,
) -> list[pl.DataFrame]:
    """The METRICS under one rule and tolerance; `chosen` are the places of the pairs in the references."""

    def counted(which: NDArray[np.bool_]) -> Floats:
        return np.bincount(pairs.question[which], minlength=layout.questions).astype(np.float64)

    decides, wins = pairs.outcome != 0, pairs.outcome == pairs.side
    lost = unmarked | {"tie": counted(~decides)}
    rows = [ratio_rows(layout, about | {"metric": metric}, counted(wins), counted(decides), lost, confidence)]
    for name, (reference, place) in references.items():
        theirs = reference.outcomes[min(place, len(reference.outcomes) - 1)][chosen]
        known = theirs != UNDEFINED
        both = decides & known & (theirs != 0)
        away = {reference.unknown: counted(decides & ~known), reference.equal: counted(decides & (theirs == 0))}
        hers, cases, out = counted(both & (theirs == pairs.side)), counted(both), lost | away
        rows.append(ratio_rows(layout, about | {"metric": f"{metric}_{name}"}, hers, cases, out, confidence))
        named = about | {"metric": f"{metric}_minus_{name}"}
        gap = counted(both & wins) - hers
        rows.append(ratio_rows(layout, named, gap, cases, out, confidence, difference_intervals))
    return rows


def _unmarked(layout: Layout, comparisons: Comparisons, rule: str, marked: Marked) -> dict[str, Floats]:
    """By reason (Q,), the pairs without a verdict, and those without an answer that alone is of the kind."""
    valid = comparisons.by_rule[rule].valid
    out = valid & (marked.side == 0)
    _, lost = counted_by_reason(comparisons.question[out], marked.why[out], marked.reasons, layout.questions)
    return comparisons.lost(rule, layout) | lost


def counted_by_reason(
    question: Indices, why: Reasons, reasons: Sequence[str], questions: int
) -> tuple[Floats, dict[str, Floats]]:
    """(Q,) cases that count, whose reason is the first one, and by each other reason those that do not."""
    size = len(reasons)
    table = np.bincount(question * size + why, minlength=questions * size).reshape(questions, size).astype(np.float64)
    return table[:, 0], {reason: table[:, place] for place, reason in enumerate(reasons) if place}


def difference_intervals(sums: Array, counts: Array, confidence: float = 0.95, most: float = 1.0) -> RatioIntervals:
    """Means of quantities from −most to most, with question-clustered t intervals that stay in there.

    Where no question differs from another the interval has the width of Wilson's for no hit among so many.
    """
    found, summary = mean_intervals(sums, counts, confidence), linearised(sums, counts)
    unseen = most * widest_without_spread(summary.kish, summary.freedom, confidence)
    with np.errstate(invalid="ignore"):
        half = np.where(summary.variance > 1e-24, (found.high - found.low) / 2, unseen)
        low, high = np.clip(found.value - half, -most, most), np.clip(found.value + half, -most, most)
    return RatioIntervals(found.value, low, high, found.hits, found.cases, found.questions, found.freedom)
