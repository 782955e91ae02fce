"""What somebody may have meant who misspelt a name."""

import difflib
from collections.abc import Iterable
from pathlib import Path


def nearest(given: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The name that is most like what was given, whatever its case; None where none is like it."""
    names = {name.lower(): name for name in reversed(list(known))}
    close = difflib.get_close_matches(given.lower(), names, n=1, cutoff=cutoff)
    return names[close[0]] if close else None


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """`; did you mean 'full'?`, to be put behind a message; nothing where no name is like it."""
    near = nearest(str(given), known)
    return f"; did you mean '{near}'?" if near else ""


def did_you_mean_file(path: str | Path) -> str:
    """The same of a path on this machine's disk that names nothing: a name beside it, or the first that are there."""
    missing = Path(path)
    folder = next((place for place in missing.parents if place.is_dir()), None)
    if folder is None:
        return ""
    try:
        names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError:
        return ""
    wanted = missing.relative_to(folder).parts[0]
    near = nearest(wanted, names)
    if near and nearest(Path(wanted).stem, [Path(near).stem]):  # that both end in .yaml makes no name like the other
        meant = folder / near
        further = meant.joinpath(*missing.relative_to(folder).parts[1:])
        return f"; did you mean '{further if further.exists() else meant}'?"
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"; {folder} has {shown or 'nothing'}"
