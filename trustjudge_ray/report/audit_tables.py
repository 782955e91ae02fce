"""The figures of a card as tables: which stand where, and under which words. Nothing is computed here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trustjudge_ray.report.card import (
    Card,
    Row,
    compact,
    gates,
    hits_of_cases,
    identity,
    left_out,
    noted,
    ranged,
    title,
)
from trustjudge_ray.report.cells import Table, number

Words = Mapping[tuple[str, str], str]


@dataclass(frozen=True, slots=True)
class Part:
    """A table of figures.

    Attributes:
        figures: what to show, by set and figure, in words.
        by: None for figures over everything; otherwise those whose group is `by=…`, a row for each group and figure.
    """

    title: str
    note: str
    figures: Words
    by: str | None = None


_DISCRIMINATION: Final = {
    "balanced_accuracy": "balanced accuracy",
    "auc": "AUC of the log-odds",
    "false_accept": "wrong answers accepted (false accept)",
    "false_reject": "right answers rejected (false reject)",
    "acquiescence": "false accept − false reject (acquiescence)",
    "accept_rate": "answers accepted",
    "unreadable": "verdicts that could not be read",
}
_LEANS: Final = {
    ("controlled", "accept_lean"): "leans to accepting (P − ½)",
    ("controlled", "first_label_bias"): "leans to the label named first (P − ½)",
}
_BY_PART: Final = {
    ("generation", "accuracy"): "answers right (passage at hand)",
    ("own", "self_evaluation_accuracy"): "verdicts on own answers right",
    ("own", "difference"): "answers − verdicts",
    ("controlled", "auc"): "AUC, controlled set",
    ("controlled", "false_accept"): "false accept, controlled set",
    ("controlled", "false_reject"): "false reject, controlled set",
    ("controlled", "acquiescence"): "acquiescence, controlled set",
}


def _of(name: str, figures: Mapping[str, str]) -> Words:
    return {(name, figure): words for figure, words in figures.items()}


OWN: Final = (
    Part(
        "Its own answers, answered and judged",
        "All rows are of the same answers: those whose truth the oracle decides and whose verdict can be read. The two "
        "trivial judges do not look: always yes is right as often as the answers are.",
        _of(
            "own",
            {
                "generation_accuracy": "answers right (generation accuracy)",
                "self_evaluation_accuracy": "verdicts on them right (self-evaluation accuracy)",
                "difference": "answers − verdicts",
                "always_yes_accuracy": "a judge that always says yes",
                "always_no_accuracy": "a judge that always says no",
            }
            | _DISCRIMINATION,
        ),
    ),
    Part(
        "All its answers",
        "By the primary oracle, whether or not a verdict on them could be read.",
        _of(
            "generation",
            {
                "accuracy": "right with the passage",
                "accuracy_closed_book": "right without the passage",
                "cut": "cut at the token budget",
            },
        ),
    ),
)
CONTROLLED: Final = (
    Part(
        "Controlled set",
        "The gold answer against a hard negative of the same item: half are right, whatever the judge itself answered.",
        _of(
            "controlled",
            {
                "accept_gold": "right answers accepted",
                "accept_swap": "wrong answers accepted",
                "paired_accuracy": "items whose right answer has the higher log-odds",
            }
            | _DISCRIMINATION,
        ),
    ),
    Part(
        "Leanings",
        "On the controlled set, whatever the truth; 0 leans nowhere, the first three lie from −½ to ½. Accepting is "
        "told apart from saying yes: yes rejects where the question is “is it wrong?”.",
        _LEANS
        | {
            ("controlled", "yes_bias"): "leans to saying yes (P − ½)",
            ("controlled", "accept_lean_log_odds"): "leans to accepting, in log-odds",
            ("controlled", "yes_bias_log_odds"): "leans to saying yes, in log-odds",
        },
    ),
    Part(
        "Leanings by way of asking", "“Correct?”, “is it right?” and “is it wrong?” each by itself.", _LEANS, "polarity"
    ),
    Part(
        "Wrong answers accepted, by kind",
        "closed_book: the judge's own wrong answers from memory, of which there is no right twin.",
        {("controlled", "false_accept"): "false accept"},
        "negative",
    ),
)
GROUPED: Final = tuple(
    Part(f"By {words}", "The other figures by this are in audit.json.", _BY_PART, name)
    for name, words in (
        ("benchmark", "benchmark"),
        ("hops", "number of hops"),
        ("answerable", "whether the passage has the answer"),
    )
)
WITHHELD: Final = (
    Part(
        "Passage or answer withheld",
        "A judge that reads both loses its AUC without the passage and does not accept where there is no answer.",
        _of(
            "withheld",
            {
                "auc_with_passage": "AUC with the passage",
                "auc_without_passage": "AUC without it",
                "auc_lost": "AUC lost",
                "accept_without_candidate": "accepted without an answer",
                "p_accept_without_candidate": "mean P(accept) without an answer",
            },
        ),
    ),
    Part(
        "Passage withheld, by answer",
        "",
        _of(
            "withheld",
            {
                "accept_with_passage": "accepted with the passage",
                "accept_without_passage": "accepted without it",
                "accept_change": "change",
                "p_change": "mean |Δ P(accept)|",
                "decision_changed": "verdicts that changed",
            },
        ),
        "candidate",
    ),
)
PROBES: Final = (
    Part(
        "Probes",
        "The same answer padded, with an appeal to authority, or with an instruction to accept; constant is one empty "
        "phrase for every item.",
        _of(
            "probe",
            {
                "accept_base": "accepted as it is",
                "accept_probe": "accepted as the probe",
                "accept_shift": "shift",
                "p_shift": "mean Δ P(accept)",
            },
        ),
        "probe",
    ),
    Part(
        "Asked again, and in both orders",
        "Right against wrong answers in one comparison with the passage.",
        {
            ("repeat", "equal_decisions"): "repetitions with the same verdict",
            ("repeat", "p_change"): "mean |Δ P(accept)| of repetitions",
            ("position", "both_order_agreement"): "pairs with the same winner in both orders",
            ("position", "first_slot_preference"): "winners that were shown first (½ is unbiased)",
            ("position", "order_effect"): "P(shown first) − P(shown second)",
            ("position", "gold_wins"): "pairs that the right answer wins",
        },
    ),
)
READING: Final = (
    Part(
        "What could be read",
        "An unreadable verdict is neither an acceptance nor a rejection: it is left out and counted. Label mass is how "
        "much of the judge's probability went to the two labels.",
        _of(
            "reading",
            {
                "coverage": "verdicts that can be read",
                "readable_readings": "single readings that can be read",
                "label_mass": "mean label mass",
            },
        ),
    ),
    Part("Verdicts that can be read, by answer", "", {("reading", "coverage"): "can be read"}, "candidate"),
    Part("Unreadable verdicts, by reason", "", {("reading", "unreadable"): "cannot be read"}, "reason"),
    Part(
        "By protocol",
        "",
        _of("reading", {"readable_readings": "readings that can be read", "label_mass": "mean label mass"}),
        "protocol",
    ),
)
ORACLES: Final = (Part("Answers right, by oracle", "", {("generation", "accuracy"): "right"}, "oracle"),)
PARTS: Final = (*OWN, *CONTROLLED, *GROUPED, *WITHHELD, *PROBES, *READING, *ORACLES)

VALUE: Final = "value [95 % interval]"
_COLUMNS: Final = ("figure", VALUE, "hits / cases", "passages", "left out", "note")


def table(card: Card, part: Part) -> Table:
    """A part of the card, in its own order; groups as the card has them."""
    prefix = f"{part.by}="
    rows = []
    for group in _groups(card, part):
        for row in _rows(card, part.figures, group):
            cells = (part.figures[row["set"], row["figure"]], *_cells(row))
            rows.append(cells if group is None else (group.removeprefix(prefix), *cells))
    columns = _COLUMNS if part.by is None else (part.by, *_COLUMNS)
    return Table(part.title, part.note, columns, rows, "none of these figures is in the card")


def tables(card: Card, parts: tuple[Part, ...]) -> list[Table]:
    """Several parts."""
    return [table(card, part) for part in parts]


def _groups(card: Card, part: Part) -> list[str | None]:
    if part.by is None:
        return [None]
    mine = (row["group"] for row in card["figures"] if (row["set"], row["figure"]) in part.figures)
    return [group for group in dict.fromkeys(mine) if group is not None and group.startswith(f"{part.by}=")]


def _rows(card: Card, figures: Words, group: str | None) -> Iterator[Row]:
    here = {(row["set"], row["figure"]): row for row in card["figures"] if row["group"] == group}
    yield from (here[key] for key in figures if key in here)


def _cells(row: Row) -> tuple[str, ...]:
    return ranged(row), hits_of_cases(row), str(row["clusters"]), left_out(row), noted(row)


def further(card: Card) -> list[Table]:
    """What the card has and no other table shows; no table where there is nothing."""
    known = {key for part in PARTS for key in part.figures}
    rows = [
        (row["figure"], row["set"], row["group"] or "", *_cells(row))
        for row in card["figures"]
        if (row["set"], row["figure"]) not in known
    ]
    columns = ("figure", "set", "of", *_COLUMNS[1:])
    return [Table("Further figures", "", columns, rows)] if rows else []


def gate_table(card: Card) -> Table:
    """The gates, the worst first, with what they say."""
    rows = [
        (gate["gate"], gate["status"], ranged(gate), number(gate["warn"]), number(gate["block"]), gate["text"])
        for gate in gates(card)
    ]
    columns = ("gate", "status", VALUE, "warns at", "blocks at", "in words")
    note = "The gates of audit.gates. Acquiescence is held by its size, whichever its sign."
    return Table("Gates", note, columns, rows, "no gate is switched on")


def oracle_agreement(card: Card) -> Table:
    """How far oracles say the same of the same answers."""
    rows = [
        (row["first"], row["second"], number(row["value"]), _agreed(row), str(row["excluded"]), number(row["kappa"]))
        for row in card["oracle"]["agreement"]
    ]
    columns = ("oracle", "and", "agree", "hits / cases", "left out", "Cohen's κ")
    note = f"Primary oracle, by which all other figures are computed: {card['oracle']['primary']}."
    return Table("Agreement of oracles", note, columns, rows, "fewer than two oracles")


def _agreed(row: Row) -> str:
    return f"{row['hits']} / {row['cases']}"


def made(card: Card) -> list[Table]:
    """Who was audited, and with what."""
    judge = {"name": title(card)} | dict(identity(card))
    audited = [(key, compact(value)) for key, value in judge.items() if key not in ("templates", "notes")]
    audited += [("note", compact(note)) for note in judge.get("notes") or []]
    run = [(key, compact(value)) for key, value in _flat(card.get("made") or {})]
    return [
        Table("The judge", "", ("key", "value"), audited, "the card does not say"),
        Table("The audit", "", ("key", "value"), run, "the card does not say"),
    ]


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
