"""Elo ratings as they are played: updates in the order of the games, here of questions in random orders.

Every model starts at 1000. A question is a tournament, as in chess: all its games are rated at once, from the ratings
before it, R += K Σ (points − expected points), K = 4 (Elo, The Rating of Chessplayers, 1978). What was judged in both
orders, by several judges or several times is one game for each ordered pair. Where a question gives a model so many
games that ratings would overshoot, K is smaller: K · games ≤ 350.

The order of the questions decides the result, so it is the mean over several random orders, drawn by the seed alone.
After some hundred games Elo forgets; of more than 2,000 games a model, an order takes as many questions as give that.
There is no interval: what changes between orders says nothing about questions that were not asked. Ratings to
defend are Bradley and Terry's, which these go around.
"""

from collections import Counter
from typing import Final

import numpy as np

from trustjudge_ray.analysis.games import Array, Games, Index

K: Final = 4.0
START: Final = 1000.0
_OVERSHOOT: Final = 350.0
_REMEMBERED: Final = 2000
_MOST_UPDATES: Final = 400_000
_MOST_ORDERS: Final = 20


def elo_ratings(games: Games, seed: int) -> Array:
    """(models,) mean ratings over random orders of the questions; the mean of all models that met is 1000,
    also of those that no fit can rate (`standing.elo` centres anew).

    Nothing depends on the names of models or on row order. Up to 20 orders, each with its reverse, at least 2; 400,000
    updates in all where that is enough.
    """
    rng, size, models = np.random.default_rng(seed), len(games.question), len(games.models)
    enough = int(np.ceil(_REMEMBERED * models * games.questions / (2 * size)))
    asked = min(games.questions, enough)
    pairs = int(np.clip(_MOST_UPDATES * games.questions // (size * asked), 2, _MOST_ORDERS)) // 2
    total = np.zeros(models)
    for _ in range(pairs):
        order = rng.choice(games.questions, asked, replace=False)
        total += played(games, order) + played(games, order[::-1])
    return np.asarray(total / (2 * pairs), dtype=np.float64)


def played(games: Games, questions: Index) -> Array:
    """(models,) ratings after these questions, one after the other."""
    starts = np.searchsorted(games.question, questions)
    counts = np.searchsorted(games.question, questions, side="right") - starts
    rows = np.repeat(starts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
    first, second, outcome = games.first[rows], games.second[rows], games.outcome[rows]
    points = (outcome[:, 0] + outcome[:, 2] / 2) / outcome.sum(axis=1)
    rating, at = [START] * len(games.models), 0
    lists = first.tolist(), second.tolist(), points.tolist()
    for count in counts.tolist():
        ones, twos, won = (each[at : at + count] for each in lists)
        k = K if K * count <= _OVERSHOOT else min(K, _OVERSHOOT / max(Counter(ones + twos).values()))
        before = rating.copy()
        for one, two, share in zip(ones, twos, won, strict=True):
            change = k * (share - 1 / (1 + 10 ** ((before[two] - before[one]) / 400)))
            rating[one] += change
            rating[two] -= change
        at += count
    return np.array(rating)
