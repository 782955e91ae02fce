import os
import pickle
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import compare_protocol, responses, score_protocol

from trustjudge_ray.config import PlanConfig
from trustjudge_ray.judging import base, plan, scripted
from trustjudge_ray.schema import JUDGMENTS, SchemaError, check, from_rows
from trustjudge_ray.storage import StorageError
from trustjudge_ray.store import RunFolder

PROTOCOLS = {"score-5": score_protocol(), "compare": compare_protocol()}


@pytest.fixture
def folder(tmp_path):
    return RunFolder(str(tmp_path / "run"))


def some_judgments(questions=3):
    given = responses({f"q{i}": {"a": f"x{i}", "b": f"y{i}", "c": f"z{i}"} for i in range(questions)})
    specs = [plan.Spec("scripted", p, p.hash) for p in PROTOCOLS.values()]
    tasks = plan.plan(given, specs, PlanConfig(), [])
    readings = scripted.ScriptedJudge({"noise": 0.1}, PROTOCOLS).judge(tasks)
    return tasks, base.judgments(tasks, readings, PROTOCOLS)


def keep_tasks(folder, tasks):
    folder.write_table("tasks/bucket=000.parquet", tasks.append_column("pending", pa.array([True] * len(tasks))))


def test_a_part_written_twice_is_there_once(folder):
    tasks, judged = some_judgments()
    keep_tasks(folder, tasks)
    assert folder.write_judgments(0, judged) == folder.write_judgments(
        0, judged.take(list(reversed(range(len(judged)))))
    )
    kept, further = folder.judgments()
    assert (kept.height, further) == (len(judged), 0)


def test_of_two_rows_of_one_task_the_readable_one_counts_and_the_other_is_counted(folder):
    tasks, judged = some_judgments(1)
    keep_tasks(folder, tasks)
    folder.write_judgments(0, judged)
    bad = judged.slice(0, 2).to_pylist()
    for row in bad:
        row |= {"status": "engine_error", "label_logprobs": None}
    folder.write_judgments(0, from_rows(bad, JUDGMENTS))
    kept, further = folder.judgments()
    assert (kept.height, further, set(kept["status"])) == (len(judged), 2, {"ok"})


def test_only_judgments_of_the_run_s_own_tasks_are_read(folder):
    tasks, judged = some_judgments()
    keep_tasks(folder, tasks.slice(0, 5))
    folder.write_judgments(0, judged)
    kept, _ = folder.judgments()
    assert sorted(kept["task_id"]) == sorted(tasks["task_id"].to_pylist()[:5])


def test_infinities_nulls_and_float32_values_survive_storage(folder):
    tasks, judged = some_judgments(1)
    keep_tasks(folder, tasks)
    rows = judged.to_pylist()
    rows[0]["label_logprobs"] = [-np.inf, None, float(np.float32(-0.1)), 0.3, -9999.0]
    folder.write_judgments(0, from_rows(rows, JUDGMENTS))
    kept, _ = folder.judgments()
    got = kept.filter(pl.col("task_id") == rows[0]["task_id"])["label_logprobs"][0].to_list()
    assert got == rows[0]["label_logprobs"]


def test_label_log_probabilities_are_byte_stream_split(folder, tmp_path):
    _, judged = some_judgments()
    [name] = folder.write_judgments(0, judged)
    meta = pq.ParquetFile(tmp_path / "run" / "judgments" / name).metadata.row_group(0)
    columns = [meta.column(i) for i in range(meta.num_columns)]
    split = [c for c in columns if c.path_in_schema == "label_logprobs.list.element"]
    assert "BYTE_STREAM_SPLIT" in split[0].encodings


def test_a_protocol_of_an_earlier_start_is_not_taken_for_one_of_this_run(folder):
    folder.write_protocols([score_protocol(), compare_protocol()])
    folder.write_bytes("protocols/older.yaml", b"name: of another version\n")
    folder.write_protocols([compare_protocol()])
    assert list(folder.protocols()) == [compare_protocol().name]


