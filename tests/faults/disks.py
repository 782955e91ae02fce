"""A disk that can be filled to its last byte: a small file system of its own, or a limit on the size of files."""

import contextlib
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

_MEGABYTES = 24


class SmallDisk:
    """A file system in memory; full when a file takes all that is left of it."""

    says = "no space left on the device"

    def __init__(self, where: Path) -> None:
        self._filler = where / "filler"

    def fill(self) -> None:
        with self._filler.open("wb", buffering=0) as filler:
            for size in (2**16, 2**12, 1):
                with contextlib.suppress(OSError):
                    while filler.write(b"x" * size):
                        pass

    def free(self) -> None:
        self._filler.unlink()


class SmallFiles:
    """Where no file system may be mounted: the processes that write may write no file of more than a kilobyte."""

    says = "over the limit on a file's size"

    def __init__(self, workers: Callable[[], list[psutil.Process]]) -> None:
        self._workers = workers
        self._limited: list[psutil.Process] = []

    def fill(self) -> None:
        self._limited = self._workers()
        self._limit(1024)

    def free(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, most: int) -> None:
        for process in self._limited:
            with contextlib.suppress(psutil.Error):
                process.rlimit(psutil.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


@contextlib.contextmanager
def disk(where: Path, workers: Callable[[], list[psutil.Process]]) -> Iterator[SmallDisk | SmallFiles]:
    """A folder on a disk that can be filled; `workers` are the processes that write to it."""
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_MEGABYTES}m", "tmpfs", str(where)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        yield SmallFiles(workers)
        return
    try:
        yield SmallDisk(where)
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)
