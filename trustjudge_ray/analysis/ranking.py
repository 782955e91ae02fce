"""Rankings: RATINGS rows for every judge, protocol and category, by every rule.

Rules on comparisons read JUDGMENTS, one soft outcome per order (see `games`); `mean_score` reads the scores of
`analysis.score_rule`. Judges of one protocol are also rated together, under the judge `(all)`.
Nothing depends on the order of rows, on which side a model is stored, or on what models are called.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from scipy.special import stdtrit

from trustjudge_ray.analysis import metrics
from trustjudge_ray.analysis.bradley_terry import fit_davidson
from trustjudge_ray.analysis.connectivity import Structure, structure
from trustjudge_ray.analysis.games import POOLED, Array, Games, games_of, left_out, soft_outcomes
from trustjudge_ray.analysis.readouts import columns
from trustjudge_ray.analysis.scoring import scores
from trustjudge_ray.analysis.standing import RATING_RULES, Standing, means, questions_by_model
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.schema import RATINGS

FEW_QUESTIONS = 10


@dataclass(frozen=True, slots=True)
class _Scope:
    """What one ranking is about; category None is all of them."""

    judge: str
    protocol: str
    category: str | None

    def __str__(self) -> str:
        about = f"judge {self.judge}, protocol {self.protocol}"
        return about if self.category is None else f"{about}, category {self.category}"


def ratings(
    judgments: pl.DataFrame,
    protocols: dict[str, Protocol],
    settings: AnalysisConfig,
    scored: pl.DataFrame | None = None,
) -> tuple[pl.DataFrame, list[str]]:
    """Rate models by comparisons (`RATING_RULES`) and by scores (`mean_score`).

    Ratings are on the Elo scale (`standing`), win rates from 0 to 1, mean scores on the protocol's scale. Models that
    never met, directly or through others, have different `component` numbers and are ranked apart. A model that
    took every point from all it met, or none, is `unbounded`: no rating, but a rank where the order is determined. Of
    a component's groups between which all points went one way the largest is rated.

    Intervals are question-clustered, at `settings.confidence`. `rank_low` is 1 + the models significantly better,
    `rank_high` the number of models less those significantly worse, pair by pair without correction; with
    `settings.bootstrap` they are quantiles over resampled questions. Models seen in one question have no interval.

    Args:
        judgments: JUDGMENTS, one row per task_id.
        protocols: those of the score judgments, by name.
        scored: their SCORES, where they are known already.

    Returns:
        RATINGS sorted by judge, protocol, rule, category, component and rank, and warnings in plain sentences.
    """
    outcomes, left = soft_outcomes(judgments, settings.on_empty)
    told = left_out(outcomes, left)
    rows: list[dict[str, Any]] = []
    for scope, part in _ranked(outcomes):
        games = games_of(part)
        shape = structure(games, settings.confidence)
        told += [f"{scope}: {text}" for text in _cautions(games, shape, scope.category)]
        for name, rule in RATING_RULES.items():
            standing = rule(games, shape, settings)
            told += [f"{scope}, {name}: {note}" for note in standing.notes]
            rows += _rows(scope, name, games.models, games.totals(), shape, standing, settings)
    asked = scores(judgments, protocols) if scored is None else scored
    more, warnings = _mean_scores(asked.filter(pl.col("rule") == settings.score_rule), settings)
    table = pl.DataFrame(rows + more, schema=columns(RATINGS), orient="row")
    order = ["judge", "protocol", "rule", "category", "component", "rank", "model"]
    return table.sort(order, nulls_last=[False] * 5 + [True, False]), told + warnings


def fit_metrics(judgments: pl.DataFrame, settings: AnalysisConfig) -> pl.DataFrame:
    """METRICS of the Davidson fit: `order_effect_logit` (log-odds of the first slot between equals, without ties) and
    `tie_parameter` (ν: P(tie)/P(win) between equals without order effect), each with a question-clustered interval.

    Null where the games cannot bound it. `cases` are games.
    """
    outcomes, left = soft_outcomes(judgments, settings.on_empty)
    rows: list[dict[str, Any]] = []
    for scope, part in _scopes(outcomes):
        games = games_of(part)
        fit = fit_davidson(games, structure(games, settings.confidence).group)
        half = float(stdtrit(fit.questions - 1, (1 + settings.confidence) / 2)) if fit.questions > 1 else np.nan
        steps = np.array([0.0, -half, half])
        order, ties = fit.order_effect + steps * fit.order_effect_se, fit.log_nu + steps * fit.log_nu_se
        order[0], ties[0] = fit.order_effect, fit.log_nu if np.isfinite(fit.log_nu) else np.nan
        excluded = _counts(left, scope)
        for metric, (value, low, high) in (("order_effect_logit", order), ("tie_parameter", np.exp(ties))):
            about = {"judge": scope.judge, "protocol": scope.protocol, "category": scope.category}
            counts = {"cases": round(float(games.outcome.sum())), "questions": games.questions}
            rows.append({"metric": metric, "value": value, "low": low, "high": high} | about | counts | excluded)
    return metrics.frame(rows)


def _counts(left: pl.DataFrame, scope: _Scope) -> dict[str, Any]:
    mine = pl.col("protocol") == scope.protocol
    if scope.judge != POOLED:
        mine &= pl.col("judge") == scope.judge
    if scope.category is not None:
        mine &= pl.col("category").fill_null(metrics.UNCATEGORISED) == scope.category
    found = left.filter(mine).group_by("reason").agg(n=pl.len())
    return metrics.reasons(dict(zip(found["reason"], found["n"], strict=True)))


def _scopes(rows: pl.DataFrame) -> Iterator[tuple[_Scope, pl.DataFrame]]:
    """Every judge (and all of them, where there are several) × protocol × category (None, then each)."""
    for (protocol,), part in _parts(rows, ["protocol"]):
        by_judge = [(judge, mine) for (judge,), mine in _parts(part, ["judge"])]
        for judge, mine in [*by_judge, (POOLED, part)] if len(by_judge) > 1 else by_judge:
            yield _Scope(judge, protocol, None), mine
            named = mine.with_columns(pl.col("category").fill_null(metrics.UNCATEGORISED))
            for (category,), some in _parts(named, ["category"]):
                yield _Scope(judge, protocol, category), some


def _ranked(rows: pl.DataFrame) -> list[tuple[_Scope, pl.DataFrame]]:
    """The scopes that are worth a ranking: `(none)` only beside categories that have a name."""
    named = rows["category"].is_not_null().any()
    return [part for part in _scopes(rows) if named or part[0].category != metrics.UNCATEGORISED]


def _parts(rows: pl.DataFrame, by: list[str]) -> list[tuple[tuple[Any, ...], pl.DataFrame]]:
    return sorted(rows.partition_by(by, as_dict=True).items(), key=lambda part: part[0])


def _cautions(games: Games, shape: Structure, category: str | None) -> list[str]:
    """What a reader must know before believing the ranking."""
    names, told = np.array(games.models), []
    if shape.component.max() > 1:
        groups = [sorted(names[shape.component == c]) for c in range(1, shape.component.max() + 1)]
        listed = "; ".join(f"component {c}: {_listed(group)}" for c, group in enumerate(groups, 1))
        told.append(f"{len(groups)} groups of models never met and are ranked apart ({listed})")
    if not shape.bounded.all():
        told.append(
            f"no finite rating for {_listed(names[~shape.bounded])}: all points between them and the others went one "
            "way (unbounded); ranks are given where the order is determined"
        )
    return told + _few(games.questions, questions_by_model(games), names, category)


def _few(questions: int, by_model: np.ndarray, names: np.ndarray, category: str | None) -> list[str]:
    """Cautions for few questions; in a category, which has few by nature, only where there is no interval at all."""
    if questions == 1:
        return ["one question only: no interval can be given"]
    told = []
    if questions < FEW_QUESTIONS and category is None:
        told.append(f"{questions} questions only: intervals are rough")
    if (by_model == 1).any():
        told.append(f"no interval for {_listed(names[by_model == 1])}: seen in one question only")
    return told


def _listed(names: Any, most: int = 10) -> str:
    names = sorted(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _mean_scores(asked: pl.DataFrame, settings: AnalysisConfig) -> tuple[list[dict[str, Any]], list[str]]:
    """`mean_score` rows: models by their mean score, with scores of one question compared as pairs; no games."""
    rows: list[dict[str, Any]] = []
    told = _unscored(asked)
    for scope, part in _ranked(asked.filter(pl.col("score").is_not_null())):
        models = sorted(part["model"].unique())
        question = part["question_id"].rank("dense").to_numpy().astype(np.int64) - 1
        model = np.searchsorted(np.array(models, dtype=object), part["model"].to_numpy()).astype(np.int64)
        ones, together = np.ones(len(part)), np.ones(len(models), dtype=np.int64)
        standing = means(question, model, part["score"].to_numpy(), ones, together, settings)
        seen = part.group_by("model").agg(n=pl.col("question_id").n_unique()).sort("model")["n"].to_numpy()
        few = _few(int(question.max()) + 1, seen, np.array(models), scope.category)
        told += [f"{scope}, mean_score: {text}" for text in few]
        shape = Structure(together, together, standing.bounded, standing.above, standing.surely_above)
        counts = np.zeros((len(models), 3))
        rows += _rows(scope, "mean_score", tuple(models), counts, shape, standing, settings)
    return rows, told


def _unscored(asked: pl.DataFrame) -> list[str]:
    counts = (
        asked.group_by("judge", "protocol", "model")
        .agg(all=pl.len(), out=pl.col("score").null_count(), why=pl.col("status").filter(pl.col("score").is_null()))
        .filter(pl.col("out") > 0)
        .sort("judge", "protocol", "model")
    )
    told = []
    for row in counts.iter_rows(named=True):
        why = ", ".join(f"{reason} {row['why'].count(reason)}" for reason in sorted(set(row["why"])))
        told.append(
            f"judge {row['judge']}, protocol {row['protocol']}: {row['out']} of {row['all']} scores of model "
            f"{row['model']} are missing in its mean ({why})"
        )
    return told


def _rows(
    scope: _Scope,
    rule: str,
    models: tuple[str, ...],
    totals: Array,
    shape: Structure,
    standing: Standing,
    settings: AnalysisConfig,
) -> list[dict[str, Any]]:
    """RATINGS rows of one ranking."""
    peers = (shape.component[:, None] == shape.component[None, :]).sum(1)
    rank = 1 + standing.above.sum(0)
    best, worst = 1 + standing.surely_above.sum(0), peers - standing.surely_above.sum(1)
    if standing.ranks is not None:
        tail = (1 - settings.confidence) / 2
        low, high = np.quantile(standing.ranks, [tail, 1 - tail], axis=0, method="nearest")
        best, worst = np.minimum(low, rank), np.maximum(high, rank)
    games = totals.sum(1)
    return [
        {
            "judge": scope.judge,
            "protocol": scope.protocol,
            "rule": rule,
            "category": scope.category,
            "component": int(shape.component[m]),
            "status": "bounded" if standing.bounded[m] else "unbounded",
            "model": name,
            "rating": metrics.plain(standing.rating[m]),
            "low": metrics.plain(standing.low[m]),
            "high": metrics.plain(standing.high[m]),
            "rank": int(rank[m]),
            "rank_low": int(best[m]) if standing.ranked[m] else None,
            "rank_high": int(worst[m]) if standing.ranked[m] else None,
            "games": float(games[m]),
            "wins": float(totals[m, 0]),
            "losses": float(totals[m, 1]),
            "ties": float(totals[m, 2]),
        }
        for m, name in enumerate(models)
    ]
