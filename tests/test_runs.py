"""The whole way through with the scripted judge, on a real Ray."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import yaml
from corpora import protocol_files, rows, write_corpus

from trustjudge_ray import config, runs
from trustjudge_ray.corpus.reader import CorpusError
from trustjudge_ray.imported_runs import import_judgments
from trustjudge_ray.judging.base import RunError
from trustjudge_ray.schema import JUDGMENTS, METRICS, RATINGS, SCORES, VERDICTS, check
from trustjudge_ray.storage import StorageError
from trustjudge_ray.store import RunFolder

pytestmark = pytest.mark.ray


def loaded(tmp_path: Path, corpus: list[dict], overrides: list[str] | None = None, protocols: list[str] | None = None):
    write_corpus(tmp_path / "corpus.jsonl", corpus)
    text = json.dumps(
        {
            "out": str(tmp_path / "run"),
            "corpus": {"paths": [str(tmp_path / "corpus.jsonl")]},
            "judge": {"engine": "scripted", "scripted": {"quality": {"m1": 0.9, "m2": 0.6, "m3": 0.3}, "noise": 0.05}},
            "protocols": protocols or protocol_files(tmp_path),
            "run": {"batch_size": 256},
        }
    )
    return config.loads(text, "test.yaml", overrides)


def whole(given: config.LoadedConfig) -> tuple[runs.Judged, str]:
    judged = runs.judge(given, lambda *_: None)
    folder = runs.folder_of(given)
    runs.evaluate(folder, given.config.analysis)
    return judged, runs.report(folder)


def metric(folder: Path, name: str, **wanted) -> dict:
    found = json.loads((folder / "metrics.json").read_text())["metrics"]
    return next(m for m in found if m["metric"] == name and all(m[k] == v for k, v in wanted.items()))


def test_a_run_ends_with_every_table_and_a_second_one_judges_nothing(tmp_path, local_ray):
    given = loaded(tmp_path, rows(6, ["m1", "m2", "m3"]))
    judged, text = whole(given)
    run = tmp_path / "run"
    assert (judged.tasks, judged.now, judged.statuses) == (6 * 3 + 6 * 6, 54, {"ok": 54})
    for name, schema in {"scores": SCORES, "verdicts": VERDICTS, "metrics": METRICS, "ratings": RATINGS}.items():
        check(pl.read_parquet(run / f"{name}.parquet").to_arrow(), schema)
    parts = sorted((run / "judgments").glob("bucket=*/part-*.parquet"))
    check(pl.concat([pl.read_parquet(p) for p in parts]).to_arrow(), JUDGMENTS)
    order = [r["model"] for r in sorted(ratings(run), key=lambda r: r["rank"])]
    assert order == ["m1", "m2", "m3"]
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["counts"] == {"ok": 54}
    assert "m1" in text
    again = runs.judge(given, lambda *_: None)
    assert (again.now, again.reused) == (0, 54)
    assert sorted((run / "judgments").glob("bucket=*/part-*.parquet")) == parts


def ratings(run: Path) -> list[dict]:
    found = json.loads((run / "metrics.json").read_text())["ratings"]
    return [r for r in found if r["rule"] == "davidson" and r["category"] is None]


def test_a_new_model_costs_only_its_own_judgments(tmp_path, local_ray):
    runs.judge(loaded(tmp_path, rows(4, ["m1", "m2"])), lambda *_: None)
    more = runs.judge(loaded(tmp_path, rows(4, ["m1", "m2", "m3"])), lambda *_: None)
    assert (more.now, more.reused) == (4 * (1 + 2 * 2), 4 * (2 + 2))


def test_corpus_faults_are_rows_with_a_reason_and_do_not_count_as_judge_failures(tmp_path, local_ray):
    corpus = rows(4, ["m1", "m2", "m3"])
    corpus[0]["response"] = "  "
    corpus[1]["response"] = "$ERROR$"
    corpus[4]["response"] = corpus[3]["response"]
    judged, text = whole(loaded(tmp_path, corpus))
    assert judged.statuses == {
        "ok": 12 - 2 + 24 - 6 - 2,
        "empty_response": 1 + 4,
        "error_marker": 1 + 2,
        "identical": 2,
    }
    assert judged.over_limit == []
    assert "empty_response" in text


def test_a_planted_failure_rate_fails_the_run_after_everything_is_saved(tmp_path, local_ray):
    given = loaded(tmp_path, rows(20, ["m1", "m2", "m3"]), ["judge.scripted.failure_rate=0.1"])
    judged, _ = whole(given)
    assert 0 < judged.statuses["engine_error"] < 60
    assert judged.over_limit[0].startswith("judge scripted:")
    assert sum(judged.statuses.values()) == judged.tasks
    coverage = metric(tmp_path / "run", "coverage", protocol="score-5", category=None)
    assert coverage["cases"] == 60
    assert coverage["hits"] == 60 - coverage["excluded"]


@pytest.mark.parametrize("kept", ["score", "compare"])
def test_a_run_with_only_one_kind_reports_and_says_what_is_missing(tmp_path, local_ray, kept):
    files = [f for f in protocol_files(tmp_path) if kept in f]
    _, text = whole(loaded(tmp_path, rows(4, ["m1", "m2", "m3"]), protocols=files))
    assert "m1" in text
    assert "no cases" in text
    assert (tmp_path / "run" / "report.html").read_text().rstrip().endswith("</html>")


def test_two_models_that_answer_identically_share_a_rank(tmp_path, local_ray):
    corpus = [row | {"response": f"same {row['question_id']}"} for row in rows(4, ["m1", "m2"])]
    judged, text = whole(loaded(tmp_path, corpus))
    assert judged.statuses == {"ok": 8, "identical": 8}
    assert "m2" in text
    assert metric(tmp_path / "run", "conflict_ratio", verdict_rule="baseline", category=None)["cases"] == 0


def test_a_corpus_of_one_row_reports_what_it_can(tmp_path, local_ray):
    judged, text = whole(loaded(tmp_path, rows(1, ["m1"])))
    assert judged.tasks == 1
    assert "no cases" in text


def test_a_budget_of_judgments_is_kept_to_the_letter_and_the_next_start_goes_on(tmp_path, local_ray):
    corpus = rows(6, ["m1", "m2", "m3"])
    stopped, text = runs.run(loaded(tmp_path, corpus, ["run.max_judgments=20", "run.batch_size=8"]), lambda *_: None)
    run = tmp_path / "run"
    assert (stopped.now, stopped.left, stopped.statuses, stopped.over_limit) == (20, 34, {"ok": 20}, [])
    assert stopped.stopped == (
        "run.max_judgments is 20: 20 judgments were made in this start and 34 are left; everything judged is saved, "
        "the same command goes on from there"
    )
    assert "34 of 54 judgments of this run are not made yet" in text
    assert json.loads((run / "manifest.json").read_text())["left"] == 34
    assert sum(pl.read_parquet(p).height for p in (run / "judgments").rglob("*.parquet")) == 20
    again = runs.judge(loaded(tmp_path, corpus, ["run.max_judgments=34"]), lambda *_: None)
    assert (again.now, again.reused, again.left, again.stopped) == (34, 20, 0, None)
    (tmp_path / "free").mkdir()
    free = loaded(tmp_path / "free", corpus)
    runs.judge(free, lambda *_: None)
    kept = [runs.folder_of(each).judgments()[0] for each in (loaded(tmp_path, corpus), free)]
    assert kept[0].equals(kept[1]), "a run that was stopped ends with the judgments of one that was not"


def test_a_budget_is_shared_by_judges_so_that_both_judge_the_same_questions(tmp_path, local_ray):
    given = loaded(tmp_path, rows(12, ["m1", "m2"]), ["run.max_judgments=24"])
    given.config.judges = [given.config.judge, replace(given.config.judge, name="scripted-2", scripted={"noise": 1})]
    given.config.judge = None
    stopped = runs.judge(given, lambda *_: None)
    judgments = runs.folder_of(given).judgments()[0]
    questions = {judge: set(part["question_id"]) for (judge,), part in judgments.group_by("judge")}
    assert (stopped.now, stopped.left, len(questions)) == (24, 2 * 12 * 4 - 24, 2)
    first, second = sorted(questions.values(), key=len, reverse=True)
    assert second <= first


def test_progress_is_told_with_what_was_reused_and_ends(tmp_path, local_ray):
    told: list[dict] = []
    given = loaded(tmp_path, rows(6, ["m1", "m2", "m3"]))
    for _ in range(2):
        runs.judge(
            given,
            lambda _, progress: told.append(progress.figures() | {"end": progress.finished}) if progress else None,
        )
    ends = [each for each in told if each["end"]]
    assert [(e["judged"], e["total"], e["failed"], e["reused"]) for e in ends] == [(54, 54, 0, 0), (0, 0, 0, 54)]


COST = """
import json, sys, ray
from trustjudge_ray import config, runs
ray.init(num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=2**27)
judged = runs.judge(config.load(sys.argv[1]), lambda *_: None)
print(json.dumps({"now": judged.now, "left": judged.left, "stopped": judged.stopped, "cost": judged.manifest["cost"]}))
"""


@pytest.mark.slow
@pytest.mark.heavy
def test_a_run_stops_before_its_cost_is_passed_and_keeps_what_it_has_judged(tmp_path):
    """A GPU that is none, at a price at which the money lasts for a part of 40 batches."""
    given = loaded(tmp_path, rows(40, ["m1", "m2"]))
    tree = yaml.safe_load(given.unresolved_yaml)
    tree["judge"]["scripted"] = {"seconds_per_batch": 0.5}
    tree["cluster"] = {"gpus_per_replica": 1, "price_per_gpu_hour": 360.0}
    tree["run"] = {"batch_size": 4, "max_cost": 1.5}
    (tmp_path / "config.yaml").write_text(json.dumps(tree))
    command = [sys.executable, "-c", COST, str(tmp_path / "config.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    saved = sum(pl.read_parquet(p).height for p in (tmp_path / "run" / "judgments").rglob("*.parquet"))
    assert 0 < found["now"] == saved == 160 - found["left"] < 160
    assert found["stopped"].startswith("run.max_cost is 1.5, of which 1.")
    assert found["cost"] <= 1.5


def test_limit_takes_the_first_questions(tmp_path, local_ray):
    judged, _ = whole(loaded(tmp_path, rows(12, ["m1", "m2"]), ["run.limit=3"]))
    assert judged.tasks == 3 * 4
    kept = pl.concat([pl.read_parquet(p) for p in (tmp_path / "run" / "tasks").glob("*.parquet")])
    assert sorted(kept["question_id"].unique()) == ["0", "1", "2"]


def test_the_planted_position_bias_is_recovered(tmp_path, local_ray):
    given = loaded(
        tmp_path, rows(40, ["m1", "m2", "m3"]), ["judge.scripted.position_bias=0.3", "judge.scripted.noise=0.1"]
    )
    whole(given)
    effect = metric(tmp_path / "run", "order_effect", category=None)
    assert effect["low"] <= 0.3 <= effect["high"]


def test_evaluate_again_with_other_tolerances_needs_no_judge(tmp_path, local_ray):
    given = loaded(tmp_path, rows(4, ["m1", "m2", "m3"]))
    whole(given)
    folder = runs.folder_of(given)
    settings = runs.analysis_settings(folder, ["analysis.tolerances=[0,0.5]", "analysis.k=[3]"])
    runs.evaluate(folder, settings)
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())["metrics"]
    assert {m["tolerance"] for m in found if m["metric"] == "conflict_ratio"} == {0.0, 0.5}
    assert {m["k"] for m in found if m["metric"] == "non_transitivity_ratio"} == {3}
    runs.evaluate(folder, runs.analysis_settings(folder, ["analysis.tolerances=[0.5]"]))
    assert "no cases" not in runs.report(folder), "a report without tolerance 0 shows the smallest that there is"


def test_markup_in_a_corpus_is_text_in_the_report(tmp_path, local_ray):
    corpus = [row | {"model": f"<script>alert('{row['model']}')</script>"} for row in rows(3, ["m1", "m2"])]
    whole(loaded(tmp_path, corpus))
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<script>alert" not in page.lower()
    assert "&lt;script&gt;" in page


def test_a_corpus_without_a_usable_row_says_so_with_the_reasons(tmp_path, local_ray):
    given = loaded(tmp_path, [{"a": 1}])
    with pytest.raises(CorpusError, match=r"no usable row in 1 files: 1 quarantined \(missing_field 1\)"):
        runs.judge(given, lambda *_: None)


def test_a_corpus_of_which_no_row_is_left_is_no_run_without_judgments(tmp_path, local_ray):
    twice = [row | {"response": text} for row in rows(2, ["m1"]) for text in ("one", "other")]
    with pytest.raises(CorpusError, match=r"no usable row in 1 files: 4 quarantined \(conflicting_duplicate 4\)"):
        runs.judge(loaded(tmp_path, twice), lambda *_: None)


def test_numbers_of_other_answers_do_not_stay_in_a_run_folder(tmp_path, local_ray):
    whole(loaded(tmp_path, rows(3, ["m1", "m2"])))
    runs.judge(loaded(tmp_path, rows(3, ["m3", "m4"])), lambda *_: None)
    folder = runs.folder_of(loaded(tmp_path, rows(3, ["m3", "m4"])))
    left = [name for name in folder.names("") if name.startswith(("metrics", "ratings", "scores", "report", "figures"))]
    assert left == []
    with pytest.raises(StorageError, match="not evaluated yet"):
        runs.report(folder)


def test_an_import_never_replaces_judgments_that_were_made(tmp_path, local_ray):
    given = loaded(tmp_path, rows(2, ["m1", "m2"]))
    runs.judge(given, lambda *_: None)
    battles = tmp_path / "b.jsonl"
    battles.write_text('{"model_a": "x", "model_b": "y", "winner": "tie"}\n')
    with pytest.raises(RunError, match="holds judgments that were made here"):
        import_judgments("battles", [str(battles)], runs.folder_of(given))
    for _ in range(2):
        import_judgments("battles", [str(battles)], RunFolder(str(tmp_path / "imported")))


def test_the_manifest_is_written_last_and_times_every_step(tmp_path, local_ray):
    runs.run(loaded(tmp_path, rows(2, ["m1", "m2"])), lambda *_: None)
    run = tmp_path / "run"
    newest = max((p for p in run.rglob("*") if p.is_file()), key=lambda p: p.stat().st_mtime_ns)
    assert newest.name == "manifest.json"
    seconds = json.loads(newest.read_text())["seconds"]
    assert list(seconds) == ["start", "read", "plan", "judge", "count", "evaluate", "report"]


def test_a_misspelt_anchor_is_refused(tmp_path, local_ray):
    with pytest.raises(RunError, match="'nobody'"):
        runs.judge(
            loaded(tmp_path, rows(2, ["m1", "m2"]), ["plan.design=anchor", "plan.anchor=nobody"]), lambda *_: None
        )


def test_what_a_worker_raised_is_the_message(tmp_path, local_ray):
    given = loaded(tmp_path, rows(2, ["m1", "m2"]))
    given.config.judge.scripted["quality"] = {"m1": "high"}
    with pytest.raises((RunError, config.ConfigError), match="quality"):
        runs.judge(given, lambda *_: None)
