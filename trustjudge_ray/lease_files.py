"""The file of a lease, with what a lease needs of its storage: to look and write with nobody in between."""

import contextlib
import errno
import fcntl
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from trustjudge_ray import files
from trustjudge_ray.storage import explained, filesystem

SETTLE_SECONDS: Final = 2.0
"""How long a writer to a store without conditions waits for others that write at the same moment."""

_PADDED: Final = 1024
"""A lease on a disk is rewritten in place, always at the same length: a reader never sees half of one."""
_NO_LOCKS: Final = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_TAKEN: Final = ("PreconditionFailed", "ConditionalRequestConflict")

Test = Callable[[bytes], bool]


class LeaseFile(Protocol):
    """The file of a lease.

    `swap` writes if what is there passes the test, and says whether that is what is there now; with `settle` others may
    be trying the same.
    """

    def read(self) -> bytes | None: ...

    def create(self, content: bytes) -> bool: ...

    def swap(self, test: Test, content: bytes, settle: bool = False) -> bool: ...

    def remove(self, test: Test) -> None: ...

    def age(self) -> float | None:
        """Seconds since it was written, both moments by the storage's own clock; None if that cannot be told."""
        ...


def lease_file(path: str, options: dict[str, Any]) -> LeaseFile:
    """The file of a lease at a path."""
    fs, inner = filesystem(path, options)
    return OnDisk(fs, inner) if files.is_disk(fs) else InStore(fs, inner, path)


class OnDisk:
    """On a disk: created exclusively, then changed in place under an advisory lock on the file."""

    def __init__(self, fs: Any, path: str) -> None:
        self._fs, self._path = fs, path

    def read(self) -> bytes | None:
        with explained(self._path), self._open() as file:
            return None if file is None else file.read().rstrip()

    def create(self, content: bytes) -> bool:
        with explained(self._path):
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
            try:
                place = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileExistsError:
                return False
            try:
                with open(place, "wb") as file:
                    file.write(content.ljust(_PADDED))
            except OSError:
                os.unlink(self._path)
                raise
            return True

    def swap(self, test: Test, content: bytes, settle: bool = False) -> bool:
        with explained(self._path), self._open() as file:
            if file is None or not test(file.read().rstrip()):
                return False
            os.pwrite(file.fileno(), content.ljust(_PADDED), 0)
            return True

    def remove(self, test: Test) -> None:
        with explained(self._path), self._open() as file:
            if file is not None and test(file.read().rstrip()):
                os.unlink(self._path)

    def age(self) -> float | None:
        return _age(self._fs, self._path, self._path)

    @contextlib.contextmanager
    def _open(self) -> Iterator[BinaryIO | None]:
        """The file, open and locked; None if it is not there (any more)."""
        try:
            place = os.open(self._path, os.O_RDWR)
        except FileNotFoundError:
            yield None
            return
        with open(place, "r+b", buffering=0) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            yield file if os.fstat(file.fileno()).st_nlink else None


class InStore:
    """In an object store: put if absent, where the store honours that; otherwise the last writer wins."""

    def __init__(self, fs: Any, inner: str, path: str) -> None:
        self._fs, self._inner, self._path = fs, inner, path

    def read(self) -> bytes | None:
        with explained(self._path), contextlib.suppress(FileNotFoundError):
            self._fs.invalidate_cache()
            return self._fs.cat_file(self._inner)
        return None

    def create(self, content: bytes) -> bool:
        with explained(self._path):
            if not self._put_if_absent(content):
                return False
            if not self._put_if_absent(content):
                return True  # refused because of our own: the store keeps to the condition
        return self._settled(content)

    def swap(self, test: Test, content: bytes, settle: bool = False) -> bool:
        found = self.read()
        if found is None or not test(found):
            return False
        with explained(self._path):
            self._fs.pipe_file(self._inner, content)
        return self._settled(content) if settle else True

    def remove(self, test: Test) -> None:
        found = self.read()
        if found is not None and test(found):
            files.remove(self._fs, self._inner)

    def age(self) -> float | None:
        return _age(self._fs, self._inner, self._path)

    def _put_if_absent(self, content: bytes) -> bool:
        """Whether the store took it; a store without conditions always does."""
        try:
            self._fs.pipe_file(self._inner, content, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno == errno.EINVAL or any(code in str(error) for code in _TAKEN):
                return False
            if error.errno != errno.ENOSYS:
                raise
            self._fs.pipe_file(self._inner, content)
        return True

    def _settled(self, content: bytes) -> bool:
        time.sleep(SETTLE_SECONDS)
        return self.read() == content


def _age(fs: Any, inner: str, path: str) -> float | None:
    probe = f"{inner}.probe-{uuid.uuid4().hex}"
    with explained(path):
        try:
            fs.pipe_file(probe, b"now")
            fs.invalidate_cache()
            return float((fs.modified(probe) - fs.modified(inner)).total_seconds())
        except (FileNotFoundError, NotImplementedError):
            return None
        finally:
            with contextlib.suppress(OSError):
                fs.rm_file(probe)
