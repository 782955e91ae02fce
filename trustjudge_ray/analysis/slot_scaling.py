"""Temperature and first-slot offset that make a judge's probabilities of single orders those of people.

In one order a judge says what it thinks of the answers and of the slots. With a temperature alone a liking of the first
slot would pass for overconfidence, and flatten the ratings of a judge that is only partial to a slot. So both are
fitted at once: ln p / T + (b, −b, 0)/2 for first, second and tie, renormalised (a logistic regression, convex in 1/T
and b). b is the log-odds that is added to the first slot between equals: below 0 where the judge likes it too well.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from trustjudge_ray.analysis.calibration import FLOOR, LOG_RANGE, folds_of
from trustjudge_ray.analysis.games import Array, Index

SLOTS: Final = np.array([0.5, -0.5, 0.0])
"""What an offset of 1 adds to the logits of first, second and tie."""
_COLDEST, _HOTTEST = np.exp(LOG_RANGE), np.exp(-LOG_RANGE)
"""The largest and the smallest 1/T that are searched."""
COLD: Final = "its likeliest outcome, apart from the slot, is always what people said"
HOT: Final = "its probabilities say nothing about what people prefer (equal ones do as well)"


@dataclass(frozen=True, slots=True)
class SlotScaling:
    """Attributes:
    temperature, offset: T and b fitted on all questions. b is 0 where the slots cannot be told from the models.
    folds: T and b by fold of the questions, fitted on all others.
    fold: (cases,) the fold of each case's question.
    edge: COLD or HOT where one of these fits has no best temperature within e^±4; else None.
    """

    temperature: float
    offset: float
    folds: tuple[tuple[float, float], ...]
    fold: Index
    cases: int
    questions: int
    edge: str | None


def slot_scaling(p: Array, right: Array, question: Index, offset: bool, seed: int) -> SlotScaling | None:
    """Fit on all questions, and for each fifth of them on the rest; None with fewer than two questions.

    Args:
        p: (cases, 3) probabilities of first, second and tie.
        right: the same with a 1 at what people said.
        question: (cases,), numbers from 0.
        offset: whether to fit b; without, it is 0.
    """
    asked = len(np.unique(question))
    if asked < 2:
        return None
    fold, logs = folds_of(question, seed), _logs(p)
    sharpness, b = _fit(logs, right, offset)
    edge = _edge(logs, right, offset, sharpness, b)
    folds = []
    for number in range(int(fold.max()) + 1):
        rest = fold != number
        mine = _fit(logs[rest], right[rest], offset)
        edge = edge or _edge(logs[rest], right[rest], offset, *mine)
        folds.append((1 / mine[0], mine[1]))
    return SlotScaling(1 / sharpness, b, tuple(folds), fold, len(p), asked, edge)


def slot_scaled(p: Array, temperature: Array, offset: Array) -> Array:
    """(cases, 3) calibrated probabilities; those given are taken to be at least `FLOOR`.

    Args:
        temperature, offset: (cases,).
    """
    return _softmax(_logs(p) / temperature[:, None] + offset[:, None] * SLOTS)


def _logs(p: Array) -> Array:
    return np.asarray(np.log(np.maximum(p, FLOOR)), dtype=np.float64)


def _softmax(logits: Array) -> Array:
    weight = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(weight / weight.sum(axis=1, keepdims=True), dtype=np.float64)


def _loss(logs: Array, right: Array, x: Array) -> float:
    """The mean of −ln p(right) at 1/T and b."""
    logits = x[0] * logs + x[1] * SLOTS
    top = logits.max(axis=1)
    total = np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top
    return float((total - (logits * right).sum(axis=1)).mean())


def _fit(logs: Array, right: Array, offset: bool, held: float | None = None) -> tuple[float, float]:
    """1/T and b of the lowest loss: Newton's method, 1/T kept within what is searched.

    Args:
        held: 1/T, where only b is to be fitted.
    """
    x = np.array([1.0 if held is None else held, 0.0])
    value = _loss(logs, right, x)
    for _ in range(100):
        slope, curve = _derivatives(logs, right, x)
        outward = (x[0] <= _HOTTEST and slope[0] > 0) or (x[0] >= _COLDEST and slope[0] < 0)
        free = np.array([held is None and not outward, offset])
        step = np.zeros(2)
        step[free] = -np.linalg.pinv(curve[np.ix_(free, free)], hermitian=True) @ slope[free]
        gain, size = float(-slope @ step), 1.0
        while gain > 1e-15 and size > 1e-6:
            trial = x + size * step
            trial[0] = np.clip(trial[0], _HOTTEST, _COLDEST)
            reached = _loss(logs, right, trial)
            if reached < value:
                break
            size /= 2
        else:
            break
        x, value = trial, reached
    return float(x[0]), float(x[1])


def _derivatives(logs: Array, right: Array, x: Array) -> tuple[Array, Array]:
    """Gradient and Hessian of the loss by 1/T and b."""
    p = _softmax(x[0] * logs + x[1] * SLOTS)
    along = (p * logs).sum(axis=1), p @ SLOTS
    slope = np.array([(along[0] - (right * logs).sum(axis=1)).mean(), (along[1] - right @ SLOTS).mean()])
    twice = ((p * logs**2).sum(axis=1), p @ SLOTS**2, (p * logs) @ SLOTS)
    ss, bb = (twice[0] - along[0] ** 2).mean(), (twice[1] - along[1] ** 2).mean()
    sb = (twice[2] - along[0] * along[1]).mean()
    return slope, np.array([[ss, sb], [sb, bb]])


def _edge(logs: Array, right: Array, offset: bool, sharpness: float, b: float) -> str | None:
    """Which end of the range does as well as the temperature found, if one does."""
    _, ((ss, sb), (_, bb)) = _derivatives(logs, right, np.array([sharpness, b]))
    curve = ss - (sb**2 / bb if offset and bb > 0 else 0.0)
    inside = _HOTTEST * 1.02 < sharpness < _COLDEST / 1.02
    if inside and curve * (sharpness / 100) ** 2 > 1e-7:
        return None  # the loss is convex and rises on both sides already
    best = _loss(logs, right, np.array([sharpness, b])) + 1e-9
    for said, end in ((HOT, _HOTTEST), (COLD, _COLDEST)):
        there = np.array([end, _fit(logs, right, offset, held=end)[1]])
        if min(_loss(logs, right, there), _loss(logs, right, np.array([end, b * end / sharpness]))) <= best:
            return said
    return None
