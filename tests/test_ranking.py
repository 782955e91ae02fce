"""Ratings: against other libraries and brute force, under symmetries, and on games that break naive rankings."""

from functools import cache

import choix
import evalica
import numpy as np
import polars as pl
import pytest
from comparisons import battles, game, score, table, tournament
from polars.testing import assert_frame_equal
from scipy.optimize import minimize
from shared_inputs import shared

from trustjudge_ray.analysis.bradley_terry import fit_bradley_terry, fit_davidson
from trustjudge_ray.analysis.clusters import outer_sum
from trustjudge_ray.analysis.connectivity import structure
from trustjudge_ray.analysis.games import Games, games_of, soft_outcomes
from trustjudge_ray.analysis.ranking import rankings, ratings
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.judging.protocols import parse
from trustjudge_ray.schema import RATINGS, check

SETTINGS = AnalysisConfig()
WORTHS = {"ada": 0.9, "bob": 0.3, "cy": -0.2, "dee": -1.0}
PROTOCOLS = {"score": parse("name: score\nkind: score\nlabels: 5\nuser: |\n  Rate.\n  {answer}\nopener: 'Score: ['\n")}


def rated(rows, settings=SETTINGS, protocols=PROTOCOLS):
    found, warnings = ratings(table(rows) if isinstance(rows, list) else rows, protocols, settings)
    check(found.to_arrow(), RATINGS)
    return found, warnings


def by_model(found, rule="davidson", column="rating"):
    rows = found.filter((pl.col("rule") == rule) & pl.col("category").is_null())
    return dict(zip(rows["model"], rows[column], strict=True))


def games_from(rows):
    return games_of(soft_outcomes(table(rows), "exclude")[0])


def negative_log_likelihood(x, games):
    """Davidson's likelihood as its definition says, game by game: the slow witness."""
    n, total = len(games.models), 0.0
    for first, second, outcome in zip(games.first, games.second, games.outcome, strict=True):
        d = x[first] - x[second] + x[n]
        logits = np.array([d / 2, -d / 2, x[n + 1]])
        total -= outcome @ (logits - np.log(np.exp(logits).sum()))
    return total


@pytest.mark.parametrize("soft", [True, False])
def test_davidson_is_the_maximum_of_its_likelihood(soft):
    games = games_from(tournament(np.random.default_rng(1), WORTHS, 6, soft=soft))
    fit = fit_davidson(games, np.zeros(4, dtype=np.int64))
    best = minimize(negative_log_likelihood, np.zeros(6), args=(games,), method="BFGS", options={"gtol": 1e-7})
    np.testing.assert_allclose(fit.theta, best.x[:4] - best.x[:4].mean(), atol=1e-4)
    np.testing.assert_allclose([fit.order_effect, fit.log_nu], best.x[4:], atol=1e-4)
    assert fit.converged


def test_bradley_terry_agrees_with_choix_and_evalica():
    rng = np.random.default_rng(2)
    rows = tournament(rng, WORTHS, 30, order_effect=0.0, log_nu=-20.0, spread=0.0)
    games = games_from(rows)
    theta = fit_bradley_terry(games, np.zeros(4, dtype=np.int64)).theta
    wins = [
        (f, s) if outcome[0] else (s, f) for f, s, outcome in zip(games.first, games.second, games.outcome, strict=True)
    ]
    expected = choix.ilsr_pairwise(4, wins)
    np.testing.assert_allclose(theta, expected - expected.mean(), atol=1e-5)
    names = np.array(games.models)
    winners = [evalica.Winner.X if o[0] else evalica.Winner.Y for o in games.outcome]
    scores = evalica.bradley_terry(list(names[games.first]), list(names[games.second]), winners, tolerance=1e-12).scores
    other = np.log([scores[m] for m in names])
    np.testing.assert_allclose(theta, other - other.mean(), atol=1e-4)


def test_planted_ratings_order_effect_and_ties_come_back():
    rows = table(tournament(np.random.default_rng(3), WORTHS, 400, spread=0.0))
    found, _ = rated(rows)
    rating = by_model(found)
    for model, worth in WORTHS.items():
        assert rating[model] == pytest.approx(1000 + 400 / np.log(10) * worth, abs=30)
    fitted = {
        row["metric"]: row
        for row in rankings(rows, PROTOCOLS, SETTINGS).metrics.filter(pl.col("category").is_null()).to_dicts()
    }
    assert fitted["order_effect_logit"]["low"] < 0.3 < fitted["order_effect_logit"]["high"]
    assert fitted["tie_parameter"]["low"] < np.exp(-1) < fitted["tie_parameter"]["high"]
    assert fitted["tie_parameter"]["cases"] == 400 * 12


