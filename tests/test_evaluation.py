"""The evaluation as a whole: what is missing leaves rows without a case, never an exception or a made-up number."""

import json
from io import BytesIO
from itertools import combinations

import numpy as np
import polars as pl
import pytest
from comparisons import game, score, table
from shared_inputs import shared

from trustjudge_ray import schema
from trustjudge_ray.analysis.evaluation import evaluate, parse_tolerances
from trustjudge_ray.analysis.scoring import SCORING_RULES
from trustjudge_ray.analysis.transitivity import FAULTS
from trustjudge_ray.config import AnalysisConfig, ConfigError
from trustjudge_ray.imports import oracle
from trustjudge_ray.imports.base import compare_protocol, score_protocol

PROTOCOLS = {"score": score_protocol(5), "compare": compare_protocol()}
RATIOS = ("conflict_ratio", "non_transitivity_ratio", "flip_rate", "coverage", "tie_rate", "identical_scores")


def full(rng, questions=4, models="abcd", judge="j"):
    """Every response scored, every pair compared in both orders."""
    rows = []
    for q in range(questions):
        category = (None, "code", "math")[q % 3]
        about = {"judge": judge, "category": category}
        rows += [score(f"q{q}", m, rng.dirichlet(np.ones(5)), **about) for m in models]
        for a, b in combinations(models, 2):
            for first, second in ((a, b), (b, a)):
                p = rng.dirichlet(np.ones(3))
                said = ("a", "b", "tie")[rng.integers(3)]
                more = {"emitted": said, "cumulative_logprob": -float(rng.integers(1, 9)), "output_tokens": 10}
                rows.append(game(f"q{q}", first, second, tuple(p), **about, **more))
    return rows


def evaluated(rows, protocols=PROTOCOLS, responses=None, **settings):
    return evaluate(table(rows), protocols, responses, AnalysisConfig(**{"tolerances": [0.0, 0.1], **settings}))


def overall(evaluation, metric):
    return evaluation.metrics.filter(pl.col("category").is_null(), metric=metric)


def test_every_table_has_its_schema():
    found = evaluated(full(np.random.default_rng(0)))
    tables = {
        "scores": schema.SCORES,
        "verdicts": schema.VERDICTS,
        "metrics": schema.METRICS,
        "ratings": schema.RATINGS,
    }
    for name, wanted in tables.items():
        frame = getattr(found, name)
        assert len(frame)
        schema.check(frame.to_arrow(), wanted)


def test_there_is_a_row_for_every_combination_and_only_one():
    found = evaluated(full(np.random.default_rng(0))).metrics
    groups, verdicts = 4, 1 + 4 * 2  # overall and three categories; baseline, and four rules at two tolerances
    assert len(found.filter(metric="conflict_ratio")) == len(SCORING_RULES) * 2 * verdicts * groups
    for fault in FAULTS:
        assert len(found.filter(metric=f"non_transitivity_{fault}")) == 3 * verdicts * groups
    keys = [name for name in schema.METRICS.names if name not in ("value", "low", "high", "hits", "cases", "questions")]
    assert not found.select(*keys[:-2]).is_duplicated().any()


def test_ratios_lie_in_their_intervals_and_are_hits_over_cases():
    found = evaluated(full(np.random.default_rng(1), questions=6)).metrics.filter(pl.col("metric").is_in(RATIOS))
    with_cases = found.filter(pl.col("cases") > 0)
    assert (with_cases["value"] - with_cases["hits"] / with_cases["cases"]).abs().max() < 1e-12
    bounded = with_cases.drop_nulls("low")
    assert ((bounded["low"] <= bounded["value"]) & (bounded["value"] <= bounded["high"])).all()
    assert len(bounded) > 100


