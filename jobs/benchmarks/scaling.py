"""How a run's throughput grows with its replicas: that of 32 over 32 times that of one.

The judge is scripted and takes a second for a batch of 64, asleep, so that 32 of them fit on any machine: what is
measured is whether readers, queues, Ray's scheduling and the writing of parts keep them all busy. A run goes the whole
way (corpus, plan, judges, parts). Throughput is taken from the commits between 40 and 90 % of the judgments, after
the last replica has started (on few cores that is a good part of the run) and before the first has nothing left to do.
"""

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trustjudge_ray import config, pipeline, runs

from . import Options

BATCH = 64
MODELS = 8
"""8 scores and both orders of 28 pairs are 64 judgments of each question."""
WINDOW = (0.4, 0.9)

_SCORE = """
name: score-5
kind: score
labels: 5
user: |
  Rate the answer to
  {question}

  {answer}
opener: "Score: ["
closer: "]"
"""
_COMPARE = """
name: compare
kind: compare
labels: {first: A, second: B, tie: C}
user: |
  Compare two answers to
  {question}

  {answer_a}

  {answer_b}
opener: "Better: ["
closer: "]"
"""


@dataclass(frozen=True, slots=True)
class Size:
    """One run: so many replicas with so many batches each, and how many seconds a batch takes."""

    replicas: int
    batches: int
    seconds: float

    @property
    def questions(self) -> int:
        """Of the corpus: a question's judgments are one batch."""
        return self.replicas * self.batches


def run(options: Options) -> dict[str, Any]:
    """Measure one replica, some, and the most."""
    if options.small:
        sizes = [Size(1, 8, 0.2), Size(2, 8, 0.2)]
    else:
        sizes = [Size(1, 30, 1.0), Size(8, 40, 1.0), Size(32, 80, 1.0)]
    rates = []
    for size in sizes:
        rates.append(rate(size))
        share = rates[-1] / (size.replicas * rates[0])
        options.say(f"{size.replicas:3d} replicas: {rates[-1]:8.1f} judgments/s, {share:.3f} of linear")
    return {"ratio": rates[-1] / (sizes[-1].replicas * rates[0]), "replicas": sizes[-1].replicas}


def rate(size: Size) -> float:
    """Judgments a second of a whole run between 40 and 90 % of its judgments, on a local Ray of its own."""
    commits: list[tuple[float, int]] = []

    def note(step: str, progress: Any) -> None:
        if progress is not None:
            commits.append((time.perf_counter(), progress.judged))

    with tempfile.TemporaryDirectory(prefix="trustjudge-scaling-") as scratch:
        try:
            outcome = runs.judge(_config(size, Path(scratch)), note)
        finally:
            pipeline.stop()
    wanted = size.questions * BATCH
    if outcome.statuses != {"ok": wanted}:
        raise RuntimeError(f"{wanted} judgments were wanted: {outcome.statuses}")
    (began, before), (ended, after) = (next(c for c in commits if c[1] >= share * wanted) for share in WINDOW)
    return (after - before) / (ended - began)


def _config(size: Size, scratch: Path) -> config.LoadedConfig:
    for name, text in (("score", _SCORE), ("compare", _COMPARE)):
        (scratch / f"{name}.yaml").write_text(text)
    with (scratch / "corpus.jsonl").open("w") as lines:
        for question in range(size.questions):
            for model in range(MODELS):
                row = {"question_id": f"q{question}", "question": f"What is {question}?", "model": f"m{model}"}
                lines.write(json.dumps(row | {"response": f"{model} says {question}."}) + "\n")
    given = {
        "out": str(scratch / "run"),
        "corpus": {"paths": [str(scratch / "corpus.jsonl")]},
        "judge": {"engine": "scripted", "scripted": {"seconds_per_batch": size.seconds}},
        "protocols": [str(scratch / "score.yaml"), str(scratch / "compare.yaml")],
        "run": {"batch_size": BATCH},
        "cluster": {"replicas": size.replicas, "cpus_per_replica": 0.05, "num_cpus": 4},
    }
    return config.loads(json.dumps(given), "benchmark")
