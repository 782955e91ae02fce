"""Work as Ray Data sees it: blocks of rows, each a task of its own, and the ledgers that come back."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import ray
import ray.data

from trustjudge_ray.judging import base

Ledger = dict[str, Any]
"""A few numbers about what a task has done: the only thing that comes back to the driver."""

WHOLE: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow", "zero_copy_batch": True}
"""A block is a batch: nothing is copied or cut."""

_OURS = "JudgeError|StorageError|CorpusError|CorpusConfigError|SchemaError|ConfigError"


def one_each(rows: list[Ledger]) -> ray.data.Dataset:
    """A dataset with one block for each row, so that each is a task of its own."""
    return in_blocks([[row] for row in rows])


def in_blocks(blocks: list[list[Ledger]]) -> ray.data.Dataset:
    """A dataset of these blocks, each a task of its own; empty ones are left out."""
    return ray.data.from_arrow([pa.Table.from_pylist(block) for block in blocks if block])


def on_rows(work: Callable[..., Ledger], batch: pa.Table) -> pa.Table:
    return as_ledgers([work(**row) for row in batch.to_pylist()])


def as_ledgers(ledgers: list[Ledger]) -> pa.Table:
    return pa.table({"ledger": pa.array([json.dumps(ledger) for ledger in ledgers], pa.string())})


def ledgers_of(dataset: ray.data.Dataset) -> Iterator[Ledger]:
    """The ledgers as they come, in any order.

    Raises:
        base.RunError: a task failed for good; with the message of our own exception, if it was one.
    """
    try:
        for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            yield from map(json.loads, batch["ledger"].to_pylist())
    except ray.exceptions.RayError as error:
        raise base.RunError(_root_message(error)) from error


def _root_message(error: BaseException) -> str:
    """What went wrong in a worker: the message of our own exception inside Ray's, if there is one, else the name
    and message of whatever was raised first."""
    text = str(error)
    ours = re.findall(rf"^(?:trustjudge_ray[\w.]*\.)?(?:{_OURS}): (.+)$", text, re.MULTILINE)
    if ours:
        return ours[-1]
    raised = re.findall(r"^(?!ray\.)[\w.]*(?:Error|Exception|Interrupt): .+$", text, re.MULTILINE)
    if raised:
        return f"a worker failed: {raised[0]}"
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
