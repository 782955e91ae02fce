"""Rows as users have them: every readable one arrives unchanged, every other one with its line and reason."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_inputs import shared

from trustjudge_ray.corpus.formats import CorpusConfigError, field_map, parse_lines
from trustjudge_ray.corpus.objects import split_lines

SHORT = {"question_id": "id", "response": "r", "model": "=unknown"}


def read(
    content: bytes, fields: dict[str, str] | None = None, format: str = "flat", source: str = "f.jsonl"
) -> tuple[list[dict], list[dict]]:
    """All rows and all quarantined rows of a file's bytes, which come in small pieces."""
    chunks = [content[i : i + 7] for i in range(0, len(content), 7)] if len(content) < 10_000 else [content]
    rows: list[dict] = []
    bad: list[dict] = []
    for responses, quarantine in parse_lines(chunks, source, format, fields or {}, batch_rows=1000):
        rows += responses.to_pylist()
        bad += quarantine.to_pylist()
    return rows, bad


def lines(*objects: Any) -> bytes:
    return b"".join(json.dumps(thing).encode() + b"\n" for thing in objects)


def reasons(bad: list[dict]) -> list[tuple[int, str]]:
    return [(row["line"], row["reason"]) for row in bad]


def row(**changes: Any) -> dict:
    """A complete flat row."""
    return {"question_id": "q", "question": "Why?", "model": "m", "response": "so"} | changes


def only(**changes: Any) -> dict:
    """The one response that a changed row gives."""
    rows, bad = read(lines(row(**changes)))
    assert bad == []
    return rows[0]


def refused(**changes: Any) -> dict:
    """The one quarantined row that a changed row gives."""
    rows, bad = read(lines(row(**changes)))
    assert rows == []
    return bad[0]


@pytest.mark.parametrize(
    ("name", "fields", "ids", "quarantined"),
    [
        ("mixedid.jsonl", {"model": "=unknown"}, ["81", "82", "creative-1"], []),
        ("badutf8.jsonl", SHORT, ["2"], [(1, "invalid_utf8")]),
        ("bom.jsonl", SHORT, ["1", "2"], []),
        ("surr.jsonl", {"model": "=unknown"}, ["1", "2"], []),
        ("trunc.jsonl", SHORT, ["1"], [(2, "truncated_line")]),
        ("u2028.jsonl", {"model": "=unknown"}, ["1", "2"], []),
        ("nan.jsonl", SHORT, [], [(1, "missing_field"), (2, "missing_field")]),
        ("nan.jsonl", SHORT | {"response": "=x", "human_score": "score"}, ["1", "2"], []),
        ("dupkey.jsonl", SHORT, [], [(1, "duplicate_key")]),
        ("empty.jsonl", SHORT, [], []),
        ("arena_hard_answer.jsonl", SHORT | {"question_id": "uid"}, [], [(1, "wrong_type")]),
        ("arena_hard_answer.jsonl", SHORT | {"question_id": "uid", "response": "=x"}, [], [(1, "wrong_type")]),
        ("two_files/a.jsonl", SHORT | {"response": "=x"}, ["1"], []),
        ("two_files/b.jsonl", SHORT | {"response": "=x"}, ["2"], []),
        ("two_files/c.jsonl", SHORT | {"response": "=x"}, ["q3"], []),
    ],
)
def test_files_that_break_other_readers(name: str, fields: dict, ids: list[str], quarantined: list) -> None:
    rows, bad = read(shared(f"inputs/files/{name}").read_bytes(), fields)
    assert [r["question_id"] for r in rows] == ids
    assert reasons(bad) == quarantined


def test_a_field_first_seen_after_three_thousand_rows_is_kept() -> None:
    rows, bad = read(shared("inputs/files/latefield.jsonl").read_bytes(), SHORT)
    assert (len(rows), bad) == (3001, [])
    assert [r["question_id"] for r in rows[:-1]] == [str(i) for i in range(3000)]
    assert (rows[-1]["question_id"], rows[-1]["line"]) == ("5000", 3001)
    assert json.loads(rows[-1]["meta_json"]) == {"extra": 1, "flags": ["no_question"]}


