"""Several rationales, and repetitions: what is planned, and how large a difference they show."""

import math
import statistics
from collections import Counter
from dataclasses import replace

import polars as pl
import pytest
from comparisons import game, score, table
from corpora import COMPARE, SCORE, compare_protocol, responses, score_protocol

from trustjudge_ray.analysis.evaluation import evaluate
from trustjudge_ray.config import AnalysisConfig, ConfigError, PlanConfig, loads
from trustjudge_ray.imports import base as imported
from trustjudge_ray.judging import plan
from trustjudge_ray.judging.base import Reading, judgments
from trustjudge_ray.judging.protocols import Protocol, ProtocolError, Rationale, Sampling, parse, to_yaml
from trustjudge_ray.report import bias, tables
from trustjudge_ray.schema import TASKS, from_rows

PROTOCOLS = {"score": imported.score_protocol(5), "compare": imported.compare_protocol()}
WRITING = 'rationale: {max_tokens: 64}\nsampling: {temperature: 0.7, seed: 3}\nsamples: 3\nopener: "\\n\\nScore: ["'


def writing() -> Protocol:
    return parse(SCORE.replace('opener: "Score: ["', WRITING))


def planned(protocols, settings, models="abcd", questions=20):
    texts = {f"q{q}": {m: f"{q} {m}" for m in models} for q in range(questions)}
    specs = [plan.Spec("j", p, p.hash) for p in protocols]
    return plan.plan(responses(texts), specs, settings, []).to_pylist()


def metric(rows, name, **columns):
    found = evaluate(table(rows), PROTOCOLS, None, AnalysisConfig())
    (row,) = found.metrics.filter(pl.col("category").is_null(), metric=name, **columns).to_dicts()
    return row


def test_each_sample_is_a_task_and_more_samples_keep_those_that_were_judged():
    three = planned([writing()], PlanConfig(), questions=2)
    assert Counter(t["sample"] for t in three) == {0: 8, 1: 8, 2: 8}
    assert len({t["task_id"] for t in three}) == 24
    two = planned([replace(writing(), samples=2)], PlanConfig(), questions=2)
    assert {t["task_id"] for t in two} == {t["task_id"] for t in three if t["sample"] < 2}
    other = planned([replace(writing(), sampling=Sampling(0.7, 4))], PlanConfig(), questions=2)
    assert not {t["task_id"] for t in other} & {t["task_id"] for t in three}, "another seed is another judgment"


def test_what_needs_no_judge_is_one_row_whatever_the_samples():
    protocol = replace(writing(), samples=2)
    tasks = plan.plan(responses({"q": {"a": "x", "b": " "}}), [plan.Spec("j", protocol, "s")], PlanConfig(), [])
    assert sorted(zip(tasks["status"].to_pylist(), tasks["sample"].to_pylist(), strict=True), key=str) == [
        ("empty_response", 0), (None, 0), (None, 1),
    ]  # fmt: skip


def test_repetitions_are_a_share_of_whole_pairs_that_meet_other_neighbours():
    settings = PlanConfig(repeat=2, repeat_share=0.3)
    tasks = planned([score_protocol(), compare_protocol()], settings)
    first = [t for t in tasks if t["repeat"] == 0]
    assert {t["task_id"] for t in first} == {
        t["task_id"] for t in planned([score_protocol(), compare_protocol()], PlanConfig())
    }
    assert len({t["task_id"] for t in tasks}) == len(tasks)
    pairs = Counter((t["question_id"], t["response_a"], t["response_b"]) for t in tasks if t["repeat"] == 1)
    assert all(n == (1 if b is None else 2) for (_, _, b), n in pairs.items())
    assert 12 <= sum(b is None for _, _, b in pairs) <= 36, "0.3 of 80 responses"
    again = [(t["question_id"], t["response_a"]) for t in tasks if t["repeat"] and t["kind"] == "score"]
    assert again != sorted(again)


def test_no_repetition_is_planned_unless_asked_for():
    assert all(t["repeat"] == 0 for t in planned([score_protocol()], PlanConfig()))
    with pytest.raises(ConfigError, match="plan.repeat_share: got 2.0; a share from 0 to 1"):
        loads("corpus: {paths: [x]}\nplan: {repeat: 1, repeat_share: 2.0}")


