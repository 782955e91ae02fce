"""The judgment files that the TrustJudge reference program writes.

A file holds one record for each question, with `candidate_answers` and `judgements`: of single answers
(`judgement`), or of pairs in both orders (`judgement_order1`, `judgement_order2`). A judgment lists, token by token
of the judge's whole output, the most probable tokens; `reading` finds the verdict among them.

A question may take hundreds of megabytes, so judgments are read one at a time.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

from trustjudge_ray.corpus.json_stream import BrokenJson, Cursor, Element, End, walk
from trustjudge_ray.identity import id_key, joined_hash
from trustjudge_ray.imports.base import (
    Asked,
    Imported,
    ImportFileError,
    Unusable,
    batches,
    clean_text,
    compare_protocol,
    failed,
    id_text,
    number,
    quarantined,
    read_row,
    score_protocol,
)
from trustjudge_ray.imports.extraction import Unreadable
from trustjudge_ray.imports.reading import output_text, read_judgment
from trustjudge_ray.judging.protocols import Protocol

_NAME = re.compile(r"([^/]+?)_(?:single_answer_grade_\d+_points|(?P<pairs>pairwise_comparison))\.[^/]*$")
_SCALE_IN_NAME = re.compile(r"(?:single|grade|scale)[a-z_-]*(\d+)[^/]*$|(\d+)[_-]?points?[^/]*$", re.IGNORECASE)
_SCALE_IN_PROMPT = re.compile(r"from \[?1\]?[ (a-z)]* to \[?(\d+)\]?", re.IGNORECASE)
"""`from [1] (poor) to [5](excellent)`, as the program's own prompts say it."""
_ARRAY: Final = "judgements"
_NEEDED: Final = ("question_id", "candidate_answers")
_ORDERS: Final = (("judgement_order1", False), ("judgement_order2", True))


def read(files: Mapping[str, BinaryIO], judge: str | None = None, scale: int | None = None) -> Imported:
    """Read the reference program's files from open, seekable streams by name.

    Which kind a file is, is seen in it; a file of questions (`answers` and no `judgements`) gives categories and
    human scores. Judge and scale are in the names that the program uses (`JUDGE_single_answer_grade_5_points.jsonl`,
    `JUDGE_pairwise_comparison.jsonl`). `judge` stands above a name, and is `trustjudge` without either; a scale that
    no name tells is read from the stored prompt, or is `scale`.

    Response ids are the program's indices, and so are the models: its files name none. A judgment that cannot
    be read is a row with the status `unparseable` (or `missing`: null in the file); a pair that was not asked because
    of an empty answer one with `empty_response`.

    Raises (while `judgments` is read):
        ImportFileError: a scale is not known, or two files hold different answers under one id.
    """
    reader = _Reader(judge, scale)
    return Imported(
        batches(reader.rows(files), reader.quarantine), reader.protocols, reader.responses, reader.quarantine
    )


@dataclass
class _File:
    name: str
    judge: str
    scale: int | None = None
    kind: str | None = None


@dataclass
class _Record:
    """A question in one file: its ids, and which of its judgments have been read."""

    head: dict[str, Any]
    question: str
    candidates: dict[str, str | None]
    asked: set[tuple[str, ...]] = field(default_factory=set)
    unusable: bool = False


