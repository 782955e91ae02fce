"""AUC against a count of pairs and DeLong's variance, its intervals where passages cluster, and at its boundaries."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from trustjudge_ray.audit.auc import auc

ODDS = st.lists(st.sampled_from([-2.0, -0.5, 0.0, 0.5, 2.0]), min_size=1, max_size=8)


def alone(odds, start=0):
    """Every answer in a passage of its own."""
    return np.arange(start, start + len(odds)), np.array(odds, dtype=float)


@given(ODDS, ODDS)
def test_the_value_is_the_share_of_pairs_in_the_right_order_ties_half(right, wrong):
    found = auc(alone(right), alone(wrong, len(right)), len(right) + len(wrong))
    pairs = [(1.0 if r > w else 0.5 if r == w else 0.0) for r, w in product(right, wrong)]
    assert found.value == pytest.approx(np.mean(pairs), abs=1e-12)


def test_independent_answers_have_delong_s_variance():
    rng = np.random.default_rng(3)
    right, wrong = rng.normal(1, 1, 23).round(1), rng.normal(0, 1, 31).round(1)
    order = (np.sign(right[:, None] - wrong[None, :]) + 1) / 2
    delong = order.mean(1).var(ddof=1) / 23 + order.mean(0).var(ddof=1) / 31
    found = auc(alone(right), alone(wrong, 23), 54)
    assert (found.influence**2).sum() == pytest.approx(delong, rel=1e-12)


@given(ODDS, ODDS)
def test_an_interval_holds_its_value_stays_in_bounds_and_has_a_width(right, wrong):
    size = max(len(right), len(wrong))
    found = auc(alone(right), alone(wrong), size)
    if size == 1 or min(len(right), len(wrong)) == 1:
        assert np.isnan(found.low)
        assert np.isnan(found.high)
    else:
        assert 0 <= found.low <= found.value <= found.high <= 1
        assert found.high - found.low > 0.01


def test_calling_right_wrong_mirrors_value_and_limits():
    rng = np.random.default_rng(4)
    at = np.repeat(np.arange(9), 3)
    right, wrong = (at, rng.normal(1, 1, 27)), (at, rng.normal(0, 1, 27))
    one, other = auc(right, wrong, 9), auc(wrong, right, 9)
    assert [other.value, other.low, other.high] == pytest.approx([1 - one.value, 1 - one.high, 1 - one.low])


def test_only_the_order_of_log_odds_counts():
    rng = np.random.default_rng(5)
    at = np.repeat(np.arange(6), 4)
    right, wrong = rng.normal(1, 1, 24), rng.normal(0, 1, 24)
    plain, bent = auc((at, right), (at, wrong), 6), auc((at, np.exp(right)), (at, np.exp(wrong)), 6)
    assert (plain.value, plain.low, plain.high) == (bent.value, bent.low, bent.high)


def test_a_perfect_judge_of_many_answers_to_few_passages_is_only_as_certain_as_passages():
    """No misordering in 12 passages: Wilson's limit for 12 successes of 12, with t of 11 degrees of freedom."""
    at = np.repeat(np.arange(12), 50)
    found = auc((at, np.ones(600)), (at, np.zeros(600)), 12)
    t2 = stats.t.ppf(0.975, 11) ** 2
    assert (found.value, found.high) == (1, 1)
    assert found.low == pytest.approx(12 / (12 + t2))


def test_a_judge_that_says_the_same_to_all_is_at_a_half_and_not_certain_of_it():
    at = np.repeat(np.arange(12), 4)
    found = auc((at, np.ones(48)), (at, np.ones(48)), 12)
    assert found.value == 0.5
    assert found.low < 0.3
    assert found.high > 0.7


def test_without_right_or_wrong_answers_there_is_no_auc():
    nothing = (np.array([], dtype=np.int64), np.array([]))
    for found in (auc(alone([1.0, 2.0]), nothing, 2), auc(nothing, alone([1.0]), 2), auc(nothing, nothing, 0)):
        assert np.isnan([found.value, found.low, found.high]).all()


def simulated(passages, shift, spread, runs, seed):
    """How often the interval holds the truth, and how often one that takes all answers as independent does."""
    rng = np.random.default_rng(seed)
    truth = stats.norm.cdf(shift / np.sqrt(2 * (1 + spread**2)))
    at, held = np.repeat(np.arange(passages), 4), []
    for _ in range(runs):
        right = shift + np.repeat(rng.normal(0, spread, passages), 4) + rng.normal(size=len(at))
        wrong = np.repeat(rng.normal(0, spread, passages), 4) + rng.normal(size=len(at))
        found = [
            auc((at, right), (at, wrong), passages),
            auc((np.arange(len(at)), right), (np.arange(len(at)), wrong), len(at)),
        ]
        held.append([one.low <= truth <= one.high for one in found])
    return np.mean(held, axis=0)


@pytest.mark.parametrize("passages, shift", [(12, 0.0), (12, 1.5), (40, 1.0), (40, 3.5)])
def test_intervals_hold_the_truth_as_often_as_they_say_where_passages_differ(passages, shift):
    clustered, naive = simulated(passages, shift, 1.0, 400, seed=6)
    assert 0.93 <= clustered <= 0.99
    assert naive < 0.9
