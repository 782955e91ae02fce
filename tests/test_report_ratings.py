"""Ratings rule by rule in a report, and the coefficients of length and style."""

import numpy as np
import polars as pl
import pytest
from comparisons import game, table, tournament
from rankings import WORTHS, answers, ranked

from trustjudge_ray.config import AnalysisConfig, ConfigError, loads
from trustjudge_ray.report.cells import Inputs
from trustjudge_ray.report.ratings import by_rule, coefficients


def inputs(rows, config, responses=None):
    found, nothing = ranked(rows, config, responses), pl.DataFrame()
    return Inputs("run", table(rows), nothing, nothing, found.metrics, found.ratings, {}, AnalysisConfig())


def cells(report):
    return {row[0]: dict(zip(report.columns, row, strict=True)) for row in report.rows}


def test_soft_hard_and_calibrated_stand_side_by_side_and_it_is_said_that_soft_spreads_mean_nothing_across_judges():
    rows = tournament(np.random.default_rng(1), WORTHS, 8, soft=True)
    (plain,) = by_rule(inputs(rows, AnalysisConfig()))
    assert plain.columns == ("model", "soft", "hard", "Bradley–Terry", "Elo", "win rate")
    assert "soft spreads of different judges cannot be compared" in plain.note
    assert "need human scores" in plain.note
    ratings = {(r["rule"], r["model"]): r for r in ranked(rows).ratings.to_dicts()}
    ada = ratings["davidson", "ada"]
    assert cells(plain)["ada"]["soft"] == f"{ada['rating']:.0f} ({ada['low']:.0f} … {ada['high']:.0f})"
    assert cells(plain)["ada"]["Elo"] == f"{ratings['elo', 'ada']['rating']:.0f}"
    human = {(str(q), m): worth + q % 3 * (m == "cy") for q in range(8) for m, worth in WORTHS.items()}
    (told,) = by_rule(inputs(rows, AnalysisConfig(), answers(dict.fromkeys(human, "x"), human)))
    assert "calibrated" in told.columns
    assert "Calibrated: probabilities at the temperature (" in told.note


def test_a_calibration_that_was_dropped_is_not_put_down_to_missing_human_scores():
    rows = [game(q, "a", "b", (0.6, 0.3, 0.1)) for q in range(9)]
    human = {(str(q), m): float(m == "a") for q in range(9) for m in "ab"}  # always right: no best temperature
    (report,) = by_rule(inputs(rows, AnalysisConfig(), answers(dict.fromkeys(human, "x"), human)))
    assert "need human scores" not in report.note
    assert "the judge could not be calibrated" in report.note


def test_coefficients_are_shown_with_their_intervals_whatever_the_folder_s_configuration_says():
    rows = tournament(np.random.default_rng(2), WORTHS, 8, soft=True)
    texts = {(str(q), m): "x" * (20 + (q * 37 + i * 11) % 60) for q in range(8) for i, m in enumerate(WORTHS)}
    shown = inputs(rows, AnalysisConfig(covariates=["length", "bold"]), answers(texts))
    (report,) = coefficients(shown)
    assert [row[2] for row in report.rows] == ["length"]  # no answer has anything bold
    assert report.rows[0][4].count("…") == 1
    assert "at equal length of the answers" in by_rule(shown)[0].note
    assert coefficients(inputs(rows, AnalysisConfig())) == []


def test_a_model_without_a_finite_rating_says_so_and_with_a_ridge_that_its_rating_is_none_of_the_games():
    rows = tournament(np.random.default_rng(3), {"a": 0.3, "b": 0.0}, 10)
    rows += [game(q, m, "never", "first") for q in range(10) for m in "ab"]
    assert cells(by_rule(inputs(rows, AnalysisConfig()))[0])["never"]["soft"] == "unbounded"
    assert cells(by_rule(inputs(rows, AnalysisConfig(ridge=1.0)))[0])["never"]["soft"].endswith(" (unbounded)")


def test_groups_that_never_met_are_numbered():
    rows = [game(q, *pair) for q in range(9) for pair in (("a", "b", "tie"), ("c", "d", "tie"), ("d", "e", "tie"))]
    (report,) = by_rule(inputs(rows, AnalysisConfig()))
    assert report.columns[0] == "group"
    assert [row[:2] for row in report.rows] == [("1", "c"), ("1", "d"), ("1", "e"), ("2", "a"), ("2", "b")]


@pytest.mark.parametrize(
    "line, reason",
    [
        ("covariates: [length, colour]", "analysis.covariates: got ['length', 'colour']; some of ['length', "),
        ("covariates: [bold, bold]", "each once"),
        ("ridge: -1", "analysis.ridge: got -1.0; 0 or more"),
        ("ridge: .nan", "analysis.ridge: got nan; 0 or more"),
        ("category_weights: {code: 0}", "analysis.category_weights: got {'code': 0.0}; numbers over 0"),
    ],
)
def test_settings_of_ratings_that_make_no_sense_are_refused(line, reason):
    with pytest.raises(ConfigError) as error:
        loads(f"corpus: {{paths: [x]}}\nanalysis:\n  {line}\n")
    assert reason in str(error.value)


def test_settings_of_ratings_are_read():
    text = (
        "corpus: {paths: [x]}\nanalysis: {covariates: length, category_weights: {a b: 2}, anchor_model: m, ridge: 1}\n"
    )
    found = loads(text).config.analysis
    assert (found.covariates, found.category_weights, found.anchor_model) == (["length"], {"a b": 2.0}, "m")
