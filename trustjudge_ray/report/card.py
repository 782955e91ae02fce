"""The card of an audit (`audit.json`) as people read it: figures by name, and how their numbers are told.

A card may be of another version than this program: a figure that it lacks is no error here.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from trustjudge_ray.report.cells import number

Card = Mapping[str, Any]
Row = Mapping[str, Any]
Found = Mapping[tuple[str, str, str | None], Row]
"""Rows of a card by set, figure and group."""

MEANS: Final = {
    "PASS": "every gate holds",
    "WARN": "at least one gate is not what it should be; see which before the judge is used",
    "BLOCK": "the judge should not be used as it is",
    "INCONCLUSIVE": "the audit cannot say: it is too small, or a part of it was not asked",
}
"""What the verdict of a card, or of one gate, comes to."""
_WORST_FIRST: Final = ("BLOCK", "INCONCLUSIVE", "WARN", "PASS")

NOTES: Final = {
    "no_cases": "no cases",
    "no_interval": "of one passage only, so without an interval",
    "few_wrong": "too few wrong answers: inconclusive",
    "few_right": "too few right answers: inconclusive",
    "few_passages": "few passages",
}
"""Cautions of figures in words."""


def named(card: Card) -> Found:
    """The figures of a card by set, figure and group."""
    return {(row["set"], row["figure"], row["group"]): row for row in card["figures"]}


def conclusive(row: Row | None) -> bool:
    """Whether a figure is there and says something: it has a value, an interval and enough cases."""
    return row is not None and None not in (row["value"], row["low"], row["high"]) and bool(row.get("conclusive", True))


def why_not(row: Row | None) -> str:
    """Why a figure says nothing, in words."""
    if row is None:
        return "it was not asked"
    told = NOTES.get(row.get("caution") or "", "there is no interval").removesuffix(": inconclusive")
    return f"{told} (left out {left_out(row)})" if row["excluded"] and not row["cases"] else told


def ranged(row: Row, ends: tuple[str, str] = ("low", "high"), of: str = "value") -> str:
    """`value [low, high]` with three decimals; a dash without a value."""
    value, low, high = row[of], row[ends[0]], row[ends[1]]
    if value is None:
        return "–"
    return number(value) if low is None or high is None else f"{number(value)} [{number(low)}, {number(high)}]"


def hits_of_cases(row: Row) -> str:
    """`hits / cases`, or the cases of what is no share. Sums of probabilities have one decimal."""
    hits = row["hits"]
    if hits is None:
        return str(row["cases"])
    return f"{hits:.0f} / {row['cases']}" if float(hits).is_integer() else f"{hits:.1f} / {row['cases']}"


def left_out(row: Row) -> str:
    """How many cases were left out, and by which reasons: `3: engine_error 1, low_mass 2`."""
    reasons = ", ".join(f"{reason} {n}" for reason, n in sorted((row.get("excluded_by") or {}).items()))
    return f"{row['excluded']}: {reasons}" if row["excluded"] and reasons else str(row["excluded"])


def noted(row: Row) -> str:
    """What a reader must know of a figure, or ""."""
    caution = row.get("caution") or ""
    return NOTES.get(caution, caution)


def gates(card: Card) -> list[Row]:
    """The gates, the worst first."""
    order = {status: place for place, status in enumerate(_WORST_FIRST)}
    return sorted(card["gates"], key=lambda gate: order.get(gate["status"], -1))


def title(card: Card) -> str:
    """What is audited, in a word: the judge's name, or its model."""
    return str(card["judge"].get("name") or identity(card).get("model") or "a judge")


def identity(card: Card) -> Mapping[str, Any]:
    """What decides the judge's answers, as its engine stated it when it was audited."""
    return card["judge"].get("identity") or {}


def extent(card: Card) -> str:
    """Of how much, and when: `48 items over 12 passages (own 48), 2026-03-02`."""
    split = ", ".join(f"{name} {n}" for name, n in card["benchmarks"].items())
    date = (card.get("made") or {}).get("date")
    about = f"{card['items']} items over {card['passages']} passages" + (f" ({split})" if split else "")
    return f"{about}, {date or 'date not recorded'}"


def compact(value: Any) -> str:
    """A value in one line: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