def test_what_the_odd_files_say_is_unchanged() -> None:
    def answers(name: str, fields: dict) -> list[list[str]]:
        return [r["replies"] for r in read(shared(f"inputs/files/{name}").read_bytes(), fields)[0]]

    assert answers("u2028.jsonl", {"model": "=m"}) == [["a\u2028b"], ["x"]]
    assert answers("bom.jsonl", SHORT) == [["a"], ["b"]]
    assert answers("surr.jsonl", {"model": "=m"}) == [["bad \ufffd tail"], ["ok"]]
    rows, _ = read(shared("inputs/files/surr.jsonl").read_bytes(), {"model": "=m", "question": "=Why?"})
    assert [r["meta_json"] for r in rows] == ['{"flags":["lone_surrogate"]}', None]
    rows, _ = read(shared("inputs/files/nan.jsonl").read_bytes(), SHORT | {"response": "=x", "human_score": "score"})
    assert [r["human_score"] for r in rows] == [None, 1.5]


@pytest.mark.parametrize("name", ["odd_answers.jsonl", "dup_answers.jsonl"])
def test_empty_blank_and_hostile_answers_are_rows_like_any_other(name: str) -> None:
    given_rows = [json.loads(line) for line in shared(f"inputs/{name}").read_text("utf-8").split("\n") if line]
    turns = [answer["choices"][0]["turns"] for answer in given_rows]
    plain = [
        row(question_id=answer["question_id"], model=answer["model_id"], response=turn, response_id=answer["answer_id"])
        for answer, turn in zip(given_rows, turns, strict=True)
    ]
    rows, bad = read(lines(*plain))
    assert bad == []
    assert [r["replies"] for r in rows] == turns
    assert [r["question_id"] for r in rows] == [str(answer["question_id"]) for answer in given_rows]


@pytest.mark.parametrize(
    "answer", ["", "  \n", "$ERROR$", "{answer_a}", "[[A]]", "Score: [100]", "<|im_end|>\n", "a\u0000b"]
)
def test_an_answer_is_never_trimmed_or_taken_for_a_failure(answer: str) -> None:
    assert only(response=answer)["replies"] == [answer]


@pytest.mark.parametrize(
    ("given_id", "text"),
    [
        (81, "81"),
        ("81", "81"),
        (81.0, "81"),
        ("81.0", "81.0"),
        (0.5, "0.5"),
        (-0.0, "0"),
        (10**30, "1" + "0" * 30),
        (" a", " a"),
    ],
)
def test_ids_are_text_and_equal_numbers_are_one_id(given_id: Any, text: str) -> None:
    assert only(question_id=given_id)["question_id"] == text
    assert only(model=given_id)["response_id"] == text


@pytest.mark.parametrize(
    ("given_id", "reason"),
    [
        (None, "missing_field"),
        ("", "missing_field"),
        (" ", "missing_field"),
        (True, "wrong_type"),
        ([1], "wrong_type"),
        ({"a": 1}, "wrong_type"),
        (2.0**53, "wrong_type"),
    ],
)
def test_an_id_that_names_nothing_is_not_guessed(given_id: Any, reason: str) -> None:
    assert refused(question_id=given_id)["reason"] == reason


@pytest.mark.parametrize(
    ("score", "number"), [("4.5", 4.5), (" 4 ", 4.0), (4, 4.0), ("1e1", 10.0), ("", None), ("nan", None), (None, None)]
)
def test_numbers_written_as_text_are_numbers(score: Any, number: float | None) -> None:
    assert only(human_score=score)["human_score"] == number


@pytest.mark.parametrize("score", ["good", "4,5", "1_000", "٤", True, [4], "inf", "1e999", 10**400])
def test_what_is_no_number_is_refused_not_null(score: Any) -> None:
    bad = refused(human_score=score)
    assert bad["reason"] == "wrong_type"
    assert "human_score" in bad["detail"]


@pytest.mark.parametrize("answer", [{"answer": "yo"}, True, 1.5, ["a", None], ["a", {"text": "b"}], [[]]])
def test_an_object_where_text_is_meant_is_not_printed_as_text(answer: Any) -> None:
    bad = refused(response=answer)
    assert bad["reason"] == "wrong_type"
    assert bad["detail"].startswith("response")


