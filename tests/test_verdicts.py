"""Verdicts against the worked pairs of the oracle's README, and what must hold of any pair."""

import json
import math

import numpy as np
import polars as pl
import pytest
from comparisons import game, table
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_inputs import shared

from trustjudge_ray.analysis.readouts import ReadoutError
from trustjudge_ray.analysis.tolerances import ScoreTolerance, Tolerances, parse_tolerances
from trustjudge_ray.analysis.verdicts import VERDICT_RULES, pairs_of, verdicts
from trustjudge_ray.config import ConfigError
from trustjudge_ray.judging.base import preset_judgments
from trustjudge_ray.schema import TASKS, from_rows

ZERO = Tolerances()
EMITTED = ("a", "b", "tie")


def pair(ab, ba, emitted=None, total=(-20.0, -30.0), tokens=100, **columns):
    """Both orders of the pair x, y: probabilities of x better, y better, tie (None: not listed)."""
    rows = []
    for n, (order, p) in enumerate((("AB", ab), ("BA", ba))):
        logs = [None if q is None else math.log(q) if q > 0 else -math.inf for q in p]
        said = emitted[n] if emitted else EMITTED[int(np.argmax([q or 0 for q in p]))]
        row = game("q", "x", "y", "tie") | {"order": order, "label_logprobs": logs, "emitted": said}
        rows.append(row | {"cumulative_logprob": total[n], "output_tokens": tokens} | columns)
    return rows


def found(rows, tolerances=ZERO):
    """rule → (outcome, status), or (rule, tolerance) → the same where a rule has several."""
    out = verdicts(table(rows), tolerances).to_dicts()
    several = len({row["tolerance"] for row in out}) > 1
    return {(r["rule"], r["tolerance"]) if several else r["rule"]: (r["outcome"], r["status"]) for r in out}


def outcomes(rows, tolerances=ZERO):
    return {key: outcome for key, (outcome, _) in found(rows, tolerances).items()}


def test_an_order_with_more_label_mass_weighs_more_in_likelihood_only():
    rows = pair((0.30, 0.60, 0.10), (0.30, 0.10, 0.05))
    got = outcomes(rows)
    assert (got["likelihood"], got["normalised"]) == (-1, 1)


def test_the_worked_pair_whose_orders_disagree():
    """README of the oracle, `tiny`, question 1, pair 0, 2: order 1 says B, order 2 (swapped) says A."""
    rows = pair((0.5, 0.4, 0.1), (0.6, 0.3, 0.1), emitted=("b", "a"), total=(-40.0, -20.0))
    got = outcomes(rows, Tolerances(likelihood=(0.0, 0.25), ppl=(0.0, 1.0)))
    assert got["baseline", 0.0] == 0
    assert (got["likelihood", 0.0], got["likelihood", 0.25]) == (1, 0)
    assert (got["ppl", 0.0], got["ppl", 1.0]) == (1, 0)
    assert (got["ppl_tiebreak", 0.0], got["ppl_tiebreak", 1.0]) == (1, 0)


def test_perplexity_decides_all_in_ppl_and_only_disagreements_in_ppl_tiebreak():
    same = pair((0.9, 0.1, 0), (0.9, 0.1, 0), total=(-20.0, -20.0))
    got = outcomes(same)
    assert (got["ppl"], got["ppl_tiebreak"]) == (0, 1)


def test_a_gap_equal_to_the_tolerance_ties_for_perplexity_and_not_for_likelihood():
    rows = pair((0.5, 0.25, 0.25), (0.5, 0.25, 0.25), total=(0.0, -100 * math.log(1.5)))
    got = outcomes(rows, Tolerances(likelihood=(0.25, 0.2500001), ppl=(0.5, 0.4999)))
    assert (got["likelihood", 0.25], got["likelihood", 0.2500001]) == (1, 0)
    assert (got["ppl", 0.5], got["ppl", 0.4999]) == (0, 1)


def test_float_noise_at_the_tolerance_does_not_decide():
    """Half of 1.1 − 0.9 is 0.1 or a hair less or more, by the way that it is added up."""
    rows = pair((0.55, 0.45, 0), (0.55, 0.45, 0))
    assert outcomes(rows, Tolerances(likelihood=(0.1,)))["likelihood", 0.1] == 1


def test_an_exact_tie_is_a_tie_whichever_labels_are_equal():
    for labels in ((0.4, 0.4, 0.2), (0.4, 0.2, 0.4), (0.2, 0.4, 0.4)):
        got = outcomes(pair(labels, labels))
        assert (got["likelihood"], got["normalised"]) == (0, 0)


