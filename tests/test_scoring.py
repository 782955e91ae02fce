"""Scores against values that were worked out by hand or by the reference program's own functions."""

import json
import math

import numpy as np
import polars as pl
import pytest
from comparisons import score, table
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_inputs import shared

from trustjudge_ray.analysis.readouts import ReadoutError
from trustjudge_ray.analysis.scoring import SCORING_RULES, Readout, entropy, geval, scores, softmax_weighted
from trustjudge_ray.imports.base import compare_protocol, score_protocol

PROTOCOLS = {"score": score_protocol(5)}
NO = None


def found(*rows, protocols=PROTOCOLS):
    """rule → (score, status) for rows about one response."""
    return {row["rule"]: (row["score"], row["status"]) for row in scores(table(rows), protocols).to_dicts()}


def by_hand(probabilities, emitted=None):
    """The score rules as written in the definition, one label at a time."""
    listed = {s: p for s, p in enumerate(probabilities, 1) if p is not None}
    mass = sum(listed.values())
    weights = {}
    for s, p in listed.items():
        p = min(max(p, 0.0), 1.0)
        weights[s] = math.exp(math.log((p + 1e-8) / (1 - p + 1e-8)) / 0.2)
    return {
        "expected": sum(s * p for s, p in listed.items()) / mass,
        "geval": sum(s * p for s, p in listed.items()),
        "softmax_weighted": sum(s * w for s, w in weights.items()) / sum(weights.values()),
        "mode": max(listed, key=lambda s: (listed[s], -s)),
        "baseline": emitted,
    }


def row(probabilities, **columns):
    """A score judgment; None is a label that was not listed."""
    logs = [NO if p is NO else math.log(p) if p > 0 else -math.inf for p in probabilities]
    return score("q", "m", (1, 0, 0, 0, 0)) | {"label_logprobs": logs} | columns


def cases(name):
    return [json.loads(line) for line in shared(name).read_text("utf-8").splitlines()]


def readout(probs, scale):
    p = np.array([[probs.get(str(s), math.nan) for s in range(1, scale + 1)]])
    return Readout(p, np.array([-1]), np.arange(1.0, scale + 1))


def test_geval_and_softmax_give_the_references_values():
    for case in cases("oracle/functions/geval.jsonl"):
        assert geval(readout(case["probs"], case["scale"]))[0] == pytest.approx(case["score"], abs=1e-9)
    for case in cases("oracle/functions/softmax.jsonl"):
        wanted = case["score"] if "score" in case else case["disputed"]["recommended"]
        value = softmax_weighted(readout(case["probs"], case["scale"]), case["T"], case["eps"])[0]
        assert value == pytest.approx(wanted, abs=1e-9)


def test_plain_label_distributions_have_the_wanted_mean():
    checked = 0
    for case in cases("inputs/score_cases.jsonl"):
        if "alts" not in case or not isinstance(case["want"], dict) or "mean" not in case["want"]:
            continue
        top = case["scale"][1]
        logs = {label: float(log) for label, log in case["alts"]}
        rows = row([1], label_logprobs=[logs.get(str(s)) for s in range(1, top + 1)])
        table_ = scores(table([rows]), {"score": score_protocol(top)}).filter(rule="expected")
        assert table_["score"][0] == pytest.approx(case["want"]["mean"], abs=1e-9)
        if "entropy" in case["want"]:
            assert table_["entropy"][0] == pytest.approx(case["want"]["entropy"])
            assert table_["entropy_share"][0] == pytest.approx(1)
        checked += 1
    assert checked >= 4


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.none(), st.floats(0, 0.2)), min_size=5, max_size=5))
def test_every_rule_is_its_definition(probabilities):
    if not any(probabilities):
        return
    values = {rule: value for rule, (value, _) in found(row(probabilities, emitted="3")).items()}
    assert values == pytest.approx(by_hand(probabilities, 3), abs=1e-9)


def test_a_certain_judge_gets_its_own_score_under_every_rule():
    assert found(row([0, 0, 0, 1, 0], emitted="4")) == dict.fromkeys(SCORING_RULES, (4.0, "ok"))


def test_a_probability_over_one_is_kept_by_geval_and_clamped_by_softmax():
    values = found(row([NO, NO, 1.0001, 1e-5, NO], emitted="3"))
    assert values["geval"][0] == pytest.approx(3 * 1.0001 + 4e-5)
    assert values["softmax_weighted"][0] == pytest.approx(3, abs=1e-9)


