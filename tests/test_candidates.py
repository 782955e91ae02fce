"""Candidates: golds that are right, negatives that are wrong for every oracle, twins that differ in wording alone."""

import re
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trustjudge_ray.audit.candidates import (
    CANDIDATES,
    CONSTANT,
    NEGATIVES,
    PROBES,
    build,
    negatives,
    perturbed,
    rough_type,
)
from trustjudge_ray.audit.item_files import own_items
from trustjudge_ray.audit.perturbing import MONTHS, number_type
from trustjudge_ray.audit.qa import ABSTENTION, ORACLES, Item, accepting, normalised

ITEMS = own_items()
BY_ID = {item.id: item for item in ITEMS}
NOTHING = pl.DataFrame(
    schema={"item_id": pl.String, "condition": pl.String, "status": pl.String, "output": pl.String, "f1": pl.Boolean}
)
CARDINAL = st.integers(0, 10**6)
YEAR = st.integers(1000, 2025)
DAY = st.integers(1, 31)


def item(name, *golds, question="How many?", passage="p", **keys):
    return Item(name, "own", passage, "text", question, golds, **({"answerable": True} | keys))


def generated(*rows):
    return pl.DataFrame(list(rows), schema=NOTHING.schema, orient="row")


def texts(rows, name):
    return dict(rows.filter(pl.col("candidate") == name).select("item_id", "text").iter_rows())


def lacking(missing, name):
    chosen = missing.filter(pl.col("candidate") == name)
    return dict(chosen.select("item_id", "reason").iter_rows())


@pytest.mark.parametrize("seed", range(5))
def test_every_gold_is_right_and_every_swap_wrong_for_every_oracle(seed):
    rows, _ = build(ITEMS, NOTHING, "f1", seed)
    golds, swaps = texts(rows, "gold"), texts(rows, "swap")
    assert set(golds) == set(swaps) == set(BY_ID)
    for name in golds:
        assert len(accepting(BY_ID[name], golds[name])) == len(ORACLES)
        assert accepting(BY_ID[name], swaps[name]) == ()


def test_a_negative_of_every_kind_is_wrong_for_every_oracle_and_all_kinds_are_drawn():
    for each in ITEMS:
        passage = [other for other in ITEMS if other.passage_id == each.passage_id]
        for found in negatives(each, passage, 1).values():
            assert all(accepting(each, text) == () for text in found), (each.id, found)
    rows, _ = build(ITEMS, NOTHING, "f1", 1)
    drawn = rows.filter(pl.col("candidate") == "swap")["negative"].value_counts()
    assert set(drawn["negative"]) == set(NEGATIVES)
    assert min(drawn["count"]) >= 5


def test_the_order_of_the_items_and_of_the_answers_changes_nothing():
    answers = [(each.id, c, "ok", f"{c} {each.id}", False) for each in ITEMS for c in ("passage", "closed_book")]
    one = build(ITEMS, generated(*answers), "f1", 3)
    other = build(ITEMS[::-1], generated(*answers[::-1]), "f1", 3)
    assert one[0].equals(other[0])
    assert one[1].equals(other[1])
    assert one[0].schema == pl.Schema(CANDIDATES)


def test_an_items_candidates_do_not_depend_on_the_other_passages():
    whole, _ = build(ITEMS, NOTHING, "f1", 3)
    part, _ = build([each for each in ITEMS if each.passage_id == "loom"], NOTHING, "f1", 3)
    assert part.equals(whole.filter(pl.col("item_id").str.starts_with("loom")))


def test_another_seed_draws_other_swaps():
    one, other = (texts(build(ITEMS, NOTHING, "f1", seed)[0], "swap") for seed in (1, 2))
    assert sum(one[name] != other[name] for name in one) > 10


def test_an_item_without_a_negative_is_reported_and_has_no_twins_of_one():
    rows, missing = build([item("a", "the mill"), item("b", "40", passage="q")], NOTHING, "f1", 1)
    assert lacking(missing, "swap") == {"a": "no_negative"}
    assert set(rows.filter(pl.col("item_id") == "a")["candidate"]) == {
        *("gold", "gold_verbose", "gold_authority", "constant", "withheld")
    }
    assert texts(rows, "swap").keys() == {"b"}


