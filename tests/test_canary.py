"""The canary: a model with one empty answer is added to every question, changes nothing else, and must end last."""

import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from corpora import compare_protocol, protocol_files, responses, rows, score_protocol, write_corpus
from polars.testing import assert_frame_equal
from test_cli import trustjudge
from test_plan_command import estimated

from trustjudge_ray import ingest
from trustjudge_ray.analysis.ablation import ablation
from trustjudge_ray.analysis.evaluation import Evaluation, evaluate
from trustjudge_ray.analysis.pairing import Side, lanes, overlap
from trustjudge_ray.analysis.shared_consistency import shared_ratios
from trustjudge_ray.config import AnalysisConfig, ConfigError, CorpusConfig, PlanConfig
from trustjudge_ray.corpus.canary import META_JSON, NAME, TEXT, with_canary
from trustjudge_ray.judging import scripted
from trustjudge_ray.judging.base import judgments, preset_judgments
from trustjudge_ray.judging.plan import plan, spec, with_texts
from trustjudge_ray.report import bias
from trustjudge_ray.report.cautions import findings
from trustjudge_ray.report.tables import Inputs
from trustjudge_ray.schema import METRICS, PLACED_RESPONSES, from_rows
from trustjudge_ray.store import RunFolder

PROTOCOLS = {protocol.name: protocol for protocol in (score_protocol(), compare_protocol())}
SETTINGS = AnalysisConfig(tolerances=[0.0], k=[3])
TEXTS = {f"q{q}": {model: f"{model} says {q}" for model in ("good", "fair", "poor")} for q in range(12)}


def answer(question: str, response_id: str, **columns: object) -> dict:
    row = {
        "question_id": question,
        "messages": [{"role": "user", "content": f"ask {question}"}],
        "response_id": response_id,
        "model": f"m{response_id}",
        "replies": [f"{response_id} says"],
        "source": "file",
        "line": 1,
    }
    return row | columns


def table(*given: dict):
    return from_rows(list(given), PLACED_RESPONSES)


def canaries(given) -> dict[str, dict]:
    return {row["question_id"]: row for row in with_canary(given).to_pylist() if row["model"] == NAME}


def evaluated(quality: dict[str, float], given=None, **planted: object) -> Evaluation:
    """Planned, judged by a scripted judge and evaluated, as a run does."""
    given = with_canary(responses(TEXTS)) if given is None else given
    return evaluate(judged(quality, given, **planted), PROTOCOLS, pl.DataFrame(given), SETTINGS)


def judged(quality: dict[str, float], given=None, **planted: object) -> pl.DataFrame:
    given = with_canary(responses(TEXTS)) if given is None else given
    judge = {"quality": quality, "noise": 0.02} | planted
    specs = [spec("scripted", scripted.identity(judge), protocol, 0.0) for protocol in PROTOCOLS.values()]
    tasks = with_texts(plan(given, specs, PlanConfig(), []), given)
    known = pc.is_valid(tasks["status"])
    asked = tasks.filter(pc.invert(known))
    read = judgments(asked, scripted.ScriptedJudge(judge, PROTOCOLS).judge(asked), PROTOCOLS)
    return pl.DataFrame(pa.concat_tables([read, preset_judgments(tasks.filter(known))]))


def told(found: Evaluation) -> list[str]:
    return [warning for warning in found.warnings if "CANARY" in warning]


def above(found: Evaluation, protocol: str) -> dict:
    overall = found.metrics.filter(pl.col("category").is_null())
    (row,) = overall.filter(metric="above_canary", protocol=protocol, judge="scripted").to_dicts()
    return row


def inputs(found: Evaluation) -> Inputs:
    tables = (pl.DataFrame(), found.scores, found.verdicts, found.metrics, found.ratings)
    return Inputs("t", *tables, PROTOCOLS, SETTINGS, found.warnings)


def test_every_question_gets_one_more_answer_and_the_others_stay_as_they_are():
    given = responses(TEXTS)
    found = with_canary(given)
    assert found.slice(0, len(given)).equals(given)
    added = found.slice(len(given)).to_pylist()
    assert sorted(row["question_id"] for row in added) == sorted(TEXTS)
    for row in added:
        assert (row["model"], row["response_id"], row["replies"]) == (NAME, NAME, [TEXT])
        assert (row["human_score"], row["meta_json"]) == (None, META_JSON)


def test_it_shows_the_question_as_the_others_do_in_as_many_turns():
    system = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    told_first = {"messages": system, "reference": "42", "category": "math"}
    found = canaries(table(answer("q", "10"), answer("q", "9", **told_first, replies=["one", "two"])))["q"]
    assert (found["messages"], found["reference"], found["category"]) == (system, "42", "math")
    assert found["replies"] == [TEXT, TEXT]


