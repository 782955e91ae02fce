"""What the reward service says over HTTP: its routes, who may ask, and what each failure is answered with.

- `POST /v1/reward`: `{"requests": [{messages, completion, reference?, group?}], "deadline"?: seconds}` gives
  `{"rewards": [{value, status, calls, details}]}`, in order.
- `POST /openrlhf`: `{"query": [text], "prompts": [text], "labels"?: [text or null]}` gives
  `{"rewards": [number], "scores": [number], "extra_logs": {"judged": [number], "calls": [number]}}`, the rewards twice.
- `GET /healthz`: 200 when a judge is loaded, else 503.
- `GET /metrics`: what was counted, for Prometheus.

A refusal (`service_bodies`) is `{"error": {"code", "message", "field"?}}`: 400 not JSON, 401 token, 404, 405, 408 (the
body came too slowly), 413 too large, 415 compressed, 422 a field, 429 full, 500 the judge raised, 502 the judge failed
(where the client knows no missing reward; 422 if it would again), 503 no judge, 504 deadline. 429, 502 and 503 have
Retry-After.
"""

import asyncio
import base64
import hashlib
import hmac
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from trustjudge_ray.identity import joined_hash
from trustjudge_ray.judging.base import JUDGE_FAILURES
from trustjudge_ray.rewards_config import RewardConfig
from trustjudge_ray.serving_config import ServeConfig
from trustjudge_ray.training.reward_tasks import RewardRequest, group_of, mode_of, question_id
from trustjudge_ray.training.rewards import Reward
from trustjudge_ray.training.service_bodies import (
    Refused,
    deadline_of,
    json_object,
    openrlhf_requests,
    refuse_large_groups,
    reward_requests,
)
from trustjudge_ray.training.service_metrics import TYPE as PROMETHEUS
from trustjudge_ray.training.service_queue import Expired, Limits, QueueFull, RewardQueue, Stopping, Unit
from trustjudge_ray.training.service_queue import Note as QueueNote

Ask = Callable[[Sequence[RewardRequest], float], Awaitable[list[Reward]]]
"""Rewards for requests, in order, until a time of the event loop."""
Note = Callable[[str, int, float], None]
"""Is told of each answer: its route, its status and how many seconds it took."""
_MAY_GO_BETTER: Final = tuple(status for status in JUDGE_FAILURES if status != "too_long")
"""Statuses of a completion that may have a reward when it is asked for again."""
_LONGEST_LENGTH = 20
"""Digits that a Content-Length may have."""
_SOON = 5
"""Seconds after which a client may come again while an engine starts."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Token:
    """Knows a token by a salted hash of it, so that the token itself stays with the process that read it."""

    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, token: str, salt: bytes) -> "Token":
        """What knows this token."""
        return cls(salt, _digest(token, salt))

    def fits(self, header: str | None) -> bool:
        """Whether an Authorization header bears the token, or has it for a password, as clients send it that are given
        an address http://name:TOKEN@host; compared in constant time."""
        scheme, _, given = (header or "").partition(" ")
        scheme, given = scheme.lower(), given.strip()
        if scheme == "basic":
            given = _password(given)
        right = hmac.compare_digest(_digest(given, self.salt), self.digest)
        return right and scheme in ("bearer", "basic")


def _password(given: str) -> str:
    """The password of Basic credentials; of what is none nothing, which is no token."""
    try:
        return base64.b64decode(given, validate=True).decode("utf-8").partition(":")[2]
    except ValueError:
        return ""


def _digest(token: str, salt: bytes) -> bytes:
    return hashlib.sha256(salt + token.encode("utf-8", "surrogateescape")).digest()


