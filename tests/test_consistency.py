"""Conflict and non-transitivity ratios against plain loops over pairs and subsets, and the other metrics by hand."""

import json
from functools import cache
from io import BytesIO
from itertools import combinations
from math import comb

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from comparisons import game, score, table
from shared_inputs import shared

from trustjudge_ray.analysis.evaluation import consistency_metrics
from trustjudge_ray.analysis.readouts import ReadoutError
from trustjudge_ray.analysis.scoring import SCORING_RULES, scores
from trustjudge_ray.analysis.tolerances import parse_tolerances
from trustjudge_ray.analysis.transitivity import FAULTS, is_transitive
from trustjudge_ray.analysis.verdicts import VERDICT_RULES, pairs_of, verdict_table
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.imports import oracle
from trustjudge_ray.imports.base import compare_protocol, score_protocol

PROTOCOLS = {"score": score_protocol(5), "compare": compare_protocol()}
EMITTED = {"first": "a", "second": "b", "tie": "tie"}


def metrics_of(judgments, protocols=PROTOCOLS, responses=None, **settings):
    config = AnalysisConfig(**{"tolerances": [0.0, 0.1], **settings})
    tolerances = parse_tolerances(config.tolerances)
    rows = (scores(judgments, protocols), pairs_of(judgments))
    return consistency_metrics(judgments, protocols, responses, config, *rows, tolerances)[0]


KEYS = ("metric", "protocol", "pair_protocol", "score_rule", "verdict_rule", "k", "tolerance", "verdict_tolerance")


def one(metrics, **where):
    """The only overall row that fits. Rules and k that are not named are null; protocols and tolerances are any."""
    missing = {name: None for name in ("category", "score_rule", "verdict_rule", "k") if name not in where}
    fits = [pl.col(name).eq_missing(pl.lit(value)) for name, value in {**missing, **where}.items()]
    (row,) = metrics.filter(fits).to_dicts()
    return row


def overall(metrics, name):
    """hits and cases of a metric by all its other keys, over all categories."""
    rows = metrics.filter(pl.col("category").is_null(), metric=name)
    return {tuple(row[key] for key in KEYS[1:]): ratio(row) for row in rows.iter_rows(named=True)}


def ratio(row):
    return row["hits"], row["cases"]


def both(question, a, b, outcome, second=None, **columns):
    """A pair in both orders; outcomes are `first` where a is better, whichever is shown first."""
    rows = []
    for order, said in (("AB", outcome), ("BA", second or outcome)):
        row = game(question, "a", "b", said) | {"order": order, "emitted": EMITTED[said]}
        row |= {"response_a": a, "model_a": a, "response_b": b, "model_b": b}
        rows.append(row | {"cumulative_logprob": -1.0, "output_tokens": 1} | columns)
    return rows


@cache
def weak():
    """A noisy suite: half of the pairs are not valid, scores and pairs are missing."""
    imported = oracle.read({name: BytesIO(shared(f"oracle/weak/{name}").read_bytes()) for name in oracle.FILES})
    judgments = pl.DataFrame(pl.from_arrow(pa.concat_tables(imported.judgments)))
    tolerances = {"score": [0, 0.05, 1], "likelihood": [0, 0.1], "ppl": [0, 0.05]}
    metrics = metrics_of(judgments, imported.protocols, imported.responses, tolerances=tolerances)
    verdicts = verdict_table(pairs_of(judgments), parse_tolerances(tolerances))
    return judgments, scores(judgments, imported.protocols), verdicts, metrics


