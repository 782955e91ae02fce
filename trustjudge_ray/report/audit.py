"""The card of an audit as one HTML page that loads nothing, and as text for a terminal. Everything is escaped."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from trustjudge_ray.report import audit_experiments as experiments
from trustjudge_ray.report import audit_tables as parts
from trustjudge_ray.report.audit_chart import forest
from trustjudge_ray.report.audit_findings import findings
from trustjudge_ray.report.card import MEANS, extent, gates, hits_of_cases, left_out, named, noted, ranged, title
from trustjudge_ray.report.cells import Table, plain
from trustjudge_ray.report.rendering import policy, render, script

_WIDTH: Final = 118


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: what it says, its tables, and what is said where there are none."""

    title: str
    tables: list[Table]
    notes: list[str]
    missing: str = ""


def audit_page(card_json: Mapping[str, Any]) -> str:
    """The page `audit.html`: verdict, gates, what was found, every figure, what was run.

    Args:
        card_json: the content of `audit.json`. Figures that it lacks are left out; what it has beside these comes last.
    """
    drawn, theme = forest(card_json), script("theme.js")
    return render(
        "audit.html.j2",
        policy=policy([theme]),
        theme=theme,
        title=title(card_json),
        extent=extent(card_json),
        verdict=card_json["verdict"],
        means=MEANS.get(card_json["verdict"], ""),
        gates=gates(card_json),
        findings=findings(card_json),
        cautions=card_json["cautions"],
        chart=None if drawn is None else Markup(drawn),
        sections=_sections(card_json),
    )


def _sections(card: Mapping[str, Any]) -> list[Section]:
    def of(which: tuple[parts.Part, ...]) -> list[Table]:
        return parts.tables(card, which)

    found = [
        Section("The gate", [parts.gate_table(card)], []),
        Section("Its own answers", of(parts.OWN), []),
        Section("Right against wrong answers", of(parts.CONTROLLED), []),
        Section("By benchmark, hops, answerable", of(parts.GROUPED), []),
        Section("What it reads", of(parts.WITHHELD), []),
        Section("Probes, repetitions, order", of(parts.PROBES), []),
        Section("Readability", of(parts.READING), []),
        Section("Oracles", [*of(parts.ORACLES), parts.oracle_agreement(card)], []),
        Section("Attention", experiments.attention(card), [experiments.DESCRIBES], "Attention was not measured."),
        Section("LoRA transfer", experiments.lora(card), experiments.lora_cautions(card), "No adapters were trained."),
        Section("What was run", parts.made(card), []),
    ]
    more = parts.further(card)
    return [*found[:-1], Section("Further figures", more, []), found[-1]] if more else found


_SHOWN: Final = (
    *(
        ("own", "generation_accuracy", "own answers right"),
        ("own", "self_evaluation_accuracy", "verdicts on them right"),
    ),
    *(("own", "difference", "answers − verdicts"), ("own", "always_yes_accuracy", "a judge that always says yes")),
    *(("own", "always_no_accuracy", "a judge that always says no"), ("own", "auc", "AUC, own answers")),
    *(("controlled", "auc", "AUC, controlled set"), ("controlled", "paired_accuracy", "right before wrong")),
    *(("controlled", "false_accept", "false accept"), ("controlled", "false_reject", "false reject")),
    *(("controlled", "acquiescence", "acquiescence"), ("controlled", "accept_lean", "leans to accepting")),
    *(("controlled", "yes_bias", "leans to yes"), ("controlled", "first_label_bias", "leans to the first label")),
    ("withheld", "auc_lost", "AUC lost without the passage"),
    ("withheld", "accept_without_candidate", "accepted without an answer"),
    *(
        ("position", "both_order_agreement", "same winner in both orders"),
        ("repeat", "equal_decisions", "repeated alike"),
    ),
    *(("reading", "coverage", "verdicts readable"), ("reading", "label_mass", "label mass")),
)
_BY_GROUP: Final = {
    ("controlled", "false_accept", "negative="): "false accept of",
    ("probe", "accept_shift", "probe="): "accept shift by",
}


def audit_text(card_json: Mapping[str, Any]) -> str:
    """The text `audit.txt`, some 50 lines: verdict, gates, what was found, cautions, the main figures."""
    verdict = card_json["verdict"]
    head = [f"Audit of {title(card_json)}: {verdict}, {MEANS.get(verdict, '')}", f"  {extent(card_json)}"]
    gate_lines = [_wrapped(f"{gate['status']:<12}  ", f"{gate['gate']}: {gate['text']}") for gate in gates(card_json)]
    found = [_wrapped("- ", text) for text in findings(card_json)]
    known = [_wrapped("! ", text) for text in card_json["cautions"]]
    blocks = ["\n".join(head), "\n".join(["Gates", *gate_lines]), "\n".join(["What was found", *found])]
    blocks += ["\n".join(["Read this first", *known])] if known else []
    blocks += [plain(_main_figures(card_json)), "\n".join(_apart(card_json))]
    return "\n\n".join(blocks) + "\n"


def _wrapped(mark: str, text: str) -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=f"  {mark}", subsequent_indent=" " * (2 + len(mark)), break_on_hyphens=False
    )


def _main_figures(card: Mapping[str, Any]) -> Table:
    found = named(card)
    rows = [(words, found[of, name, None]) for of, name, words in _SHOWN if (of, name, None) in found]
    for row in card["figures"]:
        for (of, name, prefix), words in _BY_GROUP.items():
            if (row["set"], row["figure"]) == (of, name) and (row["group"] or "").startswith(prefix):
                rows.append((f"{words} {row['group'].removeprefix(prefix)}", row))
    asked = [(words, row) for words, row in rows if row["cases"] or row["excluded"]]
    cells = [(words, ranged(row), hits_of_cases(row), left_out(row), noted(row)) for words, row in asked]
    columns = ("figure", parts.VALUE, "hits / cases", "left out", "note")
    return Table("Main figures (what was not asked is left out)", "", columns, cells)


def _apart(card: Mapping[str, Any]) -> list[str]:
    """What was measured apart, and where the rest is."""
    lines = experiments.attention_lines(card) + experiments.lora_lines(card)
    told = [_wrapped("", line) for line in lines]
    rest = f"Oracle: {card['oracle']['primary']}. By benchmark, hops and protocol, and why: audit.html, audit.json."
    return [*told, f"  {rest}"]
