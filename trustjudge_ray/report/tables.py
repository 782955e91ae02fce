"""What a report says, as rows: leaderboards, bias, coverage, what was not judged; and all of it as text for a terminal.

Every number comes from the tables that `evaluate` wrote; nothing is computed here but differences shown.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from trustjudge_ray.analysis.games import POOLED
from trustjudge_ray.judging.base import CORPUS_FAILURES, JUDGE_FAILURES
from trustjudge_ray.report.agreement import agreement
from trustjudge_ray.report.audited import audits_text
from trustjudge_ray.report.bias import cards
from trustjudge_ray.report.cautions import findings
from trustjudge_ray.report.cells import Cell, confidence, main_rules, overall, rounded, said, texts, total, whole
from trustjudge_ray.report.cells import Inputs as Inputs
from trustjudge_ray.report.cells import Table as Table
from trustjudge_ray.report.cells import counts as counts
from trustjudge_ray.report.cells import interval as interval
from trustjudge_ray.report.cells import number as number
from trustjudge_ray.report.cells import plain as plain
from trustjudge_ray.report.cells import share as share
from trustjudge_ray.report.consistency import consistency
from trustjudge_ray.report.granularity import granularity
from trustjudge_ray.report.judges import side_by_side
from trustjudge_ray.report.ratings import by_rule, coefficients
from trustjudge_ray.report.scores import judged_models, mean_scores

MAIN_RATINGS = ("davidson", "bradley_terry", "win_rate", "mean_score")
"""Rating rules in the order in which a leaderboard prefers them."""


def leaderboards(inputs: Inputs) -> list[Table]:
    """One leaderboard for each judge, comparison protocol and component, by the preferred rating rule that the run
    supports; by score protocols for a judge that compared nothing."""
    found, known = [], _known(inputs)
    anchor, weighted = inputs.settings.anchor_model, bool(inputs.settings.category_weights)
    zero = "mean 1000" if anchor is None else f"{anchor} is 1000, intervals are those of the difference to it"
    for judge, protocol, rule, ratings in preferred(inputs):
        chosen = ratings.sort("component", "rank", "model", nulls_last=True)
        groups = chosen["component"].n_unique()
        for (component,), rows in chosen.partition_by("component", as_dict=True, maintain_order=True).items():
            group = f", group {component} of {groups} that never met" if groups > 1 else ""
            found.append(
                Table(
                    f"Leaderboard by {judge} ({protocol}, {RATING_RULES[rule]}){group}",
                    f"{_rating_note(rule, judge, zero)} Protocol {protocol}. Intervals are "
                    f"{confidence(inputs.settings)}, clustered by question.{_WEIGHTED if weighted else ''}",
                    (
                        *("rank", "model", "rating", "interval", "ranks", "games"),
                        "mean score, unweighted" if weighted else "mean score",
                        "failed",
                    ),
                    [_leader(judge, row, known) for row in rows.to_dicts()],
                    named=1,
                )
            )
    return found


def preferred(inputs: Inputs) -> Iterator[tuple[str, str, str, pl.DataFrame]]:
    """The overall ratings that a leaderboard shows: judge, protocol, rule and RATINGS rows."""
    overall_ratings = inputs.ratings.filter(pl.col("category").is_null())
    for (judge,), ratings in overall_ratings.partition_by("judge", as_dict=True, maintain_order=True).items():
        rules = ratings["rule"].unique().to_list()
        rule = next((rule for rule in MAIN_RATINGS if rule in rules), None)
        if rule is None:
            continue
        mine = ratings.filter(rule=rule)
        for (protocol,), part in mine.partition_by("protocol", as_dict=True, maintain_order=True).items():
            yield str(judge), str(protocol), rule, part


def coverage(inputs: Inputs, brief: bool = False) -> list[Table]:
    """How much was readable; `brief` as in `consistency`. No table where there is nothing."""
    names = ("coverage", "label_mass", "score_entropy", "identical_scores", "tie_rate")
    shares = ("coverage", "identical_scores", "tie_rate")
    rows = main_rules(inputs) if brief else overall(inputs)
    cells = [
        (
            m["metric"],
            *texts(m, "judge", "protocol"),
            m["score_rule"] or m["verdict_rule"] or "",
            number(m["value"]),
            interval(m, number),
            counts(m) if m["metric"] in shares else whole(m["cases"]),
        )
        for m in rows.to_dicts()
        if m["metric"] in names and m["cases"]
    ]
    note = "coverage: judgments that could be read. label_mass: how much of the judge's probability went to labels."
    columns = ("metric", "judge", "protocol", "rule", "value", "interval", "counts")
    return [Table("Coverage", note, columns, cells)] if cells else []


def failures(inputs: Inputs) -> Table:
    """Judgments by status; quarantined rows by reason."""
    rows = [(r["judge"], r["protocol"], _side(r["status"]), r["status"], whole(r["count"])) for r in statuses(inputs)]
    rows += [("", "", "corpus file", r["reason"], whole(r["count"])) for r in quarantined(inputs)]
    return Table(
        "What was judged, and what was not",
        "Failures are rows with a status; none counts as a score, a tie or a loss.",
        ("judge", "protocol", "side", "status or reason", "count"),
        rows,
    )


def statuses(inputs: Inputs) -> list[dict[str, Any]]:
    """judge, protocol, status, count: of all judgments."""
    key = ("judge", "protocol", "status")
    return inputs.judgments.group_by(*key).agg(count=pl.len()).sort(*key).to_dicts()


def quarantined(inputs: Inputs) -> list[dict[str, Any]]:
    """reason, count: of rows of the corpus that were not judged."""
    if inputs.quarantine is None:
        return []
    return inputs.quarantine.group_by("reason").agg(count=pl.len()).sort("reason").to_dicts()


def terminal(inputs: Inputs, first: str = "") -> str:
    """The report as plain text: leaderboards, how the judges were audited, what to know, then the main tables.

    Args:
        first: what stands before them.
    """
    parts = [plain(table) for table in leaderboards(inputs)]
    if not parts:
        parts.append("No ranking: the run has no readable comparison and no readable score.")
    parts = [*([first] if first else []), *parts]
    parts.append(audits_text(inputs))
    known = findings(inputs)
    if known:
        parts.append("Read this first\n" + "\n".join(f"  ! {line}" for line in known))
    shown = [
        *by_rule(inputs),
        *coefficients(inputs),
        *_several(inputs),
        *consistency(inputs, brief=True),
        *cards(inputs, brief=True),
    ]
    shown += [*coverage(inputs, brief=True), *agreement(inputs, brief=True), failures(inputs)]
    parts += [plain(table) if table.rows else f"{table.title}\n  nothing to report: {table.empty}" for table in shown]
    return "\n\n".join(parts) + "\n"


def _several(inputs: Inputs) -> list[Table]:
    """What is worth a table in a terminal only where there is more than one of it: judges, scales."""
    found = []
    if inputs.judgments["judge"].n_unique() > 1:
        found.append(side_by_side(inputs))
    scales = {len(p.label_texts) for p in inputs.protocols.values() if p.kind == "score"}
    if len(scales) > 1:
        found.append(granularity(inputs, brief=True))
    return [table for table in found if table.rows]


_WEIGHTED = (
    " Ratings weigh questions by category (analysis.category_weights); the games and the mean scores beside them count "
    "each once."
)
RATING_RULES: Final = {
    "davidson": "Davidson",
    "bradley_terry": "Bradley–Terry",
    "win_rate": "win rate",
    "mean_score": "mean score",
}
_RATING_NOTES = {
    "davidson": "Rating on the Elo scale (Davidson's model: ties and the order effect are fitted; {zero}).",
    "bradley_terry": "Rating on the Elo scale (Bradley–Terry, a tie counts half; {zero}).",
    "win_rate": "Win rate: expected points in a comparison, a tie counts half.",
    "mean_score": "Mean score: {judge} has no readable comparison to rank by.",
}


def _rating_note(rule: str, judge: str, zero: str) -> str:
    if rule == "mean_score" and judge == POOLED:
        return "Mean score of all judges: no comparison protocol was read by several of them."
    return _RATING_NOTES[rule].format(zero=zero, judge=judge)


@dataclass(frozen=True, slots=True)
class _Known:
    """What a leaderboard says beside a rating, by judge and model."""

    means: dict[tuple[str, str], list[dict[str, Any]]]
    judged: dict[tuple[str, str], dict[str, Any]]


def _known(inputs: Inputs) -> _Known:
    means: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in mean_scores(inputs):
        means.setdefault((row["judge"], row["model"]), []).append(row)
    return _Known(means, {(row["judge"], row["model"]): row for row in judged_models(inputs)})


def _leader(judge: str, row: dict[str, Any], known: _Known) -> tuple[str, ...]:
    form = rounded if row["rule"] in ("davidson", "bradley_terry") else number
    rating = "unbounded" if row["rating"] is None and row["status"] == "unbounded" else form(row["rating"])
    low, high = row["rank_low"], row["rank_high"]
    means = [
        said("{} ({})", Cell(f"{found['mean']:.2f}", found["mean"]), found["protocol"])
        for found in known.means.get((judge, row["model"]), [])
    ]
    asked = known.judged.get((judge, row["model"]), {"failed": 0, "judgments": 0})
    return (
        whole(row["rank"]),
        row["model"],
        rating,
        interval(row, form),
        "–" if low is None else said("{}–{}", whole(low), whole(high)),
        total(row["games"]) if row["rule"] != "mean_score" else "–",
        said(", ".join("{}" for _ in means), *means) if means else "–",
        said("{} of {}", whole(asked["failed"]), whole(asked["judgments"])),
    )


def _side(status: str) -> str:
    if status in JUDGE_FAILURES:
        return "judge"
    return "corpus" if status in CORPUS_FAILURES else "–"
