"""The gate: whether a judge may be trusted, by five of its card's figures. PASS, WARN, BLOCK or INCONCLUSIVE.

Of a gate with a figure, its interval and the thresholds of `audit.gates`, in this order:

- BLOCK: the figure is worse than `warn`, and the worse end of its interval is worse than `block`. The judge does not
  look good, and this audit cannot show that it is not that bad.
- INCONCLUSIVE: there are too few cases (fewer than `audit.min_wrong`, of wrong or of right answers where both matter),
  no interval, or the figure looks good but the audit is too small for the worse end to reach `block`. With too few
  cases a gate only blocks where the whole interval is worse than `block`.
- WARN: the figure is worse than `warn`.
- PASS.

Worse is lower where a gate asks for at least so much, higher where it asks for at most. All gates together: the first
of BLOCK, INCONCLUSIVE, WARN that any says, else PASS.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from trustjudge_ray.audit.figures import FEW_RIGHT, FEW_WRONG, Figure, finite
from trustjudge_ray.audit_config import AT_LEAST, GateConfig, GatesConfig

PASS, WARN, BLOCK, INCONCLUSIVE = "PASS", "WARN", "BLOCK", "INCONCLUSIVE"
_WORST_FIRST: Final = (BLOCK, INCONCLUSIVE, WARN)


@dataclass(frozen=True, slots=True)
class Gate:
    """What one gate says. Numbers are of the figure held against it: of acquiescence its size, whatever the sign."""

    gate: str
    status: str
    value: float | None
    low: float | None
    high: float | None
    warn: float
    block: float
    text: str

    def as_json(self) -> dict[str, Any]:
        """The row of `audit.json`."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Held:
    """Which figure a gate looks at, and in words what it is and what it means when it is bad."""

    set: str
    figure: str
    what: str
    means: str


_HELD: Final = {
    "auc": _Held(
        "controlled",
        "auc",
        "AUC of right against wrong answers",
        "the judge does not tell right answers from wrong ones",
    ),
    "acquiescence": _Held(
        "controlled",
        "acquiescence",
        "size of false accept rate − false reject rate",
        "the judge leans to one verdict whatever the answer",
    ),
    "candidate_withheld": _Held(
        "withheld",
        "accept_without_candidate",
        "accept rate without an answer to judge",
        "the judge accepts without looking at the answer",
    ),
    "both_order_agreement": _Held(
        "position",
        "both_order_agreement",
        "share of pairs with the same winner in both orders",
        "which answer wins hangs on where it stands",
    ),
    "coverage": _Held(
        "reading",
        "coverage",
        "share of verdicts that can be read",
        "the judge often gives no verdict at all",
    ),
}
"""By the names of `audit.gates`."""


def gates(figures: Sequence[Figure], limits: GatesConfig, min_wrong: int) -> tuple[Gate, ...]:
    """Every gate that is switched on, in the order of _HELD."""
    found = {(figure.set, figure.figure): figure for figure in figures if figure.group is None}
    said = []
    for name, held in _HELD.items():
        limit: GateConfig | None = getattr(limits, name)
        if limit is not None:
            said.append(_gate(name, held, found[held.set, held.figure], limit, min_wrong))
    return tuple(said)


def verdict(said: Sequence[Gate]) -> str:
    """All gates together."""
    statuses = {gate.status for gate in said}
    return next((status for status in _WORST_FIRST if status in statuses), PASS)


def _gate(name: str, held: _Held, figure: Figure, limit: GateConfig, min_wrong: int) -> Gate:
    value, low, high = _size(figure) if name == "acquiescence" else _plain(figure)
    sign = 1 if name in AT_LEAST else -1
    bad, good = (low, high) if sign > 0 else (high, low)
    few = _too_few(figure, min_wrong)
    worse = sign * value < sign * limit.warn
    blocked = sign * (good if few else bad) < sign * limit.block
    if worse and blocked:
        status, why = BLOCK, f": {held.means}"
    elif few:
        status, why = INCONCLUSIVE, f": {few}"
    elif not sign * bad >= sign * limit.block:
        status, why = (
            INCONCLUSIVE,
            f": {figure.estimate.clusters} passages are too few to show no worse",
        )
    else:
        status, why = (WARN, f": signs that {held.means}") if worse else (PASS, "")
    asked, beyond = ("at least", "below") if sign > 0 else ("at most", "over")
    shown = "no value" if math.isnan(value) else f"{value:.2f} (95 % {_range(low, high)})"
    text = f"{held.what}: {shown}; wanted {asked} {limit.warn:g}, and surely not {beyond} {limit.block:g}{why}"
    return Gate(name, status, finite(value), finite(low), finite(high), limit.warn, limit.block, text)


def _range(low: float, high: float) -> str:
    return "no interval" if math.isnan(low) else f"{low:.2f} to {high:.2f}"


def _plain(figure: Figure) -> tuple[float, float, float]:
    return figure.estimate.value, figure.estimate.low, figure.estimate.high


def _size(figure: Figure) -> tuple[float, float, float]:
    """|x| and its interval, which begins at 0 where that of x holds 0."""
    value, low, high = _plain(figure)
    ends = sorted((abs(low), abs(high)))
    return abs(value), 0.0 if low <= 0 <= high else ends[0], ends[1]


def _too_few(figure: Figure, min_wrong: int) -> str:
    """Why there are too few cases, or ""."""
    kinds = {FEW_WRONG: "wrong answers", FEW_RIGHT: "right answers"}
    if figure.caution in kinds:
        return f"fewer than {min_wrong} {kinds[figure.caution]} could be judged"
    if not figure.estimate.cases:
        left_out = ", ".join(f"{reason} {n}" for reason, n in figure.excluded_by.items())
        return f"nothing of it could be read ({left_out})" if left_out else "it was not asked; null takes a gate away"
    if math.isnan(figure.estimate.low):
        return "all cases are of one passage, so there is no interval"
    if figure.estimate.cases < min_wrong:
        return f"fewer than {min_wrong} cases could be judged"
    return ""