def test_text_in_one_row_and_an_object_in_the_next_costs_only_the_object() -> None:
    rows, bad = read(
        lines(row(response="a"), row(question_id=2, response={"answer": "b"}), row(question_id=3, response="c"))
    )
    assert [r["replies"] for r in rows] == [["a"], ["c"]]
    assert reasons(bad) == [(2, "wrong_type")]
    assert bad[0]["detail"] == "response: an object with answer where text is meant"


@pytest.mark.parametrize("answer", [None, []])
def test_no_answer_is_not_an_empty_answer(answer: Any) -> None:
    assert refused(response=answer)["reason"] == "missing_field"


@pytest.mark.parametrize("name", ["question_id", "model", "response"])
def test_a_missing_field_is_named_with_those_that_are_there(name: str) -> None:
    rows, bad = read(lines({k: v for k, v in row(prompt="p").items() if k != name}))
    assert rows == []
    assert bad[0]["reason"] == "missing_field"
    assert bad[0]["detail"].startswith(f"{name} is missing; the row has ")
    assert "prompt" in bad[0]["detail"]


def test_questions_are_one_text_several_turns_or_messages() -> None:
    user = {"role": "user", "content": "Why?"}
    assert only()["messages"] == [user]
    assert only(question=["Why?", "And?"])["messages"] == [user, {"role": "user", "content": "And?"}]
    talk = [{"role": "system", "content": "Be brief."}, user]
    assert only(question=talk)["messages"] == talk
    with_messages = only(messages=talk, question="shown elsewhere")
    assert with_messages["messages"] == talk
    assert json.loads(with_messages["meta_json"]) == {"question": "shown elsewhere"}
    parts = [{"type": "text", "text": "Wh"}, {"type": "text", "text": "y?"}]
    assert only(messages=[{"role": "user", "content": parts}])["messages"] == [user]


def test_a_mapped_question_is_read_instead_of_messages_that_hold_the_answer() -> None:
    talk = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    rows, _ = read(
        lines({"question_id": 1, "q": "Why?", "messages": talk, "model": "m", "response": "r"}), {"question": "q"}
    )
    assert rows[0]["messages"] == [{"role": "user", "content": "Why?"}]
    assert json.loads(rows[0]["meta_json"]) == {"messages": talk}


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([{"from": "human", "value": "x"}], "wrong_type"),
        ([{"role": "human", "content": "x"}], "wrong_type"),
        ([{"role": "user"}], "missing_field"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "u"}]}], "wrong_type"),
        ({"role": "user", "content": "x"}, "wrong_type"),
    ],
)
def test_messages_of_another_make_are_refused(messages: Any, reason: str) -> None:
    assert refused(messages=messages)["reason"] == reason


def test_a_row_without_a_question_is_flagged_but_a_misspelt_question_is_an_error() -> None:
    rows, _ = read(lines({"question_id": 1, "model": "m", "response": "r"}))
    assert rows[0]["messages"] == []
    assert rows[0]["meta_json"] == '{"flags":["no_question"]}'
    rows, bad = read(lines(row()), {"question": "prompt"})
    assert (rows, reasons(bad)) == ([], [(1, "missing_field")])


def test_other_fields_are_kept_and_cannot_pass_for_our_flags() -> None:
    kept = only(tstamp=1.0, flags=["mine"], nothing=None, deep={"a": [1, "é"]})["meta_json"]
    assert kept == '{"tstamp":1.0,"flags_":["mine"],"deep":{"a":[1,"é"]}}'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[1]", "not_an_object"),
        (b"3", "not_an_object"),
        (b'"a"', "not_an_object"),
        (b"null", "not_an_object"),
        (b"{", "invalid_json"),
        (b'{"a":1} {"b":2}', "invalid_json"),
        (b"{'a': 1}", "invalid_json"),
        (b'{"question_id":1,"model":"m","response":"r","human_score":Infinity}', "wrong_type"),
        (b'{"question_id":1,"model":"m","response":' + b"9" * 5000 + b"}", "invalid_json"),
        (b'{"question_id":1,"model":"m","response":["r",' + b"9" * 5000 + b"]}", "wrong_type"),
        (b'{"question_id":' + b"9" * 5000 + b"}", "invalid_json"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "too_deep"),
        (b'{"a":{"b":1,"b":2}}', "duplicate_key"),
        (b'{"a":"\xed\xa0\x80"}', "invalid_utf8"),
        (b"\xff\xfe{\x00", "invalid_utf8"),
    ],
)
def test_a_line_that_cannot_be_read_says_why_and_costs_nothing_else(line: bytes, reason: str) -> None:
    good = json.dumps(row()).encode()
    rows, bad = read(good + b"\n" + line + b"\n\n" + good)
    assert [r["line"] for r in rows] == [1, 4]
    assert reasons(bad) == [(2, reason)]
    assert bad[0]["source"] == "f.jsonl"
    assert 0 < len(bad[0]["raw"]) <= 2000