@dataclass
class _Reader:
    judge: str | None
    scale: int | None
    protocols: dict[str, Protocol] = field(default_factory=dict)
    responses: list[dict[str, Any]] = field(default_factory=list)
    quarantine: list[dict[str, Any]] = field(default_factory=list)
    categories: dict[str, str] = field(default_factory=dict)
    human_scores: dict[tuple[str, str], float] = field(default_factory=dict)
    texts: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    seen: set[tuple[str, str, str]] = field(default_factory=set)

    def rows(self, files: Mapping[str, BinaryIO]) -> Iterator[dict[str, Any]]:
        """JUDGMENTS rows, file by file; files of questions are read first."""
        questions = [name for name, stream in files.items() if _holds_questions(stream)]
        for name in questions:
            self._read_questions(name, files[name])
        for name in files:
            if name not in questions:
                yield from self._judgments(name, files[name])

    def _read_questions(self, name: str, stream: BinaryIO) -> None:
        for event in walk(stream, _ARRAY):
            if not isinstance(event, End):
                self._refuse(name, event.line, "invalid_json", getattr(event, "detail", "a judgment among questions"))
                continue
            try:
                question = id_text(event.fields.get("question_id"), "question_id")
            except Unusable as error:
                self._refuse(name, event.line, error.reason, str(error))
                continue
            category = event.fields.get("category")
            if isinstance(category, str) and category:
                self.categories[question] = clean_text(category)
            for index, score in enumerate(_flat_scores(event.fields.get("answers"))):
                if score is not None:
                    self.human_scores[question, str(index)] = score

    def _judgments(self, name: str, stream: BinaryIO) -> Iterator[dict[str, Any]]:
        named = _NAME.search(name)
        scale = _SCALE_IN_NAME.search(name)
        file = _File(name, self.judge or (named[1] if named else "trustjudge"))
        file.scale = int(scale[1] or scale[2]) if scale else None
        file.kind = "compare" if named and named["pairs"] else None
        record: _Record | None = None
        for event in walk(stream, _ARRAY, _NEEDED):
            if not isinstance(event, Element | End):
                self._refuse(name, event.line, "invalid_json", f"{event.detail}; what came before it is read")
                record = None
                continue
            head = event.head if isinstance(event, Element) else event.fields
            if record is None or record.head is not head:
                record = self._open(file, event.line, head)
            if record.unusable:
                continue
            if isinstance(event, Element):
                yield from self._element(file, record, event)
            else:
                yield from self._never_asked(file, record)

    def _open(self, file: _File, line: int, head: dict[str, Any]) -> _Record:
        record = _Record(head, "", {})
        try:
            record.question = id_text(head.get("question_id"), "question_id")
            for candidate in head.get("candidate_answers") or []:
                response = id_text(candidate.get("global_index"), "global_index")
                text = candidate.get("text")
                record.candidates[response] = text if isinstance(text, str) else None
                if isinstance(text, str):
                    self._response(file, line, record, response, candidate)
        except (Unusable, AttributeError, TypeError) as error:
            record.unusable = True
            reason = error.reason if isinstance(error, Unusable) else "invalid_value"
            self._refuse(file.name, line, reason, f"{error}; the whole question is left out")
        return record

    def _response(self, file: _File, line: int, record: _Record, response: str, candidate: dict[str, Any]) -> None:
        question, key = record.head.get("question"), (record.question, response)
        text_hash = joined_hash(str(question), candidate["text"])
        known, where = self.texts.setdefault(key, (text_hash, f"{file.name}, line {line}"))
        if known != text_hash:
            raise ImportFileError(
                f"{file.name}, line {line}: question {key[0]}, answer {key[1]} has another text than in {where}; "
                "files of one import are about the same answers"
            )
        if where == f"{file.name}, line {line}":
            self.responses.append(
                {
                    "question_id": record.question,
                    "category": self.categories.get(record.question),
                    "messages": [{"role": "user", "content": clean_text(question)}]
                    if isinstance(question, str)
                    else [],
                    "response_id": response,
                    "model": response,
                    "replies": [clean_text(candidate["text"])],
                    "human_score": self.human_scores.get(key, number(candidate.get("score"))),
                    "source": file.name,
                    "line": line,
                }
            )

    def _element(self, file: _File, record: _Record, event: Element) -> Iterator[dict[str, Any]]:
        try:
            value = event.value
            if not isinstance(value, dict):
                raise Unusable("invalid_value", f"a judgment is an object, got {str(value)[:80]}")
            if "candidate_global_index1" in value:
                rows = self._pair(file, record, value)
            elif "candidate_global_index" in value:
                rows = [self._single(file, record, value)]
            else:
                raise Unusable("missing_field", f"no candidate_global_index; it has {sorted(value)[:8]}")
        except Unusable as error:
            self._refuse(file.name, event.line, error.reason, f"question {record.question}: {error}")
            return
        yield from rows

    def _single(self, file: _File, record: _Record, value: dict[str, Any]) -> dict[str, Any]:
        file.scale = file.scale or _scale_in(value.get("judgement")) or self.scale
        if file.scale is None:
            raise ImportFileError(
                f"{file.name}: on which scale single answers were graded is neither in the name "
                "(…_single_answer_grade_5_points.jsonl) nor in the stored prompt; give the scale"
            )
        response = id_text(value["candidate_global_index"], "candidate_global_index")
        self._once(file, record, score_protocol(file.scale), response)
        asked = self._asked(file, record, [response])
        return _row(asked, value.get("judgement"))

    def _pair(self, file: _File, record: _Record, value: dict[str, Any]) -> list[dict[str, Any]]:
        names = ("candidate_global_index1", "candidate_global_index2")
        pair = [id_text(value.get(name), name) for name in names]
        if pair[0] == pair[1]:
            raise Unusable("invalid_value", f"answer {pair[0]} is compared with itself")
        self._once(file, record, compare_protocol(), *sorted(pair))
        return [
            _row(self._asked(file, record, pair[::-1] if turned else pair), value.get(name)) for name, turned in _ORDERS
        ]

    def _once(self, file: _File, record: _Record, protocol: Protocol, *about: str) -> None:
        """Take only the first judgment of a task; a question that comes again is not read twice."""
        self.protocols[protocol.name] = protocol
        file.kind = protocol.kind
        key = (file.judge, protocol.name, record.question)
        if not record.asked and key in self.seen:
            record.unusable = True
            raise Unusable("duplicate_row", "it was there before; the first one stays, this one is left out whole")
        self.seen.add(key)
        if about in record.asked:
            raise Unusable("duplicate_judgment", f"answers {', '.join(about)} were judged before; the first one stays")
        record.asked.add(about)

    def _asked(self, file: _File, record: _Record, shown: list[str]) -> Asked:
        category = self.categories.get(record.question)
        if len(shown) == 1:
            assert file.scale is not None  # `_single` refuses before
            return Asked(file.judge, score_protocol(file.scale), record.question, category, shown[0])
        a, b = sorted(shown, key=id_key(shown))
        order = "AB" if a == shown[0] else "BA"
        return Asked(file.judge, compare_protocol(), record.question, category, a, b, order)

    def _never_asked(self, file: _File, record: _Record) -> Iterator[dict[str, Any]]:
        if file.kind != "compare":
            return
        ids = list(record.candidates)
        for i, first in enumerate(ids):
            for second in ids[i + 1 :]:
                empty = [r for r in (first, second) if record.candidates[r] == ""]
                if empty and tuple(sorted((first, second))) not in record.asked:
                    detail = f"answer {' and '.join(empty)} is empty: the pair was never asked"
                    for shown in ([first, second], [second, first]):
                        yield failed(self._asked(file, record, shown), "empty_response", detail)

    def _refuse(self, name: str, line: int, reason: str, detail: str) -> None:
        self.quarantine.append(quarantined(name, line, reason, detail))


