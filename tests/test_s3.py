"""Corpus from, and run folder on, a real S3 server."""

import json
import subprocess
import sys
import time

import polars as pl
import pytest
from corpora import protocol_files, rows, write_corpus

from trustjudge_ray import config, runs
from trustjudge_ray.corpus.reader import CorpusError
from trustjudge_ray.storage import StorageError
from trustjudge_ray.store import RunFolder

pytestmark = [pytest.mark.s3, pytest.mark.ray]


def loaded(tmp_path, out: str, corpus: str, options: dict | None = None) -> config.LoadedConfig:
    tree = {
        "out": out,
        "corpus": {"paths": [corpus]},
        "judge": {"engine": "scripted", "scripted": {"noise": 0.1}},
        "protocols": protocol_files(tmp_path),
        "storage_options": options or {},
    }
    return config.loads(json.dumps(tree), "test.yaml")


def judged(given: config.LoadedConfig) -> pl.DataFrame:
    runs.judge(given, lambda *_: None)
    folder = runs.folder_of(given)
    runs.evaluate(folder, given.config.analysis)
    runs.report(folder)
    return folder.judgments()[0]


def test_the_same_corpus_gives_the_same_judgments_locally_and_on_s3(tmp_path, local_ray, s3):
    local = write_corpus(tmp_path / "c.jsonl", rows(5, ["m1", "m2", "m3"]))
    store = RunFolder(f"s3://{s3.bucket}/one", s3.options)
    store.write_bytes("answers/c.jsonl", local.read_bytes())
    here = judged(loaded(tmp_path, str(tmp_path / "run"), str(local)))
    there = judged(loaded(tmp_path, f"s3://{s3.bucket}/one/run", f"s3://{s3.bucket}/one/answers/*.jsonl", s3.options))
    assert here.height == 15 + 30
    assert there.equals(here)
    names = RunFolder(f"s3://{s3.bucket}/one/run", s3.options).names("")
    assert {"manifest.json", "metrics.json", "report.html", "config.yaml", "scores.parquet"} <= set(names)
    assert not [name for name in names if ".tmp-" in name or ".probe-" in name]
    again = runs.judge(
        loaded(tmp_path, f"s3://{s3.bucket}/one/run", f"s3://{s3.bucket}/one/answers/", s3.options), lambda *_: None
    )
    assert (again.now, again.tasks) == (0, 45)


def test_evaluate_finds_a_run_on_s3_through_the_command_line(tmp_path, local_ray, s3):
    local = write_corpus(tmp_path / "c.jsonl", rows(3, ["m1", "m2"]))
    judged(loaded(tmp_path, f"s3://{s3.bucket}/two/run", str(local), s3.options))
    options = [f"storage_options.{key}={value}" for key, value in s3.options.items()]
    command = [sys.executable, "-m", "trustjudge_ray", "evaluate", f"s3://{s3.bucket}/two/run", "analysis.k=[3]", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("change", "bucket", "says"),
    [({"secret": "wrong"}, "corpora", "access denied|credentials|denied"), ({}, "no-such-bucket", "no-such-bucket")],
)
def test_wrong_credentials_and_a_missing_bucket_are_clear_errors_in_time(tmp_path, local_ray, s3, change, bucket, says):
    started = time.monotonic()
    with pytest.raises((StorageError, CorpusError), match=says):
        judged(loaded(tmp_path, f"s3://{bucket}/run", f"s3://{bucket}/c.jsonl", s3.options | change))
    assert time.monotonic() - started < 30


def test_a_run_folder_on_a_missing_bucket_is_refused_before_any_work(tmp_path, local_ray, s3):
    local = write_corpus(tmp_path / "c.jsonl", rows(2, ["m1", "m2"]))
    with pytest.raises(StorageError, match="no-such-bucket"):
        runs.judge(loaded(tmp_path, "s3://no-such-bucket/run", str(local), s3.options), lambda *_: None)


def test_an_endpoint_that_does_not_answer_is_an_error_not_a_hang(tmp_path, local_ray):
    options = {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9"}
    with pytest.raises((StorageError, CorpusError), match=r"127\.0\.0\.1:9|s3://nowhere"):
        judged(loaded(tmp_path, "s3://nowhere/run", "s3://nowhere/c.jsonl", options))


def test_no_secret_is_kept_in_the_run_folder(tmp_path, local_ray, s3, monkeypatch):
    local = write_corpus(tmp_path / "c.jsonl", rows(2, ["m1", "m2"]))
    monkeypatch.setenv("TJ_TEST_SECRET", s3.options["secret"])
    options = s3.options | {"secret": "${oc.env:TJ_TEST_SECRET}"}
    given = loaded(tmp_path, f"s3://{s3.bucket}/three/run", str(local), options)
    judged(given)
    folder = RunFolder(f"s3://{s3.bucket}/three/run", s3.options)
    for name in folder.names(""):
        assert s3.options["secret"].encode() not in folder.read_bytes(name), name
