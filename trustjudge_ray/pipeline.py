"""Ray moves batches: files into buckets, buckets into tasks, tasks through judges into parts.

Three passes over Ray Data, each resumable because everything it writes is named by its content:
`read_corpus` (one task a file), `plan_tasks` (bucket after bucket), `judge_pending` (blocks of at most
`run.batch_size` tasks through a pool of judge actors, each written as a part of every bucket in it). Only ledgers
of a few numbers come back to the driver.
"""

import contextlib
import functools
import json
import logging
import math
import os
import re
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import ray
import ray.data

from trustjudge_ray import ingest
from trustjudge_ray.config import ClusterConfig, Config, ConfigError, JudgeConfig, judge_name
from trustjudge_ray.corpus import reader
from trustjudge_ray.identity import bucket_of
from trustjudge_ray.judging import base, engines, plan
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.schema import TASKS, check
from trustjudge_ray.store import PENDING_TASKS, RunFolder

Ledger = dict[str, Any]
_LIGHT = {"num_cpus": 0.5}
_LOCAL_ENVIRONMENT = {
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # Ray's C++ parts print into the user's terminal; errors come as exceptions
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_idle_worker_killing_time_threshold_ms": "600000",  # starting a worker anew costs seconds
    "RAY_worker_niceness": "0",  # Ray's 15 leaves a judge on a CPU 4 % of a core that anything else wants
}
"""For the processes of a local Ray, where the user's environment does not say otherwise."""
_REMARK = b"Set ray log level from environment variable"


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


def start(cluster: ClusterConfig) -> None:
    """Join the cluster that is configured or that started this job; otherwise start a local one, which ends with
    this process however it ends."""
    address = cluster.address or os.environ.get("RAY_ADDRESS")
    quiet: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
    on_sigterm = signal.getsignal(signal.SIGTERM)
    if ray.is_initialized():
        pass
    elif address:
        ray.init(address=address, **quiet)
    else:
        for name, value in _LOCAL_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        memory = int(cluster.object_store_gb * 2**30) if cluster.object_store_gb else None
        with _without_remark():
            ray.init(
                num_cpus=cluster.num_cpus or max(os.cpu_count() or 1, math.ceil(_judge_cpus(cluster)) + 1),
                include_dashboard=False,
                object_store_memory=memory,
                **quiet,
            )
        try:
            _refuse_too_small(cluster)
        except ConfigError:
            stop()
            raise
    if callable(on_sigterm) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray puts its own, which exits without a word
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # its errors are raised, and told in one message


@contextlib.contextmanager
def _without_remark() -> Iterator[None]:
    """Take one line out of standard error: Ray's C++ remark that RAY_BACKEND_LOG_LEVEL is set. The rest follows."""
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
            said.seek(0)
            os.write(2, b"".join(line for line in said if _REMARK not in line))


def _judge_cpus(cluster: ClusterConfig) -> float:
    return cluster.replicas * cluster.cpus_per_replica


def _refuse_too_small(cluster: ClusterConfig) -> None:
    """Ray would wait for ever for what a local cluster does not have, or if judges held every CPU."""
    have = ray.cluster_resources()
    needs = {"CPU": _judge_cpus(cluster) + _LIGHT["num_cpus"], "GPU": cluster.replicas * cluster.gpus_per_replica}
    for kind, need in needs.items():
        if need > have.get(kind, 0.0):
            raise ConfigError(
                f"cluster: {cluster.replicas} replicas need {need:g} {kind}s (with {_LIGHT['num_cpus']:g} CPUs to read "
                f"and write), this machine's Ray has {have.get(kind, 0.0):g}; lower cluster.replicas or "
                f"cluster.{kind.lower()}s_per_replica, or join a larger cluster with cluster.address"
            )


def stop() -> None:
    """Leave the cluster; a local one ends."""
    if ray.is_initialized():
        ray.shutdown()


def judge_identity(judge: JudgeConfig, protocols: list[Protocol]) -> dict[str, Any]:
    """What decides a judge's answers, as its engine states it."""
    return engines.identity(judge, protocols)


def read_corpus(config: Config, folder: RunFolder) -> list[Ledger]:
    """Read every file of the corpus into the folder's buckets; a ledger each."""
    files = reader.expand(list(config.corpus.paths), folder.options)
    ingest.clear(folder)
    read = functools.partial(_on_rows, functools.partial(_ingest, corpus=config.corpus, folder=folder))
    ledgers = _ledgers(_rows([{"path": path} for path in files]).map_batches(read, **_BLOCKS, num_cpus=1))
    return sorted(ledgers, key=lambda ledger: ledger["source"])


