"""The data card of preference pairs as one HTML file that loads nothing. Everything is escaped."""

import json
from collections.abc import Mapping
from typing import Any, Final

from trustjudge_ray.report.cells import Table, interval, number, share
from trustjudge_ray.report.rendering import render

Card = Mapping[str, Any]

_SETS: Final = {"readable": "all readable pairs", "kept": "kept pairs"}
_LABELS: Final = {"original": "the source's labels", "human": "people's labels"}
_POSITIONS: Final = {
    "before": "each order alone",
    "after": "both orders averaged",
    "kept": "each order alone, kept pairs",
}
_COLUMNS: Final = ("share", "interval", "pairs", "prompts", "left out")


def page(card: Card, title: str) -> str:
    """The card as HTML."""
    return render(
        "preferences.html.j2",
        title=title,
        labeller=labeller(card),
        cautions=card["cautions"],
        sections={
            "Pairs": [counts(card), filters(card)],
            "Position": [position(card)],
            "Length": [length(card), correlation(card)],
            "Agreement": [agreement(card)],
            "Calibration": [temperature(card), reliability(card)],
            "Noise": [noise(card)],
        },
        card=json.dumps(card, indent=1, ensure_ascii=False, default=str),
    )


def labeller(card: Card) -> str:
    """Who labelled, in a sentence."""
    by = card["labeller"]
    scores = f", scores by {by['score_protocol']}" if by["score_protocol"] else ", no scores"
    return f"Labelled by {by['judge']}, protocol {by['protocol']} in both orders{scores}."


def counts(card: Card) -> Table:
    """What became of every row."""
    told = card["counts"]
    rows = [("rows of the source", "–" if told["rows"] is None else str(told["rows"]))]
    rows += [(f"not readable: {reason}", str(n)) for reason, n in told["quarantined"].items()]
    rows += [("pairs", str(told["pairs"])), ("prompts", str(told["prompts"])), ("kept", str(told["kept"]))]
    rows += [(f"dropped: {reason}", str(n)) for reason, n in told["dropped"].items()]
    return Table("What became of the rows", "A pair is dropped for the first reason that applies.", ("", "count"), rows)


def filters(card: Card) -> Table:
    """What each filter costs."""
    note = "Of the pairs with a readable preference, those that do not pass, whatever the other filters say."
    columns = ("filter", "value", "do not pass", "unknown", "of", "dropped for it")
    names = ("not_pass", "unknown", "readable", "dropped")
    rows = [(f["filter"], str(f["value"]), *(str(f[name]) for name in names)) for f in card["filters"]]
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
        effect, disagree = found["order_effect"], found["disagree"]
        cells = number(effect["value"]), interval(effect, number), share(disagree["value"]), interval(disagree, share)
        rows.append((words, *cells, str(disagree["cases"])))
    return Table("Position", note, ("", "order effect", "interval", "orders disagree", "interval", "pairs"), rows)


def length(card: Card) -> Table:
    """How often the longer answer is chosen."""
    rows = []
    for name, words in _SETS.items():
        rows.append((f"by the judge, {words}", *_share_cells(card["length"][name]["longer_chosen"])))
        rows.append((f"by the source, {words}", *_share_cells(card["length"][name]["longer_original"])))
    note = "One half is unbiased only if length says nothing about quality."
    return Table("The longer answer is chosen", note, ("", *_COLUMNS), rows)


def correlation(card: Card) -> Table:
    """Of length with winning."""
    found = [(words, card["length"][name]["correlation"]) for name, words in _SETS.items()]
    rows = [(words, number(c["value"]), interval(c, number), str(c["cases"])) for words, c in found]
    note = "Of the logarithm of the length ratio with the signed margin, through the origin."
    return Table("Correlation of length and winning", note, ("", "correlation", "interval", "pairs"), rows)


def agreement(card: Card) -> Table:
    """With the labels that came with the pairs."""
    rows = [
        (f"{labels}, {words}", *_share_cells(card["agreement"][kind][name]))
        for kind, labels in _LABELS.items()
        for name, words in _SETS.items()
    ]
    return Table("Agreement", "Pairs whose chosen side the label prefers too.", ("with", *_COLUMNS), rows)


def temperature(card: Card) -> Table:
    """What temperature scaling found."""
    found = card["calibration"]
    fitted = found and found["temperature_scaling"]
    note = "p^(1/T), renormalised; over 1 the judge is too sure. Losses with it are of prompts it was not fitted on."
    columns = ("labels", "T", "pairs", "prompts", "log loss", "with T", "calibration error", "with T", "")
    if not fitted:
        return Table("Temperature", note, columns, [], "no labelled slice of two prompts")
    losses = [number(fitted[when][loss]) for loss in ("log_loss", "calibration_error") for when in ("before", "after")]
    cells = (_LABELS[found["labels"]], number(fitted["temperature"]), str(found["pairs"]), str(found["prompts"]))
    return Table("Temperature", note, columns, [(*cells, *losses, "no best T" if fitted["at_edge"] else "")])


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
    how = "after calibration" if found["calibrated"] else "not calibrated: the judge's own"
    rows = [(f"mean of min(p, 1 − p), {how}", *_share_cells(found["expected"]))]
    rows += [
        (f"against {words}: their errors count too", *_share_cells(found["by_label"][kind]))
        for kind, words in _LABELS.items()
    ]
    return Table("Estimated share of wrong labels", "Of the kept pairs.", ("estimator", *_COLUMNS), rows)


def _share_cells(found: Mapping[str, Any]) -> tuple[str, ...]:
    left = ", ".join(f"{reason} {n}" for reason, n in found["excluded"].items())
    return share(found["value"]), interval(dict(found), share), str(found["cases"]), str(found["prompts"]), left
