"""Prediction-powered estimates: what people would say about everything, from what they said about a little.

PPI++ (Angelopoulos, Duchi and Zrnic, arXiv 2311.01453) for means, with questions as clusters and with labels that are
drawn from the same units that the judge read: θ = λ·mean(judge, all) + mean(people − λ·judge, labelled). Right whatever
the judge is worth, if the labelled units are a random sample; λ only decides how narrow the interval is.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from trustjudge_ray.analysis.games import Array, Index, binned
from trustjudge_ray.analysis.inference import linearised


@dataclass(frozen=True, slots=True)
class Powered:
    """A mean over all units, estimated.

    Attributes:
        value, low, high: prediction-powered; low and high None with labels in fewer than two questions.
        tuning: λ, 0 (the labels alone) to 1.
        labels_value, labels_low, labels_high: from the labels alone.
        judge_value: the judge's own mean: what is wrong with it is `value − judge_value`.
        labelled, units, questions: how many labels, units in all, and questions with a label.
        worth: how many labels alone would give so narrow an interval, as a multiple of those there are; None without
            intervals.
    """

    value: float
    low: float | None
    high: float | None
    tuning: float
    labels_value: float
    labels_low: float | None
    labels_high: float | None
    judge_value: float
    labelled: int
    units: int
    questions: int
    worth: float | None


def powered_mean(
    question: Index, judged: Array, people: Array, confidence: float = 0.95, bounds: tuple[float, float] | None = None
) -> Powered:
    """The mean over all units of what people would say.

    The error of the estimate is linearised and summed within each question before it is squared, so that units of one
    question, and a question's labelled and unlabelled units, may be as alike as they like. λ minimises the estimated
    variance and is kept within 0 and 1. Intervals are Student's t with the labelled questions' degrees of freedom.

    Args:
        question: (units,), numbers from 0.
        judged: (units,), the judge's reading of every unit.
        people: (units,), what people said, NaN where they were not asked. Which units were asked must be random.
        confidence: nominal coverage.
        bounds: of what people can say; intervals are cut there.

    Raises:
        ValueError: no label, or a reading that is not finite.
    """
    labelled = ~np.isnan(people)
    if not labelled.any() or not np.isfinite(judged).all():
        raise ValueError("powered_mean: at least one label, and a reading of every unit")
    size = int(question.max()) + 1

    def mean(values: Array, which: Array) -> tuple[float, Array, float]:
        rows = np.flatnonzero(which)
        found = linearised(binned(question[rows], values[rows], size), binned(question[rows], np.ones(len(rows)), size))
        return float(found.value), np.asarray(found.influence), float(found.freedom)

    said, by_people, freedom = mean(people, labelled)
    seen, by_seen, _ = mean(judged, labelled)
    everything, by_all, _ = mean(judged, np.ones(len(judged), dtype=bool))
    slope = by_all - by_seen
    tuning = 0.0
    if np.isfinite(slope).all() and (slope**2).sum() > 1e-24 and np.isfinite(by_people).all():
        tuning = float(np.clip(-(by_people @ slope) / (slope @ slope), 0, 1))
    value = said + tuning * (everything - seen)
    error, alone = (float(np.sqrt((u**2).sum())) for u in (by_people + tuning * np.nan_to_num(slope), by_people))
    t = float(stdtrit(freedom, (1 + confidence) / 2)) if np.isfinite(freedom) else float("nan")
    worth = (alone / error) ** 2 if np.isfinite(t) and error > 0 else None
    limits = [_limits(centre, t * spread, bounds) for centre, spread in ((value, error), (said, alone))]
    return Powered(
        value,
        *limits[0],
        tuning,
        said,
        *limits[1],
        everything,
        int(labelled.sum()),
        len(judged),
        len(np.unique(question[labelled])),
        worth,
    )


def _limits(centre: float, half: float, bounds: tuple[float, float] | None) -> tuple[float | None, float | None]:
    if not np.isfinite(half):
        return None, None
    low, high = bounds or (-np.inf, np.inf)
    return float(max(centre - half, low)), float(min(centre + half, high))
