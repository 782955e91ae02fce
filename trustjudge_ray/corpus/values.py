"""What the value of one field means, and which values mean nothing.

ids are text whatever they were: 81 and "81" are the same id. 81.0 is "81", because tools that know no whole numbers
    write that; a text "81.0" stays what it is. Floats of 2^53 or more name no single number and are refused, like
    true, false, lists and objects. An empty id is a missing one.
texts are strings, or whole numbers, which JSON writes in one way only. A number with decimals is refused: its digits
    as written are lost (1.50). A list of `{"type": "text", "text": …}` parts is their texts joined. Any other object
    is refused, never printed as text.
numbers may be written as text; NaN, N/A and blank text are null; infinite is refused.
"""

import math
import re
from typing import Any, Final

from trustjudge_ray.corpus.objects import Rejection, compact_json, kind_of, names_of, sayable
from trustjudge_ray.judging.slots import reply_text

ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function", "context")

_NUMBER = re.compile(r"\s*[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII)
_EXACT_FLOATS = 2**53


class UnreadableError(Exception):
    """A value cannot be what it should be; `rejection` says why. Raised for one row, caught for that row."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.rejection = Rejection(reason, detail)


def id_text(value: Any, where: str) -> str:
    """An id as text; `where` names the field in messages, here and below."""
    if isinstance(value, str):
        if not value.strip():
            raise UnreadableError("missing_field", f"{where} is empty; an id is a text or a number")
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        if not value.is_integer():
            return repr(value)
        if abs(value) < _EXACT_FLOATS:
            return str(int(value))
        raise UnreadableError("wrong_type", f"{where}: {value!r} stands for several whole numbers; write ids as text")
    raise UnreadableError("wrong_type", f"{where}: {kind_of(value)}; an id is a text or a number")


def text(value: Any, where: str) -> str:
    """A text, unchanged; a whole number as it is written; content parts joined."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        raise UnreadableError("wrong_type", f"{where}: {kind_of(value)} where text is meant; put it in quotes")
    if _is_parts(value):
        return "".join(part["text"] for part in value)
    other = (
        [part["type"] for part in value if isinstance(part, dict) and "type" in part] if isinstance(value, list) else []
    )
    if other:
        kinds = ", ".join(dict.fromkeys(str(kind)[:40] for kind in other))
        raise UnreadableError("wrong_type", f"{where}: parts of the types {kinds}; parts of type text alone are read")
    raise UnreadableError("wrong_type", f"{where}: {kind_of(value)} where text is meant")


def number(value: Any, where: str) -> float | None:
    """A finite number, also one written as text; None where there is none (null, NaN, N/A, blank)."""
    if value is None or (isinstance(value, str) and value.strip().lower() in ("", "nan", "n/a")):
        return None
    found = math.nan
    written = isinstance(value, str) and _NUMBER.fullmatch(value)
    if written or (isinstance(value, int | float) and not isinstance(value, bool)):
        try:
            found = float(value)
        except OverflowError:
            found = math.inf
    if not math.isfinite(found):
        raise UnreadableError("wrong_type", f"{where}: {kind_of(value)} where a number is meant")
    return found


def messages(value: Any, where: str) -> tuple[list[dict[str, str]], bool]:
    """A conversation: a text or a list of texts (a user message each), or a list of {role, content}.

    Returns:
        The messages, and whether fields of theirs beside role and content (a tool call, a name) were left out.
    """
    if not isinstance(value, list) or _is_parts(value):
        return [{"role": "user", "content": text(value, where)}], False
    found, ignored = [], False
    for i, turn in enumerate(value):
        if not isinstance(turn, dict):
            found.append({"role": "user", "content": text(turn, f"{where}[{i}]")})
            continue
        role = turn.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise UnreadableError("wrong_type", f"{where}[{i}].role: {kind_of(role)}; one of {', '.join(ROLES)}")
        if turn.get("content") is None:
            raise UnreadableError("missing_field", f"{where}[{i}] has no content; it has {names_of(turn)}")
        found.append({"role": role, "content": text(turn["content"], f"{where}[{i}].content")})
        ignored = ignored or any(turn[key] is not None for key in turn if key not in ("role", "content"))
    return found, ignored


def replies(value: Any, where: str) -> list[str]:
    """The turns of a response: a text, or a list of texts. "" is an empty answer; an empty list is none."""
    if not isinstance(value, list) or _is_parts(value):
        return [text(value, where)]
    if not value:
        raise UnreadableError("missing_field", f'{where} is an empty list; write an empty answer as ""')
    return [text(turn, f"{where}[{i}]") for i, turn in enumerate(value)]


def reference(value: Any, where: str) -> str | None:
    """A reference as one text; several turns are laid out as those of a response are."""
    if value is None or value == []:
        return None
    if not isinstance(value, list) or _is_parts(value):
        return text(value, where)
    return reply_text([text(turn, f"{where}[{i}]") for i, turn in enumerate(value)])


def meta_json(extras: dict[str, Any], flags: list[str]) -> str | None:
    """What else a row said, as compact JSON, with our flags under `flags`; a field of theirs so named is `flags_`.

    What JSON cannot say is there as text, and flagged `kept_as_text`.
    """
    if "flags" in extras:
        extras = {("flags_" if key == "flags" else key): value for key, value in extras.items()}
    extras, changed = sayable(extras)
    if changed:
        flags = [*flags, "kept_as_text"]
    if flags:
        extras = extras | {"flags": flags}
    return compact_json(extras) if extras else None


def _is_parts(value: Any) -> bool:
    """Whether a value is a list of content parts, all of them text."""
    return (
        isinstance(value, list)
        and value != []
        and all(isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str) for p in value)
    )
