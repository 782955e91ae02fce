"""Writes the browser of judgments into a run folder; what an earlier one left there goes."""

from concurrent.futures import ThreadPoolExecutor
from typing import Final

from trustjudge_ray.report import browse
from trustjudge_ray.report.cells import Inputs
from trustjudge_ray.store import RunFolder

_AT_ONCE: Final = 8
"""Files on their way to storage together, so that a store that takes its time for each is not waited for each time."""


def write(folder: RunFolder, inputs: Inputs) -> None:
    """Write `judgments.html` and `browse/` from the tables of a run.

    The earlier ones are removed first: a report that is interrupted leaves no page, and never one with another's data.

    Raises:
        StorageError: storage refuses.
    """
    remove(folder)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        writing = []
        for name, content in browse.files(inputs, folder.responses(), folder.path):
            writing.append(pool.submit(folder.write_bytes, name, content))
            if len(writing) == _AT_ONCE:
                writing.pop(0).result()
        for left in writing:
            left.result()
    folder.write_bytes(browse.PAGE, browse.page(inputs.title).encode("utf-8"))


def remove(folder: RunFolder) -> None:
    """Remove the browser of a run folder, if it has one."""
    folder.remove(browse.PAGE)
    folder.remove(browse.FOLDER)
