"""What the audit asks: the bytes of a file of questions → Items, and every question that could not be one.

A file that is not of its format at all is an `ItemFileError`. A single question that cannot be used is a `Problem`,
and the others stand.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import resources
from itertools import islice
from typing import Any, Final

from trustjudge_ray.audit.item_formats import (
    Found,
    Reader,
    Refusal,
    from_article,
    from_hotpot,
    from_line,
    from_musique,
    from_passage,
    under,
)
from trustjudge_ray.audit.qa import Item

OWN_ITEMS: Final = "own_items.jsonl"
_LINES_TRIED = 5
"""In how many lines a format of lines is looked for."""


class ItemFileError(ValueError):
    """A file of questions cannot be used: names the file, the place, what it got and what would be right."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A question, or a part of one, that was left out: where it stands, a word to count by, and a sentence."""

    source: str
    place: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class ItemFile:
    """What a file held: its format (recognised, where that was left open), its items and what was left out."""

    format: str
    items: tuple[Item, ...]
    problems: tuple[Problem, ...]


def parse(content: bytes, source: str, format: str = "auto") -> ItemFile:
    """The items of one file, in its order.

    Of items with one id and the same content the first stays; with other content none does. Both are problems.

    Args:
        content: not compressed.
        source: what the file is called in messages.
        format: one of FORMATS, or `auto`, which goes by the file's shape.

    Raises:
        ItemFileError: the format is unknown, or the file is not of it.
    """
    if format != "auto" and format not in FORMATS:
        raise ItemFileError(f"{source}: unknown format {format!r}; there are auto, {', '.join(sorted(FORMATS))}")
    text = _decoded(content, source)
    name = recognised(text, source) if format == "auto" else format
    items, problems = gathered(source, FORMATS[name](text, source))
    return ItemFile(name, items, problems)


def own_items() -> tuple[Item, ...]:
    """The project's own small set: questions about invented things, so that no model knows the answers from elsewhere.

    Raises:
        ItemFileError: a question of it cannot be used.
    """
    content = resources.files("trustjudge_ray.audit").joinpath(OWN_ITEMS).read_bytes()
    read = parse(content, OWN_ITEMS, "items")
    if read.problems:
        raise ItemFileError(f"{OWN_ITEMS}: {read.problems[0].detail}")
    return read.items


def gathered(source: str, found: Iterable[Found]) -> tuple[tuple[Item, ...], tuple[Problem, ...]]:
    """Items and problems of what was found in a file, both in its order, no id twice."""
    everything = list(found)
    alike: dict[str, list[Item]] = {}
    for each in everything:
        if isinstance(each.item, Item):
            alike.setdefault(each.item.id, []).append(each.item)
    items: dict[str, Item] = {}
    problems: list[Problem] = []
    for each in everything:
        refusals = list(each.remarks)
        if isinstance(each.item, Refusal):
            refusals.append(each.item)
        elif any(other != each.item for other in alike[each.item.id]):
            said = "comes more than once with other content, so none of them is used"
            refusals.append(Refusal("conflicting_duplicate", f"{each.place}: the id {each.item.id!r} {said}"))
        elif each.item.id in items:
            refusals.append(Refusal("duplicate_item", f"{each.place}: the item {each.item.id!r} is here again"))
        else:
            items[each.item.id] = each.item
        problems += [Problem(source, each.place, refusal.reason, refusal.detail) for refusal in refusals]
    return tuple(items.values()), tuple(problems)


def _items(text: str, source: str) -> Iterator[Found]:
    yield from _lines(text, from_line)


def _musique(text: str, source: str) -> Iterator[Found]:
    yield from _lines(text, from_musique)


def _squad(text: str, source: str) -> Iterator[Found]:
    data = _whole(text, source)
    if not isinstance(data, dict) or not isinstance(data.get("data"), list):
        raise ItemFileError(
            f'{source}: {_shape(data)}; a SQuAD file is one object {{"version": …, "data": [articles]}}'
        )
    for i, article in enumerate(data["data"]):
        yield from under(f"data[{i}]", partial(from_article, article))


