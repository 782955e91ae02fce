"""Figures of how far a judge contradicts itself: by rule, over tolerances and scales, and in which way."""

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from trustjudge_ray.report.cells import Inputs, overall
from trustjudge_ray.report.consistency import CURVES, curve
from trustjudge_ray.report.drawing import INK, Figure, by_place, placed, titled
from trustjudge_ray.report.faults import fault_rows
from trustjudge_ray.report.granularity import granularity_rows

_SHORT: Final = {"conflict_ratio": "CR", "non_transitivity_ratio": "NTR"}


def non_transitivity(inputs: Inputs) -> Figure | None:
    """NTR by rule and k, a panel for each judge and comparison protocol."""
    import altair as alt

    rows = overall(inputs).filter(pl.col("metric") == "non_transitivity_ratio", pl.col("value").is_not_null())
    panels = []
    for (judge, protocol), mine in _parted(rows, "judge", "protocol"):
        shown = mine.select("verdict_rule", "value", "low", "high", "cases", k=pl.format("k = {}", "k")).to_dicts()
        base = alt.Chart(alt.Data(values=shown)).encode(
            y=alt.Y("verdict_rule:N", title=None),
            yOffset=alt.YOffset("k:N"),
            tooltip=["verdict_rule:N", "k:N", *_percents("value", "low", "high"), "cases:Q"],
        )
        axis = alt.X("value:Q", title="non-transitivity ratio", axis=alt.Axis(format="%"))
        bars = base.mark_bar().encode(x=axis, color=alt.Color("k:N", title=None))
        whiskers = base.mark_rule(color=INK).encode(x="low:Q", x2="high:Q")
        layered = alt.layer(bars, whiskers)
        panels.append(layered.properties(width=400, height=16 * len(shown), title=titled(f"NTR by {protocol}", judge)))
    return Figure("Non-transitivity ratio by verdict rule and size of the subset", panels, 2) if panels else None


def tolerances(inputs: Inputs) -> Figure | None:
    """CR and NTR over the tolerances, with their intervals and, dashed, what chance gives with the same ties."""
    import altair as alt

    panels = []
    for title, judge, rows in _curves(inputs):
        base = alt.Chart(alt.Data(values=rows)).encode(
            x=alt.X("tolerance:Q", title="tolerance"),
            color=alt.Color("rule:N", title=None, legend=alt.Legend(symbolOpacity=1, symbolType="stroke")),
            tooltip=["rule:N", "tolerance:Q", *_percents("value", "low", "high", "by_chance", "ties")],
        )
        bands = base.mark_area(opacity=0.15).encode(
            y=alt.Y("low:Q", title="ratio", axis=alt.Axis(format="%")), y2="high:Q"
        )
        lines = base.mark_line(point=True).encode(y=alt.Y("value:Q", title="ratio"))
        chance = base.mark_line(strokeDash=[4, 3], opacity=0.7).encode(y=alt.Y("by_chance:Q", title="ratio"))
        panels.append(alt.layer(bands, lines, chance).properties(width=320, height=180, title=titled(title, judge)))
    return Figure("Conflict and non-transitivity ratios over the tolerances", panels, 2) if panels else None


def _curves(inputs: Inputs) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    for metric in CURVES:
        found = curve(inputs, metric)
        last = "pair_protocol" if metric == "conflict_ratio" else "k"
        rule = "score_rule" if metric == "conflict_ratio" else "verdict_rule"
        for (judge, protocol, end), mine in _parted(found, "judge", "protocol", last):
            of = f"against {end}" if last == "pair_protocol" else f"k = {end}"
            columns = ("tolerance", "value", "low", "high", "by_chance", "ties")
            yield f"{_SHORT[metric]}: {protocol}, {of}", str(judge), mine.select(*columns, rule=rule).to_dicts()


def granularities(inputs: Inputs) -> Figure | None:
    """CR over how many labels the scale has, a line for each score rule."""
    import altair as alt

    rows, panels = [row for row in granularity_rows(inputs) if row["value"] is not None], []
    level = alt.Axis(labelAngle=0)
    for about in dict.fromkeys((row["judge"], row["pair_protocol"]) for row in rows):
        mine = placed([row for row in rows if (row["judge"], row["pair_protocol"]) == about])
        if len({row["protocol"] for row in mine}) < 2:
            continue
        base = alt.Chart(alt.Data(values=mine)).encode(
            x=alt.X("scores:N", sort=by_place(), title=None, axis=level),
            xOffset=alt.XOffset("score_rule:N"),
            tooltip=["scores:N", "score_rule:N", *_percents("value", "low", "high", "by_chance"), "cases:Q"],
        )
        axis = alt.Y("value:Q", title="conflict ratio", axis=alt.Axis(format="%"))
        bars = base.mark_bar().encode(y=axis, color=alt.Color("score_rule:N", title=None))
        whiskers = base.mark_rule(color=INK).encode(y="low:Q", y2="high:Q")
        layered = alt.layer(bars, whiskers)
        panels.append(layered.properties(width=380, height=200, title=titled(f"CR against {about[1]}", about[0])))
    return Figure("Conflict ratio by the number of labels, for each score rule", panels, 2) if panels else None


def contradictions(inputs: Inputs) -> Figure | None:
    """Which kinds of contradictions a ratio is made of, stacked."""
    import altair as alt

    rows, panels = [row for row in fault_rows(inputs) if row["share"] is not None], []
    for about in dict.fromkeys((row["judge"], row["of"]) for row in rows):
        mine = [row | {"kind": row["kind"].split(":")[0]} for row in rows if (row["judge"], row["of"]) == about]
        kinds = list(dict.fromkeys(row["kind"] for row in mine))
        panels.append(
            alt.Chart(alt.Data(values=mine))
            .mark_bar()
            .encode(
                y=alt.Y("line:N", title=None, sort=None, axis=alt.Axis(labelLimit=260)),
                x=alt.X("share:Q", stack="zero", title=f"share of {about[1]}", axis=alt.Axis(format="%")),
                color=alt.Color("kind:N", title=None, sort=kinds, legend=alt.Legend(columns=1)),
                order=alt.Order("place:Q"),
                tooltip=["line:N", "kind:N", *_percents("share")],
            )
            .properties(width=360, height=20 * len({row["line"] for row in mine}), title=titled(about[1], about[0]))
        )
    return Figure("Kinds of contradictions, as shares of pairs and of subsets", panels, 2) if panels else None


def _parted(rows: pl.DataFrame, *by: str) -> Iterator[tuple[tuple[Any, ...], pl.DataFrame]]:
    yield from rows.partition_by(*by, as_dict=True, maintain_order=True).items()


def _percents(*names: str) -> list[Any]:
    import altair as alt

    return [alt.Tooltip(f"{name}:Q", format=".1%") for name in names]
