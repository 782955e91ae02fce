"""Who beats whom: every cell is the mean over the pairs that were judged, whatever was shown first."""

from dataclasses import replace

import polars as pl
import pytest
import reported_runs as world
from comparisons import game, table

from trustjudge_ray.analysis.evaluation import evaluate
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.report import page
from trustjudge_ray.report.cells import Inputs
from trustjudge_ray.report.matrix import matrices, win_rates

ASKED = {"compare": world.PROTOCOLS["compare"]}


def inputs(rows, settings=None):
    said, settings = table([row | {"emitted": row.get("emitted", "a")} for row in rows]), settings or AnalysisConfig()
    found = evaluate(said, ASKED, None, settings)
    frames = {name: getattr(found, name) for name in ("scores", "verdicts", "metrics", "ratings")}
    return Inputs(title="run", judgments=said, protocols=ASKED, settings=settings, **frames)


def both(question, first, second, p, **columns):
    """A pair in both orders, in which the first has p, the second q and a tie the rest, alike."""
    won, lost = p
    rest = 1 - won - lost
    return [
        game(question, first, second, (won, lost, rest), **columns),
        game(question, second, first, (lost, won, rest), **columns),
    ]


def cell(rates, model, against):
    return rates.filter(model=model, against=against).row(0, named=True)


def test_a_cell_is_the_mean_of_wins_and_half_ties_over_the_questions_of_the_two_models():
    rows = [*both(1, "a", "b", (0.7, 0.1)), *both(2, "b", "a", (0.5, 0.3)), *both(2, "a", "c", (0.2, 0.2))]
    rates = win_rates(inputs(rows))
    assert cell(rates, "a", "b")["value"] == pytest.approx(((0.7 + 0.1) + (0.3 + 0.1)) / 2)
    assert (cell(rates, "a", "b")["questions"], cell(rates, "a", "b")["pairs"]) == (2, 2)
    assert cell(rates, "b", "a")["value"] == pytest.approx(1 - cell(rates, "a", "b")["value"])
    assert cell(rates, "c", "a") | {"value": 0.5} == cell(rates, "c", "a")
    assert rates.filter(model="b", against="c").height == 0


def test_failed_pairs_and_pairs_of_one_model_are_in_no_cell_and_identical_texts_are_half():
    rows = [
        *both(1, "a", "b", (0.9, 0.05)),
        *both(2, "a", "b", (0.9, 0.05), status="engine_error", label_logprobs=None),
        *both(3, "a", "b", (0.0, 0.0), status="identical", label_logprobs=None),
        game(4, "a", "b", (0.9, 0.05, 0.05)),
        *[
            row | {"response_a": "x", "response_b": "y", "model_a": "a", "model_b": "a"}
            for row in both(5, "a", "b", (1, 0))
        ],
    ]
    rates = win_rates(inputs(rows))
    assert set(rates["model"]) == {"a", "b"}
    assert rates.height == 2
    assert cell(rates, "a", "b")["value"] == pytest.approx((0.925 + 0.5) / 2)
    assert cell(rates, "a", "b")["questions"] == 2


def test_the_cells_are_the_brute_force_means_of_the_verdicts_for_every_judge():
    run = world.inputs(judges=world.JUDGES[:2], scales=world.SCALES[:1])
    rates = win_rates(run)
    kept = run.verdicts.filter(pl.col("tolerance") == 0, rule="normalised")
    for row in rates.to_dicts():
        points = [
            (v["p_a"] if v["model_a"] == row["model"] else v["p_b"]) + v["p_tie"] / 2
            for v in kept.filter(judge=row["judge"], protocol=row["protocol"]).to_dicts()
            if {v["model_a"], v["model_b"]} == {row["model"], row["against"]}
        ]
        assert row["value"] == pytest.approx(sum(points) / len(points))
        assert row["pairs"] == len(points) == 4
    assert rates.height == 2 * 2 * 4 * 3


def test_models_stand_in_the_order_of_the_leaderboard_and_shades_are_above_and_below_one_half():
    rows = [row for q in range(12) for row in (*both(q, "a", "z", (0.02, 0.96)), *both(q, "a", "m", (0.45, 0.45)))]
    (shown,) = matrices(inputs(rows))
    assert shown.models[0] == "z"
    best = dict(shown.rows)["z"]
    assert best[shown.models.index("a")].shade == "up5"
    assert dict(shown.rows)["a"][0].shade == "down5"
    assert dict(shown.rows)["a"][shown.models.index("m")].shade == ""
    assert best[0].text == "–"


def test_a_run_that_read_no_pair_in_both_orders_says_so():
    run = inputs([game(q, "a", "b", (0.6, 0.3, 0.1)) for q in range(4)])
    assert matrices(run) == []
    assert "No pair of answers was read in both orders." in page.page(replace(run), {})
