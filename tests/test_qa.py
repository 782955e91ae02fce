"""Oracles: the normalisation against the rules of SQuAD's script, token F1 by hand, and what is right of what."""

import re
import string
from collections import Counter

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trustjudge_ray.analysis.raters import KAPPA_WEIGHTS, weighted_kappa
from trustjudge_ray.audit.qa import (
    ABSTENTION,
    ORACLES,
    Item,
    abstains,
    accepting,
    agreement,
    contains,
    exact,
    f1,
    normalised,
    token_f1,
)

ALL = tuple(ORACLES)
TEXTS = st.text(max_size=30)
ASCII = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
WORDS = st.lists(st.sampled_from(["the", "a", "red", "Red.", "mill", "3", "4", "of", "old", "(old)"]), max_size=6)


def item(*golds, answerable=True):
    return Item("q", "own", "p", "text", "ask?", golds or (ABSTENTION,), answerable)


def as_the_script(text):
    """The four steps that the script's documentation lists, in its order."""
    text = "".join(ch for ch in text.lower() if ch not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


@given(ASCII)
def test_ascii_texts_are_normalised_as_by_the_script_unless_nothing_would_be_left(text):
    expected = as_the_script(text)
    if expected:
        assert normalised(text) == expected
    else:
        assert bool(normalised(text)) == bool(text.strip())


@given(TEXTS)
def test_normalising_again_changes_nothing(text):
    assert normalised(normalised(text)) == normalised(text)


@given(WORDS)
def test_case_articles_punctuation_and_spacing_never_matter(words):
    plain = " ".join(words)
    if any(normalised(word) not in ("the", "a") for word in words):
        assert normalised(f"  The {plain.upper()} !\n") == normalised(plain)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("the captain’s “log”", "captain's log"),
        ("1987–1990", "1987-1990"),
        ("−5", "-5"),
        ("１２ km", "12 km"),
        ("Café", "Cafe\u0301"),
        ("ﬁnal", "final"),
        ("co\u00adoperate", "cooperate"),
        ("12\u00a0000", "12 000"),
        ("don´t", "don't"),
        ("zero\u200bwidth", "zerowidth"),
    ],
)
def test_one_text_in_two_encodings_is_one_text(one, other):
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(("one", "other"), [("3", "three"), ("3.5", "3 5"), ("café", "cafe"), ("A", "The"), ("+", "-")])
def test_what_is_not_the_same_text_stays_apart(one, other):
    assert normalised(one) != normalised(other)


def test_a_text_of_which_nothing_would_be_left_keeps_what_it_is():
    assert [normalised(text) for text in ("A", "a.", "The the", "+", " ?! ", "  ", "")] == [
        *("a", "a", "the the", "+", "?!", "", "")
    ]


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("the old mill", "old mill", 1.0),
        ("the old mill at Noake", "old mill", 2 * 2 / (4 + 2)),
        ("mill", "old mill", 2 * 1 / (1 + 2)),
        ("new mill", "old mill", 2 * 1 / (2 + 2)),
        ("red red red", "red red blue", 2 * 2 / (3 + 3)),
        ("red", "red red red", 2 * 1 / (1 + 3)),
        ("seventeen", "17", 0.0),
        ("", "17", 0.0),
        ("", "", 1.0),
    ],
)
def test_token_f1_is_what_counting_by_hand_gives(answer, gold, expected):
    assert token_f1(answer, gold) == pytest.approx(expected, abs=1e-12)


