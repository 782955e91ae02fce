"""Agreement with people, as tables: outcomes, calibration, the reliability diagram, and how far votes agree."""

from typing import Any, Final

import polars as pl

from trustjudge_ray.analysis.calibration import RELIABILITY, bin_of
from trustjudge_ray.report.cells import (
    Cell,
    Inputs,
    Table,
    confidence,
    counts,
    interval,
    main_rules,
    number,
    overall,
    texts,
    whole,
)

WORDS: Final = {
    "agreement_pair_exact": "same outcome, ties included",
    "agreement_pair_decisive": "same winner where neither says tie",
    "agreement_pair_kappa": "Cohen's κ",
    "agreement_pair_kappa_linear": "Cohen's κ, linear weights",
    "agreement_pair_kappa_quadratic": "Cohen's κ, quadratic weights",
    "agreement_score_pair_exact": "same outcome of two scores, ties included",
    "agreement_score_pair_decisive": "same winner of two scores where neither says tie",
    "agreement_spearman": "Spearman's ρ of scores",
    "agreement_kendall": "Kendall's τ-b of scores",
    "agreement_pair_brier": "Brier score",
    "agreement_pair_ece": "calibration error",
    "agreement_pair_ece_scaled": "calibration error, temperature scaled on other questions",
    "agreement_pair_temperature": "temperature (over 1: too sure)",
}
"""Metrics of agreement in a reader's words."""

_OUTCOMES: Final = [name for name in WORDS if not name.startswith(("agreement_pair_brier", "agreement_pair_ece"))][:-1]
_CALIBRATION: Final = (
    *("brier", "brier_reliability", "brier_resolution", "ece", "log_loss", "temperature"),
    *("brier_scaled", "ece_scaled", "log_loss_scaled"),
)


def agreement(inputs: Inputs, brief: bool = False) -> list[Table]:
    """What the run's people say about its judges; nothing where there are no people.

    Args:
        brief: only the main rules and `baseline`, and no reliability diagram.
    """
    rows = (main_rules(inputs) if brief else overall(inputs)).filter(pl.col("cases") > 0)
    tables = [_outcomes(rows), _calibration(rows, inputs), _votes(rows)]
    if not brief:
        tables.append(_reliability(inputs))
    return [table for table in tables if table.rows]


def _outcomes(rows: pl.DataFrame) -> Table:
    chosen = rows.filter(pl.col("metric").is_in(_OUTCOMES)).sort(
        "judge", "protocol", pl.coalesce("score_rule", "verdict_rule"), maintain_order=True
    )
    cells = [
        (
            *texts(m, "judge", "protocol"),
            m["score_rule"] or m["verdict_rule"],
            WORDS[m["metric"]],
            number(m["value"]),
            interval(m, number),
            counts(m),
            whole(m["excluded"] or 0),
        )
        for m in chosen.to_dicts()
    ]
    columns = ("judge", "protocol", "rule", "what", "value", "interval", "cases", "left out")
    return Table("Agreement, rule by rule", "With the human scores of the corpus.", columns, cells)


def _calibration(rows: pl.DataFrame, inputs: Inputs) -> Table:
    mine = rows.filter(pl.col("metric").is_in([f"agreement_pair_{name}" for name in _CALIBRATION]))
    cells = []
    for key, part in mine.partition_by(["judge", "protocol"], as_dict=True, maintain_order=True).items():
        found = {m["metric"].removeprefix("agreement_pair_"): m for m in part.to_dicts()}
        values = {name: number(found[name]["value"]) if name in found else "–" for name in _CALIBRATION}
        brier: dict[str, Any] = found.get("brier", {"low": None, "high": None, "cases": 0})
        rest = (values[name] for name in _CALIBRATION[1:])
        cells.append((*map(str, key), values["brier"], interval(brier, number), *rest, whole(brier["cases"])))
    return Table(
        "Calibration",
        "Whether the probabilities of a verdict are right as often as they say. Brier score: 0 to 2, lower is better; "
        "its reliability part is what calibration can mend (0 is best), resolution what tells pairs apart. "
        "Temperature: over 1 the judge is too sure; scaled: with one that was fitted on other questions. A dash: none "
        f"is best, or too few questions. Intervals are {confidence(inputs.settings)}, clustered by question.",
        (
            *("judge", "protocol", "Brier", "interval", "reliability", "resolution", "calibration error", "log loss"),
            *("temperature", "Brier, scaled", "calibration error, scaled", "log loss, scaled", "pairs"),
        ),
        cells,
    )


def _votes(rows: pl.DataFrame) -> Table:
    cells = [
        (
            *texts(m, "judge", "protocol"),
            number(m["value"]),
            interval(m, number),
            whole(m["cases"]),
            whole(m["excluded"]),
        )
        for m in rows.filter(pl.col("metric") == "alpha_votes").to_dicts()
    ]
    return Table(
        "Agreement among votes",
        "Krippendorff's α (ordinal) among the votes about one pair, or one answer: of several people, or of several "
        "rationales of one judge. 1 is full agreement, 0 what chance gives.",
        ("judge", "protocol", "α", "interval", "votes", "left out"),
        cells,
    )


def reliability_bars(inputs: Inputs) -> list[dict[str, Any]]:
    """The bars of the reliability diagram that have a case: judge, protocol, start and end of the bin, confidence (the
    mean of the largest probability), right (how often it was), low, high, cases."""
    rows = overall(inputs).filter(pl.col("cases") > 0)
    mean = {
        (m["judge"], m["protocol"], bin_of(m["metric"])): m["value"]
        for m in rows.filter(pl.col("metric").str.starts_with(RELIABILITY["confidence"])).to_dicts()
    }
    bars = []
    for m in rows.filter(pl.col("metric").str.starts_with(RELIABILITY["right"])).to_dicts():
        start, end = bin_of(m["metric"])
        about = {name: m[name] for name in ("judge", "protocol", "low", "high", "cases")}
        confidence_here = mean[m["judge"], m["protocol"], (start, end)]
        bars.append(about | {"start": start, "end": end, "confidence": confidence_here, "right": m["value"]})
    return sorted(bars, key=lambda bar: (bar["judge"], bar["protocol"], bar["start"]))


def _reliability(inputs: Inputs) -> Table:
    cells = [
        (
            *texts(bar, "judge", "protocol"),
            *(Cell(f"{bar[end]:.1f}", bar[end]) for end in ("start", "end")),
            number(bar["confidence"]),
            number(bar["right"]),
            interval(bar, number),
            whole(bar["cases"]),
        )
        for bar in reliability_bars(inputs)
    ]
    return Table(
        "Reliability",
        "How often the likeliest outcome of a pair was people's, by how likely it was said to be.",
        ("judge", "protocol", "probability from", "to", "mean", "right", "interval", "pairs"),
        cells,
    )
