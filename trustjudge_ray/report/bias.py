"""The bias card: for each judge what it prefers besides quality, beside what no bias would give, in a word each.

The words come from the intervals alone: a preference is said where the interval leaves out what no bias would give,
never because of a value.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from trustjudge_ray.analysis.games import POOLED
from trustjudge_ray.report.cells import (
    Cell,
    Form,
    Inputs,
    Table,
    beside,
    confidence,
    counts,
    interval,
    number,
    overall,
    said,
    small,
    whole,
)
from trustjudge_ray.report.cells import share as percent

Row = dict[str, Any]
Words = Callable[[Row, pl.DataFrame], str]

_WIDE: Final = 0.3
"""An interval wider than this that holds the unbiased value shows neither a preference nor the absence of one."""
_RARE, _OFTEN = 0.1, 0.5
_TOO_FEW: Final = "too few cases"
_UNBOUNDED: Final = "the games do not bound it"


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the card: what a metric is called there, what no bias would give, and how its interval is read."""

    what: str
    unbiased: str
    form: Form
    words: Words


def cards(inputs: Inputs, brief: bool = False) -> list[Table]:
    """A card for each judge, by the main rules of the settings and at the smallest tolerances.

    Args:
        brief: only lines that have cases.
    """
    rows = _chosen(inputs)
    note = (
        f"Intervals are {confidence(inputs.settings)}, clustered by question; the last column reads nothing else. A "
        "preference alone is no bias: longer answers, or the judge's own family's, may be better. So it stands beside "
        "people's, or other judges', on the same pairs; who guesses is drawn to one half, which a difference cannot "
        "tell from a bias towards it. Lengths are characters of the replies."
    )
    found = []
    for (judge,), mine in rows.partition_by("judge", as_dict=True, maintain_order=True).items():
        cells = [_cells(metric, row, mine) for metric, row in _ordered(mine)]
        kept = [cell for cell, cases in cells if cases or not brief]
        columns = ("what", "protocol", "value", "interval", "counts", "without bias", "what it says")
        found.append(Table(f"Bias card of {judge}", note, columns, kept))
    return found


def _chosen(inputs: Inputs) -> pl.DataFrame:
    rows, settings = overall(inputs), inputs.settings
    noise = pl.col("metric").str.starts_with("noise_")
    return rows.filter(
        pl.col("metric").is_in([*LINES, *_BESIDE.values()]),
        pl.col("judge").is_not_null() & (pl.col("judge") != POOLED) & pl.col("protocol").is_not_null(),
        noise | pl.col("score_rule").is_null() | (pl.col("score_rule") == settings.score_rule),
        noise | pl.col("verdict_rule").is_null() | (pl.col("verdict_rule") == settings.verdict_rule),
    ).sort("judge", "protocol")


def _ordered(rows: pl.DataFrame) -> Iterator[tuple[str, Row]]:
    """Line by line; protocol by protocol where indented lines follow one."""
    groups: list[list[str]] = []
    for metric, line in LINES.items():
        if line.what.startswith("  "):
            groups[-1].append(metric)
        else:
            groups.append([metric])
    for group in groups:
        for protocol in rows["protocol"].unique(maintain_order=True):
            for metric in group:
                for row in rows.filter(metric=metric, protocol=protocol).to_dicts():
                    yield metric, row


def _cells(metric: str, row: Row, rows: pl.DataFrame) -> tuple[tuple[str, ...], int]:
    line = LINES[metric]
    says = line.words(row, rows) if row["cases"] else _why_none(row)
    value = line.form(row["value"]), interval(row, line.form), _counts(metric, row)
    return (line.what, row["protocol"], *value, _unbiased(metric, row, rows), says), row["cases"]


def _unbiased(metric: str, row: Row, rows: pl.DataFrame) -> str:
    """What no bias would give; where that is what a reference gives, with its value over the pairs that both decide."""
    line = LINES[metric]
    for whose, name in _REFERENCES.items():
        found = beside(rows, f"{metric}_{name}", row)
        if found is not None and found["cases"]:
            return said(f"{whose}: {{}}", line.form(found["value"]))
    return line.unbiased


