"""Other numbers and dates in place of those of a text: answers that are wrong, of the same kind, and no model's.

What counts as a number or a date: digits (also 1,200 · 3.5 · 4th · 1920s · 1914–18 · 14:40 · 2024-05-31), number words
and ordinals to ninety-nine, months and weekdays. A month beside no number counts only where it can hardly be a name
or a verb ("in May", "March to June").
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from trustjudge_ray.audit.qa import Item, accepting
from trustjudge_ray.identity import seed_of

MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SMALL_ORDINALS = (
    *("zeroth", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"),
    *("eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth"),
    "nineteenth",
)
_SCALES: Final = {"hundred": "thousand", "thousand": "hundred", "million": "billion", "billion": "million"}


def _words(small: tuple[str, ...], tens: tuple[str, ...]) -> dict[str, int]:
    """Every number from 0 to 99 in words; the tens in `small` form when they stand alone."""
    known = {word: i for i, word in enumerate(small)}
    for i, word in enumerate(tens):
        known[word] = 20 + 10 * i
        known |= {f"{_TENS[i]}-{unit}": 20 + 10 * i + k for k, unit in enumerate(small[1:10], 1)}
    return known


CARDINALS: Final = _words(_SMALL, _TENS)
ORDINALS: Final = _words(_SMALL_ORDINALS, tuple(word[:-1] + "ieth" for word in _TENS))
_CARDINAL_WORDS = {n: word for word, n in CARDINALS.items()}
_ORDINAL_WORDS = {n: word for word, n in ORDINALS.items()}
_MONTH = "|".join(MONTHS)
_SPELLED = "|".join(sorted(CARDINALS | ORDINALS, key=len, reverse=True)).replace("-", "[- ]")
_PART = re.compile(
    rf"""(?P<iso>\b[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}\b)
    | (?P<span>\b[12][0-9]{{3}}[-–/][0-9]{{2}}\b(?!-))
    | (?P<time>\b(?:[01]?[0-9]|2[0-3]):[0-5][0-9]\b)
    | (?P<decade>\b[0-9]{{1,3}}0s\b)
    | (?P<nth>\b[0-9]+(?:st|nd|rd|th)\b)
    | (?P<number>(?<![\w.,])(?:[0-9]{{1,3}}(?:,[0-9]{{3}})+|[0-9]+)(?:\.[0-9]+)?(?![0-9]|[.,][0-9]))
    | (?P<month>\b(?:{_MONTH})\b)
    | (?P<weekday>\b(?:{"|".join(WEEKDAYS)})\b)
    | (?P<spelled>\b(?i:{_SPELLED})\b)""",
    re.VERBOSE,
)
_BEFORE_MONTH = re.compile(
    rf"\b(?:in|of|since|until|early|late|mid|from|to|[0-9]+(?:st|nd|rd|th)?|(?:{_MONTH}) (?:and|or))[ -]$", re.I
)
_AFTER_MONTH = re.compile(rf",? [0-9]|(?: to | until | and | or |-|–)(?:{_MONTH})\b")
_BEFORE_DAY = re.compile(rf"\b(?:{_MONTH}) $")
_AFTER_DAY = re.compile(rf"(?: of)? (?:{_MONTH})\b")
_UNIT = re.compile(r" (?!(?:and|or|to|until|by|of|in|per)\b)[^\W0-9]+")
_PERCENT = re.compile(r"%|\bper ?cent\b", re.I)
_TWELVE_HOURS = re.compile(r"\b[ap]\.?m\b", re.I)
_LATEST_YEAR: Final = 2020
_TRIES: Final = 8


@dataclass(frozen=True, slots=True)
class _Draw:
    """How far the parts of one text move.

    Attributes:
        text: the whole of it.
        years: by how much every year moves, never 0.
        growth: by what share of itself every other number grows (negative: shrinks), never 0.
        turn: 0 to 1, how far days, months, weekdays, times of day and ordinals move, always on.
    """

    text: str
    years: int
    growth: float
    turn: float

    def around(self, at: int, length: int, least: int = 1, most: int | None = None) -> int:
        """A place on a circle of `length` places, `least` to `most` (default: all but one round) further on."""
        steps = (length - 1 if most is None else most) - least + 1
        return (at + least + int(self.turn * steps)) % length

    def grown(self, number: int) -> int:
        """Another whole number, not below 0; larger ones stay larger."""
        step = max(1, round(number * abs(self.growth)))
        return number + step if self.growth > 0 or step > number else number - step


def perturbed(text: str, seed: int) -> str | None:
    """The text with every number and date another one, or None where it has none or no change makes it wrong.

    No oracle takes the answer for right where the text is the gold. Where the text's other words are so many that one
    would ("40 miles" and "55 miles" have a token F1 of ½), the word of a scale is changed too ("3 million", "5
    billion"), or else the first number comes with the word behind it, or alone ("55"). All years of a text move by as
    much, its other numbers grow or shrink by one factor, so a period still ends after it begins. The same text and seed
    give the same answer.
    """
    parts = [part for part in _PART.finditer(text) if _counts(part)]
    item = Item("", "", "", "", "", (text,), True)
    rng = np.random.default_rng(seed_of("perturbed", str(seed), text))
    draws = [_draw(text, parts, rng) for _ in range(_TRIES)] if parts else []
    for form in _FORMS:
        for draw in draws:
            other = form(parts, draw)
            if other is not None and not accepting(item, other):
                return other
    return None


def number_type(text: str) -> str | None:
    """What the numbers and dates of a text make it: the first of `date` (a day), `month`, `weekday`, `year`, `time`,
    `number`, `ordinal` that there is one of, or None."""
    parts = [part for part in _PART.finditer(text) if _counts(part)]
    kinds = {_number_type(part) for part in parts}
    if "month" in kinds and "day" in kinds:
        return "date"
    return next(
        (kind for kind in ("date", "month", "weekday", "year", "time", "number", "ordinal") if kind in kinds), None
    )


def _number_type(part: re.Match[str]) -> str:
    digits = part[0].rstrip("sthnrd")
    if part.lastgroup in ("number", "nth") and digits.isdigit() and _is_day(part, int(digits)):
        return "day"
    if part.lastgroup == "nth" or _word(part) in ORDINALS:
        return "ordinal"
    if part.lastgroup in ("decade", "span") or _is_year(part):
        return "year"
    return {"iso": "date", "spelled": "number"}.get(part.lastgroup or "", part.lastgroup or "")


def _changed(parts: list[re.Match[str]], draw: _Draw) -> str | None:
    text, end = "", 0
    for part in parts:
        text += draw.text[end : part.start()] + _other(part, draw)
        end = part.end()
    return text + draw.text[end:]


def _rescaled(parts: list[re.Match[str]], draw: _Draw) -> str | None:
    return re.sub(rf"\b(?:{'|'.join(_SCALES)})\b", lambda word: _SCALES[word[0]], _changed(parts, draw) or "")


def _with_unit(parts: list[re.Match[str]], draw: _Draw) -> str | None:
    """The first number and the word behind it ("8 hours" for "5 hours and 40 minutes")."""
    word = _UNIT.match(draw.text, parts[0].end())
    return _other(parts[0], draw) + word[0] if word else None


def _alone(parts: list[re.Match[str]], draw: _Draw) -> str | None:
    return _other(parts[0], draw)


_FORMS: Final = (_changed, _rescaled, _with_unit, _alone)
"""How the answer is written, the likest to the gold first."""


def _draw(text: str, parts: list[re.Match[str]], rng: np.random.Generator) -> _Draw:
    """Years stay below _LATEST_YEAR, percentages below 100, and numbers below 5 do not shrink."""
    plain = [float(part[0].replace(",", "")) for part in parts if part.lastgroup == "number" and not _is_year(part)]
    plain += [CARDINALS[word] for part in parts if (word := _word(part)) in CARDINALS]
    all_years = [int(part[0][:4]) for part in parts if part.lastgroup in ("iso", "span") or _is_year(part)]
    years, growth = int(rng.integers(3, 41)), float(rng.uniform(0.2, 0.7))
    late = any(year + years > _LATEST_YEAR for year in all_years)
    over = bool(_PERCENT.search(text)) and any(n * (1 + growth) > 100 for n in plain)
    shrinks = over or (rng.random() < 0.5 and min(plain, default=0) >= 5)
    back = late or rng.random() < 0.5
    return _Draw(text, -years if back else years, -growth if shrinks else growth, float(rng.random()))


def _counts(part: re.Match[str]) -> bool:
    """Whether it is meant as a number or date: "May" and "March" by what stands around them, "one" in short texts."""
    before, after = part.string[: part.start()], part.string[part.end() :]
    if part.lastgroup == "month":
        return not (before or after) or bool(_BEFORE_MONTH.search(before) or _AFTER_MONTH.match(after))
    return part[0].lower() != "one" or len(part.string.split()) <= 3


def _other(part: re.Match[str], draw: _Draw) -> str:
    """What stands there instead: never the same."""
    return _OTHERS[part.lastgroup or ""](part, draw)


def _other_iso(part: re.Match[str], draw: _Draw) -> str:
    year, month, day = map(int, part[0].split("-"))
    return f"{year + draw.years:04d}-{draw.around(month - 1, 12) + 1:02d}-{draw.around(day - 1, 28) + 1:02d}"


def _other_span(part: re.Match[str], draw: _Draw) -> str:
    """1914–18: both years move."""
    first, mark, last = int(part[0][:4]), part[0][4], int(part[0][5:])
    return f"{first + draw.years}{mark}{(last + draw.years) % 100:02d}"


def _other_time(part: re.Match[str], draw: _Draw) -> str:
    """A quarter of an hour to four hours later."""
    hour, minute = part[0].split(":")
    round_trip = 720 if _TWELVE_HOURS.search(draw.text) else 1440
    hours, minutes = divmod(draw.around(int(hour) * 60 + int(minute), round_trip, 15, 240), 60)
    shown = 12 if round_trip == 720 and not hours else hours
    return f"{shown:02d}:{minutes:02d}" if hour.startswith("0") else f"{shown}:{minutes:02d}"


def _other_decade(part: re.Match[str], draw: _Draw) -> str:
    """One to four decades before; of 90s and the like, another one."""
    decade = int(part[0][:-1])
    if decade < 100:
        return f"{10 * draw.around(decade // 10, 10)}s"
    return f"{decade - 10 * (1 + int(4 * draw.turn))}s"


def _other_nth(part: re.Match[str], draw: _Draw) -> str:
    number = int(part[0][:-2])
    other = draw.around(number - 1, 28) + 1 if _is_day(part, number) else _later_or_earlier(number, draw)
    suffix = "th" if other % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(other % 10, "th")
    return f"{other}{suffix}"


def _other_number(part: re.Match[str], draw: _Draw) -> str:
    if _is_year(part):
        return str(int(part[0]) + draw.years)
    if part[0].isdigit() and _is_day(part, int(part[0])):
        return str(draw.around(int(part[0]) - 1, 28) + 1)
    base, zeros, places = _base(part[0])
    number = draw.grown(base) * 10**zeros
    if not places:
        return f"{number:,}" if "," in part[0] else str(number)
    whole, fraction = divmod(number, 10**places)
    return f"{whole:,}.{fraction:0{places}d}" if "," in part[0] else f"{whole}.{fraction:0{places}d}"


def _other_month(part: re.Match[str], draw: _Draw) -> str:
    return MONTHS[draw.around(MONTHS.index(part[0]), 12)]


def _other_weekday(part: re.Match[str], draw: _Draw) -> str:
    return WEEKDAYS[draw.around(WEEKDAYS.index(part[0]), 7)]


def _other_spelled(part: re.Match[str], draw: _Draw) -> str:
    word = _word(part)
    if word in CARDINALS:
        number = draw.grown(CARDINALS[word])
        other = _CARDINAL_WORDS[number if number < 100 else CARDINALS[word] // 2]
    else:
        other = _ORDINAL_WORDS[_later_or_earlier(ORDINALS[word], draw)]
    return other.capitalize() if part[0][0].isupper() else other


_OTHERS: Final[dict[str, Callable[[re.Match[str], _Draw], str]]] = {
    "iso": _other_iso,
    "span": _other_span,
    "time": _other_time,
    "decade": _other_decade,
    "nth": _other_nth,
    "number": _other_number,
    "month": _other_month,
    "weekday": _other_weekday,
    "spelled": _other_spelled,
}


def _later_or_earlier(ordinal: int, draw: _Draw) -> int:
    """One to five places away: up to the twelfth later, beyond it (centuries) earlier."""
    places = 1 + int(5 * draw.turn)
    return ordinal + places if ordinal <= 12 else ordinal - places


def _word(part: re.Match[str]) -> str:
    return part[0].lower().replace(" ", "-")


def _is_year(part: re.Match[str]) -> bool:
    return part.lastgroup == "number" and len(part[0]) == 4 and part[0].isdigit() and 1000 <= int(part[0]) <= 2100


def _is_day(part: re.Match[str], number: int) -> bool:
    before, after = part.string[: part.start()], part.string[part.end() :]
    return 1 <= number <= 31 and bool(_BEFORE_DAY.search(before) or _AFTER_DAY.match(after))


def _base(number: str) -> tuple[int, int, int]:
    """Its digits as a whole number, how many zeros at the end were taken off (12,000 → 12), and its decimal places."""
    whole, _, fraction = number.replace(",", "").partition(".")
    base, zeros = int(whole + fraction), 0
    while not fraction and base >= 100 and base % 10 == 0:
        base, zeros = base // 10, zeros + 1
    return base, zeros, len(fraction)
