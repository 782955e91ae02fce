"""Conflict ratio: how often single scores and pairwise verdicts of one judge disagree.

Counted for every score rule and tolerance against every verdict rule and tolerance. The paper's ratio (TrustJudge,
arXiv 2509.21117) has the verdict rule `baseline`, whatever the score rule.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis.comparisons import Comparisons
from trustjudge_ray.analysis.layout import Layout, by_reason, plain_rows, ratio_rows, stacked
from trustjudge_ray.analysis.readouts import Floats, judged_by
from trustjudge_ray.analysis.scoring import SCORING_RULES
from trustjudge_ray.analysis.tolerances import EQUAL

Signs = NDArray[np.int8]
NEVER_ASKED: Final = "never_asked"

CONFLICTS: Final[dict[str, tuple[tuple[int, int], ...]]] = {
    "conflict_ratio": ((1, 0), (1, -1), (0, 1), (0, -1), (-1, 1), (-1, 0)),
    "conflict_reversal": ((1, -1), (-1, 1)),
    "conflict_score_tie": ((0, 1), (0, -1)),
    "conflict_pair_tie": ((1, 0), (-1, 0)),
}
"""The conflicts that each metric counts, as (sign of the scores, verdict): all; both strict and opposite; only the
scores tie; only the pair ties."""


@dataclass(frozen=True, slots=True)
class ResponseScores:
    """The scores of R responses by one judge and protocol.

    Attributes:
        judge, protocol: None where there is none.
        score: rule → (R,), NaN where there is none.
        status: rule → (R,), index into `statuses`: `ok`, why there is no score, or `never_asked`.
        tolerances: in points.
    """

    judge: str | None
    protocol: str | None
    score: Mapping[str, Floats]
    status: Mapping[str, NDArray[np.int64]]
    statuses: tuple[str, ...]
    tolerances: tuple[float, ...]


def response_scores(
    scores: pl.DataFrame, judge: str | None, protocol: str | None, layout: Layout, tolerances: Sequence[float]
) -> ResponseScores:
    """SCORES of one judge and protocol, by the numbers of their responses in the layout."""
    mine = scores.filter(judged_by(judge, protocol))
    statuses = (NEVER_ASKED, *mine["status"].unique().sort().to_list())
    count = len(layout.responses)
    score, status = {}, {}
    for rule in SCORING_RULES:
        rows = mine.filter(pl.col("rule") == rule)
        _, _, number = layout.numbered(rows, "response_id")
        score[rule], status[rule] = np.full(count, np.nan), np.zeros(count, dtype=np.int64)
        score[rule][number] = rows["score"].to_numpy()
        code = {name: i for i, name in enumerate(statuses)}
        status[rule][number] = rows["status"].replace_strict(code, return_dtype=pl.Int64).to_numpy()
    return ResponseScores(judge, protocol, score, status, statuses, tuple(tolerances))


def score_signs(first: Floats, second: Floats, tolerance: float) -> Signs:
    """+1, 0 or −1 as the first score is higher, equal or lower (0 also where one is NaN): a gap below the tolerance is
    none."""
    gap = np.nan_to_num(first - second)
    close = (np.abs(gap) <= EQUAL) | (np.abs(gap) < tolerance - EQUAL)
    return np.where(close, 0, np.sign(gap)).astype(np.int8)


def conflict_rows(
    layout: Layout, judge: str | None, comparisons: Comparisons, scored: ResponseScores, confidence: float
) -> list[pl.DataFrame]:
    """METRICS of every conflict metric, and `chance_conflict_ratio`, for each combination of rules and tolerances.

    Cases are the valid pairs with two scores. Excluded are the other pairs of the plan: by the pair's own status,
    else by the first missing score's, as `score_<status>`.

    The chance ratio is what verdicts would give that share nothing with the scores but have as many ties: with tie
    shares s and v, 1 − (s·v + (1−s)(1−v)/2). It has no interval.
    """
    rows, statuses = [], pl.Series(scored.statuses, dtype=pl.String)
    for score_rule in SCORING_RULES:
        score, status = scored.score[score_rule], scored.status[score_rule]
        first, second = score[comparisons.first], score[comparisons.second]
        unscored = np.isnan(first) | np.isnan(second)
        why = np.where(np.isnan(first), status[comparisons.first], status[comparisons.second])
        signs = np.stack([score_signs(first, second, tolerance) for tolerance in scored.tolerances])
        for verdict_rule, verdict in comparisons.by_rule.items():
            fine, out = verdict.valid & ~unscored, verdict.valid & unscored
            joint = _joint(signs[:, fine], verdict.outcomes[:, fine], comparisons.question[fine], layout.questions)
            unscored_status = statuses.gather(why[out])
            lost = by_reason(unscored_status, comparisons.question[out], layout.questions, prefix="score_")
            lost |= comparisons.lost(verdict_rule, layout)
            keys = {
                "judge": judge,
                "protocol": scored.protocol,
                "pair_protocol": comparisons.protocol,
                "score_rule": score_rule,
                "verdict_rule": verdict_rule,
                "tolerance": np.repeat(scored.tolerances, len(verdict.tolerances)),
                "verdict_tolerance": np.tile(verdict.tolerances, len(scored.tolerances)),
            }
            rows += _conflicts(layout, keys, joint, lost, confidence)
    return rows


def _joint(signs: Signs, outcomes: Signs, question: NDArray[np.int64], questions: int) -> NDArray[np.int64]:
    """(T·V, Q, 3, 3): how many pairs of a question have each sign of the scores (−1, 0, +1) and each verdict."""
    table = np.empty((len(signs), len(outcomes), questions * 9), dtype=np.int64)
    place = question * 9 + 4
    for s, sign in enumerate(signs):
        row = place + 3 * sign
        for v, outcome in enumerate(outcomes):
            table[s, v] = np.bincount(row + outcome, minlength=questions * 9)
    return table.reshape(len(signs) * len(outcomes), questions, 3, 3)


def _conflicts(
    layout: Layout, keys: Mapping[str, object], cells: NDArray[np.int64], lost: dict[str, Floats], confidence: float
) -> list[pl.DataFrame]:
    cases = cells.sum(axis=(2, 3))
    hits = [sum((cells[:, :, s + 1, v + 1] for s, v in signs), np.zeros_like(cases)) for signs in CONFLICTS.values()]
    every = stacked(keys, list(CONFLICTS), len(cases))
    rows = ratio_rows(layout, every, np.concatenate(hits), np.tile(cases, (len(CONFLICTS), 1)), lost, confidence)
    chance, totals = [], []
    for questions in layout.categories.values():
        table = cells[:, questions].sum(axis=1)
        total = table.sum(axis=(1, 2))
        with np.errstate(invalid="ignore"):
            score_ties, verdict_ties = table[:, 1].sum(axis=1) / total, table[:, :, 1].sum(axis=1) / total
        chance.append(1 - score_ties * verdict_ties - (1 - score_ties) * (1 - verdict_ties) / 2)
        totals.append(total)
    named = {**keys, "metric": "chance_conflict_ratio"}
    return [rows, plain_rows(layout, named, np.stack(chance, axis=1), np.stack(totals, axis=1))]
