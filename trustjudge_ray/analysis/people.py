"""Agreement with people, further: weighted κ, votes, Brier's parts, temperature; also with labels drawn for this."""

from typing import Any

import numpy as np
import polars as pl

from trustjudge_ray.analysis import metrics
from trustjudge_ray.analysis.agreement import (
    codes,
    excluded,
    jackknifed,
    of_probabilities,
    pair_rows,
    parts,
    probabilities,
    probability_rows,
    with_people,
)
from trustjudge_ray.analysis.calibration import brier_parts, log_loss, reliability_rows, temperature_scaling
from trustjudge_ray.analysis.raters import KAPPA_WEIGHTS, vote_metrics, weighted_kappa
from trustjudge_ray.config import AnalysisConfig

_PAIR = ("judge", "protocol", "question_id", "response_a", "response_b")


def people_metrics(
    judgments: pl.DataFrame, verdicts: pl.DataFrame, responses: pl.DataFrame, settings: AnalysisConfig
) -> pl.DataFrame:
    """METRICS beside `agreement_metrics`, for every judge, protocol and category.

    By verdict rule and tolerance: `agreement_pair_kappa_linear`, `agreement_pair_kappa_quadratic` over b better, tie, a
    better. By comparison protocol: `agreement_pair_brier_{reliability,resolution,uncertainty,within_bins}`
    (`calibration.brier_parts`); `agreement_pair_log_loss`, `agreement_pair_temperature`, and what that does to
    questions it was not fitted on: `agreement_pair_{log_loss,brier,ece}_scaled` (`calibration.temperature_scaling`),
    null with fewer than two questions or where no temperature is the best; `reliability_{right,confidence}_<bin>`
    (`calibration.RELIABILITY`). By judge: `alpha_votes` (`raters.vote_metrics`), also without any human score.
    """
    votes = vote_metrics(judgments, settings)
    human = responses.select("question_id", "response_id", pl.col("human_score").fill_nan(None).alias("human"))
    human = human.drop_nulls("human").unique(["question_id", "response_id"], keep="first", maintain_order=True)
    if not human.height:
        return votes
    told = with_people(verdicts, human)
    return pl.concat([votes, metrics.frame(_further_rows(told, settings))])


def labelled_metrics(verdicts: pl.DataFrame, labels: pl.DataFrame, settings: AnalysisConfig) -> pl.DataFrame:
    """The METRICS of pairs in `agreement_metrics` and `people_metrics`, against labels of pairs in place of scores.

    Args:
        labels: question_id, response_a, response_b, wanted (+1 a better, 0, −1): each pair once.
    """
    told = verdicts.join(labels, on=["question_id", "response_a", "response_b"], how="left").with_columns(
        reason=pl.when(pl.col("wanted").is_null())
        .then(pl.lit("no_label"))
        .when((pl.col("status") == "identical") | pl.col("outcome").is_null())
        .then(pl.col("status"))
    )
    rows: list[dict[str, Any]] = []
    for about, part in _by_rule(told):
        rows += pair_rows(part, about, settings)
    for about, part in parts(told.unique(_PAIR, keep="first", maintain_order=True), ["judge", "protocol"]):
        rows += probability_rows(part, about, settings, "no_label")
    return metrics.frame(rows + _further_rows(told, settings, "no_label"))


def _by_rule(told: pl.DataFrame) -> list[tuple[dict[str, Any], pl.DataFrame]]:
    found = []
    for about, part in parts(told, ["judge", "protocol", "rule", "tolerance"]):
        rule, tolerance = about.pop("rule"), about.pop("tolerance")
        found.append((about | {"verdict_rule": rule, "verdict_tolerance": tolerance}, part))
    return found


def _further_rows(told: pl.DataFrame, settings: AnalysisConfig, unsaid: str = "no_human_score") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for about, part in _by_rule(told):
        rows += _kappa_rows(part, about, settings)
    for about, part in parts(told.unique(_PAIR, keep="first", maintain_order=True), ["judge", "protocol"]):
        rows += _calibration_rows(of_probabilities(part, unsaid), about, settings)
    return rows


def _kappa_rows(part: pl.DataFrame, about: dict[str, Any], settings: AnalysisConfig) -> list[dict[str, Any]]:
    used = part.filter(pl.col("reason").is_null())
    said, wanted = (used[name].to_numpy().astype(np.int64) + 1 for name in ("outcome", "wanted"))
    rows = []
    for name, weights in KAPPA_WEIGHTS.items():

        def kappa(keep: Any, weights: Any = weights) -> float:
            return weighted_kappa(said[keep], wanted[keep], 3, weights)

        value = jackknifed(used["question_id"], kappa, settings, fisher=False)
        rows.append({"metric": f"agreement_pair_kappa_{name}"} | about | value | excluded(part))
    return rows


def _calibration_rows(part: pl.DataFrame, about: dict[str, Any], settings: AnalysisConfig) -> list[dict[str, Any]]:
    used = part.filter(pl.col("reason").is_null()).sort("question_id", "response_a", "response_b")
    p, right = probabilities(used)
    question, _ = codes(used["question_id"])
    values = {f"brier_{name}": value for name, value in brier_parts(p, right).items()}
    scaling = temperature_scaling(p, right, question, settings.seed)
    nothing = float("nan")
    values["log_loss"] = log_loss(p, right)
    fitted = None if scaling is None or scaling.at_edge else scaling
    values["temperature"] = fitted.temperature if fitted else nothing
    for name, metric in {"log_loss": "log_loss", "brier": "brier", "calibration_error": "ece"}.items():
        values[f"{metric}_scaled"] = fitted.after[name] if fitted else nothing
    counts = {"cases": used.height, "questions": used["question_id"].n_unique()}
    lost = excluded(part)
    rows = [{"metric": f"agreement_pair_{name}", "value": v} | about | counts | lost for name, v in values.items()]
    return rows + [row | about | lost for row in reliability_rows(p, right, question, settings.confidence)]