def test_an_order_effect_does_not_help_the_model_that_is_shown_first_more_often():
    rng, rows = np.random.default_rng(4), []
    for q in range(600):
        first, second = ("a", "b") if rng.random() < 0.9 else ("b", "a")
        rows.append(game(q, first, second, "first" if rng.random() < 0.75 else "second"))
    found, _ = rated(rows)
    row = found.filter((pl.col("rule") == "davidson") & (pl.col("model") == "a")).to_dicts()[0]
    assert row["low"] < 1000 < row["high"]
    assert by_model(found, "bradley_terry")["a"] > 1050  # the plain model is fooled


def test_rating_intervals_hold_the_truth_although_games_of_a_question_are_alike():
    """96 games a question that all share that question's worths: treated as independent, intervals hold far less."""
    rng, models, questions = np.random.default_rng(5), 5, 40
    truth = np.linspace(0.8, -0.8, models)
    f, s = (side.ravel() for side in np.meshgrid(range(models), range(models), indexing="ij"))
    f, s = f[f != s], s[f != s]
    group = np.zeros(models, dtype=np.int64)
    held = []
    for _ in range(150):
        here = truth + rng.normal(0, 0.7, (questions, models))
        d = (here[:, f] - here[:, s]).ravel()
        weight = np.exp(np.stack([d / 2, -d / 2, np.full_like(d, -30.0)], axis=1))
        outcome = weight / weight.sum(1, keepdims=True)
        question = np.repeat(np.arange(questions), len(f))
        games = Games(tuple("abcde"), questions, question, np.tile(f, questions), np.tile(s, questions), outcome)
        fit = fit_bradley_terry(games, group)
        held.append(np.abs(fit.theta - _population(tuple(truth), 0.7)) <= 2.0227 * np.sqrt(np.diag(fit.cov)))
    assert 0.92 <= np.mean(held) <= 0.985


@cache
def _population(truth: tuple, spread: float):
    """The worths that the model has on endless questions: averaging over questions shrinks them."""
    rng, n = np.random.default_rng(6), len(truth)
    here = np.array(truth) + rng.normal(0, spread, (20_000, n))
    mean = (1 / (1 + np.exp(here[:, None, :] - here[:, :, None]))).mean(0)
    f, s = (side.ravel() for side in np.meshgrid(range(n), range(n), indexing="ij"))
    f, s = f[f != s], s[f != s]
    outcome = np.stack([mean[f, s], mean[s, f], np.zeros(len(f))], axis=1)
    games = Games(tuple("abcde"), 1, np.zeros(len(f), dtype=np.int64), f, s, outcome)
    return fit_bradley_terry(games, np.zeros(n, dtype=np.int64)).theta


def test_ratings_do_not_depend_on_row_order_names_or_the_side_a_model_is_stored_on():
    rows = tournament(np.random.default_rng(7), WORTHS, 12, soft=True)
    found, _ = rated(rows)
    shuffled = table(rows).sample(fraction=1.0, shuffle=True, seed=1)
    assert_frame_equal(found, rated(shuffled)[0], abs_tol=1e-6)
    names = {"ada": "zoe", "bob": "yan", "cy": "xi", "dee": "abe"}  # reverses who is candidate a
    renamed = [game(r["question_id"], *(names[m] for m in _shown(r)), _as_shown(r)) for r in rows]
    for rule in ("davidson", "bradley_terry", "win_rate"):
        other = by_model(rated(renamed)[0], rule)
        assert {names[m]: pytest.approx(v, abs=1e-6) for m, v in by_model(found, rule).items()} == other


def _shown(row):
    return (row["model_a"], row["model_b"]) if row["order"] == "AB" else (row["model_b"], row["model_a"])


def _as_shown(row):
    a, b, tie = np.exp(row["label_logprobs"])
    return (a, b, tie) if row["order"] == "AB" else (b, a, tie)


def test_a_model_that_never_wins_is_unbounded_and_last_and_the_others_keep_their_ratings():
    found, warnings = rated(battles(shared("inputs/rankings/rank_never_wins.jsonl")))
    rows = {r["model"]: r for r in found.filter(pl.col("rule") == "davidson").to_dicts()}
    assert [rows[m]["status"] for m in "abc"] == ["bounded", "bounded", "unbounded"]
    assert (rows["c"]["rating"], rows["c"]["low"], rows["c"]["high"], rows["c"]["rank"]) == (None, None, None, 3)
    assert rows["a"]["rating"] == rows["b"]["rating"] == pytest.approx(1000)
    assert rows["c"]["rank_low"] == 1  # two lost games prove little
    assert any("no finite rating for c" in w for w in warnings)


