"""Rankings: RATINGS rows for every judge, protocol and category, by every rule.

Rules on comparisons read JUDGMENTS, one soft outcome per order (see `games`); `mean_score` reads the scores of
`analysis.score_rule`. Judges of one protocol are also rated together, under the judge `(all)`.
Nothing depends on the order of rows, on which side a model is stored, or on what models are called.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from scipy.special import stdtrit

from trustjudge_ray.analysis import covariates, metrics
from trustjudge_ray.analysis.bradley_terry import Fit, fit_davidson
from trustjudge_ray.analysis.canary import canary_notes, canary_of
from trustjudge_ray.analysis.connectivity import Structure, structure
from trustjudge_ray.analysis.games import POOLED, Array, Games
from trustjudge_ray.analysis.outcomes import SOFT, Calibration
from trustjudge_ray.analysis.ranked_games import Contest, Scope, contest, outcomes_of, ranked, scopes, weights
from trustjudge_ray.analysis.readouts import columns
from trustjudge_ray.analysis.scoring import scores
from trustjudge_ray.analysis.standing import RATING_RULES, Standing, davidson, means, questions_by_model
from trustjudge_ray.config import AnalysisConfig, ConfigError
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.schema import RATINGS

FEW_QUESTIONS = 10
_ORDER = ["judge", "protocol", "rule", "category", "component", "rank", "model"]


@dataclass(frozen=True, slots=True)
class Rankings:
    """RATINGS, sorted by judge, protocol, rule, category, component and rank; METRICS of the fits behind them; and
    warnings in plain sentences."""

    ratings: pl.DataFrame
    metrics: pl.DataFrame
    warnings: list[str]


def rankings(
    judgments: pl.DataFrame,
    protocols: dict[str, Protocol],
    settings: AnalysisConfig,
    scored: pl.DataFrame | None = None,
    responses: pl.DataFrame | None = None,
) -> Rankings:
    """Rate models by comparisons (`RATING_RULES`, and `davidson_controlled` where `settings.covariates` asks for it)
    and by scores (`mean_score`).

    Ratings are on the Elo scale (`standing`), win rates from 0 to 1, mean scores on the protocol's scale. Models that
    never met, directly or through others, have different `component` numbers and are ranked apart. A model that
    took every point from all it met, or none, is `unbounded`: no rating, but a rank where the order is determined. Of
    a component's groups between which all points went one way the largest is rated.

    Intervals are question-clustered, at `settings.confidence`. `rank_low` is 1 + the models significantly better,
    `rank_high` the number of models less those significantly worse, pair by pair without correction; with
    `settings.bootstrap` they are, within a group, quantiles over resampled questions. Models seen in one question have
    no interval.
    `elo` is given over all categories only, without intervals. `settings.category_weights` weigh games and scores of
    all rules but `elo`, over all categories; the columns of games count each once.

    METRICS, by judge, protocol and category, `cases` are games, intervals question-clustered, null where the games
    cannot bound it: `order_effect_logit` (log-odds of the first slot between equals, without ties) and
    `tie_parameter` (ν: P(tie)/P(win) between equals without order effect) of the rule `davidson`; `covariate_NAME`
    (log-odds for one unit of difference, see `covariates`) of `davidson_controlled`, which leaves the canary out.
    `outcome_temperature` and `outcome_offset` (log-odds added to the first slot, see `slot_scaling`) of
    `davidson_calibrated`, by judge and protocol, where there are human scores; `cases` are the games that have them.

    Args:
        judgments: JUDGMENTS, one row per task_id.
        protocols: those of the score judgments, by name.
        scored: their SCORES, where they are known already.
        responses: RESPONSES, for human scores and texts.

    Raises:
        ConfigError: `settings.anchor_model` can be the anchor of no overall ranking.
    """
    games = outcomes_of(judgments, responses, settings)
    told = games.notes + _about_settings(games.rows, settings)
    canary = None if responses is None else canary_of(responses)
    rows: list[dict[str, Any]] = []
    fitted: list[dict[str, Any]] = [row for each in games.calibrations for row in _calibration_rows(each)]
    unanchored: dict[Scope, str | None] = {}
    for scope, part in scopes(games.rows):
        played = contest(part, scope, games.covariates, settings, canary)
        excluded = _counts(games.left, scope)
        if not ranked(scope, games.rows):
            soft = played.by_kind[SOFT]
            fit = fit_davidson(soft, structure(soft, settings.confidence).group)
            fitted += _fit_rows(fit, scope, soft, excluded, settings)
            continue
        found, more, notes = _ranked(played, scope, excluded, settings, canary)
        rows += found
        fitted += more
        told += [f"{scope}{note}" for note in notes]
        unanchored[scope] = _unanchored(played.by_kind[SOFT], settings)
    told += _about_anchor(unanchored, settings)
    asked = scores(judgments, protocols) if scored is None else scored
    found, notes = _mean_scores(asked.filter(pl.col("rule") == settings.score_rule), settings, canary)
    table = pl.DataFrame(rows + found, schema=columns(RATINGS), orient="row")
    table = table.sort(_ORDER, nulls_last=[False] * 5 + [True, False])
    return Rankings(table, metrics.frame(fitted), told + notes)


def ratings(
    judgments: pl.DataFrame,
    protocols: dict[str, Protocol],
    settings: AnalysisConfig,
    responses: pl.DataFrame | None = None,
) -> tuple[pl.DataFrame, list[str]]:
    """The RATINGS and warnings of `rankings`."""
    found = rankings(judgments, protocols, settings, responses=responses)
    return found.ratings, found.warnings


def _about_settings(rows: pl.DataFrame, settings: AnalysisConfig) -> list[str]:
    """What was asked for that changes what ratings mean."""
    told = []
    if settings.ridge > 0:
        told.append(
            f"analysis.ridge is {settings.ridge:g}: ratings of davidson and bradley_terry rules are shrunk towards "
            "equality; their intervals do not contain what that hides"
        )
    if settings.category_weights:
        known = ", ".join(f"{name} {weight:g}" for name, weight in sorted(settings.category_weights.items()))
        told.append(f"rankings over all categories weigh games by category ({known}, others 1); elo does not")
        named = set(rows["category"].fill_null(metrics.UNCATEGORISED))
        for name in sorted(set(settings.category_weights) - named):
            told.append(f"analysis.category_weights: no comparison is of the category '{name}'")
    if settings.anchor_model is not None and not rows.height:
        told.append(f"analysis.anchor_model: '{settings.anchor_model}' has no comparisons, so no rating is anchored")
    return told


def _ranked(
    played: Contest, scope: Scope, excluded: dict[str, Any], settings: AnalysisConfig, canary: str | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """RATINGS, METRICS and notes of one ranking by every rule."""
    rows: list[dict[str, Any]] = []
    shapes = {kind: structure(games, settings.confidence) for kind, games in played.by_kind.items()}
    soft, models = played.by_kind[SOFT], played.by_kind[SOFT].models
    notes = [f": {text}" for text in _cautions(soft, shapes[SOFT], scope.category, settings)]
    fitted: list[dict[str, Any]] = []
    for name, (kind, rule) in RATING_RULES.items():
        if kind not in played.by_kind or (name == "elo" and scope.category is not None):
            continue
        standing = rule(played.by_kind[kind], shapes[kind], settings)
        if scope.category is None or name == "davidson" or (standing.fit and not standing.fit.converged):
            known = [*_unlike(models, shapes[kind], shapes[SOFT]), *standing.notes]
            notes += [f", {name}: {note}" for note in known if f", davidson: {note}" not in notes]
        rows += _rows(scope, name, models, played.totals[kind], shapes[kind], standing, settings)
        if name == "davidson" and scope.category is None:
            found_out = canary_notes(models, shapes[kind].component, standing, canary)
            notes += [f", {name}: {note}" for note in found_out]
        if name == "davidson" and standing.fit is not None:
            fitted += _fit_rows(standing.fit, scope, soft, excluded, settings)
    if scope.category is None:
        notes += [f", davidson_controlled: {note}" for note in played.notes]
    if played.controlled is not None:
        found, more, told = _controlled(played, played.controlled, scope, excluded, settings)
        rows, fitted = rows + found, fitted + more
        notes += [f", davidson_controlled: {note}" for note in told]
    return rows, fitted, notes


def _controlled(
    played: Contest, games: Games, scope: Scope, excluded: dict[str, Any], settings: AnalysisConfig
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """Davidson's model with covariates: none of it where there is no best fit."""
    shape = structure(games, settings.confidence)
    standing = davidson(games, shape, settings)
    fit = standing.fit
    if fit is None or covariates.unbounded(fit):
        return [], [], ["the games do not bound the covariates' coefficients; no ratings are given"]
    rows = _rows(scope, "davidson_controlled", games.models, played.controlled_totals, shape, standing, settings)
    half = _half(fit, settings)
    fitted = [
        {"metric": f"covariate_{name}", "value": b, "low": b - half * se, "high": b + half * se}
        | _about(scope, games)
        | excluded
        for name, b, se in zip(played.covariates, fit.coefficients, fit.coefficients_se, strict=True)
    ]
    return rows, fitted, list(standing.notes)


