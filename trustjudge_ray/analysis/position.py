"""Position bias and ties: what the order of showing does to a judge's verdicts."""

from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis.comparisons import Comparisons
from trustjudge_ray.analysis.layout import Layout, by_reason, ratio_rows
from trustjudge_ray.analysis.preference import difference_intervals
from trustjudge_ray.analysis.verdicts import mean_probabilities

_A, _B, _TIE = 0, 1, 2

MARGINS: Final = {"close": (0.0, 0.1), "middle": (0.1, 0.5), "clear": (0.5, float("inf"))}
"""Pairs by how far apart the judge puts their answers, |p_a − p_b| after both orders: from, up to but without."""

_Flags = NDArray[np.bool_]


def position_rows(layout: Layout, comparisons: Comparisons, confidence: float) -> list[pl.DataFrame]:
    """METRICS of one judge and comparison protocol; identical texts are never judged and always excluded.

    `flip_rate`: of the pairs that emitted a verdict in both orders, the share whose verdicts differ (as candidates).
    `first_slot_preference`: of all emitted verdicts but ties, also of pairs read in one order only, the share that
    goes to the response shown first; 0.5 is unbiased where both orders are asked, and where not, only if who is
    shown first has nothing to do with who is better.
    `order_effect`: the mean over pairs of P(shown first) − P(shown second), averaged over both orders, each order's
    label probabilities renormalised; from −1 to 1, 0 is unbiased. Its interval never has width zero.
    `flip_rate_{close,middle,clear}`, `order_effect_{close,middle,clear}`: the same for the pairs of each of MARGINS;
    the others are excluded as `other_margin`. A judge that looks at the order before the answers flips clear pairs too.
    """
    keys = {"judge": comparisons.judge, "protocol": comparisons.protocol}
    everything = np.ones(len(comparisons.question), dtype=bool)
    found = [
        _flip_rate(layout, comparisons, keys, confidence, everything),
        _first_slot_preference(layout, comparisons, keys, confidence),
        _order_effect(layout, comparisons, keys, confidence, everything),
    ]
    p = mean_probabilities(comparisons.pairs)
    margin = np.abs(p[:, _A] - p[:, _B])
    for name, (least, below) in MARGINS.items():
        with np.errstate(invalid="ignore"):
            inside = (margin >= least) & (margin < below) | np.isnan(margin)
        found.append(_flip_rate(layout, comparisons, keys, confidence, inside, f"_{name}"))
        found.append(_order_effect(layout, comparisons, keys, confidence, inside, f"_{name}"))
    return found


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


def _flip_rate(
    layout: Layout, comparisons: Comparisons, keys: dict, confidence: float, inside: _Flags, margin: str = ""
) -> pl.DataFrame:
    """Of the pairs `inside`, that are called `margin`; a pair without a margin is in all of them, to be excluded."""
    emitted = comparisons.pairs.emitted
    ok = comparisons.pairs.has("ok")
    said = (emitted >= 0).all(axis=1)
    counted = ok & said & inside
    if margin:
        counted &= _have_mass(comparisons)
    hits = comparisons.counted(counted, emitted[:, 0] != emitted[:, 1], layout)
    cases = comparisons.counted(counted, None, layout)
    lost = _lost(layout, comparisons) | _reason(layout, comparisons, "other_margin", ok & ~inside)
    lost |= _reason(layout, comparisons, "no_emitted_label", ok & inside & ~said)
    lost |= _reason(layout, comparisons, "no_label_mass", ok & inside & said & ~counted)
    return ratio_rows(layout, {**keys, "metric": f"flip_rate{margin}"}, hits, cases, lost, confidence)


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


def _order_effect(
    layout: Layout, comparisons: Comparisons, keys: dict, confidence: float, inside: _Flags, margin: str = ""
) -> pl.DataFrame:
    p = np.nan_to_num(comparisons.pairs.probabilities)
    ok, massive = comparisons.pairs.has("ok"), _have_mass(comparisons)
    counted = ok & massive & inside
    with np.errstate(invalid="ignore"):
        p = p / p.sum(axis=2, keepdims=True)
    effect = ((p[:, 0, _A] - p[:, 0, _B]) + (p[:, 1, _B] - p[:, 1, _A])) / 2
    sums = comparisons.counted(counted, effect, layout)
    cases = comparisons.counted(counted, None, layout)
    lost = _lost(layout, comparisons) | _reason(layout, comparisons, "no_label_mass", ok & ~massive)
    lost |= _reason(layout, comparisons, "other_margin", ok & massive & ~inside)
    named = {**keys, "metric": f"order_effect{margin}"}
    return ratio_rows(layout, named, sums, cases, lost, confidence, intervals=difference_intervals)


def _have_mass(comparisons: Comparisons) -> _Flags:
    """Which pairs have label probabilities in both orders."""
    return np.asarray((np.nansum(comparisons.pairs.probabilities, axis=2) > 0).all(axis=1), dtype=bool)


def _lost(layout: Layout, comparisons: Comparisons) -> dict[str, np.ndarray]:
    """The pairs that are not readable in both orders, by status."""
    out = ~comparisons.pairs.has("ok")
    return by_reason(
        comparisons.pairs.named(comparisons.pairs.status[out]), comparisons.question[out], layout.questions
    )


def _reason(layout: Layout, comparisons: Comparisons, name: str, out: np.ndarray) -> dict[str, np.ndarray]:
    return {name: comparisons.counted(out, None, layout)}
