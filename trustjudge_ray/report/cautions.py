"""What a reader must know before the numbers: where a judge is no better than chance, and the run's warnings."""

import polars as pl

from trustjudge_ray.analysis.chance import no_better_than_chance
from trustjudge_ray.report.cells import MATCHED, Inputs, interval, number, overall, share, value_beside


def findings(inputs: Inputs) -> list[str]:
    """A sentence for each: first about the canary, then consistency, position and agreement that are no better than
    chance, then the other warnings."""
    rows = overall(inputs)
    told = [*_chance_findings(rows, inputs), *_position_findings(rows), *_agreement_findings(rows, inputs)]
    return sorted(told + inputs.warnings, key=lambda text: "CANARY" not in text)


def _chance_findings(rows: pl.DataFrame, inputs: Inputs) -> list[str]:
    found = []
    ratios = rows.join(no_better_than_chance(rows), on=["metric", *MATCHED], how="semi", nulls_equal=True)
    for m in ratios.filter(
        pl.col("metric") == "conflict_ratio",
        pl.col("verdict_rule") == "baseline",
        pl.col("score_rule") == inputs.settings.score_rule,
    ).to_dicts():
        found.append(
            f"{m['judge']}: its {m['protocol']} scores and its {m['pair_protocol']} verdicts conflict in "
            f"{share(m['value'])} of pairs ({interval(m, share)}); chance with the same shares of "
            f"verdicts gives {share(value_beside(rows, 'chance_conflict_ratio', m))}: no better than chance, as far as "
            "this run shows."
        )
    for m in ratios.filter(
        pl.col("metric") == "non_transitivity_ratio",
        pl.col("verdict_rule") == inputs.settings.verdict_rule,
        pl.col("k") == pl.col("k").min(),
    ).to_dicts():
        by_chance = share(value_beside(rows, "chance_non_transitivity_ratio", m))
        found.append(
            f"{m['judge']}: {share(m['value'])} of its subsets of {m['k']} answers ({m['protocol']}; "
            f"{interval(m, share)}) go in circles or contradict; by chance {by_chance} would: no better than chance, "
            "as far as this run shows."
        )
    return found


def _position_findings(rows: pl.DataFrame) -> list[str]:
    found = []
    for m in rows.filter(pl.col("metric") == "flip_rate").to_dicts():
        if m["value"] is not None and m["value"] >= 0.5:
            found.append(
                f"{m['judge']}: in {share(m['value'])} of {m['cases']} pairs the verdict of {m['protocol']} changes "
                "when the two answers change places: single verdicts of this judge say more about the order than "
                "about the answers."
            )
    return found


def _agreement_findings(rows: pl.DataFrame, inputs: Inputs) -> list[str]:
    """A judge whose agreement with people cannot be told from none."""
    found = []
    of_scores = (pl.col("metric") == "agreement_spearman") & (pl.col("score_rule") == inputs.settings.score_rule)
    for m in rows.filter(of_scores).to_dicts():
        if m["low"] is not None and m["low"] <= 0:
            found.append(
                f"{m['judge']}: no agreement of its {m['protocol']} scores with people is shown "
                f"(Spearman {number(m['value'])}, interval {interval(m, number)}): no better than chance."
            )
    of_verdicts = pl.col("metric") == "agreement_pair_decisive"
    of_verdicts &= pl.col("verdict_rule") == inputs.settings.verdict_rule
    for m in rows.filter(of_verdicts).to_dicts():
        if m["low"] is not None and m["low"] <= 0.5:
            found.append(
                f"{m['judge']}: where people and its {m['protocol']} verdicts both prefer an answer, they prefer the "
                f"same one in {share(m['value'])} of {m['cases']} pairs ({interval(m, share)}); a coin gives 50 %: no "
                "better than chance."
            )
    return found
