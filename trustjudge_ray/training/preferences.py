"""Judgments and responses to preference pairs: which answer of a pair the judge prefers, and how sure that is.

`preferences` is the whole way for a few pairs. In bulk it is taken in steps, so that texts are held a bucket at a
time: `measured` (a bucket: numbers and keys, no text), `with_cycles` and `preference_filters.marked` (all pairs),
`with_texts` (a bucket again).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from trustjudge_ray.analysis.readouts import Floats, judged_by
from trustjudge_ray.analysis.scoring import scores
from trustjudge_ray.analysis.tolerances import EQUAL
from trustjudge_ray.analysis.verdicts import (
    TIE,
    UNDEFINED,
    Pairs,
    mean_probabilities,
    normalised,
    order_by_order,
    pairs_of,
)
from trustjudge_ray.corpus.canary import META_JSON
from trustjudge_ray.corpus.preference_formats import TO_ANSWER
from trustjudge_ray.identity import joined_hash, seed_of
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.schema import MESSAGE, check
from trustjudge_ray.training.preference_filters import marked


def _must(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


PREFERENCES: Final = pa.schema(
    [
        _must("prompt", pa.list_(MESSAGE)),
        _must("chosen", pa.list_(MESSAGE)),
        _must("rejected", pa.list_(MESSAGE)),
        _must("pair_id", pa.string()),
        pa.field("model_chosen", pa.string()),
        pa.field("model_rejected", pa.string()),
        pa.field("p", pa.float64()),
        pa.field("p_ab", pa.float64()),
        pa.field("p_ba", pa.float64()),
        pa.field("both_orders_agree", pa.bool_()),
        pa.field("p_tie", pa.float64()),
        pa.field("score_chosen", pa.float64()),
        pa.field("score_rejected", pa.float64()),
        pa.field("entropy_chosen", pa.float64()),
        pa.field("entropy_rejected", pa.float64()),
        pa.field("scores_agree", pa.bool_()),
        pa.field("margin", pa.float64()),
        pa.field("label_mass", pa.float64()),
        _must("judge", pa.string()),
        _must("protocol", pa.string()),
        _must("length_chosen", pa.int64()),
        _must("length_rejected", pa.int64()),
        _must("cycle", pa.bool_()),
        pa.field("label_original", pa.string()),
        pa.field("label_human", pa.string()),
        _must("keep", pa.bool_()),
        pa.field("drop_reason", pa.string()),
    ]
)
"""One row a pair of answers to one prompt, as the judge orders it: `chosen` is the more probable winner. Where the
judge has no preference (equal probabilities, or nothing was read) `chosen` is the source's, and the row is dropped.

