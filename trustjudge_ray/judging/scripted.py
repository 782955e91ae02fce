"""A judge whose mind is known: for tests, and to see whether the pipeline finds what was planted.

Not a model. Its name in every table starts with `scripted`.
"""

import math
import os
import signal
import time
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import pyarrow as pa

from trustjudge_ray.config import ConfigError
from trustjudge_ray.identity import seed_of
from trustjudge_ray.judging.base import JudgeGone, Reading
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
        intransitivity: the probability that three responses of a question are compared round in a circle, 0 to 0.25:
            what METRICS `non_transitivity_strict_cycle` at k = 3 estimates, for any number of responses. Four times
            that share of the questions, drawn by their ids, are compared by places on a circle instead of by
            quality: every response of such a question has a place drawn by its id, and wins over those on the half
            circle after it. Three random places lie on no common half circle with probability 1/4 (J. G. Wendel, Math.
            Scand. 11, 1962), and then each wins once. Quality alone gives no cycle, noise does where
            it is not small against differences of quality.
        rationale: how many words, each a token, the judge writes before its verdict, cut at the protocol's budget if
            it has one. Each has the probability of the most probable label, so that the perplexity of an output is
            the inverse of that: the surer judgment has the lower one.
        answering: the share of questions that it answers right, with the first line of the reference; without the
            passage that a question is about it answers none right.
        verifying: the share of answers about which it is right when it verifies them; an answer is right if it is a
            line of the reference. Drawn for each answer, the same whatever it is asked. Shown neither the passage nor
            the reference it is right about half of them.
        acceptance: the weight with which it accepts whatever it reads when it verifies, 0 to 1.
        seconds_per_batch: how long a batch takes.
        poison: a text; a batch in which an answer or a question contains it ends the engine.
        death: how it ends: `kill` (its process is killed, without a word), `gone` (it says that it is gone), or `start`
            (its process is killed whenever it loads, whatever it would be asked).
    """

    quality: dict[str, float] = field(default_factory=dict)
    position_bias: float = 0.0
    noise: float = 0.0
    sharpness: float = 8.0
    tie: float = -1.0
    failure_rate: float = 0.0
    intransitivity: float = 0.0
    rationale: int = 0
    answering: float = 1.0
    verifying: float = 1.0
    acceptance: float = 0.0
    seconds_per_batch: float = 0.0
    poison: str | None = None
    death: str = "kill"


_DEATHS = ("kill", "gone", "start")
_TEXTS = ("poison", "death")
_SHARES = {"position_bias": 1.0, "failure_rate": 1.0, "intransitivity": 0.25}
_SHARES |= {"answering": 1.0, "verifying": 1.0, "acceptance": 1.0}
"""Fields that are shares, and the greatest each can be."""
_LATER = ("intransitivity", "rationale", "answering", "verifying", "acceptance")
"""Fields that are left out of the identity where nothing is planted: judgments of before they existed stay valid."""
_SURE = 0.95
"""The probability of the verdict that it comes to when it verifies an answer."""
_WORDS = ("clear", "complete", "correct", "brief", "vague", "wrong", "long", "kind")


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
        if name in _TEXTS:
            continue
        for number in value.values() if name == "quality" and isinstance(value, dict) else [value]:
            if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
                raise ConfigError(f"judge.scripted.{name}: got {value!r}; numbers")
    if planted.death not in _DEATHS or not isinstance(planted.poison, str | None) or planted.poison == "":
        raise ConfigError(f"judge.scripted: poison is a text, and death one of {list(_DEATHS)}")
    for name in ("noise", "seconds_per_batch"):
        if getattr(planted, name) < 0:
            raise ConfigError(f"judge.scripted.{name}: got {getattr(planted, name)!r}; 0 or more")
    for name, most in _SHARES.items():
        if not 0 <= getattr(planted, name) <= most:
            raise ConfigError(f"judge.scripted.{name}: got {getattr(planted, name)!r}; a share from 0 to {most:g}")
    if not isinstance(planted.rationale, int) or planted.rationale < 0:
        raise ConfigError(f"judge.scripted.rationale: got {planted.rationale!r}; a number of words, 0 for none")
    return planted


def identity(given: dict[str, Any]) -> dict[str, Any]:
    """What decides this judge's answers."""
    decides = asdict(script(given))
    for name in ("seconds_per_batch", *_TEXTS):
        del decides[name]
    unplanted = asdict(Script())
    for name in _LATER:
        if decides[name] == unplanted[name]:
            del decides[name]
    return {"engine": "scripted", "model": "scripted", "script": decides}


