"""The figures of a report by name, and those of ratings, scores and people."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from trustjudge_ray.report.agreement import reliability_bars
from trustjudge_ray.report.cells import Inputs, confidence
from trustjudge_ray.report.consistency_charts import contradictions, granularities, non_transitivity, tolerances
from trustjudge_ray.report.drawing import ACCENT, SOFT, Drawn, Figure, by_place, draw, placed, titled
from trustjudge_ray.report.scores import entropy_rows, mean_distributions
from trustjudge_ray.report.tables import RATING_RULES, preferred

_MOST_BARS: Final = 20
"""Labels up to which each has a bar."""
_MOST_TALL: Final = 24
"""With more models their distributions are drawn lower."""


def figures(inputs: Inputs) -> dict[str, Drawn]:
    """The figures that the run supports, drawn, by name."""
    found = {name: chart(inputs) for name, chart in CHARTS.items()}
    return {name: draw(figure) for name, figure in found.items() if figure is not None}


def ratings(inputs: Inputs) -> Figure | None:
    """Ratings with their intervals, one panel for each leaderboard."""
    import altair as alt

    panels = []
    for judge, protocol, rule, part in preferred(inputs):
        rows = part.drop_nulls("rating").sort("rating", "model", descending=[True, False])
        shown = placed(rows.select("model", "rating", "low", "high", "rank", "rank_low", "rank_high").to_dicts())
        if not shown:
            continue
        base = alt.Chart(alt.Data(values=shown)).encode(
            y=alt.Y("model:N", sort=by_place(), title=None, axis=alt.Axis(labelLimit=200)),
            tooltip=[alt.Tooltip("model:N"), *(_told(n) for n in ("rating", "low", "high")), "rank:Q"],
        )
        title = f"{RATING_RULES[rule]}, {confidence(inputs.settings)} interval"
        bounded = base.transform_filter("datum.low !== null && datum.high !== null")
        whiskers = bounded.mark_rule(color=ACCENT, strokeWidth=2).encode(
            x=alt.X("low:Q", title=title, scale=alt.Scale(zero=False)), x2="high:Q"
        )
        points = base.mark_point(color=ACCENT, filled=True, size=70, opacity=1).encode(
            x=alt.X("rating:Q", title=title, scale=alt.Scale(zero=False))
        )
        layered = alt.layer(whiskers, points)
        panels.append(layered.properties(width=480, height=22 * len(shown), title=titled(protocol, judge)))
    return Figure("Models by their ratings, each with its interval", panels) if panels else None


def score_distributions(inputs: Inputs) -> Figure | None:
    """The mean label distribution of each model's answers: a panel for each judge and score protocol, on its scale."""
    import altair as alt

    rows, panels = mean_distributions(inputs), []
    for about in dict.fromkeys((row["judge"], row["protocol"]) for row in rows):
        mine = [row for row in rows if (row["judge"], row["protocol"]) == about]
        models = len({row["model"] for row in mine})
        values = [
            {"model": row["model"], "label": label, "probability": float(f"{p:.6g}")}
            for row in mine
            for label, p in zip(row["labels"], row["probabilities"], strict=True)
        ]
        panels.append(
            _over_labels(alt.Chart(alt.Data(values=values)), sorted({row["label"] for row in values}))
            .encode(
                y=alt.Y("probability:Q", title=None, axis=None),
                row=alt.Row(
                    "model:N", title=None, spacing=4, header=alt.Header(labelAngle=0, labelAlign="left", labelLimit=150)
                ),
                tooltip=[alt.Tooltip("model:N"), alt.Tooltip("label:Q"), _told("probability", ".4f")],
            )
            .properties(width=250, height=34 if models <= _MOST_TALL else 16, title=titled(about[1], about[0]))
            .resolve_scale(y="independent")
        )
    return Figure("How each model's scores are spread over the labels", panels, 2) if panels else None


