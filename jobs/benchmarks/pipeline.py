"""What the pipeline costs: judgments a second of a whole run over those of the bare engine, with the same judge.

A run reads the corpus, plans, and sends batches through Ray Data to the judge's actor, whose judgments are written as
parts. The bare engine, in its own process with the same environment, gets all the prompts of that run as token ids, in
the same order, in one call. Both begin each time with an engine that has started and an empty prefix cache. A run's
clock goes from the moment at which its first batch reaches the engine to that at which its last part is committed; the
start of Ray and of the engine, the reading of the corpus and the plan are left out.
"""

import functools
import json
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from trustjudge_ray import config, pipeline, runs
from trustjudge_ray.judging.plan import with_texts
from trustjudge_ray.judging.protocols import load
from trustjudge_ray.judging.vllm_environment import is_cpu
from trustjudge_ray.judging.vllm_reading import reader_of
from trustjudge_ray.schema import TASKS
from trustjudge_ray.store import RunFolder

from . import Options
from ._judging import CONTEXT, demo_lines, engine_process, judge_config, judge_settings, requests_of

PROTOCOLS = ("score-5", "compare")


@dataclass(frozen=True, slots=True)
class Rates:
    """Judgments a second of one pair of runs."""

    pipeline: float
    bare: float

    @property
    def ratio(self) -> float:
        """The pipeline's over the bare engine's."""
        return self.pipeline / self.bare


def run(options: Options) -> dict[str, Any]:
    """Measure with the embedded judge."""
    pairs, questions, batch = (1, 2, 16) if options.small else (5, 24, 64)
    found = measure("embedded", pairs, questions, batch)
    for line in described(found):
        options.say(line)
    return {"ratio": statistics.median(r.ratio for r in found)}


def described(found: list[Rates]) -> list[str]:
    """Lines for a person: the median ratio, and each pair of runs."""
    ratio = statistics.median(r.ratio for r in found)
    heading = f"{ratio:.3f} of the bare engine's judgments a second, the median of {len(found)} alternating pairs:"
    return [heading, *(f"  {r.pipeline:.2f}/s of {r.bare:.2f}/s: {r.ratio:.3f}" for r in found)]


def measure(model: str, pairs: int, questions: int, batch: int) -> list[Rates]:
    """The rates of so many pairs of runs over so many questions of the demo corpus, alternately begun by either."""
    found = []
    with tempfile.TemporaryDirectory(prefix="trustjudge-benchmark-") as scratch, engine_process() as process:
        corpus = Path(scratch, "corpus.jsonl")
        corpus.write_text("\n".join(demo_lines(questions)) + "\n", "utf-8")
        try:
            for pair in range(pairs):
                given = _config(model, str(corpus), str(Path(scratch, f"run-{pair}")), batch)
                if pair % 2:
                    bare = bare_rate(process, model, scratch)
                    found.append(Rates(_through(given), bare))
                else:
                    through = _through(given)
                    found.append(Rates(through, bare_rate(process, model, scratch)))
        finally:
            pipeline.stop()
    return found


def _config(model: str, corpus: str, out: str, batch: int) -> config.LoadedConfig:
    given: dict[str, Any] = {
        "out": out,
        "corpus": {"paths": [corpus]},
        "judge": judge_settings(model),
        "protocols": list(PROTOCOLS),
        "run": {"batch_size": batch, "max_failure_rate": 0.0},
        "cluster": {} if is_cpu() else {"gpus_per_replica": 1},
    }
    return config.loads(json.dumps(given), "benchmark")


def _through(given: config.LoadedConfig) -> float:
    """Judgments a second of a run from its first batch to its last commit."""
    ends: list[tuple[float, runs.Progress]] = []

    def note(step: str, progress: runs.Progress | None) -> None:
        if progress is not None and not progress.finished:
            ends.append((time.time(), progress))

    outcome = runs.judge(given, note)
    if set(outcome.statuses) != {"ok"}:
        raise RuntimeError(f"not every prompt was judged: {outcome.statuses}")
    ended, progress = ends[-1]
    if progress.began is None:
        raise RuntimeError("nothing was judged; the run folder was not empty")
    return progress.judged / (ended - progress.began)


def bare_rate(process: ProcessPoolExecutor, model: str, scratch: str) -> float:
    """Judgments a second of the engine alone, in its process, on the prompts of the first run."""
    return process.submit(_rate_of_one_call, model, str(Path(scratch, "run-0"))).result()


def _rate_of_one_call(model: str, run_folder: str) -> float:
    """Judgments a second of one call with the requests of all tasks."""
    engine, requests = _engine(model, run_folder)
    engine.reset_prefix_cache()
    prompts, params = ([x for task in requests for x in task[side]] for side in (0, 1))
    began = time.perf_counter()
    outputs = engine.generate(prompts, params, use_tqdm=False)
    spent = time.perf_counter() - began
    if len(outputs) != len(prompts):
        raise RuntimeError("the bare engine lost a request")
    return len(requests) / spent


@functools.cache
def _engine(model: str, run_folder: str) -> tuple[Any, list[tuple[list[dict], list[Any]]]]:
    """The engine as a judge loads it, and for each task of a run, in the run's order, its requests."""
    from trustjudge_ray.judging.vllm_engine import VllmJudge

    given, protocols = judge_config(model), {name: load(name) for name in PROTOCOLS}
    engine = VllmJudge(given, protocols)._llm
    from vllm import SamplingParams

    readers = {name: reader_of(given, engine.get_tokenizer(), p, CONTEXT) for name, p in protocols.items()}
    params = {name: [SamplingParams(**q.sampling) for q in reader.questions] for name, reader in readers.items()}
    tasks = _tasks(RunFolder(run_folder)).to_pylist()
    return engine, [(requests_of(readers[t["protocol"]], t), params[t["protocol"]]) for t in tasks]


def _tasks(folder: RunFolder) -> pa.Table:
    """TASK_TEXTS of everything that the run's judge was asked, bucket after bucket."""
    tables = []
    for name in folder.names("tasks"):
        tasks = folder.read_table(name)
        tasks = tasks.filter(tasks["pending"]).select(TASKS.names)
        tables.append(with_texts(tasks, folder.read_table(name.replace("tasks/", "responses/", 1))))
    return pa.concat_tables(tables)
