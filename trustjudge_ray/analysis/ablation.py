"""The ablation table: what each step of the method changes, over the judgments of one run (TrustJudge, Table 2).

Steps of scoring, from labels emitted on the coarsest scale to expected scores on the finest; steps of comparing, from
emitted verdicts to aggregated likelihoods. Every cell has its interval, its coverage, what chance would give, and its
difference from the first step on the same questions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from trustjudge_ray.analysis.bounds import BY_DESIGN
from trustjudge_ray.analysis.canary import canary_of, without_canary
from trustjudge_ray.analysis.chance import chance_of_conflict, chance_of_fault
from trustjudge_ray.analysis.comparisons import Comparisons, compared
from trustjudge_ray.analysis.consistency import CONFLICTS, TIES, ResponseScores, conflict_cells, response_scores
from trustjudge_ray.analysis.coverage import equal_pairs
from trustjudge_ray.analysis.inference import bootstrap_intervals, ratio_intervals, soft_ratio_intervals
from trustjudge_ray.analysis.layout import Layout, layout
from trustjudge_ray.analysis.metrics import plain
from trustjudge_ray.analysis.non_transitivity import subset_counts
from trustjudge_ray.analysis.paired import Differences, paired_ratios
from trustjudge_ray.analysis.readouts import Floats, judged_by
from trustjudge_ray.analysis.scoring import scores as score_table
from trustjudge_ray.analysis.tolerances import Tolerances, parse_tolerances
from trustjudge_ray.analysis.verdicts import pairs_of
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.judging.protocols import Protocol

SCORE_STEPS: Final = ("baseline", "softmax_weighted", "expected", "geval", "mode")
VERDICT_STEPS: Final = ("baseline", "likelihood", "normalised", "ppl", "ppl_tiebreak")
VERDICTS_OF_CONFLICTS: Final = "baseline"
"""The verdicts that scores are held against, as in the paper, whatever the score rule."""

ABLATION: Final[dict[str, Any]] = {
    **dict.fromkeys(("judge", "metric", "step", "protocol", "pair_protocol", "rule"), pl.String),
    **dict.fromkeys(("labels", "k"), pl.Int64),
    **dict.fromkeys(("tolerance", "value", "low", "high", "bootstrap_low", "bootstrap_high", "chance"), pl.Float64),
    **dict.fromkeys(("hits", "coverage"), pl.Float64),
    **dict.fromkeys(("cases", "questions"), pl.Int64),
    "caution": pl.String,
    "against": pl.String,
    **dict.fromkeys(("difference", "difference_low", "difference_high"), pl.Float64),
    **dict.fromkeys(("joint_low", "joint_high", "joint_p_value", "detectable"), pl.Float64),
}
"""The columns of the table with their types.

