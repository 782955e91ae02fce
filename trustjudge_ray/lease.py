"""One run at a time on a run folder: `run.lock`, a lease that its holder renews.

The lease is a small JSON file: who holds it (id, host, machine, process, since when) and a beat, which the holder
counts up every ten seconds. Another start refuses, unless the holder is dead:

- On the same machine (the same boot of the same kernel, and the same view of its processes: containers that share a
  host do not see each other's) it asks whether that process, told by number and start time, still runs.
- From elsewhere it asks the storage how long ago the lease was written. Both moments, that of the lease and that of a
  file written now, come from the storage: no two machines' clocks are compared. A minute without a beat is death.

What is guaranteed. On a disk, taking a lease is one exclusive creation, and taking over, renewing and giving back look
and write under the operating system's lock on the file (where the file system knows such locks): two never hold the
lease. On S3 that honours `If-None-Match` a first lease is exclusive too. Where it does not, and whenever a dead
lease is taken over there, the last writer wins: everybody writes, waits two seconds, and whoever reads back another id
refuses. A writer that is held up for longer than that may overlap with another; the next beat of one of them, ten
seconds later at most, finds the other's id, and that run stops. A holder that slept (a stopped process, a suspended
machine) learns in the same way that its lease was taken. Whatever happens, judgments stay right: they are keyed by
their content, and parts are committed whole.
"""

import contextlib
import json
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from trustjudge_ray.lease_files import LeaseFile, lease_file
from trustjudge_ray.storage import StorageError
from trustjudge_ray.store import RunFolder

NAME: Final = "run.lock"
BEAT_SECONDS: Final = 10.0
STALE_SECONDS: Final = 60.0
"""Without a beat for so long a holder counts as dead."""
_ATTEMPTS: Final = 3
_ELSEWHERE: Final = "give this run another `out`"


class LeaseError(StorageError):
    """The run folder is another run's: says whose, since when, and what to do."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lease. `machine` and `started` are None where the system does not tell."""

    id: str
    host: str
    machine: str | None
    pid: int
    started: int | None
    since: str
    beat: int

    def as_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode("utf-8")


