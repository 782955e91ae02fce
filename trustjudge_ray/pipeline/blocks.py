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
ONE: dict[str, Any] = WHOLE | {"batch_size": 1}
"""The same for blocks of one row, which is how whole tables travel: with GPUs Ray Data refuses to go without a size."""

_OURS = "JudgeError|RunError|StorageError|CorpusError|CorpusConfigError|SchemaError|ConfigError"


def one_each(rows: list[Ledger]) -> ray.data.Dataset:
    """A dataset with one block for each row, so that each is a task of its own."""
    return in_blocks([[row] for row in rows])


def in_blocks(blocks: list[list[Ledger]]) -> ray.data.Dataset:
    """A dataset of these blocks, each a task of its own; empty ones are left out."""
    return ray.data.from_arrow([pa.Table.from_pylist(block) for block in blocks if block])


def row_by_row(dataset: ray.data.Dataset) -> ray.data.Dataset:
    """The dataset with every row that a later stage yields as a block of its own, passed on at once.

    By default Ray Data gathers what a task yields into blocks of many megabytes. A whole table travels as one row
    (`packed`), and a stage that yields a million tables holds one of them.
    """
    dataset.context.target_max_block_size = 1
    return dataset


def packed(table: pa.Table) -> pa.Table:
    """A table as one row."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return pa.table({"packed": pa.array([sink.getvalue().to_pybytes()], pa.large_binary())})


def unpacked(block: pa.Table) -> pa.Table:
    """The table in a block of one row; nothing is copied."""
    (row,) = block.column("packed").combine_chunks()
    with pa.ipc.open_stream(row.as_buffer()) as stream:
        return stream.read_all()


def on_rows(work: Callable[..., Ledger], batch: pa.Table) -> pa.Table:
    return as_ledgers([work(**row) for row in batch.to_pylist()])


def as_ledgers(ledgers: list[Ledger]) -> pa.Table:
    return pa.table({"ledger": pa.array([json.dumps(ledger) for ledger in ledgers], pa.string())})


def ledgers_of(dataset: ray.data.Dataset) -> Iterator[Ledger]:
    """The ledgers as they come, in any order. Blocks are taken as they are: Ray Data's batches cost the driver several
    times as much, and there is one for each part.

    Raises:
        base.RunError: a task failed for good; with the message of our own exception, if it was one.
    """
    try:
        for bundle in dataset.iter_internal_ref_bundles():
            for entry in bundle.blocks:
                yield from map(json.loads, ray.get(entry.ref)["ledger"].to_pylist())
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
