"""Between what a ratio would lie if everything that is missing were known: the best and the worst case."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis.layout import Layout, ratio_rows, stacked
from trustjudge_ray.analysis.readouts import Floats

BY_DESIGN: Final = ("identical", "missing_order", "never_asked", "score_never_asked")
"""Why cases are missing that a plan never meant to have: no bound is about them. (A failed order is a judgment with a
status; one that is missing was not asked for.)"""


def bound_rows(
    layout: Layout,
    keys: Mapping[str, object],
    metric: str,
    hits: NDArray[Any],
    cases: NDArray[Any],
    lost: Mapping[str, Floats],
    confidence: float,
) -> pl.DataFrame:
    """METRICS `<metric>_lowest` and `_highest`: the ratio if none, or all, of the lost cases were hits."""
    missing = sum((n for why, n in lost.items() if why not in BY_DESIGN), np.zeros(layout.questions))
    left = {why: n for why, n in lost.items() if why in BY_DESIGN}
    both = np.concatenate([hits + 0.0, hits + missing])
    every = stacked(keys, [f"{metric}_lowest", f"{metric}_highest"], len(hits))
    return ratio_rows(layout, every, both, np.tile(cases + missing, (2, 1)), left, confidence)
