"""Charts as SVG text, drawn from the tables by Vega-Lite; nothing is loaded when they are looked at."""

from typing import Any, Final

import polars as pl

from trustjudge_ray.report.agreement import reliability_bars
from trustjudge_ray.report.cells import Inputs, confidence, overall
from trustjudge_ray.report.consistency import CURVES, curve
from trustjudge_ray.report.tables import preferred

INK, ACCENT, _SOFT = "#24303b", "#2b6cb0", "#c3ccd4"
_RULES = [ACCENT, "#b7791f", "#2f855a", "#805ad5", INK]


def figures(inputs: Inputs) -> dict[str, str]:
    """The figures that the run supports, as SVG by name."""
    drawn = {name: chart(inputs) for name, chart in CHARTS.items()}
    return {name: svg(chart) for name, chart in drawn.items() if chart is not None}


def ratings(inputs: Inputs) -> Any:
    """Ratings with their intervals, one panel for each leaderboard."""
    import altair as alt

    rows, rules = [], set()
    for judge, protocol, rule, part in preferred(inputs):
        rules.add(rule)
        shown = part.drop_nulls("rating").select("model", "rating", "low", "high").to_dicts()
        rows += [row | {"panel": f"{judge}, {protocol}"} for row in shown]
    if not rows:
        return None
    order = alt.EncodingSortField("rating", order="descending")
    base = alt.Chart(alt.Data(values=rows)).encode(y=alt.Y("model:N", sort=order, title=None))
    title = f"rating ({', '.join(sorted(rules))}), {confidence(inputs.settings)} interval"
    whiskers = base.mark_rule(color=ACCENT, strokeWidth=2).encode(
        x=alt.X("low:Q", title=title, scale=alt.Scale(zero=False)), x2="high:Q"
    )
    points = base.mark_point(color=ACCENT, filled=True, size=70).encode(x="rating:Q")
    panels = alt.layer(whiskers, points).properties(width=480).facet(facet=alt.Facet("panel:N", title=None), columns=1)
    return panels.resolve_scale(x="independent") if len(rules) > 1 else panels


def score_distributions(inputs: Inputs) -> Any:
    """The mean label distribution of each model's answers: a column for each judge and score protocol, on its scale."""
    import altair as alt

    rows = _mean_distributions(inputs)
    if not rows:
        return None
    columns = []
    for panel in dict.fromkeys(row["panel"] for row in rows):
        mine = [row for row in rows if row["panel"] == panel]
        scale = alt.Scale(domain=[min(row["label"] for row in mine), max(row["label"] for row in mine)], nice=False)
        columns.append(
            alt.Chart(alt.Data(values=mine))
            .mark_area(color=ACCENT, opacity=0.75, interpolate="step")
            .encode(
                x=alt.X("label:Q", title="label", scale=scale, axis=alt.Axis(tickMinStep=1)),
                y=alt.Y("probability:Q", title=None, axis=None),
                row=alt.Row("model:N", title=None, header=alt.Header(labelAngle=0, labelAlign="left")),
            )
            .properties(width=230, height=38, title=panel)
            .resolve_scale(y="independent")
        )
    return alt.hconcat(*columns)


def non_transitivity(inputs: Inputs) -> Any:
    """NTR by rule and k, one row of panels for each judge and comparison protocol."""
    import altair as alt

    rows = overall(inputs).filter(pl.col("metric") == "non_transitivity_ratio", pl.col("value").is_not_null())
    if rows.height == 0:
        return None
    shown = rows.select("verdict_rule", "k", "value", "low", "high", panel=pl.format("{}, {}", "judge", "protocol"))
    base = alt.Chart(alt.Data(values=shown.to_dicts())).encode(y=alt.Y("verdict_rule:N", title=None))
    bars = base.mark_bar(color=_SOFT).encode(
        x=alt.X("value:Q", title="non-transitivity ratio", axis=alt.Axis(format="%"))
    )
    whiskers = base.mark_rule(color=INK).encode(x="low:Q", x2="high:Q")
    return (
        alt.layer(bars, whiskers)
        .properties(width=190, height=110)
        .facet(column="k:O", row=alt.Row("panel:N", title=None, header=alt.Header(labelAngle=0, labelAlign="left")))
    )


_LINES: Final = {
    "conflict_ratio": pl.format("{}: {}, {}", "judge", "protocol", "pair_protocol"),
    "non_transitivity_ratio": pl.format("{}: {}, k = {}", "judge", "protocol", "k"),
}
"""What one panel of a ratio's curves is about."""


