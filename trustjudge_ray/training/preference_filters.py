"""Which preference pairs are kept: named rules, and what each of them costs.

A value that misses its limit by float noise (`tolerances.EQUAL`) is at it.
"""

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from trustjudge_ray.analysis.tolerances import EQUAL
from trustjudge_ray.config_values import ConfigError


@dataclass(frozen=True, slots=True)
class Filter:
    """A rule.

    Attributes:
        passes: from the configured value, whether a row passes; null where it cannot be known.
        least, most: between which numbers the value lies; None for a rule that is switched on by `true`.
    """

    passes: Callable[[Any], pl.Expr]
    least: float | None = None
    most: float = math.inf


def min_margin(value: float) -> pl.Expr:
    """P(chosen wins) − P(rejected wins) is at least this."""
    return pl.col("margin") >= value - EQUAL


def both_orders_agree(value: bool) -> pl.Expr:
    """Each order alone has the same likeliest outcome."""
    return pl.col("both_orders_agree")


def scores_agree(value: bool) -> pl.Expr:
    """Chosen has the higher expected score too."""
    return pl.col("scores_agree")


def max_p_tie(value: float) -> pl.Expr:
    """P(tie) is at most this."""
    return pl.col("p_tie") <= value + EQUAL


def min_label_mass(value: float) -> pl.Expr:
    """In both orders at least so much of the judge's probability went to labels."""
    return pl.col("label_mass") >= value - EQUAL


def max_length_ratio(value: float) -> pl.Expr:
    """The longer answer has at most so many times the characters of the shorter."""
    lengths = pl.col("length_chosen"), pl.col("length_rejected")
    return pl.max_horizontal(*lengths) <= value * pl.min_horizontal(*lengths) + EQUAL


def no_cycle(value: bool) -> pl.Expr:
    """The verdicts on the prompt's answers nowhere go round in a circle."""
    return ~pl.col("cycle")


def min_score(value: float) -> pl.Expr:
    """Chosen's expected score is at least this: the better of two bad answers is no example."""
    return pl.col("score_chosen") >= value - EQUAL


FILTERS: Final[dict[str, Filter]] = {
    "min_margin": Filter(min_margin, 0.0, 1.0),
    "both_orders_agree": Filter(both_orders_agree),
    "scores_agree": Filter(scores_agree),
    "max_p_tie": Filter(max_p_tie, 0.0, 1.0),
    "min_label_mass": Filter(min_label_mass, 0.0, 1.0),
    "max_length_ratio": Filter(max_length_ratio, 1.0),
    "no_cycle": Filter(no_cycle),
    "min_score": Filter(min_score, -math.inf),
}
_OF_SCORES: Final = ("scores_agree", "min_score")


def refuse_bad_filters(filters: Mapping[str, Any], has_scores: bool = True) -> None:
    """Refuse filters that are none. One that is null is off: so one of a file is taken out on the command line.

    Args:
        has_scores: whether the run has a score protocol.

    Raises:
        ConfigError: an unknown name, a value out of its range, or a filter of scores where there are none.
    """
    for name, value in filters.items():
        if name not in FILTERS:
            near = difflib.get_close_matches(str(name), FILTERS, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise ConfigError(f"preferences.filters: no filter '{name}'{hint}; one of {list(FILTERS)}")
        rule = FILTERS[name]
        if value is None:
            continue
        if rule.least is None and not isinstance(value, bool):
            raise ConfigError(f"preferences.filters.{name}: got {value!r}; true, or false for no such filter")
        if rule.least is not None:
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not number or not rule.least <= value <= rule.most:
                raise ConfigError(
                    f"preferences.filters.{name}: got {value!r}; a number {_range(rule)}, or null for none"
                )
        if name in _OF_SCORES and value is not False and not has_scores:
            raise ConfigError(f"preferences.filters.{name}: the run has no score protocol; add one to `protocols`")


def _range(rule: Filter) -> str:
    if rule.least is None or math.isinf(rule.least):
        return "in points of the scale"
    return f"of {rule.least:g} or more" if math.isinf(rule.most) else f"from {rule.least:g} to {rule.most:g}"


def wanted(filters: Mapping[str, Any]) -> dict[str, Any]:
    """The filters that are on, in their order."""
    return {name: value for name, value in filters.items() if value is not None and value is not False}


def marked(pairs: pl.DataFrame, filters: Mapping[str, Any]) -> pl.DataFrame:
    """The pairs with `keep` and `drop_reason`: the pair's status where it is not `ok`, else the first filter that it
    does not pass, as `NAME`, or `NAME_unknown` where what the filter reads is null."""
    refuse_bad_filters(filters)
    reasons: list[pl.Expr] = [pl.when(pl.col("status") != "ok").then("status")]
    for name, passes in _passes(filters).items():
        unknown = pl.when(passes.is_null()).then(pl.lit(f"{name}_unknown"))
        reasons.append(unknown.when(~passes).then(pl.lit(name)))
    return pairs.with_columns(drop_reason=pl.coalesce(reasons)).with_columns(keep=pl.col("drop_reason").is_null())


def costs(pairs: pl.DataFrame, filters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of each filter that is on: its value, how many `readable` pairs (status `ok`) it was held against, how many of
    them do `not_pass` it whatever other filters say, how many are `unknown`, and how many were `dropped` for it, being
    the first that they do not pass."""
    readable = pairs.filter(pl.col("status") == "ok")
    rows = []
    for name, passes in _passes(filters).items():
        found = readable.select(out=(~passes).sum(), unknown=passes.is_null().sum()).row(0)
        dropped = readable.filter(pl.col("drop_reason").is_in([name, f"{name}_unknown"])).height
        about = {"readable": readable.height, "not_pass": int(found[0] or 0), "unknown": int(found[1] or 0)}
        rows.append({"filter": name, "value": filters[name]} | about | {"dropped": dropped})
    return rows


def _passes(filters: Mapping[str, Any]) -> dict[str, pl.Expr]:
    return {name: FILTERS[name].passes(value) for name, value in wanted(filters).items()}
