"""What a judge does with right and with wrong answers: its own, and a controlled set that does not hang on them.

A judge that accepts everything is right about its own answers as often as it answers right, so accuracy alone says
little: beside it stand that trivial judge, what it accepts of the wrong and rejects of the right, and a balanced set.
Definitions are ours where those of arXiv:2606.28050 are not public.
"""

from collections.abc import Iterator
from typing import Final

import polars as pl

from trustjudge_ray.audit.auc import auc
from trustjudge_ray.audit.estimates import change, difference, half_sum, linear, mean, share
from trustjudge_ray.audit.figures import FEW_RIGHT, FEW_WRONG, Cases, Figure, by_value, grouped, make
from trustjudge_ray.audit.verdicts import combined, unasked

OWN, CONTROLLED, GENERATION = "own", "controlled", "generation"
_RIGHT, _WRONG = pl.col("truth"), ~pl.col("truth")
_CORRECT: Final = pl.when(_RIGHT).then(pl.col("accepts")).otherwise(1 - pl.col("accepts"))


def generation_figures(
    generated: pl.DataFrame, items: pl.DataFrame, oracle: str, oracles: list[str], size: int
) -> Iterator[Figure]:
    """How well the model answers, over all items asked: `accuracy` by the primary oracle, `accuracy_closed_book`
    without the passage, `cut` (answers that ended at their budget), and `accuracy` by every oracle (`oracle=exact`).

    `excluded_by`: a status that is not ok, `no_truth` where the oracle decided nothing.
    """
    rows = generated.join(items.select("item_id", "cluster"), on="item_id")
    failed = pl.when(pl.col("status").ne_missing("ok")).then(pl.col("status").fill_null("no_status"))
    rows = rows.with_columns(failed.alias("failed"))
    asked = rows.filter(pl.col("condition") == "passage")

    def right(frame: pl.DataFrame, by: str) -> Cases:
        truth = pl.col(by) if by in frame.columns else pl.lit(None, pl.Boolean)
        unknown = pl.when(truth.is_null()).then(pl.lit("no_truth"))
        return Cases(frame.with_columns(truth.alias("truth"), pl.coalesce("failed", unknown).alias("out")), size)

    for group, frame in grouped(asked):
        yield right(frame, oracle).share("accuracy", GENERATION, group, _RIGHT)
    for group, frame in grouped(rows.filter(pl.col("condition") == "closed_book")):
        yield right(frame, oracle).share("accuracy_closed_book", GENERATION, group, _RIGHT)
    for by in oracles:
        yield right(asked, by).share("accuracy", GENERATION, f"oracle={by}", _RIGHT)
    read = Cases(asked.with_columns(pl.col("failed").alias("out")), size)
    yield read.share("cut", GENERATION, None, pl.col("cut").fill_null(False))


def own_verdicts(full: pl.DataFrame, items: pl.DataFrame) -> pl.DataFrame:
    """A row per item: the verdict on the model's own answer, and `out`: why it cannot be read, `no_candidate` where
    there is none, or `no_truth`."""
    found = items.join(combined(full.filter(pl.col("candidate") == OWN)), on="item_id", how="left")
    found = found.with_columns((pl.col("candidate").is_not_null() & unasked().is_null()).alias("asked"))
    lacking = pl.when(pl.col("candidate").is_null()).then(pl.lit("no_candidate"))
    unknown = pl.when(pl.col("truth").is_null()).then(pl.lit("no_truth"))
    return found.with_columns(pl.coalesce("reason", lacking, unknown).alias("out"))


def controlled_verdicts(full: pl.DataFrame, items: pl.DataFrame) -> pl.DataFrame:
    """Two rows per item, `gold` (right) and `swap` (wrong), that count together or not at all, so that the set is
    balanced whatever cannot be read: `out` of both is the reason of the one, or of the other."""
    sides = pl.DataFrame({"candidate": ["gold", "swap"], "truth": [True, False]})
    verdicts = combined(full.filter(pl.col("candidate").is_in(["gold", "swap"])))
    rows = items.join(sides, how="cross").join(verdicts.drop("truth"), on=["item_id", "candidate"], how="left")
    asked = pl.col("reason").is_not_null() | pl.col("p").is_not_null()
    rows = rows.with_columns(asked.alias("asked"))
    lacking = pl.when(~pl.col("asked")).then(pl.lit("no_candidate"))
    rows = rows.with_columns(pl.coalesce("reason", lacking).alias("out"))
    either = pl.col("out").drop_nulls().min().over("item_id")
    return rows.with_columns(pl.coalesce("out", either).alias("out"))


