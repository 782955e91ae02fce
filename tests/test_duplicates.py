"""Rows of several files that meet under one id: which stay, which go, and that row order decides nothing."""

import pyarrow as pa
import pytest

from trustjudge_ray.corpus.duplicates import deduplicate
from trustjudge_ray.schema import PLACED_RESPONSES, from_rows


def placed(*rows: dict) -> pa.Table:
    """Responses to one question in file a, or as a row says."""
    base = {
        "question_id": "1",
        "messages": [{"role": "user", "content": "Why?"}],
        "response_id": "m",
        "model": "m",
        "replies": ["x"],
        "source": "a",
    }
    return from_rows([{**base, "line": i, **r} for i, r in enumerate(rows, 1)], PLACED_RESPONSES)


def settled(table: pa.Table) -> tuple[list[tuple[str, int]], list[tuple[str, int, str]]]:
    """The places that stay and, in order, the places that go with their reasons; the same for any row order."""
    outcomes = []
    for order in (list(range(len(table))), list(range(len(table)))[::-1]):
        stay, bad = deduplicate(table.take(pa.array(order, pa.int64())))
        left = sorted((r["source"], r["line"]) for r in stay.to_pylist())
        outcomes.append((left, [(r["source"], r["line"], r["reason"]) for r in bad.to_pylist()]))
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


def test_a_row_that_repeats_another_goes_and_the_first_stays() -> None:
    table = placed({"line": 9}, {"line": 3, "meta_json": '{"t":1}'}, {"source": "b", "line": 1})
    assert settled(table) == ([("a", 3)], [("a", 9, "duplicate_row"), ("b", 1, "duplicate_row")])


@pytest.mark.parametrize(
    "change", [{"replies": ["y"]}, {"replies": ["x", ""]}, {"model": "n"}, {"human_score": 1.0}, {"reference": "r"}]
)
def test_two_contents_under_one_key_are_both_taken_out(change: dict) -> None:
    table = placed({}, {}, {"source": "b", "line": 7, **change}, {"response_id": "n"})
    stay, bad = deduplicate(table)
    assert stay["line"].to_pylist() == [4]
    assert set(bad["reason"].to_pylist()) == {"conflicting_duplicate"}
    assert all("a:1 and b:7" in detail and next(iter(change)) in detail for detail in bad["detail"].to_pylist())


def test_answers_to_another_question_under_the_same_id_are_not_compared() -> None:
    other = [{"role": "user", "content": "When?"}]
    table = placed({}, {"response_id": "n", "messages": other, "source": "b"}, {"response_id": "o"})
    assert settled(table) == ([("a", 1), ("a", 3)], [("b", 2, "conflicting_question")])
    assert deduplicate(table)[1]["detail"].to_pylist() == ["b:2 has another question than a:1, under one question_id"]


def test_a_row_without_the_question_that_others_have_is_no_equal_rival() -> None:
    table = placed({"messages": []}, {"response_id": "n"}, {"question_id": "2", "messages": []})
    assert settled(table) == ([("a", 2), ("a", 3)], [("a", 1, "conflicting_question")])


@pytest.mark.parametrize("column", ["reference", "category"])
def test_references_and_categories_of_one_question_agree_where_given(column: str) -> None:
    table = placed({"response_id": "k"}, {column: "x"}, {"response_id": "n", column: "y"})
    assert settled(table) == ([("a", 1), ("a", 2)], [("a", 3, "conflicting_question")])


def test_a_corpus_without_repetition_is_left_as_it_is() -> None:
    table = placed({}, {"response_id": "n"}, {"question_id": "2"})
    stay, bad = deduplicate(table)
    assert stay.equals(table)
    assert len(bad) == 0
    assert len(deduplicate(table.slice(0, 0))[0]) == 0
