"""What a reward costs: judgments asked of the judge for each completion, by the mode of the reward."""

import json
import statistics
import time
from dataclasses import dataclass
from typing import Final

from trustjudge_ray.judging import protocols, scripted
from trustjudge_ray.rewards_config import RewardConfig
from trustjudge_ray.training.rewards import RewardRequest, TrustJudgeReward

from ._judging import demo_lines

MODES: Final = {
    "score": RewardConfig(mode="score"),
    "anchor": RewardConfig(mode="anchor"),
    "anchor, one order": RewardConfig(mode="anchor", both_orders=False),
    "group, all pairs": RewardConfig(mode="group"),
    "group, 3 opponents": RewardConfig(mode="group", opponents=3),
    "group, 1 opponent": RewardConfig(mode="group", opponents=1),
    "group, all pairs, one order": RewardConfig(mode="group", both_orders=False),
}
_PROTOCOLS: Final = {name: protocols.load(name) for name in ("score-5-conversation", "compare-conversation")}


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one mode: judgments per completion of a first batch, and of a second of which half of each group is new; and
    seconds a completion that planning, reading and rules take (the scripted judge has next to none of its own)."""

    calls: float
    half_new: float
    seconds: float


def costs(questions: int) -> dict[str, Cost]:
    """The cost of each mode, of groups of eight different completions of each of so many questions: four answers of the
    demo corpus, and the same begun by a word; another word makes those of the second batch."""
    groups = _answers(questions)
    return {mode: _cost(settings, groups) for mode, settings in MODES.items()}


def _answers(questions: int) -> dict[str, list[str]]:
    answers: dict[str, list[str]] = {}
    for line in demo_lines(questions):
        row = json.loads(line)
        answers.setdefault(row["question"], []).append(row["response"])
    return answers


def _cost(settings: RewardConfig, groups: dict[str, list[str]]) -> Cost:
    seconds = []
    for _ in range(5):
        rewards = TrustJudgeReward(settings, scripted.ScriptedJudge({}, _PROTOCOLS), _PROTOCOLS)
        first, second = (_batch(groups, word) for word in ("Therefore", "However"))
        began = time.perf_counter()
        calls = _calls(rewards, first)
        seconds.append((time.perf_counter() - began) / len(first))
    return Cost(calls, _calls(rewards, second), statistics.median(seconds))


def _batch(groups: dict[str, list[str]], word: str) -> list[RewardRequest]:
    return [
        RewardRequest(({"role": "user", "content": question},), text, "A reference.")
        for question, answers in groups.items()
        for text in [*answers[:4], *(f"{word}: {answer}" for answer in answers[:4])]
    ]


def _calls(rewards: TrustJudgeReward, batch: list[RewardRequest]) -> float:
    return sum(reward.calls for reward in rewards.rewards(batch)) / len(batch)
