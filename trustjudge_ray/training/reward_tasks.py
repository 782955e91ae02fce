"""Completions to judgments: which tasks a reward rests on, with the ids and seeds that the pipeline would give them.

A conversation is a question and a completion is a response, each called by a hash of its content, so that the same
completion is the same task whenever it comes. A response's model has the same name: the scripted judge's qualities are
planted by `response_id`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from trustjudge_ray.config import PlanConfig
from trustjudge_ray.corpus.values import ROLES
from trustjudge_ray.identity import joined_hash
from trustjudge_ray.judging.plan import Spec, plan, with_texts
from trustjudge_ray.rewards_config import RewardConfig
from trustjudge_ray.schema import RESPONSES, TASK_TEXTS, from_rows

REFERENCE: Final = "reference"
"""What the reference of a question is called among its responses, and as a model."""
_CALLED: Final = {"model": "assistant", "ipython": "tool"}
"""Roles that chat templates call otherwise: Gemma's, Llama 3's."""
Key = tuple[str, str, str | None]
"""A question, and the response or the pair of responses that was judged, the smaller id first."""


class RewardError(ValueError):
    """A reward cannot be given as configured: names the setting, what it got and what would be right."""


@dataclass(frozen=True, slots=True)
class RewardRequest:
    """One completion to be rewarded.

    Attributes:
        messages: the conversation up to the completion: role and content of its turns; the roles are those of a corpus
            (system, user, assistant, tool …).
        reference: what `anchor` compares with, and what a protocol with {reference} shows.
        group: which completions of one conversation belong together; None: all of one call.
    """

    messages: tuple[dict[str, str], ...]
    completion: str
    reference: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request's judgments are found: its mode, question and response, whether that is empty, and its group."""

    mode: str
    question: str
    response: str
    empty: bool
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What some requests rest on.

    Attributes:
        tasks: TASK_TEXTS, each task once.
        places: of each request.
        groups: of each group how often each response is in it, and the pairs of them that are judged. Empty completions
            are left out, so that nobody draws one for an opponent.
    """

    tasks: pa.Table
    places: tuple[Place, ...]
    groups: tuple[tuple[Mapping[str, int], tuple[Key, ...]], ...]


def question_id(request: RewardRequest) -> str:
    """What a request's conversation is called: 32 hex digits over its messages and its reference."""
    turns = [part for message in request.messages for part in (message["role"], message["content"])]
    return joined_hash(*turns, REFERENCE, request.reference or "")


def group_of(request: RewardRequest) -> tuple[str, str]:
    """The group that a request is in: its group's name, and its conversation's."""
    return request.group or "", question_id(request)


def role_of(name: str) -> str:
    """A role as a corpus calls it, from what a chat template does; one that is not known stays what it is."""
    return _CALLED.get(name, name)


def refuse_unreadable(requests: Sequence[RewardRequest]) -> None:
    """
    Raises:
        RewardError: what should be a text is none, also one that UTF-8 cannot hold, which no tokenizer takes; there is
            no message, or one of a role that no corpus has.
    """
    for i, r in enumerate(requests):
        if not r.messages:
            raise RewardError(f"requests[{i}].messages: none; one or more, each with role and content")
        texts: dict[str, Any] = {"completion": r.completion}
        texts |= {name: getattr(r, name) for name in ("reference", "group") if getattr(r, name) is not None}
        for j, message in enumerate(r.messages):
            texts |= {f"messages[{j}].{name}": message.get(name) for name in ("role", "content")}
        for name, text in texts.items():
            _refuse_no_text(f"requests[{i}].{name}", text)
            if name.endswith("].role") and text not in ROLES:
                raise RewardError(f"requests[{i}].{name}: got {text[:80]!r}; one of {', '.join(ROLES)}")


def _refuse_no_text(where: str, text: Any) -> None:
    if not isinstance(text, str):
        raise RewardError(f"{where}: got {type(text).__name__}; a text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RewardError(
            f"{where}: half of a surrogate pair at {error.start}, which is no character; a text"
        ) from None


def response_id(completion: str) -> str:
    """What a completion is called, as a response and as a model: 32 hex digits over its text."""
    return joined_hash(completion)


