"""Pages from the templates of this package. What is put into them is escaped unless it is marked as safe.

Scripts are inline, and a page's policy names each by its hash: nothing that a corpus or a judge wrote can run.
"""

import json
from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from importlib import resources
from typing import Any, Final

import jinja2
from markupsafe import Markup

_IN_SCRIPT: Final = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def render(name: str, **values: Any) -> str:
    """A template filled in; a value that it names and is not given is an error."""
    loader = jinja2.FunctionLoader(_source)
    return (
        jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, loader=loader)
        .get_template(name)
        .render(values)
    )


def script(name: str) -> Markup:
    """A script of this package, to stand in a page's <script>."""
    return inline(_source(name))


def inline(text: str) -> Markup:
    """A script's text, marked as safe.

    Raises:
        ValueError: it would end its own <script> element.
    """
    if "</script" in text.lower() or "<!--" in text:
        raise ValueError("a script that holds '</script' or '<!--' cannot stand in a page")
    return Markup(text)


def policy(scripts: Iterable[str], also: str = "") -> str:
    """A Content-Security-Policy that lets these scripts run, as they are and inline, and loads nothing.

    Args:
        also: further sources of scripts, as the policy writes them (`'self'`).
    """
    hashes = (f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in scripts)
    sources = " ".join([*dict.fromkeys(hashes), *also.split()]) or "'none'"
    return f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; img-src data:"


def as_json(value: Any) -> Markup:
    """A value as JSON that stands in `<script type="application/json">` whatever texts it holds (a NaN is refused)."""
    return Markup(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_IN_SCRIPT))


def _source(name: str) -> str:
    return (resources.files("trustjudge_ray.report") / name).read_text("utf-8")