def test_no_label_mass_is_no_score_and_not_zero():
    values = found(row([NO, NO, 0, NO, NO], emitted="3"))
    for rule in ("expected", "geval", "mode"):
        assert values[rule] == (None, "no_label_mass")
    assert values["softmax_weighted"] == (3.0, "ok")
    assert values["baseline"] == (3.0, "ok")


def test_nothing_listed_leaves_only_the_emitted_label():
    for logs in ([NO] * 5, NO):
        values = found(row([1], label_logprobs=logs, emitted="2"))
        assert values.pop("baseline") == (2.0, "ok")
        assert set(values.values()) == {(None, "no_label_listed")}


@pytest.mark.parametrize("emitted", [None, "6", "five"])
def test_an_emitted_text_that_is_no_label_is_no_baseline_score(emitted):
    values = found(row([0, 0, 0, 0.5, 0.5], emitted=emitted))
    assert values["baseline"] == (None, "no_emitted_label")
    assert values["expected"] == (4.5, "ok")


def test_a_failed_judgment_keeps_its_row_for_every_rule_with_its_status():
    values = found(row([1], label_logprobs=None, emitted=None, status="too_long"))
    assert values == dict.fromkeys(SCORING_RULES, (None, "too_long"))


@pytest.mark.parametrize("odd", [math.nan, math.inf, 1000.0])
def test_what_is_no_log_probability_is_never_averaged_away(odd):
    values = found(row([1], label_logprobs=[odd, 0.0, NO, NO, NO]))
    assert set(values.values()) == {(None, "bad_logprob")}


def test_samples_are_averaged_as_probabilities_and_failed_ones_left_out():
    values = found(
        row([1, 0, 0, 0, NO], sample=1, emitted="1"),
        row([0, 0, 0, 0.5, NO], sample=2, emitted="4"),
        row([1], label_logprobs=None, emitted=None, sample=0, status="engine_error"),
    )
    assert values["expected"][0] == pytest.approx((1 + 4 * 0.5) / 1.5)
    assert values["geval"][0] == pytest.approx((1 + 4 * 0.5) / 2)
    assert values["baseline"] == (1.0, "ok")


def test_repetitions_of_the_noise_check_do_not_count_as_samples():
    values = found(row([1, 0, 0, 0, 0]), row([0, 0, 0, 0, 1], repeat=1))
    assert values["expected"] == (1.0, "ok")


def test_labels_of_any_numbers_and_words_keep_their_scale():
    words = score_protocol(5).__class__("w", "score", ("bad", "fair", "good"), "", "", (), "[", "]")
    tens = score_protocol(5).__class__("t", "score", ("0", "2.5", "10"), "", "", (), "[", "]")
    half = [-math.inf, math.log(0.5), math.log(0.5)]
    rows = [row([1], protocol=p, label_logprobs=half, emitted=e) for p, e in (("w", "good"), ("t", "10"))]
    got = {(r["protocol"], r["rule"]): r["score"] for r in scores(table(rows), {"w": words, "t": tens}).to_dicts()}
    assert (got["w", "expected"], got["w", "baseline"], got["w", "mode"]) == (2.5, 3.0, 2.0)
    assert (got["t", "expected"], got["t", "baseline"], got["t", "mode"]) == (6.25, 10.0, 2.5)


def test_chunks_do_not_change_scores(monkeypatch):
    rng = np.random.default_rng(0)
    rows = [
        score(f"q{q}", f"m{m}", rng.dirichlet(np.ones(5)), sample=s) for q in range(4) for m in range(3) for s in (0, 1)
    ]
    whole = scores(table(rows), PROTOCOLS)
    monkeypatch.setattr("trustjudge_ray.analysis.readouts.CHUNK_VALUES", 15)
    assert scores(table(rows[::-1]), PROTOCOLS).equals(whole)


def test_judgments_that_do_not_fit_their_protocol_are_refused_with_both_numbers():
    rows = table([row([0.5, 0.5, 0, 0, 0])])
    with pytest.raises(ReadoutError, match=r"protocol 'score': 5 label_logprobs.* 100 labels"):
        scores(rows, {"score": score_protocol(100)})
    with pytest.raises(ReadoutError, match="not among"):
        scores(rows, {})
    with pytest.raises(ReadoutError, match="kind is compare"):
        scores(rows, {"score": compare_protocol()})


def test_entropy_is_of_the_renormalised_distribution():
    assert entropy(np.array([[0.25, 0.25, math.nan], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])) == pytest.approx(
        [math.log(2), 0, math.nan], nan_ok=True
    )


def test_no_score_judgment_gives_an_empty_table_with_its_columns():
    empty = scores(table([]), PROTOCOLS)
    assert len(empty) == 0
    assert empty.schema["score"] == pl.Float64
