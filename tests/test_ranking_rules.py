"""Rating rules and settings beside the main one: hard and calibrated outcomes, ridge, weights, an anchor."""

from itertools import combinations, permutations

import numpy as np
import polars as pl
import pytest
from comparisons import game, table, tournament
from polars.testing import assert_frame_equal
from rankings import NAMES, WORTHS, answers, by_model, metric, ranked
from scipy.optimize import minimize

from trustjudge_ray.analysis.bradley_terry import fit_davidson
from trustjudge_ray.analysis.games import games_of, soft_outcomes
from trustjudge_ray.analysis.outcomes import with_calibrated
from trustjudge_ray.analysis.standing import ELO
from trustjudge_ray.config import AnalysisConfig, ConfigError


def labelled(rng, worths, questions, heat, people=None):
    """A judge that says p^heat where p is right, and the people who are right: judgments, RESPONSES."""
    rows, human = [], {}
    for q in range(questions):
        for pair in combinations(worths, 2):
            first, second = rng.permutation(pair)
            d = worths[first] - worths[second]
            weight = np.exp(np.array([d / 2, -d / 2, -1.0]))
            drawn = rng.choice(3, p=weight / weight.sum())
            said = (weight / weight.sum()) ** heat
            name = f"{q}-{pair[0]}-{pair[1]}"  # a question for each pair: what people say is of two answers
            rows.append(game(name, str(first), str(second), tuple(said / said.sum())))
            if people is None or q < people:
                human[name, str(first)], human[name, str(second)] = ((1, 0), (0, 1), (0, 0))[drawn]
    return rows, answers(dict.fromkeys(human, "x"), human)


def test_hard_outcomes_are_the_likeliest_label_of_each_order_and_equal_ones_share_the_game():
    rows = [game(q, "a", "b", (0.5, 0.3, 0.2)) for q in range(4)]
    rows += [game(q, "a", "b", (0.2, 0.5, 0.3)) for q in range(4, 6)] + [game(6, "a", "b", (0.4, 0.4, 0.2))]
    named = {0: "first", 4: "second", 6: (0.5, 0.5, 0.0)}
    said = [game(q, "a", "b", named[0 if q < 4 else 4 if q < 6 else 6]) for q in range(7)]
    hard, plain = ranked(rows), ranked(said)
    assert by_model(hard, "davidson_hard") == pytest.approx(by_model(plain, "davidson"))
    assert by_model(hard)["a"] != pytest.approx(by_model(hard, "davidson_hard")["a"], abs=20)


def test_samples_are_averaged_before_the_likeliest_label_is_taken():
    three = [(0.6, 0.4, 0.0), (0.6, 0.4, 0.0), (0.0, 1.0, 0.0)]
    rows = [game(q, "a", "b", p, sample=i) for q in range(5) for i, p in enumerate(three)]
    rows += [game(9, "a", "b", "first")]
    assert by_model(ranked(rows), "davidson_hard")["b"] > 1000


BOTH = ("davidson", "davidson_calibrated")


def test_calibrated_ratings_have_the_spread_that_people_have_whatever_the_judge_s_own():
    rng = np.random.default_rng(1)
    spread = {}
    for heat in (0.3, 3.0):
        rows, responses = labelled(rng, WORTHS, 150, heat)
        found = ranked(rows, responses=responses)
        spread[heat] = {rule: np.ptp(list(by_model(found, rule).values())) for rule in BOTH}
        temperature = metric(found, "outcome_temperature")
        assert temperature["value"] == pytest.approx(heat, rel=0.25)
        assert (temperature["cases"], temperature["questions"]) == (900, 900)
    truth = ELO * 1.9
    assert spread[0.3]["davidson"] < truth / 2
    assert spread[3.0]["davidson"] > 2 * truth
    for told in spread.values():
        assert told["davidson_calibrated"] == pytest.approx(truth, rel=0.2)


