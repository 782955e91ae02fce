"""Preference files to RESPONSES: what is prompt, what is answer, and what is refused by which name."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trustjudge_ray.corpus import formats, preference_formats
from trustjudge_ray.corpus.layouts import LAYOUTS
from trustjudge_ray.corpus.reader import read
from trustjudge_ray.schema import PLACED_RESPONSES, QUARANTINE, check

DATA = Path(__file__).parent / "data" / "preferences"


def parsed(format, *objects, **fields):
    """Rows and rejections of objects of a format, each with the object's line."""
    lines = "".join(json.dumps(content) + "\n" for content in objects).encode()
    [(rows, bad)] = formats.parse_lines([lines], "test", format, fields)
    check(rows, PLACED_RESPONSES)
    check(bad, QUARANTINE)
    return rows.to_pylist(), [(row["line"], row["reason"]) for row in bad.to_pylist()]


def file_of(name):
    [(rows, bad)] = read(str(DATA / f"{name}.jsonl"), name)
    return rows.to_pylist(), [(row["line"], row["reason"]) for row in bad.to_pylist()]


def of_line(rows, line):
    """The answers of a line by response id, and its messages as (role, content)."""
    mine = [row for row in rows if row["line"] == line]
    assert len({row["question_id"] for row in mine}) == 1
    messages = [(m["role"], m["content"]) for m in mine[0]["messages"]]
    return messages, {row["response_id"]: row["replies"] for row in mine}


def said(row):
    return json.loads(row["meta_json"])["preference"]


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def test_a_transcript_keeps_its_turns_and_gives_its_last_ones_as_the_answers():
    rows, bad = file_of("hh-rlhf")
    assert of_line(rows, 2) == (
        [
            ("user", "My soup is too salty."),
            ("assistant", "Add water or a potato."),
            ("user", "And if it is too thin then?"),
        ],
        {"chosen": ["Let it simmer without a lid."], "rejected": ["Pour it away."]},
    )
    assert bad == [(3, "prompts_differ"), (6, "not_a_transcript")]


def test_empty_and_identical_sides_are_read_so_that_the_plan_can_name_them():
    rows, _ = file_of("hh-rlhf")
    assert of_line(rows, 4)[1] == {"chosen": [""], "rejected": ["Something."]}
    assert of_line(rows, 5)[1] == {"chosen": ["The ostrich."], "rejected": ["The ostrich."]}


def test_an_earlier_answer_that_differs_is_another_prompt_in_a_transcript():
    turns = "\n\nHuman: a\n\nAssistant: {}\n\nHuman: c\n\nAssistant: {}"
    _, bad = parsed("hh-rlhf", {"chosen": turns.format("b", "d"), "rejected": turns.format("x", "e")})
    assert bad == [(1, "prompts_differ")]


