"""What the importers of judges' texts share: their files, repeated judgments, and a row for each text."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Final

from trustjudge_ray.corpus import containers
from trustjudge_ray.corpus.objects import Entry, compact_json, sayable
from trustjudge_ray.identity import joined_hash
from trustjudge_ray.imports import text_verdicts
from trustjudge_ray.imports.base import Asked, Unusable, chunks, clean_text, failed, quarantined, read_row
from trustjudge_ray.imports.text_verdicts import OK, Verdict

ERROR_TEXT: Final = "$ERROR$"
"""What FastChat and Arena-Hard write in place of a text that an endpoint did not give."""
SAMPLED: Final = (
    "imported judgments are labels that the judge wrote once, each with probability 1: rules that read probabilities "
    "(expected, normalised, likelihood, entropies, calibration) know the label alone"
)


def entries(stream: BinaryIO) -> Iterator[Entry]:
    """The objects of a file from its beginning: one a line, or all in one array, of which the number is the line."""
    stream.seek(0)
    yield from containers.from_json(chunks(stream))


@dataclass
class Ledger:
    """What has been read so far: which judgments were there before, and what was counted on the way.

    About 200 bytes of memory for each judgment.
    """

    quarantine: list[dict[str, Any]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    rows: set[str] = field(default_factory=set)
    votes: Counter[str] = field(default_factory=Counter)

    def repeated(self, source: str, line: int, row: dict[str, Any], without: tuple[str, ...]) -> bool:
        """Whether the row is the same as one before it in all its fields but some; it is quarantined then."""
        about = [[name, value] for name, value in sorted(row.items()) if name not in without]
        key = joined_hash(clean_text(compact_json(sayable(about)[0])))[:24]
        if key in self.rows:
            detail = "the same as a row before it in all that matters; that one stays"
            self.quarantine.append(quarantined(source, line, "duplicate_row", detail))
            return True
        self.rows.add(key)
        return False

    def sampled(self, asked: Asked) -> Asked:
        """The judgment as the next sample of what it is about: several of one judge are averaged by the analysis."""
        about = (asked.judge, asked.protocol.name, asked.question_id, asked.response_a, asked.response_b or "")
        key = joined_hash(*about, asked.order or "")[:24]
        number, self.votes[key] = self.votes[key], self.votes[key] + 1
        self.counts["samples"] += number > 0
        return replace(asked, sample=number)

    def told(self) -> list[str]:
        """Notes on what was counted here."""
        found = [SAMPLED]
        differs, unread = self.counts["differs"], self.counts["unread"]
        if differs:
            found.append(
                f"{differs} of {self.counts['texts']} verdicts are not those that the files give: the text is read "
                "again, its last statement counts, and the file's own reading is in the judgment's `detail`"
            )
        if unread:
            found.append(f"{unread} verdicts have no text behind them and are taken as the files give them")
        if self.counts["samples"]:
            found.append(
                f"{self.counts['samples']} judgments repeat one of the same judge, question and models with another "
                "text: they are samples of it, and averaged"
            )
        return found


def text_of(value: Any, what: str) -> str | None:
    """A judge's text: itself, or what an object has as `answer` (Arena-Hard v2); None where that is null.

    Raises:
        Unusable: it is anything else.
    """
    if isinstance(value, dict) and "answer" in value:
        value = value["answer"]
    if value is None or isinstance(value, str):
        return value
    raise Unusable("invalid_value", f"{what}: got {str(value)[:60]!r}; a text, or an object with `answer`")


def unread(asked: Asked, verdict: Verdict, text: str | None, given: str | None) -> dict[str, Any]:
    """The row of a text without a verdict; `given` is what the file says of it."""
    if text is not None and text.strip() == ERROR_TEXT:
        row = failed(asked, "engine_error", f"the text is {ERROR_TEXT}: the judge's endpoint gave none")
    else:
        said = f" ({verdict.said})" if verdict.said else ""
        own = f"; the file's own reading is {given}" if given else ""
        row = failed(asked, verdict.state, text_verdicts.STATES[verdict.state] + said + own)
    return row | {"rationale": None if text is None else clean_text(text)}


def certain(asked: Asked, label: str, text: str | None, detail: str | None) -> dict[str, Any]:
    """The row of a verdict: probability 1 on its label."""
    row = read_row(asked, {name: float(name == label) for name in asked.protocol.label_texts}, label)
    return row | {"rationale": None if text is None else clean_text(text), "detail": detail}


def is_verdict(verdict: Verdict) -> bool:
    """Whether one was read."""
    return verdict.state == OK
