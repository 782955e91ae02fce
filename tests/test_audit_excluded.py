"""Verdicts that cannot be read, answers of unknown truth, tables that hold little: left out, counted, never a crash."""

import json
import math

import numpy as np
import polars as pl
import pytest
from planted_audits import COIN, PERFECT, Judge, audited, holds, number, tables

from trustjudge_ray.audit import reads as reading_off
from trustjudge_ray.audit.card import card
from trustjudge_ray.audit.qa import Item
from trustjudge_ray.audit.reads import shown_gold
from trustjudge_ray.audit.verdicts import GENERATED, PAIRS, READS, AuditTableError, combined, conform, with_reasons
from trustjudge_ray.audit_config import AuditConfig
from trustjudge_ray.judging import protocols
from trustjudge_ray.schema import JUDGMENTS, from_rows

SETTINGS = AuditConfig()


def reading(**changes):
    plain = dict.fromkeys(READS) | {
        "item_id": "i",
        "passage_id": "p",
        "benchmark": "own",
        "candidate": "own",
        "condition": "full",
        "protocol": "v",
        "polarity": "correct",
        "first": "accept",
        "repeat": 0,
        "status": "ok",
        "p_accept": 0.5,
        "log_odds": 0.0,
        "label_mass": 0.9,
    }
    return plain | changes


def verdict(*rows):
    return combined(with_reasons(pl.DataFrame(list(rows), READS), 0.5)).to_dicts()


def test_one_half_is_half_accepted():
    assert verdict(reading(p_accept=0.3), reading(first="reject", p_accept=0.7))[0]["accepts"] == 0.5
    assert verdict(reading(p_accept=0.3), reading(first="reject", p_accept=0.71))[0]["accepts"] == 1


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"status": "too_long", "p_accept": None}, "too_long"),
        ({"label_mass": 0.49}, "low_mass"),
        ({"label_mass": None}, "low_mass"),
        ({"p_accept": None}, "no_probability"),
        ({"p_accept": math.nan}, "no_probability"),
    ],
)
def test_one_reading_that_fails_makes_a_verdict_unreadable_with_its_reason(change, reason):
    (found,) = verdict(reading(p_accept=0.9), reading(first="reject", **change))
    assert (found["reason"], found["accepts"], found["p"], found["log_odds"]) == (reason, None, None, None)


def test_a_verdict_that_lacks_a_way_of_asking_that_others_have_is_not_averaged_over_the_rest():
    rows = [reading(), reading(first="reject"), reading(item_id="j", p_accept=0.9)]
    assert [row["reason"] for row in verdict(*rows)] == [None, "not_asked"]


def test_repetitions_do_not_vote():
    assert verdict(reading(p_accept=0.9), reading(repeat=1, p_accept=0.0))[0]["p"] == 0.9


def test_probability_zero_is_the_worst_and_not_a_crash():
    reads, pairs, generated = tables(PERFECT)
    sure = pl.when(pl.col("log_odds") > 0).then(math.inf).otherwise(-math.inf)
    found = card(reads.with_columns(sure.alias("log_odds")), pairs, generated, [], SETTINGS)
    assert number(found, "auc", "controlled").estimate.value == 1
    json.dumps(found.as_json(), allow_nan=False)


# ---- what is left out is counted


def test_unreadable_verdicts_are_excluded_by_reason_from_both_sides_of_the_balanced_set():
    judge = Judge(unreadable=0.1)
    reads, pairs, generated = tables(judge, 40)
    found = card(reads, pairs, generated, [], SETTINGS)
    bad = reads.filter(pl.col("condition") == "full", pl.col("label_mass") < 0.5)
    lost = bad.filter(pl.col("candidate").is_in(["gold", "swap"]))["item_id"].n_unique()
    gold, swap = (number(found, f"accept_{side}", "controlled") for side in ("gold", "swap"))
    assert gold.excluded_by == swap.excluded_by == {"low_mass": lost}
    assert gold.estimate.cases == swap.estimate.cases == 160 - lost
    own = bad.filter(pl.col("candidate") == "own").height
    assert number(found, "self_evaluation_accuracy", "own").excluded_by == {"low_mass": own}
    assert number(found, "unreadable", "own").estimate.hits == own
    assert holds(number(found, "unreadable", "own"), 0.1)
    assert 1 - number(found, "coverage", "reading").estimate.value == pytest.approx(
        number(found, "unreadable", "reading", "reason=low_mass").estimate.value
    )


def test_answers_of_unknown_truth_and_items_without_an_answer_are_counted_and_no_negatives():
    reads, pairs, generated = tables(PERFECT)
    mine = pl.col("candidate") == "own"
    unknown = pl.when(mine & (pl.col("item_id") < "i0005")).then(None).otherwise("truth").alias("truth")
    less = reads.with_columns(unknown).filter(~(mine & (pl.col("item_id") >= "i0046")))
    found = card(less, pairs, generated, [], SETTINGS)
    figure = number(found, "self_evaluation_accuracy", "own")
    assert figure.excluded_by == {"no_candidate": 2, "no_truth": 5}
    assert figure.estimate.cases == 41