def test_labels_of_people_are_read_as_such_only_where_the_configuration_says_so():
    content = {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"}
    plain, _ = parsed("hh-rlhf", content)
    told, _ = parsed("hh-rlhf", content, human_chosen="=1", human_rejected="=0")
    assert [row["human_score"] for row in plain] == [None, None]
    assert [row["human_score"] for row in told] == [1.0, 0.0]


def test_texts_stay_as_they_are_and_a_common_beginning_is_the_prompt_only_where_none_is_given():
    rows, bad = file_of("trl")
    assert bad == []
    assert of_line(rows, 1) == (
        [("user", "The sky is")],
        {"chosen": [" blue by day."], "rejected": [" a kind of cheese."]},
    )
    assert of_line(rows, 2) == (
        [("user", "Water boils at ")],
        {"chosen": ["100 degrees at sea level."], "rejected": ["noon."]},
    )
    assert json.loads(rows[0]["meta_json"])["id"] == 7


@given(st.text("ab \n", min_size=1), st.text("ab \n"), st.text("ab \n"))
def test_the_prompt_of_two_texts_is_all_that_they_share_up_to_a_white_space(start, one, other):
    chosen, rejected = start + one, start + other
    shared = [i for i in range(len(chosen) + 1) if chosen[:i] == rejected[:i] and chosen[:i][-1:].isspace()]
    longest = max(shared, default=0)
    if chosen == rejected or not chosen[:longest].strip():
        return
    assert preference_formats.text_split(chosen, rejected) == (chosen[:longest], chosen[longest:], rejected[longest:])


def test_a_common_first_word_of_both_answers_does_not_move_into_the_prompt_as_half_a_word():
    _, chosen, rejected = preference_formats.text_split("It is bright.", "It is blue.")
    assert (chosen, rejected) == ("bright.", "blue.")


def test_a_conversation_is_split_where_trl_splits_it():
    trl = pytest.importorskip("trl.data_utils")  # TRL is an extra of its own
    rows, bad = file_of("trl-conversational")
    source = [json.loads(line) for line in (DATA / "trl-conversational.jsonl").read_text().splitlines()]
    theirs = trl.extract_prompt({side: source[1][side] for side in ("chosen", "rejected")})
    messages, answers = of_line(rows, 2)
    assert messages == [(m["role"], m["content"]) for m in theirs["prompt"]]
    assert answers == {side: [theirs[side][0]["content"]] for side in ("chosen", "rejected")}
    assert of_line(rows, 1) == ([("user", "Name a prime.")], {"chosen": ["7"], "rejected": ["8"]})
    assert bad == [(4, "prompts_differ")]


def test_answers_of_several_turns_stand_with_the_users_turns_before_them():
    rows, _ = file_of("trl-conversational")
    assert of_line(rows, 3) == (
        [("user", "Name a colour."), ("user", "And a shape?")],
        {"chosen": ["Red.", "A circle."], "rejected": ["Seven.", "Loud."]},
    )


@pytest.mark.parametrize(
    ("chosen", "rejected", "reason"),
    [
        ([user("a"), assistant("b"), user("c"), assistant("d")], [user("a"), assistant("e")], "prompts_differ"),
        ([user("a"), assistant("b"), assistant("c")], [user("a"), assistant("e")], "not_an_answer"),
        ([user("a"), user("b")], [user("a"), assistant("e")], "prompts_differ"),
        ([assistant("b")], [assistant("c")], "prompts_differ"),
        ([user("a")], [user("a")], "identical_sides"),
        ([user("a"), assistant("b"), user("c")], [user("a"), assistant("b"), user("c")], "not_an_answer"),
        ("text", [assistant("c")], "wrong_type"),
        ([user("a"), assistant("b")], None, "missing_field"),
    ],
)
def test_what_is_no_pair_is_refused_by_name(chosen, rejected, reason):
    _, bad = parsed("trl-conversational", {"chosen": chosen, "rejected": rejected})
    assert bad == [(1, reason)]


@pytest.mark.parametrize(
    ("format", "chosen", "rejected", "reason"),
    [
        ("trl", "", "a b", "empty_side"),
        ("trl", "a", "a", "identical_sides"),
        ("trl", "a b", "c d", "prompts_differ"),
        ("hh-rlhf", "\n\nHuman: a\n\nAssistant: b", "", "empty_side"),
        ("hh-rlhf", "\n\nHuman: a\n\nAssistant: b", "b", "not_a_transcript"),
        ("trl-conversational", [], [assistant("a")], "empty_side"),
        ("trl-conversational", [], [], "empty_side"),
        ("trl", "", "", "empty_side"),
    ],
)
def test_an_empty_side_that_leaves_no_prompt_is_not_counted_as_prompts_that_differ(format, chosen, rejected, reason):
    assert parsed(format, {"chosen": chosen, "rejected": rejected}) == ([], [(1, reason)])


def test_a_side_without_an_answer_and_two_equal_conversations_are_pairs():
    rows, bad = parsed(
        "trl-conversational",
        {"chosen": [user("a"), assistant("b")], "rejected": [user("a")]},
        {"chosen": [user("a"), assistant("b")], "rejected": [user("a"), assistant("b")]},
    )
    assert bad == []
    assert of_line(rows, 1) == ([("user", "a")], {"chosen": ["b"], "rejected": [""]})
    assert of_line(rows, 2) == ([("user", "a")], {"chosen": ["b"], "rejected": ["b"]})


def test_a_prompt_beside_whole_conversations_must_be_theirs():
    rows, bad = file_of("ultrafeedback-binarized")
    assert bad == []
    assert of_line(rows, 1) == ([("user", "Give a synonym of quick.")], {"chosen": ["Fast."], "rejected": ["Slow."]})
    whole = {"chosen": [user("a"), assistant("b")], "rejected": [user("a"), assistant("c")]}
    assert parsed("ultrafeedback-binarized", whole | {"prompt": "other"})[1] == [(1, "prompts_differ")]
    explicit, bad = parsed("trl-conversational", whole | {"prompt": [user("a")]})
    assert (of_line(explicit, 1), bad) == (([("user", "a")], {"chosen": ["b"], "rejected": ["c"]}), [])


def test_a_source_that_scored_both_sides_alike_preferred_neither():
    rows, _ = file_of("ultrafeedback-binarized")
    assert [said(row)["score"] for row in rows] == [1.0, 0.0, 1.0, 1.0]


def test_every_completion_of_a_set_is_a_response_with_its_model_and_score():
    rows, bad = file_of("ultrafeedback")
    assert bad == []
    assert [(row["response_id"], row["model"], said(row)) for row in rows] == [
        ("0", "small", {"score": 3.0, "model": "small"}),
        ("1", "large", {"score": 8.5, "model": "large"}),
        ("2", "mid", {"score": 3.0, "model": "mid"}),
    ]
    assert {row["category"] for row in rows} == {"self-written"}
    assert json.loads(rows[0]["meta_json"])["completions"] == {"critique": "short"}


def test_a_set_with_an_unreadable_answer_keeps_the_others_and_one_answer_is_no_set():
    rows, bad = file_of("prompt-responses")
    assert [(row["response_id"], row["model"], row["human_score"]) for row in rows] == [
        ("0", "response-0", None),
        ("1", "grump", 2.0),
    ]
    assert bad == [(1, "missing_field"), (2, "too_few_responses")]


def test_a_pair_has_the_same_id_in_every_file_and_another_with_its_sides_swapped():
    pair = {"prompt": "a", "chosen": "b", "rejected": "c"}
    swapped = pair | {"chosen": "c", "rejected": "b"}
    rows, _ = parsed("trl", pair, swapped, pair | {"note": "x"})
    ids = [row["question_id"] for row in rows]
    assert ids[0] == ids[1] == ids[4] == ids[5]
    assert ids[2] == ids[3] != ids[0]
    boundary, _ = parsed("trl", {"prompt": "ab", "chosen": "", "rejected": "c"})
    assert boundary[0]["question_id"] not in ids


def test_a_question_id_that_names_prompts_is_read_only_where_it_is_mapped():
    pair = {"question_id": "q1", "prompt": "a", "chosen": "b", "rejected": "c"}
    plain, _ = parsed("trl", pair)
    mapped, _ = parsed("trl", pair, question_id="question_id")
    assert plain[0]["question_id"] != "q1" == mapped[0]["question_id"]


def test_a_transcript_as_a_prompt_is_a_conversation():
    rows, _ = parsed(
        "trl",
        {"prompt": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant:", "chosen": " d", "rejected": " e"},
        {"chosen": "\n\nHuman: a\n\nAssistant: It is d", "rejected": "\n\nHuman: a\n\nAssistant: It is e"},
    )
    assert of_line(rows, 1) == (
        [("user", "a"), ("assistant", "b"), ("user", "c")],
        {"chosen": ["d"], "rejected": ["e"]},
    )
    assert of_line(rows, 2) == ([("user", "a")], {"chosen": ["It is d"], "rejected": ["It is e"]})


def test_a_transcript_that_both_sides_repeat_is_not_part_of_their_answers():
    start = "\n\nHuman: a\n\nAssistant:"
    rows, _ = parsed(
        "trl",
        {"prompt": start, "chosen": f"{start} b", "rejected": f"{start} c"},
        {"prompt": f"{start} ", "chosen": f"{start} b", "rejected": "c"},
    )
    assert of_line(rows, 1) == ([("user", "a")], {"chosen": ["b"], "rejected": ["c"]})
    assert of_line(rows, 2)[1]["rejected"] == ["c"], "where one does not, nothing is taken from either"
    assert of_line(rows, 2)[1]["chosen"] == [f"{start} b"]


@pytest.mark.parametrize("format", ["trl", "hh-rlhf"])
def test_a_transcript_without_a_question_is_no_pair(format):
    start = "\n\nAssistant:"
    prompt = {"prompt": start} if format == "trl" else {}
    before = start if format == "hh-rlhf" else ""
    line = json.dumps(prompt | {"chosen": f"{before} a", "rejected": f"{before} b"})
    [(rows, bad)] = formats.parse_lines([line.encode()], "x", format, {})
    assert (len(rows), bad["reason"].to_pylist()) == (0, ["not_a_transcript"])
    assert "no turn before the answer" in bad["detail"][0].as_py()


@pytest.mark.parametrize("format", ["trl-conversational", "ultrafeedback", "ultrafeedback-binarized", "hh-rlhf"])
def test_a_parquet_file_gives_the_same_responses_as_json_lines(tmp_path, format):
    source = [json.loads(line) for line in (DATA / f"{format}.jsonl").read_text("utf-8").splitlines()]
    pq.write_table(pa.Table.from_pylist(source), tmp_path / "pairs.parquet")
    [(rows, bad)] = read(str(tmp_path / "pairs.parquet"), format)
    columns = ["question_id", "messages", "response_id", "model", "replies", "line"]
    expected, refused = file_of(format)
    assert rows.select(columns).to_pylist() == [{name: row[name] for name in columns} for row in expected]
    assert [(row["line"], row["reason"]) for row in bad.to_pylist()] == refused


HH = "\n\nHuman: {}\n\nAssistant: {}"


def test_a_transcript_with_windows_line_ends_is_read_as_a_transcript_turn_by_turn():
    start = HH.format("a", "b\nc") + "\n\nHuman: d\n\nAssistant: "
    content = {side: (start + side).replace("\n", "\r\n") for side in ("chosen", "rejected")}
    expected = ([("user", "a"), ("assistant", "b\r\nc"), ("user", "d")], {side: [side] for side in content})
    for format in ("hh-rlhf", "trl"):
        rows, bad = parsed(format, content)
        assert (of_line(rows, 1), bad) == (expected, [])
    asked = {"prompt": "\r\n\r\nHuman: a\r\n\r\nAssistant:", "chosen": " b", "rejected": " c"}
    rows, _ = parsed("trl", asked)
    assert of_line(rows, 1) == ([("user", "a")], {"chosen": ["b"], "rejected": ["c"]})
    assert [layout.format for layout in LAYOUTS if layout.fits(content)] == ["hh-rlhf"]


@pytest.mark.parametrize(
    ("side", "said"),
    [
        (HH.format("q", "a\n\nHuman: and then?"), "chosen ends with a turn of Human's, 'and then?'"),
        ("H: q\n\nA: a", "chosen begins with 'H: q"),
    ],
)
def test_a_side_that_is_no_transcript_is_told_with_what_stands_there(side, said):
    line = json.dumps({"chosen": side, "rejected": HH.format("q", "b")})
    [(_, bad)] = formats.parse_lines([line.encode()], "x", "hh-rlhf", {})
    assert bad["detail"][0].as_py().startswith(said)


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [("c", None), (HH.format("a", "b") + "\n\nHuman: c\n\nAssistant:", None), ("", None), ("x", "prompts_differ")],
)
def test_a_prompt_beside_transcripts_is_not_passed_over_where_it_is_another_one(prompt, reason):
    start = HH.format("a", "b") + "\n\nHuman: c\n\nAssistant: "
    _, bad = parsed("hh-rlhf", {"prompt": prompt, "chosen": start + "d", "rejected": start + "e"})
    assert [found for _, found in bad] == ([] if reason is None else [reason])


def test_transcripts_beside_their_own_prompt_do_not_become_answers_that_repeat_the_question():
    sides = {side: HH.format("q", side) for side in ("chosen", "rejected")}
    rows, _ = parsed("trl", sides | {"prompt": "q"}, sides | {"prompt": "other"})
    assert of_line(rows, 1) == ([("user", "q")], {side: [side] for side in sides})
    assert of_line(rows, 2) == ([("user", "other")], {side: [text] for side, text in sides.items()})


def test_a_prompt_that_is_a_text_beside_lone_answers_is_their_question_and_not_a_prompt_that_differs():
    rows, bad = parsed(
        "trl-conversational",
        {"prompt": "q", "chosen": [assistant("a")], "rejected": [assistant("b")]},
        {"prompt": "q", "chosen": [assistant("a")], "rejected": []},
        {"prompt": "q", "chosen": [assistant("hi"), user("other"), assistant("a")], "rejected": [assistant("b")]},
        {"prompt": "", "chosen": [user("q"), assistant("a")], "rejected": [user("q"), assistant("b")]},
    )
    assert bad == [(3, "prompts_differ")]
    assert of_line(rows, 1) == ([("user", "q")], {"chosen": ["a"], "rejected": ["b"]})
    assert of_line(rows, 2) == ([("user", "q")], {"chosen": ["a"], "rejected": [""]})
    assert of_line(rows, 4) == ([("user", "q")], {"chosen": ["a"], "rejected": ["b"]})


@pytest.mark.parametrize(
    ("format", "answers"),
    [
        ("trl-conversational", {"chosen": [assistant("a")], "rejected": [assistant("b")]}),
        ("prompt-responses", {"responses": ["a", "b"]}),
    ],
)
def test_what_is_left_out_of_the_messages_of_a_prompt_is_flagged_as_that_of_the_answers_is(format, answers):
    rows, _ = parsed(format, answers | {"prompt": [user("q"), assistant("c") | {"tool_calls": ["t"]}, user("d")]})
    assert [json.loads(row["meta_json"])["flags"] for row in rows] == [["message_fields_ignored"]] * 2


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (user("a" * 100 + "b"), user("a" * 100 + "c"), "turn 1, character 101: user '{0}b' and user '{0}c'"),
        (user("caf\u00e9"), user("cafe\u0301"), r"turn 1, character 4: user 'caf\xe9' and user 'cafe\u0301'"),
        (user("a"), assistant("a"), "turn 1, character 2: user 'a' and assistant 'a'"),
    ],
)
def test_two_prompts_that_differ_are_not_told_by_what_is_alike_in_them(one, other, said):
    line = json.dumps({"chosen": [one, assistant("x")], "rejected": [other, assistant("y")]})
    [(_, bad)] = formats.parse_lines([line.encode()], "x", "trl-conversational", {})
    assert bad["detail"][0].as_py().endswith(said.format("a" * 20))


