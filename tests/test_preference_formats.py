"""Preference files to RESPONSES: what is prompt, what is answer, and what is refused by which name."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trustjudge_ray.corpus import formats, preference_formats
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


def test_a_prompt_that_is_an_empty_list_is_no_question_that_a_judge_or_trainer_could_read():
    rows, bad = parsed("prompt-responses", {"prompt": [], "responses": ["a", "b"]})
    assert (rows, bad) == ([], [(1, "missing_field")])


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
