"""Scales side by side: what 5, 10 or 100 labels, emitted or read whole, do to the scores of a run."""

from typing import Any

import polars as pl

from trustjudge_ray.report.cells import (
    Inputs,
    Table,
    counts,
    interval,
    main_rules,
    number,
    overall,
    share,
    texts,
    whole,
)
from trustjudge_ray.report.scores import entropy_rows


def granularity(inputs: Inputs, brief: bool = False) -> Table:
    """A row for every judge, comparison, score protocol and rule, coarse scales first.

    Args:
        brief: only `baseline` and the main rule.
    """
    cells = [
        (
            *texts(row, "judge", "pair_protocol", "protocol", "labels", "score_rule", "tolerance"),
            share(row["value"]),
            interval(row, share),
            counts(row),
            share(row["by_chance"]),
            share(row["identical"]),
            number(row["spearman"]),
        )
        for row in granularity_rows(inputs, brief)
        if row["value"] is not None or row["identical"] is not None
    ]
    return Table(
        "Granularity of the scores",
        "How far a finer scale, and reading the whole distribution, tell answers apart. CR against emitted verdicts; "
        "identical: pairs of answers with the same score.",
        (
            *("judge", "comparison", "scores", "labels", "score rule", "tolerance", "CR", "interval", "pairs"),
            *("by chance", "identical", "Spearman with people"),
        ),
        cells,
        named=2,
    )


def granularity_rows(inputs: Inputs, brief: bool = False) -> list[dict[str, Any]]:
    """Rows of METRICS of conflict ratios against emitted verdicts, at the smallest tolerances, with labels (how many),
    scores (the protocol and how many), by_chance, identical and spearman; `brief` as in `granularity`."""
    rows = main_rules(inputs) if brief else overall(inputs)
    labels = {name: len(p.label_texts) for name, p in inputs.protocols.items() if p.kind == "score"}
    ratios = rows.filter(pl.col("metric") == "conflict_ratio", pl.col("verdict_rule") == "baseline")
    same: tuple[str, ...] = ("judge", "protocol", "score_rule")
    for name, metric in (("identical", "identical_scores"), ("spearman", "agreement_spearman")):
        found = rows.filter(pl.col("metric") == metric).select(*same, pl.col("value").alias(name))
        ratios = ratios.join(found.unique(same), on=list(same), how="left", maintain_order="left")
    by_chance = rows.filter(pl.col("metric") == "chance_conflict_ratio", pl.col("verdict_rule") == "baseline")
    same = (*same, "pair_protocol")
    by_chance = by_chance.select(*same, by_chance="value").unique(same)
    ratios = ratios.join(by_chance, on=list(same), how="left", maintain_order="left")
    told = [row | {"labels": labels[row["protocol"]]} for row in ratios.to_dicts() if row["protocol"] in labels]
    told = [row | {"scores": f"{row['protocol']} ({row['labels']})"} for row in told]
    order = ["baseline", *inputs.settings.score_rules]
    about = ("judge", "pair_protocol")
    told.sort(key=lambda m: (*texts(m, *about), m["labels"], m["protocol"], order.index(m["score_rule"])))
    return told


def entropies(inputs: Inputs) -> Table:
    """The entropy of score distributions by judge and protocol, in nats and as a share of its highest value."""
    cells = [
        (
            *texts(row, "judge", "protocol", "labels"),
            number(row["mean"]),
            interval({"low": row["lower"], "high": row["upper"]}, number),
            share(row["value"]),
            interval(row, share),
            whole(row["cases"]),
        )
        for row in entropy_rows(inputs)
    ]
    return Table(
        "Entropy of the score distributions",
        "0: the judge puts everything on one label. In nats the highest value is the logarithm of the number of "
        "labels; as a share of it, scales can be compared.",
        ("judge", "scores", "labels", "nats", "middle 80 % of answers", "share of highest", "interval", "answers"),
        cells,
        named=1,
    )
