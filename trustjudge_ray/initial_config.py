"""A first configuration for a corpus, with comments: what `trustjudge init` prints.

The beginning of each file decides the format and the fields; what the configuration then makes of the corpus is tried
before it is printed, so that it can be run as it is.
"""

import glob
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl

from trustjudge_ray import config, guessed_fields, initial_text, runs
from trustjudge_ray.config import CorpusConfig
from trustjudge_ray.corpus import reader, recognising
from trustjudge_ray.corpus.formats import FILE, CorpusError, field_map, file_name
from trustjudge_ray.corpus.objects import sayable
from trustjudge_ray.guessed_fields import Guess, GuessError, Row
from trustjudge_ray.initial_text import Findings
from trustjudge_ray.storage import explained, filesystem
from trustjudge_ray.store import RunFolder

ROWS = 2000
"""Rows of a file that are looked at."""
FILES = 200
"""Files that are looked at."""
WHOLE_BYTES = 8 * 2**20
"""A corpus up to this size is read whole; of a larger one the first rows speak for it."""
LOOK = 50
"""Rows of a file that tell its format."""


def run_name(path: str) -> str:
    """What a run of the corpus at a path, which may be a folder or a glob, is called: as the file is, without dots at
    the ends."""
    name = "" if glob.has_magic(path) and not Path(path).exists() else file_name(path)
    return name.strip(".") or "mine"


def of_files(paths: list[str], form: str | None, fields: dict[str, str], name: str) -> tuple[str, list[str]]:
    """The configuration of a corpus, and what somebody should look at before it is used (it is in the text too).

    Args:
        paths: files, folders or globs.
        form: the format, if the user knows it; fields: what the user said of them, ours to theirs.
        name: the last part of the run folder's path.

    Raises:
        CorpusError: there is no such file, no row can be read, or files are of different formats.
        ConfigError: a format or a field is not known, or what a field is cannot be told.
    """
    files = reader.expand(paths)
    begun = {path: reader.first_objects(path, ROWS) for path in files[:FILES]}
    samples = {path: rows for path, rows in begun.items() if rows}
    if not samples:
        raise CorpusError(_nothing_read(files))
    recognised, says = _format(samples, form, fields)
    guess = _guess(samples, recognised, fields)
    corpus = CorpusConfig(paths=paths, format=recognised, fields=_renamed(guess.fields))
    try:
        rows, unusable, whole = _seen(corpus, files, samples)
    except CorpusError:
        other = None if recognised == form or recognised == "flat" else _otherwise(corpus, samples, fields)
        if other is None:
            raise
        corpus, guess = other
        rows, unusable, whole = _seen(corpus, files, samples)
        says = says if corpus.format == recognised else []
    unanswered = rows["replies"].list.len().max() == 0
    guess.warnings.extend(_unasked(rows))
    found = Findings(f"runs/{name}", corpus, says, guess, rows, unusable, whole, bool(unanswered))
    text = initial_text.text(found)
    written = config.loads(text, "init").config.corpus
    assert (written.paths, written.format, written.fields) == (corpus.paths, corpus.format, corpus.fields)
    return text, guess.warnings


def _unasked(rows: pl.DataFrame) -> Iterator[str]:
    """What to say of answers whose question is not in the corpus."""
    asked = pl.col("messages").list.eval(pl.element().struct.field("role") == "user").list.any()
    count = rows.filter(~asked).height
    if count:
        yield (
            f"{count:,} of {rows.height:,} answers have no question, so judges see the answer alone; name the file of "
            "the questions too, or say which field it is: --field question=NAME"
        )


def _nothing_read(files: list[str]) -> str:
    told = []
    for path in files[:3]:
        _, rejected = next(reader.read(path))
        first = rejected.slice(0, 1).to_pylist()
        told += [f"{path}: line {row['line']}: {row['reason']}: {row['detail']}" for row in first] or [
            f"{path}: it is empty"
        ]
    more = f"; and {len(files) - 3} more files" if len(files) > 3 else ""
    return f"no row can be read: {'; '.join(told)}{more}"


