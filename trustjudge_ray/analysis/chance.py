"""What chance gives with the same shares of ties, and whether a judge does better.

A judge that always ties never contradicts itself, so a conflict or non-transitivity ratio says little without the value
that answers drawn at random with as many ties would have. Which of two responses is `a` means nothing, so chance takes
either side alike: its only marginal is the share of ties.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb, factorial
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis.inference import Array, Linearised, linearised, t_quantile, widest_without_spread
from trustjudge_ray.analysis.layout import Layout, plain_rows

MINUS_CHANCE: Final = {
    "conflict_ratio_minus_chance": "conflict_ratio",
    "non_transitivity_ratio_minus_chance": "non_transitivity_ratio",
}
"""The metrics that hold a ratio less what chance gives, with the ratio's own name."""


def chance_of_conflict(score_ties: Array, verdict_ties: Array) -> Array:
    """How often verdicts would differ from scores that they share nothing with: 1 − (s·v + (1−s)(1−v)/2) for tie
    shares s and v."""
    return 1 - score_ties * verdict_ties - (1 - score_ties) * (1 - verdict_ties) / 2


def chance_of_fault(tie_share: float, k: int) -> float:
    """The share of k-subsets with an intransitive triple if every pair were drawn on its own: a tie with this
    probability, else either side alike.

    One minus the probability of all orderings with ties: blocks of sizes b, k!/Πb! ways, each with probability
    t^m · ((1−t)/2)^(k(k−1)/2 − m), m = Σ b(b−1)/2 tied pairs.
    """
    ordered = sum(ways * tie_share**tied * ((1 - tie_share) / 2) ** (comb(k, 2) - tied) for ways, tied in _orderings(k))
    return max(1 - ordered, 0.0)


def chance_of_fault_slope(tie_share: float, k: int) -> float:
    """The derivative of `chance_of_fault` by the tie share."""
    half, total = (1 - tie_share) / 2, 0.0
    for ways, tied in _orderings(k):
        strict = comb(k, 2) - tied
        more = tied * tie_share ** (tied - 1) * half**strict if tied else 0.0
        fewer = strict / 2 * tie_share**tied * half ** (strict - 1) if strict else 0.0
        total -= ways * (more - fewer)
    return total


@dataclass(frozen=True, slots=True)
class OverChance:
    """Ratios less what chance gives, with question-clustered intervals; arrays (C,), below 0 where a judge is better.

    Chance is estimated from the same questions, so its own error is in the interval.
    """

    value: Array
    low: Array
    high: Array


def conflicts_over_chance(
    conflicts: Array, score_ties: Array, verdict_ties: Array, cases: Array, confidence: float
) -> OverChance:
    """Conflict ratios less `chance_of_conflict`.

    Args:
        conflicts, score_ties, verdict_ties, cases: (C, Q) counts of pairs by question.
    """
    total = cases.sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        s, v, ratio = (part.sum(axis=-1) / total for part in (score_ties, verdict_ties, conflicts))
    slopes = ((1 - 3 * v) / 2)[..., None] * score_ties + ((1 - 3 * s) / 2)[..., None] * verdict_ties
    around = linearised(conflicts - np.where(np.isnan(slopes), 0, slopes), cases)
    return _over(ratio - chance_of_conflict(s, v), around.influence, around, around, confidence)


def faults_over_chance(
    faulty: Array, complete: Array, ties: Array, pairs: Array, k: int, confidence: float
) -> OverChance:
    """Non-transitivity ratios less `chance_of_fault`.

    Args:
        faulty, complete: (C, Q) subsets by question.
        ties, pairs: (C, Q) tied pairs and valid pairs, whose ratio is the tie share.
    """
    ratio, share = linearised(faulty, complete), linearised(ties, pairs)
    chance = np.array([np.nan if np.isnan(t) else chance_of_fault(float(t), k) for t in share.value])
    slope = np.array([np.nan if np.isnan(t) else chance_of_fault_slope(float(t), k) for t in share.value])
    influence = ratio.influence - slope[:, None] * share.influence
    return _over(ratio.value - chance, influence, ratio, share, confidence)


def over_chance_rows(
    layout: Layout, keys: Mapping[str, object], over: Sequence[OverChance], cases: NDArray[Any]
) -> pl.DataFrame:
    """METRICS of differences from chance, one `OverChance` for each category; `cases` (C, categories)."""
    value, low, high = (np.stack([getattr(part, name) for part in over], axis=1) for name in ("value", "low", "high"))
    return plain_rows(layout, keys, value, cases, low=low, high=high)


def no_better_than_chance(metrics: pl.DataFrame) -> pl.DataFrame:
    """The rows of METRICS in which a ratio is not shown to be below chance: the interval of the difference reaches 0.

    Rows without an interval are left out: nothing can be said. The metric column holds the ratio's own name.
    """
    rows = metrics.filter(pl.col("metric").is_in(list(MINUS_CHANCE)) & (pl.col("high") >= 0))
    return rows.with_columns(pl.col("metric").replace(MINUS_CHANCE))


def _over(value: Array, influence: Array, ratio: Linearised, share: Linearised, confidence: float) -> OverChance:
    freedom = np.minimum(ratio.freedom, share.freedom)
    spread = np.sqrt((influence**2).sum(axis=-1))
    unseen = widest_without_spread(np.minimum(ratio.kish, share.kish), freedom, confidence)
    with np.errstate(invalid="ignore"):
        half = np.where(spread > 1e-12, t_quantile(freedom, confidence) * spread, unseen)
    return OverChance(value, value - half, value + half)


def _orderings(k: int) -> list[tuple[float, int]]:
    """The orderings with ties of k: (how many, tied pairs) for every sequence of block sizes."""
    return [
        (factorial(k) / float(np.prod([factorial(b) for b in blocks])), sum(comb(b, 2) for b in blocks))
        for blocks in _compositions(k)
    ]


def _compositions(k: int) -> list[tuple[int, ...]]:
    return [(first, *rest) for first in range(1, k + 1) for rest in (_compositions(k - first) if first < k else [()])]