def _fit_rows(
    fit: Fit, scope: Scope, games: Games, excluded: dict[str, Any], settings: AnalysisConfig
) -> list[dict[str, Any]]:
    """The order effect and the tie parameter."""
    half = _half(fit, settings)
    steps = np.array([0.0, -half, half])
    order, ties = fit.order_effect + steps * fit.order_effect_se, fit.log_nu + steps * fit.log_nu_se
    order[0], ties[0] = fit.order_effect, fit.log_nu if np.isfinite(fit.log_nu) else np.nan
    return [
        {"metric": metric, "value": value, "low": low, "high": high} | _about(scope, games) | excluded
        for metric, (value, low, high) in (("order_effect_logit", order), ("tie_parameter", np.exp(ties)))
    ]


def _half(fit: Fit, settings: AnalysisConfig) -> float:
    """Half an interval in standard errors."""
    return float(stdtrit(fit.questions - 1, (1 + settings.confidence) / 2)) if fit.questions > 1 else np.nan


def _about(scope: Scope, games: Games) -> dict[str, Any]:
    counts = {"cases": round(float(games.outcome.sum())), "questions": games.questions}
    return {"judge": scope.judge, "protocol": scope.protocol, "category": scope.category} | counts


def _calibration_rows(calibration: Calibration) -> list[dict[str, Any]]:
    about: dict[str, Any] = {"judge": calibration.judge, "protocol": calibration.protocol, "cases": 0}
    scaling = calibration.scaling
    if scaling is not None:
        about |= {"cases": scaling.cases, "questions": scaling.questions}
    return [
        {"metric": "outcome_temperature", "value": None if scaling is None else scaling.temperature} | about,
        {"metric": "outcome_offset", "value": None if scaling is None else scaling.offset} | about,
    ]


