"""What labelling preference pairs costs: pairs a second of the whole job over those of the bare engine, with one judge.

The job reads pairs as TRL rows, judges both answers and the pair in both orders, then builds the preferences (sides,
cycles, filters), their side table and their data card, and writes them. As in the files of pairs that are labelled in
bulk, every row has a prompt of its own: the demo corpus' questions, each put for several readers, with two of its six
answers. The bare engine gets the same prompts as token ids in one call, in its own process with the same
environment; it labels nothing. As in `pipeline` both begin with an engine that has started and an empty prefix cache,
and a job's clock starts when its first batch reaches the engine; it stops at the last commit, and runs again while the
preferences are built and written. Each run of the bare engine is held against the mean of the job before and the job
after it, so that a machine that gets slower or faster favours neither.

Reading and planning are told beside it, in pairs a second: they come before the engine starts to work, and are the same
for any judge. Beside that, by the scripted judge, how many judgments each mode of a reward costs.
"""

import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from trustjudge_ray import config, labelling_preferences, pipeline, runs
from trustjudge_ray.judging.vllm_environment import is_cpu
from trustjudge_ray.preferences_config import PreferencesConfig

from . import Options
from ._judging import demo_lines, engine_process, judge_settings
from ._rewards import costs
from .pipeline import PROTOCOLS, bare_rate

FILTERS = {"both_orders_agree": True, "min_margin": 0.1, "no_cycle": True}
READERS = (
    *("a child of ten", "a new colleague", "a visitor from abroad", "an old friend", "a busy manager", "a beginner"),
    *("an expert", "a class of pupils", "a neighbour", "someone in a hurry", "a sceptic", "a grandparent"),
)


@dataclass(frozen=True, slots=True)
class Job:
    """Seconds that a job took: `before` the first batch reached the engine (reading, planning), `judging`, `building`
    the preferences."""

    pairs: int
    judgments: int
    before: float
    judging: float
    building: float

    @property
    def seconds(self) -> float:
        """What is held against the bare engine's."""
        return self.judging + self.building


def run(options: Options) -> dict[str, Any]:
    """Measure with the embedded judge."""
    rounds, questions, readers, batch = (1, 2, 3, 16) if options.small else (4, 24, len(READERS), 64)
    calls = costs(questions)
    options.say("judgments per completion of a reward, groups of eight (in a second batch, half of each group new):")
    for mode, cost in calls.items():
        took = 1000 * cost.seconds
        options.say(f"  {mode}: {cost.calls:.2f} ({cost.half_new:.2f}); {took:.2f} ms a completion besides the judge's")
    jobs, bare = measure("embedded", rounds, pair_lines(questions, readers), batch)
    ratios = [
        2 * alone / (one.seconds + next_.seconds) for alone, (one, next_) in zip(bare, pairwise(jobs), strict=True)
    ]
    ratio = statistics.median(ratios)
    pairs = jobs[0].pairs
    options.say(f"{ratio:.3f} of the bare engine's pairs a second, the median of {len(bare)} (between two jobs each):")
    for alone, mine in zip(bare, ratios, strict=True):
        options.say(f"  {mine:.3f} of {pairs / alone:.2f} pairs/s")
    for job in jobs:
        share = job.building / job.seconds
        options.say(
            f"  a job: {pairs / job.seconds:.2f} pairs/s, {share:.1%} of the time to build the preferences; before, "
            f"{pairs / job.before:,.0f} pairs/s were read and planned"
        )
    figures = {"ratio": ratio, "pairs": pairs, "judgments_per_pair": jobs[0].judgments / pairs}
    return figures | {"calls_per_completion": {mode: cost.calls for mode, cost in calls.items()}}


def measure(model: str, rounds: int, lines: list[str], batch: int) -> tuple[list[Job], list[float]]:
    """So many runs of the bare engine between jobs on the same pairs: the jobs, one more, and the bare engine's
    seconds."""
    jobs: list[Job] = []
    bare: list[float] = []
    with tempfile.TemporaryDirectory(prefix="trustjudge-benchmark-") as scratch, engine_process() as process:
        corpus = Path(scratch, "pairs.jsonl")
        corpus.write_text("\n".join(lines) + "\n", "utf-8")
        try:
            for number in range(rounds + 1):
                if number:
                    bare.append(jobs[0].judgments / bare_rate(process, model, scratch))
                jobs.append(_timed(_config(model, str(corpus), str(Path(scratch, f"run-{number}")), batch)))
        finally:
            pipeline.stop()
    return jobs, bare


def pair_lines(questions: int, readers: int) -> list[str]:
    """The first questions of the demo corpus, each put for so many readers and with two of its six answers, as TRL's
    conversational rows: no prompt twice."""
    answers: dict[str, list[dict[str, Any]]] = {}
    for line in demo_lines(questions):
        row = json.loads(line)
        answers.setdefault(row["question_id"], []).append(row)
    lines = []
    for (number, reader), rows in product(enumerate(READERS[:readers]), answers.values()):
        chosen, rejected = rows[2 * number % len(rows)], rows[(2 * number + 1) % len(rows)]
        sides = {"chosen": chosen["response"], "rejected": rejected["response"]}
        messages = {side: [{"role": "assistant", "content": text}] for side, text in sides.items()}
        asked = f"Answer for {reader}: {chosen['question']}"
        lines.append(json.dumps({"prompt": [{"role": "user", "content": asked}], **messages}))
    return lines


def _config(model: str, corpus: str, out: str, batch: int) -> config.LoadedConfig:
    given: dict[str, Any] = {
        "out": out,
        "corpus": {"paths": [corpus], "format": "trl-conversational"},
        "judge": judge_settings(model),
        "protocols": list(PROTOCOLS),
        "run": {"batch_size": batch, "max_failure_rate": 0.0},
        "cluster": {} if is_cpu() else {"gpus_per_replica": 1},
    }
    return config.loads(json.dumps(given), "benchmark")


def _timed(given: config.LoadedConfig) -> Job:
    """A whole job.

    Raises:
        RuntimeError: a judgment is missing or failed; a figure without it would be wrong.
    """
    ends: list[tuple[float, runs.Progress]] = []

    def note(step: str, progress: runs.Progress | None) -> None:
        if progress is not None and not progress.finished:
            ends.append((time.time(), progress))

    judged = runs.judge(given, note)
    began = time.perf_counter()
    settings = PreferencesConfig(filters=FILTERS)
    card = labelling_preferences.write(runs.folder_of(given), settings, given.config.analysis)
    building = time.perf_counter() - began
    ended, progress = ends[-1]
    if set(judged.statuses) != {"ok"} or progress.began is None:
        raise RuntimeError(f"not every prompt was judged: {judged.statuses}")
    steps = judged.manifest["seconds"]
    before = steps["read"] + steps["plan"]
    return Job(card["counts"]["pairs"], progress.judged, before, ended - progress.began, building)
