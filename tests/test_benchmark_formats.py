"""Benchmarks whose questions, answers and references lie in files of their own: what meets, and what does not."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from shared_inputs import shared

from trustjudge_ray import ingest
from trustjudge_ray.config import CorpusConfig
from trustjudge_ray.corpus import joining, reader
from trustjudge_ray.judging.slots import reply_text
from trustjudge_ray.store import RunFolder

Files = dict[str, list[Any]]


def corpus(folder: Path, files: Files) -> None:
    for name, objects in files.items():
        path = folder / "c" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(content) + "\n" for content in objects), encoding="utf-8")


def settled(
    folder: Path, format: str, files: Files, fields: dict[str, str] | None = None
) -> tuple[list[dict[str, Any]], list[tuple[str, int, str, str]]]:
    """The rows that can be judged, by question and response, and the others by place, each with reason and detail."""
    corpus(folder, files)
    run, config = (
        RunFolder(str(folder / "run")),
        CorpusConfig(paths=[str(folder / "c")], format=format, fields=fields or {}),
    )
    ingest.clear(run)
    ledgers = ingest.ingest_files(reader.expand(config.paths), config, run)
    rows = [
        row
        for b in sorted({b for x in ledgers for b in x["buckets"]})
        for row in ingest.settle_bucket(b, run).to_pylist()
    ]
    bad = run.quarantine()
    found = [] if bad is None else bad.sort("source", "line").to_dicts()
    places = [(row["source"].split("/c/")[1], row["line"], row["reason"], row["detail"]) for row in found]
    return sorted(rows, key=lambda row: (row["question_id"], row["response_id"])), places


def faults(places: list[tuple[str, int, str, str]]) -> list[tuple[str, int, str]]:
    return [place[:3] for place in places]


def asked(*turns: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": turn} for turn in turns]


def question(number: Any, *turns: str, **more: Any) -> dict[str, Any]:
    return {"question_id": number, "category": "math", "turns": list(turns)} | more


def answer(number: Any, model: Any, *choices: list[Any], **more: Any) -> dict[str, Any]:
    listed = [{"index": i, "turns": turns} for i, turns in enumerate(choices)]
    return {"question_id": number, "answer_id": "x", "model_id": model, "choices": listed, "tstamp": 1.5} | more


# --- FastChat --------------------------------------------------------------------------------


def test_both_turns_of_answer_question_and_reference_meet_from_three_files(tmp_path: Path) -> None:
    rows, bad = settled(
        tmp_path,
        "fastchat",
        {
            "question.jsonl": [question(81, "One?", "Two?", reference=["own", ""], required_temperature=0.1)],
            "model_answer/m.jsonl": [answer("81", "m", ["first", "second"])],
            "model_answer/n.jsonl": [answer(81.0, "n", ["1", "2"], ["3", "4"])],
            "reference_answer/gpt.jsonl": [answer(81, "gpt", ["r1", "r2"])],
        },
    )
    assert bad == []
    assert [(r["response_id"], r["model"], r["replies"]) for r in rows] == [
        ("m", "m", ["first", "second"]),
        ("n#0", "n", ["1", "2"]),
        ("n#1", "n", ["3", "4"]),
    ]
    assert all(r["messages"] == asked("One?", "Two?") for r in rows)
    assert {(r["question_id"], r["category"], r["reference"]) for r in rows} == {
        ("81", "math", reply_text(["r1", "r2"]))
    }
    kept = {"answer_id": "x", "tstamp": 1.5, "question": {"required_temperature": 0.1}}
    assert all(json.loads(r["meta_json"]) == kept for r in rows)


@pytest.mark.parametrize(
    ("turns", "given", "reference"),
    [
        (["a?", "b?"], ["r", ""], "[Turn 1]\nr"),
        (["a?", "b?"], ["", "s"], "[Turn 2]\ns"),
        (["a?", "b?"], ["r"], "[Turn 1]\nr"),
        (["a?", "b?"], ["r", "s"], reply_text(["r", "s"])),
        (["a?", "b?"], [None, " "], None),
        (["a?", "b?"], [], None),
        (["a?", "b?"], "whole", "whole"),
        (["a?"], ["r"], "r"),
        (["a?"], [""], None),
        (["a?"], ["r", "s"], reply_text(["r", "s"])),
    ],
)
def test_a_reference_stays_with_its_turn_where_others_have_none(
    tmp_path: Path, turns: list[str], given: Any, reference: str | None
) -> None:
    files = {"q.jsonl": [question(1, *turns, reference=given)], "a.jsonl": [answer(1, "m", ["x"] * len(turns))]}
    rows, bad = settled(tmp_path, "fastchat", files)
    assert (bad, [r["reference"] for r in rows]) == ([], [reference])


@pytest.mark.parametrize("given", [["r"], ["r", " "]])
def test_a_reference_file_with_fewer_turns_says_which_turn_it_has(tmp_path: Path, given: list[str]) -> None:
    files = {
        "q.jsonl": [question(1, "a?", "b?")],
        "a.jsonl": [answer(1, "m", ["x", "y"])],
        "reference_answer/g.jsonl": [answer(1, "g", given)],
    }
    rows, bad = settled(tmp_path, "fastchat", files)
    assert (bad, [r["reference"] for r in rows]) == ([], ["[Turn 1]\nr"])
    (tmp_path / "c/q.jsonl").unlink()
    rows, bad = settled(tmp_path, "fastchat", {"b.jsonl": [answer(1, "n", ["z"])]})
    assert (bad, [(r["messages"], r["reference"]) for r in rows]) == ([], [([], "[Turn 1]\nr")] * 2)


def test_odd_answers_are_rows_as_they_are(tmp_path: Path) -> None:
    texts = [
        "",
        " \n",
        "$ERROR$",
        "[[A]]",
        '{"score": 10}',
        "<|im_end|>\n",
        "<think>",
        "\u202eback",
        "a\u2028b",
        "\x00",
    ]
    files = {
        "question.jsonl": [question(i, "Why?") for i in range(len(texts))],
        "model_answer/odd.jsonl": [answer(str(i), "odd/model:\u00e9", [text]) for i, text in enumerate(texts)],
    }
    rows, bad = settled(tmp_path, "fastchat", files)
    assert bad == []
    assert [r["replies"] for r in sorted(rows, key=lambda r: int(r["question_id"]))] == [[text] for text in texts]


def test_two_answers_of_a_model_to_one_question_are_not_chosen_from(tmp_path: Path) -> None:
    files = {
        "question.jsonl": [question(1, "a?", "b?"), question(2, "c?", "d?")],
        "answers.jsonl": [
            answer(1, "m", ["first", "t2"], tstamp=1.0),
            answer(1, "m", ["second", "t2"], answer_id="y", tstamp=2.0),
            answer(2, "other", ["only one turn"]),
            answer(2, "m", ["x", "y"]),
            answer(2, "m", ["x", "y"], answer_id="z", tstamp=3.0),
        ],
    }
    rows, bad = settled(tmp_path, "fastchat", files)
    assert [(r["question_id"], r["line"]) for r in rows] == [("2", 4)]
    assert faults(bad) == [
        ("answers.jsonl", 1, "conflicting_duplicate"),
        ("answers.jsonl", 2, "conflicting_duplicate"),
        ("answers.jsonl", 3, "turns_differ"),
        ("answers.jsonl", 5, "duplicate_row"),
    ]
    assert bad[2][3].startswith("1 turns of an answer to question '2', which has 2")
    named, bad = settled(tmp_path, "fastchat", files, {"response_id": "answer_id"})
    assert [(r["question_id"], r["response_id"]) for r in named] == [("1", "x"), ("1", "y"), ("2", "x"), ("2", "z")]


def test_answers_without_a_question_and_questions_without_an_answer_are_told(tmp_path: Path) -> None:
    files = {
        "model_answer/m.jsonl": [answer(1, "m", ["x"]), answer(7, "m", ["y"])],
        "question.jsonl": [question(1, "a?"), question(2, "b?"), question(3, "c?")],
        "reference_answer/g.jsonl": [answer(1, "g", ["r"]), answer(9, "g", ["s"])],
        "broken.jsonl": [answer(3, None, ["z"])],
    }
    rows, bad = settled(tmp_path, "fastchat", files)
    assert [(r["question_id"], r["reference"]) for r in rows] == [("1", "r")]
    assert faults(bad) == [
        ("broken.jsonl", 1, "missing_field"),
        ("model_answer/m.jsonl", 2, "unknown_question"),
        ("question.jsonl", 2, "no_answer"),
        ("question.jsonl", 3, "no_answer"),
        ("reference_answer/g.jsonl", 2, "unknown_question"),
    ]
    assert all(id in detail and "question.jsonl)" in detail for id, (*_, detail) in (("'7'", bad[1]), ("'9'", bad[4])))


def test_answers_of_a_corpus_without_any_question_are_read_without_one_and_say_so(tmp_path: Path) -> None:
    files = {
        "model_answer/m.jsonl": [answer(1, "m", ["x"]), answer(7, "m", ["y", "z"]), answer(7, "m", ["y", "z"])],
        "reference_answer/g.jsonl": [answer(1, "g", ["r"]), answer(9, "g", ["s"])],
    }
    rows, bad = settled(tmp_path, "fastchat", files)
    assert [(r["question_id"], r["messages"], r["replies"], r["reference"]) for r in rows] == [
        ("1", [], ["x"], "r"),
        ("7", [], ["y", "z"], None),
    ]
    assert all(json.loads(r["meta_json"])["flags"] == ["no_question"] for r in rows)
    assert faults(bad) == [
        ("model_answer/m.jsonl", 3, "duplicate_row"),
        ("reference_answer/g.jsonl", 2, "unknown_question"),
    ]
    assert "no file of the corpus has questions" in bad[1][3]
    run = RunFolder(str(tmp_path / "run"))
    assert ingest.notes(run)[0].startswith("2 responses have no question")
    rows, bad = settled(tmp_path, "fastchat", {"question.jsonl": [question(5, "a?")]})
    assert (rows, {reason for _, _, reason, _ in bad}) == ([], {"unknown_question", "no_answer"})
    assert ingest.notes(run) == []


@pytest.mark.parametrize("name", ["odd_answers.jsonl", "dup_answers.jsonl"])
def test_the_odd_answers_arrive_by_themselves_but_for_two_under_one_id(tmp_path: Path, name: str) -> None:
    given = [json.loads(line) for line in shared(f"inputs/{name}").read_text(encoding="utf-8").splitlines()]
    rows, bad = settled(tmp_path, "fastchat", {name: given})
    twice = name.startswith("dup")
    assert faults(bad) == [(name, line, "conflicting_duplicate") for line in (1, 2) if twice]
    kept = {str(content["question_id"]): content["choices"][0]["turns"] for content in given[2 * twice :]}
    assert {r["question_id"]: r["replies"] for r in rows} == kept


def test_a_single_turn_need_not_be_in_a_list_on_either_side(tmp_path: Path) -> None:
    alone = {"choices": [{"index": 0, "turns": "x"}]}
    content = {"choices": [{"index": 0, "turns": {"content": "y", "token_len": 1}}]}
    files = {
        "q.jsonl": [{"question_id": 1, "turns": "a?"}],
        "m.jsonl": [answer(1, "m") | alone, answer(1, "n") | content],
    }
    rows, bad = settled(tmp_path, "fastchat", files)
    assert (bad, [(r["messages"], r["replies"]) for r in rows]) == ([], [(asked("a?"), ["x"]), (asked("a?"), ["y"])])


def test_choices_that_all_have_one_index_are_told_apart_by_their_place(tmp_path: Path) -> None:
    choices = [{"index": 0, "turns": ["a"]}, {"index": 0, "turns": ["b"]}, {"index": 1, "turns": ["c"]}]
    files = {"q.jsonl": [question(1, "a?")], "m.jsonl": [answer(1, "m") | {"choices": choices}]}
    rows, bad = settled(tmp_path, "fastchat", files)
    assert (bad, [(r["response_id"], r["replies"]) for r in rows]) == (
        [],
        [("m#0", ["a"]), ("m#1", ["b"]), ("m#2", ["c"])],
    )


def test_a_question_asked_in_two_ways_takes_its_answers_out_and_one_asked_twice_alike_does_not(tmp_path: Path) -> None:
    files = {
        "a.jsonl": [question(1, "Why?"), question(1, "Why?"), question(2, "Why?"), question(3, "x?", reference=["r"])],
        "b.jsonl": [question(1, "Why?"), question(2, "When?"), question(3, "x?", category=None)],
        "m.jsonl": [answer(1, "m", ["x"]), answer(2, "m", ["y"]), answer(3, "m", ["z"])],
    }
    rows, bad = settled(tmp_path, "fastchat", files)
    assert [(r["question_id"], r["reference"], r["category"]) for r in rows] == [
        ("1", None, "math"),
        ("3", "r", "math"),
    ]
    assert faults(bad) == [
        ("a.jsonl", 2, "duplicate_row"),
        ("a.jsonl", 3, "conflicting_question"),
        ("b.jsonl", 2, "conflicting_question"),
        ("m.jsonl", 2, "unknown_question"),
    ]


def test_references_that_differ_are_none_and_those_that_agree_are_one(tmp_path: Path) -> None:
    files = {
        "q.jsonl": [question(1, "a?"), question(2, "b?"), question(3, "c?", reference=["own"])],
        "m.jsonl": [answer(i, "m", ["x"]) for i in (1, 2, 3)],
        "reference_answer/g.jsonl": [answer(1, "g", ["r"]), answer(2, "g", ["s"]), answer(3, "g", ["t"])],
        "reference_answer/h.jsonl": [answer(1, "h", ["r"]), answer(2, "h", ["other"]), answer(3, "h", [""])],
    }
    rows, bad = settled(tmp_path, "fastchat", files)
    assert [r["reference"] for r in rows] == ["r", None, "t"]
    assert faults(bad) == [(f"reference_answer/{name}.jsonl", 2, "conflicting_reference") for name in "gh"]


@pytest.mark.parametrize(
    ("changed", "reason", "said"),
    [
        ({"model_id": None}, "missing_field", "model_id') is null"),
        ({"question_id": None}, "missing_field", "question_id is null"),
        ({"choices": []}, "wrong_type", "choices: a list of 0"),
        ({"choices": "x"}, "wrong_type", "choices: the text 'x'"),
        ({"choices": None}, "missing_field", "neither question (field 'turns')"),
        ({"choices": [{"index": 0}]}, "missing_field", "choices[0].turns: null"),
        ({"choices": [{"index": 0, "turns": []}]}, "missing_field", "choices[0].turns: a list of 0"),
        ({"choices": [{"index": 0, "turns": [None]}]}, "wrong_type", "choices[0].turns[0]: null"),
        ({"choices": ["x"]}, "wrong_type", "choices[0]: the text 'x'"),
    ],
)
def test_an_answer_that_cannot_be_read_says_which_field(tmp_path: Path, changed: dict, reason: str, said: str) -> None:
    files = {"q.jsonl": [question(1, "a?")], "m.jsonl": [answer(1, "m", ["x"]), answer(1, "n", ["x"]) | changed]}
    rows, bad = settled(tmp_path, "fastchat", files)
    assert len(rows) == 1
    assert faults(bad) == [("m.jsonl", 2, reason)]
    assert said in bad[0][3]


def test_a_choice_that_cannot_be_read_costs_no_other(tmp_path: Path) -> None:
    files = {"q.jsonl": [question(1, "a?")], "m.jsonl": [answer(1, "m", ["x"], [None], ["z"])]}
    rows, bad = settled(tmp_path, "fastchat", files)
    assert [r["response_id"] for r in rows] == ["m#0", "m#2"]
    assert faults(bad) == [("m.jsonl", 1, "wrong_type")]


@pytest.mark.parametrize(
    ("format", "row"),
    [
        (
            "fastchat",
            {"question_id": 1, "model": "m", "judge": ["j", "t"], "user_prompt": "p", "judgment": "j", "score": 3},
        ),
        ("arena-hard", {"uid": "1", "model": "m", "judge": "j", "games": [{"score": "A>B"}]}),
        ("alpaca-eval", {"instruction": "i", "output_1": "a", "output_2": "b", "preference": 1.0}),
    ],
)
def test_judgments_that_lie_beside_the_answers_are_told_from_them(tmp_path: Path, format: str, row: dict) -> None:
    rows, bad = settled(tmp_path, format, {"model_judgment/j.jsonl": [row]})
    assert (rows, faults(bad)) == ([], [("model_judgment/j.jsonl", 1, "a_judgment")])
    assert f"trustjudge import {format}" in bad[0][3]


# --- Arena-Hard ------------------------------------------------------------------------------


def arena_answer(uid: str, model: str, prompt: str, content: Any, **more: Any) -> dict[str, Any]:
    messages = [*asked(prompt), {"role": "assistant", "content": content}]
    return {"uid": uid, "ans_id": "a", "model": model, "messages": messages, "tstamp": 1.0} | more


def test_content_is_a_text_or_an_object_in_either_version_of_arena_hard(tmp_path: Path) -> None:
    old = [{"index": 0, "turns": [{"content": "old", "token_len": 1}]}]
    files: Files = {
        "question.jsonl": [{"uid": "q", "category": "hard_prompt", "subcategory": "coding", "prompt": "Why?"}],
        "old_question.jsonl": [
            {"question_id": "p", "category": "v0.1", "cluster": "Maths", "turns": [{"content": "How?"}]}
        ],
        "model_answer/m.jsonl": [arena_answer("q", "m", "Why?", "text", metadata={"token_len": 1})],
        "model_answer/n.jsonl": [arena_answer("q", "n", "Why?", {"answer": "object", "thought": "hm"})],
        "model_answer/o.jsonl": [
            {"question_id": "p", "answer_id": "a", "model_id": "o", "choices": old, "tstamp": 1.0}
        ],
    }
    rows, bad = settled(tmp_path, "arena-hard", files)
    assert bad == []
    assert [(r["question_id"], r["model"], r["category"], r["messages"], r["replies"]) for r in rows] == [
        ("p", "o", "v0.1", asked("How?"), ["old"]),
        ("q", "m", "hard_prompt", asked("Why?"), ["text"]),
        ("q", "n", "hard_prompt", asked("Why?"), ["object"]),
    ]
    metas = [json.loads(r["meta_json"]) for r in rows]
    assert metas[0]["choice"] == {"turns": [{"token_len": 1}]}
    assert metas[1]["metadata"] == {"token_len": 1}
    assert metas[2]["messages"] == [{"role": "assistant", "thought": "hm"}]
    assert [meta["question"] for meta in metas] == [{"cluster": "Maths"}, *[{"subcategory": "coding"}] * 2]


def test_an_answer_that_brings_its_question_needs_no_other_and_contradicts_none(tmp_path: Path) -> None:
    system: list[Any] = [
        {"role": "system", "content": "Be brief."},
        *asked("Why?"),
        {"role": "assistant", "content": "So."},
    ]
    answers = [
        arena_answer("q", "m", "Why?", "x"),
        arena_answer("q", "n", "When?", "x"),
        arena_answer("q", "s", "", "") | {"messages": system},
        arena_answer("alone", "m", "Where?", "x"),
    ]
    files: Files = {"q.jsonl": [{"uid": "q", "prompt": "Why?"}], "m.jsonl": answers}
    rows, bad = settled(tmp_path, "arena-hard", files)
    assert [(r["question_id"], r["model"], r["messages"]) for r in rows] == [
        ("alone", "m", asked("Where?")),
        ("q", "m", asked("Why?")),
        ("q", "s", asked("Why?")),
    ]
    assert faults(bad) == [("m.jsonl", 2, "conflicting_question")]
    assert json.loads(rows[2]["meta_json"])["messages"] == system[:1]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ("x", "wrong_type"),
        (["x"], "wrong_type"),
        ([], "not_an_answer"),
        ([{"role": "user", "content": "a"}], "not_an_answer"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": None}], "missing_field"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": {"answer": None}}], "missing_field"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": {"answer": 1.5}}], "wrong_type"),
        ([{"role": "human", "content": "a"}], "wrong_type"),
    ],
)
def test_a_conversation_without_a_last_answer_is_told(tmp_path: Path, messages: Any, reason: str) -> None:
    rows, bad = settled(tmp_path, "arena-hard", {"m.jsonl": [{"uid": "q", "model": "m", "messages": messages}]})
    assert (rows, faults(bad)) == ([], [("m.jsonl", 1, reason)])


# --- AlpacaEval ------------------------------------------------------------------------------


def output(text: str, model: Any, **more: Any) -> dict[str, Any]:
    return {"dataset": "d", "instruction": "Do it.", "output": text, "generator": model} | more


def test_outputs_of_two_arrays_meet_by_their_instruction(tmp_path: Path) -> None:
    corpus(tmp_path, {"b.jsonl": [output("y", "n", datasplit="eval")]})
    array = [output("x", "m"), output("z", "m", instruction="Other."), output("w", "m", input="1, 2"), output("", "e")]
    (tmp_path / "c/a.json").write_text(json.dumps(array, indent=2))
    rows, bad = settled(tmp_path, "alpaca-eval", {})
    assert bad == []
    meet: dict[str, list[tuple]] = {}
    for r in rows:
        meet.setdefault(r["messages"][0]["content"], []).append(
            (r["question_id"], r["model"], r["replies"][0], r["line"])
        )
    [id] = {entry[0] for entry in meet["Do it."]}
    assert meet["Do it."] == [(id, "e", "", 4), (id, "m", "x", 1), (id, "n", "y", 1)]
    assert [entry[1:] for entry in meet["Do it.\n\n1, 2"]] == [("m", "w", 3)]
    assert len({r["question_id"] for r in rows}) == 3
    assert {r["category"] for r in rows} == {"d"}


@pytest.mark.parametrize("missing", ["instruction", "output", "generator"])
def test_an_output_that_lacks_a_field_says_which(tmp_path: Path, missing: str) -> None:
    rows, bad = settled(tmp_path, "alpaca-eval", {"a.jsonl": [output("x", "m", **{missing: None})]})
    assert (rows, faults(bad)) == ([], [("a.jsonl", 1, "missing_field")])
    assert f"(field '{missing}') is null" in bad[0][3]


# --- batches ---------------------------------------------------------------------------------


def request(custom_id: str, model: str, *messages: dict[str, Any]) -> dict[str, Any]:
    body = {"model": model, "messages": list(messages), "max_tokens": 9}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def told(custom_id: str, model: str, *messages: dict[str, Any], status: int = 200, **more: Any) -> dict[str, Any]:
    choices = [
        {"index": i, "message": {"role": "assistant"} | m, "finish_reason": "stop"} for i, m in enumerate(messages)
    ]
    body = {"id": "c", "object": "chat.completion", "model": model, "choices": choices, "usage": {"total_tokens": 3}}
    return {
        "id": "v",
        "custom_id": custom_id,
        "response": {"status_code": status, "request_id": "r", "body": body},
        "error": None,
    } | more


def test_requests_and_answers_of_two_models_meet_by_custom_id(tmp_path: Path) -> None:
    talk = [
        {"role": "system", "content": "Be brief."},
        *asked("Hi"),
        {"role": "assistant", "content": "Yes?"},
        *asked("Why?"),
    ]
    files = {
        "in_m.jsonl": [request("r1", "m", *talk), request("r2", "m", *asked("a", "b"))],
        "in_n.jsonl": [request("r1", "n", *talk)],
        "out_m.jsonl": [
            told("r2", "m", {"content": "two"}, {"content": "drafts"}),
            told("r1", "m", {"content": "So."}),
        ],
        "out_n.jsonl": [told("r1", "n", {"content": None, "refusal": "No."})],
    }
    rows, bad = settled(tmp_path, "openai-batch", files)
    assert bad == []
    assert [(r["question_id"], r["response_id"], r["model"], r["replies"]) for r in rows] == [
        ("r1", "m", "m", ["So."]),
        ("r1", "n", "n", ["No."]),
        ("r2", "m#0", "m", ["two"]),
        ("r2", "m#1", "m", ["drafts"]),
    ]
    assert [r["messages"] for r in rows] == [talk, talk, *[asked("a", "b")] * 2]
    assert json.loads(rows[1]["meta_json"])["choice"] == {"finish_reason": "stop", "refused": True}
    assert json.loads(rows[0]["meta_json"])["body"] == {"id": "c", "usage": {"total_tokens": 3}}


@pytest.mark.parametrize(
    ("changed", "reason", "said"),
    [
        (
            {"response": {"status_code": 400, "request_id": "r", "body": None}, "error": "too long"},
            "request_failed",
            "status 400: too long",
        ),
        (
            {"response": {"status_code": 429, "body": {"error": {"message": "slow down"}}}},
            "request_failed",
            "status 429: slow down",
        ),
        ({"response": None, "error": {"code": "batch_expired", "message": "late"}}, "request_failed", "failed: late"),
        ({"response": {"status_code": 500, "body": {}}}, "request_failed", "status 500"),
        ({"response": None}, "missing_field", "neither a request, with body, nor an answer"),
        ({"response": {"status_code": 200, "body": None}}, "missing_field", "response.body: null"),
        ({"response": {"status_code": 200, "body": {"model": "n", "choices": []}}}, "wrong_type", "choices"),
        (
            {"response": {"status_code": 200, "body": {"choices": [{"message": {"content": "x"}}]}}},
            "missing_field",
            "model",
        ),
        (
            {
                "response": {
                    "status_code": 200,
                    "body": {"model": "n", "choices": [{"message": {"content": None}, "finish_reason": "length"}]},
                }
            },
            "missing_field",
            "content is null, finish_reason length",
        ),
    ],
)
def test_a_request_that_failed_is_counted_with_what_it_says(
    tmp_path: Path, changed: dict, reason: str, said: str
) -> None:
    files = {
        "in.jsonl": [request("r", "m", *asked("a?"))],
        "out.jsonl": [told("r", "m", {"content": "x"}), told("r", "n") | changed],
    }
    rows, bad = settled(tmp_path, "openai-batch", files)
    assert [r["model"] for r in rows] == ["m"]
    assert faults(bad) == [("out.jsonl", 2, reason)]
    assert said in bad[0][3]


@pytest.mark.parametrize("status", [None, 200, 200.0, "200"])
def test_a_request_that_succeeded_counts_however_its_status_is_written(tmp_path: Path, status: Any) -> None:
    files = {
        "in.jsonl": [request("r", "m", *asked("a?"))],
        "out.jsonl": [told("r", "m", {"content": "x"}, status=status)],
    }
    rows, bad = settled(tmp_path, "openai-batch", files)
    assert ([r["replies"] for r in rows], bad) == ([["x"]], [])


def test_completions_have_a_prompt_and_texts(tmp_path: Path) -> None:
    sent = {"custom_id": "r", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "Once"}}
    got = {
        "custom_id": "r",
        "response": {"status_code": 200, "body": {"model": "m", "choices": [{"index": 0, "text": " upon"}]}},
    }
    listed = sent | {"custom_id": "s", "body": {"model": "m", "prompt": ["a", "b"]}}
    rows, bad = settled(tmp_path, "openai-batch", {"in.jsonl": [sent, listed], "out.jsonl": [got]})
    assert [(r["messages"], r["replies"]) for r in rows] == [(asked("Once"), [" upon"])]
    assert faults(bad) == [("in.jsonl", 2, "wrong_type")]


# --- the way through -------------------------------------------------------------------------


def test_a_reference_folder_means_references_in_every_benchmark(tmp_path: Path) -> None:
    alpaca: Files = {"a.jsonl": [output("x", "m")], "reference_answer/a.jsonl": [output("best", "people")]}
    rows, bad = settled(tmp_path / "a", "alpaca-eval", alpaca)
    assert (bad, [(r["model"], r["reference"]) for r in rows]) == ([], [("m", "best")])
    batch: Files = {
        "in.jsonl": [request("r", "m", *asked("a?"))],
        "out.jsonl": [told("r", "m", {"content": "x"})],
        "reference_answer/out.jsonl": [told("r", "large", {"content": "best"}), told("s", "large", {"content": "y"})],
    }
    rows, bad = settled(tmp_path / "b", "openai-batch", batch)
    assert [(r["model"], r["reference"]) for r in rows] == [("m", "best")]
    assert faults(bad) == [("reference_answer/out.jsonl", 2, "unknown_question")]


def test_what_a_sample_does_not_hold_is_no_fault_of_the_corpus(tmp_path: Path) -> None:
    corpus(
        tmp_path,
        {"q.jsonl": [question(1, "a?"), question(2, "b?")], "m.jsonl": [answer(i, "m", ["x"]) for i in (2, 3)]},
    )
    config = CorpusConfig(paths=[str(tmp_path / "c")], format="fastchat")
    read = [next(ingest.read(path, config, {}, 10))[0] for path in reader.expand(config.paths)]
    rows, bad = joining.of_sample(pa.concat_tables(read))
    assert ([r["question_id"] for r in rows.to_pylist()], len(bad)) == (["2"], 0)


def test_files_read_in_any_order_and_apart_give_the_same_rows(tmp_path: Path) -> None:
    files = {
        "question.jsonl": [question(i, f"{i}?") for i in range(30)],
        "reference_answer/g.jsonl": [answer(i, "g", [f"r{i}"]) for i in range(0, 30, 2)],
        **{f"model_answer/{m}.jsonl": [answer(i, m, [f"{m}{i}"]) for i in range(29)] for m in "mn"},
    }
    together, bad = settled(tmp_path, "fastchat", files)
    assert len(together) == 58
    assert faults(bad) == [("question.jsonl", 30, "no_answer")]
    config, run = CorpusConfig(paths=[str(tmp_path / "c")], format="fastchat"), RunFolder(str(tmp_path / "apart"))
    ledgers = [ingest.ingest_file(path, config, run) for path in reversed(reader.expand(config.paths))]
    assert {x["source"].split("/c/")[1]: (x["rows"], x["questions"], x["references"]) for x in ledgers} == {
        "question.jsonl": (0, 30, 0),
        "reference_answer/g.jsonl": (0, 0, 15),
        "model_answer/m.jsonl": (29, 0, 0),
        "model_answer/n.jsonl": (29, 0, 0),
    }
    assert ingest.first_questions(run, 40) == {str(i) for i in range(29)}, "no limit is spent on what nobody answered"
    apart = [
        row
        for b in range(64)
        if run.names(f"ingest/bucket={b:03d}")
        for row in ingest.settle_bucket(b, run).to_pylist()
    ]
    assert sorted(apart, key=lambda row: (row["question_id"], row["response_id"])) == together
