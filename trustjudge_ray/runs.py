"""What a run does, step by step: judge, evaluate, report. The command line and the jobs call these.

Ray and the engines are imported only by `judge`; `evaluate` and `report` need a run folder and nothing else.
"""

import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from trustjudge_ray import asking, browsing, budget, ingest, lease, opening, tally
from trustjudge_ray.analysis import evaluation
from trustjudge_ray.analysis.ablation import ABLATION
from trustjudge_ray.analysis.families import with_judges
from trustjudge_ray.audit import attached
from trustjudge_ray.config import (
    EMBEDDED_NAME,
    AnalysisConfig,
    Config,
    ConfigError,
    LoadedConfig,
    judge_name,
    load_analysis,
    load_judges,
)
from trustjudge_ray.corpus import reader
from trustjudge_ray.corpus.reader import CorpusError
from trustjudge_ray.judging import base, plan, protocols
from trustjudge_ray.judging.base import RunError
from trustjudge_ray.manifest import TABLES, Clock, cost, counted, forget, imported_notes, manifest_of
from trustjudge_ray.progress import Progress
from trustjudge_ray.report import browse, judges, numbers, page, tables
from trustjudge_ray.report.summary import summary_text
from trustjudge_ray.schema import check
from trustjudge_ray.storage import StorageError
from trustjudge_ray.store import RunFolder

if TYPE_CHECKING:
    from trustjudge_ray.pipeline import Planned

Notify = Callable[[str, Progress | None], None]
NO_RAY: Final = (
    "judging needs Ray, which is not installed: pip install 'trustjudge-ray[gpu]' for vLLM on GPUs, '[cpu]' for vLLM "
    "on the CPU, '[ray]' for endpoints and the scripted judge; what works on the judgments of a run needs none of them"
)
"""What is said where `pipeline` cannot be imported for want of Ray."""


