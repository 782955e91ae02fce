"""A corpus before it is read: what `corpus.format: auto` stands for (then all is as if the configuration said so), and
whether it may take the place of what a run folder holds."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import yaml
from omegaconf import OmegaConf

from trustjudge_ray import ingest
from trustjudge_ray.config import Config, ConfigError, LoadedConfig
from trustjudge_ray.corpus import joining, reader
from trustjudge_ray.corpus.reader import CorpusError
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


def refuse_to_replace_by_nothing(loaded: LoadedConfig, folder: RunFolder) -> None:
    """A run that is there stays as it is where the corpus that is given now has no usable row: before anything of the
    folder is replaced it is looked at as far as the first such row.

    Raises:
        CorpusError: it has none, or a file cannot be read.
    """
    if not folder.exists("config.yaml"):
        return
    corpus, reasons = loaded.config.corpus, Counter[str]()
    first: dict[str, Any] | None = None
    questions = 0
    files = reader.expand(list(corpus.paths), folder.options)
    for path in files:
        for rows, quarantine in ingest.read(path, corpus, folder.options):
            kinds = joining.kinds(rows)
            if kinds["rows"]:
                return
            questions += kinds["questions"]
            reasons.update(quarantine["reason"].to_pylist())
            first = first or next(iter(quarantine.slice(0, 1).to_pylist()), None)
    raise CorpusError(f"{nothing_usable(len(files), reasons, first, questions)}; {folder.path} is left as it was")


def nothing_usable(files: int, reasons: Mapping[str, int], first: Mapping[str, Any] | None, questions: int) -> str:
    """That a corpus has nothing to judge, and why: rows that were quarantined, by reason, the first of them, and
    questions without an answer."""
    said = f"{sum(reasons.values())} quarantined"
    said += f" ({', '.join(f'{reason} {n}' for reason, n in Counter(reasons).most_common())})" if reasons else ""
    said += f", {questions} questions without an answer" if questions else ""
    if first is None:
        return f"corpus: no usable row in {files} files: {said if questions else 'nothing is in them'}"
    said += f"; the first is {first['source']}, line {first['line']}: {first['reason']}: {first['detail']}"
    return f"corpus: no usable row in {files} files: {said}; `trustjudge validate` names each line"
