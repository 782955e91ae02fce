"""How much of a model's attention goes to which part of a prompt, when it answers and when it judges the answer.

Attention is read in one row: that of the prompt's last token, from which the first token of the answer or of the
verdict is predicted. What a head weighs is not what decides: attention describes a model, it does not explain it.

Every token belongs to one segment:
- `sink`: the first token, whatever it is. Heads with nothing to look at look there; most of the mass is there in
  many models. In models with learnt sinks (logits that take part in the softmax and stand for no token) what goes to
  those is counted here too.
- `template`: the chat template's own text: control tokens, names of roles, texts that it adds.
- `instruction`: the task's own words: system text, headings, what is asked; worked examples, where there are any.
- `context`, `question`, `candidate`: the item's texts.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis.inference import mean_intervals, soft_ratio_intervals

Array = NDArray[np.float64]

SEGMENTS: Final = ("instruction", "context", "question", "candidate", "template", "sink")
COMPARISONS: Final = {
    "raw": ("generation", "evaluation"),
    "equal_trailing": ("generation_equal_trailing", "evaluation"),
    "context_last": ("generation_context_last", "evaluation_context_last"),
}
"""Which two tasks are compared: as they come; with as many tokens after the passage in both; with the passage last."""
MASSES: Final = pl.Schema(
    {
        "task": pl.String,
        "item_id": pl.String,
        "passage_id": pl.String,
        "segment": pl.String,
        "tokens": pl.Int32,
        "layer": pl.Int32,
        "mass": pl.Float64,
    }
)
"""One row per prompt, segment that has tokens in it (`sink` always), and layer: mass averaged over heads."""
_ROUNDING: Final = 1e-4
"""A row of weights that misses one by less was rounded; by more, the rest went to a learnt sink."""
_OF_A_PROMPT = ["task", "item_id", "passage_id"]


class AttentionError(RuntimeError):
    """Attention cannot be measured: names the model and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class SegmentedPrompt:
    """A prompt of one task about one item: its token ids, and the segment that each is of.

    Raises:
        ValueError: not a segment for each token, an unknown one, or another than `sink` at the first place only.
    """

    task: str
    item_id: str
    passage_id: str
    token_ids: tuple[int, ...]
    segments: tuple[str, ...]

    def __post_init__(self) -> None:
        where = f"prompt of {self.task} about {self.item_id!r}"
        if len(self.token_ids) != len(self.segments):
            raise ValueError(f"{where}: {len(self.token_ids)} tokens and {len(self.segments)} segments; one a token")
        unknown = sorted(set(self.segments) - set(SEGMENTS))
        if unknown:
            raise ValueError(f"{where}: segment {unknown[0]!r}; one of {list(SEGMENTS)}")
        if self.segments[:1] != ("sink",) or "sink" in self.segments[1:]:
            raise ValueError(f"{where}: the first token is the sink, and no other")


def masses(prompt: SegmentedPrompt, weights: NDArray[np.floating[Any]]) -> pl.DataFrame:
    """MASSES of one prompt; the masses of a layer sum to 1.

    Args:
        weights: (layers, tokens), the last row's attention averaged over heads. What a layer's weights lack of 1 went
            to a learnt sink.

    Raises:
        ValueError: another shape, a weight that is no share, or weights of a layer that sum to more than 1.
    """
    weights = np.asarray(weights, dtype=np.float64)
    where = f"weights of {prompt.task} about {prompt.item_id!r}"
    if weights.ndim != 2 or weights.shape[1] != len(prompt.token_ids):
        raise ValueError(f"{where}: shape {weights.shape}; (layers, {len(prompt.token_ids)})")
    total = weights.sum(axis=1)
    if not (np.isfinite(weights).all() and (weights >= 0).all() and (total <= 1 + _ROUNDING).all()):
        raise ValueError(f"{where}: got layers that sum to {total.min():.6g} to {total.max():.6g}; shares of 1")
    rounded = np.abs(1 - total) < _ROUNDING
    weights = weights / np.where(rounded, total, 1)[:, None]
    names = np.array(prompt.segments)
    rows = []
    for segment in sorted(set(prompt.segments), key=SEGMENTS.index):
        inside = names == segment
        mass = weights[:, inside].sum(axis=1)
        if segment == "sink":
            mass = mass + np.where(rounded, 0.0, 1 - total)
        rows.append(
            pl.DataFrame({"tokens": inside.sum(), "layer": range(len(mass)), "mass": mass}).with_columns(
                segment=pl.lit(segment)
            )
        )
    return _with_names(prompt, pl.concat(rows))


