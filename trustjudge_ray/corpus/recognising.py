"""`corpus.format: auto`: which format files are of, told by the fields of their first objects.

A format fits a file if all its objects are of one of the format's layouts (`layouts.LAYOUTS`); where no format fits
all of them, those that fit more than half do: a broken row among the first ones is the reader's to name. The files of a
corpus may be of different roles, but of one format, which all of them must fit. Nothing is guessed: where two formats
are left, or none, `recognise` refuses and says how to decide.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trustjudge_ray.corpus.formats import FORMATS, CorpusConfigError, CorpusError, field_map
from trustjudge_ray.corpus.layouts import ID, JUDGMENTS, LAYOUTS, TURNS, Layout
from trustjudge_ray.corpus.objects import kind_of, names_of
from trustjudge_ray.guessed_fields import NAMES, plain

Object = dict[str, Any]
_FLAT: Final = {"question_id": ID, "model": ID, "response": TURNS}
_UNKNOWN: Final = "=unknown"
_HOW: Final = "set corpus.format"
_NOTHING: Final = "no object in its beginning that can be read"


class NoFormatError(CorpusError):
    """No format fits a file."""


@dataclass(frozen=True, slots=True)
class Recognised:
    """The format of a corpus, and of each file what its objects are and by which fields."""

    format: str
    says: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Fit:
    """How a format fits a file: by which layouts, and how many objects."""

    layouts: tuple[Layout, ...]
    hits: int
    objects: int

    def says(self) -> str:
        ways: dict[str, list[str]] = {}
        for layout in self.layouts:
            ways.setdefault(layout.what, []).append(", ".join(layout.needs))
        parts = [f"{what} (by {'; or '.join(needs)})" for what, needs in ways.items()]
        share = "" if self.hits == self.objects else f" in {self.hits} of the first {self.objects} objects"
        return " and ".join(parts) + share


def recognise(samples: Mapping[str, Sequence[Object]], fields: Mapping[str, str] | None = None) -> Recognised:
    """The format that all files of a corpus are of.

    Args:
        samples: source → the first objects of that file; a file without any decides nothing.
        fields: as `corpus.fields`; a format that has no such field is not meant.

    Raises:
        CorpusConfigError: a field is in no format.
        CorpusError: no format fits a file (says which fields it has, which format is nearest, and what that lacks),
            several fit all files, or files are of different formats.
    """
    mapped = dict(fields or {})
    views = {form: _view_of(form, mapped) for form in dict.fromkeys(layout.format for layout in LAYOUTS)}
    known = {form: view for form, view in views.items() if view is not None}
    _refuse_unknown(mapped, list(views))
    found = {source: _fits(objects, known) for source, objects in samples.items() if objects}
    if not found:
        sources = ", ".join(sorted(samples)[:3])
        raise CorpusError(f"corpus.format: auto: {sources}: {_NOTHING}; {_HOW}, and `validate` names each line")
    for source in sorted(found):
        if not found[source]:
            raise NoFormatError(f"corpus.format: auto: {source}: {_no_format(samples[source], known, mapped)}")
    shared = [form for form in known if all(form in fits for fits in found.values())]
    if not shared:
        raise CorpusError(f"corpus.format: auto: {_different(found)}")
    if len(shared) > 1:
        source = next((source for source in sorted(found) if len(found[source]) > 1), sorted(found)[0])
        both = " and ".join(f"{form}: {found[source][form].says()}" for form in shared)
        raise CorpusError(
            f"corpus.format: auto: {source}: {len(shared)} formats fit, {both}; {_HOW} to the one that is meant"
        )
    says = {source: found[source][shared[0]].says() if source in found else _NOTHING for source in samples}
    return Recognised(shared[0], says)


def _refuse_unknown(fields: dict[str, str], forms: Sequence[str]) -> None:
    """
    Raises:
        CorpusConfigError: a mapped field is in no format.
    """
    names = sorted({name for form in forms for name in field_map({}, form).names})
    for ours in fields:
        if ours not in names:
            near = difflib.get_close_matches(ours, names, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise CorpusConfigError(f"corpus.fields: no format has a field '{ours}'{hint}")


def _view_of(form: str, fields: dict[str, str]) -> Callable[[Object], Object] | None:
    """Makes of an object one that has the format's own names for the mapped fields; None where the format lacks one."""
    if form not in FORMATS:
        return None
    try:
        plain, mapped = field_map({}, form), field_map(fields, form)
    except CorpusConfigError:
        return None

    def view(content: Object) -> Object:
        moved = {plain.names[ours]: content.get(mapped.names[ours]) for ours in mapped.given}
        return content | moved | {plain.names[ours]: value for ours, value in mapped.constants.items()}

    return view if fields else lambda content: content


