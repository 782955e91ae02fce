"""What a run does, step by step: judge, evaluate, report. The command line and the jobs call these.

Ray and the engines are imported only by `judge`; `evaluate` and `report` need a run folder and nothing else.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from trustjudge_ray import ingest
from trustjudge_ray.analysis import evaluation
from trustjudge_ray.config import AnalysisConfig, LoadedConfig, judge_name, load_analysis
from trustjudge_ray.corpus import reader
from trustjudge_ray.corpus.reader import CorpusError
from trustjudge_ray.judging import base, plan, protocols
from trustjudge_ray.judging.base import RunError
from trustjudge_ray.manifest import TABLES, Clock, counted, forget, manifest_of
from trustjudge_ray.report import page, tables
from trustjudge_ray.schema import check
from trustjudge_ray.storage import StorageError
from trustjudge_ray.store import RunFolder


@dataclass
class Progress:
    """How far the judging is. `rate` is judgments a second, `left` seconds; `began` is the time (since the epoch) at
    which the first batch went to an engine."""

    judged: int = 0
    failed: int = 0
    total: int = 0
    began: float | None = None

    @property
    def rate(self) -> float:
        """Judgments a second since the first batch began; what came before it is no measure of what is left."""
        return self.judged / max(time.time() - self.began, 1e-9) if self.began else 0.0

    @property
    def left(self) -> float | None:
        """Seconds left at this rate, or None before the first judgment."""
        return (self.total - self.judged) / self.rate if self.rate else None


Notify = Callable[[str, Progress | None], None]


@dataclass(frozen=True)
class Judged:
    """What judging came to: `tasks` of the run, how many of them were judged `now`, the failures that are over
    `run.max_failure_rate`, in words, and the run's manifest so far."""

    tasks: int
    now: int
    reused: int
    statuses: dict[str, int]
    over_limit: list[str]
    manifest: dict[str, Any] = field(repr=False)


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


def run(loaded: LoadedConfig, notify: Notify) -> tuple[Judged, str]:
    """Judge, evaluate and report; the manifest is written last. Returns also the report's text.

    Raises: as `judge`.
    """
    judged = _judge(loaded, notify)
    folder, clock, manifest = folder_of(loaded), Clock(), judged.manifest
    evaluate(folder, loaded.config.analysis)
    clock.lap("evaluate")
    text = report(folder, manifest)
    clock.lap("report")
    folder.write_json("manifest.json", manifest | {"seconds": manifest["seconds"] | clock.seconds})
    return judged, text


def judge(loaded: LoadedConfig, notify: Notify) -> Judged:
    """Read the corpus, plan, and judge what has no judgment yet. Writes everything of a run folder that
    `evaluate` needs, the manifest last. What an earlier `evaluate` wrote is removed: it may be of other answers.

    Raises:
        ConfigError, ProtocolError, CorpusError, StorageError, JudgeError, RunError: one message each.
    """
    judged = _judge(loaded, notify)
    folder_of(loaded).write_json("manifest.json", judged.manifest)
    return judged


