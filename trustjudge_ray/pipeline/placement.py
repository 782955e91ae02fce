"""Where replicas run: on one node each, or their GPUs over several nodes in a placement group of their own.

Not tried on GPUs. A replica within a node is one Ray actor that holds all its GPUs; vLLM starts a process for each. A
replica over several nodes is an actor without a GPU inside a placement group with a bundle for each GPU, in which
vLLM's Ray backend starts its workers (vLLM takes the placement group that its process runs in).
"""

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trustjudge_ray.config import ClusterConfig, JudgeConfig

_STRATEGIES = {"pack": "PACK", "spread": "SPREAD"}
"""Values of `cluster.placement` that may take a replica over several nodes, in Ray's words."""


def backend(cluster: ClusterConfig) -> str | None:
    """vLLM's `distributed_executor_backend`; None leaves it to vLLM."""
    return "ray" if cluster.placement in _STRATEGIES else None


@contextlib.contextmanager
def placed(judge: JudgeConfig, cluster: ClusterConfig) -> Iterator[dict[str, Any]]:
    """Ray Data's arguments for the resources of each replica. What was reserved is given back with the context, or the
    judge that comes next would wait for it for ever."""
    if judge.engine != "vllm" or cluster.placement not in _STRATEGIES:
        yield {"num_cpus": cluster.cpus_per_replica} | (
            {"num_gpus": cluster.gpus_per_replica} if cluster.gpus_per_replica else {}
        )
        return
    run = f"trustjudge-{uuid.uuid4().hex}"

    def for_a_replica() -> dict[str, Any]:
        bundles = [{"GPU": 1.0, "CPU": cluster.cpus_per_replica}] + [{"GPU": 1.0}] * (int(cluster.gpus_per_replica) - 1)
        group = ray.util.placement_group(
            bundles, strategy=_STRATEGIES[cluster.placement], name=f"{run}-{uuid.uuid4().hex}"
        )
        inside = PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
        )
        return {"scheduling_strategy": inside}

    try:
        yield {"num_cpus": cluster.cpus_per_replica, "ray_remote_args_fn": for_a_replica}
    finally:
        for told in ray.util.placement_group_table().values():
            if told["name"].startswith(run) and told["state"] != "REMOVED":
                ray.util.remove_placement_group(ray.util.get_placement_group(told["name"]))
