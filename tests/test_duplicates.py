"""Rows of several files that meet under one id: which stay, which go, and that row order decides nothing."""

import pyarrow as pa
import pytest

from trustjudge_ray.corpus.duplicates import deduplicate
from trustjudge_ray.schema import PLACED_RESPONSES, from_rows

SAID = {"role": "user", "content": "When?"}


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
    "change", [{"replies": ["y"]}, {"replies": ["x", ""]}, {"model": "n"}, {"human_score": 1.0}, {"messages": [SAID]}]
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


def kept(table: pa.Table, *columns: str) -> list[tuple]:
    return [tuple(row[column] for column in columns) for row in deduplicate(table)[0].to_pylist()]


def test_an_answer_without_its_question_is_not_lost_where_others_have_it() -> None:
    table = placed({"messages": []}, {"response_id": "n"}, {"question_id": "2", "messages": []})
    assert settled(table) == ([("a", 1), ("a", 2), ("a", 3)], [])
    assert [len(messages) for (messages,) in kept(table, "messages")] == [1, 1, 0]


@pytest.mark.parametrize("column", ["reference", "category"])
def test_a_row_takes_what_it_lacks_from_the_first_row_of_its_question(column: str) -> None:
    table = placed({"response_id": "k"}, {column: "x"}, {"question_id": "2", "response_id": "k"})
    assert settled(table) == ([("a", 1), ("a", 2), ("a", 3)], [])
    assert kept(table, column, "meta_json") == [("x", None), ("x", None), (None, None)]


def test_another_reference_is_a_conflict_and_another_category_costs_no_answer() -> None:
    table = placed({"reference": "x"}, {"response_id": "n", "reference": "y"})
    assert settled(table) == ([("a", 1)], [("a", 2, "conflicting_question")])
    meta = '{"t":1,"flags":["no_question"]}'
    table = placed({"category": "x"}, {"response_id": "n", "category": "y", "meta_json": meta}, {"response_id": "o"})
    assert settled(table) == ([("a", 1), ("a", 2), ("a", 3)], [])
    flagged = '{"t":1,"flags":["no_question","category_differs"]}'
    assert kept(table, "category", "meta_json") == [("x", None), ("x", flagged), ("x", None)]


def test_a_repeated_row_that_alone_names_reference_and_category_gives_them_to_the_one_that_stays() -> None:
    table = placed({"messages": []}, {"reference": "r", "category": "c"}, {"category": "d"})
    assert settled(table) == ([("a", 1)], [("a", 2, "duplicate_row"), ("a", 3, "duplicate_row")])
    assert kept(table, "reference", "category") == [("r", "c")]
    assert kept(table, "messages")[0][0][0]["content"] == "Why?"


def test_a_row_that_conflicts_lends_nothing() -> None:
    table = placed({"messages": [SAID]}, {}, {"response_id": "n", "messages": []}, {"response_id": "o"})
    assert settled(table) == ([("a", 3), ("a", 4)], [("a", n, "conflicting_duplicate") for n in (1, 2)])
    assert [messages[0]["content"] for (messages,) in kept(table, "messages")] == ["Why?", "Why?"]


def test_a_corpus_without_repetition_is_left_as_it_is() -> None:
    table = placed({}, {"response_id": "n"}, {"question_id": "2"})
    stay, bad = deduplicate(table)
    assert stay.equals(table)
    assert len(bad) == 0
    assert len(deduplicate(table.slice(0, 0))[0]) == 0
