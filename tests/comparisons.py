"""Small JUDGMENTS tables for tests of analysis: comparisons and scores as a judge, or people, would give them."""

import json
import math
from pathlib import Path

import numpy as np
import polars as pl

from trustjudge_ray.schema import JUDGMENTS, from_rows

CERTAIN = {"first": (1.0, 0.0, 0.0), "second": (0.0, 1.0, 0.0), "tie": (0.0, 0.0, 1.0)}


def game(question, first, second, outcome, **columns):
    """A comparison, `first` shown first; outcome is a name, or probabilities of first, second, tie."""
    p = list(CERTAIN.get(outcome, outcome) if isinstance(outcome, str) else outcome)
    a, b = min(first, second), max(first, second)
    if first != a:
        p[0], p[1] = p[1], p[0]
    row = {
        "spec": "s",
        "kind": "compare",
        "protocol": "compare",
        "judge": "j",
        "question_id": str(question),
        "response_a": a,
        "model_a": a,
        "response_b": b,
        "model_b": b,
        "order": "AB" if first == a else "BA",
        "label_logprobs": [math.log(x) if x > 0 else -math.inf for x in p],
        "sample": 0,
        "repeat": 0,
        "truncated": False,
        "status": "ok",
    }
    return row | columns


def score(question, model, probabilities, **columns):
    """A score judgment with these label probabilities."""
    row = game(question, model, model, "tie") | {"kind": "score", "protocol": "score", "response_b": None}
    logs = [math.log(x) if x > 0 else -math.inf for x in probabilities]
    emitted = str(int(np.argmax(probabilities)) + 1)
    return row | {"model_b": None, "order": None, "label_logprobs": logs, "emitted": emitted} | columns


def table(rows):
    """JUDGMENTS with running task ids."""
    return pl.from_arrow(from_rows([{"task_id": f"{i:06d}"} | row for i, row in enumerate(rows)], JUDGMENTS))


def battles(path: Path):
    """A file of battles as hard outcomes; every word that is not a side is a tie."""
    sides = {"model_a": "first", "model_b": "second"}
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return table([game(r["prompt_id"], r["model_a"], r["model_b"], sides.get(r["winner"], "tie")) for r in lines])


def tournament(rng, worths, questions, order_effect=0.3, log_nu=-1.0, spread=0.5, soft=False):
    """All ordered pairs of models on every question, by Davidson's model; worths vary by question with `spread`."""
    names, rows = list(worths), []
    for q in range(questions):
        here = {m: worths[m] + rng.normal(0, spread) for m in names}
        for first in names:
            for second in names:
                if first != second:
                    d = here[first] - here[second] + order_effect
                    weight = np.exp([d / 2, -d / 2, log_nu])
                    p = weight / weight.sum()
                    outcome = p if soft else np.eye(3)[rng.choice(3, p=p)]
                    rows.append(game(q, first, second, tuple(outcome)))
    return rows