def _over_labels(chart: Any, labels: Sequence[float]) -> Any:
    """A bar for each label, or an outline over them where they are many."""
    import altair as alt

    if len(labels) <= _MOST_BARS:
        return chart.mark_bar(color=ACCENT, opacity=0.75).encode(
            x=alt.X("label:O", title="label", axis=alt.Axis(labelAngle=0))
        )
    scale = alt.Scale(domain=[labels[0], labels[-1]], nice=False)
    return chart.mark_area(color=ACCENT, opacity=0.75, interpolate="step").encode(
        x=alt.X("label:Q", title="label", scale=scale, axis=alt.Axis(tickMinStep=1))
    )


def entropies(inputs: Inputs) -> Figure | None:
    """Entropy of score distributions by protocol, as a share of its highest value."""
    import altair as alt

    rows = entropy_rows(inputs)
    if not rows:
        return None
    shown = placed([{"scores": f"{r['protocol']} ({r['labels']} labels)"} | r for r in rows])
    panels = []
    for judge in dict.fromkeys(row["judge"] for row in shown):
        mine = [row for row in shown if row["judge"] == judge]
        base = alt.Chart(alt.Data(values=mine)).encode(
            y=alt.Y("scores:N", sort=by_place(), title=None, axis=alt.Axis(labelLimit=200)),
            tooltip=[alt.Tooltip("scores:N"), *(_told(n, ".4f") for n in ("value", "low", "high", "mean"))],
        )
        axis = alt.X("value:Q", title="share of the highest entropy", scale=alt.Scale(domain=[0, 1]))
        bars = base.mark_bar(color=SOFT).encode(x=axis)
        whiskers = base.mark_rule(color=ACCENT, strokeWidth=2).encode(x="low:Q", x2="high:Q")
        panels.append(
            alt.layer(bars, whiskers).properties(
                width=380, height=26 * len(mine), title=titled("entropy of the scores", judge)
            )
        )
    return Figure("Entropy of the score distributions by protocol, as a share of its highest value", panels, 2)


def reliability(inputs: Inputs) -> Figure | None:
    """How often the likeliest outcome was people's, over how likely it was said to be; on the line it is as often."""
    import altair as alt

    bars, panels = reliability_bars(inputs), []
    whole = alt.Scale(domain=[0, 1])
    for about in dict.fromkeys((bar["judge"], bar["protocol"]) for bar in bars):
        mine = [bar for bar in bars if (bar["judge"], bar["protocol"]) == about]
        ends = alt.Chart(alt.Data(values=[{"ideal": 0}, {"ideal": 1}]))
        ideal = ends.mark_line(color=SOFT, strokeDash=[4, 3]).encode(x="ideal:Q", y="ideal:Q")
        base = alt.Chart(alt.Data(values=mine)).encode(
            x=alt.X("confidence:Q", title="mean probability of the likeliest", scale=whole),
            tooltip=[*(_told(name, ".4f") for name in ("confidence", "right", "low", "high")), "cases:Q"],
        )
        bounded = base.transform_filter("datum.low !== null")
        whiskers = bounded.mark_rule(color=ACCENT, strokeWidth=2).encode(
            y=alt.Y("low:Q", title="how often it was people's", scale=whole), y2="high:Q"
        )
        points = base.mark_point(color=ACCENT, filled=True, opacity=1).encode(
            y=alt.Y("right:Q", title="how often it was people's", scale=whole),
            size=alt.Size("cases:Q", legend=None, scale=alt.Scale(range=[30, 220])),
        )
        panels.append(
            alt.layer(ideal, whiskers, points).properties(width=300, height=260, title=titled(about[1], about[0]))
        )
    return Figure("How often the likeliest outcome was people's, over its probability", panels, 2) if panels else None


def _told(name: str, form: str = ".2f") -> Any:
    import altair as alt

    return alt.Tooltip(f"{name}:Q", format=form)


CHARTS: Final[dict[str, Callable[[Inputs], Figure | None]]] = {
    "ratings": ratings,
    "score_distributions": score_distributions,
    "entropies": entropies,
    "granularity": granularities,
    "non_transitivity": non_transitivity,
    "tolerances": tolerances,
    "contradictions": contradictions,
    "reliability": reliability,
}