@pytest.mark.parametrize(
    ("format", "content", "said"),
    [
        ("trl", {"prompt": [user("q")], "chosen": "a", "rejected": "b"}, "prompt: messages beside texts"),
        ("trl-conversational", {"prompt": [user("q")], "chosen": ["a"], "rejected": ["b"]}, "chosen[0]: the text 'a'"),
        (
            "trl-conversational",
            {"prompt": [user("q")], "chosen": [assistant([{"type": "image"}])], "rejected": [assistant("b")]},
            "chosen[0].content: parts of the types image; parts of type text alone are read",
        ),
    ],
)
def test_texts_among_messages_are_not_called_prompts_that_differ(format, content, said):
    [(_, bad)] = formats.parse_lines([json.dumps(content).encode()], "x", format, {})
    assert bad["reason"].to_pylist() == ["wrong_type"]
    assert bad["detail"][0].as_py().startswith(said)


def test_an_answer_of_several_turns_after_an_assistants_turn_is_refused_since_its_turns_could_not_be_told_apart():
    turns = [[assistant(text), user("go on"), assistant(text)] for text in ("a", "b")]
    content = {"chosen": turns[0], "rejected": turns[1]}
    _, bad = parsed("trl-conversational", content | {"prompt": [user("q"), assistant("so")]})
    assert bad == [(1, "not_an_answer")]
    rows, bad = parsed("trl-conversational", content | {"prompt": [user("q"), {"role": "tool", "content": "so"}]})
    assert (len(rows), bad) == (2, [])


