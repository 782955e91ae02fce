import math

import numpy as np
import polars as pl
import pytest
from corpora import compare_protocol, responses, score_protocol

from trustjudge_ray.config import ConfigError, PlanConfig
from trustjudge_ray.judging import base, plan, scripted

PROTOCOLS = {"score-5": score_protocol(), "compare": compare_protocol()}


def tasks(kind, texts=None):
    given = responses(texts or {"q": {"a": "x", "b": "y"}})
    spec = plan.Spec("scripted", PROTOCOLS[kind], "s")
    return plan.with_texts(plan.plan(given, [spec], PlanConfig(), []), given)


def test_the_second_order_is_turned_into_candidate_coordinates():
    said = [math.log(p) for p in (0.7, 0.2, 0.1)]  # first, second, tie: the same in both orders
    table = base.judgments(tasks("compare"), [base.Reading(label_logprobs=said)] * 2, PROTOCOLS)
    by = {row["order"]: row for row in table.to_pylist()}
    assert np.exp(by["AB"]["label_logprobs"]) == pytest.approx([0.7, 0.2, 0.1])
    assert np.exp(by["BA"]["label_logprobs"]) == pytest.approx([0.2, 0.7, 0.1])
    assert (by["AB"]["emitted"], by["BA"]["emitted"]) == ("a", "b")


@pytest.mark.parametrize(
    ("logprobs", "status"),
    [
        ([math.nan, -1.0, -1.0], "bad_logprob"),
        *(([odd, -1.0, -1.0], "bad_logprob") for odd in (math.inf, 1000.0, 0.7)),
        ([1e-6, -20.0, -20.0], "ok"),
        ([-math.inf] * 3, "no_label_mass"),
        ([None, None, None], "no_label_mass"),
        ([-1.0, -1.0], "engine_error"),
        (None, "engine_error"),
        ([0.0, -math.inf, None], "ok"),
    ],
)
def test_a_distribution_that_cannot_be_used_is_a_status_not_a_number(logprobs, status):
    rows = base.judgments(tasks("compare"), [base.Reading(label_logprobs=logprobs)] * 2, PROTOCOLS).to_pylist()
    assert {row["status"] for row in rows} == {status}
    if status != "ok":
        assert {(row["label_logprobs"], row["emitted"], row["label_mass"]) == (None, None, None) for row in rows} == {
            True
        }


def test_what_an_engine_says_about_a_judgment_that_succeeded_is_kept():
    said = base.Reading(label_logprobs=[-1.0, -1.0, -1.0], detail="the thinking was closed at its budget of 9 tokens")
    rows = base.judgments(tasks("compare"), [said] * 2, PROTOCOLS).to_pylist()
    assert {(row["status"], row["detail"]) for row in rows} == {("ok", said.detail)}


def test_one_reading_too_few_is_an_error_not_a_shorter_table():
    with pytest.raises(ValueError, match="zip"):
        base.judgments(tasks("compare"), [base.Reading(label_logprobs=[0.0, -1.0, -1.0])], PROTOCOLS)


def test_log_probabilities_are_stored_as_float32_values_and_the_mass_is_theirs():
    said = [math.log(p) for p in (0.1, 0.2, 0.3, 0.15, 0.05)]
    row = base.judgments(tasks("score-5").slice(0, 1), [base.Reading(label_logprobs=said)], PROTOCOLS).to_pylist()[0]
    assert all(
        x == float(np.float32(x)) and 0 <= exact - x < 1e-6
        for x, exact in zip(row["label_logprobs"], said, strict=True)
    )
    assert row["label_mass"] == pytest.approx(sum(math.exp(x) for x in row["label_logprobs"]), abs=1e-15)
    assert (row["emitted"], row["cumulative_logprob"], row["output_tokens"]) == ("3", row["label_logprobs"][2], 1)


def test_the_emitted_label_is_the_lowest_on_a_tie_and_drawn_by_seed_at_a_temperature():
    tie = [math.log(0.5), math.log(0.5)]
    assert base.draw_label(tie, 1, 0.0) == 0
    drawn = [base.draw_label([math.log(0.8), math.log(0.2)], seed, 1.0) for seed in range(2000)]
    assert np.mean(drawn) == pytest.approx(0.2, abs=0.03)
    assert drawn[:50] == [base.draw_label([math.log(0.8), math.log(0.2)], seed, 1.0) for seed in range(50)]


def test_a_failure_share_is_taken_for_each_model_so_that_one_bad_model_does_not_hide():
    rows = [{"judge": "j", "model_a": f"m{i % 50}", "model_b": None, "status": "ok"} for i in range(2000)]
    rows += [{"judge": "j", "model_a": "bad", "model_b": None, "status": s} for s in ["engine_error"] * 5 + ["ok"] * 5]
    rows += [{"judge": "j", "model_a": "m0", "model_b": None, "status": "empty_response"}] * 500
    over = base.failures_over(pl.DataFrame(rows), 0.02)
    assert len(over) == 1
    assert "model bad: 5 of 10" in over[0]


def test_a_planted_position_bias_is_the_expected_order_effect():
    texts = {f"q{i}": {"a": f"x{i}", "b": f"y{i}"} for i in range(50)}
    given = {"position_bias": 0.3, "quality": {"a": 0.9, "b": 0.2}}
    asked = tasks("compare", texts)
    readings = scripted.ScriptedJudge(given, PROTOCOLS).judge(asked)
    effect = np.mean([math.exp(r.label_logprobs[0]) - math.exp(r.label_logprobs[1]) for r in readings])
    assert effect == pytest.approx(0.3, abs=1e-9)


def test_the_scripted_judge_reads_the_same_task_the_same_way_in_any_batch():
    asked = tasks("score-5", {f"q{i}": {"a": "x", "b": "y"} for i in range(5)})
    judge = scripted.ScriptedJudge({"noise": 0.2, "failure_rate": 0.3}, PROTOCOLS)
    whole = judge.judge(asked)
    assert whole == [judge.judge(asked.slice(i, 1))[0] for i in range(len(asked))]
    assert {r.status for r in whole} == {"ok", "engine_error"}


def test_an_unknown_script_key_is_refused_by_name():
    with pytest.raises(ConfigError, match="'qualty'.*quality"):
        scripted.script({"qualty": {}})
    for wrong in ({"quality": {"a": "high"}}, {"noise": -1}, {"noise": "lots"}):
        with pytest.raises(ConfigError, match=r"judge\.scripted\.(quality|noise): got"):
            scripted.script(wrong)


def test_rounding_takes_no_sum_of_probabilities_over_one():
    rng = np.random.default_rng(0)
    asked = tasks("score-5", {f"q{i}": {"a": "x", "b": "y"} for i in range(100)})
    readings = [base.Reading(label_logprobs=list(np.log(rng.dirichlet(np.ones(5))))) for _ in range(len(asked))]
    table = base.judgments(asked, readings, PROTOCOLS)
    assert max(table["label_mass"].to_pylist()) <= 1
