"""What the reward service says over HTTP: its routes, what a body may hold, and how each refusal looks.

- `POST /v1/reward`: `{"requests": [{messages, completion, reference?, group?}], "deadline"?: seconds}` gives
  `{"rewards": [{value, status, calls, details}]}`, in order.
- `POST /openrlhf`: `{"query": [text], "prompts": [text], "labels"?: [text or null]}` gives
  `{"rewards": [number], "scores": [number]}`, the same numbers twice.
- `GET /healthz`: 200 when a judge is loaded, else 503.

A refusal is `{"error": {"code", "message", "field"?}}`: 400 not JSON, 401 token, 404, 405, 408 (the body came too
slowly), 413 too large, 422 a field, 429 full, 500 the judge raised, 502 a judgment failed (where the client knows no
missing reward), 503 no judge, 504 deadline. 429, 502 and 503 have Retry-After.
"""

import asyncio
import hashlib
import hmac
import json
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from trustjudge_ray.corpus.values import ROLES
from trustjudge_ray.identity import joined_hash
from trustjudge_ray.rewards_config import RewardConfig
from trustjudge_ray.serving_config import ServeConfig
from trustjudge_ray.training.adapters import openrlhf
from trustjudge_ray.training.reward_tasks import RewardRequest, mode_of, question_id
from trustjudge_ray.training.rewards import Reward
from trustjudge_ray.training.service_queue import Expired, QueueFull, RewardQueue, Stopping, Unit

