"""Sheets for people: drawn at random, blind, read back with nothing lost, and refused where they prove nothing."""

import csv
import io

import numpy as np
import polars as pl
import pytest
from comparisons import game, score, table
from corpora import SCORE, compare_protocol

from trustjudge_ray.analysis.label_sheet import (
    consensus,
    draw,
    frame_of,
    merged,
    read_csv,
    to_csv,
    unfilled_share,
)
from trustjudge_ray.analysis.powered_tables import NotRandomError, powered_estimates
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.judging.protocols import parse

PROTOCOLS = {"compare": compare_protocol(), "score": parse(SCORE.replace("score-5", "score"))}


def pairs(questions=30, models=("m1", "m2", "m3")):
    """Every pair in both orders; the judge leans to the first by name, more or less by question."""
    rows = []
    for q in range(questions):
        for i, x in enumerate(models):
            for y in models[i + 1 :]:
                p = 0.4 + 0.5 * (q % 7) / 7
                rows.append(game(q, x, y, (p, 0.9 - p, 0.1)))
                rows.append(game(q, y, x, (0.9 - p, p, 0.1)))
    return table(rows)


def filled(sheet, text, say):
    """The sheet with `say(unit)` in the answer's column."""
    rows = list(csv.reader(io.StringIO(text)))
    column = next(i for i, name in enumerate(rows[0]) if name.startswith(("better", "score")))
    for row, unit in zip(rows[1:], sheet.units, strict=True):
        row[column] = say(unit)
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue()


def blank(sheet):
    questions = {unit.question_id: f"ask {unit.question_id}" for unit in sheet.units}
    answers = {(u.question_id, r): f"answer of {r}" for u in sheet.units for r in (u.response_a, u.response_b) if r}
    return to_csv(sheet, questions, answers)


def test_every_pair_is_drawn_equally_often_and_the_same_seed_draws_the_same():
    frame = frame_of(pairs(questions=5), "compare")
    assert frame.height == 15
    counts, swaps = dict.fromkeys(frame.rows(), 0), []
    for seed in range(2000):
        sheet = draw(frame, "compare", 3, seed)
        for unit in sheet.units:
            counts[unit.question_id, unit.response_a, unit.response_b] += 1
            swaps.append(unit.swapped)
    assert max(abs(n - 400) for n in counts.values()) < 80  # four standard deviations
    assert np.mean(swaps) == pytest.approx(0.5, abs=0.03)
    assert draw(frame, "compare", 3, 7) == draw(
        frame.sample(fraction=1, shuffle=True, seed=1).sort(*frame.columns), "compare", 3, 7
    )
    assert draw(frame, "compare", 3, 0).probability == 3 / 15
    with pytest.raises(ValueError, match="from 1 to 15, the pairs"):
        draw(frame, "compare", 16, 0)


def test_a_sheet_names_no_model_and_holds_no_formula():
    sheet = draw(frame_of(pairs(questions=2), "compare"), "compare", 6, 0)
    answers = {(u.question_id, r): "=HYPERLINK(1)" for u in sheet.units for r in (u.response_a, u.response_b)}
    text = to_csv(sheet, {u.question_id: 'a "quoted"\nquestion' for u in sheet.units}, answers)
    assert "m1" not in text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 6
    assert {row["answer_1"] for row in rows} == {"'=HYPERLINK(1)"}
    assert {row["question"] for row in rows} == {'a "quoted"\nquestion'}


def test_an_answer_is_turned_back_to_the_pair_that_was_drawn():
    sheet = draw(frame_of(pairs(), "compare"), "compare", 60, 0)
    better = filled(sheet, blank(sheet), lambda unit: "2" if unit.swapped else "1.0")  # always response_a
    labels, problems = read_csv(sheet, better, "anna")
    assert problems == []
    assert labels["value"].to_list() == [1.0] * 60
    assert labels["annotator"].unique().to_list() == ["anna"]
    assert {unit.swapped for unit in sheet.units} == {True, False}