def test_a_model_that_always_wins_is_surely_first_after_enough_questions():
    rows = tournament(np.random.default_rng(8), {"a": 0.0, "b": 0.2}, 40)
    rows += [game(q, "top", m, "first") for q in range(20) for m in "ab"]
    rows += [game(q, m, "top", "second") for q in range(20) for m in "ab"]
    found, _ = rated(rows)
    top = found.filter((pl.col("model") == "top") & (pl.col("rule") == "davidson")).to_dicts()[0]
    assert (top["status"], top["rank"], top["rank_low"], top["rank_high"]) == ("unbounded", 1, 1, 1)
    without, _ = rated(rows[: 40 * 2])
    assert by_model(found)["a"] == pytest.approx(by_model(without)["a"], abs=1e-6)


def test_a_perfect_line_has_ranks_and_no_ratings():
    rows = [game(q, *pair, "first") for q in range(8) for pair in (("a", "b"), ("b", "c"), ("a", "c"))]
    found, _ = rated(rows)
    assert by_model(found, column="rank") == {"a": 1, "b": 2, "c": 3}
    assert by_model(found, column="rating") == {"a": None, "b": None, "c": None}
    assert by_model(found, column="rank_low") == {"a": 1, "b": 2, "c": 3}


def test_groups_that_never_met_are_ranked_apart():
    found, warnings = rated(battles(shared("inputs/rankings/rank_disconnected.jsonl")))
    assert by_model(found, column="component") == {"a": 1, "b": 1, "c": 2, "d": 2}
    assert set(by_model(found, column="rank").values()) == {1}
    assert set(by_model(found, column="rank_high").values()) == {2}
    assert any("component 1: a, b; component 2: c, d" in w for w in warnings)


def test_ties_only_make_everyone_equal_but_not_certainly():
    found, warnings = rated(battles(shared("inputs/rankings/rank_ties_only.jsonl")))
    for row in found.to_dicts():
        middle = 0.5 if row["rule"] == "win_rate" else 1000
        assert row["rating"] == pytest.approx(middle)
        if row["rule"] == "elo":  # has no intervals
            assert (row["low"], row["rank"], row["rank_low"]) == (None, 1, None)
            continue
        assert row["low"] < middle < row["high"]
        assert (row["rank"], row["rank_low"], row["rank_high"]) == (1, 1, 3)
    assert any("do not bound the tie parameter" in w for w in warnings)


def test_tripled_rows_do_not_shrink_intervals():
    tripled = battles(shared("inputs/rankings/rank_tripled.jsonl"))
    columns = ["rule", "model", "rating", "low", "high", "rank", "rank_low", "rank_high"]
    once = tripled.unique(["question_id"], keep="first", maintain_order=True)
    assert_frame_equal(rated(tripled)[0].select(columns), rated(once)[0].select(columns), abs_tol=1e-6)
    rows = tournament(np.random.default_rng(9), WORTHS, 10)
    assert_frame_equal(rated(rows)[0].select(columns), rated(rows * 3)[0].select(columns), abs_tol=1e-6)


def test_unknown_outcome_words_taken_as_ties_do_not_break_the_fit():
    found, _ = rated(battles(shared("inputs/rankings/rank_odd_labels.jsonl")))
    assert by_model(found)["b"] > by_model(found)["a"]
    assert np.isfinite(found["rating"].to_numpy()).all()


def test_a_tie_between_neighbours_does_not_send_the_tie_parameter_to_infinity():
    rows = [game(q, *g) for q in range(5) for g in (("a", "b", "first"), ("b", "c", "tie"), ("c", "a", "tie"))]
    found, warnings = rated(rows)
    assert np.isfinite(found["rating"].to_numpy()).all()
    assert by_model(found)["a"] > by_model(found)["c"] > by_model(found)["b"]
    assert any("do not bound the tie parameter" in w for w in warnings)


def test_near_certain_judgments_are_rated_and_exact_zeros_are_unbounded():
    near = [game(q, *pair, (1 - 1e-4, 1e-4, 0)) for q in range(5) for pair in (("a", "b"), ("b", "c"), ("a", "c"))]
    assert by_model(rated(near)[0], column="status") == {"a": "bounded", "b": "bounded", "c": "bounded"}
    zero = [game(q, *pair, (1.0, 0.0, 0)) for q in range(5) for pair in (("a", "b"), ("b", "c"), ("a", "c"))]
    assert set(by_model(rated(zero)[0], column="status").values()) == {"unbounded"}


