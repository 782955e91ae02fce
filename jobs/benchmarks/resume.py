"""What a run costs that has nothing new to judge, and whether a new model costs its own judgments and no more.

A million scripted tasks (scores and both orders of all pairs of 20 answers a question) are judged once. The same
command again, in a new process with a new Ray, must judge none: it is timed from reading the configuration to the
written manifest. `ratio` is that over the time in which one judge would have made the judgments at 5 ms each. Then the
answers of a 21st model are added: it must judge exactly the tasks in which that model occurs, by their number and by
their ids.
"""

import tempfile
from pathlib import Path
from typing import Any

import polars as pl

from trustjudge_ray.store import RunFolder

from . import Options
from ._scale import MODELS, outcome, start_apart, tasks_of, write_config, write_corpus

JUDGMENT_SECONDS = 0.005


def run(options: Options) -> dict[str, Any]:
    """Judge, start again, add a model."""
    questions = 4 if options.small else 2500
    tasks, added = tasks_of(questions, MODELS), tasks_of(questions, MODELS + 1) - tasks_of(questions, MODELS)
    with tempfile.TemporaryDirectory(prefix="trustjudge-benchmark-") as scratch:
        folder = Path(scratch)
        write_corpus(folder / "corpus", questions, MODELS)
        path = write_config(folder, "run")
        first = _start(options, "first start", path, tasks, 0)
        again = _start(options, "second start", path, 0, tasks)
        before = _ids(folder / "run")
        write_corpus(folder / "corpus", questions, MODELS + 1)
        _start(options, "with one model more", path, added, tasks)
        _refuse_others(before, RunFolder(str(folder / "run")), added)
    rate, ratio = tasks / again["seconds"], again["seconds"] / (tasks * JUDGMENT_SECONDS)
    options.say(f"first start: {tasks / first['seconds']:,.0f} judgments a second")
    options.say(f"second start: {rate:,.0f} reused tasks a second, {ratio:.2%} of judging at 5 ms a judgment")
    options.say(f"one model more: {added:,} judgments, all of them its own, none of them there before")
    return {"ratio": ratio, "judged": again["judged"], "tasks_per_second": rate, "added": added}


def _start(options: Options, what: str, path: Path, judged: int, reused: int) -> dict[str, Any]:
    """A start in a process of its own.

    Raises:
        RuntimeError: it did not judge and reuse as many tasks as it should.
    """
    found = outcome(start_apart(path))
    steps = ", ".join(f"{step} {seconds:.1f}" for step, seconds in found["steps"].items())
    options.say(f"{what}: {found['judged']:,} judged, {found['reused']:,} reused in {found['seconds']:.1f} s ({steps})")
    if (found["judged"], found["reused"]) != (judged, reused):
        raise RuntimeError(f"{what}: {judged:,} should be judged and {reused:,} reused")
    return found


def _ids(path: Path) -> pl.Series:
    """The task ids of all rows of all parts."""
    parts = sorted((path / "judgments").glob("*/part-*.parquet"))
    return pl.concat([pl.read_parquet(part, columns=["task_id"]) for part in parts])["task_id"]


def _refuse_others(before: pl.Series, folder: RunFolder, added: int) -> None:
    """Every new row must be of a new task of the new model, and there must be one row a task.

    Raises:
        RuntimeError: otherwise.
    """
    parts = sorted(Path(folder.store).glob("*/part-*.parquet"))
    rows = pl.concat([pl.read_parquet(part, columns=["task_id", "model_a", "model_b"]) for part in parts])
    new = rows.filter(~pl.col("task_id").is_in(before.implode()))
    model = f"model-{MODELS:02d}"
    own = new.filter((pl.col("model_a") == model) | (pl.col("model_b") == model).fill_null(False))
    if not len(new) == len(own) == added or not rows["task_id"].n_unique() == len(rows) == len(before) + added:
        raise RuntimeError(f"{len(new):,} rows are new, {len(own):,} of them of {model}; {added:,} should be both")
