"""Sudden death in mid-run, then the same command again: complete, each judgment once, nothing left over."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import psutil
import pytest
from corpora import protocol_files, rows, write_corpus

pytestmark = pytest.mark.ray

BATCH = 16
TASKS = 24 * (3 + 6)


def config_file(tmp_path: Path) -> Path:
    """216 judgments in batches of at most 16, a fifth of a second each."""
    tree = {
        "out": str(tmp_path / "run"),
        "corpus": {"paths": [str(write_corpus(tmp_path / "c.jsonl", rows(24, ["m1", "m2", "m3"])))]},
        "judge": {"engine": "scripted", "scripted": {"seconds_per_batch": 0.2}},
        "protocols": protocol_files(tmp_path),
        "run": {"batch_size": BATCH},
    }
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(tree))
    return path


def start(path: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "trustjudge_ray", "judge", str(path), "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def judgments(run: Path) -> pl.DataFrame:
    """Every row of every part, and when its part was written."""
    parts = sorted(run.glob("judgments/bucket=*/part-*.parquet"))
    frames = [pl.read_parquet(p).with_columns(written=pl.lit(p.stat().st_mtime_ns)) for p in parts]
    return pl.concat(frames) if frames else pl.DataFrame({"task_id": []})


def until_some_parts(run: Path, process: subprocess.Popen, parts: int = 4) -> None:
    deadline = time.monotonic() + 120
    while len(list(run.glob("judgments/bucket=*/part-*.parquet"))) < parts:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no parts were written"
        time.sleep(0.02)


def judge_process(driver: subprocess.Popen) -> psutil.Process:
    """The process of the judge's actor among those that the driver started."""
    workers = psutil.Process(driver.pid).children(recursive=True)
    return next(w for w in workers if "JudgeActor" in " ".join(w.cmdline()))


def kill_actor(driver: subprocess.Popen) -> None:
    judge_process(driver).send_signal(signal.SIGKILL)


def kill_driver(driver: subprocess.Popen) -> None:
    driver.send_signal(signal.SIGKILL)


def interrupt(driver: subprocess.Popen) -> None:
    driver.send_signal(signal.SIGINT)


def check_complete(run: Path) -> None:
    found = judgments(run)
    assert found.height == TASKS
    assert found["task_id"].n_unique() == TASKS
    assert set(found["status"]) == {"ok"}
    assert [str(p) for p in run.rglob("*") if ".tmp-" in p.name or ".probe-" in p.name or p.name == "ingest"] == []
    assert json.loads((run / "manifest.json").read_text())["counts"] == {"ok": TASKS}


@pytest.mark.parametrize(("death", "status"), [(kill_driver, -signal.SIGKILL), (interrupt, 130)])
def test_the_same_command_again_judges_only_what_was_not_committed(
    tmp_path: Path, death: Callable[[subprocess.Popen], None], status: int
):
    path, run = config_file(tmp_path), tmp_path / "run"
    first = start(path)
    until_some_parts(run, first)
    death(first)
    _, said = first.communicate(timeout=100)
    assert first.returncode == status, said
    if status == 130:
        assert "the same command goes on from there" in said
        assert "Traceback" not in said
    before = judgments(run)
    assert 0 < before.height < TASKS
    out, said = start(path).communicate(timeout=200)
    assert json.loads(out.splitlines()[-1])["now"] == TASKS - before.height, said
    check_complete(run)
    kept = before.join(judgments(run), on=["task_id", "written"])
    assert kept.height == before.height, "what was committed before the death is not written again"


def test_a_killed_judge_is_started_anew_within_the_same_run(tmp_path: Path):
    path, run = config_file(tmp_path), tmp_path / "run"
    driver = start(path)
    until_some_parts(run, driver)
    kill_actor(driver)
    out, said = driver.communicate(timeout=200)
    assert driver.returncode == 0, said
    assert json.loads(out.splitlines()[-1])["now"] == TASKS
    check_complete(run)


def test_nothing_of_a_killed_driver_goes_on_living(tmp_path: Path):
    path, run = config_file(tmp_path), tmp_path / "run"
    driver = start(path)
    until_some_parts(run, driver, 1)
    started = psutil.Process(driver.pid).children(recursive=True)
    kill_driver(driver)
    driver.communicate(timeout=60)
    _, alive = psutil.wait_procs(started, timeout=60)
    assert [p.name() for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []
    assert os.path.isdir(run)
