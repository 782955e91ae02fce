"""FastChat's judgments: turns apart, the text above the stored reading, game 2 in the other order."""

import io
import json
import math

import polars as pl
import pytest

from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.imported_runs import import_judgments
from trustjudge_ray.imports import ImportFileError, fastchat
from trustjudge_ray.runs import evaluate
from trustjudge_ray.store import RunFolder


def single(question, model, judgment, score, turn=1, prompt="single-v1", **more):
    row = {"question_id": question, "model": model, "judge": ["gpt-4", prompt], "user_prompt": "…"}
    return row | {"judgment": judgment, "score": score, "turn": turn, "tstamp": 1.5} | more


def pair(question, first, second, games, turn=1, prompt="pair-v2", **more):
    """`games`: (text, winner) of game 1 and game 2."""
    row = {"question_id": question, "model_1": first, "model_2": second, "judge": ["gpt-4", prompt], "turn": turn}
    for number, (text, winner) in enumerate(games, 1):
        row |= {f"g{number}_judgment": text, f"g{number}_winner": winner, f"g{number}_user_prompt": "…"}
    return row | {"tstamp": 1.5} | more


def lines(*rows):
    return io.BytesIO("".join(json.dumps(row) + "\n" for row in rows).encode())


def imported(*streams, judge=None):
    found = fastchat.read({f"{at}.jsonl": stream for at, stream in enumerate(streams)}, judge)
    rows = [row for table in found.judgments for row in table.to_pylist()]
    return rows, found


def chosen(rows, *names):
    return [tuple(row[name] for name in names) for row in rows]


def test_turns_are_protocols_of_their_own_and_prompts_for_mathematics_are_not():
    rows, found = imported(
        lines(
            single(81, "x", "Rating: [[8]]", 8),
            single(81, "x", "Rating: [[3]]", 3, turn=2, prompt="single-v1-multi-turn"),
            single(111, "x", "Rating: [[9]]", 9, prompt="single-math-v1"),
            single(81, "x", "Rating: [[2]]", 2, prompt="mine"),
            pair(81, "x", "y", [("[[A]]", "model_1"), ("[[B]]", "model_1")], turn=2, prompt="pair-math-v1-multi-turn"),
        )
    )
    assert chosen(rows, "protocol", "question_id", "emitted") == [
        ("single-turn-1", "81", "8"),
        ("single-turn-2", "81-turn-2", "3"),
        ("single-turn-1", "111", "9"),
        ("single-mine-turn-1", "81", "2"),
        ("pair-turn-2", "81-turn-2", "a"),
        ("pair-turn-2", "81-turn-2", "a"),
    ]
    assert sorted(found.protocols) == ["pair-turn-2", "single-mine-turn-1", "single-turn-1", "single-turn-2"]


def test_game_2_shows_model_2_first_whatever_the_models_are_called():
    rows, _ = imported(
        lines(
            pair(1, "x", "y", [("[[A]]", "model_1"), ("[[A]]", "model_2")]),
            pair(2, "y", "x", [("[[A]]", "model_1"), ("[[C]]", "tie")]),
        )
    )
    assert chosen(rows, "response_a", "response_b", "order", "emitted") == [
        ("x", "y", "AB", "a"),
        ("x", "y", "BA", "b"),
        ("x", "y", "BA", "b"),
        ("x", "y", "AB", "tie"),
    ]
    assert rows[0]["label_logprobs"] == [0.0, -math.inf, -math.inf]
    assert {(row["judge"], row["kind"], row["status"], row["detail"]) for row in rows} == {
        ("gpt-4", "compare", "ok", None)
    }


def test_the_text_counts_where_the_file_reads_it_otherwise_and_that_is_told():
    text = "[[A]] looked good at first.\nFinal verdict: [[B]]"
    rows, found = imported(
        lines(
            single(1, "x", "Rating: [[10/10]]", -1),
            single(2, "x", "see [3].\nRating: [[8]]", 3),
            single(3, "x", "Rating: [[7]]", 7),
            single(4, "x", "no number", 4),
            pair(5, "x", "y", [(text, "model_1"), ("[[C]]", "tie")]),
        )
    )
    assert chosen(rows, "emitted", "status", "detail") == [
        ("10", "ok", "read 10/10; the file's own reading is none"),
        ("8", "ok", "read 8; the file's own reading is 3"),
        ("7", "ok", None),
        (None, "no_verdict", "no anchored statement; the file's own reading is 4"),
        ("b", "ok", "read B; the file's own reading is A"),
        ("tie", "ok", None),
    ]
    assert (rows[3]["label_logprobs"], rows[3]["rationale"]) == (None, "no number")
    assert any(note.startswith("4 of 6 verdicts are not those that the files give") for note in found.notes)


