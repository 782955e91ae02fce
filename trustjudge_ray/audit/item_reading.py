"""Files of questions from storage, local or s3://, plain, gzip or Zstandard (by their first bytes)."""

import gzip
import io
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import zstandard

from trustjudge_ray.audit.item_files import ItemFile, ItemFileError, Problem, parse
from trustjudge_ray.storage import explained, open_binary

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"


def read_items(
    paths: Sequence[str], format: str = "auto", storage_options: dict[str, Any] | None = None
) -> tuple[ItemFile, ...]:
    """The items of each file, a file at a time in memory; an id that an earlier file has is a problem of the later.

    Raises:
        ItemFileError: a file is not of its format, or its compressed data are damaged.
        StorageError: it is not there, or storage refuses.
    """
    files: list[ItemFile] = []
    known: dict[str, str] = {}
    for path in paths:
        with explained(path), open_binary(path, storage_options) as stream:
            content = stream.read()
        read = parse(uncompressed(content, path), path, format)
        twice = [item.id for item in read.items if item.id in known]
        problems = tuple(
            Problem(path, name, "duplicate_item", f"{path}: the id {name!r} is in {known[name]} already; left out")
            for name in twice
        )
        kept = tuple(item for item in read.items if item.id not in known)
        known |= dict.fromkeys((item.id for item in kept), path)
        files.append(replace(read, items=kept, problems=read.problems + problems))
    return tuple(files)


def uncompressed(content: bytes, source: str) -> bytes:
    """The bytes behind gzip or Zstandard, all members and frames; others as they are.

    Raises:
        ItemFileError: the compressed data are damaged or end too early.
    """
    try:
        if content.startswith(_GZIP):
            return gzip.decompress(content)
        if content.startswith(_ZSTD):
            return _frames(content)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise ItemFileError(f"{source}: the compressed data are damaged or end too early ({error})") from error
    return content


def _frames(content: bytes) -> bytes:
    out = io.BytesIO()
    while content:
        inflate = zstandard.ZstdDecompressor().decompressobj()
        out.write(inflate.decompress(content))
        if not inflate.eof:
            raise EOFError("the last frame is cut off")
        content = inflate.unused_data
    return out.getvalue()
