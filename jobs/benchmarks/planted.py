"""Whether what is planted is found: the planner, the scripted judge and the analysis of a run, in one process.

- `ranking`: 50 models × 200 questions. A model's quality is planted, evenly spaced from 0 to 1 in random order. An
  answer departs from its model's quality by a normal error that all its judgments share, every judgment perceives both
  answers with a further error of its own, and the judge says "first" with a weight of 0.1 whatever it reads. Kendall's
  τ is that between planted quality and Davidson's ratings; `agreement` is the share of single judgments that say what
  the planted order says (a tie counts half), which is how good the judge is. `matching` with both orders at two rounds,
  and other designs at about as many judgments; `share` is that of the round robin's judgments in both orders.
- `nights`: pairs of nights of 8 models × 80 questions, compared by `compare_runs`: scores and blocks of four, all
  answers new in the second night (outcomes are made on whole columns, see `_nights`). An answer's quality is its
  model's, plus what the model makes of the question (the same in both nights), plus the night's own error. Unplanted,
  any model that is called better or worse, by score or by win rate, is a false alarm; so is any ratio of consistency,
  a family of its own. Planted, one model loses what the unplanted comparisons say they find four times out of five.
"""

from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Final

import numpy as np
import polars as pl
from scipy.optimize import brentq
from scipy.stats import kendalltau

from trustjudge_ray.analysis.compare import IMPROVED, REGRESSED, Change, Comparison, compare_runs
from trustjudge_ray.analysis.inference import ratio_intervals
from trustjudge_ray.analysis.ranking import ratings
from trustjudge_ray.config import AnalysisConfig, CompareConfig, PlanConfig
from trustjudge_ray.judging import protocols

from . import Options
from ._nights import POSITION_BIAS, Night, scored
from ._planted import Answers, judged, planned


@dataclass(frozen=True, slots=True)
class Size:
    """How much is simulated."""

    models: int
    questions: int
    seeds: int
    other_seeds: int
    unplanted: int
    planted: int
    night_questions: int


SIZES: Final = {
    False: Size(50, 200, 8, 5, 500, 150, 80),
    True: Size(8, 25, 2, 1, 6, 4, 20),
}
"""By `--small`."""
CLAIMED: Final = "matching, both orders"
DESIGNS: Final = {
    CLAIMED: PlanConfig(design="matching", rounds=2),
    "matching, one order": PlanConfig(design="matching", rounds=4, orders="one"),
    "matching, a fifth of the pairs in both": PlanConfig(design="matching", rounds=4, orders="share", both_share=0.2),
    "blocks of ten, both orders": PlanConfig(design="blocks", block=10),
    "anchor in the middle, both orders": PlanConfig(design="anchor", anchor="middle"),
    "anchor at the top, both orders": PlanConfig(design="anchor", anchor="top"),
}
"""Designs of about as many judgments at 50 models."""
ANCHORS: Final = {"middle": 0.5, "top": 1.0}
"""Where among the models, by planted quality, an anchor is."""
NOISE: Final = {"moderate": (0.25, 0.2), "noisy": (0.4, 0.3)}
"""Standard deviations of an answer's quality around its model's, and of what a judgment perceives of an answer."""

NIGHT_MODELS: Final = 8
QUALITY: Final = np.linspace(0.35, 0.65, NIGHT_MODELS)
BY_QUESTION, BY_NIGHT, PERCEIVED = 0.2, 0.1, 0.15
"""Standard deviations of what a model makes of a question, of a night's answer, and of what a judgment perceives."""
ANALYSIS: Final = AnalysisConfig(tolerances=[0.0], k=[3])
WEAKENED: Final = 3


def run(options: Options) -> dict[str, Any]:
    """τ (mean, lowest, share of the round robin, agreement) of the claimed design; of others; of the nights."""
    size = SIZES[options.small]
    designs = {name: _ranked(options, size, name, "moderate") for name in DESIGNS}
    noisy = _ranked(options, size, CLAIMED, "noisy")
    return {**designs[CLAIMED], "designs": designs, "noisy": noisy, **_nights(options, size)}


def _ranked(options: Options, size: Size, name: str, noise: str) -> dict[str, float]:
    """τ over the seeds."""
    seeds = size.seeds if (name, noise) == (CLAIMED, "moderate") else size.other_seeds
    found = [_tau(size, DESIGNS[name], *NOISE[noise], seed) for seed in range(seeds)]
    taus, shares, agreed = ([row[i] for row in found] for i in range(3))
    figures = {"tau": fmean(taus), "tau_min": min(taus), "share": fmean(shares), "agreement": fmean(agreed)}
    options.say(
        f"ranking, {name}, noise {noise} {NOISE[noise]}: {figures['share']:.2%} of the round robin, single judgments "
        f"agree with the planted order in {figures['agreement']:.1%}; Kendall's tau {figures['tau']:.3f}, lowest of "
        f"{seeds} seeds {figures['tau_min']:.3f}"
    )
    return figures


