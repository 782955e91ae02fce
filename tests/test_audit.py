"""The whole audit, from items to card, of judges whose mind is known."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from trustjudge_ray import auditing, config
from trustjudge_ray.audit.item_files import own_items
from trustjudge_ray.cli import cli
from trustjudge_ray.judging.base import RunError

pytestmark = pytest.mark.ray

PLANTED = {
    "perfect": {"quality": {"gold": 1.0, "swap": 0.0}},
    "always yes": {"acceptance": 1.0, "verifying": 0.5},
    "random": {"verifying": 0.5, "noise": 5.0, "quality": {"gold": 0.5, "swap": 0.5}},
    "coin": {"verifying": 0.75, "quality": {"gold": 1.0, "swap": 0.0}},
}
"""Scripted judges. Each answers six of ten questions right."""
NO_GATE_ON_ORDER = "gates: {auc: {warn: 0.6, block: 0.5}, acquiescence: {warn: 0.3, block: 0.6}}"


@cache
def audited(name: str, folder: str, further: str = "") -> auditing.Audited:
    script = {"answering": 0.6} | PLANTED[name]
    out = f"{folder}/{name.replace(' ', '-')}{len(further)}"
    text = f"out: {out}\njudge: {{engine: scripted, scripted: {json.dumps(script)}}}\naudit: {{{further}}}\n"
    return auditing.audit(config.loads(text), lambda *_: None)


@pytest.fixture(scope="module")
def folder(local_ray, tmp_path_factory):
    return str(tmp_path_factory.mktemp("audits"))


def figure(card, set, name, group=None):
    (found,) = [f for f in card["figures"] if (f["set"], f["figure"], f["group"]) == (set, name, group)]
    return found


def within(card, set, name, planted):
    found = figure(card, set, name)
    assert found["low"] <= planted <= found["high"], found


@pytest.mark.parametrize(
    "name, planted, says",
    [
        ("perfect", {"false_accept": 0.0, "false_reject": 0.0, "auc": 1.0, "acquiescence": 0.0}, {"PASS"}),
        ("always yes", {"false_accept": 1.0, "false_reject": 0.0, "auc": 0.5, "acquiescence": 1.0}, {"BLOCK"}),
        pytest.param(
            *("random", {"false_accept": 0.5, "false_reject": 0.5, "auc": 0.5, "acquiescence": 0.0}, {"BLOCK"}),
            marks=pytest.mark.heavy,
        ),
        pytest.param(
            *("coin", {"false_accept": 0.25, "false_reject": 0.25, "auc": 0.75, "acquiescence": 0.0}, {"WARN"}),
            marks=pytest.mark.heavy,
        ),
    ],
)
def test_a_planted_judge_is_found_out(folder, name, planted, says):
    card = audited(name, folder).card
    for measure, value in planted.items():
        within(card, "controlled", measure, value)
        within(card, "own", measure, value)
    within(card, "own", "generation_accuracy", 0.6)
    assert card["verdict"] in says, card["gates"]


@pytest.mark.heavy
def test_a_coin_passes_gates_that_ask_for_no_more(folder):
    assert audited("coin", folder, NO_GATE_ON_ORDER).card["verdict"] == "PASS"


def test_a_judge_that_cannot_know_does_not_know_without_the_passage_and_accepts_no_absent_answer(folder):
    card = audited("perfect", folder).card
    within(card, "withheld", "auc_without_passage", 0.5)
    within(card, "withheld", "accept_without_candidate", 0.0)
    yes = audited("always yes", folder).card
    within(yes, "withheld", "accept_without_candidate", 1.0)


def test_the_trivial_judges_are_beside_the_judge_and_always_yes_is_one_of_them(folder):
    card = audited("always yes", folder).card
    accuracy = {
        name: figure(card, "own", name)["value"] for name in ("generation_accuracy", "self_evaluation_accuracy")
    }
    assert accuracy["self_evaluation_accuracy"] == pytest.approx(accuracy["generation_accuracy"])
    assert figure(card, "own", "always_yes_accuracy")["value"] == pytest.approx(accuracy["generation_accuracy"])


def test_an_audit_done_again_judges_nothing_and_writes_a_new_card(folder):
    first = audited("perfect", folder)
    path = Path(first.path).with_name("audit.json")
    path.unlink()
    again = audited.__wrapped__("perfect", folder)
    assert [run["judged_now"] for run in again.card["made"]["runs"].values()] == [0, 0]
    assert path.exists()
    assert again.card["figures"] == first.card["figures"]


def test_what_an_audit_leaves_behind_is_enough_to_see_every_text(folder):
    out = Path(audited("perfect", folder).path).parent
    assert {"audit.json", "audit.html", "audit.txt", "items.parquet", "candidates.parquet"} <= {
        p.name for p in out.iterdir()
    }
    card = json.loads((out / "audit.json").read_text())
    assert card["items"] == len(own_items())


def test_the_command_fails_where_the_gate_blocks_and_names_the_gate(folder):
    """In a process of its own: the command leaves Ray when it is done."""
    audited("always yes", folder)
    script = json.dumps({"answering": 0.6} | PLANTED["always yes"])
    Path(folder, "yes.yaml").write_text(
        f"out: {folder}/always-yes0\njudge: {{engine: scripted, scripted: {script}}}\naudit: {{}}\n"
    )
    command = [sys.executable, "-m", "trustjudge_ray", "audit", "yes.yaml", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    assert "the gate says BLOCK" in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["verdict"] == "BLOCK"


@pytest.mark.heavy
def test_a_gate_that_blocks_fails_nothing_where_the_configuration_says_so(folder):
    assert audited("always yes", folder).failed
    assert audited("always yes", folder, "fail_on: []").failed == []


def small(out, audit, further=""):
    """An audit of few items by a judge whose configuration names this audit's card."""
    script = json.dumps({"answering": 0.6} | PLANTED["perfect"])
    judge = f"{{engine: scripted, audit: {out}, scripted: {script}}}"
    return config.loads(f"out: {out}\njudge: {judge}\naudit: {{limit: 8, {audit}}}\n{further}")


