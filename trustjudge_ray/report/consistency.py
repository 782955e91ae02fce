"""How far a judge contradicts itself, as tables: conflict and non-transitivity ratios, curves, the noise floor."""

from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from trustjudge_ray.report.cells import (
    MATCHED,
    Inputs,
    Table,
    counts,
    every_tolerance,
    interval,
    main_rules,
    overall,
    share,
    small,
    texts,
    value_beside,
    whole,
)


def consistency(inputs: Inputs, brief: bool = False) -> list[Table]:
    """Conflict ratios and non-transitivity ratios: the reference's rules beside ours.

    Args:
        brief: only the score and verdict rules that the settings put first, and `baseline`.
    """
    rows = main_rules(inputs) if brief else overall(inputs)
    return [_conflicts(rows, inputs), _circles(rows), _noise_floor(inputs)]


def _conflicts(rows: pl.DataFrame, inputs: Inputs) -> Table:
    rules = ["baseline", inputs.settings.verdict_rule]
    chosen = rows.filter(pl.col("metric") == "conflict_ratio", pl.col("verdict_rule").is_in(rules))
    about = ("judge", "protocol", "pair_protocol", "score_rule", "verdict_rule", "tolerance")
    return Table(
        "Conflict ratio (CR)",
        "How often two scores say something else than the comparison of the same two answers, at the smallest "
        "tolerances of the run; verdict rule baseline is the reference's. By chance: what answers at random would give "
        "with the same shares of ties. If all were known: the best and the worst case for the pairs that are left out.",
        (
            *("judge", "scores", "comparison", "score rule", "verdict rule", "tolerance", "CR", "interval", "pairs"),
            *("score ties", "verdict ties", "by chance", "left out", "if all were known"),
        ),
        [
            _ratio_cells(rows, m, about, (_of(rows, m, "score_tie_share"), _of(rows, m, "verdict_tie_share")))
            for m in chosen.to_dicts()
            if m["cases"]
        ],
    )


def _circles(rows: pl.DataFrame) -> Table:
    chosen = rows.filter(pl.col("metric") == "non_transitivity_ratio")
    about = ("judge", "protocol", "verdict_rule", "tolerance", "k")
    return Table(
        "Non-transitivity ratio (NTR)",
        "Subsets of k answers that hold at least one circle or contradiction among three verdicts, at the smallest "
        "tolerance of the run. By chance: what verdicts at random would give with the same share of ties.",
        (
            *("judge", "comparison", "verdict rule", "tolerance", "k", "NTR", "interval", "subsets"),
            *("ties", "by chance", "left out", "if all were known"),
        ),
        [_ratio_cells(rows, m, about, (_ties_of(rows, m),)) for m in chosen.to_dicts() if m["cases"]],
    )


def _ratio_cells(
    rows: pl.DataFrame, m: dict[str, Any], about: tuple[str, ...], ties: tuple[str, ...]
) -> tuple[str, ...]:
    metric, left = str(m["metric"]), whole(m["excluded"] or 0)
    ends = {"low": value_beside(rows, f"{metric}_lowest", m), "high": value_beside(rows, f"{metric}_highest", m)}
    known = "–" if ends["low"] == ends["high"] else interval(ends, share)
    chance = share(value_beside(rows, f"chance_{metric}", m))
    return (*texts(m, *about), share(m["value"]), interval(m, share), counts(m), *ties, chance, left, known)


def _of(rows: pl.DataFrame, m: dict[str, Any], metric: str) -> str:
    return share(value_beside(rows, metric, m))


def _ties_of(rows: pl.DataFrame, m: dict[str, Any]) -> str:
    """The share of ties among the verdicts that subsets are made of."""
    return share(value_beside(rows, "tie_rate", m, but=("k",)))


def curves(inputs: Inputs) -> list[Table]:
    """CR and NTR over all tolerances of the run, by the main rules; nothing where there is one tolerance only."""
    return [_curve_table(metric, rows) for metric in CURVES if (rows := curve(inputs, metric)).height]


@dataclass(frozen=True, slots=True)
class _Curve:
    """A ratio that has a curve: the table's title, what its cases are, and the metric of the ties beside it."""

    title: str
    cases: str
    ties: str


