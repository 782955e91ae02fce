"""The rows of the browser of judgments: an index of all judgments, and by groups of questions all there is to them.

Tables become columns of JSON (dictionary-encoded: names are numbers of a list that the first file holds).
Probabilities are whole millionths; null is one that was not reported.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis.scoring import SCORING_RULES
from trustjudge_ray.analysis.verdicts import VERDICT_RULES
from trustjudge_ray.judging.protocols import Protocol

GROUP_BYTES: Final = 1_000_000
"""Texts and judgments of so many questions are in one file; a question is never split."""
CHUNK_ROWS: Final = 20_000
"""Judgments in one file of the index."""
_MILLION: Final = 1_000_000
_KINDS: Final = {"score": 0, "compare": 1, "verify": 2, "answer": 3}
_WRITTEN: Final = ("rationale", "thinking", "output", "detail")
_ROW_BYTES: Final = 150

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Names:
    """What the numbers in columns stand for; `lanes` are (judge, protocol)."""

    judges: list[str]
    lanes: list[tuple[str, str]]
    models: list[str]
    statuses: list[str]

    @classmethod
    def of(cls, judgments: pl.DataFrame) -> "Names":
        lanes = judgments.select("judge", "protocol").unique().sort("judge", "protocol").rows()
        models = pl.concat([judgments["model_a"], judgments["model_b"]]).drop_nulls().unique().sort().to_list()
        statuses = judgments["status"].value_counts().sort("count", "status", descending=[True, False])["status"]
        return cls(sorted({judge for judge, _ in lanes}), lanes, models, statuses.to_list())

    def lane(self, table: pl.DataFrame) -> pl.Series:
        """The number of each row's judge and protocol; null for one that judged nothing."""
        known = pl.DataFrame(self.lanes, schema={"judge": pl.String, "protocol": pl.String}, orient="row")
        numbered = known.with_row_index("lane")
        joined = table.select("judge", "protocol").join(
            numbered, on=["judge", "protocol"], how="left", maintain_order="left"
        )
        return joined["lane"]


@dataclass(frozen=True, slots=True)
class Arranged:
    """The judgments of Q questions, in the order in which they are shown.

    Attributes:
        questions: (Q,) ids, as numbers where all are whole numbers, else by code point.
        answers: question (0 … Q−1), place (0 … n−1 among the question's), question_id, response_id, model; in order.
        rows: JUDGMENTS, each with `question`, `a` and `b` (places), `lane`; in order.
    """

    questions: list[str]
    answers: pl.DataFrame
    rows: pl.DataFrame
    names: Names


def arrange(judgments: pl.DataFrame, questions: Sequence[str], names: Names) -> Arranged:
    """The judgments of these questions in order: by question, kind, judge, protocol, answers, order, sample."""
    chosen = pl.DataFrame({"question_id": pl.Series(questions, dtype=pl.String)})
    ordered = chosen.sort(*_by_number("question_id")).with_row_index("question")
    mine = judgments.join(ordered, on="question_id")
    sides = [mine.select("question", "question_id", response_id=f"response_{s}", model=f"model_{s}") for s in "ab"]
    answers = (
        pl.concat(sides)
        .drop_nulls("response_id")
        .unique(["question", "response_id"], keep="first", maintain_order=True)
        .sort("question", *(key.over("question") if i == 0 else key for i, key in enumerate(_by_number("response_id"))))
        .with_columns(place=pl.int_range(pl.len(), dtype=pl.Int32).over("question"))
    )
    for side in "ab":
        place = answers.select("question", pl.col("response_id").alias(f"response_{side}"), pl.col("place").alias(side))
        mine = mine.join(place, on=["question", f"response_{side}"], how="left")
    kind = pl.col("kind").replace_strict(_KINDS, return_dtype=pl.Int8)
    rows = mine.with_columns(names.lane(mine)).sort("question", kind, "lane", "a", "b", "order", "sample", "repeat")
    return Arranged(ordered["question_id"].to_list(), answers, rows, names)


def _by_number(name: str) -> tuple[pl.Expr, pl.Expr]:
    """Sort keys of ids: as numbers if all are whole numbers, and by code point."""
    whole = pl.col(name).str.contains(r"^-?[0-9]+$").all()
    number = pl.when(whole).then(pl.col(name).cast(pl.Float64, strict=False)).otherwise(0.0)
    return number, pl.col(name)


