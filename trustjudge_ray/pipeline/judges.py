"""Pending tasks through a pool of judge actors into parts."""

import contextlib
import ctypes
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import ray.data

from trustjudge_ray.budget import Allowance
from trustjudge_ray.config import ClusterConfig, Config, JudgeConfig, judge_name
from trustjudge_ray.identity import bucket_of, joined_hash
from trustjudge_ray.judging import base, engines
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.pipeline import placement
from trustjudge_ray.pipeline.ahead import limit_ahead
from trustjudge_ray.pipeline.blocks import (
    ONE,
    WHOLE,
    Ledger,
    as_ledgers,
    ledgers_of,
    one_each,
    row_by_row,
    unpacked,
)
from trustjudge_ray.pipeline.metrics import Metrics
from trustjudge_ray.pipeline.session import READING
from trustjudge_ray.pipeline.shards import Cut, at_once, readers, shards
from trustjudge_ray.pipeline.watch import Turns, Watch, keep_attempts
from trustjudge_ray.schema import JUDGMENTS
from trustjudge_ray.store import RunFolder

_PR_SET_PDEATHSIG = 1
_LAST_COMMIT = 30.0
"""Seconds that a process whose engine died gives to a part that it is writing."""


def judge_identity(judge: JudgeConfig, protocols: list[Protocol]) -> dict[str, Any]:
    """What decides a judge's answers, as its engine states it."""
    return engines.identity(judge, protocols)


def judge_pending(
    config: Config,
    folder: RunFolder,
    judge: JudgeConfig,
    protocols: list[Protocol],
    pending: dict[int, int],
    until: float | None = None,
) -> Generator[Ledger, None, None]:
    """Judge the pending tasks of one judge, the first so many of each bucket; a ledger for each committed part.

    A replica begins another batch only when those before it are committed or about to be: storage that is slow slows
    down judging, and what is judged and not yet written is at most a batch more than an engine works on at once.

    Args:
        until: seconds since the epoch after which no batch may be under way. A batch that would not end by then is
            not judged, and a ledger without rows says so: the caller closes this when there is nothing to wait for.

    Raises:
        base.JudgeError, base.RunError: the judge does not start, or the engine is gone for good.
    """
    most = config.cluster.max_replicas or config.cluster.replicas
    work = readers(pending, config.run.batch_size)
    if not work:
        return
    engines.try_out(judge, protocols)
    cut = Cut(config.run.batch_size, most)
    read = functools.partial(shards, folder=folder, judge=judge_name(judge), cut=cut)
    few = ray.data.TaskPoolStrategy(size=min(len(work), at_once(most)))
    duty = Duty(judge, protocols, config.cluster, folder, until)
    attempts = keep_attempts(config.run.engine_deaths)
    with placement.placed(judge, config.cluster) as resources:
        dataset = (
            limit_ahead(row_by_row(one_each(work)), most + 2)
            .map_batches(read, **WHOLE, **READING, compute=few)
            .map_batches(JudgeActor, fn_constructor_args=(duty, attempts), **ONE, **_pool(judge, config), **resources)
        )
        yield from ledgers_of(dataset)


@dataclass(frozen=True, slots=True)
class Duty:
    """What a replica is started with."""

    judge: JudgeConfig
    protocols: list[Protocol]
    cluster: ClusterConfig
    folder: RunFolder
    until: float | None = None