`metric`: `conflict_ratio`, `identical_scores` and `score_entropy` (a share of its highest value) of scores,
`non_transitivity_ratio` and `tie_rate` of comparisons. `coverage`: cases of all that the plan meant to have. `chance`:
the value that chance gives with the same shares of ties. `against` names the first step of the judge and metric (and
k), from which `difference` is taken, by question; `joint_*` are about all its steps at once.
"""


@dataclass(frozen=True, slots=True)
class _Cell:
    """One cell: (Q,) hits and cases, how many cases are missing, and its columns."""

    about: Mapping[str, Any]
    hits: Floats
    cases: Floats
    missing: float
    chance: float = float("nan")
    soft: bool = False


def ablation(
    judgments: pl.DataFrame,
    protocols: dict[str, Protocol],
    settings: AnalysisConfig,
    responses: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """A row for every judge, metric and step, in the order of the steps; see ABLATION for the columns.

    The tolerances are the smallest of each kind in `settings.tolerances`. What was not judged leaves no row, and a
    canary is in none.

    Args:
        judgments: JUDGMENTS; kinds other than score and compare are left out.
        protocols: of the run, by name.
        responses: RESPONSES, as in `evaluate`.

    Raises:
        ConfigError: the tolerances are not usable.
        ReadoutError: judgments do not fit their protocol.
    """
    judgments = judgments.filter(pl.col("kind").is_in(["score", "compare"]))
    if responses is not None:
        canary = canary_of(responses)
        judgments, responses = without_canary(judgments, canary), without_canary(responses, canary)
    given = parse_tolerances(settings.tolerances)
    least = Tolerances(given.score, given.likelihood[:1], given.ppl[:1])
    arranged, scores, pairs = layout(judgments, responses), score_table(judgments, protocols), pairs_of(judgments)
    rng = np.random.default_rng(settings.seed)
    rows: list[dict[str, Any]] = []
    for judge in judgments["judge"].unique().sort().to_list():
        mine = judgments.filter(pl.col("judge") == judge)
        asked = {kind: mine.filter(pl.col("kind") == kind)["protocol"].unique().sort().to_list() for kind in _KINDS}
        names = sorted(asked["score"], key=lambda name: (len(protocols[name].label_texts), name))
        scored = [
            response_scores(scores, judge, name, arranged, least.score_points(protocols[name].values)[:1])
            for name in names
        ]
        compared_by = [
            compared(pairs, judge, name, arranged, least, settings.identical == "include") for name in asked["compare"]
        ]
        families: list[Iterator[_Cell]] = [_conflicts(arranged, scored, pair) for pair in compared_by]
        families += [_identical(arranged, scored), _entropy(arranged, scores, scored)]
        for pair in compared_by:
            families += _verdicts(arranged, pair, settings)
        for family in families:
            rows += _family(list(family), protocols, settings, rng)
    return pl.DataFrame(rows, schema=ABLATION, orient="row")


_KINDS: Final = ("score", "compare")


def _conflicts(layout: Layout, scored: Sequence[ResponseScores], pair: Comparisons) -> Iterator[_Cell]:
    for mine in scored:
        for rule in SCORE_STEPS:
            found = conflict_cells(layout, pair, mine, rule, VERDICTS_OF_CONFLICTS)
            total = found.cases[0].sum()
            ties = [found.counted(signs)[0].sum() / total if total else np.nan for signs in TIES.values()]
            yield _Cell(
                _about("conflict_ratio", mine, rule) | {"pair_protocol": pair.protocol},
                found.counted(CONFLICTS["conflict_ratio"])[0],
                found.cases[0],
                _missing(found.lost),
                float(chance_of_conflict(*map(np.asarray, ties))),
            )


def _identical(layout: Layout, scored: Sequence[ResponseScores]) -> Iterator[_Cell]:
    possible = layout.sizes * (layout.sizes - 1) / 2
    for mine in scored:
        for rule in SCORE_STEPS:
            hits, cases = equal_pairs(layout, mine.score[rule])
            yield _Cell(_about("identical_scores", mine, rule), hits, cases, float((possible - cases).sum()))


def _entropy(layout: Layout, scores: pl.DataFrame, scored: Sequence[ResponseScores]) -> Iterator[_Cell]:
    """One step for each protocol: entropy belongs to the distribution, not to a rule."""
    for mine in scored:
        rows = scores.filter(judged_by(mine.judge, mine.protocol) & (pl.col("rule") == SCORE_STEPS[0]))
        question, _, _ = layout.numbered(rows, "response_id")
        share = rows["entropy_share"].to_numpy()
        read = ~np.isnan(share)
        sums = np.bincount(question[read], weights=share[read], minlength=layout.questions)
        cases = np.bincount(question[read], minlength=layout.questions).astype(np.float64)
        about = _about("score_entropy", mine, None)
        yield _Cell(about, np.minimum(sums, cases), cases, float((~read).sum()), soft=True)


def _verdicts(layout: Layout, pair: Comparisons, settings: AnalysisConfig) -> list[Iterator[_Cell]]:
    """A family for every k, and one of tie rates."""
    sizes = sorted(set(settings.k))
    found = subset_counts(layout, pair, sizes, settings.seed)
    ties, valid = {}, {}
    for rule in VERDICT_STEPS:
        mine = pair.by_rule[rule]
        ties[rule] = pair.counted(mine.valid, mine.outcomes[0] == 0, layout)
        valid[rule] = pair.counted(mine.valid, None, layout)

    def about(metric: str, rule: str) -> dict[str, Any]:
        tolerance = pair.by_rule[rule].tolerances[0]
        keys = {"judge": pair.judge, "metric": metric, "step": f"{pair.protocol}, {rule}", "rule": rule}
        return keys | {"protocol": pair.protocol, "tolerance": tolerance}

    def subsets(k: int) -> Iterator[_Cell]:
        for rule in VERDICT_STEPS:
            total = valid[rule].sum()
            yield _Cell(
                about("non_transitivity_ratio", rule) | {"k": k},
                found.faulty[rule][k]["ratio"][0],
                found.complete[rule][k][0],
                _missing(found.lost[rule][k]),
                chance_of_fault(float(ties[rule].sum() / total), k) if total else float("nan"),
            )

    def tied() -> Iterator[_Cell]:
        for rule in VERDICT_STEPS:
            yield _Cell(about("tie_rate", rule), ties[rule], valid[rule], _missing(pair.lost(rule, layout)))

    return [*(subsets(k) for k in sizes), tied()]


def _about(metric: str, scored: ResponseScores, rule: str | None) -> dict[str, Any]:
    step = scored.protocol if rule is None else f"{scored.protocol}, {rule}"
    keys = {"judge": scored.judge, "metric": metric, "step": step, "protocol": scored.protocol, "rule": rule}
    tolerance = {"conflict_ratio": scored.tolerances[0], "identical_scores": 0.0}.get(metric)
    return keys | {"tolerance": tolerance}


def _missing(lost: Mapping[str, Floats]) -> float:
    return float(sum(counts.sum() for why, counts in lost.items() if why not in BY_DESIGN))


def _family(
    cells: list[_Cell], protocols: dict[str, Protocol], settings: AnalysisConfig, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """The rows of one metric's steps, each with its difference from the first."""
    if not cells:
        return []
    hits, cases = (np.stack([getattr(cell, name) for cell in cells]) for name in ("hits", "cases"))
    intervals = soft_ratio_intervals if cells[0].soft else ratio_intervals
    found = intervals(hits, cases, settings.confidence)
    drawn = bootstrap_intervals(hits, cases, rng, settings.confidence)
    later = len(cells) - 1
    first = (np.repeat(hits[:1], later, axis=0), np.repeat(cases[:1], later, axis=0))
    change = paired_ratios(first, (hits[1:], cases[1:]), rng, settings.confidence) if later else None
    rows = []
    for place, cell in enumerate(cells):
        total = found.cases[place] + cell.missing
        row: dict[str, Any] = {
            **cell.about,
            "labels": len(protocols[cell.about["protocol"]].label_texts),
            "bootstrap_low": drawn.low[place],
            "bootstrap_high": drawn.high[place],
            "chance": cell.chance,
            "coverage": found.cases[place] / total if total else None,
            "caution": str(found.caution[place]) or None,
        }
        row |= {name: getattr(found, name)[place] for name in ("value", "low", "high", "hits", "cases", "questions")}
        if change is not None and place:
            row |= _difference(change, place - 1) | {"against": cells[0].about["step"]}
        rows.append({name: plain(row.get(name)) for name in ABLATION})
    return rows


def _difference(change: Differences, place: int) -> dict[str, Any]:
    columns = {"difference": "value", "difference_low": "low", "difference_high": "high"}
    columns |= {name: name for name in ("joint_low", "joint_high", "joint_p_value", "detectable")}
    return {column: getattr(change, name)[place] for column, name in columns.items()}
