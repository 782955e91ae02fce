"""What a run's judgments come to: each bucket counted in a task, only the sums come back."""

import functools
import math

import ray

from trustjudge_ray import tally
from trustjudge_ray.pipeline.blocks import WHOLE, Ledger, in_blocks, ledgers_of, on_rows
from trustjudge_ray.store import RunFolder


def count_judgments(folder: RunFolder, buckets: list[int]) -> list[Ledger]:
    """The counts of each bucket's judgments (see `tally.of_bucket`)."""
    if not buckets:
        return []
    tasks = 2 * math.ceil(ray.cluster_resources().get("CPU", 1.0))
    dataset = in_blocks([[{"bucket": bucket} for bucket in buckets[first::tasks]] for first in range(tasks)])
    count = functools.partial(on_rows, functools.partial(tally.of_bucket, folder=folder))
    return list(ledgers_of(dataset.map_batches(count, **WHOLE, num_cpus=1)))
