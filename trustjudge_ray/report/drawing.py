"""How charts are drawn: as SVG text by Vega-Lite here, and again by the same program where a page is looked at.

A figure is some panels, each a chart of its own that can be as wide as there is room. Colours are named once; the
page's style gives each its counterpart in the dark.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

INK, SOFT, GRID, ACCENT = "#24303b", "#c3ccd4", "#e6eaee", "#2b6cb0"
COLOURS: Final = (ACCENT, "#c27c0e", "#2f8f5b", "#8a63d2", "#c2456b", "#5f7385")
"""Of lines and bars that stand for different rules, in this order; legible on white and on black."""
_FONT: Final = "'DejaVu Sans', Verdana, Geneva, sans-serif"
"""Of pictures: fonts of one width, so that words have the room that was measured for them wherever they are shown."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What a chart shows in words, its panels, and how many of them stand side by side in the file."""

    says: str
    panels: Sequence[Any]
    columns: int = 1


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure as text: what it shows, its SVG, and its panels' Vega-Lite specifications."""

    says: str
    svg: str
    specs: Sequence[dict[str, Any]]


def draw(figure: Figure) -> Drawn:
    """A figure as SVG and as specifications."""
    import altair as alt

    specs = [panel.to_dict(validate=False) for panel in figure.panels]
    whole = figure.panels[0]
    if len(figure.panels) > 1:  # each with its own colours and axes, as on the page
        apart = alt.concat(*figure.panels, columns=figure.columns)
        whole = apart.resolve_scale(color="independent", size="independent")
    return Drawn(figure.says, svg(whole), specs)


def titled(text: str, judge: str) -> Any:
    """The title of a panel: what it is about, and below it whose judgments."""
    import altair as alt

    return alt.TitleParams(text=text, subtitle=judge)


def placed(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with their place among them, `order`, for `by_place`."""
    return [row | {"order": place} for place, row in enumerate(rows)]


def by_place() -> Any:
    """Sorts names as their rows come. By a number: a list of names would become part of an expression, which a name
    from a corpus must not."""
    import altair as alt

    return alt.EncodingSortField("order", op="min")


def svg(chart: Any) -> str:
    """An Altair chart as SVG text, in the report's colours."""
    import vl_convert

    whole = chart.to_dict(validate=False) | {"config": CONFIG}
    return vl_convert.vegalite_to_svg(whole, vl_version=_version())


@functools.cache
def runtime() -> str:
    """The script that draws specifications in a browser (Vega, Vega-Lite and Vega-Embed); it loads nothing."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=_version())


def _version() -> str:
    import altair as alt

    major, minor, *_ = alt.SCHEMA_VERSION.removeprefix("v").split(".")
    return f"v{major}.{minor}"


CONFIG: Final[dict[str, Any]] = {
    "background": None,
    "font": _FONT,
    "view": {"stroke": None},
    "title": {"color": INK, "anchor": "start", "fontSize": 12, "fontWeight": 600, "subtitleColor": INK},
    "axis": {
        "labelColor": INK,
        "titleColor": INK,
        "gridColor": GRID,
        "domainColor": SOFT,
        "tickColor": SOFT,
        "labelOverlap": "greedy",
        "tickCount": 7,
    },
    "legend": {"labelColor": INK, "titleColor": INK, "orient": "bottom", "labelLimit": 260},
    "header": {"labelColor": INK, "titleColor": INK},
    "range": {"category": list(COLOURS)},
}
"""The look of every chart."""