@pytest.mark.parametrize("kept", [(), ("score",), ("compare",)], ids=["nothing", "scores only", "comparisons only"])
@pytest.mark.parametrize("protocols", [PROTOCOLS, {}], ids=["both protocols", "protocols of the judgments"])
def test_what_was_not_judged_leaves_rows_without_a_case(kept, protocols):
    rows = [row for row in full(np.random.default_rng(0), questions=2) if row["kind"] in kept]
    used = {row["protocol"] for row in rows}
    found = evaluated(rows, protocols or {name: p for name, p in PROTOCOLS.items() if name in used})
    missing = overall(found, "conflict_ratio")
    assert len(missing) == len(SCORING_RULES) * 2 * 9
    assert set(missing["cases"]) == {0}
    assert missing["value"].null_count() == missing["low"].null_count() == len(missing)
    assert len(overall(found, "non_transitivity_ratio")) == 3 * 9
    assert len(found.scores) == (8 * 5 if "score" in kept else 0)


def test_a_judge_that_answered_nothing_has_every_row_and_no_value():
    rows = [
        row | {"status": "engine_error", "label_logprobs": None, "emitted": None}
        for row in full(np.random.default_rng(0))
    ]
    found = evaluated(rows, k=[3])
    assert set(found.scores["status"]) == set(found.verdicts["status"]) == {"engine_error"}
    for metric in ("conflict_ratio", "non_transitivity_ratio", "flip_rate", "order_effect", "tie_rate", "label_mass"):
        found_rows = overall(found, metric)
        assert len(found_rows)
        assert found_rows["value"].null_count() == len(found_rows)
        assert found_rows["excluded"].min() > 0
    assert set(overall(found, "coverage")["value"]) == {0.0}


def test_one_order_alone_is_no_verdict_and_says_so():
    rows = [row for row in full(np.random.default_rng(0)) if row["order"] != "BA"]
    found = evaluated(rows)
    assert set(found.verdicts["status"]) == {"missing_order"}
    (row,) = overall(found, "flip_rate").to_dicts()
    assert (row["cases"], json.loads(row["excluded_by"])) == (0, {"missing_order": 4 * 6})
    (row,) = overall(found, "first_slot_preference").to_dicts()
    assert row["cases"] + row["excluded"] == 4 * 6
    assert set(json.loads(row["excluded_by"])) == {"tie"}


def test_one_response_a_question_is_scored_and_never_compared():
    found = evaluated([score(f"q{q}", "m", (0, 0, 1, 0, 0)) for q in range(3)], k=[3])
    assert overall(found, "identical_scores")["value"].null_count() == len(SCORING_RULES)
    assert set(found.scores["score"]) == {3.0}


def test_other_kinds_of_judgment_are_left_alone():
    rows = full(np.random.default_rng(0))
    more = [row | {"kind": "verify", "protocol": "qa"} for row in rows[:3]]
    assert evaluated([*rows, *more]).metrics.equals(evaluated(rows).metrics)


def test_judges_are_never_mixed():
    rng = np.random.default_rng(0)
    one, other = full(rng, judge="one"), full(rng, judge="other")
    mixed = evaluated([*one, *other]).metrics
    for name, rows in (("one", one), ("other", other)):
        assert mixed.filter(judge=name).equals(evaluated(rows).metrics)


def test_rows_in_any_order_give_the_same_metrics():
    rows = full(np.random.default_rng(0))
    backward = [row | {"task_id": f"{i:06d}"} for i, row in enumerate(rows)][::-1]
    assert evaluated(backward).metrics.equals(evaluated(rows).metrics)


def test_a_share_of_the_range_is_reported_in_points_of_the_scale():
    rows = full(np.random.default_rng(0))
    found = evaluated(rows, tolerances={"score": [0, "5%"], "likelihood": [0], "ppl": [0]})
    assert set(overall(found, "conflict_ratio")["tolerance"]) == {0.0, 0.2}


def test_tolerances_that_cannot_be_are_refused_before_anything_is_computed():
    with pytest.raises(ConfigError, match=r"analysis\.tolerances: got -1"):
        evaluated(full(np.random.default_rng(0)), tolerances=[-1])
    assert parse_tolerances(AnalysisConfig().tolerances).ppl == (0.0, 0.05, 0.1)


