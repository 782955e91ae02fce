"""How much could be read, how sure the judge was, and how many of its scores tell nothing apart."""

import numpy as np
import polars as pl

from trustjudge_ray.analysis.comparisons import Comparisons
from trustjudge_ray.analysis.consistency import ResponseScores
from trustjudge_ray.analysis.inference import mean_intervals, soft_ratio_intervals
from trustjudge_ray.analysis.layout import Indices, Layout, by_reason, ratio_rows
from trustjudge_ray.analysis.readouts import Floats, judged_by
from trustjudge_ray.analysis.tolerances import EQUAL


def coverage_rows(
    layout: Layout, judgments: pl.DataFrame, judge: str | None, protocol: str | None, confidence: float
) -> list[pl.DataFrame]:
    """METRICS `coverage` of one protocol: judgments that are "ok" of all that were asked for, each sample on its own.

    Failed judgments are the cases that are no hits; `excluded_by` breaks them down by status, so here excluded =
    cases − hits. Pairs of identical texts are not asked for.
    """
    asked = (pl.col("repeat") == 0) & (pl.col("status") != "identical")
    mine = judgments.filter(judged_by(judge, protocol) & asked)
    question, _, _ = layout.numbered(mine, "response_a")
    table = by_reason(mine["status"], question, layout.questions)
    cases = sum(table.values(), np.zeros(layout.questions))
    hits = table.pop("ok", np.zeros(layout.questions))
    keys = {"metric": "coverage", "judge": judge, "protocol": protocol}
    return [ratio_rows(layout, keys, hits, cases, table, confidence)]


def reading_rows(layout: Layout, scores: pl.DataFrame, scored: ResponseScores, confidence: float) -> list[pl.DataFrame]:
    """METRICS of one score protocol.

    `label_mass`: the mean probability that went to labels. `score_entropy`: the mean entropy of the label
    distribution, as a share of its highest value, ln K. Both over responses that were read with their distribution.
    `identical_scores`, by score rule: of the pairs of responses to one question that both have a score, the share
    with the same one.
    """
    keys = {"judge": scored.judge, "protocol": scored.protocol}
    rule = next(iter(scored.score))
    mine = scores.filter(judged_by(scored.judge, scored.protocol) & (pl.col("rule") == rule))
    question, _, _ = layout.numbered(mine, "response_id")
    mass, share = mine["label_mass"].to_numpy(), mine["entropy_share"].to_numpy()
    rows = [
        _mean(layout, {**keys, "metric": "label_mass"}, question, mass, mine["status"], confidence, _is_share(mass)),
        _mean(layout, {**keys, "metric": "score_entropy"}, question, share, mine["status"], confidence, share=True),
    ]
    for name, score in scored.score.items():
        named = {**keys, "metric": "identical_scores", "score_rule": name, "tolerance": 0.0}
        hits, cases = equal_pairs(layout, score)
        possible = layout.sizes * (layout.sizes - 1) / 2
        rows.append(ratio_rows(layout, named, hits, cases, {"no_score": possible - cases}, confidence))
    return rows


def pair_mass_rows(layout: Layout, comparisons: Comparisons, confidence: float) -> list[pl.DataFrame]:
    """METRICS `label_mass` of one comparison protocol, over all judgments that were read with their distribution."""
    probabilities = comparisons.pairs.probabilities
    listed = ~np.isnan(probabilities).all(axis=2)
    mass = np.nansum(probabilities, axis=2).sum(axis=1)
    everything = np.ones(len(mass), dtype=bool)
    sums = comparisons.counted(everything, mass, layout)
    cases = comparisons.counted(everything, listed.sum(axis=1), layout)
    unread = comparisons.pairs.asked & ~listed & ~comparisons.pairs.has("identical")[:, None]
    lost = {"no_distribution": comparisons.counted(everything, unread.sum(axis=1), layout)}
    keys = {"metric": "label_mass", "judge": comparisons.judge, "protocol": comparisons.protocol}
    share = _is_share(np.nansum(probabilities, axis=2))
    intervals = soft_ratio_intervals if share else mean_intervals
    return [ratio_rows(layout, keys, np.minimum(sums, cases) if share else sums, cases, lost, confidence, intervals)]


def _is_share(mass: Floats) -> bool:
    """Whether masses can be read as shares: imports may list tokens whose probabilities sum to more than 1."""
    return bool((mass[~np.isnan(mass)] <= 1).all())


def _mean(
    layout: Layout,
    keys: dict,
    question: Indices,
    values: Floats,
    status: pl.Series,
    confidence: float,
    share: bool = False,
) -> pl.DataFrame:
    read = ~np.isnan(values)
    sums = np.bincount(question[read], weights=values[read], minlength=layout.questions)
    cases = np.bincount(question[read], minlength=layout.questions).astype(np.float64)
    why = status.filter(pl.Series(~read, dtype=pl.Boolean))
    lost = by_reason(why.replace("ok", "no_distribution"), question[~read], layout.questions)
    intervals = soft_ratio_intervals if share else mean_intervals
    return ratio_rows(layout, keys, np.minimum(sums, cases) if share else sums, cases, lost, confidence, intervals)


def equal_pairs(layout: Layout, score: Floats) -> tuple[Floats, Floats]:
    """(Q,) pairs with equal scores, and pairs with two scores."""
    hits, cases = np.zeros(layout.questions), np.zeros(layout.questions)
    start = np.cumsum(layout.sizes) - layout.sizes
    for size in np.unique(layout.sizes):
        questions = np.flatnonzero(layout.sizes == size)
        table = score[start[questions, None] + np.arange(size)]
        scored = (~np.isnan(table)).sum(axis=1)
        cases[questions] = scored * (scored - 1) / 2
        for shift in range(1, int(size)):
            with np.errstate(invalid="ignore"):
                hits[questions] += (np.abs(table[:, shift:] - table[:, :-shift]) <= EQUAL).sum(axis=1)
    return hits, cases
