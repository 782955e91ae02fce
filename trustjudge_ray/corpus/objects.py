"""What a file holds, as JSON objects: one for each line of JSON Lines or each row of a Parquet batch.

Nothing is guessed: a line that is not exactly one JSON object is a `Rejection` with the reason, and the
lines around it are not touched by it. Decided, where JSON as it is found in the wild leaves it open:

- lines end at b"\\n" (a b"\\r" before it belongs to the ending); U+2028, U+0085 and the like end nothing;
- a byte order mark at the start of a line is dropped, because concatenated files have them in the middle;
- NaN is null; Infinity is the float, and a whole number of more digits than Python reads is `Unheld`: whoever reads
  that field refuses it, and a line is not rejected for a field that nobody reads;
- a key that an object has twice rejects the line, at any depth;
- a lone surrogate becomes U+FFFD and the entry carries the flag `lone_surrogate`.
"""

import decimal
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

RAW_CHARACTERS = 2000
"""How much of an unreadable line the quarantine keeps."""

_BOM = b"\xef\xbb\xbf"
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class BrokenStreamError(Exception):
    """The bytes of a file are damaged or end too early; what was read before that stands."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why something could not be read: a word to count by, and a sentence for the person who mends it."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True, repr=False)
class Unheld:
    """A value within a line or row that cannot be held as a JSON value: why, and what of it can be kept."""

    reason: str
    detail: str
    text: str

    def __repr__(self) -> str:
        return self.detail


@dataclass(frozen=True, slots=True)
class Entry:
    """One line or Parquet row: its number from 1, what it holds, and how much memory it stands for."""

    line: int | None
    content: dict[str, Any] | Rejection
    raw: bytes = b""
    flags: tuple[str, ...] = ()
    size: int = 0


class _DuplicateKeyError(ValueError):
    pass


def split_lines(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Cut a stream of bytes at b"\\n": each line without its ending, and whether it had one."""
    rest: list[bytes] = []
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        rest.append(first)
        for part in others:
            yield b"".join(rest), True
            rest = [part]
    last = b"".join(rest)
    if last:
        yield last, False


def from_lines(chunks: Iterable[bytes], first_line: int = 1) -> Iterator[Entry]:
    """The entries of a JSON Lines file, blank lines left out, the lines numbered from `first_line`.

    A last line without an ending is a line like any other if it can be read. A `BrokenStreamError` from
    `chunks` ends the file with one rejected entry at the line that was being read.
    """
    number = first_line - 1
    try:
        for number, (line, ended) in enumerate(split_lines(chunks), first_line):
            entry = line_entry(line, number, ended)
            if entry is not None:
                yield entry
    except BrokenStreamError as error:
        yield Entry(number + 1, Rejection("damaged_file", f"{error}; nothing after this place was read"))


