"""What every judge gives back, and how it becomes JUDGMENTS rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol as Interface

import numpy as np
import polars as pl
import pyarrow as pa

from trustjudge_ray.identity import seed_of
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.schema import JUDGMENTS, TASKS, from_rows

JUDGE_FAILURES = ("too_long", "bad_logprob", "no_label_mass", "engine_error")
"""Statuses that say something about the judge."""
CORPUS_FAILURES = ("empty_response", "error_marker", "missing_reference")
"""Statuses that say something about the corpus; counted apart."""


class JudgeError(RuntimeError):
    """A judge cannot be used: names the judge, what it answered, and what would be right."""


class JudgeGone(RuntimeError):
    """The engine behind a judge has died; the process that holds it must end so that it is started anew."""


class RunError(RuntimeError):
    """A run cannot go on: says what failed and what to do. What was judged before is saved."""


_ARITHMETIC = 1e-5
"""By how much an engine's float32 arithmetic takes the sum of disjoint events over 1."""
_ROUNDING = 1e-3
"""By how much rounding takes a log-probability over 0; what is further above is none."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a judge said about one task.

    `label_logprobs` is in the protocol's label order *as shown*: in a comparison first, second, tie.
    −inf is probability 0, None was not reported. Only read where `status` is "ok".
    `cumulative_logprob` and `output_tokens` cover all that the judge said; where an engine leaves them None they are
    made of `rationale_logprob`, `rationale_tokens`, the emitted label's log-probability, and the tokens that it is
    read with (`label_tokens`, for each label; 1 by default). Thinking counts in neither. `output` is an answer, and
    `rationale_cut` then says whether its budget ended it.
    """

    status: str = "ok"
    label_logprobs: Sequence[float | None] | None = None
    detail: str | None = None
    cumulative_logprob: float | None = None
    output_tokens: int | None = None
    rationale: str | None = None
    thinking: str | None = None
    output: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    truncated: bool = False
    rationale_cut: bool | None = None
    rationale_logprob: float | None = None
    rationale_tokens: int | None = None
    label_tokens: Sequence[int] | None = None


class Judge(Interface):
    """Who is asked. One reading for each task, in order; a failure is a reading with a status.

    An exception means that the judge itself is gone, never that one task failed.
    """

    def judge(self, tasks: pa.Table) -> list[Reading]:
        """Read TASK_TEXTS rows (all of protocols that this judge was built with)."""
        ...


def judgments(
    tasks: pa.Table, readings: Sequence[Reading], protocols: dict[str, Protocol], temperature: float = 0.0
) -> pa.Table:
    """Pair tasks with their readings, one to one, as JUDGMENTS.

    Comparisons are turned into candidate coordinates (a better, b better, tie). Log-probabilities are
    rounded down to float32. A reading "ok" without a usable distribution becomes `bad_logprob` (a NaN, or a number
    clearly above 0) or `no_label_mass` (nothing above −inf).

    Raises:
        ValueError: not as many readings as tasks.
    """
    rows = tasks.select([name for name in TASKS.names if name not in ("status", "detail")]).to_pylist()
    return from_rows(
        [_row(task, r, protocols[task["protocol"]], temperature) for task, r in zip(rows, readings, strict=True)],
        JUDGMENTS,
    )


def preset_judgments(tasks: pa.Table) -> pa.Table:
    """JUDGMENTS for tasks whose status is known without a judge.

    `identical` (two equal answers) is a certain tie: log-probabilities (−inf, −inf, 0), mass 1, emitted `tie`.
    """
    rows = []
    for task in tasks.select(TASKS.names).to_pylist():
        if task["status"] == "identical":
            task |= {"label_logprobs": [-math.inf, -math.inf, 0.0], "label_mass": 1.0, "emitted": "tie"}
        rows.append(task | {"truncated": False})
    return from_rows(rows, JUDGMENTS)


def _row(task: dict, reading: Reading, protocol: Protocol, temperature: float) -> dict:
    status, detail, logprobs = reading.status, reading.detail, reading.label_logprobs
    if protocol.kind == "answer":
        return _answer_row(task, reading)
    row = task | {
        "rationale": reading.rationale,
        "thinking": reading.thinking,
        "prompt_tokens": reading.prompt_tokens,
        "cached_tokens": reading.cached_tokens,
        "truncated": reading.truncated,
        "rationale_cut": reading.rationale_cut,
    }
    if status == "ok":
        status, wrong = _distribution_status(logprobs, protocol)
        detail = wrong or detail
    if status != "ok" or logprobs is None:
        return row | {"status": status, "detail": detail}
    swap = protocol.kind == "compare" and task["order"] == "BA"
    stored = [None if x is None else _rounded_down(x) for x in logprobs]
    if swap:
        stored[0], stored[1] = stored[1], stored[0]
    mass = math.fsum(math.exp(x) for x in stored if x is not None)
    mass = 1.0 if 1.0 < mass < 1.0 + _ARITHMETIC else mass
    index = draw_label(stored, seed_of(task["task_id"]), temperature)
    cumulative, tokens = _whole_output(reading, stored[index], index)
    return row | {
        "label_logprobs": stored,
        "label_mass": mass,
        "emitted": protocol.emitted_names[index],
        "cumulative_logprob": cumulative,
        "output_tokens": tokens,
        "status": "ok",
        "detail": detail,
    }