def plan_tasks(config: Config, folder: RunFolder, specs: list[plan.Spec], buckets: list[int]) -> Planned:
    """Settle and plan every bucket; write its tasks, and the judgments that need no judge."""
    if not buckets:
        return Planned(0, 0, 0, {})
    work = functools.partial(_plan_bucket, config=config, folder=folder, specs=specs, questions=None)
    if config.run.limit is not None:
        work = functools.partial(work, questions=ingest.first_questions(folder, config.run.limit))
    tasks = 2 * math.ceil(ray.cluster_resources().get("CPU", 1.0))
    dataset = _blocks([[{"bucket": bucket} for bucket in buckets[first::tasks]] for first in range(tasks)])
    ledgers = list(_ledgers(dataset.map_batches(functools.partial(_on_rows, work), **_BLOCKS, num_cpus=1)))
    folder.remove(ingest.STAGING)
    pending: dict[str, dict[int, int]] = {}
    for ledger in ledgers:
        for judge, count in ledger["pending"].items():
            pending.setdefault(judge, {})[ledger["bucket"]] = count
    tasks_of, comparisons, preset = (sum(x[name] for x in ledgers) for name in ("tasks", "comparisons", "preset"))
    return Planned(tasks_of, comparisons, preset, pending)


def judge_pending(
    config: Config, folder: RunFolder, judge: JudgeConfig, protocols: list[Protocol], pending: dict[int, int]
) -> Iterator[Ledger]:
    """Judge the pending tasks of one judge; a ledger for each part as it is committed.

    Raises:
        base.JudgeError, base.RunError: the judge does not start, or the engine is gone for good.
    """
    blocks = _shards(pending, config.run.batch_size)
    if not blocks:
        return
    engines.try_out(judge, protocols)
    load = functools.partial(_load_shards, folder=folder, judge=judge_name(judge), plan_id=uuid.uuid4().hex)
    dataset = (
        _blocks(blocks)
        .map_batches(load, **_BLOCKS, **_LIGHT)
        .map_batches(
            JudgeActor, fn_constructor_args=(judge, protocols, config.cluster), **_BLOCKS, **_pool(judge, config)
        )
        .map_batches(functools.partial(_write, folder=folder), **_BLOCKS, **_LIGHT)
    )
    yield from _ledgers(dataset)


def _shards(pending: dict[int, int], size: int) -> list[list[Ledger]]:
    """The pending tasks cut into blocks of `size`, bucket after bucket: each block as the ranges of buckets in it.

    Only the last block is smaller, so that many small buckets cost no more batches than a few large ones.
    """
    blocks: list[list[Ledger]] = []
    room = 0
    for bucket, count in sorted(pending.items()):
        start = 0
        while start < count:
            if room == 0:
                blocks.append([])
                room = size
            stop = min(start + room, count)
            blocks[-1].append({"bucket": bucket, "start": start, "stop": stop})
            room -= stop - start
            start = stop
    return blocks


class JudgeActor:
    """Holds a judge; maps a batch of TASK_TEXTS to a batch of JUDGMENTS with the time at which it began, one to one.

    Several batches may be under way at once.
    """

    def __init__(self, judge: JudgeConfig, protocols: list[Protocol], cluster: ClusterConfig) -> None:
        self._protocols = {protocol.name: protocol for protocol in protocols}
        self._temperature = judge.temperature
        self._judge: base.Judge = engines.build(judge, self._protocols, cluster.tensor_parallel)

    def __call__(self, tasks: pa.Table) -> pa.Table:
        began = time.time()
        try:
            readings = self._judge.judge(tasks)
        except base.JudgeGone as error:
            print(f"judge gone: {error}", file=sys.stderr, flush=True)
            os._exit(1)  # Ray starts the actor anew and gives it the batch again; an exception would end the run
        judgments = base.judgments(tasks, readings, self._protocols, self._temperature)
        return judgments.append_column(_BEGAN, pa.repeat(pa.scalar(began), len(tasks)))


_BEGAN = "began"
"""Seconds since the epoch, by the clock of the judge's node."""

_BLOCKS: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow", "zero_copy_batch": True}


def _pool(judge: JudgeConfig, config: Config) -> dict[str, Any]:
    """The actor pool's resources, from the configuration alone."""
    cluster = config.cluster
    most = cluster.max_replicas or cluster.replicas
    options: dict[str, Any] = {
        "compute": ray.data.ActorPoolStrategy(
            min_size=cluster.replicas,
            max_size=most,
            max_tasks_in_flight_per_actor=cluster.batches_in_flight + 1,
            max_concurrent_calls_per_actor=cluster.batches_in_flight,
            enable_true_multi_threading=True,
        ),
        "num_cpus": cluster.cpus_per_replica,
    }
    if cluster.gpus_per_replica:
        options["num_gpus"] = cluster.gpus_per_replica
    elif judge.engine == "vllm":
        from trustjudge_ray.judging import vllm_engine

        options["runtime_env"] = {"env_vars": vllm_engine.cpu_environment()}
    return options


