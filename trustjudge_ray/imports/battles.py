"""Battles, as LMArena and its relatives publish them: two models, and which of them a person preferred.

JSON Lines, one JSON array, CSV or Parquet. A row has `model_a` (shown first), `model_b` and `winner`, or instead of
that `winner_model_a`, `winner_model_b` and `winner_tie` (one of them 1). Outcome words are taken exactly as written.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from trustjudge_ray.corpus.json_stream import Broken, Cursor, End, walk
from trustjudge_ray.corpus.objects import Entry, Rejection, Unheld, compact_json, from_batch, from_lines, sayable
from trustjudge_ray.identity import id_key, joined_hash
from trustjudge_ray.imports.base import (
    Asked,
    Imported,
    ImportFileError,
    Unusable,
    batches,
    chunks,
    clean_text,
    compare_protocol,
    first_of,
    id_text,
    quarantined,
    read_row,
    usable,
)

OUTCOMES: Final[Mapping[str, str]] = {
    "model_a": "A",
    "model_b": "B",
    "tie": "C",
    "tie (bothbad)": "C",
    "bothbad": "C",
    "both_bad": "C",
}
"""The words that `winner` may hold; both bad is a tie."""
ID_COLUMNS: Final = ("question_id", "prompt_id", "id", "battle_id", "conversation_id")
"""Of these columns the first that a row has says what was asked."""
_READ: Final = ("model_a", "model_b", "winner", "judge", "category", *ID_COLUMNS)
_ONE_HOT: Final = {"winner_model_a": "model_a", "winner_model_b": "model_b", "winner_tie": "tie"}
_LONGEST_FIELD: Final = 1 << 28
"""Characters in one field of a CSV file: whole conversations lie in them."""
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_RATER = re.compile(r"(arena_user|annotator|author|expert|rater|user|worker)_\w+")
"""Names in `judge` that stand for single people, who are one judge here: `human`."""


def read(files: Mapping[str, BinaryIO], judge: str | None = None) -> Imported:
    """Read battles from open streams; the kind of file is the ending of its name (.csv, .parquet, otherwise JSON).

    - The judge is `judge`, or what the column `judge` says, or `human` (also for people's own names there).
    - Response ids are the model names. The question is the first of `ID_COLUMNS`; a row without one is a question of
      its own, named by file and line, so that intervals treat it as independent of all others.
    - A row with an id that is the same in every column as one before it is the same vote again: quarantined as
      `duplicate_row`. Other votes of one judge on the same question, pair and order are samples, averaged by the
      analysis: one game.
    - A battle of a model with itself is quarantined as `same_model`.

    About 200 bytes of memory for each row that has an id.

    Raises (while `judgments` is read):
        ImportFileError: an outcome is none of `OUTCOMES` (it is not skipped: it may be what half the file says), a
            Parquet file is damaged, or a CSV file is not UTF-8.
    """
    reader = _Reader(judge, {"battles": compare_protocol("battles")})
    return Imported(batches(reader.rows(files), reader.quarantine), reader.protocols, quarantine_rows=reader.quarantine)


@dataclass
class _Reader:
    judge: str | None
    protocols: dict[str, Any]
    quarantine: list[dict[str, Any]] = field(default_factory=list)
    votes: Counter[str] = field(default_factory=Counter)
    seen: set[str] = field(default_factory=set)

    def rows(self, files: Mapping[str, BinaryIO]) -> Iterator[dict[str, Any]]:
        for name, stream in files.items():
            for line, battle in usable(name, _entries(name, stream), _battle, self.quarantine):
                if battle.outcome not in OUTCOMES:
                    got = "nothing" if battle.outcome is None else repr(battle.outcome)
                    raise ImportFileError(f"{name}, line {line}: winner: got {got}; one of {', '.join(OUTCOMES)}")
                if battle.row_hash in self.seen:
                    detail = "the same in every column as a row before it; that one stays"
                    self.quarantine.append(quarantined(name, line, "duplicate_row", detail))
                    continue
                if battle.row_hash:
                    self.seen.add(battle.row_hash)
                yield self._judgment(battle, battle.question or f"{name}:{line}")

    def _judgment(self, battle: "_Battle", question: str) -> dict[str, Any]:
        a, b = sorted(battle.models, key=id_key(list(battle.models)))
        order = "AB" if a == battle.models[0] else "BA"
        judge = self.judge or battle.judge
        key = joined_hash(judge, question, a, b, order)[:16]
        asked = Asked(judge, self.protocols["battles"], question, battle.category, a, b, order, self.votes[key])
        if battle.question:
            self.votes[key] += 1
        said = OUTCOMES[battle.outcome or ""]
        return read_row(asked, {label: float(label == said) for label in "ABC"}, said)


@dataclass(frozen=True, slots=True)
class _Battle:
    """One row. `models` in the order shown; `question` and `row_hash` (of all its columns) None without an id."""

    models: tuple[str, str]
    outcome: str | None
    question: str | None
    judge: str
    category: str | None
    row_hash: str | None


def _battle(row: dict[str, Any]) -> _Battle:
    for name in (*_READ, *_ONE_HOT):
        value = row.get(name)
        if isinstance(value, Unheld):
            raise Unusable(value.reason, f"{name}: {value.detail}")
    models = (id_text(row["model_a"], "model_a"), id_text(row["model_b"], "model_b"))
    if models[0] == models[1]:
        raise Unusable("same_model", f"{models[0]} meets itself")
    id_column = first_of(ID_COLUMNS, row)
    judge = row.get("judge")
    if isinstance(judge, str) and judge != clean_text(judge):
        raise Unusable("invalid_utf8", f"judge: {judge!r} is not UTF-8")
    if not isinstance(judge, str) or not judge or _RATER.fullmatch(judge):
        judge = "human"
    category = row.get("category")
    return _Battle(
        models,
        _outcome(row),
        id_text(row[id_column], id_column) if id_column else None,
        judge,
        clean_text(category) if isinstance(category, str) and category else None,
        joined_hash(clean_text(compact_json(sayable([list(item) for item in sorted(row.items())])[0])))
        if id_column
        else None,
    )


def _outcome(row: dict[str, Any]) -> str | None:
    """The outcome as the row says it; where three columns say it, the word for the one that is set."""
    if "winner" in row:
        value = row["winner"]
        return value if value is None or isinstance(value, str) else compact_json(value)
    missing = [name for name in _ONE_HOT if name not in row]
    if missing:
        raise KeyError("winner" if len(missing) == len(_ONE_HOT) else missing[0])
    marks = {name: str(row[name]).lower() in ("1", "1.0", "true") for name in _ONE_HOT}
    if sum(marks.values()) != 1:
        return " ".join(f"{name}={row[name]}" for name in _ONE_HOT)
    return next(_ONE_HOT[name] for name, mark in marks.items() if mark)


def _entries(name: str, stream: BinaryIO) -> Iterator[Entry]:
    if name.lower().endswith(".csv"):
        yield from _csv_entries(name, stream)
    elif name.lower().endswith(".parquet"):
        yield from _parquet_entries(name, stream)
    elif name.lower().endswith(".json") and _is_array(stream):
        for event in walk(stream, array=""):
            if isinstance(event, End):
                yield Entry(event.line, event.fields)
            elif isinstance(event, Broken):
                yield Entry(event.line, Rejection("invalid_json", f"{event.detail}; nothing after this place was read"))
    else:
        yield from from_lines(chunks(stream))


def _is_array(stream: BinaryIO) -> bool:
    first = Cursor(stream).peek()
    stream.seek(0)
    return first == "["


def _parquet_entries(name: str, stream: BinaryIO) -> Iterator[Entry]:
    first = 1
    try:
        for batch in pq.ParquetFile(stream).iter_batches(1024):
            yield from from_batch(batch, first)
            first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
            raise  # the disk's or the store's, not the file's
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        place = "" if first == 1 else f" after row {first - 1}"
        raise ImportFileError(f"{name}: not a readable Parquet file{place}, damaged or cut off? ({said})") from error


def _utf8_lines(name: str, text: Iterable[str]) -> Iterator[str]:
    """Lines that were decoded with surrogates for bytes that are not UTF-8; the first such byte ends the import."""
    for number, line in enumerate(text, 1):
        bad = None if line.isascii() else _NOT_UTF8.search(line)
        if bad:
            byte = f"0x{ord(bad[0]) & 0xFF:02x}"
            raise ImportFileError(f"{name}, line {number}: {byte} is not UTF-8; save it as UTF-8")
        yield line


def _csv_entries(name: str, stream: BinaryIO) -> Iterator[Entry]:
    csv.field_size_limit(_LONGEST_FIELD)
    text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
    rows = csv.DictReader(_utf8_lines(name, text), strict=True)
    line = 1
    try:
        for row in rows:
            content: dict[str, Any] | Rejection = row
            if None in row or None in row.values():
                columns = len(rows.fieldnames or [])
                content = Rejection("wrong_columns", f"the header names {columns} columns, this row has more or fewer")
            yield Entry(line + 1, content, str(row).encode("utf-8", "replace"))
            line = rows.line_num
    except csv.Error as error:
        yield Entry(line + 1, Rejection("invalid_csv", f"{error}; nothing after this place was read"))
    finally:
        text.detach()
