"""What labelling preference pairs costs: pairs a second of the whole job over those of the bare engine, with one judge.

The job reads pairs as TRL rows, judges both answers and the pair in both orders, then builds the preferences (sides,
cycles, filters), their side table and their data card, and writes them. The bare engine gets the same prompts as token
ids in one call, in its own process with the same environment; it labels nothing. As in `pipeline` both begin with an
engine that has started and an empty prefix cache, and a job's clock starts when its first batch reaches the engine; it
stops at the last commit, and runs again while the preferences are built and written.

Reading and planning are told beside it, in pairs a second: they come before the engine starts to work, and are the same
for any judge. Beside that, by the scripted judge, how many judgments each mode of a reward costs.
"""

import itertools
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trustjudge_ray import config, labelling_preferences, pipeline, runs
from trustjudge_ray.judging.vllm_environment import is_cpu
from trustjudge_ray.preferences_config import PreferencesConfig

from . import Options
from ._judging import demo_lines, engine_process, judge_settings
from ._rewards import costs
from .pipeline import PROTOCOLS, _bare

FILTERS = {"both_orders_agree": True, "min_margin": 0.1, "no_cycle": True}


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
    def rate(self) -> float:
        """Pairs a second."""
        return self.pairs / (self.judging + self.building)

    def bare_rate(self, judgments: float) -> float:
        """Pairs a second of an engine that makes so many judgments a second."""
        return judgments * self.pairs / self.judgments


def run(options: Options) -> dict[str, Any]:
    """Measure with the embedded judge."""
    rounds, questions, batch = (1, 2, 16) if options.small else (5, 24, 64)
    calls = costs(questions)
    options.say("judgments per completion of a reward, groups of eight (in a second batch, half of each group new):")
    for mode, cost in calls.items():
        took = 1000 * cost.seconds
        options.say(f"  {mode}: {cost.calls:.2f} ({cost.half_new:.2f}); {took:.2f} ms a completion besides the judge's")
    found = measure("embedded", rounds, questions, batch)
    ratios = [job.rate / job.bare_rate(bare) for job, bare in found]
    ratio = statistics.median(ratios)
    options.say(f"{ratio:.3f} of the bare engine's pairs a second, the median of {len(found)} alternating rounds:")
    for (job, bare), mine in zip(found, ratios, strict=True):
        share = job.building / (job.judging + job.building)
        options.say(
            f"  {job.rate:.2f}/s of {job.bare_rate(bare):.2f}/s: {mine:.3f}; building the preferences took {share:.1%} "
            f"of it; before, {job.pairs / job.before:,.0f} pairs/s were read and planned"
        )
    job = found[0][0]
    figures = {"ratio": ratio, "pairs": job.pairs, "judgments_per_pair": job.judgments / job.pairs}
    return figures | {"calls_per_completion": {mode: cost.calls for mode, cost in calls.items()}}


def measure(model: str, rounds: int, questions: int, batch: int) -> list[tuple[Job, float]]:
    """So many rounds over the pairs of so many questions of the demo corpus, alternately begun by either: the job, and
    the bare engine's judgments a second."""
    found = []
    with tempfile.TemporaryDirectory(prefix="trustjudge-benchmark-") as scratch, engine_process() as process:
        corpus = Path(scratch, "pairs.jsonl")
        corpus.write_text("\n".join(pair_lines(questions)) + "\n", "utf-8")
        try:
            for number in range(rounds):
                given = _config(model, str(corpus), str(Path(scratch, f"run-{number}")), batch)
                if number % 2:
                    bare = _bare(process, model, scratch)
                    found.append((_timed(given), bare))
                else:
                    job = _timed(given)
                    found.append((job, _bare(process, model, scratch)))
        finally:
            pipeline.stop()
    return found


def pair_lines(questions: int) -> list[str]:
    """All pairs of the answers to each of the first questions of the demo corpus, as TRL's conversational rows."""
    answers: dict[str, list[dict[str, Any]]] = {}
    for line in demo_lines(questions):
        row = json.loads(line)
        answers.setdefault(row["question_id"], []).append(row)
    lines = []
    for rows in answers.values():
        for chosen, rejected in itertools.combinations(rows, 2):
            sides = {"chosen": chosen["response"], "rejected": rejected["response"]}
            messages = {side: [{"role": "assistant", "content": text}] for side, text in sides.items()}
            lines.append(json.dumps({"prompt": [{"role": "user", "content": chosen["question"]}], **messages}))
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
