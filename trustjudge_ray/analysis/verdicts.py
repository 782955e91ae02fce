"""Verdicts: what a judge says about a pair after both orders, by named rules.

`normalised` and `likelihood` are TrustJudge's likelihood-aware aggregation (arXiv 2509.21117), with and without
renormalising each order; `ppl` is its perplexity rule as its program has it, `ppl_tiebreak` as its text has it;
`baseline` keeps a verdict only where both orders emitted it. Judgments are stored in candidate coordinates, so
nothing is swapped here. A pair that cannot be judged has no outcome and a status that says why.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis.readouts import (
    Floats,
    Groups,
    begins,
    columns,
    emitted_labels,
    grouped,
    judged_by,
    mean_distributions,
    unreadable_as_status,
)
from trustjudge_ray.analysis.tolerances import EQUAL, Tolerances
from trustjudge_ray.schema import VERDICTS

Outcomes = NDArray[np.int8]
A_BETTER: Final = 1
TIE: Final = 0
B_BETTER: Final = -1
UNDEFINED: Final = -128
"""In an array of outcomes: the pair has none under this rule."""

_LABELS: Final = ("a", "b", "tie")
_OUTCOME_OF_LABEL: Final = np.array([A_BETTER, B_BETTER, TIE, UNDEFINED], dtype=np.int8)
_PAIR: Final = ("judge", "protocol", "question_id", "response_a", "response_b")
_ABOUT: Final = ("category", "model_a", "model_b")
_SCHEMA: Final = columns(VERDICTS)


@dataclass(frozen=True, slots=True)
class Orders:
    """What each order of P pairs says alone; NaN where it has nothing on its labels.

    Attributes:
        wins: (P, 2), the chance that a wins, half of a tie.
        label_mass: (P,), of the order with less.
        outcomes: (P, 2), the likeliest outcome, UNDEFINED where there is none.
    """

    wins: Floats
    label_mass: Floats
    outcomes: Outcomes


@dataclass(frozen=True, slots=True)
class Pairs:
    """P pairs, each with its readings in the orders AB and BA.

    Attributes:
        keys: judge, protocol, question_id, response_a, response_b, category, model_a, model_b; sorted.
        asked: (P, 2), whether there is a judgment in the order, of whatever status.
        probabilities: (P, 2, 3) of a better, b better, tie; NaN where not listed or not readable.
        emitted: (P, 2) index of the emitted label, −1 where there is none.
        perplexity: (P, 2) of the judge's own output, NaN where undefined, inf possible.
        status: (P,) index into `statuses`: `ok` (both orders readable), `identical`, a failed judgment's status,
            or `missing_order`.
    """

    keys: pl.DataFrame
    asked: NDArray[np.bool_]
    probabilities: Floats
    emitted: NDArray[np.int64]
    perplexity: Floats
    status: NDArray[np.int16]
    statuses: tuple[str, ...]

    def only(self, judge: str | None, protocol: str | None) -> "Pairs":
        """The pairs of one judge and protocol."""
        mine = self.keys.with_row_index("_row").filter(judged_by(judge, protocol))
        chosen = mine["_row"].to_numpy()
        return Pairs(
            mine.drop("_row"),
            self.asked[chosen],
            self.probabilities[chosen],
            self.emitted[chosen],
            self.perplexity[chosen],
            self.status[chosen],
            self.statuses,
        )

    def named(self, codes: NDArray[np.int16]) -> pl.Series:
        """The statuses that these indices stand for."""
        return pl.Series("status", self.statuses, dtype=pl.String).gather(codes)

    def has(self, status: str) -> NDArray[np.bool_]:
        """Which pairs have this status."""
        return self.status == self.statuses.index(status)


def normalised(pairs: Pairs, tolerance: float) -> Outcomes:
    """The likeliest label of both orders together, each order renormalised over the labels."""
    p = np.nan_to_num(pairs.probabilities)
    with np.errstate(invalid="ignore"):
        return _likeliest((p / p.sum(axis=2, keepdims=True)).sum(axis=1), tolerance)


def likelihood(pairs: Pairs, tolerance: float) -> Outcomes:
    """The same with raw probabilities, so the order with more label mass weighs more; an absent label has 0."""
    merged = np.nan_to_num(pairs.probabilities).sum(axis=1)
    merged[merged.sum(axis=1) <= 0] = np.nan
    return _likeliest(merged, tolerance)


def ppl(pairs: Pairs, tolerance: float) -> Outcomes:
    """The emitted label of the order whose output has the lower perplexity; a tie where the gap is ≤ tolerance."""
    emitted, low = _OUTCOME_OF_LABEL[pairs.emitted], pairs.perplexity
    with np.errstate(invalid="ignore"):
        gap = np.where(low[:, 0] == low[:, 1], 0.0, np.abs(low[:, 0] - low[:, 1]))
        chosen = np.where(low[:, 0] < low[:, 1], emitted[:, 0], emitted[:, 1])
        outcome = np.where(gap <= tolerance + EQUAL, TIE, chosen)
    defined = ~np.isnan(low).any(axis=1) & (emitted != UNDEFINED).all(axis=1)
    return np.where(defined, outcome, UNDEFINED).astype(np.int8)


def ppl_tiebreak(pairs: Pairs, tolerance: float) -> Outcomes:
    """What both orders emitted where they agree; elsewhere as `ppl`."""
    emitted = _OUTCOME_OF_LABEL[pairs.emitted]
    agree = (emitted[:, 0] == emitted[:, 1]) & (emitted[:, 0] != UNDEFINED)
    return np.where(agree, emitted[:, 0], ppl(pairs, tolerance)).astype(np.int8)


def baseline(pairs: Pairs, tolerance: float = 0.0) -> Outcomes:
    """What both orders emitted where they agree, a tie elsewhere. The tolerance plays no part."""
    emitted = _OUTCOME_OF_LABEL[pairs.emitted]
    outcome = np.where(emitted[:, 0] == emitted[:, 1], emitted[:, 0], TIE)
    return np.where((emitted != UNDEFINED).all(axis=1), outcome, UNDEFINED).astype(np.int8)


VerdictRule = Callable[[Pairs, float], Outcomes]
VERDICT_RULES: Final[dict[str, VerdictRule]] = {
    "normalised": normalised,
    "likelihood": likelihood,
    "ppl": ppl,
    "ppl_tiebreak": ppl_tiebreak,
    "baseline": baseline,
}
_REASONS: Final = ("no_label_mass", "no_emitted_label", "undefined_perplexity")


def outcomes(pairs: Pairs, rule: str, tolerance: float) -> Outcomes:
    """Outcomes (P,) under a rule: ties where the texts are identical, UNDEFINED where the pair is not valid."""
    found = np.where(pairs.has("ok"), VERDICT_RULES[rule](pairs, tolerance), UNDEFINED)
    return np.where(pairs.has("identical"), TIE, found).astype(np.int8)


def rule_status(pairs: Pairs, rule: str, found: Outcomes) -> NDArray[np.int16]:
    """The status of each pair under a rule that found these outcomes, as indices into `pairs.statuses`."""
    code = {reason: pairs.statuses.index(reason) for reason in _REASONS}
    if rule in ("normalised", "likelihood"):
        reason = np.full(len(found), code["no_label_mass"])
    else:
        silent = (pairs.emitted < 0).any(axis=1)
        reason = np.where(silent, code["no_emitted_label"], code["undefined_perplexity"])
    return np.where(pairs.has("ok") & (found == UNDEFINED), reason, pairs.status).astype(np.int16)


def mean_probabilities(pairs: Pairs) -> Floats:
    """(P, 3): each order's label probabilities renormalised, then averaged; NaN where an order has none.

    Identical texts are a certain tie.
    """
    p = np.nan_to_num(pairs.probabilities)
    with np.errstate(invalid="ignore"):
        mean = (p / p.sum(axis=2, keepdims=True)).mean(axis=1)
    mean[~pairs.has("ok")] = np.nan
    mean[pairs.has("identical")] = (0.0, 0.0, 1.0)
    return mean


def order_by_order(pairs: Pairs) -> Orders:
    """What a judge that is asked in one order alone would have said, each order's label probabilities renormalised."""
    p = np.nan_to_num(pairs.probabilities)
    mass = np.where(p.sum(axis=2) > 0, p.sum(axis=2), np.nan)
    each = p / mass[:, :, None]
    told = [normalised(replace(pairs, probabilities=pairs.probabilities[:, [order, order]]), 0.0) for order in (0, 1)]
    return Orders(each[:, :, 0] + each[:, :, 2] / 2, mass.min(axis=1), np.stack(told, axis=1))


