"""Files that are not lines: one JSON array, or a CSV table, as the entries of `objects`, read piece by piece.

array: each element is read as a line of JSON Lines is, with the same reasons, and its number from 1 stands for the
    line. Where the array itself breaks off, nothing after that place is read, and an entry says so. What comes after
    its end is another array, or lines.
objects over several lines, one or more: each is read as a line is, and has the number of the line that it begins in.
    They are known by a first line that is a brace alone.
CSV: the first row names the columns (one without a name is `column 4`), all values are text, and the line is the one
    that a row begins in. An empty cell is null, but in the columns `texts`, where it is an empty text: CSV cannot tell
    the two apart. After a fault in the quotes nobody knows where rows begin: nothing after it is read.
"""

import codecs
import csv
import itertools
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

from trustjudge_ray.corpus.json_stream import BrokenJson, Cursor
from trustjudge_ray.corpus.objects import BrokenStreamError, Entry, Rejection, from_lines, line_entry, split_lines

_LONGEST_CELL: Final = 1 << 28
_NOT_UTF8: Final = re.compile("[\udc80-\udcff]")
_NOTHING_AFTER: Final = "nothing after this place was read"
_BEGINNING: Final = 4096
"""So many bytes decide what a file is."""
_NUMBER: Final = rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_AN_ARRAY: Final = re.compile(rb'\[\s*(?:\Z|[\[\]{"]|(?:null|true|false|NaN|' + _NUMBER + rb")\s*(?:\Z|[,\]]))")
_OVER_LINES: Final = re.compile(rb'\{[ \t\r]*\n\s*["}]')


def from_json(chunks: Iterable[bytes]) -> Iterator[Entry]:
    """The entries of a JSON file, which its beginning says: of an array, of objects over several lines, or of JSON
    Lines. A first line that has a bracket and is no array (`[INFO] started`) hides no line after it."""
    chunks = iter(chunks)
    read: list[bytes] = []
    beginning = b""
    try:
        while len(beginning) < _BEGINNING and (chunk := next(chunks, None)) is not None:
            read.append(chunk)
            beginning = b"".join(read).removeprefix(codecs.BOM_UTF8).lstrip()
    except BrokenStreamError as error:
        chunks = _broken(error)
    chunks = itertools.chain(read, chunks)
    if _AN_ARRAY.match(beginning):
        return from_array(chunks)
    return from_objects(chunks) if _OVER_LINES.match(beginning) else from_lines(chunks)


def from_array(chunks: Iterable[bytes]) -> Iterator[Entry]:
    """The elements of a JSON array, and of others behind it; what else comes behind it as lines."""
    cursor, number = Cursor(_Stream(chunks)), 0
    try:
        again = True
        while again:
            for element in _elements(cursor):
                number += 1
                yield from _entry(element, number)
            again = cursor.peek() == "["
        if cursor.peek():
            yield from from_lines(cursor.rest(), cursor.line)
    except (BrokenJson, BrokenStreamError) as error:
        yield _breaks_off(error, number + 1, "the JSON array")


def from_objects(chunks: Iterable[bytes]) -> Iterator[Entry]:
    """JSON objects one after the other, however many lines each has."""
    cursor = Cursor(_Stream(chunks))
    try:
        while cursor.peek():
            line = cursor.line
            yield from _entry(cursor.text().encode("utf-8", "surrogateescape"), line)
    except (BrokenJson, BrokenStreamError) as error:
        yield _breaks_off(error, cursor.line, "an object over several lines")


def from_csv(chunks: Iterable[bytes], texts: Collection[str] = (), delimiter: str = ",") -> Iterator[Entry]:
    """The rows of a CSV file in UTF-8, blank lines left out."""
    csv.field_size_limit(_LONGEST_CELL)
    rows = csv.reader(_decoded(chunks), strict=True, delimiter=delimiter)
    names: list[str] | None = None
    line = 1
    try:
        for cells in rows:
            begun, line = line, rows.line_num + 1
            if not cells:
                continue
            if names is not None:
                yield _row(cells, names, texts, begun, delimiter)
                continue
            names = [name or f"column {number}" for number, name in enumerate(cells, 1)]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                yield Entry(begun, Rejection("duplicate_key", f"the header names two columns {twice[0]!r}"))
                return
            if any(map(_NOT_UTF8.search, names)):
                yield Entry(begun, Rejection("invalid_utf8", "the header is not UTF-8; save the file as UTF-8"))
                return
    except csv.Error as error:
        said = "line ends are carriage returns only; convert to \\n" if "new-line character" in str(error) else error
        yield Entry(line, Rejection("invalid_csv", f"{said}, in the row that begins here; {_NOTHING_AFTER}"))
    except BrokenStreamError as error:
        yield Entry(line, Rejection("damaged_file", f"{error}; {_NOTHING_AFTER}"))


def _row(cells: list[str], names: list[str], texts: Collection[str], line: int, delimiter: str) -> Entry:
    raw = delimiter.join(cells).encode("utf-8", "surrogateescape")
    content: dict[str, Any] | Rejection
    if len(cells) != len(names):
        content = Rejection("wrong_columns", f"the header names {len(names)} columns, this row has {len(cells)}")
    elif any(map(_NOT_UTF8.search, cells)):
        name = next(name for name, cell in zip(names, cells, strict=True) if _NOT_UTF8.search(cell))
        content = Rejection("invalid_utf8", f"column {name!r} is not UTF-8; save the file as UTF-8")
    else:
        pairs = zip(names, cells, strict=True)
        content = {name: cell if cell or name in texts else None for name, cell in pairs}
    return Entry(line, content, raw, size=len(raw))


def _decoded(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines with their endings; bytes that are not UTF-8 as lone surrogates."""
    for number, (line, ended) in enumerate(split_lines(chunks)):
        line = line if number else line.removeprefix(codecs.BOM_UTF8)
        yield line.decode("utf-8", "surrogateescape") + ("\n" if ended else "")


def _elements(cursor: Cursor) -> Iterator[bytes]:
    """The elements of one array as they are written."""
    cursor.take("[")
    if cursor.peek() != "]":
        while True:
            yield cursor.text().encode("utf-8", "surrogateescape")
            if cursor.peek() == "]":
                break
            cursor.take(",")
            if cursor.peek() == "]":
                raise BrokenJson(f"line {cursor.line}: a comma and no element behind it")
    cursor.take("]")


def _entry(value: bytes, number: int) -> Iterator[Entry]:
    entry = line_entry(value, number)
    if entry is not None:
        yield entry


def _breaks_off(error: BrokenJson | BrokenStreamError, number: int, what: str) -> Entry:
    if isinstance(error, BrokenStreamError):
        return Entry(number, Rejection("damaged_file", f"{error}; {_NOTHING_AFTER}"))
    return Entry(number, Rejection("invalid_json", f"{what}, {error}; {_NOTHING_AFTER}"))


def _broken(error: BrokenStreamError) -> Iterator[bytes]:
    raise error
    yield b""


class _Stream:
    """Chunks of bytes as a stream to read from, as `Cursor` does."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)

    def read(self, size: int) -> bytes:
        """At least so many bytes, fewer only at the end."""
        read: list[bytes] = []
        while size > 0 and (chunk := next(self._chunks, None)) is not None:
            read.append(chunk)
            size -= len(chunk)
        return b"".join(read)
