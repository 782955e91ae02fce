"""verl: `custom_reward_function.path` names this file and `custom_reward_function.name` one of its two functions.

`compute_score` is called with one sample at a time and is asynchronous: calls that are under way together are judged
in one batch. `compute_scores` takes a whole batch (reward manager `batch`), so that groups are seen. verl gives neither
the prompt: it must be in extra_info, where `trustjudge export … verl` puts it. Arguments beyond verl's own come
from `custom_reward_function.reward_kwargs`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from trustjudge_ray.training.adapters import RewardSource, missing_of, plain_messages, plain_reference, source, value_or
from trustjudge_ray.training.rewards import RewardError, RewardRequest


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
    """The reward of one sample as verl logs it: `score`, `judged` (0 where `score` is `missing`) and `calls`.

    Args:
        ground_truth: the reference answer; None or blank for none.
        extra_info: holds the prompt under `prompt_key`: a text, or messages.
        config: a configuration's path or a service's address; None: what TRUSTJUDGE_REWARD names.
        missing: the score where there is no reward; None: `rewards.missing` of the configuration.

    Raises:
        RewardError: there is no prompt, or the ground truth is no text.
        MissingRewardError: there is no reward, and nothing to put in its place.
    """
    given = source(config)
    (reward,) = await given.arewards([_request(solution_str, ground_truth, extra_info, prompt_key)])
    score = value_or(reward, missing_of(given) if missing is None else missing, "verl")
    return {"score": score, "judged": float(reward.value is not None), "calls": float(reward.calls)}


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
) -> list[float]:
    """The rewards of a batch, of which samples with equal prompts are a group; otherwise as `compute_score`."""
    given = source(config)
    samples = zip(solution_strs, ground_truths, extra_infos, strict=True)
    rewards = given.rewards([_request(text, truth, extra, prompt_key) for text, truth, extra in samples])
    instead = missing_of(given) if missing is None else missing
    return [value_or(reward, instead, "verl") for reward in rewards]


def _request(solution: str, ground_truth: Any, extra_info: Mapping[str, Any] | None, prompt_key: str) -> RewardRequest:
    extra = dict(extra_info or {})
    prompt = extra.get(prompt_key)
    if prompt is None or len(prompt) == 0:
        raise RewardError(
            f"verl: extra_info has no '{prompt_key}', got {sorted(extra)}; verl does not give a reward function the "
            f"prompt, so put it there (a text or messages), or name its key with reward_kwargs.prompt_key"
        )
    return RewardRequest(plain_messages(prompt), solution, plain_reference(ground_truth))
