"""A comparison of two runs as Markdown and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from trustjudge_ray.analysis.compare import VERDICTS, Change, Comparison
from trustjudge_ray.analysis.rank_changes import RankChange

_MEASURES: Final = {
    "mean_score": "Mean score",
    "win_rate": "Win rate",
    "conflict_ratio": "Conflict ratio",
    "non_transitivity_ratio": "Non-transitivity ratio",
    "judge_shift": "Shift of the judge",
}
_PERCENT: Final = ("win_rate", "conflict_ratio", "non_transitivity_ratio")


def markdown(found: Comparison, failed: Sequence[str] = ()) -> str:
    """The comparison as people read it: first what must be known, then what changed.

    Args:
        failed: why the gate does not pass.
    """
    shared = found.overlap
    lines = [
        f"# {_text(found.b)} compared with {_text(found.a)}",
        "",
        f"{len(shared.questions)} questions and {len(shared.models)} models in both. Differences are the second run "
        "minus the first, paired by question; intervals hold for all models and measures at once (family-wise). "
        "Detectable is the smallest true difference that this comparison finds four times out of five.",
        "",
    ]
    lines += [f"- **{_text(text)}**" for text in (*found.warnings, *(f"does not pass: {text}" for text in failed))]
    lines += ["", _summary(found), ""]
    for measure in dict.fromkeys(change.measure for change in found.changes):
        mine = [change for change in found.changes if change.measure == measure]
        lines += [f"## {_MEASURES[measure]}", "", *_change_table(mine), ""]
    if found.consistency:
        note = "Over pairs and subsets that are valid in both runs; lower is better."
        lines += ["## Consistency", "", note, "", *_change_table(found.consistency), ""]
    if found.ranks:
        note = (
            "Up and down: in what share of resamples of the questions a model's rank is better or worse than before. "
            "Ranks, and ratings of comparisons, are relative: a model also rises because another fell."
        )
        lines += ["## Ranks", "", note, "", *_rank_table(found.ranks), ""]
    left = [f"- {lane}: {reason} {n}" for lane, reasons in found.excluded.items() for reason, n in reasons.items()]
    if left:
        lines += ["## Left out", "", *map(_text, left), ""]
    return "\n".join(lines)


def as_document(found: Comparison, failed: Sequence[str] = ()) -> dict[str, Any]:
    """The comparison for machines: every number of it."""
    shared = found.overlap
    return {
        "a": found.a,
        "b": found.b,
        "passed": not failed,
        "failed": list(failed),
        "verdicts": {word: sum(change.verdict == word for change in found.changes) for word in VERDICTS},
        "warnings": found.warnings,
        "other_judges": found.other_judges,
        "changes": [asdict(change) for change in found.changes],
        "consistency": [asdict(change) for change in found.consistency],
        "ranks": [asdict(rank) for rank in found.ranks],
        "questions": len(shared.questions),
        "models": shared.models,
        "unchanged_answers": shared.unchanged.height,
        "only_a": shared.only_a,
        "only_b": shared.only_b,
        "changed_questions": shared.changed,
        "excluded": found.excluded,
    }


def _summary(found: Comparison) -> str:
    """Who improved and who regressed, in a sentence or two."""
    said = []
    for word in VERDICTS[:2]:
        who = [_text(c.model or "all models together") + f" ({c.measure})" for c in found.changes if c.verdict == word]
        if who:
            said.append(f"**{word.capitalize()}**: {', '.join(who)}.")
    for word in VERDICTS[2:]:
        count = sum(change.verdict == word for change in found.changes)
        if count:
            said.append(f"{word.capitalize()}: {count} of {len(found.changes)}.")
    return " ".join(said) or "Nothing was compared."


def _change_table(changes: Sequence[Change]) -> list[str]:
    consistency = changes[0].model is None and changes[0].measure in ("conflict_ratio", "non_transitivity_ratio")
    who = "measure" if consistency else "model"
    columns = (who, "judge, protocol", "rule", "before", "after", "difference", "interval", "detectable", "questions")
    rows = []
    for c in changes:
        form = _percent if c.measure in _PERCENT else _number
        k = "" if c.k is None else f" k = {c.k}"
        interval = "–" if c.low is None else f"{form(c.low, True)} … {form(c.high, True)}"
        name = f"{c.measure}{k}" if consistency else _text(c.model or "all")
        verdict = c.verdict or "–"
        values = form(c.before), form(c.after), form(c.difference, True), interval, form(c.detectable), str(c.questions)
        rows.append((name, c.lane, c.rule, *values, verdict, c.note))
    return markdown_table((*columns, "verdict", "note"), rows)


def _rank_table(ranks: Sequence[RankChange]) -> list[str]:
    columns = ("model", "judge, protocol", "rule", "rank", "rating", "difference", "interval", "up", "down")
    rows = []
    for r in ranks:
        places = f"{r.rank_before} → {r.rank_after}"
        form = _whole if r.rule == "davidson" else _number
        rating = f"{form(r.rating_before)} → {form(r.rating_after)}"
        interval = "–" if r.rating_low is None else f"{form(r.rating_low, True)} … {form(r.rating_high, True)}"
        difference = form(r.rating_difference, True)
        rows.append(
            (r.model, r.lane, r.rule, places, rating, difference, interval, _percent(r.p_up), _percent(r.p_down))
        )
    return markdown_table(columns, rows)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; whatever the cells hold stays in them."""
    head = [f"| {' | '.join(columns)} |", f"|{'|'.join('---' for _ in columns)}|"]
    return head + [f"| {' | '.join(_text(cell) for cell in row)} |" for row in rows]


def _text(text: str) -> str:
    """A text that stays in its cell: no line break, no column, no HTML."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("|", "\\|")
    return " ".join("".join(c if c.isprintable() else " " for c in escaped).split())


def _number(value: float | None, sign: bool = False) -> str:
    return "–" if value is None else f"{value:{'+' if sign else ''}.3f}"


def _whole(value: float | None, sign: bool = False) -> str:
    return "–" if value is None else f"{value:{'+' if sign else ''}.0f}"


def _percent(value: float | None, sign: bool = False) -> str:
    return "–" if value is None else f"{100 * value:{'+' if sign else ''}.1f} %"