def test_answers_that_failed_or_were_not_decided_are_counted():
    reads, pairs, generated = tables(PERFECT)
    first = pl.col("item_id") == "i0000"
    lost = generated.with_columns(
        pl.when(first).then(pl.lit("too_long")).otherwise("status").alias("status"),
        pl.when(pl.col("item_id") == "i0001").then(None).otherwise("f1").alias("f1"),
    )
    figure = number(card(reads, pairs, lost, [], SETTINGS), "accuracy", "generation")
    assert figure.excluded_by == {"no_truth": 1, "too_long": 1}
    assert figure.estimate.cases == 46


def test_pairs_in_one_order_are_excluded():
    reads, pairs, generated = tables(PERFECT)
    found = card(
        reads, pairs.filter((pl.col("order") == "AB") | (pl.col("item_id") > "i0002")), generated, [], SETTINGS
    )
    assert number(found, "both_order_agreement", "position").excluded_by == {"one_order": 3}


def test_repetitions_are_held_against_the_first_reading():
    reads, pairs, generated = tables(COIN)
    again = reads.filter(pl.col("candidate") == "gold", pl.col("condition") == "full").with_columns(
        pl.lit(1, pl.Int32).alias("repeat"), (1 - pl.col("p_accept")).alias("p_accept")
    )
    again = again.with_columns(
        pl.when(pl.col("item_id") < "i0012").then(1 - pl.col("p_accept")).otherwise("p_accept").alias("p_accept")
    )
    found = card(pl.concat([reads, again]), pairs, generated, [], SETTINGS)
    first = reads.join(again.select("item_id", "candidate", "protocol"), on=["item_id", "candidate", "protocol"])
    moved = first.filter(pl.col("item_id") >= "i0012")["p_accept"].to_numpy()
    assert number(found, "equal_decisions", "repeat").estimate.value == pytest.approx(12 / 48)
    change = number(found, "p_change", "repeat").estimate
    assert (change.cases, change.value) == (288, pytest.approx(np.abs(1 - 2 * moved).sum() / 288))


def test_few_wrong_answers_are_inconclusive_in_figures_that_hang_on_them_and_said():
    found = audited(Judge(answers=0.9), 12)
    wrong = number(found, "false_accept", "own")
    assert (wrong.caution, wrong.conclusive) == ("few_wrong", False)
    assert not number(found, "auc", "own").conclusive
    assert number(found, "false_reject", "own").conclusive
    assert number(found, "generation_accuracy", "own").conclusive
    assert any(said.startswith(f"only {wrong.estimate.cases} of its own answers") for said in found.cautions)


def test_groups_split_the_whole_and_rows_without_a_value_are_in_none():
    found = audited(COIN, 20)
    whole = number(found, "accept_gold", "controlled").estimate

    def split(name):
        chosen = [f for f in found.figures if (f.figure, f.set) == ("accept_gold", "controlled")]
        return [f.estimate for f in chosen if f.group and f.group.startswith(name)]

    for name in ("benchmark=", "answerable="):
        assert sum(part.cases for part in split(name)) == whole.cases
        assert sum(part.hits for part in split(name)) == whole.hits
    assert sum(part.cases for part in split("hops=")) == 64


# ---- tables that hold little


def test_empty_tables_give_every_row_without_cases_and_an_inconclusive_verdict():
    found = card(pl.DataFrame(), pl.DataFrame(schema=PAIRS), pl.DataFrame(schema=GENERATED), [], SETTINGS)
    assert found.verdict == "INCONCLUSIVE"
    assert found.lazy.flag is None
    rows = json.loads(json.dumps(found.as_json(), allow_nan=False))["figures"]
    assert {(row["cases"], row["value"], row["low"], row["caution"]) for row in rows} == {(0, None, None, "no_cases")}
    filled = {(f.figure, f.set) for f in audited(COIN).figures if f.group is None}
    assert {(row["figure"], row["set"]) for row in rows if row["group"] is None} == filled


def test_columns_of_nulls_only_do_not_change_their_type_or_crash():
    reads, pairs, generated = tables(PERFECT)
    nulls = [
        table.with_columns(pl.lit(None).alias(name) for name in table.columns if name not in keys)
        for table, keys in (
            (reads, ("item_id", "passage_id", "benchmark", "candidate", "condition", "protocol", "repeat")),
            (pairs, ("item_id", "passage_id", "benchmark", "order")),
            (generated, ("item_id", "passage_id", "benchmark", "condition")),
        )
    ]
    found = card(*nulls, [], SETTINGS)
    assert {gate.gate: gate.status for gate in found.gates if gate.status != "INCONCLUSIVE"} == {"coverage": "BLOCK"}
    assert number(found, "self_evaluation_accuracy", "own").excluded_by == {"no_status": 48}
    json.dumps(found.as_json(), allow_nan=False)


def test_only_one_passage_gives_values_without_intervals():
    found = audited(COIN, 1, 40)
    figure = number(found, "accept_gold", "controlled")
    assert figure.caution == "no_interval"
    assert figure.as_json()["low"] is None
    assert found.verdict == "INCONCLUSIVE"


