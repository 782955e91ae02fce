"""Counting bucket by bucket gives the numbers of counting everything at once."""

import numpy as np
import polars as pl
import pytest

from trustjudge_ray import tally
from trustjudge_ray.judging import base

STATUSES = ["ok", "ok", "ok", "engine_error", "too_long", "empty_response", "identical"]


def judgments(rows: int) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    models = [f"m{i}" for i in range(5)]
    second = [None if rng.random() < 0.3 else str(rng.choice(models)) for _ in range(rows)]
    return pl.DataFrame(
        {
            "judge": rng.choice(["j", "k"], rows),
            "model_a": rng.choice(models, rows),
            "model_b": second,
            "status": rng.choice(STATUSES, rows),
            "truncated": rng.random(rows) < 0.1,
            "prompt_tokens": [None if i % 7 == 0 else i for i in range(rows)],
            "cached_tokens": pl.Series([None] * rows, dtype=pl.Int32),
            "output_tokens": rng.integers(0, 9, rows),
        }
    )


@pytest.mark.parametrize("parts", [1, 3, 50])
def test_the_counts_of_parts_add_up_to_those_of_the_whole(parts):
    rows = judgments(200)
    found = tally.total(tally.of(rows[first::parts], 1) for first in range(parts))
    assert found.statuses == {status: rows["status"].to_list().count(status) for status in set(STATUSES)}
    assert list(found.statuses.values()) == sorted(found.statuses.values(), reverse=True)
    assert found.judgments == 200
    assert found.tokens == {"prompt": rows["prompt_tokens"].sum(), "cached": 0, "output": rows["output_tokens"].sum()}
    assert (found.truncated, found.further) == (rows["truncated"].sum(), parts)
    assert base.over(found.failures, 0.2) == base.failures_over(rows, 0.2) != []


def test_no_bucket_is_no_judgment():
    found = tally.total([])
    assert (found.judgments, found.statuses, found.failures) == (0, {}, [])
