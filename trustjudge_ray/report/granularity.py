"""Scales side by side: what 5, 10 or 100 labels, emitted or read whole, do to the scores of a run."""

from typing import Any

import polars as pl

from trustjudge_ray.corpus.canary import NAME
from trustjudge_ray.report.cells import Inputs, Table, counts, interval, main_rules, number, share, texts


def granularity(inputs: Inputs) -> Table:
    """A row for every judge, comparison, score protocol and rule (`baseline` and the main one), coarse scales first."""
    rows = main_rules(inputs)
    labels = {name: len(p.label_texts) for name, p in inputs.protocols.items() if p.kind == "score"}
    ratios = rows.filter(pl.col("metric") == "conflict_ratio", pl.col("verdict_rule") == "baseline")
    told = [m for m in ratios.to_dicts() if m["protocol"] in labels]
    told.sort(
        key=lambda m: (
            *texts(m, "judge", "pair_protocol"),
            labels[m["protocol"]],
            m["protocol"],
            m["score_rule"] != "baseline",
        )
    )
    cells = [_cells(rows, m, labels[m["protocol"]]) for m in told]
    return Table(
        "Granularity of the scores",
        "How far a finer scale, and reading the whole distribution, tell answers apart. CR against emitted verdicts; "
        "identical: pairs of answers with the same score.",
        (
            *("judge", "comparison", "scores", "labels", "score rule", "tolerance", "CR", "interval", "pairs"),
            *("by chance", "identical", "Spearman with people"),
        ),
        [line for line in cells if line[6] != "–" or line[10] != "–"],
    )


def _cells(rows: pl.DataFrame, m: dict[str, Any], labels: int) -> tuple[str, ...]:
    identical, spearman = (_of_scores(rows, metric, m) for metric in ("identical_scores", "agreement_spearman"))
    same = [pl.col(name).eq_missing(pl.lit(m[name])) for name in ("judge", "protocol", "pair_protocol", "score_rule")]
    chance = rows.filter(pl.col("metric") == "chance_conflict_ratio", pl.col("verdict_rule") == "baseline", *same)
    return (
        *texts(m, "judge", "pair_protocol", "protocol"),
        str(labels),
        *texts(m, "score_rule", "tolerance"),
        share(m["value"]),
        interval(m, share),
        counts(m),
        share(chance["value"][0] if chance.height else None),
        share(identical),
        number(spearman),
    )


def _of_scores(rows: pl.DataFrame, metric: str, m: dict[str, Any]) -> float | None:
    """The value of a metric of the same scores."""
    same = [pl.col(name).eq_missing(pl.lit(m[name])) for name in ("judge", "protocol", "score_rule")]
    found = rows.filter(pl.col("metric") == metric, *same)
    return found["value"][0] if found.height else None


def entropies(inputs: Inputs) -> Table:
    """The entropy of score distributions by judge and protocol, in nats and as a share of its highest value."""
    labels = {name: len(p.label_texts) for name, p in inputs.protocols.items() if p.kind == "score"}
    rows = main_rules(inputs).filter(pl.col("metric") == "score_entropy", pl.col("cases") > 0)
    read = inputs.scores.filter(pl.col("rule") == inputs.settings.score_rule, pl.col("entropy").is_not_null())
    if "above_canary" in inputs.metrics["metric"]:  # METRICS leave the canary out
        read = read.filter(pl.col("model") != NAME)
    nats = read.group_by("judge", "protocol").agg(
        mean=pl.col("entropy").mean(),
        low=pl.col("entropy").quantile(0.1, "linear"),
        high=pl.col("entropy").quantile(0.9, "linear"),
    )
    by = {(judge, protocol): rest for judge, protocol, *rest in nats.iter_rows()}
    told = [m for m in rows.to_dicts() if m["protocol"] in labels]
    told.sort(key=lambda m: (m["judge"], labels[m["protocol"]], m["protocol"]))
    cells = []
    for m in told:
        mean, low, high = by.get((m["judge"], m["protocol"]), (None, None, None))
        middle = interval({"low": low, "high": high}, number)
        about = (*texts(m, "judge", "protocol"), str(labels[m["protocol"]]), number(mean), middle)
        cells.append((*about, share(m["value"]), interval(m, share), str(m["cases"])))
    return Table(
        "Entropy of the score distributions",
        "0: the judge puts everything on one label. In nats the highest value is the logarithm of the number of "
        "labels; as a share of it, scales can be compared.",
        ("judge", "scores", "labels", "nats", "middle 80 % of answers", "share of highest", "interval", "answers"),
        cells,
    )
