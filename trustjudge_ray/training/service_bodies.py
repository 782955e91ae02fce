"""What a body of the reward service may hold: JSON to requests, and how what is wrong with it is told."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

from starlette.responses import JSONResponse, Response

from trustjudge_ray.corpus.values import ROLES
from trustjudge_ray.rewards_config import RewardConfig
from trustjudge_ray.training.adapters import openrlhf
from trustjudge_ray.training.reward_tasks import RewardError, RewardRequest, group_of

_KINDS = {bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}


class Refused(Exception):
    """A request that gets no reward: the HTTP status, a code for programs, what is wrong, in which field, in how many
    seconds to come again, and with which method."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        field: str | None = None,
        retry_after: int | None = None,
        allow: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.field, self.retry_after = status, code, field, retry_after
        self.allow = allow

    def response(self) -> Response:
        """As clients get it."""
        told = {"code": self.code, "message": str(self)} | ({"field": self.field} if self.field else {})
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.allow:
            headers["Allow"] = self.allow
        return JSONResponse({"error": told}, self.status, headers)


def reward_requests(body: dict[str, Any], most: int) -> list[RewardRequest]:
    """The requests of a body of /v1/reward.

    Raises:
        Refused: 422, with the field.
    """
    _only(body, ("requests", "deadline"), "")
    return [_request(given, f"requests[{i}]") for i, given in enumerate(_list(body, "requests", most))]


def openrlhf_requests(body: dict[str, Any], most: int) -> list[RewardRequest]:
    """The same of /openrlhf: `query` is the prompt and the completion as one text, `labels` are references. What else
    is in the body is left alone. It may be nothing at all: OpenRLHF divides what it has among its addresses, and some
    get none.

    Raises:
        Refused: 422, with the field. A query that does not begin with its prompt (after a mark of the beginning) is
            refused, for where its completion begins would be a guess.
    """
    queries, prompts = _list(body, "query", most, 0), _list(body, "prompts", most, 0)
    labels = [None] * len(queries) if body.get("labels") is None else _list(body, "labels", most, 0)
    for name, others in (("prompts", prompts), ("labels", labels)):
        if len(others) != len(queries):
            _refuse(name, f"{len(others)} entries for {len(queries)} in query")
    found = []
    for i, (query, prompt, label) in enumerate(zip(queries, prompts, labels, strict=True)):
        query, prompt = _text(query, f"query[{i}]"), _text(prompt, f"prompts[{i}]")
        reference = None if label is None else _text(label, f"labels[{i}]") or None
        try:
            found.append(RewardRequest(openrlhf.turns(prompt), openrlhf.completion(query, prompt), reference))
        except RewardError:  # its message has some of both texts
            _refuse(f"query[{i}]", f"does not begin with prompts[{i}], so that its completion is not known")
    return found


def refuse_large_groups(requests: Sequence[RewardRequest], name: str, most: int, rewards: RewardConfig) -> None:
    """
    Raises:
        Refused: 413; a group, which is judged in one piece, costs more than one of so many completions of which each is
            compared with all others. Copies and empty ones cost nothing. `name` is the body's list of completions.
    """
    groups: dict[tuple[str, str], set[str]] = {}
    for i, request in enumerate(requests if rewards.mode == "group" else ()):
        group = groups.setdefault(group_of(request), set())
        group |= {request.completion} if request.completion.strip() else set()
        n = len(group)
        each = n - 1 if rewards.opponents is None else min(rewards.opponents, n - 1)
        if n > most and n * each > most * (most - 1):
            raise Refused(
                413,
                "too_large",
                f"{name}[{i}]: its group has {n} different completions or more, each compared with {each} others; at "
                f"most serve.max_group, {most}, or as many as cost no more with rewards.opponents",
                f"{name}[{i}]",
            )


def _request(given: Any, where: str) -> RewardRequest:
    if not isinstance(given, dict):
        _refuse(where, f"got {_kind(given)}; an object with messages and completion")
    _only(given, ("messages", "completion", "reference", "group"), f"{where}.")
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        told = "an empty list" if messages == [] else _kind(messages)
        _refuse(f"{where}.messages", f"got {told}; a list of one or more of {{role, content}}")
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


def json_object(content: bytes) -> dict[str, Any]:
    """The object that a body is; a byte order mark before it is left out.

    Raises:
        Refused: 400.
    """
    try:
        tree = json.loads(content.decode("utf-8-sig"), parse_constant=_no_constant, object_pairs_hook=_once)
    except RecursionError:
        raise Refused(400, "not_json", "the body is nested too deeply") from None
    except ValueError as error:
        raise Refused(400, "not_json", f"the body is not JSON in UTF-8: {error}") from None
    if not isinstance(tree, dict):
        raise Refused(400, "not_json", f"the body is {_kind(tree)}; a JSON object")
    return tree


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; with a key twice it is none, for which of the two was meant would be a guess."""
    found = dict(pairs)
    if len(found) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {name[:100]!r} stands twice in an object")
    return found


def _list(body: dict[str, Any], name: str, most: int, least: int = 1) -> list[Any]:
    given = body.get(name)
    if not isinstance(given, list) or len(given) < least:
        wanted = "a list of one or more" if least else "a list"
        _refuse(name, f"got {'an empty list' if given == [] else _kind(given)}; {wanted}")
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


def deadline_of(given: Any, most: float) -> float:
    """The seconds that a client gives, at most so many.

    Raises:
        Refused: 422.
    """
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