def test_the_spread_is_the_mean_deviation_between_samples_of_their_expected_scores():
    distributions = {"a": [(1, 0, 0, 0, 0), (0, 0, 1, 0, 0), (0, 0, 0, 0, 1)], "b": [(0, 0.5, 0, 0.5, 0)] * 2}
    rows = [
        score("q", m, p, sample=i, judge="j") for m, samples in distributions.items() for i, p in enumerate(samples)
    ]
    rows.append(score("q", "c", (1, 0, 0, 0, 0)))
    rows += [score("q", "d", (1, 0, 0, 0, 0)), score("q", "d", (1, 0, 0, 0, 0), sample=1, status="bad_logprob")]
    found = metric(rows, "sample_spread", protocol="score")
    assert found["value"] == pytest.approx((statistics.stdev([1, 3, 5]) + 0.0) / 2)
    assert (found["cases"], found["excluded_by"]) == (2, '{"fewer_than_two_samples": 1}')


def test_the_noise_floor_compares_each_repetition_with_the_first_judgment():
    rows = [score("q", "a", (0, 1, 0, 0, 0)), score("q", "b", (0, 0, 0, 0, 1))]
    rows += [score("q", "a", (0, 0.5, 0.5, 0, 0), repeat=1), score("q", "a", (0, 0, 0, 1, 0), repeat=2)]
    rows += [score("q", "b", (0, 0, 0, 0, 1), repeat=1, status="engine_error")]
    for repeat, p in enumerate([(0.6, 0.4, 0.0), (0.6, 0.4, 0.0), (0.45, 0.55, 0.0)]):
        rows += [game("q", *names, p if names == ("a", "b") else (p[1], p[0], p[2]), repeat=repeat)
                 for names in (("a", "b"), ("b", "a"))]  # fmt: skip
    change = metric(rows, "noise_score", protocol="score")
    assert (change["value"], change["cases"]) == (pytest.approx((0.5 + 2.0) / 2), 2)
    assert change["excluded_by"] == '{"engine_error": 1}'
    assert metric(rows, "noise_score_max", protocol="score")["value"] == pytest.approx(2.0)
    assert metric(rows, "noise_margin", protocol="compare")["value"] == pytest.approx((0.0 + 0.3) / 2)
    flips = metric(rows, "noise_flips", protocol="compare")
    assert (flips["hits"], flips["cases"]) == (1, 2)
    assert metric(rows, "conflict_ratio", score_rule="expected", verdict_rule="baseline", tolerance=0.0)["cases"] <= 1


def test_no_change_seen_is_no_proof_that_there_is_none():
    rows = [score(f"q{q}", m, (0, 1, 0, 0, 0), repeat=r) for q in range(6) for m in "ab" for r in (0, 1)]
    found = metric(rows, "noise_score", protocol="score")
    assert (found["value"], found["low"], found["high"], found["cases"]) == (0.0, None, None, 12)
    judged = evaluate(table(rows), PROTOCOLS, None, AnalysisConfig())
    frames = (table(rows), judged.scores, judged.verdicts, judged.metrics, judged.ratings)
    (card,) = bias.cards(tables.Inputs("t", *frames, PROTOCOLS, AnalysisConfig()))
    (line,) = [row for row in card.rows if row[0] == "change of the score when judged again" and row[1] == "score"]
    assert line[2:] == ("0", "–", "12", "0", "no change seen")


def test_a_size_is_never_said_to_be_below_zero():
    rows = [score(f"q{q}", "a", (0, 1, 0, 0, 0)) for q in range(3)]
    rows += [score(f"q{q}", "a", (0, 0, 0, 0, 1) if q else (0, 1, 0, 0, 0), repeat=1) for q in range(3)]
    found = metric(rows, "noise_score", protocol="score")
    assert (found["value"], found["low"]) == (pytest.approx(2.0), 0.0)
    assert found["high"] > 3


