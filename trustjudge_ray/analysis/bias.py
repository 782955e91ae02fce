"""The METRICS of a judge's bias card that are not elsewhere: saturation, length, own family.

Position is in `position`, identical scores in `coverage`, repeatability in `noise`; `report.bias` brings them together.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from trustjudge_ray.analysis.comparisons import Comparisons
from trustjudge_ray.analysis.consistency import ResponseScores
from trustjudge_ray.analysis.layout import Indices, Layout, by_reason, ratio_rows
from trustjudge_ray.analysis.length_bias import Known, length_correlation_rows, length_preference_rows
from trustjudge_ray.analysis.own_family import own_family_rows
from trustjudge_ray.analysis.readouts import Floats, judged_by

NEAR_END: Final = 0.01
"""A score is at an end of its scale within this share of its range: 0.04 points of 1–5, 0.99 of 1–100."""
SURE: Final = 0.99
"""A distribution is saturated if its likeliest label holds more than this."""


def score_bias_rows(
    layout: Layout,
    judgments: pl.DataFrame,
    scored: ResponseScores,
    values: Sequence[float],
    known: Known,
    confidence: float,
) -> list[pl.DataFrame]:
    """METRICS of one judge and score protocol: `score_saturation_rows` and `length_correlation_rows`.

    Args:
        values: what the protocol's labels stand for.
    """
    return [
        *score_saturation_rows(layout, scored, values, confidence),
        _label_saturation(layout, judgments, scored, confidence),
        *length_correlation_rows(layout, scored, known, confidence),
    ]


def pair_bias_rows(
    layout: Layout,
    comparisons: Comparisons,
    others: Sequence[Comparisons],
    known: Known,
    families: Mapping[str, str],
    confidence: float,
) -> list[pl.DataFrame]:
    """METRICS of one judge and comparison protocol: `label_saturation`, `length_preference_rows`, `own_family_rows`."""
    return [
        _pair_saturation(layout, comparisons, confidence),
        *length_preference_rows(layout, comparisons, known, confidence),
        *own_family_rows(layout, comparisons, others, known, families, confidence),
    ]


def score_saturation_rows(
    layout: Layout, scored: ResponseScores, values: Sequence[float], confidence: float
) -> list[pl.DataFrame]:
    """METRICS `score_saturation_top` and `_bottom`, by score rule: of the scores, the share at the highest and at the
    lowest label (within NEAR_END). `excluded_by` says why responses have no score."""
    question = layout.responses["question"].to_numpy().astype(np.int64)
    near = NEAR_END * (max(values) - min(values))
    names, rows = pl.Series(scored.statuses, dtype=pl.String), []
    for rule, score in scored.score.items():
        there = ~np.isnan(score)
        lost = by_reason(names.gather(scored.status[rule][~there]), question[~there], layout.questions)
        cases = _counted(question[there], layout)
        with np.errstate(invalid="ignore"):
            ends = {"top": score >= max(values) - near, "bottom": score <= min(values) + near}
        for name, at_end in ends.items():
            keys = {"judge": scored.judge, "protocol": scored.protocol, "score_rule": rule}
            named = keys | {"metric": f"score_saturation_{name}"}
            rows.append(ratio_rows(layout, named, _counted(question[at_end], layout), cases, lost, confidence))
    return rows


def _label_saturation(
    layout: Layout, judgments: pl.DataFrame, scored: ResponseScores, confidence: float
) -> pl.DataFrame:
    """METRICS `label_saturation`: of the label distributions read, each sample on its own, the share whose likeliest
    label holds more than SURE of what all labels hold together. `excluded_by`: the status, or `no_distribution`."""
    read = ("question_id", "response_a", "judge", "protocol", "repeat", "status", "label_logprobs", "label_mass")
    mine = judgments.select(read).filter(judged_by(scored.judge, scored.protocol), pl.col("repeat") == 0)
    logs, mass = pl.col("label_logprobs"), pl.col("label_mass")
    if mine.filter(mass.is_null() & logs.is_not_null()).height:
        mass = pl.coalesce(mass, logs.list.eval(pl.element().exp()).list.sum())
    told = mine.select(
        "question_id",
        "response_a",
        "status",
        pl.when(pl.col("status") == "ok", mass > 0).then(logs.list.max().exp() / mass).alias("share"),
    )
    question, _, _ = layout.numbered(told, "response_a")
    share = told["share"].fill_null(np.nan).to_numpy()
    out = np.isnan(share)
    why = told["status"].filter(pl.Series(out, dtype=pl.Boolean)).replace("ok", "no_distribution")
    lost = by_reason(why, question[out], layout.questions)
    hits, cases = _counted(question[~out & (np.nan_to_num(share) > SURE)], layout), _counted(question[~out], layout)
    return ratio_rows(layout, _saturation_of(scored), hits, cases, lost, confidence)


def _pair_saturation(layout: Layout, comparisons: Comparisons, confidence: float) -> pl.DataFrame:
    """The same of a comparison protocol, each order on its own, averaged over samples."""
    p = np.nan_to_num(comparisons.pairs.probabilities)
    mass, everything = p.sum(axis=2), np.ones(len(p), dtype=bool)
    unread = comparisons.pairs.asked & (mass <= 0) & ~comparisons.pairs.has("identical")[:, None]
    sure = (mass > 0) & (p.max(axis=2) > SURE * mass)
    hits, cases, lost = (comparisons.counted(everything, x.sum(axis=1), layout) for x in (sure, mass > 0, unread))
    return ratio_rows(layout, _saturation_of(comparisons), hits, cases, {"no_distribution": lost}, confidence)


def _saturation_of(read: ResponseScores | Comparisons) -> dict[str, Any]:
    return {"metric": "label_saturation", "judge": read.judge, "protocol": read.protocol}


def _counted(question: Indices, layout: Layout) -> Floats:
    return np.bincount(question, minlength=layout.questions).astype(np.float64)