@pytest.mark.parametrize(
    ("number", "text"),
    [(b"9" * 5000, "9" * 5000), (b"Infinity", "Infinity"), (b"-1e999", "-Infinity")],
)
def test_a_number_that_json_cannot_say_costs_no_row_where_nobody_reads_it(number: bytes, text: str) -> None:
    line = json.dumps(row()).encode()[:-1] + b',"x":' + number + b',"y":[{"z":' + number + b"}]}"
    (kept,), bad = read(line)
    assert bad == []
    assert json.loads(kept["meta_json"]) == {"x": text, "y": [{"z": text}], "flags": ["kept_as_text"]}


def test_a_file_of_carriage_returns_says_so() -> None:
    plain = json.dumps(row()).encode()
    rows, bad = read(plain + b"\r" + plain + b"\r")
    assert (rows, reasons(bad)) == ([], [(1, "invalid_json")])
    assert bad[0]["detail"] == r"line ends are carriage returns only; convert to \n"
    assert len(read(plain + b"\r")[0]) == 1


def test_windows_line_ends_marks_and_blank_lines_change_nothing() -> None:
    plain = json.dumps(row(response="a\r\nb")).encode()
    rows, bad = read(b"\xef\xbb\xbf" + plain + b"\r\n\r\n  \t\n\n\xef\xbb\xbf" + plain + b"\r\n")
    assert [(r["line"], r["replies"]) for r in rows] == [(1, ["a\r\nb"]), (5, ["a\r\nb"])]
    assert bad == []


def test_a_file_cut_in_the_middle_of_a_character_is_truncated_not_misencoded() -> None:
    rows, bad = read(lines(row()) + '{"question_id": "é'.encode()[:-1])
    assert len(rows) == 1
    assert reasons(bad) == [(2, "truncated_line")]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "question_id": TEXTS.filter(str.strip),
            "question": TEXTS.filter(str.strip),
            "model": TEXTS.filter(str.strip),
            "response": st.lists(TEXTS, min_size=1, max_size=3),
        },
        optional={
            "category": TEXTS,
            "reference": TEXTS,
            "human_score": st.floats(allow_nan=False, allow_infinity=False),
            "other": JSON.filter(lambda value: value is not None),
        },
    ),
    max_size=5,
)


@settings(max_examples=60, deadline=None)
@given(given_rows=ROWS, ascii_only=st.booleans())
def test_any_rows_come_back_as_they_were(given_rows: list[dict], ascii_only: bool) -> None:
    written = "".join(json.dumps(r, ensure_ascii=ascii_only) + "\n" for r in given_rows)
    rows, bad = read(written.encode())
    assert bad == []
    back = [
        {
            "question_id": r["question_id"],
            "question": r["messages"][0]["content"],
            "model": r["model"],
            "response": r["replies"],
            **{k: r[k] for k in ("category", "reference", "human_score") if r[k] is not None},
            **(json.loads(r["meta_json"]) if r["meta_json"] else {}),
        }
        for r in rows
    ]
    assert back == given_rows
    assert [r["line"] for r in rows] == list(range(1, len(rows) + 1))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.binary(max_size=12).map(lambda b: b.replace(b"\n", b""))
        | st.sampled_from([b"", b" ", b"\r", b"[]", json.dumps(row()).encode(), b'{"question_id": 1}'])
    )
)
def test_every_line_is_a_row_or_quarantined_or_blank(given_lines: list[bytes]) -> None:
    content = b"".join(line + b"\n" for line in given_lines)
    rows, bad = read(content)
    blank = sum(not line.removeprefix(b"\xef\xbb\xbf").strip(b" \t\r") for line in given_lines)
    assert len(rows) + len(bad) + blank == len(given_lines)


