"""An engine in a process of its own: how long it may take, and how the process ends that it is gone from."""

import contextlib
import os
import sys
import threading
from typing import NoReturn

import pyarrow as pa

from trustjudge_ray.judging import base


class Timed:
    """A judge that has so many seconds for a batch, from when it begins on it, and ends its process if it has not
    finished then: of an engine that hangs nothing else can be made. What waits for its turn is not timed."""

    def __init__(self, judge: base.Judge, seconds: float) -> None:
        self._judge, self._seconds = judge, seconds

    def judge(self, tasks: pa.Table) -> list[base.Reading]:
        """The judge's own readings."""
        told = f"{len(tasks)} judgments took longer than serve.batch_timeout, {self._seconds:g} s: it hangs"
        timer = threading.Timer(self._seconds, end, [told])
        timer.daemon = True
        timer.start()
        try:
            return self._judge.judge(tasks)
        finally:
            timer.cancel()


def end(why: str) -> NoReturn:
    """End this process, whose judge is gone, and what it started: an engine that hangs would keep its GPU. Serve starts
    the replica anew; an exception would leave one that cannot judge."""
    print(f"judge gone: {why}", file=sys.stderr, flush=True)
    end_all(1)


def end_all(status: int) -> NoReturn:
    """End this process at once with a status, and all that it started."""
    import psutil  # Ray's own copy, which is found when Ray is imported

    with contextlib.suppress(psutil.Error):
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    os._exit(status)
