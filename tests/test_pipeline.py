"""How pending tasks are cut into batches, and what a local cluster refuses, without judging anything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trustjudge_ray.config import ClusterConfig, ConfigError
from trustjudge_ray.pipeline import judges, session


@given(st.dictionaries(st.integers(0, 63), st.integers(0, 40)), st.integers(1, 17))
def test_every_pending_task_is_in_one_batch_and_only_the_last_batch_is_small(pending: dict[int, int], size: int):
    blocks = judges._shards(pending, size)
    ranges = [(s["bucket"], i) for block in blocks for s in block for i in range(s["start"], s["stop"])]
    assert ranges == [(bucket, i) for bucket, count in sorted(pending.items()) for i in range(count)]
    sizes = [sum(s["stop"] - s["start"] for s in block) for block in blocks]
    assert all(n == size for n in sizes[:-1])
    assert all(0 < n <= size for n in sizes)


@pytest.mark.ray
def test_more_replicas_than_a_local_cluster_has_room_for_are_refused_instead_of_waited_for(local_ray: None):
    for cluster, says in (
        (ClusterConfig(replicas=3), "3 replicas need 3.5 CPUs .* has 3; .*cluster.cpus_per_replica"),
        (ClusterConfig(gpus_per_replica=1), "1 replicas need 1 GPUs"),
    ):
        with pytest.raises(ConfigError, match=says):
            session._refuse_too_small(cluster)