class JudgeActor:
    """Holds a judge: judges packed TASK_TEXTS, commits the judgments and gives back a ledger for each part.

    Several calls at once are fine: while one batch is in the engine another is written. As many are in the engine as
    it can take.
    """

    def __init__(self, duty: Duty, attempts: Any) -> None:
        end_with_parent()
        name = judge_name(duty.judge)
        self._watch, self._metrics = Watch(attempts), Metrics(name)
        if self._watch.starting():
            self._metrics.engine_died()
        self._protocols = {protocol.name: protocol for protocol in duty.protocols}
        self._temperature, self._folder = duty.judge.temperature, duty.folder
        self._allowance = Allowance(duty.until)
        backend = placement.backend(duty.cluster)
        self._judge: base.Judge = engines.build(duty.judge, self._protocols, duty.cluster.tensor_parallel, backend)
        self._turns = Turns(engines.batches_at_once(duty.judge, duty.cluster))
        self._writing = threading.Lock()
        self._watch.started()

    def __call__(self, block: pa.Table) -> pa.Table:
        tasks, began = unpacked(block), time.time()
        readings = self._read(tasks) if self._allowance.allows(began) else None
        if readings is None:
            return as_ledgers([_ledger_of(JUDGMENTS.empty_table()) | {"began": began}])
        judgments = base.judgments(tasks, readings, self._protocols, self._temperature)
        with self._writing:
            ledgers = _commit(judgments, self._folder)
        took = time.time() - began
        self._allowance.took(took)
        self._metrics.batch(judgments, took)
        return as_ledgers([ledger | {"began": began} for ledger in ledgers])

    def _read(self, tasks: pa.Table) -> list[base.Reading]:
        """One reading for each task; those on which engines died are failures."""
        ids = tasks["task_id"].to_pylist()
        batch = joined_hash(*ids)
        readings: dict[int, base.Reading] = {}
        with self._turns.together():
            sending = self._watch.begin(batch, tasks)
            if not sending.alone:
                readings = self._ask(tasks, sending.groups[0])
                self._watch.finished(batch, None)
        if sending.alone:
            with self._turns.alone():
                for group in sending.groups:
                    mine = [ids[place] for place in group]
                    self._watch.sending(batch, mine)
                    readings |= self._ask(tasks, group)
                    self._watch.finished(batch, mine)
            self._watch.done(batch)
        readings |= {place: base.Reading("engine_error", detail=why) for place, why in sending.failed.items()}
        return [readings[place] for place in range(len(tasks))]

    def _ask(self, tasks: pa.Table, group: list[int]) -> dict[int, base.Reading]:
        asked = tasks if len(group) == len(tasks) else tasks.take(group)
        try:
            found = self._judge.judge(asked)
        except base.JudgeGone as error:
            self._watch.says(str(error))
            print(f"judge gone: {error}", file=sys.stderr, flush=True)
            self._writing.acquire(timeout=_LAST_COMMIT)
            os._exit(1)  # Ray starts the actor anew and gives it the batch again; an exception would end the run
        return dict(zip(group, found, strict=True))


def end_with_parent() -> None:
    """Have the kernel kill this process when the raylet that started it ends: at exit Ray's C++ objects can wait for
    one another for ever, and an engine would keep its memory. Linux only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _pool(judge: JudgeConfig, config: Config) -> dict[str, Any]:
    """The actor pool and its processes, from the configuration alone.

    A pool that may grow does so when its actors have 1.75 times as many batches as calls; where it may not, fewer wait
    with each actor, so that none idles while another has several.
    """
    cluster, calls = config.cluster, engines.batches_at_once(judge, config.cluster) + 1
    most = cluster.max_replicas or cluster.replicas
    options: dict[str, Any] = {
        "compute": ray.data.ActorPoolStrategy(
            min_size=cluster.replicas,
            max_size=most,
            max_tasks_in_flight_per_actor=calls + 1 if most == cluster.replicas else 2 * calls,
            max_concurrent_calls_per_actor=calls,
            enable_true_multi_threading=True,
        ),
    }
    if judge.engine == "vllm" and not cluster.gpus_per_replica:
        from trustjudge_ray.judging import vllm_engine

        options["runtime_env"] = {"env_vars": vllm_engine.cpu_environment()}
    return options


def _commit(judgments: pa.Table, folder: RunFolder) -> list[Ledger]:
    buckets = pa.array([bucket_of(question) for question in judgments["question_id"].to_pylist()], pa.int32())
    ledgers = []
    for bucket in pc.unique(buckets).to_pylist():
        part = judgments.filter(pc.equal(buckets, bucket))
        folder.write_judgments(bucket, part)
        ledgers.append(_ledger_of(part))
    return ledgers


def _ledger_of(part: pa.Table) -> Ledger:
    statuses = {x["values"]: x["counts"] for x in pc.value_counts(part["status"]).to_pylist()}
    tokens = {name: pc.sum(part[name]).as_py() or 0 for name in ("prompt_tokens", "cached_tokens", "output_tokens")}
    return {"rows": len(part), "statuses": statuses, **tokens}
