"""What one bucket of a run costs, from which docs/scale.md calculates what a larger run would.

Questions hash into buckets, and a worker plans, counts or reads a bucket at a time: its seconds and its memory grow
with the tasks of one bucket, and with nothing else of a run. A bucket of 50 answers a question (scores and both orders
of all pairs), every task of it judged and lying in parts of a batch of 64, is planned again, counted, and read with
all columns, each in a process of its own, at two sizes. No Ray.
"""

import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from trustjudge_ray import ingest, tally
from trustjudge_ray.config import Config, PlanConfig
from trustjudge_ray.identity import BUCKETS, bucket_of
from trustjudge_ray.judging import base, plan, protocols, scripted
from trustjudge_ray.pipeline import planning
from trustjudge_ray.schema import PLACED_RESPONSES, TASKS, from_rows
from trustjudge_ray.store import RunFolder

from . import Options
from ._scale import tasks_of

MODELS, BATCH = 50, 64
BUCKET = 0


def run(options: Options) -> dict[str, Any]:
    """Measure a small and a large bucket; per task, what lies between the two."""
    sizes = (1, 2) if options.small else (10, 80)
    found: list[dict[str, tuple[float, float]]] = []
    figures: dict[str, Any] = {}
    for questions in sizes:
        with tempfile.TemporaryDirectory(prefix="trustjudge-benchmark-") as scratch:
            parts, size = _apart(_make, scratch, questions)
            found.append({name: _apart(work, scratch) for name, work in WORK.items()})
        tasks = tasks_of(questions, MODELS)
        figures["bytes"] = size / tasks
        options.say(
            f"{tasks:,} tasks: {parts:,} parts of {size / parts / 1000:.1f} kB, {size / tasks:.0f} B a judgment"
        )
        for name, (seconds, megabytes) in found[-1].items():
            options.say(f"  {name}: {seconds:.2f} s of a CPU, {megabytes:.0f} MB more than before")
    more = tasks_of(sizes[1] - sizes[0], MODELS)
    for name in WORK:
        (seconds, megabytes), (seconds_more, megabytes_more) = found[0][name], found[1][name]
        figures[f"{name}_us"] = (seconds_more - seconds) / more * 1e6
        figures[f"{name}_kb"] = (megabytes_more - megabytes) / more * 1e3
        options.say(f"{name}: {figures[f'{name}_us']:.1f} µs and {figures[f'{name}_kb']:.2f} kB a task")
    return figures


def _apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def _specs() -> list[plan.Spec]:
    identity = scripted.identity({"noise": 0.05})
    return [plan.spec("scripted", identity, protocols.load(name), 0.0) for name in ("score-5", "compare")]


def _make(path: str, questions: int) -> tuple[int, int]:
    """A run folder of one bucket, planned and judged; how many parts it has, and their bytes."""
    folder, specs = RunFolder(path), _specs()
    folder.write_bytes("config.yaml", b"{}")
    ids = (f"question-{number}" for number in range(questions * BUCKETS * 100))
    mine = [next(i for i in ids if bucket_of(i) == BUCKET) for _ in range(questions)]
    rows = [_response(question, model) for question in mine for model in range(MODELS)]
    folder.write_table(f"{ingest.STAGING}/bucket={BUCKET:03d}/part-0.parquet", from_rows(rows, PLACED_RESPONSES))
    _plan(path)
    tasks = folder.read_table(f"tasks/bucket={BUCKET:03d}.parquet").select(TASKS.names)
    responses = folder.read_table(f"responses/bucket={BUCKET:03d}.parquet")
    asked = {spec.protocol.name: spec.protocol for spec in specs}
    judge = scripted.ScriptedJudge({"noise": 0.05}, asked)
    for start in range(0, len(tasks), 64 * BATCH):
        texts = plan.with_texts(tasks.slice(start, 64 * BATCH), responses)
        judgments = base.judgments(texts, judge.judge(texts), asked)
        for first in range(0, len(judgments), BATCH):
            folder.write_judgments(BUCKET, judgments.slice(first, BATCH))
    written = [part.stat().st_size for part in Path(path, "judgments").rglob("*.parquet")]
    return len(written), sum(written)


def _response(question: str, model: int) -> dict[str, Any]:
    text = f"Answer {model} to {question}: " + "a reply of some length. " * 40
    return {
        "question_id": question,
        "messages": [{"role": "user", "content": f"What of {question}?"}],
        "response_id": f"organisation/model-{model:02d}",
        "model": f"organisation/model-{model:02d}",
        "replies": [text],
        "source": "corpus.jsonl",
        "line": 1,
    }


def _plan(path: str) -> tuple[float, float]:
    return _cost(
        lambda: planning._plan_bucket(BUCKET, Config(plan=PlanConfig()), RunFolder(path), _specs(), None, frozenset())
    )


def _count(path: str) -> tuple[float, float]:
    return _cost(lambda: tally.of_bucket(BUCKET, RunFolder(path)))


def _read(path: str) -> tuple[float, float]:
    return _cost(lambda: RunFolder(path).judgments())


WORK = {"plan": _plan, "count": _count, "read": _read}


def _cost(work: Callable[[], object]) -> tuple[float, float]:
    """CPU seconds, and by how many megabytes the process's peak grew."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    work()
    seconds = time.process_time() - began
    return seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000
