"""The slots of a protocol's text, and what a task fills them with.

Slots are filled literally, because answers contain braces.
"""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trustjudge_ray.judging.protocols import Protocol

SLOTS = ("context", "question", "conversation", "answer", "answer_a", "answer_b", "reference")
_SLOT = re.compile(r"\{(" + "|".join(SLOTS) + r")\}")


def fill(template: str, slots: dict[str, str]) -> str:
    """Fill slots literally, once: text that was filled in is never looked at again."""
    return _SLOT.sub(lambda match: slots[match.group(1)], template)


def pieces(template: str) -> list[tuple[bool, str]]:
    """The template cut at its slots: (is_slot, literal text or slot name) in order, empty literals left out."""
    parts, end = [], 0
    for match in _SLOT.finditer(template):
        parts += [(False, template[end : match.start()]), (True, match.group(1))]
        end = match.end()
    parts.append((False, template[end:]))
    return [part for part in parts if part[0] or part[1]]


def task_slots(protocol: "Protocol", task: dict) -> dict[str, str]:
    """The text of every slot for one TASK_TEXTS row, in the order in which the answers are shown.

    `question` is what the user asked: the only turn as it is, several turns numbered like those of a reply. `context`
    is what it is asked about: the messages of the role `context`.
    """
    users = [m["content"] for m in task["messages"] if m["role"] == "user"]
    slots = {
        "context": "\n\n".join(m["content"] for m in task["messages"] if m["role"] == "context"),
        "question": reply_text(users) if users else "",
        "conversation": conversation(task["messages"], []),
        "reference": task["reference"] or "",
    }
    if protocol.kind == "answer":
        return slots
    shown = [task["replies_a"]] if task["replies_b"] is None else [task["replies_a"], task["replies_b"]]
    if task["order"] == "BA":
        shown.reverse()
    names = ["answer_a", "answer_b"] if protocol.kind == "compare" else ["answer"]
    return slots | {name: reply_text(replies) for name, replies in zip(names, shown, strict=True)}


def reply_text(replies: list[str]) -> str:
    """A response as one text: its only turn as it is, several turns one after the other, numbered."""
    if len(replies) == 1:
        return replies[0]
    return "\n\n".join(f"[Turn {i}]\n{reply}" for i, reply in enumerate(replies, 1))


def slots_in(template: str) -> tuple[str, ...]:
    """The names of the template's slots, in order."""
    return tuple(match.group(1) for match in _SLOT.finditer(template))


def conversation(messages: list[dict], replies: list[str]) -> str:
    """The turns up to the answer, each under its role."""
    turns = [f"[{m['role']}]\n{m['content']}" for m in messages]
    return "\n\n".join(turns + [f"[assistant]\n{reply}" for reply in replies])
