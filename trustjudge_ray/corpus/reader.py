"""Where users' files are, and their bytes: local or in object storage, plain or compressed.

What a file is, its first bytes say, not its name: gzip, Zstandard and Parquet are recognised by their marks, a JSON
array by its bracket, all else is JSON Lines. Only CSV has no mark: a name that ends in .csv or .tsv says it. A damaged
file gives what could be read and one quarantined row; a store that does not answer is a `CorpusError`, because half a
corpus is not a corpus.
"""

import difflib
import glob
import hashlib
import itertools
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from trustjudge_ray.corpus.containers import from_csv, from_json
from trustjudge_ray.corpus.formats import CorpusConfigError, CorpusError, FieldMap, field_map, tables
from trustjudge_ray.corpus.objects import BrokenStreamError, Entry, Rejection, from_batch
from trustjudge_ray.storage import StorageError, explained, filesystem, is_local, open_binary, plain

__all__ = ["SUFFIXES", "CorpusConfigError", "CorpusError", "Fingerprint"]
__all__ += ["expand", "fingerprint", "first_objects", "read"]

SUFFIXES: Final = (".jsonl", ".ndjson", ".json", ".parquet", ".pq", ".csv", ".tsv")
"""What is taken from a folder, in small or capital letters, also with .gz or .zst behind it.

Names that start with '.' or '_' are not.
"""

_ANSWERS: Final = ("response", "response_a", "response_b", "chosen", "rejected")
"""Fields of ours that are an empty text where a cell of a CSV file is empty."""

