"""Where a trainer's rewards come from: a judge in this process, or the reward service. No trainer is imported here.

Both are named by one text: the path of a configuration with `judge` and `rewards`, or the address of a service.
"""

import asyncio
import numbers
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from typing import Protocol as Interface

from trustjudge_ray import serving_config
from trustjudge_ray.config import judge_name
from trustjudge_ray.config_values import ConfigError
from trustjudge_ray.judging import base, engines, protocols
from trustjudge_ray.rewards_config import RewardConfig
from trustjudge_ray.serving_config import ServingConfig
from trustjudge_ray.training.adapters.client import TOKEN
from trustjudge_ray.training.adapters.client import RewardClient as RewardClient
from trustjudge_ray.training.adapters.client import RewardServiceError as RewardServiceError
from trustjudge_ray.training.reward_tasks import role_of
from trustjudge_ray.training.rewards import Reward, RewardError, RewardRequest, TrustJudgeReward, kinds_of

WHERE: Final = "TRUSTJUDGE_REWARD"
"""The environment variable that says where rewards come from, for trainers that take only a Python file."""


class MissingRewardError(RuntimeError):
    """A completion has no reward, and its trainer knows no missing one: says why, and what to do."""


class RewardSource(Interface):
    """Who gives rewards: `TrustJudgeReward`, or `RewardClient`."""

    def rewards(self, requests: Sequence[RewardRequest]) -> list[Reward]: ...

    async def arewards(self, requests: Sequence[RewardRequest]) -> list[Reward]: ...


_OPENED: dict[str, RewardSource] = {}
_OPENING = threading.Lock()


def source(where: str | RewardSource | None = None) -> RewardSource:
    """The source of rewards that `where` names; one for each name in a process, made when first asked for.

    Args:
        where: the path of a configuration, a service's address (http://…), a source, or None for what the environment
            variable TRUSTJUDGE_REWARD names.

    Raises:
        ConfigError: nothing is named, or the configuration cannot be used.
        base.JudgeError: the judge cannot be loaded.
    """
    where = os.environ.get(WHERE) if where is None else where
    if not where:
        raise ConfigError(f"{WHERE} is not set: the path of a configuration, or the address of a reward service")
    if not isinstance(where, str):
        return where
    with _OPENING:
        if where not in _OPENED:
            served = where.startswith(("http://", "https://"))
            _OPENED[where] = RewardClient(where, os.environ.get(TOKEN)) if served else from_config(where)
        return _OPENED[where]


def from_config(path: str | Path) -> TrustJudgeReward:
    """The rewards of a configuration file, with its judge loaded in this process; the file may be a service's own. Of
    `cluster` only what holds for one judge on one machine counts: `tensor_parallel`.

    Raises:
        ConfigError: the file cannot be used, or takes the judge over several machines.
        RewardError: a setting of `rewards` makes no sense.
        base.JudgeError: the judge cannot be loaded as configured.
    """
    read = serving_config.load(path)
    if read.judge.engine == "vllm" and read.cluster.placement != "node":
        raise ConfigError(
            f"{path}: cluster.placement: got {read.cluster.placement!r}, and a judge in a trainer's process has one "
            f"machine: 'node', or a reward service's address in place of the file (trustjudge serve-rewards {path})"
        )
    return loaded(read)


def loaded(
    read: ServingConfig, backend: str | None = None, around: Callable[[base.Judge], base.Judge] = lambda judge: judge
) -> TrustJudgeReward:
    """The judge of a configuration, loaded in this process, with its rewards.

    Args:
        backend: what starts the workers of a model that is split (`engines.build`).
        around: what is put around the judge.

    Raises:
        RewardError: a setting of `rewards` makes no sense.
        base.JudgeError: the judge cannot be loaded as configured.
    """
    judge = read.judge
    settings, asked = reward_protocols(read.rewards)
    identity = engines.identity(judge, list(asked.values()))
    return TrustJudgeReward(
        settings,
        around(engines.build(judge, asked, read.cluster.tensor_parallel, backend)),
        asked,
        name=judge_name(judge),
        identity=identity,
        temperature=judge.temperature,
    )


def reward_protocols(settings: RewardConfig) -> tuple[RewardConfig, dict[str, protocols.Protocol]]:
    """The protocols that a mode needs, by name, and the settings with their names where they had paths.

    Raises:
        ConfigError: a protocol is none, or of another kind.
    """
    found: dict[str, protocols.Protocol] = {}
    named: dict[str, Any] = {}
    for setting, kind in kinds_of(settings).items():
        protocol = protocols.load(getattr(settings, setting))
        if protocol.kind != kind:
            raise ConfigError(f"rewards.{setting}: '{protocol.name}' is of kind {protocol.kind}; one of kind {kind}")
        found[protocol.name], named[setting] = protocol, protocol.name
    return replace(settings, **named), found


def gathered(given: RewardSource, requests: Sequence[RewardRequest]) -> list[Reward]:
    """The rewards, judged in one batch with what other threads ask at the same time: some trainers call with one sample
    in each of many threads. In a thread that runs an event loop they are judged by themselves."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(given.arewards(requests))
    return given.rewards(requests)


def value_or(reward: Reward, missing: float | None, trainer: str) -> float:
    """The reward's value, or `missing` in its place.

    Raises:
        MissingRewardError: there is neither.
    """
    if reward.value is not None:
        return reward.value
    if missing is None:
        raise MissingRewardError(
            f"a completion has no reward ({reward.status}), and {trainer} knows no missing one: say what such a "
            f"completion shall get (rewards.missing where the judge is in this process; over a service "
            f"reward_kwargs.missing of verl, or its route /openrlhf), or filter them out"
        )
    return missing


def missing_of(given: RewardSource) -> float | None:
    """What the configuration of a source in this process puts in place of a missing reward."""
    return given.settings.missing if isinstance(given, TrustJudgeReward) else None


def plain_reference(given: Any) -> str | None:
    """A reference of any trainer as a text; None for none, also where a table's missing value is NaN.

    Raises:
        RewardError: it is no text, number or list of text blocks; written out as Python has it, it would be compared
            with.
    """
    if given is None or (isinstance(given, numbers.Number) and given != given):
        return None
    if isinstance(given, str | numbers.Number):
        return str(given)
    if isinstance(given, list) and all(isinstance(block, dict) and "text" in block for block in given):
        return plain_text(given)
    raise RewardError(f"a reference is {type(given).__name__}; a text, or None for none")


def plain_messages(prompt: Any) -> tuple[dict[str, str], ...]:
    """A prompt of any trainer (a text, or messages whose content is a text or a list of blocks) as messages.

    Raises:
        RewardError: it is neither.
    """
    if isinstance(prompt, str):
        return ({"role": "user", "content": prompt},)
    refuse_no_messages("prompt", prompt)
    return tuple({"role": role_of(str(m["role"])), "content": plain_text(m.get("content"))} for m in prompt)


def refuse_no_messages(what: str, given: Any) -> None:
    """
    Raises:
        RewardError: a prompt or a completion that is no text is no list of messages either.
    """
    listed = not isinstance(given, Mapping) and isinstance(given, Iterable)
    wrong = [m for m in given if not isinstance(m, Mapping) or "role" not in m] if listed else [given]
    if wrong:
        inside = "a list with " if listed else ""
        raise RewardError(f"a {what} is {inside}{type(wrong[0]).__name__}; a text, or messages with role and content")


def plain_text(content: Any) -> str:
    """A message's content as a text; of blocks only those that are texts."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(str(block["text"]) for block in content if block.get("type", "text") == "text")
