"""Intervals from per-question counts. The last axis of every array is the question.

Pairs, triples and answers of one question are not independent, so a question is the unit that is
sampled: the variance of a ratio is that of its linearisation, taken over questions (Cochran, Sampling
Techniques, 3rd ed., ch. 6), with the small-sample correction and the degrees of freedom of Bell and
McCaffrey (Survey Methodology 28, 2002, 169-181) for questions of unequal size.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtrit

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RatioIntervals:
    """Σ hits / Σ cases over questions, with an interval; arrays without the question axis.

    Attributes:
        value: NaN where there is no case.
        low, high: NaN where there is no case, or cases in one question only: no interval can be given.
        hits, cases: the sums.
        questions: the number of questions with a case.
        freedom: degrees of freedom of the variance, NaN where there is none: unequal questions have fewer than
            questions − 1.
    """

    value: Array
    low: Array
    high: Array
    hits: Array
    cases: Array
    questions: NDArray[np.int64]
    freedom: Array

    @property
    def caution(self) -> NDArray[np.str_]:
        """What to know about each interval: see `caution`."""
        return caution(self.freedom)


_BLOCK: Final = 4_000_000
FEW_FREEDOM: Final = 9.0
"""Below so many degrees of freedom (ten questions of equal size) intervals hang on single questions."""


def caution(freedom: Array) -> NDArray[np.str_]:
    """In a word what is wrong with an interval of so many degrees of freedom.

    `no_interval` where there is none (fewer than two questions), `few_questions` below FEW_FREEDOM, else "".
    """
    with np.errstate(invalid="ignore"):
        return np.where(np.isnan(freedom), "no_interval", np.where(freedom < FEW_FREEDOM, "few_questions", ""))


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
    intra-question correlation 0.3, 95 % intervals cover 95, 95 and 96 % at true shares of 2, 15 and 40 %. Where
    few large questions hold most cases and hits are rare (subsets of five, shares of a few per cent) no rule on counts
    alone is exact: simulated coverage is 96 % there with 80 questions, and up to 99 % with 24.

    Args:
        hits: (..., questions), 0 ≤ hits ≤ cases.
        cases: (..., questions), counts; a question without cases takes no part.
        confidence: nominal coverage, 0 to 1.

    Raises:
        ValueError: shapes differ, a number is not finite, or a hit count is negative or above its cases.
    """
    hits, cases = np.asarray(hits, dtype=np.float64), np.asarray(cases, dtype=np.float64)
    summary = linearised(hits, cases)
    refuse_no_share(hits, cases)
    plain = np.minimum(_effective_cases(summary), summary.cases)
    return _wilson(summary, _drawn(plain, summary, cases - hits), _drawn(plain, summary, hits), confidence)


def soft_ratio_intervals(points: Array, cases: Array, confidence: float = 0.95) -> RatioIntervals:
    """The same for points from 0 to 1 a case (soft wins). Their variance may be far below that of counts, so
    the effective number of cases is p(1−p)/variance, above Σ cases too; without variance, the number of questions. It
    is drawn towards that of questions only as far as the questions differ: where all have the same rate nothing hangs
    on a handful of them."""
    summary = linearised(points, cases)
    refuse_no_share(points, cases)
    effective = _effective_cases(summary)
    points, misses = np.asarray(points, dtype=np.float64), np.asarray(cases) - np.asarray(points)
    for_low, for_high = (
        _drawn(effective, summary, events, _SOFT_PULL, _unevenness(events, summary)) for events in (misses, points)
    )
    return _wilson(summary, for_low, for_high, confidence)


def mean_intervals(sums: Array, counts: Array, confidence: float = 0.95) -> RatioIntervals:
    """Means of unbounded quantities, Σ sums / Σ counts, with question-clustered t intervals.

    Where every question has the same mean the interval has width zero. `hits` holds Σ sums.
    """
    summary = linearised(sums, counts)
    with np.errstate(invalid="ignore"):
        half = t_quantile(summary.freedom, confidence) * np.sqrt(summary.variance)
    low, high = summary.value - half, summary.value + half
    return RatioIntervals(summary.value, low, high, summary.hits, summary.cases, summary.questions, summary.freedom)