def _with_names(prompt: SegmentedPrompt, rows: pl.DataFrame) -> pl.DataFrame:
    names = {name: pl.lit(getattr(prompt, name)) for name in _OF_A_PROMPT}
    return rows.with_columns(**names).select(*(pl.col(n).cast(t) for n, t in MASSES.items()))


def over_layers(frame: pl.DataFrame) -> pl.DataFrame:
    """MASSES averaged over layers: one row per prompt and segment.

    Returns:
        task, item_id, passage_id, segment, tokens, and
        mass: the mean over layers;
        per_token: mass / tokens;
        without_sink: mass / (1 − mass of the sink), null for the sink. Both are averaged over layers first, so a
            layer weighs by what it has outside the sink, and none divides by what is almost nothing.
    """
    rows = frame.group_by(*_OF_A_PROMPT, "segment", maintain_order=True).agg(
        pl.col("tokens").first(), pl.col("mass").mean()
    )
    sink = pl.col("mass").filter(pl.col("segment") == "sink").first().over(_OF_A_PROMPT)
    outside = pl.when((pl.col("segment") != "sink") & (sink < 1)).then(pl.col("mass") / (1 - sink))
    return rows.with_columns(per_token=pl.col("mass") / pl.col("tokens"), without_sink=outside)


def segment_rows(frame: pl.DataFrame, confidence: float = 0.95) -> list[dict[str, Any]]:
    """For each task and segment, means over the prompts that have it, with intervals clustered by passage.

    Args:
        frame: MASSES.

    Returns:
        Rows of task, segment, items, passages, tokens (mean), mass with low and high, per_token, without_sink, and
        layers: the mean mass in each layer. low and high are NaN with one passage only.
    """
    rows = over_layers(frame)
    layers = frame.group_by("task", "segment", "layer").agg(pl.col("mass").mean()).sort("layer")
    found = []
    for task in frame["task"].unique(maintain_order=True):
        for segment in SEGMENTS:
            of_both = (pl.col("task") == task) & (pl.col("segment") == segment)
            here = rows.filter(of_both)
            if not here.is_empty():
                names = {"task": task, "segment": segment}
                found.append(names | _means(here, confidence) | {"layers": layers.filter(of_both)["mass"].to_list()})
    return found


def _means(rows: pl.DataFrame, confidence: float) -> dict[str, Any]:
    """The means over rows of `over_layers`, one row an item."""
    by_passage = rows.group_by("passage_id").agg(pl.col("mass").sum(), n=pl.len()).sort("passage_id")
    interval = soft_ratio_intervals(by_passage["mass"].to_numpy(), by_passage["n"].to_numpy(), confidence)
    return {
        "items": rows.height,
        "passages": by_passage.height,
        "tokens": rows["tokens"].mean(),
        "mass": float(interval.value),
        "low": float(interval.low),
        "high": float(interval.high),
        "per_token": rows["per_token"].mean(),
        "without_sink": rows["without_sink"].mean(),
    }


def context_ratios(frame: pl.DataFrame, confidence: float = 0.95) -> list[dict[str, Any]]:
    """How many times more of the attention goes to the passage in generation than in evaluation, by COMPARISONS.

    The geometric mean over items of mass in generation / mass in evaluation, the t interval of the mean logarithm
    clustered by passage: each item is its own control, the passage has the same tokens in both, and evaluation over
    generation gives the inverse.

    Returns:
        For each comparison and measure (`mass`, `without_sink`): generation, evaluation (the tasks), ratio, low,
        high, items, passages, excluded (items that lack a task, or have no mass on the passage in one), and layers
        (the ratio in each layer, of `mass` only; NaN where a layer has an item without mass).
    """
    rows = over_layers(frame).filter(pl.col("segment") == "context")
    of_layers = frame.filter(pl.col("segment") == "context")
    found = []
    for comparison, (generation, evaluation) in COMPARISONS.items():
        for measure in ("mass", "without_sink"):
            pairs = _paired(rows, generation, evaluation, measure)
            by_layer = _paired(of_layers, generation, evaluation, "mass", "layer") if measure == "mass" else None
            tasks = {"generation": generation, "evaluation": evaluation}
            layers = [] if by_layer is None else _ratio_by_layer(by_layer)
            found.append(
                {"comparison": comparison, "measure": measure}
                | tasks
                | _geometric(pairs, confidence)
                | {"layers": layers}
            )
    return found


