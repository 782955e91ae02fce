"""How commands speak: results on standard output, everything else on standard error, colours only where somebody looks.

`--quiet` leaves out what is neither a result nor an error. With `--json` too, standard output is the JSON object alone.
"""

import os
import re
from typing import Any

import click

_QUIET = "trustjudge.quiet"


def colour() -> bool | None:
    """Whether to paint: never with NO_COLOR, always with FORCE_COLOR, on a terminal alone (None) where neither is
    set. An empty variable is not set; FORCE_COLOR=0 neither."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return False if os.environ.get("TERM") == "dumb" else None


def be_quiet(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """The option `--quiet`: for this command, and for those that it calls."""
    context.meta[_QUIET] = wanted


def is_quiet() -> bool:
    """Whether the command that runs was told to be quiet."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_QUIET))


def note(text: str) -> None:
    """Something good to know, on standard error; not where it should be quiet."""
    if not is_quiet():
        click.echo(text, err=True)


def error(reason: str) -> None:
    """Why a command fails, on standard error."""
    click.echo(f"{click.style('error:', fg='red', bold=True)} {reason}", err=True, color=colour())


def told(text: str, as_json: bool) -> None:
    """A result for people. Beside a JSON object it goes to standard error, or nowhere if it should be quiet."""
    if not (as_json and is_quiet()):
        click.echo(painted(text), err=as_json)


def document(value: Any) -> None:
    """A result for machines: one JSON object as the last line of standard output."""
    from trustjudge_ray import runs

    click.echo(runs.as_json_line(value))


_PAINTED = {"passed": "green", "FAILED": "red", "skipped": "yellow"}
_PAINTED |= {"PASS": "green", "WARN": "yellow", "BLOCK": "red", "INCONCLUSIVE": "yellow"}
_PAINTED |= {"**Improved**": "green", "**Regressed**": "red", "Underpowered": "yellow"}
_VERDICT = re.compile(
    rf"(^ *|(?<=: )|(?<=\. ))({'|'.join(re.escape(word) for word in _PAINTED)})(?=[ ,:]|$)", re.MULTILINE
)


def painted(text: str) -> str:
    """The text with its verdicts in their colours, where they begin a line, a sentence or what a colon announces; to
    be printed by click, which takes the colours out again where nobody sees them."""
    return _VERDICT.sub(lambda found: found[1] + click.style(found[2], fg=_PAINTED[found[2]]), text)
