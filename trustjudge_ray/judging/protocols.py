"""What a judge is asked: kind, labels, texts and worked examples, read from a YAML file.

The file is read as plain YAML in which every scalar stays the text that was written: no interpolation,
and `Yes` stays a word. Slots are filled literally, because answers contain braces.
"""

import math
import re
from dataclasses import asdict, dataclass, fields, replace
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import yaml

from trustjudge_ray.identity import content_hash

SLOTS = ("question", "conversation", "answer", "answer_a", "answer_b", "reference")
_SLOT = re.compile(r"\{(" + "|".join(SLOTS) + r")\}")
_KEYS = {"name", "kind", "labels", "system", "user", "examples", "opener", "closer"}
_TEXT_KEYS = ("name", "kind", "system", "user", "opener", "closer")
_KEYS |= {"rationale", "thinking", "sampling", "samples"}
_COMPARE_LABELS = ("first", "second", "tie")


class ProtocolError(ValueError):
    """A protocol cannot be used: names the file, the key, what it got and what would be right."""


@dataclass(frozen=True, slots=True)
class Example:
    """A worked example: the texts of its slots, the label that is right (its text), and what is written before it."""

    slots: dict[str, str]
    label: str
    rationale: str | None = None


@dataclass(frozen=True, slots=True)
class Rationale:
    """The judge writes freely before its verdict, up to so many tokens or to the verdict's opener."""

    max_tokens: int


@dataclass(frozen=True, slots=True)
class Thinking:
    """A section before rationale and verdict with a budget of its own, closed whatever happened.

    `open` is put before it (unless the chat template has done so) and `close` after it; what the judge writes ends
    where it writes `close` itself. White space around the two markers is put, not waited for.
    """

    max_tokens: int
    open: str = "<think>\n"
    close: str = "\n</think>\n\n"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How rationale and thinking are drawn: at temperature 0 the most probable tokens, else seeded."""

    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Protocol:
    """How one kind of judgment is asked for and read.

    Attributes:
        label_texts: what the judge may say, in the protocol's order: numbers from low to high, any list
            of texts, or for a comparison first, second, tie.
        opener, closer: the verdict is read between them. After a rationale the opener is put as it is; where it
            begins with white space, that replaces the white space at the rationale's end.
        rationale, thinking: what the judge writes before its verdict, if anything; drawn as `sampling` says.
        samples: so many rationales for each task, whose label distributions are averaged.
    """

    name: str
    kind: Literal["score", "compare"]
    label_texts: tuple[str, ...]
    system: str
    user: str
    examples: tuple[Example, ...]
    opener: str
    closer: str
    rationale: Rationale | None = None
    thinking: Thinking | None = None
    sampling: Sampling = Sampling()
    samples: int = 1

    @property
    def writes(self) -> bool:
        """Whether the judge writes anything before its verdict."""
        return self.rationale is not None or self.thinking is not None

    @property
    def values(self) -> tuple[float, ...]:
        """The numbers that the labels of a score stand for: their own, or 1 … K where one is no finite number."""
        return _numbers(self.label_texts) or tuple(float(i + 1) for i in range(len(self.label_texts)))

    @property
    def emitted_names(self) -> tuple[str, ...]:
        """How JUDGMENTS.emitted names the labels: their texts, or `a`, `b`, `tie`."""
        return ("a", "b", "tie") if self.kind == "compare" else self.label_texts

    @property
    def hash(self) -> str:
        """32 hex digits over everything that the judge reads and how it is read.

        Not over `samples`: how many are asked for decides none of them. What is not used does not count either.
        """
        tree = asdict(self)
        del tree["samples"]
        for key in ("rationale", "thinking"):
            if tree[key] is None:
                del tree[key]
        if not self.writes:
            del tree["sampling"]
        for example in tree["examples"]:
            if example["rationale"] is None:
                del example["rationale"]
        return content_hash(tree)

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots that the user text has, in order."""
        return tuple(match.group(1) for match in _SLOT.finditer(self.system + self.user))