def test_a_sibling_is_of_the_golds_type_and_no_unanswerable_items_gold():
    who = item("w", "Ada Brand", question="Who left?")
    passage = [
        who,
        item("n", "40"),
        item("p", "Cold Harbour", question="Where did they go?"),
        item("v", "Eli Stone", question="To whom did she write?"),
        item("u", ABSTENTION, question="Who paid?", answerable=False),
        item("s", "Brand", question="Who is meant?"),
    ]
    assert negatives(who, passage, 1) == {"sibling": ["Eli Stone"]}
    assert set(negatives(item("t", "the miller", question="Who is that?"), passage, 1)) == {"distant"}
    far = item("m", "12 miles", question="How far?")
    assert negatives(passage[1], [*passage, far], 1)["sibling"] == ["12 miles"]
    assert negatives(passage[4], passage, 1) == {"sibling": ["40", "Cold Harbour", "Brand", "Eli Stone", "Ada Brand"]}


def test_no_gold_of_another_passage_nor_of_the_same_question_is_a_sibling():
    asked = item("q", "40", question="How many oars?")
    again = item("r", "2 score", question="how many oars")
    elsewhere = replace(item("s", "77", question="How many masts?"), context="another text under the same passage_id")
    assert negatives(asked, [again, elsewhere], 1).keys() == {"perturbed"}
    assert negatives(asked, [replace(elsewhere, context=asked.context)], 1)["sibling"] == ["77"]
    named = replace(asked, golds=("Ada Brand",))
    assert negatives(named, [again, elsewhere], 1) == {}


def test_a_listed_wrong_answer_that_is_part_of_a_gold_or_right_is_not_used():
    asked = item("q", "William Brand and Eli Stone of the mill", wrong=("Eli Stone", "the mill", "", "Ada Moor"))
    assert negatives(asked, [], 1) == {"wrong": ["Ada Moor"]}
    assert negatives(replace(asked, wrong=("William Brand of the mill",)), [], 1) == {}


def test_only_golds_of_the_first_ones_type_are_perturbed():
    assert negatives(item("q", "Mr Fenn", "the second mate"), [], 1) == {}
    found = negatives(item("q", "40 miles", "40"), [], 1)["perturbed"]
    assert re.fullmatch(r"[0-9]+", found[0])


def test_own_answers_have_the_truth_of_the_primary_oracle_and_unread_ones_are_reported():
    items = [item(name, "40", passage=name) for name in "abcd"]
    answers = generated(
        ("a", "passage", "ok", "40", True),
        ("b", "passage", "ok", "", False),
        ("c", "passage", "engine_error", None, None),
        ("d", "passage", "ok", "forty", None),
    )
    rows, missing = build(items, answers, "f1", 1)
    own = rows.filter(pl.col("candidate") == "own").select("item_id", "text", "truth").rows()
    assert own == [("a", "40", True), ("b", "", False), ("d", "forty", None)]
    assert lacking(missing, "own") == {"c": "engine_error"}


def test_an_answer_without_the_passage_is_a_negative_only_if_it_is_wrong_and_not_the_own_one():
    items = [item(name, "40", passage=name) for name in "abcdef"]
    own = [(name, "passage", "ok", "The 55.", False) for name in "abcde"]
    closed = [
        ("a", "closed_book", "ok", "60", False),
        ("b", "closed_book", "ok", "40", True),
        ("c", "closed_book", "ok", "55", False),
        ("d", "closed_book", "ok", "60", None),
        ("e", "closed_book", "ok", " ", False),
    ]
    rows, missing = build(items, generated(*own, *closed), "f1", 1)
    chosen = rows.filter(pl.col("candidate") == "closed_book")
    assert chosen.select("item_id", "text", "truth", "negative").rows() == [("a", "60", False, "closed_book")]
    assert lacking(missing, "closed_book") == {
        "b": "right_without_passage",
        "c": "same_as_own",
        "d": "undecided",
        "e": "no_output",
        "f": "not_generated",
    }


