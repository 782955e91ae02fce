"""One response for each key, one question for each id: what stays when rows of several files meet.

Rows are taken in the order of their places (source, then line), whatever their order in the table. A question's
messages, reference and category belong to all its rows: a row that does not give one takes it from the others.

- Rows of one key (question_id, response_id) that say the same: the first stays, the others are `duplicate_row`.
  meta_json and category make no difference, and what only one of them gives is no difference. If any differs,
  nobody knows which is meant: all are `conflicting_duplicate`.
- Rows of one question that show another question would be compared as answers to one: of the rows that are left,
  those whose messages differ from the first ones given are `conflicting_question`; likewise another reference.
- No judge reads a category, so it costs no answer: the first one given counts for the whole question, and a row that
  gave another is flagged `category_differs` in meta_json.

The flag `no_question` of a row that took its question from another stays: it says what the row's file held.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from trustjudge_ray.corpus.objects import RAW_CHARACTERS, compact_json
from trustjudge_ray.schema import PLACED_RESPONSES, QUARANTINE, RESPONSES, check, from_rows

_OF_THE_ANSWER: Final = [
    name
    for name in RESPONSES.names
    if name not in ("question_id", "response_id", "meta_json", "messages", "reference", "category")
]
_OF_THE_QUESTION: Final = {"messages": "question", "reference": "reference", "category": "category"}
_CATEGORY_DIFFERS: Final = "category_differs"
_SLICE = 8192

Places = list[tuple[str, int]]
Given = dict[str, list[bytes | None]]
"""By column of the question, a hash of what each row gives; None where it gives nothing."""
Reasons = dict[int, tuple[str, str]]
"""Row → reason and detail, for the rows that go."""


def deduplicate(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Part PLACED_RESPONSES rows into those that stay, in the table's order, and QUARANTINE rows for the rest.

    All rows of a question must be in the table: it may be the corpus, or one bucket of questions.
    """
    rows = check(rows, PLACED_RESPONSES)
    places = list(zip(rows["source"].to_pylist(), rows["line"].to_pylist(), strict=True))
    keys = list(zip(rows["question_id"].to_pylist(), rows["response_id"].to_pylist(), strict=True))
    order = sorted(range(len(keys)), key=lambda i: (*places[i], keys[i]))
    given: Given = {column: _digests(rows, column) for column in _OF_THE_QUESTION}
    lenders = {column: list(range(len(keys))) for column in _OF_THE_QUESTION}
    out: Reasons = {}
    for group in _groups(order, keys):
        out |= _repeats(rows, group, given, places)
        for column, lender in lenders.items():
            lender[group[0]] = next((i for i in group if given[column][i] is not None), group[0])
    questions = [question for question, _ in keys]
    flagged: set[int] = set()
    for column, lender in lenders.items():
        left = [i for i in order if i not in out]
        differing = _settle(left, column, questions, given[column], lender, places)
        if column == "category":
            flagged = set(differing)
        else:
            out |= differing
    stay = [i for i in range(len(keys)) if i not in out]
    return _lent(rows, stay, given, lenders, flagged), _quarantine(rows, out, [i for i in order if i in out])


def _groups(order: list[int], keys: list[tuple[str, str]]) -> Iterator[list[int]]:
    """The rows of each key that more than one row has, in the order of their places."""
    first: dict[tuple[str, str], int] = {}
    repeated: dict[tuple[str, str], list[int]] = {}
    for i in order:
        if first.setdefault(keys[i], i) != i:
            repeated.setdefault(keys[i], [first[keys[i]]]).append(i)
    return iter(repeated.values())


def _repeats(rows: pa.Table, group: list[int], given: Given, places: Places) -> Reasons:
    """Reason and detail for the rows of one key that go."""
    contents = rows.select(_OF_THE_ANSWER).take(pa.array(group, pa.int64())).to_pylist()
    differs: dict[str, int] = {}
    for column in ("messages", "reference"):
        hashes = [given[column][i] for i in group]
        known = next(filter(None, hashes), None)
        if any(digest not in (None, known) for digest in hashes):
            differs[column] = next(n for n, digest in enumerate(hashes) if digest not in (None, known))
    for column in _OF_THE_ANSWER:
        other = next((n for n, content in enumerate(contents) if content[column] != contents[0][column]), None)
        if other is not None:
            differs[column] = other
    if not differs:
        return {i: ("duplicate_row", f"repeats {_at(places[group[0]])}") for i in group[1:]}
    names = ", ".join(name for name in RESPONSES.names if name in differs)
    detail = (
        f"{_at(places[group[0]])} and {_at(places[group[min(differs.values())]])} have the same question and response "
        f"id ({len(group)} rows do) and another {names}"
    )
    return dict.fromkeys(group, ("conflicting_duplicate", detail))


