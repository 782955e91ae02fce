"""A run's numbers in the layouts of other leaderboards: a function for each, from the run's tables to plain rows.

Every number is the run's own: what a layout asks for and the run does not have is null (an empty cell), never made up.
"""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from trustjudge_ray.analysis.games import POOLED, Array, soft_outcomes
from trustjudge_ray.config import AnalysisConfig, ConfigError
from trustjudge_ray.judging.protocols import Protocol

ALPACA_EVAL: Final = (
    *("", "win_rate", "standard_error", "n_wins", "n_wins_base", "n_draws", "n_total", "discrete_win_rate", "mode"),
    *("avg_length", "length_controlled_winrate"),
)
"""The columns of AlpacaEval's leaderboard; the first, without a name, is the model."""
MODE: Final = "community"
"""What AlpacaEval calls entries that it did not make itself."""
LMARENA_RULE: Final = "bradley_terry"
"""LMArena's ratings are Bradley and Terry's, ties as half wins."""
NOT_AVAILABLE: Final = "N/A"
"""What lm-evaluation-harness writes for a standard error that it does not have."""
_EVEN: Final = 1e-9
_ROUNDING: Final = 1e-6
_ELO: Final = 400.0


@dataclass(frozen=True, slots=True)
class Tables:
    """What an evaluated run has: JUDGMENTS, RESPONSES (empty where it holds no texts), SCORES, RATINGS, the protocols
    by name and the settings that they were computed with."""

    judgments: pl.DataFrame
    responses: pl.DataFrame
    scores: pl.DataFrame
    ratings: pl.DataFrame
    protocols: dict[str, Protocol]
    settings: AnalysisConfig


@dataclass(frozen=True, slots=True)
class Lane:
    """Whose comparisons a leaderboard is of: a judge (`(all)` for several together) and a protocol."""

    judge: str
    protocol: str


def lane_of(tables: Tables, judge: str | None, protocol: str | None) -> Lane:
    """The judge and comparison protocol that are named, or the only ones.

    Raises:
        ConfigError: there are none, or several and none is named.
    """
    found = tables.ratings.filter(pl.col("category").is_null(), pl.col("rule") == "win_rate")
    if not found.height:
        asked = tables.judgments.filter(kind="compare").height
        had = f"none of the run's {asked} comparisons could be read" if asked else "the run compares nothing"
        raise ConfigError(f"export: {had}; this leaderboard is made of comparisons")
    protocols = found["protocol"].unique().sort().to_list()
    name = _one_of("protocol", protocol, protocols)
    judges = found.filter(protocol=name)["judge"].unique().sort().to_list()
    return Lane(_one_of("judge", judge, judges), name)


def _one_of(what: str, given: str | None, known: Sequence[str]) -> str:
    if given is not None and given not in known:
        raise ConfigError(f"export: {what}: got '{given}'; the run has {', '.join(known)}")
    if given is None and len(known) > 1:
        raise ConfigError(f"export: the run has several {what}s, name one with --{what}: {', '.join(known)}")
    return given if given is not None else known[0]


def alpaca_eval(tables: Tables, lane: Lane, baseline: str) -> list[dict[str, Any]]:
    """AlpacaEval's leaderboard: every model against a baseline, best first.

    win_rate: 100 · Σ (P(win) + ½ P(tie)) / games, over the model's games with the baseline: its `win_rate` in RATINGS
        where it met nobody else. standard_error: of that, questions being what was sampled; where each has the same
        number of games, AlpacaEval's own. Null with one question.
    n_wins, n_wins_base, n_draws, n_total: questions, by the mean over a question's games (both orders), a draw at ½.
        discrete_win_rate: 100 · (wins + ½ draws) / total.
    avg_length: characters of the model's answers, rounded down; null where the run holds no texts.
    length_controlled_winrate: 100 / (1 + 10^((baseline − model)/400)) with the ratings `davidson_controlled`, the
        chance of winning a game without a tie at equal length; null unless `analysis.covariates` had `length`.

    Every question counts alike, whatever `analysis.category_weights` says.
    A model without a game against the baseline that could be read has a row with n_total 0 and no win rate; the
    baseline itself has none.

    Raises:
        ConfigError: the baseline is not among the models.
    """
    models = _models(tables, lane)
    if baseline not in models:
        raise ConfigError(f"export: baseline: got '{baseline}'; the models are {', '.join(models)}")
    games = _games(tables, lane).filter(opponent=baseline)
    lengths, controlled = _lengths(tables.responses), _controlled(tables, lane)
    rows = []
    for model in models:
        if model == baseline:
            continue
        mine = games.filter(model=model)
        row = {"": model, **_record(_by_question(mine))}
        row |= {"mode": MODE, "avg_length": lengths.get(model)}
        rows.append(row | {"length_controlled_winrate": _chance(controlled.get(model), controlled.get(baseline))})
    return sorted(rows, key=lambda row: (math.inf if row["win_rate"] is None else -row["win_rate"], row[""]))


