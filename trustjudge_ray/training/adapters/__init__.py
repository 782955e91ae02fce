"""Where a trainer's rewards come from: a judge in this process, or the reward service. No trainer is imported here.

Both are named by one text: the path of a configuration with `judge` and `rewards`, or the address of a service.
"""

import asyncio
import hashlib
import http.client
import json
import math
import numbers
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final
from typing import Protocol as Interface

from trustjudge_ray import serving_config
from trustjudge_ray.config import judge_name
from trustjudge_ray.config_values import ConfigError
from trustjudge_ray.identity import seed_of
from trustjudge_ray.judging import base, engines, protocols
from trustjudge_ray.rewards_config import RewardConfig
from trustjudge_ray.serving_config import ServingConfig
from trustjudge_ray.training.reward_tasks import group_of, role_of
from trustjudge_ray.training.rewards import Reward, RewardError, RewardRequest, TrustJudgeReward

WHERE: Final = "TRUSTJUDGE_REWARD"
"""The environment variable that says where rewards come from, for trainers that take only a Python file."""
TOKEN: Final = "TRUSTJUDGE_SERVICE_TOKEN"
"""The one that holds the service's token, if it asks for one."""


_FULL: Final = (429, 503)
"""Statuses that say: come again."""
_LONGEST_ADVICE: Final = 60.0
"""Seconds of Retry-After that are waited."""
_CALLS_AT_ONCE: Final = 64
"""As many as `serve.max_batch` is by default."""
_MOST_BYTES: Final = 4_000_000
"""Of requests in one body; half of what `serve.max_body_mb` lets through by default."""
_LOST: Final = (502, 503, 504)
"""Statuses that say that a service that was there is not: its own, a proxy's before it."""
_PATIENCE: Final = 3
"""How many times as often a service is asked that is there and only full."""
_FIRST_TRIES: Final = 3
"""Of a service that never gave a reward and breaks the connection off: somebody listens, and many ask at once, or it is
no reward service."""
_BROKEN_OFF: Final = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, http.client.IncompleteRead)


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
    """Rewards from the service over HTTP: POST /v1/reward, at most `most` completions and 4 MB at once, or a group that
    has more.

    A service without a judge (503) or that was late (its own 504) is asked again later, at most `tries` times in all,
    and one that is full (429) three times as often. Once it has given rewards, so is one that was lost (502, 503, 504,
    a proxy's 500, no connection, one that was broken off): what is asked twice is judged once. Before, one that breaks
    connections off is asked three times, and one that nobody can connect to once. A token that no header can hold is a
    ConfigError."""

    def __init__(
        self, url: str, token: str | None = None, timeout: float = 600.0, tries: int = 8, most: int = 512
    ) -> None:
        if token and not (token.isascii() and token.isprintable() and " " not in token):
            raise ConfigError(f"{TOKEN}: the token holds a blank, the end of a line or what is not ASCII; without them")
        if tries < 1:
            raise ConfigError(f"tries: got {tries}; 1 or more")
        base = url.rstrip("/")
        self._url = base if base.endswith("/v1/reward") else f"{base}/v1/reward"
        self._headers = {"Content-Type": "application/json"}
        self._headers |= {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout, self._tries, self._most = timeout, tries, most
        self._pause, self._known = threading.Event(), False
        self._threads = ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="rewards")

    def rewards(self, requests: Sequence[RewardRequest]) -> list[Reward]:
        """A reward for each request, in order.

        Raises:
            RewardServiceError: no answer, a refusal, or an answer that is none.
        """
        requests, found = list(requests), dict[int, Reward]()
        written = [json.dumps(_without_nulls(asdict(request))) for request in requests]
        for rows in _posts(requests, [len(text) for text in written], self._most):
            found |= zip(rows, self._posted([written[i] for i in rows]), strict=True)
        return [found[i] for i in range(len(requests))]

    def _posted(self, requests: Sequence[str]) -> list[Reward]:
        answer = self._asked(f'{{"requests": [{", ".join(requests)}]}}'.encode("ascii"))
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
        self._known = True
        return found

    async def arewards(self, requests: Sequence[RewardRequest]) -> list[Reward]:
        """The same in a thread of the client's own, of which there are enough to fill a batch of the service."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.rewards, requests)

    def _asked(self, body: bytes) -> bytes:
        full = lost = 0
        while True:
            attempt, status, come_again, cause = full + lost, 0, None, None
            try:
                status, come_again, told = self._answer(body)
            except (OSError, http.client.HTTPException) as error:
                again = self._known or (_is_broken_off(error) and attempt + 1 < _FIRST_TRIES)
                wrong, cause = f"{error}; is the reward service running?", error
            else:
                if status < 300:
                    return told
                again = status in _FULL or _is_late(status, told) or (self._known and _is_lost(status, told))
                wrong = f"HTTP {status}: {told[:200].decode('utf-8', 'replace')}"
            full, lost = (full + 1, lost) if status == 429 else (full, lost + 1)
            if not again or lost >= self._tries or full >= _PATIENCE * self._tries:
                raise RewardServiceError(f"{self._url}: {wrong}") from cause
            self._pause.wait(_seconds(come_again, attempt) * _spread(body, attempt))

    def _answer(self, body: bytes) -> tuple[int, str | None, bytes]:
        """Status, Retry-After and content of the answer to one try."""
        sent = urllib.request.Request(self._url, data=body, headers=self._headers)
        try:
            with urllib.request.urlopen(sent, timeout=self._timeout) as answer:
                return answer.status, None, answer.read()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.headers.get("Retry-After"), refused.read()


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


def _is_broken_off(error: Exception) -> bool:
    """Whether somebody listened, and broke the connection off."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return isinstance(cause, _BROKEN_OFF)


