"""The jobs as Ray users submit them: `ray job submit` to a cluster that was started before, and that goes on after."""

import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
from corpora import protocol_files, rows, write_corpus
from s3_fixtures import free_port

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(280)]

ROOT = Path(__file__).parent.parent
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


@dataclass(frozen=True)
class Head:
    """A head that `ray start` made, and what a client needs to reach it."""

    address: str
    environment: dict[str, str] = field(repr=False)

    def ray(self, *arguments: str, timeout: float = 200) -> subprocess.CompletedProcess:
        """`ray …` as a user calls it."""
        return subprocess.run(
            [*RAY, *arguments], capture_output=True, text=True, timeout=timeout, env=self.environment, check=False
        )

    def client(self) -> Any:
        from ray.job_submission import JobSubmissionClient

        headers = {"Authorization": f"Bearer {self.environment['RAY_AUTH_TOKEN']}"}
        return JobSubmissionClient(self.address, headers=headers)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """A head with ports, temporary folder and token of its own. Ended by its process ids: `ray stop` ends every Ray."""
    pytest.importorskip("ray")
    home = Path(tempfile.mkdtemp(prefix="tjj-", dir="/tmp"))
    mark, port, dashboard = secrets.token_hex(16), free_port(), free_port()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "TRUSTJUDGE_TEST": mark,
    }
    start = ["start", "--head", "--block", "--num-cpus=3", "--node-ip-address=127.0.0.1", f"--port={port}"]
    start += ["--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"]
    start += [f"--dashboard-agent-listen-port={free_port()}", f"--ray-client-server-port={free_port()}"]
    start += [f"--metrics-export-port={free_port()}", f"--temp-dir={home}", f"--object-store-memory={256 * 2**20}"]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen([*RAY, *start], env=environment, stdout=log, stderr=log, start_new_session=True)
    found = Head(f"http://127.0.0.1:{dashboard}", environment)
    try:
        _wait_for(lambda: _answers(found), 90, f"a head: {(home / 'log').read_text(errors='replace')[-3000:]}")
        yield found
    finally:
        process.terminate()
        _end(mark)
        process.wait(20)
        shutil.rmtree(home, ignore_errors=True)


def _answers(head: Head) -> bool:
    try:
        head.client().list_jobs()
    except (ConnectionError, RuntimeError):
        return False
    return True


def _end(mark: str) -> None:
    """Wait for every process that carries the mark in its environment; kill what is left after a while."""
    marked = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TRUSTJUDGE_TEST") == mark:
                marked.append(process)
        except psutil.Error:
            continue
    _, alive = psutil.wait_procs(marked, timeout=6)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=15)


def _wait_for(there: Callable[[], bool], seconds: float, what: str) -> None:
    """Asked again and again: another program says in no other way that it is so far."""
    deadline = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)


@dataclass(frozen=True)
class Job:
    """One of `jobs/`, and what it must leave in its run folder.

    Attributes:
        settings: of a configuration whose corpus, protocols and `out` are given.
        tables: the files that it writes when it is done.
        says: what its log holds then.
    """

    script: str
    settings: dict[str, Any]
    tables: tuple[str, ...]
    says: str


TABLES = ("scores.parquet", "verdicts.parquet", "metrics.parquet", "ratings.parquet", "metrics.json", "report.html")
_SCRIPTED = {
    "judge": {"engine": "scripted", "scripted": {"quality": {"m1": 0.9, "m2": 0.5}}},
    "run": {"batch_size": 12},
}
JOBS = {
    "leaderboard": Job("leaderboard.py", _SCRIPTED, (*TABLES, "manifest.json"), "Leaderboard by scripted"),
    "nightly": Job("nightly.py", _SCRIPTED, (*TABLES, "manifest.json"), "no earlier night to compare with"),
}
every_job = pytest.mark.parametrize(
    "job", [JOBS["leaderboard"], pytest.param(JOBS["nightly"], marks=pytest.mark.heavy)], ids=JOBS
)


