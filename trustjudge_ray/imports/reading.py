"""One judgment as the reference program stores it → what its judge said at the verdict."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from trustjudge_ray.imports.base import clean_text, number
from trustjudge_ray.imports.extraction import Unreadable, clean, merged, verdict_position


@dataclass(frozen=True, slots=True)
class Reading:
    """The verdict's tokens with their probabilities, the token sampled, and what belongs to the whole output."""

    probs: dict[str, float]
    sampled: str
    cumulative_logprob: float | None
    output_tokens: int


def read_judgment(judgment: Mapping[str, Any], labels: Collection[str]) -> Reading:
    """Find the verdict in one stored judgment.

    `output_probs` holds for each token of the output a dictionary token → probability, the sampled one first
    (vLLM) or the most probable one (OpenAI). Token ids with one text have overwritten each other there, and the
    sampled token may be missing; `original_output_logprobs` tells both, and is followed where it agrees.

    Raises:
        Unreadable: there is no verdict, or no probabilities.
    """
    positions = judgment.get("output_probs")
    if not isinstance(positions, list) or not all(isinstance(position, dict) for position in positions):
        raise Unreadable("no token probabilities (`output_probs`)")
    originals, ids = judgment.get("original_output_logprobs"), judgment.get("output_token_ids")
    aligned = isinstance(originals, list) and len(originals) == len(positions)
    details: list[Any] = originals if aligned and originals else [None] * len(positions)
    token_ids = ids if isinstance(ids, list) and len(ids) == len(positions) else [None] * len(positions)
    written = [_written(*where) for where in zip(positions, details, token_ids, strict=True)]
    at = verdict_position(written, labels)
    sampled = written[at]
    assert sampled is not None  # it is a label
    return Reading(
        probs=merged(_listing(positions[at], details[at]).items()),
        sampled=clean(sampled),
        cumulative_logprob=number(judgment.get("cumulative_logprob")),
        output_tokens=len(originals) if isinstance(originals, list) else len(positions),
    )


def output_text(judgment: Mapping[str, Any]) -> str | None:
    """All that the judge wrote."""
    text = judgment.get("output_text")
    return clean_text(text) if isinstance(text, str) else None


def _written(position: dict[str, Any], detail: Any, token_id: Any) -> str | None:
    """The token that was sampled at a position."""
    if isinstance(detail, dict):
        if isinstance(detail.get("token"), str) and isinstance(detail.get("top_logprobs"), list):
            return detail["token"]
        chosen = detail.get(str(token_id))
        if isinstance(chosen, dict) and chosen.get("decoded_token") in position:
            return chosen["decoded_token"]
    return next(iter(position), None)


def _listing(position: dict[str, Any], detail: Any) -> dict[str, float]:
    """Token → probability, those of several token ids with one text added up."""
    listed = {token: math.nan if (p := number(value)) is None else p for token, value in position.items()}
    if not isinstance(detail, dict):
        return listed
    if isinstance(detail.get("top_logprobs"), list):
        entries = [*detail["top_logprobs"], {**detail, "alone": True}]
    else:
        entries = list(detail.values())
    summed: dict[str, float] = {}
    counts: dict[str, int] = {}
    for entry in entries:
        text = entry.get("decoded_token", entry.get("token")) if isinstance(entry, dict) else None
        logprob = number(entry.get("logprob")) if isinstance(entry, dict) else None
        if not isinstance(text, str) or logprob is None:
            return listed
        if entry.get("alone") and text in counts:
            continue
        summed[text] = summed.get(text, 0.0) + math.exp(logprob)
        counts[text] = counts.get(text, 0) + 1
    if not set(listed) <= set(summed):
        return listed
    return {text: listed[text] if text in listed and counts[text] == 1 else p for text, p in summed.items()}
