"""Brier's parts, reliability and temperature, by definition and in worlds where the truth is known."""

import numpy as np
import pytest
from scipy.optimize import minimize

from trustjudge_ray.analysis.calibration import (
    RELIABILITY,
    bin_of,
    brier,
    brier_parts,
    calibration_error,
    fit_temperature,
    log_loss,
    reliability_diagram,
    reliability_rows,
    scaled,
    temperature_scaling,
)
from trustjudge_ray.analysis.slot_scaling import COLD, HOT, SLOTS, slot_scaled, slot_scaling


def world(rng, cases, temperature=1.0):
    """Probabilities, and outcomes drawn from them made flatter by `temperature`."""
    p = rng.dirichlet((0.8, 0.8, 0.3), size=cases)
    truth = scaled(p, temperature)
    right = np.array([rng.multinomial(1, row) for row in truth], dtype=float)
    return p, right


def test_the_four_parts_make_up_brier_exactly():
    rng = np.random.default_rng(0)
    for temperature in (0.5, 1.0, 3.0):
        p, right = world(rng, 200, temperature)
        parts = brier_parts(p, right)
        total = parts["reliability"] - parts["resolution"] + parts["uncertainty"] + parts["within_bins"]
        assert total == pytest.approx(brier(p, right))


def test_the_parts_are_murphys_where_every_bin_holds_one_probability():
    """Two forecasts, 0.25 and 0.75, of one event: computed by hand, for the event and for its opposite."""
    p = np.array([[0.25, 0.75, 0]] * 4 + [[0.75, 0.25, 0]] * 6)
    right = np.array([[1, 0, 0]] * 2 + [[0, 1, 0]] * 2 + [[1, 0, 0]] * 6, dtype=float)
    parts = brier_parts(p, right)
    reliability = 0.4 * (0.25 - 0.5) ** 2 + 0.6 * (0.75 - 1) ** 2
    resolution = 0.4 * (0.5 - 0.8) ** 2 + 0.6 * (1 - 0.8) ** 2
    assert parts["reliability"] == pytest.approx(2 * reliability)
    assert parts["resolution"] == pytest.approx(2 * resolution)
    assert parts["uncertainty"] == pytest.approx(2 * 0.8 * 0.2)
    assert parts["within_bins"] == pytest.approx(0)


def test_a_constant_forecast_resolves_nothing_and_a_calibrated_judge_is_reliable():
    rng = np.random.default_rng(1)
    p, right = world(rng, 20_000)
    flat = np.tile(right.mean(axis=0), (len(right), 1))
    assert brier_parts(flat, right)["resolution"] == pytest.approx(0)
    assert brier_parts(p, right)["reliability"] < 0.002
    assert calibration_error(p, right) < 0.02


def test_the_bars_of_a_reliability_diagram_are_counts_of_their_bin():
    rng = np.random.default_rng(2)
    p, right = world(rng, 400)
    bars = reliability_diagram(p, right, np.repeat(np.arange(100), 4))
    top, hit = p.max(axis=1), right[np.arange(400), p.argmax(axis=1)]
    assert sum(bar.cases for bar in bars) == 400
    for bar in bars:
        here = (top >= bar.start) & (top < bar.end if bar.end < 1 else top <= 1)
        assert (bar.cases, bar.confidence, bar.right) == (here.sum(), pytest.approx(top[here].mean()), hit[here].mean())
        assert bar.low is None or bar.low <= bar.right <= bar.high
    ece = sum(bar.cases / 400 * abs(bar.confidence - bar.right) for bar in bars)
    assert calibration_error(p, right) == pytest.approx(ece)


def test_the_temperature_is_the_one_that_was_planted_and_the_best_there_is():
    rng = np.random.default_rng(3)
    for planted in (0.6, 1.0, 2.5):
        p, right = world(rng, 20_000, planted)
        found = fit_temperature(p, right)
        assert found == pytest.approx(planted, rel=0.1)
        other = minimize(
            lambda x, p=p, right=right: log_loss(scaled(p, np.exp(x[0])), right), [0.0], method="Nelder-Mead"
        )
        assert log_loss(scaled(p, found), right) <= other.fun + 1e-9


