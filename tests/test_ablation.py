"""The ablation table holds the numbers that evaluate holds, and differences on the same questions."""

from itertools import combinations

import numpy as np
import polars as pl
import pytest
from comparisons import game, score, table

from trustjudge_ray.analysis.ablation import ABLATION, SCORE_STEPS, VERDICT_STEPS, ablation
from trustjudge_ray.analysis.evaluation import evaluate
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.imports.base import compare_protocol, score_protocol
from trustjudge_ray.report.steps import ablation_text

PROTOCOLS = {p.name: p for p in (score_protocol(5), score_protocol(100), compare_protocol())}
SETTINGS = AnalysisConfig(tolerances=[0.1, 0.0], k=[3, 4])


def suite(questions=12, models="abcde", seed=0):
    """A judge whose emitted labels are noisy and whose distributions know the order of the models."""
    rng = np.random.default_rng(seed)
    rows = []
    for q in range(questions):
        for m, model in enumerate(models):
            for labels in (5, 100):
                centre = (m + 1 + rng.normal(0, 0.4)) / (len(models) + 1) * labels
                p = np.exp(-((np.arange(1, labels + 1) - centre) ** 2) / (2 * (labels / 6) ** 2))
                rows.append(score(f"q{q}", model, p / p.sum(), protocol=f"score-{labels}"))
                rows[-1]["emitted"] = str(1 + rng.choice(labels, p=p / p.sum()))
        for (i, a), (j, b) in combinations(enumerate(models), 2):
            for first, second, lean in ((a, b, i - j), (b, a, j - i)):
                p = np.exp([lean / 2 + 0.5, -lean / 2, -0.5])
                p /= p.sum()
                said = ("first", "second", "tie")[rng.choice(3, p=p)]
                emitted = {"first": "a" if first < second else "b", "second": "b" if first < second else "a"}
                more = {"emitted": emitted.get(said, "tie"), "output_tokens": 9}
                rows.append(game(f"q{q}", first, second, tuple(p), **more, cumulative_logprob=-rng.exponential(9)))
    return rows


@pytest.fixture(scope="module")
def found():
    return ablation(table(suite()), PROTOCOLS, SETTINGS)


def test_every_step_is_there_once_with_the_stated_columns(found):
    assert dict(found.schema) == ABLATION
    counts = dict(found.group_by("metric").len().rows())
    assert counts == {
        "conflict_ratio": 2 * len(SCORE_STEPS),
        "identical_scores": 2 * len(SCORE_STEPS),
        "score_entropy": 2,
        "non_transitivity_ratio": 2 * len(VERDICT_STEPS),
        "tie_rate": len(VERDICT_STEPS),
    }
    assert not found.select("metric", "step", "k").is_duplicated().any()


def test_cells_are_the_numbers_of_evaluate(found):
    metrics = evaluate(table(suite()), PROTOCOLS, None, SETTINGS).metrics.filter(pl.col("category").is_null())
    for cell in found.iter_rows(named=True):
        where = {"metric": cell["metric"], "protocol": cell["protocol"]}
        side = "verdict_rule" if cell["metric"] in ("non_transitivity_ratio", "tie_rate") else "score_rule"
        where |= {side: cell["rule"]} if cell["rule"] else {}
        where |= {"tolerance": cell["tolerance"]} if cell["tolerance"] is not None else {}
        where |= {"k": cell["k"]} if cell["k"] else {}
        where |= {"verdict_rule": "baseline"} if cell["metric"] == "conflict_ratio" else {}
        (row,) = metrics.filter(**where).to_dicts()
        for name in ("value", "low", "high", "hits", "cases", "questions"):
            assert cell[name] == pytest.approx(row[name]), (cell["step"], name)
        if cell["chance"] is not None:
            where["metric"] = f"chance_{cell['metric']}"
            (chance,) = metrics.filter(**where)["value"]
            assert cell["chance"] == pytest.approx(chance)


def test_differences_are_from_the_first_step_and_on_the_same_questions(found):
    for _, family in found.group_by("metric", "k", maintain_order=True):
        first, *later = family.to_dicts()
        assert (first["against"], first["difference"]) == (None, None)
        for row in later:
            assert row["against"] == first["step"]
            assert row["difference"] == pytest.approx(row["value"] - first["value"])
            assert row["joint_low"] <= row["difference_low"] <= row["difference_high"] <= row["joint_high"]
    first = found.filter(metric="conflict_ratio").row(0, named=True)
    assert (first["step"], first["labels"], first["tolerance"]) == ("score-5, baseline", 5, 0.0)


def test_the_planted_gain_of_likelihoods_over_emitted_verdicts_is_shown(found):
    row = found.filter(metric="non_transitivity_ratio", rule="normalised", k=4).row(0, named=True)
    assert row["joint_high"] < 0
    assert row["high"] < row["chance"]


def test_coverage_counts_what_was_lost_and_not_what_was_never_meant():
    rows = suite()
    failed = [row | {"status": "engine_error"} if i % 7 == 0 else row for i, row in enumerate(rows)]
    found = ablation(table(failed), PROTOCOLS, SETTINGS)
    assert (found["coverage"] < 1).all()
    whole = ablation(table([row for row in rows if row["response_b"] != "e"]), PROTOCOLS, SETTINGS)
    assert whole.filter(metric="non_transitivity_ratio")["coverage"].unique().to_list() == [1.0]


@pytest.mark.parametrize("kind", ["score", "compare"])
def test_one_kind_alone_has_its_own_rows_and_no_others(kind):
    found = ablation(table([row for row in suite(3) if row["kind"] == kind]), PROTOCOLS, SETTINGS)
    metrics = {"score": {"identical_scores", "score_entropy"}, "compare": {"non_transitivity_ratio", "tie_rate"}}
    assert set(found["metric"]) == metrics[kind]
    assert len(ablation(table(suite(1)).clear(), PROTOCOLS, SETTINGS)) == 0


def test_the_seed_decides_and_rows_in_any_order_give_the_same_table(found):
    backward = [row | {"task_id": f"{i:06d}"} for i, row in enumerate(suite())][::-1]
    assert ablation(table(backward), PROTOCOLS, SETTINGS).equals(found)


def test_the_text_has_every_step_with_the_numbers_of_the_table():
    found = ablation(table(suite()), PROTOCOLS, SETTINGS)
    text = ablation_text(found)
    for row in found.to_dicts():
        cells = (row["step"], f"{row['value']:.3f}", f"{row['low']:.3f} … {row['high']:.3f}")
        assert any(all(cell in line for cell in cells) for line in text.splitlines()), cells
