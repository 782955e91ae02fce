"""What a judge is asked: kind, labels, texts and worked examples, read from a YAML file.

The file is read as plain YAML in which every scalar stays the text that was written: no interpolation,
and `Yes` stays a word.
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
from trustjudge_ray.judging.slots import pieces, slots_in
from trustjudge_ray.nearest import did_you_mean, did_you_mean_file

_KEYS = {"name", "kind", "labels", "system", "user", "examples", "opener", "closer"}
_TEXT_KEYS = ("name", "kind", "system", "user", "opener", "closer")
_KEYS |= {"rationale", "thinking", "sampling", "samples", "max_tokens"}
_NAMED_LABELS = {"compare": ("first", "second", "tie"), "verify": ("accept", "reject")}
"""Of each kind whose labels stand for something fixed, what they stand for, in order."""
KINDS = {"score": ("answer",), "compare": ("answer_a", "answer_b"), "verify": ("answer",), "answer": ()}
"""The kinds of protocols, and the slots for answers that each has."""


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
        kind: `score` one answer, `compare` two, `verify` whether one is right; or `answer` the question.
        label_texts: what the judge may say, in the protocol's order: numbers from low to high, any list
            of texts, for a comparison first, second, tie, for a verification accept, reject; none for an answer.
        opener, closer: the verdict is read between them. After a rationale the opener is put as it is; where it
            begins with white space, that replaces the white space at the rationale's end.
            What is put before an answer is its opener, and where it stops (beside the end of turn) its closer.
        rationale, thinking: what the judge writes before its verdict, if anything; drawn as `sampling` says.
        max_tokens: of an answer.
        samples: so many rationales for each task, whose label distributions are averaged.
    """

    name: str
    kind: Literal["score", "compare", "verify", "answer"]
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
    max_tokens: int | None = None

    @property
    def writes(self) -> bool:
        """Whether the judge writes anything freely."""
        return self.rationale is not None or self.thinking is not None or self.max_tokens is not None

    def said(self, example: Example) -> str:
        """What the judge says in a worked example: its rationale and verdict, or its answer."""
        closer = self.closer if self.label_texts else ""
        return (example.rationale or "") + self.opener + example.label + closer

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
        for key in ("rationale", "thinking", "max_tokens"):
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
        return slots_in(self.system + self.user)


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
        own = path.suffix in (".yaml", ".yml") or len(path.parts) > 1
        hint = did_you_mean_file(path) if own else did_you_mean(name_or_path, builtin_names())
        raise ProtocolError(f"protocol '{name_or_path}': no such file, and not one of {builtin_names()}{hint}")
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
    _check_keys(tree, source)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", tree["name"]):
        raise ProtocolError(f"{source}: name: got '{tree['name']}'; letters, digits, '.', '_' and '-'")
    protocol = Protocol(
        name=tree["name"],
        kind=tree["kind"],
        label_texts=_labels(tree["labels"], tree["kind"], source) if "labels" in tree else (),
        system=tree.get("system") or "",
        user=tree["user"],
        examples=(),
        opener=tree.get("opener") or "",
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
    names = _NAMED_LABELS.get(protocol.kind)
    labels: Any = dict(zip(names, protocol.label_texts, strict=True)) if names else list(protocol.label_texts)
    to_label = dict(zip(protocol.label_texts, names, strict=True)) if names else {}
    said = "answer" if protocol.kind == "answer" else "label"
    tree: dict[str, Any] = {
        "name": protocol.name,
        "kind": protocol.kind,
        **({"labels": labels} if protocol.label_texts else {}),
        "system": protocol.system,
        "user": protocol.user,
        "examples": [
            e.slots
            | {said: to_label.get(e.label, e.label)}
            | ({} if e.rationale is None else {"rationale": e.rationale})
            for e in protocol.examples
        ],
        "opener": protocol.opener,
        "closer": protocol.closer,
    }
    tree |= {key: asdict(part) for key in ("rationale", "thinking") if (part := getattr(protocol, key)) is not None}
    tree |= {} if protocol.max_tokens is None else {"max_tokens": protocol.max_tokens}
    if protocol.writes:
        tree |= {"sampling": asdict(protocol.sampling), "samples": protocol.samples}
    return yaml.safe_dump(tree, allow_unicode=True, sort_keys=False, width=100)


def _check_keys(tree: dict[str, Any], source: str) -> None:
    """Whether the keys are there that the kind needs, and none that it has no use for."""
    if tree.get("kind", "") not in (*KINDS, ""):
        raise ProtocolError(f"{source}: kind: got '{tree['kind']}'; one of {', '.join(KINDS)}")
    answers = tree.get("kind") == "answer"
    for key in ("name", "kind", "user", *(("max_tokens",) if answers else ("labels", "opener"))):
        if not tree.get(key):
            raise ProtocolError(f"{source}: '{key}' is missing")
    for key in ("labels", "rationale") if answers else ("max_tokens",):
        if key in tree:
            hint = "an answer is free text" if answers else "it belongs to kind answer, or under rationale or thinking"
            raise ProtocolError(f"{source}: '{key}' has no place in kind {tree['kind']}: {hint}")


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
    if kind in _NAMED_LABELS:
        names = _NAMED_LABELS[kind]
        if not isinstance(given, dict) or tuple(given) != names:
            meant = ", ".join(f"{name}: …" for name in names)
            raise ProtocolError(f"{source}: labels: kind {kind} has {{{meant}}}, got {given!r}")
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
    if "max_tokens" in tree:
        found["max_tokens"] = _number(tree["max_tokens"], "max_tokens", int, 1, source)
    writes = bool({"rationale", "thinking", "max_tokens"} & set(found))
    if not writes and ("sampling" in found or samples > 1):
        raise ProtocolError(
            f"{source}: samples and sampling belong to what is written before the verdict: "
            "add rationale: {max_tokens: N}"
        )
    what = "answers" if "max_tokens" in found else "rationales"
    if samples > 1 and found.get("sampling", Sampling()).temperature <= 0:
        raise ProtocolError(
            f"{source}: samples: {samples} {what} at temperature 0 are one and the same; "
            "add sampling: {temperature: 1.0}"
        )
    if tree["kind"] != "answer" and not tree["opener"].strip():
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
    wanted = KINDS[protocol.kind]
    for name in wanted:
        if protocol.user.count("{" + name + "}") != 1:
            raise ProtocolError(f"{source}: user: needs the slot {{{name}}} exactly once")
    if not wanted and not {"question", "conversation"} & set(protocol.slots):
        raise ProtocolError(f"{source}: user: needs the slot {{question}} or {{conversation}}")
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
    said = "answer" if protocol.kind == "answer" else "label"
    if not isinstance(given, dict) or said not in given:
        raise ProtocolError(f"{source}: an example is a mapping of the slots' texts and {said}")
    for key, value in given.items():
        _check_text(value, f"{source}: {key}")
    rationale = given.get("rationale")
    if rationale is not None and (protocol.rationale is None or not protocol.opener[0].isspace()):
        raise ProtocolError(
            f"{source}: rationale: belongs to a protocol with rationale: {{max_tokens: N}} and an opener that begins "
            f'with a newline, such as "\\n\\nScore: ["'
        )
    slots = {key: value.strip("\n") for key, value in given.items() if key not in (said, "rationale")}
    missing = sorted(set(protocol.slots) - set(slots))
    if missing:
        raise ProtocolError(f"{source}: no text for the slot '{missing[0]}'")
    unknown = sorted(set(slots) - set(protocol.slots))
    if unknown:
        raise ProtocolError(
            f"{source}: '{unknown[0]}' is not a slot of the user text, which has {list(protocol.slots)}"
        )
    label = given[said]
    names = _NAMED_LABELS.get(protocol.kind)
    if names:
        if label not in names:
            raise ProtocolError(f"{source}: label: got {label!r}; one of {list(names)}")
        label = protocol.label_texts[names.index(label)]
    if protocol.label_texts and label not in protocol.label_texts:
        raise ProtocolError(f"{source}: label: got {label!r}; one of the protocol's labels")
    return Example(slots, label, None if rationale is None else rationale.strip())
