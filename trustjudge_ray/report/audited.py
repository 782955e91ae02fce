"""How a leaderboard's report shows that its judges were audited, by whom it was, and what came of it; or that not."""

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trustjudge_ray.report.card import MEANS, Card, compact, extent, gates, identity, named, ranged, title
from trustjudge_ray.report.cells import Inputs

_SAME: Final = ("model", "revision", "precision", "endpoint", "script")
"""What two identities must share to be of one judge; what neither has is the same. Not the context length, which cuts
answers, nor the protocols' templates: an audit asks others."""
_FIGURES: Final = {("controlled", "auc", None): "AUC", ("controlled", "acquiescence", None): "acquiescence"}
_UNKNOWN: Final = "not known"
_MOST: Final = 4
"""So many differences are told."""


@dataclass(frozen=True, slots=True)
class Audited:
    """What a report says of one judge.

    Attributes:
        verdict: of its card; None without one.
        says: what that comes to, in a sentence.
        warnings: why the card may not hold for this judge.
        lines: AUC, acquiescence and extent of the audit; then each gate, the worst first.
    """

    judge: str
    verdict: str | None
    says: str
    warnings: list[str]
    lines: list[str]


def audits(inputs: Inputs) -> list[Audited]:
    """Every judge of the run, with its card or without."""
    identities = inputs.manifest.get("judges", {})
    judges = inputs.judgments["judge"].unique().sort().to_list()
    return [audited(judge, inputs.audits.get(judge), identities.get(judge)) for judge in judges]


def audited(judge: str, card: Card | None, of_run: Mapping[str, Any] | None) -> Audited:
    """What is said of one judge.

    Args:
        card: the content of an `audit.json`; None without one.
        of_run: the judge's entry in the run's manifest; None where there is none.
    """
    if card is None:
        says = "not audited: whether its judgments can be trusted was not looked into (trustjudge audit, judge.audit)"
        return Audited(judge, None, says, [], [])
    found = named(card)
    figures = [f"{words} {ranged(found[key])}" if key in found else f"{words} –" for key, words in _FIGURES.items()]
    lines = [f"{', '.join(figures)} (95 % intervals, clustered by passage); {extent(card)}"]
    lines += [f"{gate['status']} {gate['gate']}: {gate['text']}" for gate in gates(card)]
    doubt = another(identity(card), of_run, title(card))
    return Audited(judge, card["verdict"], MEANS.get(card["verdict"], ""), [doubt] if doubt else [], lines)


def another(of_card: Mapping[str, Any], of_run: Mapping[str, Any] | None, name: str) -> str | None:
    """Why a card may not be of a run's judge, in words; None where the identities agree in all of _SAME."""
    if not of_run:
        return f"the run does not say which model, revision and precision judged; the card is of {name}"
    sides = [{key: value for name in _SAME for key, value in _flat(name, side.get(name))} for side in (of_card, of_run)]
    keys = sorted(sides[0].keys() | sides[1].keys())
    told = [
        f"{key} {sides[0].get(key, _UNKNOWN)} in the card, {sides[1].get(key, _UNKNOWN)} in this run"
        for key in keys
        if sides[0].get(key) != sides[1].get(key)
    ]
    if not told:
        return None
    more = f", and {len(told) - _MOST} more" if len(told) > _MOST else ""
    return f"the card is of another judge: {', '.join(told[:_MOST])}{more}"


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """What an identity says under a key, as text by dotted key; nothing where it says nothing."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(f"{name}.{key}", part)
    elif value is not None:
        yield name, compact(value)


def audits_text(inputs: Inputs) -> str:
    """All judges as plain text."""
    lines = ["Were the judges audited?"]
    for found in audits(inputs):
        head = f"{found.judge}: {f'{found.verdict}, ' if found.verdict else ''}{found.says}"
        marked = [("  ", head), *(("  ! ", line) for line in found.warnings), *(("    ", line) for line in found.lines)]
        lines += [_wrapped(mark, line) for mark, line in marked]
    return "\n".join(lines)


def _wrapped(mark: str, line: str) -> str:
    return textwrap.fill(line, 118, initial_indent=mark, subsequent_indent=" " * 6, break_on_hyphens=False)