def _drop(text: str, source: str) -> Iterator[Found]:
    data = _whole(text, source)
    if not isinstance(data, dict):
        meant = 'one object {passage id: {"passage": …, "qa_pairs": […]}}'
        raise ItemFileError(f"{source}: {_shape(data)}; a DROP file is {meant}")
    for name, passage in data.items():
        yield from under(name, partial(from_passage, passage, passage_id=name))


def _hotpotqa(text: str, source: str) -> Iterator[Found]:
    data = _whole(text, source)
    if not isinstance(data, list):
        raise ItemFileError(f"{source}: {_shape(data)}; a HotpotQA file is one list of questions with '_id'")
    for i, question in enumerate(data):
        yield from under(f"[{i}]", partial(from_hotpot, question))


FORMATS: Final[dict[str, Callable[[str, str], Iterator[Found]]]] = {
    "items": _items,
    "squad": _squad,
    "drop": _drop,
    "hotpotqa": _hotpotqa,
    "musique": _musique,
}
"""Text of a file and what it is called → what stands in it, place by place.

`items` is our own form, JSON Lines of {id, context, question, golds, answerable, wrong, hops, benchmark, passage_id};
the others are the official files of SQuAD 1.1 and 2.0, DROP, HotpotQA and MuSiQue.
"""


def recognised(text: str, source: str) -> str:
    """Which of FORMATS a file is, by its shape: how it begins, and what its first element holds.

    Raises:
        ItemFileError: it is none of them; says what was found.
    """
    start = text.lstrip()[:1]
    if start == "[":
        return _by_keys(next(iter(_whole(text, source)), None), source, {"hotpotqa": ("supporting_facts", "_id")})
    for line in islice((line for line in text.split("\n") if line.strip()), _LINES_TRIED):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and "question" in value:
            return _by_keys(value, source, {"musique": ("paragraphs",), "items": ("context", "golds")})
    value = _whole(text, source)
    if isinstance(value, dict) and "data" in value:
        return _by_keys(value, source, {"squad": ("data",)})
    inner = next(iter(value.values()), None) if isinstance(value, dict) else value
    return _by_keys(inner, source, {"drop": ("passage", "qa_pairs")})


def _by_keys(value: Any, source: str, shapes: dict[str, tuple[str, ...]]) -> str:
    for name, keys in shapes.items():
        if isinstance(value, dict) and any(key in value for key in keys):
            return name
    raise ItemFileError(
        f"{source}: not recognised: {_shape(value)}; name its format, one of {', '.join(sorted(FORMATS))}, "
        "or bring it into the form of one of them"
    )


def _lines(text: str, reader: Reader) -> Iterator[Found]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            value = json.loads(line, object_pairs_hook=_no_key_twice)
        except (ValueError, RecursionError) as error:
            yield Found(place, Refusal("invalid_json", f"{place}: {error}; a line is one JSON object"))
            continue
        yield from under(place, partial(reader, value))


def _whole(text: str, source: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_no_key_twice)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ItemFileError(f"{source}: {where}: not JSON: {error.msg}; one JSON value is meant") from error
    except (ValueError, RecursionError) as error:
        raise ItemFileError(f"{source}: not usable JSON: {error}") from error


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for key, value in pairs:
        if key in known:
            raise ValueError(f"the key {key!r} comes twice in one object")
        known[key] = value
    return known


def _decoded(content: bytes, source: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ItemFileError(f"{source}: byte {error.start + 1} is not UTF-8 ({error.reason}); save as UTF-8") from error
    if not text.strip():
        raise ItemFileError(f"{source}: empty; a file of questions is meant")
    return text


def _shape(value: Any) -> str:
    """What a JSON value is, in few words."""
    if isinstance(value, dict):
        keys = list(value)
        return f"an object with {keys[:6]}" + (f" and {len(keys) - 6} more keys" if len(keys) > 6 else "")
    if isinstance(value, list):
        return f"a list of {len(value)}" + (f", first {_shape(value[0])}" if value else "")
    return "nothing" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