def test_without_human_scores_nothing_is_calibrated_and_a_temperature_without_an_optimum_is_said():
    rows, _ = labelled(np.random.default_rng(2), WORTHS, 5, 1.0)
    assert "davidson_calibrated" not in set(ranked(rows).ratings["rule"])
    sure = [game(q, "a", "b", (0.6, 0.3, 0.1)) for q in range(9)]
    human = {(q, m): float(m == "a") for q in range(9) for m in "ab"}
    found = ranked(sure, responses=answers(dict.fromkeys(human, "x"), human))
    assert "davidson_calibrated" not in set(found.ratings["rule"])
    (told,) = (told for told in found.warnings if "davidson_calibrated: no temperature is the best" in told)
    assert told.endswith("likeliest outcome, apart from the slot, is always what people said")
    assert (metric(found, "outcome_temperature")["value"], metric(found, "outcome_temperature")["cases"]) == (None, 0)


def test_a_liking_of_the_first_slot_is_not_taken_for_overconfidence():
    ratings, temperature, offset = [], [], []
    for liking in (0.0, 3.5):
        rng, rows, human = np.random.default_rng(3), [], {}
        for q in range(150):
            worth = {m: base + rng.normal() for m, base in (("a", 0.8), ("b", 0.0), ("c", -0.8))}
            human |= {(str(q), m): value for m, value in worth.items()}
            for first, second in permutations(worth, 2):
                d = worth[first] - worth[second] + rng.normal() + liking
                weight = np.exp([d / 2, -d / 2, -2.0])
                rows.append(game(q, first, second, tuple(weight / weight.sum())))
        found = ranked(rows, responses=answers(dict.fromkeys(human, "x"), human))
        ratings.append(by_model(found, "davidson_calibrated"))
        temperature.append(metric(found, "outcome_temperature")["value"])
        offset.append(metric(found, "outcome_offset")["value"])
    assert temperature[1] == pytest.approx(temperature[0], rel=0.01)
    assert ratings[1] == pytest.approx(ratings[0], abs=1)
    assert temperature[0] < 0.8
    assert offset[0] - offset[1] == pytest.approx(3.5 / temperature[0], rel=0.02)


def test_a_judge_that_says_nothing_about_people_is_said_to_say_nothing():
    rng, rows = np.random.default_rng(2), []
    human = {(str(q), m): float(rng.integers(1, 6)) for q in range(30) for m in "abc"}
    for q in range(30):
        for pair in combinations("abc", 2):
            better, worse = sorted(pair, key=lambda m: human[str(q), m], reverse=True)
            against = game(q, *pair, (0.2, 0.7, 0.1) if pair == (better, worse) else (0.7, 0.2, 0.1))
            rows += [against, game(q, *pair[::-1], tuple(rng.dirichlet(np.ones(3))))]
    found = ranked(rows, responses=answers(dict.fromkeys(human, "x"), human))
    assert any("its probabilities say nothing about what people prefer" in told for told in found.warnings)
    assert not any("always what people said" in told for told in found.warnings)


def test_one_order_only_cannot_tell_a_slot_from_the_models_in_it():
    rng = np.random.default_rng(23)
    rows, responses = labelled(rng, {"a": 0.5, "b": 0.0}, 60, 2.0)
    one_way = [row for row in rows if row["order"] == "AB"]
    assert metric(ranked(one_way, responses=responses), "outcome_offset")["value"] == 0
    assert metric(ranked(rows, responses=responses), "outcome_offset")["value"] != 0


def test_hard_ratings_stand_beside_their_own_wins_losses_and_ties():
    rows = [game(q, "a", "b", (0.6, 0.3, 0.1)) for q in range(3)] + [game(3, "b", "a", (0.5, 0.1, 0.4))]
    found = ranked(rows)
    assert by_model(found, "davidson_hard", "wins") == pytest.approx({"a": 3, "b": 1})
    assert by_model(found, "davidson_hard", "ties") == {"a": 0, "b": 0}
    assert by_model(found, "davidson", "wins") == pytest.approx({"a": 1.9, "b": 1.4})