def pairs_of(judgments: pl.DataFrame) -> Pairs:
    """Bring the two orders of every compared pair together.

    Args:
        judgments: JUDGMENTS rows; kinds other than `compare` and repetitions over 0 are left out. Several rationales
            are averaged (see `readouts`).

    Raises:
        ReadoutError: a distribution has not three labels.
    """
    asked = judgments.filter((pl.col("kind") == "compare") & (pl.col("repeat") == 0))
    orders = grouped(unreadable_as_status(asked), (*_PAIR, "order"), _ABOUT)
    starts = np.flatnonzero(orders.keys.select(begins(_PAIR)).to_series().to_numpy())
    pair = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(orders.keys)))
    slot = orders.keys["order"].replace_strict({"AB": 0, "BA": 1}, default=-1, return_dtype=pl.Int64).to_numpy()
    probabilities = np.full((len(starts), 2, 3), np.nan)
    asked_for = np.zeros((len(starts), 2), dtype=bool)
    emitted = np.full((len(starts), 2), -1, dtype=np.int64)
    perplexity = np.full((len(starts), 2), np.nan)
    known = slot >= 0
    for chunk, p in mean_distributions(orders, "comparisons", len(_LABELS)):
        here = known[chunk]
        probabilities[pair[chunk][here], slot[chunk][here]] = p[here]
    asked_for[pair[known], slot[known]] = True
    emitted[pair[known], slot[known]] = emitted_labels(orders, _LABELS)[known]
    perplexity[pair[known], slot[known]] = _perplexity(orders)[known]
    status, statuses = _pair_status(orders.status, pair, slot, len(starts))
    keys = orders.keys[starts].drop("order")
    return Pairs(keys, asked_for, probabilities, emitted, perplexity, status, statuses)


