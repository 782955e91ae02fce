"""What must hold of every rating rule, whatever the games."""

import polars as pl
from comparisons import game
from hypothesis import example, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from rankings import NAMES, answers, ranked

from trustjudge_ray.config import AnalysisConfig

PAIRS = [(f, s) for f in NAMES for s in NAMES if f != s]
OUTCOMES = st.tuples(*[st.integers(1, 8)] * 3).map(lambda n: tuple(x / sum(n) for x in n))
RESULTS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(PAIRS), OUTCOMES), min_size=3, max_size=25)
EVERYTHING = AnalysisConfig(covariates=["length"])
SIZES = {(q, m): 7 + (q * 31 + i * i * 17) % 53 for q in range(5) for i, m in enumerate(NAMES)}


def everything(rows, names=None):
    """Every rule's ratings, and which model is which under the names given."""
    called = names or {m: m for m in NAMES}
    texts = {(str(q), called[m]): "x" * n for (q, m), n in SIZES.items()}
    human = {(q, m): float(n % 3) for (q, m), n in zip(texts, SIZES.values(), strict=True)}
    found = ranked(rows, EVERYTHING, answers(texts, human))
    back = {new: old for old, new in called.items()}
    columns = ["rule", "rating", "low", "high", "rank", "rank_low", "rank_high", "wins", "losses", "ties"]
    named = found.ratings.with_columns(model=pl.col("model").replace_strict(back))
    return named.sort("rule", "model").select("model", *columns)


@settings(max_examples=25, deadline=None)
@given(RESULTS, st.permutations(NAMES), st.randoms(use_true_random=False))
def test_no_rule_depends_on_names_row_order_or_the_side_a_model_is_stored_on(results, others, random):
    names = dict(zip(NAMES, others, strict=True))
    rows = [game(q, f, s, p) for q, (f, s), p in results]
    renamed = [game(q, names[f], names[s], p) for q, (f, s), p in results]  # also turns who is candidate a
    random.shuffle(renamed)
    assert_frame_equal(everything(rows), everything(renamed, names), abs_tol=1e-3, rel_tol=1e-5)


@settings(max_examples=25, deadline=None)
@given(RESULTS, st.integers(2, 3))
@example([(q, ("ada", "bob"), p) for q, p in ((0, (0.2, 0.6, 0.2)), (0, (1 / 6, 0.5, 1 / 3)), (1, (0.2, 0.6, 0.2)))], 3)
def test_no_rule_s_interval_shrinks_where_rows_are_repeated(results, times):
    rows = [game(q, f, s, p) for q, (f, s), p in results]
    columns = ["model", "rule", "rating", "low", "high", "rank", "rank_low", "rank_high"]
    once, repeated = everything(rows).select(columns), everything(rows * times).select(columns)
    assert_frame_equal(once, repeated, abs_tol=1e-3, rel_tol=1e-5)
