"""Nights of the same models, question by question, judged afresh: made by the hundred, for `compare_runs`.

The tasks are the planner's, and the template is what the scripted judge says. Its arithmetic is repeated here on whole
columns, because the judge reads one task at a time; `as_the_judge` checks that the two say the same.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis.pairing import Side
from trustjudge_ray.config import PlanConfig
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.judging.scripted import Script

from ._planted import Answers, Floats, judged, planned

Indices = NDArray[np.int64]
PLAN = PlanConfig(design="blocks", block=4)
POSITION_BIAS = 0.1
_WIDTH = 0.1


@dataclass(frozen=True, slots=True)
class Night:
    """A side of a comparison without its readings.

    Attributes:
        template: JUDGMENTS, scores first, with what the scripted judge says of `answers` without noise.
        question, first, second: (tasks,) numbers of the question, and of the models shown first and second; of a score
            both are the one model.
        scores: how many of the tasks are scores.
    """

    name: str
    template: pl.DataFrame
    responses: pl.DataFrame
    protocols: dict[str, Protocol]
    question: Indices
    first: Indices
    second: Indices
    scores: int

    @classmethod
    def of(cls, name: str, answers: Answers, protocols: dict[str, Protocol]) -> "Night":
        """Plan a night and ask the judge once."""
        found = judged(answers, planned(answers, protocols, PLAN), protocols, {"position_bias": POSITION_BIAS})
        found = found.sort(pl.col("kind") == "compare", maintain_order=True)
        a, b = (_numbers(found[side].fill_null(found["model_a"])) for side in ("model_a", "model_b"))
        turned = (found["order"] == "BA").fill_null(False).to_numpy()
        scores = int((found["kind"] == "score").sum())
        places = (_numbers(found["question_id"]), np.where(turned, b, a), np.where(turned, a, b))
        return cls(name, found, answers.responses(), protocols, *places, scores)

    def side(self, quality: Floats, noise: float, rng: np.random.Generator) -> Side:
        """The night with answers of this quality (models, questions), as the judge perceives them with this noise."""
        return Side(self.name, self.judgments(quality, noise, rng), self.responses, self.protocols)

    def judgments(self, quality: Floats, noise: float, rng: np.random.Generator) -> pl.DataFrame:
        """JUDGMENTS."""
        seen = [quality[m, self.question] + noise * rng.standard_normal(len(m)) for m in (self.first, self.second)]
        n = self.scores
        rated, compared = scored(seen[0][:n]), _compared(seen[0][n:], seen[1][n:])
        turned = (self.template["order"][n:] == "BA").to_numpy()
        compared[turned] = compared[turned][:, [1, 0, 2]]
        names = [np.array([str(label) for label in range(1, 6)]), np.array(["a", "b", "tie"])]
        emitted = [name[part.argmax(axis=1)] for name, part in zip(names, (rated, compared), strict=True)]
        likeliest = np.concatenate([part.max(axis=1) for part in (rated, compared)])
        return self.template.with_columns(
            pl.Series("label_logprobs", [*rated.tolist(), *compared.tolist()], dtype=pl.List(pl.Float64)),
            pl.Series("emitted", np.concatenate(emitted)),
            pl.Series("cumulative_logprob", likeliest),
        )

    def as_the_judge(self, answers: Answers) -> bool:
        """Whether the arithmetic here says of these answers what the judge said."""
        mine = self.judgments(answers.quality, 0.0, np.random.default_rng(0))
        logs = [table["label_logprobs"].explode().to_numpy() for table in (mine, self.template)]
        same = mine["emitted"].equals(self.template["emitted"])
        return same and bool(np.allclose(np.exp(logs[0]), np.exp(logs[1]), atol=1e-6))


def _numbers(names: pl.Series) -> Indices:
    return names.str.slice(1).cast(pl.Int64).to_numpy()


def scored(seen: Floats) -> Floats:
    """(N, 5) log-probabilities of the labels 1 to 5."""
    place = np.linspace(0.0, 1.0, 5)
    logits = -((place[None] - np.clip(seen, 0, 1)[:, None]) ** 2) / (2 * _WIDTH**2)
    return np.asarray(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True), dtype=np.float64)


def _compared(first: Floats, second: Floats) -> Floats:
    """(N, 3) log-probabilities of first, second, tie."""
    half = Script.sharpness * (first - second) / 2
    logits = np.stack([half, -half, np.full_like(half, Script.tie)], axis=1)
    fair = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
    return np.log((1 - POSITION_BIAS) * fair + POSITION_BIAS * np.array([1.0, 0.0, 0.0]))
