"""What makes a comparison fail, by named conditions."""

from collections.abc import Callable, Sequence
from typing import Final

from trustjudge_ray.analysis.compare import REGRESSED, UNDERPOWERED, Change, Comparison, named

Condition = Callable[[Comparison], list[str]]


def _who(changes: Sequence[Change]) -> list[str]:
    return [f"{change.model or 'all models'} ({change.measure}, {change.lane})" for change in changes]


def _regressed(found: Comparison) -> list[str]:
    return _who([change for change in found.changes if change.verdict == REGRESSED])


def _regressed_by_smallest(found: Comparison) -> list[str]:
    worse = [change for change in found.changes if change.verdict == REGRESSED]
    return _who([change for change in worse if abs(change.difference or 0.0) >= change.matters])


def _underpowered(found: Comparison) -> list[str]:
    return _who([change for change in found.changes if change.verdict == UNDERPOWERED])


def _inconsistent(found: Comparison) -> list[str]:
    worse = [change for change in found.consistency if change.verdict == REGRESSED]
    return [f"{c.measure}{'' if c.k is None else f' k = {c.k}'}, rule {c.rule} ({c.lane})" for c in worse]


def _missing(found: Comparison) -> list[str]:
    sides = ((found.a, found.overlap.only_a), (found.b, found.overlap.only_b))
    lacking = [(name, what, names) for name, only in sides for what, names in only.items() if names]
    return [f"{len(names)} {what} only in {name}: {named(names)}" for name, what, names in lacking]


def _judge_changed(found: Comparison) -> list[str]:
    return found.other_judges


CONDITIONS: Final[dict[str, Condition]] = {
    "regressed": _regressed,
    "regressed_by_smallest": _regressed_by_smallest,
    "underpowered": _underpowered,
    "inconsistent": _inconsistent,
    "missing": _missing,
    "judge_changed": _judge_changed,
}
"""By the words of `compare.fail_on`: whatever fulfils the condition, in words."""


def failures(found: Comparison, words: Sequence[str]) -> list[str]:
    """Why a comparison does not pass, a sentence for each condition that is met; none if it passes."""
    reasons = []
    for word in dict.fromkeys(words):
        met = CONDITIONS[word](found)
        if met:
            reasons.append(f"{word}: {named(met)}")
    return reasons