def _tau(size: Size, design: PlanConfig, of_answer: float, perceived: float, seed: int) -> tuple[float, float, float]:
    """τ, the share of the round robin's judgments, and the agreement of single judgments with the planted order."""
    rng = np.random.default_rng(seed)
    true = rng.permutation(np.linspace(0, 1, size.models))
    answers = Answers(true[:, None] + of_answer * rng.standard_normal((size.models, size.questions)))
    asked = {"compare": protocols.load("compare")}
    settings = replace(design, seed=seed)
    if design.anchor is not None:
        place = round(ANCHORS[design.anchor] * (size.models - 1))
        settings = replace(settings, anchor=answers.models[int(np.argsort(true)[place])])
    tasks = planned(answers, asked, settings)
    found = judged(answers, tasks, asked, {"noise": perceived, "position_bias": POSITION_BIAS})
    rated, _ = ratings(found, {}, AnalysisConfig())
    rated = rated.filter(pl.col("rule") == "davidson", pl.col("category").is_null())
    quality = dict(zip(answers.models, true, strict=True))
    tau = kendalltau(rated["rating"].to_numpy(), [quality[model] for model in rated["model"]]).statistic
    said = {"a": 1.0, "b": 0.0, "tie": 0.5}
    agreed = [
        said[emitted] if quality[a] > quality[b] else 1 - said[emitted]
        for emitted, a, b in found.select("emitted", "model_a", "model_b").iter_rows()
    ]
    round_robin = size.questions * size.models * (size.models - 1)
    return float(tau), len(found) / round_robin, fmean(agreed)


# --- nights ----------------------------------------------------------------------------------


def _nights(options: Options, size: Size) -> dict[str, Any]:
    """How often what was planted is found, and what was not is called found."""
    asked = {name: protocols.load(name) for name in ("score-5", "compare")}
    rng = np.random.default_rng(0)
    first, second = (Answers(rng.random((NIGHT_MODELS, size.night_questions)), version=f"in night {n}") for n in (1, 2))
    nights = Night.of("night 1", first, asked), Night.of("night 2", second, asked)
    same = nights[0].as_the_judge(first) and nights[1].as_the_judge(second)
    unplanted = [_compared(nights, 0.0, seed) for seed in range(size.unplanted)]
    loss = fmean(_score(found).detectable or np.nan for found in unplanted)
    weaker = _weaker_by(loss)
    planted = [_compared(nights, weaker, size.unplanted + seed) for seed in range(size.planted)]
    rates = {
        "false_alarms": [_alarms(found.changes) for found in unplanted],
        "false_alarms_consistency": [_alarms(found.consistency) for found in unplanted],
        "false_alarms_beside": [_alarms([c for c in found.changes if _untouched(c)]) for found in planted],
        "power": [_score(found).verdict == REGRESSED for found in planted],
        "power_win_rate": [_win_rate(found).verdict == REGRESSED for found in planted],
    }
    fallen = fmean(_score(found).difference or 0.0 for found in planted)
    figures = {name: _share(options, name, hits) for name, hits in rates.items()}
    options.say(
        f"nights: planted a loss of {loss:.3f} points of 1 to 5, as much as these comparisons say they find four times "
        f"out of five; seen on average {fallen:.3f}. Simulated as the judge reads: {same}"
    )
    return {**figures, "effect": loss, "runs": size.unplanted, "planted_runs": size.planted, "as_the_judge": same}


def _weaker_by(points: float) -> float:
    """How much quality the model WEAKENED must lose so that its mean score falls by so many points. (The scale ends: an
    answer below it cannot fall.)"""
    rng = np.random.default_rng(1)
    seen = QUALITY[WEAKENED] + np.hypot(np.hypot(BY_QUESTION, BY_NIGHT), PERCEIVED) * rng.standard_normal(100_000)

    def fallen(loss: float) -> float:
        before, after = (np.exp(scored(part)) @ np.arange(1.0, 6.0) for part in (seen, seen - loss))
        return float((before - after).mean())

    return float(brentq(lambda loss: fallen(loss) - points, 0, 1))


def _compared(nights: tuple[Night, Night], loss: float, seed: int) -> Comparison:
    """Two nights; in the second the model WEAKENED has lost this much quality."""
    rng = np.random.default_rng([7, seed])
    questions = int(nights[0].question.max()) + 1
    lasting = QUALITY[:, None] + BY_QUESTION * rng.standard_normal((NIGHT_MODELS, questions))
    later = lasting.copy()
    later[WEAKENED] -= loss
    sides = [
        night.side(quality + BY_NIGHT * rng.standard_normal(quality.shape), PERCEIVED, rng)
        for night, quality in zip(nights, (lasting, later), strict=True)
    ]
    # Ranks are not looked at: two resamples instead of hundreds.
    return compare_runs(sides[0], sides[1], ANALYSIS, CompareConfig(bootstrap=2))


def _alarms(changes: list[Change]) -> bool:
    return any(change.verdict in (IMPROVED, REGRESSED) for change in changes)


def _untouched(change: Change) -> bool:
    """Scores of the models that lost nothing. (Their win rates rise when another falls.)"""
    return change.measure == "mean_score" and change.model not in (None, _WEAK)


_WEAK: Final = f"m{WEAKENED:03d}"


def _score(found: Comparison) -> Change:
    return next(c for c in found.changes if c.measure == "mean_score" and c.model == _WEAK)


def _win_rate(found: Comparison) -> Change:
    return next(c for c in found.changes if c.measure == "win_rate" and c.model == _WEAK)


def _share(options: Options, name: str, hits: list[bool]) -> float:
    """The share of runs, with an interval for a person."""
    counts = np.array(hits, dtype=np.float64)
    found = ratio_intervals(counts, np.ones_like(counts))
    options.say(
        f"nights, {name}: {counts.sum():.0f} of {len(hits)} ({found.value:.1%}, {found.low:.1%} … {found.high:.1%})"
    )
    return float(found.value)
