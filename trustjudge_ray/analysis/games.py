"""Comparisons as games: JUDGMENTS of kind compare → soft outcomes by question and by who was shown first."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.int64]

OUTCOMES: Final = ("first", "second", "tie")
POOLED: Final = "(all)"
"""The name under which the games of several judges are rated together."""
_KEY = ["judge", "protocol", "category", "question_id", "response_a", "response_b", "order"]
_EMPTY: Final = ("empty_response", "error_marker")
_EMITTED: Final = {"a": [1.0, 0.0, 0.0], "b": [0.0, 1.0, 0.0], "tie": [0.0, 0.0, 1.0]}


@dataclass(frozen=True, slots=True)
class Games:
    """The games of one ranking, summed by question and ordered pair.

    Attributes:
        models: names, sorted; `first` and `second` are positions in it.
        question: which question a row belongs to, 0 … questions − 1, in ascending order.
        first, second: who was shown first and who second.
        outcome: (rows, 3) sums of P(first better), P(second better), P(tie).
        covariates: (rows, covariates) of the two answers, first against second; then several answers of a model to
            a question are rows each.
    """

    models: tuple[str, ...]
    questions: int
    question: Index
    first: Index
    second: Index
    outcome: Array
    covariates: Array | None = None

    def points(self) -> Array:
        """(models, models) points that the row's model took from the column's: wins and half of the ties."""
        half, n = self.outcome[:, 2] / 2, len(self.models)
        forth = binned(self.first * n + self.second, self.outcome[:, 0] + half, n * n)
        back = binned(self.second * n + self.first, self.outcome[:, 1] + half, n * n)
        return (forth + back).reshape(n, n)

    def totals(self) -> Array:
        """(models, 3) sums of wins, losses and ties."""
        n = len(self.models)
        columns = []
        for as_first, as_second in ((0, 1), (1, 0), (2, 2)):
            mine = binned(self.first, self.outcome[:, as_first], n)
            columns.append(mine + binned(self.second, self.outcome[:, as_second], n))
        return np.stack(columns, axis=1)


def binned(at: Index, weights: Array, size: int) -> Array:
    """(size,) sums of weights by place."""
    return np.asarray(np.bincount(at, weights=weights, minlength=size), dtype=np.float64)


def games_of(outcomes: pl.DataFrame, kind: str = "y") -> Games:
    """Sum `soft_outcomes` rows (of one ranking) by question and ordered pair.

    Args:
        kind: the beginning of the names of the outcomes' columns (see `outcomes`).
    """
    return games_by_kind(outcomes, (kind,))[kind]


def games_by_kind(outcomes: pl.DataFrame, kinds: tuple[str, ...]) -> dict[str, Games]:
    """The same games with outcomes of several kinds."""
    models = tuple(sorted(set(outcomes["first"].unique()) | set(outcomes["second"].unique())))
    asked, n = outcomes["question_id"].unique().sort(), max(len(models), 1)
    question, first, second = (
        codes(outcomes[name], known) for name, known in (("question_id", asked), ("first", models), ("second", models))
    )
    key = (question * n + first) * n + second
    by = np.argsort(key, kind="stable")
    key = key[by]
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    key = key[starts]
    places = key // n**2, key // n % n, key % n
    found = {}
    for kind in kinds:
        outcome = outcomes.select(f"{kind}_{o}" for o in OUTCOMES).to_numpy()[by]
        if len(starts) < len(by):
            outcome = np.add.reduceat(outcome, starts, axis=0)
        found[kind] = Games(models, len(asked), *places, outcome)
    return found


def codes(names: pl.Series, known: Sequence[str] | pl.Series) -> Index:
    """Each name's place among the known ones."""
    return names.cast(pl.Enum(known)).to_physical().cast(pl.Int64).to_numpy()


