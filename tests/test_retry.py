"""`trustjudge retry`: judging again what an endpoint did not answer, and only that."""

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from corpora import protocol_files, rows, write_corpus
from openai_fixtures import KEY, KEY_NAME, Canned, CannedEndpoint, chat_answer, error

from trustjudge_ray import config, retrying, runs
from trustjudge_ray.config import ConfigError
from trustjudge_ray.imported_runs import import_judgments
from trustjudge_ray.judging import base, engines, plan, protocols
from trustjudge_ray.store import PENDING_TASKS, RunFolder


def trustjudge(*args: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "trustjudge_ray", *map(str, args)]
    environment = os.environ | {KEY_NAME: KEY} | env
    return subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment, check=False, cwd=cwd)


class Flaky:
    """An endpoint that fails every question in which one of `down` is read, until it is mended."""

    def __init__(self, endpoint: CannedEndpoint, *down: str) -> None:
        self.endpoint, self.down = endpoint, down
        endpoint.otherwise = self.answer

    def answer(self, request: dict) -> Canned:
        text = json.dumps(request["body"])
        return error(500, "overloaded") if any(word in text for word in self.down) else chat_answer()

    def asked(self) -> list[dict]:
        """What was asked since the last call."""
        found, self.endpoint.requests = self.endpoint.requests, []
        return found


def run_with(tmp_path: Path, endpoint: CannedEndpoint) -> config.LoadedConfig:
    """A run that was made with the endpoint as it is: 4 questions, 2 models, and a third that says nothing once."""
    given = rows(4, ["m1", "m2"])
    given.append({**given[0], "model": "mute", "response": " "})
    judge = {"engine": "openai_api", "model": "gpt-x", "base_url": endpoint.url, "api_key_env": KEY_NAME}
    settings = {
        "out": str(tmp_path / "run"),
        "corpus": {"paths": [str(write_corpus(tmp_path / "answers.jsonl", given))]},
        "judge": judge | {"max_retries": 0},
        "protocols": protocol_files(tmp_path),
        "cluster": {"num_cpus": 2},
        "run": {"max_failure_rate": 1.0},
    }
    loaded = config.loads(json.dumps(settings), "my.yaml")
    runs.run(loaded, lambda *_: None)
    return loaded


def retried(loaded: config.LoadedConfig) -> dict[str, dict[str, int]]:
    """Retry whatever failed, with what the run folder keeps."""
    kept = retrying.configuration(RunFolder(loaded.config.out), [])
    return retrying.retry(kept, retrying.reasons_of([]), lambda *_: None).became


def stored(run: Path) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(part) for part in sorted((run / "judgments").rglob("part-*.parquet"))])


@pytest.mark.ray
def test_a_retry_judges_what_failed_and_nothing_else_and_the_tables_have_one_row_a_task(tmp_path, local_ray, endpoint):
    flaky = Flaky(endpoint, "m1 says 2.", "m2 says 6.")
    loaded = run_with(tmp_path, endpoint)
    run, before = tmp_path / "run", stored(tmp_path / "run")
    broken = before.filter(pl.col("status") == "engine_error")
    assert broken.height == 2 + 4, "two scores, and both orders of the two pairs"

    flaky.down = ("m2 says 6.",)
    flaky.asked()
    assert retried(loaded) == {"engine_error": {"engine_error": 3, "ok": 3}}
    asked = [json.dumps(request["body"]) for request in flaky.asked()]
    assert not any("says 0." in body or "says 4." in body for body in asked), "what was ok is not asked again"

    flaky.down = ()
    assert retried(loaded) == {"engine_error": {"ok": 3}}
    assert sum("m2 says 6." in json.dumps(request["body"]) for request in flaky.asked()) == 3
    assert retrying.failed(loaded, retrying.reasons_of([])).is_empty()

    scores, verdicts = pl.read_parquet(run / "scores.parquet"), pl.read_parquet(run / "verdicts.parquet")
    assert not scores.select("question_id", "response_id", "rule").is_duplicated().any()
    assert scores.filter(pl.col("score").is_null())["response_id"].unique().to_list() == ["mute"]
    assert not verdicts.select("question_id", "response_a", "response_b", "rule", "tolerance").is_duplicated().any()
    manifest = json.loads((run / "manifest.json").read_text())
    assert "engine_error" not in manifest["counts"]
    assert sum(manifest["counts"].values()) == manifest["tasks"] == before["task_id"].n_unique()
    again = stored(run).join(broken.select("task_id"), on="task_id", how="semi")
    assert again.filter(pl.col("status") == "ok").height == broken.height


@pytest.mark.ray
@pytest.mark.heavy
def test_the_command_retries_one_reason_says_what_came_of_it_and_counts_what_is_left(tmp_path, local_ray, endpoint):
    flaky = Flaky(endpoint, "m1 says 2.")
    failing, empty = flaky.answer, chat_answer([["The", -0.1]])
    endpoint.otherwise = lambda request: empty if "m2 says 4." in json.dumps(request["body"]) else failing(request)
    run_with(tmp_path, endpoint)
    flaky.down = ()
    wanted = ["--reason", "engine_error", "run.max_failure_rate=0.1", "--json"]
    done = trustjudge("retry", "run", *wanted, cwd=tmp_path)
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["retried"] == {"engine_error": {"ok": 3}}
    assert (said["now"], said["statuses"]["no_label_mass"]) == (3, 3)
    assert "engine_error: 3 judged again, 3 ok now" in done.stderr
    assert done.returncode == 1, "what is left is over the limit"
    assert "over run.max_failure_rate" in done.stderr
    nothing = trustjudge("retry", "run", "--reason", "engine_error", cwd=tmp_path)
    assert (nothing.returncode, nothing.stderr) == (0, "")
    assert nothing.stdout == "nothing to retry: no judgment of run is engine_error\n"


