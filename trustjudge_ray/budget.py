"""What one start of a run may ask for: so many judgments, and judges for so long as they stay within a cost.

Pure arithmetic; times are seconds since the epoch, which all machines of a cluster share.
"""

from trustjudge_ray.config import ClusterConfig, RunConfig

Pending = dict[str, dict[int, int]]
"""How many tasks a judge must still be asked for in each bucket: {judge: {bucket: tasks}}."""

_ROOM = 2
"""A batch is begun only if this many times the longest one so far still fits: batches differ, and must be written."""


def within(pending: Pending, most: int | None) -> Pending:
    """The first `most` of the pending tasks, bucket after bucket and all judges of a bucket together.

    So what a stopped run has judged are whole questions, and the same ones by every judge, as far as it goes. Of a
    bucket the first tasks in the plan's order are kept.
    """
    if most is None:
        return pending
    kept: Pending = {judge: {} for judge in pending}
    for bucket in sorted({bucket for counts in pending.values() for bucket in counts}):
        for judge, counts in pending.items():
            taken = min(counts.get(bucket, 0), most)
            most -= taken
            if taken:
                kept[judge][bucket] = taken
    return kept


def hourly_cost(cluster: ClusterConfig) -> float | None:
    """What an hour of all replicas that there may be costs; None without a price or without GPUs."""
    if not cluster.price_per_gpu_hour or not cluster.gpus_per_replica:
        return None
    return cluster.price_per_gpu_hour * cluster.gpus_per_replica * (cluster.max_replicas or cluster.replicas)


def until(run: RunConfig, cluster: ClusterConfig, start: float) -> float | None:
    """When judges that are started at `start` have cost `run.max_cost`; None where there is no such limit.

    All replicas that there may be count from the start, also where a pool grows later or an engine is still loading:
    the cost is never above what this says.
    """
    hourly = hourly_cost(cluster)
    return None if run.max_cost is None or hourly is None else start + 3600 * run.max_cost / hourly


class Allowance:
    """Whether a replica may begin another batch before `until` (None: always)."""

    def __init__(self, until: float | None) -> None:
        self._until = until
        self._longest = 0.0

    def allows(self, now: float) -> bool:
        """Whether a batch begun now should end in time, going by the longest one so far."""
        return self._until is None or now + _ROOM * self._longest < self._until

    def took(self, seconds: float) -> None:
        """A batch took so long."""
        self._longest = max(self._longest, seconds)


def reason(run: RunConfig, judged: int, left: int, cost: float | None) -> str:
    """Why a start ended with `left` judgments not asked for, and how to go on."""
    limit = f"run.max_judgments is {run.max_judgments}"
    if run.max_judgments is None or judged < run.max_judgments:
        limit = f"run.max_cost is {run.max_cost:g}, of which {cost or 0:.2f} is spent"
    return (
        f"{limit}: {judged} judgments were made in this start and {left} are left; everything judged is saved, the "
        "same command goes on from there"
    )
