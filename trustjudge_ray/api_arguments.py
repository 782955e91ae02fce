"""A configuration and a corpus from Python values: what `trustjudge_ray.judge` is called with."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import polars as pl
import pyarrow as pa

from trustjudge_ray.config import ConfigError, JudgeConfig
from trustjudge_ray.corpus.reader import CorpusError
from trustjudge_ray.files import parquet
from trustjudge_ray.identity import hash_of


@runtime_checkable
class ArrowTable(Protocol):
    """A table that can say itself in Arrow: a Polars frame, a pyarrow table, a pandas frame."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


PathText = str | os.PathLike[str]
Corpus = PathText | Sequence[PathText] | Sequence[Mapping[str, Any]] | ArrowTable
"""Files, folders or globs, local or s3://; or the rows themselves."""
Judge = PathText | JudgeConfig | Mapping[str, Any]
"""A model folder or hub name, or what the section `judge` of a configuration holds."""


def setting(key: str, value: Any) -> str:
    """A value as an override of a configuration, `key=value`.

    Raises:
        ConfigError: it is none that a configuration can hold.
    """
    try:
        return f"{key}={json.dumps(plain_value(value))}"
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key}: {error}; values are text, numbers, lists and dictionaries of them") from error


def configuration(arguments: Mapping[str, Any], sections: Mapping[str, Any]) -> str:
    """A configuration as text: arguments by their key (those that are None were not given), and further sections.

    Raises:
        ConfigError: a key is in both, or a value is none that a configuration can hold.
    """
    tree = _joined(_without_none(arguments), {key: plain_value(value) for key, value in sections.items()})
    try:
        return json.dumps(tree)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"judge(): {error}; values are text, numbers, lists and dictionaries of them") from error


def plain_value(value: Any) -> Any:
    """A value of a configuration as JSON knows it; a section's dataclass as the keys that differ from the default."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fresh = type(value)()
        named = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {name: plain_value(v) for name, v in named.items() if v != getattr(fresh, name)}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): plain_value(inner) for key, inner in value.items()}
    return [plain_value(inner) for inner in value] if isinstance(value, list | tuple) else value


def _without_none(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Values and sections that were given; of a section's keys likewise."""
    found = {}
    for key, value in tree.items():
        given = plain_value(value)
        if isinstance(given, dict) and key != "judge":
            given = {name: inner for name, inner in given.items() if inner is not None} or None
        if given is not None:
            found[key] = given
    return found


def _joined(given: dict[str, Any], sections: dict[str, Any]) -> dict[str, Any]:
    joined = dict(given)
    for key, value in sections.items():
        before = joined.get(key, {})
        mappings = isinstance(before, dict) and isinstance(value, dict)
        twice = [f"{key}.{name}" for name in before if name in value] if mappings else [key] if before else []
        if twice:
            raise ConfigError(f"judge(): {twice[0]} is given twice: as an argument, and in {key}={value!r}")
        joined[key] = before | value if mappings else value
    return joined


def who_judges(judge: "Judge | Sequence[Judge] | None") -> tuple[str, Any]:
    """The key of a configuration that says who judges, and its value.

    Raises:
        ConfigError: it is nobody, or none of what `judge` takes.
    """
    one = (str, os.PathLike, JudgeConfig, Mapping)
    if judge is None:
        return "judge", None
    if isinstance(judge, one):
        return "judge", _judge(judge)
    if isinstance(judge, Sequence) and judge and all(isinstance(each, one) for each in judge):
        return "judges", [_judge(each) for each in judge]
    raise ConfigError(
        f"judge(): judge: got {judge!r}; a model folder or hub name, a JudgeConfig or a dictionary of its keys, or a "
        "list of these"
    )


def _judge(judge: "Judge") -> Any:
    return {"model": os.fspath(judge)} if isinstance(judge, str | os.PathLike) else plain_value(judge)


def corpus_files(corpus: Corpus, where: str) -> tuple[list[str], bytes | None]:
    """The paths of a corpus; of rows, the path that they will have in the run folder, and their bytes.

    Raises:
        CorpusError: it is none of what `judge` takes, or a row cannot be written as JSON or Parquet.
    """
    if isinstance(corpus, str | os.PathLike):
        return [os.fspath(corpus)], None
    if isinstance(corpus, ArrowTable):
        content = _table_bytes(corpus)
        return [f"{where}/{kept_name(content)}"], content
    parts: list[Any] = list(corpus) if isinstance(corpus, Sequence) else []
    if isinstance(corpus, Sequence) and all(isinstance(part, str | os.PathLike) for part in parts):
        return [os.fspath(part) for part in parts], None
    if not parts or not all(isinstance(part, Mapping) for part in parts):
        kinds = sorted({type(part).__name__ for part in parts})
        got = type(corpus).__name__ + (f" of {', '.join(kinds)}" if kinds else "")
        raise CorpusError(
            f"corpus: got {got}; a path, a list of paths, a list of dictionaries, a Polars frame (a lazy one: collect "
            "it), or an Arrow table"
        )
    content = b"".join(_line(number, row) for number, row in enumerate(parts, 1))
    return [f"{where}/{kept_name(content)}"], content


def kept_name(content: bytes) -> str:
    """Where rows are kept in a run folder: by their content, so that other rows do not take their place."""
    ending = "parquet" if content.startswith(b"PAR1") else "jsonl"
    return f"corpus/rows-{hash_of(content)[:16]}.{ending}"


def _table_bytes(corpus: ArrowTable) -> bytes:
    if isinstance(corpus, pl.DataFrame):
        for name, kind in corpus.schema.items():
            if kind == pl.Object:
                raise CorpusError(f"corpus: column '{name}' holds Python objects; text, numbers, lists and structs")
    try:
        if isinstance(corpus, pl.DataFrame):
            corpus = corpus.to_arrow(compat_level=pl.CompatLevel.oldest())
        return parquet(pa.table(corpus))
    except pa.ArrowException as error:
        raise CorpusError(f"corpus: not writable as Parquet: {error}") from error


def _line(number: int, row: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(dict(row)).encode("ascii") + b"\n"
    except (TypeError, ValueError) as error:
        raise CorpusError(
            f"corpus: row {number}: {error}; values are text, numbers, lists and dictionaries of them, or None"
        ) from error
