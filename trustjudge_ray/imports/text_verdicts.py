"""A verdict read out of what a judge wrote. Only for importing: our own judges are read at a fixed place.

The last statement that is anchored counts, and is checked after it is found: out of scale is invalid, and an earlier
statement is no substitute. Anchored is

- what stands in double brackets (`[[8]]`, `[[A>>B]]`) or in a LaTeX box, and single brackets around a comparison
  (`[A>B]`);
- what follows a word for a verdict at the beginning of a line or sentence and ends there (`Final verdict: B`,
  `Score: 8/10`, `"rating": 8`); `score_A: 8.5` in the same way, where two scores are asked for;
- the text, where it is nothing but a verdict (`8/10`, `[A]`).

No statement is what the judge quotes: `[[A]]` followed by "if …", preceded by "for example", or listed with at least
two other choices on lines of their own; nor an index in code (`x[[1]]`, fences that name a programming language).

Markdown marks, full-width forms, digits of other scripts and HTML entities are read as what they stand for.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from trustjudge_ray.imports import verdict_patterns as p

Kind = Literal["score", "scores", "choice"]
OK: Final = "ok"
EMPTY: Final = "empty"
TRUNCATED_THINKING: Final = "truncated_thinking"
TRUNCATED: Final = "truncated"
NO_VERDICT: Final = "no_verdict"
AMBIGUOUS: Final = "ambiguous"
OUT_OF_SCALE: Final = "out_of_scale"
OTHER_SCALE: Final = "other_scale"
NOT_A_LABEL: Final = "not_a_label"
STATES: Final[Mapping[str, str]] = {
    OK: "a verdict was read",
    EMPTY: "the judge wrote nothing",
    TRUNCATED_THINKING: "the thinking was not closed: what is in it is no verdict",
    TRUNCATED: "the output was cut off before its end",
    NO_VERDICT: "no anchored statement",
    AMBIGUOUS: "the last statement says two things",
    OUT_OF_SCALE: "the last statement is a number outside the scale",
    OTHER_SCALE: "the last statement is on another scale, as /5 where 10 is the highest; it is not converted",
    NOT_A_LABEL: "the last statement is none of the labels",
}
"""How reading can end."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was read.

    Attributes:
        state: one of `STATES`.
        label: of a choice `A`, `B` or `C` (a tie).
        scores: one number, or two (of A and of B).
        said: the statement as it counts, without marks and blanks: `A>>B`, `10/10`.
    """

    state: str
    label: str | None = None
    scores: tuple[float, ...] = ()
    said: str | None = None

    @property
    def strong(self) -> bool:
        """Whether the judge said that one is much better (`A>>B`)."""
        return bool(self.said) and self.label in ("A", "B") and (">>" in str(self.said) or "<<" in str(self.said))

    def same(self, other: "Verdict") -> bool:
        """Whether both say the same, however they put it."""
        return (self.state, self.label, self.scores) == (other.state, other.label, other.scores)


@dataclass(frozen=True, slots=True)
class Scale:
    """The lowest and the highest score; numbers between them need not be whole."""

    low: float = 1.0
    high: float = 10.0


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement: where, what it says, and whether a word for a verdict introduces it."""

    start: int
    end: int
    text: str
    introduced: bool


def read(text: str | None, kind: Kind, scale: Scale | None = None, cut: bool = False) -> Verdict:
    """Read the verdict of a judge's text.

    Args:
        kind: `score` one number, `scores` one each for A and for B, `choice` which of A and B is better or C, a tie.
        scale: of the scores, 1 to 10 if none is given.
        cut: whether the judge ran into its token limit. A statement then counts only where nothing follows it.
    """
    if text is None or not text.translate(p.PLAIN).strip():
        return Verdict(EMPTY)
    spoken = without_thinking(text)
    if spoken is None:
        return Verdict(TRUNCATED_THINKING)
    plain = _plain(spoken)
    found = _statements(plain, kind)
    if not found:
        return Verdict(TRUNCATED if cut else NO_VERDICT)
    last = found[-1]
    if cut and plain[last.end :].strip(" \t\r\n.\"'”)]}"):
        return Verdict(TRUNCATED)
    verdict = _checked(last, kind, scale)
    if verdict.state == OK and _contradicted(plain, found, lambda other: _checked(other, kind, scale).same(verdict)):
        return Verdict(AMBIGUOUS, said=last.text)
    return verdict


def _checked(statement: _Statement, kind: Kind, scale: Scale | None) -> Verdict:
    return _CHECKED[kind](statement.text, scale or Scale())


