"""The one way to storage, local or s3://: opened with fsspec, with errors that say what is wrong with it.

fsspec and its drivers are imported when storage is first used, so that commands start fast.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from trustjudge_ray.nearest import did_you_mean_file

if TYPE_CHECKING:
    import fsspec

_PATIENT: Final = {"connect_timeout": 4, "read_timeout": 20, "retries": {"mode": "standard", "max_attempts": 8}}
"""For S3, where the user's own config_kwargs do not say otherwise: a store that is busy, or away for some seconds, is
asked again with growing pauses."""
_IMPATIENT: Final = {"connect_timeout": 3, "read_timeout": 6, "retries": {"mode": "standard", "max_attempts": 1}}
"""A wrong endpoint is known within half a minute, one that is silent too: a request is sent four times at most, twice
by the driver for each time by s3fs. A single 503 is no wrong endpoint."""
_ATTEMPTS: Final = 2
"""How often s3fs tries what the driver has given up, which asks again itself."""

_DRIVERS: Final = ("botocore", "aiobotocore", "aiohttp")
"""Whose exceptions speak of the store. Told by name: importing them would slow down every command."""


class StorageError(OSError):
    """Storage cannot be used: names the place, what it answered, and what to look at."""


def is_local(path: str) -> bool:
    """Whether a path is on this machine's disk."""
    return "://" not in path or path.startswith(("file://", "local://"))


def plain(path: str) -> str:
    """A local path without its scheme, `~` expanded."""
    return os.path.expanduser(path.removeprefix("file://").removeprefix("local://"))


def filesystem(
    path: str, options: dict[str, Any] | None = None, patient: bool = True
) -> tuple["fsspec.AbstractFileSystem", str]:
    """The file system of a path, and the path on it. A store is not asked anything yet.

    Args:
        options: for fsspec; local paths need none.
        patient: whether a store that does not answer is asked again and again. Otherwise it is an error within
            half a minute, whatever it does: for the first look.

    Raises:
        StorageError: the scheme is unknown, or an option is.
    """
    import fsspec

    if is_local(path):
        return fsspec.core.url_to_fs(plain(path))
    given = dict(options or {})
    try:
        if not path.startswith(("s3://", "s3a://")):
            return fsspec.core.url_to_fs(path, **given)
        users = given.pop("config_kwargs", None) or {}
        given["config_kwargs"] = (_PATIENT if patient else _IMPATIENT) | users
        given["use_listings_cache"] = False  # other processes write too
        fs, inner = fsspec.core.url_to_fs(path, **given)
        if hasattr(fs, "retries"):
            fs.retries = _ATTEMPTS
        fs.connect()  # asks nothing of the store; says now what is wrong with the options
    except (ImportError, TypeError, ValueError) as error:
        raise StorageError(f"{path}: check the path's scheme and storage_options: {_said(error)}") from error
    return fs, inner


def open_binary(path: str, options: dict[str, Any] | None = None) -> BinaryIO:
    """A file opened for reading, seekable, as it lies in storage.

    Raises:
        StorageError: it is not there, or storage refuses.
    """
    with explained(path):
        fs, inner = filesystem(path, options)
        return fs.open(inner, "rb")


def present(path: str, options: dict[str, Any] | None = None) -> bool:
    """Whether there is a file or folder of that path."""
    with explained(path):
        fs, inner = filesystem(path, options)
        return fs.exists(inner)


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """Turn what disks and drivers raise into one StorageError about `path`; other exceptions pass."""
    try:
        yield
    except StorageError:
        raise
    except PermissionError as error:
        check = "its permissions" if is_local(path) else "the credentials and their rights"
        raise StorageError(f"{path}: access refused ({_said(error)}); check {check}") from error
    except FileNotFoundError as error:
        check = f"the path{did_you_mean_file(plain(path))}" if is_local(path) else "the bucket and the path"
        raise StorageError(f"{path}: not there ({_said(error)}); check {check}") from error
    except IsADirectoryError as error:
        raise StorageError(f"{path}: a folder where a file is meant") from error
    except Exception as error:
        if type(error).__name__ == "NoCredentialsError":
            message = "no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or storage_options.anon: true"
            raise StorageError(f"{path}: {message}") from error
        if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] not in _DRIVERS:
            raise
        if is_local(path):
            raise StorageError(f"{path}: {_said(error)}") from error
        message = f"the storage does not answer as it should: {_said(error)}; check the endpoint and storage_options"
        raise StorageError(f"{path}: {message}") from error


def _said(error: BaseException) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
