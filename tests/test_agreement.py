"""Agreement with people: counted by hand, against scipy, and with nothing dropped in silence."""

import json

import numpy as np
import polars as pl
import pytest
from scipy import stats

from trustjudge_ray.analysis.agreement import agreement_metrics
from trustjudge_ray.analysis.readouts import columns
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.schema import METRICS, SCORES, VERDICTS, check

SETTINGS = AnalysisConfig()
HUMAN = {"schema": {"question_id": pl.String, "response_id": pl.String, "human_score": pl.Float64}, "orient": "row"}


def verdict(question, a, b, outcome, p=(None, None, None), status="ok", rule="normalised", category=None):
    p_a, p_b, p_tie = p
    row = {"judge": "j", "protocol": "compare", "question_id": question, "category": category, "response_a": a}
    row |= {"response_b": b, "model_a": a, "model_b": b, "rule": rule, "tolerance": 0.0, "outcome": outcome}
    return row | {"p_a": p_a, "p_b": p_b, "p_tie": p_tie, "margin": None, "status": status}


def scored(question, response, value, category=None):
    row = {"judge": "j", "protocol": "score", "question_id": question, "category": category, "response_id": response}
    row |= {"model": response, "rule": "expected", "score": value, "label_mass": 1.0, "entropy": 0.0}
    return row | {"entropy_share": 0.0, "status": "ok" if value is not None else "engine_error"}


def measured(human, scores=(), verdicts=(), settings=SETTINGS):
    found = agreement_metrics(
        pl.DataFrame(list(scores), schema=columns(SCORES)),
        pl.DataFrame(list(verdicts), schema=columns(VERDICTS)),
        pl.DataFrame(human, **HUMAN),
        settings,
    )
    check(found.to_arrow(), METRICS)
    return {(row["metric"], row["category"]): row for row in found.to_dicts()}


def test_pairs_agree_where_the_sign_of_peoples_scores_is_the_outcome():
    human = [("q1", "a", 5), ("q1", "b", 3), ("q1", "c", 3), ("q2", "a", 1), ("q2", "b", 2), ("q2", "d", None)]
    verdicts = [
        verdict("q1", "a", "b", 1),  # people too
        verdict("q1", "a", "c", 0),  # people: a
        verdict("q1", "b", "c", 0),  # people too
        verdict("q2", "a", "b", 1),  # people: b
        verdict("q2", "a", "d", 1),
        verdict("q2", "b", "d", None, status="engine_error"),
        verdict("q1", "a", "e", None, status="engine_error"),
    ]
    found = measured(human, verdicts=verdicts)
    exact, decisive = found["agreement_pair_exact", None], found["agreement_pair_decisive", None]
    assert (exact["hits"], exact["cases"], exact["questions"]) == (2, 4, 2)
    assert json.loads(exact["excluded_by"]) == {"no_human_score": 3}
    assert exact["low"] < exact["value"] == 0.5 < exact["high"]
    assert (decisive["hits"], decisive["cases"]) == (1, 2)
    assert json.loads(decisive["excluded_by"]) == {"human_tie": 1, "judge_tie": 1, "no_human_score": 3}


def test_a_pair_that_failed_or_was_not_judged_is_excluded_by_its_reason():
    human = [("q", r, i) for i, r in enumerate("abc")]
    verdicts = [
        verdict("q", "a", "b", None, status="engine_error"),
        verdict("q", "a", "c", 0, status="identical"),
        verdict("q", "b", "c", -1),
    ]
    exact = measured(human, verdicts=verdicts)["agreement_pair_exact", None]
    assert json.loads(exact["excluded_by"]) == {"engine_error": 1, "identical": 1}
    assert (exact["hits"], exact["cases"], exact["excluded"]) == (1, 1, 2)
    assert (exact["low"], exact["high"]) == (None, None)  # one question


def test_kappa_takes_out_what_chance_agrees_on():
    """20 said by both, 5 and 10 by one, 15 by neither: Cohen's κ is 0.4 (the textbook table)."""
    said = [1] * 20 + [1] * 5 + [-1] * 10 + [-1] * 15
    people = [1] * 20 + [-1] * 5 + [1] * 10 + [-1] * 15
    human, verdicts = [], []
    for i, (outcome, sign) in enumerate(zip(said, people, strict=True)):
        human += [(f"q{i}", "a", float(sign)), (f"q{i}", "b", 0.0)]
        verdicts.append(verdict(f"q{i}", "a", "b", outcome))
    row = measured(human, verdicts=verdicts)["agreement_pair_kappa", None]
    assert row["value"] == pytest.approx(0.4)
    standard_error = 0.13  # Fleiss, Cohen and Everitt (1969) for this table
    assert (row["high"] - row["low"]) / 2 == pytest.approx(2.01 * standard_error, rel=0.1)


