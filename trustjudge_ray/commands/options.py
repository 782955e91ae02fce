"""What several commands share: their arguments, and how they load a configuration or open a run folder."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from trustjudge_ray import config
from trustjudge_ray.commands import completing, output
from trustjudge_ray.nearest import did_you_mean

if TYPE_CHECKING:
    from trustjudge_ray.store import RunFolder

Decorator = Callable[[Any], Any]


class Words(click.Choice[str]):
    """One of a few words; of another one it says which may be meant."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """What is wrong with a word."""
        return super().get_invalid_choice_message(value, ctx).rstrip(".") + did_you_mean(value, self.choices)


QUIET = click.option(
    "-q", "--quiet", is_flag=True, expose_value=False, callback=output.be_quiet, help="Only results and errors."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")
LIMIT = click.option("--limit", type=click.IntRange(min=1), help="Only the first so many questions.")
CONFIG = click.argument("config_path", metavar="CONFIG", shell_complete=completing.files(*completing.YAML))
RUN = click.argument("run_path", metavar="RUN", shell_complete=completing.folders)
OVERRIDES = click.argument(
    "overrides",
    nargs=-1,
    metavar="[key=value]...",
    shell_complete=completing.overrides(lambda: config.Config, ()),
)


def overrides_of(*sections: str) -> Decorator:
    """The argument `[key=value]...` of a command for which only these sections mean something, and storage_options."""
    known = (*sections, "storage_options")

    def checked(context: click.Context, _: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
        refuse_other(given, known, context)
        return given

    return click.argument(
        "overrides",
        nargs=-1,
        metavar="[key=value]...",
        callback=checked,
        shell_complete=completing.overrides(lambda: config.Config, known),
    )


def refuse_other(given: Sequence[str], sections: Sequence[str], context: click.Context) -> None:
    """Refuse overrides that would change nothing: they are of sections that a command does not read.

    Raises:
        click.UsageError: names the key and the sections that the command reads.
    """
    for item in given:
        key, is_override, _ = item.partition("=")
        section = key.split(".")[0]
        if is_override and section not in sections:
            takes = " and ".join(f"{name}.…" for name in sections)
            hint = did_you_mean(section, sections)
            raise click.UsageError(f"'{key}' changes nothing here: {context.info_name} reads {takes}{hint}", context)


def load(path: str, overrides: Sequence[str], limit: int | None = None) -> config.LoadedConfig:
    """The configuration of a file, with overrides."""
    changes = [*overrides] + ([f"run.limit={limit}"] if limit else [])
    return config.load(path, changes)


def with_format(loaded: config.LoadedConfig) -> config.LoadedConfig:
    """The same where `corpus.format` is `auto`, with the format that the corpus is recognised to be of; says which.

    Raises:
        CorpusError: it is of no known format, or nobody can tell of which.
    """
    from trustjudge_ray import opening

    return opening.resolved(loaded, output.note)


def folder(path: str, overrides: Sequence[str]) -> "RunFolder":
    """A run folder by its path, with the `storage_options` among the overrides."""
    from trustjudge_ray.store import RunFolder

    return RunFolder(path, config.storage_options(list(overrides)))


def existing_folder(path: str, overrides: Sequence[str]) -> "RunFolder":
    """The same of a run that must be there.

    Raises:
        StorageError: there is none.
    """
    found = folder(path, overrides)
    found.refuse_absent()
    return found
