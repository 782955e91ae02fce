"""The data card of preference pairs as one HTML file that loads nothing. Everything is escaped."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trustjudge_ray.report.cells import Table, interval, listed, share
from trustjudge_ray.report.doubtful import read_first
from trustjudge_ray.report.rendering import policy, render, script

Card = Mapping[str, Any]

_SETS: Final = {"readable": "all readable pairs", "kept": "kept pairs"}
_LABELS: Final = {"original": "the source's labels", "human": "people's labels"}
_PLAIN: Final = {"original": "a label of the source", "human": "a label of people's"}
_POSITIONS: Final = {
    "before": "each order alone",
    "after": "both orders averaged",
    "kept": "each order alone, kept pairs",
}
_KEPT: Final = "no pair is kept"
_NONE: Final = "no pair is readable"
_BY_CONSTRUCTION: Final = "0 by construction"
_SWAPPED: Final = "Swapped: the source's chosen answer is the rejected one now. "
_COLUMNS: Final = ("share", "interval", "pairs", "prompts", "left out")


def page(card: Card, title: str) -> str:
    """The card as HTML. It has no text of the corpus."""
    theme = script("theme.js")
    return render(
        "preferences.html.j2",
        title=title,
        policy=policy([theme]),
        theme=theme,
        labeller=labeller(card),
        run=run(card),
        manifest=card["run"] is not None,
        terms=terms(card),
        cautions=card["cautions"],
        sections={
            "Pairs": [counts(card), filters(card)],
            "Position": [position(card)],
            "Length": [length(card), correlation(card)],
            "Agreement": [agreement(card)],
            "Calibration": [temperature(card), reliability(card)],
            "Noise": [noise(card)],
            "Pairs to read first": [read_first(card)],
        },
        first=any(kind["of"] for kind in card["doubtful"].values()),
        card=json.dumps(card, indent=1, ensure_ascii=False, default=str),
    )


def labeller(card: Card) -> str:
    """Who labelled, in a sentence."""
    by = card["labeller"]
    scores = f", scores by {by['score_protocol']}" if by["score_protocol"] else ", no scores"
    return f"Labelled by {by['judge']}, protocol {by['protocol']} in both orders{scores}."


def run(card: Card) -> str:
    """What the run was, in a sentence; empty where nothing tells."""
    told = card["run"] or {}
    parts = []
    if told.get("model"):
        parts.append(f"Judge: {told['model']} (engine {told['engine']}).")
    if told.get("tool"):
        parts.append(f"Judged with trustjudge_ray {told['tool']}.")
    if told.get("corpus"):
        parts.append(f"Pairs from {listed(told['corpus'])}.")
    return " ".join(parts)


def terms(card: Card) -> list[tuple[str, str]]:
    """What the words of the page mean."""
    return [
        (
            "interval",
            f"{100 * card['confidence']:g} % confidence; clustered by prompt: pairs of one prompt are not independent",
        ),
        ("readable", "a pair whose both orders were read and say together that one answer is better"),
        ("p", "the chance that the chosen answer is better, both orders averaged and half of a tie counted: 0.5 to 1"),
        ("margin", "P(chosen wins) − P(rejected wins) = 2p − 1: 0 to 1"),
        (
            "label mass",
            "how much of the judge's probability went to the labels it was asked for, in the order with less",
        ),
        ("length", "characters of all turns of an answer"),
        (
            "calibration error",
            "how far p is from how often it is right, on average over ten bins of p: 0 is best, to 1",
        ),
        ("Brier", "mean squared error of p, summed over both answers: 0 is best, 0.5 is a coin's, to 2"),
        ("log loss", "mean of −ln p of the labelled answer: 0 is best, 0.693 is a coin's"),
    ]


def number(value: float | None) -> str:
    """A number with three decimals, none of them a negative zero; a dash where there is none."""
    return "–" if value is None else f"{value:z.3f}"


def counts(card: Card) -> Table:
    """What became of every row."""
    told = card["counts"]
    rows = [("rows of the source", "–" if told["rows"] is None else str(told["rows"]))]
    rows += [(f"not readable: {reason}", str(n)) for reason, n in told["quarantined"].items()]
    rows += [(f"answer not usable, of a row that is used: {reason}", str(n)) for reason, n in told["answers"].items()]
    rows += [("pairs", str(told["pairs"])), ("prompts", str(told["prompts"])), ("kept", str(told["kept"]))]
    rows += [(f"dropped: {reason}", str(n)) for reason, n in told["dropped"].items()]
    theirs = told["swapped"]
    swapped = f"{theirs['pairs']} of {theirs['of']}" if theirs["of"] else "– (no labels of the source)"
    rows.append(("kept, swapped against the source", swapped))
    return Table(
        "What became of the rows",
        _SWAPPED + "A pair is dropped for the first reason that applies.",
        ("", "count"),
        rows,
    )


def filters(card: Card) -> Table:
    """What each filter costs."""
    note = "Of the pairs with a readable preference, those that do not pass, whatever the other filters say."
    columns = ("filter", "value", "do not pass", "unknown", "of", "dropped for it")
    names = ("not_pass", "unknown", "readable", "dropped")
    rows = [(f["filter"], json.dumps(f["value"]), *(str(f[name]) for name in names)) for f in card["filters"]]
    return Table("Filters", note, columns, rows, "no filter is on")


def position(card: Card) -> Table:
    """What the order of showing did."""
    note = (
        "Order effect: P(shown first wins) − P(shown second wins), 0 is unbiased. Orders disagree: pairs whose label "
        "would hang on the order if one alone were read."
    )
    rows = []
    for name, words in _POSITIONS.items():
        found = card["position"][name]
        if found.get("by_construction"):
            rows.append((words, _BY_CONSTRUCTION, "", _BY_CONSTRUCTION, "", ""))
            continue
        effect, disagree = found["order_effect"], found["disagree"]
        cells = number(effect["value"]), interval(effect, number), share(disagree["value"]), interval(disagree, share)
        rows.append((words, *cells, str(disagree["cases"])))
    columns = ("", "order effect", "interval", "orders disagree", "interval", "pairs")
    rows = rows if card["position"]["before"]["disagree"]["cases"] else []
    return Table("Position", note, columns, rows, "no pair was read in both orders")


def length(card: Card) -> Table:
    """How often the longer answer is chosen."""
    found = [
        (f"by {who}, {words}", card["length"][name][key])
        for name, words in _SETS.items()
        for who, key in (("the judge", "longer_chosen"), ("the source", "longer_original"))
    ]
    note = "One half is unbiased only if length says nothing about quality."
    columns, empty = ("", *_COLUMNS), "no readable pair has answers of unlike length"
    return Table("The longer answer is chosen", note, columns, _share_rows(found), empty)


def correlation(card: Card) -> Table:
    """Of length with winning."""
    found = [(words, card["length"][name]["correlation"]) for name, words in _SETS.items()]
    rows = [
        (words, number(c["value"]), interval(c, number), str(c["cases"])) for words, c in found if found[0][1]["cases"]
    ]
    note = "Of the logarithm of the length ratio with the signed margin, through the origin."
    return Table("Correlation of length and winning", note, ("", "correlation", "interval", "pairs"), rows, _NONE)


def agreement(card: Card) -> Table:
    """With the labels that came with the pairs."""
    given = [kind for kind in _LABELS if card["agreement"][kind]["readable"]["cases"]]
    found = [
        (f"{_LABELS[kind]}, {words}", card["agreement"][kind][name]) for kind in given for name, words in _SETS.items()
    ]
    note, empty = "Pairs whose chosen side the label prefers too.", "no readable pair has a label"
    note += "".join(f" No readable pair has {labels}." for kind, labels in _PLAIN.items() if kind not in given)
    return Table("Agreement", note, ("with", *_COLUMNS), _share_rows(found), empty)


def temperature(card: Card) -> Table:
    """What temperature scaling found."""
    found = card["calibration"]
    note = "p^(1/T), renormalised; over 1 the judge is too sure. Losses with it are of prompts it was not fitted on."
    names = ("log loss", "calibration error", "Brier")
    columns = ("labels", "T", "pairs", "prompts", *(word for name in names for word in (name, "with T")))
    if not found:
        return Table("Temperature", note, columns, [], "no labelled pairs")
    fitted = found["temperature_scaling"]
    if fitted["reason"]:
        note = f"No temperature T: {fitted['reason']}. What follows is of p as the judge gives it."
        columns = tuple(name for name in columns if name not in ("T", "with T"))
    told = [fitted[when] for when in ("before", "after") if fitted[when]]
    if not told:
        return Table("Temperature", "", columns, [], fitted["reason"])
    losses = [number(of[loss]) for loss in ("log_loss", "calibration_error", "brier") for of in told]
    fit = () if fitted["reason"] else (number(fitted["temperature"]),)
    cells = (_LABELS[found["labels"]], *fit, str(found["pairs"]), str(found["prompts"]), *losses)
    return Table("Temperature", note, columns, [cells])


def reliability(card: Card) -> Table:
    """How often p is right."""
    note = "Labelled pairs by how likely the judge says its choice is, and how often the label agrees."
    columns = ("p", "mean p", "label agrees", "interval", "pairs", "prompts")
    bins = card["calibration"]["reliability"] if card["calibration"] else []
    rows = [
        (
            f"{b['start']:.1f} – {b['end']:.1f}",
            share(b["confidence"]),
            share(b["right"]),
            interval(b, share),
            str(b["cases"]),
            str(b["questions"]),
        )
        for b in bins
    ]
    return Table("Reliability", note, columns, rows, "no labelled pairs")


def noise(card: Card) -> Table:
    """How many kept labels are wrong."""
    found = card["noise"]
    how = "calibrated on labelled kept pairs" if found["calibrated"] else "not calibrated: the judge's own"
    rows = [(f"mean of min(p, 1 − p), {how}", *_share_cells(found["expected"]), "")]
    for kind, words in _LABELS.items():
        told = found["by_label"][kind]
        if not told["cases"]:
            continue
        of_these = "–" if told["expected"] is None else share(told["expected"])
        rows.append((f"against {words}: their errors count too", *_share_cells(told), of_these))
    note = (
        "Of the kept pairs. The first holds only where p is right as often as it says: by p, the mean of min(p, 1 − p) "
        "of the same labelled pairs, should then lie in the interval of the labels."
    )
    columns = ("estimator", *_COLUMNS, "by p")
    return Table("Estimated share of wrong labels", note, columns, rows if found["expected"]["cases"] else [], _KEPT)


def _share_rows(found: Sequence[tuple[str, Mapping[str, Any]]]) -> list[tuple[str, ...]]:
    """Rows of shares; none where all are of nothing."""
    return [(words, *_share_cells(told)) for words, told in found] if any(told["cases"] for _, told in found) else []


def _share_cells(found: Mapping[str, Any]) -> tuple[str, ...]:
    left = ", ".join(f"{reason} {n}" for reason, n in found["excluded"].items())
    return share(found["value"]), interval(dict(found), share), str(found["cases"]), str(found["prompts"]), left
