"""Two runs side by side: which judge and protocol of one belongs to which of the other, and what both judged.

Side A is what is compared with, side B what is new. Everything is paired by question: a question takes part where it
has the same text on both sides, an answer's score where both sides have one for that model, a game where both sides
have it in the same order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis.games import Array, binned, soft_outcomes
from trustjudge_ray.analysis.scoring import scores
from trustjudge_ray.identity import content_hash
from trustjudge_ray.judging.protocols import Protocol

SIDES: Final = ("a", "b")


@dataclass(frozen=True, slots=True)
class Side:
    """A run as a comparison reads it: JUDGMENTS of kinds score and compare, RESPONSES (none of imports) and the
    protocols by name."""

    name: str
    judgments: pl.DataFrame
    responses: pl.DataFrame
    protocols: Mapping[str, Protocol]


@dataclass(frozen=True, slots=True)
class Lane:
    """One judge and protocol of each side that belong together.

    Attributes:
        same: whether both sides' judgments have the same spec: judge, protocol and decoding. If not, a difference is
            also the judge's.
    """

    kind: str
    judge_a: str
    protocol_a: str
    judge_b: str
    protocol_b: str
    same: bool

    @property
    def name(self) -> str:
        """As people read it; both sides where they differ."""
        a, b = f"{self.judge_a}, {self.protocol_a}", f"{self.judge_b}, {self.protocol_b}"
        return b if a == b else f"{a} → {b}"

    def chosen(self, table: pl.DataFrame, side: str) -> pl.DataFrame:
        """The rows of a table with columns judge and protocol that are this lane's on one side."""
        judge, protocol = (self.judge_a, self.protocol_a) if side == "a" else (self.judge_b, self.protocol_b)
        return table.filter(pl.col("judge") == judge, pl.col("protocol") == protocol)


@dataclass(frozen=True, slots=True)
class Overlap:
    """What two runs have in common.

    Attributes:
        questions: ids with the same text on both sides, sorted by code point.
        models: with an answer that was judged on both sides.
        unchanged: columns question_id, model: the same answers, text for text, on both sides.
        only_a, only_b: questions and models that one side lacks, by what they are.
        changed: questions whose text differs.
        texts: whether both sides hold texts; if not, equal ids are taken for equal questions.
    """

    questions: list[str]
    models: list[str]
    unchanged: pl.DataFrame
    only_a: dict[str, list[str]]
    only_b: dict[str, list[str]]
    changed: list[str]
    texts: bool


@dataclass(frozen=True, slots=True)
class Paired:
    """One quantity of M models over Q questions on both sides, as sums and counts: (M, Q) each.

    Attributes:
        models: M names.
        sums_a, sums_b, cases: shares of the quantity's range, and what they were taken over: the same on both sides.
        identical: (M,) whether every judgment behind a model's row is the same one on both sides.
        field: (M,) in words, over what; empty where that needs no word.
        unpaired: (M,) how many of a model's questions (of scores) or games one side lacks.
        excluded: by reason, how many scores or games of one side were not read or have no partner.
        common: how many scores (by model and question) or games both sides have.
        lowest, span: a share x stands for lowest + span · x.
    """

    models: list[str]
    sums_a: Array
    sums_b: Array
    cases: Array
    identical: NDArray[np.bool_]
    field: list[str]
    unpaired: list[int]
    excluded: dict[str, int]
    common: int
    lowest: float = 0.0
    span: float = 1.0


def lanes(a: Side, b: Side) -> tuple[list[Lane], list[str]]:
    """The lanes of two runs, and in words what has no partner.

    First those of the same judge and protocol; of the rest, where one is left on each side: of the same protocol (the
    judge changed), of the same judge (the protocol did), of the same kind.
    """
    left = [_specs(side.judgments) for side in (a, b)]
    found: list[Lane] = []
    for same in (("kind", "judge", "protocol"), ("kind", "protocol"), ("kind", "judge"), ("kind",)):
        for mine in sorted(left[0]):
            about = [_named(mine)[name] for name in same]
            of_a = [key for key in left[0] if [_named(key)[name] for name in same] == about]
            of_b = [key for key in left[1] if [_named(key)[name] for name in same] == about]
            if len(of_a) == len(of_b) == 1 and mine in left[0]:
                specs = left[0].pop(mine), left[1].pop(of_b[0])
                found.append(Lane(mine[0], *mine[1:], *of_b[0][1:], same=specs[0] == specs[1]))
    lonely = [
        f"{kind} by {judge}, protocol {protocol}: only in {side.name}"
        for side, rest in zip((a, b), left, strict=True)
        for kind, judge, protocol in sorted(rest)
    ]
    return sorted(found, key=lambda lane: (lane.kind != "score", lane.name)), lonely


