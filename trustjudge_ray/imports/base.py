"""What every importer gives back, and how a foreign reading becomes a JUDGMENTS row."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa

from trustjudge_ray.corpus.objects import Entry, Rejection, excerpt, names_of
from trustjudge_ray.identity import joined_hash
from trustjudge_ray.judging.protocols import Protocol, parse
from trustjudge_ray.schema import JUDGMENTS, PLACED_RESPONSES, QUARANTINE, from_rows

BATCH_ROWS = 4096
T = TypeVar("T")


class ImportFileError(ValueError):
    """A file cannot be imported at all: names the file, the line, what it got and what would be right."""


class Unusable(ValueError):
    """One row goes to the quarantine: a word to count by, and a sentence for the person who mends it."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass
class Imported:
    """Judgments of another system, read as a stream.

    `judgments` can be read once, in tables of at most `BATCH_ROWS` rows. The rest is complete only when
    it has been read to its end: protocols (by name), the answers where the files hold them (otherwise
    None), what could not be read, and in `notes` what a reader of any number of these judgments must know.
    """

    judgments: Iterator[pa.Table]
    protocols: dict[str, Protocol]
    response_rows: list[dict[str, Any]] = field(default_factory=list)
    quarantine_rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def responses(self) -> pa.Table | None:
        """PLACED_RESPONSES, or None where the files hold no answers."""
        return from_rows(self.response_rows, PLACED_RESPONSES) if self.response_rows else None

    @property
    def quarantine(self) -> pa.Table:
        """QUARANTINE: every line or judgment that is not among `judgments`."""
        return from_rows(self.quarantine_rows, QUARANTINE)


@dataclass(frozen=True, slots=True)
class Asked:
    """What one judgment was about. In a comparison `a` is the response with the smaller id."""

    judge: str
    protocol: Protocol
    question_id: str
    category: str | None
    response_a: str
    response_b: str | None = None
    order: str | None = None
    sample: int = 0


@lru_cache
def score_protocol(scale: int) -> Protocol:
    """The stand-in for a protocol that was used elsewhere: labels 1 … scale, and no text that a judge would read."""
    return _stand_in(f"score-{scale}", "score", str(scale), "{answer}")


@lru_cache
def labelled_protocol(name: str, labels: tuple[str, ...]) -> Protocol:
    """The same for scores with labels of any text."""
    return _stand_in(name, "score", str(list(labels)), "{answer}")


@lru_cache
def compare_protocol(name: str = "compare") -> Protocol:
    """The same for a comparison with the verdicts A, B and C (a tie)."""
    return _stand_in(name, "compare", "{first: A, second: B, tie: C}", "{answer_a}\n\n  {answer_b}")


def _stand_in(name: str, kind: str, labels: str, slots: str) -> Protocol:
    return parse(
        f"name: {name}\nkind: {kind}\nlabels: {labels}\nopener: '['\ncloser: ']'\n"
        f"user: |\n  (Judged by another system; its text is not known.)\n\n  {slots}\n"
    )


def batches(rows: Iterable[dict[str, Any]], quarantine: Sequence[Mapping[str, Any]]) -> Iterator[pa.Table]:
    """Rows as JUDGMENTS tables of at most `BATCH_ROWS` rows.

    Raises:
        ImportFileError: there is not one row; names the first problem in `quarantine`.
    """
    source, count = iter(rows), 0
    while batch := list(islice(source, BATCH_ROWS)):
        count += len(batch)
        yield from_rows(batch, JUDGMENTS)
    if not count:
        first = next(iter(quarantine), None)
        where = first and f"{first['source']}, line {first['line']}: {first['reason']}: {first['detail']}"
        raise ImportFileError(f"no judgment found; {where or 'no line of the files is one'}")


def usable(
    source: str,
    entries: Iterable[Entry],
    build: Callable[[dict[str, Any]], T],
    quarantine: list[dict[str, Any]],
) -> Iterator[tuple[int, T]]:
    """Line number and what `build` makes of every entry; what cannot be used goes to `quarantine`."""
    for entry in entries:
        try:
            if isinstance(entry.content, Rejection):
                raise Unusable(entry.content.reason, entry.content.detail)
            built = build(entry.content)
        except KeyError as error:
            reason, detail = "missing_field", f"no field {error}; it has {names_of(entry.content)}"  # type: ignore[arg-type]
        except Unusable as error:
            reason, detail = error.reason, str(error)
        except (TypeError, ValueError, AttributeError) as error:
            reason, detail = "invalid_value", f"a field is of another type than it should be: {error}"
        else:
            yield entry.line or 0, built
            continue
        quarantine.append(quarantined(source, entry.line, reason, detail, excerpt(entry.raw)))