def test_a_score_between_whole_numbers_is_a_label_and_not_rounded():
    rows, found = imported(lines(single(1, "x", "[[8.5]]", 8.5), single(2, "x", "Rating: [[9]]", 9)))
    labels = found.protocols["single-turn-1"].label_texts
    assert labels == ("1", "2", "3", "4", "5", "6", "7", "8", "8.5", "9", "10")
    assert [math.exp(x) for x in rows[0]["label_logprobs"]] == [float(label == "8.5") for label in labels]
    assert len(rows[1]["label_logprobs"]) == len(labels)


def test_without_a_text_the_file_is_taken_at_its_word_and_minus_one_is_no_score():
    rows, found = imported(
        lines(
            single(1, "x", None, 6),
            single(2, "x", None, -1),
            pair(3, "x", "y", [(None, "model_2"), (None, "error")]),
            single(4, "x", "$ERROR$", -1),
            single(5, "x", None, 77),
        )
    )
    assert chosen(rows, "emitted", "status") == [
        ("6", "ok"),
        (None, "no_verdict"),
        ("b", "ok"),
        (None, "no_verdict"),
        (None, "engine_error"),
        (None, "out_of_scale"),
    ]
    assert any(note.startswith("5 verdicts have no text behind them") for note in found.notes)


def test_two_ratings_in_a_comparison_decide_it_with_fastchats_gap():
    games = [("[[8, 7]]", "model_1"), ("[[8.0,8.1]]", "tie")]
    rows, _ = imported(lines(pair(1, "x", "y", games), pair(2, "x", "y", [("[[7, 8]]", "model_2"), ("x", "error")])))
    assert chosen(rows, "emitted", "status") == [("a", "ok"), ("tie", "ok"), ("b", "ok"), (None, "no_verdict")]


def test_a_comparison_made_of_two_single_grades_is_read_as_scores():
    row = pair(1, "x", "y", [("Rating: [[8]]", "model_1"), ("Rating: [[6]]", "model_1")], prompt="single-v1")
    rows, _ = imported(lines(row | {"m1_score": 8, "m2_score": 6}))
    assert chosen(rows, "kind", "protocol", "response_a", "response_b", "emitted") == [
        ("score", "single-turn-1", "x", None, "8"),
        ("score", "single-turn-1", "y", None, "6"),
    ]


def test_a_rerun_is_one_judgment_and_another_text_a_sample():
    first = single(1, "x", "Rating: [[8]]", 8)
    rows, found = imported(lines(first, first | {"tstamp": 9.0}, single(1, "x", "Hm. Rating: [[6]]", 6)))
    assert chosen(rows, "sample", "emitted") == [(0, "8"), (1, "6")]
    assert [(q["line"], q["reason"]) for q in found.quarantine_rows] == [(2, "duplicate_row")]
    assert any("1 judgments repeat one" in note for note in found.notes)


def test_an_id_as_a_number_and_as_a_text_is_the_same_question_and_the_same_row():
    rows, found = imported(lines(single(81, "x", "Rating: [[8]]", 8), single("81", "x", "Rating: [[8]]", 8)))
    assert chosen(rows, "question_id", "sample") == [("81", 0)]
    assert [q["reason"] for q in found.quarantine_rows] == ["duplicate_row"]


def test_an_object_that_holds_no_answer_is_not_taken_for_a_judgment_without_a_text():
    _, found = imported(lines(single(1, "x", "Rating: [[8]]", 8), single(2, "x", {"text": "Rating: [[2]]"}, 8)))
    assert [(q["line"], q["reason"]) for q in found.quarantine_rows] == [(2, "invalid_value")]


def test_questions_alone_are_not_said_to_be_empty_files():
    with pytest.raises(ImportFileError, match="no judgment found; no line of the files is one"):
        imported(lines({"question_id": 81, "category": "writing", "turns": ["?"]}))


