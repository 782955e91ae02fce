"""Excerpts of preference pairs, short enough to stand side by side on a page: plain text, escaped where it is shown."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_ASKED: Final = 300
_ANSWERED: Final = 400
"""Characters that are shown of the prompt's last user turn, and of each answer."""
_LEAD: Final = 40
"""Characters before the first difference that are shown of answers that begin alike for long."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Of a pair: the prompt's last user turn, how many messages came before it, and both answers; ` … ` is where
    something is left out."""

    asked: str
    before: int
    chosen: str
    rejected: str


def excerpts(pairs: Iterable[Mapping[str, Any]]) -> dict[str, Excerpt]:
    """By pair id.

    Args:
        pairs: PREFERENCES rows.
    """
    return {pair["pair_id"]: _excerpt(pair) for pair in pairs}


def _excerpt(pair: Mapping[str, Any]) -> Excerpt:
    prompt = pair["prompt"]
    turns = [place for place, message in enumerate(prompt) if message["role"] == "user"]
    place = turns[-1] if turns else len(prompt) - 1
    asked = prompt[place]["content"] or "" if prompt else ""
    chosen, rejected = answers(_spoken(pair["chosen"]), _spoken(pair["rejected"]))
    return Excerpt(question(asked), max(place, 0), chosen, rejected)


def _spoken(messages: Sequence[Mapping[str, Any]]) -> str:
    """An answer as one text; of several turns each says whose it is."""
    if len(messages) == 1:
        return messages[0]["content"] or ""
    return "\n".join(f"{message['role']}: {message['content'] or ''}" for message in messages)


def question(text: str) -> str:
    """A user's turn: of a long one the beginning and the end, where what is asked often stands."""
    if len(text) <= _ASKED:
        return text
    end = _ASKED // 3
    return f"{text[: _ASKED - end].rstrip()} … {text[-end:].lstrip()}"


def answers(chosen: str, rejected: str) -> tuple[str, str]:
    """Two answers from their beginning; long ones that begin alike for half of what is shown, from shortly before the
    first difference on."""
    alike = next((i for i, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b), None)
    alike = min(len(chosen), len(rejected)) if alike is None else alike
    long = max(len(chosen), len(rejected)) > _ANSWERED
    start = alike - _LEAD if long and alike >= _ANSWERED // 2 else 0
    return _from(chosen, start), _from(rejected, start)


def _from(text: str, start: int) -> str:
    shown = text[start : start + _ANSWERED]
    return ("… " if start else "") + shown + (" …" if start + _ANSWERED < len(text) else "")