@dataclass(frozen=True)
class Judged:
    """What judging came to: `tasks` of the run, how many of them were judged `now`, the failures that are over
    `run.max_failure_rate`, in words, how many tasks are `left` without a judgment because a budget ended, and why
    (`stopped`), and the run's manifest so far."""

    tasks: int
    now: int
    reused: int
    left: int
    statuses: dict[str, int]
    over_limit: list[str]
    stopped: str | None
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
        The `format`, `rows` that can be used, how many of them are `unasked` (have no question), `quarantined`,
        `reasons` {reason: n} and `problems`, one for each quarantined row with source, line, reason and detail.
    """
    config = opening.resolved(loaded, lambda _: None).config
    folder = RunFolder(str(scratch))
    inputs = reader.expand(list(config.corpus.paths), dict(config.storage_options))
    ledgers = [ingest.ingest_file(path, config.corpus, folder, dict(config.storage_options)) for path in inputs]
    rows = unasked = 0
    for bucket in sorted({b for x in ledgers for b in x["buckets"]}):
        responses = ingest.settle_bucket(bucket, folder)
        rows, unasked = rows + len(responses), unasked + ingest.unasked(responses)
    bad = folder.quarantine()
    problems = [] if bad is None else bad.sort("source", "line").select("source", "line", "reason", "detail").to_dicts()
    reasons: dict[str, int] = {}
    for problem in problems:
        reasons[problem["reason"]] = reasons.get(problem["reason"], 0) + 1
    counts = {"format": config.corpus.format, "rows": rows, "unasked": unasked, "quarantined": len(problems)}
    return counts | {"reasons": reasons, "problems": problems}


def run(loaded: LoadedConfig, notify: Notify, again: frozenset[str] = frozenset()) -> tuple[Judged, str]:
    """Judge, evaluate and report; the manifest is written last. Returns also the report's text.

    Raises: as `judge`; RunError also where a budget ended before there was a judgment to report on.
    """
    loaded = opening.resolved(loaded, lambda line: notify(line, None))
    asked, folder = _checked(loaded), folder_of(loaded)
    asking.refuse_unranked(asked)
    with lease.held(folder):
        judged = _judge(loaded, folder, asked, notify, again)
        clock, manifest = Clock(), judged.manifest
        if judged.stopped and not judged.statuses:
            folder.write_json("manifest.json", manifest)
            raise RunError(judged.stopped)
        evaluate(folder, loaded.config.analysis)
        clock.lap("evaluate")
        text = report(folder, manifest)
        clock.lap("report")
        folder.write_json("manifest.json", manifest | {"seconds": manifest["seconds"] | clock.seconds})
    return judged, text


def judge(loaded: LoadedConfig, notify: Notify, again: frozenset[str] = frozenset()) -> Judged:
    """Read the corpus, plan, and judge what has no judgment yet. Writes everything of a run folder that
    `evaluate` needs, the manifest last. What an earlier `evaluate` wrote is removed: it may be of other answers.

    Args:
        again: judgments with these statuses count as missing: they are judged again.

    Raises:
        ConfigError, ProtocolError, CorpusError, StorageError, JudgeError, RunError: one message each.
    """
    loaded = opening.resolved(loaded, lambda line: notify(line, None))
    asked, folder = _checked(loaded), folder_of(loaded)
    with lease.held(folder):
        judged = _judge(loaded, folder, asked, notify, again)
        folder.write_json("manifest.json", judged.manifest)
    return judged


def _checked(loaded: LoadedConfig) -> list[protocols.Protocol]:
    """The protocols of a run that can begin: its files are named, its storage reads and writes."""
    asked, folder = [protocols.load(name) for name in loaded.config.protocols], folder_of(loaded)
    asking.refuse_same_names(asked)
    asking.refuse_unasked(loaded.config, asked)
    reader.expand(list(loaded.config.corpus.paths), folder.options)
    folder.probe()
    opening.refuse_another_format(loaded, folder)
    opening.refuse_to_replace_by_nothing(loaded, folder)
    return asked


def _judge(
    loaded: LoadedConfig, folder: RunFolder, asked: list[protocols.Protocol], notify: Notify, again: frozenset[str]
) -> Judged:
    """`judge` without the manifest. What it holds in memory does not grow with the number of judgments."""
    from trustjudge_ray import pipeline

    config, clock = loaded.config, Clock()
    audits = _audits(config)
    folder.remove_temporary()
    forget(folder)
    if any(audits.values()):
        folder.write_json("audits.json", audits)
    folder.write_bytes("config.yaml", loaded.unresolved_yaml.encode("utf-8"))
    folder.keep_store()
    folder.write_protocols(asked)
    identities = {judge_name(j): pipeline.judge_identity(j, asked) for j in config.all_judges}
    specs = _specs(config, identities, asked)
    notify("starting Ray", None)
    pipeline.start(config.cluster)
    clock.lap("start")
    sources = pipeline.read_corpus(config, folder)
    lost = sum(len(folder.read_table(name, ["line"])) for name in folder.names("quarantine"))
    refused = f"; {lost} lines or answers cannot be used: quarantine/ says why" if lost else ""
    notify(f"read {sum(s['rows'] for s in sources)} rows of {len(sources)} files{refused}", None)
    clock.lap("read")
    if not any(s["rows"] for s in sources):
        raise CorpusError(_nothing_usable(folder, sources))
    buckets = sorted({b for s in sources for b in s["buckets"]})
    planned = pipeline.plan_tasks(config, folder, specs, buckets, again=again)
    if not planned.tasks and not any(len(folder.read_table(name, ["line"])) for name in folder.names("responses")):
        raise CorpusError(_nothing_usable(folder, sources))
    notify(f"planned {planned.tasks} judgments, {planned.to_judge} of them to judge", None)
    if planned.unasked:
        notify(f"NOTE: {ingest.unasked_note(planned.unasked)}", None)
    if config.plan.design == "anchor" and not planned.comparisons and any(p.kind == "compare" for p in asked):
        raise RunError(f"plan.anchor: no question has an answer of a model '{config.plan.anchor}' and one of another")
    clock.lap("plan")
    progress = _ask_judges(config, folder, asked, planned, notify)
    clock.lap("judge")
    found = tally.total(pipeline.count_judgments(folder, buckets))
    clock.lap("count")
    left = planned.to_judge - progress.judged
    _refuse_lost(
        folder, planned.tasks, found.judgments, left if config.run.max_cost else planned.to_judge - progress.total
    )
    counts = {"tasks": planned.tasks, "judged_now": progress.judged, "reused": progress.reused, "left": left}
    manifest = manifest_of(loaded, identities, asked, specs, sources, found, counts, clock)
    over = base.over(found.failures, config.run.max_failure_rate)
    stopped = budget.reason(config.run, progress.judged, left, cost(loaded, clock)) if left else None
    return Judged(planned.tasks, progress.judged, progress.reused, left, found.statuses, over, stopped, manifest)


def _audits(config: Config) -> dict[str, dict[str, Any] | None]:
    """The audit card of each judge, or None where none is configured."""
    options = dict(config.storage_options)
    return {judge_name(j): None if j.audit is None else attached.read_card(j.audit, options) for j in config.all_judges}


def _specs(config: Config, identities: dict[str, Any], asked: list[protocols.Protocol]) -> list[plan.Spec]:
    named = [(judge_name(judge), judge.temperature) for judge in config.all_judges]
    return [plan.spec(name, identities[name], protocol, heat) for name, heat in named for protocol in asked]


def _ask_judges(
    config: Config, folder: RunFolder, asked: list[protocols.Protocol], planned: "Planned", notify: Notify
) -> Progress:
    """Ask one judge after the other for what is pending, as far as the budget goes; how far that was."""
    from trustjudge_ray import pipeline

    pending = budget.within(planned.pending, config.run.max_judgments)
    progress = Progress(
        total=sum(n for buckets in pending.values() for n in buckets.values()),
        reused=planned.tasks - planned.to_judge - planned.preset,
    )
    until = budget.until(config.run, config.cluster, time.time())
    for judge_config in config.all_judges:
        if until is not None and time.time() >= until:
            break
        progress.starts()
        mine = pending.get(judge_name(judge_config), {})
        if mine and judge_config.engine == "vllm":
            notify(f"loading {judge_name(judge_config)}, which takes half a minute or more", None)
        with closing(pipeline.judge_pending(config, folder, judge_config, asked, mine, until)) as ledgers:
            for ledger in ledgers:
                if ledger["rows"]:
                    progress.add(ledger)
                    notify("judging", progress)
                if until is not None and time.time() >= until:
                    break
    progress.finished = True
    notify("judging", progress)
    return progress


def _refuse_lost(folder: RunFolder, tasks: int, judgments: int, left: int) -> None:
    """Judging has ended: every task has a judgment, or a budget left it out."""
    if tasks - judgments > left:
        raise RunError(
            f"{folder.path}: {tasks - judgments} of {tasks} tasks have no judgment where {left} should have none; "
            f"parts were removed from {folder.store} meanwhile, or two judges are the same: the same command judges "
            "what is missing"
        )


def _nothing_usable(folder: RunFolder, sources: list[dict[str, Any]]) -> str:
    bad = folder.quarantine()
    reasons = {} if bad is None else counted(bad["reason"])
    first = None if bad is None else bad.row(0, named=True)
    return opening.nothing_usable(len(sources), reasons, first, sum(source["questions"] for source in sources))


def evaluate(folder: RunFolder, settings: AnalysisConfig) -> evaluation.Evaluation:
    """Compute every table from the folder's judgments and write them beside it."""
    settings = replace(settings, families=with_judges(settings.families, _judge_models(folder)))
    judgments, _ = folder.judgments()
    found = evaluation.evaluate(judgments, folder.protocols(), folder.responses(), settings)
    tasks = folder.tasks(columns=["task_id"]).height
    if judgments.height < tasks:
        incomplete = f"{tasks - judgments.height} of {tasks} judgments of this run are not made yet; no number has them"
        found = replace(found, warnings=[incomplete, *found.warnings])
    found = replace(found, warnings=[*ingest.notes(folder), *imported_notes(folder), *found.warnings])
    for stale in ("ablation.csv", "ablation.txt"):  # of other settings, or of fewer judgments
        folder.remove(stale)
    for name, schema in TABLES.items():
        frame: pl.DataFrame = getattr(found, name)
        folder.write_table(f"{name}.parquet", check(frame.to_arrow(), schema))
        if name != "verdicts":
            folder.write_bytes(f"{name}.csv", frame.write_csv().encode("utf-8"))
    folder.write_bytes("metrics.json", numbers.metrics_json(found.metrics, found.ratings))
    folder.write_json("warnings.json", found.warnings)
    folder.write_json("analysis.json", asdict(settings))
    return found