def test_twins_hold_their_base_whole_once_and_share_the_wording_and_the_truth():
    rows, _ = build(ITEMS, NOTHING, "f1", 1)
    by_name = {(row["item_id"], row["candidate"]): row for row in rows.iter_rows(named=True)}
    for each in ITEMS:
        for probe, form in PROBES.items():
            wordings = set()
            for base in form.bases:
                row, of = by_name[each.id, f"{base}_{probe}"], by_name[each.id, base]
                assert (row["base"], row["truth"], row["negative"]) == (base, of["truth"], of["negative"])
                bare = of["text"].rstrip(".")
                assert row["text"].count(bare) == 1, row["text"]
                assert ".." not in row["text"]
                wordings.add(row["text"].replace(of["text"], "•").replace("•.", "•"))
            assert len(wordings) == 1
    assert {name.split("_")[1] for _, name in by_name if "_" in name} == set(PROBES)


def test_padding_alone_makes_no_swap_right_and_no_gold_lose_its_words():
    rows, _ = build(ITEMS, NOTHING, "f1", 1)
    for row in rows.filter(pl.col("base").is_not_null()).iter_rows(named=True):
        found = accepting(BY_ID[row["item_id"]], row["text"])
        assert ("contains" in found) == (row["base"] == "gold"), row


def test_the_constant_answer_is_wrong_everywhere_or_reported():
    rows, missing = build([*ITEMS, item("z", "text above")], NOTHING, "f1", 1)
    assert set(texts(rows, "constant").values()) == {CONSTANT}
    assert rows.filter(pl.col("candidate") == "constant")["truth"].to_list() == [False] * len(ITEMS)
    assert lacking(missing, "constant") == {"z": "constant_is_right"}


def test_without_probes_there_is_only_what_is_judged_in_all_polarities():
    rows, _ = build(ITEMS, NOTHING, "f1", 1, probes=False)
    assert set(rows["candidate"]) == {"gold", "swap"}


@pytest.mark.parametrize(
    ("items", "answers", "oracle", "says"),
    [
        ([item("a", "1"), item("a", "2")], (), "f1", "the id 'a' comes twice"),
        ([item("a", "x", answerable=False)], (), "f1", "must be an abstention"),
        ([item("a")], (), "f1", r"a: golds \[\]; the first must be an answer"),
        ([item("a", "1")], (), "shown_gold", "no column 'shown_gold'"),
        ([item("a", "1")], (("a", "passage", "ok", "1", True),) * 2, "f1", "'a' has two answers under 'passage'"),
    ],
)
def test_what_cannot_be_judged_once_is_refused(items, answers, oracle, says):
    with pytest.raises(ValueError, match=says):
        build(items, generated(*answers), oracle, 1)


PIECES = st.one_of(
    CARDINAL.map(str),
    CARDINAL.map("{:,}".format),
    st.floats(0, 1000).map("{:.1f}".format),
    YEAR.map(str),
    st.sampled_from(
        ["three", "Twenty-one", "ninety-nine", "zero", "third", "first", "one", "half", "of", "the", "and"]
    ),
    st.sampled_from(["14:40", "0:05", "09:59", "3 pm", "1920s", "90s", "2024-05-31", "4th", "12 May", "March 3rd"]),
    st.sampled_from([*MONTHS, "Monday", "miles", "%", "million", "hundred", "Mr", "to", "$", "from", "-", "km"]),
)


@settings(max_examples=400)
@given(st.lists(PIECES, min_size=1, max_size=6).map(" ".join), st.integers(0, 2**62))
def test_a_perturbed_text_is_wrong_for_every_oracle_and_the_same_again(text, seed):
    other = perturbed(text, seed)
    assert other == perturbed(text, seed)
    if other is not None:
        assert number_type(text) is not None
        assert normalised(other)
        assert accepting(item("q", text), other) == ()


