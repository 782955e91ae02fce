"""LMArena battles and RewardBench to RESPONSES: whose answer, what people said of it, and what is refused."""

import csv
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trustjudge_ray.corpus import duplicates, formats
from trustjudge_ray.corpus.reader import read
from trustjudge_ray.imports import battles
from trustjudge_ray.schema import PLACED_RESPONSES, QUARANTINE, check


def parsed(format, *objects, **fields):
    """Rows, and line, reason and detail of rejections, of objects of a format."""
    lines = "".join(json.dumps(content) + "\n" for content in objects).encode()
    [(rows, bad)] = formats.parse_lines([lines], "test", format, fields)
    check(rows, PLACED_RESPONSES)
    check(bad, QUARANTINE)
    return rows.to_pylist(), [(row["line"], row["reason"], row["detail"]) for row in bad.to_pylist()]


def two(format, content, **fields):
    """The two responses of one object that has no fault."""
    rows, bad = parsed(format, content, **fields)
    assert bad == []
    assert len(rows) == 2
    return rows


def meta(row):
    return json.loads(row["meta_json"])


def flags(row):
    return meta(row).get("flags", [])


def of_55k(**changes):
    return {
        "id": 30192,
        "model_a": "otter-7b",
        "model_b": "heron-2",
        "prompt": json.dumps(["Name a river.", "And a lake?"]),
        "response_a": json.dumps(["The Elbe.", "Lake Constance."]),
        "response_b": json.dumps(["Rhine", "none"]),
        "winner_model_a": 1,
        "winner_model_b": 0,
        "winner_tie": 0,
    } | changes


def of_100k(winner="model_b", **changes):
    return {
        "question_id": "58210e39b3fd4441a2bd4a518bb44c2d",
        "model_a": "otter-7b",
        "model_b": "heron-2",
        "winner": winner,
        "judge": "arena_user_12",
        "turn": 1,
        "anony": True,
        "language": "English",
        "tstamp": 1718000000.5,
        "conversation_a": [user("What is lye?"), assistant("A base.")],
        "conversation_b": [user("What is lye?"), assistant("Sodium hydroxide in water.")],
        "conv_metadata": {"sum_assistant_a_tokens": 3, "bold_count_a": {"**": 0, "__": 0}},
        "category_tag": {"math_v0.1": {"math": False}},
    } | changes


def of_140k(winner="both_bad", **changes):
    said = {side: [part_turn("user", "2 + 2?"), part_turn("assistant", text)] for side, text in SAID.items()}
    return {
        "id": "c4b9710c-0000-4bee-a0b0-94637ae4cc65",
        "model_a": "otter-7b",
        "model_b": "heron-2",
        "winner": winner,
        "evaluation_session_id": "s1",
        "evaluation_order": 1,
        "conversation_a": said["a"],
        "conversation_b": said["b"],
        "full_conversation": [{"user": said["a"][0], "model_side_a": said["a"][1], "model_side_b": said["b"][1]}],
        "conv_metadata": {"sum_user_tokens": 4},
        "category_tag": {"math_v0.1": {"math": True}},
        "language": "en",
        "is_code": False,
        "timestamp": "2025-07-01T10:00:00",
    } | changes


SAID = {"a": "Five.", "b": "Six."}


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def part(text, **more):
    return {"type": "text", "text": text, "image": None, "mimeType": None} | more


def part_turn(role, *texts):
    return {"role": role, "content": [part(text) for text in texts]}


def of_rb1(**changes):
    return {
        "prompt": "How do I get wax out of a shirt?",
        "chosen": "Freeze it and scrape.",
        "chosen_model": "otter-7b",
        "rejected": "Burn it.",
        "rejected_model": "heron-2",
        "subset": "household-easy",
        "id": 7,
    } | changes


def of_rb2(**changes):
    return {
        "id": "12",
        "prompt": "Is 91 prime?",
        "chosen": ["No, it is 7 times 13."],
        "rejected": ["Yes.", "It is even.", "Nobody knows."],
        "num_correct": 1,
        "num_incorrect": 3,
        "total_completions": 4,
        "models": ["otter-7b", "heron-2", "heron-2", "crane"],
        "subset": "Math",
        "additional_metadata": {"category": None, "method": "own"},
    } | changes


# --- LMArena ---------------------------------------------------------------------------------


def test_the_55k_layout_gives_the_turns_inside_its_json_texts():
    a, b = two("lmarena", of_55k())
    assert [a["question_id"], a["response_id"], a["model"]] == ["30192", "otter-7b", "otter-7b"]
    assert a["messages"] == b["messages"] == [user("Name a river."), user("And a lake?")]
    assert (a["replies"], b["replies"]) == (["The Elbe.", "Lake Constance."], ["Rhine", "none"])
    assert (a["human_score"], b["human_score"]) == (1.0, 0.0)