def test_by_default_every_failure_on_the_judges_side_is_judged_again():
    assert retrying.reasons_of([]) == frozenset(base.JUDGE_FAILURES)
    assert retrying.reasons_of(["engine_error"]) == {"engine_error"}


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ("empty_response", "this comes from the corpus.*would be the same again; mend the corpus"),
        ("identical", "this comes from the corpus"),
        ("ok", "no such failure; one of .*engine_error"),
        ("enginerror", "no such failure; one of .*engine_error"),
    ],
)
def test_a_reason_that_cannot_change_is_refused(status, message):
    with pytest.raises(ConfigError, match=message):
        retrying.reasons_of([status])


def planned_run(folder: Path, text: str) -> RunFolder:
    """A run folder that was planned by a configuration: its tasks and what is kept of the configuration."""
    loaded = config.loads(text, "my.yaml")
    judge = loaded.config.all_judges[0]
    asked = [protocols.load(name) for name in loaded.config.protocols]
    identity = engines.identity(judge, asked)
    specs = [plan.spec(config.judge_name(judge), identity, protocol, judge.temperature) for protocol in asked]
    rows = [
        {
            **dict.fromkeys(PENDING_TASKS.names), "task_id": f"{n:032x}", "spec": spec.hash, "kind": spec.protocol.kind,
            "protocol": spec.protocol.name, "judge": spec.judge, "question_id": "1", "response_a": "m1",
            "model_a": "m1", "sample": 0, "repeat": 0, "pending": True,
        }
        for n, spec in enumerate(specs)
    ]  # fmt: skip
    found = RunFolder(str(folder))
    found.write_table("tasks/bucket=000.parquet", pa.Table.from_pylist(rows, schema=PENDING_TASKS))
    found.write_bytes("config.yaml", loaded.unresolved_yaml.encode())
    return found


SCRIPTED = "{out: elsewhere, corpus: {paths: [a.jsonl]}, judge: {engine: scripted}, protocols: [score-5]%s}"


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("judge.scripted.noise=0.5", True),
        ("judge.temperature=1", True),
        ("protocols=[score-10]", True),
        ("judge.scripted.seconds_per_batch=0.1", False),
        ("run.batch_size=8", False),
    ],
)
def test_another_judge_or_protocol_is_not_a_retry(tmp_path, override, changed):
    """With another spec every task is a new one: the whole run would be judged, and paid for, again."""
    folder = planned_run(tmp_path / "run", SCRIPTED % "")
    if changed:
        with pytest.raises(ConfigError, match="judge 'scripted' with protocol 'score-5' is not as it was in this run"):
            retrying.configuration(folder, [override])
    else:
        retrying.configuration(folder, [override])


def test_a_run_folder_that_was_moved_is_retried_where_it_is(tmp_path):
    folder = planned_run(tmp_path / "a run: 'moved'", SCRIPTED % "")
    assert retrying.configuration(folder, []).config.out == folder.path


def test_a_credential_that_was_not_kept_is_asked_for_by_its_key(tmp_path, monkeypatch):
    folder = planned_run(tmp_path / "run", SCRIPTED % ", storage_options: {key: abc, client: {secret: hunter2}}")
    with pytest.raises(ConfigError, match=r"storage_options.key was written out in clear and not kept; pass .*oc.env:"):
        retrying.configuration(folder, ["storage_options.client.secret=x"])
    monkeypatch.setenv("MY_KEY", "abc")
    given = ["storage_options.key=${oc.env:MY_KEY}", "storage_options.client.secret=${oc.env:MY_KEY}"]
    loaded = retrying.configuration(folder, given)
    assert loaded.config.storage_options["key"] == "abc"
    assert "abc" not in loaded.unresolved_yaml


def test_a_reference_that_is_not_set_here_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "abc")
    folder = planned_run(tmp_path / "run", SCRIPTED % ", storage_options: {key: '${oc.env:MY_KEY}'}")
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(ConfigError, match="MY_KEY"):
        retrying.configuration(folder, [])


def test_imported_judgments_have_no_judge_to_ask(tmp_path):
    battles = tmp_path / "b.jsonl"
    battles.write_text('{"model_a": "x", "model_b": "y", "winner": "tie"}\n')
    folder = RunFolder(str(tmp_path / "run"))
    import_judgments("battles", [str(battles)], folder)
    with pytest.raises(ConfigError, match="these judgments were imported"):
        retrying.configuration(folder, [])


def test_a_folder_without_a_run_is_one_message(tmp_path):
    done = trustjudge("retry", tmp_path / "nothing")
    assert done.returncode == 1
    assert "not a run folder" in done.stderr
    assert "Traceback" not in done.stderr
