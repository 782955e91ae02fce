"""Sudden death in mid-run, then the same command again: complete, each judgment once, nothing left over."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import psutil
import pytest
from corpora import protocol_files, rows, write_corpus

pytestmark = [pytest.mark.ray, pytest.mark.slow]

QUESTIONS = 30
TASKS = QUESTIONS * (3 + 6)
SENTENCE = "stopped; what was judged is saved: the same command goes on from there"


class Driver:
    """A `trustjudge judge` with a process group of its own, as a terminal gives it one."""

    def __init__(self, config: Path) -> None:
        self._mark = uuid.uuid4().hex
        line = [sys.executable, "-m", "trustjudge_ray", "judge", str(config), "--json"]
        self.process = subprocess.Popen(
            line,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"TRUSTJUDGE_TEST": self._mark},
        )
        self._heard = ""

    def wait_for_line(self, start: str) -> None:
        """Until it says so on standard error."""
        assert self.process.stderr
        while line := self.process.stderr.readline():
            self._heard += line
            if line.startswith(start):
                return
        raise AssertionError(f"it never said {start!r}: {self._heard}")

    def wait_for_parts(self, run: Path, parts: int = 3) -> None:
        """Until so many more parts are written."""
        deadline, before = time.monotonic() + 200, len(part_files(run))
        while len(part_files(run)) < before + parts:
            assert self.process.poll() is None, self.end()
            assert time.monotonic() < deadline, "no parts were written"
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        """What the terminal does on Ctrl-C, or another sender: to the driver and, for SIGINT, to its whole group."""
        if number == signal.SIGINT:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Exit status, standard output and standard error, when it has ended."""
        out, said = self.process.communicate(timeout=250)
        return self.process.returncode, out, self._heard + said

    def started(self) -> list[psutil.Process]:
        """Every process that it started, and those that they started, whoever is their parent now."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid != self.process.pid and process.environ().get("TRUSTJUDGE_TEST") == self._mark:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def leaves_nothing(self) -> None:
        """Fails if a process that it started is alive a minute after its end."""
        _, alive = psutil.wait_procs(self.started(), timeout=60)
        assert [" ".join(process.cmdline())[:100] for process in alive] == []


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[], Driver]]:
    """Starts a run of 270 judgments in 17 batches of half a second each, always the same command."""
    tree = {
        "out": str(tmp_path / "run"),
        "corpus": {"paths": [str(write_corpus(tmp_path / "c.jsonl", rows(QUESTIONS, ["m1", "m2", "m3"])))]},
        "judge": {"engine": "scripted", "scripted": {"seconds_per_batch": 0.5}},
        "protocols": protocol_files(tmp_path),
        "run": {"batch_size": 16},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(tree))
    drivers: list[Driver] = []

    def new() -> Driver:
        drivers.append(Driver(tmp_path / "config.yaml"))
        return drivers[-1]

    yield new
    for driver in drivers:
        if driver.process.poll() is None:
            driver.process.kill()
            driver.process.communicate()


def part_files(run: Path) -> list[Path]:
    return sorted(run.glob("judgments/bucket=*/part-*.parquet"))


def judgments(run: Path) -> pl.DataFrame:
    """Every row of every part, and when its part was written."""
    frames = [pl.read_parquet(p).with_columns(written=pl.lit(p.stat().st_mtime_ns)) for p in part_files(run)]
    return pl.concat(frames)


def kill_the_judge(driver: Driver) -> None:
    next(p for p in driver.started() if "JudgeActor" in " ".join(p.cmdline())).kill()


def check_complete(run: Path) -> None:
    found = judgments(run)
    assert (found.height, found["task_id"].n_unique()) == (TASKS, TASKS)
    assert set(found["status"]) == {"ok"}
    left = [p for p in run.rglob("*") if ".tmp-" in p.name or ".probe-" in p.name or p.name == "ingest"]
    assert left == []
    assert json.loads((run / "manifest.json").read_text())["counts"] == {"ok": TASKS}


def test_whatever_dies_the_same_command_judges_only_what_was_not_committed(tmp_path: Path, begin: Callable[[], Driver]):
    run = tmp_path / "run"
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)):
        driver = begin()
        driver.wait_for_parts(run)
        driver.signal(number)
        code, out, said = driver.end()
        assert (code, out) == (status, ""), said
        if number != signal.SIGKILL:
            assert said.splitlines()[-1] == SENTENCE, said
            assert said.count(SENTENCE) == 1
            assert "Traceback" not in said
        driver.leaves_nothing()
        assert not (run / "manifest.json").exists()
    before = judgments(run)
    assert 0 < before.height < TASKS
    (run / "judgments" / f"part-x.parquet.tmp-{uuid.uuid4().hex}").write_bytes(b"half")
    driver = begin()
    driver.wait_for_parts(run, 1)
    kill_the_judge(driver)
    code, out, said = driver.end()
    assert code == 0, said
    assert json.loads(out)["now"] == TASKS - before.height, said
    check_complete(run)
    kept = before.join(judgments(run), on=["task_id", "written"])
    assert kept.height == before.height, "what was committed before a death is written again"
    driver.leaves_nothing()


@pytest.mark.parametrize("moment", ["starting Ray", "read "])
def test_ctrl_c_is_one_sentence_also_before_the_first_judgment(
    tmp_path: Path, begin: Callable[[], Driver], moment: str
):
    driver = begin()
    driver.wait_for_line(moment)
    driver.signal(signal.SIGINT)
    code, out, said = driver.end()
    assert (code, out) == (130, ""), said
    assert said.splitlines()[-1] == SENTENCE, said
    assert "Traceback" not in said
    driver.leaves_nothing()
