"""Everything that is computed from judgments: scores, verdicts, metrics, ratings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import polars as pl

from trustjudge_ray.analysis.agreement import agreement_metrics
from trustjudge_ray.analysis.bias import pair_bias_rows, score_bias_rows
from trustjudge_ray.analysis.canary import canary_metrics, canary_of, without_canary
from trustjudge_ray.analysis.comparisons import Comparisons, compared
from trustjudge_ray.analysis.consistency import ResponseScores, conflict_rows, response_scores
from trustjudge_ray.analysis.coverage import coverage_rows, pair_mass_rows, reading_rows
from trustjudge_ray.analysis.layout import Layout, layout
from trustjudge_ray.analysis.length_bias import known_of
from trustjudge_ray.analysis.metrics import COLUMNS
from trustjudge_ray.analysis.noise import noise_rows
from trustjudge_ray.analysis.non_transitivity import non_transitivity_rows
from trustjudge_ray.analysis.people import people_metrics
from trustjudge_ray.analysis.position import position_rows, tie_rows
from trustjudge_ray.analysis.ranking import rankings
from trustjudge_ray.analysis.readouts import columns
from trustjudge_ray.analysis.scoring import scores as score_table
from trustjudge_ray.analysis.tolerances import Tolerances, parse_tolerances
from trustjudge_ray.analysis.unmeasured import unmeasured_rows
from trustjudge_ray.analysis.verdicts import Pairs, pairs_of, verdict_table
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.schema import RESPONSES

__all__ = ["Evaluation", "evaluate", "parse_tolerances"]

_LABEL_TOKENS = 3
"""An output without a rationale that is no longer than this is the label alone."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The four tables of an evaluation (SCORES, VERDICTS, METRICS, RATINGS), and what to know when reading them."""

    scores: pl.DataFrame
    verdicts: pl.DataFrame
    metrics: pl.DataFrame
    ratings: pl.DataFrame
    warnings: list[str]


def evaluate(
    judgments: pl.DataFrame,
    protocols: dict[str, Protocol],
    responses: pl.DataFrame | None,
    settings: AnalysisConfig,
) -> Evaluation:
    """Compute every table from a run's judgments.

    Whatever is missing (no comparisons, no scores, nothing readable) leaves its rows with no case and no value.
    A canary has its rows in SCORES, VERDICTS and RATINGS, and its judgments count in `coverage`; no other metric reads
    them.

    Args:
        judgments: JUDGMENTS, one row per task_id; kinds other than score and compare are left out.
        protocols: of the run, by name; also those without a judgment get their rows.
        responses: RESPONSES of the run, for human scores, and for responses that nothing was asked about.

    Raises:
        ConfigError: the tolerances are not usable.
        ReadoutError: judgments do not fit their protocol.
    """
    tolerances = parse_tolerances(settings.tolerances)
    judgments = judgments.filter(pl.col("kind").is_in(["score", "compare"]))
    scores = score_table(judgments, protocols)
    pairs = pairs_of(judgments)
    verdicts = verdict_table(pairs, tolerances)
    known = pl.DataFrame(schema=columns(RESPONSES)) if responses is None else responses
    canary = canary_of(known)
    asked, mine, told, answers = (without_canary(table, canary) for table in (judgments, scores, verdicts, known))
    pairs = pairs if canary is None else pairs_of(asked)
    texts = None if responses is None else answers
    consistency, warnings = consistency_metrics(asked, protocols, texts, settings, mine, pairs, tolerances, judgments)
    ranked = rankings(judgments, protocols, settings, scores, responses)
    added = (
        agreement_metrics(mine, told, answers, settings),
        people_metrics(asked, told, answers, settings),
        ranked.metrics,
        canary_metrics(ranked.ratings, canary),
    )
    metrics = pl.concat([consistency, *(table.select(*COLUMNS) for table in added)])
    names = {kind: _names(judgments, protocols, kind) for kind in ("score", "compare")}
    left = unmeasured_rows(metrics, judgments, mine, told, names, tolerances, settings.on_empty)
    metrics = pl.concat([metrics, left])
    return Evaluation(scores, verdicts, metrics, ranked.ratings, [*warnings, *_label_only(judgments), *ranked.warnings])


