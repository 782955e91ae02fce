"""A chat template rendered once, with a mark in each slot, and refused where it cannot be trusted with them.

A template is a program of the model's authors. It may drop the system text, raise on it, escape or lower-case what it
is given, or write today's date. So it is tried on probe texts first: each must come out once and unchanged.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.judging.slots import fill, pieces
from trustjudge_ray.judging.tokens import Tokenizer

PINNED_DATE = datetime(2025, 1, 1)
"""What a template that states the date is told, so that a prompt is the same on every day."""
_ODD = """Aa <b>&amp;</b> "q" 'a' {x} {{ y }} {% z %} \\n $1 %s
 \t  É ß ﬁ ５ #tag\n\n\nEnd"""
_SYSTEM, _USER, _ASSISTANT = "system", "user", "assistant"


class TemplateError(ValueError):
    """A chat template cannot carry a protocol's texts: says what came out wrong, and what to change."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """A protocol's prompt in a chat template.

    Attributes:
        parts: (is_slot, literal text or slot name) in order; the first and the last are literals, perhaps empty.
        system_folded: the template has no system role, so the system text begins the first user turn.
        before_user, after_user: the template's own text around the turn that holds the slots; the latter begins the
            assistant's turn.
        answer_start: what stands there in the template where a verdict follows as an earlier turn, or None where it
            cannot be told. Where it differs, the verdict is read at a place that the model does not know.
        dated: the template states a date, which is pinned to PINNED_DATE.
    """

    parts: tuple[tuple[bool, str], ...]
    system_folded: bool
    before_user: str
    after_user: str
    answer_start: str | None
    dated: bool


def render(tokenizer: Tokenizer, protocol: Protocol, arguments: Mapping[str, Any]) -> Rendering:
    """The protocol's system text, worked examples and user text in the tokenizer's chat template.

    `arguments` go to the template (`enable_thinking`, `chat_template`, …).

    Raises:
        TemplateError: there is no template, it fails, or a text would not come out once, in order and unchanged.
    """
    clock = _PinnedClock()
    given = {"date_string": PINNED_DATE.strftime("%d %b %Y"), "strftime_now": clock.strftime} | dict(arguments)
    marks = _marks(protocol)
    folded, (before_user, after_user) = _fold_or_not(tokenizer, protocol, given)
    messages = _messages(protocol, _marked(protocol, marks), folded)
    text = _apply(tokenizer, messages, given)
    parts = _cut(text, marks, protocol)
    _check_literals(parts, messages, protocol, marks)
    dated = clock.asked or PINNED_DATE.strftime("%d %b %Y") in text
    return Rendering(parts, folded, before_user, after_user, _answer_start(tokenizer, given), dated)


class _PinnedClock:
    """The `strftime_now` that templates call, always on PINNED_DATE."""

    def __init__(self) -> None:
        self.asked = False

    def strftime(self, form: str) -> str:
        self.asked = True
        return PINNED_DATE.strftime(form)


def _messages(protocol: Protocol, user: str, folded: bool) -> list[dict[str, str]]:
    """The conversation whose last turn is `user`; folded, the system text begins the first user turn."""
    turns = [{"role": _SYSTEM, "content": protocol.system}] if protocol.system.strip() else []
    for example in protocol.examples:
        turns.append({"role": _USER, "content": fill(protocol.user, example.slots)})
        turns.append({"role": _ASSISTANT, "content": protocol.said(example)})
    turns.append({"role": _USER, "content": user})
    if folded and turns[0]["role"] == _SYSTEM:
        system = turns.pop(0)["content"]
        turns[0] = {"role": _USER, "content": f"{system.rstrip()}\n\n{turns[0]['content']}"}
    return turns


def _fold_or_not(tokenizer: Tokenizer, protocol: Protocol, given: Mapping[str, Any]) -> tuple[bool, tuple[str, str]]:
    """Whether the system text must be folded, found with probe texts, and the template's text around the last turn."""
    try:
        return False, _probe(tokenizer, _messages(protocol, protocol.user, False), given)
    except TemplateError as error:
        if not protocol.system.strip():
            raise
        try:
            return True, _probe(tokenizer, _messages(protocol, protocol.user, True), given)
        except TemplateError as second:
            raise TemplateError(f"{second} (with a system turn of its own: {error})") from error


