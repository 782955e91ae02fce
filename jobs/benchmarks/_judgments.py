"""Invented judgments: the same ones in the reference's form and in ours, and a million of them for `evaluate`."""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from trustjudge_ray.analysis.scoring import Readout
from trustjudge_ray.analysis.verdicts import Pairs, pairs_of
from trustjudge_ray.imports.base import Asked, compare_protocol, read_row, score_protocol
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.schema import JUDGMENTS, from_rows

from ._reference import Loaded

LISTED = 20
"""Tokens with a probability at the verdict, as engines report them."""


@dataclass(frozen=True, slots=True)
class Arrays:
    """Our loaded form. `question`, `i`, `j`: (P,), the places of each pair in its question's table."""

    readout: Readout
    pairs: Pairs
    question: NDArray[np.int64]
    i: NDArray[np.int64]
    j: NDArray[np.int64]

    def of_questions(self, count: int) -> "Arrays":
        """The first so many questions' pairs."""
        mine = self.question < count
        some = self.pairs
        cut = (some.asked[mine], some.probabilities[mine], some.emitted[mine], some.perplexity[mine], some.status[mine])
        pairs = Pairs(some.keys.filter(mine), *cut, some.statuses)
        return Arrays(self.readout, pairs, self.question[mine], self.i[mine], self.j[mine])


def both_forms(questions: int, responses: int, scale: int, rng: np.random.Generator) -> tuple[Loaded, Arrays]:
    """Judgments of every response and of every pair in both orders, in the reference's form and in ours."""
    loaded = Loaded({}, {})
    probabilities = np.full((questions * responses, scale), np.nan)
    emitted = np.empty(questions * responses, dtype=np.int64)
    rows: list[dict[str, Any]] = []
    protocol = compare_protocol()
    for question in range(questions):
        for response in range(responses):
            labels, p = rng.choice(scale, LISTED, replace=False), rng.dirichlet(np.ones(LISTED))
            row = question * responses + response
            probabilities[row, labels], emitted[row] = p, labels[0]
            loaded.single[question, response] = {str(label + 1): float(x) for label, x in zip(labels, p, strict=True)}
        for i, j in combinations(range(responses), 2):
            pair: dict[str, Any] = {"candidate_list": list(range(responses))}
            for order, name in (("AB", "judgement_order1"), ("BA", "judgement_order2")):
                tokens = [*rng.permutation(["A", "B", "C"]), *(f"token{t}" for t in range(LISTED - 3))]
                probs = dict(zip(map(str, tokens), rng.dirichlet(np.ones(LISTED)).tolist(), strict=True))
                total = float(-rng.uniform(10, 60))
                pair[name] = {
                    "output_probs": probs,
                    "cumulative_logprob": total,
                    "original_output_logprobs_length": 200,
                }
                asked = Asked("judge", protocol, f"{question:05d}", None, str(i), str(j), order)
                rows.append(read_row(asked, probs, str(tokens[0]), total, 200))
            loaded.pairs[question, i, j] = pair
    pairs = pairs_of(pl.DataFrame(pl.from_arrow(from_rows(rows, JUDGMENTS))))
    names = ("question_id", "response_a", "response_b")
    where = (pairs.keys[name].cast(pl.Int64).to_numpy() for name in names)
    return loaded, Arrays(Readout(probabilities, emitted, np.arange(1, scale + 1, dtype=np.float64)), pairs, *where)


def many(questions: int, responses: int, rng: np.random.Generator) -> tuple[pa.Table, dict[str, Protocol]]:
    """JUDGMENTS of every response on the scales 5 and 100 and of every pair in both orders."""
    protocols = {p.name: p for p in (score_protocol(5), score_protocol(100), compare_protocol())}
    i, j = np.triu_indices(responses, 1)
    parts = [
        _part(p, questions, np.arange(responses), None, None, rng) for p in protocols.values() if p.kind == "score"
    ]
    parts += [_part(protocols["compare"], questions, i, j, order, rng) for order in ("AB", "BA")]
    return pa.concat_tables(parts), protocols


def _part(
    protocol: Protocol,
    questions: int,
    first: NDArray[np.int64],
    second: NDArray[np.int64] | None,
    order: str | None,
    rng: np.random.Generator,
) -> pa.Table:
    rows, labels = questions * len(first), len(protocol.label_texts)
    quality = np.tile(first if second is None else second - first, questions) / 10
    centre = quality + rng.normal(0, 1, rows)
    places = np.linspace(-2, 4, labels)[:: 1 if second is None else -1]
    logs = -((places[None] - centre[:, None]) ** 2) + rng.normal(0, 0.3, (rows, labels))
    logs = (logs - np.log(np.exp(logs).sum(axis=1, keepdims=True))).astype(np.float32).astype(np.float64)
    lists = pa.ListArray.from_arrays(np.arange(0, (rows + 1) * labels, labels, dtype=np.int32), logs.ravel())
    names = np.array(protocol.emitted_names, dtype=object)
    columns: dict[str, Any] = {
        "task_id": [f"{protocol.name}-{order}-{n}" for n in range(rows)],
        "question_id": np.repeat([f"q{q}" for q in range(questions)], len(first)),
        "category": np.repeat([f"category {q % 8}" for q in range(questions)], len(first)),
        "response_a": np.tile([f"model-{m:03d}" for m in first], questions),
        "response_b": None if second is None else np.tile([f"model-{m:03d}" for m in second], questions),
        "label_logprobs": lists,
        "label_mass": np.exp(logs).sum(axis=1),
        "emitted": names[logs.argmax(axis=1)],
        "cumulative_logprob": logs.max(axis=1) - rng.uniform(1, 40, rows),
    }
    columns |= {"model_a": columns["response_a"], "model_b": columns["response_b"]}
    fixed: dict[str, Any] = {
        "spec": protocol.name,
        "kind": protocol.kind,
        "protocol": protocol.name,
        "judge": "judge",
        "order": order,
    }
    fixed |= {"output_tokens": 100, "sample": 0, "repeat": 0, "truncated": False, "status": "ok"}
    arrays = []
    for field in JUDGMENTS:
        value = columns.get(field.name)
        if value is None:
            one = pa.scalar(fixed.get(field.name), field.type)
            arrays.append(pa.nulls(rows, field.type) if one.as_py() is None else pa.repeat(one, rows))
        else:
            arrays.append(pa.array(value, field.type))
    return pa.table(arrays, schema=JUDGMENTS)
