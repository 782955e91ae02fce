"""Large JSON files read one element at a time: a question of a reference file can be hundreds of megabytes.

A record is an object; a file holds one a line, or all in one array. The elements of one named array inside
each record are handed out singly, so that memory follows the largest element, not the file.
"""

import codecs
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

_SPACE = " \t\r\n"
_OF_NUMBERS = "0123456789+-.eE"
_CHUNK = 1 << 20
_NEAR_END = 16
"""An error this close to what has been read so far may be a value cut in two (`tru`, `\\u12`, `-`)."""
_DECODER = json.JSONDecoder()
_MEASURE = json.JSONDecoder(parse_int=len, parse_float=len, strict=False)
"""Finds the end of a value, whatever its numbers, and whatever characters its texts hold."""


class BrokenJson(ValueError):
    """The text is not JSON from here on."""


class Readable(Protocol):
    """What bytes are read from."""

    def read(self, size: int, /) -> bytes:
        """Some `size` bytes; none only at the end."""


@dataclass(frozen=True, slots=True)
class Element:
    """One element of the array, and the fields of its record that came before it."""

    line: int
    head: dict[str, Any]
    value: Any


@dataclass(frozen=True, slots=True)
class End:
    """A record has been read to its end; `fields` are all but the array."""

    line: int
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Broken:
    """The record that begins in this line could not be read from some place on."""

    line: int
    detail: str


@dataclass
class Cursor:
    """A place in a JSON text that is read piece by piece.

    Attributes:
        line: where it is, from 1.
        one_line: whether what is being read must end in this line.
    """

    stream: Readable
    line: int = 1
    one_line: bool = False
    _text: str = ""
    _at: int = 0
    _ended: bool = False
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
    )

    def peek(self) -> str:
        """The next character that is not white space, without taking it; empty at the end."""
        while True:
            for at in range(self._at, len(self._text)):
                self._at = at
                if self._text[at] not in _SPACE:
                    return self._text[at]
                if self._text[at] == "\n":
                    self._end_of_line()
                    self.line += 1
            self._at = len(self._text)
            if not self._fill():
                return ""

    def take(self, wanted: str) -> None:
        """Take one character that must be `wanted`."""
        got = self.peek()
        if got != wanted:
            raise BrokenJson(f"line {self.line}: got {got or 'the end of the file'!r} where {wanted!r} is meant")
        self._at += 1

    def value(self) -> Any:
        """Take one whole value."""
        return self._take_value(_DECODER)[0]

    def text(self) -> str:
        """Take one whole value as it is written; bytes that are not UTF-8 are lone surrogates there. What it means is
        left to another decoder: numbers may have any length."""
        return self._take_value(_MEASURE)[1]

    def rest(self) -> Iterator[bytes]:
        """All that was not taken, as the bytes that it was."""
        yield self._text[self._at :].encode("utf-8", "surrogateescape") + self._decoder.getstate()[0]
        while chunk := self.stream.read(_CHUNK):
            yield chunk

    def _take_value(self, decoder: json.JSONDecoder) -> tuple[Any, str]:
        self.peek()
        while True:
            try:
                value, end = decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated") or error.pos >= len(self._text) - _NEAR_END
                if cut and not (self.one_line and self._text.find("\n", self._at) >= 0) and self._fill():
                    continue
                what = "the file ends inside a value" if cut and self._ended else error.msg
                line = self.line + self._text.count("\n", self._at, error.pos)
                raise BrokenJson(f"line {line}: {what}") from error
            except RecursionError as error:
                raise BrokenJson(f"line {self.line}: nested too deeply") from error
            except ValueError as error:
                raise BrokenJson(f"line {self.line}: a number that is too long: {error}") from error
            if not self._text[end : end + _NEAR_END].strip(_OF_NUMBERS) and self._fill():
                continue  # a number may go on
            breaks = self._text.count("\n", self._at, end)
            if breaks:
                self._end_of_line()
            self.line += breaks
            written, self._at = self._text[self._at : end], end
            return value, written

    def first_key_of(self, wanted: Collection[str]) -> str | None:
        """Which of these keys the first record has first."""
        if self.peek() == "[":
            self.take("[")
        for key in _members(self) if self.peek() else ():
            if key in wanted:
                return key
            self.value()
        return None

    def _end_of_line(self) -> None:
        if self.one_line:
            raise BrokenJson(f"line {self.line}: the line ends inside the record")

    def skip_line(self) -> bool:
        """Go behind the next line break; False if there is none."""
        while (end := self._text.find("\n", self._at)) < 0:
            self._at = len(self._text)
            if not self._fill():
                return False
        self._at, self.line = end + 1, self.line + 1
        return True

    def _fill(self) -> bool:
        """Read on, at least doubling what is kept, so that a long value is tried few times."""
        if self._ended:
            return False
        self._text, self._at = self._text[self._at :], 0
        chunk = self.stream.read(max(_CHUNK, len(self._text)))
        self._ended = not chunk
        self._text += self._decoder.decode(chunk, final=self._ended)
        return not self._ended or self._at < len(self._text)


def walk(stream: Readable, array: str, needed: Collection[str] = ()) -> Iterator[Element | End | Broken]:
    """The elements of the array called `array` of every record, each record closed by `End` or `Broken`.

    Where one of the fields `needed` comes only after the array, the record is read whole. After a broken
    record a file of lines goes on with the next line; a file that is one array ends there.
    """
    cursor = Cursor(stream)
    listed = cursor.peek() == "["
    if listed:
        cursor.take("[")
    while (got := cursor.peek()) and not (listed and got == "]"):
        line, cursor.one_line = cursor.line, not listed
        try:
            yield from _record(cursor, line, array, needed)
            if listed and cursor.peek() != "]":
                cursor.take(",")
        except BrokenJson as error:
            yield Broken(line, str(error))
            if listed or not cursor.skip_line():
                return
        finally:
            cursor.one_line = False


def _record(cursor: Cursor, line: int, array: str, needed: Collection[str]) -> Iterator[Element | End]:
    fields: dict[str, Any] = {}
    whole: list[Any] | None = None
    for key in _members(cursor):
        if key == array and set(needed) <= set(fields) and cursor.peek() == "[":
            for _ in _items(cursor, "[", "]"):
                yield Element(line, fields, cursor.value())
        elif key == array:
            whole = cursor.value()
        else:
            fields[key] = cursor.value()
    for value in whole if isinstance(whole, list) else ():
        yield Element(line, fields, value)
    yield End(line, fields)


def _members(cursor: Cursor) -> Iterator[str]:
    """The keys of an object; whoever iterates takes each value before going on."""
    for _ in _items(cursor, "{", "}"):
        if cursor.peek() != '"':
            raise BrokenJson(f"line {cursor.line}: got {cursor.peek()!r} where a key is meant")
        key = cursor.value()
        cursor.take(":")
        yield key


def _items(cursor: Cursor, opening: str, closing: str) -> Iterator[None]:
    """One step for each part between the brackets; the commas and brackets are taken here."""
    cursor.take(opening)
    if cursor.peek() == closing:
        cursor.take(closing)
        return
    while True:
        yield
        if cursor.peek() == closing:
            cursor.take(closing)
            return
        cursor.take(",")
