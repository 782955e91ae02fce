"""How often 95 % intervals hold the truth: 80 questions of 4 to 20 answers; worlds with ratios near 2, 15 and 40 %.

Every question has its own rate of trouble, so that two cases of one question are correlated by about 0.3; what was
reached is printed. The estimand is Σ hits / Σ cases over endless questions.

- `cr`: pairs of answers with scores and a verdict each; the verdict departs from the scores at the question's rate.
  Signs are counted by the code that `evaluate` uses.
- `ntr3`, `ntr5`: verdicts of a hidden ordering, some of them replaced by chance at the question's rate; subsets are
  counted by the code that `evaluate` uses. What ratio and correlation a rate gives was found by trial.
- `win_rate`: games of one model against all others in both orders, each won at the question's rate (`hard`), or worth
  that rate in points (`soft`).
- `rating`: Davidson ratings of eight models, fitted to all ordered pairs; worths differ from question to question, and
  the truth is the fit to endless questions.

Beside each: an interval that takes cases as independent (Wilson's), and the bootstrap over questions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import ndtri

from trustjudge_ray.analysis.bradley_terry import fit_davidson
from trustjudge_ray.analysis.comparisons import Comparisons, RuleOutcomes
from trustjudge_ray.analysis.connectivity import structure
from trustjudge_ray.analysis.consistency import CONFLICTS, ResponseScores, conflict_cells
from trustjudge_ray.analysis.games import Games
from trustjudge_ray.analysis.inference import bootstrap_intervals, ratio_intervals, soft_ratio_intervals
from trustjudge_ray.analysis.layout import Layout
from trustjudge_ray.analysis.standing import CENTRE, ELO, davidson
from trustjudge_ray.analysis.transitivity import count_subsets
from trustjudge_ray.analysis.verdicts import Pairs
from trustjudge_ray.config import AnalysisConfig

from . import Options

Floats = NDArray[np.float64]
Counts = tuple[Floats, Floats]

RUNS: Final = {False: 2000, True: 40}
RATING_RUNS: Final = {False: 2000, True: 10}
"""Simulated runs, by `--small`."""
QUESTIONS, CORRELATION, CONFIDENCE = 80, 0.3, 0.95
BLOCK: Final = 250
"""Runs simulated at once."""
SHARES: Final = (0.02, 0.15, 0.4)
NOISE: Final = {
    3: ((0.026, 1.0), (0.205, 1.0), (0.634, 0.25)),
    5: ((0.0053, 11.0), (0.045, 9.0), (0.125, 9.0)),
}
"""By k and world: mean and concentration of the beta distribution of the share of verdicts that chance replaced."""
TIES_BY_CHANCE: Final = 0.55
MODELS: Final = 8
ORDER_EFFECT, LOG_NU, SPREAD = 0.3, -1.0, 0.5
ENDLESS: Final = 20_000


@dataclass(frozen=True, slots=True)
class World:
    """A name, (BLOCK, questions) hits and cases from a generator, and the true share where it is known."""

    name: str
    simulate: Callable[[np.random.Generator], Counts]
    truth: float | None = None


def run(options: Options) -> dict[str, Any]:
    """The share of intervals that hold the truth: that of the world farthest from 95 %, each world's, and over all."""
    figures: dict[str, Any] = {"runs": RUNS[options.small]}
    figures |= {name: {} for name in ("worlds", "pooled", "naive", "bootstrap")}
    worlds: dict[str, list[World]] = {
        "cr": [World(f"{share:.0%}", partial(_conflicts, share), share) for share in SHARES],
        "win_rate": [
            World(f"{share:.0%} {kind}", partial(_games, share, kind), share)
            for share in SHARES
            for kind in ("hard", "soft")
        ],
    }
    for k, noise in NOISE.items():
        worlds[f"ntr{k}"] = [
            World(f"{share:.0%}", partial(_faults, *beta, k)) for share, beta in zip(SHARES, noise, strict=True)
        ]
    for name, made in worlds.items():
        shares = [_covered(options, name, world) for world in made]
        figures["worlds"][name] = [share[0] for share in shares]
        ours, naive, drawn = (fmean(share[kind] for share in shares) for kind in range(3))
        figures["pooled"][name], figures["naive"][name], figures["bootstrap"][name] = ours, naive, drawn
        figures[name] = max((share[0] for share in shares), key=_error)
    ratings = [_rated(options, kind) for kind in ("hard", "soft")]
    figures["worlds"]["rating"], figures["pooled"]["rating"] = ratings, fmean(ratings)
    return figures | {"rating": max(ratings, key=_error)}


