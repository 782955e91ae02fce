"""Scores of a run, summed: mean scores and failures of models, mean label distributions, entropy by protocol."""

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis.games import POOLED
from trustjudge_ray.corpus.canary import NAME
from trustjudge_ray.report.cells import Inputs, main_rules

_READ = ("ok", "identical")


def mean_scores(inputs: Inputs) -> list[dict[str, Any]]:
    """judge, model, protocol, mean, answers: scores by the main rule, each answer once; by POOLED of all judges."""
    if "rule" not in inputs.scores.columns:
        return []
    read = inputs.scores.filter(pl.col("rule") == inputs.settings.score_rule, pl.col("score").is_not_null())
    both = (read.select("judge", *_SCORED), read.select(pl.lit(POOLED).alias("judge"), *_SCORED))
    found = [
        rows.group_by("judge", "model", "protocol").agg(mean=pl.col("score").mean(), answers=pl.len()) for rows in both
    ]
    return pl.concat(found).sort("judge", "model", "protocol").to_dicts()


_SCORED = ("model", "protocol", "score")


def judged_models(inputs: Inputs) -> list[dict[str, Any]]:
    """judge, model, judgments, failed: what was asked about a model's answers, and what of it could not be used."""
    sides = inputs.judgments.group_by("judge", "model_a", "model_b", "status").len()
    about = [
        sides.select("judge", "status", "len", model="model_a"),
        sides.filter(pl.col("model_b").is_not_null(), pl.col("model_b") != pl.col("model_a")).select(
            "judge", "status", "len", model="model_b"
        ),
    ]
    rows = pl.concat(about)
    rows = pl.concat([rows, rows.with_columns(judge=pl.lit(POOLED))])
    failed = pl.col("len").filter(~pl.col("status").is_in(_READ)).sum()
    return (
        rows.group_by("judge", "model")
        .agg(judgments=pl.col("len").sum(), failed=failed)
        .sort("judge", "model")
        .to_dicts()
    )


def mean_distributions(inputs: Inputs) -> list[dict[str, Any]]:
    """judge, protocol, model, labels and probabilities: the mean of the label distributions of a model's answers."""
    rows = []
    columns = ("judge", "protocol", "model_a", "kind", "status", "repeat", "label_logprobs")
    ok = inputs.judgments.select(columns).filter(kind="score", status="ok", repeat=0).drop_nulls("label_logprobs")
    groups = ok.partition_by("judge", "protocol", "model_a", as_dict=True)
    for (judge, protocol, model), group in sorted(groups.items()):
        values = list(inputs.protocols[protocol].values)
        mean = _means(group["label_logprobs"].list.to_array(len(values)).to_numpy())
        rows.append(
            {
                "judge": judge,
                "protocol": protocol,
                "model": model,
                "labels": values,
                "probabilities": [float(p) for p in mean],
            }
        )
    return rows


def _means(logprobs: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of the rows' distributions, each renormalised; rows without label mass stay out."""
    probabilities = np.exp(np.nan_to_num(logprobs.astype(float), nan=-np.inf))
    mass = probabilities.sum(axis=1, keepdims=True)
    read = mass[:, 0] > 0
    if not read.any():
        return np.zeros(probabilities.shape[1])
    mean: NDArray[np.float64] = (probabilities[read] / mass[read]).mean(axis=0)
    return mean


def entropy_rows(inputs: Inputs) -> list[dict[str, Any]]:
    """The entropy of score distributions by judge and protocol, coarse scales first: the row of METRICS (a share of its
    highest value), with labels and, in nats, mean, lower and upper (the 10 % and 90 % quantiles of answers)."""
    labels = {name: len(p.label_texts) for name, p in inputs.protocols.items() if p.kind == "score"}
    rows = main_rules(inputs).filter(pl.col("metric") == "score_entropy", pl.col("cases") > 0)
    read = inputs.scores.filter(pl.col("rule") == inputs.settings.score_rule, pl.col("entropy").is_not_null())
    if "above_canary" in inputs.metrics["metric"]:  # METRICS leave the canary out
        read = read.filter(pl.col("model") != NAME)
    nats = read.group_by("judge", "protocol").agg(
        mean=pl.col("entropy").mean(),
        lower=pl.col("entropy").quantile(0.1, "linear"),
        upper=pl.col("entropy").quantile(0.9, "linear"),
    )
    found = rows.join(nats, on=["judge", "protocol"], how="left", maintain_order="left").to_dicts()
    told = [row | {"labels": labels[row["protocol"]]} for row in found if row["protocol"] in labels]
    return sorted(told, key=lambda row: (row["judge"], row["labels"], row["protocol"]))
