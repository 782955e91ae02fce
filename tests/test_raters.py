"""κ and α against published tables, brute force and properties."""

from itertools import product

import numpy as np
import polars as pl
import pytest
from comparisons import game, table

from trustjudge_ray.analysis.raters import (
    ALPHA_LEVELS,
    KAPPA_WEIGHTS,
    krippendorff_alpha,
    rating_counts,
    vote_metrics,
    weighted_kappa,
)
from trustjudge_ray.config import AnalysisConfig

KRIPPENDORFF = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3],
    [None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None],
]
"""Four observers, twelve units: the example of K. Krippendorff, Computing Krippendorff's Alpha-Reliability (2011)."""


def ratings(rows):
    """Ratings by rater and unit as counts and values."""
    told = [(u, float(x)) for row in rows for u, x in enumerate(row) if x is not None]
    units, values = zip(*told, strict=True)
    return rating_counts(pl.Series(units), pl.Series(values))[:2]


@pytest.mark.parametrize(("level", "published"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_alpha_is_krippendorffs_own_example(level, published):
    assert krippendorff_alpha(*ratings(KRIPPENDORFF), level) == pytest.approx(published, abs=0.0006)


def brute_alpha(rows, distance):
    """1 − mean disagreement within units / over all pairable values, pair by pair."""
    units = [[row[u] for row in rows if row[u] is not None] for u in range(len(rows[0]))]
    units = [unit for unit in units if len(unit) > 1]
    everything = [x for unit in units for x in unit]
    n = len(everything)
    within = (
        sum(
            distance(x, y) / (len(unit) - 1)
            for unit in units
            for i, x in enumerate(unit)
            for j, y in enumerate(unit)
            if i != j
        )
        / n
    )
    between = sum(distance(x, y) for i, x in enumerate(everything) for j, y in enumerate(everything) if i != j) / (
        n * (n - 1)
    )
    return 1 - within / between


@pytest.mark.parametrize("seed", range(5))
def test_alpha_is_disagreement_within_over_disagreement_between(seed):
    rng = np.random.default_rng(seed)
    rows = [[int(x) if rng.random() > 0.2 else None for x in rng.integers(1, 5, 15)] for _ in range(3)]
    counts, values = ratings(rows)
    assert krippendorff_alpha(counts, values, "nominal") == pytest.approx(brute_alpha(rows, lambda x, y: x != y))
    assert krippendorff_alpha(counts, values, "interval") == pytest.approx(brute_alpha(rows, lambda x, y: (x - y) ** 2))
    totals = dict(zip(values, np.zeros(len(values)), strict=True))
    pairable = [[row[u] for row in rows if row[u] is not None] for u in range(15)]
    for unit in pairable:
        for x in unit if len(unit) > 1 else []:
            totals[x] += 1

    def ordinal(x, y):
        low, high = sorted((x, y))
        return (
            (sum(n for v, n in totals.items() if low <= v <= high) - (totals[x] + totals[y]) / 2) ** 2 if x != y else 0
        )

    assert krippendorff_alpha(counts, values, "ordinal") == pytest.approx(brute_alpha(rows, ordinal))


def test_alpha_of_raters_who_agree_is_one_and_of_nothing_or_of_one_value_is_undefined():
    counts, values = ratings([[1, 2, 3], [1, 2, 3]])
    assert [krippendorff_alpha(counts, values, level) for level in ALPHA_LEVELS] == [pytest.approx(1)] * 3
    assert np.isnan(krippendorff_alpha(*ratings([[1, 1], [1, 1]]), "nominal"))
    assert np.isnan(krippendorff_alpha(*ratings([[1, None], [None, 2]]), "nominal"))


def test_weighted_kappa_is_cohens_definition_cell_by_cell():
    rng = np.random.default_rng(0)
    for levels, name in product((2, 3, 5), KAPPA_WEIGHTS):
        one, other = rng.integers(levels, size=(2, 60))
        cost = {"linear": lambda i, j: abs(i - j), "quadratic": lambda i, j: (i - j) ** 2}[name]
        observed = np.mean([cost(i, j) for i, j in zip(one, other, strict=True)])
        expected = np.mean([cost(i, j) for i in one for j in other])
        assert weighted_kappa(one, other, levels, KAPPA_WEIGHTS[name]) == pytest.approx(1 - observed / expected)


def test_two_levels_have_one_kappa_whatever_the_weights():
    """The textbook table 20, 5, 10, 15: κ is 0.4."""
    one = np.array([0] * 25 + [1] * 25)
    other = np.array([0] * 20 + [1] * 5 + [0] * 10 + [1] * 15)
    for weights in KAPPA_WEIGHTS.values():
        assert weighted_kappa(one, other, 2, weights) == pytest.approx(0.4)
    assert np.isnan(weighted_kappa(one * 0, other * 0, 2, KAPPA_WEIGHTS["linear"]))


def test_votes_of_a_pair_are_compared_in_candidate_order_and_single_ones_are_counted_apart():
    rows = [
        game(q, first, second, outcome, sample=s, emitted=emitted, judge="human")
        for q in range(6)
        for s, (first, second, outcome, emitted) in enumerate(
            [("x", "y", "first", "a"), ("y", "x", "second", "a" if q < 5 else "b")]
        )
    ]
    rows += [game("7", "x", "y", "first", emitted="a", judge="human"), game("8", "x", "y", "tie", judge="other")]
    table_of_votes = vote_metrics(table(rows), AnalysisConfig())
    found = table_of_votes.filter(pl.col("category").is_null()).to_dicts()
    assert [(row["judge"], row["cases"]) for row in found] == [("human", 12), ("other", 0)]
    assert (found[1]["value"], found[1]["excluded_by"]) == (None, '{"no_emitted_label": 1}')
    counts = np.array([[0, 2]] * 5 + [[1, 1]], dtype=float)
    assert found[0]["value"] == pytest.approx(krippendorff_alpha(counts, np.array([-1.0, 1.0]), "ordinal"))
    assert (found[0]["cases"], found[0]["excluded_by"]) == (12, '{"single": 1}')
