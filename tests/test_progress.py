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


def test_a_person_gets_a_line_every_two_seconds_and_a_last_one():
    out, clock, progress = Terminal(), Clock(), Progress(total=300)
    progress.clock = clock
    with ProgressLines(out, clock=clock) as lines:
        for _ in range(30):
            clock.now += 0.5
            progress.add(ledger(10))
            lines("judging", progress)
        progress.finished = True
        lines("judging", progress)
    said = out.getvalue().splitlines()
    assert len(said) == 9
    assert said[0] == "judged 10 of 300, 0 failed"
    assert said[4] == "judged 170 of 300, 0 failed, 20.0/s, 6 s left"
    assert said[-1] == "judged 300 of 300, 0 failed, 20.0/s"


def test_a_person_reads_nothing_of_judging_where_there_is_nothing_to_judge():
    out, progress = Terminal(), Progress(total=0, reused=50, finished=True)
    with ProgressLines(out) as lines:
        lines("judging", progress)
    assert out.getvalue() == ""
