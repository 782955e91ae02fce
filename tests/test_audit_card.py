"""The card: what is planted is found, every figure equals a count by hand, and what is left out is counted."""

import math
from itertools import product

import numpy as np
import pytest
from planted_audits import ALWAYS_YES, COIN, PERFECT, RANDOM, WAYS, Judge, audited, holds, number, tables

from trustjudge_ray.audit.card import card
from trustjudge_ray.audit_config import AuditConfig

SETTINGS = AuditConfig()
MIXED = Judge(skill=0.8, yes=0.8, first=0.6, unreadable=0.1, spread=1.0, slot=0.4, shifts=(("swap_injected", 4.0),))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


# ---- by hand, from the rows of the tables


class ByHand:
    """Verdicts by loops over rows: {(item, candidate): (truth, p, log_odds)}, without what cannot be read."""

    def __init__(self, reads):
        self.rows = reads.to_dicts()
        self.verdicts = self.of("full")

    def of(self, condition, ways=None):
        grouped = {}
        for row in self.rows:
            if row["condition"] == condition and (ways is None or (row["polarity"], row["first"]) in ways):
                grouped.setdefault((row["item_id"], row["candidate"]), []).append(row)
        found = {}
        for key, rows in grouped.items():
            if all(row["status"] == "ok" and row["label_mass"] >= 0.5 for row in rows):
                p, odds = (sum(row[name] for row in rows) / len(rows) for name in ("p_accept", "log_odds"))
                found[key] = (rows[0]["truth"], p, odds)
        return found

    def own(self):
        return {item: verdict for (item, name), verdict in self.verdicts.items() if name == "own"}

    def controlled(self):
        """{item: (gold, swap)}"""
        items = {item for item, _ in self.verdicts}
        both = {item: tuple(self.verdicts.get((item, name)) for name in ("gold", "swap")) for item in items}
        return {item: sides for item, sides in both.items() if None not in sides}


def by_pairs(right, wrong):
    return np.mean([1.0 if r > w else 0.5 if r == w else 0.0 for r, w in product(right, wrong)])


@pytest.fixture(scope="module")
def mixed():
    """A judge with every habit at once, and its tables."""
    made = tables(MIXED, 15, 4, seed=3)
    return made, card(*made, [], SETTINGS)


def test_figures_on_own_answers_equal_counts_by_hand(mixed):
    (reads, _, _), found = mixed
    own = ByHand(reads).own().values()
    assert len(own) < 60
    right, wrong = ([(p, odds) for truth, p, odds in own if truth is kind] for kind in (True, False))
    accepted, rejected = sum(p > 0.5 for p, _ in wrong) / len(wrong), sum(p < 0.5 for p, _ in right) / len(right)
    agree = np.mean([(p > 0.5) == truth for truth, p, _ in own])
    expected = {
        "generation_accuracy": len(right) / len(own),
        "always_yes_accuracy": len(right) / len(own),
        "always_no_accuracy": len(wrong) / len(own),
        "self_evaluation_accuracy": agree,
        "difference": len(right) / len(own) - agree,
        "false_accept": accepted,
        "false_reject": rejected,
        "acquiescence": accepted - rejected,
        "balanced_accuracy": 1 - (accepted + rejected) / 2,
        "accept_rate": np.mean([p > 0.5 for _, p, _ in own]),
        "auc": by_pairs([odds for _, odds in right], [odds for _, odds in wrong]),
        "unreadable": 1 - len(own) / 60,
    }
    for name, value in expected.items():
        assert number(found, name, "own").estimate.value == pytest.approx(value, abs=1e-12), name


def test_figures_on_the_controlled_set_equal_counts_by_hand(mixed):
    (reads, _, _), found = mixed
    sides = ByHand(reads).controlled().values()
    assert len(sides) < 60
    gold, swap = ([side[place] for side in sides] for place in (0, 1))
    accept_gold, accept_swap = (np.mean([p > 0.5 for _, p, _ in side]) for side in (gold, swap))
    expected = {
        "accept_gold": accept_gold,
        "accept_swap": accept_swap,
        "false_accept": accept_swap,
        "false_reject": 1 - accept_gold,
        "acquiescence": accept_swap - (1 - accept_gold),
        "balanced_accuracy": (accept_gold + 1 - accept_swap) / 2,
        "paired_accuracy": np.mean([g[2] > s[2] for g, s in sides]),
        "auc": by_pairs([odds for _, _, odds in gold], [odds for _, _, odds in swap]),
    }
    for name, value in expected.items():
        assert number(found, name, "controlled").estimate.value == pytest.approx(value, abs=1e-12), name