def test_the_100k_layout_parts_the_users_turns_from_the_models():
    both = [user("a?"), assistant("1"), user("b?"), assistant("2")]
    other = [user("a?"), assistant("x"), user("b?"), assistant("y")]
    a, b = two("lmarena", of_100k(conversation_a=both, conversation_b=other))
    assert a["messages"] == b["messages"] == [user("a?"), user("b?")]
    assert (a["replies"], b["replies"]) == (["1", "2"], ["x", "y"])
    assert (a["human_score"], b["human_score"]) == (0.0, 1.0)
    assert meta(a)["language"] == "English"
    assert meta(a)["judge"] == "arena_user_12"


def test_a_conversation_that_a_table_holds_as_json_text_is_the_same_conversation():
    content = of_100k()
    texts = {name: json.dumps(content[name]) for name in ("conversation_a", "conversation_b")}
    assert two("lmarena", content | texts) == two("lmarena", content)


def test_the_140k_layout_joins_the_parts_of_a_content_and_does_not_keep_the_text_twice():
    talk = [part_turn("user", "2 + ", "2?"), part_turn("assistant", "Five.")]
    a, b = two("lmarena", of_140k(conversation_a=talk))
    assert a["messages"] == [user("2 + 2?")]
    assert (a["replies"], b["replies"]) == (["Five."], ["Six."])
    assert "full_conversation" not in meta(a)
    assert meta(b)["is_code"] is False
    assert flags(a) == []


def test_a_battle_that_went_on_says_that_its_beginning_is_missing():
    a, _ = two("lmarena", of_140k(evaluation_order=2))
    assert flags(a) == ["earlier_turns_left_out"]


@pytest.mark.parametrize(
    ("winner", "scores"),
    [
        ("model_a", (1.0, 0.0)),
        ("model_b", (0.0, 1.0)),
        ("tie", (0.5, 0.5)),
        ("tie (bothbad)", (0.5, 0.5)),
        ("both_bad", (0.5, 0.5)),
    ],
)
def test_every_outcome_word_of_the_releases_is_a_score_of_both_sides(winner, scores):
    rows = two("lmarena", of_100k(winner))
    assert tuple(row["human_score"] for row in rows) == scores
    assert tuple(meta(row)["preference"]["score"] for row in rows) == scores
    assert meta(rows[0])["winner"] == winner


@pytest.mark.parametrize("votes", [(0, 0, 0), (1, 0, 1), (1, 1, 0), (2, 0, 0), ("x", 1, 0)])
def test_a_vote_that_names_no_one_winner_is_no_vote(votes):
    names = ("winner_model_a", "winner_model_b", "winner_tie")
    rows = two("lmarena", of_55k(**dict(zip(names, votes, strict=True))))
    assert [row["human_score"] for row in rows] == [None, None]
    assert flags(rows[0]) == ["unclear_winner"]


def test_an_unknown_outcome_word_costs_the_score_and_not_the_answers():
    rows = two("lmarena", of_100k("left"))
    assert [row["human_score"] for row in rows] == [None, None]
    assert meta(rows[0])["winner"] == "left"
    assert flags(rows[0]) == ["unclear_winner"]


@pytest.mark.parametrize("given", ["1", 1, 1.0, True])
def test_a_vote_counts_however_the_file_writes_one(given):
    rows = two("lmarena", of_55k(winner_model_a=given, winner_model_b=None))
    assert [row["human_score"] for row in rows] == [1.0, 0.0]


def test_answers_without_a_vote_are_answers():
    content = {key: value for key, value in of_55k().items() if not key.startswith("winner")}
    rows = two("lmarena", content)
    assert [row["human_score"] for row in rows] == [None, None]
    assert flags(rows[0]) == []


def test_a_null_turn_inside_the_json_text_is_an_empty_turn_that_is_flagged():
    a, b = two("lmarena", of_55k(response_b='["Rhine", null]'))
    assert b["replies"] == ["Rhine", ""]
    assert flags(a) == flags(b) == ["null_turn"]


def test_a_lone_surrogate_hidden_in_the_json_text_is_replaced_and_a_pair_is_a_character():
    a, b = two("lmarena", of_55k(response_a='["cut \\ud83d", "x"]', response_b='["\\ud83e\\udda6", "y"]'))
    assert a["replies"][0] == "cut \ufffd"
    assert b["replies"][0] == "\U0001f9a6"
    assert flags(a) == ["lone_surrogate"]


