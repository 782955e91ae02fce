"""Prompts as token ids, in which a response cannot leave its slot.

The chat template is rendered once; its text and the protocol's are tokenised once, control tokens recognised. The
texts of a task are tokenised apart, without control tokens, and spliced in. So the ids outside a slot are the same
whatever the slot holds: this is guaranteed, at the price that tokens do not reach over a slot's edge. The splice equals
the tokenisation of the whole text where that has token boundaries at the edges, which protocols provide by newlines; it
differs where a tokenizer joins what meets at an edge (`.` and an empty line in one token, in some families).
"""

import re
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from trustjudge_ray.identity import joined_hash
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.judging.templates import PINNED_DATE, Rendering, TemplateError, render
from trustjudge_ray.judging.tokens import Tokenizer, beginning_ids, control_ids, foreign_ids, own_ids

Ids: TypeAlias = "array[int]"
RESPONSE_SLOTS = ("answer", "answer_a", "answer_b")
"""The only slots whose texts are cut when a prompt is too long."""
ELLIPSIS = "\n[...]\n"
"""What stands where the middle of a response was cut out."""
MIN_KEPT = 8
"""A response is never cut to fewer tokens of its own than this; the prompt is too long instead."""
_CACHED_CHARACTERS = 16_000_000
_MARKER = re.compile(r"<[^<>\n]{1,60}>|\[/?[A-Z_]{2,}\]")
_NEAR = 80


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt up to where the assistant's turn begins.

    `truncated`: responses were cut. `too_long`: it does not fit and was not cut; token_ids are the whole prompt's.
    """

    token_ids: list[int]
    truncated: bool
    too_long: bool


class PromptBuilder:
    """Builds the prompts of one protocol for one tokenizer.

    Attributes:
        rendered: the prompt as text, slots shown as {answer}.
        template_hash: 32 hex digits over the rendered template and its slots; part of a task's identity.
        system_folded: the template has no system role; the system text begins the first user turn.
        isolated: a response cannot leave its slot. False where markers of the template are plain text.
        notes: what whoever reads the judgments must know about the template.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        protocol: Protocol,
        *,
        max_prompt_tokens: int | None = None,
        on_overflow: Literal["truncate", "fail"] = "truncate",
        template_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """`max_prompt_tokens` is the limit for a prompt's token_ids; None is no limit.

        Raises:
            TemplateError: the tokenizer or its chat template cannot carry the protocol's texts safely.
        """
        if on_overflow not in ("truncate", "fail"):
            raise ValueError(f"on_overflow: got {on_overflow!r}; one of truncate, fail")
        if not tokenizer.is_fast:
            raise TemplateError("the judge's tokenizer is not a fast one; only those keep chat markers as text")
        rendering = render(tokenizer, protocol, template_arguments or {})
        self._tokenizer = tokenizer
        self._control = control_ids(tokenizer)
        self._max, self._on_overflow = max_prompt_tokens, on_overflow
        self._texts = _TextCache(lambda text: foreign_ids(tokenizer, text, self._control), _CACHED_CHARACTERS)
        self._parts = self._tokenised(rendering)
        self._slots = tuple(part for part in self._parts if isinstance(part, str))
        self._literal_tokens = sum(len(part) for part in self._parts if not isinstance(part, str))
        self._ellipsis = array("i", foreign_ids(tokenizer, ELLIPSIS, self._control))
        self.rendered = "".join("{" + text + "}" if is_slot else text for is_slot, text in rendering.parts)
        self.template_hash = joined_hash(*(("slot:" if s else "text:") + text for s, text in rendering.parts))
        self.system_folded = rendering.system_folded
        plain = self._plain_markers(rendering)
        self.isolated = not plain
        self.notes = _notes(rendering, plain)

    def build(self, slots: Mapping[str, str]) -> Prompt:
        """The prompt for one task; `slots` holds a text for every slot of the protocol (others are not looked at).

        Over the limit, responses are cut in the middle, the longer of a pair first, until both are equally long;
        which one is shown first makes no difference. It is too long where the other texts alone leave them no room.

        Raises:
            KeyError: a slot has no text.
            TokenError: a text cannot be kept apart from control tokens (see `tokens.foreign_ids`).
        """
        texts, truncated, too_long = self._fitted(slots)
        return Prompt(self._spliced(texts), truncated, too_long)

    def _fitted(self, slots: Mapping[str, str]) -> tuple[dict[str, Ids], bool, bool]:
        """The ids of each slot's text within the limit, whether responses were cut for it, whether it is too long."""
        texts = {name: self._texts[slots[name]] for name in self._slots}
        size = self._literal_tokens + sum(len(texts[name]) for name in self._slots)
        if self._max is None or size <= self._max:
            return texts, False, False
        responses = [name for name in RESPONSE_SLOTS if name in texts]
        room = self._max - size + sum(len(texts[name]) for name in responses)
        limit = _equal_limit([len(texts[name]) for name in responses], room)
        if self._on_overflow == "fail" or limit < len(self._ellipsis) + MIN_KEPT:
            return texts, False, True
        return texts | {name: _cut_middle(texts[name], limit, self._ellipsis) for name in responses}, True, False

    def size(self, slots: Mapping[str, str]) -> int:
        """How many tokens the whole prompt of a task has, before anything is cut."""
        return self._literal_tokens + sum(len(self._texts[slots[name]]) for name in self._slots)

    def laid_out(self, slots: Mapping[str, str]) -> list[tuple[str | None, list[int]]]:
        """The token ids of `build`'s prompt part by part: with the slot's name, or None for the template's text."""
        texts, _, _ = self._fitted(slots)
        return [(p, list(texts[p])) if isinstance(p, str) else (None, list(p)) for p in self._parts]

    def _spliced(self, texts: Mapping[str, Ids]) -> list[int]:
        ids: list[int] = []
        for part in self._parts:
            ids.extend(texts[part] if isinstance(part, str) else part)
        return ids

    def _tokenised(self, rendering: Rendering) -> list[list[int] | str]:
        """Literals as token ids and slots as names, in order."""
        (_, first), *rest = rendering.parts
        parts: list[list[int] | str] = [beginning_ids(self._tokenizer, first)]
        parts += [text if is_slot else own_ids(self._tokenizer, text) for is_slot, text in rest]
        return parts

    def _plain_markers(self, rendering: Rendering) -> list[str]:
        """The template's markers around the slots' turn that are not control tokens: what a response could imitate."""
        near = (rendering.before_user[-_NEAR:], rendering.after_user)
        markers = dict.fromkeys(marker for text in near for marker in _MARKER.findall(text))
        plain = [marker for marker in markers if not self._is_control(own_ids(self._tokenizer, marker))]
        turn_end = rendering.after_user.lstrip()
        if self._control.isdisjoint(own_ids(self._tokenizer, turn_end)[:1]):
            plain.append(turn_end.rstrip() or "(nothing between the turns)")
        return list(dict.fromkeys(plain))

    def _is_control(self, ids: list[int]) -> bool:
        return len(ids) == 1 and ids[0] in self._control


