"""What every part of a report is made of: its inputs, tables of text, which metrics are shown, and how numbers read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.judging.protocols import Protocol

Form = Callable[[float | None], str]
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


@dataclass(frozen=True, slots=True)
class Table:
    """A table as people read it: a title, what it says in a sentence, and cells as text."""

    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    empty: str = "no cases"


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
    return "–" if value is None else f"{100 * value:.1f} %"


def number(value: float | None) -> str:
    """A number with three decimals, or a dash where there is none."""
    return "–" if value is None else f"{value:.3f}"


def small(value: float | None) -> str:
    """A number that may be very small."""
    return "–" if value is None else f"{value:.2g}"


def interval(row: dict[str, Any], form: Form) -> str:
    """`low … high` in the given form, or why there is none."""
    if row["low"] is None or row["high"] is None:
        return "–"
    return f"{form(row['low'])} … {form(row['high'])}"


def counts(row: dict[str, Any]) -> str:
    """`hits / cases`."""
    hits = row["hits"]
    return f"{hits:g} / {row['cases']}" if hits is not None else str(row["cases"])


def texts(row: dict[str, Any], *names: str) -> tuple[str, ...]:
    """Columns of a row as cells; a null is empty."""
    return tuple("" if row[name] is None else str(row[name]) for name in names)


def confidence(settings: AnalysisConfig) -> str:
    """The nominal coverage of every interval, `95 %`."""
    return f"{100 * settings.confidence:g} %"