def verdicts(judgments: pl.DataFrame, tolerances: Tolerances) -> pl.DataFrame:
    """VERDICTS: a row for every pair, rule and tolerance of the rule; see `verdict_table`."""
    return verdict_table(pairs_of(judgments), tolerances)


def verdict_table(pairs: Pairs, tolerances: Tolerances) -> pl.DataFrame:
    """VERDICTS of these pairs, by rule and tolerance.

    `outcome` is null where the pair is not valid and `status` says why: a failed judgment's own status,
    `missing_order`, or what the rule lacks (`no_label_mass`, `no_emitted_label`, `undefined_perplexity`).
    Identical texts have outcome 0 and the status `identical`. The probabilities are those of `mean_probabilities`,
    whatever the rule; margin = p_a − p_b.
    """
    p = mean_probabilities(pairs)
    shared = pairs.keys.with_columns(
        *(pl.Series(name, p[:, i], nan_to_null=True) for i, name in enumerate(("p_a", "p_b", "p_tie"))),
        pl.Series("margin", p[:, 0] - p[:, 1], nan_to_null=True),
    )
    parts = [pl.DataFrame(schema=_SCHEMA)]
    for rule in VERDICT_RULES:
        for tolerance in tolerances.by_rule[rule]:
            found = outcomes(pairs, rule, tolerance)
            outcome = pl.Series("outcome", found, dtype=pl.Int32)
            parts.append(
                shared.with_columns(
                    pl.lit(rule).alias("rule"),
                    pl.lit(tolerance, dtype=pl.Float64).alias("tolerance"),
                    outcome.set(outcome == UNDEFINED, None),
                    pairs.named(rule_status(pairs, rule, found)),
                ).select(*_SCHEMA)
            )
    return pl.concat(parts)


def _likeliest(merged: Floats, tolerance: float) -> Outcomes:
    """From (P, 3) summed probabilities: a tie where half the gap between the two largest is below the tolerance."""
    ranked = np.sort(merged, axis=1)
    half_gap = (ranked[:, 2] - ranked[:, 1]) / 2
    close = (half_gap <= EQUAL) | (half_gap < tolerance - EQUAL)
    undefined = np.isnan(merged).any(axis=1)
    top = np.nan_to_num(merged).argmax(axis=1)
    return np.where(undefined, UNDEFINED, np.where(close, TIE, _OUTCOME_OF_LABEL[top])).astype(np.int8)


def _perplexity(orders: Groups) -> Floats:
    """exp(−cumulative_logprob/tokens) of each group's first readable output; NaN where either is missing."""
    total = orders.rows["cumulative_logprob"].cast(pl.Float64).to_numpy()
    tokens = orders.rows["output_tokens"].cast(pl.Float64).to_numpy()
    if not len(total):
        return np.full(len(orders.keys), np.nan)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        value = np.where(tokens > 0, np.exp(-total / tokens), np.nan)
    return np.where(orders.first >= 0, value[orders.first], np.nan)


def _pair_status(
    status: pl.Series, pair: NDArray[np.int64], slot: NDArray[np.int64], count: int
) -> tuple[NDArray[np.int16], tuple[str, ...]]:
    """A pair is `identical` if an order is, `ok` if both are, else what the first failed order has, else
    `missing_order`."""
    names = tuple(dict.fromkeys(["ok", "identical", "missing_order", *_REASONS, *status.unique().sort().to_list()]))
    code = status.replace_strict({name: i for i, name in enumerate(names)}, return_dtype=pl.Int16).to_numpy()
    found = np.full(count, names.index("missing_order"), dtype=np.int16)
    fine = np.bincount(pair[(code == 0) & (slot >= 0)], minlength=count) == 2
    failed = code > 0
    found[pair[failed][::-1]] = code[failed][::-1]
    found[fine] = 0
    found[pair[code == 1]] = 1
    return found, names