def _counts(metric: str, row: Row) -> str:
    """Hits and cases of a share; of what is no share `hits` is a sum, so its cases alone."""
    hits = row["hits"] is not None and float(row["hits"]).is_integer()
    return counts(row) if hits and LINES[metric].form is percent else whole(row["cases"])


def _why_none(row: Row) -> str:
    reasons = json.loads(row["excluded_by"] or "{}")
    if not reasons:
        return "not measured (plan.repeat: 1 does)" if row["metric"].startswith("noise_") else "no cases"
    reason = max(reasons, key=lambda name: reasons[name])
    return said("no cases: {} ({})", reason.replace("_", " "), whole(reasons[reason]))


def _sided(neutral: float, below: str, above: str, neither: str = "no preference shown") -> Words:
    """Which side of the neutral value the interval is on."""

    def words(row: Row, rows: pl.DataFrame) -> str:
        low, high = row["low"], row["high"]
        if row["value"] is None:
            return _UNBOUNDED
        if low is None or high is None:
            return _TOO_FEW
        if low > neutral or high < neutral:
            return above if low > neutral else below
        return f"{_TOO_FEW} to tell" if high - low > _WIDE else neither

    return words


def _first_slot(row: Row, rows: pl.DataFrame) -> str:
    """Wins of the first slot are a preference for it only where they cannot be those of better answers: a pair shown
    both ways has its better answer first once. Pairs shown one way only must be borne out by the others."""
    said = _sided(0.5, _SECOND, _FIRST)(row, rows)
    flips, effect = beside(rows, "flip_rate", row), beside(rows, "order_effect", row)
    if flips is None or not flips["cases"]:
        return "cannot be told from better answers: no pair was read both ways"
    one_way = "missing_order" in json.loads(flips["excluded_by"] or "{}")
    if said not in (_FIRST, _SECOND) or not one_way:
        return said
    borne_out = effect is not None and _sided(0.0, _SECOND, _FIRST)(effect, rows) == said
    return said if borne_out else f"{said}, or better answers stood there: pairs read both ways do not show it"


def _against(metric: str, neutral: float, whom: str, what: str) -> Words:
    """A difference from a reference; says so where the judge is only nearer to `neutral`, as guessing puts it."""
    plain = _sided(0.0, f"prefers {what} less than {whom}", f"prefers {what} more than {whom}", f"no more than {whom}")

    def words(row: Row, rows: pl.DataFrame) -> str:
        said = plain(row, rows)
        theirs = beside(rows, _BESIDE[metric], row)
        if not said.startswith("prefers") or theirs is None or theirs["value"] is None:
            return said
        from_theirs = theirs["value"] - neutral
        mine = from_theirs + row["value"]
        guesses = mine * from_theirs >= 0 and abs(mine) < abs(from_theirs)
        return f"{said} (a judge that guesses does, too)" if guesses else said

    return words


def _alone(neutral: float, below: str, above: str, references: tuple[str, ...]) -> Words:
    """A preference that may be right: whether there is anything to compare it with."""
    plain = _sided(neutral, below, above)

    def words(row: Row, rows: pl.DataFrame) -> str:
        said = plain(row, rows)
        found = [other for other in (beside(rows, name, row) for name in references) if other and other["cases"]]
        return said if found or said not in (below, above) else f"{said}; nothing to compare with, so no bias is shown"

    return words


def _often(what: str) -> Words:
    """A share that should be small."""

    def words(row: Row, rows: pl.DataFrame) -> str:
        low, high = row["low"], row["high"]
        if low is None or high is None:
            return _TOO_FEW
        if not row["value"]:
            return "none seen" if high <= _WIDE else f"{_TOO_FEW} to tell"
        if low > _OFTEN:
            return f"most {what}"
        if low > _RARE:
            return f"many {what}"
        return f"few {what}" if high <= _RARE else f"{_TOO_FEW} to tell" if high - low > _WIDE else f"some {what}"

    return words


def _change(row: Row, rows: pl.DataFrame) -> str:
    if not row["value"]:
        return "no change seen"
    return _TOO_FEW if row["low"] is None else "differences below this are noise"


