"""A small run of several judges, scales and comparison protocols, with people's scores, for tests of the report."""

from itertools import combinations

import numpy as np
import polars as pl
from comparisons import game, score, table

from trustjudge_ray.analysis.evaluation import evaluate
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.judging import protocols
from trustjudge_ray.report.cells import Inputs
from trustjudge_ray.schema import PLACED_RESPONSES, from_rows

JUDGES = ("mine", "Qwen2.5-7B-Instruct", "Llama-3.1-70B-Instruct", "Llama-3.2-3B-Instruct")
SCALES = ("score-5", "score-10", "score-100")
COMPARISONS = ("compare", "compare-rationale")
MODELS = "abcd"
PROTOCOLS = {name: protocols.load(name) for name in (*SCALES, *COMPARISONS)}


def judgments(judges=JUDGES, questions=4, seed=0, scales=SCALES, comparisons=COMPARISONS):
    """Every answer scored on every scale and every pair compared in both orders, noisily, by every judge."""
    rng, rows = np.random.default_rng(seed), []
    labels = ("a", "b", "tie")
    for judge in judges:
        for q in range(questions):
            for name in scales:
                count = len(PROTOCOLS[name].label_texts)
                for model in MODELS:
                    p = rng.dirichlet(np.ones(count))
                    rows.append(score(f"q{q}", model, p, judge=judge, protocol=name))
            for name in comparisons:
                for pair in combinations(MODELS, 2):
                    for first, second in (pair, pair[::-1]):
                        p = tuple(rng.dirichlet(np.ones(3)))
                        told = {"emitted": labels[rng.integers(3)], "judge": judge, "protocol": name}
                        told |= {"cumulative_logprob": -float(rng.integers(1, 9)), "output_tokens": 10}
                        rows.append(game(f"q{q}", first, second, p, **told))
    return table(rows)


def responses(questions=4):
    """The answers, each with a human score."""
    plain = {"messages": [{"role": "user", "content": "?"}], "source": "t", "line": 1}
    rows = [
        plain
        | {"question_id": f"q{q}", "response_id": m, "model": m, "replies": [f"{m}{q}"], "human_score": float(i % 3)}
        for q in range(questions)
        for i, m in enumerate(MODELS)
    ]
    return pl.DataFrame(from_rows(rows, PLACED_RESPONSES))


def inputs(settings=None, known=None, manifest=None, **which):
    """The inputs of a report of these judgments."""
    settings = settings or AnalysisConfig(tolerances=[0, 0.1], k=[3])
    said = judgments(**which)
    asked = {name: PROTOCOLS[name] for name in said["protocol"].unique().sort()}
    found = evaluate(said, asked, responses() if known is None else known, settings)
    frames = {name: getattr(found, name) for name in ("scores", "verdicts", "metrics", "ratings")}
    return Inputs(title="run", judgments=said, protocols=asked, settings=settings, manifest=manifest or {}, **frames)
