"""Intervals from per-question counts. The last axis of every array is the question.

Pairs, triples and answers of one question are not independent, so a question is the unit that is
sampled: the variance of a ratio is that of its linearisation, taken over questions (Cochran, Sampling
Techniques, 3rd ed., ch. 6), with the small-sample correction and the degrees of freedom of Bell and
McCaffrey (Survey Methodology 28, 2002, 169-181) for questions of unequal size.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RatioIntervals:
    """Σ hits / Σ cases over questions, with an interval; arrays without the question axis.

    Attributes:
        value: NaN where there is no case.
        low, high: NaN where there is no case, or cases in one question only: no interval can be given.
        hits, cases: the sums.
        questions: the number of questions with a case.
    """

    value: Array
    low: Array
    high: Array
    hits: Array
    cases: Array
    questions: NDArray[np.int64]


def ratio_intervals(hits: Array, cases: Array, confidence: float = 0.95) -> RatioIntervals:
    """Shares of counted cases, Σ hits / Σ cases, with question-clustered intervals.

    Wilson's interval (JASA 22, 1927, 209-212) with an effective number of cases in place of the number of cases
    (Korn and Graubard, Survey Methodology 24, 1998, 193-201) and Student's t for the normal quantile. The
    effective number is p(1−p)/variance, but
    - at most Σ cases: an interval is never narrower than that of independent cases;
    - drawn towards the effective number of questions, (Σn)²/Σn², where few questions bear the hits (for the
      upper end) or the misses (for the lower end): such a variance comes from a handful of questions and is too
      small too often. With no hit, or nothing but hits, it is that number.
    So an interval stays in [0, 1] and never has width zero. Simulated with 80 questions of 4 to 20 cases and
    intra-question correlation 0.3, 95 % intervals cover 96.4, 95.1 and 95.0 % at true shares of 2, 15 and 40 %.

    Args:
        hits: (..., questions), 0 ≤ hits ≤ cases.
        cases: (..., questions), counts; a question without cases takes no part.
        confidence: nominal coverage, 0 to 1.

    Raises:
        ValueError: shapes differ, a number is not finite, or a hit count is negative or above its cases.
    """
    hits, cases = np.asarray(hits, dtype=np.float64), np.asarray(cases, dtype=np.float64)
    summary = _summary(hits, cases)
    _refuse_no_share(hits, cases)
    plain = np.minimum(_effective_cases(summary), summary.cases)
    return _wilson(summary, _drawn(plain, summary, cases - hits), _drawn(plain, summary, hits), confidence)


def soft_ratio_intervals(points: Array, cases: Array, confidence: float = 0.95) -> RatioIntervals:
    """The same for points from 0 to 1 a case (soft wins). Their variance may be far below that of counts, so
    the effective number of cases is p(1−p)/variance as it is; without variance, the number of questions."""
    summary = _summary(points, cases)
    _refuse_no_share(points, cases)
    effective = _effective_cases(summary)
    return _wilson(summary, effective, effective, confidence)


def mean_intervals(sums: Array, counts: Array, confidence: float = 0.95) -> RatioIntervals:
    """Means of unbounded quantities, Σ sums / Σ counts, with question-clustered t intervals.

    Where every question has the same mean the interval has width zero. `hits` holds Σ sums.
    """
    summary = _summary(sums, counts)
    with np.errstate(invalid="ignore"):
        half = _quantile(summary.freedom, confidence) * np.sqrt(summary.variance)
    low, high = summary.value - half, summary.value + half
    return RatioIntervals(summary.value, low, high, summary.hits, summary.cases, summary.questions)


@dataclass(frozen=True, slots=True)
class _Summary:
    value: Array
    variance: Array
    freedom: Array
    kish: Array
    hits: Array
    cases: Array
    questions: NDArray[np.int64]


def _summary(hits: Array, cases: Array) -> _Summary:
    """The ratio, its clustered variance, degrees of freedom and effective number of questions.

    With weights w = n/Σn and question rates y the variance is Σ w²(y−r)²/(1−2w+Σw²), which is unbiased where
    all y vary alike; its degrees of freedom are 2E²/Var of this quadratic form under normal y.
    """
    hits, cases = np.asarray(hits, dtype=np.float64), np.asarray(cases, dtype=np.float64)
    if hits.shape != cases.shape or hits.ndim == 0:
        raise ValueError(f"hits and cases: shapes {hits.shape} and {cases.shape}; one shape, the last axis questions")
    if not (np.isfinite(hits).all() and np.isfinite(cases).all() and (cases >= 0).all()):
        raise ValueError("hits and cases: finite numbers, cases 0 or more")
    total, total_hits = cases.sum(-1), hits.sum(-1)
    questions = (cases > 0).sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = total_hits / total
        w = cases / total[..., None]
        residual = (hits - value[..., None] * cases) / total[..., None]
        s2 = (w**2).sum(-1)
        unseen = 1 - 2 * w + s2[..., None]
        enough = questions > 1
        variance = np.where(enough, np.where(cases > 0, residual**2 / unseen, 0).sum(-1), np.nan)
        freedom = np.where(enough, _freedom(w, np.where(cases > 0, w**2 / unseen, 0), s2), np.nan)
        return _Summary(value, variance, freedom, 1 / s2, total_hits, total, questions)


def _freedom(w: Array, d: Array, s2: Array) -> Array:
    """(tr A)² / tr A² of the quadratic form A = (I − w1ᵀ) diag(d) (I − 1wᵀ), whose trace is Σ w²."""
    d1, d2 = d.sum(-1), (d**2).sum(-1)
    dw, dww, ddw = (d * w).sum(-1), (d * w**2).sum(-1), (d**2 * w).sum(-1)
    square = d2 + 2 * d2 * s2 + d1**2 * s2**2 - 4 * ddw + 2 * d1 * dww + 2 * dw**2 - 4 * d1 * dw * s2
    return np.maximum(s2**2 / square, 1.0)


def _effective_cases(summary: _Summary) -> Array:
    """How many independent cases would give this variance; the effective number of questions where it is zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = summary.value * (1 - summary.value)
        seen = (summary.variance > 1e-24) & (spread > 1e-12)
        return np.where(seen, spread / summary.variance, np.minimum(summary.kish, summary.cases))


