"""JSON arrays and CSV files as corpora: the same rows as JSON Lines, and every other one with its place and reason."""

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trustjudge_ray.corpus.containers import from_array, from_csv, from_json
from trustjudge_ray.corpus.objects import Entry, Rejection, from_lines
from trustjudge_ray.corpus.reader import expand, read

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)


def cut(data: bytes, size: int = 5) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def said(entries: Any) -> list[tuple[int | None, Any]]:
    """Each entry's place with what it holds, or the reason why it cannot be read."""
    return [(e.line, e.content.reason if isinstance(e.content, Rejection) else e.content) for e in entries]


def row(**changes: Any) -> dict[str, Any]:
    return {"question_id": "1", "question": "Why?", "model": "m", "response": "So."} | changes


def test_elements_are_read_like_lines_each_with_its_own_fault() -> None:
    array = (
        b'\xef\xbb\xbf \n[ {"a": NaN, "b": "\\ud800"},\n{"a": 1, "a": 2}, 7, {"a": "\xff"},{"a": '
        + b"9" * 5000
        + b'},\n{"a": "[,]\\"}"} ]\n'
    )
    entries = list(from_array(cut(array)))
    reasons = said(entries)
    assert reasons[0] == (1, {"a": None, "b": "\ufffd"})
    assert entries[0].flags == ("lone_surrogate",)
    assert reasons[1:4] == [(2, "duplicate_key"), (3, "not_an_object"), (4, "invalid_utf8")]
    assert reasons[4][0] == 5
    assert isinstance(reasons[4][1], dict), "a number that nobody reads costs no row"
    assert reasons[5] == (6, {"a": '[,]"}'})


@pytest.mark.parametrize(
    ("array", "places"),
    [
        (b"[]", []),
        (b"[{}]", [(1, {})]),
        (b"[{}, {}", [(1, {}), (2, {}), (3, "invalid_json")]),
        (b"[{}, {]", [(1, {}), (2, "invalid_json")]),
        (b"[{} {}]", [(1, {}), (2, "invalid_json")]),
        (b"[{},]", [(1, {}), (2, "invalid_json")]),
        (b"[", [(1, "invalid_json")]),
        (b'[{"a": "x\ty"}, {"a": "x\ny"}, {}]', [(1, "invalid_json"), (2, "invalid_json"), (3, {})]),
    ],
)
def test_an_array_that_breaks_off_says_where_and_keeps_what_came_before(array: bytes, places: list) -> None:
    assert said(from_array(cut(array, 3))) == places


@pytest.mark.parametrize(
    ("data", "places"),
    [
        (b"[{}]\n[{}, {}]\n", [(1, {}), (2, {}), (3, {})]),
        (b"[]\n[{}]", [(1, {})]),
        (
            b'[{"a": "x\xff"}]\n{"b": "\xc3\xa9"}\n{"c": "\xff"}',
            [(1, "invalid_utf8"), (2, {"b": "\u00e9"}), (3, "invalid_utf8")],
        ),
        (b"[1,\n2]\n{}\n[3]\n{}", [(1, "not_an_object"), (2, "not_an_object"), (3, {}), (4, "not_an_object"), (5, {})]),
        (b"[INFO] begun\n{}\n{}\n", [(1, "invalid_json"), (2, {}), (3, {})]),
        (b"[2026-11-30 10:00] begun\n{}", [(1, "invalid_json"), (2, {})]),
        (b"[12:00:01] begun\n{}", [(1, "invalid_json"), (2, {})]),
        (b"[null, 1.5e3, {}]", [(1, "not_an_object"), (2, "not_an_object"), (3, {})]),
    ],
)
def test_what_is_beside_an_array_hides_no_row(data: bytes, places: list) -> None:
    for size in (1, 7, 4096):
        assert said(from_json(cut(data, size))) == places


@pytest.mark.parametrize(
    ("data", "places"),
    [
        (b'{\n "a": {\n  "b": 1\n }\n}', [(1, {"a": {"b": 1}})]),
        (b'\n{\r\n "a": 1\r\n}\r\n{\r\n "a": 2,\r\n "a": 3\r\n}\r\n{}', [(2, {"a": 1}), (5, "duplicate_key"), (9, {})]),
        (b'{\n "a": 1\n}\n{\n "a": ', [(1, {"a": 1}), (4, "invalid_json")]),
    ],
)
def test_objects_over_several_lines_are_read_each_with_the_line_it_begins_in(data: bytes, places: list) -> None:
    for size in (1, 4096):
        assert said(from_json(cut(data, size))) == places


