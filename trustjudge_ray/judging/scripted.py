"""A judge whose mind is known: for tests, and to see whether the pipeline finds what was planted.

Not a model. Its name in every table starts with `scripted`.
"""

import math
import time
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import pyarrow as pa

from trustjudge_ray.config import ConfigError
from trustjudge_ray.identity import seed_of
from trustjudge_ray.judging.base import Reading
from trustjudge_ray.judging.protocols import Protocol


@dataclass(frozen=True)
class Script:
    """What is planted.

    Attributes:
        quality: of each model, 0 to 1; a model that is not listed gets one from a hash of its name.
        position_bias: the weight with which the judge says "first" whatever it reads, 0 to 1: the expected
            difference P(first) − P(second) over both orders.
        noise: standard deviation of what it perceives, in units of quality, drawn for each task.
        sharpness: how much a difference of quality moves the log-odds of a comparison.
        tie: log-weight of a tie at equal quality.
        failure_rate: share of tasks that fail with `engine_error`.
        seconds_per_batch: how long a batch takes.
    """

    quality: dict[str, float] = field(default_factory=dict)
    position_bias: float = 0.0
    noise: float = 0.0
    sharpness: float = 8.0
    tie: float = -1.0
    failure_rate: float = 0.0
    seconds_per_batch: float = 0.0


def script(given: dict[str, Any]) -> Script:
    """The script of a configuration.

    Raises:
        ConfigError: an unknown key, or a value outside its range.
    """
    known = [f.name for f in fields(Script)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ConfigError(f"judge.scripted: unknown key '{unknown[0]}'; it has {known}")
    planted = Script(**given)
    for name, value in asdict(planted).items():
        for number in value.values() if name == "quality" and isinstance(value, dict) else [value]:
            if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
                raise ConfigError(f"judge.scripted.{name}: got {value!r}; numbers")
    for name in ("noise", "seconds_per_batch"):
        if getattr(planted, name) < 0:
            raise ConfigError(f"judge.scripted.{name}: got {getattr(planted, name)!r}; 0 or more")
    for name in ("position_bias", "failure_rate"):
        if not 0 <= getattr(planted, name) <= 1:
            raise ConfigError(f"judge.scripted.{name}: got {getattr(planted, name)!r}; a share from 0 to 1")
    return planted


def identity(given: dict[str, Any]) -> dict[str, Any]:
    """What decides this judge's answers."""
    decides = asdict(script(given))
    decides.pop("seconds_per_batch")
    return {"engine": "scripted", "model": "scripted", "script": decides}


class ScriptedJudge:
    """Reads tasks as planted; the same task always gets the same reading."""

    def __init__(self, given: dict[str, Any], protocols: dict[str, Protocol]) -> None:
        self._script = script(given)
        self._protocols = protocols

    def judge(self, tasks: pa.Table) -> list[Reading]:
        """One reading for each TASK_TEXTS row, in order."""
        if self._script.seconds_per_batch:
            time.sleep(self._script.seconds_per_batch)
        columns = ("task_id", "protocol", "model_a", "model_b", "order")
        return [self._read(task) for task in tasks.select(columns).to_pylist()]

    def _read(self, task: dict[str, Any]) -> Reading:
        rng = np.random.default_rng(seed_of("scripted", task["task_id"]))
        if rng.random() < self._script.failure_rate:
            return Reading(status="engine_error", detail="a planted failure")
        protocol = self._protocols[task["protocol"]]
        seen = [self._quality(task["model_a"]) + self._script.noise * rng.standard_normal()]
        if protocol.kind == "score":
            return Reading(label_logprobs=self._score(seen[0], len(protocol.label_texts)), prompt_tokens=0)
        seen.append(self._quality(task["model_b"]) + self._script.noise * rng.standard_normal())
        if task["order"] == "BA":
            seen.reverse()
        return Reading(label_logprobs=self._compare(*seen), prompt_tokens=0)

    def _quality(self, model: str) -> float:
        return self._script.quality.get(model, seed_of("quality", model) / 2**63)

    def _score(self, seen: float, labels: int) -> list[float]:
        """A discretised normal around the perceived quality, a tenth of the scale wide."""
        place = np.linspace(0.0, 1.0, labels)
        logits = -((place - min(max(seen, 0.0), 1.0)) ** 2) / (2 * 0.1**2)
        return list(logits - np.logaddexp.reduce(logits))

    def _compare(self, first: float, second: float) -> list[float]:
        """First, second, tie: a softmax of half the perceived difference, mixed with "first"."""
        half = self._script.sharpness * (first - second) / 2
        logits = np.array([half, -half, self._script.tie])
        fair = np.exp(logits - np.logaddexp.reduce(logits))
        mixed = (1 - self._script.position_bias) * fair + self._script.position_bias * np.array([1.0, 0.0, 0.0])
        return [math.log(p) if p > 0 else -math.inf for p in mixed]