@given(st.binary(max_size=60), st.integers(1, 9))
def test_lines_do_not_depend_on_where_the_stream_is_cut(content: bytes, size: int) -> None:
    chunks = [content[i : i + size] for i in range(0, len(content), size)]
    assert list(split_lines(chunks)) == list(split_lines([content]))


NESTED = {
    "question_id": 7,
    "category": "writing",
    "question": "Write.",
    "answers": [
        {"score": 1, "text": ["bad", "worse"], "judgement": ["j0", "j1"], "by": "x"},
        {"score": "4.5", "text": ["good"]},
        {"score": 1, "text": ["bad too"]},
        {"text": ["unscored"]},
    ],
    "split": "test",
}


def test_nested_answers_are_numbered_through_the_question() -> None:
    rows, bad = read(lines(NESTED), format="trustjudge")
    assert bad == []
    assert [(r["response_id"], r["model"], r["human_score"], r["replies"]) for r in rows] == [
        ("0", "level-1-0", 1.0, ["bad"]),
        ("1", "level-1-1", 1.0, ["worse"]),
        ("2", "level-4.5-0", 4.5, ["good"]),
        ("3", "level-1-2", 1.0, ["bad too"]),
        ("4", "level-none-0", None, ["unscored"]),
    ]
    assert {(r["question_id"], r["category"], r["line"]) for r in rows} == {("7", "writing", 1)}
    assert json.loads(rows[1]["meta_json"]) == {"split": "test", "answers": {"judgement": "j1", "by": "x"}}
    assert json.loads(rows[2]["meta_json"]) == {"split": "test"}


def test_an_unreadable_nested_answer_keeps_its_number() -> None:
    answers = [{"score": 1, "text": ["a", None]}, {"score": "?", "text": ["b"]}, {"score": 2, "text": ["c"]}]
    rows, bad = read(lines(NESTED | {"answers": answers}), format="trustjudge")
    assert [(r["response_id"], r["model"]) for r in rows] == [("0", "level-1-0"), ("3", "level-2-0")]
    assert [b["detail"].split(":")[0] for b in bad] == ["answers[0].text[1]", "answers[1].score"]


@pytest.mark.parametrize(
    "answers", [None, [], "x", ["x"], [{"score": 1, "text": []}], [{"score": 1}], [{"score": 1, "text": 5}]]
)
def test_a_question_without_responses_is_not_dropped_silently(answers: Any) -> None:
    rows, bad = read(lines(NESTED | {"answers": answers}), format="trustjudge")
    assert (rows, len(bad)) == ([], 1)


def test_nested_fields_have_users_names_too() -> None:
    theirs = {"qid": 1, "q": "Why?", "cands": [{"level": 3, "outs": ["a"]}]}
    fields = {"question_id": "qid", "question": "q", "answers": "cands", "human_score": "level", "response": "outs"}
    rows, bad = read(lines(theirs), fields | {"model": "=gpt-x"}, "trustjudge")
    assert bad == []
    assert (rows[0]["model"], rows[0]["human_score"], rows[0]["replies"]) == ("gpt-x", 3.0, ["a"])


@pytest.mark.parametrize(
    ("fields", "format", "message"),
    [
        ({"id": "question_id"}, "flat", "ours come first: {question_id: id}"),
        ({"respons": "r"}, "flat", "did you mean 'response'"),
        ({"answers": "a"}, "flat", "no field 'answers'"),
        ({"messages": "=x"}, "flat", "constant"),
        ({"model": ""}, "flat", "corpus.fields.model"),
        ({}, "mt-bench", "corpus.format: got 'mt-bench'; one of \\['alpaca-eval'"),
    ],
)
def test_a_field_map_that_cannot_be_meant_is_refused_before_reading(fields: dict, format: str, message: str) -> None:
    with pytest.raises(CorpusConfigError, match=message):
        field_map(fields, format)