prompt, chosen, rejected: messages; the prompt ends before the first answer that the two do not share.
p: P(chosen wins) + P(tie)/2 of the normalised verdict (each order's label probabilities renormalised, then averaged),
    from 0.5 to 1. p_ab: the same of the order in which chosen was shown first, p_ba: rejected first. p_tie: P(tie).
both_orders_agree: whether each order alone has the same likeliest outcome.
margin: P(chosen wins) − P(rejected wins) = 2p − 1. label_mass: that of the order which has less.
score_*, entropy_*: expected score in the protocol's own unit, and its entropy in nats; null without a score protocol.
    scores_agree: chosen has the higher score, by more than 1e-9.
length_*: characters of all its turns.
cycle: whether the decided verdicts on the answers to this prompt go round in a circle somewhere, over all rows of the
    prompt, also where these are pairs of several lines.
label_original, label_human: `chosen` or `rejected`, whichever the source or people's scores prefer; null for neither.
keep, drop_reason: a row of the side table has why it is there, the first reason that applies.
"""

_DERIVED: Final = ("prompt", "chosen", "rejected")
_NAMED: Final = {"identical": "identical_sides", "empty_response": "empty_side"}
"""Statuses of judgments that have another name as reasons."""
_KEY: Final = ("question_id", "response_id")
_SCORE: Final[dict[str, Any]] = dict.fromkeys(_KEY, pl.String) | dict.fromkeys(("score", "entropy"), pl.Float64)


@dataclass(frozen=True, slots=True)
class Labeller:
    """Who labels: a judge, its comparison protocol, and the score protocol beside it, if there is one."""

    judge: str
    protocol: str
    score_protocol: str | None


def preferences(
    judgments: pl.DataFrame,
    responses: pa.Table,
    protocols: Mapping[str, Protocol],
    labeller: Labeller,
    filters: Mapping[str, Any],
) -> pa.Table:
    """PREFERENCES of all compared pairs, kept or not, sorted by question and responses.

    Args:
        judgments: JUDGMENTS; of other judges and protocols too, which are left out.
        responses: RESPONSES of all of them.
        filters: as `preferences.filters`.
    """
    found = with_cycles(measured(judgments, responses, protocols, labeller))
    return with_texts(marked(found, filters), responses)


def measured(
    judgments: pl.DataFrame, responses: pa.Table, protocols: Mapping[str, Protocol], labeller: Labeller
) -> pl.DataFrame:
    """The columns of PREFERENCES that are no texts and depend on no other pair, and what the further steps need.

    These are question_id, response_chosen, response_rejected, prompt_key, text_chosen, text_rejected (63-bit hashes),
    status (`ok`, or why the pair has no preference: a judgment's status, `identical_sides`, `empty_side`, `canary`,
    `no_prompt` where the question has no message, `no_preference`) and decided (whether the verdict is no tie, and its
    pair neither of these).

    Args:
        judgments, responses: with all the judgments of a question all its responses.
    """
    mine = judgments.filter(judged_by(labeller.judge, labeller.protocol))
    pairs = pairs_of(mine)
    table = pairs.keys.drop("model_a", "model_b").with_columns(**_probabilities(pairs))
    answers = _answers(responses).join(_scores(judgments, protocols, labeller), on=list(_KEY), how="left")
    for side in ("a", "b"):
        names = {name: f"{name}_{side}" for name in answers.columns if name not in _KEY}
        mine = answers.rename(names | {"response_id": f"response_{side}"})
        table = table.join(mine, on=["question_id", f"response_{side}"], how="left", maintain_order="left")
    return _oriented(table)


def _probabilities(pairs: Pairs) -> dict[str, pl.Series]:
    """What was read of each pair, about response a."""
    mean, both, orders = mean_probabilities(pairs), normalised(pairs, 0.0), order_by_order(pairs)
    known = (orders.outcomes != UNDEFINED).all(axis=1)
    numbers: dict[str, Floats] = {
        "margin": mean[:, 0] - mean[:, 1],
        "p": mean[:, 0] + mean[:, 2] / 2,
        "p_tie": mean[:, 2],
        "first": orders.wins[:, 0],
        "second": orders.wins[:, 1],
        "label_mass": orders.label_mass,
    }
    found = {name: pl.Series(name, values, nan_to_null=True) for name, values in numbers.items()}
    agree = pl.Series(orders.outcomes[:, 0] == orders.outcomes[:, 1], dtype=pl.Boolean)
    return found | {
        "both_orders_agree": agree.set(pl.Series(~known), None),
        "decided": pl.Series(pairs.has("ok") & (both != TIE) & (both != UNDEFINED)),
        "status": pairs.named(pairs.status),
    }


def _answers(responses: pa.Table) -> pl.DataFrame:
    """Of every response: its model (null where nobody named it), what the source and people say of it, its length, and
    hashes of it and of its question."""
    columns = ("question_id", "response_id", "model", "replies", "human_score", "meta_json", "messages")
    rows = responses.select(columns)
    prompts: dict[str, int] = {}
    for question, messages in zip(rows["question_id"].to_pylist(), rows["messages"].to_pylist(), strict=True):
        if question not in prompts:
            prompts[question] = seed_of(*(part or "" for m in messages for part in (m["role"], m["content"])))
    replies = rows["replies"].to_pylist()
    frame = pl.DataFrame(rows.select([name for name in columns if name not in ("replies", "messages")]))
    said = pl.col("meta_json").str.json_path_match("$.preference.model")
    known = pl.col("meta_json").str.json_path_match("$.preference").str.starts_with("{")  # not a field of the user's
    rating = pl.col("meta_json").str.json_path_match("$.preference.score").cast(pl.Float64, strict=False)
    return frame.select(
        "question_id",
        "response_id",
        model=pl.when(known).then(said).otherwise("model"),
        source=rating,
        human=pl.col("human_score").fill_nan(None),
        canary=(pl.col("meta_json") == META_JSON).fill_null(False),
        asked=pl.Series([bool(messages) for messages in rows["messages"].to_pylist()], dtype=pl.Boolean),
        length=pl.Series([sum(map(len, turns)) for turns in replies], dtype=pl.Int64),
        text=pl.Series([seed_of(*turns) for turns in replies], dtype=pl.Int64),
        prompt_key=pl.Series([prompts[question] for question in frame["question_id"]], dtype=pl.Int64),
    )


def _scores(judgments: pl.DataFrame, protocols: Mapping[str, Protocol], labeller: Labeller) -> pl.DataFrame:
    """question_id, response_id, expected score and entropy."""
    mine = judgments.filter(judged_by(labeller.judge, labeller.score_protocol))
    if not mine.height:
        return pl.DataFrame(schema=_SCORE)
    found = scores(mine, dict(protocols)).filter(pl.col("rule") == "expected", pl.col("status") == "ok")
    return found.select(*_SCORE)


def _oriented(table: pl.DataFrame) -> pl.DataFrame:
    """Rows about a and b to rows about chosen and rejected."""
    preferred = pl.when(pl.col("margin").abs() > EQUAL).then(pl.col("margin").sign())
    source = (pl.col("source_a") - pl.col("source_b")).sign()
    people = pl.col("human_a") - pl.col("human_b")
    table = table.with_columns(
        swap=pl.coalesce(preferred, source.replace(0.0, None), pl.lit(1.0)) < 0,
        label_original=source,
        label_human=pl.when(people.abs() <= EQUAL).then(0.0).otherwise(people.sign()),
        status=_status(),
    )
    swap = pl.col("swap")

    def sided(name: str, chosen: bool) -> pl.Expr:
        a, b = pl.col(f"{name}_a"), pl.col(f"{name}_b")
        return pl.when(swap).then(b if chosen else a).otherwise(a if chosen else b)

    both = ("response", "model", "score", "entropy", "length", "text")
    sides = {f"{name}_{side}": sided(name, side == "chosen") for name in both for side in ("chosen", "rejected")}
    return table.select(
        "question_id",
        "judge",
        "protocol",
        "status",
        "both_orders_agree",
        "p_tie",
        "label_mass",
        **sides,
        decided=pl.col("decided") & ~pl.col("status").is_in(["canary", "no_prompt"]),
        pair_id=_pair_ids(table),
        prompt_key=pl.col("prompt_key_a"),
        p=pl.when(swap).then(1 - pl.col("p")).otherwise("p"),
        p_ab=pl.when(swap).then(1 - pl.col("second")).otherwise("first"),
        p_ba=pl.when(swap).then(1 - pl.col("first")).otherwise("second"),
        margin=pl.when(swap).then(-pl.col("margin")).otherwise("margin"),
        **{name: _label(name) for name in ("label_original", "label_human")},
    ).with_columns(scores_agree=pl.col("score_chosen") - pl.col("score_rejected") > EQUAL)


def _status() -> pl.Expr:
    """Why a pair has no preference, or `ok`."""
    named = pl.col("status").replace(_NAMED)
    even = (named == "ok") & (pl.col("margin").abs() <= EQUAL)
    silent = (named == "ok") & pl.col("margin").is_null()
    return (
        pl.when(pl.col("canary_a") | pl.col("canary_b"))
        .then(pl.lit("canary"))
        .when(~pl.col("asked_a"))
        .then(pl.lit("no_prompt"))
        .when(silent)
        .then(pl.lit("no_label_mass"))
        .when(even)
        .then(pl.lit("no_preference"))
        .otherwise(named)
    )


def _label(name: str) -> pl.Expr:
    """A sign about a as the side that it prefers."""
    return (
        pl.when((pl.col(name) == 0) | pl.col(name).is_null())
        .then(None)
        .when((pl.col(name) < 0) == pl.col("swap"))
        .then(pl.lit("chosen"))
        .otherwise(pl.lit("rejected"))
    )


def _pair_ids(table: pl.DataFrame) -> pl.Series:
    """Of a pair that the source gave, its question's id; of others a hash of question and responses. Both are the same
    in every run."""
    rows = table.select("question_id", "response_a", "response_b").iter_rows()
    return pl.Series(
        [q if (a, b) == ("chosen", "rejected") else joined_hash(q, a, b) for q, a, b in rows], dtype=pl.String
    )


def with_cycles(measured_pairs: pl.DataFrame) -> pl.DataFrame:
    """`cycle` for every pair: whether the decided verdicts on its prompt's answers, as arrows from the better to the
    worse, hold a directed cycle (a strongly connected part of more than one answer). Equal texts are one answer."""
    edges = measured_pairs.filter("decided")
    columns = {"better": edges["text_chosen"], "worse": edges["text_rejected"]}
    ends = pl.concat([pl.DataFrame({"prompt_key": edges["prompt_key"], "text": text}) for text in columns.values()])
    place = ends.select(pl.struct("prompt_key", "text").rank("dense") - 1).to_series().to_numpy().astype(np.int64)
    nodes = int(place.max()) + 1 if len(place) else 0
    better, worse = place[: edges.height], place[edges.height :]
    graph = coo_array((np.ones(len(better), dtype=np.int8), (better, worse)), shape=(nodes, nodes)).tocsr()
    part = connected_components(graph, directed=True, connection="strong")[1] if nodes else place
    round_in_circles = edges["prompt_key"].filter(pl.Series(part[better] == part[worse], dtype=pl.Boolean)).unique()
    return measured_pairs.with_columns(cycle=pl.col("prompt_key").is_in(round_in_circles.implode()))


def with_texts(pairs: pl.DataFrame, responses: pa.Table) -> pa.Table:
    """PREFERENCES from pairs with `keep` and `drop_reason` (`preference_filters.marked`), and the responses that hold
    their texts.

    Raises:
        KeyError: a response is not among `responses`.
    """
    rows = responses.select(["question_id", "response_id", "messages", "replies"]).to_pylist()
    texts = {(row["question_id"], row["response_id"]): (row["messages"], row["replies"]) for row in rows}
    found: dict[str, list[Any]] = {name: [] for name in _DERIVED}
    for question, *ids in pairs.select("question_id", "response_chosen", "response_rejected").iter_rows():
        sides = [texts[question, response] for response in ids]
        turns = max(len(replies) for _, replies in sides)
        prompt, asked = split_turns(sides[0][0], turns)
        found["prompt"].append(prompt)
        for name, (_, replies) in zip(_DERIVED[1:], sides, strict=True):
            found[name].append(_dialogue(replies, asked))
    kept = pairs.select([name for name in PREFERENCES.names if name not in _DERIVED]).to_arrow()
    columns = {name: pa.array(values, pa.list_(MESSAGE)) for name, values in found.items()}
    return check(pa.table(columns | dict(zip(kept.column_names, kept.columns, strict=True))), PREFERENCES)


def split_turns(messages: list[dict[str, str]], turns: int) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """The conversation up to the first of an answer's turns, and the user's messages between these: RESPONSES has them
    at the end of the messages, and before them the message that the first turn answers, the user's or a tool's. Where
    they are not there, the answer's turns follow each other."""
    between = turns - 1
    roles = [message["role"] for message in messages[-turns:]]
    if len(roles) == turns > 1 and roles[0] in TO_ANSWER and roles[1:] == ["user"] * between:
        return messages[:-between], messages[-between:]
    return messages, []


def _dialogue(replies: list[str], asked: list[dict[str, str]]) -> list[dict[str, str]]:
    """The turns of an answer with the user's messages between them."""
    said = [{"role": "assistant", "content": reply} for reply in replies]
    if not asked:
        return said
    spoken: list[dict[str, str]] = []
    for place, turn in enumerate(said):
        spoken += [turn, *asked[place : place + 1]]
    return spoken[: 2 * len(said) - 1]