@pytest.mark.parametrize(
    ("changes", "reason", "says"),
    [
        ({"response_a": '["cut off'}, "invalid_json", "response_a"),
        ({"response_a": "[]"}, "missing_field", "response_a"),
        ({"response_b": '["Rhine"]'}, "turns_differ", "1 turns of model_b to 2"),
        ({"prompt": None}, "missing_field", "prompt"),
        ({"prompt": None, "response_a": None, "response_b": None}, "a_judgment", "trustjudge import battles"),
        ({"response_b": '[{"text": "x"}]'}, "wrong_type", "response_b[0]"),
        ({"model_b": "otter-7b"}, "same_model", "otter-7b"),
        ({"id": None}, "missing_field", "question_id"),
    ],
)
def test_a_battle_with_one_unreadable_side_is_refused_as_a_whole(changes, reason, says):
    rows, [(line, got, detail)] = parsed("lmarena", of_55k(**changes))
    assert (rows, line, got) == ([], 1, reason)
    assert says in detail


@pytest.mark.parametrize(
    ("changes", "reason", "says"),
    [
        ({"conversation_b": [user("What is Lye?"), assistant("x")]}, "prompts_differ", "the user"),
        ({"conversation_b": [user("What is lye?")]}, "missing_field", "conversation_b has no turn of the assistant"),
        ({"conversation_b": [{"role": "bot", "content": "x"}]}, "wrong_type", "conversation_b[0]"),
        ({"conversation_b": {"role": "user"}}, "wrong_type", "conversation_b"),
        (
            {"conversation_b": [{"role": "user", "content": [part(None, type="image", image="x.png")]}]},
            "not_text",
            "conversation_b[0].content[0]",
        ),
    ],
)
def test_conversations_that_are_no_pair_are_refused_with_the_place(changes, reason, says):
    rows, [(_, got, detail)] = parsed("lmarena", of_100k(**changes))
    assert (rows, got) == ([], reason)
    assert says in detail


def test_every_battle_is_a_question_of_its_own_so_that_votes_of_two_do_not_meet():
    first, second = of_55k(), of_55k(id=30193, winner_model_a=0, winner_model_b=1)
    lines = (json.dumps(first) + "\n" + json.dumps(second) + "\n").encode()
    [(rows, _)] = formats.parse_lines([lines], "test", "lmarena", {})
    stay, out = duplicates.deduplicate(rows)
    assert len(out) == 0
    scores = {(row["question_id"], row["model"]): row["human_score"] for row in stay.to_pylist()}
    assert scores == {
        ("30192", "otter-7b"): 1.0,
        ("30192", "heron-2"): 0.0,
        ("30193", "otter-7b"): 0.0,
        ("30193", "heron-2"): 1.0,
    }


@pytest.mark.parametrize("content", [of_55k(), of_55k(winner_model_a=0, winner_tie=1), of_100k(), of_140k()])
def test_the_corpus_and_the_importer_name_a_battle_alike_so_that_people_can_be_compared_with_a_judge(content):
    rows = two("lmarena", content)
    found = battles.read({"x.jsonl": io.BytesIO(json.dumps(content).encode() + b"\n")})
    [judgment] = pa.Table.from_batches([b for t in found.judgments for b in t.to_batches()]).to_pylist()
    scores = {row["response_id"]: row["human_score"] for row in rows}
    assert {judgment["question_id"]} == {row["question_id"] for row in rows}
    assert {judgment["response_a"], judgment["response_b"]} == set(scores)
    gap = scores[judgment["response_a"]] - scores[judgment["response_b"]]
    assert judgment["emitted"] == {1.0: "a", -1.0: "b", 0.0: "tie"}[gap]


def test_a_csv_and_a_parquet_file_of_battles_say_what_the_objects_say(tmp_path):
    content = of_55k(response_b=json.dumps(['He said "no",\nthen left.', ""]))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(content))
    writer.writeheader()
    writer.writerow(content)
    (tmp_path / "train.csv").write_text(text.getvalue(), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist([content]), tmp_path / "train.parquet")
    want = two("lmarena", content)
    for name in ("train.csv", "train.parquet"):
        [(rows, bad)] = read(str(tmp_path / name), "lmarena")
        assert len(bad) == 0
        for row, wanted in zip(rows.to_pylist(), want, strict=True):
            same = ("question_id", "model", "messages", "replies", "human_score")
            assert {key: row[key] for key in same} == {key: wanted[key] for key in same}


def test_parquet_rows_of_the_140k_layout_have_every_struct_field_and_are_read_alike(tmp_path):
    pq.write_table(pa.Table.from_pylist([of_140k()]), tmp_path / "x.parquet")
    [(rows, bad)] = read(str(tmp_path / "x.parquet"), "lmarena")
    assert len(bad) == 0
    assert [row["replies"] for row in rows.to_pylist()] == [["Five."], ["Six."]]


turns = st.lists(st.text(max_size=8), min_size=1, max_size=3)