def test_perplexity_of_the_label_alone_is_said():
    rows = full(np.random.default_rng(0))
    short = [row | ({"output_tokens": 1} if row["kind"] == "compare" else {}) for row in rows]
    assert not any("label alone" in warning for warning in evaluated(rows).warnings)
    assert any("'compare'" in warning and "label alone" in warning for warning in evaluated(short).warnings)


def test_too_many_subsets_are_estimated_and_the_warning_says_so(monkeypatch):
    rows = full(np.random.default_rng(5), questions=3, models="abcdefgh")
    exact = overall(evaluated(rows), "non_transitivity_ratio")
    monkeypatch.setattr("trustjudge_ray.analysis.transitivity.MOST_RESPONSES", 7)
    sampled = evaluated(rows)
    assert sum("estimated" in warning for warning in sampled.warnings) == 3
    estimate = overall(sampled, "non_transitivity_ratio")
    assert (estimate["value"] - exact["value"]).abs().max() < 0.02
    assert estimate["cases"].to_list() == exact["cases"].to_list()
    assert evaluated(rows[::-1]).metrics.equals(sampled.metrics)


def test_responses_that_nobody_asked_about_are_counted_in_what_is_missing():
    rows = full(np.random.default_rng(0), questions=1)
    row = {"question_id": "q0", "response_id": "e", "model": "e", "messages": [], "replies": ["…"]}
    other = row | {"question_id": "elsewhere"}
    responses = pl.DataFrame(pl.from_arrow(schema.from_rows([row, other], schema.RESPONSES)))
    found = overall(evaluated(rows, responses=responses), "non_transitivity_ratio")
    by_k = {row["k"]: json.loads(row["excluded_by"]) for row in found.iter_rows(named=True)}
    assert by_k == {3: {"never_asked": 6}, 4: {"never_asked": 4}, 5: {"never_asked": 1}}


def test_the_suite_worked_by_hand():
    """README of the oracle, `tiny`: CR at scale 5 and 100, NTR and its types."""
    imported = oracle.read({name: BytesIO(shared(f"oracle/tiny/{name}").read_bytes()) for name in oracle.FILES})
    judgments = pl.concat([pl.DataFrame(pl.from_arrow(batch)) for batch in imported.judgments])
    settings = AnalysisConfig(tolerances=[0, 0.05, 0.25, 1], k=[3, 4])
    found = evaluate(judgments, imported.protocols, None, settings).metrics.filter(pl.col("category").is_null())
    conflicts = found.filter(metric="conflict_ratio", verdict_rule="baseline")
    ratios = {(r["protocol"], r["score_rule"], r["tolerance"]): (r["hits"], r["cases"]) for r in conflicts.to_dicts()}
    for rule, tolerance, at_5, at_100 in (
        ("baseline", 0.0, (4, 6), (3, 4)),
        ("geval", 0.0, (3, 6), None),
        ("softmax_weighted", 0.0, (3, 6), (3, 4)),
        ("softmax_weighted", 0.05, (2, 6), (2, 4)),
    ):
        assert ratios["score-5", rule, tolerance] == at_5
        assert at_100 in (None, ratios["score-100", rule, tolerance])
    hits = {
        (r["metric"].removeprefix("non_transitivity_"), r["verdict_rule"], r["tolerance"]): r["hits"]
        for r in found.filter(pl.col("metric").str.starts_with("non_transitivity"), k=3).to_dicts()
    }
    wanted = {("baseline", 0.0): (2, 1, 1), ("likelihood", 0.05): (1, 1, 0), ("likelihood", 0.25): (2, 0, 2)}
    wanted |= {("ppl", 0.0): (1, 1, 0), ("ppl", 1.0): (0, 0, 0)}
    for key, counts in wanted.items():
        assert tuple(hits[kind, *key] for kind in ("ratio", "circular", "equivalence")) == counts
    assert set(found.filter(metric="non_transitivity_ratio", k=4)["value"]) == {None}
