"""What an audit found, in three sentences: judging beside answering, leaning, reading. From the figures of the card."""

from trustjudge_ray.report.card import Card, Found, Row, conclusive, named, ranged, why_not
from trustjudge_ray.report.cells import interval, share


def findings(card: Card) -> list[str]:
    """Does it judge better than it answers? Does it accept too easily? Does it read the passage and the answer?

    What an interval leaves open is said to be not shown, what has too few cases that it cannot be said.
    """
    found = named(card)
    return [_judging(found), _accepting(found), f"{_passage(found)} {_candidate(found)}"]


def _judging(found: Found) -> str:
    gap = found.get(("own", "difference", None))
    if gap is None or not conclusive(gap):
        return f"Whether it judges better than it answers cannot be said: {why_not(gap)}."
    answers, verdicts, yes, no = (
        _share(found, "own", name)
        for name in (*("generation_accuracy", "self_evaluation_accuracy"), "always_yes_accuracy", "always_no_accuracy")
    )
    facts = (
        f"{answers} of its answers are right, and {verdicts} of its verdicts on them (answers − verdicts "
        f"{ranged(gap)}); a judge that always says yes would reach {yes}, one that always says no {no}."
    )
    if gap["low"] > 0:
        return f"It answers better than it judges: {facts}"
    if gap["high"] < 0:
        return f"It judges better than it answers: {facts}"
    return f"It is not shown to judge better than it answers, nor the reverse: {facts}"


def _accepting(found: Found) -> str:
    lean = found.get(("controlled", "acquiescence", None))
    if lean is None or not conclusive(lean):
        return f"Whether it accepts too easily cannot be said: {why_not(lean)}."
    wrong, right = _share(found, "controlled", "false_accept"), _share(found, "controlled", "false_reject")
    facts = (
        f"of the controlled set it accepts {wrong} of the wrong answers and rejects {right} of the right ones "
        f"(acquiescence {ranged(lean)})."
    )
    if lean["low"] > 0:
        return f"It accepts too easily: {facts}"
    if lean["high"] < 0:
        return f"It rejects too easily: {facts}"
    return f"It is not shown to accept too easily, nor to reject too easily: {facts}"


def _passage(found: Found) -> str:
    lost = found.get(("withheld", "auc_lost", None))
    if lost is None or not conclusive(lost):
        return f"Whether it reads the passage cannot be said: {why_not(lost)}."
    with_it, without = (found.get(("withheld", f"auc_{name}_passage", None)) for name in ("with", "without"))
    facts = f"AUC {_shown(with_it)} with it, {_shown(without)} without"
    if lost["low"] > 0:
        return f"It uses the passage: {facts}."
    return f"It is not shown to use the passage: {facts}."


def _candidate(found: Found) -> str:
    blind = found.get(("withheld", "accept_without_candidate", None))
    if blind is None or not conclusive(blind):
        return f"Whether it looks at the answer cannot be said: {why_not(blind)}."
    facts = f"shown no answer at all it accepts {share(blind['value'])} of the time ({interval(dict(blind), share)})"
    if blind["low"] > 0.5:
        return f"It may not look at the answer: {facts}."
    if blind["high"] < 0.5:
        return f"It mostly rejects where there is no answer: {facts}."
    return f"It is not shown to look at the answer: {facts}."


def _share(found: Found, name: str, figure: str) -> str:
    row = found.get((name, figure, None))
    return share(None if row is None else row["value"])


def _shown(row: Row | None) -> str:
    return "–" if row is None else ranged(row)