def _models(tables: Tables, lane: Lane) -> list[str]:
    """The models of a lane, also those of which nothing could be read."""
    rated = tables.ratings.filter(judge=lane.judge, protocol=lane.protocol)["model"]
    asked = _judged(tables, lane)
    return sorted({*rated, *asked["model_a"], *asked["model_b"].drop_nulls()})


def _judged(tables: Tables, lane: Lane) -> pl.DataFrame:
    """The judgments of a lane, failed ones too, without repetitions for the noise floor."""
    mine = tables.judgments.filter(pl.col("repeat") == 0, pl.col("kind").is_in(["score", "compare"]))
    mine = mine.filter(protocol=lane.protocol)
    return mine if lane.judge == POOLED else mine.filter(judge=lane.judge)


def _rated(tables: Tables, lane: Lane, rule: str) -> pl.DataFrame:
    mine = tables.ratings.filter(pl.col("category").is_null(), judge=lane.judge, protocol=lane.protocol)
    return mine.filter(rule=rule)


def _games(tables: Tables, lane: Lane) -> pl.DataFrame:
    """Every game of a lane from both sides: judge, question_id, response_first, response_second, model, opponent,
    points (a win 1, a tie ½) and how many games it is: more than one where several people voted."""
    asked = tables.judgments.filter(protocol=lane.protocol)
    if lane.judge != POOLED:
        asked = asked.filter(judge=lane.judge)
    read, _ = soft_outcomes(asked, tables.settings.on_empty)
    about = ("judge", "question_id", "response_first", "response_second")
    sides = [
        read.select(
            *about,
            model=me,
            opponent=other,
            points=pl.col(f"y_{me}") + pl.col("y_tie") / 2,
            games=pl.sum_horizontal("y_first", "y_second", "y_tie"),
        )
        for me, other in (("first", "second"), ("second", "first"))
    ]
    return pl.concat(sides)


def _by_question(games: pl.DataFrame) -> pl.DataFrame:
    """points and games of each question."""
    return games.group_by("question_id").agg(pl.col("points").sum(), pl.col("games").sum()).sort("question_id")


def _record(asked: pl.DataFrame) -> dict[str, Any]:
    """Win rate, standard error and counts of one model's games, by question."""
    points, games = asked["points"].to_numpy(), asked["games"].to_numpy()
    share = points / games
    total = asked.height
    wins, losses = int((share > 0.5 + _EVEN).sum()), int((share < 0.5 - _EVEN).sum())
    draws = total - wins - losses
    mean, error = _mean(points, games)
    return {
        "win_rate": _percent(mean),
        "standard_error": _percent(error),
        "n_wins": wins,
        "n_wins_base": losses,
        "n_draws": draws,
        "n_total": total,
        "discrete_win_rate": _percent((wins + draws / 2) / total) if total else None,
    }


def _mean(sums: Array, counts: Array) -> tuple[float | None, float | None]:
    """Σ sums / Σ counts and its standard error, where each place is a question: of a plain mean where counts are
    equal; null where there are none, or one."""
    total, size = float(counts.sum()), len(sums)
    if not size:
        return None, None
    mean = float(sums.sum()) / total
    if size < 2:
        return mean, None
    residual = sums - mean * counts
    return mean, math.sqrt(size / (size - 1) * float((residual**2).sum())) / total


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _lengths(responses: pl.DataFrame) -> dict[str, int]:
    """The mean number of characters of each model's answers, all turns together, rounded down."""
    if not responses.height:
        return {}
    each = responses.select("model", n=pl.col("replies").list.eval(pl.element().str.len_chars()).list.sum())
    means = each.group_by("model").agg(pl.col("n").mean())
    return {model: int(mean) for model, mean in means.iter_rows()}


