"""How far readers run ahead of judges: a few shards, counted.

Ray Data limits what waits between two stages by bytes, to half of the object store, and not at all while no actor has
begun, as when engines load for minutes. A run's shards are small: readers would put all of them there at once, and the
driver would keep a record of each.
"""

import ray.data
from ray.data._internal.execution import backpressure_policy

_AHEAD = "trustjudge.shards_ahead"


class ShardsAhead(backpressure_policy.BackpressurePolicy):
    """Takes no more shards from readers while so many wait for a judge."""

    def max_task_output_bytes_to_read(self, op: object) -> int | None:
        """0 if enough blocks wait behind this stage, None for no limit of its own."""
        waiting = self._topology[op].total_enqueued_output_blocks()
        return 0 if waiting >= self._data_context.get_config(_AHEAD, waiting + 1) else None


def limit_ahead(dataset: ray.data.Dataset, shards: int) -> ray.data.Dataset:
    """The dataset, whose stages let no more than so many blocks wait for the next one."""
    context = dataset.context
    policies = backpressure_policy.ENABLED_BACKPRESSURE_POLICIES
    context.set_config(backpressure_policy.ENABLED_BACKPRESSURE_POLICIES_CONFIG_KEY, [*policies, ShardsAhead])
    context.set_config(_AHEAD, shards)
    return dataset
