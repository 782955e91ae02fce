"""The area under the ROC curve with an interval clustered by passage.

AUC is the probability that a right answer gets higher log-odds than a wrong one, a tie counting as half. Its variance
is that of placement values (DeLong, DeLong and Clarke-Pearson, Biometrics 44, 1988, 837-845), summed by passage because
answers to one passage are not independent (Obuchowski, Biometrics 53, 1997, 567-578).
"""

from typing import Final

import numpy as np

from trustjudge_ray.analysis.inference import Array, linearised, t_quantile
from trustjudge_ray.audit.estimates import CONFIDENCE, Clusters, Estimate, per_cluster

_PULL: Final = 2.2
"""How many passages must bear the misorderings before their variance is trusted; as in `analysis.inference`."""


def auc(
    right: tuple[Clusters, Array], wrong: tuple[Clusters, Array], size: int, confidence: float = CONFIDENCE
) -> Estimate:
    """AUC with Wilson's interval for an effective number of independent cases, A(1−A)/variance.

    Variance: with V(i) the share of wrong answers below right answer i and V(j) the share of right ones above wrong
    answer j, a passage adds Σ(V(i) − A)/m + Σ(V(j) − A)/n to the error, each part corrected for what the passage did to
    it as in `analysis.inference.linearised`; degrees of freedom are the smaller of the two parts'.

    Boundary: a variance that comes from few passages is too small too often, so the effective number is drawn towards
    that of passages, (Σn)²/Σn², where few of them bear the misorderings (for the lower limit) or the right orderings
    (for the upper one). With AUC 0 or 1, or without any variance (every answer has the same log-odds), it is that
    number. So an interval stays in [0, 1] and never has width zero.

    Args:
        right, wrong: passage (0 to size − 1) and log-odds of each right and each wrong answer; finite.
        size: passages of the audit.

    Returns:
        `value` NaN without right or wrong answers; `hits` None; `cases` right and wrong together.
    """
    (right_at, above), (wrong_at, below) = right, wrong
    placed = _placement(below, above), 1 - _placement(above, below)
    parts = [
        (per_cluster(at, v, size), per_cluster(at, np.ones(len(at)), size))
        for at, v in zip((right_at, wrong_at), placed, strict=True)
    ]
    present = (parts[0][1] > 0) | (parts[1][1] > 0)
    cases = len(above) + len(below)
    nothing = np.full(size, np.nan)
    if not (len(above) and len(below)):
        return Estimate(np.nan, np.nan, np.nan, None, cases, present, np.nan, nothing)
    first, second = (linearised(*part) for part in parts)
    value = float(first.value)
    influence = first.influence + second.influence
    freedom = float(np.minimum(first.freedom, second.freedom))
    kish = float(np.minimum(first.kish, second.kish))
    shares = [part[0] / part[1].sum() for part in parts]
    lost = [part[1] / part[1].sum() - won for part, won in zip(parts, shares, strict=True)]
    variance = float((influence**2).sum())
    ends = [_effective(value, variance, kish, events) for events in (lost[0] + lost[1], shares[0] + shares[1])]
    low, high = _wilson(value, ends, float(t_quantile(np.asarray(freedom), confidence)))
    return Estimate(value, low, high, None, cases, present, freedom, influence)


def _placement(others: Array, of: Array) -> Array:
    """For each of `of` the share of `others` that lie below it, equal ones as half."""
    if not len(others):
        return np.full(len(of), np.nan)
    ranked = np.sort(others)
    below, upto = (np.searchsorted(ranked, of, side=side) for side in ("left", "right"))
    return np.asarray((below + upto) / (2 * len(ranked)), dtype=np.float64)


def _effective(value: float, variance: float, kish: float, events: Array) -> float:
    """Independent cases worth as much as these, drawn towards `kish` where few passages bear the events."""
    plain = value * (1 - value) / variance if variance > 1e-24 and 1e-12 < value < 1 - 1e-12 else kish
    total = float(events.sum())
    bearing = total**2 / float((events**2).sum()) if total > 1e-12 else 0.0
    weight = (_PULL / (bearing + _PULL)) ** 2
    return float(1 / (1 / plain + max(1 / kish - 1 / plain, 0.0) * weight))


def _wilson(value: float, effective: list[float], t: float) -> tuple[float, float]:
    """Wilson's limits, the lower and the upper with a number of cases each."""
    limits = []
    for n, sign in zip(effective, (-1, 1), strict=True):
        half = np.sqrt(t**2 * (value * (1 - value) / n + t**2 / (4 * n**2)))
        limits.append(float((value + t**2 / (2 * n) + sign * half) / (1 + t**2 / n)))
    return min(max(limits[0], 0.0), value), max(min(limits[1], 1.0), value)
