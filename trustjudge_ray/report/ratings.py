"""Ratings by every rule side by side, and what length and style are worth to a judge."""

from typing import Any, Final

import polars as pl

from trustjudge_ray.analysis.games import POOLED
from trustjudge_ray.report.cells import Cell, Inputs, Table, confidence, interval, number, rounded, said, texts, whole

_RULES: Final = {
    "davidson": "soft",
    "davidson_hard": "hard",
    "davidson_calibrated": "calibrated",
    "davidson_controlled": "controlled",
    "bradley_terry": "Bradley–Terry",
    "elo": "Elo",
    "win_rate": "win rate",
}
"""Rating rules of comparisons, and their columns."""
_COEFFICIENT: Final = "covariate_"


def by_rule(inputs: Inputs) -> list[Table]:
    """For every judge and comparison protocol a table of its models' ratings over all categories by every rule."""
    rows = inputs.ratings.filter(pl.col("category").is_null(), pl.col("rule").is_in(list(_RULES)))
    found = []
    for (judge, protocol), mine in rows.partition_by("judge", "protocol", as_dict=True, maintain_order=True).items():
        rules = [rule for rule in _RULES if rule in mine["rule"]]
        groups = mine["component"].n_unique() > 1
        order = mine.filter(rule=rules[0]).sort("component", "rank", "model", nulls_last=True)
        at = {(row["model"], row["rule"]): row for row in mine.to_dicts()}
        cells = [
            (whole(component), model, *(_rating(at[model, rule]) if (model, rule) in at else "–" for rule in rules))
            for component, model in order.select("component", "model").rows()
        ]
        columns = ("group", "model", *(_RULES[rule] for rule in rules))
        start = 0 if groups else 1
        title = f"Ratings by {judge} ({protocol}), rule by rule"
        found.append(
            Table(
                title,
                _note(inputs, rules, judge, protocol),
                columns[start:],
                [c[start:] for c in cells],
                named=1 - start,
            )
        )
    return found


def _note(inputs: Inputs, rules: list[str], judge: str, protocol: str) -> str:
    told: list[str] = [
        "Davidson's model on the judge's probabilities (soft) and on its likeliest label of each order (hard). How far "
        "soft ratings lie apart depends on how sure the judge is, so soft spreads of different judges cannot be "
        "compared."
    ]
    if "davidson_calibrated" in rules:
        calibrated = said(
            "Calibrated: probabilities at the temperature{} and with the first-slot offset that fit people's scores, "
            "of each order by itself. The temperature under Calibration is another: that of verdicts, both orders "
            "together.",
            _heat(inputs, judge, protocol),
        )
        told.append(calibrated)
    else:
        told.append(_uncalibrated(inputs, judge, protocol))
    if "davidson_controlled" in rules:
        told.append(f"Controlled: at equal {', '.join(_properties(inputs, judge, protocol))} of the answers.")
    told.append(f"Elo: updates in random orders of the questions, no interval. Others: {confidence(inputs.settings)}.")
    return said(" ".join("{}" for _ in told), *told)


def _properties(inputs: Inputs, judge: str, protocol: str) -> list[str]:
    mine = inputs.metrics.filter(pl.col("category").is_null(), judge=judge, protocol=protocol)
    return [name.removeprefix(_COEFFICIENT) for name in mine["metric"] if name.startswith(_COEFFICIENT)]


def _uncalibrated(inputs: Inputs, judge: str, protocol: str) -> str:
    tried = inputs.metrics.filter(metric="outcome_temperature", protocol=protocol)
    if judge != POOLED:
        tried = tried.filter(judge=judge)
    if not tried.height:
        return "Calibrated ratings need human scores of the answers."
    whose = "a judge" if judge == POOLED else "the judge"
    return (
        f"No calibrated ratings: human scores are there, but {whose} could not be calibrated by them; see the warnings."
    )


def _heat(inputs: Inputs, judge: str, protocol: str) -> str:
    found = inputs.metrics.filter(pl.col("value").is_not_null(), metric="outcome_temperature", judge=judge)
    values = found.filter(protocol=protocol)["value"]
    return Cell(f" ({values[0]:.2f}; over 1, it was too sure)", values[0]) if len(values) else ""


def _rating(row: dict[str, Any]) -> str:
    form = number if row["rule"] == "win_rate" else rounded
    if row["rating"] is None:
        return "unbounded" if row["status"] == "unbounded" else "–"
    shown = said("{} (unbounded)" if row["status"] == "unbounded" else "{}", form(row["rating"]))
    return said("{} ({})", shown, interval(row, form)) if row["low"] is not None else shown


def coefficients(inputs: Inputs) -> list[Table]:
    """What a judge likes besides quality (`analysis.covariates`), over all categories; nothing without covariates."""
    rows = inputs.metrics.filter(pl.col("category").is_null(), pl.col("metric").str.starts_with(_COEFFICIENT))
    if not rows.height:
        return []
    cells = [
        (
            *texts(m, "judge", "protocol"),
            m["metric"].removeprefix(_COEFFICIENT),
            number(m["value"]),
            interval(m, number),
            whole(m["cases"]),
        )
        for m in rows.to_dicts()
    ]
    note = (
        "What the controlled ratings are corrected for: log-odds that a typical difference (its root mean square over "
        "the games; differences are (first − second) / (first + second)) adds for the answer that has more. 0.69 "
        f"doubles the odds. Intervals are {confidence(inputs.settings)}, clustered by question."
    )
    columns = ("judge", "comparison", "property", "coefficient", "interval", "games")
    return [Table("Length and style", note, columns, cells)]
