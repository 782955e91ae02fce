"""A corpus before it is read: what `corpus.format: auto` stands for. Then all is as if the configuration said so."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import yaml
from omegaconf import OmegaConf

from trustjudge_ray.config import Config, ConfigError, LoadedConfig
from trustjudge_ray.corpus import reader
from trustjudge_ray.corpus.recognising import Recognised, recognise
from trustjudge_ray.store import RunFolder

AUTO: Final = "auto"
FILES: Final = 64
"""So many files are looked into, spread over the corpus; where there are no more, all of them."""
OBJECTS: Final = 20
"""So many objects of each."""
_NAMED: Final = 3

Say = Callable[[str], None]


def resolved(loaded: LoadedConfig, say: Say) -> LoadedConfig:
    """The configuration with the format that its corpus is recognised to be of, in memory and in its text; as it is
    where it names a format.

    Args:
        say: is told what was recognised by which fields, line by line.

    Raises:
        CorpusError: the files are not there, or not of one known format.
    """
    corpus = loaded.config.corpus
    if corpus.format != AUTO or not corpus.paths:
        return loaded
    found, files = recognised(loaded.config)
    for line in lines(found, files):
        say(line)
    written = OmegaConf.create(loaded.unresolved_yaml)
    OmegaConf.update(written, "corpus.format", found.format)
    text = OmegaConf.to_yaml(written, resolve=False)
    config = replace(loaded.config, corpus=replace(corpus, format=found.format))
    return replace(loaded, config=config, unresolved_yaml=text, recognised={"files": files, "by": dict(found.says)})


def recognised(config: Config) -> tuple[Recognised, int]:
    """What the corpus of a configuration is, whatever its `corpus.format`, and how many files it has.

    Raises:
        CorpusError: as `resolved`.
    """
    options = dict(config.storage_options)
    files = reader.expand(list(config.corpus.paths), options)
    samples = {path: reader.first_objects(path, OBJECTS, options) for path in spread(files)}
    return recognise(samples, dict(config.corpus.fields)), len(files)


def spread(files: list[str]) -> list[str]:
    """The files to look into: all, or FILES of them at the same distance from each other, from first to last."""
    if len(files) <= FILES:
        return files
    return [files[i * (len(files) - 1) // (FILES - 1)] for i in range(FILES)]


def lines(found: Recognised, files: int) -> Iterator[str]:
    """What was recognised, for a person: a line for the corpus, and one for each kind of file in it."""
    looked = f"{len(found.says)} of {files:,} files, spread over the corpus" if len(found.says) < files else None
    count = looked or f"{files} file{'s' if files > 1 else ''}"
    yield f"corpus.format: auto: {found.format}, by the first objects of {count}"
    kinds: dict[str, list[str]] = {}
    for source, says in found.says.items():
        kinds.setdefault(says, []).append(source)
    for says, sources in kinds.items():
        more = f" and {len(sources) - _NAMED} more" if len(sources) > _NAMED else ""
        yield f"  {says}: {', '.join(sources[:_NAMED])}{more}"


def refuse_another_format(loaded: LoadedConfig, folder: RunFolder) -> None:
    """A run folder is of one reading of its corpus, and files that are recognised as something else are another.

    Raises:
        ConfigError: the format was recognised, and the run in the folder has read its corpus as another one.
    """
    if loaded.recognised is None or not folder.exists("config.yaml"):
        return
    before: Any = yaml.safe_load(folder.read_bytes("config.yaml").decode("utf-8"))
    corpus = before.get("corpus") if isinstance(before, dict) else None
    was = corpus.get("format", Config().corpus.format) if isinstance(corpus, dict) else None
    now = loaded.config.corpus.format
    if was in (None, AUTO, now) or "${" in was:
        return
    raise ConfigError(
        f"corpus.format: auto: the files are {now} now, and the run in {folder.path} has read its corpus as {was}; set "
        f"corpus.format to {now} if that is meant, or another `out`"
    )
