"""Sheets that people fill in: which answers or pairs they are asked about, drawn at random, and what they wrote.

What is drawn is written down (frame, seed, probability), because an estimate from labels that somebody chose is worth
nothing: `powered` takes labels of such sheets only.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from trustjudge_ray.identity import joined_hash

KINDS: Final = ("compare", "score")
LABELS: Final = {
    "sheet": pl.String,
    "unit": pl.String,
    "annotator": pl.String,
    "question_id": pl.String,
    "response_a": pl.String,
    "response_b": pl.String,
    "value": pl.Float64,
}
"""What people said: +1, 0 or −1 as response_a is better, equal or worse; or the score. A row for each annotator."""
_UNIT: Final = ("question_id", "response_a", "response_b")
_ASKED: Final = {"compare": "better: 1, 2 or tie", "score": "score: {low:g} to {high:g}"}
_TEXTS: Final = {"compare": ("answer_1", "answer_2"), "score": ("answer",)}
_WORDS: Final = {"1": 1.0, "2": -1.0, "tie": 0.0}
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class Unit:
    """One line of a sheet: an answer, or a pair. `swapped`: response_b is shown as answer 1."""

    name: str
    question_id: str
    response_a: str
    response_b: str | None
    swapped: bool


@dataclass(frozen=True, slots=True)
class Sheet:
    """A sheet that was drawn.

    Attributes:
        name: of what it was drawn from and how: the same draw has the same name.
        frame: how many units it was drawn from, all with the same probability, without replacement.
        frame_hash: of their ids: labels are of use only while a run has these units.
        low, high: of the scores that may be given; None for pairs.
    """

    name: str
    kind: str
    seed: int
    frame: int
    frame_hash: str
    units: tuple[Unit, ...]
    low: float | None = None
    high: float | None = None

    @property
    def probability(self) -> float:
        """With which every unit of the frame was drawn."""
        return len(self.units) / self.frame


@dataclass(frozen=True, slots=True)
class Problem:
    """A cell that says nothing usable: `unfilled`, `odd_value`, `unknown_unit`, `repeated_unit` or `missing_row`."""

    line: int | None
    unit: str
    reason: str
    got: str
    annotator: str | None = None


def frame_of(judgments: pl.DataFrame, kind: str) -> pl.DataFrame:
    """The answers, or pairs of different answers, that a judge was asked about: question_id, response_a, response_b, in
    order. Answers that are empty or error messages are none."""
    out = ("identical", "empty_response", "error_marker", "missing_reference")
    asked = judgments.filter(pl.col("kind") == kind, pl.col("repeat") == 0, ~pl.col("status").is_in(out))
    return asked.select(*_UNIT).unique().sort(*_UNIT)


def frame_hash(frame: pl.DataFrame) -> str:
    """A hash of the units."""
    return joined_hash(*("\x1f".join(map(str, row)) for row in frame.rows()))


def draw(frame: pl.DataFrame, kind: str, n: int, seed: int, scale: tuple[float, float] | None = None) -> Sheet:
    """A simple random sample of n units without replacement, and which of a pair is shown first.

    Raises:
        ValueError: there are fewer than n units, or n is below 1.
    """
    if not 1 <= n <= frame.height:
        raise ValueError(f"n: got {n}; from 1 to {frame.height}, the {'pairs' if kind == 'compare' else 'answers'}")
    whole = frame_hash(frame)
    rng = np.random.default_rng(seed)
    chosen = rng.choice(frame.height, size=n, replace=False)
    swapped = rng.integers(0, 2, size=n).astype(bool) & (kind == "compare")
    name = joined_hash("label-sheet", kind, whole, str(n), str(seed), str(scale))[:12]
    rows = frame[chosen].rows()
    units = tuple(Unit(f"{name}-{i:05d}", rows[i][0], rows[i][1], rows[i][2], bool(swapped[i])) for i in range(n))
    low, high = scale or (None, None)
    return Sheet(name, kind, seed, frame.height, whole, units, low, high)


def to_csv(sheet: Sheet, questions: Mapping[str, str], answers: Mapping[tuple[str, str], str]) -> str:
    """The sheet as people get it: texts, no model, and an empty column for their answer.

    A text that a spreadsheet would take for a formula begins with an apostrophe.

    Args:
        questions: texts by question_id; answers: texts by question_id and response_id.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["unit", "question", *_TEXTS[sheet.kind], _asked(sheet), "annotator", "note"])
    for unit in sheet.units:
        shown = [unit.response_a] if unit.response_b is None else [unit.response_a, unit.response_b]
        texts = [answers[unit.question_id, response] for response in (shown[::-1] if unit.swapped else shown)]
        row = [unit.name, *(_harmless(text) for text in (questions[unit.question_id], *texts)), "", "", ""]
        writer.writerow(row)
    return out.getvalue()


