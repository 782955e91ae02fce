"""Scores of single responses: one number from one label distribution, by named rules.

`expected` is the distribution-sensitive score of TrustJudge (arXiv 2509.21117) as its text defines it,
`softmax_weighted` and `geval` are what its program computes, `baseline` is the label that was emitted.
Every rule stays on the protocol's own scale. What cannot be scored is null with a reason, never 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis.readouts import (
    Floats,
    Groups,
    columns,
    emitted_labels,
    grouped,
    mean_distributions,
    protocol_of,
    unreadable_as_status,
)
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.schema import SCORES

TEMPERATURE: Final = 0.2
EPSILON: Final = 1e-8

_KEYS = ("judge", "question_id", "response_a")
_ABOUT = ("category", "model_a")
_SCHEMA: Final = columns(SCORES)


@dataclass(frozen=True, slots=True)
class Readout:
    """What was read of R responses on a scale of K labels.

    Attributes:
        probabilities: (R, K), NaN where a label was not listed.
        emitted: (R,), index of the emitted label, −1 where none was.
        values: (K,), the numbers that the labels stand for.
    """

    probabilities: Floats
    emitted: NDArray[np.int64]
    values: Floats


def expected(readout: Readout) -> Floats:
    """Σ s·p(s) / Σ p(s); NaN without label mass."""
    mass = label_mass(readout.probabilities)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(mass > 0, np.nan_to_num(readout.probabilities) @ readout.values / mass, np.nan)


def geval(readout: Readout) -> Floats:
    """Σ s·p(s), not divided by Σ p(s) (G-Eval, arXiv 2303.16634, eq. 1); NaN without label mass."""
    mass = label_mass(readout.probabilities)
    return np.where(mass > 0, np.nan_to_num(readout.probabilities) @ readout.values, np.nan)


def softmax_weighted(readout: Readout, temperature: float = TEMPERATURE, epsilon: float = EPSILON) -> Floats:
    """Σ s·w(s) with w ∝ exp(logit(p)/T) over the listed labels, also those of p = 0; NaN if none is listed.

    logit(p) = ln((p + ε)/(1 − p + ε)) with p clamped to [0, 1]: at T = 0.2 about odds^5.
    """
    listed = ~np.isnan(readout.probabilities)
    counts = listed.sum(axis=1)
    some = counts > 0
    score = np.full(len(counts), np.nan)
    if not some.any():
        return score
    # Only the listed entries, one row after the other: top-k engines list a fifth of them.
    p = np.clip(readout.probabilities[listed], 0, 1)
    starts = (np.cumsum(counts) - counts)[some]
    logits = np.log((p + epsilon) / (1 - p + epsilon)) / temperature
    weights = np.exp(logits - np.repeat(np.maximum.reduceat(logits, starts), counts[some]))
    weighted = weights * readout.values[np.nonzero(listed)[1]]
    score[some] = np.add.reduceat(weighted, starts) / np.add.reduceat(weights, starts)
    return score


def baseline(readout: Readout) -> Floats:
    """The number of the emitted label; NaN where none was emitted."""
    return np.where(readout.emitted >= 0, readout.values[readout.emitted], np.nan)


def mode(readout: Readout) -> Floats:
    """The number of the most probable label, the first of equals; NaN without label mass."""
    p = np.nan_to_num(readout.probabilities)
    return np.where(p.sum(axis=1) > 0, readout.values[p.argmax(axis=1)], np.nan)


ScoringRule = Callable[[Readout], Floats]
SCORING_RULES: Final[dict[str, ScoringRule]] = {
    "expected": expected,
    "softmax_weighted": softmax_weighted,
    "geval": geval,
    "baseline": baseline,
    "mode": mode,
}


def label_mass(probabilities: Floats) -> Floats:
    """Σ p over the labels that were listed; NaN where none was."""
    return np.where(np.isnan(probabilities).all(axis=1), np.nan, np.nansum(probabilities, axis=1))


def entropy(probabilities: Floats) -> Floats:
    """−Σ q·ln q in nats, q = p/Σp over the labels; NaN without label mass."""
    p = np.nan_to_num(probabilities)
    with np.errstate(invalid="ignore", divide="ignore"):
        q = p / p.sum(axis=1, keepdims=True)
        return np.abs(np.where(q > 0, q * np.log(np.where(q > 0, q, 1)), 0 * q).sum(axis=1))


def scores(judgments: pl.DataFrame, protocols: dict[str, Protocol]) -> pl.DataFrame:
    """Score every response that was asked about, by every rule.

    Args:
        judgments: JUDGMENTS rows; kinds other than `score` and repetitions over 0 are left out.
        protocols: by the names that the judgments have.

    Returns:
        SCORES: a row for every judge, protocol, response and rule, sorted by protocol and rule. `score` is null
        where there is none and `status` says why: the judgment's own status, or `no_label_mass`,
        `no_label_listed`, `no_emitted_label`. Several rationales are averaged (see `readouts`).

    Raises:
        ReadoutError: a protocol is unknown, or a distribution has another number of labels.
    """
    asked = judgments.filter((pl.col("kind") == "score") & (pl.col("repeat") == 0))
    parts = [pl.DataFrame(schema=_SCHEMA)]
    for name in sorted(asked["protocol"].unique().to_list()):
        frame = unreadable_as_status(asked.filter(pl.col("protocol") == name))
        parts += _protocol_scores(grouped(frame, _KEYS, _ABOUT), protocol_of(protocols, name, "score"), name)
    return pl.concat(parts)


def _protocol_scores(groups: Groups, protocol: Protocol, name: str) -> list[pl.DataFrame]:
    """A SCORES frame for every rule."""
    values = np.array(protocol.values)
    emitted = emitted_labels(groups, protocol.emitted_names)
    count = len(groups.keys)
    mass, nats = np.full(count, np.nan), np.full(count, np.nan)
    found = {rule: np.full(count, np.nan) for rule in SCORING_RULES}
    for chunk, p in mean_distributions(groups, name, len(values)):
        mass[chunk], nats[chunk] = label_mass(p), entropy(p)
        readout = Readout(p, emitted[chunk], values)
        for rule, score in SCORING_RULES.items():
            found[rule][chunk] = score(readout)
    shared = groups.keys.select(
        "judge",
        pl.lit(name).alias("protocol"),
        "question_id",
        "category",
        pl.col("response_a").alias("response_id"),
        pl.col("model_a").alias("model"),
    ).with_columns(
        pl.Series("label_mass", mass, nan_to_null=True),
        pl.Series("entropy", nats, nan_to_null=True),
        pl.Series("entropy_share", nats / np.log(len(values)), nan_to_null=True),
    )
    return [
        shared.with_columns(
            pl.lit(rule).alias("rule"),
            pl.Series("score", score, nan_to_null=True),
            _status(rule, score, mass, groups.status),
        ).select(*_SCHEMA)
        for rule, score in found.items()
    ]


def _status(rule: str, score: Floats, mass: Floats, status: pl.Series) -> pl.Series:
    """Why there is no score, where there is none."""
    if rule == "baseline":
        reason = np.full(len(score), "no_emitted_label")
    else:
        reason = np.where(np.isnan(mass), "no_label_listed", "no_label_mass")
    unscored = (status == "ok") & pl.Series(np.isnan(score))
    return pl.Series("status", reason).zip_with(unscored, status).alias("status")
