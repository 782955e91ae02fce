"""Judgments that other systems made → JUDGMENTS, so that every analysis works on them too."""

from collections.abc import Callable, Mapping
from typing import Final

from trustjudge_ray.imports import alpaca_eval, arena_hard, battles, fastchat, oracle, trustjudge
from trustjudge_ray.imports.base import Imported, ImportFileError

READERS: Final[Mapping[str, Callable[..., Imported]]] = {
    "trustjudge": trustjudge.read,
    "oracle": oracle.read,
    "battles": battles.read,
    "fastchat": fastchat.read,
    "arena-hard": arena_hard.read,
    "alpaca-eval": alpaca_eval.read,
}
"""`read(files, judge=None)` of each format; `files` are open, seekable binary streams by name, in the order given."""

__all__ = ["READERS", "ImportFileError", "Imported"]