def test_a_judge_that_names_the_card_to_be_made_is_audited_and_a_failed_audit_leaves_no_older_card(tmp_path, folder):
    first = auditing.audit(small(tmp_path, "oracle: shown_gold, probes: false"), lambda *_: None)
    assert list(first.card["made"]["runs"]) == ["answers", "oracle", "verdicts"]
    f1, shown = (figure(first.card, "generation", "accuracy", f"oracle={name}") for name in ("f1", "shown_gold"))
    assert (f1["value"], f1["cases"]) == (shown["value"], shown["cases"])
    with pytest.raises(RunError):
        auditing.audit(small(tmp_path, "seed: 5", "run: {max_judgments: 3}"), lambda *_: None)
    assert not [path.name for path in tmp_path.glob("audit.*")]


@pytest.mark.parametrize(
    "section, message",
    [
        ("audit: {protocols: [score-5]}", "audit.protocols: 'score-5' is of kind score"),
        ("audit: {answer_protocols: [answer-closed-book]}", "one that shows the passage"),
        ("audit: {oracle_judge: nobody}", "audit.oracle_judge: no judge 'nobody'"),
        ("audit: {attention: {items: 2}}", "a scripted judge has no weights"),
    ],
)
def test_an_audit_that_cannot_be_meant_is_one_message(tmp_path, folder, section, message):
    given = config.loads(f"out: {tmp_path}/x\njudge: {{engine: scripted}}\n{section}")
    with pytest.raises(Exception, match=message):
        auditing.audit(given, lambda *_: None)


def test_a_configuration_without_an_audit_section_is_not_asked_for_a_corpus(tmp_path):
    two = "judges: [{engine: scripted}, {engine: scripted, name: scripted-b}]\n"
    (tmp_path / "two.yaml").write_text(f"out: {tmp_path}/out\n{two}")
    done = CliRunner().invoke(cli, ["audit", str(tmp_path / "two.yaml")])
    assert "an audit is of one judge" in str(done.exception)
    assert not (tmp_path / "out").exists()
