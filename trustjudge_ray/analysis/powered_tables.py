"""Prediction-powered win rates and mean scores of every model, from the labels of a sheet."""

from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl

from trustjudge_ray.analysis.games import Array
from trustjudge_ray.analysis.label_sheet import Sheet, consensus, frame_hash, frame_of, unfilled_share
from trustjudge_ray.analysis.powered import powered_mean
from trustjudge_ray.analysis.scoring import scores
from trustjudge_ray.analysis.verdicts import mean_probabilities, pairs_of
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.judging.protocols import Protocol

MOST_UNFILLED = 0.1
"""Above this share of unlabelled units those that are left are no random sample any more."""


class NotRandomError(ValueError):
    """Labels from which nothing may be concluded about what was not labelled: says why, and what would be right."""


def powered_estimates(
    judgments: pl.DataFrame,
    protocols: dict[str, Protocol],
    sheet: Sheet,
    labels: pl.DataFrame,
    settings: AnalysisConfig,
) -> list[dict[str, Any]]:
    """What people would say about each model, by every judge and protocol of the sheet's kind.

    `win_rate` (a win 1, a tie ½, over the pairs that the plan asked about) or `mean_score`, over units that the judge
    read; `unread` counts the others. A model without a label has no estimate and `labelled` 0.

    Raises:
        NotRandomError: the run has other units than the sheet was drawn from, or too many are unlabelled.
    """
    now = frame_hash(frame_of(judgments, sheet.kind))
    if now != sheet.frame_hash:
        raise NotRandomError(
            f"label sheet {sheet.name}: the run has other {'pairs' if sheet.kind == 'compare' else 'answers'} now than "
            "the sheet was drawn from; draw a new one"
        )
    share = unfilled_share(sheet, labels)
    if share > MOST_UNFILLED:
        raise NotRandomError(
            f"label sheet {sheet.name}: {share:.0%} of its {len(sheet.units)} units have no label, at most "
            f"{MOST_UNFILLED:.0%} may: what people pass over is not random. Fill them in and import again"
        )
    said = consensus(labels, sheet.kind)
    units = _pair_units(judgments) if sheet.kind == "compare" else _score_units(judgments, protocols, sheet, settings)
    rows: list[dict[str, Any]] = []
    for (judge, protocol), part in sorted(units.partition_by(["judge", "protocol"], as_dict=True).items()):
        rows += _by_model(part, said, {"judge": judge, "protocol": protocol}, sheet, settings)
    return rows


def _pair_units(judgments: pl.DataFrame) -> pl.DataFrame:
    """Pairs with the judge's points of response_a (null where it was not read): a row a pair, with both models."""
    pairs = pairs_of(judgments)
    p = mean_probabilities(pairs)
    points = pl.Series("judged", p[:, 0] + p[:, 2] / 2, nan_to_null=True)
    kept = pairs.keys.with_columns(points, identical=pl.Series(pairs.has("identical"), dtype=pl.Boolean))
    return kept.filter(~pl.col("identical"), pl.col("model_a") != pl.col("model_b"))


def _score_units(
    judgments: pl.DataFrame, protocols: dict[str, Protocol], sheet: Sheet, settings: AnalysisConfig
) -> pl.DataFrame:
    """Answers with the judge's score, of the protocols that have the sheet's scale."""
    fitting = [
        name
        for name, p in protocols.items()
        if p.kind == "score" and (min(p.values), max(p.values)) == (sheet.low, sheet.high)
    ]
    table = scores(judgments.filter(pl.col("protocol").is_in(fitting)), protocols)
    return table.filter(pl.col("rule") == settings.score_rule).select(
        "judge",
        "protocol",
        "question_id",
        response_a="response_id",
        response_b=pl.lit(None, dtype=pl.String),
        model_a="model",
        model_b=pl.lit(None, dtype=pl.String),
        judged="score",
    )


def _by_model(
    part: pl.DataFrame, said: pl.DataFrame, about: dict[str, Any], sheet: Sheet, settings: AnalysisConfig
) -> list[dict[str, Any]]:
    keys = ["question_id", "response_a", "response_b"]
    told = part.join(said.select(*keys, "mean"), on=keys, how="left", nulls_equal=True).sort(keys)
    compare = sheet.kind == "compare"
    bounds = (0.0, 1.0) if compare else (float(sheet.low or 0.0), float(sheet.high or 0.0))
    models = sorted({*told["model_a"].drop_nulls(), *told["model_b"].drop_nulls()})
    rows = []
    for model in models if compare else [None, *models]:
        mine = told if model is None else told.filter((pl.col("model_a") == model) | (pl.col("model_b") == model))
        read = mine.filter(pl.col("judged").is_not_null())
        judged, people = read["judged"].to_numpy(), read["mean"].cast(pl.Float64).to_numpy()
        if compare:
            first = (read["model_a"] == model).to_numpy()
            people = _points(people, first)
            judged = np.where(first, judged, 1 - judged)
        row = about | {"quantity": "win_rate" if compare else "mean_score", "model": model}
        row |= {"unread": mine.height - read.height, "labelled": int((~np.isnan(people)).sum())}
        if row["labelled"]:
            question = read["question_id"].rank("dense").to_numpy().astype(np.int64) - 1
            row |= asdict(powered_mean(question, judged, people, settings.confidence, bounds))
        rows.append(row)
    return rows


def _points(values: Array, first: Any) -> Array:
    """Of +1, 0, −1 for response_a the points, 0 to 1, of the model that is first there, or not."""
    points = (values + 1) / 2
    return np.where(first, points, 1 - points)