def _probe(tokenizer: Tokenizer, messages: list[dict[str, str]], given: Mapping[str, Any]) -> tuple[str, str]:
    """Render probe texts in place of the messages'; the template's own text before and after the last one."""
    probes = [f"Probe{chr(65 + i // 26)}{chr(65 + i % 26)}x{_ODD}x" for i in range(len(messages))]
    text = _apply(tokenizer, [m | {"content": p} for m, p in zip(messages, probes, strict=True)], given)
    starts = [_found(text, probe, message["role"]) for message, probe in zip(messages, probes, strict=True)]
    turns = [start for start, message in zip(starts, messages, strict=True) if message["role"] != _SYSTEM]
    if turns != sorted(turns) or starts[-1] != max(starts):
        raise TemplateError(
            "the chat template moves turns; set judge.template_arguments.chat_template to one that keeps their order"
        )
    before = max(
        (start + len(probe) for start, probe in zip(starts, probes, strict=True) if start < starts[-1]), default=0
    )
    return text[before : starts[-1]], text[starts[-1] + len(probes[-1]) :]


def _found(text: str, probe: str, role: str) -> int:
    """Where in a rendered text a probe stands, once and unchanged."""
    name = probe[: probe.index("x") + 1]
    if text.count(name) != 1:
        raise TemplateError(
            f"the chat template gives the {role} text back {text.count(name)} times where once is right; "
            f"set judge.template_arguments.chat_template to one that keeps every turn"
        )
    start = text.index(name)
    got = text[start : start + len(probe)]
    if got != probe:
        raise TemplateError(
            f"the chat template changes the {role} text: {probe!r} came out as {got!r}; "
            f"set judge.template_arguments.chat_template to one that leaves texts as they are"
        )
    return start


def _answer_start(tokenizer: Tokenizer, given: Mapping[str, Any]) -> str | None:
    """The template's own text between a user turn and the assistant's answer to it."""
    turns = [{"role": _USER, "content": "ProbeUserx"}, {"role": _ASSISTANT, "content": "ProbeAnswerx"}]
    try:
        text = _apply(tokenizer, turns, given, generation=False)
    except TemplateError:
        return None
    found = re.search("ProbeUserx(.*?)ProbeAnswerx", text, re.DOTALL)
    return found.group(1) if found else None


def _apply(
    tokenizer: Tokenizer, messages: list[dict[str, str]], given: Mapping[str, Any], generation: bool = True
) -> str:
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation, **given)
    except Exception as error:  # a template is a foreign program and may raise anything
        raise TemplateError(f"the chat template fails: {type(error).__name__}: {error}") from error
    if not isinstance(text, str):
        raise TemplateError(f"the chat template gave {type(text).__name__} where a text is meant")
    return text


def _marks(protocol: Protocol) -> list[str]:
    """A mark for each slot of the user text, one that occurs in none of the protocol's texts."""
    own = repr(protocol)
    salt = 0
    while f"Slot{salt}x" in own:
        salt += 1
    return [f"Slot{salt}x{i}z" for i, _ in enumerate(protocol.slots)]


def _marked(protocol: Protocol, marks: list[str]) -> str:
    left = iter(marks)
    return "".join(next(left) if is_slot else text for is_slot, text in pieces(protocol.user))


def _cut(text: str, marks: list[str], protocol: Protocol) -> tuple[tuple[bool, str], ...]:
    """The rendered text cut at its marks, which must be there once each and in order."""
    found = re.findall("|".join(marks), text)
    if found != marks:
        raise TemplateError(
            f"protocol {protocol.name}: the slots {list(protocol.slots)} did not come out of the chat template once "
            f"each and in order; set judge.template_arguments.chat_template to one that leaves texts as they are"
        )
    literals = re.split("|".join(marks), text)
    parts: list[tuple[bool, str]] = [(False, literals[0])]
    for name, literal in zip(protocol.slots, literals[1:], strict=True):
        parts += [(True, name), (False, literal)]
    return tuple(parts)


def _check_literals(
    parts: tuple[tuple[bool, str], ...], messages: list[dict[str, str]], protocol: Protocol, marks: list[str]
) -> None:
    """Every text of the protocol is in the rendering; only its two ends may have been trimmed."""
    text = "".join(part for is_slot, part in parts if not is_slot)
    literals = [part for is_slot, part in parts if not is_slot]
    meant = re.split("|".join(marks), messages[-1]["content"])
    wrong = [m["content"] for m in messages[:-1] if m["content"].strip() not in text]
    wrong += [m for m, got in zip(meant[1:-1], literals[1:-1], strict=True) if m != got]
    if not literals[0].endswith(meant[0].lstrip()):
        wrong.append(meant[0])
    if not literals[-1].startswith(meant[-1].rstrip()):
        wrong.append(meant[-1])
    if wrong:
        raise TemplateError(
            f"protocol {protocol.name}: the chat template changes this text of the protocol: {wrong[0]!r}; reword it, "
            f"or set judge.template_arguments.chat_template to one that leaves texts as they are"
        )
