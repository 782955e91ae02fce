"""A run of 100,000 judgments, as a noisy judge with a liking for the first slot would give them; made in a second."""

import hashlib
from itertools import combinations

import numpy as np
import polars as pl

from trustjudge_ray.analysis.pairing import Side
from trustjudge_ray.judging import protocols
from trustjudge_ray.schema import JUDGMENTS, PLACED_RESPONSES

MODELS = tuple(f"model-{i:02d}" for i in range(15))
PROTOCOLS = {name: protocols.load(name) for name in ("score-5", "score-100", "compare")}
PER_QUESTION = 2 * len(MODELS) + len(MODELS) * (len(MODELS) - 1)
WORDS = ("answer", "because", "first", "however", "river", "seven", "stone", "under", "which", "yellow", "zinc")


def side(judgments=100_000, seed=0, words=120):
    """An `analysis.pairing.Side` of at least so many judgments, with answers of so many words."""
    questions, rng = -(-judgments // PER_QUESTION), np.random.default_rng(seed)
    quality = np.linspace(-1, 1, len(MODELS)) + rng.normal(0, 0.7, (questions, len(MODELS)))
    parts = [_scores(name, quality, rng) for name in ("score-5", "score-100")] + [_comparisons(quality, rng)]
    table = pl.concat(parts, how="diagonal").with_columns(
        task_id=pl.Series([hashlib.sha256(b"%d" % i).hexdigest()[:32] for i in range(sum(map(len, parts)))]),
        **{name: pl.lit(value) for name, value in {"spec": "s", "judge": "large-judge", "truncated": False}.items()},
        category=pl.concat_str(pl.lit("kind-"), pl.col("question_id").str.slice(-1)),
    )
    table = table.with_columns(
        *(pl.lit(0, pl.Int32).alias(name) for name in ("sample", "repeat")),
        status=pl.when(pl.int_range(pl.len()) % 997 == 0).then(pl.lit("engine_error")).otherwise(pl.lit("ok")),
    ).with_columns(
        pl.when(pl.col("status") == "ok").then(name).alias(name) for name in ("label_logprobs", "label_mass", "emitted")
    )
    whole = dict(pl.Schema(JUDGMENTS))
    missing = [pl.lit(None, kind).alias(name) for name, kind in whole.items() if name not in table.columns]
    return Side("large", table.with_columns(missing).select(pl.col(n).cast(k) for n, k in whole.items()),
                _answers(questions, words, rng), PROTOCOLS)  # fmt: skip


def _read(p, names):
    """Columns of label distributions (rows, labels): log-probabilities, their mass, the most probable label."""
    mass = 0.9 + 0.1 * (np.arange(len(p)) % 7) / 7
    logs = np.log(np.maximum(p * mass[:, None], 1e-30))
    lists = pl.Series(logs.reshape(-1)).reshape(logs.shape).cast(pl.List(pl.Float64))
    emitted = pl.Series(list(names)).gather(p.argmax(axis=1))
    return {"label_logprobs": lists, "label_mass": mass, "emitted": emitted}


def _scores(name, quality, rng):
    questions, values = len(quality), np.array(PROTOCOLS[name].values)
    centre = (quality + rng.normal(0, 0.4, quality.shape)).reshape(-1, 1)
    place = np.linspace(-2.5, 2.5, len(values))
    p = np.exp(-((place - centre) ** 2) / 0.3)
    models = np.tile(MODELS, questions)
    return pl.DataFrame(
        {
            "kind": "score",
            "protocol": name,
            "question_id": np.repeat([f"q{i}" for i in range(questions)], len(MODELS)),
            "response_a": models,
            "model_a": models,
        }
        | _read(p / p.sum(axis=1, keepdims=True), PROTOCOLS[name].label_texts)
    )


def _comparisons(quality, rng):
    questions, pairs = len(quality), np.array(list(combinations(range(len(MODELS)), 2)))
    worth = quality[:, pairs[:, 0]] - quality[:, pairs[:, 1]] + rng.normal(0, 0.6, (questions, len(pairs)))
    parts = []
    for order, sign in (("AB", 1), ("BA", -1)):
        ahead = worth + 0.35 * sign
        weight = np.exp(np.stack([ahead, -ahead, np.full(worth.shape, -0.5)], axis=-1)).reshape(-1, 3)
        about = {"kind": "compare", "protocol": "compare", "order": order}
        about["question_id"] = np.repeat([f"q{i}" for i in range(questions)], len(pairs))
        for i, letter in enumerate("ab"):
            about[f"response_{letter}"] = about[f"model_{letter}"] = np.tile(np.array(MODELS)[pairs[:, i]], questions)
        parts.append(pl.DataFrame(about | _read(weight / weight.sum(axis=1, keepdims=True), ("a", "b", "tie"))))
    return pl.concat(parts)


def _answers(questions, words, rng):
    texts = [" ".join(np.array(WORDS)[rng.integers(0, len(WORDS), words)]) for _ in range(64)]
    rows = [
        {
            "question_id": f"q{q}",
            "messages": [{"role": "user", "content": f"Question {q}: {texts[q % 64][:200]}?"}],
            "response_id": model,
            "model": model,
            "replies": [f"{model} on question {q}: {texts[(q * 7 + i) % 64]}."],
            "source": "large.jsonl",
            "line": q * len(MODELS) + i + 1,
        }
        for q in range(questions)
        for i, model in enumerate(MODELS)
    ]
    return pl.DataFrame(rows, schema=dict(pl.Schema(PLACED_RESPONSES)))
