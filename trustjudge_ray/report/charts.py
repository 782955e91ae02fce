"""Charts as SVG text, drawn from the tables by Vega-Lite; nothing is loaded when they are looked at."""

from typing import Any

import polars as pl

from trustjudge_ray.report.tables import MAIN_RATINGS, Inputs

_INK, _ACCENT, _SOFT = "#24303b", "#2b6cb0", "#c3ccd4"


def figures(inputs: Inputs) -> dict[str, str]:
    """The figures that the run supports, as SVG by name."""
    drawn = {name: chart(inputs) for name, chart in CHARTS.items()}
    return {name: _svg(chart) for name, chart in drawn.items() if chart is not None}


def ratings(inputs: Inputs) -> Any:
    """Ratings with their intervals, one panel for each judge."""
    import altair as alt

    rows = inputs.ratings.filter(pl.col("category").is_null(), pl.col("rating").is_not_null())
    rules = rows["rule"].unique().to_list()
    rule = next((rule for rule in MAIN_RATINGS if rule in rules), None)
    if rule is None:
        return None
    data = alt.Data(values=rows.filter(rule=rule).select("judge", "model", "rating", "low", "high").to_dicts())
    order = alt.EncodingSortField("rating", order="descending")
    base = alt.Chart(data).encode(y=alt.Y("model:N", sort=order, title=None))
    whiskers = base.mark_rule(color=_ACCENT, strokeWidth=2).encode(
        x=alt.X("low:Q", title=f"rating ({rule}), 95 % interval", scale=alt.Scale(zero=False)), x2="high:Q"
    )
    points = base.mark_point(color=_ACCENT, filled=True, size=70).encode(x="rating:Q")
    return alt.layer(whiskers, points).properties(width=480).facet(row=alt.Row("judge:N", title=None))


def score_distributions(inputs: Inputs) -> Any:
    """The mean label distribution of each model's answers, one panel for each score protocol and model."""
    import altair as alt

    rows = _mean_distributions(inputs)
    if not rows:
        return None
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_area(color=_ACCENT, opacity=0.75, interpolate="step")
        .encode(
            x=alt.X("label:Q", title="label"),
            y=alt.Y("probability:Q", title=None, axis=None),
            row=alt.Row("model:N", title=None, header=alt.Header(labelAngle=0, labelAlign="left")),
            column=alt.Column("protocol:N", title=None),
        )
        .properties(width=230, height=38)
        .resolve_scale(x="independent", y="independent")
    )


def consistency(inputs: Inputs) -> Any:
    """NTR by rule and k."""
    import altair as alt

    rows = inputs.metrics.filter(
        pl.col("metric") == "non_transitivity_ratio",
        pl.col("category").is_null(),
        pl.col("tolerance") == pl.col("tolerance").min(),
        pl.col("value").is_not_null(),
    )
    if rows.height == 0:
        return None
    data = alt.Data(values=rows.select("judge", "verdict_rule", "k", "value", "low", "high").to_dicts())
    base = alt.Chart(data).encode(y=alt.Y("verdict_rule:N", title=None))
    bars = base.mark_bar(color=_SOFT).encode(
        x=alt.X("value:Q", title="non-transitivity ratio", axis=alt.Axis(format="%"))
    )
    whiskers = base.mark_rule(color=_INK).encode(x="low:Q", x2="high:Q")
    return (
        alt.layer(bars, whiskers)
        .properties(width=190, height=110)
        .facet(column="k:O", row=alt.Row("judge:N", title=None))
    )


CHARTS = {"ratings": ratings, "score_distributions": score_distributions, "non_transitivity": consistency}


def _mean_distributions(inputs: Inputs) -> list[dict[str, Any]]:
    rows = []
    ok = inputs.judgments.filter(pl.col("kind") == "score", pl.col("status") == "ok", pl.col("repeat") == 0)
    for (protocol, model), group in sorted(ok.partition_by("protocol", "model_a", as_dict=True).items()):
        values = inputs.protocols[protocol].values
        table = group["label_logprobs"].list.to_array(len(values)).to_numpy()
        mean = _means(table)
        rows += [
            {"protocol": protocol, "model": model, "label": value, "probability": float(p)}
            for value, p in zip(values, mean, strict=True)
        ]
    return rows


def _means(logprobs: Any) -> Any:
    import numpy as np

    probabilities = np.exp(np.nan_to_num(logprobs.astype(float), nan=-np.inf))
    return (probabilities / probabilities.sum(axis=1, keepdims=True)).mean(axis=0)


def _svg(chart: Any) -> str:
    import vl_convert

    styled = chart.configure_view(stroke=None).configure_axis(labelColor=_INK, titleColor=_INK, gridColor="#e6eaee")
    return vl_convert.vegalite_to_svg(styled.to_json(), vl_version=_version())


def _version() -> str:
    import altair as alt

    major, minor, *_ = alt.SCHEMA_VERSION.removeprefix("v").split(".")
    return f"v{major}.{minor}"
