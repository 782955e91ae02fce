"""What a judge does when something is taken away, added or asked again: withheld parts, twins, repetitions, positions.

Every figure compares readings of the same item in the same ways of asking: a probe that is only asked whether it is
"Correct" is held against that reading of its base, not against the mean of all six.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import polars as pl

from trustjudge_ray.audit.auc import auc
from trustjudge_ray.audit.estimates import difference
from trustjudge_ray.audit.figures import FEW_WRONG, Cases, Figure, make
from trustjudge_ray.audit.verdicts import KEY, combined, decision, twins, why_unreadable

WITHHELD, PROBE, REPEAT, POSITION = "withheld", "probe", "repeat", "position"
PROBES: Final = {
    "gold_verbose": "gold",
    "swap_verbose": "swap",
    "gold_authority": "gold",
    "swap_authority": "swap",
    "swap_injected": "swap",
}
"""Twins and what they are twins of: the same content padded, with an appeal to authority, or with an instruction to
the judge to accept."""
CONSTANT: Final = "constant"
_ACCEPTS, _BASE = pl.col("accepts"), pl.col("accepts_base")
_MOVE: Final = pl.col("p") - pl.col("p_base")


def withheld_figures(reads: pl.DataFrame, items: pl.DataFrame, min_wrong: int, size: int) -> Iterator[Figure]:
    """The same questions with the passage or the answer taken away.

    For `candidate=gold`, `swap`, `own`: `accept_with_passage`, `accept_without_passage`, `accept_change` (without −
    with), `p_change` (mean of |Δ p_accept|: does the verdict move at all) and `decision_changed`. Then for gold against
    swap, of the items where all four verdicts can be read: `auc_with_passage`, `auc_without_passage`, `auc_lost` (with
    − without). Without the answer: `accept_without_candidate`, `p_accept_without_candidate`.
    """
    pairs = {name: twins(reads, (name, "no_passage"), (name, "full"), items) for name in ("gold", "swap", "own")}
    for name, frame in pairs.items():
        cases, group = _cases(frame, size), f"candidate={name}"
        yield cases.share("accept_with_passage", WITHHELD, group, _BASE)
        yield cases.share("accept_without_passage", WITHHELD, group, _ACCEPTS)
        yield cases.change("accept_change", WITHHELD, group, _ACCEPTS - _BASE)
        yield cases.share("p_change", WITHHELD, group, _MOVE.abs(), soft=True)
        yield cases.share("decision_changed", WITHHELD, group, (_ACCEPTS != _BASE).cast(pl.Float64))
    yield from _discrimination_left(pairs["gold"], pairs["swap"], min_wrong, size)
    blind = combined(reads.filter(pl.col("condition") == "no_candidate"))
    cases = _cases(blind.join(items.select("item_id", "cluster"), on="item_id"), size)
    yield cases.share("accept_without_candidate", WITHHELD, None, _ACCEPTS)
    yield cases.share("p_accept_without_candidate", WITHHELD, None, pl.col("p"), soft=True)


def _discrimination_left(gold: pl.DataFrame, swap: pl.DataFrame, min_wrong: int, size: int) -> Iterator[Figure]:
    both = pl.concat([gold.with_columns(truth=True), swap.with_columns(truth=False)])
    whole = pl.when(pl.len().over("item_id") < 2).then(pl.lit("no_candidate"))
    either = pl.col("reason").drop_nulls().min().over("item_id")
    cases = Cases(both.with_columns(pl.coalesce("reason", either, whole).alias("out")), size)
    few = FEW_WRONG if cases.where(~pl.col("truth")).kept.height < min_wrong else ""
    found = {}
    for name, odds in (("auc_with_passage", "log_odds_base"), ("auc_without_passage", "log_odds")):
        right, wrong = (cases.where(kind).numbers(pl.col(odds)) for kind in (pl.col("truth"), ~pl.col("truth")))
        found[name] = auc(right, wrong, size)
        yield make(name, WITHHELD, None, found[name], cases.excluded_by, few)
    lost = replace(difference(*found.values()), cases=found["auc_with_passage"].cases)
    yield make("auc_lost", WITHHELD, None, lost, cases.excluded_by, few)


def probe_figures(reads: pl.DataFrame, items: pl.DataFrame, size: int) -> Iterator[Figure]:
    """For each of PROBES, as `probe=swap_verbose`: `accept_base`, `accept_probe`, `accept_shift` (probe − base) and
    `p_shift` (mean of Δ p_accept), paired by item; for `probe=constant`, the same empty phrase for every item,
    `accept_probe`."""
    for name, base in PROBES.items():
        cases, group = _cases(twins(reads, (name, "full"), (base, "full"), items), size), f"probe={name}"
        yield cases.share("accept_base", PROBE, group, _BASE)
        yield cases.share("accept_probe", PROBE, group, _ACCEPTS)
        yield cases.change("accept_shift", PROBE, group, _ACCEPTS - _BASE)
        yield cases.change("p_shift", PROBE, group, _MOVE, soft=True)
    empty = combined(reads.filter(candidate=CONSTANT, condition="full"))
    cases = _cases(empty.join(items.select("item_id", "cluster"), on="item_id"), size)
    yield cases.share("accept_probe", PROBE, f"probe={CONSTANT}", _ACCEPTS)


def repeat_figures(reads: pl.DataFrame, items: pl.DataFrame, size: int) -> Iterator[Figure]:
    """Every repetition against the first reading of the same question: `equal_decisions`, and `p_change`, the mean of
    |Δ p_accept|. A case is one repetition of one reading; `excluded_by` also has `no_base`."""
    same = ["item_id", "candidate", "condition", "protocol", *KEY]
    rows = reads.with_columns(decision(pl.col("p_accept")).alias("accepts"))
    rows = rows.select(*same, "repeat", "reason", "accepts", pl.col("p_accept").alias("p"))
    first = rows.filter(pl.col("repeat") == 0).drop("repeat").with_columns(pl.lit(True).alias("has_base"))
    again = rows.filter(pl.col("repeat") > 0).join(first, on=same, how="left", suffix="_base", nulls_equal=True)
    lacking = pl.when(pl.col("has_base").is_null()).then(pl.lit("no_base"))
    again = again.with_columns(pl.coalesce("reason", "reason_base", lacking).alias("reason"))
    cases = _cases(again.join(items.select("item_id", "cluster"), on="item_id"), size)
    yield cases.share("equal_decisions", REPEAT, None, (_ACCEPTS == _BASE).cast(pl.Float64))
    yield cases.share("p_change", REPEAT, None, _MOVE.abs(), soft=True)


def position_figures(pairs: pl.DataFrame, items: pl.DataFrame, min_mass: float, size: int) -> Iterator[Figure]:
    """Gold against swap with the passage at hand, shown in both orders.

    The winner of an order is what has the highest probability of gold, swap and tie; where two share it, a tie.
    `both_order_agreement`: share of items with the same winner in both orders. `first_slot_preference`: of the winners
    but ties, in both orders, the share shown first; ½ is unbiased. `order_effect`: the mean of P(shown first) −
    P(shown second) over both orders, from −1 to 1; 0 is unbiased. `gold_wins`: share of items where the gold has more
    probability after both orders, equal ones half.

    `excluded_by`: a status that is not ok, `no_probability`, `low_mass`, `one_order`; `tie` in first_slot_preference.
    """
    named = _by_order(pairs, min_mass).join(items.select("item_id", "cluster"), on="item_id")
    cases = _cases(named, size)
    agrees = pl.col("winner_AB") == pl.col("winner_BA")
    yield cases.share("both_order_agreement", POSITION, None, agrees.cast(pl.Float64))
    yield _first_slot(named, size)
    effect = (pl.col("margin_AB") - pl.col("margin_BA")) / 2
    yield cases.change("order_effect", POSITION, None, effect, soft=True)
    both = pl.col("margin_AB") + pl.col("margin_BA")
    wins = pl.when(both.abs() < 1e-9).then(0.5).otherwise((both > 0).cast(pl.Float64))
    yield cases.share("gold_wins", POSITION, None, wins)


def _by_order(pairs: pl.DataFrame, min_mass: float) -> pl.DataFrame:
    """A row per item: winner (1 gold, −1 swap, 0 tie) and margin (p_gold − p_swap) of each order, and `reason`."""
    gold, swap, tie = (pl.col(name) for name in ("p_gold", "p_swap", "p_tie"))
    winner = pl.when((gold > swap) & (gold > tie)).then(1).when((swap > gold) & (swap > tie)).then(-1).otherwise(0)
    reason = why_unreadable(("p_gold", "p_swap", "p_tie"), min_mass)
    rows = pairs.with_columns(winner.alias("winner"), (gold - swap).alias("margin"), reason.alias("reason"))
    sides = [
        rows.filter(pl.col("order") == order).select(
            "item_id", *(pl.col(name).alias(f"{name}_{order}") for name in ("winner", "margin", "reason"))
        )
        for order in ("AB", "BA")
    ]
    both = sides[0].join(sides[1], on="item_id", how="full", coalesce=True)
    single = pl.when(pl.col("winner_AB").is_null() | pl.col("winner_BA").is_null()).then(pl.lit("one_order"))
    return both.with_columns(pl.coalesce("reason_AB", "reason_BA", single).alias("reason")).sort("item_id")


def _first_slot(named: pl.DataFrame, size: int) -> Figure:
    """Two rows per item, one an order: gold is first in AB, swap in BA."""
    orders = [
        named.select("cluster", "reason", (sign * pl.col(f"winner_{order}")).alias("first"))
        for order, sign in (("AB", 1), ("BA", -1))
    ]
    rows = pl.concat(orders)
    tied = pl.when(pl.col("first") == 0).then(pl.lit("tie"))
    cases = Cases(rows.with_columns(pl.coalesce("reason", tied).alias("out")), size)
    return cases.share("first_slot_preference", POSITION, None, (pl.col("first") > 0).cast(pl.Float64))


def _cases(frame: pl.DataFrame, size: int) -> Cases:
    return Cases(frame.with_columns(pl.col("reason").alias("out")), size)
