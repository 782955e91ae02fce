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

from trustjudge_ray.analysis.bounds import bound_rows
from trustjudge_ray.analysis.chance import chance_of_conflict, conflicts_over_chance, over_chance_rows
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


TIES: Final[dict[str, tuple[tuple[int, int], ...]]] = {
    "score_tie_share": ((0, -1), (0, 0), (0, 1)),
    "verdict_tie_share": ((-1, 0), (0, 0), (1, 0)),
}
"""The shares of ties beside a conflict ratio, over its own cases: without them it says little (see `chance`)."""


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


@dataclass(frozen=True, slots=True)
class ConflictCells:
    """Pairs of one score rule and one verdict rule, counted by question.

    Attributes:
        cells: (C, Q, 3, 3): by sign of the scores (−1, 0, +1) and verdict, for C = T·V combinations of tolerances.
        tolerance, verdict_tolerance: (C,).
        lost: by reason (Q,), the pairs that are not in the cells.
    """

    cells: NDArray[np.int64]
    tolerance: Floats
    verdict_tolerance: Floats
    lost: dict[str, Floats]

    @property
    def cases(self) -> Floats:
        """(C, Q) pairs."""
        return np.asarray(self.cells.sum(axis=(2, 3)), dtype=np.float64)

    def counted(self, signs: Sequence[tuple[int, int]]) -> Floats:
        """(C, Q) pairs with one of these (sign of the scores, verdict)."""
        found = sum((self.cells[:, :, s + 1, v + 1] for s, v in signs), np.zeros(self.cells.shape[:2]))
        return np.asarray(found, dtype=np.float64)


def conflict_cells(
    layout: Layout, comparisons: Comparisons, scored: ResponseScores, score_rule: str, verdict_rule: str
) -> ConflictCells:
    """Count the valid pairs with two scores; the other pairs of the plan are lost: by the pair's own status, else by
    the first missing score's, as `score_<status>`."""
    verdict, score, status = comparisons.by_rule[verdict_rule], scored.score[score_rule], scored.status[score_rule]
    first, second = score[comparisons.first], score[comparisons.second]
    unscored = np.isnan(first) | np.isnan(second)
    why = np.where(np.isnan(first), status[comparisons.first], status[comparisons.second])
    fine, out = verdict.valid & ~unscored, verdict.valid & unscored
    signs = np.stack([score_signs(first[fine], second[fine], tolerance) for tolerance in scored.tolerances])
    reasons = pl.Series(scored.statuses, dtype=pl.String).gather(why[out])
    lost = by_reason(reasons, comparisons.question[out], layout.questions, prefix="score_")
    return ConflictCells(
        _joint(signs, verdict.outcomes[:, fine], comparisons.question[fine], layout.questions),
        np.repeat(scored.tolerances, len(verdict.tolerances)),
        np.tile(verdict.tolerances, len(scored.tolerances)),
        lost | comparisons.lost(verdict_rule, layout),
    )


def conflict_rows(
    layout: Layout, judge: str | None, comparisons: Comparisons, scored: ResponseScores, confidence: float
) -> list[pl.DataFrame]:
    """METRICS of every conflict metric, and what to read it by, for each combination of rules and tolerances.

    Cases are the pairs of `conflict_cells`, excluded those that it names as lost. With the same cases the shares of
    ties (TIES). `conflict_ratio_lowest` and `_highest` are the ratio if none, or all, of the lost pairs were conflicts
    (identical texts stay out): no way of losing pairs leads beyond them. `chance_conflict_ratio` is what chance gives
    with the same shares of ties, without an interval; `conflict_ratio_minus_chance` the difference, with one.
    """
    rows = []
    for score_rule in SCORING_RULES:
        for verdict_rule in comparisons.by_rule:
            found = conflict_cells(layout, comparisons, scored, score_rule, verdict_rule)
            keys = {
                "judge": judge,
                "protocol": scored.protocol,
                "pair_protocol": comparisons.protocol,
                "score_rule": score_rule,
                "verdict_rule": verdict_rule,
                "tolerance": found.tolerance,
                "verdict_tolerance": found.verdict_tolerance,
            }
            rows += _conflicts(layout, keys, found, confidence)
            conflicts = found.counted(CONFLICTS["conflict_ratio"])
            rows.append(bound_rows(layout, keys, "conflict_ratio", conflicts, found.cases, found.lost, confidence))
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
    layout: Layout, keys: Mapping[str, object], found: ConflictCells, confidence: float
) -> list[pl.DataFrame]:
    counted = CONFLICTS | TIES
    hits = {name: found.counted(signs) for name, signs in counted.items()}
    every = stacked(keys, list(counted), len(found.cells))
    cases = np.tile(found.cases, (len(counted), 1))
    rows = [ratio_rows(layout, every, np.concatenate(list(hits.values())), cases, found.lost, confidence)]
    chance, totals, over = [], [], []
    for questions in layout.categories.values():
        conflicts, score_ties, verdict_ties = (
            hits[name][:, questions] for name in ("conflict_ratio", "score_tie_share", "verdict_tie_share")
        )
        here = found.cases[:, questions]
        total = here.sum(axis=1)
        with np.errstate(invalid="ignore"):
            chance.append(chance_of_conflict(score_ties.sum(axis=1) / total, verdict_ties.sum(axis=1) / total))
        over.append(conflicts_over_chance(conflicts, score_ties, verdict_ties, here, confidence))
        totals.append(total)
    counts = np.stack(totals, axis=1)
    rows.append(plain_rows(layout, {**keys, "metric": "chance_conflict_ratio"}, np.stack(chance, axis=1), counts))
    rows.append(over_chance_rows(layout, {**keys, "metric": "conflict_ratio_minus_chance"}, over, counts))
    return rows
