"""What a reader must know before the numbers: where a judge is no better than chance, and the run's warnings."""

import polars as pl

from trustjudge_ray.analysis.chance import no_better_than_chance
from trustjudge_ray.report.cells import MATCHED, Inputs, interval, number, overall, said, share, value_beside, whole


def findings(inputs: Inputs) -> list[str]:
    """A sentence for each: first about the canary, then consistency, position and agreement that are no better than
    chance, then the other warnings."""
    rows = overall(inputs)
    told = [*_chance_findings(rows, inputs), *_position_findings(rows), *_agreement_findings(rows, inputs)]
    return sorted(told + inputs.warnings, key=lambda text: "CANARY" not in text)


def _chance_findings(rows: pl.DataFrame, inputs: Inputs) -> list[str]:
    found: list[str] = []
    ratios = rows.join(no_better_than_chance(rows), on=["metric", *MATCHED], how="semi", nulls_equal=True)
    for m in ratios.filter(
        pl.col("metric") == "conflict_ratio",
        pl.col("verdict_rule") == inputs.settings.verdict_rule,
        pl.col("score_rule") == inputs.settings.score_rule,
    ).to_dicts():
        text = said(
            "{}: its {} scores and its {} verdicts conflict in {} of pairs ({}); chance with the same shares of "
            "verdicts gives {}: no better than chance, as far as this run shows.",
            *(m["judge"], m["protocol"], m["pair_protocol"], share(m["value"]), interval(m, share)),
            share(value_beside(rows, "chance_conflict_ratio", m)),
        )
        found.append(text)
    for m in ratios.filter(
        pl.col("metric") == "non_transitivity_ratio",
        pl.col("verdict_rule") == inputs.settings.verdict_rule,
        pl.col("k") == pl.col("k").min(),
    ).to_dicts():
        text = said(
            "{}: {} of its subsets of {} answers ({}; {}) go in circles or contradict; by chance {} would: no better "
            "than chance, as far as this run shows.",
            *(m["judge"], share(m["value"]), whole(m["k"]), m["protocol"], interval(m, share)),
            share(value_beside(rows, "chance_non_transitivity_ratio", m)),
        )
        found.append(text)
    return found


def _position_findings(rows: pl.DataFrame) -> list[str]:
    found: list[str] = []
    for m in rows.filter(pl.col("metric") == "flip_rate").to_dicts():
        if m["value"] is not None and m["value"] >= 0.5:
            text = said(
                "{}: in {} of {} pairs the verdict of {} changes when the two answers change places: single verdicts "
                "of this judge say more about the order than about the answers.",
                *(m["judge"], share(m["value"]), whole(m["cases"]), m["protocol"]),
            )
            found.append(text)
    return found


def _agreement_findings(rows: pl.DataFrame, inputs: Inputs) -> list[str]:
    """A judge whose agreement with people cannot be told from none."""
    found: list[str] = []
    of_scores = (pl.col("metric") == "agreement_spearman") & (pl.col("score_rule") == inputs.settings.score_rule)
    for m in rows.filter(of_scores).to_dicts():
        if m["low"] is not None and m["low"] <= 0:
            text = said(
                "{}: no agreement of its {} scores with people is shown (Spearman {}, interval {}): no better than "
                "chance.",
                *(m["judge"], m["protocol"], number(m["value"]), interval(m, number)),
            )
            found.append(text)
    of_verdicts = pl.col("metric") == "agreement_pair_decisive"
    of_verdicts &= pl.col("verdict_rule") == inputs.settings.verdict_rule
    for m in rows.filter(of_verdicts).to_dicts():
        if m["low"] is not None and m["low"] <= 0.5:
            text = said(
                "{}: where people and its {} verdicts both prefer an answer, they prefer the same one in {} of {} "
                "pairs ({}); a coin gives 50 %: no better than chance.",
                *(m["judge"], m["protocol"], share(m["value"]), whole(m["cases"]), interval(m, share)),
            )
            found.append(text)
    return found