def _judge(loaded: LoadedConfig, notify: Notify) -> Judged:
    """`judge` without the manifest.

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
    forget(folder)
    folder.write_bytes("config.yaml", loaded.unresolved_yaml.encode("utf-8"))
    folder.write_protocols(asked)
    clock = Clock()
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
    if not any(s["rows"] for s in sources):
        raise CorpusError(_nothing_usable(folder, sources))
    planned = pipeline.plan_tasks(config, folder, specs, sorted({b for s in sources for b in s["buckets"]}))
    notify(f"planned {planned.tasks} judgments, {planned.to_judge} of them to judge", None)
    if config.plan.design == "anchor" and not planned.comparisons and any(p.kind == "compare" for p in asked):
        raise RunError(f"plan.anchor: no question has an answer of a model '{config.plan.anchor}' and one of another")
    clock.lap("plan")
    progress = Progress(total=planned.to_judge)
    for judge_config in config.all_judges:
        pending = planned.pending.get(judge_name(judge_config), {})
        for ledger in pipeline.judge_pending(config, folder, judge_config, asked, pending):
            progress.judged += ledger["rows"]
            progress.began = min(progress.began or ledger["began"], ledger["began"])
            progress.failed += sum(n for status, n in ledger["statuses"].items() if status in base.JUDGE_FAILURES)
            notify("judging", progress)
    clock.lap("judge")
    judgments, further = folder.judgments()
    reused, statuses = planned.tasks - planned.to_judge - planned.preset, counted(judgments["status"])
    counts: dict[str, Any] = {"tasks": planned.tasks, "judged_now": progress.judged, "reused": reused}
    counts |= {"further_rows": further, "counts": statuses}
    manifest = manifest_of(loaded, identities, asked, specs, sources, judgments, counts, clock)
    over = base.failures_over(judgments, config.run.max_failure_rate)
    return Judged(planned.tasks, progress.judged, reused, statuses, over, manifest)


def _nothing_usable(folder: RunFolder, sources: list[dict[str, Any]]) -> str:
    bad = folder.quarantine()
    reasons = "" if bad is None else ", ".join(f"{reason} {n}" for reason, n in counted(bad["reason"]).items())
    said = f"{0 if bad is None else bad.height} quarantined" + (f" ({reasons})" if reasons else "")
    return f"corpus: no usable row in {len(sources)} files: {said}; `trustjudge validate` names each line"


def evaluate(folder: RunFolder, settings: AnalysisConfig) -> evaluation.Evaluation:
    """Compute every table from the folder's judgments and write them beside it."""
    judgments, _ = folder.judgments()
    found = evaluation.evaluate(judgments, folder.protocols(), folder.responses(), settings)
    for name, schema in TABLES.items():
        frame: pl.DataFrame = getattr(found, name)
        folder.write_table(f"{name}.parquet", check(frame.to_arrow(), schema))
        if name != "verdicts":
            folder.write_bytes(f"{name}.csv", frame.write_csv().encode("utf-8"))
    folder.write_json("metrics.json", {"metrics": found.metrics.to_dicts(), "ratings": found.ratings.to_dicts()})
    folder.write_json("warnings.json", found.warnings)
    return found


def report(folder: RunFolder, manifest: dict[str, Any] | None = None) -> str:
    """Write `report.html`, `report.txt` and the figures from the tables of a run folder; the text.

    Args:
        manifest: of the run, where it is not in the folder yet.

    Raises:
        StorageError: the run was not evaluated, or storage refuses.
    """
    if not folder.exists("metrics.json"):
        raise StorageError(f"{folder.path}: not evaluated yet; first trustjudge evaluate {folder.path}")
    inputs = report_inputs(folder, manifest)
    text = tables.terminal(inputs)
    for name, svg in page.figures(inputs).items():
        folder.write_bytes(f"figures/{name}.svg", svg.encode("utf-8"))
    folder.write_bytes("report.html", page.page(inputs).encode("utf-8"))
    folder.write_bytes("report.txt", text.encode("utf-8"))
    return text


def report_inputs(folder: RunFolder, manifest: dict[str, Any] | None = None) -> tables.Inputs:
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
        manifest=manifest or (folder.read_json("manifest.json") if folder.exists("manifest.json") else {}),
        settings=analysis_settings(folder, []),
        **frames,
    )


def analysis_settings(folder: RunFolder, overrides: list[str]) -> AnalysisConfig:
    """The `analysis` section of a run folder's configuration, with overrides."""
    text = folder.read_bytes("config.yaml").decode("utf-8")
    return load_analysis(text, f"{folder.path}/config.yaml", overrides)


def _refuse_same_names(asked: list[protocols.Protocol]) -> None:
    names = [protocol.name for protocol in asked]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise protocols.ProtocolError(f"protocols: two are named '{twice[0]}'; tables tell them apart by name")


def as_json_line(value: Any) -> str:
    """One line of JSON, for machines that read standard output."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