def _counts(left: pl.DataFrame, scope: Scope) -> dict[str, Any]:
    mine = pl.col("protocol") == scope.protocol
    if scope.judge != POOLED:
        mine &= pl.col("judge") == scope.judge
    if scope.category is not None:
        mine &= pl.col("category").fill_null(metrics.UNCATEGORISED) == scope.category
    found = left.filter(mine).group_by("reason").agg(n=pl.len())
    return metrics.reasons(dict(zip(found["reason"], found["n"], strict=True)))


def _unanchored(games: Games, settings: AnalysisConfig) -> str | None:
    """Why some or all models of a ranking have no rating on the anchor's scale; None where all have one."""
    anchor = settings.anchor_model
    if anchor is None:
        return None
    if anchor not in games.models:
        return f"is not among its models {_listed(games.models)}"
    shape, me = structure(games, settings.confidence), games.models.index(anchor)
    if not shape.bounded[me] and settings.ridge <= 0:
        return "has no finite rating itself (unbounded)"
    apart = np.array(games.models)[shape.component != shape.component[me]]
    return f"never met {_listed(apart)}, directly or through others" if len(apart) else None


def _about_anchor(unanchored: dict[Scope, str | None], settings: AnalysisConfig) -> list[str]:
    """What to know about rankings that the anchor is not the anchor of.

    Raises:
        ConfigError: these are all rankings over all categories.
    """
    anchor, reasons = settings.anchor_model, [(s, why) for s, why in unanchored.items() if why is not None]
    overall = {scope: why for scope, why in unanchored.items() if scope.category is None}
    if overall and None not in overall.values():
        scope, why = reasons[0]
        raise ConfigError(
            f"analysis.anchor_model: got '{anchor}', which {why} ({scope}); the anchor is a model of some "
            "ranking over all categories that all others met, directly or through others, and that has won and lost"
        )
    about = f"no rating on the scale of the anchor '{anchor}' for those that it cannot be compared with"
    return [f"{scope}: {about}: it {why}" for scope, why in reasons]