def bootstrap_intervals(
    hits: Array, cases: Array, rng: np.random.Generator, confidence: float = 0.95, rounds: int = 2000
) -> RatioIntervals:
    """Σ hits / Σ cases with intervals from resampled questions, to put beside those of `ratio_intervals`.

    Bias-corrected and accelerated percentiles (Efron, JASA 82, 1987, 171-185; DiCiccio and Efron, Statistical Science
    11, 1996, 189-228), with Student's t for the normal quantile because percentiles of few questions are too narrow.
    Where resampling shows no spread (no hit, or nothing but hits), or fewer than three questions bear the hits or the
    misses, it cannot know the spread: the limits are those of `ratio_intervals`. At ratios near 2 % resampling covers
    less than it says (`python jobs/benchmark.py coverage` prints both): `ratio_intervals` are the ones to defend.

    Args:
        hits, cases: (C, Q) or (Q,); the same questions are drawn for all C.
        rng: decides the draws.
    """
    hits, cases = (np.asarray(part, dtype=np.float64) for part in (hits, cases))
    plain = ratio_intervals(hits, cases, confidence)
    shape, hits, cases = hits.shape[:-1], np.atleast_2d(hits), np.atleast_2d(cases)
    drawn = _resampled(hits, cases, rng, rounds)
    summary = linearised(hits, cases)
    with np.errstate(divide="ignore", invalid="ignore"):
        below = (drawn < summary.value).mean(axis=0) + (drawn == summary.value).mean(axis=0) / 2
        bias = ndtri(below)
        skew = (summary.influence**3).sum(-1) / (6 * summary.variance**1.5)
        t = t_quantile(summary.freedom, confidence)
        ends = [ndtr(bias + (bias + sign * t) / (1 - skew * (bias + sign * t))) for sign in (-1, 1)]
    few = np.minimum(_bearing(hits), _bearing(cases - hits)) < 3
    known = (np.isfinite(ends[0]) & np.isfinite(ends[1]) & ~few).reshape(shape)
    low, high = (_quantile_of_each(drawn, np.nan_to_num(end)).reshape(shape) for end in ends)
    low, high = np.minimum(low, plain.value), np.maximum(high, plain.value)
    return replace(plain, low=np.where(known, low, plain.low), high=np.where(known, high, plain.high))