def _answer_row(task: dict, reading: Reading) -> dict:
    """An answer. One that its engine calls ok without a text is an `engine_error`; an empty text is an answer."""
    status, detail = reading.status, reading.detail
    if status == "ok" and reading.output is None:
        status, detail = "engine_error", "no text for an answer"
    written = reading.output if status == "ok" else None
    return task | {
        "output": written,
        "thinking": reading.thinking,
        "cumulative_logprob": None if written is None else reading.cumulative_logprob,
        "output_tokens": None if written is None else reading.output_tokens,
        "prompt_tokens": reading.prompt_tokens,
        "cached_tokens": reading.cached_tokens,
        "truncated": reading.truncated,
        "rationale_cut": reading.rationale_cut,
        "status": status,
        "detail": detail,
    }


def _rounded_down(x: float) -> float:
    """The nearest float32 value that is not above `x`, so that rounding alone takes no sum of probabilities over 1."""
    nearest = np.float32(x)
    return float(nearest if nearest <= x else np.nextafter(nearest, np.float32(-np.inf)))


def _whole_output(reading: Reading, label_logprob: float | None, index: int) -> tuple[float | None, int | None]:
    """Log-probability and tokens of rationale and emitted label; None where the rationale's are not known."""
    unknown = reading.rationale is not None and reading.rationale_logprob is None
    cumulative, tokens = reading.cumulative_logprob, reading.output_tokens
    if cumulative is None and label_logprob is not None and not unknown:
        cumulative = (reading.rationale_logprob or 0.0) + label_logprob
    if tokens is None and (not unknown or reading.rationale_tokens is not None):
        tokens = (reading.rationale_tokens or 0) + (reading.label_tokens[index] if reading.label_tokens else 1)
    return cumulative, tokens


def _distribution_status(logprobs: Sequence[float | None] | None, protocol: Protocol) -> tuple[str, str | None]:
    if logprobs is None or len(logprobs) != len(protocol.label_texts):
        got = "none" if logprobs is None else str(len(logprobs))
        return "engine_error", f"{got} label log-probabilities for {len(protocol.label_texts)} labels"
    listed = [x for x in logprobs if x is not None]
    odd = [x for x in listed if not x <= _ROUNDING]
    if odd:
        return "bad_logprob", f"a label's log-probability is {'NaN' if math.isnan(odd[0]) else f'{odd[0]:g}'}"
    if not any(math.exp(x) > 0 for x in listed):
        return "no_label_mass", "no label has any probability"
    return "ok", None


def draw_label(logprobs: Sequence[float | None], seed: int, temperature: float) -> int:
    """The index of the judge's own choice: the most probable label (the lowest index on ties), or, at a
    temperature above 0, one drawn from the distribution over the labels at that temperature, seeded."""
    values = np.array([-np.inf if x is None else x for x in logprobs])
    if temperature <= 0:
        return int(np.argmax(values))
    scaled = (values - values.max()) / temperature
    weights = np.exp(scaled)
    return int(np.random.default_rng(seed).choice(len(values), p=weights / weights.sum()))


Share = tuple[str, str | None, int, int]
"""A judge, a model or None for all of them, how many of its judgments failed on the judge's side, and of how many."""


def failures_over(judgments: pl.DataFrame, limit: float) -> list[str]:
    """Where the share of judge-side failures is over `limit`: overall and for each model, in words."""
    return over(failure_shares(judgments), limit)


def failure_shares(judgments: pl.DataFrame) -> list[Share]:
    """The judge-side failures overall and for each model; those of parts of a run add up to those of the run.

    The share is taken over the judgments that a judge was asked for: ok or failed on its side. Corpus-side
    failures (an empty answer) are not the judge's and are left out. A comparison counts for both of its models.

    Args:
        judgments: of JUDGMENTS the columns judge, model_a, model_b and status.
    """
    asked = judgments.filter(pl.col("status").is_in(["ok", *JUDGE_FAILURES]))
    failed = pl.col("status") != "ok"
    sides = [asked.select("judge", model=pl.col(side), failed=failed) for side in ("model_a", "model_b")]
    models = pl.concat(sides).drop_nulls("model")
    whole = _counted(asked.select("judge", failed=failed), ["judge"])
    return [(judge, None, failures, cases) for judge, failures, cases in whole] + _counted(models, ["judge", "model"])


def over(shares: Sequence[Share], limit: float) -> list[str]:
    """The shares above `limit`, in words."""
    return [
        f"judge {judge}{'' if model is None else f', model {model}'}: {failures} of {cases} judgments failed "
        f"({failures / cases:.1%}), over run.max_failure_rate {limit:.1%}; everything that succeeded is saved"
        for judge, model, failures, cases in shares
        if failures / cases > limit
    ]


def _counted(rows: pl.DataFrame, by: list[str]) -> list[tuple]:
    return rows.group_by(by).agg(pl.col("failed").sum(), pl.len()).sort(by).rows()