class ScriptedJudge:
    """Reads tasks as planted; the same task always gets the same reading."""

    def __init__(self, given: dict[str, Any], protocols: dict[str, Protocol]) -> None:
        self._script = script(given)
        self._protocols = protocols
        if self._script.death == "start":
            os.kill(os.getpid(), signal.SIGKILL)

    def judge(self, tasks: pa.Table) -> list[Reading]:
        """One reading for each TASK_TEXTS row, in order.

        Raises:
            JudgeGone: there is poison among them.
        """
        if self._script.poison and _contains(tasks, self._script.poison):
            if self._script.death == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise JudgeGone(f"a planted death on {len(tasks)} judgments")
        end = time.monotonic() + self._script.seconds_per_batch
        columns = ["task_id", "protocol", "question_id", "response_a", "model_a", "response_b", "model_b", "order"]
        if any(protocol.kind in ("verify", "answer") for protocol in self._protocols.values()):
            columns += ["reference", "replies_a", "sample"]
        readings = [self._read(task) for task in tasks.select(columns).to_pylist()]
        time.sleep(max(0.0, end - time.monotonic()))
        return readings

    def _read(self, task: dict[str, Any]) -> Reading:
        rng = np.random.default_rng(seed_of("scripted", task["task_id"]))
        if rng.random() < self._script.failure_rate:
            return Reading(status="engine_error", detail="a planted failure")
        protocol = self._protocols[task["protocol"]]
        if protocol.kind == "answer":
            return self._answer(task, protocol)
        if protocol.kind == "verify":
            return Reading(label_logprobs=self._verify(task, protocol), prompt_tokens=0)
        if protocol.kind == "score":
            seen = self._quality(task["model_a"]) + self._script.noise * rng.standard_normal()
            return self._reading(task, self._score(seen, len(protocol.label_texts)))
        a, b = (q + self._script.noise * rng.standard_normal() for q in self._qualities(task))
        return self._reading(task, self._compare(b, a) if task["order"] == "BA" else self._compare(a, b))

    def _answer(self, task: dict[str, Any], protocol: Protocol) -> Reading:
        ids = (task["question_id"], str(task["sample"]))
        knows = "context" in protocol.slots and _share("answering", *ids) < self._script.answering
        text = (_lines(task["reference"]) or [""])[0] if knows else f"{_WORDS[seed_of(*ids) % len(_WORDS)]} thing"
        words = len(text.split())
        return Reading(output=text, output_tokens=words, cumulative_logprob=0.0, rationale_cut=False, prompt_tokens=0)

    def _verify(self, task: dict[str, Any], protocol: Protocol) -> list[float]:
        """Accept, reject."""
        right = _plain(" ".join(task["replies_a"])) in map(_plain, _lines(task["reference"]))
        sees = {"context", "reference"}.intersection(protocol.slots)
        skill = self._script.verifying if sees else 0.5
        seen = right if _share("verifying", task["question_id"], task["response_a"]) < skill else not right
        accepts = (1 - self._script.acceptance) * (_SURE if seen else 1 - _SURE) + self._script.acceptance
        return [math.log(p) if p > 0 else -math.inf for p in (accepts, 1 - accepts)]

    def _reading(self, task: dict[str, Any], logprobs: list[float]) -> Reading:
        wanted = self._script.rationale
        if not wanted:
            return Reading(label_logprobs=logprobs, prompt_tokens=0)
        budget = self._protocols[task["protocol"]].rationale
        words = min(wanted, budget.max_tokens) if budget else wanted
        rng = np.random.default_rng(seed_of("rationale", task["task_id"]))
        return Reading(
            label_logprobs=logprobs,
            rationale=" ".join(_WORDS[i] for i in rng.integers(len(_WORDS), size=words)),
            rationale_logprob=words * max(logprobs),
            rationale_tokens=words,
            rationale_cut=words < wanted,
            prompt_tokens=0,
        )

    def _qualities(self, task: dict[str, Any]) -> tuple[float, float]:
        """Of both responses of a comparison; 1 and 0 by their places on the circle in a question that has one."""
        question = task["question_id"]
        if _share("circle", question) >= 4 * self._script.intransitivity:
            return self._quality(task["model_a"]), self._quality(task["model_b"])
        a, b = (_share("place", question, task[side]) for side in ("response_a", "response_b"))
        return (1.0, 0.0) if (b - a) % 1 < 0.5 else (0.0, 1.0)

    def _quality(self, model: str) -> float:
        return self._script.quality.get(model, _share("quality", model))

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


def _contains(tasks: pa.Table, text: str) -> bool:
    """Whether a question or an answer of these tasks contains a text."""
    for task in tasks.select(["messages", "replies_a", "replies_b"]).to_pylist():
        asked = [message["content"] or "" for message in task["messages"]]
        if any(text in shown for shown in [*asked, *task["replies_a"], *(task["replies_b"] or [])]):
            return True
    return False


def _lines(reference: str | None) -> list[str]:
    return [line for line in (reference or "").splitlines() if line.strip()]


def _plain(text: str) -> str:
    return " ".join(text.casefold().strip(" .").split())


def _share(*names: str) -> float:
    """A number from 0 to 1 that looks random and is the same for the same names."""
    return seed_of(*names) / 2**63
