"""A run folder made from judgments of another system."""

import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from trustjudge_ray import __version__, imports, ingest, lease
from trustjudge_ray.identity import bucket_of
from trustjudge_ray.judging.base import RunError
from trustjudge_ray.manifest import forget, git_commit, versions
from trustjudge_ray.schema import TASKS, check
from trustjudge_ray.storage import open_binary
from trustjudge_ray.store import LINK, PENDING_TASKS, RunFolder

OPTIONS: Final = {"trustjudge": ("scale",), "arena-hard": ("baseline",)}
"""What else the reader of a format takes."""


def import_judgments(
    kind: str,
    files: list[str],
    folder: RunFolder,
    judge_name: str | None = None,
    scale: int | None = None,
    baseline: str | None = None,
) -> dict[str, Any]:
    """Make a run folder from judgments that another system made. What the folder held is replaced, once all is read.

    Args:
        scale: points of the scores, where the files of the format `trustjudge` do not say.
        baseline: the model that all others met, where the files of the format `arena-hard` do not say.

    Returns:
        `judgments`, `statuses` {status: n}, `quarantined`, `protocols` and `notes`, which `evaluate` repeats among its
        warnings.

    Raises:
        ImportFileError: a file is not of that format; names file, line and what would be right.
        RunError: the folder holds judgments that were not imported.
        LeaseError: a run works on the folder.
    """
    folder.probe()
    with lease.held(folder):
        _refuse_judged(folder)
        given = {"scale": scale, "baseline": baseline}
        return _import(
            kind, files, folder, {"judge": judge_name, **{name: given[name] for name in OPTIONS.get(kind, ())}}
        )


def _import(kind: str, files: list[str], folder: RunFolder, options: dict[str, Any]) -> dict[str, Any]:
    with contextlib.ExitStack() as opened:
        scratch = RunFolder(opened.enter_context(tempfile.TemporaryDirectory(prefix="trustjudge-import-")))
        streams = {path: opened.enter_context(open_binary(path, folder.options)) for path in files}
        imported = imports.READERS[kind](streams, **options)
        statuses = _store_imported(scratch, imported.judgments)
        if imported.responses is not None:
            scratch.write_table("responses/imported.parquet", imported.responses)
        if len(imported.quarantine):
            scratch.write_table("quarantine/imported.parquet", imported.quarantine)
        scratch.write_bytes("config.yaml", b"analysis: {}\n")
        scratch.write_protocols(list(imported.protocols.values()))
        forget(folder)
        folder.remove("judgments")
        ingest.clear(folder)
        for name in scratch.names(""):
            folder.write_bytes(name, scratch.read_bytes(name))
    summary = {
        "judgments": sum(statuses.values()),
        "statuses": statuses,
        "quarantined": len(imported.quarantine),
        "protocols": sorted(imported.protocols),
        "notes": imported.notes,
    }
    manifest = {"trustjudge_ray": __version__, "versions": versions(), "git_commit": git_commit()}
    folder.write_json("manifest.json", manifest | {"imported": {"format": kind, "files": files, **summary}})
    return summary


def _refuse_judged(folder: RunFolder) -> None:
    """An import replaces an import; it never replaces judgments that were paid for."""
    manifest = folder.read_json("manifest.json") if folder.exists("manifest.json") else {}
    if (folder.exists("judgments") or folder.exists(LINK)) and "imported" not in manifest:
        raise RunError(f"{folder.path}: holds judgments that were made here; import into another folder")


def _store_imported(folder: RunFolder, tables_read: Iterator[pa.Table]) -> dict[str, int]:
    """Write imported judgments and their tasks by bucket, a bounded number of rows at a time; counts by status."""
    statuses: Counter[str] = Counter()
    for number, table in enumerate(_gathered(tables_read, 50_000)):
        statuses.update(table["status"].to_pylist())
        where: dict[int, list[int]] = {}
        for i, question_id in enumerate(table["question_id"].to_pylist()):
            where.setdefault(bucket_of(question_id), []).append(i)
        for bucket, rows in sorted(where.items()):
            part = table.take(pa.array(rows))
            folder.write_judgments(bucket, part)
            tasks = part.select(TASKS.names).append_column("pending", pa.array([False] * len(part)))
            folder.write_table(f"tasks/bucket={bucket:03d}-{number:05d}.parquet", check(tasks, PENDING_TASKS))
    return dict(statuses.most_common())


def _gathered(tables_read: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    for table in tables_read:
        waiting.append(table)
        if sum(map(len, waiting)) >= rows:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)
