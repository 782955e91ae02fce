"""Where models stand in two runs over the same questions, and how sure a change of rank is."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis.bradley_terry import fit_davidson, resampled_theta
from trustjudge_ray.analysis.connectivity import structure
from trustjudge_ray.analysis.games import Array, games_of
from trustjudge_ray.analysis.pairing import Lane, Paired
from trustjudge_ray.analysis.standing import CENTRE, ELO

_EQUAL: Final = 1e-9


@dataclass(frozen=True, slots=True)
class RankChange:
    """A model's place before and after, among the models and questions that both runs have.

    Attributes:
        rule: `davidson` (Elo scale) or `mean_score`.
        rating_low, rating_high: interval of the difference of ratings, of this model on its own; None without one.
        p_up, p_down: share of resamples of the questions in which the model's rank is better after, or worse.
            The same questions are drawn on both sides; the rest of the resamples leave the rank as it was.
    """

    lane: str
    rule: str
    model: str
    rank_before: int
    rank_after: int
    rating_before: float
    rating_after: float
    rating_difference: float
    rating_low: float | None
    rating_high: float | None
    p_up: float | None
    p_down: float | None


def score_ranks(paired: Paired, lane: Lane, rounds: int, confidence: float, seed: int) -> list[RankChange]:
    """Ranks by mean score."""
    seen = paired.cases.sum(axis=1) > 0
    cells = (paired.sums_a[seen], paired.sums_b[seen], paired.cases[seen])
    asked = cells[2].sum(axis=0) > 0
    sums_a, sums_b, cases = (table[:, asked] for table in cells)
    names = [name for name, some in zip(paired.models, seen, strict=True) if some]
    if len(names) < 2:
        return []
    before, after = (paired.lowest + paired.span * s.sum(axis=1) / cases.sum(axis=1) for s in (sums_a, sums_b))
    drawn = None
    if cases.shape[1] > 1:
        size = cases.shape[1]
        times = np.random.default_rng(seed).multinomial(size, np.full(size, 1 / size), rounds).astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            drawn = [paired.span * (times @ s.T) / (times @ cases.T) for s in (sums_a, sums_b)]
        drawn = [table[np.isfinite(table).all(axis=1)] for table in drawn]
    return _changes(lane, "mean_score", names, before, after, drawn, confidence)


def game_ranks(
    before: pl.DataFrame, after: pl.DataFrame, lane: Lane, rounds: int, confidence: float, seed: int
) -> tuple[list[RankChange], list[str]]:
    """Ranks by Davidson's model on both sides' games (`pairing.paired_games`), and notes.

    None where the games leave a model without a finite rating, or groups that never met.
    """
    games = [games_of(table) for table in (before, after)]
    if games[0].questions == 0 or len(games[0].models) < 2:
        return [], []
    shapes = [structure(each, confidence) for each in games]
    if any(shape.component.max() > 1 or not shape.bounded.all() for shape in shapes):
        why = "on one side a model won or lost everything, or groups of models never met; no ratings are compared"
        return [], [f"{lane.name}: {why}"]
    fits = [fit_davidson(each, shape.group) for each, shape in zip(games, shapes, strict=True)]
    notes = [f"{lane.name}: {note}" for fit in fits for note in fit.notes]
    drawn = None
    if games[0].questions > 1:
        drawn = [
            ELO * resampled_theta(each, shape.group, fit, rounds, np.random.default_rng(seed))
            for each, shape, fit in zip(games, shapes, fits, strict=True)
        ]
    first, second = (CENTRE + ELO * fit.theta for fit in fits)
    names = list(games[0].models)
    return _changes(lane, "davidson", names, first, second, drawn, confidence), list(dict.fromkeys(notes))


def _changes(
    lane: Lane, rule: str, names: list[str], before: Array, after: Array, drawn: list[Array] | None, confidence: float
) -> list[RankChange]:
    places = [ranks(before[None])[0], ranks(after[None])[0]]
    count = len(names)
    up, down = np.full(count, np.nan), np.full(count, np.nan)
    low, high = np.full(count, np.nan), np.full(count, np.nan)
    if drawn is not None and len(drawn[0]):
        moved = ranks(drawn[0]) - ranks(drawn[1])
        up, down = (moved > 0).mean(axis=0), (moved < 0).mean(axis=0)
        tail = (1 - confidence) / 2
        low, high = np.quantile(drawn[1] - drawn[0], [tail, 1 - tail], axis=0)
    order = np.lexsort((np.array(names), places[1]))
    return [
        RankChange(
            lane.name,
            rule,
            names[m],
            int(places[0][m]),
            int(places[1][m]),
            float(before[m]),
            float(after[m]),
            float(after[m] - before[m]),
            *(None if np.isnan(x[m]) else float(x[m]) for x in (low, high, up, down)),
        )
        for m in order
    ]


def ranks(ratings: Array) -> NDArray[np.int64]:
    """(rounds, models) → 1 + the number of models with a higher rating; gaps up to 1e-9 are none."""
    return 1 + (ratings[:, :, None] < ratings[:, None, :] - _EQUAL).sum(axis=2)