def from_batch(batch: pa.RecordBatch, first_line: int) -> Iterator[Entry]:
    """The rows of a Parquet batch, numbered from `first_line`, every value as JSON would have it.

    A float that is not a number is null, a decimal is a number, binary is read as UTF-8, dates and times
    become ISO text. A cell that cannot be read is `Unheld`.
    """
    columns = {name: _cells(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    size = batch.nbytes // max(batch.num_rows, 1)
    for i in range(batch.num_rows):
        yield Entry(first_line + i, {name: cells[i] for name, cells in columns.items()}, size=size)


def excerpt(raw: bytes) -> str | None:
    """The beginning of a line as text, what is not UTF-8 replaced; None where there is no line."""
    return raw[: 4 * RAW_CHARACTERS].decode("utf-8", "replace")[:RAW_CHARACTERS] or None


def compact_json(value: Any) -> str:
    """A value as JSON without spaces.

    Raises:
        ValueError: it holds an infinite number, which JSON cannot say.
    """
    return _ENCODER.encode(value)


def sayable(value: Any) -> tuple[Any, bool]:
    """The value with a text for all that JSON cannot say (infinite numbers, `Unheld`), and whether there was such."""
    if isinstance(value, Unheld):
        return value.text, True
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity", True
    if isinstance(value, dict | list):
        inner = [sayable(element) for element in (value.values() if isinstance(value, dict) else value)]
        if any(changed for _, changed in inner):
            said = [element for element, _ in inner]
            return dict(zip(value, said, strict=True)) if isinstance(value, dict) else said, True
    return value, False


def line_entry(line: bytes, number: int, ended: bool = True) -> Entry | None:
    """What one line, or one element of an array, holds; None where it is blank.

    Args:
        ended: whether a line break came after it; what is wrong without one may be for want of it.
    """
    if line.startswith(_BOM):
        line = line[len(_BOM) :]
    if not line.strip(b" \t\r"):
        return None
    flags: list[str] = []
    try:
        content: Any = _decoded(line.decode("utf-8"))
        if _SURROGATE_ESCAPE.search(line):
            content = _mended(content, flags)
        if not isinstance(content, dict):
            content = Rejection("not_an_object", f"{kind_of(content)}; a line is one JSON object")
    except UnicodeDecodeError as error:
        content = _not_utf8(line, error, ended)
    except _DuplicateKeyError as error:
        content = Rejection("duplicate_key", f"the key {error.args[0]!r} comes twice in one object")
    except json.JSONDecodeError as error:
        content = _not_json(line, error, ended)
        if number == 1 and not ended and b"\r" in line.strip(b"\r"):
            content = Rejection("invalid_json", "line ends are carriage returns only; convert to \\n")
    except RecursionError:
        content = Rejection("too_deep", "objects or lists are nested too deeply to be read")
    return Entry(number, content, line, tuple(flags), len(line))


def _not_utf8(line: bytes, error: UnicodeDecodeError, ended: bool) -> Rejection:
    if not ended and error.reason == "unexpected end of data":
        return Rejection("truncated_line", "the file ends in the middle of a character")
    if b"\0" in line or line[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return Rejection("invalid_utf8", f"byte {error.start + 1}: the file is not text in UTF-8 (UTF-16, or binary?)")
    bad = line[error.start : error.start + 1].hex()
    return Rejection("invalid_utf8", f"byte {error.start + 1} of the line is 0x{bad}, {error.reason}; save as UTF-8")


def _not_json(line: bytes, error: json.JSONDecodeError, ended: bool) -> Rejection:
    where = f"{error.msg} at character {error.pos + 1}"
    if not ended:
        return Rejection("truncated_line", f"the last line has no line ending and is no JSON: {where}")
    if line.strip() in (b"[", b"{"):
        where += "; a value over several lines? write one object per line"
    return Rejection("invalid_json", where)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(key)
            seen.add(key)
    return content


def _constant(name: str) -> float | None:
    return None if name == "NaN" else float(name)


def _whole(digits: str) -> int | Unheld:
    try:
        return int(digits)
    except ValueError:  # more digits than Python converts
        return Unheld("invalid_json", f"a number of {len(digits)} digits is too long", digits)


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
_PATIENT_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_int=_whole)


def _decoded(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except (json.JSONDecodeError, _DuplicateKeyError):
        raise
    except ValueError:  # a whole number that is too long
        return _PATIENT_DECODER.decode(text)


def _mended(value: Any, flags: list[str]) -> Any:
    """The value with U+FFFD for every lone surrogate; says so in `flags`."""
    if isinstance(value, str):
        mended, count = _LONE_SURROGATE.subn("\ufffd", value)
        if count and "lone_surrogate" not in flags:
            flags.append("lone_surrogate")
        return mended
    if isinstance(value, list):
        return [_mended(element, flags) for element in value]
    if isinstance(value, dict):
        return _object([(_mended(key, flags), _mended(element, flags)) for key, element in value.items()])
    return value


def _cells(column: pa.Array) -> list[Any]:
    """A column's values as JSON has them; `Unheld` in place of one that cannot be read."""
    try:
        if pa.types.is_temporal(column.type) and not pa.types.is_duration(column.type):
            column = column.cast(pa.string())  # Python's own types cannot hold nanoseconds
        return [_json_value(value) for value in column.to_pylist()]
    except _UNREADABLE:
        return [_cell(value) for value in column]


_UNREADABLE = (ValueError, OverflowError, RecursionError, LookupError, pa.ArrowException)
"""What Arrow raises for a value that Python cannot hold; LookupError: a time zone that is not known."""


def _cell(value: pa.Scalar) -> Any:
    try:
        return _json_value(value.as_py())
    except UnicodeDecodeError as error:
        detail = f"a text that is not UTF-8 ({error.reason} at byte {error.start + 1})"
        return Unheld("invalid_utf8", detail, f"({detail})")
    except _UNREADABLE as error:
        detail = f"a value that cannot be read: {error}"
        return Unheld("invalid_value", detail, f"({detail})")


def _json_value(value: Any) -> Any:
    """An Arrow value as JSON has it."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, list | tuple):
        return [_json_value(element) for element in value]
    if isinstance(value, dict):
        return {key: _json_value(element) for key, element in value.items()}
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def kind_of(value: Any) -> str:
    """What a value is, in words for a message."""
    if isinstance(value, Unheld):
        return value.detail
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return f"the number {str(value)[:40]}"
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return f"an object with {names_of(value)}"


def names_of(content: dict[str, Any]) -> str:
    """The names of an object's fields that are not null, at most twenty."""
    names = [key[:60] for key, value in content.items() if value is not None]
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return (", ".join(names[:20]) + more) if names else "no fields"
