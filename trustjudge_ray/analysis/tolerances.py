"""Tolerances: below which gap two answers count as equal. One list for all rules, or one for each kind."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trustjudge_ray.config import ConfigError

EQUAL: Final = 1e-9
"""Gaps up to this are float noise: they count as no gap, and as equal to a tolerance that they miss by this."""

_KINDS = ("score", "likelihood", "ppl")


@dataclass(frozen=True, slots=True)
class ScoreTolerance:
    """In points of the scale, or as a share of its range (highest minus lowest label)."""

    size: float
    share: bool = False

    def points(self, scale_range: float) -> float:
        """The tolerance on a scale of this range, in points."""
        return self.size * scale_range if self.share else self.size


@dataclass(frozen=True, slots=True)
class Tolerances:
    """By what they apply to: scores; `likelihood` and `normalised`; `ppl` and `ppl_tiebreak`."""

    score: tuple[ScoreTolerance, ...] = (ScoreTolerance(0.0),)
    likelihood: tuple[float, ...] = (0.0,)
    ppl: tuple[float, ...] = (0.0,)
    by_rule: Mapping[str, tuple[float, ...]] = field(init=False)
    """For each verdict rule its tolerances; `baseline` has 0 only."""

    def __post_init__(self) -> None:
        shared = {"normalised": self.likelihood, "likelihood": self.likelihood}
        shared |= {"ppl": self.ppl, "ppl_tiebreak": self.ppl, "baseline": (0.0,)}
        object.__setattr__(self, "by_rule", shared)

    def score_points(self, values: Sequence[float]) -> tuple[float, ...]:
        """The score tolerances on the scale of these label values, in points, ascending, each once."""
        scale_range = max(values) - min(values) if values else 0.0
        return tuple(sorted({round(t.points(scale_range), 12) for t in self.score}))


def parse_tolerances(given: Any) -> Tolerances:
    """The setting `analysis.tolerances`.

    Args:
        given: None for the default list, one list for all rules, or a mapping with lists under `score`,
            `likelihood`, `ppl` (a key left out keeps the default list).
            Numbers of 0 or more; for scores also shares of the scale's range such as "5%". A share in the one list
            applies to scores alone.

    Raises:
        ConfigError: anything else.
    """
    given = list(_DEFAULT) if given is None else given
    if isinstance(given, Mapping):
        unknown = sorted(set(map(str, given)) - set(_KINDS))
        if unknown:
            raise ConfigError(f"analysis.tolerances: unknown key '{unknown[0]}'; it has {list(_KINDS)}")
        lists = {kind: _listed(given.get(kind, _DEFAULT), f"analysis.tolerances.{kind}") for kind in _KINDS}
        parsed = {kind: [_tolerance(x, f"analysis.tolerances.{kind}") for x in lists[kind]] for kind in _KINDS}
        shares = [kind for kind in _KINDS[1:] if any(t.share for t in parsed[kind])]
        if shares:
            raise ConfigError(
                f"analysis.tolerances.{shares[0]}: got {lists[shares[0]]}; only scores have a range to share"
            )
    else:
        everything = [_tolerance(x, "analysis.tolerances") for x in _listed(given, "analysis.tolerances")]
        plain = [t for t in everything if not t.share]
        if not plain:
            raise ConfigError(
                f"analysis.tolerances: got {given}; shares apply to scores alone, so write "
                "{score: [...], likelihood: [...], ppl: [...]} or add a number"
            )
        parsed = {"score": everything, "likelihood": plain, "ppl": plain}
    numbers = {kind: tuple(sorted({t.size for t in parsed[kind]})) for kind in _KINDS[1:]}
    return Tolerances(tuple(dict.fromkeys(parsed["score"])), numbers["likelihood"], numbers["ppl"])


def _listed(given: Any, where: str) -> list[Any]:
    if isinstance(given, (int, float, str)) and not isinstance(given, bool):
        return [given]
    if not isinstance(given, Sequence) or not len(given):
        raise ConfigError(f"{where}: got {given!r}; a list of numbers such as [0, 0.05]")
    return list(given)


def _tolerance(given: Any, where: str) -> ScoreTolerance:
    share = isinstance(given, str) and given.strip().endswith("%")
    text = given.strip().removesuffix("%") if isinstance(given, str) else given
    try:
        size = math.nan if isinstance(given, bool) else float(text)
    except (TypeError, ValueError):
        size = math.nan
    if not math.isfinite(size) or size < 0:
        raise ConfigError(f"{where}: got {given!r}; a number of 0 or more, or for scores a share such as '5%'")
    return ScoreTolerance(size / 100, True) if share else ScoreTolerance(size)


_DEFAULT: Final = (0.0, 0.05, 0.1)
