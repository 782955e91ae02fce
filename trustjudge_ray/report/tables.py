"""What a report says, as rows: leaderboard, consistency, bias, agreement, coverage. Text for a terminal.

Every number comes from the tables that `evaluate` wrote; nothing is computed here but differences shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from trustjudge_ray.analysis.chance import no_better_than_chance
from trustjudge_ray.analysis.games import POOLED
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.judging.base import CORPUS_FAILURES, JUDGE_FAILURES
from trustjudge_ray.judging.protocols import Protocol

MAIN_RATINGS = ("davidson", "bradley_terry", "win_rate", "mean_score")
"""Rating rules in the order in which a leaderboard prefers them."""


@dataclass(frozen=True)
class Inputs:
    """What a report is made of: the tables of a run folder and how the run was made."""

    title: str
    judgments: pl.DataFrame
    scores: pl.DataFrame
    verdicts: pl.DataFrame
    metrics: pl.DataFrame
    ratings: pl.DataFrame
    protocols: dict[str, Protocol]
    settings: AnalysisConfig
    warnings: list[str] = field(default_factory=list)
    manifest: dict[str, Any] = field(default_factory=dict)
    quarantine: pl.DataFrame | None = None
    duplicates: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """A table as people read it: a title, what it says in a sentence, and cells as text."""

    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    empty: str = "no cases"


def leaderboards(inputs: Inputs) -> list[Table]:
    """One leaderboard for each judge and component, by the preferred rating rule that the run supports."""
    found = []
    overall = inputs.ratings.filter(pl.col("category").is_null())
    for (judge,), ratings in overall.partition_by("judge", as_dict=True, maintain_order=True).items():
        rules = ratings["rule"].unique().to_list()
        rule = next((rule for rule in MAIN_RATINGS if rule in rules), None)
        if rule is None:
            continue
        protocol = ratings.filter(rule=rule)["protocol"][0]
        chosen = ratings.filter(rule=rule, protocol=protocol).sort("component", "rank", "model", nulls_last=True)
        groups = chosen["component"].n_unique()
        for (component,), rows in chosen.partition_by("component", as_dict=True, maintain_order=True).items():
            group = f", group {component} of {groups} that never met" if groups > 1 else ""
            found.append(
                Table(
                    f"Leaderboard by {judge}{group}",
                    f"{_RATING_NOTES[rule]} Protocol {protocol}. Intervals are 95 %, clustered by question.",
                    ("rank", "model", "rating", "interval", "ranks", "games", "mean score", "failed"),
                    [_leader(inputs, judge, row) for row in rows.to_dicts()],
                )
            )
    return found


def consistency(inputs: Inputs, brief: bool = False) -> list[Table]:
    """Conflict ratios and non-transitivity ratios: the reference's rules beside ours.

    Args:
        brief: only the score and verdict rules of `settings`, and `baseline`.
    """
    rows = _main_rules(inputs) if brief else _overall(inputs)
    return [_conflicts(rows, inputs), _circles(rows), _noise_floor(inputs)]


def _conflicts(rows: pl.DataFrame, inputs: Inputs) -> Table:
    rules = ["baseline", inputs.settings.verdict_rule]
    chosen = rows.filter(pl.col("metric") == "conflict_ratio", pl.col("verdict_rule").is_in(rules))
    about = ("judge", "protocol", "pair_protocol", "score_rule", "verdict_rule", "tolerance")
    return Table(
        "Conflict ratio (CR)",
        "How often two scores say something else than the comparison of the same two answers, at the smallest "
        "tolerances of the run; verdict rule baseline is the reference's.",
        ("judge", "scores", "comparison", "score rule", "verdict rule", "tolerance", "CR", *_counted("pairs")),
        [_ratio_cells(rows, m, about, "chance_conflict_ratio") for m in chosen.to_dicts() if m["cases"]],
    )


def _circles(rows: pl.DataFrame) -> Table:
    chosen = rows.filter(pl.col("metric") == "non_transitivity_ratio")
    about = ("judge", "protocol", "verdict_rule", "tolerance", "k")
    return Table(
        "Non-transitivity ratio (NTR)",
        "Subsets of k answers that hold at least one circle or contradiction among three verdicts, at the smallest "
        "tolerance of the run.",
        ("judge", "comparison", "verdict rule", "tolerance", "k", "NTR", *_counted("subsets")),
        [_ratio_cells(rows, m, about, "chance_non_transitivity_ratio") for m in chosen.to_dicts() if m["cases"]],
    )


def _counted(what: str) -> tuple[str, ...]:
    return ("interval", what, "by chance", "left out")


def _ratio_cells(rows: pl.DataFrame, m: dict[str, Any], about: tuple[str, ...], chance: str) -> tuple[str, ...]:
    value, left = share(m["value"]), str(m["excluded"] or 0)
    return (*_texts(m, *about), value, interval(m, share), counts(m), share(_chance(rows, chance, m)), left)


_NOISE = {
    "noise_score": ("change of the expected score, in points", "noise_score_max"),
    "noise_margin": ("change of P(a better) − P(b better)", "noise_margin_max"),
    "noise_flips": ("verdicts that change", None),
    "sample_spread": ("deviation between rationales", None),
}


def _noise_floor(inputs: Inputs) -> Table:
    """What CR, NTR and differences between runs cannot tell from nothing."""
    rows = _overall(inputs)
    largest = {(m["metric"], m["judge"], m["protocol"]): m["value"] for m in rows.to_dicts()}
    cells = []
    for m in rows.filter(pl.col("metric").is_in(list(_NOISE)), pl.col("cases") > 0).to_dicts():
        what, most = _NOISE[m["metric"]]
        form = share if m["metric"] == "noise_flips" else _small
        top = _small(largest.get((most, m["judge"], m["protocol"]))) if most else "–"
        cells.append((*_texts(m, "judge", "protocol"), what, form(m["value"]), interval(m, form), top, str(m["cases"])))
    return Table(
        "Noise floor",
        "The same tasks judged again in other batches: smaller differences than these are the engine's noise, not the "
        "judge's opinion. Between rationales: what another rationale of the same task would change.",
        ("judge", "protocol", "what", "mean", "interval", "largest", "cases"),
        cells,
        empty="no task was judged again (plan.repeat: 1 measures it)",
    )


def _small(value: float | None) -> str:
    """A number that may be very small."""
    return "–" if value is None else f"{value:.2g}"


def plain_metrics(inputs: Inputs, brief: bool = False) -> list[Table]:
    """Position bias, agreement with people, and how much was readable; `brief` as in `consistency`."""
    groups = {
        "Position bias": (
            ("flip_rate", "first_slot_preference", "order_effect", "order_effect_logit"),
            "flip_rate: the two orders of a pair disagree. first_slot_preference: 50 % is unbiased. "
            "order_effect: P(first) − P(second), order_effect_logit: the same as log-odds in Davidson's model; "
            "0 is unbiased.",
        ),
        "Agreement with people": (
            tuple(sorted({m for m in inputs.metrics["metric"].to_list() if m.startswith("agreement_")})),
            "Against human_score of the corpus.",
        ),
        "Coverage": (
            ("coverage", "label_mass", "score_entropy", "identical_scores", "tie_rate"),
            "coverage: judgments that could be read. label_mass: how much of the judge's probability went to labels.",
        ),
    }
    rows = _main_rules(inputs) if brief else _overall(inputs)
    found = []
    for title, (names, note) in groups.items():
        chosen = [m for m in rows.to_dicts() if m["metric"] in names and m["cases"]]
        cells = [
            (
                m["metric"],
                *_texts(m, "judge", "protocol"),
                m["score_rule"] or m["verdict_rule"] or "",
                number(m["value"]),
                interval(m, number),
                counts(m) if m["hits"] is not None else str(m["cases"]),
            )
            for m in chosen
        ]
        if cells:
            columns = ("metric", "judge", "protocol", "rule", "value", "interval", "counts")
            found.append(Table(title, note, columns, cells))
    return found


def failures(inputs: Inputs) -> Table:
    """Judgments by status; quarantined rows by reason."""
    by = inputs.judgments.group_by("judge", "protocol", "status").len().sort("judge", "protocol", "status")
    rows = [(j, p, _side(status), status, str(n)) for j, p, status, n in by.rows()]
    if inputs.quarantine is not None:
        reasons = inputs.quarantine.group_by("reason").len().sort("reason")
        rows += [("", "", "corpus file", reason, str(n)) for reason, n in reasons.rows()]
    return Table(
        "What was judged, and what was not",
        "Failures are rows with a status; none counts as a score, a tie or a loss.",
        ("judge", "protocol", "side", "status or reason", "count"),
        rows,
    )


def findings(inputs: Inputs) -> list[str]:
    """What a reader must know before the numbers: where the judge is no better than chance, and warnings."""
    rows = _overall(inputs)
    found = []
    ratios = rows.join(no_better_than_chance(rows), on=["metric", *_MATCHED], how="semi", nulls_equal=True)
    for m in ratios.filter(
        pl.col("metric") == "conflict_ratio",
        pl.col("verdict_rule") == "baseline",
        pl.col("score_rule") == inputs.settings.score_rule,
    ).to_dicts():
        found.append(
            f"{m['judge']}: its {m['protocol']} scores and its {m['pair_protocol']} verdicts conflict in "
            f"{share(m['value'])} of pairs ({interval(m, share)}); chance with the same shares of "
            f"verdicts gives {share(_chance(rows, 'chance_conflict_ratio', m))}: no better than chance, as far as "
            "this run shows."
        )
    for m in ratios.filter(
        pl.col("metric") == "non_transitivity_ratio",
        pl.col("verdict_rule") == inputs.settings.verdict_rule,
        pl.col("k") == 3,
    ).to_dicts():
        by_chance = share(_chance(rows, "chance_non_transitivity_ratio", m))
        found.append(
            f"{m['judge']}: {share(m['value'])} of its triples ({m['protocol']}; {interval(m, share)}) go in circles "
            f"or contradict; by chance {by_chance} would: no better than chance, as far as this run shows."
        )
    found += _position_findings(rows)
    return found + _agreement_findings(rows, inputs) + inputs.warnings


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


def terminal(inputs: Inputs) -> str:
    """The report as plain text: leaderboards first, then what to know, then the main tables."""
    parts = [plain(table) for table in leaderboards(inputs)]
    if not parts:
        parts.append("No ranking: the run has no readable comparison and no readable score.")
    known = findings(inputs)
    if known:
        parts.append("Read this first\n" + "\n".join(f"  ! {line}" for line in known))
    shown = [*consistency(inputs, brief=True), *plain_metrics(inputs, brief=True), failures(inputs)]
    parts += [plain(table) if table.rows else f"{table.title}\n  nothing to report: {table.empty}" for table in shown]
    return "\n\n".join(parts) + "\n"


def plain(table: Table) -> str:
    """A table in fixed-width text."""
    lines = [tuple(table.columns), *[tuple(row) for row in table.rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.columns))]
    body = [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    ]
    body.insert(1, "  " + "  ".join("-" * width for width in widths))
    return "\n".join([table.title, *body])


def share(value: float | None) -> str:
    """A share in percent, or a dash where there is none."""
    return "–" if value is None else f"{100 * value:.1f} %"


def number(value: float | None) -> str:
    """A number with three decimals, or a dash where there is none."""
    return "–" if value is None else f"{value:.3f}"


def interval(row: dict[str, Any], form: Any) -> str:
    """`low … high` in the given form, or why there is none."""
    if row["low"] is None or row["high"] is None:
        return "–"
    return f"{form(row['low'])} … {form(row['high'])}"


def counts(row: dict[str, Any]) -> str:
    """`hits / cases`."""
    hits = row["hits"]
    return f"{hits:g} / {row['cases']}" if hits is not None else str(row["cases"])


_RATING_NOTES = {
    "davidson": "Rating on the Elo scale (Davidson's model: ties and the order effect are fitted; mean 1000).",
    "bradley_terry": "Rating on the Elo scale (Bradley–Terry, a tie counts half; mean 1000).",
    "win_rate": "Win rate: expected points in a comparison, a tie counts half.",
    "mean_score": "Mean score: this run has no comparisons.",
}


def _leader(inputs: Inputs, judge: str, row: dict[str, Any]) -> tuple[str, ...]:
    form = (lambda x: "–" if x is None else f"{x:.0f}") if row["rule"] in ("davidson", "bradley_terry") else number
    rating = form(row["rating"]) if row["status"] == "bounded" else "unbounded"
    ranks = "–" if row["rank_low"] is None else f"{row['rank_low']}–{row['rank_high']}"
    of_judge = pl.lit(True) if judge == POOLED else pl.col("judge") == judge
    scores = inputs.scores.filter(of_judge, model=row["model"], rule=inputs.settings.score_rule)
    means = scores.group_by("protocol").agg(pl.col("score").mean()).sort("protocol").rows()
    shown = ", ".join(f"{mean:.2f} ({protocol})" for protocol, mean in means if mean is not None)
    of_model = (pl.col("model_a") == row["model"]) | (pl.col("model_b") == row["model"])
    mine = inputs.judgments.filter(of_judge, of_model)
    bad = mine.filter(~pl.col("status").is_in(["ok", "identical"])).height
    return (
        "–" if row["rank"] is None else str(row["rank"]),
        row["model"],
        rating,
        interval(row, form),
        ranks,
        f"{row['games']:g}" if row["rule"] != "mean_score" else "–",
        shown or "–",
        f"{bad} of {mine.height}",
    )


def _overall(inputs: Inputs) -> pl.DataFrame:
    """The metrics over all categories, of the rules that the settings show, at the smallest tolerances."""
    same = ("metric", "judge", "protocol", "pair_protocol", "score_rule", "verdict_rule")
    smallest = [
        pl.col(name).is_null() | (pl.col(name) == pl.col(name).min().over(same))
        for name in ("tolerance", "verdict_tolerance")
    ]
    return inputs.metrics.filter(
        pl.col("category").is_null(),
        pl.col("score_rule").is_null() | pl.col("score_rule").is_in(inputs.settings.score_rules),
        pl.col("verdict_rule").is_null() | pl.col("verdict_rule").is_in(inputs.settings.verdict_rules),
    ).filter(*smallest)


def _main_rules(inputs: Inputs) -> pl.DataFrame:
    """The overall metrics of the rules that the settings put first, and of the reference's baseline."""
    scores, verdicts = inputs.settings.score_rule, inputs.settings.verdict_rule
    return _overall(inputs).filter(
        pl.col("score_rule").is_null() | pl.col("score_rule").is_in([scores, "baseline"]),
        pl.col("verdict_rule").is_null() | pl.col("verdict_rule").is_in([verdicts, "baseline"]),
    )


def _texts(row: dict[str, Any], *names: str) -> tuple[str, ...]:
    return tuple("" if row[name] is None else str(row[name]) for name in names)


_MATCHED = ("judge", "protocol", "pair_protocol", "score_rule", "verdict_rule", "k", "tolerance", "verdict_tolerance")


def _chance(rows: pl.DataFrame, metric: str, like: dict[str, Any]) -> float | None:
    """The chance value that belongs to a ratio's row."""
    same = [pl.col(name).eq_missing(pl.lit(like[name])) for name in _MATCHED]
    found = rows.filter(pl.col("metric") == metric, *same)
    return found["value"][0] if found.height else None


def _side(status: str) -> str:
    if status in JUDGE_FAILURES:
        return "judge"
    return "corpus" if status in CORPUS_FAILURES else "–"
