"""Answers of known quality, and what the scripted judge says about them: the planner and the judge of a run, without
Ray.

Every answer has a quality of its own, so the judge reads tasks about a "model" for each answer (`name@question`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trustjudge_ray.analysis.readouts import columns
from trustjudge_ray.config import PlanConfig
from trustjudge_ray.judging import plan
from trustjudge_ray.judging.base import judgments
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.judging.scripted import ScriptedJudge
from trustjudge_ray.schema import PLACED_RESPONSES, RESPONSES, from_rows

Floats = NDArray[np.float64]
JUDGE = "scripted"


@dataclass(frozen=True, slots=True)
class Answers:
    """An answer of every model to every question.

    Attributes:
        quality: (models, questions); 0 to 1 is the scale of scores.
        version: what tells these texts from others of the same models.
    """

    quality: Floats
    version: str = ""

    @property
    def models(self) -> list[str]:
        """Names in the order of `quality`, which is that of their ids."""
        return [f"m{m:03d}" for m in range(len(self.quality))]

    def corpus(self) -> pa.Table:
        """PLACED_RESPONSES."""
        rows = [
            {
                "question_id": f"q{q:04d}",
                "messages": [{"role": "user", "content": f"question {q}"}],
                "response_id": model,
                "model": model,
                "replies": [f"{model} on {q} {self.version}"],
                "source": "planted",
                "line": 1,
            }
            for q in range(self.quality.shape[1])
            for model in self.models
        ]
        return from_rows(rows, PLACED_RESPONSES)

    def responses(self) -> pl.DataFrame:
        """RESPONSES."""
        return pl.DataFrame(pl.from_arrow(self.corpus())).select(list(columns(RESPONSES)))


def planned(answers: Answers, protocols: dict[str, Protocol], settings: PlanConfig) -> pa.Table:
    """TASKS for all protocols."""
    specs = [plan.Spec(JUDGE, protocol, name) for name, protocol in protocols.items()]
    return plan.plan(answers.corpus(), specs, settings, [])


def judged(answers: Answers, tasks: pa.Table, protocols: dict[str, Protocol], script: dict[str, Any]) -> pl.DataFrame:
    """JUDGMENTS of the scripted judge on these tasks."""
    quality = {
        f"{model}@q{q:04d}": float(answers.quality[m, q])
        for m, model in enumerate(answers.models)
        for q in range(answers.quality.shape[1])
    }
    shown = tasks
    for side in ("model_a", "model_b"):
        named = pc.binary_join_element_wise(tasks[side], tasks["question_id"], "@")
        shown = shown.set_column(tasks.schema.get_field_index(side), tasks.schema.field(side), named)
    readings = ScriptedJudge(script | {"quality": quality}, protocols).judge(shown)
    return pl.DataFrame(pl.from_arrow(judgments(tasks, readings, protocols)))
