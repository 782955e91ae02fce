"""Estimates of the audit with intervals clustered by passage: shares, differences and halves of sums of shares.

Questions about one passage are not independent, so a passage is what is sampled. Shares are those of
`analysis.inference` (Wilson's interval with an effective number of cases). Differences and sums of two shares combine
their intervals by square-and-add (Newcombe, Statistics in Medicine 17, 1998, 873-890; for correlated estimates MOVER:
Zou and Donner, Statistics in Medicine 27, 2008, 1693-1702), with the correlation of their linearisations over passages.
No interval has width zero: Wilson's has none.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trustjudge_ray.analysis.inference import (
    Array,
    RatioIntervals,
    linearised,
    mean_intervals,
    ratio_intervals,
    soft_ratio_intervals,
)

Clusters = NDArray[np.int64]
CONFIDENCE: Final = 0.95
_NO_VARIANCE: Final = 1e-24


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with an interval.

    Attributes:
        value: NaN without a case.
        low, high: NaN without a case, with cases in one passage only, and see `mean`.
        hits: Σ hits of a share; None where the number is no share.
        cases: what it was taken over.
        present: (passages,) which of them have a case.
        freedom: degrees of freedom of the interval, NaN where there is none.
        influence: (passages,) what each adds to the error; the squares sum to the variance. NaN where there is none.
    """

    value: float
    low: float
    high: float
    hits: float | None
    cases: int
    present: NDArray[np.bool_]
    freedom: float
    influence: Array

    @property
    def clusters(self) -> int:
        """How many passages have a case."""
        return int(self.present.sum())


def share(cluster: Clusters, hits: Array, size: int, soft: bool = False) -> Estimate:
    """Mean of hits in [0, 1], one a case.

    Args:
        cluster: (cases,) passage of each case, 0 to size − 1.
        hits: (cases,).
        size: passages of the audit.
        soft: hits are probabilities, whose variance may be far below that of a count.
    """
    return _ratio(soft_ratio_intervals if soft else ratio_intervals, cluster, hits, size)


def mean(cluster: Clusters, values: Array, size: int) -> Estimate:
    """Mean of unbounded values, with Student's t interval; without one where all passages have the same mean, because
    then nothing says how far they could differ."""
    found = replace(_ratio(mean_intervals, cluster, values, size), hits=None)
    return found if (found.influence**2).sum() > _NO_VARIANCE else replace(found, low=np.nan, high=np.nan)


def change(cluster: Clusters, differences: Array, size: int, soft: bool = False) -> Estimate:
    """Mean of differences in [−1, 1], one a case: the share of rises less the share of falls.

    Both shares have intervals as in `share`, combined as correlated estimates, so that where nothing differs the
    interval is that of no hit among so many passages, and not zero wide.
    """
    rises = share(cluster, np.maximum(differences, 0), size, soft)
    falls = share(cluster, np.maximum(-differences, 0), size, soft)
    return replace(difference(rises, falls), cases=rises.cases)


def difference(first: Estimate, second: Estimate) -> Estimate:
    """first − second, two shares over the same passages, of the same cases or of others."""
    return _joined(first, second, -1)


def half_sum(first: Estimate, second: Estimate) -> Estimate:
    """½(first + second), two shares over the same passages."""
    return linear(_joined(first, second, 1), 0.5, 0.0)


def linear(of: Estimate, factor: float, shift: float) -> Estimate:
    """factor · x + shift; no longer a share, so without hits."""
    ends = sorted((factor * of.low + shift, factor * of.high + shift))
    scaled = replace(of, value=factor * of.value + shift, low=ends[0], high=ends[1], hits=None)
    return replace(scaled, influence=factor * of.influence)


def per_cluster(cluster: Clusters, values: Array, size: int) -> Array:
    """(size,) sums of values by passage."""
    sums = np.bincount(cluster, weights=np.asarray(values, dtype=np.float64), minlength=size)
    return np.asarray(sums, dtype=np.float64)


def _ratio(
    intervals: Callable[[Array, Array], RatioIntervals], cluster: Clusters, values: Array, size: int
) -> Estimate:
    sums, counts = per_cluster(cluster, values, size), per_cluster(cluster, np.ones(len(cluster)), size)
    found, influence = intervals(sums, counts), linearised(sums, counts).influence
    value, low, high = (float(part) for part in (found.value, found.low, found.high))
    return Estimate(value, low, high, float(sums.sum()), len(cluster), counts > 0, float(found.freedom), influence)


def _joined(first: Estimate, second: Estimate, sign: int) -> Estimate:
    """first ± second: each limit from how far the limits of both parts lie from their values."""
    value = first.value + sign * second.value
    ends = (second.low, second.high) if sign > 0 else (second.high, second.low)
    down = _far(first.value - first.low, abs(second.value - ends[0]), first, second, sign)
    up = _far(first.high - first.value, abs(ends[1] - second.value), first, second, sign)
    least = -1.0 if sign < 0 else 0.0
    return Estimate(
        value,
        float(np.clip(value - down, least, least + 2.0)),
        float(np.clip(value + up, least, least + 2.0)),
        None,
        first.cases + second.cases,
        first.present | second.present,
        float(np.minimum(first.freedom, second.freedom)),
        first.influence + sign * second.influence,
    )


def _far(one: float, other: float, first: Estimate, second: Estimate, sign: int) -> float:
    """√(a² + b² ± 2rab), r the correlation of the two estimates; 0 where one of them shows no variance."""
    spread = np.sqrt((first.influence**2).sum() * (second.influence**2).sum())
    r = float((first.influence * second.influence).sum() / spread) if spread > 0 else 0.0
    return float(np.sqrt(np.maximum(one**2 + other**2 + 2 * sign * r * one * other, 0.0)))
