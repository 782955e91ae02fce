"""The ablation table as people read it."""

from typing import Any

import polars as pl

from trustjudge_ray.report.cells import Table, counts, interval, number, plain, share, whole

_TITLES = {
    "conflict_ratio": "Conflict ratio, scores against emitted verdicts",
    "identical_scores": "Pairs of answers with the same score",
    "score_entropy": "Entropy of the score distribution, as a share of its highest value",
    "non_transitivity_ratio": "Non-transitivity ratio",
    "tie_rate": "Pairs called a tie",
}


def ablation_tables(found: pl.DataFrame | None) -> list[Table]:
    """A table for every metric of an ablation (`analysis.ablation.ABLATION`), a row a step; none without one."""
    if found is None:
        return []
    tables = []
    for (metric,), rows in found.partition_by("metric", as_dict=True, maintain_order=True).items():
        note = "Difference from the first step, on the same questions; its interval holds for all steps at once."
        columns: tuple[str, ...] = ("judge", "step", "comparison", "k", "value", "interval", "cases", "coverage")
        columns += ("by chance", "difference", "interval of the difference")
        cells = [_cells(row) for row in rows.to_dicts()]
        tables.append(Table(_TITLES[str(metric)], note, columns, cells, named=1))
    return tables


def ablation_text(found: pl.DataFrame) -> str:
    """The same in fixed-width text."""
    return "\n\n".join(plain(table) for table in ablation_tables(found))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    joint = {"low": row["joint_low"], "high": row["joint_high"]}
    return (
        row["judge"],
        row["step"],
        row["pair_protocol"] or "",
        "" if row["k"] is None else whole(row["k"]),
        number(row["value"]),
        interval(row, number),
        counts(row) if row["metric"] != "score_entropy" else whole(row["cases"]),
        share(row["coverage"]),
        number(row["chance"]),
        number(row["difference"]),
        interval(joint, number),
    )
