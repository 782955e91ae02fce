"""What an OpenAI-compatible endpoint's answers hold: JSON of which nothing is believed before it was looked at."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

ZERO = -9999.0
"""Servers that cannot send −inf send this, or less."""


class AnswerError(ValueError):
    """An endpoint's answer does not hold what was asked for."""


def choices(answer: Any) -> list[Any]:
    """The choices of an answer, at least one.

    Raises:
        AnswerError: there are none.
    """
    found = mapping(answer).get("choices")
    if not isinstance(found, list) or not found:
        raise AnswerError("the endpoint's answer has no choices")
    return found


def usage(answers: Sequence[Any]) -> dict[str, Any]:
    """`prompt_tokens` and `cached_tokens` as the endpoint counted them, summed over a task's requests; None where it
    does not say."""
    counts = [_counts(answer) for answer in answers]
    return {
        name: sum(one[name] for one in counts) if counts and all(one[name] is not None for one in counts) else None
        for name in ("prompt_tokens", "cached_tokens")
    }


def tokens_written(answer: Any, thought: bool) -> int | None:
    """How many tokens the endpoint counted in what was written, without thinking; None where it does not say.

    `thought`: the judge thought, so that the count is none unless the endpoint tells how much of it was thinking.
    """
    told = _usage(answer)
    count, details = _count(told.get("completion_tokens")), told.get("completion_tokens_details")
    thinking = _count(details.get("reasoning_tokens")) if isinstance(details, dict) else None
    if count is None or (thought and thinking is None):
        return None
    return max(count - (thinking or 0), 0)


def first_token(answer: Any) -> Mapping[str, Any]:
    """The first token of a chat answer, with its log-probabilities.

    Raises:
        AnswerError: none is listed.
    """
    tokens = chat_tokens(choices(answer)[0])
    if not tokens:
        raise unlisted(choices(answer)[0])
    return mapping(tokens[0])


def chat_tokens(choice: Any) -> list[Any]:
    """The tokens of one choice of a chat answer, as they are listed with their log-probabilities; often none."""
    logprobs = mapping(choice).get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return content if isinstance(content, list) else []


def unlisted(choice: Any) -> AnswerError:
    """What to say where log-probabilities were asked for and none came."""
    if mapping(choice).get("finish_reason") == "content_filter":
        return AnswerError("the endpoint's content filter withheld the answer")
    return AnswerError("the endpoint's answer lists no log-probabilities")


def most_probable(pairs: Sequence[tuple[str, float]], most: int) -> list[tuple[str, float]]:
    """The `most` highest: some endpoints list the token that was drawn besides, whose presence is chance.

    Raises:
        AnswerError: there are none.
    """
    if not pairs:
        raise AnswerError("the endpoint's answer lists no log-probabilities")
    if len(pairs) <= most or any(math.isnan(value) for _, value in pairs):
        return list(pairs)
    return sorted(pairs, key=lambda pair: -pair[1])[:most]


def mapping(value: Any) -> Mapping[str, Any]:
    """A JSON object, or an AnswerError."""
    if not isinstance(value, dict):
        raise AnswerError(f"the endpoint's answer has {type(value).__name__} where a mapping is meant")
    return value


def text(value: Any) -> str:
    """A JSON string, or an AnswerError."""
    if not isinstance(value, str):
        raise AnswerError(f"the endpoint's answer has {type(value).__name__} where a text is meant")
    return value


def number(value: Any) -> float:
    """A log-probability; null is NaN, which JSON cannot write otherwise."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AnswerError(f"the endpoint's answer has {type(value).__name__} where a log-probability is meant")
    try:
        return float(value)
    except OverflowError:
        raise AnswerError("the endpoint's answer has a log-probability of hundreds of digits") from None


def _counts(answer: Any) -> dict[str, Any]:
    told = _usage(answer)
    details = told.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return {"prompt_tokens": _count(told.get("prompt_tokens")), "cached_tokens": _count(cached)}


def _usage(answer: Any) -> Mapping[str, Any]:
    told = answer.get("usage") if isinstance(answer, dict) else None
    return told if isinstance(told, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
