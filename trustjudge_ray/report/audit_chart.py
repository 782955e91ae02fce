"""The main figures of a card as one chart: each with its interval, and the gates with their thresholds."""

from typing import Any, Final

from trustjudge_ray.report.card import Card, gates, named
from trustjudge_ray.report.drawing import ACCENT, INK, svg

_WARN, _BLOCK = "warns at", "blocks at"
_SHARES: Final = {
    ("own", "generation_accuracy"): "own answers right",
    ("own", "self_evaluation_accuracy"): "verdicts on them right",
    ("controlled", "accept_gold"): "right answers accepted",
    ("controlled", "accept_swap"): "wrong answers accepted",
    ("controlled", "balanced_accuracy"): "balanced accuracy",
    ("controlled", "paired_accuracy"): "right before wrong",
    ("reading", "label_mass"): "label mass",
}
_LEANS: Final = {
    ("own", "difference"): "answers − verdicts",
    ("controlled", "acquiescence"): "acquiescence",
    ("controlled", "accept_lean"): "leans to accepting",
    ("controlled", "yes_bias"): "leans to yes",
    ("controlled", "first_label_bias"): "leans to the first label",
    ("withheld", "auc_lost"): "AUC lost without passage",
    ("position", "order_effect"): "order effect",
}


def forest(card: Card) -> str | None:
    """The chart as SVG, in three panels (gates; shares from 0 to 1; differences around 0); None without a figure."""
    import altair as alt

    shares, leans = _bars(card, _SHARES), _bars(card, _LEANS)
    panels = [
        (alt.layer(*_whiskers(held := _gates(card), 0), _thresholds(card)), "Gates", held),
        (alt.layer(*_whiskers(shares, 0)), "Shares", shares),
        (alt.layer(_zero(), *_whiskers(leans, -1)), "Differences and leanings; 0 is none", leans),
    ]
    drawn = [
        layers.properties(width=480, height=alt.Step(22), title=title)
        for layers, title, rows in panels
        if any(row["value"] is not None for row in rows)
    ]
    return svg(alt.vconcat(*drawn)) if drawn else None


def _gates(card: Card) -> list[dict[str, Any]]:
    return [_bar(gate["gate"], gate) for gate in gates(card)]


def _bars(card: Card, words: dict[tuple[str, str], str]) -> list[dict[str, Any]]:
    found = named(card)
    return [_bar(name, found[*key, None]) for key, name in words.items() if (*key, None) in found]


def _bar(name: str, row: Any) -> dict[str, Any]:
    return {"name": name} | {end: row[end] for end in ("value", "low", "high")}


def _names(rows: list[dict[str, Any]]) -> Any:
    import altair as alt

    return alt.Y("name:N", sort=[row["name"] for row in rows], title=None, axis=alt.Axis(labelLimit=240))


def _whiskers(rows: list[dict[str, Any]], least: int) -> list[Any]:
    """Interval and value of each row, on an axis from `least` to 1."""
    import altair as alt

    axis = alt.X("low:Q", title=None, scale=alt.Scale(domain=[least, 1]))
    base = alt.Chart(alt.Data(values=rows)).transform_filter("datum.value !== null").encode(y=_names(rows))
    return [
        base.transform_filter("datum.low !== null").mark_rule(color=ACCENT, strokeWidth=2).encode(x=axis, x2="high:Q"),
        base.mark_point(color=ACCENT, filled=True, size=70, opacity=1).encode(x="value:Q"),
    ]


def _thresholds(card: Card) -> Any:
    """Where each gate warns and blocks, told apart by shape."""
    import altair as alt

    marks = [
        {"name": gate["gate"], "at": gate[end], "threshold": words}
        for gate in gates(card)
        for end, words in (("warn", _WARN), ("block", _BLOCK))
    ]
    shapes = alt.Scale(domain=[_WARN, _BLOCK], range=["triangle-down", "cross"])
    shape = alt.Shape("threshold:N", title=None, scale=shapes)
    base = alt.Chart(alt.Data(values=marks)).mark_point(color=INK, size=60, opacity=1)
    return base.encode(x="at:Q", y=_names(_gates(card)), shape=shape)


def _zero() -> Any:
    import altair as alt

    return alt.Chart(alt.Data(values=[{"at": 0}])).mark_rule(color=INK, strokeDash=[4, 3]).encode(x="at:Q")
