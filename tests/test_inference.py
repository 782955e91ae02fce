"""Intervals from per-question counts: honest coverage, and no interval where none can be given."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from trustjudge_ray.analysis import metrics
from trustjudge_ray.analysis.inference import (
    bootstrap_intervals,
    mean_intervals,
    ratio_intervals,
    soft_ratio_intervals,
)
from trustjudge_ray.schema import METRICS, check

RUNS = 300


def clustered_counts(share, correlation, runs, questions, seed):
    """Beta-binomial hits of 4 to 20 cases a question: the correlation of two cases of a question is given."""
    rng = np.random.default_rng(seed)
    cases = rng.integers(4, 21, (runs, questions))
    rate = rng.beta(share * (1 / correlation - 1), (1 - share) * (1 / correlation - 1), (runs, questions))
    return rng.binomial(cases, rate).astype(float), cases.astype(float)


@pytest.mark.parametrize("share", [0.02, 0.15, 0.4])
def test_intervals_of_clustered_ratios_hold_the_truth_as_often_as_they_say(share):
    hits, cases = clustered_counts(share, 0.3, RUNS, 80, seed=1)
    found = ratio_intervals(hits, cases)
    covered = ((found.low <= share) & (share <= found.high)).mean()
    sums = zip(hits.sum(1), cases.sum(1), strict=True)
    naive = [stats.binomtest(int(h), int(n)).proportion_ci(method="wilson") for h, n in sums]
    assert 0.92 <= covered <= 0.985
    assert np.mean([ci.low <= share <= ci.high for ci in naive]) < 0.8


@pytest.mark.parametrize("soft", [True, False])
def test_a_rarely_winning_model_s_win_rate_is_held_too(soft):
    """Its few points come from a handful of questions, whose variance is seen too small too often."""
    rng = np.random.default_rng(11)
    cases = 2.0 * rng.integers(3, 20, (2000, 80))
    rate = rng.beta(0.02 * 7 / 3, 0.98 * 7 / 3, cases.shape)
    points = cases * rate if soft else rng.binomial(cases.astype(int), rate)
    found = soft_ratio_intervals(points, cases)
    assert 0.93 <= ((found.low <= 0.02) & (found.high >= 0.02)).mean() <= 0.97


def test_means_of_unequal_questions_are_covered():
    rng = np.random.default_rng(2)
    counts = rng.integers(1, 30, (RUNS, 40)).astype(float)
    sums = counts * (3 + rng.normal(0, 1, counts.shape)) + np.sqrt(counts) * rng.normal(0, 1, counts.shape)
    found = mean_intervals(sums, counts)
    assert 0.92 <= ((found.low <= 3) & (found.high >= 3)).mean() <= 0.985


def test_equal_questions_give_the_textbook_t_interval_of_their_means():
    means = np.array([1.0, 2.0, 4.0, 7.0])
    found = mean_intervals(means * 5, np.full(4, 5.0))
    expected = stats.t.interval(0.95, 3, means.mean(), stats.sem(means))
    np.testing.assert_allclose([found.low, found.high], expected)


def test_one_case_a_question_gives_wilsons_interval_with_t():
    hits = np.array([1.0] * 12 + [0.0] * 28)
    found = ratio_intervals(hits, np.ones(40))
    t = stats.t.ppf(0.975, 39)
    effective = 40 * 39 / 40  # the variance of a proportion has n − 1
    p, n = 0.3, effective
    centre, half = p + t**2 / (2 * n), t * np.sqrt(p * (1 - p) / n + t**2 / (4 * n**2))
    np.testing.assert_allclose(found.low, (centre - half) / (1 + t**2 / n), rtol=0.02)
    np.testing.assert_allclose(found.high, (centre + half) / (1 + t**2 / n), rtol=0.02)


def test_no_hits_or_nothing_but_hits_is_not_certainty():
    cases = np.full((2, 30), 10.0)
    found = ratio_intervals(np.stack([np.zeros(30), cases[0]]), cases)
    np.testing.assert_array_equal(found.value, [0, 1])
    assert found.low[0] == 0
    assert found.high[1] == 1
    # 300 cases of 30 questions are worth 30, not 300: 1 − 0.025^(1/30) = 0.116 for independent questions
    assert 0.1 < found.high[0] < 0.16
    np.testing.assert_allclose(1 - found.low[1], found.high[0])


def test_equal_rates_in_every_question_have_an_interval_no_narrower_than_independent_cases():
    found = ratio_intervals(np.full(10, 3.0), np.full(10, 10.0))
    independent = stats.binomtest(30, 100).proportion_ci(method="wilson")
    assert found.low < independent.low
    assert found.high > independent.high


def test_one_question_gives_a_value_and_no_interval_and_no_case_gives_neither():
    found = ratio_intervals(np.array([[3.0, 0], [0, 0]]), np.array([[4.0, 0], [0, 0]]))
    assert found.value[0] == 0.75
    assert np.isnan([found.low[0], found.high[0], found.value[1], found.low[1]]).all()
    assert found.questions.tolist() == [1, 0]


def test_a_question_without_cases_changes_nothing():
    hits, cases = np.array([1.0, 2, 0, 5]), np.array([4.0, 5, 6, 9])
    found, padded = ratio_intervals(hits, cases), ratio_intervals(np.append(hits, 0), np.append(cases, 0))
    np.testing.assert_allclose([found.low, found.high], [padded.low, padded.high])


def test_soft_points_that_barely_vary_have_a_narrower_interval_than_counts():
    points = 10 * np.random.default_rng(3).normal(0.5, 0.01, 50)
    soft, hard = soft_ratio_intervals(points, np.full(50, 10.0)), ratio_intervals(points, np.full(50, 10.0))
    assert soft.high - soft.low < 0.01 < hard.high - hard.low


def test_a_rows_interval_is_the_same_alone_and_in_a_block():
    hits, cases = clustered_counts(0.2, 0.3, 6, 15, seed=4)
    block, alone = ratio_intervals(hits, cases), ratio_intervals(hits[3], cases[3])
    np.testing.assert_allclose([block.low[3], block.high[3]], [alone.low, alone.high])


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=12))
def test_intervals_hold_the_value_and_stay_in_bounds(pairs):
    hits = np.array([float(min(p)) for p in pairs])
    cases = np.array([float(max(p)) for p in pairs])
    for found in (ratio_intervals(hits, cases), soft_ratio_intervals(hits, cases)):
        if np.isnan(found.low):
            assert (cases > 0).sum() < 2
        else:
            assert 0 <= found.low <= found.value <= found.high <= 1
            assert found.high > found.low


@pytest.mark.parametrize(
    "hits, cases, message",
    [([5.0], [4.0], "above"), ([-1.0], [4.0], "below 0"), ([1.0, 2.0], [4.0], "shapes"), ([np.nan], [1.0], "finite")],
)
def test_impossible_counts_are_refused(hits, cases, message):
    with pytest.raises(ValueError, match=message):
        ratio_intervals(np.array(hits), np.array(cases))


def test_resampled_questions_give_nearly_the_same_interval_where_many_bear_the_hits():
    hits, cases = clustered_counts(0.4, 0.3, 5, 200, seed=12)
    plain, drawn = ratio_intervals(hits, cases), bootstrap_intervals(hits, cases, np.random.default_rng(0))
    np.testing.assert_allclose(drawn.high - drawn.low, plain.high - plain.low, rtol=0.08)
    np.testing.assert_allclose(drawn.low, plain.low, atol=0.01)
    again = bootstrap_intervals(hits, cases, np.random.default_rng(0))
    np.testing.assert_array_equal(again.low, drawn.low)
    alone = bootstrap_intervals(hits[2], cases[2], np.random.default_rng(0))
    assert (alone.low.shape, float(alone.low)) == ((), pytest.approx(drawn.low[2]))


def test_resampled_intervals_of_a_skewed_ratio_lean_to_the_side_of_the_tail():
    hits, cases = clustered_counts(0.1, 0.3, 1, 60, seed=13)
    found = bootstrap_intervals(hits[0], cases[0], np.random.default_rng(0))
    assert found.high - found.value > found.value - found.low


def test_resampling_that_cannot_know_the_spread_leaves_the_other_interval():
    hits, cases = np.zeros((4, 30)), np.full((4, 30), 10.0)
    hits[1], hits[2, 0], hits[3, :15] = 10, 7, 5
    cases[3, 1:] = 0
    hits[3, 1:] = 0
    plain, drawn = ratio_intervals(hits, cases), bootstrap_intervals(hits, cases, np.random.default_rng(0))
    np.testing.assert_array_equal(drawn.low, plain.low)
    np.testing.assert_array_equal(drawn.high, plain.high)


def test_few_questions_and_questions_that_outweigh_all_others_are_cautioned_against():
    cases = np.full((4, 40), 5.0)
    cases[1, 6:], cases[2, 1:] = 0, 0
    cases[3, 0] = 5000
    found = ratio_intervals(cases * np.linspace(0, 1, 40), cases)
    assert found.caution.tolist() == ["", "few_questions", "no_interval", "few_questions"]


def test_metrics_rows_are_the_stated_table_with_null_for_nan():
    table = metrics.frame([{"metric": "m", "value": np.float64("nan"), "cases": np.int64(0), "k": None}])
    checked = check(table.to_arrow(), METRICS)
    assert checked["value"].to_pylist() == [None]
    assert checked["cases"].to_pylist() == [0]
    assert metrics.frame([]).to_arrow().num_rows == 0
    with pytest.raises(KeyError, match="typo"):
        metrics.frame([{"metric": "m", "typo": 1}])