def test_the_same_two_texts_of_other_models_are_another_pair_and_not_two_that_contradict_each_other():
    pair = {"prompt": "a", "chosen": "Yes.", "rejected": "No."}
    named = [pair | {"model_chosen": model, "model_rejected": "m"} for model in ("x", "y", "x")]
    rows, _ = parsed("trl", pair, *named)
    ids = [row["question_id"] for row in rows[::2]]
    assert len({*ids}) == 3
    assert ids[1] == ids[3]


def test_a_completion_whose_score_is_not_available_is_read_and_has_none():
    completions = [{"response": text, "overall_score": score} for text, score in (("a", "N/A"), ("b", 4), ("c", "4"))]
    rows, bad = parsed("ultrafeedback", {"instruction": "q", "completions": completions})
    assert ([said(row).get("score") for row in rows], bad) == ([None, 4.0, 4.0], [])


def test_a_prompt_that_is_an_empty_list_is_no_question_that_a_judge_or_trainer_could_read():
    rows, bad = parsed("prompt-responses", {"prompt": [], "responses": ["a", "b"]})
    assert (rows, bad) == ([], [(1, "missing_field")])
    pair = {"prompt": [], "chosen": [assistant("a")], "rejected": [assistant("b")]}
    assert parsed("trl-conversational", pair) == ([], [(1, "missing_field")])


@pytest.mark.parametrize(
    ("format", "content"),
    [
        ("trl", {"prompt": " ", "chosen": "a", "rejected": "b"}),
        (
            "trl-conversational",
            {"prompt": [{"role": "system", "content": "s"}], "chosen": [assistant("a")], "rejected": [assistant("b")]},
        ),
        ("ultrafeedback", {"instruction": "", "completions": [{"response": "a"}, {"response": "b"}]}),
    ],
)
def test_a_prompt_in_which_the_user_says_nothing_is_flagged_and_others_are_not(format, content):
    rows, bad = parsed(format, content)
    assert bad == []
    assert [json.loads(row["meta_json"]).get("flags") for row in rows] == [["no_question"]] * 2
    asked, _ = parsed("trl", {"prompt": "ask", "chosen": "a", "rejected": "b"})
    assert all("flags" not in json.loads(row["meta_json"]) for row in asked)
