"""What is planted in the scripted judge is what the analysis finds: planned, judged and evaluated without Ray."""

import polars as pl
import pytest
from corpora import compare_protocol, responses, score_protocol

from trustjudge_ray.analysis.evaluation import Evaluation, evaluate
from trustjudge_ray.config import AnalysisConfig, ConfigError, PlanConfig
from trustjudge_ray.judging import scripted
from trustjudge_ray.judging.base import failures_over, judgments
from trustjudge_ray.judging.plan import plan, spec, with_texts

MODELS = {"m1": 0.9, "m2": 0.7, "m3": 0.5, "m4": 0.3, "m5": 0.1}
PROTOCOLS = {protocol.name: protocol for protocol in (score_protocol(), compare_protocol())}
SETTINGS = AnalysisConfig(tolerances=[0.0], k=[3])


def judged(planted: dict, questions: int = 200) -> pl.DataFrame:
    """JUDGMENTS of all pairs in both orders, and of all scores, as the planted judge gives them."""
    given = {"quality": MODELS} | planted
    table = responses({f"q{i}": {model: f"{model} says {i}" for model in MODELS} for i in range(questions)})
    specs = [spec("scripted", scripted.identity(given), protocol, 0.0) for protocol in PROTOCOLS.values()]
    tasks = with_texts(plan(table, specs, PlanConfig(), []), table)
    readings = scripted.ScriptedJudge(given, PROTOCOLS).judge(tasks)
    return pl.DataFrame(judgments(tasks, readings, PROTOCOLS))


def evaluated(rows: pl.DataFrame) -> Evaluation:
    return evaluate(rows, PROTOCOLS, None, SETTINGS)


def metric(found: Evaluation, name: str, **wanted) -> dict:
    chosen = [m for m in found.metrics.to_dicts() if m["metric"] == name and m["category"] is None]
    return next(m for m in chosen if all(m[key] == value for key, value in wanted.items()))


def test_planted_position_bias_and_intransitivity_are_recovered_together():
    found = evaluated(judged({"position_bias": 0.3, "intransitivity": 0.1, "noise": 0.02}))
    effect = metric(found, "order_effect")
    assert effect["low"] <= 0.3 <= effect["high"]
    assert effect["high"] - effect["low"] < 0.1
    cycles = metric(found, "non_transitivity_strict_cycle", verdict_rule="normalised", k=3)
    assert cycles["low"] <= 0.1 <= cycles["high"]
    assert cycles["high"] - cycles["low"] < 0.06
    assert cycles["cases"] == 200 * 10


@pytest.mark.parametrize("share", [0.05, 0.25])
def test_the_share_of_cycles_is_what_was_planted_and_not_a_multiple_of_it(share):
    found = evaluated(judged({"intransitivity": share}))
    cycles = metric(found, "non_transitivity_strict_cycle", verdict_rule="normalised", k=3)
    assert cycles["low"] <= share <= cycles["high"]


def test_a_judge_without_planted_faults_has_none():
    found = evaluated(judged({}, questions=20))
    assert metric(found, "non_transitivity_ratio", verdict_rule="normalised", k=3)["value"] == 0
    assert metric(found, "order_effect")["value"] == pytest.approx(0, abs=1e-6)
    assert metric(found, "flip_rate")["value"] == 0


def test_both_orders_of_a_pair_go_round_the_same_way():
    found = evaluated(judged({"intransitivity": 0.25}, questions=40))
    assert metric(found, "flip_rate")["value"] == 0


def test_a_rationale_gives_the_perplexity_rules_the_surer_order():
    """With a position bias the two orders disagree on close pairs; the surer order is the one that the bias helps."""
    rows = judged({"quality": {m: 0.5 + q / 100 for m, q in MODELS.items()}, "position_bias": 0.6, "rationale": 7}, 3)
    assert rows["rationale"].str.split(" ").list.len().unique().to_list() == [7]
    assert rows["output_tokens"].unique().to_list() == [8]
    perplexity = (-pl.col("cumulative_logprob") / pl.col("output_tokens")).exp()
    surest = pl.col("label_logprobs").list.max().exp()
    assert rows.select(((perplexity * surest) - 1).abs().max()).item() < 1e-6
    assert rows["rationale_cut"].unique().to_list() == [False]
    found = evaluated(rows)
    assert not [warning for warning in found.warnings if "no rationale" in warning]
    better = found.verdicts.filter((pl.col("rule") == "ppl") & (pl.col("tolerance") == 0))
    assert better["outcome"].to_list() == [1] * (3 * 10)


def test_a_rationale_and_a_circle_leave_the_ids_of_other_scripts_alone():
    before = {"engine": "scripted", "model": "scripted", "script": {
        "quality": {}, "position_bias": 0.0, "noise": 0.0, "sharpness": 8.0, "tie": -1.0, "failure_rate": 0.0,
    }}  # fmt: skip
    assert scripted.identity({}) == before
    assert scripted.identity({"rationale": 3, "intransitivity": 0.1})["script"]["rationale"] == 3


def test_planted_failures_are_over_the_default_limit_and_under_a_higher_one_and_nothing_is_lost():
    rows = judged({"failure_rate": 0.05})
    assert len(rows) == 200 * (5 + 20)
    failed = rows.filter(pl.col("status") == "engine_error")
    assert 0.04 < len(failed) / len(rows) < 0.06
    assert failures_over(rows, 0.02)[0].startswith("judge scripted: ")
    assert failures_over(rows, 0.1) == []
    coverage = metric(evaluated(rows), "coverage", protocol="compare")
    assert (coverage["cases"], coverage["hits"] + coverage["excluded"]) == (4000, 4000)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"intransitivity": 0.3}, "intransitivity: got 0.3; a share from 0 to 0.25"),
        ({"rationale": -1}, "rationale: got -1; a number of words"),
        ({"rationales": 5}, "unknown key 'rationales'"),
    ],
)
def test_what_cannot_be_planted_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        scripted.script(given)
