"""Users' rows to RESPONSES: what each file format calls a response, and what makes a row unreadable.

A format is a function from one JSON object and a field map to the responses in it. Decided here (for what the value
of a field may be, see `values`):

question: a row without one is readable and flagged `no_question`: its messages are empty. A field that
    `corpus.fields` maps to a question must be there, so that a misspelt name is not a corpus without questions.
messages: like question, and read before it; the `question` beside it is then kept in `meta_json`.
context: a passage that the question is about; it comes first among the messages, in the role `context`. Only format
    questions reads it unless `corpus.fields` maps it: other corpora have something else under that name.
response: null or an empty list is a missing response; "" is an empty answer and a row.
meta_json: every other field that is not null, and `flags`. What JSON cannot say there (an infinite number, one of
    more digits than Python reads, a Parquet value that cannot be converted) is kept as text and flagged
    `kept_as_text`: only a field that is read can make a row unreadable.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from trustjudge_ray.corpus import values
from trustjudge_ray.corpus.arena_formats import ARENA_FORMATS, ARENA_NAMES
from trustjudge_ray.corpus.benchmark_formats import BENCHMARK_FORMATS, BENCHMARK_NAMES
from trustjudge_ray.corpus.objects import Entry, Rejection, Unheld, excerpt, from_lines, kind_of, names_of, sayable
from trustjudge_ray.corpus.preference_formats import PREFERENCE_FORMATS, PREFERENCE_NAMES
from trustjudge_ray.corpus.values import UnreadableError
from trustjudge_ray.schema import PLACED_RESPONSES, QUARANTINE, from_rows

NO_RESPONSE = "(none)"
"""response_id and model of a question that has no response yet."""
BATCH_BYTES = 64 << 20
"""A batch of rows is closed when the lines that it came from reach this size."""


FILE: Final = "{file}"
"""In a constant of `corpus.fields`: the name of the file that a row is in."""
_ENDINGS: Final = re.compile(r"(?<=.)\.(?:jsonl|ndjson|json|parquet|pq|csv|tsv|gz|zst)$", re.IGNORECASE)


class CorpusError(ValueError):
    """A corpus cannot be read at all: names the path or key, what was found there and what would be right."""


class CorpusConfigError(CorpusError):
    """`corpus.format` or `corpus.fields` cannot be meant: the configuration is wrong, whatever the files hold."""


@dataclass(frozen=True, slots=True)
class FieldMap:
    """Where our fields are in a user's rows.

    Attributes:
        names: ours to theirs; the same name where the user said nothing.
        constants: ours to a fixed text, in which `{file}` stands for the name of the file (`file_name`).
        given: the fields of ours that the user mapped to one of theirs.
    """

    names: dict[str, str]
    constants: dict[str, str]
    given: frozenset[str]

    def of_file(self, source: str) -> "FieldMap":
        """The same for the rows of one file: `{file}` in a constant is its name."""
        name = file_name(source)
        return replace(self, constants={ours: text.replace(FILE, name) for ours, text in self.constants.items()})

    def get(self, content: dict[str, Any], ours: str) -> Any:
        """The value of a field of ours: a constant, theirs, or None.

        Raises:
            UnreadableError: it is there and cannot be held.
        """
        value = self.constants[ours] if ours in self.constants else content.get(self.names[ours])
        if isinstance(value, Unheld):
            raise UnreadableError(value.reason, f"{self.say(ours)}: {value.detail}")
        return value

    def needed(self, content: dict[str, Any], ours: str) -> Any:
        """The same where None is no answer.

        Raises:
            UnreadableError: the row lacks it; names the field and those that the row has.
        """
        value = self.get(content, ours)
        if value is None:
            what = "is null" if self.names[ours] in content else "is missing"
            detail = f"{self.say(ours)} {what}; the row has {names_of(content)}"
            raise UnreadableError("missing_field", detail)
        return value

    def say(self, ours: str) -> str:
        """How a message names a field: ours, and what the user's file calls it."""
        theirs = self.names[ours]
        return ours if theirs == ours else f"{ours} (field '{theirs}')"

    def extras(self, content: dict[str, Any], read: Iterable[str]) -> dict[str, Any]:
        """The fields that are not null and that none of `read` (ours) was taken from."""
        taken = {self.names[ours] for ours in read if ours not in self.constants}
        return {key: value for key, value in content.items() if key not in taken and value is not None}


