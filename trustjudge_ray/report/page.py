"""The report as one HTML file that loads nothing: summary, tables, charts, and what was run. Everything is escaped."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from markupsafe import Markup

from trustjudge_ray.report import (
    agreement,
    audited,
    bias,
    cells,
    charts,
    consistency,
    drawing,
    faults,
    granularity,
    judges,
    matrix,
    numbers,
    people,
    ratings,
    rendering,
    running,
    steps,
    summary,
    tables,
)

_FILTERED: Final = 8
"""A table with more rows can be filtered."""


_FIRST: Final = 8
"""So many findings are shown; the rest can be unfolded."""


def figures(inputs: tables.Inputs) -> dict[str, drawing.Drawn]:
    """The figures of the report by name."""
    return charts.figures(inputs)


def page(inputs: tables.Inputs, drawn: Mapping[str, drawing.Drawn] | None = None) -> str:
    """The report as HTML. Text from a corpus or a judge is escaped; figures are inline SVG, drawn again by the page's
    script where scripts run.

    Args:
        drawn: the figures, where they are drawn already.
    """
    drawn = figures(inputs) if drawn is None else drawn
    one_judge = inputs.judgments["judge"].n_unique() == 1
    scripts = {name: rendering.script(f"{name}.js") for name in ("theme", "tables", *(["charts"] if drawn else []))}
    if drawn:
        scripts = {"vega": rendering.inline(drawing.runtime()), **scripts}
    return rendering.render(
        "page.html.j2",
        title=inputs.title,
        policy=rendering.policy(scripts.values()),
        scripts=scripts,
        extent=numbers.extent(inputs),
        summary=summary.summary(inputs),
        findings=tables.findings(inputs),
        leaderboards=tables.leaderboards(inputs),
        ratings=[*ratings.by_rule(inputs), *ratings.coefficients(inputs)],
        matrices=matrix.matrices(inputs),
        side_by_side=judges.side_by_side(inputs),
        audits=audited.audits(inputs),
        consistency=[*tables.consistency(inputs), *consistency.curves(inputs)],
        faults=faults.faults(inputs),
        ablation=steps.ablation_tables(inputs.ablation),
        scores=[granularity.granularity(inputs), granularity.entropies(inputs)],
        bias=bias.cards(inputs),
        coverage=[*tables.coverage(inputs), tables.failures(inputs)],
        agreement=[*agreement.agreement(inputs), *_labels(inputs)],
        cost=running.cost_and_time(inputs),
        figures={name: _figure(figure) for name, figure in drawn.items()},
        specs=rendering.as_json({name: figure.specs for name, figure in drawn.items()}),
        look=rendering.as_json(drawing.CONFIG),
        captions={name: text.format(confidence=cells.confidence(inputs.settings)) for name, text in _CAPTIONS.items()},
        protocols=inputs.protocols,
        manifest=json.dumps(inputs.manifest, indent=1, ensure_ascii=False),
        judges=_judges(inputs),
        duplicates=inputs.duplicates,
        methods=_METHODS,
        browser=inputs.browser,
        filtered=_FILTERED,
        first=_FIRST,
        shown=_shown,
        kept=lambda text: text.replace(" %", "\u00a0%").replace(" … ", "\u00a0…\u00a0"),
        narrow=lambda table: _narrow(table, one_judge),
        numbered=_numbered,
        counted=_counted,
        contents=_CONTENTS,
        slug=_slugs(),
    )


_WORD: Final = re.compile(r"[a-z0-9]+")
_CONTENTS: Final = (
    ("summary", "Summary"),
    ("leaderboard", "Leaderboard"),
    ("wins", "Who beats whom"),
    ("judges", "Judges"),
    ("consistency", "Consistency"),
    ("ablation", "Ablation"),
    ("scores", "Scores"),
    ("bias", "Bias"),
    ("agreement", "Agreement with people"),
    ("coverage", "Coverage and failures"),
    ("cost", "Cost and time"),
    ("run", "What was run"),
)
_CAPTIONS = {
    "ratings": "Ratings with {confidence} intervals, clustered by question.",
    "score_distributions": "Mean label distribution of each model's answers.",
    "entropies": "Entropy of the score distributions with {confidence} intervals; scales can be compared.",
    "granularity": "Conflict ratio of each score rule on coarse and fine scales, with {confidence} intervals.",
    "non_transitivity": "Non-transitivity by verdict rule and subset size, at the smallest tolerance, with "
    "{confidence} intervals.",
    "tolerances": "Ratios over the tolerances with {confidence} intervals; dashed: by chance with the same ties.",
    "contradictions": "Which kinds of contradictions the ratios are made of, by the main rules and baseline.",
    "reliability": "How often the likeliest outcome of a pair was people's, with {confidence} intervals, over how "
    "likely the judge said it was. On the dashed line a judge is right as often as it says; below it, it is too sure.",
}

_METHODS = {
    "expected": "expected label under the judge's distribution, Σ s·p(s) / Σ p(s)",
    "softmax_weighted": "the reference program's softmax of log-odds at temperature 0.2",
    "geval": "Σ s·p(s), not renormalised (G-Eval)",
    "baseline": "the label that the judge emitted; for a pair, both orders' labels, a tie where they differ",
    "mode": "the most probable label",
    "normalised": "each order's label probabilities renormalised, then summed over both orders",
    "likelihood": "the reference program's sum of raw label probabilities over both orders",
    "ppl": "the reference program's choice of the order with the lower perplexity",
    "ppl_tiebreak": "agreeing orders stand; otherwise the lower perplexity decides",
}


def _figure(figure: drawing.Drawn) -> dict[str, Any]:
    """The figure's SVG as an image with a text; its parts are no words to read out."""
    opened = Markup('<svg role="img" aria-label="{}" ').format(figure.says)
    return {"says": figure.says, "svg": opened + Markup(figure.svg.removeprefix("<svg "))}


