"""Judgments that other systems made → JUDGMENTS, so that every analysis works on them too."""

from collections.abc import Callable, Mapping
from typing import Final

from trustjudge_ray.imports import battles, oracle, trustjudge
from trustjudge_ray.imports.base import Imported, ImportFileError

READERS: Final[Mapping[str, Callable[..., Imported]]] = {
    "trustjudge": trustjudge.read,
    "oracle": oracle.read,
    "battles": battles.read,
}
"""`read(files, judge=None)` of each format; `files` are open binary streams by name, in the order given."""

__all__ = ["READERS", "ImportFileError", "Imported"]
