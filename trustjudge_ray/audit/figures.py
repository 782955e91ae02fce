"""A figure of the card: a number with its interval, what it was taken over, what was left out and why."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from trustjudge_ray.analysis.inference import FEW_FREEDOM, Array
from trustjudge_ray.audit.estimates import Clusters, Estimate, change, share

NO_CASES, NO_INTERVAL, FEW_PASSAGES = "no_cases", "no_interval", "few_passages"
FEW_WRONG, FEW_RIGHT = "few_wrong", "few_right"
INCONCLUSIVE: Final = (NO_CASES, NO_INTERVAL, FEW_WRONG, FEW_RIGHT)
"""Cautions with which a figure shows nothing, whatever its value."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the card.

    Attributes:
        figure, set, group: what it is called; group is None, or `column=value`.
        estimate: see `Estimate`.
        excluded_by: how many cases were left out, by reason.
        caution: `no_cases`; `no_interval` (one passage only, or see `estimates.mean`); `few_wrong`, `few_right` (fewer
            than `audit.min_wrong` wrong or right answers); `few_passages` (below `inference.FEW_FREEDOM` degrees of
            freedom); or "". The first that holds.
    """

    figure: str
    set: str
    group: str | None
    estimate: Estimate
    excluded_by: Mapping[str, int]
    caution: str

    @property
    def conclusive(self) -> bool:
        """Whether there were enough cases to say anything."""
        return self.caution not in INCONCLUSIVE

    def as_json(self) -> dict[str, Any]:
        """The row of `audit.json`; a number that is not finite is null."""
        of = self.estimate
        return {
            "figure": self.figure,
            "set": self.set,
            "group": self.group,
            "value": finite(of.value),
            "low": finite(of.low),
            "high": finite(of.high),
            "hits": None if of.hits is None else finite(of.hits),
            "cases": of.cases,
            "excluded": sum(self.excluded_by.values()),
            "excluded_by": dict(self.excluded_by),
            "clusters": of.clusters,
            "caution": self.caution,
            "conclusive": self.conclusive,
        }


def finite(value: float) -> float | None:
    """The number, or None where it is not finite."""
    return float(value) if math.isfinite(value) else None


def make(
    name: str, of: str, group: str | None, estimate: Estimate, excluded_by: Mapping[str, int], few: str = ""
) -> Figure:
    """A figure with its caution; `few` is FEW_WRONG or FEW_RIGHT where what it hangs on is too little."""
    empty = NO_CASES if not estimate.cases or math.isnan(estimate.value) else ""
    alone = NO_INTERVAL if math.isnan(estimate.low) else ""
    seldom = FEW_PASSAGES if estimate.freedom < FEW_FREEDOM else ""
    return Figure(name, of, group, estimate, excluded_by, empty or alone or few or seldom)


class Cases:
    """Rows of one figure, or of several about the same rows.

    Attributes:
        frame: all rows, with `cluster` and `out`, why a row is left out, or null.
        size: passages of the audit.
        kept: the rows that count.
        excluded_by: how many do not, by reason.
    """

    def __init__(self, frame: pl.DataFrame, size: int) -> None:
        self.frame, self.size = frame, size
        self.excluded_by = counts_of(frame["out"])
        self.kept = frame.filter(pl.col("out").is_null()) if self.excluded_by else frame

    def where(self, *conditions: pl.Expr) -> "Cases":
        """Only the rows that fulfil them."""
        return Cases(self.frame.filter(*conditions), self.size)

    def share(self, name: str, of: str, group: str | None, hits: pl.Expr, few: str = "", soft: bool = False) -> Figure:
        """The mean of `hits`, from 0 to 1."""
        return self.figure(name, of, group, hits, lambda at, x, size: share(at, x, size, soft), few)

    def change(self, name: str, of: str, group: str | None, by: pl.Expr, few: str = "", soft: bool = False) -> Figure:
        """The mean of differences, from −1 to 1."""
        return self.figure(name, of, group, by, lambda at, x, size: change(at, x, size, soft), few)

    def figure(
        self,
        name: str,
        of: str,
        group: str | None,
        values: pl.Expr,
        estimate: Callable[[Clusters, Array, int], Estimate],
        few: str = "",
    ) -> Figure:
        """Any estimate of one value per row."""
        at, numbers = self.numbers(values)
        return make(name, of, group, estimate(at, numbers, self.size), self.excluded_by, few)

    def numbers(self, values: pl.Expr) -> tuple[Clusters, Array]:
        """Passage and value of each row that counts, sorted: sums do not hang on the order of rows."""
        found = self.kept.select("cluster", values.cast(pl.Float64).alias("value"))
        at, numbers = found["cluster"].to_numpy().astype(np.int64), found["value"].to_numpy().astype(np.float64)
        order = np.lexsort((numbers, at))
        return at[order], numbers[order]


def counts_of(reasons: pl.Series) -> dict[str, int]:
    """How often each reason stands there, sorted by name; nulls are no reason."""
    if reasons.null_count() == len(reasons):
        return {}
    return {str(reason): int(n) for reason, n in sorted(reasons.drop_nulls().value_counts().rows())}


GROUPED_BY: Final = ("benchmark", "hops", "answerable")


def grouped(frame: pl.DataFrame) -> Iterator[tuple[str | None, pl.DataFrame]]:
    """The table as a whole (None), then by each value of GROUPED_BY, as `hops=2`, `answerable=false`."""
    yield None, frame
    for name in GROUPED_BY:
        yield from by_value(frame, name)


def by_value(frame: pl.DataFrame, name: str) -> Iterator[tuple[str, pl.DataFrame]]:
    """The rows of each value of a column, in order; rows without one are in none."""
    for value in frame[name].drop_nulls().unique().sort().to_list():
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        yield f"{name}={shown}", frame.filter(pl.col(name) == value)
