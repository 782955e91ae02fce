"""Sudden death in mid-run, then the same command again: complete, each judgment once, nothing left over."""

import json
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest
from corpora import protocol_files, rows, write_corpus
from drivers import Driver

pytestmark = [pytest.mark.ray, pytest.mark.slow]

QUESTIONS = 30
TASKS = QUESTIONS * (3 + 6)
SENTENCE = "stopped; what was judged is saved: the same command goes on from there"


def wait_for_parts(driver: Driver, run: Path, parts: int = 3) -> None:
    """Until so many more parts are written."""
    before = len(part_files(run))
    driver.wait_until(lambda: len(part_files(run)) >= before + parts, f"{parts} more parts")


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
        drivers.append(Driver("judge", str(tmp_path / "config.yaml"), "--json"))
        return drivers[-1]

    yield new
    for driver in drivers:
        driver.give_up()


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


@pytest.mark.heavy
def test_whatever_dies_the_same_command_judges_only_what_was_not_committed(tmp_path: Path, begin: Callable[[], Driver]):
    run = tmp_path / "run"
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)):
        driver = begin()
        wait_for_parts(driver, run)
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
    wait_for_parts(driver, run, 1)
    kill_the_judge(driver)
    code, out, said = driver.end()
    assert code == 0, said
    assert json.loads(out)["now"] == TASKS - before.height, said
    check_complete(run)
    kept = before.join(judgments(run), on=["task_id", "written"])
    assert kept.height == before.height, "what was committed before a death is written again"
    driver.leaves_nothing()


@pytest.mark.parametrize(
    ("moment", "number", "status"),
    [
        pytest.param("starting Ray", signal.SIGINT, 130, marks=pytest.mark.heavy),
        pytest.param("starting Ray", signal.SIGTERM, 143, marks=pytest.mark.heavy),
        ("read ", signal.SIGINT, 130),
    ],
)
def test_a_signal_is_one_sentence_also_before_the_first_judgment(
    tmp_path: Path, begin: Callable[[], Driver], moment: str, number: signal.Signals, status: int
):
    driver = begin()
    driver.wait_for_line(moment)
    driver.signal(number)
    code, out, said = driver.end()
    assert (code, out) == (status, ""), said
    assert said.splitlines()[-1] == SENTENCE, said
    assert "Traceback" not in said
    driver.leaves_nothing()