def test_what_an_interrupted_write_left_is_removed_and_nothing_else(folder, tmp_path):
    _, judged = some_judgments()
    [name] = folder.write_judgments(0, judged)
    left = tmp_path / "run" / "judgments" / (name + ".tmp-" + "0" * 32)
    left.write_bytes(b"half")
    assert folder.remove_temporary() == 1
    assert not left.exists()
    assert (tmp_path / "run" / "judgments" / name).exists()


def test_a_damaged_part_is_named(folder, tmp_path):
    tasks, judged = some_judgments(1)
    keep_tasks(folder, tasks)
    [name] = folder.write_judgments(0, judged)
    (tmp_path / "run" / "judgments" / name).write_bytes(b"PAR1 not parquet")
    with pytest.raises(StorageError, match=f"{name}: not a readable Parquet file"):
        folder.judgments()


def test_a_folder_travels_to_a_worker(folder):
    folder.write_bytes("x/y.txt", b"1")
    assert pickle.loads(pickle.dumps(folder)).read_bytes("x/y.txt") == b"1"


# --- judged ids ------------------------------------------------------------------------------


def failed(rows, status="engine_error"):
    """The same judgments, failed."""
    return from_rows([row | {"status": status, "label_logprobs": None} for row in rows.to_pylist()], JUDGMENTS)


def test_a_failure_counts_as_judged_unless_it_is_to_be_judged_again(folder):
    _, judged = some_judgments(1)
    ids = judged["task_id"].to_pylist()
    folder.write_judgments(0, judged.slice(3))
    folder.write_judgments(0, failed(judged.slice(0, 2)))
    folder.write_judgments(0, failed(judged.slice(2, 1), "too_long"))
    assert folder.judged(0) == set(ids)
    assert folder.judged(0, again=frozenset({"engine_error"})) == set(ids[2:])
    assert folder.judged(0, again=frozenset({"engine_error", "too_long"})) == set(ids[3:])


def test_what_was_judged_well_once_is_never_judged_again(folder):
    _, judged = some_judgments(1)
    folder.write_judgments(0, failed(judged.slice(0, 2)))
    folder.write_judgments(0, judged)
    assert folder.judged(0, again=frozenset({"engine_error", "ok"})) == set(judged["task_id"].to_pylist())


def test_with_a_bucket_nothing_of_another_is_read(folder, tmp_path):
    tasks, judged = some_judgments()
    for bucket, start in ((0, 0), (7, 9)):
        mine = tasks.slice(start, 9)
        folder.write_table(f"tasks/bucket={bucket:03d}.parquet", mine.append_column("pending", pa.array([True] * 9)))
        folder.write_judgments(bucket, judged.slice(start, 9))
    for path in tmp_path.rglob("bucket=007*"):
        for file in [path] if path.is_file() else path.iterdir():
            file.write_bytes(b"PAR1 not parquet")
    assert folder.buckets() == [0, 7]
    assert folder.tasks(0, ["task_id"]).columns == ["task_id"]
    found, further = folder.judgments(bucket=0, columns=["status", "model_a"])
    assert (found.columns, found.height, further) == (["status", "model_a"], 9, 0)
    assert folder.judged(0) == set(tasks["task_id"].to_pylist()[:9])
    assert folder.tasks(3).height == folder.judgments(bucket=3)[0].height == 0


def test_many_parts_are_read_in_the_order_of_their_names(folder):
    """Which row of a task is taken must not depend on how many parts are read at once."""
    tasks, judged = some_judgments(40)
    keep_tasks(folder, tasks)
    for start in range(len(judged)):
        folder.write_judgments(0, judged.slice(start, 1))
    folder.write_judgments(0, failed(judged))
    kept, further = folder.judgments()
    assert (kept.height, further, set(kept["status"])) == (len(judged), len(judged), {"ok"})
    assert kept["task_id"].to_list() == sorted(judged["task_id"].to_pylist())


# --- a store that runs share -----------------------------------------------------------------


def sharing(tmp_path, name, store="store"):
    return RunFolder(str(tmp_path / name), None, str(tmp_path / store))