def test_every_cell_that_says_nothing_is_named_with_its_line():
    sheet = draw(frame_of(pairs(), "compare"), "compare", 6, 0)
    said = iter(["1", "", "left", "tie", "2", "1"])
    rows = filled(sheet, blank(sheet), lambda unit: next(said)).splitlines()
    rows[5] = rows[5].replace(sheet.units[4].name, "someone-else-00001")
    rows[6] = rows[1]
    labels, problems = read_csv(sheet, "\ufeff" + "\n".join(rows), "anna")
    assert labels["unit"].to_list() == [sheet.units[0].name, sheet.units[3].name]
    assert [(p.line, p.reason, p.got) for p in problems] == [
        (3, "unfilled", ""),
        (4, "odd_value", "left"),
        (6, "unknown_unit", "2"),
        (7, "repeated_unit", "1"),
        (None, "missing_row", ""),
        (None, "missing_row", ""),
    ]
    assert unfilled_share(sheet, labels) == pytest.approx(4 / 6)


def test_sheets_that_came_back_with_semicolons_and_decimal_commas_are_read():
    rows = table([score(q, "m", (0, 0, 1, 0, 0)) for q in range(4)])
    sheet = draw(frame_of(rows, "score"), "score", 4, 0, (1.0, 5.0))
    said = iter(["3,5", "4", "6", "five"])
    text = filled(sheet, blank(sheet), lambda unit: next(said))
    semicolons = io.StringIO()
    csv.writer(semicolons, delimiter=";").writerows(csv.reader(io.StringIO(text)))
    labels, problems = read_csv(sheet, semicolons.getvalue(), "x")
    assert labels["value"].to_list() == [3.5, 4.0]
    assert [p.reason for p in problems] == ["odd_value", "odd_value"]
    with pytest.raises(ValueError, match="no column 'unit'"):
        read_csv(sheet, "a,b\n1,2\n", "x")


def test_several_people_are_one_by_majority_and_a_tie_where_they_are_even():
    def label(unit, who, value):
        return {
            "sheet": "s",
            "unit": unit,
            "annotator": who,
            "question_id": unit,
            "response_a": "a",
            "response_b": "b",
            "value": value,
        }

    votes = {"q1": [1.0, 1.0, -1.0], "q2": [1.0, -1.0], "q3": [0.0, 0.0, 1.0], "q4": [-1.0]}
    rows = [label(unit, str(i), value) for unit, values in votes.items() for i, value in enumerate(values)]
    found = {row["question_id"]: row for row in consensus(pl.DataFrame(rows), "compare").to_dicts()}
    assert {q: row["wanted"] for q, row in found.items()} == {"q1": 1, "q2": 0, "q3": 0, "q4": -1}
    assert found["q1"]["mean"] == pytest.approx(1 / 3)


def test_a_sheet_read_again_says_what_it_says_now():
    sheet = draw(frame_of(pairs(), "compare"), "compare", 3, 0)
    straight = [unit for unit in sheet.units if not unit.swapped][:2]

    def read(who, *said):
        words = dict(zip([unit.name for unit in straight], said, strict=True))
        return read_csv(sheet, filled(sheet, blank(sheet), lambda unit: words.get(unit.name, "")), who)

    first, problems = read("anna", "1", "2")
    everything, replaced = merged(first.clear(), first, problems)
    ben, problems = read("ben", "1", "1")
    everything, replaced = merged(everything, ben, problems)
    assert (everything.height, replaced) == (4, 0)
    again, problems = read("anna", "tie", "")
    everything, replaced = merged(everything, again, problems)
    assert replaced == 2
    said = [(row["unit"], row["annotator"], row["value"]) for row in everything.to_dicts()]
    x, y = straight[0].name, straight[1].name
    assert sorted(said) == sorted([(x, "anna", 0.0), (x, "ben", 1.0), (y, "ben", 1.0)])