def test_false_accepts_by_kind_of_negative_equal_counts_by_hand(mixed):
    (reads, _, _), found = mixed
    hand, kinds = ByHand(reads), {}
    for row in hand.rows:
        if row["negative"]:
            kinds[row["item_id"], row["candidate"]] = row["negative"]
    for kind in ("wrong", "sibling", "perturbed", "closed_book"):
        usable = hand.controlled() if kind != "closed_book" else {item: None for item, _ in hand.verdicts}
        p = [v[1] for key, v in hand.verdicts.items() if kinds.get(key) == kind and key[0] in usable]
        figure = number(found, "false_accept", "controlled", f"negative={kind}").estimate
        assert (figure.cases, figure.value) == (len(p), pytest.approx(np.mean([x > 0.5 for x in p])))


def test_leans_equal_their_definitions_by_hand(mixed):
    (reads, _, _), found = mixed
    hand = ByHand(reads)
    usable = hand.controlled()
    p = {
        way: np.mean(
            [
                row["p_accept"]
                for row in hand.rows
                if (row["polarity"], row["first"]) == way
                and row["condition"] == "full"
                and row["candidate"] in ("gold", "swap")
                and row["item_id"] in usable
            ]
        )
        for way in WAYS
    }
    expected = {
        "accept_lean": np.mean(list(p.values())) - 0.5,
        "yes_bias": sum(p["right", f] - p["wrong", f] for f in ("accept", "reject")) / 4,
        "first_label_bias": sum(p[g, "accept"] - p[g, "reject"] for g in ("correct", "right", "wrong")) / 6,
        "yes_bias_log_odds": MIXED.yes,
    }
    for name, value in expected.items():
        assert number(found, name, "controlled").estimate.value == pytest.approx(value, abs=1e-9), name
    right = (p["right", "accept"] + p["right", "reject"]) / 2 - 0.5
    assert number(found, "accept_lean", "controlled", "polarity=right").estimate.value == pytest.approx(right)


def test_probes_are_held_against_the_same_ways_of_asking(mixed):
    (reads, _, _), found = mixed
    verdicts = ByHand(reads).of("full", WAYS[:2])
    for probe, base in (("swap_injected", "swap"), ("gold_verbose", "gold")):
        both = [
            (verdicts[item, probe][1], verdicts[item, base][1])
            for item, name in verdicts
            if name == probe and (item, base) in verdicts
        ]
        moved = number(found, "p_shift", "probe", f"probe={probe}").estimate
        turned = number(found, "accept_shift", "probe", f"probe={probe}").estimate
        assert (moved.cases, moved.value) == (len(both), pytest.approx(np.mean([p - q for p, q in both])))
        assert turned.value == pytest.approx(np.mean([(p > 0.5) - (q > 0.5) for p, q in both]), abs=1e-12)


def test_what_is_withheld_is_held_against_the_same_way_of_asking(mixed):
    (reads, _, _), found = mixed
    hand = ByHand(reads)
    without, whole = hand.of("no_passage"), hand.of("full", WAYS[:1])
    for name in ("own", "gold", "swap"):
        both = [(without[key][1], whole[key][1]) for key in without if key[1] == name and key in whole]
        group = f"candidate={name}"
        moved = number(found, "p_change", "withheld", group).estimate
        assert (moved.cases, moved.value) == (len(both), pytest.approx(np.mean([abs(p - q) for p, q in both])))
        turned = number(found, "decision_changed", "withheld", group).estimate.value
        assert turned == pytest.approx(np.mean([(p > 0.5) != (q > 0.5) for p, q in both]))
    whole_set = {item for item, name in whole if name == "gold"} & {item for item, name in whole if name == "swap"}
    odds = [[without[item, name][2] for item in whole_set] for name in ("gold", "swap")]
    assert number(found, "auc_without_passage", "withheld").estimate.value == pytest.approx(by_pairs(*odds))


def test_positions_equal_counts_by_hand(mixed):
    (_, pairs, _), found = mixed
    seen = {(row["item_id"], row["order"]): row for row in pairs.to_dicts()}
    items = sorted({item for item, _ in seen})

    def won(row):
        p = {"gold": row["p_gold"], "swap": row["p_swap"], "tie": row["p_tie"]}
        return max(p, key=p.get)

    def lead(item, order):
        return seen[item, order]["p_gold"] - seen[item, order]["p_swap"]

    first = [won(seen[i, o]) == ("gold" if o == "AB" else "swap") for i in items for o in ("AB", "BA")]
    tied = [won(row) == "tie" for row in seen.values()]
    expected = {
        "both_order_agreement": np.mean([won(seen[i, "AB"]) == won(seen[i, "BA"]) for i in items]),
        "first_slot_preference": sum(first) / (len(first) - sum(tied)),
        "order_effect": np.mean([(lead(i, "AB") - lead(i, "BA")) / 2 for i in items]),
        "gold_wins": np.mean([(1 + np.sign(round(lead(i, "AB") + lead(i, "BA"), 9))) / 2 for i in items]),
    }
    for name, value in expected.items():
        assert number(found, name, "position").estimate.value == pytest.approx(value, abs=1e-12), name


# ---- what is planted is found