def _row(asked: Asked, judgment: Any) -> dict[str, Any]:
    if not isinstance(judgment, dict):
        return failed(asked, "missing", "the judge gave nothing: null in the file")
    more: dict[str, Any] = {"rationale": output_text(judgment)}
    if isinstance(judgment.get("prompt_token_ids"), list):
        more["prompt_tokens"] = len(judgment["prompt_token_ids"])
    try:
        reading = read_judgment(judgment, asked.protocol.label_texts)
    except Unreadable as error:
        return failed(asked, "unparseable", str(error)) | more
    return read_row(asked, reading.probs, reading.sampled, reading.cumulative_logprob, reading.output_tokens) | more


def _holds_questions(stream: BinaryIO) -> bool:
    """Whether the first record has `answers` and not, before that, `judgements`."""
    try:
        return Cursor(stream).first_key_of({"answers", _ARRAY}) == "answers"
    except BrokenJson:
        return False  # said where the file is read
    finally:
        stream.seek(0)


def _scale_in(judgment: Any) -> int | None:
    """The scale that the prompt of a judgment names (its text, or the messages sent to an API)."""
    prompt = judgment.get("prompt") if isinstance(judgment, dict) else None
    found = set(_SCALE_IN_PROMPT.findall(prompt if isinstance(prompt, str) else str(prompt)))
    return int(found.pop()) if len(found) == 1 else None


def _flat_scores(answers: Any) -> Iterator[float | None]:
    """The human score of every answer, in the order of the program's `global_index`."""
    for group in answers if isinstance(answers, list) else []:
        texts = group.get("text") if isinstance(group, dict) else None
        for _ in texts if isinstance(texts, list) else []:
            yield number(group.get("score"))