@given(WORDS, WORDS)
def test_token_f1_is_the_harmonic_mean_of_precision_and_recall_and_symmetric(left, right):
    one, other = " ".join(left), " ".join(right)
    said, wanted = normalised(one).split(), normalised(other).split()
    assert token_f1(one, other) == token_f1(other, one)
    if said and wanted:
        common = sum((Counter(said) & Counter(wanted)).values())
        precision, recall = common / len(said), common / len(wanted)
        expected = 0.0 if not common else 2 * precision * recall / (precision + recall)
        assert token_f1(one, other) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("golds", "answer", "right"),
    [
        (("17 kilometres", "17"), "17", ALL),
        (("17 kilometres", "17"), "It is 17 kilometres long.", ("f1", "contains")),
        (("17",), "about 17 kilometres", ("f1", "contains")),
        (("17",), "The race is about 17 kilometres long.", ("contains",)),
        (("old red mill",), "the red mill", ("f1",)),
        (("red mill",), "mill of the red hill", ("f1",)),
        (("red mill",), "The mill of them all was painted red.", ()),
        (("17",), "170", ()),
        (("17",), "1917", ()),
        (("17",), "", ()),
        (("17",), " \n", ()),
        (("17", ""), "", ()),
        (("the",), "The", ALL),
        (("the",), "the mill", ()),
        (("17",), "The passage does not say whether it is 17.", ()),
        (("unknown",), "Unknown", ALL),
        (("unknown",), "The passage does not say.", ()),
        (("no",), "No.", ALL),
        (("no",), "Yes", ()),
    ],
)
def test_each_oracle_says_of_an_answer_what_its_rule_says(golds, answer, right):
    assert accepting(item(*golds), answer) == right


@given(st.lists(st.text(min_size=1, max_size=20).filter(lambda text: normalised(text)), min_size=1, max_size=3))
def test_every_gold_is_right_for_every_oracle_whatever_it_says(golds):
    for gold in golds:
        assert accepting(item(*golds), gold) == ALL


@given(TEXTS, st.text(min_size=1, max_size=20))
def test_an_exact_answer_is_never_wrong_for_the_other_oracles(answer, gold):
    asked = item(gold)
    if exact(asked, answer):
        assert f1(asked, answer)
        assert contains(asked, answer)


@pytest.mark.parametrize(
    "answer",
    [
        ABSTENTION,
        "the passage does not say",
        "The passage doesn’t explicitly mention a ticket price.",
        "It is not stated in the text.",
        "Unanswerable",
        "N/A",
        "I don't know.",
        "This cannot be determined from the context.",
        "There is no information about the widow’s name in the passage.",
        "Not mentioned",
    ],
)
def test_an_abstention_is_right_where_there_is_no_answer_and_wrong_where_there_is(answer):
    assert abstains(answer)
    assert accepting(item(answerable=False), answer) == ALL
    assert accepting(item("17"), answer) == ()


@pytest.mark.parametrize("answer", ["17", "", "none of them", "No", "He did not say a word.", "the unknown soldier"])
def test_an_answer_is_no_abstention_and_wrong_where_there_is_none(answer):
    assert not abstains(answer)
    assert accepting(item(answerable=False), answer) == ()


def test_agreement_counts_only_answers_on_which_both_oracles_speak():
    said = {
        "exact": [True, True, False, False, False, None, True],
        "f1": [True, True, True, False, False, True, None],
        "contains": [None] * 7,
    }
    rows = agreement(pl.DataFrame(said, schema=dict.fromkeys(said, pl.Boolean))).to_dicts()
    assert [(row["first"], row["second"], row["hits"], row["cases"], row["excluded"]) for row in rows] == [
        ("exact", "f1", 4, 5, 2),
        ("exact", "contains", 0, 0, 7),
        ("f1", "contains", 0, 0, 7),
    ]
    # By hand: both right 2, both wrong 2, one apart 1; chance = (2·3 + 3·2) / 25 = 0.48, κ = (0.8 − 0.48) / 0.52.
    assert rows[0]["value"] == pytest.approx(0.8)
    assert rows[0]["kappa"] == pytest.approx(0.32 / 0.52)
    assert (rows[1]["value"], rows[1]["kappa"]) == (None, None)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_kappa_is_what_the_weighted_kappa_of_two_levels_is(pairs):
    one, other = (np.array(side, dtype=np.int64) for side in zip(*pairs, strict=True))
    frame = pl.DataFrame({"exact": one.astype(bool), "shown_gold": other.astype(bool)})
    (row,) = agreement(frame).to_dicts()
    expected = weighted_kappa(one, other, 2, KAPPA_WEIGHTS["linear"])
    assert (row["kappa"] is None) == bool(np.isnan(expected))
    if row["kappa"] is not None:
        assert row["kappa"] == pytest.approx(expected, abs=1e-9)