# --- index -----------------------------------------------------------------------------------


def index(arranged: Arranged, protocols: dict[str, Protocol]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Files of the index: each with the number of its first question, and columns over its judgments.

    `questions`: ids. `rows`, `answers`: how many of either each question has. `ids`, `models`: of the answers (an id
    that is its model's name is 0). Of each judgment `l` (judge and protocol), `a`, `b` (places among the answers), `o`
    (0 AB, 1 BA), `s` (status), `e` (emitted label's number), `g` (gap between the two most probable labels,
    renormalised), `w` (label mass), and where there are several `n` (sample), `r` (repeat).
    """
    table = _index_table(arranged, protocols)
    sizes = np.bincount(arranged.rows["question"].to_numpy(), minlength=len(arranged.questions))
    answers = np.bincount(arranged.answers["question"].to_numpy(), minlength=len(arranged.questions))
    row, answer = np.concatenate([[0], np.cumsum(sizes)]), np.concatenate([[0], np.cumsum(answers)])
    for start, stop in pairwise(cuts(sizes, CHUNK_ROWS)):
        mine = table[int(row[start]) : int(row[stop])]
        known = arranged.answers[int(answer[start]) : int(answer[stop])]
        columns = {name: mine[name].to_list() for name in mine.columns}
        for name in ("n", "r"):
            if not (mine[name] > 0).any():
                del columns[name]
        yield (
            start,
            {
                "questions": arranged.questions[start:stop],
                "rows": sizes[start:stop].tolist(),
                "answers": answers[start:stop].tolist(),
                "ids": _ids(known),
                "models": _codes(known["model"], arranged.names.models).to_list(),
            }
            | columns,
        )


def _index_table(arranged: Arranged, protocols: dict[str, Protocol]) -> pl.DataFrame:
    p = pl.col("p").list.sort(descending=True, nulls_last=True)
    first, second = p.list.get(0, null_on_oob=True), p.list.get(1, null_on_oob=True).fill_null(0)
    gap = (first - second) / pl.when(pl.col("p").list.sum() > 0).then(pl.col("p").list.sum())
    return arranged.rows.select(
        pl.col("lane").alias("l"),
        "a",
        "b",
        o=_order(),
        s=_coded("status", arranged.names.statuses),
        e=_emitted(arranged.rows, protocols),
        p=_probabilities(),
        w=_millionths(pl.col("label_mass")),
        n="sample",
        r="repeat",
    ).select("l", "a", "b", "o", "s", "e", _millionths(gap).alias("g"), "w", "n", "r")


def cuts(sizes: Indices, most: int) -> list[int]:
    """Where to cut a row of questions so that the sizes of each part sum to `most` at most, or it is one question."""
    found, room = [0], most
    for number, size in enumerate(sizes.tolist()):
        if size > room and number > found[-1]:
            found.append(number)
            room = most
        room -= size
    return [*found, len(sizes)] if len(sizes) else [0]


# --- groups ----------------------------------------------------------------------------------


def groups(
    arranged: Arranged, responses: pl.DataFrame, scores: pl.DataFrame, verdicts: pl.DataFrame,
    protocols: dict[str, Protocol],
) -> Iterator[tuple[int, dict[str, Any]]]:  # fmt: skip
    """Files of groups of questions: each with the number of its first question, and `questions`, a list of

    - `id`, `category`, `messages` and `reference` (where the run has texts),
    - `answers`: of each `id`, `model`, `replies` (null without texts), and `messages` where they are other ones,
    - `judgments`, `scores`, `verdicts`: columns. Judgments: `t` (task id), `l`, `a`, `b`, `o`, `s`, `e` as in the
      index, `said` (what was emitted), `p` (label probabilities), `w`, `n`, `r`, `cut`, `tokens`, and what was written.
      Scores: `l`, `a`, `entropy`, and by rule the score as text, or why there is none. Verdicts: `l`, `a`, `b`, `p`,
      and by rule the outcome (`1` a better, `0`, `-1`) or why there is none.

    Args:
        responses: RESPONSES, none for imports.
        verdicts: at one tolerance a rule.
    """
    texts = _texts(arranged, responses)
    told = _judgment_table(arranged, protocols)
    count = len(arranged.questions)
    judged = _Sliced.of(told, arranged.rows["question"], count)
    scored = _Sliced.of(*_score_table(arranged, scores), count)
    compared = _Sliced.of(*_verdict_table(arranged, verdicts), count)
    answered = _Sliced.of(texts, arranged.answers["question"], count)
    sizes = _sizes(arranged, texts, told)
    for start, stop in pairwise(cuts(sizes, GROUP_BYTES)):
        parts = zip(
            *(each.columns(start, stop) for each in (answered, judged, scored, compared)),
            arranged.questions[start:stop],
            strict=True,
        )
        yield start, {"questions": [_question(name, *tables) for *tables, name in parts]}


@dataclass(frozen=True, slots=True)
class _Sliced:
    """A table in the order of its questions, to be cut by question."""

    table: pl.DataFrame
    starts: Indices

    @classmethod
    def of(cls, table: pl.DataFrame, question: pl.Series, count: int) -> "_Sliced":
        return cls(table, np.concatenate([[0], np.cumsum(np.bincount(question.to_numpy(), minlength=count))]))

    def columns(self, start: int, stop: int) -> Iterator[dict[str, list[Any]]]:
        """For each question the columns of its rows, without those that hold nothing."""
        first = int(self.starts[start])
        part = self.table[first : int(self.starts[stop])].to_dict(as_series=False)
        for low, high in pairwise(self.starts[start : stop + 1] - first):
            mine = {name: values[low:high] for name, values in part.items()}
            yield {name: values for name, values in mine.items() if any(value is not None for value in values)}


def _question(
    name: str, answers: dict[str, Any], judgments: dict[str, Any], scores: dict[str, Any], verdicts: dict[str, Any]
) -> dict[str, Any]:
    """A question with its answers' columns as rows: what is the same for all answers once."""
    count = len(answers.get("id", []))
    rows = [{key: values[i] for key, values in answers.items() if values[i] is not None} for i in range(count)]
    shared = {key: rows[0].get(key) if rows else None for key in ("category", "messages", "reference")}
    for row in rows:
        for key, value in shared.items():
            if row.get(key) == value:
                row.pop(key, None)
    return {"id": name, **shared, "answers": rows, "judgments": judgments, "scores": scores, "verdicts": verdicts}


def _texts(arranged: Arranged, responses: pl.DataFrame) -> pl.DataFrame:
    """A row for each answer with its texts, in the order of `arranged.answers`."""
    known = responses.select("question_id", "response_id", "category", "messages", "reference", "replies")
    known = known.unique(["question_id", "response_id"], keep="first", maintain_order=True)
    joined = arranged.answers.join(known, on=["question_id", "response_id"], how="left", maintain_order="left")
    # A question's own texts also where no judgment is about one of its rows (kind answer).
    first = responses.select("question_id", *(pl.col(c).alias(f"_{c}") for c in ("category", "messages", "reference")))
    first = first.unique("question_id", keep="first", maintain_order=True)
    joined = joined.join(first, on="question_id", how="left", maintain_order="left")
    filled = [pl.coalesce(c, f"_{c}").alias(c) for c in ("category", "messages", "reference")]
    return joined.select(pl.col("response_id").alias("id"), "model", *filled, "replies")


def _judgment_table(arranged: Arranged, protocols: dict[str, Protocol]) -> pl.DataFrame:
    rows = arranged.rows
    any_of = {"n": "sample", "r": "repeat"}
    return rows.select(
        pl.col("task_id").alias("t"),
        pl.col("lane").alias("l"),
        "a",
        "b",
        o=_order(),
        s=_coded("status", arranged.names.statuses),
        e=_emitted(rows, protocols),
        said=pl.col("emitted"),
        p=_probabilities().list.eval((pl.element() * _MILLION).round().cast(pl.Int64)),
        w=_millionths(pl.col("label_mass")),
        cut=pl.when(pl.col("truncated") | pl.col("rationale_cut").fill_null(False)).then(
            pl.when("truncated").then(pl.lit("answer")).otherwise(pl.lit("rationale"))
        ),
        tokens="prompt_tokens",
        **{short: pl.when(pl.col(name) > 0).then(name) for short, name in any_of.items()},
        **{name: pl.col(name) for name in _WRITTEN},
    )


def _score_table(arranged: Arranged, scores: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """A row for each judge, protocol and answer, a column for each rule; and the questions' numbers."""
    about = ("judge", "protocol", "question_id", "response_id")
    said = pl.coalesce(pl.col("score").round(4).cast(pl.String), "status")
    wide = scores.select(*about, "entropy", "rule", said=said).pivot(
        on="rule", on_columns=list(SCORING_RULES), index=[*about, "entropy"], values="said"
    )
    place = arranged.answers.select("question", "question_id", "response_id", a="place")
    rows = wide.with_columns(arranged.names.lane(wide).alias("l")).join(place, on=["question_id", "response_id"])
    rows = rows.sort("question", "l", "a")
    return rows.select("l", "a", pl.col("entropy").round(4), *SCORING_RULES), rows["question"]


def _verdict_table(arranged: Arranged, verdicts: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    about = ("judge", "protocol", "question_id", "response_a", "response_b")
    said = pl.coalesce(pl.col("outcome").cast(pl.String), "status")
    p = pl.concat_list(_millionths(pl.col(name)) for name in ("p_a", "p_b", "p_tie"))
    mine = verdicts.select(*about, "rule", said=said, p=p)
    wide = mine.pivot(on="rule", on_columns=list(VERDICT_RULES), index=about, values="said")
    wide = wide.join(mine.unique(about, keep="any").select(*about, "p"), on=about)
    rows = wide.with_columns(arranged.names.lane(wide).alias("l"))
    for side in "ab":
        place = arranged.answers.select(
            "question_id", pl.col("response_id").alias(f"response_{side}"), pl.col("place").alias(side)
        )
        place = place if side == "b" else place.with_columns(arranged.answers["question"])
        rows = rows.join(place, on=["question_id", f"response_{side}"])
    rows = rows.sort("question", "l", "a", "b")
    known = pl.when(pl.col("p").list.get(0).is_not_null()).then("p")
    return rows.select("l", "a", "b", known.alias("p"), *VERDICT_RULES), rows["question"]


def _sizes(arranged: Arranged, texts: pl.DataFrame, told: pl.DataFrame) -> Indices:
    """About how many bytes each question takes."""
    messages = pl.col("messages").list.eval(pl.element().struct.field("content").str.len_bytes()).list.sum()
    replies = pl.col("replies").list.eval(pl.element().str.len_bytes()).list.sum()
    of_answer = texts.select(pl.sum_horizontal(replies, messages, pl.col("reference").str.len_bytes()))
    written = [pl.col(name).str.len_bytes() for name in _WRITTEN]
    of_row = told.select(pl.sum_horizontal(*written, 3 * pl.col("p").list.len()) + _ROW_BYTES)
    count = len(arranged.questions)
    totals = [
        np.bincount(at["question"].to_numpy(), weights=size.to_series().to_numpy(), minlength=count)
        for at, size in ((arranged.answers, of_answer), (arranged.rows, of_row))
    ]
    return (totals[0] + totals[1]).astype(np.int64)


# --- columns ---------------------------------------------------------------------------------


def _probabilities() -> pl.Expr:
    """P(label) from `label_logprobs`; null where it was not reported or is no number."""
    known = pl.when(pl.element().is_nan()).then(None).otherwise(pl.element().clip(upper_bound=0.1))
    return pl.col("label_logprobs").list.eval(known.exp())


def _millionths(value: pl.Expr) -> pl.Expr:
    return pl.when(value.is_finite()).then((value * _MILLION).round()).cast(pl.Int64)


def _order() -> pl.Expr:
    return pl.col("order").replace_strict({"AB": 0, "BA": 1}, default=None, return_dtype=pl.Int8)


def _coded(name: str, names: list[str]) -> pl.Expr:
    return pl.col(name).cast(pl.Enum(names)).to_physical()


def _codes(values: pl.Series, names: list[str]) -> pl.Series:
    return values.cast(pl.Enum(names)).to_physical()


def _emitted(rows: pl.DataFrame, protocols: dict[str, Protocol]) -> pl.Series:
    """The number of the emitted label among its protocol's; null where it is none of them."""
    known = [(name, label, i) for name, protocol in protocols.items() for i, label in enumerate(protocol.emitted_names)]
    table = pl.DataFrame(known, schema={"protocol": pl.String, "emitted": pl.String, "number": pl.Int32}, orient="row")
    joined = rows.select("protocol", "emitted").join(
        table, on=["protocol", "emitted"], how="left", maintain_order="left"
    )
    return joined["number"].alias("e")


def _ids(answers: pl.DataFrame) -> list[Any]:
    return [0 if name == model else name for name, model in answers.select("response_id", "model").rows()]
