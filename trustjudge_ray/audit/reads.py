"""From judgments to the tables that a card is computed of: what was answered, and how each answer was judged."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl

from trustjudge_ray.audit.candidates import WITHHELD
from trustjudge_ray.audit.qa import ORACLES, SHOWN_GOLD, Item
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.judging.slots import pieces

YES, NO = ("yes", "y", "true"), ("no", "n", "false")
_ABOUT: Final = {
    "item_id": pl.String,
    "passage_id": pl.String,
    "benchmark": pl.String,
    "hops": pl.Int32,
    "answerable": pl.Boolean,
}


def condition_of(protocol: Protocol) -> str:
    """What a verification shows: `full`, or `no_passage`. Where the answer is withheld the candidate says so."""
    return "full" if "context" in protocol.slots else "no_passage"


def polarity_of(protocol: Protocol) -> str:
    """What saying yes would mean: `right` (yes accepts), `wrong` (yes rejects), or `correct` (the labels say it)."""
    accept = protocol.label_texts[0].strip(" .,!").casefold()
    return "right" if accept in YES else "wrong" if accept in NO else "correct"


def first_of(protocol: Protocol) -> str:
    """Which label the prompt names first, `accept` or `reject`, in its text after the last slot; `accept` if none."""
    *_, (is_slot, text) = pieces(protocol.user)
    places = [_place(label, "" if is_slot else text) for label in protocol.label_texts]
    return "reject" if places[1] < places[0] else "accept"


def _place(label: str, text: str) -> float:
    found = re.search(rf"(?<!\w){re.escape(label.strip())}(?!\w)", text)
    return found.start() if found else np.inf


def about(items: Iterable[Item]) -> pl.DataFrame:
    """item_id, passage_id, benchmark, hops, answerable of each item."""
    rows = [(item.id, item.passage_id, item.benchmark, item.hops, item.answerable) for item in items]
    return pl.DataFrame(rows, _ABOUT, orient="row")


def generated(
    judgments: pl.DataFrame, protocols: Mapping[str, Protocol], items: Sequence[Item], shown: pl.DataFrame | None = None
) -> pl.DataFrame:
    """GENERATED: the answers of one judge, and what each oracle says of them.

    Args:
        judgments: JUDGMENTS rows of kind `answer`, sample 0.
        protocols: by name; those with a passage give condition `passage`, the others `closed_book`.
        shown: item_id, condition, and `shown_gold` (bool, null where it could not be read), if a judge was shown the
            golds too.
    """
    known = {item.id: item for item in items}
    rows = judgments.filter(kind="answer", repeat=0, sample=0).select(
        pl.col("question_id").alias("item_id"),
        _mapped(
            "protocol", {n: "passage" if "context" in p.slots else "closed_book" for n, p in protocols.items()}
        ).alias("condition"),
        "status",
        "output",
        pl.col("rationale_cut").alias("cut"),
    )
    read = [(known[row["item_id"]], row["output"] if row["status"] == "ok" else None) for row in rows.to_dicts()]
    said = {
        name: pl.Series(name, [None if text is None else oracle(item, text) for item, text in read], pl.Boolean)
        for name, oracle in ORACLES.items()
    }
    table = rows.with_columns(**said).join(about(items), on="item_id", how="left")
    if shown is not None:
        table = table.join(shown, on=["item_id", "condition"], how="left")
    return table.sort("item_id", "condition")


def shown_gold(judgments: pl.DataFrame, min_mass: float) -> pl.DataFrame:
    """What a judge that was shown the golds says of the answers: item_id, condition, and `shown_gold`, whether it gives
    accepting more probability.

    Null where the verdict cannot be read: its judgment failed, or the labels have less than `min_mass`. An answer
    without a word was put to no judge; it is wrong, as for every oracle.

    Args:
        judgments: JUDGMENTS rows of kind `verify`, one for each answer; `response_a` is the condition.
    """
    accept, reject = _logprobs(2)
    read = (pl.col("status") == "ok") & (pl.col("label_mass") >= min_mass)
    said = pl.when(pl.col("status") == "empty_response").then(False).when(read).then(accept > reject)
    return judgments.select(
        pl.col("question_id").alias("item_id"), pl.col("response_a").alias("condition"), said.alias(SHOWN_GOLD)
    )


def reads(
    judgments: pl.DataFrame, protocols: Mapping[str, Protocol], items: Sequence[Item], candidates: pl.DataFrame
) -> pl.DataFrame:
    """READS: one row for each verification.

    `p_accept` = P(accept) / (P(accept) + P(reject)), `log_odds` = ln P(accept) − ln P(reject); both null where the
    judgment is not ok. A label that an endpoint does not list among its most probable tokens has probability 0, as
    everywhere: the surest verdicts would be left out otherwise.
    """
    asked = judgments.filter(kind="verify")
    names = {name: protocol for name, protocol in protocols.items() if protocol.kind == "verify"}
    accept, reject = _logprobs(2)
    odds = pl.when(pl.col("status") == "ok").then(accept - reject)
    rows = asked.select(
        pl.col("question_id").alias("item_id"),
        pl.col("response_a").alias("candidate"),
        "protocol",
        pl.when(pl.col("response_a") == WITHHELD)
        .then(pl.lit("no_candidate"))
        .otherwise(_mapped("protocol", {name: condition_of(p) for name, p in names.items()}))
        .alias("condition"),
        _mapped("protocol", {name: polarity_of(p) for name, p in names.items()}).alias("polarity"),
        _mapped("protocol", {name: first_of(p) for name, p in names.items()}).alias("first"),
        pl.col("repeat").cast(pl.Int32),
        "status",
        (1 / (1 + (-odds).exp())).alias("p_accept"),
        odds.alias("log_odds"),
        "label_mass",
    )
    kept = candidates.select("item_id", "candidate", "truth", "negative", "base")
    joined = rows.join(kept, on=["item_id", "candidate"], how="left").join(about(items), on="item_id", how="left")
    return joined.sort("item_id", "candidate", "protocol", "repeat")


def pairs(judgments: pl.DataFrame, items: Sequence[Item], better: str = "gold", worse: str = "swap") -> pl.DataFrame:
    """PAIRS: the comparisons of gold and swap, a row for each order in which they were shown."""
    asked = judgments.filter(kind="compare", response_a=better, response_b=worse, repeat=0)
    shares = [logprob.exp() for logprob in _logprobs(3)]
    usable = pl.col("status") == "ok"
    named = zip(("p_gold", "p_swap", "p_tie"), shares, strict=True)
    rows = asked.select(
        pl.col("question_id").alias("item_id"),
        "order",
        "status",
        *(pl.when(usable).then(share / pl.col("label_mass")).alias(name) for name, share in named),
        "label_mass",
    )
    return rows.join(about(items).select("item_id", "passage_id", "benchmark"), on="item_id", how="left").sort(
        "item_id", "order"
    )


def _logprobs(labels: int) -> list[pl.Expr]:
    """ln P of each label of a judgment that is ok, −inf where it was not listed."""
    return [pl.col("label_logprobs").list.get(place, null_on_oob=True).fill_null(-np.inf) for place in range(labels)]


def _mapped(column: str, values: Mapping[str, str]) -> pl.Expr:
    return pl.col(column).replace_strict(values, return_dtype=pl.String, default=None)
