"""Length and style of answers as covariates of a game: what a judge likes besides quality, taken out of ratings.

Of each property a game has the difference (first − second) / (first + second), from −1 to 1, as style control on the
LMArena leaderboard has it (Li et al., 2024), divided by its root mean square over the games of a ranking, and not
centred: exchanging the two sides must change the sign and nothing else. A coefficient is the log-odds that a
difference of one such unit adds; ratings are those of answers that are alike in all of them.
"""

from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl

from trustjudge_ray.analysis.bradley_terry import Fit
from trustjudge_ray.analysis.games import OUTCOMES, Array, Games, binned, games_of

_KEY: Final = ("question_id", "first", "second", "response_first", "response_second")
_LEFT: Final = 1e-3
"""A covariate that models, order and earlier covariates explain up to this share of its variance cannot be told apart
from them."""
_STEEP: Final = 12.0
"""Log-odds of one unit, or of one model above the mean, over which the games do not bound a fit."""

_TEXT: Final = pl.col("replies").list.join("\n")
_PROSE: Final = _TEXT.str.replace_all(r"(?s)```.*?(?:```|\z)", "")
"""Without fenced code, whose comments are no headers."""
PROPERTIES: Final[dict[str, pl.Expr]] = {
    "length": _TEXT.str.len_chars(),
    "headers": _PROSE.str.count_matches(r"(?m)^ {0,3}#{1,6}[ \t]"),
    "lists": _PROSE.str.count_matches(r"(?m)^[ \t]*(?:[-*+]|\d+[.)])[ \t]"),
    "bold": _PROSE.str.count_matches(r"\*\*[^\s*](?:[^*\n]*[^\s*])?\*\*|__[^\s_](?:[^_\n]*[^\s_])?__"),
}
"""What is counted in an answer, over all of its turns: characters, Markdown headers, list entries, bold passages."""


def properties(responses: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """question_id, response_id and these properties of every response.

    Args:
        responses: RESPONSES.
    """
    once = responses.unique(["question_id", "response_id"], keep="first", maintain_order=True)
    counted = [PROPERTIES[name].cast(pl.Float64).fill_null(0.0).alias(name) for name in names]
    return once.select("question_id", "response_id", *counted)


def with_covariates(outcomes: pl.DataFrame, counted: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """Games (`soft_outcomes`) with a column `z_NAME` for each property: the difference from −1 to 1; 0 where neither
    has any. Null where the text of an answer is not known."""
    for side in ("first", "second"):
        mine = counted.rename({"response_id": f"response_{side}"} | {name: f"{name}_{side}" for name in names})
        outcomes = outcomes.join(mine, on=["question_id", f"response_{side}"], how="left")
    for name in names:
        one, two = pl.col(f"{name}_first"), pl.col(f"{name}_second")
        outcomes = outcomes.with_columns(
            pl.when(one + two > 0).then((one - two) / (one + two)).otherwise((one - two) * 0.0).alias(f"z_{name}")
        )
    return outcomes


def controlled_games(outcomes: pl.DataFrame, names: list[str]) -> tuple[Games, list[str], list[str]]:
    """The games of one ranking with standardised covariates.

    Args:
        outcomes: of `with_covariates`; games with a null are left out.

    Returns:
        The games; which of the names they have, in order; and notes on those that are left out because nothing can be
        said about them, and on games.
    """
    columns = [f"z_{name}" for name in names]
    known = outcomes.drop_nulls(columns)
    notes = []
    if known.height < outcomes.height:
        missing = outcomes.height - known.height
        notes.append(f"{missing} of {outcomes.height} games are left out: a text of theirs is not in the run folder")
    if not known.height:
        return games_of(known), [], notes
    sums = [pl.col(f"y_{o}").sum() for o in OUTCOMES]
    by_answer = known.group_by(_KEY).agg(*sums, *(pl.col(c).first() for c in columns)).sort(_KEY)
    places = games_of(by_answer)
    if len(places.question) != by_answer.height:
        places = _by_answer(by_answer, places.models)
    played = by_answer.select(f"y_{o}" for o in OUTCOMES).to_numpy()
    z, kept, dropped = _standardised(places, by_answer.select(columns).to_numpy(), played.sum(axis=1), names)
    return replace(places, outcome=played, covariates=z), kept, notes + dropped


def _by_answer(rows: pl.DataFrame, models: tuple[str, ...]) -> Games:
    """Games with a row for each pair of answers, where a model gave several to a question."""
    names = pl.Series(models)
    at = {name: place for place, name in enumerate(names)}
    first, second = (rows[c].replace_strict(at, return_dtype=pl.Int64).to_numpy() for c in ("first", "second"))
    question = rows["question_id"].rank("dense").cast(pl.Int64).to_numpy() - 1
    return Games(models, rows["question_id"].n_unique(), question, first, second, np.empty((rows.height, 3)))


def _standardised(games: Games, z: Array, played: Array, names: list[str]) -> tuple[Array, list[str], list[str]]:
    """The columns that can be told from models, order and each other, in units of their root mean square."""
    kept: list[int] = []
    scaled, notes = np.empty_like(z), []
    for c, name in enumerate(names):
        size = np.sqrt((played * z[:, c] ** 2).sum() / max(played.sum(), 1.0))
        if size < 1e-9:
            notes.append(f"covariate {name} is left out: it is the same in both answers of every game")
            continue
        scaled[:, c] = z[:, c] / size
        if _unexplained(games, scaled[:, kept], scaled[:, c], played) < _LEFT:
            notes.append(f"covariate {name} is left out: which models met says all about it")
            continue
        kept.append(c)
    return scaled[:, kept], [names[c] for c in kept], notes


def _unexplained(games: Games, others: Array, z: Array, played: Array) -> float:
    """The share of a covariate's square that no sum of model effects, order effect and the others explains."""
    m = len(games.models)
    columns = np.column_stack([np.ones(len(z)), others])
    between = binned(games.first * m + games.second, played, m * m).reshape(m, m)
    between = between + between.T

    def along(column: Array) -> Array:
        return binned(games.first, column, m) - binned(games.second, column, m)

    crossed = np.column_stack([along(played * column) for column in columns.T])
    square = columns.T @ (columns * played[:, None])
    normal = np.block([[np.diag(between.sum(1)) - between, crossed], [crossed.T, square]])
    target = np.concatenate([along(played * z), columns.T @ (played * z)])
    total = float((played * z**2).sum())
    return float(1 - target @ np.linalg.pinv(normal, hermitian=True) @ target / total)


def unbounded(fit: Fit) -> bool:
    """Whether covariates and models together explain the outcomes so well that there is no best fit."""
    steepest = max(np.abs(fit.theta).max(initial=0), np.abs(fit.coefficients).max(initial=0))
    return not fit.converged or bool(steepest > _STEEP)
