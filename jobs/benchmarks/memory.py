"""Whether memory grows with the number of tasks: the driver's and each worker's, at a hundred thousand and a million.

A run of scripted tasks (scores and both orders of all pairs, 20 answers a question) in a process of its own, with a
Ray of its own. Once a second the private memory (USS) of that process and of every Ray worker under it is read. Pages
of the object store are shared, whoever touched them, and are left out. The ratio is that of the peaks, the worst of
three: the driver's, the judge's, and that of the largest other worker, whatever it did.
"""

import re
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import psutil

from . import Options
from ._scale import MODELS, outcome, start_apart, tasks_of, write_config, write_corpus

_EVERY = 1.0
_SLOW = {"judge": {"engine": "scripted", "scripted": {"noise": 0.05, "seconds_per_batch": 3 * _EVERY}}}
"""Of the small form, whose judge would be gone before it was looked at."""
_MAPPING = re.compile(
    rb"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ *(.*)$|^Private_(?:Clean|Dirty): +(\d+) kB$", re.MULTILINE
)


def run(options: Options) -> dict[str, Any]:
    """Measure a small and a large run."""
    sizes = (2, 4) if options.small else (250, 2500)
    peaks = []
    with tempfile.TemporaryDirectory(prefix="trustjudge-benchmark-") as scratch:
        for number, questions in enumerate(sizes):
            folder = Path(scratch, str(number))
            folder.mkdir()
            write_corpus(folder / "corpus", questions, MODELS)
            peaks.append(_measured(options, folder, tasks_of(questions, MODELS)))
    ratios = {part: peaks[1][part] / peaks[0][part] for part in peaks[0]}
    for part, ratio in ratios.items():
        options.say(f"{part}: {peaks[0][part]:.0f} MB and {peaks[1][part]:.0f} MB, {ratio:.2f} times")
    figures = {"ratio": max(ratios.values()), **{f"{part}_ratio": ratio for part, ratio in ratios.items()}}
    return figures | {f"{part}_mb": peaks[1][part] for part in ratios}


def _measured(options: Options, folder: Path, tasks: int) -> dict[str, float]:
    """Peak megabytes of `driver`, `judge` and `worker` in one run.

    Raises:
        RuntimeError: it did not judge every task.
    """
    process = start_apart(write_config(folder, "run", **(_SLOW if options.small else {})))
    with Watch(process) as watch:
        found = outcome(process)
    if found["judged"] != tasks:
        raise RuntimeError(f"{found['judged']} of {tasks} tasks were judged")
    options.say(f"{tasks:,} tasks in {found['seconds']:.0f} s ({_steps(found['steps'])}), {watch.samples} samples")
    peaks = watch.peaks()
    unseen = [part for part, peak in peaks.items() if not peak]
    if unseen:
        raise RuntimeError(f"no sample of {', '.join(unseen)} in {watch.samples}: the run was over too soon")
    return peaks


def _steps(seconds: dict[str, float]) -> str:
    return ", ".join(f"{step} {value:.0f}" for step, value in seconds.items())


class Watch:
    """Peak private memory of a driver and of the Ray workers under it, read by a thread while the context lasts."""

    def __init__(self, driver: "subprocess.Popen[str]") -> None:
        self.samples = 0
        self._driver = psutil.Process(driver.pid)
        self._peaks: dict[int, int] = {}
        self._judges: set[int] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def peaks(self) -> dict[str, float]:
        """Megabytes of the `driver`, and the largest `judge` and other `worker`."""
        kilobytes = {"driver": self._peaks[self._driver.pid], "judge": 0, "worker": 0}
        for pid, peak in self._peaks.items():
            if pid != self._driver.pid:
                part = "judge" if pid in self._judges else "worker"
                kilobytes[part] = max(kilobytes[part], peak)
        return {part: peak / 1000 for part, peak in kilobytes.items()}

    def _watch(self) -> None:
        while not self._over.wait(_EVERY):
            self.samples += 1
            self._sample(self._driver)
            for process in self._below():
                self._sample(process)

    def _below(self) -> list[psutil.Process]:
        try:
            return self._driver.children(recursive=True)
        except psutil.Error:
            return []

    def _sample(self, process: psutil.Process) -> None:
        try:
            title = "driver" if process is self._driver else process.cmdline()[0]
            if title != "driver" and not title.startswith("ray::"):
                return
            private = private_kilobytes(process.pid)
        except (psutil.Error, OSError, IndexError):
            return  # it has ended
        if "JudgeActor" in title:
            self._judges.add(process.pid)
        self._peaks[process.pid] = max(self._peaks.get(process.pid, 0), private)


def private_kilobytes(pid: int) -> int:
    """Memory that only this process has, without mappings of the object store."""
    private, ours = 0, True
    for where, size in _MAPPING.findall(Path(f"/proc/{pid}/smaps").read_bytes()):
        if size:
            private += int(size) if ours else 0
        else:
            ours = not where.startswith(b"/dev/shm/")
    return private
