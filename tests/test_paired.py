"""Differences on the same questions: their intervals, families of them, and what a design could have shown."""

import numpy as np
import pytest
from scipy import stats

from trustjudge_ray.analysis.paired import detectable, from_influence, paired_means, paired_ratios

RNG = np.random.default_rng


def sides(share_first, share_second, questions, runs, seed, alike=0.7):
    """Beta-binomial hits of the same questions from two judges, whose rates agree in most questions."""
    rng = RNG(seed)
    cases = rng.integers(4, 21, (runs, questions))
    scale = 1 / 0.3 - 1
    quantile = rng.random((runs, questions))
    other = np.where(rng.random((runs, questions)) < alike, quantile, rng.random((runs, questions)))
    rates = [stats.beta.ppf(q, p * scale, (1 - p) * scale) for q, p in ((quantile, share_first), (other, share_second))]
    first, second = (rng.binomial(cases, rate).astype(float) for rate in rates)
    return (first, cases.astype(float)), (second, cases.astype(float))


@pytest.mark.parametrize("shares", [(0.02, 0.04), (0.15, 0.15), (0.4, 0.6)])
def test_differences_hold_the_truth_as_often_as_they_say(shares):
    found = paired_ratios(*sides(*shares, 80, 600, seed=1), RNG(0), rounds=50)
    truth = shares[1] - shares[0]
    assert 0.92 <= ((found.low <= truth) & (truth <= found.high)).mean() <= 0.98


def test_pairing_by_question_is_narrower_than_two_samples_and_still_right():
    first, second = sides(0.3, 0.3, 80, 600, seed=2, alike=0.95)
    found = paired_ratios(first, second, RNG(0), rounds=50)
    apart = paired_ratios(first, tuple(np.roll(part, 1, axis=0) for part in second), RNG(0), rounds=50)
    assert np.median(found.standard_error) < 0.7 * np.median(apart.standard_error)
    assert 0.92 <= ((found.low <= 0) & (found.high >= 0)).mean() <= 0.98


def test_equal_questions_give_the_textbook_paired_t_test():
    first, second = RNG(3).random((2, 12))
    found = paired_means((first, np.ones(12)), (second, np.ones(12)), RNG(0))
    textbook = stats.ttest_rel(second, first)
    interval = textbook.confidence_interval(0.95)
    np.testing.assert_allclose(
        [found.value[0], found.low[0], found.high[0], found.p_value[0], found.freedom[0]],
        [second.mean() - first.mean(), interval.low, interval.high, textbook.pvalue, 11],
    )


def test_the_detectable_difference_is_found_in_four_of_five_runs():
    rng = RNG(4)
    noise = rng.normal(0, 1, (4000, 40))
    size = detectable(np.array([1 / np.sqrt(40)]), np.array([39.0]))[0]
    ones = np.ones_like(noise)
    found = paired_means((np.zeros_like(noise), ones), (noise + size, ones), rng, rounds=10)
    assert 0.78 <= (found.low > 0).mean() <= 0.82
    assert np.median(found.detectable) == pytest.approx(size, rel=0.05)


def test_many_models_without_a_difference_raise_one_alarm_in_twenty_families_not_in_every_other():
    alone = jointly = held = 0
    for seed in range(200):
        rng = RNG(seed)
        cases = np.full((12, 60), 10.0)
        rate = rng.beta(1, 1.5, 60)
        first, second = (rng.binomial(10, rate, (12, 60)).astype(float) for _ in range(2))
        found = paired_ratios((first, cases), (second, cases), rng, rounds=400)
        alone += (found.p_value < 0.05).any()
        jointly += (found.joint_p_value < 0.05).any()
        held += ((found.joint_low <= 0) & (found.joint_high >= 0)).all()
    assert alone > 60
    assert jointly <= 20
    assert held >= 180


def test_equal_differences_are_one_test_not_many():
    """Correlation is used: twenty copies of one difference need no wider interval than one."""
    first, second = sides(0.3, 0.4, 50, 1, seed=5)
    copies = [tuple(np.repeat(part, 20, axis=0) for part in side) for side in (first, second)]
    one, many = paired_ratios(first, second, RNG(0)), paired_ratios(*copies, RNG(0))
    np.testing.assert_allclose(many.joint_high, one.joint_high[0])
    assert one.joint_high[0] - one.value[0] < 1.1 * (one.high[0] - one.value[0])


