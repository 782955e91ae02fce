"""The pairs that a data card lists as doubtful: how many on the card, and with their excerpts on a page of their own.

Only that page has texts of the corpus.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trustjudge_ray.report.cells import Table, number
from trustjudge_ray.report.excerpts import Excerpt
from trustjudge_ray.report.rendering import policy, render, script

_KINDS: Final = {
    "human": (
        "People prefer the rejected answer",
        "The surest labels first: what is wrong here, the judge or the label, is worth knowing before any training.",
        "no kept pair goes against a label of people's",
    ),
    "original": (
        "The source prefers the rejected answer",
        "The surest labels first: what is wrong here, the judge or the label, is worth knowing before any training.",
        "no kept pair goes against a label of the source",
    ),
    "scores": (
        "The judge scores the rejected answer higher",
        "Its own scores and its comparison contradict each other; the largest difference of scores first.",
        "no kept pair goes against the judge's own scores",
    ),
    "narrow": (
        "Nearest to 1/2",
        "The smallest margins that are kept: the labels that a little noise would turn round.",
        "no pair is kept",
    ),
}
"""By kind of doubt: title, what it says, and what is said where there is none."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A pair: its id, what is known of it as terms and values, the heads of its two sides, and its texts."""

    pair_id: str
    facts: list[tuple[str, str]]
    sides: list[tuple[str, str]]
    asked: str
    earlier: str


@dataclass(frozen=True, slots=True)
class Kind:
    """The pairs of a kind of doubt, and how many of all kept ones are of it."""

    title: str
    note: str
    extent: str
    pairs: list[Shown]
    empty: str


def pairs_page(card: Mapping[str, Any], title: str, excerpts: Mapping[str, Excerpt]) -> str:
    """The listed pairs as HTML, kind by kind.

    Args:
        excerpts: of every pair that the card lists, by its id.
    """
    theme = script("theme.js")
    return render("pairs.html.j2", title=title, policy=policy([theme]), theme=theme, doubtful=_kinds(card, excerpts))


def read_first(card: Mapping[str, Any]) -> Table:
    """How many kept pairs are of each kind of doubt, – where nothing could tell."""
    rows = []
    for name, found in card["doubtful"].items() if card["counts"]["kept"] else ():
        told = _missing(card, name) is None
        rows.append((_KINDS[name][0], str(found["of"]) if told else "–", str(len(found["pairs"])) if told else "–"))
    note = "Kept pairs by kind of doubt; a pair may be of several. The most doubtful of each kind are in pairs.html."
    return Table("Kinds of doubt", note, ("kind", "kept pairs", "in pairs.html"), rows, "no pair is kept")


def _missing(card: Mapping[str, Any], name: str) -> str | None:
    """What a kind of doubt would be told by and the kept pairs do not have."""
    if name == "scores":
        return None if card["labeller"]["score_protocol"] else "the run has no scores"
    if name in card["agreement"] and not card["agreement"][name]["kept"]["cases"]:
        return "no kept pair has such a label"
    return None


def _kinds(card: Mapping[str, Any], excerpts: Mapping[str, Excerpt]) -> list[Kind]:
    kinds = []
    for name, found in card["doubtful"].items():
        title, note, empty = _KINDS[name]
        empty = _missing(card, name) or empty
        pairs = [_shown(pair, excerpts[pair["pair_id"]]) for pair in found["pairs"]]
        kinds.append(Kind(title, note, _extent(len(pairs), found["of"], name == "narrow"), pairs, empty))
    return kinds


def _extent(listed: int, of: int, every: bool) -> str:
    """How many are listed; `every`: any kept pair is of the kind."""
    which = "kept" if every else "such"
    if of == 1:
        return f"1 {which} pair"
    return f"all {of} {which} pairs" if listed == of else f"{listed} of {of} {which} pairs"


def _shown(pair: Mapping[str, Any], texts: Excerpt) -> Shown:
    facts = [("p", number(pair["p"])), ("margin", number(pair["margin"]))]
    facts += [("p, chosen shown first", number(pair["p_ab"])), ("p, chosen shown second", number(pair["p_ba"]))]
    facts += [("P(tie)", number(pair["p_tie"]))]
    for label, words in (("label_original", "the source prefers"), ("label_human", "people prefer")):
        facts += [(words, pair[label])] if pair[label] else []
    sides = [(_head(pair, "chosen"), texts.chosen), (_head(pair, "rejected"), texts.rejected)]
    earlier = "" if not texts.before else f"after {texts.before} earlier message{'s' if texts.before > 1 else ''}"
    return Shown(pair["pair_id"], facts, sides, texts.asked, earlier)


def _head(pair: Mapping[str, Any], side: str) -> str:
    score, length = pair[f"score_{side}"], pair[f"length_{side}"]
    scored = "" if score is None else f"score {number(score)}, "
    return f"{side.capitalize()}: {scored}{length} character{'' if length == 1 else 's'}"