def test_labels_that_were_not_listed_count_zero():
    for case in (json.loads(line) for line in shared("inputs/pair_cases.jsonl").read_text("utf-8").splitlines()):
        if case.get("same_text"):
            continue
        ab = [case["ab"].get(label) for label in "ABC"]
        ba = [case["ba"].get(label) for label in "BAC"]
        wanted = 0 if case["want"].startswith("tie") else 1
        got = outcomes(pair(ab, ba))
        orders_disagree = "orders disagree" in case["want"]
        assert (got["likelihood"], got["normalised"]) == (wanted, wanted)
        assert got["baseline"] == (0 if orders_disagree else wanted)


def test_identical_texts_are_a_tie_that_nobody_judged():
    tasks = [
        {name: row.get(name) for name in TASKS.names} | {"task_id": row["order"], "status": "identical"}
        for row in pair((1, 0, 0), (1, 0, 0))
    ]
    judgments = pl.DataFrame(pl.from_arrow(preset_judgments(from_rows(tasks, TASKS))))
    rows = verdicts(judgments, ZERO).to_dicts()
    assert {row["rule"] for row in rows} == set(VERDICT_RULES)
    assert {(r["outcome"], r["status"], r["p_a"], r["p_tie"], r["margin"]) for r in rows} == {(0, "identical", 0, 1, 0)}


def test_a_pair_with_one_order_is_not_valid_and_says_so():
    assert set(found(pair((1, 0, 0), (1, 0, 0))[:1]).values()) == {(None, "missing_order")}


def test_a_pair_with_a_failed_order_has_its_status():
    rows = pair((1, 0, 0), (1, 0, 0))
    rows[1] |= {"status": "too_long", "label_logprobs": None, "emitted": None}
    assert set(found(rows).values()) == {(None, "too_long")}
    assert set(found(rows[1:]).values()) == {(None, "too_long")}


@pytest.mark.parametrize("total, tokens", [(None, 100), (-10.0, None), (-10.0, 0)])
def test_undefined_perplexity_makes_pairs_invalid_only_where_it_is_needed(total, tokens):
    disagree = pair((0.9, 0.1, 0), (0.1, 0.9, 0), total=(total, -10.0), tokens=tokens)
    got = found(disagree)
    assert got["ppl"] == got["ppl_tiebreak"] == (None, "undefined_perplexity")
    assert (got["normalised"][1], got["baseline"]) == ("ok", (0, "ok"))
    agree = pair((0.9, 0.1, 0), (0.9, 0.1, 0), total=(total, -10.0), tokens=tokens)
    assert found(agree)["ppl_tiebreak"] == (1, "ok")


def test_two_infinite_perplexities_are_equal_and_one_loses():
    both = pair((0.9, 0.1, 0), (0.1, 0.9, 0), total=(-1e9, -1e9), tokens=1)
    one = pair((0.9, 0.1, 0), (0.1, 0.9, 0), total=(-1e9, -1.0), tokens=1)
    assert (outcomes(both)["ppl"], outcomes(one)["ppl"]) == (0, -1)


def test_a_text_verdict_without_a_distribution_serves_the_rules_that_need_none():
    got = found(pair((1, 0, 0), (1, 0, 0), label_logprobs=None))
    assert got["baseline"] == got["ppl_tiebreak"] == (1, "ok")
    assert got["normalised"] == got["likelihood"] == (None, "no_label_mass")


def test_a_distribution_without_an_emitted_label_serves_the_others():
    got = found(pair((0.9, 0.1, 0), (0.8, 0.2, 0), emitted=(None, "a")))
    assert got["baseline"] == got["ppl"] == got["ppl_tiebreak"] == (None, "no_emitted_label")
    assert got["normalised"] == (1, "ok")


def test_probabilities_are_renormalised_in_each_order_and_margin_is_their_difference():
    row = verdicts(table(pair((0.2, 0.1, 0.1), (0.1, 0.8, 0.1))), ZERO).row(0, named=True)
    assert (row["p_a"], row["p_b"], row["p_tie"]) == pytest.approx((0.3, 0.525, 0.175))
    assert row["margin"] == pytest.approx(-0.225)


