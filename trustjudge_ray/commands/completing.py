"""What a shell completes: files of the right kind, protocol names, and `key=value` of a configuration.

Nothing here may be slow: a shell calls it for each press of the key.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import get_origin

import click
from click.shell_completion import CompletionItem

from trustjudge_ray import config_keys, config_values

Items = list[CompletionItem[str]]
Completer = Callable[[click.Context, click.Parameter, str], Items]

PLAIN, PART, FILE, FOLDER = "plain", "part", "file", "dir"
"""Kinds of items: a whole word, the beginning of one (no space behind it), a file, a folder."""

YAML = (".yaml", ".yml")
_FILES = ("out", "store", "corpus.paths", "judge.audit", "judge.tokenizer", "nightly.against", "audit.items")
_PROTOCOLS = (
    *("protocols", "audit.protocols", "audit.answer_protocols", "preferences.protocol"),
    *("preferences.score_protocol", "rewards.score_protocol", "rewards.pair_protocol"),
)


def files(*endings: str) -> Completer:
    """Completes paths: folders, and files with these endings (all without)."""
    return lambda _, __, incomplete: list(_paths(incomplete, endings))


def folders(_: click.Context, __: click.Parameter, incomplete: str) -> Items:
    """Completes paths of folders, such as those of runs."""
    return [item for item in _paths(incomplete, ()) if item.type == FOLDER]


def overrides(root: Callable[[], type], sections: tuple[str, ...]) -> Completer:
    """Completes `key=value` of a configuration.

    Args:
        root: gives the dataclass of the whole configuration.
        sections: which of its keys are meant; empty for all.
    """

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> Items:
        key, given, value = incomplete.partition("=")
        if given:
            return [CompletionItem(f"{key}={item.value}", type=item.type) for item in _values(root(), key, value)]
        return [CompletionItem(name, type=PART) for name in _keys(root(), key, sections)]

    return complete


def _keys(cls: type, given: str, sections: tuple[str, ...]) -> Iterator[str]:
    """What the key may go on with, up to its next dot or to `=`."""
    *above, last = given.split(".")
    before = "".join(f"{part}." for part in above)
    for name in above:
        inner = next((config_keys.section(each.type) for each in fields(cls) if each.name == name), None)
        if inner is None:
            return
        cls = inner
    for each in fields(cls):
        if each.name.startswith(last) and (above or not sections or each.name in sections):
            opens = config_keys.section(each.type) is not None or get_origin(each.type) is dict
            yield f"{before}{each.name}" + ("." if opens else "=")


def _values(cls: type, key: str, given: str) -> Iterator[CompletionItem[str]]:
    """What a key may hold, of a list its last entry."""
    kind = dict(config_keys.keys(cls)).get(key)
    before, last = _last_entry(given) if get_origin(kind) is list else ("", given)
    known = ["true", "false"] if kind is bool else list(config_values.choices(key) or _rewards(key))
    if key in _PROTOCOLS:
        from trustjudge_ray.judging.protocols import builtin_names

        known = builtin_names()
    if key == "judge.model":
        known = ["embedded"]
    kinds = PART if before else PLAIN
    yield from (CompletionItem(before + word, type=kinds) for word in known if word.startswith(last))
    if key in (*_FILES, *_PROTOCOLS, "judge.model"):
        endings = YAML if key in _PROTOCOLS else ()
        yield from (CompletionItem(before + item.value, type=item.type) for item in _paths(last, endings))


def _rewards(key: str) -> tuple[str, ...]:
    from trustjudge_ray import rewards_config

    known = {"mode": rewards_config.MODES, "scale": rewards_config.SCALES, "score_rule": rewards_config.SCORE_RULES}
    section, _, name = key.partition(".")
    return known.get(name, ()) if section == "rewards" else ()


def _last_entry(given: str) -> tuple[str, str]:
    """A list as it is being written, `[a,b`: what comes before its last entry, and that."""
    cut = max(given.rfind(mark) for mark in "[, ") + 1
    return given[:cut], given[cut:]


def _paths(incomplete: str, endings: tuple[str, ...]) -> Iterator[CompletionItem[str]]:
    folder, name = os.path.split(incomplete)
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as found:
            entries = sorted((entry.name, entry.is_dir()) for entry in found)
    except OSError:
        return
    for entry, is_folder in entries:
        hidden = entry.startswith(".") and not name.startswith(".")
        if entry.startswith(name) and not hidden and (is_folder or entry.endswith(endings or ("",))):
            path = os.path.join(folder, entry)
            yield CompletionItem(f"{path}/" if is_folder else path, type=FOLDER if is_folder else FILE)