def test_a_run_against_itself_differs_by_nothing_and_not_with_certainty():
    first, _ = sides(0.3, 0.3, 30, 2, seed=6)
    found = paired_ratios(first, first, RNG(0))
    assert found.value.tolist() == [0, 0]
    assert found.caution.tolist() == ["no_variation"] * 2
    assert ((found.low < -0.05) & (found.high > 0.05)).all()
    assert (found.detectable > 0.1).all()
    assert found.joint_p_value.tolist() == [1, 1]


def test_two_questions_that_both_say_the_same_prove_nothing():
    none, every = (np.zeros(2), np.ones(2)), (np.ones(2), np.ones(2))
    found = paired_ratios(none, every, RNG(0))
    assert found.value[0] == 1
    assert found.low[0] <= 0
    assert found.joint_p_value[0] > 0.05
    many = paired_ratios((np.zeros(20), np.ones(20)), (np.ones(20), np.ones(20)), RNG(0))
    assert many.low[0] > 0.7
    assert many.high[0] == 1


def test_questions_that_only_one_side_has_are_left_out_and_counted():
    first, second = sides(0.3, 0.5, 20, 1, seed=7)
    whole = paired_ratios(first, second, RNG(0))
    padded = [
        tuple(np.append(part, extra) for part, extra in zip(side, more, strict=True))
        for side, more in ((first, (5, 9)), (second, (0, 0)))
    ]
    found = paired_ratios(*padded, RNG(0))
    for name in ("value", "low", "high", "questions", "first", "second"):
        np.testing.assert_allclose(getattr(found, name), getattr(whole, name))
    assert (whole.unpaired[0], found.unpaired[0]) == (0, 1)


def test_one_shared_question_gives_a_value_and_no_interval_and_none_gives_neither():
    cases = np.array([[4.0, 0, 0], [0, 0, 5]])
    found = paired_ratios((cases / 2, cases), (cases * [1, 1, 0], cases * [1, 1, 0]), RNG(0))
    assert found.value[0] == 0.5
    assert found.caution.tolist() == ["no_interval", "no_interval"]
    for name in ("low", "joint_high", "p_value", "joint_p_value", "detectable"):
        assert np.isnan(getattr(found, name)).all()
    assert np.isnan(found.value[1])


def test_a_difference_that_two_questions_bear_says_so():
    cases = np.full(40, 10.0)
    first, second = np.zeros(40), np.zeros(40)
    second[:2] = 9
    assert paired_ratios((first, cases), (second, cases), RNG(0)).caution[0] == "few_questions"
    assert paired_ratios(*sides(0.3, 0.4, 80, 1, seed=8), RNG(0)).caution[0] == ""
    assert paired_ratios(*sides(0.3, 0.4, 5, 1, seed=8), RNG(0)).caution[0] == "few_questions"


def test_the_seed_decides_the_joint_intervals_and_nothing_else():
    given = sides(0.3, 0.4, 30, 5, seed=9)
    one, again, other = (paired_ratios(*given, RNG(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.joint_low, again.joint_low)
    assert (one.joint_low != other.joint_low).any()
    np.testing.assert_array_equal(one.low, other.low)


def test_influences_of_any_estimate_give_the_same_as_the_means_that_they_come_from():
    first, second = RNG(10).random((2, 3, 25))
    ones = np.ones((3, 25))
    means = paired_means((first, ones), (second, ones), RNG(0))
    residual = (second - first) - (second - first).mean(axis=1, keepdims=True)
    found = from_influence(means.value, residual / np.sqrt(25 * 24), np.full(3, 24.0), RNG(0))
    for name in ("low", "joint_low", "joint_p_value", "detectable"):
        np.testing.assert_allclose(getattr(found, name), getattr(means, name))


def test_differences_of_other_questions_or_of_impossible_counts_are_refused():
    with pytest.raises(ValueError, match="same questions"):
        paired_ratios((np.ones(3), np.ones(3)), (np.ones(4), np.ones(4)), RNG(0))
    with pytest.raises(ValueError, match="above"):
        paired_ratios((np.full(3, 2.0), np.ones(3)), (np.ones(3), np.ones(3)), RNG(0))
