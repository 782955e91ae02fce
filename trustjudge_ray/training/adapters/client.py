"""The client of the reward service: posts of a size that it takes, patience while it is full or lost, one error."""

import asyncio
import hashlib
import http.client
import json
import math
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, Final

from trustjudge_ray.config_values import ConfigError
from trustjudge_ray.identity import seed_of
from trustjudge_ray.training.reward_tasks import group_of
from trustjudge_ray.training.rewards import Reward, RewardRequest

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


class RewardClient:
    """Rewards from the service over HTTP: POST /v1/reward, at most `most` completions and 4 MB at once, or a group that
    has more.

    A service without a judge (503) or that was late (its own 504) is asked again later, at most `tries` times in all,
    and one that is full (429) three times as often. Once it has given rewards, so is one that was lost (502, 503, 504,
    a proxy's 500, no connection, one that was broken off): what is asked twice is judged once. Before, one that breaks
    connections off is asked three times, and one that nobody can connect to once.

    The token may stand in the address, http://any:TOKEN@host; no message shows it. One that no header can hold is a
    ConfigError."""

    def __init__(
        self, url: str, token: str | None = None, timeout: float = 600.0, tries: int = 8, most: int = 512
    ) -> None:
        if tries < 1:
            raise ConfigError(f"tries: got {tries}; 1 or more")
        base, inside = _without_token(url.rstrip("/"))
        token = token or inside
        if token and not (token.isascii() and token.isprintable() and " " not in token):
            raise ConfigError(f"{TOKEN}: the token holds a blank, the end of a line or what is not ASCII; without them")
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


def _without_token(url: str) -> tuple[str, str | None]:
    """An address http://name:TOKEN@host as one that may be shown, and its token."""
    parts = urllib.parse.urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    token = urllib.parse.unquote(parts.password) if parts.password else None
    return urllib.parse.urlunsplit(parts._replace(netloc=host)), token


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
