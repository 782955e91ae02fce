import pickle

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
    name = folder.write_judgments(0, judged)
    meta = pq.ParquetFile(tmp_path / "run" / "judgments" / name).metadata.row_group(0)
    columns = [meta.column(i) for i in range(meta.num_columns)]
    split = [c for c in columns if c.path_in_schema == "label_logprobs.list.element"]
    assert "BYTE_STREAM_SPLIT" in split[0].encodings


def test_what_an_interrupted_write_left_is_removed_and_nothing_else(folder, tmp_path):
    _, judged = some_judgments()
    name = folder.write_judgments(0, judged)
    left = tmp_path / "run" / "judgments" / (name + ".tmp-" + "0" * 32)
    left.write_bytes(b"half")
    assert folder.remove_temporary() == 1
    assert not left.exists()
    assert (tmp_path / "run" / "judgments" / name).exists()


def test_a_damaged_part_is_named(folder, tmp_path):
    tasks, judged = some_judgments(1)
    keep_tasks(folder, tasks)
    name = folder.write_judgments(0, judged)
    (tmp_path / "run" / "judgments" / name).write_bytes(b"PAR1 not parquet")
    with pytest.raises(StorageError, match=f"{name}: not a readable Parquet file"):
        folder.judgments()


def test_a_folder_travels_to_a_worker(folder):
    folder.write_bytes("x/y.txt", b"1")
    assert pickle.loads(pickle.dumps(folder)).read_bytes("x/y.txt") == b"1"


def test_a_null_where_none_may_be_is_named():
    _, judged = some_judgments(1)
    broken = judged.set_column(judged.column_names.index("status"), "status", pa.nulls(len(judged), pa.string()))
    with pytest.raises(SchemaError, match=r"JUDGMENTS\.status: null in row 0"):
        check(broken, JUDGMENTS)


def test_a_misspelt_column_is_named():
    with pytest.raises(SchemaError, match="lable"):
        from_rows([{"lable": 1}], JUDGMENTS)
