"""Position bias and ties: what the order of showing does to a judge's verdicts."""

import numpy as np
import polars as pl

from trustjudge_ray.analysis.comparisons import Comparisons
from trustjudge_ray.analysis.inference import mean_intervals
from trustjudge_ray.analysis.layout import Layout, by_reason, ratio_rows

_A, _B, _TIE = 0, 1, 2


def position_rows(layout: Layout, comparisons: Comparisons, confidence: float) -> list[pl.DataFrame]:
    """METRICS of one judge and comparison protocol; identical texts are never judged and always excluded.

    `flip_rate`: of the pairs that emitted a verdict in both orders, the share whose verdicts differ (as candidates).
    `first_slot_preference`: of all emitted verdicts but ties, also of pairs read in one order only, the share that
    goes to the response shown first; 0.5 is unbiased where both orders are asked.
    `order_effect`: the mean over pairs of P(shown first) − P(shown second), averaged over both orders, each order's
    label probabilities renormalised; from −1 to 1, 0 is unbiased.
    """
    keys = {"judge": comparisons.judge, "protocol": comparisons.protocol}
    return [
        _flip_rate(layout, comparisons, keys, confidence),
        _first_slot_preference(layout, comparisons, keys, confidence),
        _order_effect(layout, comparisons, keys, confidence),
    ]


def tie_rows(layout: Layout, comparisons: Comparisons, confidence: float) -> list[pl.DataFrame]:
    """METRICS `tie_rate`: of the valid pairs, the share of ties, by verdict rule and tolerance."""
    rows = []
    for rule, found in comparisons.by_rule.items():
        valid = comparisons.counted(found.valid, None, layout)
        ties = np.stack([comparisons.counted(found.valid, outcome == 0, layout) for outcome in found.outcomes])
        keys = {
            "metric": "tie_rate",
            "judge": comparisons.judge,
            "protocol": comparisons.protocol,
            "verdict_rule": rule,
            "tolerance": np.array(found.tolerances),
        }
        cases = np.broadcast_to(valid, ties.shape)
        rows.append(ratio_rows(layout, keys, ties, cases, comparisons.lost(rule, layout), confidence))
    return rows


def _flip_rate(layout: Layout, comparisons: Comparisons, keys: dict, confidence: float) -> pl.DataFrame:
    emitted = comparisons.pairs.emitted
    ok = comparisons.pairs.has("ok")
    counted = ok & (emitted >= 0).all(axis=1)
    hits = comparisons.counted(counted, emitted[:, 0] != emitted[:, 1], layout)
    cases = comparisons.counted(counted, None, layout)
    lost = _lost(layout, comparisons) | _reason(layout, comparisons, "no_emitted_label", ok & ~counted)
    return ratio_rows(layout, {**keys, "metric": "flip_rate"}, hits, cases, lost, confidence)


def _first_slot_preference(layout: Layout, comparisons: Comparisons, keys: dict, confidence: float) -> pl.DataFrame:
    emitted = comparisons.pairs.emitted
    identical = comparisons.pairs.has("identical")[:, None]
    decisive = ((emitted == _A) | (emitted == _B)) & ~identical
    first = np.stack([emitted[:, 0] == _A, emitted[:, 1] == _B], axis=1)
    everything = np.ones(len(emitted), dtype=bool)
    hits = comparisons.counted(everything, (decisive & first).sum(axis=1), layout)
    cases = comparisons.counted(everything, decisive.sum(axis=1), layout)
    ties = comparisons.counted(everything, ((emitted == _TIE) & ~identical).sum(axis=1), layout)
    silent = comparisons.pairs.asked & (emitted < 0) & ~identical
    lost = {"tie": ties, "unreadable": comparisons.counted(everything, silent.sum(axis=1), layout)}
    return ratio_rows(layout, {**keys, "metric": "first_slot_preference"}, hits, cases, lost, confidence)


def _order_effect(layout: Layout, comparisons: Comparisons, keys: dict, confidence: float) -> pl.DataFrame:
    p = np.nan_to_num(comparisons.pairs.probabilities)
    ok = comparisons.pairs.has("ok")
    counted = ok & (p.sum(axis=2) > 0).all(axis=1)
    with np.errstate(invalid="ignore"):
        p = p / p.sum(axis=2, keepdims=True)
    effect = ((p[:, 0, _A] - p[:, 0, _B]) + (p[:, 1, _B] - p[:, 1, _A])) / 2
    sums = comparisons.counted(counted, effect, layout)
    cases = comparisons.counted(counted, None, layout)
    lost = _lost(layout, comparisons) | _reason(layout, comparisons, "no_label_mass", ok & ~counted)
    named = {**keys, "metric": "order_effect"}
    return ratio_rows(layout, named, sums, cases, lost, confidence, intervals=mean_intervals)


def _lost(layout: Layout, comparisons: Comparisons) -> dict[str, np.ndarray]:
    """The pairs that are not readable in both orders, by status."""
    out = ~comparisons.pairs.has("ok")
    return by_reason(
        comparisons.pairs.named(comparisons.pairs.status[out]), comparisons.question[out], layout.questions
    )


def _reason(layout: Layout, comparisons: Comparisons, name: str, out: np.ndarray) -> dict[str, np.ndarray]:
    return {name: comparisons.counted(out, None, layout)}
