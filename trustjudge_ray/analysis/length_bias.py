"""Does a judge prefer longer answers, and more than people do?

The length of an answer is that of all its replies, in characters: a judge counts in tokens of its own, which no run
keeps. The canary takes no part: short and empty, it should lose.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis.comparisons import Comparisons
from trustjudge_ray.analysis.consistency import ResponseScores
from trustjudge_ray.analysis.layout import Indices, Layout, ratio_rows
from trustjudge_ray.analysis.preference import (
    Marked,
    Reference,
    counted_by_reason,
    difference_intervals,
    preference_rows,
)
from trustjudge_ray.analysis.readouts import Floats
from trustjudge_ray.analysis.tolerances import EQUAL
from trustjudge_ray.analysis.verdicts import UNDEFINED
from trustjudge_ray.corpus.canary import META_JSON

_UNMARKED: Final = ("", "no_text", "canary", "same_length")
_UNCORRELATED: Final = (
    "",
    "fewer_than_two_answers",
    "same_scores",
    "same_lengths",
    "fewer_than_two_human_scores",
    "same_human_scores",
)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the R responses of a layout without any judge.

    Attributes:
        length: (R,) characters of the replies, NaN where the run has no text of it.
        human: (R,) people's score, NaN where there is none.
        canary: (R,) whether it is a canary's.
    """

    length: Floats
    human: Floats
    canary: NDArray[np.bool_]


def known_of(layout: Layout, responses: pl.DataFrame | None) -> Known:
    """From RESPONSES, or None where the run has none (imports)."""
    if responses is None or not responses.height:
        nothing = np.full(len(layout.responses), np.nan)
        return Known(nothing, nothing, np.zeros(len(nothing), dtype=bool))
    told = responses.select(
        "question_id",
        "response_id",
        pl.col("replies").list.eval(pl.element().str.len_chars()).list.sum().cast(pl.Float64).alias("length"),
        pl.col("human_score").alias("human"),
        (pl.col("meta_json") == META_JSON).fill_null(False).alias("canary"),
    ).unique(["question_id", "response_id"], keep="first", maintain_order=True)
    found = layout.responses.select("question_id", "response_id").join(
        told, on=["question_id", "response_id"], how="left", maintain_order="left"
    )
    length, human = (found[name].fill_null(np.nan).to_numpy() for name in ("length", "human"))
    return Known(length, human, found["canary"].fill_null(False).to_numpy())


def people_of(comparisons: Comparisons, known: Known) -> Reference:
    """What people's scores say of the pairs: UNDEFINED where one is missing."""
    gap = known.human[comparisons.first] - known.human[comparisons.second]
    sign = np.where(np.abs(np.nan_to_num(gap)) <= EQUAL, 0, np.sign(np.nan_to_num(gap)))
    outcomes = np.where(np.isnan(gap), UNDEFINED, sign).astype(np.int8)
    return Reference(outcomes[None], "no_human_score", "human_tie")


def length_preference_rows(
    layout: Layout, comparisons: Comparisons, known: Known, confidence: float
) -> list[pl.DataFrame]:
    """METRICS `length_preference`, and beside people `length_preference_people` and `length_preference_minus_people`:
    `preference_rows` of the longer answer. One half is unbiased only if length says nothing about quality.

    `excluded_by`: `no_text`, `same_length`, `canary`, `no_human_score`, `human_tie`, and what `preference_rows` names.
    """
    a, b = known.length[comparisons.first], known.length[comparisons.second]
    canary = known.canary[comparisons.first] | known.canary[comparisons.second]
    untold = np.isnan(a) | np.isnan(b)
    with np.errstate(invalid="ignore"):
        side = np.where(untold | canary, 0, np.sign(np.nan_to_num(a - b))).astype(np.int8)
    why = np.where(untold, 1, np.where(canary, 2, 3))
    references = {"people": dict.fromkeys(comparisons.by_rule, people_of(comparisons, known))}
    marked = Marked(side, why, _UNMARKED)
    return preference_rows(layout, comparisons, "length_preference", marked, references, confidence)


def length_correlation_rows(
    layout: Layout, scored: ResponseScores, known: Known, confidence: float
) -> list[pl.DataFrame]:
    """METRICS by score rule, of which a case is a question: means over questions of Spearman's ρ within each.

    `length_correlation`: of its answers' scores with their lengths. `length_correlation_people`: of people's scores
    with the lengths, over the answers that have both scores; `length_correlation_minus_people` the judge's ρ less
    people's, question by question. A judge that is noisier than people has the smaller ρ without any bias.

    `excluded_by` says of a question: `fewer_than_two_answers` with a score and a text, `same_scores`, `same_lengths`,
    `fewer_than_two_human_scores`, `same_human_scores`. The canary's answers are left out.
    """
    question = layout.responses["question"].to_numpy().astype(np.int64)
    rows = []
    for rule, score in scored.score.items():
        keys = {"judge": scored.judge, "protocol": scored.protocol, "score_rule": rule}
        used = ~np.isnan(score) & ~np.isnan(known.length) & ~known.canary
        judge = _within(question, score, known.length, used, layout.questions)
        why = np.select([judge.answers < 2, judge.flat_x, judge.flat_y], [1, 2, 3], 0)
        rows.append(_mean(layout, keys | {"metric": "length_correlation"}, judge.rho, why, confidence))
        both = used & ~np.isnan(known.human)
        mine = _within(question, score, known.length, both, layout.questions)
        people = _within(question, known.human, known.length, both, layout.questions)
        unlike = [mine.flat_x, mine.flat_y, people.flat_x]
        told = np.select([judge.answers < 2, mine.answers < 2, *unlike], [1, 4, 2, 3, 5], 0)
        rows.append(_mean(layout, keys | {"metric": "length_correlation_people"}, people.rho, told, confidence))
        named = keys | {"metric": "length_correlation_minus_people"}
        rows.append(_mean(layout, named, mine.rho - people.rho, told, confidence, most=2.0))
    return rows


@dataclass(frozen=True, slots=True)
class _Correlation:
    """Spearman's ρ within each of Q questions: (Q,) each. `flat_x`, `flat_y`: all its values are the same."""

    rho: Floats
    answers: Floats
    flat_x: NDArray[np.bool_]
    flat_y: NDArray[np.bool_]


def _within(question: Indices, x: Floats, y: Floats, used: NDArray[np.bool_], questions: int) -> _Correlation:
    at = question[used]
    ranks = pl.DataFrame({"q": at, "x": x[used].round(9), "y": y[used].round(9)}).select(
        (pl.col(name).rank("average").over("q") - (pl.len().over("q") + 1) / 2).alias(name) for name in ("x", "y")
    )
    rank_x, rank_y = ranks["x"].to_numpy(), ranks["y"].to_numpy()
    xx, yy, xy = (
        np.bincount(at, weights=product, minlength=questions)
        for product in (rank_x * rank_x, rank_y * rank_y, rank_x * rank_y)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = np.clip(xy / np.sqrt(xx * yy), -1, 1)
    return _Correlation(rho, np.bincount(at, minlength=questions).astype(np.float64), xx == 0, yy == 0)


def _mean(
    layout: Layout, keys: dict[str, Any], value: Floats, why: Indices, confidence: float, most: float = 1.0
) -> pl.DataFrame:
    cases, lost = counted_by_reason(np.arange(layout.questions), why, _UNCORRELATED, layout.questions)
    sums = np.where(why == 0, value, 0.0)
    intervals = partial(difference_intervals, most=most)
    return ratio_rows(layout, keys, sums, cases, lost, confidence, intervals)