def test_a_table_that_lacks_a_column_is_refused_by_name():
    reads, _, _ = tables(PERFECT, 1, 1)
    with pytest.raises(AuditTableError, match=r"READS: no columns \['polarity'\]"):
        conform(reads.drop("polarity"), READS, "READS")
    with pytest.raises(AuditTableError, match="READS"):
        conform(reads.with_columns(pl.lit("often").alias("repeat")), READS, "READS")


def test_an_answer_of_nothing_is_no_verdict_that_the_judge_failed_to_give():
    reads, pairs, generated = tables(PERFECT)
    silent = ["i0001", "i0006"]
    empty = (pl.col("candidate") == "own") & pl.col("item_id").is_in(silent)
    nothing = {"status": pl.lit("empty_response"), "p_accept": None, "log_odds": None, "label_mass": None}
    reads = reads.with_columns(
        pl.when(~empty).then(name).otherwise(value).alias(name) for name, value in nothing.items()
    )
    found = card(reads, pairs, generated, [], SETTINGS)
    assert number(found, "unreadable", "own").estimate.hits == 0
    own = number(found, "coverage", "reading", "candidate=own")
    assert (own.estimate.value, own.excluded_by) == (1, {"empty_response": 2})
    assert number(found, "accept_rate", "own").excluded_by == {"empty_response": 2}
    assert number(found, "readable_readings", "reading").estimate.value == 1
    assert not [figure for figure in found.figures if figure.figure == "unreadable" and figure.set == "reading"]


# ---- a judge that is shown the golds


def test_the_verdict_of_an_oracle_needs_label_mass_and_an_answer_of_nothing_is_wrong_without_one():
    rows = [
        ("right", "ok", [-0.1, -3.0], 0.95),
        ("wrong", "ok", [-3.0, -0.1], 0.95),
        ("vague", "ok", [-3.0, -4.0], 0.07),
        ("sure", "ok", [-0.1, None], 0.9),
        ("failed", "engine_error", None, None),
        ("silent", "empty_response", None, None),
    ]
    kinds = {"status": pl.String, "label_logprobs": pl.List(pl.Float64), "label_mass": pl.Float64}
    judged = pl.DataFrame(rows, {"question_id": pl.String} | kinds, orient="row").with_columns(
        response_a=pl.lit("passage")
    )
    said = shown_gold(judged, 0.5)
    assert dict(said.select("item_id", "shown_gold").iter_rows()) == {
        "right": True, "wrong": False, "vague": None, "sure": True, "failed": None, "silent": False,
    }  # fmt: skip
    assert said["condition"].unique().to_list() == ["passage"]


def test_a_label_that_an_endpoint_does_not_list_has_no_probability_and_costs_no_verdict():
    names = {name: protocols.load(name) for name in ("verify-correct-incorrect", "compare-passage")}
    told = {"task_id": "t", "spec": "s", "judge": "j", "question_id": "i", "sample": 0, "truncated": False}
    told |= {"response_a": "gold", "model_a": "gold", "repeat": 0}
    verify = told | {"kind": "verify", "protocol": "verify-correct-incorrect"}
    pair = told | {"kind": "compare", "protocol": "compare-passage", "response_b": "swap", "model_b": "swap"}
    rows = [
        verify | {"label_logprobs": [-0.01, None], "label_mass": 0.99, "status": "ok"},
        verify | {"question_id": "k", "label_logprobs": None, "label_mass": None, "status": "engine_error"},
        pair | {"order": "AB", "label_logprobs": [-0.1, -3.0, None], "label_mass": 0.95, "status": "ok"},
    ]
    judged = pl.DataFrame(from_rows(rows, JUDGMENTS))
    items = [Item(name, "b", "p", "text", "Who?", ("Ada",), True) for name in ("i", "k")]
    drafted = pl.DataFrame({"item_id": ["i", "k"], "candidate": "gold", "truth": True, "negative": None, "base": None})
    found = with_reasons(conform(reading_off.reads(judged, names, items, drafted), READS, "READS"), 0.5)
    assert found["reason"].to_list() == [None, "engine_error"]
    assert found["p_accept"].to_list() == [1.0, None]
    (both,) = reading_off.pairs(judged, items).to_dicts()
    assert (both["p_tie"], both["p_gold"]) == (0, pytest.approx(math.exp(-0.1) / 0.95))


def test_a_lean_says_how_many_items_it_leaves_out_and_why():
    reads, pairs, generated = tables(COIN)
    lost = sorted(reads["item_id"].unique())[:3]
    gone = pl.col("item_id").is_in(lost) & (pl.col("candidate") == "swap") & (pl.col("polarity") == "wrong")
    reads = reads.with_columns(pl.when(gone).then(pl.lit("engine_error")).otherwise("status").alias("status"))
    found = card(reads, pairs, generated, [], AuditConfig())
    for name in ("accept_lean", "yes_bias", "first_label_bias", "yes_bias_log_odds"):
        figure = number(found, name, "controlled")
        assert (figure.estimate.cases, figure.excluded_by) == (reads["item_id"].n_unique() - 3, {"engine_error": 3})
