import hashlib
from collections import Counter, defaultdict
from itertools import combinations, pairwise

import pyarrow as pa
import pytest
from corpora import compare_protocol, responses, score_protocol

from trustjudge_ray.config import ConfigError, PlanConfig, loads
from trustjudge_ray.judging import plan, protocols
from trustjudge_ray.judging.base import CORPUS_FAILURES

MARKERS = ["$ERROR$"]


def specs():
    return [plan.Spec("j", p, p.hash) for p in (score_protocol(), compare_protocol())]


def planned(texts, settings=None):
    return plan.plan(responses(texts), specs(), settings or PlanConfig(), MARKERS).to_pylist()


def grid(questions, models):
    return {f"q{q}": {f"m{m}": f"text {q} {m}" for m in range(models)} for q in range(questions)}


def test_full_design_asks_every_pair_in_both_orders_and_every_score():
    tasks = planned(grid(3, 4))
    kinds = Counter(task["kind"] for task in tasks)
    assert kinds == {"score": 12, "compare": 3 * 6 * 2}
    pairs = {(t["question_id"], t["response_a"], t["response_b"], t["order"]) for t in tasks if t["kind"] == "compare"}
    assert len(pairs) == 36
    assert all(a < b for _, a, b, _ in pairs)


def test_task_ids_are_unique_even_for_equal_texts_of_two_models():
    tasks = planned({"q": {"m1": "same", "m2": "same", "m3": "other"}})
    assert len({t["task_id"] for t in tasks}) == len(tasks)


def test_task_ids_do_not_depend_on_row_order_but_on_text_question_and_spec():
    base = {t["task_id"] for t in planned(grid(2, 3))}
    turned = responses(grid(2, 3)).take(list(reversed(range(6))))
    assert {t["task_id"] for t in plan.plan(turned, specs(), PlanConfig(), MARKERS).to_pylist()} == base
    changed = grid(2, 3)
    changed["q0"]["m0"] += "!"
    again = {t["task_id"] for t in planned(changed)}
    assert len(base - again) == 1 + 2 * 2, "the changed answer's score and its four comparisons, nothing else"


def test_ids_that_are_numbers_order_as_numbers():
    tasks = planned({"q": {"10": "x", "9": "y"}})
    pair = next(t for t in tasks if t["kind"] == "compare")
    assert (pair["response_a"], pair["response_b"]) == ("9", "10")


def test_empty_and_error_answers_are_named_with_their_side_and_never_pending():
    tasks = planned({"q": {"a": "fine", "b": "  \n", "c": "$ERROR$"}})
    got = {(t["response_a"], t["response_b"]): (t["status"], t["detail"]) for t in tasks if t["order"] != "BA"}
    assert got == {
        ("a", None): (None, None),
        ("b", None): ("empty_response", "a"),
        ("c", None): ("error_marker", "a"),
        ("a", "b"): ("empty_response", "b"),
        ("a", "c"): ("error_marker", "b"),
        ("b", "c"): ("empty_response", "a"),
    }


def test_identical_answers_are_ties_without_a_judge_but_two_empty_ones_are_not():
    tasks = planned({"q": {"a": "same", "b": "same"}, "r": {"a": "", "b": ""}})
    assert {t["status"] for t in tasks if t["kind"] == "compare" and t["question_id"] == "q"} == {"identical"}
    assert {t["status"] for t in tasks if t["question_id"] == "r"} == {"empty_response"}


def test_blocks_take_all_pairs_of_as_many_answers_as_asked():
    tasks = [t for t in planned(grid(5, 8), PlanConfig(design="blocks", block=4)) if t["kind"] == "compare"]
    for question in {t["question_id"] for t in tasks}:
        pairs = {(t["response_a"], t["response_b"]) for t in tasks if t["question_id"] == question}
        members = {m for pair in pairs for m in pair}
        assert (len(members), len(pairs)) == (4, 6)


