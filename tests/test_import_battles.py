"""Battles as LMArena's tables have them, and the files on which naive rankings fail."""

import io
import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shared_inputs import shared

from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.imported_runs import import_judgments
from trustjudge_ray.imports import ImportFileError, battles
from trustjudge_ray.runs import evaluate
from trustjudge_ray.store import RunFolder

A, B, TIE = [0.0, -math.inf, -math.inf], [-math.inf, 0.0, -math.inf], [-math.inf, -math.inf, 0.0]


def lines(*rows):
    return io.BytesIO("".join(json.dumps(row) + "\n" for row in rows).encode())


def imported(name, stream, judge=None):
    found = battles.read({name: stream}, judge)
    return [row for table in found.judgments for row in table.to_pylist()], found.quarantine.to_pylist()


def battle(model_a, model_b, winner, **more):
    return {"model_a": model_a, "model_b": model_b, "winner": winner, **more}


def test_who_won_does_not_depend_on_who_was_shown_first():
    rows, _ = imported("b.jsonl", lines(battle("x", "y", "model_a", id=1), battle("y", "x", "model_a", id=2)))
    assert [(r["response_a"], r["response_b"], r["order"], r["emitted"], r["label_logprobs"]) for r in rows] == [
        ("x", "y", "AB", "a", A),
        ("x", "y", "BA", "b", B),
    ]
    assert {(r["protocol"], r["judge"], r["kind"], r["label_mass"], r["status"]) for r in rows} == {
        ("battles", "human", "compare", 1.0, "ok")
    }


@pytest.mark.parametrize("word", ["tie", "tie (bothbad)", "bothbad", "both_bad"])
def test_every_known_word_for_a_tie_is_one(word):
    rows, _ = imported("b.jsonl", lines(battle("x", "y", word)))
    assert (rows[0]["emitted"], rows[0]["label_logprobs"]) == ("tie", TIE)


@pytest.mark.parametrize("word, said", [("TIE", "'TIE'"), (None, "nothing"), ("model_A", "'model_A'"), (1, "'1'")])
def test_an_unknown_outcome_stops_the_import_and_names_line_and_words(word, said):
    with pytest.raises(ImportFileError) as error:
        imported("b.jsonl", lines(battle("x", "y", "tie"), battle("x", "y", word)))
    assert str(error.value).startswith(f"b.jsonl, line 2: winner: got {said}; one of model_a, model_b, tie")


def test_the_file_with_odd_labels_is_refused_at_its_third_line():
    with pytest.raises(ImportFileError, match="line 3: winner: got 'TIE'"):
        imported("odd.jsonl", shared("inputs/rankings/rank_odd_labels.jsonl").open("rb"))


def test_rows_repeated_three_times_are_votes_cast_once():
    rows, quarantine = imported("t.jsonl", shared("inputs/rankings/rank_tripled.jsonl").open("rb"))
    assert [(r["question_id"], r["emitted"]) for r in rows] == [("1", "a"), ("2", "b")]
    assert [(q["line"], q["reason"]) for q in quarantine] == [(n, "duplicate_row") for n in (2, 3, 5, 6)]


def test_equal_rows_without_an_id_are_battles_of_their_own():
    rows, quarantine = imported("b.jsonl", lines(*[battle("x", "y", "model_a")] * 3))
    assert [r["question_id"] for r in rows] == ["b.jsonl:1", "b.jsonl:2", "b.jsonl:3"]
    assert len({r["task_id"] for r in rows}) == 3
    assert quarantine == []


def test_two_people_on_one_question_are_samples_of_one_judge():
    rows, _ = imported(
        "b.jsonl",
        lines(
            battle("x", "y", "model_a", question_id=81, judge="author_2", turn=1),
            battle("x", "y", "model_b", question_id=81, judge="expert_17", turn=1),
            battle("x", "y", "tie", question_id=81, judge="gpt4_pair", turn=1),
        ),
    )
    assert [(r["judge"], r["sample"], r["emitted"]) for r in rows] == [
        ("human", 0, "a"),
        ("human", 1, "b"),
        ("gpt4_pair", 0, "tie"),
    ]


