"""Differences of two judges, protocols, rules or runs on the same questions, and what a design could have shown.

Every function takes per-question sums of D quantities from two sides, `first` and `second`, and gives
second − first. The last axis is the question, the same one in both. A question counts where both sides have a case;
the others are counted in `unpaired`. Because both sides answer the same questions, the variance is that of each
question's own difference (the linearised ratios', see `inference`), not the sum of two variances.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from trustjudge_ray.analysis.inference import (
    Array,
    Linearised,
    caution,
    linearised,
    refuse_no_share,
    t_quantile,
    widest_without_spread,
)

POWER: Final = 0.8
ROUNDS: Final = 4000
FEW_BEARING: Final = 3.0
"""Below so many effective questions that bear the variance, (Σu²)²/Σu⁴, its estimate is itself uncertain."""
_BLOCK: Final = 4_000_000


@dataclass(frozen=True, slots=True)
class Differences:
    """D differences second − first; arrays (D,).

    Attributes:
        value: NaN where no question has cases on both sides.
        low, high: the interval of each difference on its own; NaN with fewer than two questions.
        joint_low, joint_high: intervals that hold all D truths at once with the stated confidence.
        p_value: two-sided, of the difference on its own.
        joint_p_value: adjusted so that over all D differences one or more false alarms come in at most 1 − confidence
            of such families (single-step max-t).
        detectable: the smallest true difference that this design finds (by `low`, `high`) with a probability of 80 %.
        joint_detectable: the same for `joint_low`, `joint_high`.
        standard_error, freedom: of the difference, and its degrees of freedom.
        first, second: the two sides' values over the shared questions; NaN where only a difference is known.
        questions: how many questions both sides have.
        unpaired: how many questions only one side has: left out.
        caution: `no_interval` (fewer than two shared questions), `few_questions` (below `inference.FEW_FREEDOM`
            degrees of freedom, or fewer than FEW_BEARING questions bear the variance), `no_variation` (every question
            has the same difference, so the spread is a bound, not an estimate), or "".
    """

    value: Array
    low: Array
    high: Array
    joint_low: Array
    joint_high: Array
    p_value: Array
    joint_p_value: Array
    detectable: Array
    joint_detectable: Array
    standard_error: Array
    freedom: Array
    first: Array
    second: Array
    questions: NDArray[np.int64]
    unpaired: NDArray[np.int64]
    caution: NDArray[np.str_]


def paired_ratios(
    first: tuple[Array, Array],
    second: tuple[Array, Array],
    rng: np.random.Generator,
    confidence: float = 0.95,
    rounds: int = ROUNDS,
) -> Differences:
    """Differences of shares, Σ hits / Σ cases of the second side less that of the first, in [−1, 1].

    Student's t with the linearised, question-clustered variance. Where no question differs from another the interval
    still has a width: that of Wilson's upper limit for no hit among as many questions.

    Args:
        first, second: (hits, cases), each (D, Q) or (Q,), 0 ≤ hits ≤ cases; soft points are hits.
        rng: for the joint intervals.
        rounds: draws of the multiplier bootstrap.

    Raises:
        ValueError: shapes differ, a number is not finite, or a hit count is negative or above its cases.
    """
    for hits, cases in (first, second):
        refuse_no_share(np.asarray(hits), np.asarray(cases))
    found = _differences(first, second, rng, confidence, rounds, floored=True)
    limits = {name: np.clip(getattr(found, name), -1, 1) for name in ("low", "high", "joint_low", "joint_high")}
    return replace(found, **limits)


def paired_means(
    first: tuple[Array, Array],
    second: tuple[Array, Array],
    rng: np.random.Generator,
    confidence: float = 0.95,
    rounds: int = ROUNDS,
) -> Differences:
    """Differences of means of unbounded quantities, Σ sums / Σ counts.

    Where every question has the same difference the interval has width zero, `detectable` is NaN (nothing says how
    much questions could vary) and `caution` says `no_variation`.
    """
    return _differences(first, second, rng, confidence, rounds, floored=False)


def from_influence(
    value: Array,
    influence: Array,
    freedom: Array,
    rng: np.random.Generator,
    confidence: float = 0.95,
    rounds: int = ROUNDS,
) -> Differences:
    """Differences of anything else (ratings of two fits, say), by what each question adds to their error.

    Args:
        value: (D,) differences.
        influence: (D, Q), whose squares sum to each difference's variance.
        freedom: (D,) degrees of freedom, NaN where there is no variance.
    """
    nothing = np.full(len(value), np.nan)
    questions = (np.nan_to_num(influence) != 0).sum(axis=1)
    counts = (nothing, nothing, questions, np.zeros_like(questions))
    return _inferred(value, influence, freedom, np.zeros(len(value)), counts, rng, confidence, rounds)


def detectable(standard_error: Array, freedom: Array, confidence: float = 0.95, power: float = POWER) -> Array:
    """The true difference whose interval would leave out 0 with this probability: (t_{(1+c)/2} + t_power)·SE."""
    critical = t_quantile(freedom, confidence) + stdtrit(freedom, power)
    with np.errstate(invalid="ignore"):
        return np.where(standard_error > 0, critical * standard_error, np.nan)


def _differences(
    first: tuple[Array, Array],
    second: tuple[Array, Array],
    rng: np.random.Generator,
    confidence: float,
    rounds: int,
    floored: bool,
) -> Differences:
    before, after, questions, unpaired = _shared(first, second)
    influence = after.influence - before.influence
    freedom = np.minimum(before.freedom, after.freedom)
    value = after.value - before.value
    floor = np.zeros(len(value))
    if floored:
        floor = _floor(value, np.minimum(before.kish, after.kish), questions, freedom, confidence)
    counts = (before.value, after.value, questions, unpaired)
    return _inferred(value, influence, freedom, floor, counts, rng, confidence, rounds)


def _shared(
    first: tuple[Array, Array], second: tuple[Array, Array]
) -> tuple[Linearised, Linearised, NDArray[np.int64], NDArray[np.int64]]:
    """Both sides over the questions with cases in both, their number, and that of the other questions with cases."""
    sides = [np.atleast_2d(np.asarray(part, dtype=np.float64)) for side in (first, second) for part in side]
    if len({part.shape for part in sides}) > 1:
        shapes = [part.shape for part in sides]
        raise ValueError(f"first and second: shapes {shapes}; one shape, the last axis the same questions")
    some = (sides[1] > 0).astype(int) + (sides[3] > 0)
    both = some == 2
    before, after = (linearised(sides[i] * both, sides[i + 1] * both) for i in (0, 2))
    return before, after, both.sum(axis=1), (some == 1).sum(axis=1)


def _floor(value: Array, kish: Array, questions: NDArray[np.int64], freedom: Array, confidence: float) -> Array:
    """The standard error of differences in which no question differs from another.

    Wide enough for Wilson's interval of no hit among the effective number of questions; and where so few questions
    all say the same that a sign test would not speak, for 0.
    """
    half = widest_without_spread(kish, freedom, confidence)
    with np.errstate(invalid="ignore"):
        silent = 2.0 ** (1.0 - questions) > 1 - confidence
        reach = np.where(silent, np.maximum(half, np.abs(value) * (1 + 1e-9)), half)
        return reach / t_quantile(freedom, confidence)


def _inferred(
    value: Array,
    influence: Array,
    freedom: Array,
    floor: Array,
    counts: tuple[Array, Array, NDArray[np.int64], NDArray[np.int64]],
    rng: np.random.Generator,
    confidence: float,
    rounds: int,
) -> Differences:
    spread = np.sqrt((influence**2).sum(axis=1))
    flat = spread < 1e-12
    error = np.where(flat, floor, spread)
    t = t_quantile(freedom, confidence)
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.where(error > 0, np.abs(value) / error, np.where(np.abs(value) > 1e-12, np.inf, 0.0))
        p_value = np.where(np.isnan(freedom), np.nan, 2 * stdtr(freedom, -size))
        largest = _largest_t(influence / np.where(flat, np.inf, spread)[:, None], freedom, rounds, rng)
        joint = np.maximum(t, np.quantile(largest, confidence)) if len(largest) else t
        share = (1 + (largest[None] >= size[:, None] - 1e-12).sum(axis=1)) / (1 + len(largest))
        share = np.where(flat, np.minimum(p_value * (~np.isnan(freedom)).sum(), 1), share)
        found = detectable(error, freedom, confidence)
        joint_found = np.where(np.isnan(found), np.nan, (joint + stdtrit(freedom, POWER)) * error)
    with np.errstate(divide="ignore", invalid="ignore"):
        bearing = (influence**2).sum(axis=1) ** 2 / (influence**4).sum(axis=1)
    words = np.where(~flat & (bearing < FEW_BEARING), "few_questions", caution(freedom))
    words = np.where(flat & ~np.isnan(freedom), "no_variation", words)
    return Differences(
        value,
        value - t * error,
        value + t * error,
        value - joint * error,
        value + joint * error,
        p_value,
        np.maximum(share, p_value),
        found,
        joint_found,
        error,
        freedom,
        *counts[:2],
        *counts[2:],
        words,
    )


def _largest_t(scaled: Array, freedom: Array, rounds: int, rng: np.random.Generator) -> Array:
    """(rounds,) the largest |t| over all differences when every question's error keeps its size and takes a random
    sign, the same one in all differences, so that their correlation is kept (a wild bootstrap, with t studentised in
    every draw). Empty where no difference has a spread.

    Args:
        scaled: (D, Q) influences over their difference's standard error; rows that are NaN or 0 take no part.
    """
    some = np.isfinite(scaled).all(axis=1) & (np.abs(scaled).sum(axis=1) > 0)
    rows, n = scaled[some], freedom[some] + 1
    if not len(rows):
        return np.empty(0)
    found = np.empty(rounds)
    step = max(_BLOCK // rows.shape[1], 1)
    for start in range(0, rounds, step):
        size = min(step, rounds - start)
        sums = (1.0 - 2.0 * rng.integers(0, 2, (size, rows.shape[1]))) @ rows.T
        left = np.maximum((1 - sums**2 / n) * n / (n - 1), 1e-12)
        found[start : start + size] = np.max(np.abs(sums) / np.sqrt(left), axis=1)
    return found
