"""How far judging is, for a person and for the log of a job."""

import io
import json
import time

from trustjudge_ray.printing import ProgressLines
from trustjudge_ray.progress import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(out: io.StringIO) -> list[str]:
    """What a terminal shows: each line as it was last written over."""
    shown = []
    for line in out.getvalue().rstrip("\n").split("\n"):
        cells: list[str] = []
        for part in line.split("\r"):
            cells[: len(part)] = part
        shown.append("".join(cells).rstrip())
    return shown


def ledger(rows: int, failed: int = 0) -> dict:
    statuses = {"ok": rows - failed, "engine_error": failed}
    tokens = {"prompt_tokens": 100 * rows, "cached_tokens": 60 * rows, "output_tokens": rows}
    return {"rows": rows, "statuses": statuses, "began": 1.0, **tokens}


def test_the_start_of_an_engine_is_not_in_the_rate():
    clock = Clock()
    progress = Progress(total=1000, clock=clock)
    progress.starts()
    clock.now = 600.0
    progress.add(ledger(64))
    assert (progress.rate, progress.left) == (None, None)
    clock.now = 610.0
    progress.add(ledger(100))
    assert progress.rate == 10.0
    assert progress.left == 83.6
    progress.starts()
    clock.now = 900.0
    assert progress.rate is None, "the second judge's engine is still starting"


def test_when_judging_has_ended_the_rate_does_not_go_on_falling():
    clock = Clock()
    progress = Progress(total=30, clock=clock)
    for _ in range(3):
        clock.now += 5.0
        progress.add(ledger(10))
    progress.finished = True
    clock.now += 1000.0
    assert progress.rate == 2.0


def test_the_log_gets_every_figure_and_a_last_line():
    out, progress = io.StringIO(), Progress(total=128, reused=50)
    with ProgressLines(out) as lines:
        lines("starting Ray", None)
        for failed in (3, 0):
            progress.add(ledger(64, failed))
            lines("judging", progress)
        progress.finished = True
        lines("judging", progress)
    first, *rest = out.getvalue().splitlines()
    assert first == "starting Ray"
    assert [json.loads(line) for line in rest] == [
        {"judged": 128, "total": 128, "failed": 3, "reused": 50, "rate": None, "eta": None}
        | {"tokens": 12800, "cached": 7680, "written": 128}
    ]


def test_the_log_gets_a_line_although_nothing_is_judged_meanwhile():
    out, progress = io.StringIO(), Progress(total=128)
    deadline = time.monotonic() + 30
    with ProgressLines(out, every=0.01) as lines:
        lines("judging", progress)
        while out.getvalue().count("\n") < 3:
            assert time.monotonic() < deadline, "no line came"
    assert json.loads(out.getvalue().splitlines()[2])["judged"] == 0


def test_a_person_gets_one_line_that_is_written_over_and_a_last_one():
    """Lines one below the other push what matters out of the window; a shorter line must not leave the end of a longer
    one behind it."""
    out, clock, progress = Terminal(), Clock(), Progress(total=300)
    progress.clock = clock
    with ProgressLines(out, every=1000) as lines:
        lines("starting Ray", None)
        for _ in range(30):
            clock.now += 0.5
            progress.add(ledger(10))
            lines("judging", progress)
        lines("judge 2 starts", None)
        progress.finished = True
        lines("judging", progress)
    assert screen(out) == ["starting Ray", "judge 2 starts", "judged 300 of 300 (100%), 0 failed, 20.0/s"]
    assert out.getvalue().startswith("starting Ray\njudged 10 of 300 (3%), 0 failed\r")


def test_the_line_moves_on_although_nothing_is_judged_meanwhile():
    out, clock = Terminal(), Clock()
    progress = Progress(total=300, clock=clock)
    deadline = time.monotonic() + 30
    with ProgressLines(out, every=0.01) as lines:
        lines("judging", progress)
        clock.now = 10.0
        progress.add(ledger(10))
        clock.now = 20.0
        progress.add(ledger(160))
        while "57%" not in out.getvalue():
            assert time.monotonic() < deadline, "no line came"
        clock.now = 12_010.0
        while "0.8/min" not in out.getvalue():
            assert time.monotonic() < deadline, "no line came"
    assert "judged 170 of 300 (57%), 0 failed, 16.0/s, 8 s left" in out.getvalue()
    assert len(screen(out)) == 1
    assert out.getvalue().endswith("\n"), "what is printed next begins in the middle of a line"


def test_a_narrow_terminal_gets_no_line_that_wraps(monkeypatch):
    """A line that wraps cannot be written over."""
    monkeypatch.setenv("COLUMNS", "30")
    out, progress = Terminal(), Progress(total=3_000_000)
    with ProgressLines(out, every=1000) as lines:
        progress.add(ledger(1000, 5))
        lines("judging", progress)
    assert screen(out) == ["judged 1,000 of 3,000,000 (0%)"[:29]]


def test_what_an_engine_says_cannot_steer_the_terminal():
    out = Terminal()
    with ProgressLines(out) as lines:
        lines("read \x1b[2J rows", None)
    assert out.getvalue() == "read \\x1b[2J rows\n"


def test_a_person_reads_nothing_of_judging_where_there_is_nothing_to_judge():
    out, progress = Terminal(), Progress(total=0, reused=50, finished=True)
    with ProgressLines(out) as lines:
        lines("judging", progress)
    assert out.getvalue() == ""