def test_brier_and_calibration_read_the_probabilities():
    human = [("q1", "a", 2), ("q1", "b", 1), ("q2", "a", 1), ("q2", "b", 1)]
    verdicts = [
        verdict("q1", "a", "b", 1, p=(0.8, 0.2, 0.0)),
        verdict("q2", "a", "b", 1, p=(0.6, 0.1, 0.3)),
        verdict("q2", "a", "b", -1, p=(0.6, 0.1, 0.3), rule="ppl"),  # the same pair by another rule counts once
    ]
    found = measured(human, verdicts=verdicts)
    brier = ((0.2**2 + 0.2**2) + (0.6**2 + 0.1**2 + 0.7**2)) / 2
    assert found["agreement_pair_brier", None]["value"] == pytest.approx(brier)
    assert found["agreement_pair_brier", None]["cases"] == 2
    assert found["agreement_pair_ece", None]["value"] == pytest.approx((0.2 + 0.6) / 2)


def noisy(rng, questions, responses, missing=0.0):
    human, scores = [], []
    for q in range(questions):
        level = rng.normal()
        for r in range(responses):
            truth = level + rng.normal()
            human.append((f"q{q}", f"r{r}", float(np.round(2 * truth))))
            lost = rng.random() < missing
            scores.append(scored(f"q{q}", f"r{r}", None if lost else float(np.round(truth + rng.normal(), 1))))
    return human, scores


def test_correlations_are_scipys_over_all_answers_that_have_both():
    human, scores = noisy(np.random.default_rng(1), 30, 4, missing=0.1)
    human[0] = ("q0", "r0", None)
    found = measured(human, scores)
    both = [
        (s["score"], h[2]) for s, h in zip(scores, human, strict=True) if s["score"] is not None and h[2] is not None
    ]
    x, y = zip(*both, strict=True)
    for name, value in (("spearman", stats.spearmanr(x, y).statistic), ("kendall", stats.kendalltau(x, y).statistic)):
        row = found[f"agreement_{name}", None]
        assert row["value"] == pytest.approx(value)
        assert row["low"] < row["value"] < row["high"]
        assert row["cases"] == len(both)
        assert row["excluded"] == 120 - len(both)
        assert json.loads(row["excluded_by"])["no_human_score"] == 1


def test_correlation_intervals_hold_the_truth_although_answers_of_a_question_are_alike():
    truth_human, truth_scores = noisy(np.random.default_rng(2), 1500, 4)
    truth = stats.spearmanr([s["score"] for s in truth_scores], [h[2] for h in truth_human]).statistic
    held = []
    for seed in range(60):
        row = measured(*noisy(np.random.default_rng(100 + seed), 25, 4))["agreement_spearman", None]
        held.append(row["low"] <= truth <= row["high"])
    assert np.mean(held) >= 0.85


def test_score_pairs_are_compared_within_questions_only():
    human = [("q1", "a", 1), ("q1", "b", 2), ("q1", "c", 2), ("q2", "a", 9), ("q2", "b", 8)]
    scores = [scored("q1", "a", 1.0), scored("q1", "b", 3.0), scored("q1", "c", 3.0 + 1e-12)]
    scores += [scored("q2", "a", 2.0), scored("q2", "b", None)]
    found = measured(human, scores)
    exact = found["agreement_score_pair_exact", None]
    assert (exact["hits"], exact["cases"]) == (3, 3)
    assert json.loads(exact["excluded_by"]) == {"engine_error": 1}
    assert found["agreement_score_pair_decisive", None]["cases"] == 2


def test_constant_scores_have_no_correlation_rather_than_zero():
    human = [(f"q{i}", "a", float(i)) for i in range(5)]
    row = measured(human, [scored(f"q{i}", "a", 4.0) for i in range(5)])["agreement_spearman", None]
    assert (row["value"], row["low"], row["cases"]) == (None, None, 5)


def test_without_any_human_score_there_is_no_row_and_with_one_elsewhere_every_row_is_there():
    scores, verdicts = [scored("q", "a", 1.0)], [verdict("q", "a", "b", 1)]
    assert measured([("q", "a", None)], scores, verdicts) == {}
    found = measured([("other", "a", 1.0)], scores, verdicts)
    assert len(found) == 18  # nine metrics, overall and for the uncategorised
    assert {(row["value"], row["cases"]) for row in found.values()} == {(None, 0)}


def test_categories_have_their_own_rows():
    human = [("q1", "a", 2), ("q1", "b", 1), ("q2", "a", 2), ("q2", "b", 1)]
    verdicts = [verdict("q1", "a", "b", 1, category="maths"), verdict("q2", "a", "b", -1)]
    found = measured(human, verdicts=verdicts)
    assert [found["agreement_pair_exact", c]["value"] for c in (None, "maths", "(none)")] == [0.5, 1.0, 0.0]


def test_row_order_changes_nothing():
    human, scores = noisy(np.random.default_rng(3), 8, 3)
    forward = measured(human, scores)
    backward = measured(human[::-1], scores[::-1])
    for key, row in forward.items():
        assert backward[key]["value"] == pytest.approx(row["value"])
        assert backward[key]["low"] == pytest.approx(row["low"])


def test_a_judge_that_always_ties_has_a_kappa_of_zero_and_no_interval_of_width_zero():
    human = [(f"q{i}", name, float(i % 3 + j)) for i in range(6) for j, name in enumerate("ab")]
    row = measured(human, verdicts=[verdict(f"q{i}", "a", "b", 0) for i in range(6)])["agreement_pair_kappa", None]
    assert (row["value"], row["low"], row["high"]) == (0, None, None)
