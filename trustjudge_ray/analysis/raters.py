"""How far raters agree beyond chance: weighted κ of two, Krippendorff's α of any number with gaps."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis import metrics
from trustjudge_ray.analysis.agreement import jackknifed, parts
from trustjudge_ray.analysis.games import Array, Index, binned
from trustjudge_ray.config import AnalysisConfig

Weights = Callable[[Array], Array]


def _linear(gap: Array) -> Array:
    return np.abs(gap)


def _quadratic(gap: Array) -> Array:
    return gap**2


KAPPA_WEIGHTS: Final[dict[str, Weights]] = {"linear": _linear, "quadratic": _quadratic}
"""What a disagreement by so many steps costs."""


def weighted_kappa(one: Index, other: Index, levels: int, weights: Weights) -> float:
    """Cohen's weighted κ (Psychol. Bull. 70, 1968, 213-220) of two raters on an ordered scale.

    1 − Σ w·observed / Σ w·expected, over the table of both raters' levels. NaN without a case, or where both always say
    the same one thing.

    Args:
        one, other: levels 0 … levels − 1.
    """
    if not len(one):
        return float("nan")
    table = binned(one * levels + other, np.full(len(one), 1 / len(one)), levels**2).reshape(levels, levels)
    at = np.arange(levels, dtype=np.float64)
    cost = weights(at[:, None] - at[None, :])
    expected = float((cost * np.outer(table.sum(1), table.sum(0))).sum())
    return float("nan") if expected < 1e-12 else 1 - float((cost * table).sum()) / expected


def _nominal_distance(totals: Array, values: Array) -> Array:
    return 1 - np.eye(len(totals))


def _ordinal_distance(totals: Array, values: Array) -> Array:
    """(Σ of the totals from c to k, less half of both ends)²."""
    up = np.cumsum(totals)
    between = np.abs(up[None, :] - up[:, None])
    low = np.minimum.outer(np.arange(len(totals)), np.arange(len(totals)))
    span = between + totals[low] - (totals[:, None] + totals[None, :]) / 2
    return np.where(np.eye(len(totals), dtype=bool), 0.0, span) ** 2


def _interval_distance(totals: Array, values: Array) -> Array:
    return np.asarray((values[:, None] - values[None, :]) ** 2, dtype=np.float64)


Distance = Callable[[Array, Array], Array]
ALPHA_LEVELS: Final[dict[str, Distance]] = {
    "nominal": _nominal_distance,
    "ordinal": _ordinal_distance,
    "interval": _interval_distance,
}


def krippendorff_alpha(counts: Array, values: Array, level: str) -> float:
    """Krippendorff's α (Content Analysis, 4th ed., ch. 12): 1 − observed / expected disagreement.

    Raters need not have seen the same units and are interchangeable; a unit with fewer than two values says nothing.
    NaN where no unit has two, or all values are the same one.

    Args:
        counts: (units, values), how many raters gave each value to a unit.
        values: (values,), ascending: what they stand for at level `interval`.
        level: one of ALPHA_LEVELS.
    """
    counts = counts[counts.sum(axis=1) >= 2]
    pairable = counts.sum()
    if pairable < 2:
        return float("nan")
    each = counts / (counts.sum(axis=1, keepdims=True) - 1)
    coincidence = each.T @ counts - np.diag(each.sum(axis=0))
    totals = coincidence.sum(axis=1)
    distance = ALPHA_LEVELS[level](totals, np.asarray(values, dtype=np.float64))
    expected = float(totals @ distance @ totals) / (pairable - 1)
    return float("nan") if expected <= 1e-12 else 1 - float((coincidence * distance).sum()) / expected


def rating_counts(unit: pl.Series, value: pl.Series) -> tuple[Array, Array, NDArray[Any]]:
    """Ratings, one a row, as what `krippendorff_alpha` takes: counts, the values, and the units in their order."""
    units, at = np.unique(unit.to_numpy(), return_inverse=True)
    values, what = np.unique(value.to_numpy(), return_inverse=True)
    flat = binned(at * len(values) + what, np.ones(len(at)), len(units) * len(values))
    return flat.reshape(len(units), len(values)), values.astype(np.float64), units


def vote_metrics(judgments: pl.DataFrame, settings: AnalysisConfig) -> pl.DataFrame:
    """METRICS `alpha_votes`: ordinal α among the votes of one judge about the same pair (b better, tie, a better), or
    the same answer's score.

    Votes are the `sample`s of a judgment: several people's, of imported battles, or several rationales'. Who cast
    which is not known, nor needed. A row for each judge, protocol and category. `cases` are votes about pairs or
    answers with two or more; `excluded_by`: `single` votes, and the status of what was not read.
    """
    asked = judgments.select("repeat", "kind", "sample", "status", "emitted", *_ABOUT)
    asked = asked.filter(pl.col("repeat") == 0, pl.col("kind").is_in(["score", "compare"]))
    rows: list[dict[str, Any]] = []
    for _, mine in sorted(asked.partition_by(["judge", "protocol"], as_dict=True).items()):
        if mine["sample"].max() == 0:
            alone = mine.group_by("judge", "protocol", "category", "status", "emitted").agg(n=pl.len())
            rows += [_alone(about, part) for about, part in parts(alone, ["judge", "protocol"])]
        else:
            rows += [_alpha_of(about, part, settings) for about, part in parts(mine, ["judge", "protocol"])]
    return metrics.frame(rows)


_ABOUT: Final = ("judge", "protocol", "category", "question_id", "response_a", "response_b")
_ORDERED: Final = {"a": 1.0, "tie": 0.0, "b": -1.0}


def _vote() -> pl.Expr:
    """The emitted label as a number; null where nothing usable was emitted."""
    number = pl.col("emitted").replace_strict(_ORDERED, default=None, return_dtype=pl.Float64)
    return pl.when(pl.col("status") == "ok").then(pl.coalesce(number, pl.col("emitted").cast(pl.Float64, strict=False)))


def _alone(about: dict[str, Any], part: pl.DataFrame) -> dict[str, Any]:
    """The row of a protocol that was asked once each, from numbers `n` of judgments by status and label."""
    reason = pl.when(_vote().is_not_null()).then(pl.lit("single")).otherwise(_UNREAD)
    counts = part.group_by(reason.alias("reason")).agg(pl.col("n").sum())
    nothing = {"value": float("nan"), "cases": 0, "questions": 0}
    return {"metric": "alpha_votes"} | about | nothing | metrics.reasons(dict(counts.iter_rows()))


_UNREAD: Final = pl.col("status").replace("ok", "no_emitted_label")


def _alpha_of(about: dict[str, Any], part: pl.DataFrame, settings: AnalysisConfig) -> dict[str, Any]:
    unit = ["question_id", "response_a", "response_b"]
    votes = part.with_columns(vote=_vote())
    unread = votes.filter(pl.col("vote").is_null())
    votes = votes.filter(pl.col("vote").is_not_null()).with_columns(n=pl.len().over(unit))
    several = votes.filter(pl.col("n") > 1).with_columns(unit=pl.struct(unit).rank("dense").cast(pl.Int64))
    reasons = dict(unread.group_by(_UNREAD).agg(n=pl.len()).iter_rows())
    lost = metrics.reasons(reasons | {"single": votes.height - several.height})

    def alpha(keep: NDArray[np.bool_]) -> float:
        kept = several.filter(pl.Series(keep, dtype=pl.Boolean))
        counts, values, _ = rating_counts(kept["unit"], kept["vote"])
        return krippendorff_alpha(counts, values, "ordinal")

    value = jackknifed(several["question_id"], alpha, settings, fisher=False)
    return {"metric": "alpha_votes"} | about | value | lost
