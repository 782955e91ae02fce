"""What a plan leaves out is never a lost case, and a ratio from what is left says what it rests on."""

import json
from itertools import combinations

import numpy as np
import polars as pl
import pytest
from comparisons import game, score, table
from corpora import compare_protocol, responses, score_protocol

from trustjudge_ray.analysis.comparisons import Comparisons, RuleOutcomes
from trustjudge_ray.analysis.evaluation import evaluate
from trustjudge_ray.analysis.layout import Layout
from trustjudge_ray.analysis.non_transitivity import SAMPLED_SUBSETS, non_transitivity_rows
from trustjudge_ray.analysis.transitivity import count_subsets
from trustjudge_ray.analysis.verdicts import Pairs
from trustjudge_ray.config import AnalysisConfig, PlanConfig
from trustjudge_ray.imports.base import compare_protocol as compare_labels
from trustjudge_ray.imports.base import score_protocol as score_labels
from trustjudge_ray.judging import plan
from trustjudge_ray.judging.base import judgments
from trustjudge_ray.judging.scripted import ScriptedJudge

PROTOCOLS = {"score": score_labels(5), "compare": compare_labels()}
SETTINGS = AnalysisConfig(tolerances=[0.0], k=[3])
EMITTED = {"first": "a", "second": "b", "tie": "tie"}


def pair(a, b, said="first", orders=("AB", "BA"), **columns):
    about = {"response_a": a, "model_a": a, "response_b": b, "model_b": b, "emitted": EMITTED[said]}
    return [game("q", "a", "b", said) | about | {"order": order} | columns for order in orders]


def evaluated(rows):
    scored = sorted({row[side] for row in rows for side in ("response_a", "response_b")})
    scores = [score("q", m, (1, 0, 0, 0, 0)) for m in scored]
    return evaluate(table([*rows, *scores]), PROTOCOLS, None, SETTINGS)


def metric(found, name, **where):
    chosen = found.metrics.filter(pl.col("category").is_null(), metric=name, verdict_rule="baseline", **where)
    (row,) = chosen.to_dicts()
    return row | {"excluded_by": json.loads(row["excluded_by"])}


def judged(settings, questions=12, models=6):
    """What a scripted judge says to this plan."""
    texts = {f"q{q:02d}": {f"m{m}": f"text {q} {m}" for m in range(models)} for q in range(questions)}
    protocols = {p.name: p for p in (score_protocol(), compare_protocol())}
    given = responses(texts)
    specs = [plan.Spec("scripted", protocol, name) for name, protocol in protocols.items()]
    tasks = plan.plan(given, specs, settings, [])
    judge = ScriptedJudge({"noise": 0.5}, protocols)
    table = judgments(tasks, judge.judge(plan.with_texts(tasks, given)), protocols)
    return evaluate(pl.DataFrame(pl.from_arrow(table)), protocols, None, SETTINGS)


def about_circles(found):
    return [text for text in found.warnings if "non_transitivity" in text]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"design": "full"}, None),
        ({"design": "blocks", "block": 4}, None),
        ({"design": "matching", "rounds": 1}, "closes none of 240"),
        ({"design": "anchor", "anchor": "m0"}, "closes none of 240"),
        ({"design": "full", "orders": "one"}, "no conflict_ratio and no non_transitivity"),
        ({"design": "full", "orders": "share", "both_share": 0.5}, "of 240 subsets all of whose pairs"),
    ],
)
def test_a_ratio_from_a_sparse_design_says_so_once(settings, complaint):
    told = about_circles(judged(PlanConfig(**settings)))
    assert len(told) == (complaint is not None)
    assert complaint is None or complaint in told[0]


def test_pairs_in_one_order_by_design_are_no_lost_cases():
    """Else the bounds of a share of pairs would be 0 and 1, as if the judge had failed on the others."""
    found = judged(PlanConfig(orders="share", both_share=0.6))
    row = metric(found, "non_transitivity_ratio", k=3)
    assert set(row["excluded_by"]) == {"missing_order"}
    assert row["cases"] + row["excluded"] == 12 * 20
    for end in ("lowest", "highest"):
        bound = metric(found, f"non_transitivity_ratio_{end}", k=3)
        assert (bound["value"], bound["cases"], bound["excluded"]) == (row["value"], row["cases"], row["excluded"])
        conflict = {"score_rule": "expected"}
        plain = metric(found, "conflict_ratio", **conflict)
        assert metric(found, f"conflict_ratio_{end}", **conflict)["value"] == plain["value"]


