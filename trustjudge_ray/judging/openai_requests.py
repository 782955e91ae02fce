"""What is asked of an OpenAI-compatible endpoint about one task, whatever the route."""

import math
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from trustjudge_ray.identity import seed_of
from trustjudge_ray.judging.base import Reading
from trustjudge_ray.judging.labels import LabelError
from trustjudge_ray.judging.openai_answers import choices
from trustjudge_ray.judging.protocols import Protocol

DRAWN_TOKENS = 16
"""Room for a drawn label and what ends it."""
_ONE_TOKEN = {"score": "score-5", "compare": "compare", "verify": "verify-right-yes-no"}
"""Of each kind with labels, a built-in protocol whose labels are single tokens for most models."""


@dataclass(frozen=True, slots=True)
class Request:
    """The body of a request, without the model's name. `writes`: the judge writes freely, up to the body's budget."""

    body: dict[str, Any]
    writes: bool = False


Requests: TypeAlias = Generator[Request, Any, Reading]


@dataclass(frozen=True, slots=True)
class Talk:
    """What is asked about one task.

    Attributes:
        requests: yields each request and is sent the endpoint's answer; returns the label distribution.
        known: fields of the reading that are known so far, also where a later request fails.
    """

    requests: Requests
    known: dict[str, Any] = field(default_factory=dict)


def draws(body: dict[str, Any], said: Callable[[Any], str], task_id: str, n: int, protocol: Protocol) -> Requests:
    """`n` drawn verdicts, in one request if the endpoint gives as many as it is asked for."""
    drawn: list[str] = []
    while len(drawn) < n:
        left = n - len(drawn)
        seed = seed_of("draw", task_id, str(len(drawn)))
        answer = yield Request(body | {"n": left} | seeded(seed))
        drawn += [said(choice) for choice in choices(answer)][:left]
    return counted(drawn, protocol)


def counted(drawn: Sequence[str], protocol: Protocol) -> Reading:
    """A distribution from drawn verdicts: ln of each label's share of *all* draws; a label never drawn has −inf.

    What is not exactly a label is in no label's share, so the label mass is the share that could be read.
    """
    counts = Counter(drawn)
    shares = [counts[label] / len(drawn) for label in protocol.label_texts]
    if not any(shares):
        return Reading("no_label_mass", detail=f"none of {len(drawn)} draws is a label; the first is {drawn[0][:60]!r}")
    return Reading(label_logprobs=[math.log(share) if share else -math.inf for share in shares])


def seeded(seed: int | None) -> dict[str, int]:
    """Within the 31 bits that every server takes."""
    return {} if seed is None else {"seed": seed % 2**31}


def advice(protocol: Protocol) -> str:
    """What to do where a label is not one token."""
    return (
        f"use a protocol whose labels are single tokens, such as {_ONE_TOKEN[protocol.kind]}, or engine vllm, which "
        "reads labels of several, or distribution: sampled"
    )


def several_tokens(protocol: Protocol, label: str, tokens: Sequence[str]) -> LabelError:
    return LabelError(
        f"protocol {protocol.name}: an endpoint's answer is read at one token, and label {label!r} takes several "
        f"({list(tokens)}); {advice(protocol)}"
    )


def not_a_logprob(what: str) -> Reading:
    return Reading("bad_logprob", detail=f"the log-probability of {what} is not one")
