"""verl: `custom_reward_function.path` names this file and `custom_reward_function.name` one of its three functions.

`compute_score` is called with one sample at a time and is asynchronous: calls that are under way together are judged
in one batch. `compute_score_sync` is the same for reward managers that do not await it. `compute_scores` takes a whole
batch (reward manager `batch`), so that groups are seen. verl gives none of them the prompt: it must be in extra_info,
where `trustjudge export … verl` puts it. Arguments beyond verl's own come from `custom_reward_function.reward_kwargs`.
"""

import asyncio
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from trustjudge_ray.config_values import ConfigError
from trustjudge_ray.training.adapters import (
    RewardSource,
    gathered,
    missing_of,
    plain_messages,
    plain_reference,
    source,
    value_or,
)
from trustjudge_ray.training.reward_hygiene import DETAILS
from trustjudge_ray.training.rewards import Reward, RewardError, RewardRequest


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    config: str | RewardSource | None = None,
    prompt_key: str = "prompt",
    missing: float | None = None,
    **ignored: Any,
) -> dict[str, float]:
    """The reward of one sample as verl logs it: `score`, `judged` (0 where `score` is `missing`), `calls`, `cut` (1
    where a text was cut to the judge's context), and of the reward's details `label_mass`, `entropy`, `p_tie`, `agree`
    and `order_effect`, NaN where there is none: verl wants the same names of every sample.

    Args:
        ground_truth: the reference answer; None or blank for none.
        extra_info: holds the prompt under `prompt_key`: a text, or messages.
        config: a configuration's path or a service's address; None: what TRUSTJUDGE_REWARD names.
        missing: the score where there is no reward; None: `rewards.missing` of the configuration.

    Raises:
        RewardError: there is no prompt, or the ground truth is no text.
        MissingRewardError: there is no reward, and nothing to put in its place.
    """
    given = await asyncio.to_thread(source, config)
    (reward,) = await given.arewards([_request(solution_str, ground_truth, extra_info, prompt_key)])
    return _told(reward, _instead(given, missing))


def compute_score_sync(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    config: str | RewardSource | None = None,
    prompt_key: str = "prompt",
    missing: float | None = None,
    **ignored: Any,
) -> dict[str, float]:
    """The same without being awaited; calls of several threads are judged in one batch."""
    given = source(config)
    (reward,) = gathered(given, [_request(solution_str, ground_truth, extra_info, prompt_key)])
    return _told(reward, _instead(given, missing))


def compute_scores(
    data_sources: Sequence[str],
    solution_strs: Sequence[str],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Mapping[str, Any] | None],
    *,
    config: str | RewardSource | None = None,
    prompt_key: str = "prompt",
    missing: float | None = None,
    **ignored: Any,
) -> list[dict[str, float]]:
    """The rewards of a batch, of which samples with equal prompts are a group; otherwise as `compute_score`: verl's
    manager `batch` logs what is in the dictionaries in every release that has it (0.4 and later)."""
    given = source(config)
    samples = zip(solution_strs, ground_truths, extra_infos, strict=True)
    rewards = given.rewards([_request(text, truth, extra, prompt_key) for text, truth, extra in samples])
    return [_told(reward, _instead(given, missing)) for reward in rewards]


def _instead(given: RewardSource, missing: float | None) -> float | None:
    """What a sample without a reward gets.

    Raises:
        ConfigError: it is no number.
    """
    if missing is None:
        return missing_of(given)
    if not isinstance(missing, int | float) or not math.isfinite(missing):
        raise ConfigError(f"reward_kwargs.missing: got {missing!r}; a number, or nothing")
    return float(missing)


def _told(reward: Reward, missing: float | None) -> dict[str, float]:
    told = {"score": value_or(reward, missing, "verl"), "judged": float(reward.value is not None)}
    details = {name: float(reward.details.get(name, math.nan)) for name in DETAILS}
    return told | {"calls": float(reward.calls), "cut": reward.details.get("cut", 0.0)} | details


def _request(solution: str, ground_truth: Any, extra_info: Mapping[str, Any] | None, prompt_key: str) -> RewardRequest:
    extra = dict(extra_info or {})
    prompt = extra.get(prompt_key)
    if prompt is None or isinstance(prompt, numbers.Number) or len(prompt) == 0:
        raise RewardError(
            f"verl: extra_info has no '{prompt_key}', got {sorted(extra)}; verl does not give a reward function the "
            f"prompt, so put it there (a text or messages), or name its key with reward_kwargs.prompt_key"
        )
    return RewardRequest(plain_messages(prompt), solution, plain_reference(ground_truth))
