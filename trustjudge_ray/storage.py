"""Opening storage, local or s3://, with errors that say what is wrong with it."""

import contextlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import fsspec

_S3_DEFAULTS = {"config_kwargs": {"connect_timeout": 5, "read_timeout": 20, "retries": {"max_attempts": 3}}}


class StorageError(OSError):
    """Storage cannot be used: names the place, what it answered, and what to look at."""


def filesystem(path: str, options: dict[str, Any] | None = None) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system of a path, and the path on it.

    S3 gets short timeouts and few retries, so that a wrong endpoint is an error within half a minute.

    Raises:
        StorageError: the protocol is unknown or its driver is missing.
    """
    options = dict(options or {})
    if path.startswith(("s3://", "s3a://")):
        options = _S3_DEFAULTS | {"use_listings_cache": False} | options
    else:
        options = {}
    try:
        return fsspec.core.url_to_fs(path, **options)
    except (ValueError, ImportError) as error:
        raise StorageError(f"{path}: {error}; use a local path or s3://bucket/…") from error


def open_binary(path: str, options: dict[str, Any] | None = None) -> BinaryIO:
    """A file opened for reading, seekable, as it lies in storage.

    Raises:
        StorageError: it is not there, or storage refuses.
    """
    fs, inner = filesystem(path, options)
    with explained(path):
        return fs.open(inner, "rb")


def present(path: str, options: dict[str, Any] | None = None) -> bool:
    """Whether there is a file or folder of that path."""
    fs, inner = filesystem(path, options)
    with explained(path):
        return fs.exists(inner)


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """Turn what drivers raise into one StorageError about `path`."""
    try:
        yield
    except StorageError:
        raise
    except FileNotFoundError as error:
        raise StorageError(f"{path}: not found ({_first_line(error)}); check the bucket and the path") from error
    except PermissionError as error:
        raise StorageError(f"{path}: access denied ({_first_line(error)}); check the credentials") from error
    except OSError as error:
        raise StorageError(f"{path}: {type(error).__name__}: {_first_line(error)}") from error
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("botocore", "aiobotocore", "aiohttp"):
            raise
        raise StorageError(
            f"{path}: {type(error).__name__}: {_first_line(error)}; check endpoint and credentials"
        ) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
