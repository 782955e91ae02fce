"""JUDGMENTS to arrays: which rows a rule reads, and the mean label distribution over samples.

Analysis reads repetition 0 only. A judgment that asks for several rationales has a row for each: their label
probabilities (not logs) are averaged over the rows that are "ok"; what the judge emitted, and its perplexity,
are those of the first "ok" row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from trustjudge_ray.judging.protocols import Protocol

Floats = NDArray[np.float64]
_MOST = 709.0
"""The log-probability above which there is no finite probability."""
CHUNK_VALUES = 5_000_000
"""Label probabilities held at once: 40 MB."""


class ReadoutError(ValueError):
    """Judgments do not fit their protocol: names the protocol, what was found and what would be right."""


def columns(schema: pa.Schema) -> dict[str, pl.DataType]:
    """The columns of a table with their Polars types, in order."""
    return dict(pl.Schema(schema))


@dataclass(frozen=True, slots=True)
class Groups:
    """Judgments of one protocol, brought together by what was judged.

    Attributes:
        keys: one row per group, in a fixed order, with its category and models.
        status: per group "ok" if one of its judgments is, else the status of the first.
        rows: the "ok" judgments, sorted by group and sample.
        group: for each of `rows` the number of its group.
        first: for each group the place of its first "ok" row in `rows`, −1 where there is none.
    """

    keys: pl.DataFrame
    status: pl.Series
    rows: pl.DataFrame
    group: NDArray[np.int64]
    first: NDArray[np.int64]


def grouped(judgments: pl.DataFrame, by: Sequence[str], about: Sequence[str]) -> Groups:
    """Bring samples of one judgment together.

    Args:
        by: the columns that name a group.
        about: further columns, taken from the group's first row.
    """
    read = ("sample", "task_id", "status", "label_logprobs", "emitted", "cumulative_logprob", "output_tokens")
    frame = judgments.select(*by, *about, *read).sort(*by, "sample", "task_id")
    starts = frame.select(begins(by)).to_series()
    group = np.cumsum(starts.to_numpy()) - 1
    keys = frame.filter(starts)
    readable = (frame["status"] == "ok").to_numpy()
    rows, group = frame.filter(readable), group[readable]
    first = np.full(len(keys), -1, dtype=np.int64)
    first[group[::-1]] = np.arange(len(group) - 1, -1, -1)
    status = pl.select(pl.when(pl.Series(first >= 0, dtype=pl.Boolean)).then(pl.lit("ok")).otherwise(keys["status"]))
    return Groups(keys.select(*by, *about), status.to_series().alias("status"), rows, group, first)


def judged_by(judge: str | None, protocol: str | None) -> pl.Expr:
    """Rows of this judge and protocol; none where one of them is None, which stands for "there is none"."""
    if judge is None or protocol is None:
        return pl.lit(False)
    return (pl.col("judge") == judge) & (pl.col("protocol") == protocol)


def unreadable_as_status(judgments: pl.DataFrame) -> pl.DataFrame:
    """The same judgments; an "ok" one whose distribution holds a NaN, or a logarithm of what no float can hold, is
    `bad_logprob`. A probability over 1 that an import kept is none of that."""
    bad = pl.col("label_logprobs").list.eval(pl.element() > _MOST).list.any().fill_null(False)  # NaN is over all
    status = pl.when((pl.col("status") == "ok") & bad).then(pl.lit("bad_logprob")).otherwise("status")
    return judgments.with_columns(status=status)


def mean_distributions(groups: Groups, protocol_name: str, labels: int) -> Iterator[tuple[slice, Floats]]:
    """Mean label probabilities of groups, in chunks: (groups, array (groups, labels)).

    NaN where a label was listed in none of the group's "ok" judgments; a label listed in some counts 0 in the
    others. Judgments without a distribution take no part in the mean.

    Raises:
        ReadoutError: a distribution has another number of labels than the protocol.
    """
    listed = groups.rows["label_logprobs"].is_not_null().to_numpy()
    lengths = groups.rows["label_logprobs"].drop_nulls().list.len()
    wrong = lengths.filter(lengths != labels)
    if len(wrong):
        raise ReadoutError(
            f"judgments of protocol '{protocol_name}': {wrong[0]} label_logprobs, but it has {labels} labels"
        )
    step = max(CHUNK_VALUES // labels, 1)
    for start in range(0, len(groups.keys), step):
        chunk = slice(start, min(start + step, len(groups.keys)))
        low, high = np.searchsorted(groups.group, [chunk.start, chunk.stop])
        here = np.arange(low, high)[listed[low:high]]
        logs = groups.rows["label_logprobs"].slice(low, high - low).drop_nulls().explode()
        values = np.exp(logs.to_numpy().reshape(-1, labels))
        yield chunk, _mean_by_group(values, groups.group[here] - start, chunk.stop - start)


def emitted_labels(groups: Groups, names: Sequence[str]) -> NDArray[np.int64]:
    """For each group the index of the label that its first "ok" judgment emitted; −1 where it is none of them."""
    index = dict(zip(names, range(len(names)), strict=True))
    codes = groups.rows["emitted"].replace_strict(index, default=-1, return_dtype=pl.Int64).fill_null(-1).to_numpy()
    return np.where(groups.first >= 0, codes[groups.first], -1) if len(codes) else np.full(len(groups.keys), -1)


def protocol_of(protocols: dict[str, Protocol], name: str, kind: str) -> Protocol:
    """The protocol of some judgments.

    Raises:
        ReadoutError: it is not there, or is of another kind.
    """
    if name not in protocols:
        raise ReadoutError(f"judgments of protocol '{name}': not among the run's protocols {sorted(protocols)}")
    if protocols[name].kind != kind:
        raise ReadoutError(f"judgments of kind {kind} of protocol '{name}', whose kind is {protocols[name].kind}")
    return protocols[name]


def begins(by: Sequence[str]) -> pl.Expr:
    """In a table sorted by these columns: which rows are the first with their values."""
    same = [pl.col(name).eq_missing(pl.col(name).shift()) for name in by]
    return ~pl.all_horizontal(same) | (pl.int_range(pl.len()) == 0)


def _mean_by_group(values: Floats, group: NDArray[np.int64], groups: int) -> Floats:
    out = np.full((groups, values.shape[1]), np.nan)
    if not len(values):
        return out
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    if len(starts) == len(group):
        out[group] = values
        return out
    unlisted = np.isnan(values)
    sums = np.add.reduceat(np.where(unlisted, 0.0, values), starts, axis=0)
    none = np.logical_and.reduceat(unlisted, starts, axis=0)
    counts = np.diff(starts, append=len(group))
    out[group[starts]] = np.where(none, np.nan, sums / counts[:, None])
    return out
