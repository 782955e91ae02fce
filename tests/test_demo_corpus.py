"""The demo's corpus: its planted order is what the demo's report is read against, so a slip here misleads everybody."""

import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from scipy.stats import spearmanr

CORPUS = Path(__file__).parents[1] / "trustjudge_ray" / "demo" / "corpus.jsonl"

# From best to worst; trustjudge_ray/demo/README.md tells the reader the same.
PLANTED_ORDER = ["quartz-xl", "basalt-m", "chalk-s", "slate-l", "marble-xl", "gravel-m"]

TEXT_FIELDS = ["question_id", "category", "question", "reference", "model", "response"]


@pytest.fixture(scope="module")
def rows():
    return [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def by_question(rows):
    questions = defaultdict(list)
    for row in rows:
        questions[row["question_id"]].append(row)
    return questions


def words(row):
    return len(row["response"].split())


def test_every_row_has_the_flat_fields_and_no_empty_text(rows):
    for row in rows:
        assert set(row) == {*TEXT_FIELDS, "human_score"}
        assert all(isinstance(row[name], str) and row[name].strip() for name in TEXT_FIELDS), row


def test_there_are_enough_questions_in_six_even_categories(by_question):
    questions_per_category = Counter(group[0]["category"] for group in by_question.values())
    assert len(by_question) >= 24
    assert len(questions_per_category) == 6
    assert min(questions_per_category.values()) >= 4


def test_each_question_has_one_answer_of_each_model(by_question):
    for question_id, group in by_question.items():
        assert sorted(row["model"] for row in group) == sorted(PLANTED_ORDER), question_id


def test_an_id_means_one_question(by_question):
    for question_id, group in by_question.items():
        assert len({(row["question"], row["category"], row["reference"]) for row in group}) == 1, question_id
    assert len({group[0]["question"] for group in by_question.values()}) == len(by_question)


def test_no_two_answers_to_a_question_are_the_same_text(by_question):
    for question_id, group in by_question.items():
        assert len({" ".join(row["response"].lower().split()) for row in group}) == len(group), question_id


def test_human_scores_are_whole_numbers_from_one_to_five(rows):
    assert {row["human_score"] for row in rows} == {1, 2, 3, 4, 5}


def test_answers_stay_short_enough_for_a_small_judge_on_a_laptop(rows):
    assert all(8 <= words(row) <= 70 for row in rows)


def test_a_judge_that_only_counts_words_learns_nothing(rows):
    correlation = spearmanr([words(row) for row in rows], [row["human_score"] for row in rows]).statistic
    assert abs(correlation) < 0.2


def test_the_models_have_the_planted_order(rows):
    scores = defaultdict(list)
    for row in rows:
        scores[row["model"]].append(row["human_score"])
    means = [sum(scores[model]) / len(scores[model]) for model in PLANTED_ORDER]
    assert all(better > worse for better, worse in pairwise(means)), means
