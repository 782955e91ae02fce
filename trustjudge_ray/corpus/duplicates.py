"""One response for each key, one question for each id: what stays when rows of several files meet.

Rows are taken in the order of their places (source, then line), whatever their order in the table.

- Rows of one key (question_id, response_id) that are equal in every column of RESPONSES but meta_json: the first
  stays, the others are `duplicate_row`. If any differs, nobody knows which is meant: all are `conflicting_duplicate`.
- Rows of one question that show another question would be compared as answers to one: of the rows that are left,
  those whose messages differ from the first row with messages are `conflicting_question`, also those without
  messages; likewise a reference or a category that differs from the first one given. Rows without a reference
  or without a category are no conflict, and stay without.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from trustjudge_ray.corpus.objects import RAW_CHARACTERS, compact_json
from trustjudge_ray.schema import PLACED_RESPONSES, QUARANTINE, RESPONSES, check, from_rows

_COMPARED = [name for name in RESPONSES.names if name not in ("question_id", "response_id", "meta_json")]
_OF_THE_QUESTION = {"messages": "question", "reference": "reference", "category": "category"}
_SLICE = 8192


def deduplicate(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Part PLACED_RESPONSES rows into those that stay, in the table's order, and QUARANTINE rows for the rest.

    All rows of a question must be in the table: it may be the corpus, or one bucket of questions.
    """
    rows = check(rows, PLACED_RESPONSES)
    places = list(zip(rows["source"].to_pylist(), rows["line"].to_pylist(), strict=True))
    keys = list(zip(rows["question_id"].to_pylist(), rows["response_id"].to_pylist(), strict=True))
    order = sorted(range(len(keys)), key=lambda i: (*places[i], keys[i]))
    out: dict[int, tuple[str, str]] = {}
    for group in _groups(order, keys):
        out |= _repeats(rows, group, places)
    for column in _OF_THE_QUESTION:
        left = [i for i in order if i not in out]
        out |= _conflicts(left, column, [question for question, _ in keys], _digests(rows, column), places)
    if not out:
        return rows, from_rows([], QUARANTINE)
    stay = rows.filter(pa.array([i not in out for i in range(len(keys))]))
    return stay, _quarantine(rows, out, [i for i in order if i in out])


def _groups(order: list[int], keys: list[tuple[str, str]]) -> Iterator[list[int]]:
    """The rows of each key that more than one row has, in the order of their places."""
    first: dict[tuple[str, str], int] = {}
    repeated: dict[tuple[str, str], list[int]] = {}
    for i in order:
        if first.setdefault(keys[i], i) != i:
            repeated.setdefault(keys[i], [first[keys[i]]]).append(i)
    return iter(repeated.values())


def _repeats(rows: pa.Table, group: list[int], places: list[tuple[str, int]]) -> dict[int, tuple[str, str]]:
    """Reason and detail for the rows of one key that go."""
    contents = rows.select(_COMPARED).take(pa.array(group, pa.int64())).to_pylist()
    other = next((n for n, content in enumerate(contents) if content != contents[0]), None)
    if other is None:
        return {i: ("duplicate_row", f"repeats {_at(places[group[0]])} in every column") for i in group[1:]}
    differs = [name for name in _COMPARED if contents[other][name] != contents[0][name]]
    detail = (
        f"{_at(places[group[0]])} and {_at(places[group[other]])} have the same question and response id "
        f"({len(group)} rows do) and another {', '.join(differs)}"
    )
    return dict.fromkeys(group, ("conflicting_duplicate", detail))


def _conflicts(
    order: list[int], column: str, questions: list[str], digests: list[bytes | None], places: list[tuple[str, int]]
) -> dict[int, tuple[str, str]]:
    """Reason and detail for the rows whose question is not that of the first row that has one."""
    first: dict[str, int] = {}
    for i in order:
        if digests[i] is not None:
            first.setdefault(questions[i], i)
    out = {}
    for i in order:
        known = first.get(questions[i])
        if known is None or digests[i] == digests[known] or (digests[i] is None and column != "messages"):
            continue
        noun = _OF_THE_QUESTION[column]
        differs = f"another {noun} than" if digests[i] is not None else f"no {noun}, unlike"
        detail = f"{_at(places[i])} has {differs} {_at(places[known])}, under one question_id"
        out[i] = ("conflicting_question", detail)
    return out


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


def _quarantine(rows: pa.Table, out: dict[int, tuple[str, str]], order: list[int]) -> pa.Table:
    kept = rows.select(["source", "line", "question_id", "response_id", "replies"]).take(pa.array(order, pa.int64()))
    bad: list[dict[str, Any]] = []
    for i, row in zip(order, kept.to_pylist(), strict=True):
        place = {"source": row.pop("source"), "line": row.pop("line")}
        reason, detail = out[i]
        bad.append(place | {"reason": reason, "detail": detail, "raw": compact_json(row)[:RAW_CHARACTERS]})
    return from_rows(bad, QUARANTINE)


def _at(place: tuple[str, int]) -> str:
    return f"{place[0]}:{place[1]}"
