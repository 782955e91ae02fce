"""A store that runs share: what was judged once, by whatever run, is not judged again."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner
from corpora import compare_protocol, protocol_files, responses, rows, score_protocol, write_corpus

from trustjudge_ray import cli, config, runs
from trustjudge_ray.config import PlanConfig
from trustjudge_ray.imported_runs import import_judgments
from trustjudge_ray.judging import plan
from trustjudge_ray.judging.base import RunError
from trustjudge_ray.store import RunFolder

QUESTIONS = 5


def ids(
    models: list[str], settings: PlanConfig, others: dict[str, dict[str, str]] | None = None
) -> dict[str, set[str]]:
    """Of each task that a corpus asks for, the id and the models that it is about."""
    texts = {f"q{q}": {model: f"{model} on {q}" for model in models} for q in range(QUESTIONS)} | (others or {})
    specs = [plan.Spec("j", p, p.hash) for p in (score_protocol(), compare_protocol())]
    tasks = plan.plan(responses(texts), specs, settings, []).to_pylist()
    return {task["task_id"]: {task["model_a"], task["model_b"]} - {None} for task in tasks}


@pytest.mark.parametrize(
    "settings",
    [PlanConfig(), PlanConfig(orders="one"), PlanConfig(design="anchor", anchor="m1"), PlanConfig(repeat=2)],
    ids=["full", "one order", "anchor", "repeated"],
)
def test_a_new_model_and_a_new_question_add_their_own_tasks_and_change_no_other(settings: PlanConfig):
    before = ids(["m1", "m2", "m3", "m5"], settings)
    after = ids(["m1", "m2", "m3", "m4", "m5"], settings, {"another": {"m1": "x", "m2": "y"}})
    assert before.keys() <= after.keys()
    of_before = {i for i, models in after.items() if "m4" not in models}
    assert of_before - before.keys() == ids([], settings, {"another": {"m1": "x", "m2": "y"}}).keys()


def loaded(folder: Path, out: str, models: list[str], overrides: list[str] | None = None) -> config.LoadedConfig:
    """A run in `folder`/`out` over these models' answers, with the store `folder`/store."""
    text = json.dumps(
        {
            "out": str(folder / out),
            "store": str(folder / "store"),
            "corpus": {"paths": [str(write_corpus(folder / f"{out}.jsonl", rows(QUESTIONS, models)))]},
            "judge": {"engine": "scripted", "scripted": {"noise": 0.05}},
            "protocols": protocol_files(folder),
        }
    )
    return config.loads(text, "test.yaml", overrides)


def judge(given: config.LoadedConfig) -> runs.Judged:
    return runs.judge(given, lambda *_: None)


def command(*line: str) -> str:
    done = CliRunner().invoke(cli.cli, list(line), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.ray
def test_another_run_judges_only_what_no_run_has_judged(tmp_path: Path, local_ray: None):
    first = judge(loaded(tmp_path, "first", ["m1", "m2", "m3"]))
    assert (first.now, first.reused) == (QUESTIONS * (3 + 6), 0)
    same = judge(loaded(tmp_path, "same", ["m1", "m2", "m3"], ["judge.name=scripted-again"]))
    assert (same.now, same.reused) == (0, first.now)
    more = judge(loaded(tmp_path, "more", ["m1", "m2", "m3", "m4"]))
    assert (more.now, more.reused) == (QUESTIONS * (1 + 3 * 2), first.now)
    of_first, of_more = (RunFolder(str(tmp_path / name)).judgments()[0] for name in ("first", "more"))
    new = of_more.join(of_first, on="task_id", how="anti")
    assert new.height == more.now
    assert new.filter((pl.col("model_a") == "m4") | (pl.col("model_b") == "m4")).height == more.now
    other = judge(loaded(tmp_path, "other", ["m1", "m2", "m3"], ["judge.scripted.noise=0.2"]))
    assert (other.now, other.reused) == (first.now, 0), "another judge"
    assert judge(loaded(tmp_path, "first", ["m1", "m2", "m3"])).now == 0
    assert RunFolder(str(tmp_path / "same")).judgments()[0]["judge"].unique().to_list() == ["scripted-again"]
    assert len(list((tmp_path / "store").glob("spec=*"))) == 4
    assert not list(tmp_path.glob("*/judgments"))
    assert not list(tmp_path.rglob("*.tmp-*")) + list(tmp_path.rglob("run.lock"))


@pytest.mark.heavy
@pytest.mark.ray
def test_every_command_on_a_run_finds_its_judgments_in_the_shared_store(tmp_path: Path, local_ray: None):
    """Also from another folder, with the configuration gone, and after run and store were moved together."""
    here = tmp_path / "here"
    here.mkdir()
    judge(loaded(here, "run", ["m1", "m2", "m3"]))
    there = tmp_path / "there"
    shutil.move(here, there)
    run = str(there / "run")
    command("evaluate", run)
    scores = pl.read_parquet(there / "run" / "scores.parquet")
    assert scores.height == QUESTIONS * 3 * 5
    assert scores["score"].null_count() == 0
    assert "m1" in command("report", run)
    task = RunFolder(run).judgments()[0]["task_id"][0]
    assert task in command("show", run, task)
    battles = tmp_path / "b.jsonl"
    battles.write_text('{"model_a": "x", "model_b": "y", "winner": "tie"}\n')
    with pytest.raises(RunError, match="holds judgments that were made here"):
        import_judgments("battles", [str(battles)], RunFolder(run))
