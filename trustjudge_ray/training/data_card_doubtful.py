"""The kept pairs that a person should read first: of each kind of doubt the few whose labels are the most doubtful."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import polars as pl

from trustjudge_ray.analysis.tolerances import EQUAL

MOST: Final = 20
"""Pairs of one kind that are listed at most."""
_DIGITS: Final = 9
"""Decimals in which doubts are told apart: what differs by float noise alone goes by its pair id."""
_TOLD: Final = (
    *("pair_id", "p", "margin", "p_ab", "p_ba", "p_tie", "score_chosen", "score_rejected"),
    *("length_chosen", "length_rejected", "label_original", "label_human"),
)


def against_people(kept: pl.DataFrame) -> pl.DataFrame:
    """People prefer the rejected answer: the surest label first."""
    return kept.filter(pl.col("label_human") == "rejected").with_columns(doubt="margin")


def against_source(kept: pl.DataFrame) -> pl.DataFrame:
    """The source's label prefers the rejected answer: the surest label first."""
    return kept.filter(pl.col("label_original") == "rejected").with_columns(doubt="margin")


def against_scores(kept: pl.DataFrame) -> pl.DataFrame:
    """The judge itself scores the rejected answer higher: the largest difference of expected scores first."""
    gap = (pl.col("score_rejected") - pl.col("score_chosen")).cast(pl.Float64)
    return kept.filter(gap > EQUAL).with_columns(doubt=gap)


def narrow(kept: pl.DataFrame) -> pl.DataFrame:
    """Every kept pair: p nearest to 1/2 first."""
    return kept.with_columns(doubt=-pl.col("margin"))


DOUBTS: Final[dict[str, Callable[[pl.DataFrame], pl.DataFrame]]] = {
    "human": against_people,
    "original": against_source,
    "scores": against_scores,
    "narrow": narrow,
}
"""Kinds of doubt: from kept pairs to those of the kind, with how great the `doubt` is."""


def doubtful(kept: pl.DataFrame) -> dict[str, Any]:
    """By kind of doubt: `of`, how many kept pairs are of it, and the MOST most doubtful of these, `pairs`, the most
    doubtful first, equal ones by pair id: numbers and labels, no text. A pair may be of several kinds.

    Args:
        kept: measured pairs that are kept.
    """
    numbers, found = kept.select(_TOLD), {}
    for kind, rule in DOUBTS.items():
        some = rule(numbers).with_columns(pl.col("doubt").round(_DIGITS))
        first = some.top_k(MOST, by=["doubt", "pair_id"], reverse=[False, True])
        first = first.sort("doubt", "pair_id", descending=[True, False]).drop("doubt")
        found[kind] = {"of": some.height, "pairs": first.to_dicts()}
    return found


def listed(card: Mapping[str, Any]) -> list[str]:
    """The ids of the pairs that a card lists as doubtful, each once."""
    return sorted({pair["pair_id"] for kind in card["doubtful"].values() for pair in kind["pairs"]})