def test_parts_of_a_shared_store_hold_one_spec_each_and_a_run_reads_only_its_own(tmp_path):
    tasks, judged = some_judgments()
    specs = sorted(set(tasks["spec"].to_pylist()))
    names = sharing(tmp_path, "run").write_judgments(5, judged)
    assert [re.sub(r"part-[0-9a-f]{32}", "part", name) for name in names] == [
        f"spec={spec}/bucket=005/part.parquet" for spec in specs
    ]
    for name, spec in zip(names, specs, strict=True):
        assert set(pl.read_parquet(tmp_path / "store" / name)["spec"]) == {spec}
    (tmp_path / "store" / names[1]).write_bytes(b"another run's")
    mine = {row["task_id"] for row in tasks.to_pylist() if row["spec"] == specs[0]}
    other = sharing(tmp_path, "other")
    assert other.judged(5, {specs[0]}) == mine
    assert other.judged(5, {"0" * 32}) == set()
    kept = tasks.filter(pa.array([spec == specs[0] for spec in tasks["spec"].to_pylist()]))
    other.write_table("tasks/bucket=005.parquet", kept.append_column("pending", pa.array([False] * len(kept))))
    assert set(other.judgments()[0]["task_id"]) == mine


def test_two_runs_that_judged_the_same_task_have_one_row_of_it(tmp_path):
    tasks, judged = some_judgments(1)
    first, second = sharing(tmp_path, "first"), sharing(tmp_path, "second")
    first.write_judgments(0, judged)
    second.write_judgments(0, judged.slice(0, 2))
    keep_tasks(second, tasks)
    kept, further = second.judgments()
    assert (kept.height, further) == (len(judged), 2)


def test_a_judgment_of_another_run_goes_by_this_run_s_names(tmp_path):
    """Else a judge that another run calls otherwise stands in this run's tables under a name that it does not have."""
    tasks, judged = some_judgments(1)
    sharing(tmp_path, "first").write_judgments(0, judged)
    named = pa.array(["mine"] * len(tasks))
    keep_tasks(
        second := sharing(tmp_path, "second"), tasks.set_column(tasks.column_names.index("judge"), "judge", named)
    )
    assert set(second.judgments()[0]["judge"]) == {"mine"}
    assert second.judgments(columns=["judge"])[0].columns == ["judge"]


def test_a_run_knows_its_store_without_its_configuration_and_after_both_were_moved(tmp_path):
    tasks, judged = some_judgments(1)
    (tmp_path / "here").mkdir()
    run = sharing(tmp_path / "here", "run")
    run.keep_store()
    keep_tasks(run, tasks)
    run.write_judgments(0, judged)
    assert RunFolder(run.path).judgments()[0].height == len(judged)
    (tmp_path / "here").rename(tmp_path / "there")
    moved = RunFolder(str(tmp_path / "there" / "run"))
    assert moved.judgments()[0].height == len(judged)
    assert pickle.loads(pickle.dumps(moved)).store == str(tmp_path / "there" / "store")
    shutil.rmtree(tmp_path / "there" / "store")
    with pytest.raises(StorageError, match=r"lie in the store .*here/store, and nothing is there.*store\.json"):
        RunFolder(moved.path).judgments()


def test_a_run_that_gets_a_store_keeps_the_judgments_it_had_and_one_that_loses_it_forgets_the_link(tmp_path):
    tasks, judged = some_judgments(1)
    own = RunFolder(str(tmp_path / "run"))
    keep_tasks(own, tasks)
    own.write_judgments(0, judged.slice(0, 4))
    shared = sharing(tmp_path, "run")
    shared.keep_store()
    shared.write_judgments(0, judged.slice(4))
    assert shared.judged(0, set(tasks["spec"].to_pylist())) == set(tasks["task_id"].to_pylist())
    assert RunFolder(own.path).judgments()[0].height == len(judged)
    own.keep_store()
    assert pickle.loads(pickle.dumps(own)).store == RunFolder(own.path).store == f"{own.path}/judgments"


