"""The command as a user calls it: exit status, one message, what is printed where."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys

import click
import pytest
from called import trustjudge
from click.testing import CliRunner
from corpora import protocol_files, rows, write_corpus
from drivers import Driver
from shared_inputs import shared

from trustjudge_ray import config_keys
from trustjudge_ray.cli import cli
from trustjudge_ray.commands import output
from trustjudge_ray.config import Config
from trustjudge_ray.serving_config import ServingConfig


def started(*args: object) -> subprocess.CompletedProcess:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "trustjudge_ray", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


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
        (["evalute", "{nothing}"], 2, "Did you mean 'evaluate'"),
        (["{config}"], 2, "trustjudge run {config}"),
        (["run", "{config}", "--limt", "3"], 2, "--limit"),
        (["run", "{config}", "limit=3"], 2, "did you mean 'run.limit'"),
        (["run", "{config}", "bloc=3"], 2, "did you mean 'plan.block'"),
        (["run", "{config}", "judge.scripted=1"], 2, "judge.scripted"),
        (["run", "{config}", "plan.design=machting"], 2, "did you mean 'matching'"),
        (["run", "{config}", "judge.engine=openai"], 2, "did you mean 'openai_api'"),
        (["run", "{config}", "corpus.format=flatt"], 2, "did you mean 'flat'"),
        (["run", "{config}", "analysis.verdict_rules=[normalized]"], 2, "did you mean 'normalised'"),
        (["run", "{config}", "compare.fail_on=[regress]"], 2, "did you mean 'regressed'"),
        (["plan", "{config}", "protocols=[score5]"], 2, "did you mean 'score-5'"),
        (["run", "{folder}/confg.yaml"], 2, "did you mean '{folder}/config.yaml'"),
        (["plan", "{config}", "protocols=[{folder}/confg.yaml]"], 2, "did you mean '{folder}/config.yaml'"),
        (["validate", "{config}", "corpus.paths=[{folder}/b.jsonl]"], 1, "did you mean 'a.jsonl'"),
        (["import", "battles", "{folder}/aa.jsonl", "--out", "{nothing}"], 1, "did you mean '{folder}/a.jsonl'"),
        (["import", "battels", "{folder}/a.jsonl", "--out", "{nothing}"], 2, "did you mean 'battles'"),
        (["report", "{folder}/done"], 1, "did you mean '{folder}/does'"),
        (["evaluate", "{nothing}", "plan.block=4"], 2, "evaluate reads analysis"),
        (["report", "{nothing}", "storage_optons.anon=true"], 2, "did you mean 'storage_options'"),
    ],
)
def test_a_mistake_is_one_message_and_a_status_never_a_traceback(tmp_path, args, status, says):
    corpus = write_corpus(tmp_path / "a.jsonl", rows(1, ["m1"]))
    path = config_file(tmp_path, {"paths": [str(corpus)]})
    (tmp_path / "does").mkdir()
    names = {"config": path, "nothing": tmp_path / "x" / "y", "folder": tmp_path}
    done = trustjudge(*[a.format(**names) for a in args])
    assert done.returncode == status, done.stderr
    assert says.format(**names) in done.stderr
    assert sum("rror" in line for line in done.stderr.splitlines()) == 1, done.stderr
    assert ".;" not in done.stderr, "a hint goes on with the sentence"
    assert "Traceback" not in done.stderr


COMMANDS = ("ablation", "agree", "answer", "audit", "compare", "completion", "doctor", "evaluate", "export", "import")
COMMANDS += ("init", "judge", "label-sheet", "nightly", "plan", "preferences", "report", "retry", "run")
COMMANDS += ("serve-rewards", "show", "validate")


def test_help_names_every_command_and_each_says_what_it_does():
    """A command that was written and not registered is missing for the user only."""
    assert sorted(cli.commands) == list(COMMANDS)
    said = CliRunner().invoke(cli, ["--help"], prog_name="trustjudge").output
    assert "trustjudge run configs/demo.yaml" in said
    assert "; run again" not in said, "a sentence is cut where its first thought ends, not in the next one"
    for name in COMMANDS:
        assert f"\n  {name} " in said
        shown = CliRunner().invoke(cli, [name, "--help"])
        assert (shown.exit_code, shown.output.count("Usage:")) == (0, 1)
    assert "trustjudge retry runs/demo" in CliRunner().invoke(cli, ["retry", "--help"]).output


def examples():
    """Every command line in the help texts: the words after `trustjudge`, up to a redirection."""
    for command in [cli, *cli.commands.values()]:
        for line in (command.help or "").splitlines():
            words = shlex.split(line) if line.strip().startswith("trustjudge ") else []
            if words[1:] and words[1] != "COMMAND":
                yield pytest.param(words[1 : words.index(">") if ">" in words else None], id=" ".join(words[:4]))


@pytest.mark.parametrize("words", list(examples()))
def test_an_example_in_a_help_text_is_a_command_line_that_works(words):
    """Its options exist, and so do its configuration keys."""
    command = cli.commands[words[0]]
    given = command.make_context(words[0], words[1:], parent=click.Context(cli, info_name="trustjudge")).params
    root = ServingConfig if words[0] == "serve-rewards" else Config
    known = dict(config_keys.keys(root))
    for override in [*given.get("overrides", ()), *(word for word in given.get("rest", ()) if "=" in word)]:
        key = override.split("=")[0]
        assert key in known or key.rsplit(".", 1)[0] in known, override


def test_every_command_shows_an_example():
    shown = {parameter.values[0][0] for parameter in examples()}
    assert shown == set(COMMANDS)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """An imported run, reported: three questions, on each of which m1 beats m2, m2 beats m3."""
    folder = tmp_path_factory.mktemp("runs")
    battles = [
        {"question_id": f"q{q}", "model_a": a, "model_b": b, "winner": "model_a"}
        for q in range(3)
        for a, b in (("m1", "m2"), ("m2", "m3"))
    ]
    file = write_corpus(folder / "battles.jsonl", battles)
    done = trustjudge("import", "battles", file, "--out", folder / "seen")
    assert done.returncode == 0, done.stderr
    assert trustjudge("evaluate", folder / "seen").returncode == 0
    return folder / "seen"


def test_a_reader_that_goes_away_ends_the_command_quietly_with_the_status_that_it_had(run_folder):
    """A gate that fails must fail, also where `head` had seen enough."""
    command = [sys.executable, "-m", "trustjudge_ray"]
    for arguments, status in ((["--help"], 0), (["evaluate", str(run_folder), "analysis.k=[2]"], 2)):
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "wb") as out:
            done = subprocess.run([*command, *arguments], stdout=out, stderr=subprocess.PIPE, timeout=120, check=False)
        assert done.returncode == status
        assert b"Broken pipe" not in done.stderr
        assert b"Traceback" not in done.stderr


def test_ctrl_c_where_nothing_is_judged_promises_nothing(tmp_path):
    """The command waits for its configuration when the signal comes."""
    os.mkfifo(tmp_path / "config.yaml")
    driver = Driver("validate", str(tmp_path / "config.yaml"))
    with open(tmp_path / "config.yaml", "w"):  # as soon as it is opened for reading
        driver.signal(signal.SIGINT)
        code, out, said = driver.end()
    assert (code, out, said.split()) == (130, "", ["stopped"])


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_a_usage_error_of_every_command(name):
    done = trustjudge(name, "--nosuch")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"Try 'trustjudge {name} --help'" in done.stderr
    assert "error: No such option '--nosuch'" in done.stderr


def test_quiet_leaves_results_and_errors_alone(run_folder):
    loud, quiet = trustjudge("evaluate", run_folder), trustjudge("evaluate", run_folder, "--quiet")
    assert "note: " in loud.stderr
    assert (quiet.stdout, quiet.stderr) == (loud.stdout, "")
    assert "error: " in trustjudge("evaluate", run_folder / "x", "-q").stderr


def test_quiet_and_json_leave_one_json_object(run_folder):
    done = trustjudge("report", run_folder, "--quiet", "--json")
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["report"] == f"{run_folder}/report.html"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("environment", "painted"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "0"}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"NO_COLOR": "", "FORCE_COLOR": "1"}, True),
    ],
)
def test_colours_are_for_terminals_and_for_who_asks_for_them(environment, painted):
    done = trustjudge("run", "nowhere.yaml", **{"NO_COLOR": "", "FORCE_COLOR": ""} | environment)
    assert ("\x1b[" in done.stderr) == painted
    assert "nowhere.yaml" in done.stderr


def test_a_verdict_is_painted_where_it_is_one():
    """Not the word in a sentence, and never the text itself: without its colours it is what it was."""
    text = "Audit of x: BLOCK, do not trust\n  PASS          auc: 0.9\n"
    text += "**Regressed**: m1. Underpowered: 2 of 3. All passed\n"
    painted = output.painted(text)
    assert click.unstyle(painted) == text
    seen = re.findall(r"\x1b\[3(.)m(.*?)\x1b", painted)
    assert seen == [("1", "BLOCK"), ("2", "PASS"), ("1", "**Regressed**"), ("3", "Underpowered")]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.heavy
def test_a_quiet_night_prints_its_json_alone(tmp_path):
    """The report of the run is no line of it."""
    corpus = write_corpus(tmp_path / "a.jsonl", rows(3, ["m1", "m2"]))
    about = {"judge": {"engine": "scripted"}, "protocols": protocol_files(tmp_path)}
    path = config_file(tmp_path, {"paths": [str(corpus)]}, **about)
    command = [sys.executable, "-m", "trustjudge_ray", "nightly", str(path), "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["against"] is None


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.heavy
def test_ctrl_c_says_the_command_that_goes_on_and_that_command_does(tmp_path):
    """Also words that a shell would take apart; not a credential."""
    corpus = write_corpus(tmp_path / "my answers.jsonl", rows(12, ["m1", "m2", "m3"]))
    scripted = {"engine": "scripted", "scripted": {"seconds_per_batch": 0.5}}
    about = {"judge": scripted, "protocols": protocol_files(tmp_path), "run": {"batch_size": 16}}
    path = config_file(tmp_path, {"paths": ["nowhere"]}, **about)
    given = ["judge", str(path), f"corpus.paths=[{corpus}]", "storage_options.secret=abc", "--json"]
    driver = Driver(*given)
    driver.wait_until(lambda: len(list((tmp_path / "run").glob("judgments/*/part-*"))) >= 2, "two parts")
    driver.signal(signal.SIGINT)
    code, out, said = driver.end()
    assert (code, out) == (130, ""), said
    (line,) = [line for line in said.splitlines() if line.startswith("to go on: ")]
    words = shlex.split(line.removeprefix("to go on: "))
    assert words[:3] == ["python", "-m", "trustjudge_ray"]
    assert words[3:] == [*given[:3], "storage_options.secret=(not kept)", "--json"]
    done = started(*given, "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    assert found["tasks"] == 12 * (3 + 6)
    assert 0 < found["now"] < found["tasks"]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.heavy
def test_a_budget_ends_a_run_with_status_1_and_the_same_command_goes_on_until_nothing_is_left(tmp_path):
    corpus = write_corpus(tmp_path / "a.jsonl", rows(3, ["m1", "m2", "m3"]))
    path = config_file(tmp_path, {"paths": [str(corpus)]}, judge={"engine": "scripted"})
    first = started("run", path, "run.max_judgments=20", "--json")
    assert first.returncode == 1
    (said,) = [line for line in first.stderr.splitlines() if line.startswith("error: ")]
    assert "run.max_judgments is 20: 20 judgments were made in this start and 7 are left" in said
    assert "nothing to judge" not in first.stderr
    assert json.loads(first.stdout.splitlines()[-1])["left"] == 7
    second = started("run", path, "--json")
    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout.splitlines()[-1])["now"] == 7
    assert "Leaderboard by scripted" in second.stdout
    third = started("run", path)
    assert "nothing to judge: all 27 judgments are there" in third.stderr
    assert (tmp_path / "run" / "report.txt").read_text() in third.stdout
