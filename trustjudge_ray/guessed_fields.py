"""Which of a user's fields is which of ours, guessed from names and from what they hold: for `trustjudge init`.

A name must be known and its values must fit. Where two fields fit equally well nothing is guessed: the user is asked.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trustjudge_ray.corpus import values
from trustjudge_ray.corpus.formats import FILE, file_name
from trustjudge_ray.corpus.layouts import JUDGMENTS
from trustjudge_ray.corpus.objects import kind_of
from trustjudge_ray.corpus.values import UnreadableError
from trustjudge_ray.field_names import NAMES as NAMES
from trustjudge_ray.field_names import plain as plain

Row = dict[str, Any]


class GuessError(ValueError):
    """What a field is cannot be told: says which fields there are, and how to say which is meant."""


_ORDER: Final = (
    *("question_id", "category", "context", "question", "messages", "reference", "model", "response_id", "response"),
    "human_score",
)
"""Our fields in the order in which they are written."""


_DOUBTS: Final = {
    "human_score": "taken for people's score; if a machine gave it, take this line out",
    "model": "taken for the model's name; if it is something else, name another field or a constant",
    "context": "shown before the question",
}
"""What to say of a field whose name leaves it open."""


@dataclass(frozen=True, slots=True)
class Guess:
    """What was guessed.

    Attributes:
        fields: of `corpus.fields`, ours to theirs or to a constant; those of the same name too.
        why: a sentence for each of them.
        left: fields of theirs that none was taken from; they go to meta_json.
        warnings: what somebody should look at before a judge is paid for.
    """

    fields: dict[str, str]
    why: dict[str, str]
    left: list[str]
    warnings: list[str] = field(default_factory=list)


def guess(samples: dict[str, list[Row]], given: dict[str, str], answered: bool = True) -> Guess:
    """Guess the fields of flat rows. Where none names the model, the name of the file does.

    Args:
        samples: the first rows of each file.
        given: what the user said, ours to theirs.
        answered: whether the rows are answers; else they are questions that nobody has answered yet.

    Raises:
        GuessError: no field can be the answer, or several fit equally well.
    """
    found = _Guesser(samples, dict(given))
    if answered:
        found.take("response", _is_reply, needed=True)
    found.take("messages", _is_conversation)
    if "messages" not in found.fields:
        found.take("question", _is_text)
    if "question" in found.fields:
        found.take("context", _is_text, share=0.0)
    if answered and "response" not in given and "messages" not in found.fields:
        _refuse_lists(found)
    found.take("reference", _is_reply, share=0.0)
    found.take("category", _is_name, share=0.0)
    if answered:
        found.take("model", _is_name, unless=lambda name: len(samples) > 1 and _is_of_the_question(found, name))
        found.take("human_score", _is_number, share=0.0)
        if "model" not in found.fields:
            found.set("model", f"={FILE}", "no field names the model; the name of the file does")
    _question_id(found)
    if answered:
        _response_id(found)
        if FILE in found.fields["model"]:
            found.warnings += _doubtful_files(samples, found)
    left = [name for name in found.names if name not in found.fields.values()]
    fields = {ours: found.fields[ours] for ours in _ORDER if ours in found.fields} | found.fields
    return Guess(fields, found.why, left, found.warnings)


def are_questions(rows: Sequence[Row]) -> bool:
    """Whether the rows may be questions that nobody has answered yet: they have one, and nothing that is an answer."""
    found = _Guesser({"": rows}, {})
    if any(found.holds(name, _is_reply, share=0.5) for tier in NAMES["response"] for name in found.named(tier)):
        return False
    found.take("messages", _is_conversation)
    found.take("question", _is_text)
    return bool(found.fields)


class _Guesser:
    """What is known so far of some rows: the names of their fields, and which of ours were found."""

    def __init__(self, samples: Mapping[str, Sequence[Row]], given: dict[str, str]) -> None:
        self.rows = [row for rows in samples.values() for row in rows]
        self.files = [file_name(path) for path, rows in samples.items() for _ in rows]
        self.names = list(dict.fromkeys(name for row in self.rows for name in row))
        self.fields: dict[str, str] = {}
        self.why: dict[str, str] = {}
        self.warnings: list[str] = []
        for ours, theirs in given.items():
            if not theirs.startswith("=") and theirs not in self.names:
                raise GuessError(
                    f"--field {ours}={theirs}: no row has a field '{theirs}'; they have {_shown(self.names)}"
                )
            self.set(ours, theirs, "as you said")

    def set(self, ours: str, theirs: str, why: str) -> None:
        """Decide."""
        self.fields[ours], self.why[ours] = theirs, why

    def take(
        self,
        ours: str,
        fits: Callable[[Any], bool],
        share: float = 0.5,
        needed: bool = False,
        unless: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Decide by name and values, unless the user did.

        Args:
            share: of the rows, that must have a value. What values there are must fit in any case.
            unless: of a field whose name is not sure, what speaks against it.

        Raises:
            GuessError: two fields fit equally well, or none where one is needed.
        """
        if ours in self.fields:
            return
        for tier in NAMES[ours]:
            sure = tier == NAMES[ours][0]
            fine = [n for n in self.named(tier) if self.holds(n, fits, share) and (sure or not unless(n))]
            if len(fine) > 1:
                raise GuessError(
                    f"'{fine[0]}' and '{fine[1]}' may both be the {ours}; say which: "
                    f"--field {ours}={fine[0]} or --field {ours}={fine[1]}"
                )
            if fine:
                doubt = _DOUBTS.get(ours, "") if not sure or ours == "context" else ""
                self.set(ours, fine[0], "; ".join(filter(None, [self.reason(fine[0]), doubt])))
                return
        if needed:
            raise GuessError(
                f"no field looks like the {ours}; the rows have {_shown(self.names)}{_instead(self)}; say which it is: "
                f"--field {ours}=NAME"
            )

    def values(self, ours: str) -> list[str]:
        """What each row has for a field of ours, as text; where nothing was found for it, nothing."""
        theirs = self.fields.get(ours, "=")
        if theirs.startswith("="):
            return [theirs[1:].replace(FILE, file) for file in self.files]
        return [str(row.get(theirs)) for row in self.rows]

    def named(self, known: Iterable[str]) -> list[str]:
        """The fields that are so called and of which nothing of ours is taken yet."""
        taken = {theirs for ours, theirs in self.fields.items() if ours not in ("question_id", "response_id")}
        return [name for wanted in known for name in self.names if plain(name) == wanted and name not in taken]

    def holds(self, name: str, fits: Callable[[Any], bool], share: float) -> bool:
        """Whether the values of a field fit, and enough of the rows have one."""
        there = [row[name] for row in self.rows if row.get(name) not in (None, "", [])]
        return bool(there) and len(there) >= share * len(self.rows) and all(map(fits, there))

    def reason(self, name: str) -> str:
        """What speaks for a field, in words."""
        there = sum(row.get(name) is not None for row in self.rows)
        return "" if there == len(self.rows) else f"in {there} of {len(self.rows)} rows"