def _canary(row: Row, rows: pl.DataFrame) -> str:
    return "the canary ends last" if row["value"] == 1 else "the canary does NOT end last: see Read this first"


def _signed(value: float | None) -> str:
    return "–" if value is None else Cell(f"{100 * value:+.1f} points", value)


_BESIDE: Final = {
    "length_preference_minus_people": "length_preference_people",
    "length_correlation_minus_people": "length_correlation_people",
    "own_family_preference_minus_people": "own_family_preference_people",
    "own_family_preference_minus_judges": "own_family_preference_judges",
}
_REFERENCES: Final = {"people's": "people", "other judges'": "judges"}
_LONGER, _OWN = "longer answers", "its own family"
_OF_LENGTH = ("length_preference_minus_people", "length_correlation_minus_people")
_OF_FAMILY = ("own_family_preference_minus_people", "own_family_preference_minus_judges")
_FIRST, _SECOND = "prefers the first slot", "prefers the second slot"

LINES: Final[dict[str, _Line]] = {
    "above_canary": _Line("models significantly above the canary", "100 %", percent, _canary),
    "first_slot_preference": _Line("wins of the answer shown first", "50 %", percent, _first_slot),
    "order_effect": _Line("P(first) − P(second)", "0", number, _sided(0.0, _SECOND, _FIRST)),
    "order_effect_close": _Line("  of close pairs (margin < 0.1)", "0", number, _sided(0.0, _SECOND, _FIRST)),
    "order_effect_clear": _Line("  of clear pairs (margin ≥ 0.5)", "0", number, _sided(0.0, _SECOND, _FIRST)),
    "order_effect_logit": _Line("log-odds of the first slot, fitted", "0", number, _sided(0.0, _SECOND, _FIRST)),
    "flip_rate": _Line("verdicts that change with the order", "0 %", percent, _often("verdicts change")),
    "flip_rate_close": _Line("  of close pairs (margin < 0.1)", "0 %", percent, _often("verdicts change")),
    "flip_rate_clear": _Line("  of clear pairs (margin ≥ 0.5)", "0 %", percent, _often("verdicts change")),
    "length_preference": _Line(
        "wins of the longer answer",
        "as people's",
        percent,
        _alone(0.5, "prefers shorter answers", "prefers longer answers", _OF_LENGTH),
    ),
    "length_preference_minus_people": _Line(
        "  less people's", "0", _signed, _against(_OF_LENGTH[0], 0.5, "people do", _LONGER)
    ),
    "length_correlation": _Line(
        "score and length, Spearman within questions",
        "as people's",
        number,
        _alone(0.0, "scores shorter answers higher", "scores longer answers higher", _OF_LENGTH),
    ),
    "length_correlation_minus_people": _Line(
        "  less people's", "0", number, _against(_OF_LENGTH[1], 0.0, "people do", _LONGER)
    ),
    "own_family_preference": _Line(
        "wins of its own family's answer",
        "as others'",
        percent,
        _alone(0.5, "prefers other families", "prefers its own family", _OF_FAMILY),
    ),
    "own_family_preference_minus_people": _Line(
        "  less people's", "0", _signed, _against(_OF_FAMILY[0], 0.5, "people do", _OWN)
    ),
    "own_family_preference_minus_judges": _Line(
        "  less other judges'", "0", _signed, _against(_OF_FAMILY[1], 0.5, "other judges do", _OWN)
    ),
    "identical_scores": _Line("pairs with the same score", "0 %", percent, _often("pairs are not told apart")),
    "score_saturation_top": _Line("scores at the highest label", "–", percent, _often("scores are at the top")),
    "score_saturation_bottom": _Line("scores at the lowest label", "–", percent, _often("scores are at the bottom")),
    "label_saturation": _Line(
        "distributions with > 99 % on one label", "–", percent, _often("distributions say one label")
    ),
    "noise_flips": _Line("verdicts that change when judged again", "0 %", percent, _often("verdicts change")),
    "noise_score": _Line("change of the score when judged again", "0", small, _change),
}
"""The lines of the card, in order, by metric."""