def _settle(
    order: list[int],
    column: str,
    questions: list[str],
    given: Sequence[bytes | None],
    lender: list[int],
    places: Places,
) -> Reasons:
    """Let every row take a column of the question from the first row that gives it, `lender` saying from which.

    Returns:
        Reason and detail for the rows that gave something else.
    """
    first: dict[str, int] = {}
    for i in order:
        if given[lender[i]] is not None:
            first.setdefault(questions[i], i)
    differing: Reasons = {}
    for i in order:
        known = first.get(questions[i])
        if known is None:
            continue
        if given[lender[i]] not in (None, given[lender[known]]):
            noun = _OF_THE_QUESTION[column]
            detail = f"{_at(places[i])} has another {noun} than {_at(places[known])}, under one question_id"
            differing[i] = ("conflicting_question", detail)
        lender[i] = lender[known]
    return differing


def _digests(rows: pa.Table, column: str) -> list[bytes | None]:
    """A hash of each row's value; None where there is none."""
    digests: list[bytes | None] = []
    for batch in rows.select([column]).to_batches(max_chunksize=_SLICE):
        for value in batch.column(0).to_pylist():
            if not value:
                digests.append(None)
                continue
            written = value if isinstance(value, str) else json.dumps(value)
            digests.append(hashlib.blake2b(written.encode("utf-8"), digest_size=16).digest())
    return digests


def _lent(rows: pa.Table, stay: list[int], given: Given, lenders: dict[str, list[int]], flagged: set[int]) -> pa.Table:
    """The rows that stay, with what they take from others, and with the flag where their category was another."""
    changes: dict[str, dict[int, Any]] = {}
    for column, lender in lenders.items():
        digests = given[column]
        changed = {n: lender[i] for n, i in enumerate(stay) if digests[i] != digests[lender[i]]}
        lent = _values(rows, column, set(changed.values()))
        changes[column] = {n: lent[i] for n, i in changed.items()}
    metas = _values(rows, "meta_json", flagged.intersection(stay))
    changes["meta_json"] = {n: with_flag(metas[i], _CATEGORY_DIFFERS) for n, i in enumerate(stay) if i in flagged}
    staying = set(stay)
    kept = rows if len(stay) == len(rows) else rows.filter(pa.array([i in staying for i in range(len(rows))]))
    for column, new in changes.items():
        if new:
            place = kept.schema.get_field_index(column)
            kept = kept.set_column(place, kept.schema.field(column), put(kept, column, new))
    return kept


def _values(rows: pa.Table, column: str, wanted: set[int]) -> dict[int, Any]:
    places = sorted(wanted)
    found = rows.select([column]).take(pa.array(places, pa.int64())).column(0).to_pylist()
    return dict(zip(places, found, strict=True))


def with_flag(meta_json: str | None, flag: str) -> str:
    """A row's meta_json with one more flag."""
    meta = json.loads(meta_json or "{}")
    return compact_json(meta | {"flags": [*meta.get("flags", []), flag]})


def put(rows: pa.Table, column: str, new: dict[int, Any]) -> pa.ChunkedArray:
    """A column with other values at some rows; slices without any are left as they are."""
    parts, start = [], 0
    for batch in rows.select([column]).to_batches(max_chunksize=_SLICE):
        part = batch.column(0)
        here = [n for n in range(start, start + len(part)) if n in new]
        if here:
            values = part.to_pylist()
            for n in here:
                values[n - start] = new[n]
            part = pa.array(values, part.type)
        parts.append(part)
        start += batch.num_rows
    return pa.chunked_array(parts, rows.schema.field(column).type)


def _quarantine(rows: pa.Table, out: Reasons, order: list[int]) -> pa.Table:
    kept = rows.select(["source", "line", "question_id", "response_id", "replies"]).take(pa.array(order, pa.int64()))
    bad: list[dict[str, Any]] = []
    for i, row in zip(order, kept.to_pylist(), strict=True):
        place = {"source": row.pop("source"), "line": row.pop("line")}
        reason, detail = out[i]
        bad.append(place | {"reason": reason, "detail": detail, "raw": compact_json(row)[:RAW_CHARACTERS]})
    return from_rows(bad, QUARANTINE)


def _at(place: tuple[str, int]) -> str:
    return f"{place[0]}:{place[1]}"