def _specs(judgments: pl.DataFrame) -> dict[tuple[str, str, str], frozenset[str]]:
    rows = judgments.group_by("kind", "judge", "protocol").agg(pl.col("spec").unique())
    return {(kind, judge, protocol): frozenset(specs) for kind, judge, protocol, specs in rows.rows()}


def _named(key: tuple[str, str, str]) -> dict[str, str]:
    return dict(zip(("kind", "judge", "protocol"), key, strict=True))


def overlap(a: Side, b: Side) -> Overlap:
    """What both runs judged; questions of one id with different texts are not the same question."""
    asked = [set(side.judgments["question_id"].unique()) for side in (a, b)]
    models = [_models(side.judgments) for side in (a, b)]
    texts = [_question_texts(side.responses) for side in (a, b)]
    changed = sorted(q for q in asked[0] & asked[1] if q in texts[0] and q in texts[1] and texts[0][q] != texts[1][q])
    answers = [
        _answer_texts(side.responses).rename({"hash": f"hash_{s}"}) for s, side in zip(SIDES, (a, b), strict=True)
    ]
    both = answers[0].join(answers[1], on=["question_id", "model"])
    unchanged = both.filter(pl.col("hash_a") == pl.col("hash_b"), ~pl.col("question_id").is_in(changed))
    only = [
        {"questions": sorted(asked[i] - asked[1 - i]), "models": sorted(models[i] - models[1 - i])} for i in range(2)
    ]
    return Overlap(
        questions=sorted(asked[0] & asked[1] - set(changed)),
        models=sorted(models[0] & models[1]),
        unchanged=unchanged.select("question_id", "model"),
        only_a=only[0],
        only_b=only[1],
        changed=changed,
        texts=bool(texts[0]) and bool(texts[1]),
    )


def _models(judgments: pl.DataFrame) -> set[str]:
    return {*judgments["model_a"].drop_nulls().unique(), *judgments["model_b"].drop_nulls().unique()}


def _question_texts(responses: pl.DataFrame) -> dict[str, str]:
    """What was asked, as a hash: the user's and system's turns (earlier answers are the models')."""
    first = responses.unique("question_id", keep="first", maintain_order=True)
    return {
        question: content_hash([[m["role"], m["content"]] for m in messages if m["role"] != "assistant"])
        for question, messages in first.select("question_id", "messages").iter_rows()
    }


def _answer_texts(responses: pl.DataFrame) -> pl.DataFrame:
    """question_id, model and a hash of all that the model answered there."""
    rows: dict[tuple[str, str], list[list[str]]] = {}
    ordered = responses.sort("response_id").select("question_id", "model", "replies", "messages")
    for question, model, replies, messages in ordered.iter_rows():
        rows.setdefault((question, model), []).append([*(m["content"] for m in messages), *replies])
    hashes = [(question, model, content_hash(texts)) for (question, model), texts in rows.items()]
    return pl.DataFrame(hashes, schema={"question_id": pl.String, "model": pl.String, "hash": pl.String}, orient="row")