def _resampled(hits: Array, cases: Array, rng: np.random.Generator, rounds: int) -> Array:
    """(rounds, C) ratios of questions drawn with replacement."""
    found = np.empty((rounds, len(hits)))
    step = max(_BLOCK // hits.shape[1], 1)
    for start in range(0, rounds, step):
        size = min(step, rounds - start)
        times = rng.multinomial(hits.shape[1], np.full(hits.shape[1], 1 / hits.shape[1]), size).astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            found[start : start + size] = (times @ hits.T) / (times @ cases.T)
    return found


def _quantile_of_each(drawn: Array, share: Array) -> Array:
    """For each column of (rounds, C) its own quantile; draws without a case count as the highest."""
    ranked = np.sort(drawn, axis=0)
    place = np.clip(share, 0, 1) * (len(ranked) - 1)
    lower = np.floor(place).astype(np.int64)
    at = np.arange(ranked.shape[1])
    ends = ranked[lower, at], ranked[np.minimum(lower + 1, len(ranked) - 1), at]
    return ends[0] + (place - lower) * (ends[1] - ends[0])


@dataclass(frozen=True, slots=True)
class Linearised:
    """A ratio Σ hits / Σ cases and what each question adds to its error.

    Attributes:
        influence: (..., Q), whose squares sum to `variance`: a question's residual in the ratio's own unit, corrected
            for what the question itself did to the ratio; 0 where it has no case, NaN where there is no variance.
        freedom: degrees of freedom of the variance; NaN with fewer than two questions, as the variance.
        kish: the effective number of questions, (Σn)²/Σn².
        value, hits, cases, questions: as in `RatioIntervals`.
    """

    value: Array
    influence: Array
    variance: Array
    freedom: Array
    kish: Array
    hits: Array
    cases: Array
    questions: NDArray[np.int64]


def linearised(hits: Array, cases: Array) -> Linearised:
    """The ratio of (..., Q) hits and cases, and its question-clustered variance.

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
        influence = np.where(cases > 0, residual / np.sqrt(unseen), 0)
        influence = np.where(enough[..., None], influence, np.nan)
        variance = (influence**2).sum(-1)
        freedom = np.where(enough, _freedom(w, np.where(cases > 0, w**2 / unseen, 0), s2), np.nan)
        return Linearised(value, influence, variance, freedom, 1 / s2, total_hits, total, questions)


def _freedom(w: Array, d: Array, s2: Array) -> Array:
    """(tr A)² / tr A² of the quadratic form A = (I − w1ᵀ) diag(d) (I − 1wᵀ), whose trace is Σ w²."""
    d1, d2 = d.sum(-1), (d**2).sum(-1)
    dw, dww, ddw = (d * w).sum(-1), (d * w**2).sum(-1), (d**2 * w).sum(-1)
    square = d2 + 2 * d2 * s2 + d1**2 * s2**2 - 4 * ddw + 2 * d1 * dww + 2 * dw**2 - 4 * d1 * dw * s2
    return np.maximum(s2**2 / square, 1.0)


def _effective_cases(summary: Linearised) -> Array:
    """How many independent cases would give this variance; the effective number of questions where it is zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = summary.value * (1 - summary.value)
        seen = (summary.variance > 1e-24) & (spread > 1e-12)
        return np.where(seen, spread / summary.variance, np.minimum(summary.kish, summary.cases))


_PULL, _SOFT_PULL = 2.2, 3.0
"""How many questions must bear the events before their variance is trusted: chosen by simulation, so that coverage is
nominal at ratios of 2 to 40 % (`python jobs/benchmark.py coverage`)."""
_MANY: Final = 52.0
"""Below so many effective questions the pull is the smaller: each question weighs more, and t is already wider."""


def _drawn(
    effective: Array, summary: Linearised, events: Array, pull: float = _PULL, extent: Array | float = 1.0
) -> Array:
    """The effective number of cases, drawn towards that of questions by extent · (pull / (m + pull))², where m is the
    effective number of questions that bear the events; without events it is that of questions."""
    with np.errstate(divide="ignore", invalid="ignore"):
        pull_here = pull * np.minimum(summary.kish / _MANY, 1)
        weight = extent * (pull_here / (_bearing(events) + pull_here)) ** 2
        return 1 / (1 / effective + np.maximum(1 / summary.kish - 1 / effective, 0) * weight)


def _bearing(events: Array) -> Array:
    """(Σe)²/Σe² over questions; 0 without events."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(events.sum(-1) > 0, events.sum(-1) ** 2 / (events**2).sum(-1), 0)


def _unevenness(events: Array, summary: Linearised) -> Array:
    """0 where events are spread over questions as cases are, up to 1 where few questions have them all."""
    with np.errstate(invalid="ignore"):
        return np.clip(1 - _bearing(events) / summary.kish, 0, 1)


def _wilson(summary: Linearised, for_low: Array, for_high: Array, confidence: float) -> RatioIntervals:
    """Wilson's limits, each with its own effective number of cases."""
    p, t2 = summary.value, t_quantile(summary.freedom, confidence) ** 2

    def limit(n: Array, sign: int) -> Array:
        half = np.sqrt(t2 * (p * (1 - p) / n + t2 / (4 * n**2)))
        return np.clip((p + t2 / (2 * n) + sign * half) / (1 + t2 / n), 0, 1)

    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.minimum(limit(for_low, -1), p), np.maximum(limit(for_high, 1), p)
    return RatioIntervals(p, low, high, summary.hits, summary.cases, summary.questions, summary.freedom)


def t_quantile(freedom: Array, confidence: float) -> Array:
    """The two-sided quantile of Student's t; NaN where there are no degrees of freedom."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: got {confidence}; a share between 0 and 1")
    return np.asarray(stdtrit(freedom, (1 + confidence) / 2), dtype=np.float64)


def widest_without_spread(questions: Array, freedom: Array, confidence: float) -> Array:
    """Half the width of an interval where no question differs from another: Wilson's upper limit for no hit among so
    many (effective) questions."""
    t2 = t_quantile(freedom, confidence) ** 2
    return t2 / (questions + t2)


def refuse_no_share(hits: Array, cases: Array) -> None:
    """Raises ValueError where hits are below 0 or above their cases."""
    hits, cases = np.asarray(hits), np.asarray(cases)
    slack = 1e-9 * np.maximum(cases, 1)
    if ((hits < -slack) | (hits > cases + slack)).any():
        raise ValueError("hits: below 0 or above the number of cases of their question")