CURVES: Final = {
    "conflict_ratio": _Curve("Conflict ratio over the tolerances", "pairs", "score_tie_share"),
    "non_transitivity_ratio": _Curve("Non-transitivity ratio over the tolerances", "subsets", "tie_rate"),
}
_LINE: Final = ("judge", "protocol", "pair_protocol", "score_rule", "verdict_rule", "k")


def curve(inputs: Inputs, metric: str) -> pl.DataFrame:
    """The points of a ratio's curves: rows of METRICS with cases, with `by_chance` and `ties` (of what the tolerance
    is about: scores of a conflict ratio, verdicts of a non-transitivity ratio).

    Conflict ratios are of the main score rule and `baseline`, against emitted verdicts; non-transitivity ratios of the
    main verdict rule and the reference's `likelihood`, at the smallest and the largest k. A line with one tolerance is
    left out.
    """
    everything, settings = every_tolerance(inputs), inputs.settings
    rows = everything.filter(pl.col("metric") == metric, pl.col("cases") > 0)
    if metric == "conflict_ratio":
        wanted = pl.col("score_rule").is_in([settings.score_rule, "baseline"])
        wanted &= pl.col("verdict_rule") == "baseline"
    else:
        wanted = pl.col("verdict_rule").is_in([settings.verdict_rule, "likelihood"])
        wanted &= (pl.col("k") == pl.col("k").min()) | (pl.col("k") == pl.col("k").max())
    rows, ties = rows.filter(wanted), CURVES[metric].ties
    same = [name for name in MATCHED if name != "k"] if ties == "tie_rate" else MATCHED
    for name, of, on in (("by_chance", f"chance_{metric}", MATCHED), ("ties", ties, same)):
        found = everything.filter(pl.col("metric") == of).select(*on, pl.col("value").alias(name))
        rows = rows.join(found, on=list(on), how="left", nulls_equal=True, maintain_order="left")
    return rows.filter(pl.len().over(*_LINE) > 1).sort(*_LINE, "tolerance", nulls_last=False)


def _curve_table(metric: str, rows: pl.DataFrame) -> Table:
    about = (*_LINE, "tolerance")
    heads = ("judge", "protocol", "comparison", "score rule", "verdict rule", "k", "tolerance")
    shown = [name for name in about if rows[name].null_count() < rows.height]
    cells = [
        (*texts(m, *shown), share(m["value"]), interval(m, share), counts(m), share(m["ties"]), share(m["by_chance"]))
        for m in rows.to_dicts()
    ]
    return Table(
        CURVES[metric].title,
        "A gap below the tolerance is a tie, in points of the scale or of probability: a ratio that falls while its "
        "ties rise is no better judge, so chance with the same ties stands beside it.",
        (*(heads[about.index(name)] for name in shown), "ratio", "interval", CURVES[metric].cases, "ties", "by chance"),
        cells,
    )


_NOISE: Final = {
    "noise_score": ("change of the expected score, in points", "noise_score_max"),
    "noise_margin": ("change of P(a better) − P(b better)", "noise_margin_max"),
    "noise_flips": ("verdicts that change", None),
    "sample_spread": ("deviation between rationales", None),
}


def _noise_floor(inputs: Inputs) -> Table:
    """What CR, NTR and differences between runs cannot tell from nothing."""
    rows = overall(inputs)
    largest = {(m["metric"], m["judge"], m["protocol"]): m["value"] for m in rows.to_dicts()}
    cells = []
    for m in rows.filter(pl.col("metric").is_in(list(_NOISE)), pl.col("cases") > 0).to_dicts():
        what, most = _NOISE[m["metric"]]
        form = share if m["metric"] == "noise_flips" else small
        top = small(largest.get((most, m["judge"], m["protocol"]))) if most else "–"
        cells.append(
            (*texts(m, "judge", "protocol"), what, form(m["value"]), interval(m, form), top, whole(m["cases"]))
        )
    return Table(
        "Noise floor",
        "The same tasks judged again in other batches: smaller differences than these are the engine's noise, not the "
        "judge's opinion. Between rationales: what another rationale of the same task would change. No interval: all "
        "changes are the same, as where none was seen, which does not show that none can be.",
        ("judge", "protocol", "what", "mean", "interval", "largest", "cases"),
        cells,
        empty="no task was judged again (plan.repeat: 1 measures it)",
    )