def _judge_models(folder: RunFolder) -> dict[str, str]:
    """The model of each judge of a run, by name; none where its configuration is of another machine's environment."""
    if not folder.exists("config.yaml"):
        return {}
    try:
        asked = load_judges(folder.read_bytes("config.yaml").decode("utf-8"), "config.yaml")
    except ConfigError:
        return {}
    return {judge_name(j): EMBEDDED_NAME if j.model == "embedded" else j.model for j in asked}


def report(folder: RunFolder, manifest: dict[str, Any] | None = None) -> str:
    """Write `report.html`, `report.txt`, `judges.csv`, the figures and the browser of judgments (`judgments.html` and
    `browse/`) from the tables of a run folder; the text. Every number of the report is in `metrics.json` then: what
    METRICS and RATINGS lack, under `report`.

    Args:
        manifest: of the run, where it is not in the folder yet.

    Raises:
        StorageError: the run was not evaluated, or storage refuses.
    """
    if not folder.exists("metrics.json"):
        raise StorageError(f"{folder.path}: not evaluated yet; first trustjudge evaluate {folder.path}")
    inputs = report_inputs(folder, manifest)
    browsing.write(folder, inputs)
    inputs = replace(inputs, browser=browse.PAGE)
    text, drawn = tables.terminal(inputs, summary_text(inputs)), page.figures(inputs)
    for name, figure in drawn.items():
        folder.write_bytes(f"figures/{name}.svg", figure.svg.encode("utf-8"))
    folder.write_bytes("metrics.json", numbers.metrics_json(inputs.metrics, inputs.ratings, numbers.numbers(inputs)))
    folder.write_bytes("report.html", page.page(inputs, drawn).encode("utf-8"))
    folder.write_bytes("report.txt", text.encode("utf-8"))
    folder.write_bytes("judges.csv", judges.judges_csv(inputs).encode("utf-8"))
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
        settings=_evaluated_by(folder),
        people=folder.read_json("agreement.json") if folder.exists("agreement.json") else None,
        audits=folder.read_json("audits.json") if folder.exists("audits.json") else {},
        ablation=_ablation(folder),
        browser=browse.PAGE if folder.exists(browse.PAGE) else None,
        **frames,
    )


def _ablation(folder: RunFolder) -> pl.DataFrame | None:
    """What `trustjudge ablation` wrote; None where it was not called."""
    if not folder.exists("ablation.csv"):
        return None
    return pl.read_csv(folder.read_bytes("ablation.csv"), schema=ABLATION)


def _evaluated_by(folder: RunFolder) -> AnalysisConfig:
    """The settings that the folder's tables were computed with: of `evaluate RUN key=value` too, which the folder's
    configuration does not know of."""
    if not folder.exists("analysis.json"):
        return analysis_settings(folder, [])
    return AnalysisConfig(**folder.read_json("analysis.json"))


def analysis_settings(folder: RunFolder, overrides: list[str]) -> AnalysisConfig:
    """The `analysis` section of a run folder's configuration, with overrides."""
    text = folder.read_bytes("config.yaml").decode("utf-8")
    return load_analysis(text, f"{folder.path}/config.yaml", overrides)


def as_json_line(value: Any) -> str:
    """One line of JSON, for machines that read standard output."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