def without_thinking(text: str) -> str | None:
    """The text without its think blocks; None where one is opened and not closed.

    A block that is closed and was never opened began in the prompt: all before its end is thinking.
    """
    outside: list[str] = []
    at, thinks = 0, False
    for tag in p.THINK_TAG.finditer(text):
        closes = bool(tag[1])
        if not thinks and closes:
            outside.clear()
        elif not thinks:
            outside.append(text[at : tag.start()])
        thinks, at = not closes, tag.end()
    return None if thinks else "".join([*outside, text[at:]])


def _plain(text: str) -> str:
    """The text with every mark that is no part of a verdict taken out; lines stay lines."""
    text = p.CODE.sub("\n", text)
    for entity, character in p.ENTITIES.items():
        text = text.replace(entity, character)
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).translate(p.PLAIN)
        text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() and not c.isascii() else c for c in text)
    return p.MARKS.sub(" ", re.sub(r"(?<!\\)\\+(?=[\[\]])", "", text)).replace("\r\n", "\n").replace("\r", "\n")


def _statements(text: str, kind: Kind) -> list[_Statement]:
    """The anchored statements in order, without those that are only quoted."""
    found = [_bracketed(text, match) for match in p.BRACKETED.finditer(text) if not _is_index(text, match)]
    starts, ends = [s.start for s in found], [s.end for s in found]
    for word in p.WORD.finditer(text):
        match = p.SAID[kind].match(text, word.end())
        if match is None or not p.BEGINS.search(text[max(word.start() - p.LONGEST_LEAD, 0) : word.start()]):
            continue
        if bisect_left(starts, match.end(1)) == bisect_right(ends, match.start(1)):  # no brackets overlap it
            found.append(_Statement(match.start(1), match.end(1), match[1].strip(), True))
    if kind == "scores":
        found += _scores_of(text)
    found.sort(key=lambda s: s.start)
    found = _without_options(text, _without_quoted(text, found))
    if found:
        return found
    bare = text.strip().strip("[]().\"'$ ").strip()
    whole = _WHOLE[kind].fullmatch(bare)
    return [_Statement(0, len(text), bare, False)] if whole else []


def _is_index(text: str, match: re.Match[str]) -> bool:
    """Whether the brackets are an index of code, `x[[1]]`: digits or a quoted name right behind a name."""
    name = p.NAME.search(text, max(match.start() - 40, 0), match.start())
    held = name is not None and bool(name[0]) and match[1] is not None and p.INDEX.fullmatch(match[1])
    return bool(held and name and not p.WORD.search(name[0]))


def _bracketed(text: str, match: re.Match[str]) -> _Statement:
    said = next(group for group in match.groups() if group is not None)
    introduced = p.INTRODUCED.search(text, max(match.start() - 80, 0), match.start()) is not None
    said = p.NAMED.sub("", said.strip(" \t\"'.:"))
    highest = p.OUT_OF.match(text, match.end())
    if highest is not None and p.ONE_NUMBER.fullmatch(said):
        return _Statement(match.start(), highest.end(), f"{said}/{highest[1]}", introduced)
    return _Statement(match.start(), match.end(), said, introduced)


def _scores_of(text: str) -> list[_Statement]:
    """`score_A: 8.5` and the `score_B: 7` that comes next, as one statement each; one alone is none of both."""
    matches = list(p.SCORE_OF.finditer(text))
    return [
        _Statement(one.start(), other.end(), f"{_as_number(one[2])};{_as_number(other[2])}", True)
        for one, other in pairwise(matches)
        if one[1].upper() == "A" and other[1].upper() == "B"
    ]


def _as_number(text: str) -> str:
    found = p.ONE_NUMBER.match(text)
    return (found[1] if found else text).rstrip(".").replace(",", ".") + (f"/{found[2]}" if found and found[2] else "")


def _without_quoted(text: str, found: Sequence[_Statement]) -> list[_Statement]:
    """The statements that the judge does not only repeat: `"[[A]]" if assistant A is better`, `for example: "[[5]]"`,
    `If it is a tie: [[C]]`; nor what follows one of these in its sentence without a word that introduces it."""
    kept: list[_Statement] = []
    told_before: _Statement | None = None
    for statement in found:
        before = text[max(statement.start - 120, 0) : statement.start].rpartition("\n")[2]
        told = p.IF.match(text, statement.end) or p.EXAMPLE.search(before)
        if not told and not statement.introduced:
            sentence = told_before and p.SAME_SENTENCE.fullmatch(text, told_before.end, statement.start)
            told = sentence or p.CASE.search(before)
        told_before = statement if told else None
        if not told:
            kept.append(statement)
    return kept