def _controlled(tables: Tables, lane: Lane) -> dict[str, float | None]:
    if "length" not in tables.settings.covariates:
        return {}
    rows = _rated(tables, lane, "davidson_controlled")
    apart = rows["component"].n_unique() > 1
    return {} if apart else dict(rows.select("model", "rating").rows())


def _chance(model: float | None, baseline: float | None) -> float | None:
    if model is None or baseline is None:
        return None
    return 100 / (1 + 10 ** ((baseline - model) / _ELO))


def lmarena(tables: Tables, lane: Lane, rule: str = LMARENA_RULE) -> list[dict[str, Any]]:
    """LMArena's leaderboard: the rows of RATINGS by one rule over all categories, best first.

    `Rank* (UB)` is `rank_low`: 1 + the models that are significantly better, tested pair by pair (LMArena compares the
    ends of the intervals, which finds fewer). `Arena Score` is the rating, 1000 the mean or the anchor; the interval is
    at `analysis.confidence`, written `+5/-4`, and again in two columns of its own. Votes are games. Models of another
    `Group` never met these, directly or through others: ranks and scores of two groups cannot be compared. A rating
    that is not bounded is null.

    Raises:
        ConfigError: the run has no ratings by that rule.
    """
    rows = _rated(tables, lane, rule)
    if not rows.height:
        mine = tables.ratings.filter(judge=lane.judge, protocol=lane.protocol)
        known = ", ".join(mine["rule"].unique().sort())
        raise ConfigError(f"export: rule: got '{rule}'; {lane.judge}, {lane.protocol} is rated by {known}")
    interval = f"{100 * tables.settings.confidence:g}% CI"
    found = [
        {
            "Rank* (UB)": row["rank_low"],
            "Model": row["model"],
            "Arena Score": row["rating"],
            interval: _interval(row),
            "Lower": row["low"],
            "Upper": row["high"],
            "Votes": _count(row["games"]),
            "Group": row["component"],
        }
        for row in rows.sort("component", "rank", "model", nulls_last=True).to_dicts()
    ]
    return found


def _count(games: float) -> float:
    """A number of games without what summing shares left of rounding."""
    whole = round(games)
    return whole if abs(games - whole) < _ROUNDING else games


def _interval(row: dict[str, Any]) -> str | None:
    if None in (row["rating"], row["low"], row["high"]):
        return None
    return f"+{row['high'] - row['rating']:.0f}/-{row['rating'] - row['low']:.0f}"


def lm_eval(tables: Tables, about: dict[str, Any]) -> dict[str, Any]:
    """The results of lm-evaluation-harness: a task for each judge, protocol and model, `JUDGE/PROTOCOL/MODEL`.

    A score protocol's task has `mean_score`, a comparison's `win_rate` (0 to 1) and `rating` by every rating rule;
    after the comma stands the rule, where the harness has its filter. `_low` and `_high` are the ends of the interval
    at `analysis.confidence`. `_stderr` is question-clustered for means and win rates, and `N/A` for ratings, whose
    intervals are the run's own. n-samples: `original` is what was asked (answers, or games), `effective` what was read;
    a model of which nothing was read is a task without numbers. `versions` are the
    protocols' hashes, which change with their texts.

    Args:
        about: the harness's `config`, and what else of the run the file should have, such as `git_hash`.
    """
    found: dict[str, Any] = {"results": {}, "group_subtasks": {}, "configs": {}, "versions": {}}
    found |= {"n-shot": {}, "higher_is_better": {}, "n-samples": {}}
    for lane in _lanes(tables):
        protocol, games = tables.protocols.get(lane.protocol), _games(tables, lane)
        rated = tables.ratings.filter(pl.col("category").is_null(), judge=lane.judge, protocol=lane.protocol)
        for model in _models(tables, lane):
            task = f"{lane.judge}/{lane.protocol}/{model}"
            asked = _Asked(tables, lane, model, games.filter(model=model))
            mine = rated.filter(model=model)
            found["results"][task] = {"alias": task} | _cells(mine, asked)
            found["group_subtasks"][task] = []
            found["configs"][task] = _config(asked, protocol)
            found["versions"][task] = protocol.hash[:12] if protocol else None
            found["n-shot"][task] = len(protocol.examples) if protocol else None
            metrics = {_metric(rule, tables.settings)[0] for rule in mine["rule"]}
            found["higher_is_better"][task] = dict.fromkeys(sorted(metrics), True)
            found["n-samples"][task] = _samples(asked)
    return found | about


