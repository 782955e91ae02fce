"""What a check found: passed, FAILED with what to change, or skipped with why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PASSED, FAILED, SKIPPED = "passed", "FAILED", "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check.

    Attributes:
        check: what was looked at.
        status: PASSED, FAILED or SKIPPED.
        says: what was found; for FAILED what is wrong and what to change, in one line.
        notes: what a reader must know although nothing is wrong.
        details: numbers and tables, as a JSON value.
    """

    check: str
    status: str
    says: str
    notes: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


def passed(check: str, says: str, notes: Sequence[str] = (), details: Mapping[str, Any] | None = None) -> Finding:
    """A check that passed."""
    return Finding(check, PASSED, says, tuple(notes), dict(details or {}))


def failed(check: str, says: object, notes: Sequence[str] = (), details: Mapping[str, Any] | None = None) -> Finding:
    """A check that failed; `says` becomes one line."""
    return Finding(check, FAILED, " ".join(str(says).split()), tuple(notes), dict(details or {}))


def skipped(check: str, says: str) -> Finding:
    """A check that could not be made."""
    return Finding(check, SKIPPED, says)
