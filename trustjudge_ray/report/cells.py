"""What every part of a report is made of: its inputs, tables of text, which metrics are shown, and how numbers read.

A cell is text; one that shows numbers has them with it, unrounded: tables sort by them, and each is in metrics.json.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.judging.protocols import Protocol

Form = Callable[[float | None], str]


class Cell(str):
    """Text, and the numbers that it shows, as metrics.json has them: in the order of the text, unrounded."""

    values: tuple[float, ...]

    def __new__(cls, text: str, *values: float) -> "Cell":
        made = super().__new__(cls, text)
        made.values = values
        return made


def values_of(text: str) -> tuple[float, ...]:
    """The numbers that a text shows; none where it is plain text."""
    return text.values if isinstance(text, Cell) else ()


def said(text: str, *parts: object) -> Cell:
    """A text with parts in its `{}`, and the numbers of all of them. Texts from outside may only be parts."""
    return Cell(text.format(*parts), *(value for part in parts if isinstance(part, Cell) for value in part.values))


def listed(parts: Sequence[str], most: int = 4, last: str = "and") -> Cell:
    """`a, b and c`, with the numbers of all of them; `a, b, c and 4 more` where there are more than `most`."""
    shown = list(parts) if len(parts) <= most else [*parts[: most - 1], f"{len(parts) - most + 1} more"]
    slots = "{}" if len(shown) < 2 else ", ".join("{}" for _ in shown[:-1]) + f" {last} {{}}"
    return said(slots, *shown) if shown else Cell("")


MATCHED: Final = (
    "judge",
    "protocol",
    "pair_protocol",
    "score_rule",
    "verdict_rule",
    "k",
    "tolerance",
    "verdict_tolerance",
)
"""The columns of METRICS in which a ratio and what belongs to it are the same."""


@dataclass(frozen=True)
class Inputs:
    """What a report is made of: the tables of a run folder and how the run was made."""

    title: str
    judgments: pl.DataFrame
    scores: pl.DataFrame
    verdicts: pl.DataFrame
    metrics: pl.DataFrame
    ratings: pl.DataFrame
    protocols: dict[str, Protocol]
    settings: AnalysisConfig
    warnings: list[str] = field(default_factory=list)
    manifest: dict[str, Any] = field(default_factory=dict)
    quarantine: pl.DataFrame | None = None
    duplicates: int = 0
    people: dict[str, Any] | None = None
    """What `trustjudge agree` said of label sheets and a leaderboard, if it was called."""
    audits: dict[str, Any] = field(default_factory=dict)
    """The cards (`audit.json`) of judges that were audited, by judge; None is as good as no entry."""
    ablation: pl.DataFrame | None = None
    """The table of `trustjudge ablation` (`analysis.ablation.ABLATION`), if it was called."""
    browser: str | None = None
    """The page beside the report that shows single judgments, if the run has it."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table as people read it: a title, what it says in a sentence, and cells as text; `named` is the column that
    says what a row is about."""

    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    empty: str = "no cases"
    named: int = 0


def overall(inputs: Inputs) -> pl.DataFrame:
    """The metrics over all categories, of the rules of `every_tolerance`, at the smallest tolerances."""
    same = ("metric", "judge", "protocol", "pair_protocol", "score_rule", "verdict_rule")
    smallest = [
        pl.col(name).is_null() | (pl.col(name) == pl.col(name).min().over(same))
        for name in ("tolerance", "verdict_tolerance")
    ]
    return every_tolerance(inputs).filter(*smallest)


def every_tolerance(inputs: Inputs) -> pl.DataFrame:
    """The metrics over all categories, of the rules that the settings show and of the reference's baseline: ours stand
    beside it whatever is configured."""
    return inputs.metrics.filter(
        pl.col("category").is_null(),
        pl.col("score_rule").is_null() | pl.col("score_rule").is_in([*inputs.settings.score_rules, "baseline"]),
        pl.col("verdict_rule").is_null() | pl.col("verdict_rule").is_in([*inputs.settings.verdict_rules, "baseline"]),
    )


def main_rules(inputs: Inputs) -> pl.DataFrame:
    """The overall metrics of the rules that the settings put first, and of the reference's baseline."""
    scores, verdicts = inputs.settings.score_rule, inputs.settings.verdict_rule
    return overall(inputs).filter(
        pl.col("score_rule").is_null() | pl.col("score_rule").is_in([scores, "baseline"]),
        pl.col("verdict_rule").is_null() | pl.col("verdict_rule").is_in([verdicts, "baseline"]),
    )


def beside(rows: pl.DataFrame, metric: str, like: dict[str, Any], but: Sequence[str] = ()) -> dict[str, Any] | None:
    """The row of another metric that belongs to a ratio's row: the same in all of MATCHED, less `but`."""
    same = [pl.col(name).eq_missing(pl.lit(like[name])) for name in MATCHED if name not in but]
    found = rows.filter(pl.col("metric") == metric, *same)
    return found.row(0, named=True) if found.height else None


def value_beside(rows: pl.DataFrame, metric: str, like: dict[str, Any], but: Sequence[str] = ()) -> float | None:
    """The value of that row; None where there is none."""
    found = beside(rows, metric, like, but)
    return None if found is None else found["value"]


def plain(table: Table) -> str:
    """A table in fixed-width text."""
    lines = [tuple(table.columns), *[tuple(row) for row in table.rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.columns))]
    body = [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    ]
    body.insert(1, "  " + "  ".join("-" * width for width in widths))
    return "\n".join([table.title, *body])


def share(value: float | None) -> str:
    """A share in percent, or a dash where there is none."""
    return "–" if value is None else Cell(f"{100 * value:.1f} %", value)


def number(value: float | None) -> str:
    """A number with three decimals, or a dash where there is none."""
    return "–" if value is None else Cell(f"{value:.3f}", value)


def small(value: float | None) -> str:
    """A number that may be very small."""
    return "–" if value is None else Cell(f"{value:.2g}", value)


def rounded(value: float | None) -> str:
    """A number without decimals."""
    return "–" if value is None else Cell(f"{value:.0f}", value)


def whole(value: int | None) -> str:
    """A count, as it is."""
    return "–" if value is None else Cell(str(value), value)


def total(value: float | None) -> str:
    """A sum of counts, or of shares: whole as it is, otherwise with six digits."""
    if value is None:
        return "–"
    return Cell(f"{value:.0f}" if float(value).is_integer() else f"{value:.6g}", value)


def decimal(value: float) -> str:
    """A setting or the end of a bin: as short as it can be said."""
    return Cell(f"{value:g}", value)


def interval(row: dict[str, Any], form: Form) -> str:
    """`low … high` in the given form, or why there is none."""
    if row["low"] is None or row["high"] is None:
        return "–"
    return said("{} … {}", form(row["low"]), form(row["high"]))


def counts(row: dict[str, Any]) -> str:
    """`hits / cases`."""
    hits = row["hits"]
    return whole(row["cases"]) if hits is None else said("{} / {}", total(hits), whole(row["cases"]))


def texts(row: dict[str, Any], *names: str) -> tuple[str, ...]:
    """Columns of a row as cells; a null is empty."""
    return tuple(_text(row[name]) for name in names)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return Cell(str(value), value) if isinstance(value, int | float) else str(value)


def confidence(settings: AnalysisConfig) -> str:
    """The nominal coverage of every interval, `95 %`."""
    return f"{100 * settings.confidence:g} %"