class Lease:
    """A lease that is held; `held` makes one."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder.path
        self._file: LeaseFile = lease_file(f"{folder.path}/{NAME}", folder.options)
        self._me = _this_process()
        self._looking = threading.Lock()
        self._ending = threading.Event()
        self._in_main = threading.current_thread() is threading.main_thread()
        self._seen = 0.0
        self.lost: LeaseError | None = None
        """What to say, once another run has the lease."""

    def refuse_lost(self) -> None:
        """Stop a run that does not hold its folder any more. Looks at the storage only if the last look is too old
        to be relied on, so it may be called often.

        Raises:
            LeaseError: another run has taken the folder.
            StorageError: it has to look, and the storage does not answer.
        """
        if self.lost is None and _clock() - self._seen > STALE_SECONDS / 2:
            self._beat()
        if self.lost is not None:
            raise self.lost

    def take(self) -> None:
        """Take the lease, from a dead holder if need be.

        Raises:
            LeaseError: a run that is not known to be dead holds it.
        """
        for _ in range(_ATTEMPTS):
            self._seen = _clock()
            found = self._file.read()
            if found is None:
                taken = self._file.create(self._me.as_bytes())
            else:
                self._refuse_living(found)
                taken = self._file.swap(found.__eq__, self._me.as_bytes(), settle=True)
            if taken:
                return
        raise LeaseError(f"{self._folder}: another run started on this folder at this moment; {_ELSEWHERE}")

    def _refuse_living(self, found: bytes) -> None:
        """
        Raises:
            LeaseError: the holder is alive, or may be.
        """
        holder = _parsed(found)
        near = holder is not None and holder.machine is not None and holder.machine == self._me.machine
        if near and holder is not None and not _runs(holder):
            return
        silent = self._file.age()
        if silent is None or silent <= STALE_SECONDS:
            raise LeaseError(f"{self._folder}: {_refusal(holder, near, silent)}")

    def keep(self) -> None:
        """Renew until the lease ends or is lost; then interrupt the main thread."""
        while not self._ending.wait(BEAT_SECONDS):
            try:
                self._beat()
            except Exception:  # whatever a driver raises: the storage may be back at the next beat
                continue
            if self.lost is not None:
                break
        with self._looking:
            if self.lost is not None and self._in_main and not self._ending.is_set():
                _interrupt_main()

    def _beat(self) -> None:
        with self._looking:
            if self.lost is not None or self._ending.is_set():
                return
            mine, now = replace(self._me, beat=self._me.beat + 1), _clock()
            if not self._file.swap(self._is_mine, mine.as_bytes()) and not self._regained(mine):
                self.lost = LeaseError(self._loss())
                return
            self._me, self._seen = mine, now

    def _regained(self, mine: Holder) -> bool:
        """Whether the lease is ours again after somebody removed it and nobody took it."""
        return self._file.read() is None and self._file.create(mine.as_bytes())

    def _is_mine(self, content: bytes) -> bool:
        holder = _parsed(content)
        return holder is not None and holder.id == self._me.id

    def _loss(self) -> str:
        found = self._file.read()
        holder = None if found is None else _parsed(found)
        who = "another run" if holder is None else f"process {holder.pid} on {holder.host}, since {holder.since},"
        return (
            f"{self._folder}: {who} has taken over this folder, because this run gave no sign of life for over "
            f"{STALE_SECONDS:.0f} s (asleep, or without its storage). This run stops; what it judged is saved"
        )

    def end(self) -> None:
        """Give the lease back, if it is still ours."""
        with self._looking:
            self._ending.set()
        if self.lost is None:
            self._file.remove(self._is_mine)


@contextlib.contextmanager
def held(folder: RunFolder) -> Iterator[Lease]:
    """Hold the lease of a run folder. To be entered before anything in the folder is changed.

    While it is held a daemon thread renews it. If that finds it taken by another run, the main thread is interrupted
    (as by Ctrl-C) and this raises LeaseError; where Python's handlers for SIGINT and SIGTERM are switched off, that
    waits for `refuse_lost` or the end of the block.

    Raises:
        LeaseError: another run holds it, or has taken it; StorageError: the storage refuses.
    """
    lease = Lease(folder)
    lease.take()
    try:
        try:
            threading.Thread(target=lease.keep, name="run-lease", daemon=True).start()
            yield lease
            lease.refuse_lost()
        finally:
            lease.end()
    except BaseException as error:
        if lease.lost is not None and error is not lease.lost:
            raise lease.lost from error
        raise


def _refusal(holder: Holder | None, near: bool, silent: float | None) -> str:
    """What a second start is told: who works there, since when, and what to do."""
    if holder is None:
        who = "it has only just begun, or its lease is damaged"
    elif holder.pid == os.getpid() and near:
        who = f"this process itself ({holder.pid} on {holder.host}), since {holder.since}"
    else:
        who = f"process {holder.pid} on {holder.host}, since {holder.since}"
    said = f"another run works on this folder: {who}"
    if near:
        return f"{said}; it is alive. Wait for it, end it, or {_ELSEWHERE}"
    if silent is None:
        return f"{said}. Wait for it, or {_ELSEWHERE}; if you know that it is dead, remove {NAME}"
    return (
        f"{said}; its last sign of life is {max(silent, 0):.0f} s old. Wait for it, or {_ELSEWHERE}. If it is dead, "
        f"start again in {STALE_SECONDS - silent + 1:.0f} s: {STALE_SECONDS:.0f} s after that sign it counts as dead"
    )


def _parsed(content: bytes) -> Holder | None:
    try:
        return Holder(**json.loads(content))
    except (ValueError, TypeError):
        return None


def _this_process() -> Holder:
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    pid = os.getpid()
    return Holder(uuid.uuid4().hex, socket.gethostname(), _machine(), pid, _start_of(pid), since, 0)


def _machine() -> str | None:
    """What two processes have in common if each can tell whether the other runs: boot and process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _runs(holder: Holder) -> bool:
    """Whether a holder on this machine still runs. Another process may have its number by now: then it started at
    another moment."""
    started = _start_of(holder.pid)
    if started is not None:
        return holder.started in (None, started)
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # there, and hidden from us
    return _start_of(os.getpid()) is None  # a zombie, unless this system tells nothing of processes


def _start_of(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it has ended or is a zombie."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return None if state in "ZX" else int(fields[18])
    except (OSError, ValueError, IndexError):
        return None


def _clock() -> float:
    """Seconds, counted also while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _interrupt_main() -> None:
    main = threading.main_thread().ident
    usable = [number for number in (signal.SIGINT, signal.SIGTERM) if callable(signal.getsignal(number))]
    if usable and main is not None:
        signal.pthread_kill(main, usable[0])