@pytest.mark.parametrize(
    ("ids", "wanted"),
    [(["2", "10"], "-1"), (["-1", "-2", "7"], "-3"), (["a", "2"], NAME), ([NAME, "b"], f"{NAME}_")],
)
def test_its_id_is_free_and_a_number_among_numbers(ids, wanted):
    assert canaries(table(*(answer("q", i) for i in ids)))["q"]["response_id"] == wanted


@pytest.mark.parametrize("orders", ["both", "one"])
@pytest.mark.parametrize("ids", [["2", "10", "9"], ["b", "a", "z"]], ids=["numbers", "words"])
def test_no_other_task_changes_when_every_pair_is_asked_for(ids, orders):
    given = table(*(answer(q, i, reference=" " if i == "9" else None) for q in ("1", "2") for i in ids))
    specs = [spec("j", {"model": "m"}, protocol, 0.0) for protocol in PROTOCOLS.values()]
    before, after = (
        set(plan(t, specs, PlanConfig(orders=orders, repeat=1, repeat_share=0.5), [])["task_id"].to_pylist())
        for t in (given, with_canary(given))
    )
    assert before < after


def test_a_model_of_its_name_in_the_corpus_is_refused_with_its_place():
    with pytest.raises(ConfigError, match=r"plan\.canary: file:7: the corpus has a model 'null'.*rename"):
        with_canary(table(answer("q", "a"), answer("q", "b", model=NAME, line=7)))


def test_a_bucket_is_settled_with_the_canary_only_where_it_was_asked_for(tmp_path: Path):
    path = write_corpus(tmp_path / "corpus.jsonl", rows(3, ["m0", "m1"]))
    folder = RunFolder(str(tmp_path / "run"))
    (ledger,) = ingest.ingest_files([str(path)], CorpusConfig(paths=["-"]), folder)
    for bucket in ledger["buckets"]:
        assert NAME not in ingest.settle_bucket(bucket, folder)["model"].to_pylist()
        ingest.settle_bucket(bucket, folder, {"0", "2"}, canary=True)
    kept = folder.responses()
    assert sorted(kept.filter(model=NAME)["question_id"]) == ["0", "2"]
    assert kept.height == 2 * 3


def test_a_plan_counts_the_canarys_judgments(tmp_path: Path):
    corpus = write_corpus(tmp_path / "corpus.jsonl", rows(3, ["m0", "m1"]))
    given = {"corpus": {"paths": [str(corpus)]}, "judge": {"engine": "scripted"}, "protocols": protocol_files(tmp_path)}
    found = estimated(tmp_path, given | {"plan": {"canary": True}})
    assert (found["responses"], found["pairs"], found["judgments"]) == (9, 9, 9 + 18)


def test_where_it_ends_last_nothing_is_said_but_on_the_card():
    found = evaluated({"good": 0.9, "fair": 0.7, "poor": 0.5, NAME: 0.1})
    assert told(found) == []
    for protocol in PROTOCOLS:
        row = above(found, protocol)
        assert (row["value"], row["hits"], row["cases"]) == (1.0, 3.0, 3)
    (card,) = bias.cards(inputs(found))
    lines = [row for row in card.rows if "canary" in row[0]]
    assert [(row[1], row[2], row[-1]) for row in lines] == [
        (name, "100.0 %", "the canary ends last") for name in sorted(PROTOCOLS)
    ]


def test_a_model_below_it_is_an_alarm_before_anything_else_and_a_model_beside_it_is_named():
    found = evaluated({"good": 0.9, "fair": 0.41, "poor": 0.1, NAME: 0.4}, noise=0.15)
    for rule in ("compare, davidson", "score-5, mean_score"):
        alarm, level = (text for text in told(found) if rule in text)
        assert alarm.startswith(f"judge scripted, protocol {rule}: CANARY ALARM: 'null', ")
        assert "is ranked above poor:" in alarm
        assert "is not significantly below fair:" in level
    assert above(found, "compare")["hits"] == 1
    first = findings(inputs(found))[: len(told(found))]
    assert first == told(found)
    (card,) = bias.cards(inputs(found))
    assert "NOT" in next(row for row in card.rows if "canary" in row[0])[-1]


def test_a_judge_that_reads_only_the_order_is_caught():
    found = evaluated(dict.fromkeys(("good", "fair", "poor", NAME), 0.5), position_bias=0.9)
    assert above(found, "compare")["hits"] < 3
    assert any("CANARY" in text for text in told(found))


def test_a_canary_that_could_not_be_judged_is_said_to_show_nothing():
    given = with_canary(responses(TEXTS))
    emptied = [row | ({"replies": [""]} if row["model"] == NAME else {}) for row in given.to_pylist()]
    found = evaluated({"good": 0.9, "fair": 0.7, "poor": 0.5}, from_rows(emptied, PLACED_RESPONSES))
    assert [text.split(":")[0] for text in told(found)] == [
        "judge scripted, protocol compare, davidson",
        "judge scripted, protocol score-5, mean_score",
    ]
    assert all("shows nothing" in text for text in told(found))