def read_csv(sheet: Sheet, text: str, annotator: str) -> tuple[pl.DataFrame, list[Problem]]:
    """What people wrote into a sheet, and every cell that says nothing.

    Args:
        annotator: who filled it in, where the column `annotator` does not say.

    Returns:
        LABELS, and problems in the order of the lines; every unit of the sheet is in one of the two.

    Raises:
        ValueError: it has not the columns of this kind of sheet.
    """
    column = _asked(sheet)
    units = {unit.name: unit for unit in sheet.units}
    seen: set[tuple[str, str]] = set()
    rows: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for line, row in _rows(text, column):
        name, said = (row["unit"] or "").strip(), (row[column] or "").strip()
        who = (row.get("annotator") or "").strip() or annotator
        unit = units.get(name)
        value = None if unit is None else _value(sheet, unit, said)
        if unit is None:
            problems.append(Problem(line, name, "unknown_unit", said, who))
        elif (name, who) in seen:
            problems.append(Problem(line, name, "repeated_unit", said, who))
        elif value is None:
            problems.append(Problem(line, name, "odd_value" if said else "unfilled", said, who))
        else:
            about = {key: getattr(unit, key) for key in _UNIT}
            rows.append({"sheet": sheet.name, "unit": name, "annotator": who, "value": value} | about)
        seen.add((name, who))
    present = {name for name, _ in seen}
    problems += [Problem(None, name, "missing_row", "") for name in units if name not in present]
    return pl.DataFrame(rows, schema=LABELS), problems


def _rows(text: str, column: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and cells of every row; commas, semicolons and tabs are told apart by the header."""
    header = text.lstrip("\ufeff").split("\n", 1)[0]
    delimiter = max(",;\t", key=lambda mark: header.count(mark))
    reader = csv.DictReader(io.StringIO(text.lstrip("\ufeff"), newline=""), delimiter=delimiter)
    missing = [name for name in ("unit", column) if name not in (reader.fieldnames or [])]
    if missing:
        raise ValueError(f"no column '{missing[0]}'; it has {list(reader.fieldnames or [])}")
    for row in reader:
        yield reader.line_num, row


def _value(sheet: Sheet, unit: Unit, said: str) -> float | None:
    """What a cell says about the unit; None if that cannot be told."""
    if sheet.kind == "compare":
        word = said.lower().removesuffix(".0")
        value = _WORDS.get(word)
        return value if value is None else (-value if unit.swapped else value) + 0.0
    try:
        value = float(said.replace(",", "."))
    except ValueError:
        return None
    return value if sheet.low is not None and sheet.high is not None and sheet.low <= value <= sheet.high else None


def _asked(sheet: Sheet) -> str:
    return _ASKED[sheet.kind].format(low=sheet.low, high=sheet.high) if sheet.kind == "score" else _ASKED[sheet.kind]


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text


def consensus(labels: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Labels of several annotators as one: question_id, response_a, response_b, `mean` of their values, and for pairs
    `wanted`, what most of them said (a tie where two outcomes are said equally often)."""
    keys = list(_UNIT)
    mean = labels.group_by(keys, maintain_order=True).agg(mean=pl.col("value").mean())
    if kind != "compare":
        return mean
    votes = labels.group_by(*keys, "value").agg(n=pl.len())
    most = votes.filter(pl.col("n") == pl.col("n").max().over(keys, mapping_strategy="group_to_rows"))
    said = most.group_by(keys).agg(
        wanted=pl.when(pl.len() == 1).then(pl.col("value").first()).otherwise(0.0).cast(pl.Int32)
    )
    return mean.join(said, on=keys, how="left", nulls_equal=True)


def merged(before: pl.DataFrame, labels: pl.DataFrame, problems: Sequence[Problem]) -> tuple[pl.DataFrame, int]:
    """LABELS that were there, with what a file says now, and how many of them it says otherwise.

    A cell that is empty or odd now takes back what it said before.
    """
    key = ["unit", "annotator"]
    emptied = [(p.unit, p.annotator) for p in problems if p.reason in ("unfilled", "odd_value")]
    taken_back = pl.DataFrame(emptied, schema=dict.fromkeys(key, pl.String), orient="row")
    other = before.join(labels.select(*key, now="value"), on=key).filter(pl.col("value") != pl.col("now")).height
    other += before.join(taken_back, on=key, how="semi").height
    kept = before.join(labels, on=key, how="anti").join(taken_back, on=key, how="anti")
    return pl.concat([kept, labels]).sort(key), other


def unfilled_share(sheet: Sheet, labels: pl.DataFrame) -> float:
    """The share of the drawn units that nobody has labelled."""
    return 1 - labels["unit"].n_unique() / len(sheet.units)
