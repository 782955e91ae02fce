"""The report in three sentences: who leads, how sure that is, and whether the judge can be trusted.

Every number in them is one of the tables'. Where several leaderboards say different things, that is what is said.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from trustjudge_ray.analysis.games import POOLED
from trustjudge_ray.corpus.canary import NAME
from trustjudge_ray.report.audited import Audited, audits
from trustjudge_ray.report.cells import (
    Cell,
    Form,
    Inputs,
    beside,
    confidence,
    interval,
    listed,
    main_rules,
    number,
    rounded,
    said,
    share,
    value_beside,
    whole,
)
from trustjudge_ray.report.tables import preferred


@dataclass(frozen=True, slots=True)
class Sentence:
    """A question and its answer in one sentence, with the numbers in it."""

    asks: str
    says: Cell


@dataclass(frozen=True, slots=True)
class _Group:
    """Models that are ranked together: RATINGS rows from the best to the worst."""

    judge: str
    protocol: str
    rule: str
    rows: Sequence[dict[str, Any]]

    @property
    def leaders(self) -> list[dict[str, Any]]:
        """Who has the best rank."""
        ranks = [row["rank"] for row in self.rows if row["rank"] is not None]
        return [row for row in self.rows if ranks and row["rank"] == min(ranks)]

    @property
    def rivals(self) -> list[dict[str, Any]]:
        """Who could be first as well: ranks that reach the first, of models that do not lead."""
        first = [row["model"] for row in self.leaders]
        return [row for row in self.rows if row["rank_low"] == 1 and row["model"] not in first]

    @property
    def sure(self) -> bool:
        """Whether one model leads and every other is significantly worse."""
        return len(self.leaders) == 1 and self.leaders[0]["rank_high"] == 1

    @property
    def by(self) -> str:
        """Whose leaderboard it is."""
        return f"{'all judges together' if self.judge == POOLED else self.judge} ({self.protocol})"


def summary(inputs: Inputs) -> list[Sentence]:
    """Three sentences."""
    boards = _boards(inputs)
    return [
        Sentence("Who leads?", _who(boards, inputs)),
        Sentence("How sure is that?", _how_sure(boards, inputs)),
        Sentence("Can the judge be trusted?", _trusted(inputs)),
    ]


def summary_text(inputs: Inputs) -> str:
    """The three sentences as text."""
    return "\n".join(f"{sentence.asks} {sentence.says}" for sentence in summary(inputs))


def standings(inputs: Inputs) -> dict[str, Any]:
    """What the sentences count: leaderboards, ranked (groups of two models or more), sure (those of which the leader is
    told from every other model), and for each group judge, protocol, rule, models, leaders and rivals (how many)."""
    boards = _boards(inputs)
    ranked = [group for board in boards for group in board if len(group.rows) > 1]
    return {
        "leaderboards": len(boards),
        "ranked": len(ranked),
        "sure": sum(group.sure for group in ranked),
        "groups": [
            {"judge": group.judge, "protocol": group.protocol, "rule": group.rule, "models": len(group.rows)}
            | {"groups": len(board), "leaders": len(group.leaders), "rivals": len(group.rivals)}
            | {"others": len(group.rows) - 1, "below": len(group.rows) - len(group.leaders) - len(group.rivals)}
            for board in boards
            for group in board
        ],
    }


def _boards(inputs: Inputs) -> list[list[_Group]]:
    """The leaderboards that count: of all judges together where there are such, otherwise each judge's; a group for
    every set of models that met."""
    found: list[list[_Group]] = []
    pooled = any(judge == POOLED for judge, *_ in preferred(inputs))
    for judge, protocol, rule, rows in preferred(inputs):
        if pooled and judge != POOLED:
            continue
        ordered = rows.sort("component", "rank", "model", nulls_last=True)
        groups = ordered.partition_by("component", maintain_order=True)
        found.append([_Group(judge, protocol, rule, group.to_dicts()) for group in groups])
    return found


def _who(boards: list[list[_Group]], inputs: Inputs) -> Cell:
    if not boards:
        return Cell("No model leads: the run has no readable comparison and no readable score to rank by.")
    if len(boards) == 1:
        return _leader_of(boards[0], inputs)
    models = {row["model"] for board in boards for group in board for row in group.rows}
    if len(models) == 1:
        return said(_ALONE, *models)
    names = [_names(board[0].leaders) for board in boards if len(board) == 1 and len(board[0].rows) > 1]
    if len(names) == len(boards) and len(set(names)) == 1 and names[0]:
        verb = "leads" if len(boards[0][0].leaders) == 1 else "share the lead"
        return said(f"{{}} {verb} on each of {{}} leaderboards: {{}}.", names[0], whole(len(boards)), _whose(boards))
    told = [said("{} by {}", _leads(board), board[0].by) for board in boards]
    return said("The leaderboards differ on who leads: {}.", listed(told))


def _leader_of(groups: list[_Group], inputs: Inputs) -> Cell:
    if len(groups) > 1:
        return said(
            "No model leads them all: the models fall into {} groups that never met, directly or through others, and "
            "each is ranked by itself ({} leads).",
            whole(len(groups)),
            _leads(groups),
        )
    group = groups[0]
    if len(group.rows) == 1:
        return said(_ALONE, group.rows[0]["model"])
    first = group.leaders
    if not first:
        return Cell("No model leads: what was judged determines no order.")
    if len(first) == len(group.rows):
        return said("No model leads: all {} models share the first rank by {}.", whole(len(first)), group.by)
    if len(first) > 1:
        return said("{} share the lead by {}.", _names(first), group.by)
    rated = _RATED[group.rule] if first[0]["rating"] is not None else "a rating without bound{}"
    return said(
        "{} {} {} models with {}, judged by {}{}.",
        _name(first[0]["model"]),
        "leads the" if group.sure else "comes first of",
        whole(len(group.rows)),
        said(rated, _form(group)(first[0]["rating"]) if first[0]["rating"] is not None else ""),
        group.by,
        _on_questions(inputs),
    )


_ALONE: Final = "{} is the only model, so there is nothing to rank it against."
_RATED: Final = {
    "davidson": "a rating of {} (Davidson)",
    "bradley_terry": "a rating of {} (Bradley–Terry)",
    "win_rate": "a win rate of {}",
    "mean_score": "a mean score of {}",
}


def _on_questions(inputs: Inputs) -> Cell:
    count = inputs.judgments["question_id"].n_unique()
    return said(" on {} {}", whole(count), "question" if count == 1 else "questions")


def _form(group: _Group) -> Form:
    return rounded if group.rule in ("davidson", "bradley_terry") else number


def _leads(groups: list[_Group]) -> Cell:
    """Who leads, group by group."""
    told: list[str] = []
    for group in groups:
        if len(group.rows) == 1:
            told.append(said("{} alone", _name(group.rows[0]["model"])))
        elif not group.leaders or len(group.rows) == len(group.leaders):
            told.append(said("none of {}", whole(len(group.rows))))
        elif len(groups) > 1:
            told.append(said("{} among {}", _names(group.leaders), whole(len(group.rows))))
        else:
            told.append(_names(group.leaders))
    return listed(told)


def _whose(boards: list[list[_Group]]) -> Cell:
    return listed([groups[0].by for groups in boards])


def _how_sure(boards: list[list[_Group]], inputs: Inputs) -> Cell:
    at = confidence(inputs.settings)
    if not boards:
        return Cell("There is nothing to be sure of: no model has a rating.")
    if len(boards) > 1 or len(boards[0]) > 1:
        return _sure_of_many(boards, at)
    group = boards[0][0]
    if len(group.rows) == 1:
        return Cell("There is nothing to be sure of: one model cannot be ranked.")
    if not group.leaders:
        return Cell("Not at all: no order is determined.")
    if len(group.leaders) > 1:
        others = said(", and {} more may lead as well", whole(len(group.rivals))) if group.rivals else ""
        return said("Nothing tells those at the top apart: they have the same rank{}.", others)
    return _sure_of_one(group, group.leaders[0], at)


def _sure_of_one(group: _Group, first: dict[str, Any], at: str) -> Cell:
    low, high, others = first["rank_low"], first["rank_high"], whole(len(group.rows) - 1)
    if low is None or high is None:
        return said("That cannot be said: the rank of {} has no interval, for too few questions.", first["model"])
    bounds = interval(first, _form(group))
    if first["rating"] is None:
        about = Cell("It took every point from those it met, so its rating has no bound")
    elif bounds == "–":
        about = Cell("Its rating has no interval")
    else:
        about = said(f"The {at} interval of its rating is {{}}", bounds)
    if high == 1 and low == 1:
        each = said("each of the {} others", others) if len(group.rows) > 2 else "the other model"
        return said("{}, and {} is significantly below it, compared pair by pair.", about, each)
    rivals, ranks = group.rivals, said("its rank is {} to {}", whole(low), whole(high))
    if len(rivals) == len(group.rows) - 1:
        return said("{}, and {}: it cannot be told from any other model, each of which may lead.", about, ranks)
    if not rivals:
        return said("{}, and {}: it cannot be told from some of the others.", about, ranks)
    return said("{}, and {}: {} may lead as well.", about, ranks, _names(rivals))


def _sure_of_many(boards: list[list[_Group]], at: str) -> Cell:
    groups = [group for board in boards for group in board if len(group.rows) > 1]
    if not groups:
        return Cell("There is nothing to be sure of: no two models met.")
    what = "leaderboards" if all(len(board) == 1 for board in boards) else "groups"
    apart = "" if what == "leaderboards" else "; models of different groups cannot be compared"
    sure = sum(group.sure for group in groups)
    return said(
        f"The leader is significantly above every other model ({at}, pair by pair) in {{}} of the {{}} {what}{apart}.",
        whole(sure) if sure else "none",
        whole(len(groups)),
    )


def _trusted(inputs: Inputs) -> Cell:
    found = audits(inputs)
    if not found:
        return Cell("There is no judge: the run has no judgments.")
    told = [_of_judge(audit, inputs, len(found) > 1) for audit in found]
    return said("{}.", told[0]) if len(told) == 1 else said("{}.", said("; ".join("{}" for _ in told), *told))


def _of_judge(audit: Audited, inputs: Inputs, brief: bool) -> Cell:
    """What is said of a judge; `brief`, where there are others, without the numbers."""
    if audit.verdict is not None:
        doubt = ", but the card may be of another judge" if audit.warnings else ""
        words = f"{{}}: audit {{}}{{}}{doubt}" if brief else f"The audit of {{}} says {{}}: {{}}{doubt}"
        return said(words, audit.judge, audit.verdict, "" if brief else audit.says)
    found = _evidence(audit.judge, inputs)
    better = [better for better, _ in found if better is not None]
    if not better:
        shown = "nothing here can be held against chance"
    elif all(better):
        shown = "it beats chance in all that was measured"
    elif any(better):
        shown = "it does not beat chance in all that was measured"
    else:
        shown = "nothing shows that it beats chance"
    if brief:
        return said(f"{{}}: not audited, {shown}", audit.judge)
    joined = "; " if better and all(better) else ", and "
    return said(f"{{}} was not audited{joined}{shown}: {{}}", audit.judge, listed([text for _, text in found]))


def _evidence(judge: str, inputs: Inputs) -> list[tuple[bool | None, Cell]]:
    """What consistency and agreement with people say of a judge, each with whether it is better than chance; None where
    there is nothing to compare."""
    rows = main_rules(inputs).filter(pl.col("judge") == judge, pl.col("cases") > 0, pl.col("value").is_not_null())
    ours = rows.filter(pl.col("verdict_rule") == inputs.settings.verdict_rule)
    conflicts = ours.filter(pl.col("metric") == "conflict_ratio", pl.col("score_rule") == inputs.settings.score_rule)
    circles = ours.filter(pl.col("metric") == "non_transitivity_ratio").filter(pl.col("k") == pl.col("k").min())
    told = [
        *_ratio(rows, conflicts, "its scores and verdicts conflict in {} of pairs (chance: {})"),
        *_ratio(rows, circles, "its verdicts contradict each other in {} of subsets of {} answers (chance: {})"),
        *_agreement(ours, rows.filter(pl.col("score_rule") == inputs.settings.score_rule)),
    ]
    return told or [(None, Cell("neither its consistency nor its agreement with people could be measured"))]


def _ratio(rows: pl.DataFrame, mine: pl.DataFrame, words: str) -> list[tuple[bool | None, Cell]]:
    """The lowest of some ratios, those of other protocols being higher."""
    if not mine.height:
        return []
    m = mine.sort("value", "protocol", "pair_protocol").row(0, named=True)
    over = beside(rows, f"{m['metric']}_minus_chance", m)
    better = None if over is None or over["high"] is None else bool(over["high"] < 0)
    value = said("at best {}" if mine.height > 1 else "{}", share(m["value"]))
    chance = share(value_beside(rows, f"chance_{m['metric']}", m))
    parts = (value, chance) if m["k"] is None else (value, whole(m["k"]), chance)
    return [(better, said(words, *parts))]


def _agreement(verdicts: pl.DataFrame, scores: pl.DataFrame) -> list[tuple[bool | None, Cell]]:
    """The highest agreement with people: of verdicts, or of scores where there are none."""
    of_pairs = "it prefers the answer that people prefer in {} of pairs ({})"
    of_scores = "its scores correlate with people's by {} (Spearman, {})"
    for rows, metric, form, words, none in (
        (verdicts, "agreement_pair_decisive", share, of_pairs, 0.5),
        (scores, "agreement_spearman", number, of_scores, 0.0),
    ):
        mine = rows.filter(pl.col("metric") == metric).sort("value", "protocol", descending=[True, False])
        if mine.height:
            m = mine.row(0, named=True)
            bounds = "no interval" if m["low"] is None or m["high"] is None else interval(m, form)
            better = None if m["low"] is None else bool(m["low"] > none)
            return [(better, said(words, form(m["value"]), bounds))]
    return []


def _name(model: str) -> str:
    return f"{model} (the canary, an empty answer)" if model == NAME else model


def _names(rows: Sequence[dict[str, Any]]) -> Cell:
    return listed([_name(row["model"]) for row in rows])