def _fits(objects: Sequence[Object], views: Mapping[str, Callable[[Object], Object]]) -> dict[str, _Fit]:
    """The formats that fit the objects of one file."""
    found: dict[str, _Fit] = {}
    for form, view in views.items():
        mine = [layout for layout in LAYOUTS if layout.format == form]
        seen = [view(content) for content in objects]
        fitting = [[layout for layout in mine if layout.fits(content)] for content in seen]
        used = tuple(layout for layout in mine if any(layout in layouts for layouts in fitting))
        found[form] = _Fit(used, sum(map(bool, fitting)), len(objects))
    whole = {form: fit for form, fit in found.items() if fit.hits == fit.objects}
    return whole or {form: fit for form, fit in found.items() if 2 * fit.hits > fit.objects}


def _no_format(
    objects: Sequence[Object], views: Mapping[str, Callable[[Object], Object]], mapped: Mapping[str, str]
) -> str:
    """What is wrong with a file that no format fits: its fields, the nearest format, and what that lacks."""
    suggested = {ours: name for ours, name in _suggested(objects).items() if ours != name} | dict(mapped)
    names = names_of({name: value for content in objects for name, value in content.items() if value is not None})
    count = "object has" if len(objects) == 1 else f"{len(objects)} objects have"
    told = f"no format fits; its first {count} {names}"
    for layout in JUDGMENTS:
        if sum(layout.fits(content) for content in objects) * 2 > len(objects):
            how = f"leave the file out of corpus.paths; `trustjudge import {layout.format}` reads it"
            return f"{told}. These look like {layout.what}, which are no corpus: {how}"
    layouts = [layout for layout in LAYOUTS if layout.format in views]
    near = max(layouts, key=lambda layout: _nearness(layout, objects, suggested, views[layout.format]), default=None)
    if near is None:
        return f"{told}, and no format has all the fields that corpus.fields maps; {_HOW}"
    seen = [views[near.format](content) for content in objects]
    lacks = {name: _lack(near, name, seen) for name in near.needs if not _most_hold(near, name, seen)}
    said = f"lacks {', '.join(lacks.values())}" if lacks else "has them all in too few of the objects"
    how = f"{_HOW} to one of {sorted(views)}"
    if near.format == "flat" and lacks:
        pairs = {ours: "?" for ours in near.needs if ours in lacks} | suggested
        text = ", ".join(f"{ours}: {_quoted(name)}" for ours, name in pairs.items())
        how = f"say where they are with corpus.fields: {{{text}}} (as trustjudge init does), or {_HOW} to another one"
    return f"{told}. The nearest is {near.format} ({near.what} by {', '.join(near.needs)}), but that {said}; {how}"


def _suggested(objects: Sequence[Object]) -> dict[str, str]:
    """What `corpus.fields` may be if the objects are responses under other names: ours to theirs.

    A field is suggested where most objects have one whose name is known for it, with a value that it can be; if there
    is such a field, then for a model that none names, a constant.
    """
    found: dict[str, str] = {}
    names = list(dict.fromkeys(name for content in objects for name in content))
    for ours, kind in _FLAT.items():
        alike = [name for tier in NAMES[ours] for wanted in tier for name in sorted(names) if plain(name) == wanted]
        for name in (ours, *(name for name in alike if name not in found.values())):
            hits = sum(content.get(name) is not None and kind.holds(content[name]) for content in objects)
            if 2 * hits > len(objects):
                found[ours] = name
                break
    return {ours: found.get(ours, _UNKNOWN) for ours in _FLAT if ours in found or (found and ours == "model")}


def _nearness(
    layout: Layout, objects: Sequence[Object], suggested: Mapping[str, str], view: Callable[[Object], Object]
) -> float:
    """The share of a layout's fields that most of the objects have; one that may only have another name counts less."""
    seen = [view(content) for content in objects]
    there = sum(_most_hold(layout, name, seen) for name in layout.needs)
    named = [ours for ours in layout.needs if suggested.get(ours, _UNKNOWN) != _UNKNOWN]
    alike = len(named) if layout.format == "flat" else 0
    return (there + 0.75 * alike) / len(layout.needs)


def _most_hold(layout: Layout, name: str, objects: Sequence[Object]) -> bool:
    return 2 * sum(layout.holds(content, name) for content in objects) > len(objects)


def _lack(layout: Layout, name: str, objects: Sequence[Object]) -> str:
    """A field that a layout lacks; what stands in its place, if something does."""
    other = next((content[name] for content in objects if content.get(name) is not None), None)
    return name if other is None else f"{name} as {layout.needs[name].name} ({kind_of(other)[:80]})"


def _quoted(name: str) -> str:
    return name if name.isidentifier() or name == "?" else f'"{name}"'


def _different(found: Mapping[str, Mapping[str, _Fit]]) -> str:
    """Files that have no format in common, one of each."""
    shown: dict[tuple[str, ...], str] = {}
    for source in sorted(found):
        said = " or ".join(f"{form} {fit.says()}" for form, fit in found[source].items())
        shown.setdefault(tuple(found[source]), f"{source} is {said}")
    parts = list(shown.values())
    more = f"; and {len(parts) - 3} more kinds" if len(parts) > 3 else ""
    return (
        f"the files are of different formats: {'; '.join(parts[:3])}{more}. A corpus has one: leave files out of "
        f"corpus.paths, or {_HOW}, and the rows of other files are quarantined"
    )
