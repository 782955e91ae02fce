"""Files where users keep them: found, decompressed and read through, or refused in one message."""

import datetime
import decimal
import gzip
import hashlib
import json
import os
import random
import socket
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs
import zstandard
from s3_fixtures import SECRET, S3Server, free_port
from shared_inputs import shared

from trustjudge_ray.corpus.reader import CorpusConfigError, CorpusError, expand, fingerprint, read

ROW = {"question_id": "q", "question": "Why?", "model": "m", "response": "so"}


def all_of(path: Path | str, fields: dict | None = None, **options: Any) -> tuple[list[dict], list[dict]]:
    """All rows and all quarantined rows of a file."""
    parts = list(read(str(path), "flat", fields, **options))
    return [r for rows, _ in parts for r in rows.to_pylist()], [b for _, bad in parts for b in bad.to_pylist()]


def content(n: int) -> bytes:
    return b"".join(json.dumps(ROW | {"question_id": i, "response": str(i) * 50}).encode() + b"\n" for i in range(n))


def write(path: Path, data: bytes = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus folder `c` in the current directory, with what folders have beside corpora."""
    monkeypatch.chdir(tmp_path)
    for name in ("b.jsonl", "a.jsonl.gz", "in/er/c.parquet", "in/d.ndjson.zst", "[x].jsonl"):
        write(tmp_path / "c" / name)
    for name in ("README.md", ".hidden.jsonl", "_tmp/e.jsonl", ".git/f.jsonl"):
        write(tmp_path / "c" / name)
    (tmp_path / "c" / "empty").mkdir()
    return tmp_path


def test_a_folder_gives_its_corpus_files_with_those_below_and_no_others(folder: Path) -> None:
    names = ["c/[x].jsonl", "c/a.jsonl.gz", "c/b.jsonl", "c/in/d.ndjson.zst", "c/in/er/c.parquet"]
    assert expand(["c"]) == names
    assert expand(["c/", "c/b.jsonl", "c/*.jsonl"]) == names
    assert expand([str(folder / "c/in")]) == [str(folder / "c/in" / n) for n in ("d.ndjson.zst", "er/c.parquet")]


def test_globs_and_files_named_like_globs(folder: Path) -> None:
    assert expand(["c/*.jsonl"]) == ["c/[x].jsonl", "c/b.jsonl"]
    assert expand(["c/**/*.parquet"]) == ["c/in/er/c.parquet"]
    assert expand(["c/[x].jsonl"]) == ["c/[x].jsonl"]
    assert expand(["c/i*"]) == ["c/in/d.ndjson.zst", "c/in/er/c.parquet"]
    assert expand(["c/README.md"]) == ["c/README.md"]


def test_capital_suffixes_are_taken_and_one_file_under_two_spellings_is_one(tmp_path: Path) -> None:
    for name in ("v/X.JSONL", "v/y.Parquet", "v/z.jsonl.GZ"):
        write(tmp_path / name)
    v = str(tmp_path / "v")
    names = [f"{v}/X.JSONL", f"{v}/y.Parquet", f"{v}/z.jsonl.GZ"]
    assert expand([v]) == names
    assert expand([f"{v}/../v/X.JSONL", f"{v}/../v", f"{v}/X.JSONL", v]) == names


def test_links_to_folders_are_followed_and_circles_end(folder: Path) -> None:
    write(folder / "far" / "z.jsonl")
    os.symlink(folder / "far", folder / "c" / "in" / "link")
    os.symlink(folder / "c", folder / "c" / "in" / "circle")
    assert "c/in/link/z.jsonl" in expand(["c"])
    assert len(expand(["c"])) == 6


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("c/bb.jsonl", r"c/bb.jsonl: .* c has .*\(did you mean 'b.jsonl'\?\)"),
        ("c/nope/*.jsonl", "c has README.md"),
        ("d", r"\. has c\."),
        ("c/empty", "c/empty has nothing"),
        ("nonsense://x/y", "nonsense"),
    ],
)
def test_a_path_that_names_nothing_says_what_is_near(folder: Path, path: str, said: str) -> None:
    with pytest.raises(CorpusError, match=said):
        expand(["c/b.jsonl", path])


@pytest.mark.parametrize("name", ["f.jsonl", "f.jsonl.gz", "f.jsonl.zst", "named_wrongly.jsonl"])
def test_compressed_files_are_known_by_their_bytes(tmp_path: Path, name: str) -> None:
    plain = content(300)
    half = len(plain) // 2  # two members: what `cat a.gz b.gz` makes, cut in the middle of a line
    packed = {
        "f.jsonl": plain,
        "f.jsonl.gz": gzip.compress(plain[:half]) + gzip.compress(plain[half:]) + b"\0" * 512,
        "f.jsonl.zst": zstandard.compress(plain[:half]) + zstandard.compress(plain[half:]),
        "named_wrongly.jsonl": gzip.compress(plain),
    }[name]
    rows, bad = all_of(write(tmp_path / name, packed), batch_rows=64)
    assert [(r["question_id"], r["line"], r["replies"]) for r in rows] == [
        (str(i), i + 1, [str(i) * 50]) for i in range(300)
    ]
    assert bad == []


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
@pytest.mark.parametrize("damage", ["cut", "garbled", "followed by junk"])
def test_a_damaged_archive_gives_what_could_be_read_and_says_so_once(tmp_path: Path, pack: Any, damage: str) -> None:
    noise = random.Random(0)
    lines = [noise.randbytes(200).hex() for _ in range(4000)]  # does not compress well, so that the damage lies inside
    plain = b"".join(json.dumps(ROW | {"question_id": i, "response": r}).encode() + b"\n" for i, r in enumerate(lines))
    packed = pack(plain)
    middle = len(packed) * 3 // 4
    damaged = {
        "cut": packed[:middle],
        "garbled": packed[:middle] + b"\xff" * 2000 + packed[middle + 2000 :],
        "followed by junk": packed + b"junk",
    }[damage]
    rows, bad = all_of(write(tmp_path / "f.gz", damaged))
    assert bad[-1]["reason"] == "damaged_file"
    whole = bad[0]["line"] - 1  # garbled deflate data go on as garbage until the checksum fails
    sure = whole if damage != "garbled" else min(whole, 2300)  # garbage may also look like a line
    assert [r["replies"] for r in rows[:sure]] == [[line] for line in lines[:sure]]
    assert whole == 4000 if damage == "followed by junk" else 1000 < whole < 4000
    if damage != "garbled":
        assert (len(bad), len(rows)) == (1, whole)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor(write_checksum=True).compress])
def test_a_failing_checksum_says_that_lines_before_it_may_be_wrong(tmp_path: Path, pack: Any) -> None:
    packed = bytearray(pack(content(3)))
    packed[-8 if pack is gzip.compress else -1] ^= 1
    rows, bad = all_of(write(tmp_path / "f", bytes(packed)))
    assert [b["reason"] for b in bad] == ["damaged_file"]
    assert "lines before may be wrong" in bad[0]["detail"]
    assert len(rows) <= 3


def test_an_empty_file_is_zero_rows_in_tables_of_the_schema(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.gz"):
        parts = list(read(str(write(tmp_path / name, gzip.compress(b"") if name == "b.gz" else b""))))
        assert [(len(rows), len(bad)) for rows, bad in parts] == [(0, 0)]


def test_batches_are_bounded_and_keep_the_order(tmp_path: Path) -> None:
    parts = list(read(str(write(tmp_path / "f.jsonl", content(250))), batch_rows=100))
    assert [len(rows) for rows, _ in parts] == [100, 100, 50]
    assert [line for rows, _ in parts for line in rows["line"].to_pylist()] == list(range(1, 251))


def test_parquet_columns_of_any_type_are_read_like_json(tmp_path: Path) -> None:
    message = pa.struct([("role", pa.string()), ("content", pa.large_string())])
    times = [datetime.datetime(2024, 1, 2, 3, 4, 5), None, None]
    table = pa.table(
        {
            "question_id": pa.array([81, 2**60, 83], pa.int64()),
            "messages": pa.array([[{"role": "user", "content": "Why?"}]] * 3, pa.list_(message)),
            "model": pa.array(["m", "n", "m"]).dictionary_encode(),
            "response": pa.array([b"so", "é".encode(), b"\xff"], pa.binary()),
            "human_score": pa.array([float("nan"), 4.5, None]),
            "reference": pa.nulls(3),
            "category": pa.array(["a", None, ""], pa.large_string()),
            "price": pa.array([decimal.Decimal("1.50"), None, None], pa.decimal128(5, 2)),
            "when": pa.array(times, pa.timestamp("ns")),
            "extra": pa.array([{"a": [1, 2]}, None, None]),
        }
    )
    pq.write_table(table, tmp_path / "f.parquet", row_group_size=2)
    rows, bad = all_of(tmp_path / "f.parquet", batch_rows=2)
    assert [(r["question_id"], r["model"], r["replies"], r["human_score"], r["category"]) for r in rows] == [
        ("81", "m", ["so"], None, "a"),
        (str(2**60), "n", ["é"], 4.5, None),
    ]
    assert json.loads(rows[0]["meta_json"]) == {
        "price": 1.5,
        "when": "2024-01-02 03:04:05.000000000",
        "extra": {"a": [1, 2]},
    }
    assert rows[1]["meta_json"] is None
    assert [(b["line"], b["reason"]) for b in bad] == [(3, "invalid_utf8")]
    assert "response: " in bad[0]["detail"]


def test_a_column_that_nobody_reads_and_nobody_can_convert_costs_no_row(tmp_path: Path) -> None:
    when = pa.array([1, None], pa.timestamp("us", tz="Mars/Olympus"))
    table = pa.Table.from_pylist([ROW, ROW]).append_column("when", when)
    pq.write_table(table, tmp_path / "f.parquet")
    rows, bad = all_of(tmp_path / "f.parquet")
    assert bad == []
    assert json.loads(rows[0]["meta_json"])["flags"] == ["kept_as_text"]
    assert rows[1]["meta_json"] is None
    rows, bad = all_of(tmp_path / "f.parquet", {"category": "when"})
    assert [(b["line"], b["reason"]) for b in bad] == [(1, "invalid_value")]
    assert "category (field 'when')" in bad[0]["detail"]


def test_parquet_and_json_lines_of_the_same_rows_give_the_same_tables(tmp_path: Path) -> None:
    given = [ROW | {"question_id": i, "response": ["a", ""], "human_score": i / 2, "x": {"y": [i]}} for i in range(5)]
    pq.write_table(pa.Table.from_pylist(given), tmp_path / "p.parquet")
    write(tmp_path / "j.jsonl", b"".join(json.dumps(r).encode() + b"\n" for r in given))
    (one, _), (other, _) = all_of(tmp_path / "p.parquet"), all_of(tmp_path / "j.jsonl")
    assert [r | {"source": ""} for r in one] == [r | {"source": ""} for r in other]


def test_a_parquet_file_that_cannot_be_opened_is_one_quarantined_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "good.parquet")
    packed = (tmp_path / "good.parquet").read_bytes()
    twice = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    write(tmp_path / "cut.parquet", packed[:-20])
    write(tmp_path / "text.parquet", b'{"a": 1}\n')
    write(tmp_path / "nothing.parquet")
    for name, reason in (
        ("cut", "unreadable_file"),
        ("text", "unreadable_file"),
        ("nothing", "unreadable_file"),
        ("twice", "duplicate_key"),
    ):
        rows, bad = all_of(tmp_path / f"{name}.parquet")
        assert (rows, [(b["line"], b["reason"]) for b in bad]) == ([], [(None, reason)])


def test_a_damaged_parquet_page_keeps_the_rows_before_it(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([ROW | {"question_id": i, "response": os.urandom(300).hex()} for i in range(2000)])
    pq.write_table(table, tmp_path / "f.parquet", row_group_size=500, compression="zstd", use_dictionary=False)
    start = pq.read_metadata(tmp_path / "f.parquet").row_group(2).column(3).data_page_offset
    packed = bytearray((tmp_path / "f.parquet").read_bytes())
    packed[start : start + 4000] = b"\xff" * 4000
    write(tmp_path / "f.parquet", bytes(packed))
    rows, bad = all_of(tmp_path / "f.parquet", batch_rows=250)
    assert [r["question_id"] for r in rows] == [str(i) for i in range(1000)]
    assert [(b["line"], b["reason"]) for b in bad] == [(1001, "damaged_file")]


def test_sources_are_named_as_the_user_named_them() -> None:
    folder = os.path.relpath(shared("inputs/files/two_files"))
    fields = {"question_id": "id", "response": "=x", "model": "=m"}
    rows = [r for path in expand([folder]) for r in all_of(path, fields)[0]]
    assert [(r["source"], r["question_id"]) for r in rows] == [
        (f"{folder}/a.jsonl", "1"),
        (f"{folder}/b.jsonl", "2"),
        (f"{folder}/c.jsonl", "q3"),
    ]


def test_a_fingerprint_is_of_the_bytes_as_they_are_stored(tmp_path: Path) -> None:
    data = os.urandom(700_000)
    mark = fingerprint(str(write(tmp_path / "f.jsonl", data)))
    assert (mark.size, mark.sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_a_wrong_field_map_is_an_error_before_anything_is_read() -> None:
    with pytest.raises(CorpusConfigError, match="respons"):
        read("/nowhere", "flat", {"respons": "r"})
    with pytest.raises(CorpusError, match="/nowhere: not there"):
        next(read("/nowhere"))


def test_a_store_that_does_not_answer_is_one_message_within_half_a_minute() -> None:
    options = {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{free_port()}"}}
    began = time.monotonic()
    with pytest.raises(CorpusError, match="s3://corpus/x.jsonl: the storage does not answer"):
        expand(["s3://corpus/x.jsonl"], options)
    assert time.monotonic() - began < 30


@pytest.mark.slow
@pytest.mark.heavy
def test_a_store_that_takes_connections_and_is_silent_is_one_message_within_half_a_minute() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(CorpusError, match="the storage does not answer"):
            expand(["s3://corpus/x.jsonl"], {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": address}})
        assert time.monotonic() - began < 30


def test_missing_credentials_are_said_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(CorpusError, match="no credentials; set AWS_ACCESS_KEY_ID"):
        expand(["s3://corpus/x"], {"client_kwargs": {"endpoint_url": "http://127.0.0.1:9"}})


@pytest.mark.s3
def test_object_storage_is_listed_and_read_like_a_folder(s3: S3Server, tmp_path: Path) -> None:
    top, options = f"s3://{s3.bucket}/reader", s3.options
    pq.write_table(pa.Table.from_pylist([ROW] * 3), tmp_path / "p.parquet")
    for name, data in {
        "run/a.jsonl": content(20_000),
        "run/in/b.jsonl.gz": gzip.compress(content(5)),
        "run/in/c.jsonl.zst": zstandard.compress(content(5)),
        "run/p.parquet": (tmp_path / "p.parquet").read_bytes(),
        "run/README.md": b"x",
        "run/_tmp/d.jsonl": b"x",
    }.items():
        s3fs.S3FileSystem(**options).pipe_file(f"{top}/{name}", data)
    files = [f"{top}/run/{name}" for name in ("a.jsonl", "in/b.jsonl.gz", "in/c.jsonl.zst", "p.parquet")]
    assert expand([f"{top}/run"], options) == expand([f"{top}/run/"], options) == expand([top], options) == files
    assert set(files) <= set(expand([f"s3://{s3.bucket}"], options))
    assert expand([f"{top}/run/*.jsonl"], options) == files[:1]
    assert expand([f"{top}/run/**/*.gz", files[0]], options) == files[:2]
    counts = [len(all_of(path, storage_options=options)[0]) for path in files]
    assert counts == [20_000, 5, 5, 3]
    assert fingerprint(files[0], options).sha256 == hashlib.sha256(content(20_000)).hexdigest()


@pytest.mark.s3
def test_what_object_storage_refuses_is_one_message(s3: S3Server) -> None:
    top, options = f"s3://{s3.bucket}/refused", s3.options
    s3fs.S3FileSystem(**options).pipe_file(f"{top}/some/a.jsonl", b"")
    for path, given, said in (
        (f"{top}/some/b.jsonl", options, r"refused/some has a.jsonl \(did you mean 'a.jsonl'"),
        (f"{top}/none/*.jsonl", options, "no corpus file there"),
        ("s3://other-bucket/x", options, "not there"),
        ("s3://other-bucket/*.jsonl", options, "not there"),
        (f"{top}/some", options | {"secret": "wrong"}, "access refused"),
        (f"{top}/some/*.jsonl", options | {"key": "wrong"}, "access refused"),
        (f"{top}/some", options | {"endpoint_url": "not a url"}, "check the path's scheme and storage_options"),
        (f"{top}/some", options | {"sekret": "x"}, "check the path's scheme and storage_options"),
    ):
        with pytest.raises(CorpusError, match=said) as caught:
            expand([path], given)
        assert path in str(caught.value)
        assert SECRET not in str(caught.value)
    with pytest.raises(CorpusError, match="access refused"):
        list(read(f"{top}/some/a.jsonl", storage_options=options | {"secret": "wrong"}))


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("answers/gpt-4.1.jsonl", "gpt-4.1"),
        ("a/llama.JSON.GZ", "llama"),
        ("x.y/v0.2.ndjson.zst", "v0.2"),
        (".jsonl", ".jsonl"),
    ],
)
def test_a_model_named_by_its_file_keeps_the_dots_of_its_version(folder: Path, path: str, model: str) -> None:
    """`gpt-4` and `gpt-4.1` would become one model."""
    rows, bad = all_of(write(folder / path, content(1)), {"model": "={file}", "category": "=of {file}, all of it"})
    assert [(row["model"], row["category"]) for row in rows] == [(model, f"of {model}, all of it")]
    assert bad == []


def test_a_parquet_and_a_csv_file_name_their_model_too(folder: Path) -> None:
    pq.write_table(pa.Table.from_pylist([{"question_id": "q", "response": "so"}]), folder / "m 1.parquet")
    write(folder / "m2.csv", b"question_id,response\nq,so\n")
    for name in ("m 1.parquet", "m2.csv"):
        rows, _ = all_of(folder / name, {"model": "={file}"})
        assert [(row["model"], row["response_id"]) for row in rows] == [(name.rsplit(".", 1)[0],) * 2]