def test_one_question_gives_ratings_without_intervals():
    found, warnings = rated(tournament(np.random.default_rng(10), WORTHS, 1, soft=True))
    assert found.filter(pl.col("rule") != "davidson_hard")["rating"].null_count() == 0
    assert found.select("low", "high", "rank_low", "rank_high").null_count().row(0) == (found.height,) * 4
    assert any("one question only" in w for w in warnings)


def test_a_model_seen_in_one_question_has_no_interval_while_others_do():
    rows = tournament(np.random.default_rng(11), WORTHS, 20, soft=True)
    rows += [game(0, "new", "ada", (0.4, 0.5, 0.1)), game(0, "ada", "new", (0.6, 0.3, 0.1))]
    found, warnings = rated(rows)
    assert by_model(found, column="low")["new"] is None
    assert by_model(found, column="low")["ada"] is not None
    assert any("no interval for new" in w for w in warnings)


def test_failed_comparisons_are_left_out_and_told_by_model():
    rows = tournament(np.random.default_rng(12), WORTHS, 5, soft=True)
    failed = [*rows, game(7, "ada", "bob", "first", status="engine_error", label_logprobs=None)]
    found, warnings = rated(failed)
    assert_frame_equal(found, rated(rows)[0])
    assert any("1 of 31 comparisons of model ada are not in its ratings (engine_error 1)" in w for w in warnings)


def test_an_empty_answer_loses_only_where_that_is_asked_for():
    rows = tournament(np.random.default_rng(13), WORTHS, 5, soft=True)
    empty = {"status": "empty_response", "label_logprobs": None}
    rows += [game(9, "ada", "bob", "tie", detail="a", **empty), game(9, "bob", "ada", "tie", detail="a", **empty)]
    rows += [game(9, "cy", "dee", "tie", detail="a,b", **empty)]
    assert by_model(rated(rows)[0], "win_rate", "games")["ada"] == 30
    found, warnings = rated(rows, AnalysisConfig(on_empty="lose"))
    losing = found.filter(pl.col("rule") == "win_rate")
    kept = by_model(rated(rows)[0], "win_rate", "losses")["ada"]
    assert dict(zip(losing["model"], losing["losses"], strict=True))["ada"] == pytest.approx(kept + 2)
    assert any("model cy" in w for w in warnings)  # both empty: nobody can lose alone
    assert not any("model ada" in w for w in warnings)


def test_identical_answers_are_ties_and_samples_of_one_judgment_one_game():
    rows = tournament(np.random.default_rng(14), WORTHS, 5, soft=True)
    rows += [game(8, "ada", "bob", "tie", status="identical")]
    before = by_model(rated(rows)[0], column="games")
    rows += [game(6, "cy", "dee", p, sample=i) for i, p in enumerate([(1.0, 0, 0), (0.5, 0.5, 0)])]
    found = rated(rows)[0]
    assert by_model(found, column="games")["cy"] == pytest.approx(before["cy"] + 1)
    assert before["ada"] == pytest.approx(31)
    rows += [game(6, "cy", "dee", "second", repeat=1)]  # the noise check is no game
    assert by_model(rated(rows)[0], column="games")["cy"] == pytest.approx(before["cy"] + 1)


def test_each_order_hands_out_one_point_however_little_mass_its_labels_have():
    even = [game(q, "a", "b", (0.5e-3, 0.5e-3, 0)) for q in range(9)] + [
        game(q, "b", "a", (0.8, 0.2, 0)) for q in range(9)
    ]
    rate = by_model(rated(even)[0], "win_rate")
    assert rate["b"] == pytest.approx((0.5 + 0.8) / 2)


def test_categories_and_several_judges_are_rated_apart_and_together():
    rng = np.random.default_rng(15)
    rows = [
        row | {"judge": judge, "category": "maths" if int(row["question_id"]) % 2 else None}
        for judge in ("j1", "j2")
        for row in tournament(rng, WORTHS, 6, soft=True)
    ]
    found, _ = rated(rows)
    davidson = found.filter(pl.col("rule") == "davidson")
    assert set(davidson["judge"]) == {"j1", "j2", "(all)"}
    assert set(davidson["category"]) == {None, "maths", "(none)"}
    games = davidson.filter(pl.col("model") == "ada", pl.col("category").is_null())
    assert dict(zip(games["judge"], games["games"], strict=True)) == pytest.approx({"j1": 36, "j2": 36, "(all)": 72})