def curves(inputs: Inputs) -> Any:
    """CR and NTR over the tolerances, with their intervals and, dashed, what chance gives with the same ties."""
    import altair as alt

    rows = []
    for metric in CURVES:
        found = curve(inputs, metric)
        rule = "score_rule" if metric == "conflict_ratio" else "verdict_rule"
        shown = found.select("tolerance", "value", "low", "high", "by_chance", rule=rule, panel=_LINES[metric])
        rows += shown.with_columns(panel=pl.format("{}, {}", pl.lit(_SHORT[metric]), "panel")).to_dicts()
    if not rows:
        return None
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("tolerance:Q", title="tolerance"),
        color=alt.Color("rule:N", title=None, scale=alt.Scale(range=_RULES)),
    )
    bands = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title="ratio", axis=alt.Axis(format="%")), y2="high:Q")
    lines = base.mark_line(point=True).encode(y="value:Q")
    chance = base.mark_line(strokeDash=[4, 3], opacity=0.7).encode(y="by_chance:Q")
    layered = alt.layer(bands, lines, chance).properties(width=300, height=160)
    return layered.facet(facet=alt.Facet("panel:N", title=None), columns=2).resolve_scale(x="independent")


_SHORT: Final = {"conflict_ratio": "CR", "non_transitivity_ratio": "NTR"}


def reliability(inputs: Inputs) -> Any:
    """How often the likeliest outcome was people's, over how likely it was said to be; on the line it is as often."""
    import altair as alt

    bars = reliability_bars(inputs)
    if not bars:
        return None
    rows = [bar | {"panel": f"{bar['judge']}, {bar['protocol']}"} for bar in bars]
    base = alt.Chart().encode(
        x=alt.X("confidence:Q", title="mean probability of the likeliest", scale=alt.Scale(domain=[0, 1]))
    )
    ideal = base.mark_line(color=_SOFT, strokeDash=[4, 3]).encode(x="ideal:Q", y="ideal:Q")
    whiskers = base.mark_rule(color=ACCENT, strokeWidth=2).encode(
        y=alt.Y("low:Q", title="how often it was people's", scale=alt.Scale(domain=[0, 1])), y2="high:Q"
    )
    points = base.mark_point(color=ACCENT, filled=True).encode(y="right:Q", size=alt.Size("cases:Q", legend=None))
    panels = dict.fromkeys(row["panel"] for row in rows)
    corners = [{"panel": panel, "ideal": end} for panel in panels for end in (0, 1)]
    layered = alt.layer(ideal, whiskers, points, data=alt.Data(values=[*corners, *rows]))
    layered = layered.properties(width=260, height=260)
    return layered.facet(facet=alt.Facet("panel:N", title=None), columns=2)


CHARTS: Final = {
    "ratings": ratings,
    "score_distributions": score_distributions,
    "non_transitivity": non_transitivity,
    "tolerances": curves,
    "reliability": reliability,
}


def _mean_distributions(inputs: Inputs) -> list[dict[str, Any]]:
    rows = []
    columns = ("judge", "protocol", "model_a", "kind", "status", "repeat", "label_logprobs")
    ok = inputs.judgments.select(columns).filter(kind="score", status="ok", repeat=0).drop_nulls("label_logprobs")
    groups = ok.partition_by("judge", "protocol", "model_a", as_dict=True)
    for (judge, protocol, model), group in sorted(groups.items()):
        values = inputs.protocols[protocol].values
        table = group["label_logprobs"].list.to_array(len(values)).to_numpy()
        mean = _means(table)
        rows += [
            {"panel": f"{judge}, {protocol}", "model": model, "label": value, "probability": float(p)}
            for value, p in zip(values, mean, strict=True)
        ]
    return rows


def _means(logprobs: Any) -> Any:
    """The mean of the rows' distributions, each renormalised; rows without label mass stay out."""
    import numpy as np

    probabilities = np.exp(np.nan_to_num(logprobs.astype(float), nan=-np.inf))
    mass = probabilities.sum(axis=1, keepdims=True)
    read = mass[:, 0] > 0
    return (probabilities[read] / mass[read]).mean(axis=0) if read.any() else np.zeros(probabilities.shape[1])


def svg(chart: Any) -> str:
    """An Altair chart as SVG text, in the report's colours."""
    import vl_convert

    styled = chart.configure_view(stroke=None).configure_axis(labelColor=INK, titleColor=INK, gridColor="#e6eaee")
    return vl_convert.vegalite_to_svg(styled.to_json(), vl_version=_version())


def _version() -> str:
    import altair as alt

    major, minor, *_ = alt.SCHEMA_VERSION.removeprefix("v").split(".")
    return f"v{major}.{minor}"