@settings(max_examples=50, deadline=None)
@given(turns, st.sampled_from(["55k", "100k", "140k"]), st.data())
def test_the_three_layouts_of_one_battle_are_the_same_answers(asked, layout, data):
    said = {side: data.draw(st.lists(st.text(max_size=8), min_size=len(asked), max_size=len(asked))) for side in "ab"}
    if layout == "55k":
        texts = {"prompt": asked, "response_a": said["a"], "response_b": said["b"]}
        content = of_55k(**{name: json.dumps(value) for name, value in texts.items()})
    else:
        turn = (lambda role, text: {"role": role, "content": text}) if layout == "100k" else part_turn
        talks = {
            f"conversation_{side}": [
                t for q, r in zip(asked, said[side], strict=True) for t in (turn("user", q), turn("assistant", r))
            ]
            for side in "ab"
        }
        content = of_100k(**talks) if layout == "100k" else of_140k(**talks)
    a, b = two("lmarena", content)
    assert [message["content"] for message in a["messages"]] == asked
    assert (a["replies"], b["replies"]) == (said["a"], said["b"])


# --- RewardBench -----------------------------------------------------------------------------


def test_the_first_reward_bench_gives_a_pair_with_its_label():
    chosen, rejected = two("reward-bench", of_rb1())
    assert [chosen["question_id"], chosen["category"]] == ["household-easy/7", "household-easy"]
    assert [row["model"] for row in (chosen, rejected)] == ["otter-7b", "heron-2"]
    assert [row["response_id"] for row in (chosen, rejected)] == ["chosen", "rejected"]
    assert [row["human_score"] for row in (chosen, rejected)] == [1.0, 0.0]
    assert rejected["replies"] == ["Burn it."]
    assert meta(chosen)["preference"] == {"score": 1.0, "model": "otter-7b"}


@pytest.mark.parametrize("unnamed", [None, "", " "])
def test_a_side_without_a_model_plays_as_what_it_is_and_is_named_by_nobody(unnamed):
    chosen, rejected = two("reward-bench", of_rb1(chosen_model=unnamed))
    assert (chosen["model"], rejected["model"]) == ("chosen", "heron-2")
    assert meta(chosen)["preference"] == {"score": 1.0}


def test_ids_that_begin_anew_in_each_subset_are_different_questions():
    rows, bad = parsed("reward-bench", of_rb2(), of_rb2(subset="Safety", prompt="Other?"))
    assert bad == []
    assert {row["question_id"] for row in rows} == {"Math/12", "Safety/12"}


def test_a_mapped_id_is_the_question_as_it_stands():
    rows = two("reward-bench", of_rb1(), question_id="id")
    assert {row["question_id"] for row in rows} == {"7"}


def test_the_second_reward_bench_gives_every_completion_its_own_model():
    rows, bad = parsed("reward-bench", of_rb2())
    assert bad == []
    assert [(row["response_id"], row["model"], row["human_score"]) for row in rows] == [
        ("chosen-0", "otter-7b", 1.0),
        ("rejected-0", "heron-2", 0.0),
        ("rejected-1", "heron-2", 0.0),
        ("rejected-2", "crane", 0.0),
    ]
    assert meta(rows[0])["num_correct"] == 1
    assert "models" not in meta(rows[0])


def test_in_ties_all_that_is_right_is_equally_right():
    colours = ["red", "orange", "blue"]
    ties = of_rb2(id="tied:4", subset="Ties", chosen=colours, rejected=["horse"], num_correct=3, models=["x"])
    rows, bad = parsed("reward-bench", ties)
    assert bad == []
    assert {row["replies"][0]: row["human_score"] for row in rows} == {
        "red": 1.0,
        "orange": 1.0,
        "blue": 1.0,
        "horse": 0.0,
    }
    assert {row["question_id"] for row in rows} == {"Ties/tied:4"}
    assert [row["model"] for row in rows] == ["chosen-0", "chosen-1", "chosen-2", "rejected-0"]
    assert meta(rows[0])["models"] == ["x"]


def test_an_unreadable_completion_costs_itself_and_keeps_the_numbers_of_the_others():
    rows, bad = parsed("reward-bench", of_rb2(rejected=["Yes.", None, "Nobody knows."]))
    assert [row["response_id"] for row in rows] == ["chosen-0", "rejected-0", "rejected-2"]
    assert [reason for _, reason, _ in bad] == ["missing_field"]
    assert "rejected[1]" in bad[0][2]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"chosen": None}, "missing_field"),
        ({"chosen": []}, "too_few_responses"),
        ({"rejected": [None, None]}, "too_few_responses"),
    ],
)
def test_answers_of_one_list_alone_have_no_label_between_them(changes, reason):
    rows, [(_, got, _)] = parsed("reward-bench", of_rb2(**changes))
    assert (rows, got) == ([], reason)


def test_a_prompt_of_messages_keeps_its_turns():
    turns = [user("a"), assistant("b"), user("c")]
    chosen, _ = two("reward-bench", of_rb1(prompt=turns))
    assert chosen["messages"] == turns
