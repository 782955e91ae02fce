"""Joining a Ray cluster, or starting a local one that ends with this process."""

import contextlib
import logging
import math
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import ray
import ray.data
from ray._private import utils

from trustjudge_ray.config import ClusterConfig, ConfigError
from trustjudge_ray.judging.base import RunError

READING = {"num_cpus": 0.01}
"""What a reader of shards takes beside the judges: it mostly waits for them. Not nothing, and not what a judge takes:
Ray Data would make one stage of the two."""

_LOCAL_ENVIRONMENT = {
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # Ray's C++ parts print into the user's terminal; errors come as exceptions
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_idle_worker_killing_time_threshold_ms": "600000",  # starting a worker anew costs seconds
    "RAY_task_events_report_interval_ms": "0",  # a record of each task for a dashboard that is not started
    "RAY_worker_niceness": "0",  # Ray's 15 leaves a judge on a CPU 4 % of a core that anything else wants
}
"""For the processes of a local Ray, where the user's environment does not say otherwise."""
_REMARK = b"Set ray log level from environment variable"


def start(cluster: ClusterConfig) -> None:
    """Join the cluster that is configured or that started this job; otherwise start a local one, which ends with
    this process however it ends.

    Raises:
        ConfigError: a local cluster is too small for the judges.
        RunError: a local one does not start.
    """
    address = cluster.address or os.environ.get("RAY_ADDRESS")
    quiet: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
    if ray.is_initialized():
        pass
    elif address:
        with _signals_wait():
            ray.init(address=address, **quiet)
    else:
        for name, value in _LOCAL_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        memory = int(cluster.object_store_gb * 2**30) if cluster.object_store_gb else None
        try:
            with _signals_wait(), _without_remark():
                ray.init(
                    address="local",  # without it Ray joins whatever was last started on this machine
                    num_cpus=cluster.num_cpus or max(os.cpu_count() or 1, math.ceil(_judge_cpus(cluster)) + 1),
                    include_dashboard=False,
                    object_store_memory=memory,
                    **quiet,
                )
        except Exception as error:  # of many kinds, also a bare one where this machine is too busy
            said = next(iter(str(error).splitlines()), type(error).__name__)
            raise RunError(
                f"Ray does not start on this machine: {said}; the same command may be given again"
            ) from error
        try:
            _refuse_too_small(cluster)
        except ConfigError:
            stop()
            raise
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.memory_usage_poll_interval_s = None  # it starts a thread for each task; nobody reads what it finds
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # its errors are raised, and told in one message


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Handle the first SIGINT or SIGTERM at the end: one that interrupts Ray's start half-way can leave it waiting for
    a process that never came up. A second one is handled at once. Ray's own handler for SIGTERM, which exits without a
    word and half started, is not put on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in found.items() if callable(handler)}
    came: list[int] = []
    rays = utils.set_sigterm_handler

    def wait(number: int, frame: FrameType | None) -> None:
        if came:
            handlers[signal.Signals(number)](number, frame)
        came.append(number)

    try:
        utils.set_sigterm_handler = lambda handler: None
        for number in handlers:
            signal.signal(number, wait)
        yield
    finally:
        utils.set_sigterm_handler = rays
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


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
    needs = {"CPU": _judge_cpus(cluster) + READING["num_cpus"], "GPU": cluster.replicas * cluster.gpus_per_replica}
    for kind, need in needs.items():
        if need > have.get(kind, 0.0):
            raise ConfigError(
                f"cluster: {cluster.replicas} replicas need {need:g} {kind}s (with {READING['num_cpus']:g} CPUs to "
                f"read), this machine's Ray has {have.get(kind, 0.0):g}; lower cluster.replicas or "
                f"cluster.{kind.lower()}s_per_replica, or join a larger cluster with cluster.address"
            )


def stop() -> None:
    """Leave the cluster; a local one ends."""
    if ray.is_initialized():
        ray.shutdown()