def test_a_run_without_repetitions_has_no_noise_floor_and_says_how_to_get_one():
    rows = [score("q", "a", (0, 1, 0, 0, 0)), score("q", "b", (0, 0, 0, 0, 1))]
    assert metric(rows, "noise_score", protocol="score")["value"] is None
    found = evaluate(table(rows), PROTOCOLS, None, AnalysisConfig())
    inputs = tables.Inputs(
        "t", table(rows), found.scores, found.verdicts, found.metrics, found.ratings, PROTOCOLS, AnalysisConfig()
    )
    assert "no task was judged again (plan.repeat: 1 measures it)" in tables.terminal(inputs)
    rows += [score("q", "a", (0, 0.5, 0.5, 0, 0), repeat=1)]
    found = evaluate(table(rows), PROTOCOLS, None, AnalysisConfig())
    text = tables.terminal(replace(inputs, judgments=table(rows), metrics=found.metrics))
    assert "change of the expected score, in points  0.5" in text


def test_the_output_is_rationale_and_label_and_unknown_where_the_rationale_is():
    task = planned([writing()], PlanConfig(), questions=1)[:3]
    logs = [math.log(p) for p in (0.1, 0.1, 0.5, 0.2, 0.1)]
    readings = [
        Reading("ok", logs, rationale="why", rationale_logprob=-7.0, rationale_tokens=4, label_tokens=[1, 1, 2, 1, 1]),
        Reading("ok", logs, label_tokens=[1, 1, 2, 1, 1]),
        Reading("ok", logs, rationale="why"),
    ]
    got = judgments(from_rows(task, TASKS), readings, {"score-5": writing()}).to_pylist()
    assert [row["cumulative_logprob"] for row in got] == [
        pytest.approx(-7 + math.log(0.5)), pytest.approx(math.log(0.5)), None,
    ]  # fmt: skip
    assert [row["output_tokens"] for row in got] == [6, 2, None]


def test_writing_survives_yaml_and_what_is_unused_changes_no_hash():
    protocol = writing()
    assert (protocol.rationale, protocol.sampling, protocol.samples) == (Rationale(64), Sampling(0.7, 3), 3)
    again = parse(to_yaml(protocol))
    assert (again, again.hash) == (protocol, protocol.hash)
    assert replace(protocol, samples=9).hash == protocol.hash
    assert replace(protocol, rationale=Rationale(65)).hash != protocol.hash
    assert compare_protocol().hash == replace(compare_protocol(), sampling=Sampling(1.0, 5)).hash


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("max_tokens: 64", "tokens: 64"), "rationale: unknown key 'tokens'"),
        (("max_tokens: 64", "max_tokens: none"), "rationale.max_tokens: got 'none'; a whole number of 1 or more"),
        (("{max_tokens: 64}", "64"), "rationale: got '64'; a mapping with"),
        (("temperature: 0.7", "temperature: 0"), "3 rationales at temperature 0 are one and the same"),
        (("temperature: 0.7", "temperature: -1"), "sampling.temperature: got '-1'; a number of 0 or more"),
        (("rationale: {max_tokens: 64}\n", ""), "add rationale: {max_tokens: N}"),
        (("samples: 3", "samples: 0"), "samples: got '0'"),
        (("\\n\\nScore: [", "\\n"), "opener: got .*; a text at which the verdict begins"),
        (("rationale: {max_tokens: 64}", "thinking: {max_tokens: 9, close: ''}"), "thinking.close: got ''"),
        (("\\n\\nScore", "Score"), "an opener that begins with a newline"),
    ],
)
def test_what_cannot_be_written_is_refused_with_the_key(change, message):
    example = 'examples: [{question: a, answer: b, rationale: c, label: "5"}]\n'
    text = SCORE.replace('opener: "Score: ["', WRITING) + (example if change[1] == "Score" else "")
    assert change[0] in text
    with pytest.raises(ProtocolError, match=message):
        parse(text.replace(*change), "my.yaml")


def test_an_example_shows_its_rationale_before_the_opener():
    text = COMPARE.replace('opener: "Better', 'rationale: {max_tokens: 8}\nopener: "\\nBetter')
    text += 'examples: [{question: a, answer_a: b, answer_b: c, rationale: "B is right.\n", label: second}]\n'
    protocol = parse(text)
    assert protocol.examples[0].rationale == "B is right."
    assert parse(to_yaml(protocol)) == protocol
