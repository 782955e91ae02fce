"""Prediction-powered means: by hand, with a useless and with a perfect judge, and in worlds whose truth is known."""

import numpy as np
import pytest

from trustjudge_ray.analysis.powered import powered_mean


def world(rng, questions=120, units=6, labels=100, quality=0.8, bias=0.3):
    """Units of a question are alike; the judge sees people's opinion through noise, and leans."""
    level = np.repeat(rng.normal(0, 0.6, questions), units)
    said = level + rng.normal(0, 0.8, questions * units)
    judged = quality * said + np.sqrt(1 - quality**2) * rng.normal(0, 1, len(said)) + bias
    people = np.full(len(said), np.nan)
    drawn = rng.choice(len(said), labels, replace=False)
    people[drawn] = said[drawn]
    return np.repeat(np.arange(questions), units), judged, people


def test_the_estimate_is_the_rectified_mean_at_the_best_lambda():
    rng = np.random.default_rng(0)
    question, judged, people = world(rng)
    found = powered_mean(question, judged, people)
    seen = ~np.isnan(people)
    assert found.value == pytest.approx(
        found.tuning * judged.mean() + (people[seen] - found.tuning * judged[seen]).mean()
    )

    def variance(tuning):
        part = np.zeros(len(judged))
        part += tuning * (judged - judged.mean()) / len(judged)
        part[seen] += (people[seen] - people[seen].mean() - tuning * (judged[seen] - judged[seen].mean())) / seen.sum()
        return (np.bincount(question, weights=part) ** 2).sum()

    grid = np.linspace(0, 1, 1001)
    assert found.tuning == pytest.approx(grid[np.argmin([variance(x) for x in grid])], abs=0.02)
    assert (found.high - found.low) / 2 == pytest.approx(1.98 * np.sqrt(variance(found.tuning)), rel=0.08)


def test_a_judge_that_knows_nothing_costs_nothing_and_one_that_knows_all_is_worth_many_labels():
    rng = np.random.default_rng(1)
    question, judged, people = world(rng, quality=0.0)
    useless = powered_mean(question, judged, people)
    assert useless.tuning < 0.25
    assert useless.high - useless.low <= useless.labels_high - useless.labels_low + 1e-12
    question, judged, people = world(rng, quality=1.0)
    perfect = powered_mean(question, judged, people)
    assert perfect.tuning > 0.9
    assert perfect.worth > 2
    assert perfect.judge_value - perfect.value == pytest.approx(0.3, abs=0.02)


def test_a_constant_judge_and_complete_labels_leave_the_labels_mean():
    rng = np.random.default_rng(2)
    question, judged, people = world(rng)
    constant = powered_mean(question, np.ones(len(judged)), people)
    assert (constant.value, constant.tuning) == (constant.labels_value, 0.0)
    every = judged + rng.normal(size=len(judged))
    found = powered_mean(question, judged, every)
    assert found.value == pytest.approx(every.mean())
    assert found.worth == pytest.approx(1)


def test_labels_in_one_question_have_no_interval_and_bounds_cut_it():
    found = powered_mean(np.array([0, 0, 1]), np.array([0.1, 0.5, 0.9]), np.array([0.2, 0.6, np.nan]))
    assert (found.low, found.high, found.questions) == (None, None, 1)
    cut = powered_mean(np.arange(3), np.array([0.1, 0.5, 0.9]), np.array([0.0, 1.0, np.nan]), bounds=(0, 1))
    assert (cut.low, cut.high) == (0.0, 1.0)
    with pytest.raises(ValueError, match="at least one label"):
        powered_mean(np.arange(2), np.array([0.1, 0.5]), np.array([np.nan, np.nan]))


@pytest.mark.parametrize(("labels", "quality"), [(60, 0.8), (200, 0.5)])
def test_intervals_hold_the_truth_although_units_of_a_question_are_alike_and_the_judge_leans(labels, quality):
    """400 worlds: 95 % ± 2.2 %."""
    rng, held = np.random.default_rng(3), []
    for _ in range(400):
        found = powered_mean(*world(rng, labels=labels, quality=quality))
        held.append(found.low <= 0.0 <= found.high)
    assert 0.92 <= np.mean(held) <= 0.98