def _counted(extent: Mapping[str, int]) -> str:
    """How much the report is about, in words."""
    told = [
        f"{count:,} {name if count != 1 else name.removesuffix('s')}".replace(",", "\u202f")
        for name, count in extent.items()
    ]
    return cells.listed(told, most=len(told))


def _slugs() -> Callable[[str], str]:
    """Titles as the names of places on the page, each another."""
    known: dict[str, int] = {}

    def slug(title: str) -> str:
        plain = "-".join(_WORD.findall(title.lower())) or "table"
        known[plain] = known.get(plain, 0) + 1
        return f"t-{plain}-{known[plain]}"

    return slug


def _narrow(table: tables.Table, one_judge: bool) -> tables.Table:
    """The table without columns that are empty in every row, and without the judge's where the run has one."""
    told = [any(row[i] for row in table.rows) for i in range(len(table.columns))]
    for i, column in enumerate(table.columns):
        if one_judge and column == "judge" and len({row[i] for row in table.rows}) == 1:
            told[i] = False
    kept = [i for i, shown in enumerate(told) if shown]
    rows = [[row[i] for i in kept] for row in table.rows]
    named = kept.index(table.named) if table.named in kept else 0
    return replace(table, columns=[table.columns[i] for i in kept], rows=rows, named=named)


def _numbered(table: tables.Table) -> list[bool]:
    """Which columns show numbers."""
    return [any(cells.values_of(row[i]) for row in table.rows) for i in range(len(table.columns))]


def _shown(cell: str) -> str:
    """The numbers of a cell, unrounded, as an attribute has them; "" for text."""
    return " ".join(repr(value) for value in cells.values_of(cell))


def _labels(inputs: tables.Inputs) -> list[tables.Table]:
    return people.people_tables(inputs.people, inputs.settings.verdict_rules[:1]) if inputs.people else []


def _judges(inputs: tables.Inputs) -> list[tuple[str, str]]:
    found = []
    for name, identity in inputs.manifest.get("judges", {}).items():
        shown = {key: value for key, value in identity.items() if key not in ("templates", "notes")}
        found.append((name, json.dumps(shown, ensure_ascii=False)))
        found += [(name, f"note: {note}") for note in identity.get("notes", [])]
    return found