def test_an_order_that_failed_of_a_pair_asked_once_is_no_lost_case():
    rows = [*pair("a", "b"), *pair("a", "c"), *pair("b", "c", orders=("AB",), status="engine_error")]
    found = evaluated(rows)
    assert metric(found, "non_transitivity_ratio", k=3)["excluded_by"]["missing_order"] == 1
    row = metric(found, "conflict_ratio_highest", score_rule="expected")
    assert (row["cases"], row["excluded_by"]) == (2, {"missing_order": 1})
    assert "engine_error" in set(found.verdicts["status"]), "what became of the one order is not hidden"


def test_a_subset_that_lacks_a_pair_by_design_is_not_lost_to_the_judge_too():
    """`too_long` comes after `missing_order` by name; the bounds are about what was meant to be a case."""
    rows = [*pair("a", "b"), *pair("a", "c", orders=("AB",)), *pair("b", "c", status="too_long")]
    rows += [*pair("a", "d"), *pair("b", "d")]
    found = evaluated(rows)
    assert metric(found, "non_transitivity_ratio", k=3)["excluded_by"] == {"missing_order": 1, "never_asked": 2}
    highest = metric(found, "non_transitivity_ratio_highest", k=3)
    assert (highest["cases"], highest["value"]) == (1, 0)


def same_questions(relations, questions):
    """Every question with the same verdicts, (n, n)."""
    n = len(relations)
    i, j = np.triu_indices(n, 1)
    first, second = (np.concatenate([at + q * n for q in range(questions)]) for at in (i, j))
    outcomes = np.tile(relations[i, j], questions)[None].astype(np.int8)
    every = np.ones(outcomes.shape[1], dtype=bool)
    rule = RuleOutcomes((0.0,), outcomes, every, np.zeros(len(every), dtype=np.int16))
    nothing = np.empty(0)
    pairs = Pairs(pl.DataFrame(), np.stack([every, every], axis=1), nothing, nothing, nothing, rule.status, ("ok",))
    question = np.repeat(np.arange(questions), n)
    named = pl.DataFrame({"question": question, "question_id": [f"q{q}" for q in question]})
    layout = Layout(named, np.full(questions, n), {None: np.arange(questions)})
    owner = np.repeat(np.arange(questions), len(i))
    return layout, Comparisons("j", "compare", pairs, owner, first, second, {"normalised": rule})


def test_the_error_of_drawing_subsets_is_in_the_interval():
    """Twenty questions that are all alike, of more responses than are counted: the draw alone makes them differ, and
    without it in the interval a ratio of millions of subsets would look known to four digits."""
    rng = np.random.default_rng(0)
    n, questions = 101, 20
    ordered = np.sign(np.arange(n)[None] - np.arange(n)[:, None])
    relations = np.where(rng.random((n, n)) < 0.3, rng.choice([-1, 0, 1], (n, n)), ordered).astype(np.int8)
    exact = count_subsets(relations[None], [3], faults=("ratio",))[3]
    truth = float(exact.faulty["ratio"][0] / exact.complete[0])
    rows, told = non_transitivity_rows(*same_questions(relations, questions), [3], 0.95)
    (row,) = pl.concat(rows).filter(metric="non_transitivity_ratio").to_dicts()
    assert any("estimated" in text for text in told)
    assert row["cases"] == questions * exact.complete[0]
    assert row["low"] < truth < row["high"]
    of_draws = np.sqrt(truth * (1 - truth) / (SAMPLED_SUBSETS * questions))
    assert 2 * 1.96 * of_draws < row["high"] - row["low"] < 0.05


def test_what_is_lost_is_estimated_by_reason_where_subsets_are_drawn(monkeypatch):
    rows = []
    for a, b in combinations("abcdefgh", 2):
        status = {("a", "b"): {"status": "engine_error"}, ("c", "d"): {"status": "too_long"}}.get((a, b), {})
        rows += [] if (a, b) == ("g", "h") else pair(a, b, **status)
    where = {"name": "non_transitivity_ratio_highest", "k": 3}
    exact = evaluated(rows)
    monkeypatch.setattr("trustjudge_ray.analysis.transitivity.MOST_RESPONSES", 7)
    drawn = evaluated(rows)
    lost = [metric(found, "non_transitivity_ratio", k=3)["excluded_by"] for found in (exact, drawn)]
    assert lost[0] == {"engine_error": 6, "too_long": 6, "never_asked": 6}
    assert lost[1].keys() == lost[0].keys()
    assert all(abs(lost[1][why] - n) <= 1 for why, n in lost[0].items())
    bounds = [metric(found, **where)["value"] for found in (exact, drawn)]
    assert bounds[1] == pytest.approx(bounds[0], abs=0.03)
