"""Whether a judge's probabilities are right as often as they say: Brier's score taken apart, reliability, temperature.

`p` is always (cases, 3): a better, b better, tie. `right` is the same with a 1 at what people said.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from trustjudge_ray.analysis.games import Array, Index, binned
from trustjudge_ray.analysis.inference import ratio_intervals

BINS: Final = 10
FOLDS: Final = 5
FLOOR: Final = 1e-6
"""Probabilities below are taken as this: one outcome that was called impossible must not decide everything."""
LOG_RANGE: Final = 4.0
_AS_WELL: Final = 1e-9
"""Log loss by which an end of the search may be worse and still does as well as what was found."""


def brier_parts(p: Array, right: Array, bins: int = BINS) -> dict[str, float]:
    """Brier's score Σ (p − right)², 0 to 2, as reliability − resolution + uncertainty + within_bins.

    Murphy (J. Appl. Meteorol. 12, 1973, 595-600), for each outcome over `bins` equal bins of its probability, summed
    over outcomes. `reliability`: how far the mean probability of a bin is from how often it was right (0 is best);
    `resolution`: how far bins differ from the average; `uncertainty`: that of always saying the average;
    `within_bins`: what is left because probabilities in a bin are not equal (Stephenson et al., Weather Forecast. 23,
    2008, 752-757). The four make up the score exactly. NaN without a case.
    """
    if not len(p):
        return dict.fromkeys(("reliability", "resolution", "uncertainty", "within_bins"), float("nan"))
    reliability = resolution = uncertainty = 0.0
    for outcome in range(p.shape[1]):
        mine, hit = p[:, outcome], right[:, outcome]
        place = _bin(mine, bins)
        n = binned(place, np.ones(len(p)), bins)
        some = n > 0
        mean, share = (binned(place, x, bins)[some] / n[some] for x in (mine, hit))
        weight, average = n[some] / len(p), hit.mean()
        reliability += float(weight @ (mean - share) ** 2)
        resolution += float(weight @ (share - average) ** 2)
        uncertainty += float(average * (1 - average))
    within = brier(p, right) - (reliability - resolution + uncertainty)
    parts = {"reliability": reliability, "resolution": resolution, "uncertainty": uncertainty}
    return parts | {"within_bins": within}


def brier(p: Array, right: Array) -> float:
    """The mean of Σ (p − right)²; NaN without a case."""
    return float(((p - right) ** 2).sum(axis=1).mean()) if len(p) else float("nan")


def log_loss(p: Array, right: Array) -> float:
    """The mean of −ln p(right), with p at least `FLOOR`; NaN without a case."""
    return float(-np.log(np.maximum((p * right).sum(axis=1), FLOOR)).mean()) if len(p) else float("nan")


def calibration_error(p: Array, right: Array, bins: int = BINS) -> float:
    """Σ over bins of |Σ confidence − Σ right| / cases, where the confidence is the largest probability."""
    if not len(p):
        return float("nan")
    confidence, hit = _top(p, right)
    return float(np.abs(binned(_bin(confidence, bins), confidence - hit, bins)).sum() / len(p))


RELIABILITY: Final = {"right": "reliability_right_", "confidence": "reliability_confidence_"}
"""METRICS of a reliability diagram, ten of each, with where their bin starts: `reliability_right_0.8` is how often the
likeliest outcome was right among pairs where it had from 0.8 to 0.9, `reliability_confidence_0.8` what it had on
average."""


def bin_of(metric: str) -> tuple[float, float]:
    """Where the bin of one of the metrics of RELIABILITY starts and ends."""
    start = float(metric.rsplit("_", 1)[1])
    return start, round(start + 1 / BINS, 9)


def reliability_rows(p: Array, right: Array, question: Index, confidence: float) -> list[dict[str, Any]]:
    """Columns of METRICS for every bin, also those without a case: the share that was right with its question-clustered
    interval, and the mean probability."""
    size = int(question.max()) + 1 if len(question) else 0
    top, hit = _top(p, right) if len(p) else (np.zeros(0), np.zeros(0))
    place = _bin(top, BINS) * size + question
    table = [binned(place, weight, BINS * size).reshape(BINS, size) for weight in (hit, np.ones(len(top)), top)]
    found = ratio_intervals(table[0], table[1], confidence)
    rows: list[dict[str, Any]] = []
    for number in range(BINS):
        about = {"cases": int(found.cases[number]), "questions": int(found.questions[number])}
        told = {name: getattr(found, name)[number] for name in ("value", "low", "high", "hits")}
        rows.append({"metric": f"{RELIABILITY['right']}{number / BINS:.1f}"} | told | about)
        mean = table[2][number].sum() / about["cases"] if about["cases"] else float("nan")
        rows.append({"metric": f"{RELIABILITY['confidence']}{number / BINS:.1f}", "value": mean} | about)
    return rows


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """One bar of a reliability diagram: cases whose largest probability lies from `start` to `end`, how large it is on
    average, and how often it was right, with a question-clustered interval."""

    start: float
    end: float
    cases: int
    questions: int
    confidence: float
    right: float
    low: float | None
    high: float | None


def reliability_diagram(
    p: Array, right: Array, question: Index, confidence: float = 0.95, bins: int = BINS
) -> list[ReliabilityBin]:
    """The bins that have a case, in order.

    Args:
        question: (cases,), from 0.
    """
    if not len(p):
        return []
    top, hit = _top(p, right)
    place, size = _bin(top, bins), int(question.max()) + 1
    found = []
    for number in np.unique(place):
        here = place == number
        hits, cases = binned(question[here], hit[here], size), binned(question[here], np.ones(here.sum()), size)
        share = ratio_intervals(hits, cases, confidence)
        low, high = (None if np.isnan(x) else float(x) for x in (share.low, share.high))
        about = int(here.sum()), int(share.questions), float(top[here].mean()), float(share.value)
        found.append(ReliabilityBin(number / bins, (number + 1) / bins, *about, low, high))
    return found


@dataclass(frozen=True, slots=True)
class Scaling:
    """Temperature scaling, p ∝ p^(1/T): over 1 the judge was too sure.

    Attributes:
        temperature: fitted on all questions: the one to use.
        folds: by fold of the questions, fitted on all others.
        fold: (cases,) the fold of each case's question.
        before, after: `log_loss`, `brier` and `calibration_error` of all cases; `after` with the temperature that was
            fitted without a case's fold, so never with one that saw its question.
        at_edge: whether one of the fits has no best temperature within what is searched, e^±4. At the cold end the
            likeliest outcome is always right; at the hot end equal probabilities do as well as the judge's.
    """

    temperature: float
    folds: tuple[float, ...]
    fold: NDArray[np.int64]
    before: dict[str, float]
    after: dict[str, float]
    cases: int
    questions: int
    at_edge: bool


def scaled(p: Array, temperature: float | Array) -> Array:
    """p^(1/T), renormalised; probabilities are at least `FLOOR`."""
    logs = np.log(np.maximum(p, FLOOR)) / temperature
    weight = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(weight / weight.sum(axis=1, keepdims=True), dtype=np.float64)


def fit_temperature(p: Array, right: Array) -> float:
    """The temperature of the lowest log loss (Guo et al., ICML 2017), from e^−4 to e^4."""
    found = minimize_scalar(
        lambda log_t: log_loss(scaled(p, float(np.exp(log_t))), right),
        bounds=(-LOG_RANGE, LOG_RANGE),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return float(np.exp(found.x))


def temperature_scaling(p: Array, right: Array, question: Index, seed: int) -> Scaling | None:
    """Fit on four fifths of the questions, judge on the rest, five times; None with fewer than two questions.

    Args:
        question: (cases,), numbers from 0; which fold one is in depends on `seed` alone.
    """
    asked = np.unique(question)
    if len(asked) < 2:
        return None
    fold = folds_of(question, seed)
    after, folds, edge = np.empty_like(p), [], False
    for number in range(int(fold.max()) + 1):
        here = fold == number
        temperature = fit_temperature(p[~here], right[~here])
        edge |= end_of_search(p[~here], right[~here], temperature) is not None
        after[here] = scaled(p[here], temperature)
        folds.append(temperature)
    overall = fit_temperature(p, right)
    edge |= end_of_search(p, right, overall) is not None
    return Scaling(overall, tuple(folds), fold, _losses(p, right), _losses(after, right), len(p), len(asked), edge)


def folds_of(question: Index, seed: int) -> Index:
    """(cases,) the fold of each case's question, 0 to `FOLDS` − 1; a question is in one fold."""
    asked = np.unique(question)
    drawn = np.random.default_rng(seed).permutation(len(asked)) % min(FOLDS, len(asked))
    return np.asarray(drawn[np.searchsorted(asked, question)], dtype=np.int64)


def end_of_search(p: Array, right: Array, temperature: float) -> str | None:
    """Which end of the range does as well as the temperature that was found, `sharp` (e^−4) or `flat` (e^4), the better
    of the two; None for neither: then it is an optimum."""
    sharp, flat = (log_loss(scaled(p, float(np.exp(end))), right) for end in (-LOG_RANGE, LOG_RANGE))
    if min(sharp, flat) > log_loss(scaled(p, temperature), right) + _AS_WELL:
        return None
    return "sharp" if sharp < flat else "flat"


def _losses(p: Array, right: Array) -> dict[str, float]:
    losses: dict[str, Any] = {"log_loss": log_loss, "brier": brier, "calibration_error": calibration_error}
    return {name: loss(p, right) for name, loss in losses.items()}


def _top(p: Array, right: Array) -> tuple[Array, Array]:
    rows, top = np.arange(len(p)), p.argmax(axis=1)
    return p[rows, top], right[rows, top]


def _bin(values: Array, bins: int) -> NDArray[np.int64]:
    return np.clip((values * bins).astype(np.int64), 0, bins - 1)
