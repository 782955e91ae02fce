"""What several commands share: their arguments, and how they load a configuration or open a run folder."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from trustjudge_ray import config

if TYPE_CHECKING:
    from trustjudge_ray.store import RunFolder

OVERRIDES = click.argument("overrides", nargs=-1, metavar="[key=value]...")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")
LIMIT = click.option("--limit", type=click.IntRange(min=1), help="Only the first so many questions.")
CONFIG = click.argument("config_path", metavar="CONFIG")
RUN = click.argument("run_path", metavar="RUN")


def load(path: str, overrides: Sequence[str], limit: int | None = None) -> config.LoadedConfig:
    """The configuration of a file, with overrides."""
    changes = [*overrides] + ([f"run.limit={limit}"] if limit else [])
    return config.load(path, changes)


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