def own_figures(verdicts: pl.DataFrame, min_wrong: int, size: int) -> Iterator[Figure]:
    """On the model's own answers whose verdict can be read, by GROUPED_BY:

    `generation_accuracy`, share that is right, of the same items as the rest; `self_evaluation_accuracy`, share of
    verdicts that agree with the truth; `difference`, the first less the second; `always_yes_accuracy` (equals
    generation accuracy) and `always_no_accuracy`, of judges that do not look; and `discrimination`.
    """
    for group, frame in grouped(verdicts):
        cases = Cases(frame, size)
        few = _few(cases, min_wrong)
        either = few[FEW_WRONG] or few[FEW_RIGHT]
        yield cases.share("generation_accuracy", OWN, group, _RIGHT)
        yield cases.share("self_evaluation_accuracy", OWN, group, _CORRECT, either)
        yield cases.change("difference", OWN, group, _RIGHT.cast(pl.Float64) - _CORRECT, either)
        yield cases.share("always_yes_accuracy", OWN, group, _RIGHT)
        yield cases.share("always_no_accuracy", OWN, group, _WRONG)
        yield from discrimination(cases, OWN, group, min_wrong)


def controlled_figures(verdicts: pl.DataFrame, full: pl.DataFrame, min_wrong: int, size: int) -> Iterator[Figure]:
    """On gold against swap, by GROUPED_BY: `accept_gold`, `accept_swap`, `paired_accuracy` (share of items where the
    gold's log-odds are higher, equal ones half) and `discrimination`; then `false_accept` by kind of negative, with the
    model's own answers from memory as `negative=closed_book`, whose rows are not paired with a gold."""
    for group, frame in grouped(verdicts):
        cases = Cases(frame, size)
        gold, swap = cases.where(_RIGHT), cases.where(_WRONG)
        few = _few(cases, min_wrong)
        yield gold.share("accept_gold", CONTROLLED, group, pl.col("accepts"), few[FEW_RIGHT])
        yield swap.share("accept_swap", CONTROLLED, group, pl.col("accepts"), few[FEW_WRONG])
        yield _paired(frame, group, few[FEW_WRONG], size)
        yield from discrimination(cases, CONTROLLED, group, min_wrong)
    wrong = verdicts.filter(_WRONG)
    memory = combined(full.filter(pl.col("candidate") == "closed_book"))
    memory = memory.join(verdicts.select("item_id", "cluster").unique(), on="item_id")
    memory = memory.select(pl.lit("closed_book").alias("negative"), "accepts", "cluster", pl.col("reason").alias("out"))
    kinds = pl.concat([wrong.select(memory.columns), memory])
    for kind, frame in by_value(kinds, "negative"):
        few_here = FEW_WRONG if Cases(frame, size).kept.height < min_wrong else ""
        yield Cases(frame, size).share("false_accept", CONTROLLED, kind, pl.col("accepts"), few_here)


def discrimination(cases: Cases, of: str, group: str | None, min_wrong: int) -> Iterator[Figure]:
    """`accept_rate`; `false_accept`, share of wrong answers accepted; `false_reject`, share of right ones rejected;
    `acquiescence`, false accept − false reject, from −1 (rejects all) to 1 (accepts all); `balanced_accuracy`,
    1 − ½(false accept + false reject); `auc` of the log-odds; `unreadable`, share of verdicts asked for that could not
    be read, as a whole. An answer of unknown truth is left out of both kinds."""
    few = _few(cases, min_wrong)
    either = few[FEW_WRONG] or few[FEW_RIGHT]
    right, wrong = (cases.where(pl.col("truth").is_null() | kind) for kind in (_RIGHT, _WRONG))
    false_accept = share(*wrong.numbers(pl.col("accepts")), cases.size)
    false_reject = share(*right.numbers(1 - pl.col("accepts")), cases.size)
    out = cases.excluded_by
    yield cases.share("accept_rate", of, group, pl.col("accepts"))
    yield make("false_accept", of, group, false_accept, wrong.excluded_by, few[FEW_WRONG])
    yield make("false_reject", of, group, false_reject, right.excluded_by, few[FEW_RIGHT])
    yield make("acquiescence", of, group, difference(false_accept, false_reject), out, either)
    balanced = linear(half_sum(false_accept, false_reject), -1.0, 1.0)
    yield make("balanced_accuracy", of, group, balanced, out, either)
    odds = [kind.numbers(pl.col("log_odds")) for kind in (right, wrong)]
    yield make("auc", of, group, auc(odds[0], odds[1], cases.size), out, either)
    asked = Cases(cases.frame.filter("asked").with_columns(pl.lit(None, pl.String).alias("out")), cases.size)
    yield asked.share("unreadable", of, group, pl.col("reason").is_not_null())


def _few(cases: Cases, least: int) -> dict[str, str]:
    """FEW_WRONG and FEW_RIGHT, each as itself where there are fewer than `least`, else ""."""
    found = {FEW_WRONG: cases.kept.filter(_WRONG).height, FEW_RIGHT: cases.kept.filter(_RIGHT).height}
    return {name: name if n < least else "" for name, n in found.items()}


