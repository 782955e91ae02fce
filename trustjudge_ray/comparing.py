"""Two run folders compared, and the nights of a nightly run."""

import re
from typing import Any

import polars as pl

from trustjudge_ray.analysis.compare import Comparison, compare_runs
from trustjudge_ray.analysis.gate import failures
from trustjudge_ray.analysis.pairing import Side
from trustjudge_ray.config import AnalysisConfig, CompareConfig, load_compare
from trustjudge_ray.judging.base import RunError, failures_over
from trustjudge_ray.report.comparison import as_document, markdown
from trustjudge_ray.storage import explained, filesystem
from trustjudge_ray.store import RunFolder

_DATED = re.compile(r"\d{4}-?\d{2}-?\d{2}")


def opened(path: str, options: dict[str, Any]) -> RunFolder:
    """A run folder that is there.

    Raises:
        StorageError: it is no run folder, or storage refuses.
    """
    folder = RunFolder(path, options)
    folder.refuse_absent()
    return folder


def side_of(folder: RunFolder) -> Side:
    """What a comparison reads of a run folder."""
    judgments, _ = folder.judgments()
    kept = judgments.filter(pl.col("kind").is_in(["score", "compare"]))
    return Side(folder.path, kept, folder.responses(), folder.protocols())


def settings_of(folder: RunFolder, overrides: list[str]) -> tuple[AnalysisConfig, CompareConfig]:
    """The sections `analysis` and `compare` of a run folder's configuration, with overrides."""
    text = folder.read_bytes("config.yaml").decode("utf-8")
    return load_compare(text, f"{folder.path}/config.yaml", overrides)


def compare_folders(
    a: RunFolder, b: RunFolder, analysis: AnalysisConfig, settings: CompareConfig
) -> tuple[Comparison, list[str]]:
    """Compare run B with run A by the same settings; the comparison, and why it does not pass `settings.fail_on`.

    Raises:
        RunError: they have no judged question and model in common.
        StorageError: a folder is no run folder, or storage refuses.
    """
    found = compare_runs(side_of(a), side_of(b), analysis, settings)
    if not any(change.questions for change in [*found.changes, *found.consistency]):
        raise RunError(f"nothing to compare in {a.path} and {b.path}: {'; '.join(found.warnings) or 'no judgments'}")
    return found, failures(found, settings.fail_on)


def write(folder: RunFolder, found: Comparison, failed: list[str]) -> str:
    """Write `comparison.md` and `comparison.json` into a folder; the Markdown."""
    text = markdown(found, failed)
    folder.write_json("comparison.json", as_document(found, failed))
    folder.write_bytes("comparison.md", text.encode("utf-8"))
    return text


def earlier_night(
    tonight: RunFolder, against: str | None, max_failure_rate: float
) -> tuple[RunFolder | None, list[str]]:
    """The run that tonight's is compared with, and in words which nights were passed over.

    `against` is a run folder, or a folder of them (by default the one that tonight's lies in). There the last night
    before tonight's is taken that is complete, was evaluated, and whose failures are within `max_failure_rate`. Nights
    are in order of their names where all start with a date, otherwise of when they were finished.

    Raises:
        StorageError: storage refuses.
    """
    where = (against or tonight.path.rpartition("/")[0] or ".").rstrip("/")
    if against and _is_run(where, tonight.options):
        return opened(where, tonight.options), []
    told: list[str] = []
    for path in _nights(where, tonight):
        night = opened(path, tonight.options)
        judgments, _ = night.judgments()
        over = failures_over(judgments, max_failure_rate)
        if not over:
            return night, told
        told.append(f"{path} is passed over: {over[0]}")
    return None, told


def _nights(where: str, tonight: RunFolder) -> list[str]:
    """Complete runs in a folder before tonight's, the newest first."""
    fs, root = filesystem(where, tonight.options)
    own = tonight.path.rpartition("/")[2]
    with explained(where):
        names = [path.rstrip("/").rpartition("/")[2] for path in fs.ls(root, detail=False)] if fs.exists(root) else []
    same_place = filesystem(tonight.path, tonight.options)[1].rstrip("/").rpartition("/")[0] == root.rstrip("/")
    others = [name for name in names if not (same_place and name == own)]
    complete = [name for name in others if _is_complete(f"{where}/{name}", tonight.options)]
    if _DATED.match(own) and all(_DATED.match(name) for name in complete):
        before = [name for name in complete if not same_place or name < own]
        return [f"{where}/{name}" for name in sorted(before, reverse=True)]
    with explained(where):
        finished = {name: fs.modified(f"{root.rstrip('/')}/{name}/manifest.json") for name in complete}
    return [f"{where}/{name}" for name in sorted(complete, key=lambda name: (finished[name], name), reverse=True)]


def _is_run(path: str, options: dict[str, Any]) -> bool:
    return RunFolder(path, options).exists("config.yaml")


def _is_complete(path: str, options: dict[str, Any]) -> bool:
    folder = RunFolder(path, options)
    return folder.exists("config.yaml") and folder.exists("manifest.json") and folder.exists("metrics.json")
