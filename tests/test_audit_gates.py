"""The gate: planted judges pass, are warned of or blocked, and an audit too small to tell says so."""

import polars as pl
import pytest
from planted_audits import ALWAYS_YES, COIN, PERFECT, RANDOM, Judge, audited, tables

from trustjudge_ray.audit.card import card
from trustjudge_ray.audit_config import AuditConfig, GateConfig, GatesConfig, audit_faults
from trustjudge_ray.config import OmegaConf

LENIENT = GatesConfig(auc=GateConfig(0.6, 0.5), both_order_agreement=GateConfig(0.5, 0.3))


def statuses(found):
    return {gate.gate: gate.status for gate in found.gates}


@pytest.mark.parametrize("passages", [12, 80])
@pytest.mark.parametrize(
    "judge, verdict",
    [(PERFECT, "PASS"), (ALWAYS_YES, "BLOCK"), (RANDOM, "BLOCK"), (COIN, "WARN")],
    ids=["perfect", "always yes", "random", "coin"],
)
def test_planted_judges_get_the_verdict_that_they_deserve(judge, verdict, passages):
    assert audited(judge, passages).verdict == verdict


def test_a_coin_of_skill_passes_gates_that_ask_for_less():
    assert audited(COIN, 80, gates=LENIENT).verdict == "PASS"


def test_a_perfect_judge_of_few_items_is_inconclusive_and_not_passed():
    found = audited(PERFECT, 12, 1)
    assert found.verdict == "INCONCLUSIVE"
    assert "fewer than 20 wrong answers" in found.gates[0].text


def test_a_perfect_judge_of_few_passages_is_inconclusive_and_not_blocked():
    """Of three passages the interval of a perfect AUC goes below ½; that is the audit's fault."""
    found = audited(PERFECT, 3, 16)
    assert found.verdict == "INCONCLUSIVE"
    assert "3 passages" in found.gates[0].text


def test_what_is_surely_bad_blocks_even_with_few_cases():
    found = audited(Judge(skill=0.0), 15, 1)
    assert statuses(found)["auc"] == "BLOCK"
    assert statuses(audited(RANDOM, 15, 1))["auc"] == "INCONCLUSIVE"


def test_a_judge_that_rejects_everything_is_as_acquiescent_as_one_that_accepts_everything():
    no = Judge(accepts_all=True, strength=-3.0, lazy=True)
    assert statuses(audited(no))["acquiescence"] == "BLOCK"
    gate = next(gate for gate in audited(no).gates if gate.gate == "acquiescence")
    assert gate.value == 1.0
    assert 0.5 < gate.low < gate.high <= 1


def test_a_size_whose_interval_holds_zero_begins_at_zero():
    gate = next(gate for gate in audited(COIN).gates if gate.gate == "acquiescence")
    assert gate.low == 0
    assert 0 <= gate.value < gate.high


def test_each_gate_stops_the_judge_that_it_is_for_and_no_other():
    ill = {
        "candidate_withheld": Judge(blind=3.0),
        "both_order_agreement": Judge(slot=9.0),
        "coverage": Judge(unreadable=0.7),
    }
    for name, judge in ill.items():
        found = statuses(audited(judge, 40))
        assert found[name] == "BLOCK", name
        assert {status for gate, status in found.items() if gate != name} <= {"PASS", "INCONCLUSIVE"}, name


def test_a_gate_that_is_switched_off_says_nothing():
    off = GatesConfig(auc=None, both_order_agreement=None)
    assert list(statuses(audited(COIN, 40, gates=off))) == ["acquiescence", "candidate_withheld", "coverage"]
    assert audited(COIN, 40, gates=off).verdict == "PASS"


def test_every_gate_says_value_interval_and_threshold_in_words():
    for gate in audited(COIN, 40).gates:
        for number in (gate.value, gate.low, gate.high):
            assert f"{number:.2f}" in gate.text
        assert f"{gate.warn:g}" in gate.text
        assert f"{gate.block:g}" in gate.text


def test_a_gate_whose_verdicts_could_not_be_read_says_so_and_not_that_nobody_asked():
    reads, pairs, generated = tables(COIN)
    vague = pl.when(pl.col("condition") == "no_candidate").then(0.1).otherwise("label_mass").alias("label_mass")
    for given, says in ((reads.with_columns(vague), "could be read (low_mass 48)"), (reads.clear(), "was not asked")):
        (gate,) = [g for g in card(given, pairs, generated, [], AuditConfig()).gates if g.gate == "candidate_withheld"]
        assert (gate.status, gate.value) == ("INCONCLUSIVE", None)
        assert says in gate.text


def test_thresholds_that_contradict_each_other_are_refused_by_name():
    wrong = AuditConfig(
        gates=GatesConfig(auc=GateConfig(0.5, 0.8), acquiescence=GateConfig(0.5, 0.2), coverage=GateConfig(1.5, 0.1))
    )
    faults = audit_faults(wrong)
    assert [fault.split(":")[0] for fault in faults] == [
        "audit.gates.auc",
        "audit.gates.acquiescence",
        "audit.gates.coverage",
    ]
    assert audit_faults(AuditConfig()) == []


@pytest.mark.parametrize(
    "wrong", [{"oracle": "bleu"}, {"min_mass": 2.0}, {"min_wrong": 0}, {"limit": 0}, {"protocols": []}]
)
def test_settings_that_make_no_sense_are_refused_by_name(wrong):
    (fault,) = audit_faults(AuditConfig(**wrong))
    assert fault.startswith(f"audit.{next(iter(wrong))}: got ")


def test_a_configuration_changes_one_threshold_and_switches_a_gate_off():
    written = OmegaConf.create("gates: {auc: {warn: 0.7}, coverage: null}")
    merged = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(AuditConfig), written))
    assert merged.gates.auc == GateConfig(warn=0.7, block=0.5)
    assert merged.gates.coverage is None


def test_without_probes_no_gate_asks_for_what_was_not_asked():
    found = audited(PERFECT, probes=False)
    assert {gate.gate for gate in found.gates} == {"auc", "acquiescence", "coverage"}
    assert found.verdict == "PASS"
