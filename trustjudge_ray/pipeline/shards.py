"""Pending tasks cut into shards: how large each is, where it begins, and what a judge is given of it.

A shard is what one replica judges and commits at a time. Readers stream them, one bucket in memory, and wait where
judges or storage are slow; the driver holds a number for each bucket, however many tasks there are.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from trustjudge_ray.judging import plan
from trustjudge_ray.pipeline.blocks import Ledger, packed
from trustjudge_ray.schema import TASKS
from trustjudge_ray.store import RunFolder

SMALLEST = 8
"""The last shards of a run shrink to this part of a batch, so that replicas end together."""
AHEAD = 2
"""They begin to when fewer than so many batches are left for each replica."""
_GIVEN_UP = 8
"""Up to this part of a shard's size is given up for ending it where another answer is shown first."""
_READER_BATCHES = 16
"""A reader has at least so many batches."""
_READER_REPLICAS = 8
"""Replicas that one reader is enough for: it gives out some ten shards a second, and a batch takes a judge a second or
more."""
_MOST_READERS = 16


@dataclass(frozen=True, slots=True)
class Cut:
    """How shards are cut: `batch` tasks at most, for `replicas` replicas."""

    batch: int
    replicas: int

    def size(self, left: int, after: int = 0) -> int:
        """Of the next shard, where its reader has `left` tasks and others have `after` more."""
        if self.replicas == 1 or left + after >= AHEAD * self.replicas * self.batch:
            return min(self.batch, left)
        smallest = math.ceil(self.batch / SMALLEST)
        return min(self.batch, left, max(smallest, math.ceil((left + after) / (AHEAD * self.replicas))))

    def end(self, tasks: pa.Table, start: int, wanted: int) -> int:
        """Where a shard of `wanted` tasks from `start` ends: earlier by up to an eighth, if the first shown answer
        changes there. One replica has all the prompts in its own cache: nothing is given up for it."""
        stop = min(start + wanted, len(tasks))
        spare = (stop - start) // _GIVEN_UP
        if self.replicas == 1 or not spare or stop == len(tasks):
            return stop
        near = _prefixes(tasks.slice(stop - spare - 1, spare + 2))
        changes = [i for i in range(spare + 1, 0, -1) if near[i] != near[i - 1]]
        return stop - spare - 1 + changes[0] if changes else stop


def _prefixes(tasks: pa.Table) -> list[tuple[str, ...]]:
    """What the prompts of tasks begin with: protocol, question and the answer shown first."""
    columns = ("protocol", "question_id", "response_a", "response_b", "order")
    rows = zip(*(tasks[name].to_pylist() for name in columns), strict=True)
    return [(protocol, question, b if order == "BA" else a) for protocol, question, a, b, order in rows]


def at_once(replicas: int) -> int:
    """How many readers keep so many replicas busy."""
    return max(1, min(_MOST_READERS, replicas // _READER_REPLICAS))


def readers(pending: dict[int, int], batch: int) -> list[Ledger]:
    """The work of the readers, one after the other: buckets, how many of the pending tasks of each are wanted, and how
    many tasks come after them.

    A reader has at least sixteen batches, from as many buckets as that takes, so that few shards are cut short by its
    end, and no more than that and a bucket, because a reader whose shards are lost with a node reads all of its own
    again.
    """
    after = sum(pending.values())
    work: list[Ledger] = []
    for bucket, count in sorted(pending.items()):
        if not count:
            continue
        if not work or sum(work[-1]["counts"]) >= _READER_BATCHES * batch:
            work.append({"buckets": [], "counts": []})
        after -= count
        work[-1]["buckets"].append(bucket)
        work[-1]["counts"].append(count)
        work[-1]["after"] = after
    return work


def shards(work: pa.Table, folder: RunFolder, judge: str, cut: Cut) -> Iterator[pa.Table]:
    """The shards of a reader's buckets as packed TASK_TEXTS, one after the other.

    Args:
        work: rows of `readers`.
    """
    for row in work.to_pylist():
        left = sum(row["counts"])
        kept: list[pa.Table] = []
        room = cut.size(left, row["after"])
        for bucket, count in zip(row["buckets"], row["counts"], strict=True):
            tasks, responses = bucket_to_judge(bucket, judge, folder)
            tasks = tasks.slice(0, count)
            start = 0
            while start < len(tasks):
                end = cut.end(tasks, start, room)
                kept.append(_texts(tasks.slice(start, end - start), responses))
                left, room = left - (end - start), room - (end - start)
                if room == 0 or end < len(tasks):
                    yield packed(pa.concat_tables(kept))
                    kept, room = [], cut.size(left, row["after"])
                start = end
        if kept:
            yield packed(pa.concat_tables(kept))


def bucket_to_judge(bucket: int, judge: str, folder: RunFolder) -> tuple[pa.Table, pa.Table]:
    """A bucket's pending tasks of a judge, in the plan's order, and the bucket's responses."""
    name = f"bucket={bucket:03d}.parquet"
    tasks = folder.read_table(f"tasks/{name}")
    tasks = tasks.filter(pc.and_(tasks["pending"], pc.equal(tasks["judge"], judge))).select(TASKS.names)
    return tasks, folder.read_table(f"responses/{name}")


def _texts(tasks: pa.Table, responses: pa.Table) -> pa.Table:
    """TASK_TEXTS of a few tasks of a bucket."""
    mine = pc.is_in(responses["question_id"], value_set=pc.unique(tasks["question_id"]))
    return plan.with_texts(tasks, responses.filter(mine))