@pytest.mark.parametrize("score_rule", list(SCORING_RULES))
def test_conflicts_of_every_rule_and_tolerance_are_those_of_a_plain_loop(score_rule):
    _, scored, verdicts, metrics = weak()
    rows = scored.filter(protocol="score-5", rule=score_rule).iter_rows(named=True)
    value = {(row["question_id"], row["response_id"]): row["score"] for row in rows}
    found = {kind: overall(metrics, f"conflict_{kind}") for kind in ("ratio", "reversal", "score_tie", "pair_tie")}
    for (rule, verdict_tolerance), group in verdicts.group_by("rule", "tolerance"):
        pairs = group.select("question_id", "response_a", "response_b", "outcome").rows()
        for tolerance in (0.0, 0.05, 1.0):
            counts = dict.fromkeys(("cases", "ratio", "reversal", "score_tie", "pair_tie"), 0)
            for question, *sides, outcome in pairs:
                a, b = (value.get((question, side)) for side in sides)
                if outcome is None or a is None or b is None:
                    continue
                close = abs(a - b) < max(tolerance, 1e-9)
                sign = 0 if close else 1 if a > b else -1
                counts["cases"] += 1
                counts["ratio"] += sign != outcome
                counts["reversal"] += sign * outcome == -1
                counts["score_tie"] += sign == 0 != outcome
                counts["pair_tie"] += outcome == 0 != sign
            key = ("score-5", "compare", score_rule, rule, None, tolerance, verdict_tolerance)
            for kind, rows in found.items():
                assert rows[key] == (counts[kind], counts["cases"]), (kind, key)


@pytest.mark.parametrize("rule", list(VERDICT_RULES))
def test_intransitive_subsets_of_every_rule_are_those_of_a_plain_loop(rule):
    _, _, verdicts, metrics = weak()
    of_rule = verdicts.filter(rule=rule)
    tolerance = of_rule["tolerance"].max()
    outcome = {}
    for row in of_rule.filter(tolerance=tolerance).iter_rows(named=True):
        pair = (row["question_id"], int(row["response_a"]), int(row["response_b"]))
        outcome[pair] = row["outcome"]
    questions = {}
    for question, i, j in outcome:
        questions.setdefault(question, set()).update((i, j))
    for k in (3, 4):
        hits = cases = 0
        for question, responses in questions.items():
            for subset in combinations(sorted(responses), k):
                signs = {(i, j): outcome.get((question, i, j)) for i, j in combinations(subset, 2)}
                if None in signs.values():
                    continue
                cases += 1
                triples = combinations(subset, 3)
                hits += not all(is_transitive(signs[i, j], signs[j, m], signs[i, m]) for i, j, m in triples)
        found = one(metrics, metric="non_transitivity_ratio", verdict_rule=rule, tolerance=tolerance, k=k)
        assert ratio(found) == (hits, cases)


def test_cases_and_excluded_are_all_pairs_of_the_plan_and_all_subsets():
    _, _, verdicts, metrics = weak()
    pairs = len(verdicts.filter(rule="baseline"))
    whole = metrics.filter(pl.col("category").is_null())
    conflicts = whole.filter(metric="conflict_ratio")
    assert len(conflicts)
    assert ((conflicts["cases"] + conflicts["excluded"]) == pairs).all()
    sizes = json.loads(shared("oracle/weak/drops.json").read_text("utf-8"))["ntr_groups"]
    subsets = whole.filter(metric="non_transitivity_ratio")
    assert set(subsets["k"]) == {3, 4, 5}
    for row in subsets.iter_rows(named=True):
        assert row["cases"] + row["excluded"] == sizes[str(row["k"])]["possible"]
        assert sum(json.loads(row["excluded_by"]).values()) == row["excluded"]


def test_categories_add_up_to_the_whole():
    for name in ("conflict_ratio", "non_transitivity_ratio", "flip_rate", "coverage", "label_mass", "tie_rate"):
        keys = ["protocol", "score_rule", "verdict_rule", "k", "tolerance", "verdict_tolerance"]
        rows = weak()[3].filter(metric=name)
        whole = rows.filter(pl.col("category").is_null()).sort(keys)
        parts = (
            rows.filter(pl.col("category").is_not_null()).group_by(keys).agg(pl.col("hits", "cases", "excluded").sum())
        )
        assert len(whole)
        for column in ("hits", "cases", "excluded"):
            assert parts.sort(keys)[column].to_list() == pytest.approx(whole[column].to_list())


def test_a_rule_whose_perplexity_is_undefined_excludes_only_its_own_pairs():
    rows = both("q", "x", "y", "first", "second") + both("q", "x", "z", "first", "second", output_tokens=None)
    found = metrics_of(table(rows))
    counted = {rule: one(found, metric="tie_rate", verdict_rule=rule, tolerance=0.0) for rule in VERDICT_RULES}
    assert {rule: row["cases"] for rule, row in counted.items()} == {
        rule: 1 if rule.startswith("ppl") else 2 for rule in VERDICT_RULES
    }
    assert json.loads(counted["ppl"]["excluded_by"]) == {"undefined_perplexity": 1}