def _paired(frame: pl.DataFrame, group: str | None, few: str, size: int) -> Figure:
    gold, swap = (pl.col("log_odds").filter(kind).first() for kind in (_RIGHT, _WRONG))
    higher = pl.when(gold == swap).then(0.5).otherwise((gold > swap).cast(pl.Float64))
    items = frame.group_by("item_id").agg(pl.col("cluster").first(), pl.col("out").first(), higher.alias("higher"))
    return Cases(items, size).share("paired_accuracy", CONTROLLED, group, pl.col("higher"), few)


def label_figures(verdicts: pl.DataFrame, full: pl.DataFrame, size: int) -> Iterator[Figure]:
    """Where a judge leans whatever the truth: over the controlled set's items, gold and swap weighing alike.

    With p(g, f) an item's mean p_accept where the polarity is g and the label named first is f:

    - `accept_lean`: the mean over polarities of p, less ½. A judge that tells right from wrong, or tosses a coin, has
      0; positive leans to accepting, in whichever words. Also by polarity.
    - `yes_bias`: ½(p(right) − p(wrong)), which is the mean P(yes) of "is it right?" and "is it wrong?" less ½. As yes
      accepts in the one and rejects in the other, what is left is the liking for the word.
    - `first_label_bias`: ½(p(accept first) − p(reject first)), the mean probability of the label named first less ½;
      over polarities that were asked in both orders. Also by polarity.
    - `accept_lean_log_odds`, `yes_bias_log_odds`: the same of the log-odds, ½(L_right + L_wrong) and
      ½(L_right − L_wrong), in natural logarithms, unbounded.

    The first three lie from −½ to ½.
    """
    kept = verdicts.filter(pl.col("out").is_null()).select("item_id", "cluster", "candidate")
    lost = verdicts.drop_nulls("out").unique("item_id").sort("item_id").select("item_id", "cluster", "out")
    rows = full.filter(pl.col("repeat") == 0).join(kept, on=["item_id", "candidate"])
    leans = _by_item(rows, ["polarity"])
    ways = _by_item(rows, ["polarity", "first"])
    yield _lean("accept_lean", None, _mean_of(leans, "p"), lost, size)
    for group, frame in by_value(leans, "polarity"):
        yield _lean("accept_lean", group, _mean_of(frame, "p"), lost, size)
    yes = _half_difference(leans, "polarity", ("right", "wrong"))
    yield _lean("yes_bias", None, yes, lost, size)
    first = _half_difference(ways, "first", ("accept", "reject"))
    yield _lean("first_label_bias", None, _mean_of(first, "p"), lost, size)
    for group, frame in by_value(first, "polarity"):
        yield _lean("first_label_bias", group, frame, lost, size)
    asked = leans.filter(pl.col("polarity").is_in(["right", "wrong"]))
    both = asked.join(yes.select("item_id"), on="item_id", how="semi")
    for name, frame in (("accept_lean_log_odds", _mean_of(both, "log_odds")), ("yes_bias_log_odds", yes)):
        yield Cases(_and(frame, lost), size).figure(name, CONTROLLED, None, pl.col("log_odds"), mean)


def _by_item(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Per item and keys: p and log_odds, means over candidates of their means over ways of asking."""
    sides = rows.group_by("item_id", "cluster", "candidate", *keys).agg(
        pl.col("p_accept").mean().alias("p"), pl.col("log_odds").mean()
    )
    found = sides.group_by("item_id", "cluster", *keys).agg(pl.col("p").mean(), pl.col("log_odds").mean())
    return found.with_columns(pl.lit(None, pl.String).alias("out")).sort("item_id", *keys)


def _mean_of(frame: pl.DataFrame, value: str) -> pl.DataFrame:
    return frame.group_by("item_id", "cluster", "out", maintain_order=True).agg(pl.col(value).mean())


def _half_difference(frame: pl.DataFrame, column: str, sides: tuple[str, str]) -> pl.DataFrame:
    """Items with both values of a column: ½ + ½(first − second) of p; ½(first − second) of log_odds."""
    one, other = (frame.filter(pl.col(column) == side).drop(column) for side in sides)
    keys = [name for name in one.columns if name not in ("p", "log_odds", "out")]
    both = one.join(other.drop("out"), on=keys, suffix="_other").sort(keys)
    p = 0.5 + (pl.col("p") - pl.col("p_other")) / 2
    return both.with_columns(p.alias("p"), (pl.col("log_odds") - pl.col("log_odds_other")) / 2)


def _and(frame: pl.DataFrame, lost: pl.DataFrame) -> pl.DataFrame:
    """With a row for each item that is left out, and why."""
    return pl.concat([frame, lost], how="diagonal_relaxed")


def _lean(name: str, group: str | None, frame: pl.DataFrame, lost: pl.DataFrame, size: int) -> Figure:
    """The mean of p less ½: half a mean difference from −1 to 1."""
    return Cases(_and(frame, lost), size).figure(
        name, CONTROLLED, group, 2 * pl.col("p") - 1, lambda at, x, n: linear(change(at, x, n, soft=True), 0.5, 0.0)
    )