def test_questions_in_which_two_models_only_beat_a_third_say_nothing_about_those_two():
    rows = []
    for q, p in enumerate(((0.6, 0.3, 0.1), (0.35, 0.6, 0.05), (0.5, 0.4, 0.1))):
        rows += [game(q, "a", "b", p), game(q, "b", "a", (p[1], p[0], p[2]))]
    alone = ranked(rows)
    rows += [game(q, m, "z", "first") for q in range(60) for m in "ab"]
    beside = ranked(rows)
    for column in ("rating", "low", "high"):
        assert {m: by_model(beside, column=column)[m] for m in "ab"} == pytest.approx(by_model(alone, column=column))
    assert any("a, b met those they are rated with in fewer than 10 questions" in told for told in beside.warnings)


def test_no_points_in_two_questions_are_no_proof_of_the_lowest_win_rate():
    rows = tournament(np.random.default_rng(18), {"a": 0.3, "b": 0.0}, 40, soft=True)
    for questions, best in ((2, 1), (40, 3)):
        more = [game(q, m, "z", "first") for q in range(questions) for m in "ab"]
        assert by_model(ranked(rows + more), "win_rate", "rank_low")["z"] == best


def test_with_a_ridge_ranks_are_those_of_the_ratings():
    rows = []
    for q in range(40):
        for strong, weak in (("a", "b"), ("c", "d")):
            rows += [game(q, strong, weak, (0.97, 0.01, 0.02)), game(q, weak, strong, (0.01, 0.97, 0.02))]
    rows.append(game(0, "b", "c", "first"))  # so all that a and b took is above all that c and d took
    for settings in (AnalysisConfig(ridge=0.5), AnalysisConfig(ridge=0.5, bootstrap=30)):
        found = ranked(rows, settings)
        rating, rank = by_model(found), by_model(found, "davidson", "rank")
        assert sorted(rating, key=rating.get, reverse=True) == sorted(rank, key=rank.get)
        low, high = (by_model(found, "davidson", f"rank_{side}") for side in ("low", "high"))
        assert all(1 <= low[m] <= rank[m] <= high[m] <= 4 for m in rank)
    assert by_model(ranked(rows), "davidson", "rank")["b"] == 2


def test_questions_without_a_label_are_calibrated_too_and_ties_that_nobody_judged_stay_ties():
    rows, responses = labelled(np.random.default_rng(3), WORTHS, 60, 2.0, people=30)
    rows += [game("same", "ada", "dee", "tie", status="identical")]
    found = ranked(rows, responses=responses)
    assert metric(found, "outcome_temperature")["cases"] == 180
    assert by_model(found, "davidson_calibrated", "games") == pytest.approx(by_model(found, "davidson", "games"))
    spread = [np.ptp(list(by_model(found, rule).values())) for rule in BOTH]
    assert spread[1] < 0.7 * spread[0]


def test_one_judge_without_a_temperature_leaves_the_pooled_ranking_uncalibrated():
    rows, responses = labelled(np.random.default_rng(4), WORTHS, 20, 1.0, people=10)
    other = [row | {"judge": "other"} for row in tournament(np.random.default_rng(5), WORTHS, 4, soft=True)]
    found = ranked(rows + other, responses=responses)
    calibrated = found.ratings.filter(pl.col("rule") == "davidson_calibrated")
    assert set(calibrated["judge"]) == {"j"}
    assert set(found.ratings["judge"]) == {"j", "other", "(all)"}


