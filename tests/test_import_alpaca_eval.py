"""AlpacaEval's annotations: probabilities where the annotator gives them, and who was shown first."""

import io
import json
import math
import random

import polars as pl
import pytest

from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.corpus.formats import FORMATS, field_map
from trustjudge_ray.imported_runs import import_judgments
from trustjudge_ray.imports import ImportFileError, alpaca_eval
from trustjudge_ray.runs import evaluate
from trustjudge_ray.store import RunFolder

CERTAIN = {"a": [1.0, 0.0, 0.0], "b": [0.0, 1.0, 0.0], "tie": [0.0, 0.0, 1.0]}
FIRST = "Name a fruit."
"""Its draw shows output 1 first; that of SECOND output 2."""
SECOND = "Name a river."


def annotation(instruction, preference, models=("base", "mine"), annotator="plain", **more):
    row = {"instruction": instruction, "output_1": "one", "generator_1": models[0], "dataset": "own", "output_2": "two"}
    row |= {"generator_2": models[1], "annotator": annotator, "preference": preference, "time_per_example": 0.5}
    return row | more


def ranked(better):
    worse = "m" if better == "M" else "M"
    return json.dumps({"ordered_models": [{"model": better, "rank": 1}, {"model": worse, "rank": 2}]})


def weighed(m, big_m, written):
    top = [{"token": "m", "logprob": math.log(m)}, {"token": "M", "logprob": math.log(big_m)}]
    return {"logprobs": {"content": [{"token": written, "top_logprobs": top}]}, "text": written}


def array(*rows):
    return io.BytesIO(json.dumps(rows).encode())


def imported(stream, judge=None):
    found = alpaca_eval.read({"annotations.json": stream}, judge)
    rows = [row for table in found.judgments for row in table.to_pylist()]
    return rows, found


def shares(row):
    return [math.exp(x) for x in row["label_logprobs"]]


def test_a_plain_preference_is_a_certain_label_whichever_output_was_shown_first():
    rows, _ = imported(
        array(
            *(annotation(FIRST + str(p), p, is_switched_outputs=False) for p in (1, 2.0, 1.5, 0)),
            *(annotation(SECOND + str(p), p, is_switched_outputs=True) for p in (1, 2.0, 1.5, 0)),
        )
    )
    assert [(r["response_a"], r["order"], r["emitted"]) for r in rows] == [
        ("base", order, label) for order in ("AB", "BA") for label in ("a", "b", "tie", "tie")
    ]
    assert all(shares(row) == CERTAIN[row["emitted"]] for row in rows)
    assert {(r["judge"], r["protocol"], r["category"]) for r in rows} == {("plain", "alpaca-eval", "own")}


@pytest.mark.parametrize("switched", [False, True])
def test_a_weighted_preference_is_a_distribution_about_the_candidates(switched):
    rows, found = imported(
        array(*(annotation(f"{p}", p, annotator="w", is_switched_outputs=switched) for p in (1.0, 1.25, 1.5, 2.0)))
    )
    assert [shares(row) for row in rows] == [
        pytest.approx(expected) for expected in ([1, 0, 0], [0.75, 0.25, 0], [0.5, 0.5, 0], [0, 1, 0])
    ]
    assert {row["emitted"] for row in rows} == {None}  # what was sampled is not known
    assert any("4 judgments (w) are probabilities of two labels" in note for note in found.notes)


def test_one_and_a_half_is_an_even_chance_of_a_weighted_annotator_alone():
    rows, _ = imported(
        array(
            annotation("1", 1.5, annotator="w"),
            annotation("2", 1.9, annotator="w"),
            annotation("3", 1.5),
        )
    )
    assert [shares(row) for row in rows] == [pytest.approx([0.5, 0.5, 0]), pytest.approx([0.1, 0.9, 0]), [0, 0, 1]]


def test_a_listed_distribution_keeps_its_mass_and_the_label_that_was_written():
    completion = weighed(0.6, 0.2, "M")  # shown first: 0.75
    rows, _ = imported(
        array(
            annotation("1", 1.25, annotator="w", raw_completion=completion),
            annotation("2", 1.75, annotator="w", preference_raw_completion=completion),
            annotation("3", 1.4, annotator="w", raw_completion=completion, is_switched_outputs=False),
        )
    )
    assert [(row["order"], row["emitted"]) for row in rows] == [("AB", "b"), ("BA", "a"), ("AB", None)]
    assert [shares(row) for row in rows] == [
        pytest.approx(expected) for expected in ([0.6, 0.2, 0], [0.2, 0.6, 0], [0.6, 0.4, 0])
    ]
    assert rows[0]["label_mass"] == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("completion", "preference", "order"),
    [(ranked("m"), 1, "AB"), (ranked("m"), 2, "BA"), (ranked("M"), 2, "AB"), (ranked("M"), 1, "BA")]
    + [("[{'model': 'model_1', 'rank': 2}, {'model': 'model_2', 'rank': 1}]", 1, "BA")]
    + [(json.loads(ranked("M")), 2, "AB")],
)
def test_the_completion_tells_who_was_shown_first(completion, preference, order):
    for instruction in (FIRST, SECOND):
        rows, found = imported(array(annotation(instruction, preference, raw_completion=completion)))
        assert (rows[0]["order"], rows[0]["detail"]) == (order, None)
        assert not any("shown first is not in" in note for note in found.notes)