def _lanes(tables: Tables) -> list[Lane]:
    """Whoever judged by whatever protocol; several judges together where they were rated so."""
    asked = tables.judgments.filter(pl.col("kind").is_in(["score", "compare"])).select("judge", "protocol")
    known = {*asked.unique().rows(), *tables.ratings.select("judge", "protocol").unique().rows()}
    return [Lane(judge, protocol) for judge, protocol in sorted(known)]


def _metric(rule: str, settings: AnalysisConfig) -> tuple[str, str]:
    """What a rating rule measures, and the rule's name where the harness has a filter's."""
    if rule == "mean_score":
        return "mean_score", settings.score_rule
    return ("win_rate", "none") if rule == "win_rate" else ("rating", rule)


def _cells(ratings: pl.DataFrame, asked: "_Asked") -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for row in ratings.to_dicts():
        metric, rule = _metric(row["rule"], asked.tables.settings)
        parts = {"": row["rating"], "_stderr": _error(asked, row["rule"]), "_low": row["low"], "_high": row["high"]}
        cells |= {f"{metric}{part},{rule}": value for part, value in parts.items()}
    return cells


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a task of the harness is about, and the games of its model."""

    tables: Tables
    lane: Lane
    model: str
    games: pl.DataFrame

    @property
    def scored(self) -> pl.DataFrame:
        """The rows of SCORES by the main rule."""
        mine = self.tables.scores.filter(protocol=self.lane.protocol, model=self.model)
        mine = mine.filter(rule=self.tables.settings.score_rule)
        return mine if self.lane.judge == POOLED else mine.filter(judge=self.lane.judge)


def _error(asked: _Asked, rule: str) -> float | str:
    """The standard error of a mean over questions; `N/A` for one question, for ratings, and where categories weigh."""
    if rule not in ("mean_score", "win_rate") or asked.tables.settings.category_weights:
        return NOT_AVAILABLE
    mine = asked.games
    if rule == "mean_score":
        mine = asked.scored.drop_nulls("score").select("question_id", points="score", games=pl.lit(1.0))
    each = _by_question(mine)
    error = _mean(each["points"].to_numpy(), each["games"].to_numpy())[1]
    return NOT_AVAILABLE if error is None else error


def _samples(asked: _Asked) -> dict[str, int]:
    if asked.scored.height:
        return {"original": asked.scored.height, "effective": asked.scored["score"].count()}
    every = _judged(asked.tables, asked.lane)
    mine = every.filter((pl.col("model_a") == asked.model) | (pl.col("model_b") == asked.model))
    key = ["judge", "question_id", "response_a", "response_b", "order"]
    read = ["judge", "question_id", "response_first", "response_second"]
    return {"original": mine.select(key).n_unique(), "effective": asked.games.select(read).n_unique()}


def _config(asked: _Asked, protocol: Protocol | None) -> dict[str, Any]:
    lane = asked.lane
    about: dict[str, Any] = {"task": f"{lane.judge}/{lane.protocol}/{asked.model}", "judge": lane.judge}
    about |= {"protocol": lane.protocol, "model": asked.model, "confidence": asked.tables.settings.confidence}
    if protocol is None:
        return about
    labels = list(protocol.label_texts)
    return about | {"kind": protocol.kind, "labels": labels, "num_fewshot": len(protocol.examples)}


def csv_text(rows: list[dict[str, Any]], columns: Sequence[str]) -> str:
    """Rows as CSV; null is an empty cell, and a number is written so that it reads back as the same one."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: "" if row[name] is None else row[name] for name in columns} for row in rows)
    return text.getvalue()
