"""Intervals of differences, sums and changes of shares: a published example, honest coverage, never of width zero."""

import numpy as np
import pytest
from scipy import stats

from trustjudge_ray.audit.estimates import Estimate, change, difference, half_sum, mean, share


def wilson(hits, n):
    ci = stats.binomtest(hits, n).proportion_ci(method="wilson")
    none = np.zeros(1)
    return Estimate(hits / n, ci.low, ci.high, hits, n, none == 0, 100.0, none)


def test_uncorrelated_shares_have_newcombe_s_interval_of_their_difference():
    """His example 56/70 against 48/80 (Statistics in Medicine 17, 1998, 873-890, table II a, method 10)."""
    found = difference(wilson(56, 70), wilson(48, 80))
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)
    mirrored = half_sum(wilson(56, 70), wilson(32, 80))
    assert (2 * mirrored.low - 1, 2 * mirrored.high - 1) == pytest.approx((0.0524, 0.3339), abs=5e-5)


def planted_counts(passages, rates, correlation, rng):
    """A passage's own rate for each of two kinds (beta, moving together), and its 4 cases of each."""
    weight = 1 / correlation - 1
    level = rng.random(passages)
    own = [stats.beta.ppf(level, rate * weight, (1 - rate) * weight) for rate in rates]
    return [(rng.random((passages, 4)) < rate[:, None]).astype(float).ravel() for rate in own]


@pytest.mark.parametrize("passages, rates", [(12, (0.3, 0.6)), (40, (0.1, 0.3)), (40, (0.5, 0.5))])
def test_intervals_of_differences_sums_and_changes_hold_the_truth_where_passages_differ(passages, rates):
    rng = np.random.default_rng(8)
    at, held = np.repeat(np.arange(passages), 4), []
    truths = rates[0] - rates[1], sum(rates) / 2, rates[1] - rates[0]
    for _ in range(400):
        one, other = planted_counts(passages, rates, 0.3, rng)
        parts = share(at, one, passages), share(at, other, passages)
        found = difference(*parts), half_sum(*parts), change(at, other - one, passages)
        held.append([f.low <= truth <= f.high for f, truth in zip(found, truths, strict=True)])
    assert (np.mean(held, axis=0) >= 0.925).all()
    assert (np.mean(held, axis=0) <= 0.995).all()


def test_where_nothing_changes_the_interval_is_that_of_no_event_in_so_many_passages():
    at = np.repeat(np.arange(10), 5)
    found = change(at, np.zeros(50), 10)
    t2 = stats.t.ppf(0.975, 9) ** 2
    assert (found.low, found.high) == pytest.approx((-t2 / (10 + t2), t2 / (10 + t2)))


def test_a_mean_that_all_passages_share_has_no_interval_rather_than_one_of_width_zero():
    at = np.repeat(np.arange(10), 5)
    assert np.isnan(mean(at, np.ones(50), 10).low)
    assert mean(at, at.astype(float), 10).low < 4.5 < mean(at, at.astype(float), 10).high
