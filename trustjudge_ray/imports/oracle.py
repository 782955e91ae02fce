"""The neutral form: `questions.jsonl`, `single.jsonl` and `pairwise.jsonl`, with one reading a line.

The rows hold what a judge said after its verdict was found: `probs` (token → probability) and `sampled`. See
`tests/data/oracle/README.md`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from trustjudge_ray.corpus.objects import from_lines
from trustjudge_ray.identity import id_key
from trustjudge_ray.imports.base import (
    Asked,
    Imported,
    ImportFileError,
    Unusable,
    batches,
    chunks,
    compare_protocol,
    failed,
    id_text,
    number,
    quarantined,
    read_row,
    score_protocol,
    usable,
    whole,
)
from trustjudge_ray.imports.extraction import clean, merged

FILES: Final = ("questions.jsonl", "single.jsonl", "pairwise.jsonl")
"""What is read of a folder; questions may be missing, and one of the other two."""
_STATUSES: Final = ("unparseable", "missing")
_LARGEST_SCALE: Final = 1000
_TURNED: Final[Mapping[str, bool]] = {"1": False, "1.0": False, "2": True, "2.0": True}
"""What `order` may be, written as text, and whether j was shown first."""


def read(files: Mapping[str, BinaryIO], judge: str | None = None) -> Imported:
    """Read the neutral form from open streams, told apart by their file names (`FILES`; others are left alone).

    Pairs that were never asked because of an empty response become rows with the status `empty_response`.

    Raises:
        ImportFileError: neither single.jsonl nor pairwise.jsonl is there, one of `FILES` is there twice, or (while
            read) they hold no judgment.
    """
    streams: dict[str, tuple[str, BinaryIO]] = {}
    for name, stream in files.items():
        first, _ = streams.setdefault(name.rsplit("/", 1)[-1], (name, stream))
        if first != name and name.rsplit("/", 1)[-1] in FILES:
            raise ImportFileError(f"{name}: {first} is read too; import one folder at a time, each to its own run")
    if not {"single.jsonl", "pairwise.jsonl"} & set(streams):
        raise ImportFileError(f"{', '.join(files) or 'no file'}: the neutral form has {' and '.join(FILES[1:])}")
    reader = _Reader(judge or "oracle", {}, [], {})
    return Imported(
        batches(reader.rows(streams), reader.quarantine), reader.protocols, quarantine_rows=reader.quarantine
    )


@dataclass
class _Question:
    category: str | None
    responses: int
    empty: frozenset[str]


@dataclass
class _Reader:
    judge: str
    protocols: dict[str, Any]
    quarantine: list[dict[str, Any]]
    questions: dict[str, _Question]

    def rows(self, streams: Mapping[str, tuple[str, BinaryIO]]) -> Iterator[dict[str, Any]]:
        """JUDGMENTS rows, those of pairs that were never asked last."""
        for name, stream in filter(None, [streams.get(FILES[0])]):
            for _ in usable(name, from_lines(chunks(stream)), self._question, self.quarantine):
                pass
        seen: set[str] = set()
        for file, build in ((FILES[1], self._single), (FILES[2], self._pair)):
            for name, stream in filter(None, [streams.get(file)]):
                for line, row in usable(name, from_lines(chunks(stream)), build, self.quarantine):
                    if row["task_id"] in seen:
                        detail = "this judgment was there before; the first one stays"
                        self.quarantine.append(quarantined(name, line, "duplicate_judgment", detail, str(row)))
                        continue
                    seen.add(row["task_id"])
                    yield row
        if FILES[2] in streams:
            yield from (row for row in self._never_asked() if row["task_id"] not in seen)

    def _question(self, record: dict[str, Any]) -> None:
        question = id_text(record["question_id"], "question_id")
        if question in self.questions:
            raise Unusable("duplicate_row", f"question {question} is there twice; the first one stays")
        category = record.get("category")
        if category is not None and not isinstance(category, str):
            raise Unusable("invalid_value", f"category: got {category!r}; a text or null")
        empty = frozenset(id_text(r, "empty_responses") for r in record.get("empty_responses") or [])
        self.questions[question] = _Question(category, whole(record["n_responses"], "n_responses"), empty)

    def _single(self, record: dict[str, Any]) -> dict[str, Any]:
        scale = whole(record["scale"], "scale")
        if not 2 <= scale <= _LARGEST_SCALE:
            raise Unusable("invalid_value", f"scale: got {scale!r}; a whole number from 2 to {_LARGEST_SCALE}")
        protocol = self.protocols.setdefault(f"score-{scale}", score_protocol(scale))
        question = id_text(record["question_id"], "question_id")
        response = id_text(record["response_id"], "response_id")
        return _reading(Asked(self.judge, protocol, question, self._category(question), response), record)

    def _pair(self, record: dict[str, Any]) -> dict[str, Any]:
        turned = _TURNED.get(str(record["order"]).strip())
        if turned is None:
            raise Unusable("invalid_value", f"order: got {record['order']!r}; 1 (i shown first) or 2")
        shown = [id_text(record["i"], "i"), id_text(record["j"], "j")]
        if turned:
            shown.reverse()
        return _reading(self._asked(id_text(record["question_id"], "question_id"), shown), record)

    def _never_asked(self) -> Iterator[dict[str, Any]]:
        for question, about in self.questions.items():
            for i in range(about.responses):
                for j in range(i + 1, about.responses):
                    empty = sorted(about.empty & {str(i), str(j)}, key=id_key(list(about.empty)))
                    for shown in ([str(i), str(j)], [str(j), str(i)]) if empty else ():
                        detail = f"response {' and '.join(empty)} is empty: the pair was never asked"
                        yield failed(self._asked(question, shown), "empty_response", detail)

    def _asked(self, question: str, shown: list[str]) -> Asked:
        first, second = shown
        if first == second:
            raise Unusable("invalid_value", f"response {first} is compared with itself")
        a, b = sorted(shown, key=id_key(shown))
        protocol = self.protocols.setdefault("compare", compare_protocol())
        return Asked(self.judge, protocol, question, self._category(question), a, b, "AB" if a == first else "BA")

    def _category(self, question: str) -> str | None:
        about = self.questions.get(question)
        return about.category if about else None


def _reading(asked: Asked, record: dict[str, Any]) -> dict[str, Any]:
    status = record["status"]
    if status in _STATUSES:
        return failed(asked, status, f"the judge's output is {status}, says the file")
    if status != "ok":
        raise Unusable("invalid_value", f"status: got {status!r}; ok, {' or '.join(_STATUSES)}")
    numbers = {token: number(p) for token, p in record["probs"].items()}
    probs = {token: p for token, p in numbers.items() if p is not None}
    if len(probs) < len(numbers):
        return failed(asked, "bad_logprob", f"{sorted(set(numbers) - set(probs))[0]!r} has no number")
    tokens, cumulative = record.get("token_count"), record.get("cumulative_logprob")
    logprob = number(cumulative)
    if cumulative is not None and (logprob is None or math.isinf(logprob)):
        raise Unusable("invalid_value", f"cumulative_logprob: got {cumulative!r}; a number or null")
    return read_row(
        asked,
        merged(probs.items()),
        clean(record["sampled"]),
        logprob,
        None if tokens is None else whole(tokens, "token_count"),
    )
