"""How pending tasks are cut into shards, what a judge is given, and what a local cluster refuses."""

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from corpora import compare_protocol, responses, score_protocol
from hypothesis import given
from hypothesis import strategies as st

from trustjudge_ray.config import ClusterConfig, ConfigError, PlanConfig
from trustjudge_ray.judging import plan
from trustjudge_ray.judging.base import RunError
from trustjudge_ray.pipeline import session, watch
from trustjudge_ray.pipeline.blocks import packed, unpacked
from trustjudge_ray.pipeline.shards import Cut, readers, shards
from trustjudge_ray.schema import TASK_TEXTS, check
from trustjudge_ray.store import RunFolder


def test_a_ray_that_does_not_start_is_one_message():
    with pytest.raises(RunError, match="Ray does not start on this machine: .*object store"):
        session.start(ClusterConfig(object_store_gb=0.01))


@given(st.integers(0, 3000), st.integers(1, 70), st.integers(1, 40))
def test_the_last_shards_shrink_only_where_there_are_replicas_to_end_together(total: int, batch: int, replicas: int):
    cut, sizes = Cut(batch, replicas), []
    while sum(sizes) < total:
        sizes.append(cut.size(total - sum(sizes)))
    assert sum(sizes) == total
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) <= total // batch + 1 + 16 * replicas
    if replicas == 1:
        assert all(size == batch for size in sizes[:-1])
    elif total >= 2 * batch * replicas:
        assert sizes[-1] <= -(-batch // 8), "a replica may still get a whole batch when the others have ended"


def planned(folder: RunFolder, bucket: int, answers: int) -> pa.Table:
    """A bucket of two questions with so many answers each, planned; its tasks."""
    texts = {f"q{bucket}-{q}": {f"m{i}": f"{q} {i}" for i in range(answers)} for q in range(2)}
    given = responses(texts)
    specs = [plan.Spec("scripted", p, p.name) for p in (score_protocol(), compare_protocol())]
    tasks = plan.plan(given, specs, PlanConfig(), [])
    pending = tasks.append_column("pending", pa.array([True] * len(tasks)))
    folder.write_table(f"tasks/bucket={bucket:03d}.parquet", pending)
    folder.write_table(f"responses/bucket={bucket:03d}.parquet", given)
    return tasks


def shards_of(folder: RunFolder, pending: dict[int, int], batch: int, replicas: int) -> list[pa.Table]:
    work = [pa.Table.from_pylist([row]) for row in readers(pending, batch)]
    found = [unpacked(x) for row in work for x in shards(row, folder, "scripted", Cut(batch, replicas))]
    return [check(table, TASK_TEXTS) for table in found]


@pytest.mark.parametrize("replicas", [1, 3, 40])
def test_every_pending_task_is_in_one_shard_with_its_texts(tmp_path: Path, replicas: int):
    folder = RunFolder(str(tmp_path))
    tasks = {bucket: planned(folder, bucket, answers) for bucket, answers in ((0, 5), (7, 2), (9, 6), (31, 3))}
    pending = {bucket: len(table) for bucket, table in tasks.items()} | {9: 50, 40: 0}
    found = pa.concat_tables(shards_of(folder, pending, 16, replicas))
    wanted = [i for bucket, table in tasks.items() for i in table["task_id"].to_pylist()[: pending[bucket]]]
    got = found["task_id"].to_pylist()
    assert sorted(got) == sorted(wanted)
    assert replicas > 1 or got == wanted
    for row in found.to_pylist():
        question, response = row["question_id"].split("-")[1], row["response_a"].removeprefix("m")
        assert row["replies_a"] == [f"{question} {response}"]


@given(st.dictionaries(st.integers(0, 63), st.integers(0, 3000), max_size=64), st.integers(1, 70))
def test_readers_have_every_bucket_once_and_none_has_much_more_than_a_bucket(pending: dict[int, int], batch: int):
    work = readers(pending, batch)
    wanted = [(bucket, count) for bucket, count in sorted(pending.items()) if count]
    assert [pair for row in work for pair in zip(row["buckets"], row["counts"], strict=True)] == wanted
    for i, row in enumerate(work):
        assert sum(row["counts"][:-1]) < 16 * batch
        assert row["after"] == sum(sum(later["counts"]) for later in work[i + 1 :])
        assert sum(row["counts"]) >= 16 * batch or row is work[-1]


def test_one_replica_gets_full_batches_across_buckets(tmp_path: Path):
    folder = RunFolder(str(tmp_path))
    pending = {bucket: len(planned(folder, bucket, 2)) for bucket in range(6)}
    sizes = [len(table) for table in shards_of(folder, pending, 10, 1)]
    assert sizes == [10] * 4 + [sum(pending.values()) - 40]


def test_shards_end_where_another_answer_is_shown_first_if_that_is_near(tmp_path: Path):
    folder = RunFolder(str(tmp_path))
    tasks = planned(folder, 0, 9)
    first, *_ = shards_of(folder, {0: len(tasks)}, 28, 2)
    last, following = first.slice(len(first) - 1).to_pylist()[0], tasks.slice(len(first), 1).to_pylist()[0]
    shown = [row["response_b"] if row["order"] == "BA" else row["response_a"] for row in (last, following)]
    assert 25 <= len(first) < 28
    assert shown[0] != shown[1]


def test_a_table_survives_as_one_row():
    table = pa.table({"x": [[float("nan"), None], None, []], "s": ["a", None, "\ud7ff"]})
    row = packed(table)
    assert (len(row), str(unpacked(row).to_pylist())) == (1, str(table.to_pylist()))


def test_a_suspect_waits_for_the_others_and_none_comes_in_beside_it():
    turns, inside, seen = watch.Turns(2), threading.Semaphore(0), []
    leave = threading.Event()

    def beside() -> None:
        with turns.together():
            inside.release()
            leave.wait(30)
            seen.append("beside")

    def alone() -> None:
        with turns.alone():
            seen.append("alone")

    def late() -> None:
        with turns.together():
            seen.append("late")

    threads = [threading.Thread(target=beside) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert all(inside.acquire(timeout=30) for _ in threads)
    waiting = threading.Thread(target=alone)
    waiting.start()
    while not turns._waiting_alone:
        threading.Event().wait(0.001)
    after = threading.Thread(target=late)
    after.start()
    leave.set()
    for thread in (*threads, waiting, after):
        thread.join(30)
    assert seen == ["beside", "beside", "alone", "late"]


@pytest.mark.ray
def test_more_replicas_than_a_local_cluster_has_room_for_are_refused_instead_of_waited_for(local_ray: None):
    for cluster, says in (
        (ClusterConfig(replicas=3), r"3 replicas need 3\.01 CPUs .* has 3; .*cluster.cpus_per_replica"),
        (ClusterConfig(gpus_per_replica=1), "1 replicas need 1 GPUs"),
    ):
        with pytest.raises(ConfigError, match=says):
            session._refuse_too_small(cluster)
