"""What the benchmarks of judging share: the demo corpus as tasks, and a process that is started as a judge's is."""

import json
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import pyarrow as pa

from trustjudge_ray.config import JudgeConfig, PlanConfig
from trustjudge_ray.judging.base import Reading
from trustjudge_ray.judging.plan import Spec, plan, with_texts
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.judging.vllm_environment import cpu_environment, is_cpu
from trustjudge_ray.judging.vllm_reading import Reader, asked
from trustjudge_ray.schema import PLACED_RESPONSES, from_rows

CORPUS = Path(str(resources.files("trustjudge_ray") / "demo" / "corpus.jsonl"))
"""24 questions with six answers each."""
CONTEXT = 2048


def judge_settings(model: str, **settings: Any) -> dict[str, Any]:
    """A judge of these benchmarks, whose prompts are all shorter than CONTEXT; a GPU has room for two such engines."""
    arguments = {} if is_cpu() else {"gpu_memory_utilization": 0.4}
    arguments |= settings.pop("engine_args", {})
    return {"model": model, "max_model_len": CONTEXT, "engine_args": arguments, **settings}


def judge_config(model: str, **settings: Any) -> JudgeConfig:
    """The same as the judge's configuration."""
    return JudgeConfig(**judge_settings(model, **settings))


def block_size() -> int:
    """Tokens in a block of the prefix cache, as benchmarks set it."""
    return 32 if is_cpu() else 16


def demo_lines(questions: int) -> list[str]:
    """The lines of the first questions of the demo corpus."""
    lines = CORPUS.read_text("utf-8").splitlines()
    ids = list(dict.fromkeys(json.loads(line)["question_id"] for line in lines))[:questions]
    return [line for line in lines if json.loads(line)["question_id"] in ids]


def demo_tasks(questions: int, protocols: list[Protocol]) -> pa.Table:
    """TASK_TEXTS about the first questions of the demo corpus, in the plan's order: every response, and both orders
    of all pairs of a question's."""
    rows = [json.loads(line) for line in demo_lines(questions)]
    responses = from_rows(
        [
            {
                "question_id": row["question_id"],
                "messages": [{"role": "user", "content": row["question"]}],
                "reference": row["reference"],
                "response_id": row["model"],
                "model": row["model"],
                "replies": [row["response"]],
                "source": CORPUS.name,
                "line": line,
            }
            for line, row in enumerate(rows, 1)
        ],
        PLACED_RESPONSES,
    )
    tasks = plan(responses, [Spec("benchmark", p, "benchmark") for p in protocols], PlanConfig(), [])
    return with_texts(tasks, responses)


def refuse_failures(readings: list[Reading]) -> list[Reading]:
    """The readings, all of them usable.

    Raises:
        RuntimeError: one is not; a figure without it would be wrong.
    """
    failed = [reading for reading in readings if reading.status != "ok"]
    if failed:
        raise RuntimeError(f"{len(failed)} prompts were not judged: {failed[0].status}: {failed[0].detail}")
    return readings


def tokens_of(readings: list[Reading]) -> tuple[int, int]:
    """Prompt tokens that were sent, and those of them that the engine had in its cache.

    Raises:
        RuntimeError: the engine did not count.
    """
    counts = [(reading.prompt_tokens, reading.cached_tokens) for reading in readings]
    known = [(sent, cached) for sent, cached in counts if sent is not None and cached is not None]
    if len(known) < len(counts):
        raise RuntimeError(f"the engine counted the tokens of {len(known)} of {len(counts)} prompts")
    return sum(sent for sent, _ in known), sum(cached for _, cached in known)


def requests_of(reader: Reader, task: dict[str, Any]) -> list[dict[str, Any]]:
    """The requests with which a judge reads a task.

    Raises:
        RuntimeError: the task cannot be put to it.
    """
    found = asked(reader, task)
    if isinstance(found, Reading):
        raise RuntimeError(f"a prompt was not built: {found.status}: {found.detail}")
    return found.questions()


@contextmanager
def engine_process(further: dict[str, str] | None = None) -> Iterator[ProcessPoolExecutor]:
    """A process that was started with the environment that a judge needs (and `further` variables); it ends with the
    context."""
    before = os.environ.copy()
    os.environ.update(cpu_environment() | (further or {}))
    try:
        pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        pool.submit(os.getpid).result()
    finally:
        os.environ.clear()
        os.environ.update(before)
    with pool:
        yield pool
