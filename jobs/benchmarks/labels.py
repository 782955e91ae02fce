"""What reading 100 labels costs against reading 5, with the embedded judge.

The same prompts, with the same text up to the label; only the number of labels differs. Their lengths cover every
remainder modulo the cache's block size, because what part of the last block must be computed again depends on it.
No prompt is sent twice: each begins with a number of its own, so that no run is served from another's cache.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from trustjudge_ray.config import JudgeConfig
from trustjudge_ray.judging.base import Reading
from trustjudge_ray.judging.protocols import Protocol, parse
from trustjudge_ray.judging.vllm_engine import VllmJudge
from trustjudge_ray.judging.vllm_environment import cpu_environment
from trustjudge_ray.schema import TASK_TEXTS, from_rows

from . import Options, alternating

BLOCK = 32
_MARK = "TRUSTJUDGE_BENCHMARK_STARTED"


def run(options: Options) -> dict[str, Any]:
    """Time 100 labels against 5, in a process that was started with the judge's environment."""
    if _MARK not in os.environ:
        return _in_own_process(options)
    prompts, shortest, pairs = (BLOCK, 8, 1) if options.small else (2 * BLOCK, 290, 5)
    protocols = {p.name: p for p in (_protocol(5), _protocol(100))}
    judge = VllmJudge(JudgeConfig(model="embedded", head_dtype="float32"), protocols)
    numbers = count(10_000)
    few, many = (_timed(judge, name, range(shortest, shortest + prompts), numbers) for name in protocols)
    few()
    many()  # what the first batches allocate is not timed
    ratio, ratios = alternating(few, many, pairs)
    options.say(f"{prompts} prompts, 100 labels against 5: {ratio:.2f} times the time, the median of")
    options.say("  " + ", ".join(f"{r:.2f}" for r in ratios))
    return {"ratio": ratio}


def _timed(judge: VllmJudge, protocol: str, words: range, numbers: Iterator[int]) -> Callable[[], None]:
    """One run over fresh prompts with answers of so many words, checked to be what it claims."""

    def once() -> None:
        readings = judge.judge(_tasks(protocol, words, numbers))
        _check(readings)

    return once


def _check(readings: list[Reading]) -> None:
    failed = [r for r in readings if r.status != "ok"]
    if failed:
        raise RuntimeError(f"{len(failed)} prompts were not judged: {failed[0].status}: {failed[0].detail}")
    remainders = {(r.prompt_tokens or 0) % BLOCK for r in readings}
    if len(remainders) < BLOCK:
        raise RuntimeError(f"the prompts' lengths leave only {len(remainders)} of {BLOCK} remainders modulo the block")


def _tasks(protocol: str, words: range, numbers: Iterator[int]) -> pa.Table:
    return from_rows(
        [
            {
                "task_id": f"{protocol}-{i}",
                "spec": "benchmark",
                "kind": "score",
                "protocol": protocol,
                "judge": "benchmark",
                "question_id": str(i),
                "response_a": "m",
                "model_a": "m",
                "sample": 0,
                "repeat": 0,
                "messages": [{"role": "user", "content": f"{next(numbers)} What is a good thing?"}],
                "replies_a": [" good" * count_of_words],
            }
            for i, count_of_words in enumerate(words)
        ],
        TASK_TEXTS,
    )


def _protocol(labels: int) -> Protocol:
    return parse(
        f"name: labels-{labels}\nkind: score\nlabels: {labels}\nopener: 'Score: ['\ncloser: ']'\n"
        "user: |\n  {question}\n\n  Answer:\n  {answer}\n\n  How good is the answer? The more, the better.\n"
    )


def _in_own_process(options: Options) -> dict[str, Any]:
    """Start the same benchmark anew with the environment that a judge needs; its last line is the JSON object."""
    command = [sys.executable, str(Path(__file__).parent.parent / "benchmark.py"), "labels"]
    command += ["--small"] if options.small else []
    environment = os.environ | cpu_environment() | {_MARK: "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"labels: the judge's process ended with {done.returncode}; see above")
    *figures, last = done.stdout.splitlines()
    for line in figures:
        options.say(line)
    found: dict[str, Any] = json.loads(last)
    del found["benchmark"]
    return found