def test_a_missing_score_excludes_its_pairs_with_the_reason():
    rows = [*both("q", "x", "y", "first"), *both("q", "y", "z", "first"), *both("q", "x", "z", "first")]
    rows += [score("q", "x", (0, 0, 0, 0, 1)), score("q", "y", (0, 0, 0, 0, 1), status="too_long")]
    found = metrics_of(table(rows))
    where = {"verdict_rule": "baseline", "verdict_tolerance": 0.0, "tolerance": 0.0}
    row = one(found, metric="conflict_ratio", score_rule="expected", **where)
    assert (row["cases"], row["value"], row["low"]) == (0, None, None)
    assert json.loads(row["excluded_by"]) == {"score_too_long": 2, "score_never_asked": 1}


def test_identical_texts_are_left_out_unless_included_as_ties():
    rows = [*both("q", "x", "y", "tie", status="identical"), *both("q", "y", "z", "first"), *both("q", "x", "z", "tie")]
    rows += [score("q", m, (0, 0, 0, 0, 1)) for m in "xyz"]
    where = {"metric": "non_transitivity_ratio", "verdict_rule": "baseline", "k": 3, "tolerance": 0.0}
    left_out, included = (metrics_of(table(rows), identical=how) for how in ("exclude", "include"))
    assert ratio(one(left_out, **where)) == (0, 0)
    assert json.loads(one(left_out, **where)["excluded_by"]) == {"identical": 1}
    assert ratio(one(included, **where)) == (1, 1)
    conflict = {"metric": "conflict_ratio", "score_rule": "expected", "verdict_rule": "baseline", "tolerance": 0.0}
    assert ratio(one(left_out, verdict_tolerance=0.0, **conflict)) == (1, 2)
    assert ratio(one(included, verdict_tolerance=0.0, **conflict)) == (1, 3)
    for found in (left_out, included):
        assert ratio(one(found, metric="flip_rate")) == (0, 2)
        assert ratio(one(found, metric="coverage", protocol="compare")) == (4, 4)


def test_a_sparse_design_counts_the_subsets_that_were_never_asked():
    rows = [*both("q", "1", "2", "first"), *both("q", "2", "10", "first"), *both("q", "1", "10", "second")]
    rows += [*both("q", "10", "11", "first"), *both("q", "1", "11", "first", status="too_long")]
    found = one(metrics_of(table(rows)), metric="non_transitivity_ratio", verdict_rule="baseline", k=3, tolerance=0.0)
    assert ratio(found) == (1, 1)
    assert json.loads(found["excluded_by"]) == {"never_asked": 2, "too_long": 1}


@pytest.mark.parametrize("exchanged", [False, True])
def test_reference_types_follow_the_order_of_whole_number_ids(exchanged):
    """1 > 2, 2 > 10, 1 = 10 is an equivalence; with the ids as texts, 1, 10, 2, it would be circular."""
    other = ("q", "10", "2", "second") if exchanged else ("q", "2", "10", "first")
    rows = [*both(*other), *both("q", "1", "10", "tie"), *both("q", "1", "2", "first")]
    found = metrics_of(table(rows))
    where = {"verdict_rule": "baseline", "k": 3, "tolerance": 0.0}
    counts = {name: one(found, metric=f"non_transitivity_{name}", **where)["hits"] for name in FAULTS}
    assert counts == {name: float(fault(1, 1, 0)) for name, fault in FAULTS.items()}
    assert counts["equivalence"] == 1
    assert FAULTS["circular"](0, -1, 1)


def test_renaming_responses_in_the_same_order_changes_no_count():
    rng = np.random.default_rng(2)
    said = [("first", "second", "tie")[rng.integers(3)] for _ in range(comb(6, 2))]
    pairs = list(combinations("abcdef", 2))
    plain = metrics_of(table([r for p, o in zip(pairs, said, strict=True) for r in both("q", *p, o)]))
    renamed = [r for p, o in zip(pairs, said, strict=True) for r in both("q", p[0] * 2, p[1] * 2, o)]
    assert metrics_of(table(renamed)).equals(plain)


