"""Files into buckets, buckets into tasks: what comes before a judge is asked."""

import functools
import math
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import ray

from trustjudge_ray import ingest
from trustjudge_ray.config import Config, CorpusConfig
from trustjudge_ray.corpus import reader
from trustjudge_ray.judging import base, plan
from trustjudge_ray.pipeline.blocks import WHOLE, Ledger, as_ledgers, in_blocks, ledgers_of, on_rows
from trustjudge_ray.schema import check
from trustjudge_ray.store import PENDING_TASKS, RunFolder

_READING_TASKS = 64
"""Files are read in at least so many tasks, also on a cluster that has yet to grow."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What a plan asks for: how many tasks of the run, how many of them are comparisons, how many were written
    without a judge, the pending tasks of each bucket by judge, and how many responses have no question."""

    tasks: int
    comparisons: int
    preset: int
    pending: dict[str, dict[int, int]]
    unasked: int = 0

    @property
    def to_judge(self) -> int:
        """Tasks that a judge must still be asked."""
        return sum(n for buckets in self.pending.values() for n in buckets.values())


def read_corpus(config: Config, folder: RunFolder) -> list[Ledger]:
    """Read every file of the corpus into the folder's buckets; a ledger each.

    A task reads one file, or where there are very many some of them, so that a corpus of many small files is not
    staged in even smaller ones.
    """
    files = reader.expand(list(config.corpus.paths), folder.options)
    ingest.clear(folder)
    tasks = max(_READING_TASKS, 4 * math.ceil(ray.cluster_resources().get("CPU", 1.0)))
    dataset = in_blocks([[{"path": path} for path in files[first::tasks]] for first in range(tasks)])
    read = functools.partial(_ingest, corpus=config.corpus, folder=folder)
    ledgers = ledgers_of(dataset.map_batches(read, **WHOLE, num_cpus=1))
    return sorted(ledgers, key=lambda ledger: ledger["source"])


def plan_tasks(
    config: Config,
    folder: RunFolder,
    specs: list[plan.Spec],
    buckets: list[int],
    again: frozenset[str] = frozenset(),
) -> Planned:
    """Settle and plan every bucket; write its tasks, and the judgments that need no judge.

    A task is pending if no run that shares the store has a judgment of it. What is read of the judgments are the task
    ids of one bucket at a time, of this run's specs alone.

    Args:
        again: judgments with these statuses do not count.
    """
    if not buckets:
        return Planned(0, 0, 0, {})
    work = functools.partial(_plan_bucket, config=config, folder=folder, specs=specs, questions=None, again=again)
    if config.run.limit is not None:
        work = functools.partial(work, questions=ingest.first_questions(folder, config.run.limit))
    tasks = 2 * math.ceil(ray.cluster_resources().get("CPU", 1.0))
    dataset = in_blocks([[{"bucket": bucket} for bucket in buckets[first::tasks]] for first in range(tasks)])
    ledgers = list(ledgers_of(dataset.map_batches(functools.partial(on_rows, work), **WHOLE, num_cpus=1)))
    folder.remove(ingest.STAGING)
    pending: dict[str, dict[int, int]] = {}
    for ledger in ledgers:
        for judge, count in ledger["pending"].items():
            pending.setdefault(judge, {})[ledger["bucket"]] = count
    names = ("tasks", "comparisons", "preset", "unasked")
    tasks_of, comparisons, preset, unasked = (sum(x[name] for x in ledgers) for name in names)
    return Planned(tasks_of, comparisons, preset, pending, unasked)


def _ingest(batch: pa.Table, corpus: CorpusConfig, folder: RunFolder) -> pa.Table:
    return as_ledgers(ingest.ingest_files(batch["path"].to_pylist(), corpus, folder))


def _plan_bucket(
    bucket: int,
    config: Config,
    folder: RunFolder,
    specs: list[plan.Spec],
    questions: set[str] | None,
    again: frozenset[str],
) -> Ledger:
    responses = ingest.settle_bucket(bucket, folder, questions, config.plan.canary)
    tasks = plan.plan(responses, specs, config.plan, list(config.corpus.error_markers))
    done = folder.judged(bucket, {spec.hash for spec in specs}, again)
    missing = pa.array([task_id not in done for task_id in tasks["task_id"].to_pylist()], pa.bool_())
    known = pc.is_valid(tasks["status"])
    preset = tasks.filter(pc.and_(known, missing))
    if len(preset):
        folder.write_judgments(bucket, base.preset_judgments(preset))
    pending = pc.and_(pc.invert(known), missing)
    table = pa.table([*tasks.columns, pending], schema=PENDING_TASKS)
    folder.write_table(f"tasks/bucket={bucket:03d}.parquet", check(table, PENDING_TASKS))
    counts = pc.value_counts(tasks.filter(pending)["judge"]).to_pylist()
    return {
        "bucket": bucket,
        "tasks": len(tasks),
        "comparisons": pc.sum(pc.equal(tasks["kind"], "compare")).as_py() or 0,
        "preset": len(preset),
        "unasked": ingest.unasked(responses),
        "pending": {x["values"]: x["counts"] for x in counts},
    }