def test_unusable_lines_are_quarantined_with_their_reasons():
    good = single(1, "x", "[[8]]", 8)
    bad = [
        {k: v for k, v in good.items() if k != "model"},
        good | {"turn": 3},
        good | {"judge": []},
        good | {"score": "8"},
        pair(1, "x", "x", [("[[A]]", "model_1")] * 2),
        pair(1, "x", "y", [("[[A]]", "A")] * 2),
        {k: v for k, v in good.items() if k not in ("judgment", "score")},
    ]
    _, found = imported(lines(good, *bad))
    assert [(q["line"], q["reason"]) for q in found.quarantine_rows] == [
        (2, "missing_field"),
        (3, "invalid_value"),
        (4, "invalid_value"),
        (5, "invalid_value"),
        (6, "same_model"),
        (7, "invalid_value"),
        (8, "missing_field"),
    ]
    assert "g1_winner: got 'A'; one of model_1, model_2, tie, error" in found.quarantine_rows[5]["detail"]


def test_questions_among_the_files_give_categories_and_are_no_judgments():
    asked = {"question_id": 81, "category": "writing", "turns": ["a", "b"]}
    judged = [single(81, "x", "[[8]]", 8), single(82, "x", "[[8]]", 8), single(81, "x", "[[8]]", 8, turn=2)]
    rows, found = imported(lines(*judged), lines(asked))
    told = [("81", "writing"), ("82", None), ("81-turn-2", "writing")]
    assert chosen(rows, "question_id", "category") == told
    assert found.quarantine_rows == []


def test_a_file_without_judgments_is_refused_and_an_array_is_read_like_lines():
    with pytest.raises(ImportFileError, match="no judgment found"):
        imported(lines({"question_id": 1, "turns": ["a"]}))
    array = io.BytesIO(json.dumps([single(1, "x", "[[8]]", 8), single(2, "x", "[[7]]", 7)]).encode())
    assert chosen(imported(array)[0], "emitted") == [("8",), ("7",)]


def test_an_imported_run_gives_the_scores_and_win_rates_that_can_be_counted_by_hand(tmp_path):
    graded = {"x": (8, 9, 10, 7), "y": (5, 8.5, 6, 4)}
    rows = [single(q, m, f"Rating: [[{s}]]", s) for m, told in graded.items() for q, s in enumerate(told)]
    rows += [single(q, "x", "Rating: [[2]]", 2, turn=2) for q in range(4)]
    won = [("A", "B"), ("A", "A"), ("C", "B"), ("B", "A")]  # x first, then y first
    for q, (one, two) in enumerate(won):
        rows.append(pair(q, "x", "y", [(f"[[{one}]]", "tie"), (f"[[{two}]]", "tie")]))
    path = tmp_path / "gpt-4.jsonl"
    path.write_bytes(lines(*rows).getvalue())
    folder = RunFolder(str(tmp_path / "run"))
    summary = import_judgments("fastchat", [str(path)], folder)
    assert summary["statuses"] == {"ok": 20}
    found = evaluate(folder, AnalysisConfig())
    overall = found.ratings.filter(pl.col("category").is_null())
    means = overall.filter(rule="mean_score")
    assert {(r["protocol"], r["model"]): r["rating"] for r in means.to_dicts()} == {
        ("single-turn-1", "x"): 34 / 4,
        ("single-turn-1", "y"): 23.5 / 4,
        ("single-turn-2", "x"): 2.0,
    }
    rates = {r["model"]: r["rating"] for r in overall.filter(rule="win_rate").to_dicts()}
    conflicts = found.metrics.filter(metric="conflict_ratio", score_rule="expected", verdict_rule="normalised")
    cases = conflicts.filter(pl.col("category").is_null(), tolerance=0.0).select("protocol", "pair_protocol", "cases")
    assert sorted(cases.unique().rows()) == [("single-turn-1", "pair-turn-1", 4), ("single-turn-2", "pair-turn-1", 0)]
    assert rates == {"x": pytest.approx((1 + 1 + 1 + 0 + 0.5 + 1 + 0 + 0) / 8), "y": pytest.approx(3.5 / 8)}
    assert any("labels that the judge wrote once" in warning for warning in found.warnings)
    assert any("verdicts are not those that the files give" in warning for warning in found.warnings)
