"""The pairs that a card tells people to read first: against a sort by hand, with their own texts, and in words."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from test_data_card import BY, SETTINGS, card, labels, parsed, rows, seen
from test_preferences import judged, judged_folder, pair

from trustjudge_ray import labelling_preferences
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.preferences_config import PreferencesConfig
from trustjudge_ray.report import excerpts as cut
from trustjudge_ray.report import preferences as html
from trustjudge_ray.report.doubtful import pairs_page
from trustjudge_ray.report.excerpts import Excerpt, excerpts
from trustjudge_ray.training.data_card import Source, data_card
from trustjudge_ray.training.data_card_doubtful import DOUBTS, MOST, listed
from trustjudge_ray.training.preference_filters import marked
from trustjudge_ray.training.preferences import PREFERENCES

HOSTILE = '</p></script><script>window.pwned.push(1)</script><img src=x onerror="window.pwned.push(2)">{{7*7}} & \''


def drawn(seed, n=200):
    """Pairs with many equal margins and scores, some with labels, in an order that says nothing."""
    rng = np.random.default_rng(seed)
    human, original = rng.choice(np.array(["chosen", "rejected", None], dtype=object), (2, n))
    return rows(
        n,
        p=rng.choice([0.51, 0.6, 0.75, 0.9], n),
        label_human=human,
        label_original=original,
        score_chosen=rng.integers(1, 6, n).astype(float),
        score_rejected=rng.integers(1, 6, n).astype(float),
    ).sample(fraction=1.0, shuffle=True, seed=seed)


def by_hand(pairs):
    """Of each kind the ids, the most doubtful first, and how many there are: by its definition, a pair at a time."""
    told = pairs.to_dicts()
    kinds = {
        "human": [(-row["margin"], row["pair_id"]) for row in told if row["label_human"] == "rejected"],
        "original": [(-row["margin"], row["pair_id"]) for row in told if row["label_original"] == "rejected"],
        "scores": [
            (row["score_chosen"] - row["score_rejected"], row["pair_id"])
            for row in told
            if row["score_rejected"] > row["score_chosen"]
        ],
        "narrow": [(row["margin"], row["pair_id"]) for row in told],
    }
    return {name: ([pair_id for _, pair_id in sorted(some)][:MOST], len(some)) for name, some in kinds.items()}


def told_of(found):
    """The same of a card."""
    return {name: ([p["pair_id"] for p in kind["pairs"]], kind["of"]) for name, kind in found["doubtful"].items()}


@pytest.mark.parametrize("seed", range(4))
def test_the_pairs_to_read_first_are_those_of_a_sort_by_hand_and_no_dropped_one_is_among_them(seed):
    pairs = drawn(seed)
    found = card(pairs, {"min_margin": 0.15})
    assert told_of(found) == by_hand(pairs.filter(pl.col("margin") >= 0.15))
    assert len(found["doubtful"]["narrow"]["pairs"]) == MOST < found["doubtful"]["narrow"]["of"]
    assert told_of(card(pairs.reverse(), {"min_margin": 0.15})) == told_of(found), "whatever the order of rows"


def test_pairs_that_float_noise_alone_tells_apart_go_by_their_ids():
    noisy = rows(30, p=0.8 + np.arange(30) * 1e-14, label_original="rejected")
    for kind in ("narrow", "original"):
        assert told_of(card(noisy))[kind][0] == sorted(noisy["pair_id"])[:MOST]


def test_as_many_kept_pairs_go_against_the_source_as_are_counted_as_swapped():
    found = card(drawn(9), {"min_margin": 0.15})
    assert found["doubtful"]["original"]["of"] == found["counts"]["swapped"]["pairs"] > 0


def test_scores_that_are_equal_but_for_float_noise_do_not_contradict_and_missing_ones_neither():
    pairs = rows(3, score_chosen=[3.0, 0.1 + 0.2, None], score_rejected=[3.0 + 1e-12, 0.3, None])
    assert card(pairs)["doubtful"]["scores"] == {"of": 0, "pairs": []}


def test_without_labels_scores_and_kept_pairs_each_kind_is_empty_and_says_what_is_missing():
    found = card(rows(3, score_chosen=None, score_rejected=None), {"min_margin": 0.9})
    assert told_of(found) == dict.fromkeys(DOUBTS, ([], 0))
    text = seen(pairs_page(found, "run", {}))
    for words, times in (("no kept pair has such a label", 2), ("the judge's own scores", 1), ("no pair is kept", 1)):
        assert text.count(words) == times
    assert 'href="pairs.html"' not in html.page(found, "run"), "there is nothing to go to"


@pytest.mark.parametrize(
    ("about", "by", "told"),
    [
        ({}, BY, ["– –", "– –", "0 0", "30 20"]),
        ({"label_human": "rejected", "label_original": "chosen"}, BY, ["30 20", "0 0", "0 0", "30 20"]),
        ({"score_chosen": None, "score_rejected": None}, replace(BY, score_protocol=None), ["– –"] * 3 + ["30 20"]),
    ],
)
def test_the_card_tells_none_of_a_kind_of_doubt_from_nothing_to_tell_it_by(about, by, told):
    found = data_card(marked(rows(30, **about), {}), Source(30, {}), by, {}, SETTINGS)
    section = seen(html.page(found, "run")).split("Kinds of doubt")[1]
    kinds = ("People prefer the rejected answer", "The source prefers the rejected answer")
    kinds += ("The judge scores the rejected answer higher", "Nearest to 1/2")
    for kind, counts in zip(kinds, told, strict=True):
        assert f"{kind} {counts}" in section


def test_a_pair_stands_with_its_own_numbers_labels_and_texts_and_no_other_pairs():
    about = {"p": [0.9, 0.7], "p_ab": [0.95, 0.8], "p_ba": [0.85, 0.6], "score_chosen": [2.0, 4.5]}
    about |= {"score_rejected": [3.25, 1.0], "length_chosen": [1, 77], "label_human": ["rejected", None]}
    found = card(rows(2, **about))
    texts = {"p0": Excerpt("first question", 0, "yes", "no"), "p1": Excerpt("second question", 3, "left", "right")}
    text = seen(pairs_page(found, "run", texts))
    people, rest = text.split("The source prefers the rejected answer")
    assert "p0 p 0.900 margin 0.800 p, chosen shown first 0.950 p, chosen shown second 0.850" in people
    assert "people prefer rejected Asked first question" in people
    assert "Chosen: score 2.000, 1 character yes Rejected: score 3.250, 10 characters no" in people
    assert "p1" not in people
    narrow = rest.split("Nearest to 1/2")[1]
    assert narrow.index("p1 p 0.700") < narrow.index("p0 p 0.900")
    assert "Asked after 3 earlier messages second question" in narrow


def test_texts_of_pairs_become_no_markup():
    found = card(rows(2, pair_id=[HOSTILE, "b"], label_original="rejected"))
    texts = dict.fromkeys(listed(found), Excerpt(HOSTILE, 0, HOSTILE, HOSTILE))
    page = parsed(pairs_page(found, "run", texts))
    assert [tag for tag, _ in page.tags].count("script") == 1, "the theme's"
    assert not any(tag == "img" or name.startswith("on") for tag, attrs in page.tags for name in attrs)
    assert " ".join(page.text).count(HOSTILE) >= 2 * 2 * 3, "two kinds list two pairs of three texts each"


@pytest.mark.parametrize(("prompt", "asked", "before"), [
    ([("system", "s"), ("user", "one"), ("assistant", "x"), ("user", "two")], "two", 3),
    ([("user", "one"), ("assistant", "begun")], "one", 0),
    ([("system", "alone")], "alone", 0),
    ([], "", 0),
])  # fmt: skip
def test_what_was_asked_is_the_last_turn_of_the_user(prompt, asked, before):
    messages = [{"role": role, "content": content} for role, content in prompt]
    one = {"pair_id": "i", "prompt": messages} | {
        s: [{"role": "assistant", "content": s}] for s in ("chosen", "rejected")
    }
    assert excerpts([one])["i"] == Excerpt(asked, before, "chosen", "rejected")


def test_every_turn_of_an_answer_is_shown_with_its_role():
    turns = [
        {"role": role, "content": text} for role, text in (("assistant", "a1"), ("user", "u"), ("assistant", "a2"))
    ]
    one = {"pair_id": "i", "prompt": [], "chosen": turns, "rejected": turns[:1]}
    found = excerpts([one])["i"]
    assert (found.chosen, found.rejected) == ("assistant: a1\nuser: u\nassistant: a2", "a1")


def test_of_a_long_question_its_end_is_shown_too():
    short = "a" * 300
    assert cut.question(short) == short
    found = cut.question("document " * 1000 + "So who was first?")
    assert found.startswith("document document")
    assert found.endswith("So who was first?")
    assert " … " in found
    assert len(found) <= 303


@pytest.mark.parametrize("alike", [0, 150, 250, 399, 5000])
def test_where_two_long_answers_differ_is_seen_however_long_they_begin_alike(alike):
    chosen, rejected = "same " * 1000, "same " * 1000
    chosen, rejected = chosen[:alike] + "YES" + "y" * 1000, rejected[:alike] + "no" + "n" * 1000
    shown = cut.answers(chosen, rejected)
    assert "YES" in shown[0]
    assert "no" in shown[1]
    assert max(map(len, shown)) <= 404
    assert all(text.endswith(" …") for text in shown)
    assert all(text.startswith("… ") is (alike > 200) for text in shown)


def test_an_answer_that_is_the_beginning_of_the_other_is_not_shown_as_empty():
    whole, begun = "word " * 300, "word " * 100
    shown = cut.answers(whole, begun)
    assert shown[1].endswith("word ")
    assert len(shown[0]) > len(shown[1]) > 20
    assert cut.answers("short", "short and more") == ("short", "short and more")


def test_the_page_of_pairs_has_their_texts_whichever_part_they_are_in_and_the_card_none(tmp_path, monkeypatch):
    monkeypatch.setattr(labelling_preferences, "_BYTES_AT_ONCE", 1)
    answers = [row for q in range(8) for row in pair(q, f"good {q}.", f"bad {q}.", (("user", f"ask {q}?"),))]
    judgments = [row for q in range(8) for row in judged((0.2, 0.6 + q / 30, 0), (0.2, 0.6, 0), q)]
    folder = judged_folder(str(tmp_path), judgments, answers)
    found = labelling_preferences.write(folder, PreferencesConfig(), AnalysisConfig())
    assert len(list(folder.names("preferences"))) > 1
    assert told_of(found)["original"] == ([str(q) for q in reversed(range(8))], 8), "question ids are the pairs' ids"
    text = seen(folder.read_bytes("pairs.html").decode("utf-8"))
    first = text.split("The source prefers the rejected answer")[1].split("The judge scores")[0]
    assert re.findall(r"(\d) p 0\..*?ask (\d)\?.*?bad (\d)\..*?good (\d)\.", first) == [
        (str(q),) * 4 for q in reversed(range(8))
    ]
    for name in ("data_card.json", "preferences.html"):
        assert not re.search(r"(good|bad|ask) \d", folder.read_bytes(name).decode("utf-8"))


def keys_of(value):
    """All keys of a JSON value, however deep."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return set(value if isinstance(value, dict) else ()).union(*map(keys_of, parts))


def test_every_key_of_the_card_is_documented_with_the_words_that_the_page_has_for_it():
    about = {"label_human": labels(np.arange(60) % 5 > 0), "label_original": labels(np.arange(60) % 6 > 0)}
    run, filters = {"tool": "1", "engine": "e", "model": "m"}, {"max_p_tie": 0.5}
    source = Source(61, {"not_json": 1}, {"not_json": 2}, run=run)
    found = data_card(marked(rows(60, p=np.linspace(0.55, 0.95, 60), **about), filters), source, BY, filters, SETTINGS)
    assert found["calibration"]["temperature_scaling"]["temperature"], "the page has all its rows"
    doc = (Path(__file__).parents[1] / "docs" / "preferences.md").read_text("utf-8")
    table = doc.split("| `data_card.json` | on the page |")[1].split("\n\n")[0]
    assert keys_of(found) - set(PREFERENCES.names) - {"not_json"} - set(re.findall(r"`(\w+)`", table)) == set()
    words, page = re.findall(r"(?<!\*)\*([^*\n]+)\*", table), seen(html.page(found, "run"))
    assert len(words) > 30
    assert [word for word in words if word not in page] == []
