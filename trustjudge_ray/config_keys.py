"""The keys of a configuration, read off its dataclasses: others are refused, and it is said which one was meant."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from omegaconf import DictConfig, OmegaConf

from trustjudge_ray.config_values import ConfigError
from trustjudge_ray.nearest import nearest


def section(kind: Any) -> type | None:
    """The dataclass that a field is, or is if it is not null; None for a plain value."""
    kinds = [part for part in get_args(kind) if part is not NoneType] if isinstance(kind, UnionType) else [kind]
    return kinds[0] if isinstance(kinds[0], type) and is_dataclass(kinds[0]) else None


def keys(cls: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key that holds a value, with dots, in the order of the file, and the type of its value."""
    for each in fields(cls):
        inner = section(each.type)
        if inner is None:
            yield f"{prefix}{each.name}", each.type
        else:
            yield from keys(inner, f"{prefix}{each.name}.")


def meant(key: str, cls: type, root: type) -> str:
    """What an unknown key may stand for: one of its own section's, or one of another section.

    Args:
        cls: the section that the key was found in; root: the whole configuration.

    Returns:
        `; did you mean 'plan.block'?`, or `;`.
    """
    here = [each.name for each in fields(cls)]
    elsewhere: dict[str, list[str]] = {}
    for dotted, _ in keys(root):
        elsewhere.setdefault(dotted.rsplit(".", 1)[-1], []).append(dotted)
    near = nearest(key, here, cutoff=0.75)
    if near:
        return f"; did you mean '{near}'?"
    found = elsewhere.get(key, [])
    if not found and (near := nearest(key, here)):
        return f"; did you mean '{near}'?"
    if not found and (near := nearest(key, elsewhere, cutoff=0.8)):
        found = elsewhere[near]
    highest = min((dotted.count(".") for dotted in found), default=0)
    names = " or ".join(f"'{dotted}'" for dotted in found if dotted.count(".") == highest)
    return f"; did you mean {names}?" if names else ";"


def refuse_unknown(tree: Any, root: type, source: str) -> None:
    """Refuse keys that a configuration does not have, and sections that are no mapping.

    Args:
        tree: the configuration as plain dictionaries; root: its dataclass.
        source: what a message calls it.

    Raises:
        ConfigError: with the key, what may be meant and what there is.
    """
    _refuse(tree, root, root, source, "")


def _refuse(tree: Any, cls: type, root: type, source: str, prefix: str) -> None:
    known = {each.name: each for each in fields(cls)}
    for key, value in (tree or {}).items():
        if key not in known:
            hint = meant(str(key), cls, root)
            where = f"{prefix[:-1]}: " if prefix else ""
            raise ConfigError(f"{source}: {where}unknown key '{key}'{hint} {cls.__name__} has {sorted(known)}")
        inner, items = _inside(known[key].type, value)
        for item in items:
            if inner and isinstance(item, dict):
                _refuse(item, inner, root, source, f"{prefix}{key}.")
            elif inner and item is not None and not isinstance(item, str):
                names = [each.name for each in fields(inner)]
                raise ConfigError(f"{source}: {prefix}{key}: got {item!r}; a mapping with {names}")


def _inside(kind: Any, value: Any) -> tuple[type | None, list[Any]]:
    """The dataclass that a field holds or lists, if it does, with the values to check against it."""
    if get_origin(kind) is list:
        return section(get_args(kind)[0]), value if isinstance(value, list) else [value]
    return section(kind), [value]


def with_lists(tree: DictConfig, root: type) -> DictConfig:
    """The tree with a single value as a list of one, where a list is meant: `paths: a.jsonl` is `paths: [a.jsonl]`."""
    plain = OmegaConf.to_container(tree, resolve=False)
    assert isinstance(plain, dict)
    return OmegaConf.create(_listed(plain, root))


def _listed(tree: dict[Any, Any], cls: type) -> dict[Any, Any]:
    kinds = {each.name: each.type for each in fields(cls)}
    wrapped = {}
    for key, value in tree.items():
        kind = kinds[key]
        if get_origin(kind) is list and value is not None and not isinstance(value, list | dict):
            value = [value]
        elif isinstance(value, dict) and (inner := section(kind)) is not None:
            value = _listed(value, inner)
        wrapped[key] = value
    return wrapped
