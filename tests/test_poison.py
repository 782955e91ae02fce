"""Judgments that kill engines, engines that only die, and processes that are told to end, on a real Ray."""

import contextlib
import json
import os
import signal
import threading
from pathlib import Path

import polars as pl
import psutil
import pytest
from corpora import protocol_files, rows, write_corpus

from trustjudge_ray import config, runs
from trustjudge_ray.judging.base import RunError

pytestmark = pytest.mark.ray

QUESTIONS, MODELS = 8, ["m1", "m2", "m3"]
TASKS = QUESTIONS * (3 + 6)


def loaded(folder: Path, corpus: list[dict], *overrides: str, **scripted: object) -> config.LoadedConfig:
    tree = {
        "out": str(folder / "run"),
        "corpus": {"paths": [str(write_corpus(folder / "corpus.jsonl", corpus))]},
        "judge": {"engine": "scripted", "scripted": scripted},
        "protocols": protocol_files(folder),
        "run": {"batch_size": 32},
    }
    return config.loads(json.dumps(tree), "test.yaml", list(overrides))


def poisoned(places: set[tuple[int, str]]) -> list[dict]:
    """A corpus in which these models' answers to these questions hold poison."""
    corpus = rows(QUESTIONS, MODELS)
    for row in corpus:
        if (row["question_id"], row["model"]) in places:
            row["response"] += " POISON"
    return corpus


def judgments(folder: Path) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(part) for part in (folder / "run" / "judgments").rglob("part-*.parquet")])


def judge_processes() -> set[int]:
    """The ids of the processes of judge actors that this test's Ray started."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "JudgeActor" in " ".join(process.cmdline()):
                found.add(process.pid)
    return found


@pytest.mark.parametrize("death", ["kill", pytest.param("gone", marks=pytest.mark.heavy)])
def test_a_judgment_that_kills_the_engine_fails_with_a_reason_and_all_others_are_judged(
    tmp_path: Path, local_ray: None, death: str
):
    given = loaded(tmp_path, poisoned({(3, "m2")}), "run.engine_deaths=1", poison="POISON", death=death)
    judged = runs.judge(given, lambda *_: None)
    shows_it = 1 + 2 * 2
    assert judged.statuses == {"ok": TASKS - shows_it, "engine_error": shows_it}
    found = judgments(tmp_path)
    assert (found.height, found["task_id"].n_unique()) == (TASKS, TASKS)
    failed = found.filter(pl.col("status") == "engine_error")
    assert set(failed["question_id"]) == {"3"}
    assert all("m2" in pair for pair in failed.select("model_a", "model_b").rows())
    alone = failed.filter(pl.col("detail").str.contains("the engine died 1 times on this judgment alone"))
    assert alone.height >= 3
    assert failed["detail"].str.contains("`trustjudge retry` judges it again").all()
    if death == "gone":
        assert alone["detail"].str.contains("a planted death on 1 judgments").all()
    assert judged.over_limit
    again = runs.judge(given, lambda *_: None)
    assert again.now == 0


@pytest.mark.slow
@pytest.mark.heavy
def test_an_engine_that_dies_on_everything_ends_the_run_with_one_message(tmp_path: Path, local_ray: None):
    given = loaded(tmp_path, rows(QUESTIONS, MODELS), "run.engine_deaths=1", poison="says", death="gone")
    with pytest.raises(RunError, match=r"died 9 times in a row without one judgment .*a planted death on"):
        runs.judge(given, lambda *_: None)


def test_an_engine_that_dies_whenever_it_loads_ends_the_run_with_one_message(tmp_path: Path, local_ray: None):
    given = loaded(tmp_path, rows(2, MODELS), death="start")
    with pytest.raises(RunError, match="died 3 times in a row while it was loading"):
        runs.judge(given, lambda *_: None)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.heavy)])
def test_a_judge_that_is_told_to_end_is_replaced_and_nothing_fails(
    tmp_path: Path, local_ray: None, number: signal.Signals
):
    given = loaded(tmp_path, rows(QUESTIONS, MODELS), "run.batch_size=12", seconds_per_batch=0.3)
    ended: set[int] = set()
    later: set[int] = set()

    def end_the_judge(step: str, progress: object) -> None:
        if step == "judging" and ended:
            later.update(judge_processes())
        elif step == "judging":
            ended.update(judge_processes())
            for process in ended:
                os.kill(process, number)

    judged = runs.judge(given, end_the_judge)
    assert ended
    assert later - ended, "the process that was told to end went on"
    assert judged.statuses == {"ok": TASKS}
    found = judgments(tmp_path)
    assert (found.height, found["task_id"].n_unique()) == (TASKS, TASKS)
    assert [p for p in (tmp_path / "run").rglob("*") if ".tmp-" in p.name] == []


@pytest.mark.heavy
def test_a_pool_grows_to_its_most_and_no_further(tmp_path: Path, local_ray: None):
    given = loaded(
        tmp_path,
        rows(40, MODELS),
        "run.batch_size=4",
        "cluster.max_replicas=3",
        "cluster.cpus_per_replica=0.5",
        seconds_per_batch=0.3,
    )
    seen: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            seen.append(len(judge_processes()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        judged = runs.judge(given, lambda *_: None)
    finally:
        over.set()
        watcher.join()
    assert judged.statuses == {"ok": 40 * 9}
    assert max(seen) == 3