def _rows(rows: list[Ledger]) -> ray.data.Dataset:
    """A dataset with one block for each row, so that each is a task of its own."""
    return _blocks([[row] for row in rows])


def _blocks(blocks: list[list[Ledger]]) -> ray.data.Dataset:
    """A dataset of these blocks, each a task of its own; empty ones are left out."""
    return ray.data.from_arrow([pa.Table.from_pylist(block) for block in blocks if block])


def _on_rows(work: Callable[..., Ledger], batch: pa.Table) -> pa.Table:
    return _as_ledgers([work(**row) for row in batch.to_pylist()])


def _as_ledgers(ledgers: list[Ledger]) -> pa.Table:
    return pa.table({"ledger": pa.array([json.dumps(ledger) for ledger in ledgers], pa.string())})


def _ledgers(dataset: ray.data.Dataset) -> Iterator[Ledger]:
    """The ledgers as they come, in any order.

    Raises:
        base.RunError: a task failed for good; with the message of our own exception, if it was one.
    """
    try:
        for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            yield from map(json.loads, batch["ledger"].to_pylist())
    except ray.exceptions.RayError as error:
        raise base.RunError(_root_message(error)) from error


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


def _load_shards(batch: pa.Table, folder: RunFolder, judge: str, plan_id: str) -> pa.Table:
    tables = []
    for shard in batch.to_pylist():
        tasks, responses = _bucket_to_judge(plan_id, shard["bucket"], judge, folder)
        tasks = tasks.slice(shard["start"], shard["stop"] - shard["start"])
        tables.append(plan.with_texts(tasks, responses))
    return pa.concat_tables(tables)


_last_bucket: dict[tuple[str, int], tuple[pa.Table, pa.Table]] = {}
"""What this process read last: blocks follow one another through a bucket."""


def _bucket_to_judge(plan_id: str, bucket: int, judge: str, folder: RunFolder) -> tuple[pa.Table, pa.Table]:
    """A bucket's pending tasks of a judge, in the plan's order, and the bucket's responses."""
    if (plan_id, bucket) not in _last_bucket:
        name = f"bucket={bucket:03d}.parquet"
        tasks = folder.read_table(f"tasks/{name}")
        tasks = tasks.filter(pc.and_(tasks["pending"], pc.equal(tasks["judge"], judge))).select(TASKS.names)
        _last_bucket.clear()
        _last_bucket[plan_id, bucket] = (tasks, folder.read_table(f"responses/{name}"))
    return _last_bucket[plan_id, bucket]


def _write(judged: pa.Table, folder: RunFolder) -> pa.Table:
    judgments, began = judged.drop_columns(_BEGAN), pc.min(judged[_BEGAN]).as_py()
    buckets = pa.array([bucket_of(question) for question in judgments["question_id"].to_pylist()], pa.int32())
    ledgers = []
    for bucket in pc.unique(buckets).to_pylist():
        part = judgments.filter(pc.equal(buckets, bucket))
        folder.write_judgments(bucket, part)
        ledgers.append(_ledger_of(part) | {"began": began})
    return _as_ledgers(ledgers)


def _ledger_of(part: pa.Table) -> Ledger:
    statuses = {x["values"]: x["counts"] for x in pc.value_counts(part["status"]).to_pylist()}
    tokens = {name: pc.sum(part[name]).as_py() or 0 for name in ("prompt_tokens", "cached_tokens", "output_tokens")}
    return {"rows": len(part), "statuses": statuses, **tokens}


def _root_message(error: BaseException) -> str:
    """What went wrong in a worker: the message of our own exception inside Ray's, if there is one, else the name
    and message of whatever was raised first."""
    text = str(error)
    ours = re.findall(rf"^(?:trustjudge_ray[\w.]*\.)?(?:{_OURS}): (.+)$", text, re.MULTILINE)
    if ours:
        return ours[-1]
    raised = re.findall(r"^(?!ray\.)[\w.]*(?:Error|Exception|Interrupt): .+$", text, re.MULTILINE)
    if raised:
        return f"a worker failed: {raised[0]}"
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


_OURS = "JudgeError|StorageError|CorpusError|CorpusConfigError|SchemaError|ConfigError"
