"""Where models stand: ratings by named rules, with intervals and who is above whom.

Ratings of worth models are on the Elo scale, 1000 + 400/ln 10 · θ with the mean θ of a group of models at 1000: 400
points are odds of 10 to 1. With `analysis.anchor_model` that model is at 1000. Every interval takes questions as the
units that were sampled.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from trustjudge_ray.analysis.bradley_terry import Fit, fit_bradley_terry, fit_davidson, resampled_theta
from trustjudge_ray.analysis.clusters import outer_sum
from trustjudge_ray.analysis.connectivity import Structure
from trustjudge_ray.analysis.elo import elo_ratings
from trustjudge_ray.analysis.games import Array, Games, Index, binned
from trustjudge_ray.analysis.inference import RatioIntervals, mean_intervals, soft_ratio_intervals
from trustjudge_ray.analysis.outcomes import CALIBRATED, HARD, SOFT
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
        ranks: (models,) the lowest and the highest rank by a bootstrap, which replace the pairwise tests within a
            group; or None.
        notes: what to know about this ranking, in plain words.
        fit: the model behind it, if there is one.
    """

    rating: Array
    low: Array
    high: Array
    above: Flags
    surely_above: Flags
    bounded: Flags
    ranked: Flags
    ranks: tuple[Array, Array] | None = None
    notes: tuple[str, ...] = ()
    fit: Fit | None = None


def davidson(games: Games, structure: Structure, settings: AnalysisConfig) -> Standing:
    """Davidson's model with ties and an order effect."""
    fit = fit_davidson(games, _fitted_together(structure, settings), settings.ridge)
    return _worths(fit, games, structure, settings)


def bradley_terry(games: Games, structure: Structure, settings: AnalysisConfig) -> Standing:
    """Bradley and Terry's model, ties as half wins, no order effect: what Elo ratings settle at."""
    fit = fit_bradley_terry(games, _fitted_together(structure, settings), settings.ridge)
    return _worths(fit, games, structure, settings)


def elo(games: Games, structure: Structure, settings: AnalysisConfig) -> Standing:
    """Elo ratings over random orders of the questions (`elo`), without intervals; 1000 is the mean of the same models
    as in the fits beside it."""
    rating = elo_ratings(games, settings.seed)
    together = _fitted_together(structure, settings)
    middle = np.array([rating[together == label].mean() for label in together])
    rating = CENTRE + rating - middle
    same, nobody = structure.group[:, None] == structure.group[None, :], np.full(len(rating), False)
    above = np.where(same, rating[:, None] > rating[None, :] + 1e-9, structure.above)
    shown = np.where(structure.bounded, rating, np.nan)
    unsure = np.full(len(rating), np.nan)
    found = Standing(shown, unsure, unsure, above, np.full(above.shape, False), structure.bounded, nobody)
    placed = _anchored_to(games, structure.group, structure, settings)
    if placed is None:
        return found
    anchor, there = placed
    return replace(found, rating=np.where(there, CENTRE + (rating - rating[anchor]), np.nan))


def win_rate(games: Games, structure: Structure, settings: AnalysisConfig) -> Standing:
    """The mean of P(win) + ½ P(tie) over a model's games, from 0 to 1. It depends on whom a model met."""
    half, n = games.outcome[:, 2] / 2, games.outcome.sum(1)
    model = np.concatenate([games.first, games.second])
    points = np.concatenate([games.outcome[:, 0] + half, games.outcome[:, 1] + half])
    played = np.concatenate([n, n])
    question = np.concatenate([games.question, games.question])
    return means(question, model, points, played, structure.component, settings, soft_ratio_intervals)


Rule = Callable[[Games, Structure, AnalysisConfig], Standing]
RATING_RULES: Final[dict[str, tuple[str, Rule]]] = {
    "davidson": (SOFT, davidson),
    "davidson_hard": (HARD, davidson),
    "davidson_calibrated": (CALIBRATED, davidson),
    "bradley_terry": (SOFT, bradley_terry),
    "win_rate": (SOFT, win_rate),
    "elo": (SOFT, elo),
}
"""By name: on which kind of outcomes (`outcomes`), and how."""


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


def _fitted_together(structure: Structure, settings: AnalysisConfig) -> Index:
    """Which models' ratings are bounded in a fit: with a ridge those of all that met, directly or through others."""
    return structure.component if settings.ridge > 0 else structure.group


