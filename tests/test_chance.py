"""What chance gives, whether a judge beats it, bounds under what is missing, and designs that close no triples."""

import json
from itertools import combinations

import numpy as np
import polars as pl
import pytest
from comparisons import game, score, table

from trustjudge_ray.analysis.chance import (
    chance_of_fault,
    chance_of_fault_slope,
    conflicts_over_chance,
    faults_over_chance,
    no_better_than_chance,
)
from trustjudge_ray.analysis.evaluation import evaluate
from trustjudge_ray.analysis.transitivity import count_subsets
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.imports.base import compare_protocol, score_protocol

PROTOCOLS = {"score": score_protocol(5), "compare": compare_protocol()}
SETTINGS = AnalysisConfig(tolerances=[0.0], k=[3])
EMITTED = {"first": "a", "second": "b", "tie": "tie"}


def pair(question, a, b, said, orders=("AB", "BA"), **columns):
    """A pair in these orders; `first` says that a is better, whichever is shown first."""
    rows = []
    for order in orders:
        row = game(question, "a", "b", said) | {"order": order, "emitted": EMITTED[said], **columns}
        rows.append(row | {"response_a": a, "model_a": a, "response_b": b, "model_b": b})
    return rows


def metric(rows, name, **where):
    found = evaluate(table(rows), PROTOCOLS, None, SETTINGS).metrics
    (row,) = found.filter(pl.col("category").is_null(), metric=name, **where).to_dicts()
    return row


RULES = {"score_rule": "expected", "verdict_rule": "baseline"}


@pytest.mark.parametrize("k", [3, 4, 5])
@pytest.mark.parametrize("tie_share", [0.0, 0.3, 0.8])
def test_the_slope_of_chance_is_its_difference_quotient(k, tie_share):
    step = 1e-6
    forth = chance_of_fault(tie_share + step, k)
    assert chance_of_fault_slope(tie_share, k) == pytest.approx(
        (forth - chance_of_fault(tie_share, k)) / step, abs=1e-4
    )


def relations(rng, runs, ties, noise):
    """Verdicts of 40 questions of 7 responses; a share of noise is drawn by chance, the rest is one ordering."""
    shape = (runs * 40, 7, 7)
    place = rng.random(shape[:2]).argsort(axis=1)
    ordered = np.sign(place[:, None, :] - place[:, :, None])
    ties = np.clip(ties + rng.normal(0, 0.1, (shape[0], 1, 1)), 0, 1)
    drawn = np.where(rng.random(shape) < ties, 0, rng.choice([-1, 1], shape))
    return np.where(rng.random(shape) < noise, drawn, ordered).astype(np.int8)


def over_chance(signs, runs):
    found = count_subsets(signs, [3], faults=("ratio",))[3]
    upper = np.triu_indices(7, 1)
    ties = (signs[:, upper[0], upper[1]] == 0).sum(axis=1)
    counts = (found.faulty["ratio"], found.complete, ties, np.full(len(signs), 21))
    return faults_over_chance(*(part.reshape(runs, 40).astype(float) for part in counts), 3, 0.95)


def test_a_judge_that_draws_its_verdicts_is_called_no_better_than_chance_and_a_fair_one_is_not():
    drawn = over_chance(relations(np.random.default_rng(0), 400, 0.3, 1.0), 400)
    held = ((drawn.low <= 0) & (drawn.high >= 0)).mean()
    assert 0.91 <= held <= 0.98
    fair = over_chance(relations(np.random.default_rng(1), 100, 0.3, 0.4), 100)
    assert (fair.high < 0).all()


def test_verdicts_that_know_nothing_of_the_scores_conflict_as_chance_says():
    rng = np.random.default_rng(2)
    signs = rng.choice([-1, 0, 1], (2, 400, 60, 15), p=[0.3, 0.4, 0.3])
    verdicts, scores = signs
    counts = ((verdicts != scores).sum(-1), (scores == 0).sum(-1), (verdicts == 0).sum(-1), np.full((400, 60), 15))
    found = conflicts_over_chance(*(part.astype(float) for part in counts), 0.95)
    assert 0.92 <= ((found.low <= 0) & (found.high >= 0)).mean() <= 0.98
    agreeing = conflicts_over_chance(counts[0] / 2, *(part.astype(float) for part in counts[1:]), 0.95)
    assert (agreeing.high < 0).all()


