"""The neutral form of other systems' judgments, row by row. What follows from them is in test_oracle_goldens."""

import io
import json
import math

import pytest
from shared_inputs import shared

from trustjudge_ray.imports import ImportFileError, oracle
from trustjudge_ray.judging.protocols import parse, to_yaml

QUESTION = {"question_id": 1, "category": "cooking", "n_responses": 3, "empty_responses": []}
PAIR = {
    "question_id": 1,
    "i": 9,
    "j": 10,
    "order": 1,
    "status": "ok",
    "sampled": "B",
    "probs": {"B": 0.5, "A": 0.3, "x": 0.1},
    "cumulative_logprob": -20.0,
    "token_count": 100,
}
SINGLE = {"question_id": 1, "response_id": 0, "scale": 5, "status": "ok", "sampled": "4", "probs": {"4": 0.5}}


def read(questions=(QUESTION,), single=(), pairwise=()):
    named = {"questions.jsonl": questions, "single.jsonl": single, "pairwise.jsonl": pairwise}
    text = {name: "".join(json.dumps(row) + "\n" for row in rows) for name, rows in named.items()}
    imported = oracle.read({f"folder/{name}": io.BytesIO(t.encode()) for name, t in text.items()})
    return [row for table in imported.judgments for row in table.to_pylist()], imported


def test_the_second_order_is_turned_into_candidate_coordinates():
    rows, _ = read(pairwise=[PAIR, PAIR | {"order": 2}])
    log = math.log
    assert [(r["response_a"], r["response_b"], r["order"], r["emitted"]) for r in rows] == [
        ("9", "10", "AB", "b"),
        ("9", "10", "BA", "a"),
    ]
    assert rows[0]["label_logprobs"] == [log(0.3), log(0.5), None]
    assert rows[1]["label_logprobs"] == [log(0.5), log(0.3), None]
    assert (rows[0]["cumulative_logprob"], rows[0]["output_tokens"], rows[0]["label_mass"]) == (-20.0, 100, 0.8)


def test_spellings_with_token_marks_add_up_and_odd_numbers_are_no_labels():
    probs = {"Ġ4": 0.25, " 4": 0.25, "▁4": 0.125, "4.0": 0.1, "04": 0.1, "４": 0.1, "5": 0.0}
    rows, _ = read(single=[SINGLE | {"sampled": " 4", "probs": probs}])
    assert rows[0]["label_logprobs"] == [None, None, None, math.log(0.625), -math.inf]
    assert rows[0]["emitted"] == "4"


def test_a_probability_over_one_is_kept_and_one_that_is_none_is_a_failure_with_a_reason():
    rows, _ = read(single=[SINGLE | {"probs": {"4": 1.25}}, SINGLE | {"response_id": 1, "probs": {"4": -0.5}}])
    assert (rows[0]["label_logprobs"][3], rows[0]["label_mass"]) == (math.log(1.25), 1.25)
    assert (rows[1]["status"], rows[1]["detail"]) == ("bad_logprob", "P(4) = -0.5")


def test_a_judgment_without_any_label_has_no_mass_and_is_no_zero():
    rows, _ = read(single=[SINGLE | {"sampled": "x", "probs": {"x": 0.9}}])
    assert (rows[0]["status"], rows[0]["label_logprobs"]) == ("no_label_mass", None)


def test_a_sampled_token_that_is_no_label_leaves_the_distribution_and_no_emitted_label():
    rows, _ = read(single=[SINGLE | {"sampled": "4.0", "probs": {"4.0": 0.6, "4": 0.3}}])
    assert (rows[0]["status"], rows[0]["emitted"], rows[0]["label_mass"]) == ("ok", None, 0.3)


def test_pairs_with_an_empty_answer_are_counted_though_nobody_asked():
    rows, _ = read([QUESTION | {"empty_responses": [1]}], pairwise=[PAIR | {"i": 0, "j": 2}])
    assert [(r["response_a"], r["response_b"], r["order"], r["status"]) for r in rows] == [
        ("0", "2", "AB", "ok"),
        ("0", "1", "AB", "empty_response"),
        ("0", "1", "BA", "empty_response"),
        ("1", "2", "AB", "empty_response"),
        ("1", "2", "BA", "empty_response"),
    ]
    assert rows[0]["category"] == "cooking"


def test_what_cannot_be_read_is_named_with_its_line_and_the_rest_goes_on():
    wrong = [SINGLE | {"scale": "5"}, SINGLE | {"status": "fine"}, {"question_id": 1}, SINGLE, SINGLE]
    rows, imported = read(single=wrong)
    assert [r["status"] for r in rows] == ["ok"]
    found = [(q["source"], q["line"], q["reason"]) for q in imported.quarantine.to_pylist()]
    assert found == [
        ("folder/single.jsonl", 1, "invalid_value"),
        ("folder/single.jsonl", 2, "invalid_value"),
        ("folder/single.jsonl", 3, "missing_field"),
        ("folder/single.jsonl", 5, "duplicate_judgment"),
    ]


def test_numbers_as_tools_without_whole_numbers_write_them_are_the_same_judgments():
    floats = {"question_id": 1.0, "i": 9.0, "j": 10.0, "token_count": 100.0}
    want, _ = read(pairwise=[PAIR, PAIR | {"order": 2}])
    got, imported = read([QUESTION | {"n_responses": 3.0}], pairwise=[PAIR | floats | {"order": o} for o in ("1", 2.0)])
    assert got == want
    assert imported.quarantine.num_rows == 0


@pytest.mark.parametrize(
    "wrong",
    [{"token_count": 12.5}, {"token_count": "12"}, {"cumulative_logprob": "-1"}, {"order": True}, {"order": "AB"}],
)
def test_a_value_that_is_no_number_is_named_and_not_null(wrong):
    rows, imported = read(pairwise=[PAIR, PAIR | {"i": 8} | wrong])
    assert [r["response_a"] for r in rows] == ["9"]
    assert [(q["line"], q["reason"]) for q in imported.quarantine.to_pylist()] == [(2, "invalid_value")]
    assert next(iter(wrong)) in imported.quarantine["detail"][0].as_py()


def test_infinite_numbers_are_no_readings():
    rows, imported = read(single=[SINGLE | {"probs": {"4": math.inf}}, SINGLE | {"cumulative_logprob": -math.inf}])
    assert [r["status"] for r in rows] == ["bad_logprob"]
    assert [q["line"] for q in imported.quarantine.to_pylist()] == [2]


def test_two_folders_at_once_are_refused_because_only_one_would_be_read():
    with pytest.raises(ImportFileError, match=r"b/single\.jsonl: a/single\.jsonl is read too"):
        oracle.read({"a/single.jsonl": io.BytesIO(), "b/single.jsonl": io.BytesIO()})


def test_a_folder_without_judgments_is_refused_with_the_files_wanted():
    with pytest.raises(
        ImportFileError, match=r"answers\.jsonl: the neutral form has single\.jsonl and pairwise\.jsonl"
    ):
        oracle.read({"answers.jsonl": io.BytesIO()})


def test_stand_in_protocols_survive_the_run_folder():
    imported = oracle.read({name: shared(f"oracle/tiny/{name}").open("rb") for name in oracle.FILES})
    assert sum(table.num_rows for table in imported.judgments) == 24
    assert {name: parse(to_yaml(p)) for name, p in imported.protocols.items()} == imported.protocols