def _is_late(status: int, told: bytes) -> bool:
    """Whether the service itself says that the deadline came first. A proxy's 504 says nothing of a service."""
    try:
        return status == 504 and json.loads(told)["error"]["code"] == "deadline"
    except (ValueError, TypeError, KeyError):
        return False


def _is_lost(status: int, told: bytes) -> bool:
    """Whether an answer says that a service that was there is not. Serve's proxy says so with 500 where the front died;
    in a 500 of the service itself the judge has raised, and would again."""
    if status != 500:
        return status in _LOST
    try:
        return "error" not in json.loads(told)
    except (ValueError, TypeError):
        return True


def _posts(requests: Sequence[RewardRequest], sizes: Sequence[int], most: int) -> list[list[int]]:
    """Which requests are sent together: those of a group always, and at most so many, and bytes, where groups allow
    it."""
    groups: dict[tuple[str, str], list[int]] = {}
    for i, request in enumerate(requests):
        groups.setdefault(group_of(request), []).append(i)
    posts: list[list[int]] = []
    size = 0
    for rows in groups.values():
        more = sum(sizes[i] for i in rows)
        if not posts or len(posts[-1]) + len(rows) > most or size + more > _MOST_BYTES:
            posts.append([])
            size = 0
        posts[-1] += rows
        size += more
    return posts


def _seconds(retry_after: str | None, attempt: int) -> float:
    """How long to wait before the next try: what the service says, at most a minute, or 0.5 s doubled each time, at
    most 30 s; the longer of the two, for a service that many ask has no room again as soon as it had some."""
    own = min(0.5 * 2 ** min(attempt, 6), 30.0)
    try:
        told = float(retry_after or "")
    except ValueError:
        return own
    return max(own, min(told, _LONGEST_ADVICE)) if told > 0 else own


def _spread(body: bytes, attempt: int) -> float:
    """From 1 to 1.5, another for each body and try: by how much longer a client waits, for all that were refused
    together would else come again together."""
    return 1 + seed_of("spread", str(attempt), hashlib.sha256(body).hexdigest()) / 2**64


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