def test_a_model_cannot_meet_itself():
    rows, quarantine = imported("b.jsonl", lines(battle("x", "x", "tie"), battle("x", "y", "tie")))
    assert [r["question_id"] for r in rows] == ["b.jsonl:2"]
    assert [(q["line"], q["reason"]) for q in quarantine] == [(1, "same_model")]


def test_a_row_without_a_model_and_a_line_that_is_no_json_are_named():
    stream = io.BytesIO(b'{"model_a": "x", "winner": "tie"}\n{"model_a": \n' + lines(battle("x", "y", "tie")).read())
    rows, quarantine = imported("b.jsonl", stream)
    assert len(rows) == 1
    assert [(q["line"], q["reason"]) for q in quarantine] == [(1, "missing_field"), (2, "invalid_json")]


def test_csv_with_three_outcome_columns_and_long_conversations():
    text = "id,model_a,model_b,prompt,winner_model_a,winner_model_b,winner_tie\n"
    text += '30,gpt-4,"llama, 13b","a ""long""\nprompt ' + "x" * 200_000 + '",0,1,0\n31,gpt-4,claude,p,0,0,1\n'
    rows, _ = imported("train.csv", io.BytesIO(text.encode()))
    assert [(r["question_id"], r["response_a"], r["response_b"], r["emitted"]) for r in rows] == [
        ("30", "gpt-4", "llama, 13b", "b"),
        ("31", "claude", "gpt-4", "tie"),
    ]


def test_three_outcome_columns_that_contradict_each_other_stop_the_import_at_their_line():
    text = "model_a,model_b,winner_model_a,winner_model_b,winner_tie\nx,y,1,0,0\nx,y,1,1,0\n"
    with pytest.raises(ImportFileError, match="line 3: winner: got 'winner_model_a=1 winner_model_b=1 winner_tie=0'"):
        imported("train.csv", io.BytesIO(text.encode()))


def test_parquet_and_a_json_array_say_the_same_as_lines():
    rows = [battle("x", "y", "model_b", id=7, category="math"), battle("y", "z", "tie", id=8, category=None)]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    want, _ = imported("b.jsonl", lines(*rows))
    assert imported("b.parquet", io.BytesIO(buffer.getvalue()))[0] == want
    assert imported("b.json", io.BytesIO(json.dumps(rows, indent=1).encode()))[0] == want
    assert [r["category"] for r in want] == ["math", None]


def test_a_judge_given_by_the_user_stands_above_the_column():
    rows, _ = imported("b.jsonl", lines(battle("x", "y", "tie", judge="gpt4_pair")), judge="me")
    assert rows[0]["judge"] == "me"


def test_a_damaged_parquet_file_is_one_message_that_names_it():
    buffer = io.BytesIO()
    rows = [battle(f"x{i}", f"y{i}", "tie") for i in range(3000)]
    pq.write_table(pa.Table.from_pylist(rows), buffer, row_group_size=2048, use_dictionary=False, compression="none")
    packed = bytearray(buffer.getvalue())
    start = pq.ParquetFile(io.BytesIO(packed)).metadata.row_group(1).column(0).data_page_offset
    packed[start : start + 2000] = b"\xff" * 2000
    with pytest.raises(ImportFileError, match=r"b\.parquet: not a readable Parquet file after row 2048"):
        imported("b.parquet", io.BytesIO(packed))
    with pytest.raises(ImportFileError, match=r"b\.parquet: not a readable Parquet file, damaged or cut off"):
        imported("b.parquet", io.BytesIO(b"PAR1junk"))


def test_csv_in_another_encoding_is_refused_and_not_a_model_of_another_name():
    text = "id,model_a,model_b,winner\n1,naïve,y,tie\n"
    assert imported("b.csv", io.BytesIO(text.encode("utf-8-sig")))[0][0]["response_a"] == "naïve"
    with pytest.raises(ImportFileError, match=r"b\.csv, line 2: 0xef is not UTF-8; save it as UTF-8"):
        imported("b.csv", io.BytesIO(text.encode("latin-1")))
    with pytest.raises(ImportFileError, match=r"b\.csv, line 1: 0xff is not UTF-8"):
        imported("b.csv", io.BytesIO(text.encode("utf-16")))