def paired_scores(a: Side, b: Side, lane: Lane, shared: Overlap, rule: str) -> Paired:
    """Scores of one rule, by model and question.

    On scales of different labels both are shares of their scale's range; otherwise points of the scale. A cell is the
    mean of a model's answers to the question, taken with the smaller of both sides' counts of scored answers.
    """
    values = a.protocols[lane.protocol_a].values, b.protocols[lane.protocol_b].values
    same_scale = values[0] == values[1]
    cells, lost = [], {}
    for name, side, scale in zip(SIDES, (a, b), values, strict=True):
        mine = lane.chosen(side.judgments.filter(pl.col("kind") == "score"), name)
        table = scores(mine, dict(side.protocols)).filter(pl.col("rule") == rule)
        here = table.filter(pl.col("question_id").is_in(shared.questions), pl.col("model").is_in(shared.models))
        lost[f"no_score_{name}"] = here["score"].null_count()
        scored = here.filter(pl.col("score").is_not_null()).with_columns(
            score=(pl.col("score") - min(scale)) / (max(scale) - min(scale))
        )
        cells.append(
            scored.group_by("question_id", "model").agg(pl.col("score").mean().alias(name), pl.len().alias(f"n_{name}"))
        )
    both = cells[0].join(cells[1], on=["question_id", "model"])
    for name, mine in zip(SIDES, cells, strict=True):
        lost[f"only_{name}"] = mine.height - both.height
    both = both.with_columns(n=pl.min_horizontal("n_a", "n_b").cast(pl.Float64)).sort("model", "question_id")
    models, at = list(shared.models), _places(both, "model", shared)
    size = len(models), len(shared.questions)
    sums_a, sums_b = (_matrix((both[s] * both["n"]).to_numpy(), at, *size) for s in SIDES)
    cases = _matrix(both["n"].to_numpy(), at, *size)
    scale = (min(values[0]), max(values[0]) - min(values[0])) if same_scale else (0.0, 1.0)
    same = ~np.isin(models, sorted(touched_models(a, b, lane, shared)))
    words = [""] * len(models) if same_scale else ["as shares of two different scales"] * len(models)
    unpaired = _counted(
        pl.concat([mine.join(both, on=["question_id", "model"], how="anti")["model"] for mine in cells]), models
    )
    excluded = {reason: n for reason, n in lost.items() if n}
    return Paired(models, sums_a, sums_b, cases, same, words, unpaired, excluded, both.height, *scale)


def paired_games(
    a: Side, b: Side, lane: Lane, shared: Overlap, on_empty: str
) -> tuple[Paired, pl.DataFrame, pl.DataFrame]:
    """Points from comparisons (a win 1, a tie ½, soft), by model and question, and both sides' common games.

    A game takes part where both sides have it: question, who was shown first and who second. Where a model met
    opponents whose answers did not change, in at least half of its questions, its points are from those games alone:
    otherwise it would rise because another fell.
    """
    key = ["question_id", "first", "second"]
    tables, lost = [], {}
    for name, side in zip(SIDES, (a, b), strict=True):
        mine = lane.chosen(side.judgments.filter(pl.col("kind") == "compare"), name)
        read, left = soft_outcomes(mine, on_empty)
        lost[f"not_read_{name}"] = left.height
        asked = read.filter(pl.col("question_id").is_in(shared.questions))
        here = asked.filter(pl.col("first").is_in(shared.models), pl.col("second").is_in(shared.models))
        lost[f"of_other_models_{name}"] = asked.height - here.height
        outcome = pl.col("y_first", "y_second", "y_tie")
        one = here.with_columns(outcome / pl.sum_horizontal("y_first", "y_second", "y_tie"))  # several votes, one game
        tables.append(one.group_by(key).agg(outcome.mean()))
    common = [
        tables[0].join(tables[1], on=key, how="semi").sort(key),
        tables[1].join(tables[0], on=key, how="semi").sort(key),
    ]
    for name, table, kept in zip(SIDES, tables, common, strict=True):
        lost[f"only_{name}"] = table.height - kept.height
    own, fields = _own_games(common[0], common[1], shared)
    size = len(shared.models), len(shared.questions)
    at = _places(own, "model", shared)
    sums_a, sums_b = (_matrix(own[f"points_{s}"].to_numpy(), at, *size) for s in SIDES)
    cases = _matrix(np.ones(own.height), at, *size)
    same = ~np.isin(shared.models, sorted(touched_models(a, b, lane, shared)))
    if lane.same:
        still = pl.col("fixed") & pl.col("own") & (pl.col("points_a") == pl.col("points_b"))
        settled = own.group_by("model").agg(settled=still.all()).filter("settled")
        same |= np.isin(shared.models, settled["model"].to_list())
    lonely = [table.join(common[0], on=key, how="anti")[me] for table in tables for me in ("first", "second")]
    unpaired = _counted(pl.concat(lonely), shared.models)
    excluded = {reason: n for reason, n in lost.items() if n}
    paired = Paired(shared.models, sums_a, sums_b, cases, same, fields, unpaired, excluded, common[0].height)
    return paired, common[0], common[1]


