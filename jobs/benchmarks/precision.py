"""What a judge's precision does to what is read: against float32 throughout, over prompts of the demo corpus.

Three judges, one after the other: float32; a bfloat16 body with a float32 head (the default); bfloat16 throughout.
Compared are the log-probabilities of all labels, and the expected scores of the score protocols on their own scales.
The rest of the error with a float32 head is the body's; logits of bfloat16 are steps apart, so labels jump.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trustjudge_ray.judging.protocols import load

from . import Options
from ._judging import demo_tasks, engine_process, judge_config, refuse_failures

PROTOCOLS = ("score-5", "score-100", "compare")
PRECISIONS = {
    "float32": ("float32", "float32"),
    "float32_head": ("bfloat16", "float32"),
    "bfloat16": ("bfloat16", "bfloat16"),
}
"""Body and head."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Of one precision from float32 throughout: of label log-probabilities in nats, of expected scores in points."""

    mean: float
    greatest: float
    scores: dict[str, float]


def run(options: Options) -> dict[str, Any]:
    """Compare with the embedded judge."""
    found = measure("embedded", 3 if options.small else 60)
    for line in described(found):
        options.say(line)
    return {name: {"mean": d.mean, "max": d.greatest, "expected_score": d.scores} for name, d in found.items()}


def described(found: dict[str, Difference]) -> list[str]:
    """A line for a person for each precision."""
    lines = []
    for name, d in found.items():
        scores = ", ".join(f"{protocol} {points:.4f}" for protocol, points in d.scores.items())
        body, head = PRECISIONS[name]
        lines.append(
            f"body {body}, head {head}: label log-probabilities differ from float32's by {d.mean:.4f} nat in the mean, "
            f"{d.greatest:.4f} at most; expected scores in the mean by (points) {scores}"
        )
    return lines


def measure(model: str, prompts: int) -> dict[str, Difference]:
    """How far each precision is from float32, over so many prompts of each protocol; each judge in its own process."""
    read = {name: _in_process(model, name, prompts) for name in PRECISIONS}
    exact = read.pop("float32")
    return {name: _difference(labels, exact) for name, labels in read.items()}


def _in_process(model: str, precision: str, prompts: int) -> dict[str, NDArray[np.float64]]:
    with engine_process() as process:
        return process.submit(_read, model, precision, prompts).result()


def _read(model: str, precision: str, prompts: int) -> dict[str, NDArray[np.float64]]:
    """(prompts, labels) natural log-probabilities by protocol."""
    from trustjudge_ray.judging.vllm_engine import VllmJudge

    dtype, head_dtype = PRECISIONS[precision]
    protocols = {name: load(name) for name in PROTOCOLS}
    judge = VllmJudge(judge_config(model, dtype=dtype, head_dtype=head_dtype), protocols)
    return {
        name: np.array([r.label_logprobs for r in refuse_failures(judge.judge(_spread(name, prompts)))])
        for name in PROTOCOLS
    }


def _spread(name: str, prompts: int) -> pa.Table:
    """So many tasks of a protocol, spread over the whole demo corpus."""
    tasks = demo_tasks(24, [load(name)])
    return tasks.take(np.linspace(0, len(tasks) - 1, min(prompts, len(tasks))).astype(int))


def _difference(read: dict[str, NDArray[np.float64]], exact: dict[str, NDArray[np.float64]]) -> Difference:
    apart = np.concatenate([np.abs(read[name] - exact[name]).ravel() for name in PROTOCOLS])
    scores = {
        name: float(np.abs(_expected(name, read[name]) - _expected(name, exact[name])).mean())
        for name in PROTOCOLS
        if load(name).kind == "score"
    }
    return Difference(float(apart.mean()), float(apart.max()), scores)


def _expected(name: str, logprobs: NDArray[np.float64]) -> NDArray[np.float64]:
    """The expected score of each prompt, renormalised over the labels."""
    p = np.exp(logprobs)
    return p @ np.array(load(name).values) / p.sum(axis=1)
