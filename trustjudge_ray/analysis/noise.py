"""How much of a number is chance: between the rationales of one judgment, and between repetitions of it.

`sample_spread` is what another rationale would change. The noise floor is what nothing but another batch changes: tasks
judged again with the same prompt and seed. A difference between two runs that is no larger is none.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import polars as pl

from trustjudge_ray.analysis.inference import Array, RatioIntervals, linearised, mean_intervals, ratio_intervals
from trustjudge_ray.analysis.layout import Layout, by_reason, plain_rows, ratio_rows
from trustjudge_ray.analysis.readouts import Floats, judged_by
from trustjudge_ray.analysis.scoring import scores
from trustjudge_ray.analysis.verdicts import UNDEFINED, mean_probabilities, outcomes, pairs_of
from trustjudge_ray.judging.protocols import Protocol

_SCORE_RULE: Final = "expected"
_VERDICT_RULE: Final = "normalised"
_UNIT: Final = ("judge", "protocol", "question_id", "response_a", "response_b")
_FEW: Final = "fewer_than_two_samples"


def noise_rows(
    layout: Layout,
    judgments: pl.DataFrame,
    protocols: dict[str, Protocol],
    judge: str | None,
    names: Sequence[str],
    confidence: float,
) -> list[pl.DataFrame]:
    """METRICS of a judge's protocols. A response's value is its expected score, a pair's p_a − p_b of both orders.

    `sample_spread`: the mean over responses or pairs of the standard deviation between their samples (n − 1).
    `noise_score`, `noise_margin`: the mean of |value of a repetition − value of the first judgment|; with `_max` the
    largest, without interval. `noise_flips`: the share of repeated verdicts (rule normalised, tolerance 0) that are
    not those of the first judgment. Where a value is missing the case is excluded, by its status. The means have no
    interval where no question differs from another (`size_intervals`).
    """
    of_judge = pl.lit(False) if judge is None else pl.col("judge") == judge
    mine = judgments.filter(of_judge & pl.col("protocol").is_in(list(names)))
    sampled, repeated = _sampled(mine, protocols), _repeated(mine, protocols)
    rows = []
    for name in names:
        compare = protocols[name].kind == "compare"
        keys: dict[str, Any] = {"judge": judge, "protocol": name}
        rule = {"verdict_rule": _VERDICT_RULE} if compare else {"score_rule": _SCORE_RULE}
        own = judged_by(judge, name)
        rows.append(_spread(layout, sampled.filter(own), {**keys, **rule}, confidence))
        rows += _noise(layout, repeated.filter(own), {**keys, **rule}, compare, confidence)
    return rows


def _spread(layout: Layout, units: pl.DataFrame, keys: dict[str, Any], confidence: float) -> pl.DataFrame:
    question, _, _ = layout.numbered(units, "response_a")
    known = units["deviation"].is_not_null().to_numpy()
    sums = _per_question(layout, question[known], units["deviation"].drop_nulls().to_numpy())
    cases = _per_question(layout, question[known])
    lost = {_FEW: _per_question(layout, question[~known])}
    return ratio_rows(layout, {**keys, "metric": "sample_spread"}, sums, cases, lost, confidence, size_intervals)


def _noise(
    layout: Layout, cases: pl.DataFrame, keys: dict[str, Any], compare: bool, confidence: float
) -> list[pl.DataFrame]:
    what = "noise_margin" if compare else "noise_score"
    question, _, _ = layout.numbered(cases, "response_a")
    known = cases["change"].is_not_null().to_numpy()
    change = cases["change"].drop_nulls().to_numpy()
    counted = _per_question(layout, question[known])
    lost = by_reason(cases["status"].filter(pl.Series(~known)), question[~known], layout.questions)
    sums = _per_question(layout, question[known], change)
    rows = [ratio_rows(layout, {**keys, "metric": what}, sums, counted, lost, confidence, size_intervals)]
    rows.append(_largest(layout, {**keys, "metric": f"{what}_max"}, question[known], change))
    if compare:
        flips = _per_question(layout, question[known], cases["flipped"].filter(pl.Series(known)).to_numpy())
        named = {**keys, "metric": "noise_flips", "verdict_tolerance": 0.0, "tolerance": 0.0}
        rows.append(ratio_rows(layout, named, flips, counted, lost, confidence, ratio_intervals))
    return rows


def size_intervals(sums: Array, counts: Array, confidence: float = 0.95) -> RatioIntervals:
    """Means of quantities of 0 or more, with question-clustered t intervals.

    None where no question differs from another, as where nothing changed at all: what was not seen is not shown to be
    impossible, and there is nothing to say how large it could be.
    """
    found, seen = mean_intervals(sums, counts, confidence), linearised(sums, counts).variance > 1e-24
    low, high = np.where(seen, np.maximum(found.low, 0.0), np.nan), np.where(seen, found.high, np.nan)
    return replace(found, low=low, high=high)


def _largest(layout: Layout, keys: dict[str, Any], question: Any, change: Floats) -> pl.DataFrame:
    inside = [np.isin(question, questions) for questions in layout.categories.values()]
    values = np.array([[change[mine].max() if mine.any() else np.nan for mine in inside]])
    return plain_rows(layout, keys, values, np.array([[mine.sum() for mine in inside]]))


def _per_question(layout: Layout, question: Any, weights: Any = None) -> Floats:
    return np.bincount(question, weights=weights, minlength=layout.questions).astype(np.float64)


def _sampled(judgments: pl.DataFrame, protocols: dict[str, Protocol]) -> pl.DataFrame:
    """Responses and pairs of which several samples were asked for, with the `deviation` between these."""
    first = judgments.filter(pl.col("repeat") == 0)
    several = first.filter(pl.col("sample") > 0)
    values = _values(first.join(several, on=_UNIT, how="semi", nulls_equal=True), protocols, "sample")
    enough = pl.col("value").count() >= 2
    deviation = pl.when(enough).then(pl.col("value").std(ddof=1)).alias("deviation")
    return values.group_by(_UNIT, maintain_order=True).agg(deviation)


def _repeated(judgments: pl.DataFrame, protocols: dict[str, Protocol]) -> pl.DataFrame:
    """Every repetition of a response or pair: by how much its value has changed (`change`, null where one of the two
    is missing; `status` says why), and whether its verdict has (`flipped`)."""
    again = judgments.filter(pl.col("repeat") > 0)
    values = _values(judgments.join(again, on=_UNIT, how="semi", nulls_equal=True), protocols, "repeat")
    first = values.filter(pl.col("repeat") == 0).drop("repeat")
    pairs = values.filter(pl.col("repeat") > 0).join(
        first, on=_UNIT, how="left", nulls_equal=True, suffix="_first", maintain_order="left"
    )
    bad = pl.when(pl.col("status") == "ok").then(pl.col("status_first").fill_null("never_judged")).otherwise("status")
    return pairs.select(
        *_UNIT,
        change=(pl.col("value") - pl.col("value_first")).abs(),
        flipped=pl.col("outcome") != pl.col("outcome_first"),
        status=bad,
    )


def _values(judgments: pl.DataFrame, protocols: dict[str, Protocol], by: str) -> pl.DataFrame:
    """The value (and of a pair the outcome) of each response and pair for each number in the column `by`."""
    parts = []
    for number in judgments[by].unique().sort().to_list():
        one = judgments.filter(pl.col(by) == number).with_columns(repeat=pl.lit(0, pl.Int32))
        parts += [part.with_columns(pl.lit(number, pl.Int32).alias(by)) for part in _of_one(one, protocols)]
    return pl.concat([_of_one(judgments.clear(), protocols)[0].with_columns(pl.lit(0, pl.Int32).alias(by)), *parts])


def _of_one(judgments: pl.DataFrame, protocols: dict[str, Protocol]) -> list[pl.DataFrame]:
    scored = scores(judgments, protocols).filter(pl.col("rule") == _SCORE_RULE)
    nothing = pl.lit(None, pl.Int32).alias("outcome")
    response_b = pl.lit(None, pl.String).alias("response_b")
    single = scored.select(
        "judge", "protocol", "question_id", pl.col("response_id").alias("response_a"), response_b,
        pl.col("score").alias("value"), nothing, "status",
    )  # fmt: skip
    pairs = pairs_of(judgments)
    p = mean_probabilities(pairs)
    outcome = pl.Series("outcome", outcomes(pairs, _VERDICT_RULE, 0.0), dtype=pl.Int32)
    double = pairs.keys.select(*_UNIT).with_columns(
        pl.Series("value", p[:, 0] - p[:, 1], dtype=pl.Float64, nan_to_null=True),
        outcome.set(outcome == UNDEFINED, None),
        pairs.named(pairs.status),
    )
    return [single, double]
