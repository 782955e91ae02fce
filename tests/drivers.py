"""The command as a user starts it: a process of its own, whose output, death and left-overs can be looked at."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from typing import Any

import psutil

_MARK = "TRUSTJUDGE_TEST"


class Driver:
    """`python -m trustjudge_ray …` with a process group of its own, as a terminal gives it one."""

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self._mark = uuid.uuid4().hex
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as this object lives)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trustjudge_ray", *arguments],
            stdout=self._out,
            stderr=self._said,
            start_new_session=True,
            preexec_fn=_as_from_a_terminal,
            env=os.environ | (environment or {}) | {_MARK: self._mark},
        )

    @property
    def said(self) -> str:
        """Standard error so far."""
        return _text(self._said)

    def wait_until(self, there: Callable[[], bool], what: str, seconds: float = 200) -> None:
        """Until it is `there`; fails if the driver ends before."""
        deadline = time.monotonic() + seconds
        while not there():
            assert self.process.poll() is None, f"ended with {self.process.returncode} before {what}: {self.said}"
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}; it said: {self.said}"
            time.sleep(0.01)

    def wait_for_line(self, start: str) -> None:
        """Until it says so on standard error."""
        self.wait_until(lambda: any(line.startswith(start) for line in self.said.splitlines()), f"it said {start!r}")

    def signal(self, number: int) -> None:
        """What the terminal does on Ctrl-C, or another sender: to the driver and, for SIGINT, to its whole group."""
        if number == signal.SIGINT:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)

    def end(self, seconds: float = 250) -> tuple[int, str, str]:
        """Exit status, standard output and standard error, when it has ended."""
        self.process.wait(timeout=seconds)
        return self.process.returncode, _text(self._out), self.said

    def give_up(self) -> None:
        """End it, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def started(self) -> list[psutil.Process]:
        """Every process that it started, and those that they started, whoever is their parent now."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid != self.process.pid and process.environ().get(_MARK) == self._mark:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def leaves_nothing(self) -> None:
        """Fails if a process that it started is alive a minute after its end."""
        _, alive = psutil.wait_procs(self.started(), timeout=60)
        assert [" ".join(process.cmdline())[:100] for process in alive] == []


def _as_from_a_terminal() -> None:
    """A shell starts what it puts in the background with SIGINT ignored; that would be inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _text(file: Any) -> str:
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode("utf-8", "replace")