def test_a_judge_that_is_not_utf8_is_named_and_a_number_that_json_cannot_say_costs_no_vote():
    good = json.dumps(battle("x", "y", "tie", id=1, n=math.inf))
    bad = json.dumps(battle("x", "y", "tie", judge="caf#"))
    rows, quarantine = imported("b.json", io.BytesIO(f"[{good},\n{bad}]".encode().replace(b"#", b"\xe9")))
    assert [r["question_id"] for r in rows] == ["1"]
    assert [(q["line"], q["reason"]) for q in quarantine] == [(2, "invalid_utf8")]


def test_a_winner_that_parquet_cannot_give_as_text_is_named():
    table = pa.table({"model_a": ["x", "x"], "model_b": ["y", "y"], "winner": [b"tie", b"\xff"]})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    rows, quarantine = imported("b.parquet", io.BytesIO(buffer.getvalue()))
    assert [r["emitted"] for r in rows] == ["tie"]
    assert [(q["line"], q["reason"]) for q in quarantine] == [(2, "invalid_utf8")]


def test_a_number_of_too_many_digits_in_an_array_is_named_and_no_crash():
    text = f'[{json.dumps(battle("x", "y", "tie"))},\n{{"n": {"9" * 5000}}}]'
    rows, quarantine = imported("b.json", io.BytesIO(text.encode()))
    assert len(rows) == 1
    assert [(q["line"], q["reason"]) for q in quarantine] == [(2, "invalid_json")]


ALARMS = {
    "rank_disconnected": ["2 groups of models never met", "4 questions only"],
    "rank_never_wins": ["no finite rating for c", "4 questions only"],
    "rank_ties_only": ["do not bound the tie parameter", "3 questions only"],
    "rank_tripled": ["2 questions only"],
    "rank_odd_labels": None,
}
"""What evaluating a file must say; None where it is refused."""


def test_every_file_of_battles_that_breaks_rankings_is_listed():
    files = shared("inputs/rankings").glob("*.jsonl")
    assert {file.stem for file in files} == set(ALARMS)


@pytest.mark.parametrize("name", ALARMS)
def test_no_file_of_battles_that_breaks_rankings_gives_a_number_in_silence(name, tmp_path):
    files, folder = [str(shared(f"inputs/rankings/{name}.jsonl"))], RunFolder(str(tmp_path))
    if ALARMS[name] is None:
        with pytest.raises(ImportFileError, match="line 3: winner: got 'TIE'"):
            import_judgments("battles", files, folder)
        return
    import_judgments("battles", files, folder)
    found = evaluate(folder, AnalysisConfig())
    for alarm in ALARMS[name]:
        assert any(alarm in told for told in found.warnings), found.warnings
    for row in found.ratings.to_dicts():
        ends = [row[side] for side in ("low", "high")]
        if row["rule"] == "elo":
            assert ends == [None, None]
        elif row["rating"] is not None and row["rule"] != "win_rate":
            assert ends[1] - ends[0] > 500  # a handful of battles tells nothing apart
        assert (row["rank_low"] or 1) <= row["rank"] <= (row["rank_high"] or 99)


def test_models_that_never_met_are_not_put_in_one_order_and_the_one_that_never_won_has_no_rating(tmp_path):
    rows = {}
    for name in ("rank_disconnected", "rank_never_wins"):
        folder = RunFolder(str(tmp_path / name))
        import_judgments("battles", [str(shared(f"inputs/rankings/{name}.jsonl"))], folder)
        rows[name] = evaluate(folder, AnalysisConfig()).ratings.to_dicts()
    assert {(r["model"], r["component"], r["rank"]) for r in rows["rank_disconnected"]} == {
        ("a", 1, 1),
        ("b", 1, 1),
        ("c", 2, 1),
        ("d", 2, 1),
    }
    never = [r for r in rows["rank_never_wins"] if r["model"] == "c" and r["rule"] != "win_rate"]
    assert {(r["status"], r["rating"], r["rank"]) for r in never} == {("unbounded", None, 3)}