def _error(share: float) -> float:
    return abs(share - CONFIDENCE)


def _covered(options: Options, name: str, world: World) -> tuple[float, float, float]:
    """The shares of our, naive and bootstrap intervals that hold the truth; where it is not known, that of all
    simulated questions together."""
    rng = np.random.default_rng(1)
    blocks = [world.simulate(rng) for _ in range(-(-RUNS[options.small] // BLOCK))]
    hits, cases = (np.concatenate([block[part] for block in blocks]) for part in (0, 1))
    truth = world.truth or hits.sum() / cases.sum()
    hits, cases = hits[: RUNS[options.small]], cases[: RUNS[options.small]]
    ours = soft_ratio_intervals if name == "win_rate" else ratio_intervals
    found = [ours(hits, cases, CONFIDENCE), bootstrap_intervals(hits, cases, rng, CONFIDENCE, 1000)]
    limits = [(interval.low, interval.high) for interval in found]
    limits.insert(1, _wilson(hits.sum(axis=1), cases.sum(axis=1)))
    held = [float(((low <= truth) & (truth <= high)).mean()) for low, high in limits]
    missed = float((found[0].low > truth).mean()), float((found[0].high < truth).mean())
    options.say(
        f"{name}, {world.name}: truth {truth:.3f}, correlation within questions {_correlation(hits, cases):.2f}: "
        f"intervals hold it in {held[0]:.1%} (too high {missed[0]:.1%}, too low {missed[1]:.1%}), independent cases "
        f"{held[1]:.1%}, bootstrap {held[2]:.1%}"
    )
    return held[0], held[1], held[2]


def _wilson(hits: Floats, cases: Floats) -> tuple[Floats, Floats]:
    z2, p = ndtri((1 + CONFIDENCE) / 2) ** 2, hits / cases
    centre, half = p + z2 / (2 * cases), np.sqrt(z2 * (p * (1 - p) / cases + z2 / (4 * cases**2)))
    return (centre - half) / (1 + z2 / cases), (centre + half) / (1 + z2 / cases)


def _correlation(hits: Floats, cases: Floats) -> float:
    """Between two different cases of one question; of soft points a lower bound."""
    pairs = (cases * (cases - 1)).sum()
    share = (hits * (cases - 1)).sum() / pairs
    return float(((hits * (hits - 1)).sum() / pairs - share**2) / (share * (1 - share)))


def _rates(share: float, rng: np.random.Generator) -> Floats:
    """(BLOCK, questions) rates of this mean that correlate cases by CORRELATION."""
    scale = 1 / CORRELATION - 1
    return rng.beta(share * scale, (1 - share) * scale, (BLOCK, QUESTIONS))


def _answers(rng: np.random.Generator) -> NDArray[np.int64]:
    """(BLOCK, questions) from 4 to 20."""
    return rng.integers(4, 21, (BLOCK, QUESTIONS))


def _conflicts(share: float, rng: np.random.Generator) -> Counts:
    sizes, rate = _answers(rng).ravel(), _rates(share, rng).ravel()
    starts = np.cumsum(sizes) - sizes
    scores = rng.random(sizes.sum())
    parts = []
    for size in np.unique(sizes):
        questions = np.flatnonzero(sizes == size)
        i, j = np.triu_indices(size, 1)
        parts.append([np.repeat(questions, len(i)), *((starts[questions, None] + at).ravel() for at in (i, j))])
    question, first, second = (np.concatenate([part[x] for part in parts]) for x in range(3))
    truth = np.sign(scores[first] - scores[second]).astype(np.int8)
    other = np.where(rng.random(len(truth)) < 0.5, 0, -truth)
    outcome = np.where(rng.random(len(truth)) < rate[question], other, truth).astype(np.int8)
    known = np.ones(len(truth), dtype=bool)
    verdict = RuleOutcomes((0.0,), outcome[None], known, np.zeros(len(truth), dtype=np.int16))
    nothing = np.empty(0)
    pairs = Pairs(pl.DataFrame(), known, nothing, nothing.astype(np.int64), nothing, verdict.status, ("ok",))
    compared = Comparisons("judge", "compare", pairs, question, first, second, {"normalised": verdict})
    status = np.zeros(len(scores), dtype=np.int64)
    scored = ResponseScores("judge", "score", {"expected": scores}, {"expected": status}, ("ok",), (0.0,))
    layout = Layout(pl.DataFrame(), sizes, {None: np.arange(len(sizes))})
    cells = conflict_cells(layout, compared, scored, "expected", "normalised")
    hits = cells.counted(CONFLICTS["conflict_ratio"])
    return hits.reshape(BLOCK, QUESTIONS), cells.cases.reshape(BLOCK, QUESTIONS)


def _faults(mean: float, concentration: float, k: int, rng: np.random.Generator) -> Counts:
    sizes = _answers(rng).ravel()
    noise = rng.beta(mean * concentration, (1 - mean) * concentration, len(sizes))
    hits, cases = np.zeros(len(sizes)), np.zeros(len(sizes))
    for size in range(max(k, 4), 21):
        questions = np.flatnonzero(sizes == size)
        place = rng.random((len(questions), size)).argsort(axis=1)
        ordered = np.sign(place[:, None, :] - place[:, :, None]).astype(np.int8)
        sides = rng.choice(np.array([-1, 1], dtype=np.int8), ordered.shape)
        chance = np.where(rng.random(ordered.shape) < TIES_BY_CHANCE, 0, sides)
        relations = np.where(rng.random(ordered.shape) < noise[questions, None, None], chance, ordered)
        found = count_subsets(relations.astype(np.int8), [k], faults=("ratio",))[k]
        hits[questions], cases[questions] = found.faulty["ratio"], found.complete
    return hits.reshape(BLOCK, QUESTIONS), cases.reshape(BLOCK, QUESTIONS)


def _games(share: float, kind: str, rng: np.random.Generator) -> Counts:
    games, rate = 2 * (_answers(rng) - 1), _rates(share, rng)
    points = rng.binomial(games, rate).astype(np.float64) if kind == "hard" else games * rate
    return points, games.astype(np.float64)


def _rated(options: Options, kind: str) -> float:
    """The share of rating intervals, over models and runs, that hold the model's rating in endless questions."""
    rng, settings = np.random.default_rng(2), AnalysisConfig(confidence=CONFIDENCE)
    endless = _tournament(_probabilities(ENDLESS, rng).mean(axis=0, keepdims=True))
    truth = CENTRE + ELO * fit_davidson(endless, np.zeros(MODELS, dtype=np.int64)).theta
    held = []
    for _ in range(RATING_RUNS[options.small]):
        p = _probabilities(QUESTIONS, rng)
        if kind == "hard":
            drawn = (rng.random(p.shape[:2])[..., None] > p.cumsum(axis=2)[..., :2]).sum(axis=2)
            p = np.eye(3)[drawn]
        games = _tournament(p)
        found = davidson(games, structure(games, CONFIDENCE), settings)
        held.append((found.low <= truth) & (truth <= found.high))
    by_model = np.mean(held, axis=0)
    options.say(
        f"rating, {kind} outcomes, {len(held)} runs: intervals hold the truth in {np.mean(held):.1%} "
        f"(by model {by_model.min():.1%} to {by_model.max():.1%})"
    )
    return float(np.mean(held))


def _ordered_pairs() -> Iterator[NDArray[np.int64]]:
    yield from np.nonzero(~np.eye(MODELS, dtype=bool))


def _probabilities(questions: int, rng: np.random.Generator) -> Floats:
    """(questions, ordered pairs, 3) of first, second and tie."""
    first, second = _ordered_pairs()
    worth = np.linspace(-1, 1, MODELS) + rng.normal(0, SPREAD, (questions, MODELS))
    d = worth[:, first] - worth[:, second] + ORDER_EFFECT
    weight = np.exp(np.stack([d / 2, -d / 2, np.full_like(d, LOG_NU)], axis=2))
    return np.asarray(weight / weight.sum(axis=2, keepdims=True), dtype=np.float64)


def _tournament(outcomes: Floats) -> Games:
    first, second = _ordered_pairs()
    questions = len(outcomes)
    return Games(
        tuple(f"model {m}" for m in range(MODELS)),
        questions,
        np.repeat(np.arange(questions), len(first)),
        np.tile(first, questions),
        np.tile(second, questions),
        outcomes.reshape(-1, 3),
    )