@pytest.mark.parametrize("store", ["first", "first/judgments"])
def test_what_belongs_to_one_run_is_not_taken_for_a_store(tmp_path, store):
    first = RunFolder(str(tmp_path / "first"))
    first.write_bytes("config.yaml", b"")
    first.write_judgments(0, some_judgments(1)[1])
    with pytest.raises(StorageError, match="a store that runs share is a folder of its own"):
        sharing(tmp_path, "second", store).probe()
    first.probe()


@pytest.mark.s3
def test_a_store_on_s3_is_read_as_one_on_disk_and_found_from_the_folder_alone(s3):
    tasks, judged = some_judgments()
    top = f"s3://{s3.bucket}/shared"
    run = RunFolder(f"{top}/run", s3.options, f"{top}/store")
    run.probe()
    run.keep_store()
    keep_tasks(run, tasks)
    for start in range(0, len(judged), 5):
        run.write_judgments(0, judged.slice(start, 5))
    run.write_judgments(0, failed(judged))
    ids = set(tasks["task_id"].to_pylist())
    assert run.judged(0, set(tasks["spec"].to_pylist()), frozenset({"engine_error"})) == ids
    kept, further = RunFolder(f"{top}/run", s3.options).judgments()
    assert (set(kept["task_id"]), further, set(kept["status"])) == (ids, len(ids), {"ok"})
    lost = RunFolder(f"{top}/other", s3.options, f"{top}/nothing")
    lost.keep_store()
    with pytest.raises(StorageError, match=r"lie in the store .*shared/nothing, and nothing is there"):
        RunFolder(f"{top}/other", s3.options).judged(0)


# --- a full disk -----------------------------------------------------------------------------


def limited(limit, *line):
    """A command that may not write files over `limit` bytes."""
    return subprocess.run(
        line,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


WRITE = """
import sys
from trustjudge_ray.storage import StorageError
from trustjudge_ray.store import RunFolder
import pyarrow.parquet as pq
try:
    RunFolder(sys.argv[1]).write_judgments(0, pq.read_table(sys.argv[2]))
except StorageError as error:
    print(error)
"""


def test_a_write_without_room_leaves_nothing_and_says_what_to_do_and_goes_on_when_there_is_room(folder, tmp_path):
    tasks, judged = some_judgments(20)
    pq.write_table(judged, tmp_path / "judged.parquet")
    line = [sys.executable, "-c", WRITE, folder.path, str(tmp_path / "judged.parquet")]
    done = limited(2000, *line)
    assert done.returncode == 0, done.stderr
    says = (
        rf"^{folder.path}/judgments/bucket=000/part-\w+\.parquet: [\d,]+ bytes could not be written: over the limit "
        r"on a file's size \(ulimit -f\); [\d,.]+ MiB are free there\..* make room and start the same command again"
    )
    assert re.match(says, done.stdout), done.stdout
    assert [path for path in Path(folder.path).rglob("*") if path.is_file()] == []
    keep_tasks(folder, tasks)
    done = limited(2**20, *line)
    assert (done.returncode, done.stdout) == (0, "")
    assert folder.judgments()[0].height == len(judged)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_is_named_with_its_free_space(tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        folder = RunFolder(str(place / "run"))
        folder.write_bytes("fine", b"x" * 1000)
        with pytest.raises(StorageError, match=r"no space left on the device; 0\.1 MiB are free there"):
            folder.write_bytes("large", b"x" * 2**17)
        assert folder.names("") == ["fine"]
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_null_where_none_may_be_is_named():
    _, judged = some_judgments(1)
    broken = judged.set_column(judged.column_names.index("status"), "status", pa.nulls(len(judged), pa.string()))
    with pytest.raises(SchemaError, match=r"JUDGMENTS\.status: null in row 0"):
        check(broken, JUDGMENTS)


def test_a_misspelt_column_is_named():
    with pytest.raises(SchemaError, match="lable"):
        from_rows([{"lable": 1}], JUDGMENTS)