Ask = Callable[[Sequence[RewardRequest], float], Awaitable[list[Reward]]]
"""Rewards for requests, in order, until a time of the event loop."""
Note = Callable[[str, int, float], None]
"""Is told of each answer: its route, its status and how many seconds it took."""
_KINDS = {bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
_LONGEST_MARK = 32
"""Characters that may stand before the prompt in a query of OpenRLHF: a mark of the text's beginning."""
_LONGEST_LENGTH = 20
"""Digits that a Content-Length may have."""
_SOON = 5
"""Seconds after which a client may come again while an engine starts."""


class Refused(Exception):
    """A request that gets no reward: the HTTP status, a code for programs, what is wrong, and in which field."""

    def __init__(
        self, status: int, code: str, message: str, field: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.field, self.retry_after = status, code, field, retry_after

    def response(self) -> Response:
        """As clients get it."""
        told = {"code": self.code, "message": str(self)} | ({"field": self.field} if self.field else {})
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse({"error": told}, self.status, headers)


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
        """Whether an Authorization header bears the token; compared in constant time."""
        scheme, _, given = (header or "").partition(" ")
        right = hmac.compare_digest(_digest(given.strip(), self.salt), self.digest)
        return right and scheme.lower() == "bearer"


def _digest(token: str, salt: bytes) -> bytes:
    return hashlib.sha256(salt + token.encode("utf-8", "surrogateescape")).digest()


class Routes:
    """Answers requests.

    Args:
        ask: gives rewards; raises QueueFull, Expired, Stopping, or what the judge raised.
        loaded: whether a judge is loaded.
        token: None lets everybody in.
    """

    def __init__(
        self,
        ask: Ask,
        loaded: Callable[[], Awaitable[bool]],
        serve: ServeConfig,
        rewards: RewardConfig,
        token: Token | None,
        note: Note = lambda route, status, seconds: None,
    ) -> None:
        self._ask, self._loaded, self._serve, self._rewards = ask, loaded, serve, rewards
        self._token, self._note, self._open = token, note, 0
        self._routes = {
            "/v1/reward": ("POST", self._reward),
            "/openrlhf": ("POST", self._openrlhf),
            "/healthz": ("GET", self._healthz),
        }

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
        self._note(path if path in self._routes else "other", response.status_code, loop.time() - began)
        return response

    async def _routed(self, request: Request, path: str, began: float) -> Response:
        if path not in self._routes:
            raise Refused(404, "no_route", f"no {path}; there are {', '.join(self._routes)}")
        method, answer = self._routes[path]
        if request.method != method and (method, request.method) != ("GET", "HEAD"):
            raise Refused(405, "wrong_method", f"{path} takes {method}, not {request.method}")
        if path == "/healthz":
            return await self._healthz({}, began)
        if self._token is not None and not self._token.fits(request.headers.get("authorization")):
            raise Refused(401, "no_token", "send the service's token: Authorization: Bearer …")
        if self._open > self._serve.max_open:
            raise Refused(429, "too_many", f"{self._serve.max_open} requests are open; come again", retry_after=1)
        return await answer(await self._body(request, began + self._serve.deadline), began)

    async def _body(self, request: Request, until: float) -> dict[str, Any]:
        """The JSON object that a request brings."""
        most = int(self._serve.max_body_mb * 1e6)
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
        return _json_object(b"".join(parts))

    async def _reward(self, body: dict[str, Any], began: float) -> Response:
        requests = reward_requests(body, self._serve.max_requests)
        seconds = _deadline(body.get("deadline"), self._serve.deadline)
        return JSONResponse({"rewards": [_told(r) for r in await self._rewarded(requests, began + seconds)]})

    async def _openrlhf(self, body: dict[str, Any], began: float) -> Response:
        requests = openrlhf_requests(body, self._serve.max_requests)
        found = await self._rewarded(requests, began + self._serve.deadline)
        values = [self._rewards.missing if reward.value is None else reward.value for reward in found]
        if None in values:
            i = values.index(None)
            raise Refused(
                502,
                "no_reward",
                f"query[{i}] has no reward: {found[i].status}; with rewards.missing it would get that number",
                f"query[{i}]",
                retry_after=1,
            )
        return JSONResponse({"rewards": values, "scores": values})

    async def _healthz(self, body: dict[str, Any], began: float) -> Response:
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
            raise Refused(500, "judge_error", f"the judge raised {type(error).__name__}; its log says more") from error


def reward_requests(body: dict[str, Any], most: int) -> list[RewardRequest]:
    """The requests of a body of /v1/reward.

    Raises:
        Refused: 422, with the field.
    """
    _only(body, ("requests", "deadline"), "")
    return [_request(given, f"requests[{i}]") for i, given in enumerate(_list(body, "requests", most))]


def openrlhf_requests(body: dict[str, Any], most: int) -> list[RewardRequest]:
    """The same of /openrlhf: `query` is the prompt and the completion as one text, `labels` are references. What else
    is in the body is left alone.

    Raises:
        Refused: 422, with the field. A query that does not begin with its prompt (after a mark of the beginning) is
            refused, for where its completion begins would be a guess.
    """
    queries, prompts = _list(body, "query", most), _list(body, "prompts", most)
    labels = [None] * len(queries) if body.get("labels") is None else _list(body, "labels", most)
    for name, others in (("prompts", prompts), ("labels", labels)):
        if len(others) != len(queries):
            _refuse(name, f"{len(others)} entries for {len(queries)} in query")
    found = []
    for i, (query, prompt, label) in enumerate(zip(queries, prompts, labels, strict=True)):
        query, prompt = _text(query, f"query[{i}]"), _text(prompt, f"prompts[{i}]")
        start = query.find(prompt, 0, len(prompt) + _LONGEST_MARK)
        if start < 0:
            _refuse(f"query[{i}]", f"does not begin with prompts[{i}], so that its completion is not known")
        reference = None if label is None else _text(label, f"labels[{i}]") or None
        found.append(RewardRequest(openrlhf.turns(prompt), openrlhf.completion(query[start:], prompt), reference))
    return found


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
        label = (question_id(request), request.group or "") if grouped else (str(i),)
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


def _request(given: Any, where: str) -> RewardRequest:
    if not isinstance(given, dict):
        _refuse(where, f"got {_kind(given)}; an object with messages and completion")
    _only(given, ("messages", "completion", "reference", "group"), f"{where}.")
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        _refuse(f"{where}.messages", f"got {_kind(messages)}; a list of one or more of {{role, content}}")
    optional = {
        name: None if given.get(name) is None else _text(given[name], f"{where}.{name}")
        for name in ("reference", "group")
    }
    turns = tuple(_message(turn, f"{where}.messages[{i}]") for i, turn in enumerate(messages))
    return RewardRequest(turns, _text(given.get("completion"), f"{where}.completion"), **optional)


def _message(given: Any, where: str) -> dict[str, str]:
    if not isinstance(given, dict):
        _refuse(where, f"got {_kind(given)}; an object with role and content")
    _only(given, ("role", "content"), f"{where}.")
    role = given.get("role")
    if not isinstance(role, str) or role not in ROLES:
        _refuse(f"{where}.role", f"one of {', '.join(ROLES)}")
    return {"role": role, "content": _text(given.get("content"), f"{where}.content")}


def _json_object(content: bytes) -> dict[str, Any]:
    try:
        tree = json.loads(content.decode("utf-8"), parse_constant=_no_constant)
    except RecursionError:
        raise Refused(400, "not_json", "the body is nested too deeply") from None
    except ValueError as error:
        raise Refused(400, "not_json", f"the body is not JSON in UTF-8: {error}") from None
    if not isinstance(tree, dict):
        raise Refused(400, "not_json", f"the body is {_kind(tree)}; a JSON object")
    return tree


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _list(body: dict[str, Any], name: str, most: int) -> list[Any]:
    given = body.get(name)
    if not isinstance(given, list) or not given:
        _refuse(name, f"got {'an empty list' if given == [] else _kind(given)}; a list of one or more")
    if len(given) > most:
        raise Refused(413, "too_large", f"{name}: {len(given)} entries; at most {most} at once", name)
    return given


def _text(given: Any, where: str) -> str:
    if not isinstance(given, str):
        _refuse(where, f"got {_kind(given)}; a text")
    try:
        given.encode("utf-8")
    except UnicodeEncodeError:
        _refuse(where, "holds half of a surrogate pair, which is no character")
    return given


def _only(given: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in given:
        if name not in known:
            _refuse(f"{where}{name}"[:200], f"unknown; {', '.join(known)}")


def _deadline(given: Any, most: float) -> float:
    if given is None:
        return most
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
        _refuse("deadline", f"got {_kind(given)}; seconds, more than 0")
    return float(min(given, most))


def _refuse(field: str, wrong: str) -> NoReturn:
    shown = field.encode("utf-8", "backslashreplace").decode("utf-8")
    raise Refused(422, "bad_field", f"{shown}: {wrong}", shown)


def _kind(value: Any) -> str:
    """What a JSON value is, in words; never the value itself, which may be long or secret."""
    return _KINDS.get(type(value), "nothing")


def _told(reward: Reward) -> dict[str, Any]:
    """A reward as JSON; what is not finite is null."""
    details = {name: value if math.isfinite(value) else None for name, value in reward.details.items()}
    return {"value": reward.value, "status": reward.status, "calls": reward.calls, "details": details}