def test_scaling_is_judged_on_questions_that_it_did_not_see():
    rng = np.random.default_rng(4)
    p, right = world(rng, 2000, 3.0)
    question = np.repeat(np.arange(500), 4)
    found = temperature_scaling(p, right, question, seed=0)
    fold = (np.random.default_rng(0).permutation(500) % 5)[question]
    held_out = np.empty_like(p)
    for f in range(5):
        assert found.folds[f] == pytest.approx(fit_temperature(p[fold != f], right[fold != f]))
        held_out[fold == f] = scaled(p[fold == f], found.folds[f])
    assert found.after["log_loss"] == pytest.approx(log_loss(held_out, right))
    assert found.after["calibration_error"] < found.before["calibration_error"]
    shuffled = rng.permutation(2000)
    again = temperature_scaling(p[shuffled], right[shuffled], question[shuffled], seed=0)
    assert again.after["log_loss"] == pytest.approx(found.after["log_loss"])


def test_a_certain_judge_that_is_always_right_has_no_temperature_and_one_question_none_at_all():
    p = np.tile([0.9, 0.05, 0.05], (20, 1))
    right = np.tile([1.0, 0, 0], (20, 1))
    assert temperature_scaling(p, right, np.arange(20), 0).at_edge
    assert temperature_scaling(p, right, np.zeros(20, dtype=int), 0) is None
    assert np.isfinite(log_loss(np.tile([0.0, 1.0, 0.0], (3, 1)), right[:3]))


def test_the_rows_of_a_reliability_diagram_are_its_bars_and_the_empty_bins_besides():
    rng = np.random.default_rng(4)
    p = rng.dirichlet((3, 1, 1), 200)
    right = np.eye(3)[[rng.choice(3, p=row) for row in p]]
    question = np.repeat(np.arange(40), 5)
    bars = {round(bar.start, 1): bar for bar in reliability_diagram(p, right, question)}
    rows = reliability_rows(p, right, question, 0.95)
    assert len(rows) == 20
    for told in rows:
        kind = "right" if told["metric"].startswith(RELIABILITY["right"]) else "confidence"
        start, end = bin_of(told["metric"])
        assert end == pytest.approx(start + 0.1)
        if start not in bars:
            assert (told["cases"], np.isnan(told["value"])) == (0, True)
            continue
        assert told["value"] == pytest.approx(getattr(bars[start], kind))
        assert (told["cases"], told["questions"]) == (bars[start].cases, bars[start].questions)
        if kind == "right":
            assert (told["low"], told["high"]) == (pytest.approx(bars[start].low), pytest.approx(bars[start].high))
    nothing = reliability_rows(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros(0, dtype=int), 0.95)
    assert {row["cases"] for row in nothing} == {0}


@pytest.mark.parametrize("offset", [True, False])
def test_temperature_and_offset_are_the_likeliest_ones(offset):
    rng = np.random.default_rng(8)
    p, question = rng.dirichlet((0.8, 0.8, 0.3), size=400), np.repeat(np.arange(40), 10)
    ones = np.ones(len(p))
    right = np.array([rng.multinomial(1, row) for row in slot_scaled(p, 2 * ones, -1.5 * ones)], dtype=float)
    found = slot_scaling(p, right, question, offset, seed=0)

    def loss(x):
        logits = x[0] * np.log(np.maximum(p, 1e-6)) + (x[1] * SLOTS if offset else 0)
        return np.logaddexp.reduce(logits, axis=1).sum() - (logits * right).sum()

    best = minimize(loss, [1.0, 0.0], method="BFGS", options={"gtol": 1e-5}).x
    assert 1 / found.temperature == pytest.approx(best[0], abs=1e-5)
    assert found.offset == pytest.approx(best[1] if offset else 0, abs=1e-5)
    assert found.edge is None
    for number, fitted in enumerate(found.folds):
        rest = found.fold != number
        again = slot_scaling(p[rest], right[rest], question[rest], offset, seed=0)
        assert fitted == pytest.approx((again.temperature, again.offset))


def test_the_two_ends_without_a_best_temperature_are_told_apart():
    p, question = np.tile([[0.6, 0.3, 0.1], [0.3, 0.6, 0.1]], (10, 1)), np.arange(20)
    for right, edge in ((p > 0.5, COLD), (p == 0.1, HOT)):
        assert slot_scaling(p, right.astype(float), question, True, 0).edge == edge
    even = np.full((20, 3), 1 / 3)
    assert slot_scaling(even, np.eye(3)[question % 2], question, True, 0).edge == HOT
    assert slot_scaling(p, even, np.zeros(20, dtype=int), True, 0) is None