def mode_of(request: RewardRequest, settings: RewardConfig) -> str:
    """The mode in which a request is rewarded."""
    return settings.mode or ("anchor" if _given(request.reference) else "score")


def asked(requests: Sequence[RewardRequest], settings: RewardConfig, specs: Mapping[str, Spec]) -> Asked:
    """What is asked about some requests; one plan for all scores, one for all anchors and one for each group.

    Args:
        specs: of the score and of the pair protocol, as `score` and `compare`.
    """
    named = [
        Place(mode_of(r, settings), question_id(r), response_id(r.completion), not r.completion.strip())
        for r in requests
    ]
    members: dict[tuple[str, str], list[int]] = {}
    for i, (request, place) in enumerate(zip(requests, named, strict=True)):
        if place.mode == "group":
            members.setdefault(group_of(request), []).append(i)
    tables = [TASK_TEXTS.empty_table()]
    groups: list[tuple[Mapping[str, int], tuple[Key, ...]]] = []
    for mode in ("score", "anchor"):
        chosen = [i for i, place in enumerate(named) if place.mode == mode]
        if mode == "anchor":
            chosen = [i for i in chosen if _given(requests[i].reference)]
        tables.append(_planned([requests[i] for i in chosen], mode, settings, specs))
    for rows in members.values():
        spoken = [i for i in rows if not named[i].empty]
        table = _planned([requests[i] for i in spoken], "group", settings, specs)
        counts = Counter(named[i].response for i in spoken)
        for i in rows:
            named[i] = replace(named[i], group=len(groups))
        tables.append(table)
        groups.append((counts, tuple(dict.fromkeys(keys_of(table)))))
    return Asked(_each_once(pa.concat_tables(tables)), tuple(named), tuple(groups))


def keys_of(judged: pa.Table) -> list[Key]:
    """What each row of TASKS or JUDGMENTS is about."""
    columns = (judged[name].to_pylist() for name in ("question_id", "response_a", "response_b"))
    return list(zip(*columns, strict=True))


def _planned(
    requests: Sequence[RewardRequest], mode: str, settings: RewardConfig, specs: Mapping[str, Spec]
) -> pa.Table:
    """TASK_TEXTS of these requests in one mode."""
    if not requests:
        return TASK_TEXTS.empty_table()
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for request in requests:
        question, answer = question_id(request), response_id(request.completion)
        rows[question, answer] = _response(request, question, answer, request.completion)
        if mode == "anchor":
            rows[question, REFERENCE] = _response(request, question, REFERENCE, request.reference or "")
    table = from_rows(list(rows.values()), RESPONSES)
    spec = specs["score" if mode == "score" else "compare"]
    return with_texts(plan(table, [spec], _design(mode, len(rows), settings), []), table)


def _design(mode: str, responses: int, settings: RewardConfig) -> PlanConfig:
    """How responses are paired. Rounds of matchings give each of an even number as many opponents as there are rounds;
    of an odd number one sits out each round, and it takes a round more for each to have as many."""
    shared: dict[str, Any] = {"orders": "both" if settings.both_orders else "one", "seed": settings.seed}
    if mode == "anchor":
        return PlanConfig(design="anchor", anchor=REFERENCE, **shared)
    if mode == "group" and settings.opponents is not None and settings.opponents < responses - 1:
        return PlanConfig(design="matching", rounds=settings.opponents + responses % 2, **shared)
    return PlanConfig(**shared)


def _response(request: RewardRequest, question: str, answer: str, text: str) -> dict[str, Any]:
    return {
        "question_id": question,
        "messages": [{"role": m["role"], "content": m["content"]} for m in request.messages],
        "reference": request.reference,
        "response_id": answer,
        "model": answer,
        "replies": [text],
    }


def _each_once(tasks: pa.Table) -> pa.Table:
    ids = tasks["task_id"].to_pylist()
    first = {task: i for i, task in reversed(list(enumerate(ids)))}
    return tasks if len(first) == len(ids) else tasks.take(sorted(first.values()))


def _given(reference: str | None) -> bool:
    return bool(reference and reference.strip())