def candidate_reading(frame: pl.DataFrame, confidence: float = 0.95) -> dict[str, Any]:
    """Whether the model, when it judges, attends to what it judges: a description, not a proof.

    Attention to a token of the candidate over attention to a token of the instruction, the question and the passage,
    in the task `evaluation`: geometric means over items with intervals clustered by passage.
    The instruction's last words stand nearer to the verdict than the candidate, which alone gives them more; the
    question and the passage stand farther, so a ratio below 1 there is the stronger sign.

    Returns:
        `raised`: attention to the candidate is below that to the instruction, its interval too (false where there is
        no interval); `rows`: for each segment `over`, ratio, low, high, items, passages, excluded; `text`.
    """
    rows = over_layers(frame).filter(pl.col("task") == "evaluation")
    found = []
    for segment in ("instruction", "question", "context"):
        found.append({"over": segment} | _geometric(_segments_paired(rows, "candidate", segment), confidence))
    least = found[0]
    return {
        "raised": bool(least["high"] < 1),
        "rows": found,
        "text": "attention to a token of the candidate over that to a token of another segment, when judging; a "
        "description of the model, not proof that it does or does not use the candidate",
    }


def _paired(rows: pl.DataFrame, first: str, second: str, measure: str, *also: str) -> pl.DataFrame:
    """One row per item of either task (and `also`): passage_id, and `log`, the logarithm of first / second or null."""
    sides = [rows.filter(pl.col("task") == task) for task in (first, second)]
    return _logs(sides[0], sides[1], measure, ["item_id", "passage_id", *also])


def _segments_paired(rows: pl.DataFrame, first: str, second: str) -> pl.DataFrame:
    sides = [rows.filter(pl.col("segment") == segment) for segment in (first, second)]
    return _logs(sides[0], sides[1], "per_token", ["item_id", "passage_id"])


def _logs(first: pl.DataFrame, second: pl.DataFrame, measure: str, keys: Sequence[str]) -> pl.DataFrame:
    values = [side.select(*keys, pl.col(measure).alias(name)) for side, name in ((first, "a"), (second, "b"))]
    both = values[0].join(values[1], on=list(keys), how="full", coalesce=True)
    there = (pl.col("a") > 0) & (pl.col("b") > 0)
    return both.select(*keys, log=pl.when(there).then(pl.col("a").log() - pl.col("b").log())).sort(keys)


def _geometric(pairs: pl.DataFrame, confidence: float) -> dict[str, Any]:
    """ratio, low, high of the items that have a logarithm; NaN where none has."""
    known = pairs.drop_nulls("log")
    by_passage = known.group_by("passage_id").agg(pl.col("log").sum(), n=pl.len()).sort("passage_id")
    interval = mean_intervals(by_passage["log"].to_numpy(), by_passage["n"].to_numpy(), confidence)
    ratio, low, high = (math.exp(float(end)) for end in (interval.value, interval.low, interval.high))
    counts = {"items": known.height, "passages": by_passage.height, "excluded": pairs.height - known.height}
    return {"ratio": ratio, "low": low, "high": high} | counts


def _ratio_by_layer(pairs: pl.DataFrame) -> list[float]:
    means = (
        pairs.group_by("layer")
        .agg(pl.when(pl.col("log").is_not_null().all()).then(pl.col("log").mean().exp()))
        .sort("layer")
    )
    return [math.nan if value is None else value for value in means["log"]]


def described(frame: pl.DataFrame, confidence: float = 0.95) -> dict[str, Any]:
    """MASSES as a JSON object: items, passages, layers, table, ratios, lazy. What is not finite is None."""
    found = {
        "items": frame["item_id"].n_unique(),
        "passages": frame["passage_id"].n_unique(),
        "layers": frame["layer"].n_unique(),
        "table": segment_rows(frame, confidence),
        "ratios": context_ratios(frame, confidence),
        "lazy": candidate_reading(frame, confidence),
    }
    return {key: _finite(value) for key, value in found.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def all_masses(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """MASSES of many prompts."""
    return pl.concat([pl.DataFrame(schema=MASSES), *parts])
