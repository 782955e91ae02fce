"""Files into buckets, buckets into tasks: what comes before a judge is asked."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import ray

from trustjudge_ray import ingest
from trustjudge_ray.config import Config
from trustjudge_ray.corpus import reader
from trustjudge_ray.judging import base, plan
from trustjudge_ray.pipeline.blocks import WHOLE, Ledger, in_blocks, ledgers_of, on_rows, one_each
from trustjudge_ray.schema import check
from trustjudge_ray.store import PENDING_TASKS, RunFolder


@dataclass(frozen=True, slots=True)
class Planned:
    """What a plan asks for: how many tasks of the run, how many of them are comparisons, how many were written
    without a judge, and the pending tasks of each bucket by judge."""

    tasks: int
    comparisons: int
    preset: int
    pending: dict[str, dict[int, int]]

    @property
    def to_judge(self) -> int:
        """Tasks that a judge must still be asked."""
        return sum(n for buckets in self.pending.values() for n in buckets.values())


def read_corpus(config: Config, folder: RunFolder) -> list[Ledger]:
    """Read every file of the corpus into the folder's buckets; a ledger each."""
    files = reader.expand(list(config.corpus.paths), folder.options)
    ingest.clear(folder)
    read = functools.partial(on_rows, functools.partial(_ingest, corpus=config.corpus, folder=folder))
    ledgers = ledgers_of(one_each([{"path": path} for path in files]).map_batches(read, **WHOLE, num_cpus=1))
    return sorted(ledgers, key=lambda ledger: ledger["source"])


def plan_tasks(config: Config, folder: RunFolder, specs: list[plan.Spec], buckets: list[int]) -> Planned:
    """Settle and plan every bucket; write its tasks, and the judgments that need no judge."""
    if not buckets:
        return Planned(0, 0, 0, {})
    work = functools.partial(_plan_bucket, config=config, folder=folder, specs=specs, questions=None)
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
    tasks_of, comparisons, preset = (sum(x[name] for x in ledgers) for name in ("tasks", "comparisons", "preset"))
    return Planned(tasks_of, comparisons, preset, pending)


def _ingest(path: str, corpus: Any, folder: RunFolder) -> Ledger:
    return ingest.ingest_file(path, corpus, folder)


def _plan_bucket(
    bucket: int, config: Config, folder: RunFolder, specs: list[plan.Spec], questions: set[str] | None
) -> Ledger:
    responses = ingest.settle_bucket(bucket, folder, questions)
    tasks = plan.plan(responses, specs, config.plan, list(config.corpus.error_markers))
    done = folder.judged(bucket)
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
        "pending": {x["values"]: x["counts"] for x in counts},
    }
