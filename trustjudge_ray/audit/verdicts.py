"""From single readings to a verdict on an answer: the mean of the counterbalanced ways of asking.

Accepting means "Correct", "Yes" to "is it right?" and "No" to "is it wrong?", each named first and named second. A
judge that likes a word or the first label leans one way in half of these questions and the other way in the rest, so
the mean is free of it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from trustjudge_ray.judging.base import CORPUS_FAILURES

READS: Final[dict[str, Any]] = {
    "item_id": pl.String,
    "passage_id": pl.String,
    "benchmark": pl.String,
    "hops": pl.Int32,
    "answerable": pl.Boolean,
    "candidate": pl.String,
    "negative": pl.String,
    "base": pl.String,
    "truth": pl.Boolean,
    "protocol": pl.String,
    "condition": pl.String,
    "polarity": pl.String,
    "first": pl.String,
    "repeat": pl.Int32,
    "status": pl.String,
    "p_accept": pl.Float64,
    "log_odds": pl.Float64,
    "label_mass": pl.Float64,
}
"""One row per `verify` judgment. condition: `full`, `no_passage`, `no_candidate`; polarity: `correct`, `right`,
`wrong`; first: which label the prompt names first, `accept` or `reject`; p_accept: P(accept) of the two labels'
probability; log_odds: ln P(accept) − ln P(reject), may be infinite."""

PAIRS: Final[dict[str, Any]] = {
    "item_id": pl.String,
    "passage_id": pl.String,
    "benchmark": pl.String,
    "order": pl.String,
    "status": pl.String,
    "p_gold": pl.Float64,
    "p_swap": pl.Float64,
    "p_tie": pl.Float64,
    "label_mass": pl.Float64,
}
"""One row per comparison of gold (a) and swap (b) with the passage: order `AB` shows the gold first."""

GENERATED: Final[dict[str, Any]] = {
    "item_id": pl.String,
    "passage_id": pl.String,
    "benchmark": pl.String,
    "hops": pl.Int32,
    "answerable": pl.Boolean,
    "condition": pl.String,
    "status": pl.String,
    "output": pl.String,
    "cut": pl.Boolean,
}
"""One row per answer of the judge, condition `passage` or `closed_book`; then a Boolean column per oracle."""

ITEM: Final = ("item_id", "passage_id", "benchmark", "hops", "answerable")
KEY: Final = ("polarity", "first")
"""What tells one way of asking from another, whatever is withheld."""

LOG_ODDS_LIMIT: Final = 103.28
"""Log-odds are cut to ± this, the logarithm of the smallest float32: a probability that an engine reports as 0 is only
known to be below that. Ranks, and so the AUC, hardly notice; means over ways of asking stay finite."""
_HALF: Final = 1e-9


class AuditTableError(ValueError):
    """A table cannot be audited: names it, what it lacks and what it must have."""


def conform(frame: pl.DataFrame, schema: Mapping[str, Any], name: str, more: Sequence[str] = ()) -> pl.DataFrame:
    """The table with the schema's columns and types (an all-null column types itself otherwise), and the Boolean
    columns `more` where it has them. A table without rows need not have the columns.

    Raises:
        AuditTableError: a column is missing, or a value is not of its type.
    """
    wanted = dict(schema) | {column: pl.Boolean for column in more if column in frame.columns}
    if not frame.height:
        return pl.DataFrame(schema=wanted)
    missing = [column for column in wanted if column not in frame.columns]
    if missing:
        raise AuditTableError(f"{name}: no columns {missing}; it has {frame.columns}, and must have {list(schema)}")
    try:
        return frame.select(pl.col(column).cast(kind) for column, kind in wanted.items())
    except pl.exceptions.PolarsError as error:
        raise AuditTableError(f"{name}: {error}; its columns are {wanted}") from error


def items_of(reads: pl.DataFrame, generated: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Every item of the three tables once, sorted: ITEM and `cluster`, the number of its passage from 0."""
    empty = {"hops": pl.lit(None, pl.Int32), "answerable": pl.lit(None, pl.Boolean)}
    named = pairs.with_columns(**empty)
    rows = pl.concat([table.select(ITEM).unique() for table in (reads, generated, named)])
    known = rows.group_by("item_id").agg(pl.col(name).drop_nulls().min() for name in ITEM[1:])
    cluster = pl.col("passage_id").rank("dense").cast(pl.Int64) - 1
    return known.sort("item_id").with_columns(cluster.alias("cluster"))


