"""Corpus from, and run folder on, a real S3 server."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from corpora import protocol_files, rows, write_corpus
from s3_fixtures import SECRET, S3Server, free_port

from trustjudge_ray import config, runs
from trustjudge_ray.corpus.reader import CorpusError
from trustjudge_ray.storage import StorageError
from trustjudge_ray.store import RunFolder

pytestmark = [pytest.mark.s3, pytest.mark.ray]


def tree(tmp_path: Path, out: str, corpus: str, options: dict | None = None) -> dict:
    return {
        "out": out,
        "corpus": {"paths": [corpus]},
        "judge": {"engine": "scripted", "scripted": {"noise": 0.1}},
        "protocols": protocol_files(tmp_path),
        "storage_options": options or {},
    }


def loaded(tmp_path: Path, out: str, corpus: str, options: dict | None = None) -> config.LoadedConfig:
    return config.loads(json.dumps(tree(tmp_path, out, corpus, options)), "test.yaml")


def judge(given: config.LoadedConfig) -> runs.Judged:
    return runs.judge(given, lambda *_: None)


def judged(given: config.LoadedConfig) -> pl.DataFrame:
    judge(given)
    folder = runs.folder_of(given)
    runs.evaluate(folder, given.config.analysis)
    runs.report(folder)
    return folder.judgments()[0]


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    bare = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    line = [sys.executable, "-m", "trustjudge_ray", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=240, check=False, env=bare | environment)


def test_the_same_corpus_gives_the_same_judgments_locally_and_on_s3(tmp_path: Path, local_ray: None, s3: S3Server):
    local = write_corpus(tmp_path / "c.jsonl", rows(3, ["m1", "m2", "m3"]))
    top = f"s3://{s3.bucket}/one"
    RunFolder(top, s3.options).write_bytes("answers/c.jsonl", local.read_bytes())
    here = judged(loaded(tmp_path, str(tmp_path / "run"), str(local)))
    there = judged(loaded(tmp_path, f"{top}/run", f"{top}/answers/*.jsonl", s3.options))
    assert here.height == 9 + 18
    assert there.equals(here)
    names = RunFolder(f"{top}/run", s3.options).names("")
    assert {"manifest.json", "metrics.json", "report.html", "config.yaml", "scores.parquet"} <= set(names)
    assert [name for name in names if re.search(r"\.tmp-|\.probe-|^ingest/", name)] == []
    again = judge(loaded(tmp_path, f"{top}/run", f"{top}/answers/", s3.options))
    assert (again.now, again.tasks) == (0, 27)


def test_no_secret_is_kept_in_the_run_folder_or_in_rays_files(
    tmp_path: Path, local_ray: None, s3: S3Server, monkeypatch: pytest.MonkeyPatch
):
    import ray

    local = write_corpus(tmp_path / "c.jsonl", rows(2, ["m1", "m2"]))
    run = f"s3://{s3.bucket}/three/run"
    monkeypatch.setenv("TJ_TEST_SECRET", SECRET)
    judge(loaded(tmp_path, run, str(local), s3.options | {"secret": "${oc.env:TJ_TEST_SECRET}"}))
    given = [f"storage_options.{key}={value}" for key, value in s3.options.items()]
    done = command("evaluate", run, "analysis.k=[3]", *given)
    assert done.returncode == 0, done.stderr
    folder = RunFolder(run, s3.options)
    names = folder.names("")
    assert "metrics.json" in names
    assert [name for name in names if SECRET.encode() in folder.read_bytes(name)] == []
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    files = [path for path in session.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.heavy
def test_credentials_from_the_environment_reach_rays_workers(tmp_path: Path, s3: S3Server):
    top = f"s3://{s3.bucket}/four"
    folder = RunFolder(f"{top}/run", s3.options)
    text = "".join(json.dumps(row) + "\n" for row in rows(1, ["m1", "m2"]))
    RunFolder(top, s3.options).write_bytes("c.jsonl", text.encode())
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(tree(tmp_path, f"{top}/run", f"{top}/c.jsonl")))
    done = command("run", str(path), "--json", **s3.environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["now"] == 4
    assert folder.judgments()[0].height == 4
    assert folder.exists("report.html")


@pytest.mark.parametrize("broken", ["credentials", "bucket", "endpoint"])
@pytest.mark.parametrize("place", ["corpus", "run folder"])
def test_storage_that_refuses_is_one_clear_error_before_any_work(
    tmp_path: Path, s3: S3Server, broken: str, place: str, capfd: pytest.CaptureFixture[str]
):
    local = str(write_corpus(tmp_path / "c.jsonl", rows(2, ["m1", "m2"])))
    bucket = "no-such-bucket" if broken == "bucket" else s3.bucket
    options, says = {
        "credentials": (s3.options | {"secret": "wrong"}, "access refused .*check the credentials"),
        "bucket": (s3.options, "not there .*check the bucket"),
        "endpoint": (s3.options | {"endpoint_url": f"http://127.0.0.1:{free_port()}"}, "does not answer .*127"),
    }[broken]
    where = f"s3://{bucket}/five"
    given = {
        "corpus": loaded(tmp_path, str(tmp_path / "run"), f"{where}/c.jsonl", options),
        "run folder": loaded(tmp_path, f"{where}/run", local, options),
    }[place]
    started = time.monotonic()
    with pytest.raises((StorageError, CorpusError), match=f"{where}.*{says}"):
        judge(given)
    assert time.monotonic() - started < 30
    assert capfd.readouterr().err == ""
    assert not (tmp_path / "run").exists()


def test_evaluate_says_what_is_wrong_with_the_path_of_a_run(s3: S3Server):
    for path, environment, says in (
        (f"s3://{s3.bucket}/none", s3.environment, f"s3://{s3.bucket}/none: not a run folder: it has no config.yaml"),
        ("s3://no-such-bucket/x", s3.environment, "s3://no-such-bucket/x: "),
        (f"s3://{s3.bucket}/x", s3.environment | {"AWS_SECRET_ACCESS_KEY": "wrong"}, "access refused"),
    ):
        done = command("evaluate", path, **environment)
        assert (done.returncode, done.stdout) == (1, "")
        assert says in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
