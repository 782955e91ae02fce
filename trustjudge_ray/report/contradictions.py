"""Where a judge contradicts itself, the worst first: conflicts of scores and verdicts, cycles of three, order flips.

A **margin** says how clearly something was said, from 0 to 1. Of a verdict it is the probability of its outcome less
the larger of the other two, both orders averaged (below 0 where a rule says other than the probabilities do); of one
order the same for the label that it emitted; of two scores their distance as a share of the scale's range, and 0 where
they tie. The **strength** of a contradiction is the smallest margin of what contradicts itself: a judge that says one
thing clearly and another hardly at all is merely unsure. Where no probability is known, there is neither.

What is counted here is what METRICS counts: `total` of a conflict is the hits of `conflict_ratio` under the same rules
and tolerances, of cycles those of `non_transitivity_ratio` at k = 3, of flips those of `flip_rate`. Like there, answers
of the canary take no part, and identical texts only if the settings include them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis.consistency import score_signs
from trustjudge_ray.analysis.readouts import judged_by
from trustjudge_ray.analysis.tolerances import parse_tolerances
from trustjudge_ray.analysis.verdicts import Pairs
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.judging.protocols import Protocol

LISTED: Final = 500
"""Contradictions of each kind that are listed for a judge and its protocols; all are counted."""
_PAIR: Final = ("question_id", "response_a", "response_b", "model_a", "model_b")
_P: Final = ("p_a", "p_b", "p_tie")


@dataclass(frozen=True, slots=True)
class Contradictions:
    """The contradictions of one kind that a judge made under its protocols.

    Attributes:
        kind: `conflicts`, `cycles` or `flips`.
        judge, pair_protocol, protocol: who, asked how; `protocol` is that of the scores, of conflicts alone.
        score_rule, verdict_rule, tolerance, verdict_tolerance: by which rules; of what takes part.
        cases, total: how many there could be, and how many there are.
        by_type: `total` by the type of the contradiction.
        too_many: questions with so many compared answers that their cycles were not looked for.
        rows: the first of them, in order; columns as `conflicts`, `cycles` and `flips` say.
    """

    kind: str
    judge: str
    pair_protocol: str
    protocol: str | None
    score_rule: str | None
    verdict_rule: str | None
    tolerance: float | None
    verdict_tolerance: float | None
    cases: int
    total: int
    by_type: Mapping[str, int]
    too_many: int
    rows: pl.DataFrame


# --- conflicts -------------------------------------------------------------------------------


def conflicts(
    scores: pl.DataFrame,
    verdicts: pl.DataFrame,
    protocols: Mapping[str, Protocol],
    settings: AnalysisConfig,
    listed: int = LISTED,
) -> list[Contradictions]:
    """Pairs whose scores say something else than their verdict, for every judge, score and comparison protocol.

    Ordered by strength (the smaller of the two margins), equally strong ones by the larger margin. Types: `reversal`
    (both are strict, and opposite), `score_tie` and `pair_tie` (only one of them is a tie). The rules are those that
    the settings put first, at their smallest tolerances; `baseline`, where nothing is readable by those.

    Args:
        scores, verdicts: SCORES and VERDICTS, without the canary.

    Returns:
        `rows` with question_id, response_a, response_b, model_a, model_b, type, score_a, score_b, outcome, p_a, p_b,
        p_tie, score_margin, verdict_margin, strength.
    """
    found = []
    points = parse_tolerances(settings.tolerances)
    for judge, pair_protocol in names(verdicts):
        verdict_rule, tolerance, valid = valid_verdicts(verdicts, judge, pair_protocol, settings)
        for protocol in [name for by, name in names(scores) if by == judge]:
            values = protocols[protocol].values
            score_rule, mine = _readable_scores(scores.filter(judged_by(judge, protocol)), settings)
            smallest = points.score_points(values)[0]
            both = _with_scores(valid, mine, smallest, max(values) - min(values))
            rows = _conflicting(both)
            found.append(
                Contradictions(
                    "conflicts", judge, pair_protocol, protocol, score_rule, verdict_rule, smallest, tolerance,
                    both.height, rows.height, _counts(rows["type"]), 0, rows.head(listed),
                )
            )  # fmt: skip
    return found


def _conflicting(both: pl.DataFrame) -> pl.DataFrame:
    """The rows of `conflicts` among the pairs that have scores and a verdict, in order."""
    tied = pl.when(pl.col("score_margin") == 0).then(pl.lit("score_tie"))
    margins = ("score_margin", "verdict_margin")
    rows = both.filter(pl.col("sign") != pl.col("outcome")).with_columns(
        type=tied.when(pl.col("outcome") == 0).then(pl.lit("pair_tie")).otherwise(pl.lit("reversal")),
        strength=pl.when(pl.col("verdict_margin").is_not_null()).then(pl.min_horizontal(margins)),
        larger=pl.max_horizontal(margins),
    )
    down = [True, True, False, False, False]
    return rows.sort("strength", "larger", *_PAIR[:3], descending=down, nulls_last=True).drop("sign", "larger")


def valid_verdicts(
    verdicts: pl.DataFrame, judge: str, protocol: str, settings: AnalysisConfig
) -> tuple[str, float, pl.DataFrame]:
    """The rule, its smallest tolerance, and the valid pairs by it with `outcome`, probabilities, `verdict_margin`."""
    mine = verdicts.filter(judged_by(judge, protocol), pl.col("outcome").is_not_null())
    if settings.identical != "include":
        mine = mine.filter(pl.col("status") != "identical")
    rules = [rule for rule in (settings.verdict_rule, "baseline") if (mine["rule"] == rule).any()]
    rule = rules[0] if rules else settings.verdict_rule
    tolerance = parse_tolerances(settings.tolerances).by_rule[rule][0]
    valid = mine.filter(pl.col("rule") == rule, pl.col("tolerance") == tolerance)
    own: pl.Expr = pl.lit(None, pl.Float64)
    rest: pl.Expr = own
    for outcome, name in ((1, "p_a"), (-1, "p_b"), (0, "p_tie")):
        here = pl.col("outcome") == outcome
        own = pl.when(here).then(name).otherwise(own)
        rest = pl.when(here).then(pl.max_horizontal(p for p in _P if p != name)).otherwise(rest)
    return rule, tolerance, valid.select(*_PAIR, "outcome", *_P, verdict_margin=own - rest)


def _readable_scores(mine: pl.DataFrame, settings: AnalysisConfig) -> tuple[str, pl.DataFrame]:
    """The rule, and the scores that there are by it: question_id, response_id, score."""
    there = mine.filter(pl.col("score").is_not_null())
    rules = [rule for rule in (settings.score_rule, "baseline") if (there["rule"] == rule).any()]
    rule = rules[0] if rules else settings.score_rule
    return rule, there.filter(pl.col("rule") == rule).select("question_id", "response_id", "score")


def _with_scores(valid: pl.DataFrame, scores: pl.DataFrame, tolerance: float, span: float) -> pl.DataFrame:
    """The pairs that have two scores, with `score_a`, `score_b`, `sign` of what the scores say, and `score_margin`."""
    for side in ("a", "b"):
        mine = scores.rename({"response_id": f"response_{side}", "score": f"score_{side}"})
        valid = valid.join(mine, on=["question_id", f"response_{side}"])
    first, second = (valid[f"score_{side}"].to_numpy() for side in ("a", "b"))
    sign = score_signs(first, second, tolerance)
    margin = np.where(sign == 0, 0.0, np.abs(first - second) / (span or 1.0))
    return valid.with_columns(pl.Series("sign", sign, dtype=pl.Int32), pl.Series("score_margin", margin))


# --- flips -----------------------------------------------------------------------------------


def flips(pairs: Pairs, listed: int = LISTED) -> list[Contradictions]:
    """Pairs whose two orders emitted different verdicts, for every judge and protocol.

    Ordered by type: those whose orders say the opposite come before those where one says `tie` (type `one_tie`); then
    by strength, the smaller of the two orders' margins. Opposite ones are of type `first_shown` or `second_shown`: the
    answer at that place was preferred both times.

    Args:
        pairs: without the canary; of any judges and protocols.

    Returns:
        `rows` with question_id, response_a, response_b, model_a, model_b, type, emitted_ab, emitted_ba (`a`, `b`,
        `tie`), margin_ab, margin_ba, strength.
    """
    found = []
    for judge, protocol in names(pairs.keys):
        mine = pairs.only(judge, protocol)
        fine = mine.has("ok") & (mine.emitted >= 0).all(axis=1)
        chosen = np.flatnonzero(fine & (mine.emitted[:, 0] != mine.emitted[:, 1]))
        rows = _flipped(mine, chosen)
        found.append(
            Contradictions(
                "flips", judge, protocol, None, None, None, None, None,
                int(fine.sum()), rows.height, _counts(rows["type"]), 0, rows.head(listed),
            )
        )  # fmt: skip
    return found


def _flipped(pairs: Pairs, chosen: NDArray[np.int64]) -> pl.DataFrame:
    """The rows of `flips` for the chosen pairs, in order."""
    said = pairs.emitted[chosen]
    p = np.nan_to_num(pairs.probabilities[chosen])
    with np.errstate(invalid="ignore"):
        p = p / p.sum(axis=2, keepdims=True)
    own = np.take_along_axis(p, said[:, :, None], axis=2)[:, :, 0]
    np.put_along_axis(p, said[:, :, None], -1.0, axis=2)
    margin = own - p.max(axis=2)
    kind = np.where((said == 2).any(axis=1), "one_tie", np.where(said[:, 0] == 0, "first_shown", "second_shown"))
    labels = pl.Series(["a", "b", "tie"])
    return (
        pairs.keys[chosen]
        .select(*_PAIR)
        .with_columns(
            pl.Series("type", kind, dtype=pl.String),
            *(labels.gather(said[:, i]).alias(f"emitted_{order}") for i, order in enumerate(("ab", "ba"))),
            *(pl.Series(f"margin_{o}", margin[:, i], nan_to_null=True) for i, o in enumerate(("ab", "ba"))),
            pl.Series("strength", margin.min(axis=1, initial=2.0), nan_to_null=True),
        )
        .sort(pl.col("type") == "one_tie", -pl.col("strength"), *_PAIR[:3], nulls_last=True)
    )


def names(table: pl.DataFrame) -> list[tuple[str, str]]:
    """The judges and protocols of a table, in order."""
    return [
        (str(judge), str(protocol))
        for judge, protocol in table.select("judge", "protocol").unique().sort("judge", "protocol").rows()
    ]


def _counts(types: pl.Series) -> dict[str, int]:
    return dict(types.value_counts().sort("count", types.name, descending=[True, False]).iter_rows())
