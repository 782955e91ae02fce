"""Two runs on one folder: the second refuses, a dead one's lease is taken over, and whoever lost it stops."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from corpora import protocol_files, rows, write_corpus
from drivers import Driver
from s3_fixtures import S3Server

from trustjudge_ray import lease
from trustjudge_ray.store import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(str(tmp_path / "run"))


def holder_of(folder: RunFolder) -> dict:
    return json.loads(folder.read_bytes(lease.NAME))


def claim(folder: RunFolder, **changes: object) -> dict:
    """A lease as another process would have written it."""
    given = lease._this_process()
    written = {name: getattr(given, name) for name in given.__slots__} | {"id": "other", "host": "node-7"} | changes
    folder.write_json(lease.NAME, written)
    return written


def fall_silent(folder: RunFolder, seconds: float) -> None:
    """Let the lease be as old as after so long without a beat."""
    path = Path(folder.path) / lease.NAME
    written = path.stat().st_mtime - seconds
    os.utime(path, (written, written))


def ended_process() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_a_second_start_is_told_who_works_there_since_when_and_what_to_do(folder: RunFolder):
    with lease.held(folder):
        mine = holder_of(folder)
        with pytest.raises(lease.LeaseError) as refused, lease.held(folder):
            pass
        said = str(refused.value)
        for part in (folder.path, str(os.getpid()), mine["host"], mine["since"], "another `out`"):
            assert part in said
        assert holder_of(folder)["id"] == mine["id"], "a refused start leaves the lease as it was"
    assert not folder.exists(lease.NAME)
    with lease.held(folder):
        pass


def test_a_run_of_another_machine_is_refused_until_it_was_silent_for_a_minute(folder: RunFolder):
    claim(folder, machine="elsewhere", pid=ended_process())
    fall_silent(folder, lease.STALE_SECONDS - 20)
    with pytest.raises(lease.LeaseError, match=r"on node-7.* sign of life is 4\d s old.*start again in 2\d s"):
        lease.Lease(folder).take()
    fall_silent(folder, lease.STALE_SECONDS + 20)
    with lease.held(folder):
        assert holder_of(folder)["id"] != "other"


def test_a_process_of_this_machine_that_ended_holds_nothing(folder: RunFolder):
    claim(folder, pid=ended_process())
    with lease.held(folder):
        pass


def test_a_process_that_only_has_the_number_of_the_dead_holder_holds_nothing(folder: RunFolder):
    claim(folder, pid=os.getppid(), started=1)
    with lease.held(folder):
        pass


def test_a_living_process_of_this_machine_that_sleeps_is_taken_over_after_a_minute_only(folder: RunFolder):
    parent = os.getppid()
    claim(folder, pid=parent, started=lease._start_of(parent))
    with pytest.raises(lease.LeaseError, match=f"process {parent} on node-7.*it is alive"):
        lease.Lease(folder).take()
    fall_silent(folder, lease.STALE_SECONDS + 5)
    with lease.held(folder):
        pass


def test_a_zombie_holds_nothing(folder: RunFolder):
    """A driver that was killed, under a parent that does not wait for it."""
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    claim(folder, pid=child.pid, started=lease._start_of(child.pid))
    with pytest.raises(lease.LeaseError):
        lease.Lease(folder).take()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with lease.held(folder):
        pass
    child.communicate()


def test_a_lease_that_was_cut_short_blocks_for_a_minute_and_not_for_ever(folder: RunFolder):
    folder.write_bytes(lease.NAME, b"")
    with pytest.raises(lease.LeaseError, match="only just begun, or its lease is damaged"):
        lease.Lease(folder).take()
    fall_silent(folder, lease.STALE_SECONDS + 5)
    with lease.held(folder):
        pass


def test_of_many_starts_at_once_on_a_dead_run_one_goes_on(folder: RunFolder, tmp_path: Path):
    claim(folder, machine="elsewhere")
    fall_silent(folder, lease.STALE_SECONDS + 60)
    script = (
        "import sys\n"
        "from trustjudge_ray import lease\n"
        "from trustjudge_ray.store import RunFolder\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "mine = lease.Lease(RunFolder(sys.argv[1]))\n"
        "try: mine.take(); print('taken', flush=True)\n"
        "except lease.LeaseError: print('refused', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    line = [sys.executable, "-c", script, folder.path]
    starts = [subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    for start in starts:
        assert start.stdout is not None
        assert start.stdin is not None
        assert start.stdout.readline() == "ready\n"
    for start in starts:
        start.stdin.write("go\n")
        start.stdin.flush()
    said = [start.stdout.readline().strip() for start in starts]
    for start in starts:
        start.communicate("end\n")
    assert sorted(said) == ["refused"] * 5 + ["taken"]


def test_a_run_whose_lease_was_taken_is_interrupted_and_says_so(folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.02)
    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a run; other tests' libraries put theirs
    went_on = []

    def run() -> None:
        with lease.held(folder):
            claim(folder)
            threading.Event().wait(60)
            went_on.append(True)

    try:
        with pytest.raises(lease.LeaseError, match=r"process \d+ on node-7, since .* has taken over.*This run stops"):
            run()
    finally:
        signal.signal(signal.SIGINT, former or signal.default_int_handler)
    assert not went_on
    assert holder_of(folder)["id"] == "other", "a run that lost its lease does not give back another's"


def test_a_run_that_slept_looks_before_it_changes_anything(folder: RunFolder):
    mine = lease.Lease(folder)
    mine.take()
    mine.refuse_lost()
    claim(folder)
    mine.refuse_lost()
    mine._seen -= lease.STALE_SECONDS
    with pytest.raises(lease.LeaseError, match="has taken over"):
        mine.refuse_lost()


def test_the_lease_is_renewed_while_it_is_held(folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.01)
    deadline = time.monotonic() + 60
    with lease.held(folder):
        while holder_of(folder)["beat"] < 3:
            assert time.monotonic() < deadline
    assert not folder.exists(lease.NAME)


def test_a_lease_that_somebody_removed_is_taken_again(folder: RunFolder):
    with lease.held(folder) as mine:
        folder.remove(lease.NAME)
        mine._beat()
        assert mine.lost is None
        with pytest.raises(lease.LeaseError):
            lease.Lease(folder).take()


def test_a_run_that_ends_in_an_error_gives_its_lease_back(folder: RunFolder):
    with pytest.raises(ValueError, match="no such thing"), lease.held(folder):
        raise ValueError("no such thing")
    assert not folder.exists(lease.NAME)


@pytest.mark.heavy
@pytest.mark.ray
@pytest.mark.slow
def test_the_same_command_started_twice_is_refused_and_one_whose_folder_was_taken_stops(tmp_path: Path):
    corpus = write_corpus(tmp_path / "c.jsonl", rows(40, ["m1", "m2", "m3"]))
    tree = {
        "out": str(tmp_path / "run"),
        "corpus": {"paths": [str(corpus)]},
        "judge": {"engine": "scripted", "scripted": {"seconds_per_batch": 1.0}},
        "protocols": protocol_files(tmp_path),
        "run": {"batch_size": 8},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(tree))
    first = Driver("judge", str(tmp_path / "config.yaml"))
    first.wait_until(lambda: bool(list((tmp_path / "run").glob("judgments/*/part-*"))), "a part is written")
    before = sorted(path for path in (tmp_path / "run").rglob("*.parquet") if "judgments" not in path.parts)
    second = Driver("judge", str(tmp_path / "config.yaml"))
    code, out, said = second.end()
    assert (code, out) == (1, "")
    assert f"another run works on this folder: process {first.process.pid} on" in said
    assert len(said.splitlines()) == 1, said
    assert before == sorted(path for path in (tmp_path / "run").rglob("*.parquet") if "judgments" not in path.parts)
    claim(RunFolder(str(tmp_path / "run")))
    code, out, said = first.end()
    assert (code, out) == (1, "")
    assert "on node-7, since" in said.splitlines()[-1], said
    assert "Traceback" not in said


@pytest.mark.s3
def test_on_s3_too_one_holds_the_lease_and_a_dead_one_is_taken_over(s3: S3Server, monkeypatch: pytest.MonkeyPatch):
    folder = RunFolder(f"s3://{s3.bucket}/lease/run", s3.options)
    with lease.held(folder) as mine:
        with pytest.raises(lease.LeaseError, match="it is alive"), lease.held(folder):
            pass
        mine._beat()
        assert holder_of(folder)["beat"] == 1
        claim(folder, machine="elsewhere")
        with pytest.raises(lease.LeaseError, match=r"on node-7.* sign of life is \d s old"), lease.held(folder):
            pass
        mine._seen -= lease.STALE_SECONDS
        with pytest.raises(lease.LeaseError, match="has taken over"):
            mine.refuse_lost()
        mine.lost = None
        monkeypatch.setattr(lease, "STALE_SECONDS", -1.0)
        with lease.held(folder):
            assert holder_of(folder)["id"] not in (mine._me.id, "other")
    assert not folder.exists(lease.NAME)