def _unlike(models: tuple[str, ...], shape: Structure, soft: Structure) -> list[str]:
    """Models with a finite rating by soft outcomes, and by these none."""
    lost = soft.bounded & ~shape.bounded
    return [f"no finite rating for {_listed(np.array(models)[lost])} (unbounded)"] if lost.any() else []


def _cautions(games: Games, shape: Structure, category: str | None, settings: AnalysisConfig) -> list[str]:
    """What a reader must know before believing the ranking."""
    names, told = np.array(games.models), []
    if shape.component.max() > 1:
        groups = [sorted(names[shape.component == c]) for c in range(1, shape.component.max() + 1)]
        listed = "; ".join(f"component {c}: {_listed(group)}" for c, group in enumerate(groups, 1))
        told.append(f"{len(groups)} groups of models never met and are ranked apart ({listed})")
    if not shape.bounded.all():
        given = "their ratings are the ridge's, without intervals" if settings.ridge > 0 else "no finite rating"
        told.append(
            f"{given} for {_listed(names[~shape.bounded])}: all points between them and the others went one "
            "way (unbounded); ranks are given where the order is determined"
        )
    told += _few(games.questions, questions_by_model(games), names, category)
    inside = questions_by_model(games, shape.component if settings.ridge > 0 else shape.group)
    few = shape.bounded & (inside < FEW_QUESTIONS) & (questions_by_model(games) > 1)
    if few.any() and category is None and (games.questions >= FEW_QUESTIONS or (inside[few] == 1).any()):
        told.append(
            f"{_listed(names[few])} met those they are rated with in fewer than {FEW_QUESTIONS} questions: their "
            "intervals are rough, and none is given for one question"
        )
    return told


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


def _mean_scores(
    asked: pl.DataFrame, settings: AnalysisConfig, canary: str | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """`mean_score` rows: models by their mean score, with scores of one question compared as pairs; no games."""
    rows: list[dict[str, Any]] = []
    told = _unscored(asked)
    read = asked.filter(pl.col("score").is_not_null())
    for scope, part in scopes(read):
        if not ranked(scope, read):
            continue
        models = sorted(part["model"].unique())
        question = part["question_id"].rank("dense").to_numpy().astype(np.int64) - 1
        model = np.searchsorted(np.array(models, dtype=object), part["model"].to_numpy()).astype(np.int64)
        together = np.ones(len(models), dtype=np.int64)
        weight = weights(part, settings, pl.lit(1.0)).to_numpy() if scope.category is None else np.ones(len(part))
        standing = means(question, model, weight * part["score"].to_numpy(), weight, together, settings)
        seen = part.group_by("model").agg(n=pl.col("question_id").n_unique()).sort("model")["n"].to_numpy()
        few = _few(int(question.max()) + 1, seen, np.array(models), scope.category)
        if scope.category is None:
            few += canary_notes(models, together, standing, canary)
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
    scope: Scope,
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
        best, worst = np.minimum(standing.ranks[0], rank), np.maximum(standing.ranks[1], rank)
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