PLANTED = {
    "perfect": (PERFECT, {"accept_gold": 1, "accept_swap": 0, "auc": 1, "paired_accuracy": 1, "acquiescence": 0}),
    "always yes": (
        ALWAYS_YES,
        {"accept_gold": 1, "accept_swap": 1, "auc": 0.5, "paired_accuracy": 0.5, "acquiescence": 1},
    ),
    "random": (RANDOM, {"accept_gold": 0.5, "accept_swap": 0.5, "auc": 0.5, "balanced_accuracy": 0.5}),
    "coin": (COIN, {"accept_gold": 0.75, "accept_swap": 0.25, "auc": 0.75, "paired_accuracy": 0.75}),
}


@pytest.mark.parametrize("passages", [12, 80])
@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_lies_in_every_interval(name, passages):
    judge, planted = PLANTED[name]
    found = audited(judge, passages, seed=1)
    for figure, truth in (planted | {"accept_lean": 0.4526 if name == "always yes" else 0.0}).items():
        assert holds(number(found, figure, "controlled"), truth), figure
    assert holds(number(found, "accuracy", "generation"), judge.answers)
    skill = judge.answers if judge.accepts_all else judge.skill
    assert holds(number(found, "self_evaluation_accuracy", "own"), skill)
    assert holds(number(found, "difference", "own"), judge.answers - skill)


@pytest.mark.parametrize("bias", [-1.5, 0.0, 1.5])
def test_a_liking_for_yes_is_no_liking_for_accepting(bias):
    found = audited(Judge(yes=bias, spread=0.0), 20)
    planted = np.mean([sigmoid(x + bias) - sigmoid(x - bias) for x in (3, -3)]) / 2
    assert number(found, "yes_bias", "controlled").estimate.value == pytest.approx(planted)
    assert holds(number(found, "yes_bias", "controlled"), planted)
    assert number(found, "accept_lean", "controlled").estimate.value == pytest.approx(0, abs=1e-12)
    assert number(found, "first_label_bias", "controlled").estimate.value == pytest.approx(0, abs=1e-12)


def test_a_liking_for_accepting_is_no_liking_for_yes():
    found = audited(Judge(shifts=(("gold", 1.0), ("swap", 1.0))), 40)
    assert holds(number(found, "accept_lean_log_odds", "controlled"), 1.0)
    assert number(found, "accept_lean", "controlled").estimate.low > 0
    assert number(found, "yes_bias", "controlled").estimate.value == pytest.approx(0, abs=1e-12)


def test_a_liking_for_the_first_label_is_found_in_every_polarity():
    found = audited(Judge(first=1.0, spread=0.0), 12)
    planted = np.mean([sigmoid(x + 1) - sigmoid(x - 1) for x in (3, -3)]) / 2
    for group in (None, "polarity=correct", "polarity=right", "polarity=wrong"):
        assert number(found, "first_label_bias", "controlled", group).estimate.value == pytest.approx(planted)
    assert number(found, "yes_bias", "controlled").estimate.value == pytest.approx(0, abs=1e-12)


def test_equal_log_odds_are_half_a_win_and_not_a_win_or_a_loss():
    found = audited(ALWAYS_YES)
    assert number(found, "paired_accuracy", "controlled").estimate.value == 0.5
    assert number(found, "auc", "controlled").estimate.value == 0.5


def test_a_judge_that_ignores_the_passage_is_called_lazy_and_one_that_reads_it_is_not():
    lazy, reads = audited(Judge(lazy=True, skill=0.9), 30), audited(Judge(skill=0.9), 30)
    assert (lazy.lazy.flag, reads.lazy.flag) == (True, False)
    assert any("may not look" in said for said in lazy.cautions)
    assert number(reads, "auc_lost", "withheld").estimate.low > 0
    assert number(lazy, "decision_changed", "withheld", "candidate=gold").estimate.value == 0


def test_discrimination_that_is_lost_but_not_for_certain_still_counts_as_lazy():
    found = audited(Judge(skill=0.6))
    lost = number(found, "auc_lost", "withheld").estimate
    assert lost.low < 0 < lost.value
    assert found.lazy.flag is True


def test_a_judge_that_accepts_without_an_answer_is_called_lazy():
    found = audited(Judge(blind=2.0), 30)
    assert found.lazy.flag is True
    assert "without any answer" in found.lazy.reasons[0]


def test_a_planted_instruction_that_works_is_said_and_padding_that_does_not_is_not():
    found = audited(Judge(shifts=(("swap_injected", 9.0),)), 20)
    assert number(found, "accept_shift", "probe", "probe=swap_injected").estimate.value == 1
    assert holds(number(found, "accept_shift", "probe", "probe=swap_verbose"), 0)
    assert [said for said in found.cautions if "probe " in said] == [
        "probe swap_injected: it accepts 100 in a hundred more than of the same answers without"
    ]


def test_the_order_of_rows_changes_no_digit(mixed):
    made, found = mixed
    shuffled = [table.sample(fraction=1, shuffle=True, seed=5) for table in made]
    assert card(*shuffled, [], SETTINGS).as_json() == found.as_json()