RANKED = ("order_effect_logit", "tie_parameter", "above_canary")
KEYS = [name for name in METRICS.names if name not in ("value", "low", "high", "hits", "cases", "questions")][:-2]


def test_the_canary_dilutes_no_number_but_its_failures_are_counted():
    """A judge that always tells the canary apart would else look more consistent the more canary there is."""
    quality = {"good": 0.52, "fair": 0.5, "poor": 0.48, NAME: 0.0}
    people = [row | {"human_score": len(row["model"])} for row in responses(TEXTS).to_pylist()]
    given = with_canary(from_rows(people, PLACED_RESPONSES))
    with_it = evaluated(quality, given, position_bias=0.3)
    alone = evaluated(quality, from_rows(people, PLACED_RESPONSES), position_bias=0.3)
    mine, wanted = (
        found.metrics.filter(~pl.col("metric").is_in([*RANKED, "coverage"])).sort(KEYS) for found in (with_it, alone)
    )
    assert_frame_equal(mine, wanted)
    (flips,) = mine.filter(pl.col("category").is_null(), metric="flip_rate").to_dicts()
    assert (flips["cases"], flips["value"] > 0) == (12 * 3, True)
    assert mine.filter(metric="agreement_pair_exact")["cases"].max() == 12 * 3
    covered = with_it.metrics.filter(pl.col("category").is_null(), metric="coverage")
    assert dict(covered.select("protocol", "cases").rows()) == {"compare": 12 * 6 * 2, "score-5": 12 * 4}
    assert NAME in with_it.scores["model"]
    assert NAME in with_it.verdicts["model_b"].append(with_it.verdicts["model_a"])


def test_a_judge_of_nothing_but_the_canary_has_its_rows():
    given = with_canary(responses({q: {"good": f"good says {q}"} for q in TEXTS}))
    found = evaluated({"good": 0.9, NAME: 0.1}, given)
    (row,) = found.metrics.filter(pl.col("category").is_null(), metric="flip_rate").to_dicts()
    assert (row["judge"], row["value"], row["cases"]) == ("scripted", None, 0)
    assert told(found) == []


def test_the_ablation_has_the_cases_of_the_report():
    quality = {"good": 0.9, "fair": 0.5, "poor": 0.3, NAME: 0.0}
    found = evaluated(quality)
    table = ablation(judged(quality), PROTOCOLS, SETTINGS, pl.DataFrame(with_canary(responses(TEXTS))))
    cases = found.metrics.filter(pl.col("category").is_null(), metric="tie_rate", verdict_rule="likelihood")["cases"]
    assert table.filter(metric="tie_rate", rule="likelihood")["cases"].to_list() == cases.to_list() == [12 * 3]


def test_two_runs_with_it_are_compared_in_their_consistency_over_the_other_answers():
    ratios = []
    for given in (responses(TEXTS), with_canary(responses(TEXTS))):
        sides = [Side(name, judged({"good": 0.6}, given, noise=0.3), pl.DataFrame(given), PROTOCOLS) for name in "ab"]
        shared = overlap(*sides)
        found = shared_ratios(*sides, lanes(*sides)[0], shared, SETTINGS)
        ratios.append({(r.measure, r.rule, r.k): (r.hits_a.sum(), r.cases.sum()) for r in found})
    assert ratios[0] == ratios[1]
    assert {measure for measure, _, _ in ratios[0]} == {"conflict_ratio", "non_transitivity_ratio"}


def test_a_corpus_own_model_of_that_name_is_no_canary():
    texts = {q: given | {NAME: "an answer"} for q, given in TEXTS.items()}
    found = evaluated({"good": 0.9, "fair": 0.4, "poor": 0.1, NAME: 0.5}, responses(texts))
    assert told(found) == []
    assert "above_canary" not in found.metrics["metric"]


@pytest.mark.ray
def test_a_run_with_a_canary_keeps_its_answers_ranks_it_and_raises_the_alarm(tmp_path: Path):
    corpus = write_corpus(tmp_path / "corpus.jsonl", rows(8, ["m0", "m1"]))
    config = {
        "out": str(tmp_path / "run"),
        "corpus": {"paths": [str(corpus)]},
        "judge": {"engine": "scripted", "scripted": {"quality": {"m0": 0.9, "m1": 0.1, NAME: 0.5}, "noise": 0.02}},
        "protocols": protocol_files(tmp_path),
        "plan": {"canary": True},
        "cluster": {"num_cpus": 2},
    }
    (tmp_path / "my.yaml").write_text(json.dumps(config))
    done = trustjudge("run", str(tmp_path / "my.yaml"))
    assert done.returncode == 0, done.stderr
    assert "CANARY ALARM: 'null'" in done.stdout
    folder = RunFolder(str(tmp_path / "run"))
    assert folder.responses().filter(model=NAME)["replies"].to_list() == [[TEXT]] * 8
    ranked = pl.read_parquet(tmp_path / "run" / "ratings.parquet").filter(rule="davidson", model=NAME)
    assert ranked["rank"].to_list()[0] == 2