def _notes(rendering: Rendering, plain_markers: list[str]) -> list[str]:
    notes = []
    if plain_markers:
        notes.append(
            f"the chat template's markers {plain_markers} are plain text for this tokenizer, not control tokens: a "
            f"response can imitate them, so it is not guaranteed that it cannot leave its slot"
        )
    if rendering.system_folded:
        notes.append("the chat template has no system role: the system text stands at the head of the first user turn")
    if rendering.dated:
        notes.append(f"the chat template states the date: it is told {PINNED_DATE:%Y-%m-%d} on every day")
    start, meant = rendering.after_user, rendering.answer_start
    if meant is not None and start.split() != meant.split():
        notes.append(
            f"the verdict is read after {start!r}, but in the chat template's earlier turns an answer follows "
            f"{meant!r}: set judge.template_arguments (for many models enable_thinking: false) so that the two agree"
        )
    return notes


def _equal_limit(lengths: list[int], room: int) -> int:
    """The greatest length such that texts cut to it fit into `room` together; the same in whatever order they come."""
    left = sorted(lengths)
    while left and left[0] * len(left) <= room:
        room -= left.pop(0)
    return room // len(left) if left else max(lengths, default=0)


def _cut_middle(ids: Ids, limit: int, ellipsis: Ids) -> Ids:
    """`ids` as they are, or their beginning and end around the ellipsis, `limit` ids in all."""
    if len(ids) <= limit:
        return ids
    kept = limit - len(ellipsis)
    head = (kept + 1) // 2
    return ids[:head] + ellipsis + ids[len(ids) - (kept - head) :]


class _TextCache:
    """The ids of the texts seen last, up to so many characters: the same answers come in many pairs."""

    def __init__(self, tokenise: Callable[[str], list[int]], characters: int) -> None:
        self._tokenise, self._room = tokenise, characters
        self._ids: OrderedDict[str, Ids] = OrderedDict()

    def __getitem__(self, text: str) -> Ids:
        if text in self._ids:
            self._ids.move_to_end(text)
            return self._ids[text]
        ids = self._ids[text] = array("i", self._tokenise(text))
        self._room -= len(text)
        while self._room < 0 and len(self._ids) > 1:
            self._room += len(self._ids.popitem(last=False)[0])
        return ids
