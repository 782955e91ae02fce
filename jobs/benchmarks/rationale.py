"""What a run costs when the judge writes before its verdict: its judgments a second over those of the bare engine.

The bare engine gets the prompts of the same run in two calls of `LLM.generate`: all rationales, with the same budgets
and seeds, then all verdicts behind them. Rationales are ragged: most end at the verdict's opener, some at the budget,
so a batch has a tail in which the engine is not full. How many batches a judge should work on at once
(`cluster.batches_in_flight`) is measured first, on the judge alone.
"""

import functools
import json
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trustjudge_ray import config, pipeline
from trustjudge_ray.config import RunConfig
from trustjudge_ray.judging.base import Reading
from trustjudge_ray.judging.protocols import load
from trustjudge_ray.judging.vllm_environment import is_cpu
from trustjudge_ray.judging.vllm_rationale import kept
from trustjudge_ray.judging.vllm_reading import Asked, asked
from trustjudge_ray.store import RunFolder

from . import Options
from ._judging import demo_lines, demo_tasks, engine_process, judge_config, judge_settings, refuse_failures
from .pipeline import Rates, _tasks, _through, described

PROTOCOL = "score-5-rationale"


@dataclass(frozen=True, slots=True)
class Mode:
    """One way through all tasks on the engine alone: judgments and written tokens a second."""

    judgments: float
    tokens: float


def run(options: Options) -> dict[str, Any]:
    """Measure with the embedded judge."""
    pairs, questions, batch = (1, 1, 3) if options.small else (5, 16, RunConfig().batch_size)
    with engine_process() as process:
        modes = process.submit(_modes, "embedded", questions, batch // 2, 1).result()
    for name, mode in modes.items():
        options.say(f"{name}: {mode.judgments:.2f} judgments and {mode.tokens:.0f} written tokens a second")
    found = measure("embedded", pairs, questions, batch)
    for line in described(found):
        options.say(line)
    return {"ratio": statistics.median(rates.ratio for rates in found)}


def measure(model: str, pairs: int, questions: int, batch: int) -> list[Rates]:
    """The rates of so many pairs of a run and the bare engine, alternately begun by either."""
    found = []
    with tempfile.TemporaryDirectory(prefix="trustjudge-benchmark-") as scratch, engine_process() as process:
        corpus = Path(scratch, "corpus.jsonl")
        corpus.write_text("\n".join(demo_lines(questions)) + "\n", "utf-8")
        try:
            for pair in range(pairs):
                given = _config(model, str(corpus), str(Path(scratch, f"run-{pair}")), batch)
                first = _bare(process, model, scratch) if pair % 2 else None
                through = _through(given)
                found.append(Rates(through, first or _bare(process, model, scratch)))
        finally:
            pipeline.stop()
    return found


def _config(model: str, corpus: str, out: str, batch: int) -> config.LoadedConfig:
    given: dict[str, Any] = {
        "out": out,
        "corpus": {"paths": [corpus]},
        "judge": judge_settings(model),
        "protocols": [PROTOCOL],
        "run": {"batch_size": batch, "max_failure_rate": 0.0},
        "cluster": {} if is_cpu() else {"gpus_per_replica": 1},
    }
    return config.loads(json.dumps(given), "benchmark")


def _bare(process: ProcessPoolExecutor, model: str, scratch: str) -> float:
    return process.submit(_bare_rate, model, str(Path(scratch, "run-0"))).result()


def _bare_rate(model: str, run_folder: str) -> float:
    """Judgments a second of the two calls with all tasks."""
    judge = _judge(model)
    tasks = _tasks(RunFolder(run_folder)).to_pylist()
    judge._llm.reset_prefix_cache()
    return len(tasks) / _in_two_calls(judge, tasks)


def _in_two_calls(judge: Any, tasks: list[dict[str, Any]]) -> float:
    """Seconds of `LLM.generate` for the rationales and for the verdicts of these tasks."""
    from vllm import SamplingParams

    sent = [_asked(judge, task) for task in tasks]
    section = sent[0].reader.sections[0]
    requests = [one.request(section.before) for one in sent]
    params = [SamplingParams(**section.sampling(one.task)) for one in sent]
    began = time.perf_counter()
    outputs = judge._llm.generate(requests, params, use_tqdm=False)
    spent = time.perf_counter() - began
    for one, output in zip(sent, outputs, strict=True):
        one.add(section, kept(section, judge._tokenizer, output.prompt_token_ids, output.outputs[0]))
    requests = [request for one in sent for request in one.questions()]
    params = [SamplingParams(**question.sampling) for one in sent for question in one.reader.questions]
    began = time.perf_counter()
    judge._llm.generate(requests, params, use_tqdm=False)
    return spent + time.perf_counter() - began


def _modes(model: str, questions: int, batch: int, rounds: int) -> dict[str, Mode]:
    """The medians of so many alternating rounds of each mode, from an empty prefix cache each."""
    judge = _judge(model)
    tasks = demo_tasks(questions, [load(PROTOCOL)])
    batches = [tasks.slice(i, batch) for i in range(0, len(tasks), batch)]
    found: dict[int, list[Mode]] = {1: [], 2: [], 4: []}
    for _ in range(rounds):
        for at_once, modes in found.items():
            judge._llm.reset_prefix_cache()
            began = time.perf_counter()
            with ThreadPoolExecutor(at_once) as threads:
                readings = [r for found in threads.map(judge.judge, batches) for r in refuse_failures(found)]
            spent = time.perf_counter() - began
            written = sum(reading.rationale_tokens or 0 for reading in readings)
            modes.append(Mode(len(tasks) / spent, written / spent))
    return {
        f"{at_once} batches of {batch} at once": Mode(
            statistics.median(m.judgments for m in modes), statistics.median(m.tokens for m in modes)
        )
        for at_once, modes in found.items()
    }


def _asked(judge: Any, task: dict[str, Any]) -> Asked:
    found = asked(judge._readers[PROTOCOL], task)
    if isinstance(found, Reading):
        raise RuntimeError(f"a prompt was not built: {found.status}: {found.detail}")
    return found


@functools.cache
def _judge(model: str) -> Any:
    from trustjudge_ray.judging.vllm_engine import VllmJudge

    return VllmJudge(judge_config(model), {PROTOCOL: load(PROTOCOL)})
