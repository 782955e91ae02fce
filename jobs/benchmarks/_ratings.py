"""Davidson's model with order effect and clustered intervals on 10 million comparisons of 100 models, beside evalica.

What is timed: `davidson` from `Games`, the arrays that every rating rule starts from: here one row for each of 10
million comparisons (every ordered pair of models on 1,011 questions), soft outcomes. It ends at ratings, intervals,
order effect and rank intervals: which models the games bound, the fit, and the covariance over questions. Making these
arrays from a table with names, as `evaluate` does, is timed apart.

evalica has neither ties of their own strength nor an order effect nor intervals: it fits Bradley and Terry's model, a
tie as half a win, to the same comparisons summed over questions (wins by ordered pair); ours of that model is timed on
the same sums.
"""

from typing import Any

import numpy as np
import polars as pl

from trustjudge_ray.analysis.bradley_terry import fit_bradley_terry
from trustjudge_ray.analysis.connectivity import structure
from trustjudge_ray.analysis.games import Games, games_of
from trustjudge_ray.analysis.standing import davidson
from trustjudge_ray.config import AnalysisConfig

from . import Options, seconds

MODELS, QUESTIONS = 100, 1011
SMALL_MODELS, SMALL_QUESTIONS = 10, 12
ORDER_EFFECT, LOG_NU, SPREAD = 0.3, -1.0, 0.5
REPEATS = 5


def rated(options: Options) -> dict[str, Any]:
    """`davidson_seconds` is the median of all repetitions."""
    games = _games(*((SMALL_MODELS, SMALL_QUESTIONS) if options.small else (MODELS, QUESTIONS)))
    settings = AnalysisConfig()

    def ours() -> None:
        davidson(games, structure(games, settings.confidence), settings)

    took = sorted(seconds(ours) for _ in range(1 if options.small else REPEATS))
    median = took[len(took) // 2]
    options.say(
        f"Davidson ratings with order effect and clustered intervals, {len(games.question):,} comparisons of "
        f"{len(games.models)} models on {games.questions:,} questions: {median:.2f} s "
        f"(of {', '.join(f'{t:.2f}' for t in took)})"
    )
    reading = _reading(games)
    options.say(f"making its arrays from a table of as many rows with names: {reading:.2f} s")
    return {"davidson_seconds": median, "davidson_reading_seconds": reading} | _beside_evalica(options, games)


def _beside_evalica(options: Options, games: Games) -> dict[str, Any]:
    """Bradley and Terry's model on the same sums: seconds of both, and how far their log-worths are apart."""
    import evalica

    wins = games.points()
    first, second = np.nonzero(wins)
    none = np.zeros(len(first))
    sums = Games(
        games.models, 1, none.astype(np.int64), first, second, np.stack([wins[first, second], none, none], axis=1)
    )
    group = np.zeros(len(games.models), dtype=np.int64)
    names = np.array(games.models)
    xs, ys, weights = names[first].tolist(), names[second].tolist(), wins[first, second].tolist()
    winners = [evalica.Winner.X] * len(first)
    theirs = seconds(lambda: evalica.bradley_terry(xs, ys, winners, weights=weights))
    ours = seconds(lambda: fit_bradley_terry(sums, group))
    exact = evalica.bradley_terry(xs, ys, winners, weights=weights, tolerance=1e-12, limit=10_000)
    other = np.log([exact.scores[name] for name in games.models])
    apart = float(np.abs(fit_bradley_terry(sums, group).theta - (other - other.mean())).max())
    options.say(
        f"Bradley-Terry without intervals on the same comparisons summed to {len(first):,} rows: evalica {theirs:.3f} "
        f"s, ours {ours:.3f} s; log-worths at most {apart:.1e} apart"
    )
    return {"evalica_seconds": theirs, "bradley_terry_seconds": ours, "evalica_apart": apart}


def _games(models: int, questions: int) -> Games:
    """Every ordered pair of models on every question, by Davidson's model, with worths that vary by question."""
    rng = np.random.default_rng(4)
    first, second = np.nonzero(~np.eye(models, dtype=bool))
    outcome = np.empty((questions, len(first), 3))
    for question in range(questions):
        worth = np.linspace(1.5, -1.5, models) + rng.normal(0, SPREAD, models)
        d = worth[first] - worth[second] + ORDER_EFFECT
        weight = np.exp(np.stack([d / 2, -d / 2, np.full_like(d, LOG_NU)], axis=1))
        outcome[question] = weight / weight.sum(axis=1, keepdims=True)
    return Games(
        tuple(f"model-{m:03d}" for m in range(models)),
        questions,
        np.repeat(np.arange(questions), len(first)),
        np.tile(first, questions),
        np.tile(second, questions),
        outcome.reshape(-1, 3),
    )


def _reading(games: Games) -> float:
    """Seconds that it takes to make them from rows with names: question_id, first, second and the outcomes."""
    models = pl.Series(games.models)
    questions = pl.Series([f"q{q:05d}" for q in range(games.questions)])
    outcomes = {f"y_{name}": games.outcome[:, i] for i, name in enumerate(("first", "second", "tie"))}
    table = pl.DataFrame(
        {
            "question_id": questions.gather(games.question),
            "first": models.gather(games.first),
            "second": models.gather(games.second),
        }
        | outcomes
    )
    return seconds(lambda: games_of(table))
