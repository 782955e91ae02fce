"""Files on a file system of fsspec's: written whole or not at all, listed, read, removed.

A write to a disk goes beside its place and is renamed; one PUT to S3 appears whole or not at all. A write that fails,
for want of room or by an interruption, leaves neither the file nor a temporary.
"""

import contextlib
import errno
import os
import re
import time
import uuid
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from trustjudge_ray.storage import StorageError, explained

TEMPORARY: Final = re.compile(r"\.(tmp|probe)-[0-9a-f]{32}$")
"""Names of files on their way: what is left of them after a death may go."""

_FULL: Final = {
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "over the disk quota",
    errno.EFBIG: "over the limit on a file's size (ulimit -f)",
}
_FILES_AT_ONCE: Final = 256
_BYTES_AT_ONCE: Final = 64 * 2**20


def commit(fs: Any, path: str, content: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        StorageError: there is no room for it: names the path, the size and the free space.
    """
    if not is_disk(fs):
        fs.pipe_file(path, content)
        return
    temporary = f"{path}.tmp-{uuid.uuid4().hex}"
    try:
        fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        fs.pipe_file(temporary, content)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            fs.rm_file(temporary)
        if isinstance(error, OSError) and error.errno in _FULL:
            raise StorageError(_no_room(path, len(content), _FULL[error.errno])) from error
        raise


def _no_room(path: str, size: int, reason: str) -> str:
    place = next(folder for folder in Path(path).parents if folder.exists())
    there = os.statvfs(place)
    free = f"{there.f_bavail * there.f_frsize / 2**20:,.1f} MiB are free there"
    free += " and no inode" if there.f_files and not there.f_favail else ""
    return (
        f"{path}: {size:,} bytes could not be written: {reason}; {free}. Nothing half-written is left: make room and "
        f"start the same command again, it goes on from there"
    )


def is_disk(fs: Any) -> bool:
    """Whether a file system is this machine's own."""
    return "file" in (fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,))


def named(fs: Any, path: str) -> str:
    """A path on a file system as a user writes it: with its scheme, if it is not on this machine's disk."""
    return path if is_disk(fs) else str(fs.unstrip_protocol(path))


def find(fs: Any, folder: str) -> list[str]:
    """All files under a folder, sorted; none if it does not exist."""
    return sorted(sizes(fs, folder))


def sizes(fs: Any, folder: str) -> dict[str, int]:
    """The bytes of every file under a folder."""
    fs.invalidate_cache()
    with explained(named(fs, folder)), contextlib.suppress(FileNotFoundError):
        return {path: info["size"] for path, info in fs.find(folder, detail=True).items()}
    return {}


def top(fs: Any, folder: str) -> list[str]:
    """What lies in a folder itself; nothing if it does not exist."""
    fs.invalidate_cache()
    with explained(named(fs, folder)), contextlib.suppress(FileNotFoundError):
        return fs.ls(folder, detail=False)
    return []


def remove(fs: Any, path: str) -> None:
    """Remove a file, if it is there."""
    with explained(named(fs, path)), contextlib.suppress(FileNotFoundError):
        fs.rm_file(path)


def age(fs: Any, path: str) -> float:
    """Seconds since a file was written, by this machine's clock; 0 if it is gone by now."""
    with contextlib.suppress(FileNotFoundError):
        return time.time() - fs.modified(path).timestamp()
    return 0.0


# --- Parquet ---------------------------------------------------------------------------------


def parquet(table: pa.Table) -> bytes:
    """Parquet bytes: zstd, and byte-stream-split for the doubles of `label_logprobs`."""
    sink = pa.BufferOutputStream()
    split = ["label_logprobs.list.element"] if "label_logprobs" in table.column_names else False
    texts = [f.name for f in table.schema if pa.types.is_string(f.type) and f.name != "task_id"]
    pq.write_table(table, sink, compression="zstd", use_byte_stream_split=split, use_dictionary=texts)
    return sink.getvalue().to_pybytes()


def table(content: bytes, path: str, columns: list[str] | None = None) -> pa.Table:
    """The table in Parquet bytes.

    Raises:
        StorageError: they are damaged.
    """
    try:
        return pq.ParquetFile(pa.BufferReader(content)).read(columns)
    except (pa.ArrowInvalid, OSError) as error:  # pyarrow says OSError of a damaged page
        said = str(error).splitlines()[0]
        raise StorageError(
            f"{path}: not a readable Parquet file ({said}); remove it, and judge what it held"
        ) from error


def frame(fs: Any, parts: dict[str, int], columns: list[str], schema: dict[str, Any]) -> pl.DataFrame:
    """Columns of many Parquet files of one schema, whatever their size, one after the other in the order of `parts`.

    Args:
        parts: paths with their sizes.
        schema: of the columns, for no parts.

    Raises:
        StorageError: a part is damaged or lacks a column: names it.
    """
    frames = [pl.DataFrame(schema=schema).select(columns)]
    frames += [_frame(fs, some, columns) for some in _some_at_once(parts)]
    return pl.concat(frames)


def _frame(fs: Any, paths: list[str], columns: list[str]) -> pl.DataFrame:
    """Polars reads many small files ten times as fast as a loop over them; what it does not like is looked for one by
    one, so that a message names it."""
    if is_disk(fs):
        sources: Any = paths
    else:
        with explained(named(fs, paths[0])):
            found = fs.cat(paths) if len(paths) > 1 else {paths[0]: fs.cat_file(paths[0])}
        sources = [found[path] for path in paths]
    try:
        return pl.read_parquet(sources, columns=columns, glob=False, hive_partitioning=False)
    except Exception:
        for path in paths:
            with explained(named(fs, path)):
                table(fs.cat_file(path), named(fs, path), columns)
        raise


def _some_at_once(parts: dict[str, int]) -> list[list[str]]:
    """The paths in groups that may be in memory together."""
    groups: list[list[str]] = []
    room = 0
    for path, size in parts.items():
        if not groups or len(groups[-1]) == _FILES_AT_ONCE or size > room:
            groups.append([])
            room = _BYTES_AT_ONCE
        groups[-1].append(path)
        room -= size
    return groups