def _drawn(effective: Array, summary: _Summary, events: Array) -> Array:
    """The effective number of cases, drawn towards that of questions by (2.2 / (m + 2.2))², where m = (Σe)²/Σe²
    is the effective number of questions that bear the events. The constant is chosen by simulation."""
    with np.errstate(divide="ignore", invalid="ignore"):
        bearing = np.where(events.sum(-1) > 0, events.sum(-1) ** 2 / (events**2).sum(-1), 0)
        weight = (2.2 / (bearing + 2.2)) ** 2
        return 1 / (1 / effective + np.maximum(1 / summary.kish - 1 / effective, 0) * weight)


def _wilson(summary: _Summary, for_low: Array, for_high: Array, confidence: float) -> RatioIntervals:
    """Wilson's limits, each with its own effective number of cases."""
    p, t2 = summary.value, _quantile(summary.freedom, confidence) ** 2

    def limit(n: Array, sign: int) -> Array:
        half = np.sqrt(t2 * (p * (1 - p) / n + t2 / (4 * n**2)))
        return np.clip((p + t2 / (2 * n) + sign * half) / (1 + t2 / n), 0, 1)

    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.minimum(limit(for_low, -1), p), np.maximum(limit(for_high, 1), p)
    return RatioIntervals(p, low, high, summary.hits, summary.cases, summary.questions)


def _quantile(freedom: Array, confidence: float) -> Array:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: got {confidence}; a share between 0 and 1")
    return np.asarray(stdtrit(freedom, (1 + confidence) / 2), dtype=np.float64)


def _refuse_no_share(hits: Array, cases: Array) -> None:
    hits, cases = np.asarray(hits), np.asarray(cases)
    slack = 1e-9 * np.maximum(cases, 1)
    if ((hits < -slack) | (hits > cases + slack)).any():
        raise ValueError("hits: below 0 or above the number of cases of their question")