def test_an_order_that_nothing_tells_is_alpacaevals_own_draw_and_that_is_said():
    assert [random.Random(f"is_switched_outputs{q}0").choices([False, True]) for q in (FIRST, SECOND)] == [
        [False],
        [True],
    ]
    rows, found = imported(array(annotation(FIRST, 2), annotation(SECOND, 2, raw_completion="no list")))
    assert [(row["order"], row["emitted"]) for row in rows] == [("AB", "b"), ("BA", "b")]
    assert all("as AlpacaEval draws it" in row["detail"] for row in rows)
    assert any("not in 2 rows" in note for note in found.notes)


def test_equal_outputs_are_a_tie_that_nobody_judged_and_null_is_no_verdict():
    rows, _ = imported(array(annotation("1", 1.5, output_2="one"), annotation("2", None), annotation("3", math.nan)))
    assert [(row["status"], row["emitted"]) for row in rows] == [
        ("identical", "tie"),
        ("no_verdict", None),
        ("no_verdict", None),
    ]


def test_a_question_has_the_id_that_the_corpus_format_gives_it_and_outputs_become_responses():
    for beside in ({}, {"input": "pears, plums"}):
        rows, found = imported(array(annotation(FIRST, 1, **beside)))
        content = {"instruction": FIRST, "output": "one", "generator": "base", "dataset": "own", **beside}
        theirs = FORMATS["alpaca-eval"](content, field_map({}, "alpaca-eval"), ())[0]
        ours = found.response_rows[0]
        assert [ours[name] for name in ("question_id", "messages", "category", "response_id", "replies")] == [
            theirs[name] for name in ("question_id", "messages", "category", "response_id", "replies")
        ]
        assert rows[0]["question_id"] == ours["question_id"]
        assert [(r["model"], r["replies"]) for r in found.response_rows] == [("base", ["one"]), ("mine", ["two"])]


def test_several_files_share_the_baselines_output_and_another_output_is_not_the_same_response():
    rows, found = imported(
        array(
            annotation("1", 1),
            annotation("1", 2, models=("base", "other")),
            annotation("1", 2, models=("base", "third"), output_1="changed"),
            annotation("1", 1, time_per_example=9.0),
            annotation("1", 1, annotator="someone else"),
            annotation("1", 2, raw_completion="again"),
        )
    )
    assert [(r["judge"], r["response_b"], r["sample"]) for r in rows] == [
        ("plain", "mine", 0),
        ("plain", "other", 0),
        ("someone else", "mine", 0),
        ("plain", "mine", 1),
    ]
    assert [(q["line"], q["reason"]) for q in found.quarantine_rows] == [
        (3, "conflicting_duplicate"),
        (4, "duplicate_row"),
    ]
    assert [r["model"] for r in found.response_rows] == ["base", "mine", "other"]


def test_unusable_rows_are_quarantined_with_their_reasons():
    bad = [annotation("1", 3), annotation("1", "2"), annotation(7, 1), annotation("1", 1, models=("x", "x"))]
    bad += [{k: v for k, v in annotation("1", 1).items() if k != "preference"}]
    _, found = imported(array(annotation("0", 1), *bad))
    reasons = ["invalid_value"] * 3 + ["same_model", "missing_field"]
    assert [(q["line"], q["reason"]) for q in found.quarantine_rows] == list(enumerate(reasons, 2))
    assert "preference: got 3; 1 to 2, 0 for a tie, or null" in found.quarantine_rows[0]["detail"]
    with pytest.raises(ImportFileError, match="no judgment found"):
        imported(array({"instruction": "1", "output": "x", "generator": "y"}))


def test_lines_are_read_like_an_array():
    stream = io.BytesIO("".join(json.dumps(annotation(q, 1)) + "\n" for q in "abc").encode())
    assert len(imported(stream)[0]) == 3


def test_the_win_rate_of_an_imported_run_is_the_mean_preference(tmp_path):
    told = {"mine": [1.2, 1.9, 1.5, 1.0], "other": [1.1, 1.4, 1.95, 1.6]}
    rows = [
        annotation(f"question {q}", p, models=("base", model), annotator="w", output_2=f"{model} {q}")
        for model, preferences in told.items()
        for q, p in enumerate(preferences)
    ]
    path = tmp_path / "annotations.json"
    path.write_bytes(array(*rows).getvalue())
    folder = RunFolder(str(tmp_path / "run"))
    import_judgments("alpaca-eval", [str(path)], folder)
    found = evaluate(folder, AnalysisConfig())
    rates = found.ratings.filter(pl.col("category").is_null(), rule="win_rate")
    expected = {model: sum(p - 1 for p in preferences) / 4 for model, preferences in told.items()}
    expected |= {"base": 1 - sum(expected.values()) / 2}
    assert {r["model"]: r["rating"] for r in rates.to_dicts()} == pytest.approx(expected)
    assert any("each pair was shown in one order" in warning for warning in found.warnings)
