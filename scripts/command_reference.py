"""Writes the table of commands in docs/cli.md from the commands themselves.

python scripts/command_reference.py            # writes it
python scripts/command_reference.py --check    # exit status 1 if it is not current
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from trustjudge_ray.cli import GROUPS

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
BEGIN, END = "<!-- commands: written by scripts/command_reference.py -->", "<!-- end of commands -->"
SHARED = ("--json", "--quiet")
"""Options that nearly every command has: said once, above the table."""


def table() -> str:
    """The commands by group, with what they do and their options."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    for group, commands in GROUPS.items():
        yield f"\n### {group}\n\n| command | does | options |\n|---|---|---|"
        for command in commands:
            yield f"| `{usage(command)}` | {_first_line(command)} | {_options(command)} |"
    yield ""


def usage(command: click.Command) -> str:
    """A command with its arguments, as it is typed."""
    given = [p.make_metavar(click.Context(command)) for p in command.params if isinstance(p, click.Argument)]
    return " ".join([str(command.name), *given]).replace("|", "\\|")


def _first_line(command: click.Command) -> str:
    return " ".join((command.help or "").split("\n\n")[0].split()).replace("|", "\\|")


def _options(command: click.Command) -> str:
    named = [max(p.opts, key=len) for p in command.params if isinstance(p, click.Option) and not p.hidden]
    return " ".join(f"`{name}`" for name in named if name not in SHARED) or "–"


def with_table(text: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Write the page, or check it."""
    text = PAGE.read_text("utf-8")
    if arguments == ["--check"]:
        if with_table(text) != text:
            print(f"{PAGE}: not current; python scripts/command_reference.py writes it", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(with_table(text), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