_CHUNK = 1 << 18
_CHUNKS_OF_A_BEGINNING: Final = 16
_GZIP, _ZSTD, _PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a file was when it was read: its size in bytes and the SHA-256 of its bytes, as stored."""

    path: str
    size: int
    sha256: str


def expand(paths: list[str], storage_options: dict[str, Any] | None = None) -> list[str]:
    """The files that paths, folders (with all below) and globs name: each once, sorted, local ones as they were given.

    Of several spellings of one local file (`v/x`, `v/../v/x`, a link) the shortest stays.

    Raises:
        CorpusError: a path names nothing (says what is near), or the store refuses or does not answer.
    """
    found: dict[str, str] = {}
    for path in paths:
        with _corpus_errors(path):
            local = is_local(path)
            for name in _local_files(plain(path)) if local else _remote_files(path, storage_options or {}):
                file = os.path.realpath(name) if local else name
                found[file] = min(found.get(file, name), name, key=lambda spelling: (len(spelling), spelling))
    return sorted(found.values())


def read(
    path: str,
    format: str = "flat",
    fields: dict[str, str] | None = None,
    storage_options: dict[str, Any] | None = None,
    batch_rows: int = 4096,
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """One file as (PLACED_RESPONSES, QUARANTINE) tables, in the file's order; at least one pair, empty or not.

    Memory is bounded by a batch of lines, or by a Parquet row group's pages; never by the file.

    Raises:
        CorpusConfigError: at once, for a wrong format or field map.
        CorpusError: on reading, if the file is not there, or the store
            refuses or does not answer.
    """
    known = field_map(fields or {}, format)
    return _tables(path, format, known, storage_options or {}, batch_rows)


def first_objects(path: str, count: int, storage_options: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """The first objects of a file that can be read, at most `count`; of a file of text, those in its first 4 MB.

    Raises:
        CorpusError: the file is not there, or the store refuses or does not answer.
    """
    with _corpus_errors(path), open_binary(path, storage_options) as stream:
        entries = _entries(path, stream, field_map({}), count, _CHUNKS_OF_A_BEGINNING)
        objects = (entry.content for entry in entries if isinstance(entry.content, dict))
        return list(itertools.islice(objects, count))


def fingerprint(path: str, storage_options: dict[str, Any] | None = None) -> Fingerprint:
    """Size and hash of a file, which is read through once for it."""
    digest, size = hashlib.sha256(), 0
    with _corpus_errors(path), open_binary(path, storage_options) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return Fingerprint(path, size, digest.hexdigest())


def _tables(
    path: str, format: str, fields: FieldMap, options: dict[str, Any], batch_rows: int
) -> Iterator[tuple[pa.Table, pa.Table]]:
    with _corpus_errors(path), open_binary(path, options) as stream:
        yield from tables(_entries(path, stream, fields, batch_rows), path, format, fields, batch_rows)


def _entries(
    path: str, stream: Any, fields: FieldMap, batch_rows: int, most_chunks: int | None = None
) -> Iterator[Entry]:
    head = stream.read(4)
    stream.seek(0)
    name = path.lower().removesuffix(".gz").removesuffix(".zst")
    if head == _PARQUET or path.lower().endswith((".parquet", ".pq")):
        return _parquet_entries(stream, batch_rows)
    chunks = itertools.islice(_chunks(stream, head), most_chunks)
    if name.endswith((".csv", ".tsv")):
        texts = {fields.names[ours] for ours in _ANSWERS if ours in fields.names}
        return from_csv(chunks, texts, "\t" if name.endswith(".tsv") else ",")
    return from_json(chunks)


def _chunks(stream: Any, head: bytes) -> Iterator[bytes]:
    """The bytes of a file, decompressed if its first bytes say so."""
    if head.startswith(_GZIP):
        yield from _inflated(stream, "gzip", lambda: zlib.decompressobj(31))
    elif head == _ZSTD:
        yield from _inflated(stream, "Zstandard", lambda: zstandard.ZstdDecompressor().decompressobj())
    else:
        while chunk := stream.read(_CHUNK):
            yield chunk


def _inflated(stream: Any, name: str, new: Callable[[], Any]) -> Iterator[bytes]:
    """The contents of one compressed member (frame) after the other; zeros that pad the end are no member."""
    inflate, started = new(), False
    while chunk := stream.read(_CHUNK):
        while chunk:
            if not started:
                chunk = chunk.lstrip(b"\0")
                if not chunk:
                    break
                started = True
            try:
                contents = inflate.decompress(chunk)
            except (zlib.error, zstandard.ZstdError) as error:
                raise BrokenStreamError(_damage(name, str(error))) from error
            yield contents
            chunk = b""
            if inflate.eof:
                chunk, inflate, started = inflate.unused_data, new(), False
    if started:
        raise BrokenStreamError(f"the {name} data end too early; the file is cut off")


def _damage(name: str, said: str) -> str:
    """A checksum that fails comes after the data: lines that were handed on before it may be wrong ones."""
    if "check" in said:
        return f"the {name} data do not have the checksum they were written with, so lines before may be wrong ({said})"
    return f"the {name} data are damaged ({said})"


def _parquet_entries(stream: Any, batch_rows: int) -> Iterator[Entry]:
    line, opened = 1, False
    try:
        file = pq.ParquetFile(stream)
        names = file.schema_arrow.names
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            yield Entry(None, Rejection("duplicate_key", f"the Parquet file has two columns {twice[0]!r}"))
            return
        opened = True
        for batch in file.iter_batches(batch_size=batch_rows):
            yield from from_batch(batch, line)
            line += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
            raise  # the store's, not the file's
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        if opened:
            yield Entry(line, Rejection("damaged_file", f"{said}; nothing after this place was read"))
        else:
            yield Entry(None, Rejection("unreadable_file", f"not a readable Parquet file: {said}"))


def _is_corpus_file(relative: str) -> bool:
    parts = relative.split("/")
    bare = parts[-1].lower().removesuffix(".gz").removesuffix(".zst")
    return bare.endswith(SUFFIXES) and not any(part.startswith((".", "_")) for part in parts)


def _local_files(path: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        return _folder_files(path) or _nothing(path, path, os.listdir(path))
    files = []
    for match in glob.glob(path, recursive=True) if glob.has_magic(path) else []:
        files += _folder_files(match) if os.path.isdir(match) else [match]
    if files:
        return files
    folder = os.path.dirname(path)
    while folder and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return _nothing(path, folder or ".", os.listdir(folder or "."))


def _folder_files(folder: str) -> list[str]:
    """The corpus files in a folder and below, through links to folders too, no folder twice."""
    files, seen = [], set()
    for inner, folders, names in os.walk(folder, followlinks=True, onerror=_raise):
        real = os.path.realpath(inner)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        below = [os.path.join(inner, name) for name in names]
        files += [file for file in below if _is_corpus_file(os.path.relpath(file, folder))]
    return files


def _raise(error: OSError) -> None:
    raise error


def _remote_files(path: str, options: dict[str, Any]) -> list[str]:
    fs, name = filesystem(path, options, patient=False)
    kinds: dict[str, str] = {}
    try:
        kinds[name] = fs.info(name)["type"]
    except FileNotFoundError:
        if glob.has_magic(name):
            kinds = {match: info["type"] for match, info in fs.glob(name, detail=True).items()}
    files = []
    for match, kind in kinds.items():
        inside = fs.find(match) if kind == "directory" else []
        files += [file for file in inside if _is_corpus_file(file[len(match) :].lstrip("/"))]
        files += [match] if kind == "file" else []
    if files:
        return [fs.unstrip_protocol(file) for file in files]
    folder, near = _nearest(fs, name)
    return _nothing(path, fs.unstrip_protocol(folder), near)


def _nearest(fs: Any, name: str) -> tuple[str, list[str]]:
    """The nearest folder above a name that is there, and what it holds.

    Raises:
        FileNotFoundError: not even the bucket is there.
    """
    folder = name
    while True:
        try:
            return folder, [near.rstrip("/").rsplit("/", 1)[-1] for near in fs.ls(folder, detail=False)]
        except FileNotFoundError:
            if "/" not in folder.strip("/"):
                raise
            folder = fs._parent(folder)


def _nothing(path: str, folder: str, near: list[str]) -> NoReturn:
    names = sorted(name for name in near if not name.startswith("."))
    alike = difflib.get_close_matches(path.rstrip("/").rsplit("/", 1)[-1], names, n=1)
    hint = f" (did you mean '{alike[0]}'?)" if alike else ""
    shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    raise CorpusError(
        f"corpus.paths: {path}: no corpus file there; {folder} has {shown or 'nothing'}{hint}. "
        f"A path is a file, a glob, or a folder with {', '.join(SUFFIXES)} files (also .gz, .zst)"
    )


@contextmanager
def _corpus_errors(path: str) -> Iterator[None]:
    """What a disk or a store says, as one CorpusError that names the path."""
    try:
        with explained(path):
            yield
    except StorageError as error:
        raise CorpusError(str(error)) from error
