"""Sums over the questions of games, as clustered covariances need them: a question is one observation."""

from collections.abc import Iterator
from typing import Final

import numpy as np
from scipy.sparse import coo_array

from trustjudge_ray.analysis.games import Array, Index, binned

DENSE: Final = 20_000_000
"""A table of questions and parameters of up to so many numbers is kept as it is."""
_PART: Final = 50_000


def question_sums(question: Index, columns: list[Index | int], values: list[Array], width: int) -> Array:
    """(questions, width): the sums of the values of each question in each column (one for each value, or one)."""
    rows = int(question[-1]) + 1
    table = np.zeros((rows, width))
    for column, value in zip(columns, values, strict=True):
        if isinstance(column, int):
            table[:, column] += binned(question, value, rows)
        else:
            flat = binned(question * width + column, value, rows * width)
            table += flat.reshape(rows, width)
    return table


def outer_sum(question: Index, columns: list[Index | int], values: list[Array], width: int) -> Array:
    """Σ_q u_q u_qᵀ, where u_q[c] sums the values of question q (ascending from 0) in column c."""
    if not len(question):
        return np.zeros((width, width))
    if (question[-1] + 1) * width <= DENSE:
        dense = question_sums(question, columns, values, width)
        return dense.T @ dense
    full = [np.full(len(question), c) if isinstance(c, int) else c for c in columns]
    at = (np.tile(question, len(columns)), np.concatenate(full))
    sparse = coo_array((np.concatenate(values), at), shape=(int(question[-1]) + 1, width)).tocsr()
    return np.asarray((sparse.T @ sparse).toarray(), dtype=np.float64)


def question_parts(question: Index) -> Iterator[slice]:
    """Rows of whole questions, about `_PART` at a time."""
    start = 0
    while start < len(question):
        last = question[min(start + _PART, len(question)) - 1]
        end = int(np.searchsorted(question, last, side="right"))
        yield slice(start, end)
        start = end