def builtin_names() -> list[str]:
    """The protocols that come with the package."""
    folder = resources.files("trustjudge_ray") / "protocols"
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))


def load(name_or_path: str) -> Protocol:
    """A built-in protocol by name, or a user's own by path.

    Raises:
        ProtocolError: there is none of that name, or the file is not a protocol.
    """
    if name_or_path in builtin_names():
        text = (resources.files("trustjudge_ray") / "protocols" / f"{name_or_path}.yaml").read_text("utf-8")
        return parse(text, name_or_path)
    path = Path(name_or_path)
    if not path.is_file():
        raise ProtocolError(f"protocol '{name_or_path}': no such file, and not one of {builtin_names()}")
    try:
        return parse(path.read_text("utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{path}: byte {error.start + 1} is not UTF-8; save the file as UTF-8") from error
    except OSError as error:
        raise ProtocolError(f"{path}: cannot be read: {error.strerror}") from error


def parse(text: str, source: str = "protocol") -> Protocol:
    """A protocol from the text of its file; `source` names it in messages."""
    try:
        tree = yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        raise ProtocolError(f"{source}: not readable as YAML: {error}") from error
    if not isinstance(tree, dict):
        raise ProtocolError(f"{source}: a protocol is a mapping with {sorted(_KEYS)}")
    unknown = sorted(set(tree) - _KEYS)
    if unknown:
        raise ProtocolError(f"{source}: unknown key '{unknown[0]}'; a protocol has {sorted(_KEYS)}")
    for key in _TEXT_KEYS:
        _check_text(tree.get(key, ""), f"{source}: {key}")
    for key in ("name", "kind", "labels", "user", "opener"):
        if not tree.get(key):
            raise ProtocolError(f"{source}: '{key}' is missing")
    if tree["kind"] not in ("score", "compare"):
        raise ProtocolError(f"{source}: kind: got '{tree['kind']}'; one of score, compare")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", tree["name"]):
        raise ProtocolError(f"{source}: name: got '{tree['name']}'; letters, digits, '.', '_' and '-'")
    protocol = Protocol(
        name=tree["name"],
        kind=tree["kind"],
        label_texts=_labels(tree["labels"], tree["kind"], source),
        system=tree.get("system") or "",
        user=tree["user"],
        examples=(),
        opener=tree["opener"],
        closer=tree.get("closer") or "",
        **_written(tree, source),
    )
    _check_slots(protocol, source)
    examples = tuple(
        _example(e, protocol, f"{source}: examples[{i}]") for i, e in enumerate(tree.get("examples") or [])
    )
    return replace(protocol, examples=examples)


def to_yaml(protocol: Protocol) -> str:
    """The protocol as a file that `parse` reads back to an equal one."""
    compare = protocol.kind == "compare"
    labels: Any = (
        dict(zip(_COMPARE_LABELS, protocol.label_texts, strict=True)) if compare else list(protocol.label_texts)
    )
    to_label = dict(zip(protocol.label_texts, _COMPARE_LABELS, strict=True)) if compare else {}
    tree: dict[str, Any] = {
        "name": protocol.name,
        "kind": protocol.kind,
        "labels": labels,
        "system": protocol.system,
        "user": protocol.user,
        "examples": [
            e.slots
            | {"label": to_label.get(e.label, e.label)}
            | ({} if e.rationale is None else {"rationale": e.rationale})
            for e in protocol.examples
        ],
        "opener": protocol.opener,
        "closer": protocol.closer,
    }
    tree |= {key: asdict(part) for key in ("rationale", "thinking") if (part := getattr(protocol, key)) is not None}
    if protocol.writes:
        tree |= {"sampling": asdict(protocol.sampling), "samples": protocol.samples}
    return yaml.safe_dump(tree, allow_unicode=True, sort_keys=False, width=100)


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


def task_slots(protocol: Protocol, task: dict) -> dict[str, str]:
    """The text of every slot for one TASK_TEXTS row, in the order in which the answers are shown.

    `question` is what the user asked: the only turn as it is, several turns numbered like those of a reply.
    """
    users = [m["content"] for m in task["messages"] if m["role"] == "user"]
    slots = {
        "question": reply_text(users) if users else "",
        "conversation": conversation(task["messages"], []),
        "reference": task["reference"] or "",
    }
    shown = [task["replies_a"]] if task["replies_b"] is None else [task["replies_a"], task["replies_b"]]
    if task["order"] == "BA":
        shown.reverse()
    names = ["answer"] if protocol.kind == "score" else ["answer_a", "answer_b"]
    return slots | {name: reply_text(replies) for name, replies in zip(names, shown, strict=True)}


def reply_text(replies: list[str]) -> str:
    """A response as one text: its only turn as it is, several turns one after the other, numbered."""
    if len(replies) == 1:
        return replies[0]
    return "\n\n".join(f"[Turn {i}]\n{reply}" for i, reply in enumerate(replies, 1))


def conversation(messages: list[dict], replies: list[str]) -> str:
    """The turns up to the answer, each under its role."""
    turns = [f"[{m['role']}]\n{m['content']}" for m in messages]
    return "\n\n".join(turns + [f"[assistant]\n{reply}" for reply in replies])


def _check_text(given: Any, place: str) -> None:
    if not isinstance(given, str):
        raise ProtocolError(f"{place}: got a {'list' if isinstance(given, list) else 'mapping'}; a text")


def _numbers(texts: tuple[str, ...]) -> tuple[float, ...] | None:
    """The numbers that the texts are, or None where one of them is no finite number."""
    try:
        numbers = tuple(float(text) for text in texts)
    except ValueError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None


def _labels(given: Any, kind: str, source: str) -> tuple[str, ...]:
    if kind == "compare":
        if not isinstance(given, dict) or tuple(given) != _COMPARE_LABELS:
            raise ProtocolError(f"{source}: labels: a comparison has {{first: …, second: …, tie: …}}, got {given!r}")
        texts = tuple(given.values())
    elif isinstance(given, str):
        if not (given.isascii() and given.isdigit()) or not 2 <= int(given) <= 1000:
            raise ProtocolError(f"{source}: labels: got {given!r}; a number of points such as 5, or a list of texts")
        texts = tuple(str(i) for i in range(1, int(given) + 1))
    elif isinstance(given, list):
        texts = tuple(given)
    else:
        raise ProtocolError(f"{source}: labels: got a mapping; a number of points such as 5, or a list of texts")
    if not all(isinstance(t, str) and t.strip() for t in texts) or len({t.strip() for t in texts}) < max(len(texts), 2):
        detail = "at least two different texts (blanks around them make no difference), none of them blank"
        raise ProtocolError(f"{source}: labels: got {given!r}; {detail}")
    numbers = _numbers(texts) if kind == "score" else None
    if numbers and len(set(numbers)) < len(numbers):
        raise ProtocolError(f"{source}: labels: got {given!r}; two labels stand for one number")
    return texts


def _written(tree: dict[str, Any], source: str) -> dict[str, Any]:
    """The fields of a Protocol that say what the judge writes before its verdict."""
    found: dict[str, Any] = {}
    for key, part in (("rationale", Rationale), ("thinking", Thinking), ("sampling", Sampling)):
        if key in tree:
            found[key] = part(**_section(tree[key], key, part, source))
    samples = _number(tree.get("samples", "1"), "samples", int, 1, source)
    writes = "rationale" in found or "thinking" in found
    if not writes and ("sampling" in found or samples > 1):
        raise ProtocolError(
            f"{source}: samples and sampling belong to what is written before the verdict: "
            "add rationale: {max_tokens: N}"
        )
    if samples > 1 and found.get("sampling", Sampling()).temperature <= 0:
        raise ProtocolError(
            f"{source}: samples: {samples} rationales at temperature 0 are one and the same; "
            "add sampling: {temperature: 1.0}"
        )
    if not tree["opener"].strip():
        raise ProtocolError(f"{source}: opener: got {tree['opener']!r}; a text at which the verdict begins")
    return found | {"samples": int(samples)}


def _section(given: Any, key: str, part: type, source: str) -> dict[str, Any]:
    known = [f.name for f in fields(part)]
    if not isinstance(given, dict):
        raise ProtocolError(f"{source}: {key}: got {given!r}; a mapping with {known}")
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ProtocolError(f"{source}: {key}: unknown key '{unknown[0]}'; it has {known}")
    found = dict(given)
    if "max_tokens" in known:
        if "max_tokens" not in given:
            raise ProtocolError(f"{source}: {key}: 'max_tokens' is missing: how much the judge may write")
        found["max_tokens"] = _number(given["max_tokens"], f"{key}.max_tokens", int, 1, source)
    for name, kind in (("temperature", float), ("seed", int)):
        if name in given:
            found[name] = _number(given[name], f"{key}.{name}", kind, 0, source)
    for marker in {"open", "close"} & set(found):
        if not isinstance(found[marker], str) or not found[marker].strip():
            raise ProtocolError(f"{source}: {key}.{marker}: got {found[marker]!r}; a text that is not blank")
    return found


def _number(given: Any, key: str, kind: type, least: int, source: str) -> Any:
    try:
        value = kind(given)
    except (TypeError, ValueError):
        value = math.nan
    if not least <= value < math.inf:
        what = "a whole number" if kind is int else "a number"
        raise ProtocolError(f"{source}: {key}: got {given!r}; {what} of {least} or more")
    return value


def _check_slots(protocol: Protocol, source: str) -> None:
    wanted = ("answer",) if protocol.kind == "score" else ("answer_a", "answer_b")
    for name in wanted:
        if protocol.user.count("{" + name + "}") != 1:
            raise ProtocolError(f"{source}: user: needs the slot {{{name}}} exactly once")
    other = {"answer", "answer_a", "answer_b"} - set(wanted)
    wrong = sorted(other & set(protocol.slots))
    if wrong:
        raise ProtocolError(f"{source}: user: slot {{{wrong[0]}}} does not belong to kind {protocol.kind}")
    parts = pieces(protocol.user)
    for (is_slot, text), (next_is_slot, name) in pairwise(parts):
        if next_is_slot and (is_slot or not text.endswith("\n")):
            raise ProtocolError(f"{source}: user: the text before {{{name}}} must end in a newline")
    if any(is_slot for is_slot, _ in pieces(protocol.system)):
        raise ProtocolError(f"{source}: system: slots belong in the user text")


def _example(given: Any, protocol: Protocol, source: str) -> Example:
    if not isinstance(given, dict) or "label" not in given:
        raise ProtocolError(f"{source}: an example is a mapping of the slots' texts and a label")
    for key, value in given.items():
        _check_text(value, f"{source}: {key}")
    rationale = given.get("rationale")
    if rationale is not None and (protocol.rationale is None or not protocol.opener[0].isspace()):
        raise ProtocolError(
            f"{source}: rationale: belongs to a protocol with rationale: {{max_tokens: N}} and an opener that begins "
            f'with a newline, such as "\\n\\nScore: ["'
        )
    slots = {key: value.strip("\n") for key, value in given.items() if key not in ("label", "rationale")}
    missing = sorted(set(protocol.slots) - set(slots))
    if missing:
        raise ProtocolError(f"{source}: no text for the slot '{missing[0]}'")
    unknown = sorted(set(slots) - set(protocol.slots))
    if unknown:
        raise ProtocolError(
            f"{source}: '{unknown[0]}' is not a slot of the user text, which has {list(protocol.slots)}"
        )
    label = given["label"]
    if protocol.kind == "compare":
        if label not in _COMPARE_LABELS:
            raise ProtocolError(f"{source}: label: got {label!r}; one of {list(_COMPARE_LABELS)}")
        label = protocol.label_texts[_COMPARE_LABELS.index(label)]
    if label not in protocol.label_texts:
        raise ProtocolError(f"{source}: label: got {label!r}; one of the protocol's labels")
    return Example(slots, label, None if rationale is None else rationale.strip())
