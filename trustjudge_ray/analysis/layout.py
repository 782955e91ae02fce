"""Which questions and responses there are, numbered: what per-question counts are arranged by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis.inference import RatioIntervals, ratio_intervals
from trustjudge_ray.analysis.metrics import COLUMNS
from trustjudge_ray.analysis.metrics import reasons as reason_columns
from trustjudge_ray.identity import id_key

Indices = NDArray[np.int64]
UNCATEGORISED: Final = "(none)"


@dataclass(frozen=True, slots=True)
class Layout:
    """Q questions with R responses, all of one evaluation.

    Attributes:
        responses: question_id, response_id, question (0 … Q−1), place (0 … n−1 in the order of the question's
            ids), response (0 … R−1).
        sizes: (Q,), how many responses each question has.
        categories: for every category, and None for all, the numbers of its questions. In METRICS the
            uncategorised are called "(none)".
    """

    responses: pl.DataFrame
    sizes: Indices
    categories: Mapping[str | None, Indices]

    @property
    def questions(self) -> int:
        """Q."""
        return len(self.sizes)

    def numbered(self, frame: pl.DataFrame, response: str) -> tuple[Indices, Indices, Indices]:
        """For each row of a frame with question_id the numbers (question, place, response) of the response that
        its column `response` names."""
        found = frame.select("question_id", pl.col(response).alias("response_id")).join(
            self.responses, on=["question_id", "response_id"], how="left", maintain_order="left"
        )
        question, place, number = (
            found[name].to_numpy().astype(np.int64) for name in ("question", "place", "response")
        )
        return question, place, number


def layout(judgments: pl.DataFrame, responses: pl.DataFrame | None = None) -> Layout:
    """Number the questions of these judgments, and their responses.

    Args:
        judgments: JUDGMENTS rows of kinds score and compare.
        responses: RESPONSES, to know also the responses that nothing was asked about; others' questions are left
            out.
    """
    sides = [
        judgments.select("question_id", pl.col(side).alias("response_id")) for side in ("response_a", "response_b")
    ]
    if responses is not None:
        known = responses.select("question_id", "response_id")
        sides.append(known.join(judgments.select("question_id").unique(), on="question_id", how="semi"))
    ids = pl.concat(sides).drop_nulls().unique()
    per_question = ids.group_by("question_id").agg("response_id").sort("question_id")
    ordered = [sorted(group, key=id_key(group)) for group in per_question["response_id"].to_list()]
    numbered = (
        per_question.select("question_id", response_id=pl.Series(ordered, dtype=pl.List(pl.String)))
        .with_row_index("question")
        .explode("response_id")
        .with_columns(place=pl.int_range(pl.len()).over("question"))
        .with_row_index("response")
    )
    sizes = np.array([len(group) for group in ordered], dtype=np.int64)
    return Layout(numbered, sizes, _categories(judgments, per_question["question_id"]))


def _categories(judgments: pl.DataFrame, questions: pl.Series) -> dict[str | None, Indices]:
    """A question's category is the one that its judgments name; the first by name if they differ."""
    named = judgments.group_by("question_id").agg(pl.col("category").min())
    category = pl.DataFrame({"question_id": questions}).join(named, on="question_id", how="left", maintain_order="left")
    names = category["category"].fill_null(UNCATEGORISED)
    found: dict[str | None, Indices] = {None: np.arange(len(questions))}
    for name in sorted(names.unique().to_list()):
        found[name] = np.flatnonzero((names == name).to_numpy())
    return found


def by_reason(reasons: pl.Series, questions: Indices, size: int, prefix: str = "") -> dict[str, NDArray[np.float64]]:
    """Counts by reason, each (size,) by question, from a reason and a question for each case."""
    names = reasons.unique().sort().to_list()
    return {
        f"{prefix}{name}": np.bincount(questions[(reasons == name).to_numpy()], minlength=size).astype(np.float64)
        for name in names
    }


def ratio_rows(
    layout: Layout,
    keys: Mapping[str, Any],
    hits: NDArray[Any],
    cases: NDArray[Any],
    excluded: Mapping[str, NDArray[Any]],
    confidence: float,
    intervals: Any = ratio_intervals,
) -> pl.DataFrame:
    """METRICS rows for C ratios, overall and by category, each with its interval and what was excluded.

    Args:
        keys: columns of METRICS, `metric` among them; each one value for all C rows, or an array (C,).
        hits, cases: (C, Q), or (Q,) for one ratio.
        excluded: by reason (Q,) counts, the same for all C.
        intervals: one of the functions of `inference`.
    """
    hits, cases = np.atleast_2d(hits), np.atleast_2d(cases)
    parts: dict[str, list[Any]] = {name: [] for name in ("value", "low", "high", "hits", "cases", "questions")}
    lost = []
    for questions in layout.categories.values():
        found: RatioIntervals = intervals(hits[:, questions], cases[:, questions], confidence)
        for name, part in parts.items():
            part.append(getattr(found, name))
        lost.append(reason_columns({reason: int(counts[questions].sum()) for reason, counts in excluded.items()}))
    values = {name: np.concatenate(part) for name, part in parts.items()}
    return _frame(layout, keys, values, lost, len(hits))


def stacked(keys: Mapping[str, Any], metrics: Sequence[str], each: int) -> dict[str, Any]:
    """Keys of `each` rows as those of several metrics, one after the other."""
    repeated = {name: np.tile(value, len(metrics)) for name, value in keys.items() if isinstance(value, np.ndarray)}
    return {**keys, **repeated, "metric": np.repeat(np.array(metrics, dtype=object), each)}


def plain_rows(
    layout: Layout, keys: Mapping[str, Any], values: NDArray[Any], cases: NDArray[Any], **limits: NDArray[Any]
) -> pl.DataFrame:
    """METRICS rows of numbers that are not counts of a question: `values`, `cases` and, where there is an interval,
    `low` and `high` are (C, categories), in their order."""
    lost = [reason_columns({})] * len(layout.categories)
    columns = {name: column.T.ravel() for name, column in {"value": values, "cases": cases, **limits}.items()}
    return _frame(layout, keys, columns, lost, len(values))


def _frame(
    layout: Layout,
    keys: Mapping[str, Any],
    values: Mapping[str, NDArray[Any]],
    lost: Sequence[Mapping[str, Any]],
    height: int,
) -> pl.DataFrame:
    """METRICS with `height` rows for each category, one category after the other."""
    groups = len(layout.categories)
    each = {"category": list(layout.categories), **{name: [row[name] for row in lost] for name in reason_columns({})}}
    columns = []
    for name, kind in COLUMNS.items():
        if name in values:
            columns.append(pl.Series(name, values[name], nan_to_null=True).cast(kind))
        elif name in each:
            of_category = pl.Series(name, each[name], dtype=kind)
            columns.append(of_category.gather(np.repeat(np.arange(groups), height)))
        elif isinstance(keys.get(name), np.ndarray):
            columns.append(pl.Series(name, np.tile(keys[name], groups)).cast(kind))
        else:
            columns.append(pl.Series(name, [keys.get(name)], dtype=kind).new_from_index(0, height * groups))
    return pl.DataFrame(columns)
