"""The report as one HTML file that loads nothing: tables, charts, and what was run. Everything is escaped."""

import json
from collections.abc import Mapping

from markupsafe import Markup

from trustjudge_ray.report import (
    agreement,
    audited,
    bias,
    cells,
    charts,
    consistency,
    granularity,
    judges,
    people,
    ratings,
    tables,
)
from trustjudge_ray.report.rendering import render


def figures(inputs: tables.Inputs) -> dict[str, str]:
    """The figures of the report as SVG text by name."""
    return charts.figures(inputs)


def page(inputs: tables.Inputs, drawn: Mapping[str, str] | None = None) -> str:
    """The report as HTML. Text from a corpus or a judge is escaped; figures are inline SVG.

    Args:
        drawn: the figures, where they are drawn already.
    """
    drawn = figures(inputs) if drawn is None else drawn
    return render(
        "page.html.j2",
        title=inputs.title,
        findings=tables.findings(inputs),
        leaderboards=tables.leaderboards(inputs),
        ratings=[*ratings.by_rule(inputs), *ratings.coefficients(inputs)],
        side_by_side=judges.side_by_side(inputs),
        audits=audited.audits(inputs),
        consistency=[*tables.consistency(inputs), *consistency.curves(inputs)],
        scores=[granularity.granularity(inputs), granularity.entropies(inputs)],
        metrics=[*bias.cards(inputs), *tables.coverage(inputs)],
        agreement=[*agreement.agreement(inputs), *_labels(inputs)],
        failures=tables.failures(inputs),
        figures={name: Markup(svg) for name, svg in drawn.items()},
        captions={name: text.format(confidence=cells.confidence(inputs.settings)) for name, text in _CAPTIONS.items()},
        protocols=inputs.protocols,
        manifest=json.dumps(inputs.manifest, indent=1, ensure_ascii=False),
        judges=_judges(inputs),
        duplicates=inputs.duplicates,
        methods=_METHODS,
    )


_CAPTIONS = {
    "ratings": "Ratings with {confidence} intervals, clustered by question.",
    "score_distributions": "Mean label distribution of each model's answers.",
    "non_transitivity": "Non-transitivity by verdict rule and subset size, at the smallest tolerance.",
    "tolerances": "Ratios over the tolerances with {confidence} intervals; dashed: by chance with the same ties.",
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


def _labels(inputs: tables.Inputs) -> list[tables.Table]:
    return people.people_tables(inputs.people, inputs.settings.verdict_rules[:1]) if inputs.people else []


def _judges(inputs: tables.Inputs) -> list[tuple[str, str]]:
    found = []
    for name, identity in inputs.manifest.get("judges", {}).items():
        shown = {key: value for key, value in identity.items() if key not in ("templates", "notes")}
        found.append((name, json.dumps(shown, ensure_ascii=False)))
        found += [(name, f"note: {note}") for note in identity.get("notes", [])]
    return found