def with_reasons(reads: pl.DataFrame, min_mass: float) -> pl.DataFrame:
    """READS with `reason`, why a reading has no verdict, or null (`why_unreadable`), and log-odds cut to
    LOG_ODDS_LIMIT."""
    reason = why_unreadable(("p_accept", "log_odds"), min_mass).alias("reason")
    return reads.with_columns(reason, pl.col("log_odds").clip(-LOG_ODDS_LIMIT, LOG_ODDS_LIMIT))


def why_unreadable(probabilities: Sequence[str], min_mass: float) -> pl.Expr:
    """The status where it is not ok, `no_probability` where one of these columns is missing, `low_mass` where the
    labels have less than `min_mass` or nobody knows how much, else null."""
    unknown = pl.any_horizontal(pl.col(name).is_null() | pl.col(name).is_nan() for name in probabilities)
    return (
        pl.when(pl.col("status").ne_missing("ok"))
        .then(pl.col("status").fill_null("no_status"))
        .when(unknown)
        .then(pl.lit("no_probability"))
        .when(pl.col("label_mass").fill_null(0.0).fill_nan(0.0) < min_mass)
        .then(pl.lit("low_mass"))
        .otherwise(pl.lit(None, pl.String))
    )


def unasked() -> pl.Expr:
    """`reason` where it says that the answer was put to no judge (an answer of nothing), else null: that is no failure
    to give a verdict."""
    return pl.when(pl.col("reason").is_in(CORPUS_FAILURES)).then(pl.col("reason"))


def decision(p: pl.Expr) -> pl.Expr:
    """1 where p is over ½, 0 where it is below, ½ where it is exactly that."""
    return pl.when((p - 0.5).abs() < _HALF).then(0.5).otherwise((p > 0.5).cast(pl.Float64))


def combined(reads: pl.DataFrame) -> pl.DataFrame:
    """The verdict on every (item, candidate): over all ways of asking that these rows hold, repeat 0 only.

    Args:
        reads: `with_reasons`, of one condition.

    Returns:
        item_id, candidate, truth, negative, base; reason (null where it can be read: one unreadable reading makes the
        verdict unreadable, and so does a way of asking that other items of this candidate have and this one lacks,
        `not_asked`; of several reasons the first in the alphabet); p (mean p_accept), log_odds (mean) and accepts (see
        `decision`), all null without a verdict.
    """
    rows = reads.filter(pl.col("repeat") == 0)
    asked = rows.group_by("candidate").agg(pl.struct(KEY).n_unique().alias("asked"))
    found = rows.group_by("item_id", "candidate").agg(
        pl.col("truth").drop_nulls().first(),
        pl.col("negative").drop_nulls().first(),
        pl.col("base").drop_nulls().first(),
        pl.col("reason").drop_nulls().min(),
        pl.col("p_accept").mean().alias("p"),
        pl.col("log_odds").mean(),
        pl.struct(KEY).n_unique().alias("ways"),
    )
    lacking = pl.when(pl.col("ways") < pl.col("asked")).then(pl.lit("not_asked"))
    found = found.join(asked, on="candidate").with_columns(pl.coalesce("reason", lacking).alias("reason"))
    read = pl.col("reason").is_null()
    found = found.with_columns(
        pl.when(read).then("p"),
        pl.when(read).then("log_odds"),
        pl.when(read).then(decision(pl.col("p"))).alias("accepts"),
    )
    return found.drop("ways", "asked").sort("item_id", "candidate")


def twins(reads: pl.DataFrame, variant: tuple[str, str], base: tuple[str, str], items: pl.DataFrame) -> pl.DataFrame:
    """A verdict beside another on the same item, over the ways of asking that both have.

    Args:
        reads: `with_reasons`.
        variant, base: (candidate, condition) of each.

    Returns:
        A row per item with a variant: item_id, cluster, truth, negative, p, log_odds, accepts; p_base, log_odds_base,
        accepts_base; reason (why one of the two cannot be read, `no_base` without the other, or null).
    """
    sides = [reads.filter(candidate=name, condition=condition) for name, condition in (variant, base)]
    shared = sides[0].select(KEY).unique().join(sides[1].select(KEY).unique(), on=KEY)
    first, second = (combined(side.join(shared, on=KEY, how="semi") if len(shared) else side) for side in sides)
    named = second.select(
        "item_id",
        *(pl.col(name).alias(f"{name}_base") for name in ("p", "log_odds", "accepts", "reason")),
        pl.lit(len(shared) > 0).alias("has_base"),
    )
    joined = first.join(named, on="item_id", how="left").join(items.select("item_id", "cluster"), on="item_id")
    lacking = pl.when(~pl.col("has_base").fill_null(False)).then(pl.lit("no_base"))
    return joined.with_columns(pl.coalesce("reason", "reason_base", lacking).alias("reason")).sort("item_id")