def _worths(fit: Fit, games: Games, structure: Structure, settings: AnalysisConfig) -> Standing:
    """Ratings of a fitted model; between groups the order is that of the groups.

    With a ridge models of other groups have a rating, which is the prior's, and no interval; the order is then that of
    the ratings, and between groups only sure where the groups' order is too.
    """
    together = _fitted_together(structure, settings)
    seen, questions = questions_by_model(games), questions_by_model(games, together)
    same, rival = together[:, None] == together[None, :], structure.group[:, None] == structure.group[None, :]
    rated = structure.bounded | (settings.ridge > 0)
    above = np.where(same, fit.theta[:, None] > fit.theta[None, :] + 1e-9, structure.above)
    sure = above & np.where(
        rival, _significant(fit.theta, fit.cov, questions, settings.confidence), structure.surely_above
    )
    theta, variance, freedom = fit.theta, np.diag(fit.cov), questions
    placed = _anchored_to(games, together, structure, settings)
    if placed is not None:
        anchor, there = placed
        rated = rated & there
        theta = theta - theta[anchor]
        variance = variance + variance[anchor] - 2 * fit.cov[:, anchor]
        freedom = np.minimum(questions, questions[anchor])
    half = _quantile(freedom, settings.confidence) * np.sqrt(np.maximum(variance, 0)) * ELO
    half[~structure.bounded] = np.nan
    rating = np.where(rated, CENTRE + ELO * theta, np.nan)
    notes = list(fit.notes)
    if not fit.converged:
        notes.append(f"the fit did not converge in {fit.iterations} steps: do not use these ratings")
    ranks = _ranks(fit, games, structure, sure, settings) if settings.bootstrap > 0 and games.questions > 1 else None
    limits = rating - half, rating + half
    return Standing(rating, *limits, above, sure, structure.bounded, seen > 1, ranks, tuple(notes), fit)


def _ranks(fit: Fit, games: Games, structure: Structure, sure: Flags, settings: AnalysisConfig) -> tuple[Array, Array]:
    """(models,) lowest and highest rank: within a group quantiles over resampled questions. No resample can turn games
    that all went one way, so models of other groups count as open unless they are `sure`."""
    rng, group = np.random.default_rng(settings.seed), structure.group
    together = _fitted_together(structure, settings)
    drawn = resampled_theta(games, together, fit, settings.bootstrap, rng, settings.ridge)
    same = group[:, None] == group[None, :]
    better = same & (drawn[:, :, None] > drawn[:, None, :] + 1e-9)
    tail = (1 - settings.confidence) / 2
    low, high = np.quantile(1 + better.sum(axis=1), [tail, 1 - tail], axis=0, method="nearest")
    others = ~same & (structure.component[:, None] == structure.component[None, :])
    return low + (others & sure).sum(0), high + (others & ~sure).sum(1)


def _anchored_to(
    games: Games, together: Index, structure: Structure, settings: AnalysisConfig
) -> tuple[int, Flags] | None:
    """The anchor's place and which models have a rating against it; None where no anchor is asked for.

    Nobody has one where the anchor is not among the models or has no finite rating itself.
    """
    if settings.anchor_model is None:
        return None
    if settings.anchor_model not in games.models:
        return 0, np.full(len(together), False)
    anchor = games.models.index(settings.anchor_model)
    return anchor, (together == together[anchor]) & bool(structure.bounded[anchor] or settings.ridge > 0)


def questions_by_model(games: Games, group: Index | None = None) -> Index:
    """In how many questions each model played; with a group, against models of its own group."""
    n = len(games.models)
    seen = np.zeros(games.questions * n, dtype=bool)
    counted = slice(None) if group is None else group[games.first] == group[games.second]
    for side in (games.first, games.second):
        seen[games.question[counted] * n + side[counted]] = True
    return seen.reshape(games.questions, n).sum(0)


def _quantile(questions: Index, confidence: float) -> Array:
    """Student's t with one degree of freedom less than questions; NaN for a single question."""
    freedom = np.where(questions > 1, questions - 1.0, np.nan)
    return np.asarray(stdtrit(freedom, (1 + confidence) / 2), dtype=np.float64)


def _significant(value: Array, cov: Array, questions: Index, confidence: float) -> Flags:
    """(models, models) whether row − column is above 0 by more than its own t interval.

    A difference without any variance (beyond rounding) needs as many questions as a sign test does, and so does one
    of two models of which either has none: a model that took no point in two questions has shown no variance yet.
    """
    own = np.diag(cov)
    apart = own[:, None] + own[None, :]
    variance = apart - 2 * cov
    fewer = np.minimum(questions[:, None], questions[None, :])
    with np.errstate(invalid="ignore"):
        margin = _quantile(fewer, confidence) * np.sqrt(np.maximum(variance, 0))
        varied = (variance > 1e-14 + 1e-10 * apart) & (np.minimum(own[:, None], own[None, :]) > 1e-14)
        enough = varied | (fewer >= np.log2(2 / (1 - confidence)))
        return np.asarray(enough & (value[:, None] - value[None, :] > margin + 1e-9))