def failed(asked: Asked, status: str, detail: str) -> dict[str, Any]:
    """The row of a judgment that gave nothing, with the reason."""
    return _identity(asked) | {"status": status, "detail": detail}


def read_row(
    asked: Asked,
    probs: Mapping[str, float],
    sampled: str,
    cumulative_logprob: float | None = None,
    output_tokens: int | None = None,
) -> dict[str, Any]:
    """The row of a judgment that was read: token → probability as it was shown, and the token sampled.

    Labels that are not listed are null. Probabilities over 1 (rounding, summed spellings) are kept. A
    sampled token that is no label leaves `emitted` null. `bad_logprob` where a label's probability is
    negative or no number, `no_label_mass` where no label is listed.
    """
    texts = asked.protocol.label_texts
    listed = [probs.get(text) for text in texts]
    bad = [f"P({text}) = {p}" for text, p in zip(texts, listed, strict=True) if p is not None and not 0 <= p < math.inf]
    if bad:
        return failed(asked, "bad_logprob", bad[0])
    if all(p is None for p in listed):
        return failed(asked, "no_label_mass", f"none of the labels among the tokens listed: {sorted(probs)[:5]}")
    names = list(asked.protocol.emitted_names)
    if asked.order == "BA":
        listed[:2] = listed[1::-1]
        names[:2] = names[1::-1]
    return _identity(asked) | {
        "label_logprobs": [_log(p) for p in listed],
        "label_mass": math.fsum(p for p in listed if p is not None),
        "emitted": names[texts.index(sampled)] if sampled in texts else None,
        "cumulative_logprob": None
        if cumulative_logprob is None or math.isnan(cumulative_logprob)
        else cumulative_logprob,
        "output_tokens": output_tokens,
        "status": "ok",
    }


def _identity(asked: Asked) -> dict[str, Any]:
    spec = joined_hash("import", asked.judge, asked.protocol.hash)
    about = (asked.question_id, asked.response_a, asked.response_b or "", asked.order or "", str(asked.sample))
    return {
        "task_id": joined_hash(spec, *about),
        "spec": spec,
        "kind": asked.protocol.kind,
        "protocol": asked.protocol.name,
        "judge": asked.judge,
        "question_id": asked.question_id,
        "category": asked.category,
        "response_a": asked.response_a,
        "model_a": asked.response_a,
        "response_b": asked.response_b,
        "model_b": asked.response_b,
        "order": asked.order,
        "sample": asked.sample,
        "repeat": 0,
        "truncated": False,
    }


def _log(p: float | None) -> float | None:
    if p is None:
        return None
    return math.log(p) if p > 0 else -math.inf


def id_text(value: Any, what: str) -> str:
    """An id as text, as the corpus reader has it: texts as they are, whole numbers in digits (also 0.0: `0`).

    Raises:
        Unusable: it is missing, blank, of another type, or holds bytes that are not UTF-8.
    """
    if isinstance(value, str) and value.strip() and value == clean_text(value):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and math.isfinite(value) and not (value.is_integer() and abs(value) >= 2**53):
        return str(int(value)) if value.is_integer() else repr(value)
    raise Unusable("invalid_value", f"{what}: got {value!r}; a text or a whole number")


def clean_text(text: str) -> str:
    """The text with every lone surrogate as U+FFFD, so that Arrow can hold it."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace") if not text.isascii() else text


def number(value: Any) -> float | None:
    """A JSON number as a float; anything else, booleans too, is None."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def whole(value: Any, what: str) -> int:
    """A whole number that is not negative, also written as 12.0.

    Raises:
        Unusable: it is anything else.
    """
    exact = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if not exact or isinstance(value, bool) or value < 0:
        raise Unusable("invalid_value", f"{what}: got {value!r}; a whole number")
    return int(value)


def quarantined(source: str, line: int | None, reason: str, detail: str, raw: str | None = None) -> dict[str, Any]:
    """A QUARANTINE row."""
    return {"source": source, "line": line, "reason": reason, "detail": detail, "raw": raw and clean_text(raw[:2000])}


def chunks(stream: BinaryIO) -> Iterator[bytes]:
    """The bytes of a stream, a megabyte at a time."""
    while chunk := stream.read(1 << 20):
        yield chunk


def first_of(names: Sequence[str], row: Mapping[str, Any]) -> str | None:
    """The first of `names` that the row has with a value."""
    return next((name for name in names if row.get(name) not in (None, "")), None)