def test_without_comparisons_models_are_ranked_by_their_mean_score():
    rows = [score(q, m, p) for q in range(12) for m, p in (("good", [0, 0, 0, 0.5, 0.5]), ("bad", [0.5, 0.5, 0, 0, 0]))]
    rows += [score(99, "bad", [0, 0, 0, 0, 0], status="engine_error", label_logprobs=None)]
    found, warnings = rated(rows)
    assert found["rule"].unique().to_list() == ["mean_score"]
    assert by_model(found, "mean_score") == pytest.approx({"good": 4.5, "bad": 1.5})
    assert by_model(found, "mean_score", "rank") == {"good": 1, "bad": 2}
    assert by_model(found, "mean_score", "rank_low") == {"good": 1, "bad": 2}
    assert any("1 of 13 scores of model bad are missing" in w for w in warnings)


def test_rank_intervals_by_bootstrap_are_seeded_and_hold_the_rank():
    rows = tournament(np.random.default_rng(16), WORTHS, 15)
    settings = AnalysisConfig(bootstrap=40, seed=3)
    found = rated(rows, settings)[0].filter(pl.col("rule") == "davidson")
    again = rated(list(reversed(rows)), settings)[0].filter(pl.col("rule") == "davidson")
    assert found["rank_high"].to_list() == again["rank_high"].to_list()
    assert ((found["rank_low"] <= found["rank"]) & (found["rank"] <= found["rank_high"])).all()


def test_a_bootstrap_does_not_make_two_lost_questions_a_certain_last_place():
    rows = tournament(np.random.default_rng(17), {"a": 0.3, "b": 0.0}, 40, soft=True)
    rows += [game(q, m, last, "first") for q in range(2) for m in "ab" for last in ("y", "z")]
    found, _ = rated(rows, AnalysisConfig(bootstrap=50))
    best, worst = (by_model(found, column=f"rank_{side}") for side in ("low", "high"))
    assert (best["z"], worst["z"]) == (best["y"], worst["y"]) == (1, 4)
    assert worst["a"] >= 3
    rows += [game(q, m, "z", "first") for q in range(2, 20) for m in "ab"]
    assert by_model(rated(rows, AnalysisConfig(bootstrap=50))[0], column="rank_low")["z"] == 3


def test_no_judgments_give_no_rows():
    found, warnings = rated([])
    assert (found.height, warnings) == (0, [])
    assert rankings(table([]), PROTOCOLS, SETTINGS).metrics.height == 0


def test_a_first_slot_that_always_wins_is_not_taken_for_strength():
    rows = [game(q, f, s, "first") for q in range(6) for f, s in (("a", "b"), ("b", "a"))]
    found, warnings = rated(rows)
    assert by_model(found)["a"] == by_model(found)["b"] == pytest.approx(1000)
    assert any("explains every outcome" in w for w in warnings)


def test_score_sums_over_many_questions_agree_with_the_dense_ones(monkeypatch):
    rng = np.random.default_rng(17)
    question = np.sort(rng.integers(0, 50, 300))
    columns, values = [rng.integers(0, 4, 300), 4], [rng.normal(size=300), rng.normal(size=300)]
    dense = outer_sum(question, columns, values, 5)
    monkeypatch.setattr("trustjudge_ray.analysis.clusters.DENSE", 1)
    np.testing.assert_allclose(outer_sum(question, columns, values, 5), dense, atol=1e-9)


def test_two_cliques_with_a_one_way_bridge_rate_only_the_larger():
    rows = tournament(np.random.default_rng(18), {"a": 0, "b": 0, "c": 0}, 10)
    rows += tournament(np.random.default_rng(19), {"x": 0, "y": 0}, 10)
    rows += [game(q, "x", "a", "first") for q in range(10)]
    games = games_from(rows)
    shape = structure(games, 0.95)
    assert np.array(games.models)[shape.bounded].tolist() == ["a", "b", "c"]
    assert shape.surely_above[games.models.index("y"), games.models.index("c")]


def test_the_covariance_is_the_same_in_however_many_parts_it_is_worked(monkeypatch):
    games = games_from(tournament(np.random.default_rng(20), WORTHS, 12, soft=True))
    group = np.zeros(4, dtype=np.int64)
    whole = fit_davidson(games, group)
    monkeypatch.setattr("trustjudge_ray.analysis.clusters._PART", 17)
    parts = fit_davidson(games, group)
    np.testing.assert_allclose(parts.cov, whole.cov, rtol=1e-12)
    assert parts.order_effect_se == pytest.approx(whole.order_effect_se, rel=1e-12)
    monkeypatch.setattr("trustjudge_ray.analysis.clusters.DENSE", 1)
    plain = fit_davidson(games, group)  # without the correction for leverage
    np.testing.assert_allclose(np.diag(plain.cov), np.diag(whole.cov), rtol=0.35)
    assert (np.diag(plain.cov) < np.diag(whole.cov)).all()