def labelled(judgments, n, seed=0, say=lambda unit: "2" if unit.swapped else "1"):
    sheet = draw(frame_of(judgments, "compare"), "compare", n, seed)
    return sheet, read_csv(sheet, filled(sheet, blank(sheet), say), "x")[0]


def test_labels_of_everything_give_every_models_own_win_rate():
    judgments = pairs()
    sheet, labels = labelled(judgments, 90)  # the first by name always wins
    rows = {row["model"]: row for row in powered_estimates(judgments, PROTOCOLS, sheet, labels, AnalysisConfig())}
    assert {m: row["value"] for m, row in rows.items()} == {"m1": 1.0, "m2": 0.5, "m3": 0.0}
    assert all(row["labelled"] == 60 and row["unread"] == 0 for row in rows.values())


def test_an_estimate_from_some_labels_holds_what_all_labels_would_have_said():
    """A judge that is right more often than not and leans; people's opinion by question is planted."""
    rng = np.random.default_rng(0)
    judgments = pairs(questions=60)
    opinion = {row: rng.choice([1.0, 0.0, -1.0], p=[0.5, 0.2, 0.3]) for row in frame_of(judgments, "compare").rows()}
    truth = {m: [] for m in ("m1", "m2", "m3")}
    for (_, a, b), value in opinion.items():
        truth[a].append((value + 1) / 2)
        truth[b].append((1 - value) / 2)

    def say(unit):
        value = opinion[unit.question_id, unit.response_a, unit.response_b] * (-1 if unit.swapped else 1)
        return {1.0: "1", -1.0: "2", 0.0: "tie"}[value + 0.0]

    held = []
    for seed in range(60):
        sheet, labels = labelled(judgments, 80, seed, say)
        for row in powered_estimates(judgments, PROTOCOLS, sheet, labels, AnalysisConfig()):
            held.append(row["low"] <= np.mean(truth[row["model"]]) <= row["high"])
    assert np.mean(held) >= 0.93


def test_scores_are_estimated_on_the_scale_of_the_sheet():
    rng = np.random.default_rng(1)
    rows = [score(q, m, rng.dirichlet(np.ones(5))) for q in range(30) for m in ("m1", "m2")]
    judgments = table(rows)
    sheet = draw(frame_of(judgments, "score"), "score", 60, 0, (1.0, 5.0))
    labels, _ = read_csv(sheet, filled(sheet, blank(sheet), lambda u: "4" if u.response_a == "m1" else "2"), "x")
    found = powered_estimates(judgments, PROTOCOLS, sheet, labels, AnalysisConfig())
    assert {row["model"]: row["value"] for row in found} == {None: 3.0, "m1": 4.0, "m2": 2.0}


def test_labels_prove_nothing_about_other_units_or_where_people_chose_what_to_label():
    judgments = pairs()
    sheet, labels = labelled(judgments, 50)
    more = pl.concat([judgments, table([game(99, "m1", "m2", "first")]).with_columns(task_id=pl.lit("new"))])
    with pytest.raises(NotRandomError, match="other pairs now"):
        powered_estimates(more, PROTOCOLS, sheet, labels, AnalysisConfig())
    with pytest.raises(NotRandomError, match=r"12% of its 50 units have no label"):
        powered_estimates(judgments, PROTOCOLS, sheet, labels[:44], AnalysisConfig())


def test_what_the_judge_could_not_read_is_counted_beside_the_estimate():
    judgments = pairs().with_columns(
        status=pl.when(pl.col("question_id") == "3").then(pl.lit("engine_error")).otherwise("status")
    )
    sheet, labels = labelled(judgments, 90)
    rows = powered_estimates(judgments, PROTOCOLS, sheet, labels, AnalysisConfig())
    assert [row["unread"] for row in rows] == [2, 2, 2]
    assert [row["units"] for row in rows] == [58, 58, 58]
