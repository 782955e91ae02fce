"""The card of an audit (`audit.json`), read from where a configuration says that it is (`judge.audit`)."""

import json
from collections.abc import Mapping
from types import NoneType
from typing import Any, Final

from trustjudge_ray.config import ConfigError
from trustjudge_ray.storage import explained, filesystem

CARD: Final = "audit.json"
VERDICTS: Final = ("PASS", "WARN", "BLOCK", "INCONCLUSIVE")
_RIGHT: Final = f"the {CARD} that trustjudge audit wrote, or the folder that holds it"
_NUMBER: Final = (int, float)
_NUMBER_OR_NULL: Final = (int, float, NoneType)
_SHAPE: Final = (
    dict.fromkeys(("gates", "figures", "cautions"), list)
    | dict.fromkeys(("judge", "benchmarks", "oracle"), dict)
    | dict.fromkeys(("items", "passages"), int)
    | {"verdict": str}
)
_ENDS: Final = dict.fromkeys(("value", "low", "high"), _NUMBER_OR_NULL)
_FIGURE: Final = (
    dict.fromkeys(("figure", "set"), str)
    | dict.fromkeys(("cases", "excluded", "clusters"), int)
    | {"group": (str, NoneType), "hits": _NUMBER_OR_NULL, "excluded_by": dict}
    | _ENDS
)
_GATE: Final = dict.fromkeys(("gate", "status", "text"), str) | dict.fromkeys(("warn", "block"), _NUMBER) | _ENDS


class CardError(ConfigError):
    """There is no card where `judge.audit` says: names the place, what is there, and what should be."""


def read_card(path: str, storage_options: dict[str, Any]) -> dict[str, Any]:
    """A card as `trustjudge audit` wrote it.

    Args:
        path: of an `audit.json`, or of the folder that holds it; local or as fsspec knows it.

    Raises:
        CardError: it is not there, no JSON, or no card.
        StorageError: storage refuses.
    """
    with explained(path):
        fs, inner = filesystem(path, storage_options)
        if fs.isdir(inner):
            path, inner = f"{path.rstrip('/')}/{CARD}", f"{inner.rstrip('/')}/{CARD}"
        try:
            content = fs.cat_file(inner)
        except FileNotFoundError as error:
            raise CardError(f"judge.audit: {path}: no such file; {_RIGHT}") from error
    card = _parsed(path, content)
    fault = _fault(card)
    if fault:
        raise CardError(f"judge.audit: {path}: no audit card: {fault}; {_RIGHT}")
    return dict(card)


def _parsed(path: str, content: bytes) -> Any:
    try:
        return json.loads(content, parse_constant=_refused)
    except ValueError as error:  # UnicodeDecodeError is one
        raise CardError(f"judge.audit: {path}: not JSON ({error}); {_RIGHT}") from error


def _refused(text: str) -> None:
    raise ValueError(f"{text} is no number in JSON")


def _fault(card: Any) -> str | None:
    """What keeps a value from being a card, in words; None where it is one."""
    if not isinstance(card, dict):
        return f"a {type(card).__name__}, not an object"
    fault = _lacks(card, _SHAPE)
    if fault:
        return fault
    if card["verdict"] not in VERDICTS:
        return f"verdict {card['verdict']!r}, not one of {list(VERDICTS)}"
    for name, shape in (("figures", _FIGURE), ("gates", _GATE)):
        for place, row in enumerate(card[name]):
            fault = _lacks(row, shape) if isinstance(row, dict) else f"a {type(row).__name__}, not an object"
            if fault:
                return f"{name}[{place}]: {fault}"
    return None


def _lacks(value: Mapping[str, Any], shape: Mapping[str, Any]) -> str | None:
    missing = [name for name in shape if name not in value]
    if missing:
        return f"no {', '.join(repr(name) for name in missing)}"
    wrong = [name for name, kind in shape.items() if not isinstance(value[name], kind)]
    return f"{wrong[0]!r} is a {type(value[wrong[0]]).__name__}" if wrong else None