def consistency_metrics(
    judgments: pl.DataFrame,
    protocols: dict[str, Protocol],
    responses: pl.DataFrame | None,
    settings: AnalysisConfig,
    scores: pl.DataFrame,
    pairs: Pairs,
    tolerances: Tolerances,
    everything: pl.DataFrame | None = None,
) -> tuple[pl.DataFrame, list[str]]:
    """METRICS that need no human label, for every judge and protocol; with warnings.

    Args:
        everything: the judgments that `coverage` counts, where they are more than those that the others are about
            (a canary's); every judge and protocol in there has its rows.
    """
    everything = judgments if everything is None else everything
    arranged = layout(judgments, responses)
    whole = arranged if everything.height == judgments.height else layout(everything)
    known = known_of(arranged, responses)
    confidence, rows, warnings = settings.confidence, [], []
    score_names, pair_names = (_names(everything, protocols, kind) for kind in ("score", "compare"))
    identical = settings.identical == "include"
    compared_of = {
        judge: [compared(pairs, judge, name, arranged, tolerances, identical) for name in pair_names]
        for judge in _or_none(everything["judge"].unique().sort())
    }
    for judge, compared_by in compared_of.items():
        scored = [_scored(scores, judge, name, protocols, arranged, tolerances) for name in score_names]
        asked = sorted({name for name in (*score_names, *pair_names) if name is not None})
        for protocol in asked:
            rows += coverage_rows(whole, everything, judge, protocol, confidence)
        rows += noise_rows(arranged, judgments, protocols, judge, asked, confidence)
        for mine in scored:
            rows += reading_rows(arranged, scores, mine, confidence)
            rows += score_bias_rows(arranged, judgments, mine, _values(mine.protocol, protocols), known, confidence)
        for mine, pair in product(scored, compared_by):
            rows += conflict_rows(arranged, judge, pair, mine, confidence)
        for pair in compared_by:
            found, notes = _pair_rows(arranged, pair, settings)
            rows += found
            warnings += notes
            rows += pair_bias_rows(arranged, pair, _others(pair, compared_of), known, settings.families, confidence)
    table = pl.concat([pl.DataFrame(schema=COLUMNS), *rows])
    # With neither kind, what both have (`label_mass`, `label_saturation`) is one row.
    return table.unique(maintain_order=True) if score_names == pair_names else table, warnings


def _others(pair: Comparisons, compared_of: Mapping[str | None, Sequence[Comparisons]]) -> list[Comparisons]:
    """What the other judges say under the same protocol."""
    every = (it for its in compared_of.values() for it in its)
    return [it for it in every if it.judge != pair.judge and it.protocol == pair.protocol]


def _pair_rows(
    arranged: Layout, comparisons: Comparisons, settings: AnalysisConfig
) -> tuple[list[pl.DataFrame], list[str]]:
    confidence = settings.confidence
    rows, notes = non_transitivity_rows(arranged, comparisons, sorted(set(settings.k)), confidence, settings.seed)
    rows += position_rows(arranged, comparisons, confidence)
    rows += tie_rows(arranged, comparisons, confidence)
    rows += pair_mass_rows(arranged, comparisons, confidence)
    return rows, notes


def _scored(
    scores: pl.DataFrame,
    judge: str | None,
    name: str | None,
    protocols: dict[str, Protocol],
    arranged: Layout,
    tolerances: Tolerances,
) -> ResponseScores:
    points = tolerances.score_points(_values(name, protocols))
    return response_scores(scores, judge, name, arranged, points)


def _values(name: str | None, protocols: dict[str, Protocol]) -> Sequence[float]:
    """What the labels of a score protocol stand for; any scale where there is none."""
    return protocols[name].values if name is not None else (0.0, 1.0)


def _names(judgments: pl.DataFrame, protocols: dict[str, Protocol], kind: str) -> list[str | None]:
    """The protocols of a kind, of the run or of its judgments; [None] where there is none, so that its metrics
    still have their rows."""
    judged = judgments.filter(pl.col("kind") == kind)["protocol"].unique().to_list()
    return _or_none(sorted({*judged, *(name for name, protocol in protocols.items() if protocol.kind == kind)}))


def _or_none(names: Iterable[str]) -> list[str | None]:
    return list(names) or [None]


def _label_only(judgments: pl.DataFrame) -> list[str]:
    """Protocols whose perplexity is that of the label alone."""
    asked = judgments.filter((pl.col("kind") == "compare") & (pl.col("status") == "ok"))
    short = pl.col("rationale").is_null().all() & (pl.col("output_tokens").max() <= _LABEL_TOKENS)
    names = asked.group_by("protocol").agg(short.alias("short")).filter("short")["protocol"].sort().to_list()
    return [
        f"protocol '{name}' has no rationale: under the verdict rules ppl and ppl_tiebreak its perplexity is that of "
        "the label alone"
        for name in names
    ]
