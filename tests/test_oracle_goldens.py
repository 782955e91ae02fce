"""Every number that the reference program's own functions gave, from import to metrics.

Rows marked `disputed` are held to the recommended value (the reference is wrong there, or stops), except those whose
README says that either value will do. Rows at a boundary are left out: they tell `<` from `<=` only.
"""

import json
from functools import cache

import polars as pl
import pyarrow as pa
import pytest
from shared_inputs import shared

from trustjudge_ray.analysis.evaluation import evaluate
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.imports import oracle

SUITES = ("tiny", "strong", "weak", "edge_scores", "edge_ties", "crash")
MANIFEST = json.loads(shared("oracle/suites.json").read_text("utf-8"))
SIGNS = {">": 1, "=": 0, "<": -1, None: None}
RULES = ("baseline", "geval", "softmax_weighted")


def goldens(suite, name):
    return [json.loads(line) for line in shared(f"oracle/{suite}/{name}.jsonl").read_text("utf-8").splitlines()]


@cache
def evaluated(suite):
    imported = oracle.read({name: shared(f"oracle/{suite}/{name}").open("rb") for name in oracle.FILES})
    judgments = pl.DataFrame(pl.from_arrow(pa.concat_tables(imported.judgments)))
    tolerances = {"score": sorted({t for ts in MANIFEST["cr_tolerances"].values() for t in ts})}
    tolerances |= {rule: MANIFEST["relation_tolerances"][rule] for rule in ("likelihood", "ppl")}
    settings = AnalysisConfig(tolerances=tolerances, k=[3, 4, 5])
    return evaluate(judgments, imported.protocols, imported.responses, settings)


def counts(metrics, **where):
    """hits and cases of the rows that fit, by category."""
    found = metrics.filter(pl.all_horizontal(pl.col(name).eq_missing(pl.lit(v)) for name, v in where.items()))
    return {row["category"]: (row["hits"], row["cases"], row["value"]) for row in found.to_dicts()}


def wanted(golden, hits, ratio):
    """The same from a golden row; categories without cases are left out there."""
    parts = [golden | {"category": None}, *(c | {"category": c["category"] or "(none)"} for c in golden["by_category"])]
    return {part["category"]: (part[hits], part["total"], part[ratio]) for part in parts}


def with_cases(found):
    return {category: row for category, row in found.items() if category is None or row[1]}


def same(found, want):
    assert {c: row[:2] for c, row in found.items()} == {c: row[:2] for c, row in want.items()}
    for category, row in want.items():
        assert found[category][2] == (None if row[2] is None else pytest.approx(row[2], abs=1e-9))


@pytest.mark.parametrize("suite", SUITES)
def test_scores(suite):
    scores = evaluated(suite).scores.select("protocol", "question_id", "response_id", "rule", "score").rows()
    found = {row[:4]: row[4] for row in scores}
    for golden in goldens(suite, "golden_scores"):
        for rule in RULES:
            disputed = golden.get("disputed", {}).get(rule)
            want = disputed["recommended"] if disputed else golden[rule]
            key = (f"score-{golden['scale']}", str(golden["question_id"]), str(golden["response_id"]), rule)
            assert found[key] == (None if want is None else pytest.approx(want, abs=1e-9)), (key, disputed)


@pytest.mark.parametrize("suite", SUITES)
def test_relations(suite):
    columns = ("question_id", "response_a", "response_b", "rule", "tolerance", "outcome")
    found = {row[:5]: row[5] for row in evaluated(suite).verdicts.select(columns).rows()}
    for golden in goldens(suite, "golden_relations"):
        recommended = {name: d["recommended"] for name, d in golden.get("disputed", {}).items()}
        for rule in ("baseline", "likelihood", "ppl"):
            for tolerance in MANIFEST["relation_tolerances"][rule]:
                name = f"{rule}@{tolerance}"
                want = recommended[name] if name in recommended else golden[rule][f"{tolerance}"]
                key = (str(golden["question_id"]), str(golden["i"]), str(golden["j"]), rule, float(tolerance))
                if name not in golden.get("boundary", []) or name in recommended:
                    assert found[key] == SIGNS[want], (key, want)


@pytest.mark.parametrize("suite", SUITES)
def test_conflict_ratios(suite):
    metrics = evaluated(suite).metrics.filter(metric="conflict_ratio", verdict_rule="baseline")
    for golden in goldens(suite, "golden_cr"):
        if golden["boundary_pairs"]:
            continue
        want = wanted(golden.get("recommended", golden), "conflict_count", "conflict_ratio")
        where = {"protocol": f"score-{golden['scale']}", "score_rule": golden["method"]}
        found = counts(metrics, **where, tolerance=float(golden["tolerance"]))
        same(with_cases(found), want)


@pytest.mark.parametrize("suite", SUITES)
def test_non_transitivity_ratios(suite):
    metrics = evaluated(suite).metrics
    for golden in goldens(suite, "golden_ntr"):
        want = golden.get("recommended", golden)
        if golden.get("boundary") or golden.get("boundary_pairs") or "total" not in want:
            continue
        where = {"k": golden["k"], "verdict_rule": golden["method"], "tolerance": float(golden["tolerance"])}
        found = counts(metrics, metric="non_transitivity_ratio", **where)
        same(with_cases(found), wanted(want, "non_transitive_count", "ntr"))
        for kind, count in want["error_type_counts"].items():
            overall = counts(metrics, metric=f"non_transitivity_{kind}", **where)[None]
            assert overall[:2] == (count, want["total"])


def test_a_rule_that_sees_a_tie_at_the_tolerance_is_noticed():
    """The goldens can tell `<` from `<=`: at least one row of `edge_ties` lies on a boundary."""
    assert any(golden.get("boundary") for golden in goldens("edge_ties", "golden_relations"))