def test_what_people_say_of_a_question_does_not_decide_how_it_is_calibrated_itself():
    rows, responses = labelled(np.random.default_rng(22), WORTHS, 12, 1.0)
    outcomes, _ = soft_outcomes(table(rows), "exclude")
    mine = pl.col("question_id") == "0-ada-dee"
    turned = responses.with_columns(human_score=pl.when(mine).then(1 - pl.col("human_score")).otherwise("human_score"))
    found = [with_calibrated(outcomes, people, AnalysisConfig())[0] for people in (responses, turned)]
    columns = ["calibrated_first", "calibrated_second", "calibrated_tie"]
    same = [frame.filter(mine).select(columns).to_numpy() for frame in found]
    others = [frame.filter(~mine).sort("question_id").select(columns).to_numpy() for frame in found]
    np.testing.assert_array_equal(same[0], same[1])
    assert np.abs(others[0] - others[1]).max() > 1e-4


def test_a_ridge_maximises_the_penalised_likelihood_and_says_that_it_shrinks():
    rows = tournament(np.random.default_rng(12), {"a": 1.0, "b": 0.0}, 10, order_effect=0.0, log_nu=-30.0)
    games = games_of(soft_outcomes(table(rows), "exclude")[0])
    config = AnalysisConfig(ridge=3.0)
    found = ranked(rows, config)

    def loss(x):
        d = x[games.first] - x[games.second]
        return (games.outcome[:, 0] * np.logaddexp(0, -d) + games.outcome[:, 1] * np.logaddexp(0, d)).sum() + 1.5 * (
            x @ x
        )

    best = minimize(loss, np.zeros(2), method="BFGS", options={"gtol": 1e-8}).x
    assert by_model(found, "bradley_terry") == pytest.approx(dict(zip("ab", 1000 + ELO * best, strict=True)), abs=0.01)
    assert by_model(found)["a"] < by_model(ranked(rows))["a"]
    assert any("analysis.ridge is 3: ratings" in told for told in found.warnings)


def test_with_a_ridge_a_model_that_never_won_has_a_rating_without_an_interval():
    rows = tournament(np.random.default_rng(13), {"a": 0.2, "b": 0.0}, 20)
    rows += [game(q, m, "never", "first") for q in range(20) for m in "ab"]
    found = ranked(rows, AnalysisConfig(ridge=0.5))
    last = found.ratings.filter(pl.col("rule") == "davidson", pl.col("model") == "never").to_dicts()[0]
    assert last["rating"] < 900
    assert (last["low"], last["high"]) == (None, None)
    assert (last["status"], last["rank"], last["rank_low"]) == ("unbounded", 3, 3)
    assert by_model(found, "davidson", "low")["a"] is not None
    assert any("their ratings are the ridge's, without intervals for never" in told for told in found.warnings)


def test_a_category_of_weight_two_counts_as_if_all_of_it_were_there_twice():
    rng = np.random.default_rng(14)
    rows = [
        row | {"category": "code" if int(row["question_id"]) < 5 else None}
        for row in tournament(rng, WORTHS, 12, soft=True)
    ]
    twice = rows + [row for row in rows if row["category"] == "code"]
    columns = ["rule", "model", "rating", "low", "high", "rank", "rank_low", "rank_high"]
    weighted = ranked(rows, AnalysisConfig(category_weights={"code": 2})).ratings
    doubled = ranked(twice).ratings
    overall = [frame.filter(pl.col("category").is_null()) for frame in (weighted, doubled)]
    assert_frame_equal(overall[0].select(columns), overall[1].select(columns), abs_tol=1e-6)
    assert overall[0]["games"].max() == pytest.approx(72)  # each game once
    plain = ranked(rows).ratings
    inside = [frame.filter(pl.col("category") == "code") for frame in (weighted, plain)]
    assert_frame_equal(inside[0], inside[1])


def test_weights_are_said_also_of_a_category_that_does_not_occur():
    rows = [row | {"category": "code"} for row in tournament(np.random.default_rng(15), WORTHS, 4, soft=True)]
    found = ranked(rows, AnalysisConfig(category_weights={"maths": 3.0}))
    assert any("weigh games by category (maths 3, others 1)" in told for told in found.warnings)
    assert any("no comparison is of the category 'maths'" in told for told in found.warnings)


