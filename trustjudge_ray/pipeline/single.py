"""One piece of work in one Ray task, where Ray has the resources for it."""

from collections.abc import Callable
from typing import Any, TypeVar

import ray

from trustjudge_ray.judging.base import RunError

T = TypeVar("T")


def in_a_task(work: Callable[..., T], *arguments: Any, cpus: float = 1.0, gpus: float = 0.0) -> T:
    """What `work` returns, called with these arguments in a task of its own.

    Raises:
        RunError: the cluster has not so much for one task, or the task's process died.
        Exception: what `work` raised.
    """
    have = ray.cluster_resources()
    for kind, need in (("CPU", cpus), ("GPU", gpus)):
        if need > have.get(kind, 0.0):
            raise RunError(f"one task needs {need:g} {kind}s, and this Ray has {have.get(kind, 0.0):g}")
    task = ray.remote(_called).options(num_cpus=cpus, num_gpus=gpus, max_retries=1)
    try:
        return ray.get(task.remote(work, arguments))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise RunError(f"a task failed: {str(error).splitlines()[0]}") from error


def _called(work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    """Ray takes functions alone, and no other callables."""
    return work(*arguments)
