"""METRICS rows: one way to build them, so that none lacks a column."""

import json
import math
from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from trustjudge_ray.schema import METRICS

UNCATEGORISED: Final = "(none)"
"""The category of rows without one, where others have one; null is overall."""
_TYPES: Final = {"string": pl.String, "int32": pl.Int32, "int64": pl.Int64, "double": pl.Float64}
COLUMNS: Final[dict[str, Any]] = {field.name: _TYPES[str(field.type)] for field in METRICS}
"""The columns of METRICS with their Polars types, in order."""


def frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Rows as a METRICS table: a missing column is null, a NaN is null, NumPy scalars are plain numbers.

    Raises:
        KeyError: a row has a column that METRICS lacks, or no `metric`.
    """
    for row in rows:
        unknown = sorted(set(row) - set(COLUMNS))
        if unknown or not row.get("metric"):
            raise KeyError(
                f"METRICS row {row}: unknown columns {unknown}; it has {list(COLUMNS)}, `metric` in every row"
            )
    return pl.DataFrame([{name: plain(row.get(name)) for name in COLUMNS} for row in rows], schema=COLUMNS)


def plain(value: Any) -> Any:
    """A value as a table holds it: a NumPy scalar as Python's, a NaN as null."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and math.isnan(value) else value


def reasons(counts: Mapping[str, int]) -> dict[str, Any]:
    """The columns `excluded` and `excluded_by` from counts by reason (zeros are left out)."""
    found = {reason: int(n) for reason, n in sorted(counts.items()) if n}
    return {"excluded": sum(found.values()), "excluded_by": json.dumps(found)}
