"""The games of every ranking of a run: by judge, protocol and category, with outcomes of several kinds."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from trustjudge_ray.analysis import metrics
from trustjudge_ray.analysis.covariates import controlled_games, properties, with_covariates
from trustjudge_ray.analysis.games import (
    OUTCOMES,
    POOLED,
    Array,
    Games,
    games_by_kind,
    games_of,
    left_out,
    soft_outcomes,
)
from trustjudge_ray.analysis.outcomes import CALIBRATED, HARD, SOFT, Calibration, with_calibrated, with_hard
from trustjudge_ray.config import AnalysisConfig


@dataclass(frozen=True, slots=True)
class Scope:
    """What one ranking is about; category None is all of them."""

    judge: str
    protocol: str
    category: str | None

    def __str__(self) -> str:
        about = f"judge {self.judge}, protocol {self.protocol}"
        return about if self.category is None else f"{about}, category {self.category}"


@dataclass(frozen=True, slots=True)
class Outcomes:
    """All games of a run: `soft_outcomes` with the columns of every kind (see `outcomes`, `covariates`).

    Attributes:
        rows: one for each game.
        left: the judgments that are no game, with reasons.
        calibrations: of each judge and protocol with human scores.
        covariates: the names of those that the rows have.
        notes: what to know, in plain words.
    """

    rows: pl.DataFrame
    left: pl.DataFrame
    calibrations: list[Calibration]
    covariates: list[str]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class Contest:
    """The games of one ranking.

    Attributes:
        totals: by kind of outcome (models, 3) wins, losses and ties, each game once whatever it weighs.
        by_kind: games by kind of outcome, weighted; `calibrated` only where every game is.
        controlled: with covariates and without the canary; None where there are none to tell apart.
        controlled_totals: (models, 3) soft totals of those games.
        covariates: their names, as the columns of `controlled.covariates`.
        notes: on the covariates.
    """

    totals: dict[str, Array]
    by_kind: dict[str, Games]
    controlled: Games | None
    controlled_totals: Array
    covariates: list[str]
    notes: list[str]


def outcomes_of(judgments: pl.DataFrame, responses: pl.DataFrame | None, settings: AnalysisConfig) -> Outcomes:
    """Read every comparison as a game.

    Args:
        judgments: JUDGMENTS, one row per task_id.
        responses: RESPONSES, for human scores and texts; without them nothing is calibrated or controlled.
    """
    soft, left = soft_outcomes(judgments, settings.on_empty)
    notes = left_out(soft, left)
    rows, calibrations = with_calibrated(with_hard(soft), responses, settings)
    notes += [f"judge {c.judge}, protocol {c.protocol}, davidson_calibrated: {c.note}" for c in calibrations if c.note]
    names = list(settings.covariates) if rows.height else []
    if names and (responses is None or not responses.height):
        notes.append("davidson_controlled: the run folder has no texts of answers to count covariates in")
        names = []
    if names and responses is not None:
        rows = with_covariates(rows, properties(responses, names), names)
    return Outcomes(rows, left, calibrations, names, notes)


def contest(
    part: pl.DataFrame, scope: Scope, covariates: list[str], settings: AnalysisConfig, canary: str | None = None
) -> Contest:
    """The games of one ranking; over all categories weighted by them.

    Args:
        canary: the model whose games stay out of `controlled`: its one short text, against all others, would be most
            of every covariate's unit, and its losses have nothing to do with length or style.
    """
    kinds = (SOFT, HARD) if part[f"{CALIBRATED}_tie"].null_count() else (SOFT, HARD, CALIBRATED)
    once = games_by_kind(part, kinds)
    totals = {kind: games.totals() for kind, games in once.items()}
    weighted = bool(settings.category_weights) and scope.category is None
    by_kind = games_by_kind(_weighted(part, kinds, settings), kinds) if weighted else once
    if not covariates:
        return Contest(totals, by_kind, None, totals[SOFT], [], [])
    notes = []
    if canary is not None and canary in by_kind[SOFT].models:
        part = part.filter(pl.col("first") != canary, pl.col("second") != canary)
        notes.append(f"games with the canary '{canary}' are left out: its text is the same in all of them")
    games, kept, told = controlled_games(_weighted(part, (SOFT,), settings) if weighted else part, covariates)
    known = games_of(part.drop_nulls([f"z_{name}" for name in covariates]))
    return Contest(totals, by_kind, games if kept else None, known.totals(), kept, notes + told)


def _weighted(part: pl.DataFrame, kinds: tuple[str, ...], settings: AnalysisConfig) -> pl.DataFrame:
    weight = weights(part, settings, pl.sum_horizontal(f"{SOFT}_{o}" for o in OUTCOMES))
    return part.with_columns(pl.col(f"{kind}_{o}") * weight for kind in kinds for o in OUTCOMES)


def weights(rows: pl.DataFrame, settings: AnalysisConfig, size: pl.Expr) -> pl.Series:
    """The weight of each row by its category, of mean 1 over rows of this size."""
    named = rows["category"].fill_null(metrics.UNCATEGORISED)
    wanted = {category: float(weight) for category, weight in settings.category_weights.items()}
    found = named.replace_strict(wanted, default=1.0, return_dtype=pl.Float64)
    sizes = rows.with_columns(size=size)["size"]
    return found * (float(sizes.sum()) / float((found * sizes).sum())) if rows.height else found


def scopes(rows: pl.DataFrame) -> Iterator[tuple[Scope, pl.DataFrame]]:
    """Every judge (and all of them, where there are several) × protocol × category (None, then each)."""
    for (protocol,), part in _parts(rows, ["protocol"]):
        by_judge = [(judge, mine) for (judge,), mine in _parts(part, ["judge"])]
        for judge, mine in [*by_judge, (POOLED, part)] if len(by_judge) > 1 else by_judge:
            yield Scope(judge, protocol, None), mine
            named = mine.with_columns(pl.col("category").fill_null(metrics.UNCATEGORISED))
            for (category,), some in _parts(named, ["category"]):
                yield Scope(judge, protocol, category), some


def ranked(scope: Scope, rows: pl.DataFrame) -> bool:
    """Whether a scope is worth a ranking: `(none)` only beside categories that have a name."""
    return scope.category != metrics.UNCATEGORISED or rows["category"].is_not_null().any()


def _parts(rows: pl.DataFrame, by: list[str]) -> list[tuple[tuple[Any, ...], pl.DataFrame]]:
    return sorted(rows.partition_by(by, as_dict=True).items(), key=lambda part: part[0])