def file_name(source: str) -> str:
    """A file's name without its folder and the endings of corpus files: `model-a` of `answers/model-a.jsonl.gz`."""
    name = source.rstrip("/").rsplit("/", 1)[-1]
    while (shorter := _ENDINGS.sub("", name)) != name:
        name = shorter
    return name


Parts = list["dict[str, Any] | Rejection"]
"""What one object holds: RESPONSES rows, and a rejection for each part that is not one."""


def flat(content: dict[str, Any], fields: FieldMap, flags: tuple[str, ...] = ()) -> Parts:
    """One object, one response."""
    marks = list(flags)
    shared, read = _question(content, fields, marks, required=False)
    model = values.id_text(fields.needed(content, "model"), fields.say("model"))
    response_id = fields.get(content, "response_id")
    row = shared | {
        "model": model,
        "response_id": model if response_id is None else values.id_text(response_id, fields.say("response_id")),
        "replies": values.replies(fields.needed(content, "response"), fields.say("response")),
        "human_score": values.number(fields.get(content, "human_score"), fields.say("human_score")),
    }
    extras = fields.extras(content, [*read, "model", "response_id", "response", "human_score"])
    return [row | {"meta_json": values.meta_json(extras, marks)}]


def trustjudge(content: dict[str, Any], fields: FieldMap, flags: tuple[str, ...] = ()) -> Parts:
    """One object a question, `answers: [{score, text: [...]}]`: each element of each `text` is one response.

    response_id counts them through the question from 0, as the reference program's `global_index` does; it counts
    unreadable ones too. The element's `score` is the human score of its texts. Their model, where neither the
    element nor a constant names one, is `level-S-N`: the N-th response (from 0) of level S in its question, so
    that the answers of a level play as models of their own; `level-none-N` without a score.

    The element's other fields go to `meta_json` under `answers`; of a list as long as `text`, the entry beside it.
    """
    marks = list(flags)
    shared, read = _question(content, fields, marks, required=True)
    name = fields.names["answers"]
    answers = fields.needed(content, "answers")
    if not isinstance(answers, list) or not all(isinstance(answer, dict) for answer in answers):
        raise UnreadableError("wrong_type", f"{fields.say('answers')}: {kind_of(answers)}; a list of {{score, text}}")
    extras = fields.extras(content, [*read, "answers"])
    parts: Parts = []
    seen: dict[str, int] = {}
    for place, answer in enumerate(answers):
        where = f"{name}[{place}]"
        for n, text in enumerate(_answer_texts(answer, fields, where)):
            try:
                row = shared | _nested_response(answer, fields, where, n, text, seen)
                beside = _beside(answer, fields, n)
                meta = values.meta_json(extras | ({name: beside} if beside else {}), marks)
                parts.append(row | {"response_id": str(len(parts)), "meta_json": meta})
            except UnreadableError as error:
                parts.append(error.rejection)
    if not parts:
        raise UnreadableError("missing_field", f"{fields.say('answers')} holds no text; the question has no response")
    return parts


def questions(content: dict[str, Any], fields: FieldMap, flags: tuple[str, ...] = ()) -> Parts:
    """One object, one question that nobody has answered yet: what `answer` puts to models. The row that stands for it
    has no replies, and NO_RESPONSE for response_id and model."""
    marks = list(flags)
    shared, read = _question(content, fields, marks, required=True, passage=True)
    row = shared | {"response_id": NO_RESPONSE, "model": NO_RESPONSE, "replies": [], "human_score": None}
    return [row | {"meta_json": values.meta_json(fields.extras(content, read), marks)}]