def _shown(names: Sequence[str]) -> str:
    """Names as a message has them: the first thirty."""
    return str(list(names[:30])) + (f" and {len(names) - 30} more" if len(names) > 30 else "")


def _instead(found: _Guesser) -> str:
    """What rows may be that have no answer as a text: how to read those, in words behind a semicolon."""
    for layout in JUDGMENTS:
        if 2 * sum(map(layout.fits, found.rows)) > len(found.rows):
            return f". These are {layout.what}, which are no corpus: `trustjudge import {layout.format}` reads them"
    for name, value in ((name, row[name]) for row in found.rows[:1] for name in row):
        if isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
            if _reads(values.messages, value) and values.messages(value, "")[0][-1]["role"] == "assistant":
                return (
                    f"; where the last message of '{name}' is the answer: --format arena-hard --field response={name}"
                )
            return (
                f"; '{name}' holds a list of objects: if these are the rows, write each in a line of its own; if they "
                "are messages, as {role, content}, with the answer in a field of its own"
            )
        if plain(name) in {"answers", "completions", "outputs", "candidates", "generations"} and isinstance(
            value, list
        ):
            return _several(found, name)
        if plain(name) in {word for tier in NAMES["response"] for word in tier} and isinstance(value, dict):
            return f"; '{name}' holds {kind_of(value)}, where a text is needed"
    return ""


def _several(found: _Guesser, name: str) -> str:
    names = (n for tier in NAMES["question"] for n in found.named(tier) if found.holds(n, _is_text, 0.5))
    asked = found.fields.get("question") or next(names, "NAME")
    how = f"--format prompt-responses --field responses={name} --field prompt={asked}"
    return f"; where '{name}' holds several answers to one question: {how}"


def _refuse_lists(found: _Guesser) -> None:
    """
    Raises:
        GuessError: the answer is a list where the question is one text: turns of one answer, or several answers?
    """
    name = found.fields["response"]
    if any(isinstance(row.get(name), list) and len(row[name]) > 1 for row in found.rows):
        raise GuessError(
            f"'{name}' holds lists, and each row asks one question{_several(found, name)}; where it holds the turns of "
            f"one answer: --field response={name}"
        )


def _is_of_the_question(found: _Guesser, name: str) -> bool:
    """Whether a field has the same value in two files for one question, as its source or kind has: a model has not."""
    texts = zip(*(found.values(ours) for ours in ("question", "messages", "context")), strict=True)
    files: dict[tuple[object, ...], set[str]] = {}
    for row, text, file in zip(found.rows, texts, found.files, strict=True):
        files.setdefault((*text, str(row.get(name))), set()).add(file)
    return any(len(several) > 1 for several in files.values())