@pytest.mark.parametrize("models", [6, 7])
def test_matching_rounds_are_balanced_and_share_no_pair(models):
    tasks = planned(grid(3, models), PlanConfig(design="matching", rounds=3))
    for question in ("q0", "q1", "q2"):
        pairs = [
            (t["response_a"], t["response_b"])
            for t in tasks
            if t["kind"] == "compare" and t["question_id"] == question and t["order"] == "AB"
        ]
        assert len(pairs) == len(set(pairs)) == 3 * (models // 2)
        games = Counter(m for pair in pairs for m in pair)
        assert max(games.values()) - min(games.values()) <= 1


def test_anchor_compares_everybody_with_the_anchor_and_nobody_else():
    tasks = planned(grid(2, 4), PlanConfig(design="anchor", anchor="m2"))
    pairs = {(t["response_a"], t["response_b"]) for t in tasks if t["kind"] == "compare"}
    assert pairs == {("m0", "m2"), ("m1", "m2"), ("m2", "m3")}


def test_one_order_is_drawn_by_seed_and_comes_out_both_ways():
    tasks = [t for t in planned(grid(30, 3), PlanConfig(orders="one")) if t["kind"] == "compare"]
    assert len(tasks) == 90
    assert 25 < Counter(t["order"] for t in tasks)["AB"] < 65


def orders_by_pair(texts, settings):
    found = defaultdict(set)
    for t in planned(texts, settings):
        if t["kind"] == "compare":
            found[t["question_id"], t["response_a"], t["response_b"]].add(t["order"])
    return found


def test_a_share_of_the_pairs_is_asked_in_both_orders_and_the_others_in_one_that_comes_out_both_ways():
    found = orders_by_pair(grid(40, 5), PlanConfig(orders="share", both_share=0.25))
    assert len(found) == 400
    sizes = Counter(len(orders) for orders in found.values())
    assert 75 < sizes[2] < 125
    assert 100 < sum(orders == {"AB"} for orders in found.values()) < 200


def test_a_larger_share_keeps_every_task_of_a_smaller_one_and_of_one_order():
    """Else raising plan.both_share, or starting from one order, would judge the same pairs anew."""
    settings = [PlanConfig(orders="one")] + [PlanConfig(orders="share", both_share=s) for s in (0.1, 0.5)]
    one, few, many = ({t["task_id"] for t in planned(grid(10, 5), s)} for s in [*settings])
    both = {t["task_id"] for t in planned(grid(10, 5))}
    assert one < few < many < both


def test_which_pairs_of_a_share_are_asked_twice_does_not_change_with_other_answers():
    settings = PlanConfig(orders="share", both_share=0.5)
    before, after = (orders_by_pair(grid(10, models), settings) for models in (5, 6))
    assert before == {pair: after[pair] for pair in before}
    other = orders_by_pair(grid(10, 5), PlanConfig(orders="share", both_share=0.5, seed=1))
    assert other != before


@pytest.mark.parametrize("share", ["0", "1", "20"])
def test_a_share_of_none_or_all_pairs_is_refused(share):
    """20 is what somebody writes who thinks in percent."""
    with pytest.raises(ConfigError, match=r"plan\.both_share: got .*between 0 and 1"):
        loads("corpus: {paths: [a.jsonl]}", "my.yaml", ["plan.orders=share", f"plan.both_share={share}"])


def digest(design, orders):
    settings = PlanConfig(design=design, orders=orders, rounds=2, block=4, anchor="m1", seed=7, repeat=1)
    given = [plan.Spec("j", protocol, "s") for protocol in (score_protocol(), compare_protocol())]
    ids = plan.plan(responses(grid(4, 6)), given, settings, [])["task_id"].to_pylist()
    return hashlib.sha256("".join(ids).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("design", "both", "one"),
    [
        ("full", "3d6734f6ffbb88bb", "708433e7bdb5db12"),
        ("blocks", "5bb56922b9b4b657", "89dc4cb7056217a6"),
        ("matching", "7cf5ffffc026b78f", "92316339cbf4fb81"),
        ("anchor", "6c52c8b4fd0be39e", "293bc18b9e536928"),
    ],
)
def test_designs_ask_what_they_asked_before_there_were_shares(design, both, one):
    """Stores hold judgments by these task ids: another order of rows or another draw would judge them all again."""
    assert (digest(design, "both"), digest(design, "one")) == (both, one)


def test_tasks_of_one_first_shown_answer_stand_together():
    tasks = [t for t in planned(grid(2, 4)) if t["kind"] == "compare"]
    shown = [(t["question_id"], t["response_a"] if t["order"] == "AB" else t["response_b"]) for t in tasks]
    runs = sum(a != b for a, b in pairwise(shown)) + 1
    assert runs == len(set(shown))


def test_texts_follow_their_tasks():
    given = responses(grid(2, 3))
    tasks = plan.plan(given, specs(), PlanConfig(), MARKERS)
    for row in plan.with_texts(tasks, given).to_pylist():
        number = row["question_id"][1:]
        assert row["replies_a"] == [f"text {number} {row['response_a'][1:]}"]
        assert row["replies_b"] == (None if row["response_b"] is None else [f"text {number} {row['response_b'][1:]}"])


def test_a_corpus_of_one_row_asks_one_score_and_no_comparison():
    assert [t["kind"] for t in planned({"q": {"m": "x"}})] == ["score"]


def test_every_pair_of_a_small_full_design_is_a_combination():
    tasks = planned(grid(1, 5))
    pairs = {(t["response_a"], t["response_b"]) for t in tasks if t["kind"] == "compare"}
    assert pairs == set(combinations([f"m{i}" for i in range(5)], 2))


def guided(references):
    """What a protocol with a reference asks of one question, whose answers come with these references."""
    protocol = protocols.load("score-5-reference")
    given = responses({"q": {f"m{i}": f"text {i}" for i in range(len(references))}})
    column = pa.array(references, pa.string())
    given = given.set_column(given.schema.get_field_index("reference"), given.schema.field("reference"), column)
    tasks = plan.plan(given, [plan.Spec("j", protocol, protocol.hash)], PlanConfig(), MARKERS)
    return tasks.to_pylist(), plan.with_texts(tasks, given).to_pylist()


def test_an_answer_without_a_reference_is_not_judged_against_an_empty_one():
    tasks, _ = guided([None, " "])
    assert {t["status"] for t in tasks} == {"missing_reference"}
    assert "missing_reference" in CORPUS_FAILURES
    plain = planned({"q": {"m0": "text"}})
    assert [t["status"] for t in plain] == [None], "a protocol that shows no reference needs none"


def test_the_reference_of_a_question_counts_for_all_its_answers_and_in_their_ids():
    """Else a reference that is added later would find the judgment that was made without it."""
    tasks, texts = guided([None, "seven"])
    assert {t["status"] for t in tasks} == {None}
    assert [t["reference"] for t in texts] == ["seven", "seven"]
    without, _ = guided([None, None])
    assert {t["task_id"] for t in tasks}.isdisjoint(t["task_id"] for t in without)
    assert {t["task_id"] for t in tasks} == {t["task_id"] for t in guided(["seven", None])[0]}