FORMATS: Final[dict[str, Callable[[dict[str, Any], FieldMap, tuple[str, ...]], Parts]]] = {
    "flat": flat,
    "trustjudge": trustjudge,
    "questions": questions,
    **PREFERENCE_FORMATS,
    **ARENA_FORMATS,
    **BENCHMARK_FORMATS,
}

_QUESTION_FIELDS = ["question_id", "category", "context", "question", "messages", "reference"]
_SHARED_FIELDS = [*_QUESTION_FIELDS, "model", "response", "human_score"]
_THEIR_NAMES: Final[dict[str, dict[str, str]]] = {
    "flat": {ours: ours for ours in [*_SHARED_FIELDS, "response_id"]},
    "questions": {ours: ours for ours in _QUESTION_FIELDS},
    "trustjudge": {ours: ours for ours in [*_SHARED_FIELDS, "answers"]} | {"response": "text", "human_score": "score"},
    **PREFERENCE_NAMES,
    **ARENA_NAMES,
    **BENCHMARK_NAMES,
}
"""Each format's fields of ours, and what they are called in a file of that format."""

_LISTS: Final = ("messages", "answers")


def field_map(fields: dict[str, str], format: str = "flat") -> FieldMap:
    """Understand `corpus.fields` (ours to theirs, `=` for a constant, `={file}` for the file's name) for a format.

    Raises:
        CorpusConfigError: there is no such format, or the format has no field of that name.
    """
    if format not in FORMATS:
        raise CorpusConfigError(f"corpus.format: got {format!r}; one of {sorted(FORMATS)}")
    names = dict(_THEIR_NAMES[format])
    constants: dict[str, str] = {}
    for ours, theirs in fields.items():
        if ours not in names:
            near = difflib.get_close_matches(ours, names, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            if isinstance(theirs, str) and theirs in names:
                hint = f"; ours come first: {{{theirs}: {ours}}}"
            raise CorpusConfigError(
                f"corpus.fields: no field '{ours}' in format {format}{hint}; it has {sorted(names)}"
            )
        if not isinstance(theirs, str) or not theirs:
            raise CorpusConfigError(
                f"corpus.fields.{ours}: got {theirs!r}; a field name of the file, or a constant '=…'"
            )
        if theirs.startswith("=") and ours in _LISTS:
            raise CorpusConfigError(f"corpus.fields.{ours}: got {theirs!r}; a constant cannot stand for a list")
        if theirs.startswith("="):
            constants[ours] = theirs[1:]
        else:
            names[ours] = theirs
    return FieldMap(names, constants, frozenset(set(fields) - set(constants)))


def responses(entry: Entry, source: str, format: str, fields: FieldMap) -> tuple[list[dict], list[dict]]:
    """PLACED_RESPONSES rows and QUARANTINE rows of one entry of a file."""
    parts: Parts
    if isinstance(entry.content, Rejection):
        parts = [entry.content]
    else:
        try:
            parts = FORMATS[format](entry.content, fields, entry.flags)
        except UnreadableError as error:
            parts = [error.rejection]
        except RecursionError:
            parts = [Rejection("too_deep", "objects or lists are nested too deeply to be kept")]
    place = {"source": source, "line": entry.line}
    rows = [part | place for part in parts if isinstance(part, dict)]
    if len(rows) == len(parts):
        return rows, []
    raw = entry.raw
    if not raw and isinstance(entry.content, dict):  # a Parquet row has no text of its own
        raw = json.dumps(sayable(entry.content)[0], ensure_ascii=False).encode("utf-8", "replace")
    bad = [
        place | {"reason": part.reason, "detail": part.detail, "raw": excerpt(raw)}
        for part in parts
        if isinstance(part, Rejection)
    ]
    return rows, bad


def tables(
    entries: Iterable[Entry], source: str, format: str, fields: FieldMap, batch_rows: int = 4096
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """The entries of one file as (PLACED_RESPONSES, QUARANTINE) tables, in order; at least one pair, empty or not."""
    fields = fields.of_file(source)
    rows: list[dict] = []
    bad: list[dict] = []
    size, closed = 0, False
    for entry in entries:
        more_rows, more_bad = responses(entry, source, format, fields)
        rows += more_rows
        bad += more_bad
        size += entry.size
        if len(rows) + len(bad) >= batch_rows or size >= BATCH_BYTES:
            yield from_rows(rows, PLACED_RESPONSES), from_rows(bad, QUARANTINE)
            rows, bad, size, closed = [], [], 0, True
    if rows or bad or not closed:
        yield from_rows(rows, PLACED_RESPONSES), from_rows(bad, QUARANTINE)


def parse_lines(
    chunks: Iterable[bytes], source: str, format: str, fields: dict[str, str], batch_rows: int = 4096
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """The bytes of a JSON Lines file as (PLACED_RESPONSES, QUARANTINE) tables."""
    return tables(from_lines(chunks), source, format, field_map(fields, format), batch_rows)


def _question(
    content: dict[str, Any], fields: FieldMap, marks: list[str], *, required: bool, passage: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """The columns that belong to the question, and which fields of ours they were read from."""
    asked = {"question", "messages"} & (fields.given | set(fields.constants))
    candidates = ["question"] if asked == {"question"} else ["messages", "question"]
    used = next((ours for ours in candidates if fields.get(content, ours) not in (None, [])), None)
    question_id = values.id_text(fields.needed(content, "question_id"), fields.say("question_id"))
    messages: list[dict[str, str]] = []
    if used is not None:
        messages, ignored = values.messages(fields.get(content, used), fields.say(used))
        if ignored:
            marks.append("message_fields_ignored")
    elif asked or required:
        fields.needed(content, candidates[0] if asked else "question")
    if not any(message["content"].strip() for message in messages if message["role"] == "user"):
        marks.append("no_question")
    passage = passage or "context" in fields.given | set(fields.constants)
    context = fields.get(content, "context") if passage else None
    if context is not None:
        messages = [{"role": "context", "content": values.text(context, fields.say("context"))}, *messages]
    category = fields.get(content, "category")
    columns = {
        "question_id": question_id,
        "category": None if category is None else values.text(category, fields.say("category")),
        "messages": messages,
        "reference": values.reference(fields.get(content, "reference"), fields.say("reference")),
    }
    also = [*(["context"] if passage else []), *([used] if used else [])]
    return columns, ["question_id", "category", "reference", *also]


def _answer_texts(answer: dict[str, Any], fields: FieldMap, where: str) -> list[Any]:
    """The texts of one level. Without a list of them no response after it has a number: the question is unreadable."""
    texts = fields.get(answer, "response")
    if isinstance(texts, str):
        return [texts]
    if isinstance(texts, list):
        return texts
    name = f"{where}.{fields.names['response']}"
    if texts is None:
        raise UnreadableError("missing_field", f"{name} is missing; that answer has {names_of(answer)}")
    raise UnreadableError("wrong_type", f"{name}: {kind_of(texts)}; a list of texts")


def _nested_response(
    answer: dict[str, Any], fields: FieldMap, where: str, n: int, text: Any, seen: dict[str, int]
) -> dict[str, Any]:
    """The columns of one nested response; `seen` counts the responses of each level so far."""
    model = fields.get(answer, "model")
    score = values.number(fields.get(answer, "human_score"), f"{where}.{fields.names['human_score']}")
    level = "none" if score is None else values.id_text(score, where)
    index = seen.get(level, 0)
    seen[level] = index + 1
    where_model = f"{where}.{fields.names['model']}"
    return {
        "model": f"level-{level}-{index}" if model is None else values.id_text(model, where_model),
        "replies": [values.text(text, f"{where}.{fields.names['response']}[{n}]")],
        "human_score": score,
    }


def _beside(answer: dict[str, Any], fields: FieldMap, n: int) -> dict[str, Any]:
    """What else an element of `answers` says of its n-th text."""
    texts = fields.get(answer, "response")
    extras = fields.extras(answer, ["response", "human_score", "model"])
    return {k: v[n] if isinstance(v, list) and len(v) == len(texts) else v for k, v in extras.items()}