def test_position_metrics_of_a_judge_that_always_takes_the_first():
    rows = both("q1", "x", "y", "first", "second") + both("q2", "x", "y", "first", "second")
    found = metrics_of(table(rows))
    assert ratio(one(found, metric="flip_rate")) == (2, 2)
    assert ratio(one(found, metric="first_slot_preference")) == (4, 4)
    assert one(found, metric="order_effect")["value"] == 1
    assert one(found, metric="tie_rate", verdict_rule="normalised", tolerance=0.0)["value"] == 1


def test_position_metrics_of_a_judge_that_always_takes_the_second():
    found = metrics_of(table(both("q1", "x", "y", "second", "first") + both("q2", "x", "y", "tie")))
    row = one(found, metric="first_slot_preference")
    assert (ratio(row), json.loads(row["excluded_by"])) == ((0, 2), {"tie": 2})
    assert one(found, metric="order_effect")["value"] == -0.5


def test_order_effect_uses_the_probabilities_of_both_orders():
    rows = [game("q", "x", "y", (0.6, 0.3, 0.1), emitted="a"), game("q", "y", "x", (0.2, 0.2, 0.1), emitted="b")]
    assert one(metrics_of(table(rows)), metric="order_effect")["value"] == pytest.approx((0.3 + 0.0) / 2)


def test_coverage_counts_every_judgment_and_names_the_lost_ones():
    rows = [*both("q", "x", "y", "first"), *both("q", "x", "z", "first", status="engine_error")]
    rows += [score("q", "x", (1, 0, 0, 0, 0)), score("q", "x", (1, 0, 0, 0, 0), repeat=1)]
    found = metrics_of(table(rows))
    row = one(found, metric="coverage", protocol="compare")
    assert (ratio(row), json.loads(row["excluded_by"])) == ((2, 4), {"engine_error": 2})
    assert ratio(one(found, metric="coverage", protocol="score")) == (1, 1)


def test_scores_that_tell_nothing_apart_are_counted_in_pairs():
    distributions = {"x": (0, 0, 0, 0.6, 0.4), "y": (0, 0, 0, 0.7, 0.3), "z": (1, 0, 0, 0, 0)}
    found = metrics_of(table([score("q", m, p) for m, p in distributions.items()]))
    same = {r: one(found, metric="identical_scores", score_rule=r)["hits"] for r in SCORING_RULES}
    assert same == {"expected": 0, "softmax_weighted": 0, "geval": 0, "baseline": 1, "mode": 1}
    assert one(found, metric="label_mass", protocol="score")["value"] == pytest.approx(1)
    assert one(found, metric="score_entropy")["value"] == pytest.approx((0.6730117 + 0.6108643) / np.log(5) / 3)


def test_chance_knows_how_many_ties_there_are_and_nothing_else():
    rows = [*both("q", "x", "y", "first"), *both("q", "x", "z", "tie"), *both("q", "y", "z", "tie")]
    rows += [score("q", "x", (0, 0, 0, 0, 1)), *(score("q", m, (0, 0, 0, 1, 0)) for m in "yz")]
    found = metrics_of(table(rows))
    where = {"score_rule": "expected", "verdict_rule": "baseline", "tolerance": 0.0, "verdict_tolerance": 0.0}
    ties = 2 / 3, 1 / 3
    expected = 1 - ties[0] * ties[1] - (1 - ties[0]) * (1 - ties[1]) / 2
    row = one(found, metric="chance_conflict_ratio", **where)
    assert (row["value"], row["cases"], row["low"]) == (pytest.approx(expected), 3, None)
    row = one(found, metric="chance_non_transitivity_ratio", verdict_rule="baseline", k=3, tolerance=0.0)
    t, s = 2 / 3, 1 / 6
    assert row["value"] == pytest.approx(1 - (t**3 + 6 * t * s**2 + 6 * s**3))


def test_a_pair_in_both_directions_is_refused():
    rows = both("q", "x", "y", "first")
    exchanged = [row | {"response_a": "y", "response_b": "x"} for row in rows]
    with pytest.raises(ReadoutError, match="question q: responses x and y are a pair in both directions"):
        metrics_of(table([*rows, *exchanged]))