def test_an_element_longer_than_what_is_read_at_once_arrives_whole() -> None:
    long = [{"a": "x" * 3_000_000}, {"a": 'y"' * 10}]
    assert said(from_array(cut(json.dumps(long).encode(), 1 << 16))) == [(1, long[0]), (2, long[1])]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.dictionaries(TEXTS, TEXTS | st.integers() | st.none(), max_size=3), max_size=5),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
    size=st.integers(1, 9),
)
def test_an_array_holds_what_its_writer_wrote(
    rows: list[dict], indent: int | None, ascii_only: bool, size: int
) -> None:
    written = json.dumps(rows, indent=indent, ensure_ascii=ascii_only).encode()
    assert said(from_json(cut(written, size))) == list(enumerate(rows, 1))


@pytest.mark.parametrize("data", [b'{"a": 1}\n{"a": 2}\n', b"\n\n  {}\n", b"", b"\xef\xbb\xbf{}", b"no JSON"])
def test_a_file_that_begins_with_no_bracket_is_lines(data: bytes) -> None:
    assert list(from_json(cut(data, 1))) == list(from_lines([data]))


def test_the_name_of_a_file_does_not_hide_an_array_and_archives_are_opened_first(tmp_path: Path) -> None:
    array = json.dumps([row(), row(question_id=2), row(question_id=3, response=None)], indent=2).encode()
    paths = [tmp_path / name for name in ("a.jsonl", "b.json", "c.json.gz")]
    for path in paths:
        path.write_bytes(gzip.compress(array) if path.suffix == ".gz" else array)
        [(rows, bad)] = read(str(path))
        assert rows["question_id"].to_pylist() == ["1", "2"], path.name
        assert rows["line"].to_pylist() == [1, 2]
        assert [(r["line"], r["reason"]) for r in bad.to_pylist()] == [(3, "missing_field")]
    paths[2].write_bytes(gzip.compress(array, mtime=0)[:-9])
    [(rows, bad)] = read(str(paths[2]))
    assert bad["reason"].to_pylist()[-1] == "damaged_file"


def csv_of(rows: list[dict[str, Any]], **options: Any) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(rows[0]), **options)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def test_csv_rows_are_numbered_by_the_line_that_they_begin_in() -> None:
    data = b'\xef\xbb\xbfa,b\r\n1,"x\ny, ""z"""\r\n\r\n2,\xc3\xa9\r\n3\r\n4,5,6\r\n"7\xff",8\r\n9,\r\n'
    assert said(from_csv(cut(data))) == [
        (2, {"a": "1", "b": 'x\ny, "z"'}),
        (5, {"a": "2", "b": "é"}),
        (6, "wrong_columns"),
        (7, "wrong_columns"),
        (8, "invalid_utf8"),
        (9, {"a": "9", "b": None}),
    ]


@pytest.mark.parametrize(
    ("data", "places"),
    [
        (b"", []),
        (b"a,b\n", []),
        (b"a,a\n1,2\n", [(1, "duplicate_key")]),
        (b'a,b\n1,2\n3,"4\n5,6\n', [(2, {"a": "1", "b": "2"}), (3, "invalid_csv")]),
        (b'a,b\n1,"2"x\n3,4\n', [(2, "invalid_csv")]),
        (b"\xff\xfea\x00", [(1, "invalid_utf8")]),
        (b"a,b,,\n1,2,,3\n", [(2, {"a": "1", "b": "2", "column 3": None, "column 4": "3"})]),
    ],
)
def test_a_table_that_cannot_be_read_on_says_where(data: bytes, places: list) -> None:
    assert said(from_csv(cut(data))) == places


def test_a_cell_of_megabytes_is_read() -> None:
    [(_, content)] = said(from_csv([csv_of([{"a": "x" * 2_000_000, "b": "y"}])]))
    assert len(content["a"]) == 2_000_000


@settings(max_examples=60, deadline=None)
@given(
    cells=st.lists(st.tuples(TEXTS, TEXTS.filter(bool)), min_size=1, max_size=4),
    size=st.integers(1, 9),
)
def test_a_table_holds_what_its_writer_wrote(cells: list[tuple[str, str]], size: int) -> None:
    rows = [{"a": a, "b": b} for a, b in cells]
    entries: list[Entry] = list(from_csv(cut(csv_of(rows, quoting=csv.QUOTE_ALL), size), texts={"a"}))
    assert [entry.content for entry in entries] == rows


def test_an_empty_cell_is_an_empty_answer_but_no_empty_reference(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_bytes(csv_of([row(r="", reference="", human_score="", response_id="")]))
    [(rows, bad)] = read(str(path), fields={"response": "r"})
    assert bad.to_pylist() == []
    [kept] = rows.to_pylist()
    assert (kept["replies"], kept["reference"], kept["human_score"], kept["response_id"]) == ([""], None, None, "m")
    assert expand([str(tmp_path)]) == [str(path)]


def test_a_table_with_tabs_is_read_as_such(tmp_path: Path) -> None:
    path = tmp_path / "c.tsv"
    path.write_bytes(csv_of([row(response="a, b")], delimiter="\t"))
    [(rows, bad)] = read(str(path))
    assert (rows["replies"].to_pylist(), len(bad)) == ([["a, b"]], 0)
