"""Writes docs/configuration.md from the dataclasses of the configuration.

python scripts/configuration_reference.py            # writes it
python scripts/configuration_reference.py --check    # exit status 1 if it is not current, or a key has no description
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from trustjudge_ray import config_keys, config_values
from trustjudge_ray.audit_config import GateConfig
from trustjudge_ray.config import Config, JudgeConfig
from trustjudge_ray.rewards_config import RewardConfig
from trustjudge_ray.serving_config import ServeConfig, ServingConfig

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"

HEAD = """\
# Configuration

<!-- Written by scripts/configuration_reference.py from the dataclasses; edit those. -->

A run is described by one YAML file. Every key is optional but `corpus.paths`; an unknown key and a value that makes no
sense are refused before anything is read. `key=value` on the command line changes any key (`plan.block=4`,
`corpus.paths=[a.jsonl,b.jsonl]`), in Python `overrides=["plan.block=4"]` or a section (`plan={"block": 4}`).
`${oc.env:NAME}` takes a value from the environment; the run folder keeps the reference, not the value, and credentials
that are written out in clear are kept as `(not kept)`.

```yaml
CONFIGURATION
```

The shipped configurations are in `configs/`. A reward service has [a file of its own](#a-reward-service).
"""

EXAMPLE = """\
out: runs/mine
corpus:
  paths: [answers/*.jsonl]
judge:
  model: /models/my-judge
protocols: [score-5, compare]
plan:
  design: blocks
cluster:
  gpus_per_replica: 1"""

SERVICE = """\
`trustjudge serve-rewards CONFIG` reads a file with the sections [`judge`](#judge) and [`cluster`](#cluster) as above,
and these two. `rewards` is also what `TrustJudgeReward` takes ([rewards.md](rewards.md),
[reward-service.md](reward-service.md)).
"""

OPTIONAL = ("audit", "audit.lora")
"""Sections that are null where they are not written."""
_TYPES = {
    GateConfig: "{warn, block}",
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    Any: "any",
}


@dataclass(frozen=True)
class Key:
    """One line of the reference."""

    name: str
    kind: str
    default: str
    meaning: str


def descriptions(cls: type) -> dict[str, str]:
    """The text below each field of a dataclass, on one line."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for line, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(after, ast.Expr):
            said = ast.literal_eval(after.value)
            found[line.target.id] = " ".join(said.split())
    return found


def keys_of(cls: type, section: str) -> list[Key]:
    """The keys of a section that hold a value, in the order of the code.

    Args:
        section: its name with dots, for the choices that a key has.
    """
    said = descriptions(cls)
    return [Key(f.name, _kind(f, section), _default(f), said.get(f.name, "")) for f in fields(cls) if not _opens(f)]


def sections(cls: type = Config, prefix: str = "") -> Iterator[tuple[str, type]]:
    """Every section of a configuration, with dots, and its dataclass."""
    for each in fields(cls):
        inner = _opens(each)
        if inner is not None:
            yield f"{prefix}{each.name}", inner
            yield from sections(inner, f"{prefix}{each.name}.")


def _opens(each: Field) -> type | None:
    """The section that a field opens, if it does; a gate's two thresholds are one value."""
    inner = config_keys.section(each.type)
    return None if inner is GateConfig else inner


def undescribed() -> list[str]:
    """The keys that nobody has described."""
    everything = [
        ("", Config),
        *sections(),
        *(each for each in sections(ServingConfig) if each[0] in ("rewards", "serve")),
    ]
    return [
        f"{name}.{key.name}".lstrip(".") for name, cls in everything for key in keys_of(cls, name) if not key.meaning
    ]


def page() -> str:
    """The reference as Markdown."""
    parts = [HEAD.replace("CONFIGURATION", EXAMPLE), *_section("The file itself", Config, "")]
    for name, cls in sections():
        parts += _section(f"`{name}`", cls, name)
    parts += ["## A reward service\n", SERVICE]
    for name, cls in (("rewards", RewardConfig), ("serve", ServeConfig)):
        parts += _section(f"`{name}`", cls, name, level=3)
    return "\n".join(parts)


def _section(title: str, cls: type, name: str, level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} {title}\n"
    if cls.__doc__ and name:
        yield " ".join(cls.__doc__.split()) + (" Left out by default.\n" if name in OPTIONAL else "\n")
    keys = keys_of(cls, name)
    if keys:
        lines = [f"| `{k.name}` | {_cell(k.kind)} | {_cell(k.default)} | {_cell(k.meaning)} |" for k in keys]
        if any(GateConfig in get_args(each.type) for each in fields(cls)):
            yield from (f"`{name}`: {text}\n" for name, text in descriptions(GateConfig).items())
        yield "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *lines, ""])


def _kind(each: Field, section: str) -> str:
    known = config_values.choices(f"{section}.{each.name}")
    if known:
        words = ", ".join(f"`{word}`" for word in known)
        return f"list of {words}" if get_origin(each.type) is list else f"one of {words}"
    return _type(each.type)


def _type(kind: Any) -> str:
    if kind in _TYPES:
        return _TYPES[kind]
    inner = [part for part in get_args(kind) if part is not NoneType]
    if get_origin(kind) is list:
        return f"list of {'judges' if inner == [JudgeConfig] else _type(inner[0])}"
    if get_origin(kind) is dict:
        return f"mapping to {_type(inner[1])}"
    return f"{_type(inner[0])}, or nothing"


def _default(each: Field) -> str:
    value = each.default if each.default is not MISSING else None
    if each.default_factory is not MISSING:
        value = each.default_factory()
    elif each.default is MISSING:
        return "must be given"
    return "–" if value is None or value in ([], {}) else f"`{_yaml(value)}`"


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, GateConfig):
        return f"{{warn: {value.warn}, block: {value.block}}}"
    if isinstance(value, list):
        return f"[{', '.join(_yaml(inner) for inner in value)}]"
    return str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> int:
    """Write the page, or check it."""
    missing = undescribed()
    if missing:
        print(f"keys without a description: {', '.join(missing)}", file=sys.stderr)
    text = page()
    if arguments == ["--check"]:
        current = PAGE.exists() and PAGE.read_text("utf-8") == text
        if not current:
            print(f"{PAGE}: not current; python scripts/configuration_reference.py writes it", file=sys.stderr)
        return int(bool(missing) or not current)
    PAGE.write_text(text, "utf-8")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
