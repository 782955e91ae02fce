"""Where models stand: ratings by named rules, with intervals and who is above whom.

Ratings of worth models are on the Elo scale, 1000 + 400/ln 10 · θ with the mean θ of a group of models at 1000: 400
points are odds of 10 to 1. Every interval takes questions as the units that were sampled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from trustjudge_ray.analysis.bradley_terry import Fit, fit_bradley_terry, fit_davidson, outer_sum, resampled_theta
from trustjudge_ray.analysis.connectivity import Structure
from trustjudge_ray.analysis.games import Array, Games, Index, binned
from trustjudge_ray.analysis.inference import RatioIntervals, mean_intervals, soft_ratio_intervals
from trustjudge_ray.config import AnalysisConfig

ELO: Final = 400 / np.log(10)
CENTRE: Final = 1000.0

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Standing:
    """One rule's ranking of models, within components.

    Attributes:
        rating, low, high: (models,), NaN where there is none or none can be given.
        above: (models, models) whether the row's model has the better rating.
        surely_above: the same, where the difference is significant at the interval's level; not corrected for
            the number of pairs.
        bounded: whether the rating is finite.
        ranked: whether an interval of ranks can be given.
        ranks: (rounds, models) of a bootstrap, whose quantiles replace the pairwise tests; or None.
        notes: what to know about this ranking, in plain words.
    """

    rating: Array
    low: Array
    high: Array
    above: Flags
    surely_above: Flags
    bounded: Flags
    ranked: Flags
    ranks: Array | None = None
    notes: tuple[str, ...] = ()


def davidson(games: Games, structure: Structure, settings: AnalysisConfig) -> Standing:
    """Davidson's model with ties and an order effect, on soft outcomes."""
    return _worths(fit_davidson(games, structure.group), games, structure, settings)


def bradley_terry(games: Games, structure: Structure, settings: AnalysisConfig) -> Standing:
    """Bradley and Terry's model, ties as half wins, no order effect: what Elo ratings settle at."""
    return _worths(fit_bradley_terry(games, structure.group), games, structure, settings)


def win_rate(games: Games, structure: Structure, settings: AnalysisConfig) -> Standing:
    """The mean of P(win) + ½ P(tie) over a model's games, from 0 to 1. It depends on whom a model met."""
    half, n = games.outcome[:, 2] / 2, games.outcome.sum(1)
    model = np.concatenate([games.first, games.second])
    points = np.concatenate([games.outcome[:, 0] + half, games.outcome[:, 1] + half])
    played = np.concatenate([n, n])
    question = np.concatenate([games.question, games.question])
    return means(question, model, points, played, structure.component, settings, soft_ratio_intervals)


Rule = Callable[[Games, Structure, AnalysisConfig], Standing]
RATING_RULES: Final[dict[str, Rule]] = {"davidson": davidson, "bradley_terry": bradley_terry, "win_rate": win_rate}


def means(
    question: Index,
    model: Index,
    sums: Array,
    counts: Array,
    component: Index,
    settings: AnalysisConfig,
    intervals: Callable[[Array, Array, float], RatioIntervals] = mean_intervals,
) -> Standing:
    """Models ranked by Σ sums / Σ counts. Differences are tested with the covariance of the models' means over
    questions, so that answers to the same questions are compared as pairs."""
    models = len(component)
    total = binned(model, counts, models)
    value = binned(model, sums, models) / total
    by = np.argsort(question, kind="stable")
    question, model, sums, counts = question[by], model[by], sums[by], counts[by]
    residual = (sums - value[model] * counts) / total[model]
    asked = len(np.unique(question))
    cov = outer_sum(question, [model], [residual], models) * asked / max(asked - 1, 1)
    low, high, questions = np.full(models, np.nan), np.full(models, np.nan), np.zeros(models, dtype=np.int64)
    place = np.argsort(model, kind="stable")
    for m, rows in enumerate(np.split(place, np.searchsorted(model[place], np.arange(1, models)))):
        _, which = np.unique(question[rows], return_inverse=True)
        size = int(which.max()) + 1
        found = intervals(binned(which, sums[rows], size), binned(which, counts[rows], size), settings.confidence)
        low[m], high[m], questions[m] = found.low, found.high, found.questions
    same = component[:, None] == component[None, :]
    above = same & (value[:, None] > value[None, :] + 1e-9)
    sure = above & _significant(value, cov, questions, settings.confidence)
    return Standing(value, low, high, above, sure, np.full(models, True), questions > 1)


def _worths(fit: Fit, games: Games, structure: Structure, settings: AnalysisConfig) -> Standing:
    """Ratings of a fitted model; between groups the order is that of the groups."""
    group, bounded = structure.group, structure.bounded
    questions = questions_by_model(games)
    half = _quantile(questions, settings.confidence) * np.sqrt(np.diag(fit.cov)) * ELO
    rating = np.where(bounded, CENTRE + ELO * fit.theta, np.nan)
    same = group[:, None] == group[None, :]
    above = np.where(same, fit.theta[:, None] > fit.theta[None, :] + 1e-9, structure.above)
    sure = _significant(fit.theta, fit.cov, questions, settings.confidence)
    notes = list(fit.notes)
    if not fit.converged:
        notes.append(f"the fit did not converge in {fit.iterations} steps: do not use these ratings")
    ranks = None
    if settings.bootstrap > 0 and games.questions > 1:
        rng = np.random.default_rng(settings.seed)
        drawn = resampled_theta(games, group, fit, settings.bootstrap, rng)
        better = np.where(same, drawn[:, :, None] > drawn[:, None, :] + 1e-9, structure.above)
        ranks = 1 + better.sum(axis=1)
    return Standing(
        rating,
        rating - half,
        rating + half,
        above,
        np.where(same, sure & above, structure.surely_above),
        bounded,
        questions > 1,
        ranks,
        tuple(notes),
    )


def questions_by_model(games: Games) -> Index:
    """In how many questions each model played."""
    n = len(games.models)
    seen = np.zeros(games.questions * n, dtype=bool)
    for side in (games.first, games.second):
        seen[games.question * n + side] = True
    return seen.reshape(games.questions, n).sum(0)


def _quantile(questions: Index, confidence: float) -> Array:
    """Student's t with one degree of freedom less than questions; NaN for a single question."""
    freedom = np.where(questions > 1, questions - 1.0, np.nan)
    return np.asarray(stdtrit(freedom, (1 + confidence) / 2), dtype=np.float64)


def _significant(value: Array, cov: Array, questions: Index, confidence: float) -> Flags:
    """(models, models) whether row − column is above 0 by more than its own t interval.

    A difference without any variance needs as many questions as a sign test does.
    """
    variance = np.diag(cov)[:, None] + np.diag(cov)[None, :] - 2 * cov
    fewer = np.minimum(questions[:, None], questions[None, :])
    with np.errstate(invalid="ignore"):
        margin = _quantile(fewer, confidence) * np.sqrt(np.maximum(variance, 0))
        enough = (variance > 1e-18) | (fewer >= np.log2(2 / (1 - confidence)))
        return np.asarray(enough & (value[:, None] - value[None, :] > margin + 1e-9))
