"""What the benchmarks of a million scripted tasks share: the corpus, its configuration, and a start in a process of its
own."""

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from trustjudge_ray import config, pipeline, runs

PROTOCOLS = ("score-5", "compare")
MODELS = 20
BATCH = 512
"""Ray Data's work is by the batch: a judge that takes no time gets larger ones than a real one."""


def tasks_of(questions: int, models: int) -> int:
    """How many tasks there are: a score of each answer, and both orders of all pairs of a question's."""
    return questions * (models + 2 * math.comb(models, 2))


def write_corpus(folder: Path, questions: int, models: int) -> None:
    """A file for each model with its answer to every question; files that are there are left as they are."""
    folder.mkdir(exist_ok=True)
    for model in range(models):
        path = folder / f"model-{model:02d}.jsonl"
        if path.exists():
            continue
        with path.open("w", encoding="utf-8") as file:
            for question in range(questions):
                row = {
                    "question_id": f"question-{question}",
                    "question": f"What is {question} plus {question}, and how do you know?",
                    "category": f"category {question % 8}",
                    "model": f"model-{model:02d}",
                    "response": f"Model {model} says that it is {2 * question + model % 3}, counting by hand.",
                }
                file.write(json.dumps(row) + "\n")


def write_config(folder: Path, name: str, **further: Any) -> Path:
    """The configuration of a run `folder`/`name` over `folder`/corpus by the scripted judge, with further sections."""
    given = {
        "out": str(folder / name),
        "corpus": {"paths": [str(folder / "corpus")]},
        "judge": {"engine": "scripted", "scripted": {"noise": 0.05}},
        "protocols": list(PROTOCOLS),
        "run": {"batch_size": BATCH},
    } | further
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(given), "utf-8")
    return path


def start_apart(path: Path) -> "subprocess.Popen[str]":
    """`judge_once` in a process of its own."""
    code = f"from benchmarks._scale import judge_once; judge_once({str(path)!r})"
    here = Path(__file__).parent.parent
    return subprocess.Popen([sys.executable, "-c", code], cwd=here, stdout=subprocess.PIPE, text=True)


def outcome(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """What `judge_once` printed, when it has ended.

    Raises:
        RuntimeError: it failed.
    """
    out, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"a start ended with status {process.returncode}")
    return json.loads(out.splitlines()[-1])


def judge_once(path: str) -> None:
    """Start a run, and Ray for it, from nothing; print its seconds, steps and counts as a line of JSON."""
    began = time.perf_counter()
    loaded = config.load(path)
    judged = runs.judge(loaded, lambda *_: None)
    took = time.perf_counter() - began
    pipeline.stop()
    found = {"seconds": took, "steps": judged.manifest["seconds"]}
    print(json.dumps(found | {"tasks": judged.tasks, "judged": judged.now, "reused": judged.reused}))