@given(st.one_of(CARDINAL.map(str), YEAR.map(str), st.floats(0, 999).map("{:.2f}".format)), st.integers(0, 2**62))
def test_a_number_alone_always_has_another_of_its_form_and_none_below_zero(text, seed):
    other = perturbed(text, seed)
    assert other is not None
    assert float(other) >= 0
    assert other != text
    assert ("." in other) == ("." in text)
    assert len(other.partition(".")[2]) == len(text.partition(".")[2])


@given(DAY, st.sampled_from(MONTHS), YEAR, st.integers(0, 2**62))
def test_a_date_becomes_another_date_with_no_part_kept(day, month, year, seed):
    for text in (f"{day} {month} {year}", f"{month} {day}, {year}"):
        found = re.fullmatch(r"(?:(\d+) ([A-Z]\w+)|([A-Z]\w+) (\d+),) (\d{3,4})", perturbed(text, seed))
        other_day, other_month = found[1] or found[4], found[2] or found[3]
        assert 1 <= int(other_day) <= 28
        assert other_month in MONTHS
        assert int(other_day) != day
        assert other_month != month
        assert int(found[5]) != year
        assert abs(int(found[5]) - year) <= 40


@given(YEAR, st.integers(1, 60), st.integers(0, 2**62))
def test_a_period_ends_after_it_begins(start, length, seed):
    other = perturbed(f"{start}-{start + length}", seed)
    first, last = map(int, other.split("-"))
    assert last - first == length
    short = perturbed(f"{start}–{(start + length) % 100:02d}", seed)
    assert (int(short[-2:]) - int(short[:-3])) % 100 == length % 100


@given(st.integers(1990, 2025), st.integers(0, 2**62))
def test_a_recent_year_moves_into_no_future_that_gives_it_away(year, seed):
    for text in (str(year), f"3 May {year}", f"{year}-05-31"):
        assert max(map(int, re.findall(r"\d{4}", perturbed(text, seed)))) <= 2025


@given(st.integers(0, 23), st.integers(0, 59), st.integers(0, 2**62))
def test_a_time_of_day_becomes_another_one(hour, minute, seed):
    for text in (f"{hour}:{minute:02d}", f"{hour:02d}:{minute:02d}"):
        hours, minutes = perturbed(text, seed).split(":")
        later = (int(hours) * 60 + int(minutes) - hour * 60 - minute) % 1440
        assert 15 <= later <= 240


@given(st.integers(2, 100), st.integers(0, 2**62))
def test_a_percentage_stays_one(share, seed):
    assert 0 <= float(perturbed(f"{share}%", seed).rstrip("%")) <= 100


@pytest.mark.parametrize(
    "text", ["Theresa May", "the mill", "April Brand", "B12", "one of the brothers", "", "v1.2.3", "March of the crows"]
)
def test_a_text_without_a_number_or_date_is_left_alone(text):
    assert perturbed(text, 1) is None
    assert number_type(text) is None


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("40 miles", r"\d+"),
        ("$3.5 million", r"\$\d+\.\d billion"),
        ("from 1912 to 1934", r"\d{4}"),
        ("5 hours and 40 minutes", r"\d+ hours"),
        ("the 3rd of May", r"the \d+(st|nd|rd|th) of [A-Z][a-z]+"),
        ("Twenty-one", r"[A-Z][a-z]+(-[a-z]+)?"),
        ("12,000", r"\d+,000"),
        ("March to May", r"[A-Z][a-z]+ to [A-Z][a-z]+|[A-Z][a-z]+"),
        ("21st", r"1[5-9]th|20th"),
    ],
)
def test_a_change_keeps_the_form_as_far_as_the_oracles_allow(text, form):
    for seed in range(20):
        assert re.fullmatch(form, perturbed(text, seed)), perturbed(text, seed)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *(("Yes.", "yes_no"), ("9 March 1874", "date"), ("1863", "year"), ("15:32", "time"), ("third", "ordinal")),
        *(("52 minutes", "number"), ("Wednesday", "weekday"), ("in October", "month"), ("Ada Brand", "name")),
        *(("the old mill", "phrase"), ("the man who had counted all 40 sheep", "phrase")),
    ],
)
def test_answers_are_sorted_by_what_could_stand_in_their_place(text, kind):
    assert rough_type(text) == kind