def _question_id(found: _Guesser) -> None:
    """An id that stands for one question, and is not that of a row."""
    if "question_id" in found.fields:
        return
    refused = []
    for sure, name in (
        (tier == NAMES["question_id"][0], n) for tier in NAMES["question_id"] for n in found.named(tier)
    ):
        if not found.holds(name, _is_id, share=1.0):
            continue
        fault = _id_fault(found, name, sure)
        if fault is None:
            found.set("question_id", name, found.reason(name))
            return
        refused.append(f"'{name}' {fault}")
    asked = found.fields.get("question", "")
    because = f" ({'; '.join(refused)})" if refused else ""
    if not found.holds(asked, _is_text, share=1.0) or _id_fault(found, asked, sure=True):
        raise GuessError(
            f"no field looks like the id of the question{because}; the rows have {_shown(found.names)}; "
            "say which it is: --field question_id=NAME"
        )
    found.set("question_id", asked, f"no field is an id of the question{because}: its own text is")


def _id_fault(found: _Guesser, name: str, sure: bool) -> str | None:
    """What speaks against a field as the id of the question; a `sure` name cannot be that of the row."""
    asked = list(zip(*(found.values(ours) for ours in ("question", "messages", "context")), strict=True))
    texts: dict[str, set[tuple[str, ...]]] = {}
    models: dict[tuple[str, ...], set[str]] = {}
    for row, text, model in zip(found.rows, asked, found.values("model"), strict=True):
        texts.setdefault(str(row[name]), set()).add(text)
        models.setdefault(text, set()).add(model)
    if any(len(different) > 1 for different in texts.values()):
        return "stands for several questions"
    several = any(len(different) > 1 for different in models.values()) or 2 * len(models) <= len(asked)
    if any(map(any, asked)) and not sure and 1 < len(texts) == len(asked) and several:
        return "is another one in each row, also in rows with the same question"
    return None


def _response_id(found: _Guesser) -> None:
    """Only where the model alone does not tell the answers to a question apart."""
    if "response_id" in found.fields:
        return
    if "response_id" in found.names:
        found.set("response_id", "response_id", "")
    if not _repeats(found, found.fields.get("response_id")):
        return
    for name in (name for tier in NAMES["response_id"] for name in found.named(tier)):
        if found.holds(name, _is_id, share=1.0) and not _repeats(found, name):
            found.set("response_id", name, "as a model answers a question more than once")
            return
    found.warnings.append(
        f"{_repeats(found, None)} rows have the question and the model of another row and another answer: they cannot "
        "be told apart and would be quarantined; map corpus.fields.response_id, or question_id, to another field"
    )


def _repeats(found: _Guesser, name: str | None) -> int:
    """Rows that have the key of a row before, and another answer."""
    told_apart = [str(row.get(name)) for row in found.rows] if name else found.values("model")
    seen: dict[tuple[str, str], str] = {}
    count = 0
    for *key, answer in zip(found.values("question_id"), told_apart, found.values("response"), strict=True):
        count += seen.setdefault((key[0], key[1]), answer) != answer
    return count


def _doubtful_files(samples: Mapping[str, Sequence[Row]], found: _Guesser) -> list[str]:
    """What to look at where files stand for models: two of one name, and parts of one corpus."""
    warnings = []
    named: dict[str, list[str]] = {}
    for path in samples:
        named.setdefault(file_name(path), []).append(path)
    for name, paths in named.items():
        if len(paths) > 1:
            more = f" and {len(paths) - 2} more" if len(paths) > 2 else ""
            warnings.append(
                f"{paths[0]} and {paths[1]}{more} have one name, so their answers count as one model's: {name}"
            )
    pairs = set(zip(found.values("question_id"), found.values("model"), strict=True))
    if len(named) > 1 and len({question for question, _ in pairs}) == len(pairs):
        models = ", ".join([*named][:3]) + (", …" if len(named) > 3 else "")
        warnings.append(
            f"each of the {len(samples)} files is taken for a model's ({models}), and no question is in two of them, "
            "so no two answers can be compared; if they are parts of one model's answers: --field model==NAME"
        )
    return warnings


def _is_text(value: Any) -> bool:
    return _reads(values.text, value)


def _is_reply(value: Any) -> bool:
    return _reads(values.replies, value)


def _is_id(value: Any) -> bool:
    return _reads(values.id_text, value)


def _is_number(value: Any) -> bool:
    return _reads(values.number, value)


def _is_name(value: Any) -> bool:
    return _is_id(value) and len(str(value)) <= 200 and "\n" not in str(value).strip()


def _is_conversation(value: Any) -> bool:
    """Turns, as {role, content} or as texts; the answer is not among them."""
    if not isinstance(value, list) or not _reads(values.messages, value):
        return False
    turns, _ = values.messages(value, "")
    return turns[-1]["role"] != "assistant"


def _reads(read: Callable[[Any, str], object], value: Any) -> bool:
    try:
        read(value, "")
    except UnreadableError:
        return False
    return True