def test_a_judge_that_always_ties_has_no_fault_and_is_no_better_than_chance():
    rows = [r for q in range(5) for a, b in combinations("wxyz", 2) for r in pair(q, a, b, "tie")]
    found = evaluate(table(rows), PROTOCOLS, None, SETTINGS).metrics
    (plain,) = found.filter(
        pl.col("category").is_null(), metric="non_transitivity_ratio", verdict_rule="baseline", k=3
    )["value"]
    assert plain == 0
    named = no_better_than_chance(found).filter(pl.col("category").is_null(), verdict_rule="baseline")
    assert named["metric"].to_list() == ["non_transitivity_ratio"]


def test_a_judge_without_a_fault_or_a_tie_beats_chance():
    rows = [r for q in range(30) for a, b in combinations("vwxyz", 2) for r in pair(q, a, b, "first")]
    row = metric(rows, "non_transitivity_ratio_minus_chance", verdict_rule="baseline", k=3)
    assert row["value"] == -0.25
    assert row["low"] < row["value"] < row["high"] < 0


def test_the_shares_of_ties_beside_a_conflict_ratio_are_over_its_own_cases():
    rows = [*pair("q", "x", "y", "tie"), *pair("q", "x", "z", "first"), *pair("q", "w", "x", "tie")]
    rows += [score("q", "x", (0, 0, 0, 0, 1)), *(score("q", m, (0, 0, 0, 1, 0)) for m in "yz")]
    ties = metric(rows, "verdict_tie_share", **RULES)
    assert (ties["hits"], ties["cases"], json.loads(ties["excluded_by"])) == (1, 2, {"score_never_asked": 1})
    assert metric(rows, "score_tie_share", **RULES)["hits"] == 0


def test_bounds_are_the_ratios_with_every_lost_pair_filled_in_the_best_and_the_worst_way():
    def rows(lost):
        found = [
            *pair("q", "x", "y", "first"),
            *pair("q", "x", "z", "second"),
            *pair("q", "w", "x", "tie", status="identical"),
        ]
        found += pair("q", "y", "z", lost) if lost else pair("q", "y", "z", "first", status="engine_error")
        scores = dict.fromkeys("wx", (0, 0, 0, 0, 1)) | {"y": (0, 0, 0, 1, 0), "z": (0, 0, 1, 0, 0)}
        return found + [score("q", m, p) for m, p in scores.items()]

    filled = [metric(rows(said), "conflict_ratio", **RULES)["value"] for said in ("first", "second", "tie")]
    bounds = [metric(rows(None), f"conflict_ratio_{end}", **RULES)["value"] for end in ("lowest", "highest")]
    assert bounds == [min(filled), max(filled)]
    assert bounds == [1 / 3, 2 / 3]
    where = {"verdict_rule": "baseline", "k": 3}
    lowest, highest = (metric(rows(None), f"non_transitivity_ratio_{end}", **where) for end in ("lowest", "highest"))
    assert (lowest["value"], highest["value"], lowest["cases"]) == (0, 1, 1)
    assert json.loads(lowest["excluded_by"]) == {"never_asked": 3}


def test_a_run_without_scores_has_no_bounds_of_conflicts_rather_than_0_and_1():
    row = metric(pair("q", "x", "y", "first"), "conflict_ratio_highest", **RULES)
    assert (row["value"], row["cases"], json.loads(row["excluded_by"])) == (None, 0, {"score_never_asked": 1})


PLANS = {
    "matching": ([("a", "b"), ("c", "d"), ("e", "f"), ("a", "c"), ("b", "e"), ("d", "f")], "not computed"),
    "anchor": ([("a", other) for other in "bcdef"], "not computed"),
    "some": ([*combinations("abc", 2), ("c", "d"), ("d", "e"), ("e", "f"), ("a", "f")], "rests on the 1 of 20"),
    "block": (list(combinations("abcd", 2)), None),
    "full": (list(combinations("abcdef", 2)), None),
}


@pytest.mark.parametrize("name", list(PLANS))
def test_a_ratio_from_a_sparse_plan_is_refused_or_says_what_it_rests_on(name):
    plan, complaint = PLANS[name]
    rows = [r for a, b in plan for r in pair("q", a, b, "first")] + [score("q", m, (1, 0, 0, 0, 0)) for m in "abcdef"]
    told = [text for text in evaluate(table(rows), PROTOCOLS, None, SETTINGS).warnings if "non_transitivity" in text]
    assert len(told) == (complaint is not None)
    assert complaint is None or complaint in told[0]
    if name == "anchor":
        assert metric(rows, "non_transitivity_ratio", verdict_rule="baseline", k=3)["value"] is None


def test_one_order_gives_no_non_transitivity_and_says_why():
    rows = [r for a, b in combinations("abcd", 2) for r in pair("q", a, b, "first", orders=("AB",))]
    told = evaluate(table(rows), PROTOCOLS, None, SETTINGS).warnings
    assert any("both orders" in text for text in told)
