"""Where a trainer's rewards come from: a judge in this process, or the reward service. No trainer is imported here.

Both are named by one text: the path of a configuration with `judge` and `rewards`, or the address of a service.
"""

import asyncio
import http.client
import json
import math
import numbers
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, cast
from typing import Protocol as Interface

from trustjudge_ray import serving_config
from trustjudge_ray.config import judge_name
from trustjudge_ray.config_values import ConfigError
from trustjudge_ray.judging import engines, protocols
from trustjudge_ray.rewards_config import RewardConfig
from trustjudge_ray.training.reward_tasks import question_id
from trustjudge_ray.training.rewards import Reward, RewardError, RewardRequest, TrustJudgeReward

WHERE: Final = "TRUSTJUDGE_REWARD"
"""The environment variable that says where rewards come from, for trainers that take only a Python file."""
TOKEN: Final = "TRUSTJUDGE_SERVICE_TOKEN"
"""The one that holds the service's token, if it asks for one."""


class RewardServiceError(RuntimeError):
    """The reward service gave no rewards: names its address, what it answered, and what would be right."""


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
    """The rewards of a configuration file, with its judge loaded in this process; the file may be a service's own.

    Raises:
        ConfigError: the file cannot be used.
        RewardError: a setting of `rewards` makes no sense.
        base.JudgeError: the judge cannot be loaded as configured.
    """
    read = serving_config.load(path)
    judge = read.judge
    settings, asked = reward_protocols(read.rewards)
    identity = engines.identity(judge, list(asked.values()))
    return TrustJudgeReward(
        settings,
        engines.build(judge, asked),
        asked,
        name=judge_name(judge),
        identity=identity,
        temperature=judge.temperature,
    )


def reward_protocols(settings: RewardConfig) -> tuple[RewardConfig, dict[str, protocols.Protocol]]:
    """The protocols that a mode needs, by name, and the settings with their names where they had paths."""
    found: dict[str, protocols.Protocol] = {}
    if settings.mode in (None, "score"):
        scoring = protocols.load(settings.score_protocol)
        settings, found[scoring.name] = replace(settings, score_protocol=scoring.name), scoring
    if settings.mode != "score":
        comparing = protocols.load(settings.pair_protocol)
        settings, found[comparing.name] = replace(settings, pair_protocol=comparing.name), comparing
    return settings, found


class RewardClient:
    """Rewards from the service over HTTP: POST /v1/reward, at most `most` completions at once or a group that has more.

    A service that is full (429, 503) is asked again later. A token that no header can hold is a ConfigError."""

    def __init__(
        self, url: str, token: str | None = None, timeout: float = 600.0, tries: int = 8, most: int = 512
    ) -> None:
        if token and not (token.isascii() and token.isprintable() and " " not in token):
            raise ConfigError(f"{TOKEN}: the token holds a blank, the end of a line or what is not ASCII; without them")
        base = url.rstrip("/")
        self._url = base if base.endswith("/v1/reward") else f"{base}/v1/reward"
        self._headers = {"Content-Type": "application/json"}
        self._headers |= {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout, self._tries, self._most = timeout, tries, most
        self._pause = threading.Event()

    def rewards(self, requests: Sequence[RewardRequest]) -> list[Reward]:
        """A reward for each request, in order.

        Raises:
            RewardServiceError: no answer, a refusal, or an answer that is none.
        """
        found: dict[int, Reward] = {}
        for rows in _posts(requests, self._most):
            found |= zip(rows, self._posted([requests[i] for i in rows]), strict=True)
        return [found[i] for i in range(len(requests))]

    def _posted(self, requests: Sequence[RewardRequest]) -> list[Reward]:
        body = json.dumps({"requests": [_without_nulls(asdict(request)) for request in requests]})
        answer = self._asked(body.encode("utf-8"))
        try:
            found = [
                Reward(
                    _number(row["value"]),
                    row["status"],
                    int(row.get("calls") or 0),
                    _without_nulls(row.get("details") or {}),
                )
                for row in json.loads(answer)["rewards"]
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise RewardServiceError(f"{self._url}: no rewards in its answer {answer[:200]!r}") from error
        if len(found) != len(requests):
            raise RewardServiceError(f"{self._url}: {len(found)} rewards for {len(requests)} requests")
        return found

    async def arewards(self, requests: Sequence[RewardRequest]) -> list[Reward]:
        """The same in a worker thread; the service batches concurrent calls."""
        return await asyncio.to_thread(self.rewards, requests)

    def _asked(self, body: bytes) -> bytes:
        for attempt in range(self._tries):
            try:
                sent = urllib.request.Request(self._url, data=body, headers=self._headers)
                with urllib.request.urlopen(sent, timeout=self._timeout) as answer:
                    return cast(bytes, answer.read())
            except urllib.error.HTTPError as error:
                told = error.read()[:200].decode("utf-8", "replace")
                if error.code not in (429, 503) or attempt + 1 == self._tries:
                    raise RewardServiceError(f"{self._url}: HTTP {error.code}: {told}") from error
                self._pause.wait(_seconds(error.headers.get("Retry-After"), attempt))
            except (OSError, http.client.HTTPException) as error:
                raise RewardServiceError(f"{self._url}: {error}; is the reward service running?") from error
        raise RewardServiceError(f"{self._url}: tries: got {self._tries}; 1 or more")


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
    if given is None or (isinstance(given, float) and math.isnan(given)):
        return None
    if isinstance(given, str | numbers.Number):
        return str(given)
    if isinstance(given, list) and all(isinstance(block, dict) and "text" in block for block in given):
        return plain_text(given)
    raise RewardError(f"a reference is {type(given).__name__}; a text, or None for none")


def plain_messages(prompt: Any) -> tuple[dict[str, str], ...]:
    """A prompt of any trainer (a text, or messages whose content is a text or a list of blocks) as messages."""
    if isinstance(prompt, str):
        return ({"role": "user", "content": prompt},)
    return tuple({"role": str(message["role"]), "content": plain_text(message["content"])} for message in prompt)


def plain_text(content: Any) -> str:
    """A message's content as a text; of blocks only those that are texts."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(str(block["text"]) for block in content if block.get("type", "text") == "text")


def _posts(requests: Sequence[RewardRequest], most: int) -> list[list[int]]:
    """Which requests are sent together: those of a group always, and at most so many where groups allow it."""
    groups: dict[tuple[str, str], list[int]] = {}
    for i, request in enumerate(requests):
        groups.setdefault((request.group or "", question_id(request)), []).append(i)
    posts: list[list[int]] = []
    for rows in groups.values():
        if not posts or len(posts[-1]) + len(rows) > most:
            posts.append([])
        posts[-1] += rows
    return posts


def _seconds(retry_after: str | None, attempt: int) -> float:
    """How long to wait before the next try: what the service says, or 0.5 s doubled each time; at most 30 s."""
    try:
        told = float(retry_after or "")
    except ValueError:
        told = 0.5 * 2**attempt
    return min(max(told, 0.0), 30.0)


def _number(value: Any) -> float | None:
    """A reward's value as the service wrote it.

    Raises:
        ValueError: it is neither null nor a finite number.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"a reward of {value!r}")
    return float(value)


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if value is not None}