def _own_games(a: pl.DataFrame, b: pl.DataFrame, shared: Overlap) -> tuple[pl.DataFrame, list[str]]:
    """A row for each game of each model against the field that it is measured by: question_id, model, opponent,
    points_a, points_b, and whether the opponent's (`fixed`) and its own answer are unchanged; and that field in
    words, by model."""
    half = pl.col("y_tie") / 2
    games = a.select(
        "question_id", "first", "second", first_a=pl.col("y_first") + half, second_a=pl.col("y_second") + half
    )
    new = b.select(first_b=pl.col("y_first") + half, second_b=pl.col("y_second") + half)
    games = pl.concat([games, new], how="horizontal")
    sides = [
        games.select("question_id", model=me, opponent=it, points_a=f"{me}_a", points_b=f"{me}_b")
        for me, it in (("first", "second"), ("second", "first"))
    ]
    known = shared.unchanged.with_columns(fixed=pl.lit(True))
    own = (
        pl.concat(sides)
        .join(known.rename({"model": "opponent"}), on=["question_id", "opponent"], how="left")
        .join(known.rename({"fixed": "own"}), on=["question_id", "model"], how="left")
        .with_columns(pl.col("fixed", "own").fill_null(False))
    )
    per_model = own.group_by("model").agg(
        all=pl.col("question_id").n_unique(),
        fixed=pl.col("question_id").filter("fixed").n_unique(),
        every=pl.col("fixed").all(),
    )
    fixed = set(per_model.filter(2 * pl.col("fixed") >= pl.col("all"))["model"])
    every = set(per_model.filter("every")["model"])
    own = own.filter(pl.col("fixed") | ~pl.col("model").is_in(list(fixed))).sort("model", "question_id", "opponent")
    words = {m: "" if m in every else "against opponents whose answers did not change" for m in fixed}
    rest = "against opponents whose answers changed too" if shared.texts else ""
    return own, [words.get(model, rest) for model in shared.models]


def touched_models(a: Side, b: Side, lane: Lane, shared: Overlap) -> set[str]:
    """The models with a judgment, of the common questions and models, that is not on both sides the same task with the
    same reading; all of them where the judges differ."""
    if not lane.same:
        return set(shared.models)
    read = ["task_id", "question_id", "model_a", "model_b", "label_logprobs", "emitted", "status"]
    tables = [
        lane.chosen(side.judgments.filter(pl.col("kind") == lane.kind), name)
        .filter(
            pl.col("question_id").is_in(shared.questions),
            pl.col("model_a").is_in(shared.models),
            pl.col("model_b").is_null() | pl.col("model_b").is_in(shared.models),
            pl.col("repeat") == 0,
        )
        .select(*read)
        for name, side in zip(SIDES, (a, b), strict=True)
    ]
    joined = tables[0].join(tables[1], on="task_id", how="full", suffix="_2", coalesce=True)
    same = pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"{name}_2")) for name in read[1:])
    other = joined.filter(~same)
    columns = ("model_a", "model_b", "model_a_2", "model_b_2")
    return {model for column in columns for model in other[column].drop_nulls().unique()}


def _counted(names: pl.Series, models: list[str]) -> list[int]:
    """How often each model is among the names."""
    counts = dict(names.value_counts().iter_rows())
    return [int(counts.get(model, 0)) for model in models]


def _places(rows: pl.DataFrame, column: str, shared: Overlap) -> NDArray[np.int64]:
    """Of each row its place in a flat (models × questions) matrix."""
    models = {name: i for i, name in enumerate(shared.models)}
    questions = {name: i for i, name in enumerate(shared.questions)}
    at = [
        models[model] * len(questions) + questions[question]
        for model, question in rows.select(column, "question_id").iter_rows()
    ]
    return np.array(at, dtype=np.int64)


def _matrix(values: Array, at: NDArray[np.int64], models: int, questions: int) -> Array:
    return binned(at, np.asarray(values, dtype=np.float64), models * questions).reshape(models, questions)
