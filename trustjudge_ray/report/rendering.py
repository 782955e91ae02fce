"""Pages from the templates of this package. What is put into them is escaped unless it is marked as safe."""

from importlib import resources
from typing import Any

import jinja2


def render(name: str, **values: Any) -> str:
    """A template filled in; a value that it names and is not given is an error."""
    loader = jinja2.FunctionLoader(_source)
    return (
        jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, loader=loader)
        .get_template(name)
        .render(values)
    )


def _source(name: str) -> str:
    return (resources.files("trustjudge_ray.report") / name).read_text("utf-8")