def test_an_anchor_is_at_1000_and_intervals_are_those_of_differences_to_it():
    rows = tournament(np.random.default_rng(16), WORTHS, 30)
    free, fixed = ranked(rows), ranked(rows, AnalysisConfig(anchor_model="cy"))
    for rule in ("davidson", "davidson_hard", "bradley_terry", "elo"):
        before, after = by_model(free, rule), by_model(fixed, rule)
        assert after["cy"] == 1000
        assert {m: after[m] - after["dee"] for m in NAMES} == pytest.approx(
            {m: before[m] - before["dee"] for m in NAMES}
        )
    low, high = (by_model(fixed, "davidson", side) for side in ("low", "high"))
    assert (low["cy"], high["cy"]) == (1000, 1000)
    games = games_of(soft_outcomes(table(rows), "exclude")[0])
    cov = fit_davidson(games, np.zeros(4, dtype=np.int64)).cov
    a, c = games.models.index("ada"), games.models.index("cy")
    half = 2.0452 * ELO * np.sqrt(cov[a, a] + cov[c, c] - 2 * cov[a, c])  # t with 29 degrees of freedom
    assert (high["ada"] - low["ada"]) / 2 == pytest.approx(half, rel=1e-4)
    assert by_model(fixed, "win_rate") == by_model(free, "win_rate")
    assert by_model(fixed, "davidson", "rank_high") == by_model(free, "davidson", "rank_high")


@pytest.mark.parametrize(
    "extra, anchor, reason",
    [
        ([], "nobody", "is not among its models ada, bob, cy, dee"),
        ([game(1, "x", "y", "first"), game(2, "y", "x", "first")], "ada", "never met x, y, directly"),
        ([game(1, "ada", "last", "first")], "last", "has no finite rating itself"),
    ],
)
def test_an_anchor_that_cannot_be_one_is_refused_with_the_reason(extra, anchor, reason):
    rows = tournament(np.random.default_rng(17), WORTHS, 5) + extra
    with pytest.raises(ConfigError, match=f"analysis.anchor_model: got '{anchor}', which {reason}"):
        ranked(rows, AnalysisConfig(anchor_model=anchor))


def test_a_judge_that_could_not_compare_the_anchor_does_not_take_the_ratings_of_the_others():
    rows = tournament(np.random.default_rng(24), WORTHS, 8)
    other = [row | {"judge": "other"} for row in rows if "bob" not in (row["model_a"], row["model_b"])]
    found = ranked(rows + other, AnalysisConfig(anchor_model="bob"))
    rating = {(row["judge"], row["model"]): row["rating"] for row in found.ratings.filter(rule="davidson").to_dicts()}
    assert (rating["j", "bob"], rating["(all)", "bob"], rating["other", "ada"]) == (1000, 1000, None)
    assert any("judge other, protocol compare: no rating on the scale of the anchor" in told for told in found.warnings)
    with pytest.raises(ConfigError, match="is not among its models"):
        ranked(other, AnalysisConfig(anchor_model="bob"))


def test_a_category_without_the_anchor_has_ranks_and_no_ratings_and_says_so():
    rows = [row | {"category": "all"} for row in tournament(np.random.default_rng(18), WORTHS, 8)]
    rows += [row | {"category": "few"} for row in tournament(np.random.default_rng(19), {"ada": 1.0, "dee": 0.0}, 8)]
    found = ranked(rows, AnalysisConfig(anchor_model="bob"))
    few = found.ratings.filter(pl.col("category") == "few", pl.col("rule") == "davidson")
    assert few["rating"].null_count() == few["low"].null_count() == 2
    assert few["rank"].to_list() == [1, 2]
    assert any("category few: no rating on the scale of the anchor 'bob'" in told for told in found.warnings)
    assert by_model(found)["bob"] == 1000