@dataclass(frozen=True)
class Submission:
    """A folder as a user has it: script, configuration and corpus; submitted as `working_dir`."""

    head: Head
    job: Job
    folder: Path
    run: Path

    @property
    def runtime_env(self) -> dict[str, Any]:
        variables = {"RUN_FOLDER": str(self.run), "PYTHONPATH": str(ROOT), "RAY_JOB_STOP_WAIT_TIME_S": "60"}
        return {"working_dir": str(self.folder), "env_vars": variables}

    def entrypoint(self, *more: str) -> list[str]:
        return ["python", f"jobs/{self.job.script}", "my.yaml", *more]

    def submit(self, *more: str) -> subprocess.CompletedProcess:
        """`ray job submit … -- python jobs/X.py my.yaml …`, until the job has ended."""
        options = ["--address", self.head.address, "--runtime-env-json", json.dumps(self.runtime_env)]
        return self.head.ray("job", "submit", *options, "--", *self.entrypoint(*more))

    def judgments(self) -> list[str]:
        """The task id of every row in the store."""
        parts = [pl.read_parquet(part, columns=["task_id"]) for part in self.parts()]
        return pl.concat(parts)["task_id"].to_list() if parts else []

    def parts(self) -> dict[Path, int]:
        """Every part, with when it was written."""
        found = (self.run / "judgments").rglob("part-*.parquet")
        return {part: part.stat().st_mtime_ns for part in found}

    def tasks(self) -> list[str]:
        """The task ids of the run."""
        files = [pl.read_parquet(file, columns=["task_id"]) for file in (self.run / "tasks").rglob("*.parquet")]
        return pl.concat(files)["task_id"].to_list()


@pytest.fixture
def submission(head: Head, job: Job, tmp_path: Path) -> Submission:
    folder = tmp_path / "work"
    (folder / "jobs").mkdir(parents=True)
    shutil.copy(ROOT / "jobs" / job.script, folder / "jobs")
    write_corpus(folder / "answers.jsonl", rows(16, ["m1", "m2", "m3"]))
    protocols = [Path(path).name for path in protocol_files(folder)]
    settings = {"out": "${oc.env:RUN_FOLDER}", "corpus": {"paths": ["answers.jsonl"]}, "protocols": protocols}
    (folder / "my.yaml").write_text(json.dumps(settings | job.settings))
    return Submission(head, job, folder, tmp_path / "run")


@every_job
def test_a_submitted_job_succeeds_with_every_table_and_a_log_one_can_read(submission):
    done = submission.submit()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "succeeded" in done.stdout + done.stderr
    assert [name for name in submission.job.tables if not (submission.run / name).is_file()] == []
    assert sorted(submission.judgments()) == sorted(submission.tasks())
    assert len(submission.tasks()) == 16 * (3 + 6)
    log = done.stdout
    assert submission.job.says in log
    assert "planned 144 judgments, 144 of them to judge" in log
    assert [word for word in ("\r", "it/s", "Running Dataset", "Traceback", "(raylet)", "WARNING") if word in log] == []
    assert submission.head.environment["RAY_AUTH_TOKEN"] not in log


@every_job
def test_a_broken_configuration_fails_the_job_with_status_1_and_one_message(submission):
    done = submission.submit("judge.temprature=1")
    assert done.returncode == 1, done.stdout + done.stderr
    said = done.stdout + done.stderr
    assert "failed" in said
    (error,) = {line for line in done.stdout.splitlines() if line.startswith("error: ")}
    assert "unknown key 'temprature'; did you mean 'temperature'?" in error
    assert "Traceback" not in said


@pytest.mark.heavy
@every_job
def test_a_stopped_job_ends_cleanly_and_a_second_submit_goes_on_from_there(submission):
    name = f"stop-{secrets.token_hex(4)}"
    client = submission.head.client()
    slow = submission.entrypoint("judge.scripted.seconds_per_batch=1")
    client.submit_job(entrypoint=shlex.join(slow), submission_id=name, runtime_env=submission.runtime_env)

    def some() -> bool:
        assert str(client.get_job_status(name)) in ("PENDING", "RUNNING"), client.get_job_logs(name)
        return len(submission.parts()) >= 2

    _wait_for(some, 90, "two parts")
    stopped = submission.head.ray("job", "stop", "--address", submission.head.address, name)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert str(client.get_job_status(name)) == "STOPPED"
    log = client.get_job_logs(name)
    assert "stopped; what was judged is saved: the same command goes on from there" in log
    assert "Traceback" not in log
    kept, before = submission.parts(), submission.judgments()
    assert 0 < len(before) < len(submission.tasks())
    done = submission.submit()
    assert done.returncode == 0, done.stdout + done.stderr
    assert kept.items() <= submission.parts().items(), "what was judged is not judged or written again"
    assert sorted(submission.judgments()) == sorted(submission.tasks())
    assert [file for file in submission.run.rglob("*") if ".tmp-" in file.name or file.name == "run.lock"] == []