def test_samples_are_averaged_before_any_rule():
    rows = [*pair((0.9, 0.1, 0), (0.9, 0.1, 0), sample=0), *pair((0.2, 0.8, 0), (0.2, 0.8, 0), sample=1)]
    row = verdicts(table(rows), ZERO).row(0, named=True)
    assert row["p_a"] == pytest.approx(0.55)
    rows[0] |= {"status": "engine_error", "label_logprobs": None, "emitted": None}
    assert verdicts(table(rows), ZERO).row(0, named=True)["p_a"] == pytest.approx((0.2 + 0.55) / 2)


probabilities = st.lists(st.floats(0.01, 1), min_size=3, max_size=3).map(lambda p: [x / sum(p) for x in p])


said = st.sampled_from(EMITTED)


@settings(max_examples=40, deadline=None)
@given(probabilities, probabilities, said, said, st.floats(-300, -1), st.sampled_from([0.0, 0.05, 0.3]))
def test_naming_the_candidates_the_other_way_negates_every_verdict(ab, ba, first, second, total, tolerance):
    tolerances = Tolerances(likelihood=(tolerance,), ppl=(tolerance,))
    other_name = {"a": "b", "b": "a", "tie": "tie"}

    def exchanged(p):
        return [p[1], p[0], p[2]]

    plain = outcomes(pair(ab, ba, emitted=(first, second), total=(total, -50.0)), tolerances)
    renamed = (other_name[second], other_name[first])
    other = outcomes(pair(exchanged(ba), exchanged(ab), emitted=renamed, total=(-50.0, total)), tolerances)
    assert other == {key: -outcome for key, outcome in plain.items()}


def test_rows_in_any_order_give_the_same_table():
    rows = [r for q in range(3) for r in pair((0.5, 0.3, 0.2), (0.2, 0.7, 0.1), question_id=f"q{q}")]
    forward, backward = (verdicts(table(order), ZERO) for order in (rows, rows[::-1]))
    assert forward.equals(backward)


def test_perplexity_is_the_references():
    for line in shared("oracle/functions/perplexity.jsonl").read_text("utf-8").splitlines():
        case = json.loads(line)
        total, tokens = case["cumulative_logprob"], case["token_count"]
        wanted = case["ppl"] if "ppl" in case else case["disputed"]["recommended"]
        value = pairs_of(table(pair((1, 0, 0), (1, 0, 0), total=(total, total), tokens=tokens))).perplexity[0, 0]
        expected = math.nan if wanted is None else float(wanted)
        assert value == pytest.approx(expected, abs=1e-9, nan_ok=True)


def test_a_comparison_with_other_than_three_labels_is_refused():
    with pytest.raises(ReadoutError, match="2 label_logprobs"):
        verdicts(table(pair((0.5, 0.5), (0.5, 0.5))), ZERO)


def test_no_comparison_gives_an_empty_table_with_its_columns():
    empty = verdicts(table([]), ZERO)
    assert len(empty) == 0
    assert empty.schema["outcome"] == pl.Int32


def test_one_list_serves_all_rules_and_a_share_is_for_scores_alone():
    tolerances = parse_tolerances([0.1, 0, "5%"])
    assert tolerances.likelihood == tolerances.ppl == (0.0, 0.1)
    assert tolerances.score_points((1, 2, 3, 4, 5)) == (0.0, 0.1, 0.2)
    assert tolerances.by_rule["baseline"] == (0.0,)


def test_lists_by_kind_and_the_default_for_what_is_left_out():
    tolerances = parse_tolerances({"score": ["5%", 4.95], "ppl": 0.5})
    assert tolerances.score == (ScoreTolerance(0.05, share=True), ScoreTolerance(4.95))
    assert tolerances.score_points(range(1, 101)) == (4.95,)
    assert (tolerances.likelihood, tolerances.ppl) == ((0.0, 0.05, 0.1), (0.5,))


@pytest.mark.parametrize(
    "given_, message",
    [
        ([-0.1], r"got -0\.1; a number of 0 or more"),
        ([math.nan], "got nan"),
        (["a lot"], "got 'a lot'"),
        ([True], "got True"),
        ([], r"got \[\]; a list of numbers"),
        (False, "got False; a list"),
        (["5%"], "shares apply to scores alone"),
        ({"scores": [0]}, r"unknown key 'scores'; it has \['score', 'likelihood', 'ppl'\]"),
        ({"ppl": ["5%"]}, r"tolerances\.ppl: got \['5%'\]; only scores have a range"),
        ({"likelihood": []}, r"tolerances\.likelihood: got \[\]"),
    ],
)
def test_tolerances_that_cannot_be_are_refused_with_what_would_be_right(given_, message):
    with pytest.raises(ConfigError, match=message):
        parse_tolerances(given_)
