"""Pending tasks through a pool of judge actors into parts."""

import functools
import os
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import ray.data

from trustjudge_ray.config import ClusterConfig, Config, JudgeConfig, judge_name
from trustjudge_ray.identity import bucket_of
from trustjudge_ray.judging import base, engines, plan
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.pipeline.blocks import WHOLE, Ledger, as_ledgers, in_blocks, ledgers_of
from trustjudge_ray.pipeline.session import LIGHT
from trustjudge_ray.schema import TASKS
from trustjudge_ray.store import RunFolder


def judge_identity(judge: JudgeConfig, protocols: list[Protocol]) -> dict[str, Any]:
    """What decides a judge's answers, as its engine states it."""
    return engines.identity(judge, protocols)


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
        in_blocks(blocks)
        .map_batches(load, **WHOLE, **LIGHT)
        .map_batches(
            JudgeActor, fn_constructor_args=(judge, protocols, config.cluster), **WHOLE, **_pool(judge, config)
        )
        .map_batches(functools.partial(_write, folder=folder), **WHOLE, **LIGHT)
    )
    yield from ledgers_of(dataset)


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
    """Holds a judge; maps a batch of TASK_TEXTS to a batch of JUDGMENTS, one to one."""

    def __init__(self, judge: JudgeConfig, protocols: list[Protocol], cluster: ClusterConfig) -> None:
        self._protocols = {protocol.name: protocol for protocol in protocols}
        self._temperature = judge.temperature
        self._judge: base.Judge = engines.build(judge, self._protocols, cluster.tensor_parallel)

    def __call__(self, tasks: pa.Table) -> pa.Table:
        try:
            readings = self._judge.judge(tasks)
        except base.JudgeGone as error:
            print(f"judge gone: {error}", file=sys.stderr, flush=True)
            os._exit(1)  # Ray starts the actor anew and gives it the batch again; an exception would end the run
        return base.judgments(tasks, readings, self._protocols, self._temperature)


def _pool(judge: JudgeConfig, config: Config) -> dict[str, Any]:
    """The actor pool's resources, from the configuration alone."""
    cluster = config.cluster
    most = cluster.max_replicas or cluster.replicas
    options: dict[str, Any] = {
        "compute": ray.data.ActorPoolStrategy(
            min_size=cluster.replicas, max_size=most, max_tasks_in_flight_per_actor=2
        ),
        "num_cpus": cluster.cpus_per_replica,
    }
    if cluster.gpus_per_replica:
        options["num_gpus"] = cluster.gpus_per_replica
    elif judge.engine == "vllm":
        from trustjudge_ray.judging import vllm_engine

        options["runtime_env"] = {"env_vars": vllm_engine.cpu_environment()}
    return options


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


def _write(judgments: pa.Table, folder: RunFolder) -> pa.Table:
    buckets = pa.array([bucket_of(question) for question in judgments["question_id"].to_pylist()], pa.int32())
    ledgers = []
    for bucket in pc.unique(buckets).to_pylist():
        part = judgments.filter(pc.equal(buckets, bucket))
        folder.write_judgments(bucket, part)
        ledgers.append(_ledger_of(part))
    return as_ledgers(ledgers)


def _ledger_of(part: pa.Table) -> Ledger:
    statuses = {x["values"]: x["counts"] for x in pc.value_counts(part["status"]).to_pylist()}
    tokens = {name: pc.sum(part[name]).as_py() or 0 for name in ("prompt_tokens", "cached_tokens", "output_tokens")}
    return {"rows": len(part), "statuses": statuses, **tokens}
