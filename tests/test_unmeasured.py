"""What a run does not measure has its rows all the same, without a case: tables of two runs join without holes."""

import json

import polars as pl
import pytest
import reported_runs as world

from trustjudge_ray.analysis import unmeasured
from trustjudge_ray.analysis.evaluation import evaluate
from trustjudge_ray.analysis.scoring import SCORING_RULES
from trustjudge_ray.config import AnalysisConfig

SETTINGS = AnalysisConfig(tolerances=[0, 0.1], k=[3])
BY_RULE = 1 + 4 * 2  # baseline, and four rules at two tolerances
KEYS = ("metric", "judge", "protocol", "pair_protocol", "score_rule", "verdict_rule", "k", "tolerance")


def measured(judgments, responses=None, names=("score-5", "compare")):
    return evaluate(judgments, {name: world.PROTOCOLS[name] for name in names}, responses, SETTINGS).metrics


@pytest.fixture(scope="module")
def said():
    return world.judgments(judges=("j",), scales=("score-5",), comparisons=("compare",))


def wanted_rows(found, metric):
    return found.filter(pl.col("category").is_null(), metric=metric)


def test_without_people_every_row_of_agreement_is_there_and_says_how_many_had_no_human_score(said):
    found = measured(said)
    for metric in unmeasured.BY_VERDICT_RULE:
        rows = wanted_rows(found, metric)
        assert (len(rows), set(rows["cases"]), set(rows["excluded"])) == (BY_RULE, {0}, {4 * 6})
    for metric in unmeasured.BY_COMPARISON:
        (row,) = wanted_rows(found, metric).to_dicts()
        assert (row["value"], row["cases"], row["excluded"]) == (None, 0, 4 * 6)
    for metric, n in (
        *((name, 4 * 6) for name in unmeasured.BY_SCORE_PAIR),
        *((n, 4 * 4) for n in unmeasured.BY_SCORE),
    ):
        rows = wanted_rows(found, metric)
        assert len(rows) == len(SCORING_RULES)
        assert {json.dumps({"no_human_score": n})} == set(rows["excluded_by"])


def test_people_change_values_and_never_which_rows_there_are(said):
    with_people = measured(said, world.responses())
    without = measured(said, world.responses().with_columns(human_score=pl.lit(None, dtype=pl.Float64)))
    keys = [*KEYS, "verdict_tolerance", "category"]
    of_people = pl.col("metric").str.starts_with("agreement_") | pl.col("metric").str.starts_with("reliability_")
    mine, other = (found.filter(of_people).select(keys).sort(keys) for found in (with_people, without))
    assert mine.equals(other)
    assert not with_people.select(keys).is_duplicated().any()
    exact = wanted_rows(with_people, "agreement_pair_exact")
    assert set(exact["cases"]) == {4 * 6}


def test_a_protocol_that_was_never_judged_has_its_rows(said):
    found = measured(said, world.responses(), ("score-5", "score-100", "compare", "compare-rationale"))
    judged = found.filter(pl.col("protocol").is_in(["score-5", "compare"]))
    for name, like in (("score-100", "score-5"), ("compare-rationale", "compare")):
        for metric in (*unmeasured.BY_SCORE, *unmeasured.BY_COMPARISON, *unmeasured.OF_FIT, unmeasured.OF_VOTES):
            mine, other = (table.filter(metric=metric, protocol=of) for table, of in ((found, name), (judged, like)))
            assert len(mine) == len(other), metric
            assert set(mine["cases"]) <= {0}


def test_a_judge_whose_comparisons_all_failed_has_their_reasons_in_the_rows_of_its_fit(said):
    told = said.with_columns(category=pl.when(pl.col("question_id") == "q0").then(pl.lit("code")))
    lost = pl.col("kind") == "compare"
    failed = told.with_columns(
        status=pl.when(lost).then(pl.lit("no_verdict")).otherwise("status"),
        emitted=pl.when(~lost).then("emitted"),
        label_logprobs=pl.when(~lost).then("label_logprobs"),
    )
    first = failed.filter(lost & pl.col("category").is_null())["task_id"][0]
    one_game = pl.concat([failed.filter(pl.col("task_id") != first), told.filter(pl.col("task_id") == first)])
    for metric in unmeasured.OF_FIT:
        for judgments, n in ((failed, 4 * 6 * 2), (one_game, 4 * 6 * 2 - 1)):
            (row,) = wanted_rows(measured(judgments), metric).to_dicts()
            assert json.loads(row["excluded_by"]) == {"no_verdict": n}
            (row,) = measured(judgments).filter(metric=metric, category="code").to_dicts()
            assert (row["cases"], json.loads(row["excluded_by"])) == (0, {"no_verdict": 6 * 2})


@pytest.mark.parametrize("names", [(), ("compare",), ("score-5", "compare")])
def test_without_judgments_no_two_rows_are_of_one_thing(names):
    found = measured(world.judgments(judges=()), names=names)
    assert not found.select([*KEYS, "verdict_tolerance", "category"]).is_duplicated().any()


def test_a_run_without_any_judgment_has_rows_of_no_judge():
    nothing = world.judgments(judges=())
    found = measured(nothing)
    rows = found.filter(metric="agreement_pair_exact")
    assert len(rows) == BY_RULE
    assert set(rows["judge"]) == {None}
    assert set(rows["excluded"]) == {0}
