"""The command as a user calls it: exit status, one message, what is printed where."""

import json
import subprocess
import sys

import pytest
from corpora import rows, write_corpus
from shared_inputs import shared


def trustjudge(*args: str, env: dict | None = None) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "trustjudge_ray", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, check=False)


def config_file(tmp_path, corpus: dict, **more):
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps({"out": str(tmp_path / "run"), "corpus": corpus, **more}))
    return path


def test_validate_prints_what_the_design_says_as_its_last_line(tmp_path):
    corpus = write_corpus(tmp_path / "a.jsonl", rows(2, ["m1", "m2"]))
    with corpus.open("a") as file:
        file.write('\n{"question_id": 9, "model": "m1"}\nnot json\n')
    done = trustjudge("validate", config_file(tmp_path, {"format": "flat", "paths": [str(corpus)]}), "--json")
    found = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    assert (found["rows"], found["quarantined"]) == (4, 2)
    assert [p["line"] for p in found["problems"]] == [6, 7]
    assert set(found["problems"][0]) == {"source", "line", "reason", "detail"}
    assert sum(found["reasons"].values()) == 2


def test_validate_reads_every_awkward_file_of_the_shared_inputs(tmp_path):
    fields = {"question_id": "id", "response": "r", "model": "=unknown"}
    seen = {}
    for name in ("bom", "badutf8", "dupkey", "trunc", "empty", "latefield"):
        path = str(shared(f"inputs/files/{name}.jsonl"))
        done = trustjudge("validate", config_file(tmp_path, {"paths": [path], "fields": fields}), "--json")
        found = json.loads(done.stdout.splitlines()[-1])
        seen[name] = (found["rows"], found["quarantined"])
    assert seen["bom"] == (2, 0)
    assert seen["badutf8"] == (1, 1)
    assert seen["dupkey"] == (0, 1)
    assert seen["trunc"] == (1, 1)
    assert seen["empty"] == (0, 0)
    assert seen["latefield"] == (3001, 0)


@pytest.mark.parametrize(
    ("args", "status", "says"),
    [
        (["run", "nowhere.yaml"], 2, "nowhere.yaml"),
        (["run", "{config}", "plan.desing=full"], 2, "did you mean 'design'"),
        (["validate", "{config}", "corpus.paths=[missing.jsonl]"], 1, "missing.jsonl"),
        (["judge", "{config}", "judge.model=/no/such/model"], 1, "/no/such/model"),
        (["judge", "{config}", "protocols=[score-7]"], 2, "score-7"),
        (["evaluate", "{nothing}"], 1, "config.yaml"),
        (["retry", "{nothing}"], 1, "not a run folder"),
        (["retry", "{nothing}", "--reason", "empty_response"], 2, "mend the corpus"),
        (["retry", "{nothing}", "--reason", "late"], 2, "one of too_long"),
        (["import", "battles", "missing.jsonl", "--out", "{nothing}"], 1, "missing.jsonl"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_a_mistake_is_one_message_and_a_status_never_a_traceback(tmp_path, args, status, says):
    corpus = write_corpus(tmp_path / "a.jsonl", rows(1, ["m1"]))
    path = config_file(tmp_path, {"paths": [str(corpus)]})
    done = trustjudge(*[a.format(config=path, nothing=tmp_path / "nothing") for a in args])
    assert done.returncode == status, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


COMMANDS = ("ablation", "agree", "answer", "audit", "compare", "doctor", "evaluate", "export", "import", "judge")
COMMANDS += ("label-sheet", "nightly", "plan", "preferences", "report", "retry", "run", "serve-rewards", "show")
COMMANDS += ("validate",)


def test_help_names_every_command_and_each_says_what_it_does():
    """A command that was written and not registered is missing for the user only."""
    from click.testing import CliRunner

    from trustjudge_ray.cli import cli

    assert sorted(cli.commands) == list(COMMANDS)
    said = CliRunner().invoke(cli, ["--help"], prog_name="trustjudge").output
    assert "trustjudge run configs/demo.yaml" in said
    for name in COMMANDS:
        assert f"\n  {name} " in said
        shown = CliRunner().invoke(cli, [name, "--help"])
        assert (shown.exit_code, shown.output.count("Usage:")) == (0, 1)
    assert "trustjudge retry runs/demo" in CliRunner().invoke(cli, ["retry", "--help"]).output


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.heavy
def test_a_budget_ends_a_run_with_status_1_and_the_same_command_goes_on_until_nothing_is_left(tmp_path):
    corpus = write_corpus(tmp_path / "a.jsonl", rows(3, ["m1", "m2", "m3"]))
    path = config_file(tmp_path, {"paths": [str(corpus)]}, judge={"engine": "scripted"})
    first = trustjudge("run", path, "run.max_judgments=20", "--json")
    assert first.returncode == 1
    (said,) = [line for line in first.stderr.splitlines() if line.startswith("error: ")]
    assert "run.max_judgments is 20: 20 judgments were made in this start and 7 are left" in said
    assert "nothing to judge" not in first.stderr
    assert json.loads(first.stdout.splitlines()[-1])["left"] == 7
    second = trustjudge("run", path, "--json")
    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout.splitlines()[-1])["now"] == 7
    assert "Leaderboard by scripted" in second.stdout
    third = trustjudge("run", path)
    assert "nothing to judge: all 27 judgments are there" in third.stderr
    assert (tmp_path / "run" / "report.txt").read_text() in third.stdout