def soft_outcomes(judgments: pl.DataFrame, on_empty: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """One row per game: judge, protocol, category, question_id, first, second, y_first, y_second, y_tie,
    response_first, response_second, judged (whether a judge said this; not where it follows from the texts).

    An order's label probabilities are averaged over its samples and renormalised, so each game hands out
    one point; repeats over 0 are left out. A judgment without label probabilities counts by its emitted label.
    `identical` is a tie. Rows of one sample number for the same pair, order and question (several people's votes)
    are games each. Left out: failed judgments, those of two answers of one model (`same_model`), and those whose
    order is unknown (`no_order`).

    Args:
        judgments: JUDGMENTS; kinds other than compare are ignored.
        on_empty: `lose` makes a comparison with one empty answer a game that its side lost.

    Returns:
        The games, and the judgments left out: judge, protocol, category, model_a, model_b, reason.
    """
    asked = judgments.filter(pl.col("kind") == "compare", pl.col("repeat") == 0)
    rows = asked.with_columns(_probabilities()).with_columns(reason=_reason())
    if on_empty == "lose":
        rows = _empty_side_loses(rows)
    itself = pl.col("reason").is_null() & (pl.col("model_a") == pl.col("model_b"))
    rows = rows.with_columns(reason=pl.when(itself).then(pl.lit("same_model")).otherwise("reason"))
    read = pl.col("reason").is_null()
    left = rows.filter(~read).select("judge", "protocol", "category", "model_a", "model_b", "reason")
    return _one_game_each(rows.filter(read)), left


def _probabilities() -> list[pl.Expr]:
    """p_a, p_b, p_tie: null entries of a distribution are 0; without a distribution, the emitted label."""
    logs, emitted = pl.col("label_logprobs"), pl.col("emitted")
    names = ("p_a", "p_b", "p_tie")
    certain = [
        emitted.replace_strict({e: p[i] for e, p in _EMITTED.items()}, default=None, return_dtype=pl.Float64)
        for i in range(3)
    ]
    return [
        pl.when(logs.is_null())
        .then(certain[i])
        .otherwise(logs.list.get(i, null_on_oob=True).exp().fill_null(0.0))
        .alias(name)
        for i, name in enumerate(names)
    ]


def _reason() -> pl.Expr:
    """Why a judgment is no game, or null."""
    mass = pl.col("p_a") + pl.col("p_b") + pl.col("p_tie")
    return (
        pl.when(~pl.col("status").is_in(["ok", "identical"]))
        .then(pl.col("status"))
        .when(mass.is_null() | (mass <= 0))
        .then(pl.lit("no_label_mass"))
        .when(~mass.is_finite())
        .then(pl.lit("bad_logprob"))
        .when(pl.col("order").is_null())
        .then(pl.lit("no_order"))
    )


def _empty_side_loses(rows: pl.DataFrame) -> pl.DataFrame:
    """`detail` of an empty answer names its side: `a`, `b` or `a,b`; where both are empty nobody wins."""
    lost_by = pl.when(pl.col("reason").is_in(_EMPTY) & pl.col("detail").is_in(["a", "b"])).then(pl.col("detail"))
    rows = rows.with_columns(lost_by=lost_by)
    settled = pl.col("lost_by").is_not_null()
    return rows.with_columns(
        p_a=pl.when(settled).then((pl.col("lost_by") == "b").cast(pl.Float64)).otherwise("p_a"),
        p_b=pl.when(settled).then((pl.col("lost_by") == "a").cast(pl.Float64)).otherwise("p_b"),
        p_tie=pl.when(settled).then(0.0).otherwise("p_tie"),
        reason=pl.when(settled).then(None).otherwise("reason"),
    )


def _one_game_each(read: pl.DataFrame) -> pl.DataFrame:
    """Average over samples, renormalise, and turn candidate coordinates into first and second."""
    weight = pl.lit(1.0)
    if read["sample"].n_unique() > 1:
        votes = (pl.len() / pl.col("sample").n_unique()).alias("votes")
        means = [pl.col(p).mean() for p in ("p_a", "p_b", "p_tie")]
        firsts = [pl.col(name).first() for name in ("model_a", "model_b", "status")]
        read = read.group_by(_KEY).agg(*means, *firsts, votes)
        weight = pl.col("votes")
    mass, a_first = pl.col("p_a") + pl.col("p_b") + pl.col("p_tie"), pl.col("order") == "AB"
    return read.select(
        "judge",
        "protocol",
        "category",
        "question_id",
        first=pl.when(a_first).then("model_a").otherwise("model_b"),
        second=pl.when(a_first).then("model_b").otherwise("model_a"),
        y_first=weight * pl.when(a_first).then("p_a").otherwise("p_b") / mass,
        y_second=weight * pl.when(a_first).then("p_b").otherwise("p_a") / mass,
        y_tie=weight * pl.col("p_tie") / mass,
        response_first=pl.when(a_first).then("response_a").otherwise("response_b"),
        response_second=pl.when(a_first).then("response_b").otherwise("response_a"),
        judged=pl.col("status") == "ok",
    )


def left_out(outcomes: pl.DataFrame, left: pl.DataFrame) -> list[str]:
    """A sentence for every model some of whose comparisons are not in its ratings, with the reasons."""
    key = ["judge", "protocol", "model"]
    played = pl.concat([outcomes.select("judge", "protocol", model=side) for side in ("first", "second")])
    missed = pl.concat(
        [
            left.select("judge", "protocol", "reason", model="model_a"),
            left.filter(pl.col("model_a") != pl.col("model_b")).select("judge", "protocol", "reason", model="model_b"),
        ]
    )
    counts = (
        missed.group_by(key)
        .agg(out=pl.len(), reasons=pl.col("reason").value_counts())
        .join(played.group_by(key).agg(kept=pl.len()), on=key, how="left")
        .sort(key)
    )
    told = []
    for row in counts.iter_rows(named=True):
        why = ", ".join(f"{r['reason']} {r['count']}" for r in sorted(row["reasons"], key=lambda r: r["reason"]))
        told.append(
            f"judge {row['judge']}, protocol {row['protocol']}: {row['out']} of {row['out'] + (row['kept'] or 0)} "
            f"comparisons of model {row['model']} are not in its ratings ({why})"
        )
    return told