def _without_options(text: str, found: list[_Statement]) -> list[_Statement]:
    """The statements without lists of the choices: three or more in a row, all different, each on a listed line or, as
    letters, at the beginning of one. The last of them stays where a word introduces it (`- Overall score: [[7]]`)."""
    kept: list[_Statement] = []
    run: list[_Statement] = []
    line, seen = 0, 0
    for statement in found:
        line, seen = max(line, text.rfind("\n", seen, statement.start) + 1), statement.start
        begins = not p.ANY.search(text, line, statement.start) and p.LETTER.fullmatch(statement.text)
        listed = begins or p.LISTED.match(text, line)
        if not listed or any(s.text.upper() == statement.text.upper() for s in run):
            kept += _no_list(run)
            run = []
        (run if listed else kept).append(statement)
    return kept + _no_list(run)


def _no_list(run: list[_Statement]) -> list[_Statement]:
    return run if len(run) < 3 else [s for s in run[-1:] if s.introduced]


def _contradicted(text: str, found: Sequence[_Statement], same: Callable[[_Statement], bool]) -> bool:
    """Whether another statement of equal standing says something else than the last one.

    That is one on the same line, unless a word introduces the last one, and prose stands between the two or no word
    introduces the other: `[[A]] looked good, but my verdict: [[B]]`. And it is any that a word introduces, where the
    last one is without such a word and in quotation marks or behind others on its line (`The scale ends at [[10]].`).
    """
    last = found[-1]
    cited = not last.introduced and _in_passing(text, last)
    line = text.rfind("\n", 0, last.start)
    for other in found[:-1]:
        if (line >= other.end and not (cited and other.introduced)) or same(other):
            continue
        between = text, other.end, last.start
        repeated = p.NOTHING_BETWEEN.fullmatch(*between) and (other.introduced or not p.ANY.search(*between))
        if repeated or not last.introduced:
            return True
    return False


def _in_passing(text: str, statement: _Statement) -> bool:
    before = text[text.rfind("\n", 0, statement.start) + 1 : statement.start]
    return bool(p.ANY.search(before)) or '"' in before or "“" in before or before.endswith("'")


def _checked_score(said: str, scale: Scale) -> Verdict:
    number = p.ONE_NUMBER.fullmatch(said)
    if number is None:
        return Verdict(AMBIGUOUS if p.SEVERAL.search(said) else NOT_A_LABEL, said=said)
    if re.fullmatch(r"[-+]?\d+,\d{3}\.?", number[1]):
        return Verdict(AMBIGUOUS, said=said)  # 1,000: a thousand, or one?
    value = float(number[1].rstrip(".").replace(",", "."))
    if number[2] is not None and float(number[2].replace(",", ".")) != scale.high:
        return Verdict(OTHER_SCALE, said=said)
    if not scale.low <= value <= scale.high:
        return Verdict(OUT_OF_SCALE, said=said)
    return Verdict(OK, scores=(value,), said=said)


def _checked_scores(said: str, scale: Scale) -> Verdict:
    parts = said.split(";")
    if len(parts) != 2:
        two = p.TWO_NUMBERS.fullmatch(said)
        if two is None:
            return Verdict(AMBIGUOUS if p.SEVERAL.search(said) else NOT_A_LABEL, said=said)
        parts = [two[1], two[2]]
    read_each = [_checked_score(part.strip(), scale) for part in parts]
    wrong = next((each.state for each in read_each if each.state != OK), None)
    if wrong:
        return Verdict(wrong, said=said)
    return Verdict(OK, scores=(read_each[0].scores[0], read_each[1].scores[0]), said=said)


def _checked_choice(said: str, scale: Scale) -> Verdict:
    bare = re.sub(rf"^(?:{p.SIDE})", "", re.sub(rf"{p.BETTER}$", "", said, flags=re.IGNORECASE), flags=re.IGNORECASE)
    short = re.sub(r"\s+", "", bare).upper()
    if short in ("A", "B", "C"):
        return Verdict(OK, label=short, said=short)
    if re.sub(r"^a\s+", "", bare.strip(), flags=re.IGNORECASE).casefold() in p.TIES:
        return Verdict(OK, label="C", said=bare.strip())
    compared = p.COMPARED.fullmatch(short)
    if compared is None or compared[1] == compared[3]:
        return Verdict(AMBIGUOUS if p.SEVERAL.search(said) else NOT_A_LABEL, said=said)
    if "=" in compared[2]:
        return Verdict(OK, label="C", said=short)
    return Verdict(OK, label=compared[1] if ">" in compared[2] else compared[3], said=short)


_CHECKED: Final[Mapping[str, Callable[[str, Scale], Verdict]]] = {
    "score": _checked_score,
    "scores": _checked_scores,
    "choice": _checked_choice,
}
_WHOLE: Final[Mapping[str, re.Pattern[str]]] = {
    "score": re.compile(rf"{p.NUMBER}{p.OF}{p.UNIT}", re.IGNORECASE),
    "scores": re.compile(rf"{p.NUMBER}\s*[,;]\s*{p.NUMBER}"),
    "choice": re.compile(rf"{p.CHOICE}{p.BETTER}", re.IGNORECASE),
}