class Routes:
    """Answers requests.

    Args:
        ask: gives rewards; raises QueueFull, Expired, Stopping, or what the judge raised.
        loaded: whether a judge is loaded.
        token: None lets everybody in.
        metrics: what was counted, as Prometheus reads it.
        stopping: whether the service is being ended.
    """

    def __init__(
        self,
        ask: Ask,
        loaded: Callable[[], Awaitable[bool]],
        serve: ServeConfig,
        rewards: RewardConfig,
        token: Token | None,
        note: Note = lambda route, status, seconds: None,
        metrics: Callable[[], str] = lambda: "",
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._ask, self._loaded, self._serve, self._rewards = ask, loaded, serve, rewards
        self._stopping = stopping
        self._token, self._note, self._metrics, self._open = token, note, metrics, 0
        self._posts = {"/v1/reward": self._reward, "/openrlhf": self._openrlhf}
        self._methods = dict.fromkeys(self._posts, ("POST",)) | dict.fromkeys(("/healthz", "/metrics"), ("GET", "HEAD"))

    async def respond(self, request: Request) -> Response:
        """The answer to a request; never an exception but the request's cancellation."""
        loop = asyncio.get_running_loop()
        began, path = loop.time(), request.url.path
        self._open += 1
        try:
            response = await self._routed(request, path, began)
        except Refused as refused:
            response = refused.response()
        except ClientDisconnect:
            response = Refused(400, "disconnected", "the body was broken off").response()
        finally:
            self._open -= 1
        self._note(path if path in self._methods else "other", response.status_code, loop.time() - began)
        return response

    async def _routed(self, request: Request, path: str, began: float) -> Response:
        if path not in self._methods:
            raise Refused(404, "no_route", f"no {path}; there are {', '.join(self._methods)}")
        methods = self._methods[path]
        if request.method not in methods:
            told = f"{path} takes {methods[0]}, not {request.method}"
            raise Refused(405, "wrong_method", told, allow=", ".join(methods))
        if path == "/healthz":
            return await self._healthz()
        if self._token is not None and not self._token.fits(request.headers.get("authorization")):
            raise Refused(401, "no_token", "send the service's token: Authorization: Bearer …")
        if path == "/metrics":
            return Response(self._metrics(), media_type=PROMETHEUS)
        if self._open > self._serve.max_open:
            raise Refused(429, "too_many", f"{self._serve.max_open} requests are open; come again", retry_after=1)
        return await self._posts[path](await self._body(request, began + self._serve.deadline), began)

    async def _body(self, request: Request, until: float) -> dict[str, Any]:
        """The JSON object that a request brings."""
        most = int(self._serve.max_body_mb * 1e6)
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("identity", ""):
            raise Refused(415, "compressed", "the body has a Content-Encoding; send it as it is, without one")
        declared = request.headers.get("content-length", "0")
        parts, size = [], 0
        too_large = Refused(413, "too_large", f"more than {most} bytes; send fewer completions at once")
        if not declared.isdecimal() or len(declared) > _LONGEST_LENGTH or int(declared) > most:
            raise too_large
        try:
            async with asyncio.timeout_at(until):
                async for part in request.stream():
                    parts.append(part)
                    size += len(part)
                    if size > most:
                        raise too_large
        except TimeoutError:
            raise Refused(408, "slow", f"the body took longer than {self._serve.deadline:g} s") from None
        return json_object(b"".join(parts))

    async def _reward(self, body: dict[str, Any], began: float) -> Response:
        requests = reward_requests(body, self._serve.max_requests)
        refuse_large_groups(requests, "requests", self._serve.max_group, self._rewards)
        seconds = deadline_of(body.get("deadline"), self._serve.deadline)
        return JSONResponse({"rewards": [_told(r) for r in await self._rewarded(requests, began + seconds)]})

    async def _openrlhf(self, body: dict[str, Any], began: float) -> Response:
        requests = openrlhf_requests(body, self._serve.max_requests)
        refuse_large_groups(requests, "query", self._serve.max_group, self._rewards)
        found = await self._rewarded(requests, began + self._serve.deadline) if requests else []
        values = [self._rewards.missing if reward.value is None else reward.value for reward in found]
        if None in values:
            raise _no_reward([None if value is not None else r.status for value, r in zip(values, found, strict=True)])
        logs = {"judged": [float(reward.value is not None) for reward in found]}
        logs["calls"] = [float(reward.calls) for reward in found]
        return JSONResponse({"rewards": values, "scores": values, "extra_logs": logs})

    async def _healthz(self) -> Response:
        if self._stopping():
            raise Refused(503, "stopping", "the service is being ended", retry_after=_SOON)
        if await self._loaded():
            return JSONResponse({"status": "ok"})
        raise Refused(503, "no_judge", "no judge is loaded", retry_after=_SOON)

    async def _rewarded(self, requests: list[RewardRequest], until: float) -> list[Reward]:
        try:
            return await self._ask(requests, until)
        except QueueFull as full:
            raise Refused(429, "full", str(full), retry_after=full.retry_after) from full
        except Expired as expired:
            if expired.engine_lost:
                raise Refused(503, "judge_lost", str(expired), retry_after=_SOON) from expired
            raise Refused(504, "deadline", str(expired)) from expired
        except Stopping as stopping:
            raise Refused(503, "stopping", str(stopping), retry_after=_SOON) from stopping
        except Exception as error:
            _log.exception("the judge raised on a body of %d completions", len(requests))
            raise Refused(500, "judge_error", f"the judge raised {type(error).__name__}; its log says more") from error


def _no_reward(statuses: Sequence[str | None]) -> Refused:
    """What a client is told that knows no missing reward: of the first that has none, or of the first that will have
    none however often it is asked for."""
    missing = [(i, status) for i, status in enumerate(statuses) if status is not None]
    never = [(i, status) for i, status in missing if status not in _MAY_GO_BETTER]
    i, status = (never or missing)[0]
    told = f"query[{i}] has no reward: {status}; with rewards.missing it would get that number"
    if never:
        return Refused(422, "no_reward", f"{told}; asked again it would be the same", f"query[{i}]")
    return Refused(502, "no_reward", told, f"query[{i}]", retry_after=1)


def reward_queue(
    judge: Callable[[list[RewardRequest]], Awaitable[Sequence[Reward]]], limits: Limits, note: QueueNote
) -> RewardQueue[RewardRequest, Reward]:
    """The queue of a reward service. Rewards without a failure in them are kept, and counted for who asked first; what
    kills engines has the status `engine_error`, and the log says why."""

    def failed(why: str) -> Reward:
        _log.error("a completion is given up: %s", why)
        return Reward(None, "engine_error")

    return RewardQueue(
        judge,
        limits,
        keep=lambda reward: reward.final,
        again=lambda reward: replace(reward, calls=0),
        failed=failed,
        note=note,
    )


async def rewarded(
    queue: RewardQueue[RewardRequest, Reward], requests: Sequence[RewardRequest], rewards: RewardConfig, until: float
) -> list[Reward]:
    """The rewards of one body's requests, in order, from a queue. Raises what `RewardQueue.ask` does."""
    made = units(requests, rewards)
    answers = iter(await queue.ask([unit for unit, _ in made], until))
    placed = {place: next(answers) for _, places in made for place in places}
    return [placed[i] for i in range(len(requests))]


def units(requests: Sequence[RewardRequest], rewards: RewardConfig) -> list[tuple[Unit[RewardRequest], list[int]]]:
    """The requests of one body as units for the queue, each with the places of its requests.

    A request is a unit of its own, or in mode `group` a group is: the completions of one conversation, of those that
    name a group each of the same name. Two bodies never share a group, whatever they call it.
    """
    places: dict[tuple[str, ...], list[int]] = {}
    for i, request in enumerate(requests):
        grouped = mode_of(request, rewards) == "group"
        label = group_of(request) if grouped else (str(i),)
        places.setdefault(label, []).append(i)
    found = []
    for members in places.values():
        own = [requests[i] for i in members]
        key = joined_hash(*(part for r in own for part in (question_id(r), _given(r.reference), r.completion)))
        unit = tuple(RewardRequest(r.messages, r.completion, r.reference, group=key) for r in own)
        found.append((Unit(key, unit), members))
    return found


def _given(reference: str | None) -> str:
    """A reference as part of a key: none is another than an empty one."""
    return "" if reference is None else f"={reference}"


def _told(reward: Reward) -> dict[str, Any]:
    """A reward as JSON; what is not finite is null."""
    details = {name: value if math.isfinite(value) else None for name, value in reward.details.items()}
    return {"value": reward.value, "status": reward.status, "calls": reward.calls, "details": details}
