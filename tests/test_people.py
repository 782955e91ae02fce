"""Further agreement with people: the same pairs by another road, by definition, and with nothing dropped in silence."""

import json

import numpy as np
import polars as pl
import pytest
from comparisons import game, table
from corpora import compare_protocol
from run_folders import write_run

from trustjudge_ray.analysis.agreement import agreement_metrics
from trustjudge_ray.analysis.calibration import brier, brier_parts, log_loss, temperature_scaling
from trustjudge_ray.analysis.pairing import Side
from trustjudge_ray.analysis.people import labelled_metrics, people_metrics
from trustjudge_ray.analysis.raters import KAPPA_WEIGHTS, weighted_kappa
from trustjudge_ray.analysis.readouts import columns
from trustjudge_ray.analysis.tolerances import parse_tolerances
from trustjudge_ray.analysis.verdicts import verdicts
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.labelling import calibration_with_scores
from trustjudge_ray.schema import METRICS, PLACED_RESPONSES, SCORES, check, from_rows

SETTINGS = AnalysisConfig(tolerances=[0])
MODELS = ("m1", "m2", "m3")


def world(questions=40, seed=0):
    """Judgments of every pair in both orders, and people's scores that the judge follows roughly."""
    rng, rows, people = np.random.default_rng(seed), [], []
    for q in range(questions):
        said = {m: int(rng.integers(1, 5)) for m in MODELS}
        people += [(str(q), m, float(x)) for m, x in said.items()]
        for first in MODELS:
            for second in MODELS:
                if first != second:
                    d = said[first] - said[second] + rng.normal(0, 1.5)
                    weight = np.exp([d / 2, -d / 2, -1])
                    rows.append(game(q, first, second, tuple(weight / weight.sum())))
    schema = {"question_id": pl.String, "response_id": pl.String, "human_score": pl.Float64}
    return table(rows), pl.DataFrame(people, schema=schema, orient="row")


def labels_of(people):
    """Every pair's outcome by people's scores, as labels of a sheet would say it."""
    wide = people.join(people, on="question_id", suffix="_b").filter(pl.col("response_id") < pl.col("response_id_b"))
    sign = (pl.col("human_score") - pl.col("human_score_b")).sign().cast(pl.Int32)
    return wide.select("question_id", response_a="response_id", response_b="response_id_b", wanted=sign)


def rows_of(found):
    check(found.to_arrow(), METRICS)
    key = ("metric", "verdict_rule", "category")
    return {tuple(row[name] for name in key): row for row in found.to_dicts()}


def test_labels_of_pairs_give_what_scores_that_say_the_same_give():
    judgments, people = world()
    told = verdicts(judgments, parse_tolerances([0]))
    no_scores = pl.DataFrame(schema=columns(SCORES))
    by_scores = rows_of(agreement_metrics(no_scores, told, people, SETTINGS))
    by_scores |= rows_of(people_metrics(judgments, told, people, SETTINGS))
    by_labels = rows_of(labelled_metrics(told, labels_of(people), SETTINGS))
    by_scores = {key: row for key, row in by_scores.items() if key[0] != "alpha_votes"}  # no matter of labels
    assert set(by_labels) == set(by_scores)
    for key, row in by_labels.items():
        for name in ("value", "low", "high", "cases", "questions"):
            assert row[name] == pytest.approx(by_scores[key][name]), (key, name)


def test_every_number_is_its_definition():
    judgments, people = world()
    told = verdicts(judgments, parse_tolerances([0]))
    found = rows_of(people_metrics(judgments, told, people, SETTINGS))
    pairs = told.filter(rule="normalised").join(labels_of(people), on=["question_id", "response_a", "response_b"])
    pairs = pairs.sort("question_id", "response_a", "response_b")
    said, wanted = (pairs[name].to_numpy() + 1 for name in ("outcome", "wanted"))
    for name, weights in KAPPA_WEIGHTS.items():
        row = found[f"agreement_pair_kappa_{name}", "normalised", None]
        assert row["value"] == pytest.approx(weighted_kappa(said, wanted, 3, weights))
        assert row["low"] < row["value"] < row["high"]
    p = pairs.select("p_a", "p_b", "p_tie").to_numpy()
    right = np.eye(3)[[{2: 0, 0: 1, 1: 2}[x] for x in wanted]]
    parts = {name: found[f"agreement_pair_brier_{name}", None, None]["value"] for name in brier_parts(p, right)}
    total = parts["reliability"] - parts["resolution"] + parts["uncertainty"] + parts["within_bins"]
    assert total == pytest.approx(brier(p, right))
    question = pairs["question_id"].rank("dense").to_numpy().astype(int) - 1
    scaling = temperature_scaling(p, right, question, SETTINGS.seed)
    assert found["agreement_pair_temperature", None, None]["value"] == pytest.approx(scaling.temperature)
    assert found["agreement_pair_log_loss", None, None]["value"] == pytest.approx(log_loss(p, right))
    assert found["agreement_pair_ece_scaled", None, None]["value"] == pytest.approx(scaling.after["calibration_error"])


def test_pairs_without_a_label_and_failed_ones_are_excluded_by_their_reason():
    judgments, people = world(questions=4)
    failed = (pl.col("question_id") == "1") & (pl.col("order") == "BA")
    judgments = judgments.with_columns(status=pl.when(failed).then(pl.lit("engine_error")).otherwise("status"))
    told = verdicts(judgments, parse_tolerances([0]))
    found = rows_of(labelled_metrics(told, labels_of(people).filter(pl.col("question_id") != "0"), SETTINGS))
    for metric, rule in (
        ("agreement_pair_exact", "normalised"),
        ("agreement_pair_kappa_linear", "normalised"),
        ("agreement_pair_brier", None),
        ("agreement_pair_temperature", None),
    ):
        row = found[metric, rule, None]
        assert row["cases"] == 6
        assert json.loads(row["excluded_by"]) == {"engine_error": 3, "no_label": 3}


def test_without_people_there_are_votes_only_and_with_one_score_every_row_is_there():
    judgments, people = world(questions=3)
    told = verdicts(judgments, parse_tolerances([0]))
    assert set(people_metrics(judgments, told, people[:0], SETTINGS)["metric"]) == {"alpha_votes"}
    found = people_metrics(judgments, told, people[:1], SETTINGS)
    assert set(found["cases"]) == {0}
    assert set(found["value"]) == {None}
    kappas, calibration, bins, votes = 5 * 2, 9, 2 * 10, 1
    assert found.filter(pl.col("category").is_null()).height == kappas + calibration + bins + votes


def test_the_reliability_of_a_run_reads_the_scores_of_its_corpus(tmp_path):
    judgments, people = world(questions=10)
    plain = {"messages": [{"role": "user", "content": "?"}], "replies": ["x"], "source": "t", "line": 1}
    rows = [plain | row | {"model": row["response_id"]} for row in people.to_dicts()]
    responses = pl.DataFrame(from_rows(rows, PLACED_RESPONSES))
    folder = write_run(
        tmp_path / "run", Side("x", judgments, responses, {"compare": compare_protocol()}), finished=False
    )
    found = calibration_with_scores(folder, SETTINGS)
    assert [(row["judge"], row["protocol"]) for row in found] == [("j", "compare")]
    assert sum(bar["cases"] for bar in found[0]["reliability"]) == 30
    assert found[0]["temperature_scaling"]["cases"] == 30
