"""Elo ratings against a library and by hand; Bradley and Terry on soft points against two libraries."""

import choix
import evalica
import numpy as np
import pytest
from comparisons import game, table, tournament
from rankings import NAMES, WORTHS, by_model, ranked

from trustjudge_ray.analysis.bradley_terry import fit_bradley_terry
from trustjudge_ray.analysis.elo import K, elo_ratings, played
from trustjudge_ray.analysis.games import Games, games_of, soft_outcomes
from trustjudge_ray.analysis.standing import ELO
from trustjudge_ray.config import AnalysisConfig


def test_elo_updates_are_those_of_evalica_and_their_mean_goes_around_bradley_and_terry_s():
    rng, size = np.random.default_rng(20), 4000
    first, second = np.array([rng.choice(4, 2, replace=False) for _ in range(size)]).T
    worths = np.array(list(WORTHS.values()))
    won = rng.random(size) < 1 / (1 + np.exp(worths[second] - worths[first]))
    outcome = np.stack([won, ~won, np.zeros(size)], axis=1).astype(np.float64)
    games = Games(NAMES, size, np.arange(size), first, second, outcome)
    names = np.array(NAMES)
    winners = [evalica.Winner.X if w else evalica.Winner.Y for w in won]
    theirs = evalica.elo(list(names[first]), list(names[second]), winners, initial=1000.0, k=K).scores
    assert dict(zip(NAMES, played(games, np.arange(size)), strict=True)) == pytest.approx(theirs.to_dict())
    theta = fit_bradley_terry(games, np.zeros(4, dtype=np.int64)).theta
    np.testing.assert_allclose(elo_ratings(games, 0), 1000 + ELO * theta, atol=25)


def test_all_games_of_a_question_are_rated_from_the_ratings_before_it():
    rows = [game(1, f, s, "first") for f, s in (("a", "b"), ("b", "c"), ("c", "a"))]
    assert by_model(ranked(rows), "elo") == {"a": 1000, "b": 1000, "c": 1000}
    rows = [game(1, "a", "b", "first"), game(1, "b", "a", "first"), game(2, "a", "b", "first")]
    assert sorted(by_model(ranked(rows), "elo").values()) == pytest.approx([998, 1002], abs=0.05)


def test_elo_does_not_overshoot_where_a_question_has_very_many_games():
    models = 300
    f, s = np.nonzero(~np.eye(models, dtype=bool))
    won = (f < s).astype(np.float64) * 0.8 + 0.1  # the better model takes 9 of 10 points
    outcome = np.stack([won, 1 - won, np.zeros(len(f))], axis=1)
    games = Games(tuple(f"{m:03d}" for m in range(models)), 1, np.zeros(len(f), dtype=np.int64), f, s, outcome)
    rating = elo_ratings(games, 0)
    assert (np.diff(rating) < 0).all()
    assert np.abs(rating - 1000).max() < 400


def test_choix_and_evalica_agree_on_soft_points_too():
    """Half wins as two games of half the weight: what a tie is to Bradley and Terry."""
    games = games_of(soft_outcomes(table(tournament(np.random.default_rng(21), WORTHS, 40)), "exclude")[0])
    theta = fit_bradley_terry(games, np.zeros(4, dtype=np.int64)).theta
    matrix = games.points()
    choix_theta = choix.ilsr_pairwise_dense(matrix)
    np.testing.assert_allclose(theta, choix_theta - choix_theta.mean(), atol=1e-5)
    names, i = np.array(games.models), np.nonzero(matrix)
    winners = [evalica.Winner.X] * len(i[0])
    scores = evalica.bradley_terry(
        list(names[i[0]]), list(names[i[1]]), winners, weights=matrix[i].tolist(), tolerance=1e-12
    ).scores
    other = np.log([scores[m] for m in games.models])
    np.testing.assert_allclose(theta, other - other.mean(), atol=1e-4)


def test_elo_is_centred_on_the_models_whose_ratings_are_shown():
    rows = tournament(np.random.default_rng(25), {"a": 0.1, "b": 0.0}, 40, soft=True)
    rows += [game(q, m, "never", "first") for q in range(40) for m in "ab"]
    found = ranked(rows)
    for rule in ("davidson", "elo"):
        assert by_model(found, rule)["never"] is None
        assert by_model(found, rule)["a"] + by_model(found, rule)["b"] == pytest.approx(2000)
    shrunk = by_model(ranked(rows, AnalysisConfig(ridge=0.5)), "elo")
    assert shrunk["a"] > 1050  # as the ridge's ratings, whose mean is that of all three