def _format(samples: dict[str, list[Row]], form: str | None, fields: dict[str, str]) -> tuple[str, list[str]]:
    """The format, and a sentence for each kind of file. Where no format fits, the rows are taken for flat ones."""
    if form not in (None, "auto"):
        field_map(fields, form)
        return form, []
    try:
        found = recognising.recognise({path: rows[:LOOK] for path, rows in samples.items()}, fields)
    except recognising.NoFormatError:
        field_map(fields)
        return "flat", []
    kinds: dict[str, list[str]] = {}
    for path, said in found.says.items():
        kinds.setdefault(said, []).append(path)
    says = [f"{_files(which)}: {said}" for said, which in kinds.items()]
    return found.format, says


def _files(paths: list[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"


def _guess(samples: dict[str, list[Row]], form: str, given: dict[str, str]) -> Guess:
    """What the fields are. Formats other than flat and questions know theirs."""
    if form not in ("flat", "questions"):
        return Guess(dict(given), {}, [])
    try:
        return guessed_fields.guess(samples, given, answered=form == "flat")
    except GuessError as error:
        rows = [row for found in samples.values() for row in found]
        unanswered = "response" not in given and guessed_fields.are_questions(rows)
        hint = "; if they are questions that nobody has answered yet: --format questions" if unanswered else ""
        raise config.ConfigError(f"init: {error}{hint}") from error


def _renamed(fields: dict[str, str]) -> dict[str, str]:
    """The fields that are called otherwise than ours."""
    return {ours: theirs for ours, theirs in fields.items() if ours != theirs}


def _otherwise(
    corpus: CorpusConfig, samples: dict[str, list[Row]], given: dict[str, str]
) -> tuple[CorpusConfig, Guess] | None:
    """How else rows may be meant that a format fits by their fields and cannot read: as flat ones, or as answers of
    models that the files are named after. None where neither can be."""
    try:
        guess = guessed_fields.guess(samples, given)
        return replace(corpus, format="flat", fields=_renamed(guess.fields)), guess
    except GuessError:
        pass
    if "model" in given or "model" not in field_map({}, corpus.format).names:
        return None
    fields = given | {"model": f"={FILE}"}
    return replace(corpus, fields=fields), Guess(
        fields, {"model": "the rows name no model; the name of the file does"}, []
    )


def _seen(corpus: CorpusConfig, files: list[str], samples: dict[str, list[Row]]) -> tuple[pl.DataFrame, int, bool]:
    """RESPONSES of the corpus as the configuration reads it, how many rows it cannot use; and whether that is of all
    rows, or of the first of each file.

    Raises:
        CorpusError: not one row can be used.
    """
    whole = len(files) <= FILES and sum(map(_size, files)) <= WHOLE_BYTES
    with tempfile.TemporaryDirectory(prefix="trustjudge-init-") as scratch:
        read = corpus if whole else replace(corpus, paths=_excerpts(samples, Path(scratch) / "rows"))
        folder = Path(scratch) / "run"
        found = runs.validate(config.LoadedConfig(config.Config(corpus=read), "", "init"), folder)
        rows = RunFolder(str(folder)).responses()
    if not rows.height:
        details = {problem["reason"]: problem["detail"] for problem in reversed(found["problems"])}
        counts = Counter(problem["reason"] for problem in found["problems"])
        common = "; ".join(f"{reason} ({n} times): {details[reason]}" for reason, n in counts.most_common(3))
        raise CorpusError(f"no row can be used as format {corpus.format}: {common}")
    return rows, found["quarantined"], whole


def _size(path: str) -> int:
    fs, inner = filesystem(path)
    with explained(path):
        return int(fs.size(inner) or 0)


def _excerpts(samples: dict[str, list[Row]], folder: Path) -> list[str]:
    """The first rows of each file as a file of their own, under the same name and parent folder, which may say what it
    holds."""
    paths = []
    for number, (path, rows) in enumerate(samples.items()):
        above, name = (["", *path.split("/")])[-2:]
        excerpt = folder / str(number) / above / f"{name}.jsonl"
        excerpt.parent.mkdir(parents=True)
        excerpt.write_text("".join(json.dumps(sayable(row)[0]) + "\n" for row in rows), encoding="utf-8")
        paths.append(str(excerpt))
    return paths
