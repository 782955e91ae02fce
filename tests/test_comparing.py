"""`compare`, `nightly`, `label-sheet`, `import label-sheet` and `agree` as users call them."""

import contextlib
import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from corpora import protocol_files, rows, write_corpus
from run_folders import write_run
from test_compare import round_robin, scores_of, side, texts_of

from trustjudge_ray import config
from trustjudge_ray.cli import perform
from trustjudge_ray.comparing import earlier_night
from trustjudge_ray.store import RunFolder

MODELS = {"m1": 3.0, "m2": 4.0, "m3": 2.0}


def trustjudge(*args: object) -> subprocess.CompletedProcess:
    """The command in this process: the interpreter's start would be most of the time."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["trustjudge", *map(str, args)])
        patch.setattr(signal, "signal", lambda *_: None)
        status = perform()
    return subprocess.CompletedProcess(list(args), status, out.getvalue(), err.getvalue())


def night(path, levels=MODELS, version=None, questions=30, text="compare: {bootstrap: 100}\n", **more):
    rng = np.random.default_rng(0)
    judged = scores_of(levels, rng, questions, spread=0.2) + round_robin(levels, rng, questions, spread=0.2)
    return write_run(path, side("x", judged, texts_of(levels, questions, version)), text, **more)


def test_a_comparison_is_printed_and_written_and_passes_unless_a_gate_is_given(tmp_path):
    night(tmp_path / "a")
    night(tmp_path / "b", MODELS | {"m2": 3.0}, {"m2": 1})
    done = trustjudge("compare", tmp_path / "a", tmp_path / "b")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "b" / "comparison.md").read_text() in done.stdout
    assert "**Regressed**: m2 (mean_score), " in done.stdout
    found = json.loads((tmp_path / "b" / "comparison.json").read_text())
    assert found["passed"] is True
    gated = trustjudge("compare", tmp_path / "a", tmp_path / "b", "--fail-on", "regressed", "--json")
    assert gated.returncode == 1
    assert "error: regressed: " in gated.stderr
    assert json.loads(gated.stdout.splitlines()[-1])["failed"][0].startswith("regressed: ")
    back = trustjudge("compare", tmp_path / "b", tmp_path / "a", "compare.fail_on=[regressed]", "--out", tmp_path / "c")
    assert back.returncode == 0, back.stderr
    assert (tmp_path / "c" / "comparison.json").exists()


def test_the_gate_of_the_configuration_holds_without_an_option(tmp_path):
    gated = "compare: {bootstrap: 100, fail_on: [regressed]}\n"
    night(tmp_path / "a")
    night(tmp_path / "b", MODELS | {"m2": 3.0}, {"m2": 1}, text=gated)
    assert trustjudge("compare", tmp_path / "a", tmp_path / "b").returncode == 1


@pytest.mark.parametrize(
    ("args", "status", "says"),
    [
        (["compare", "{a}", "{nothing}"], 1, "not a run folder"),
        (["compare", "{a}", "{other}"], 1, "nothing to compare"),
        (["compare", "{a}", "{a}", "compare.smalest=1"], 2, "did you mean 'smallest'"),
        (["compare", "{a}", "{a}", "compare.fail_on=[regresed]"], 2, "compare.fail_on"),
        (["label-sheet", "{a}", "--n", "10000", "--out", "{nothing}"], 2, "the pairs"),
        (["label-sheet", "{a}", "--kind", "score", "--protocol", "x", "--out", "{nothing}"], 2, "one of ['score']"),
        (["import", "label-sheet", "{csv}", "--out", "{a}"], 1, "not drawn at random"),
        (["agree", "{a}"], 2, "nothing of people to compare with"),
        (["agree", "{a}", "--leaderboard", "{csv}"], 1, "no column 'rating'"),
    ],
)
def test_a_mistake_is_one_message_and_a_status(tmp_path, args, status, says):
    night(tmp_path / "a", questions=4)
    night(tmp_path / "other", {"n1": 2.0, "n2": 3.0}, questions=4)
    (tmp_path / "some.csv").write_text("unit,better,model\n1,1,m\n")
    places = {name: tmp_path / name for name in ("a", "nothing", "other")} | {"csv": tmp_path / "some.csv"}
    done = trustjudge(*[arg.format(**places) for arg in args])
    assert done.returncode == status, done.stderr + done.stdout
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_sheet_goes_out_comes_back_and_estimates_what_people_would_say(tmp_path):
    night(tmp_path / "run")
    drawn = trustjudge("label-sheet", tmp_path / "run", "--n", 40, "--out", tmp_path / "s.csv", "--json")
    assert drawn.returncode == 0, drawn.stderr
    about = json.loads(drawn.stdout)
    assert (about["drawn"], about["frame"], about["probability"]) == (40, 90, 40 / 90)
    kept = json.loads((tmp_path / "run" / "label-sheets" / f"{about['sheet']}.json").read_text())
    assert kept["seed"] == 0
    assert kept["frame"] == 90
    lines = list(csv.DictReader((tmp_path / "s.csv").open(encoding="utf-8-sig")))
    for who in ("anna", "ben"):
        for i, row in enumerate(lines):
            first, second = row["answer_1"][:2], row["answer_2"][:2]
            row["better: 1, 2 or tie"] = "1" if MODELS[first] > MODELS[second] else "2"
            if i == 0:
                row["better: 1, 2 or tie"] = "" if who == "ben" else "tie"
        with (tmp_path / f"{who}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]))
            writer.writeheader()
            writer.writerows(lines)
    read = trustjudge("import", "label-sheet", tmp_path / "anna.csv", tmp_path / "ben.csv", "--out", tmp_path / "run")
    assert read.returncode == 0, read.stderr
    assert "79 labels" in read.stdout
    assert f"ben.csv:2: {about['sheet']}-00000: unfilled" in read.stderr
    told = trustjudge("agree", tmp_path / "run", "--json")
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)["sheets"][0]
    assert found["annotators"] == ["anna", "ben"]
    assert found["alpha"]["nominal"] == 1.0
    assert found["labelled"] == 40
    rates = {row["model"]: row for row in found["powered"]}
    assert rates["m2"]["low"] <= rates["m2"]["value"] <= rates["m2"]["high"]
    assert rates["m2"]["value"] > 0.9
    exact = next(
        m for m in found["metrics"] if m["metric"] == "agreement_pair_exact" and m["verdict_rule"] == "normalised"
    )
    assert exact["cases"] == 40
    assert (
        trustjudge("agree", tmp_path / "run").stdout.rstrip()
        == (tmp_path / "run" / "agreement.md").read_text().rstrip()
    )


def test_a_leaderboard_of_people_is_set_beside_every_ranking(tmp_path):
    night(tmp_path / "run")
    (tmp_path / "people.csv").write_text("model,rating,low,high\nm2,9,8,10\nm1,5,4,6\nm3,1,0,2\nx,1,0,2\n")
    done = trustjudge("agree", tmp_path / "run", "--leaderboard", tmp_path / "people.csv", "--json")
    assert done.returncode == 0, done.stderr
    boards = {board["rule"]: board for board in json.loads(done.stdout)["leaderboard"]}
    assert {"davidson", "win_rate", "mean_score"} <= set(boards)
    assert boards["mean_score"]["agreement"] == 1.0
    assert boards["mean_score"]["only_theirs"] == ["x"]


def test_imported_battles_are_compared_by_their_ids_and_the_page_says_so(tmp_path):
    for name, winner in (("a", "model_a"), ("b", "model_b")):
        votes = [{"question_id": q, "model_a": "x", "model_b": "y", "winner": winner} for q in range(20)]
        votes += [{"question_id": q, "model_a": "x", "model_b": "y", "winner": "tie"} for q in range(20, 30)]
        write_corpus(tmp_path / f"{name}.jsonl", votes)
        trustjudge("import", "battles", tmp_path / f"{name}.jsonl", "--out", tmp_path / name)
    done = trustjudge("compare", tmp_path / "a", tmp_path / "b", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    changes = {change["model"]: change for change in found["changes"]}
    assert changes["x"]["verdict"] == "regressed"
    assert changes["x"]["difference"] == pytest.approx(-2 / 3)
    assert any("taken to be the same by their ids" in text for text in found["warnings"])


def test_a_night_is_compared_with_the_last_good_night_before_it(tmp_path):
    for name in ("2026-01-01", "2026-01-02", "2026-01-05"):
        night(tmp_path / name, questions=2)
    night(tmp_path / "2026-01-03", questions=2, finished=False)
    scored = scores_of(MODELS, np.random.default_rng(0), 2)
    bad = [row | {"status": "engine_error", "label_logprobs": None} for row in scored[:3]] + scored[3:]
    write_run(tmp_path / "2026-01-02b", side("x", bad))
    tonight = RunFolder(str(tmp_path / "2026-01-04"))
    found, told = earlier_night(tonight, None, 0.02)
    assert found.path == str(tmp_path / "2026-01-02")
    assert len(told) == 1
    assert "2026-01-02b is passed over" in told[0]
    assert earlier_night(tonight, str(tmp_path / "2026-01-01"), 0.02)[0].path == str(tmp_path / "2026-01-01")
    assert earlier_night(RunFolder(str(tmp_path / "2025-12-31")), None, 0.02) == (None, [])
    assert earlier_night(tonight, str(tmp_path / "nowhere"), 0.02) == (None, [])


def test_nights_without_dates_are_in_order_of_when_they_were_finished(tmp_path):
    for at, name in enumerate(("zulu", "alpha", "tonight")):
        night(tmp_path / name, questions=2)
        os.utime(tmp_path / name / "manifest.json", (1000 + at, 1000 + at))
    assert earlier_night(RunFolder(str(tmp_path / "tonight")), None, 0.02)[0].path == str(tmp_path / "alpha")


def test_a_run_without_any_common_protocol_is_not_compared(tmp_path):
    rng = np.random.default_rng(0)
    write_run(tmp_path / "a", side("a", scores_of(MODELS, rng, 3)))
    write_run(tmp_path / "b", side("b", round_robin(MODELS, rng, 3)))
    done = trustjudge("compare", tmp_path / "a", tmp_path / "b")
    assert done.returncode == 1
    assert "only in" in done.stderr


def test_the_nightly_configuration_that_ships_is_one():
    loaded = config.load(Path(__file__).parent.parent / "configs" / "nightly.yaml", ["out=runs/nights/2026-01-31"])
    assert loaded.config.compare.fail_on == ["regressed"]
    assert loaded.config.nightly.against == "s3://my-bucket/nights"


NIGHTLY = Path(__file__).parent.parent / "jobs" / "nightly.py"


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.heavy
def test_a_night_judges_what_is_new_finds_the_model_that_fell_and_fails_by_its_gate(tmp_path):
    """Nights with one store: only the model with new answers is judged again, and only it has changed."""
    models = ["m1", "m2", "m3", "m4"]
    quality = {"m1": 0.5, "m2": 0.6, "m3": 0.4, "m4": 0.7}
    written = {
        "out": str(tmp_path / "nights" / "2026-01-01"),
        "store": str(tmp_path / "store"),
        "corpus": {"paths": [str(tmp_path / "tonight.jsonl")]},
        "judge": {"engine": "scripted", "scripted": {"quality": quality, "noise": 0.02}},
        "protocols": protocol_files(tmp_path),
        "compare": {"fail_on": ["regressed"], "bootstrap": 100},
        "cluster": {"num_cpus": 2},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(written))

    def run(*overrides):
        command = [sys.executable, str(NIGHTLY), str(tmp_path / "config.yaml"), *overrides]
        return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)

    answers = rows(12, models)

    def corpus(text):
        write_corpus(tmp_path / "tonight.jsonl", [r | {"response": text} if r["model"] == "m4" else r for r in answers])

    def found(name):
        return json.loads((tmp_path / "nights" / name / "comparison.json").read_text())

    corpus("first")
    first = run()
    assert first.returncode == 0, first.stderr
    assert "no earlier night to compare with" in first.stderr

    corpus("another")
    second = run(f"out={tmp_path}/nights/2026-01-02")
    assert second.returncode == 0, second.stderr
    manifest = json.loads((tmp_path / "nights" / "2026-01-02" / "manifest.json").read_text())
    assert (manifest["judged_now"], manifest["reused"]) == (12 + 12 * 3 * 2, 3 * 12 + 12 * 3 * 2)
    changes = found("2026-01-02")["changes"]
    assert found("2026-01-02")["a"].endswith("2026-01-01")
    assert {c["model"] for c in changes if c["difference"] == 0.0} == {"m1", "m2", "m3"}

    corpus("worse")  # the scripted judge knows a model by its name, so it is another judge that sees this
    third = run(f"out={tmp_path}/nights/2026-01-03", "judge.scripted.quality.m4=0.2")
    assert third.returncode == 1, third.stderr
    assert "error: regressed: m4" in third.stderr
    assert found("2026-01-03")["a"].endswith("2026-01-02")
    assert {c["model"] for c in found("2026-01-03")["changes"] if c["verdict"] == "regressed"} == {"m4"}
    assert "NOT THE SAME JUDGE" in (tmp_path / "nights" / "2026-01-03" / "comparison.md").read_text()
