"""What the arms of the LoRA experiment are made of, and what is read of them."""

import json
import math
from dataclasses import replace

import pytest
from lora_cases import ANSWER, TINY, VERIFY, candidates_for, chat_tokenizer, items_of, material_with

from trustjudge_ray.audit import lora_arms, lora_reading, lora_training
from trustjudge_ray.audit.lora_arms import LoraError, Prompting, arm_size, draw_arm, split_items
from trustjudge_ray.audit.lora_config import ARMS, LoraConfig, lora_faults
from trustjudge_ray.audit.lora_report import report_of
from trustjudge_ray.config import JudgeConfig
from trustjudge_ray.judging.protocols import Thinking
from trustjudge_ray.judging.vllm_reading import asked, reader_of


@pytest.fixture(scope="module")
def tokenizer():
    return chat_tokenizer()


@pytest.fixture(scope="module")
def material(tokenizer):
    return material_with(tokenizer)


@pytest.fixture(scope="module")
def prompting(tokenizer):
    return Prompting(tokenizer, ANSWER, VERIFY)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_no_passage_is_in_training_and_test_and_every_benchmark_is_in_both(share):
    items = items_of()
    train, test = split_items(items, share, seed=3)
    assert not {i.passage_id for i in train} & {i.passage_id for i in test}
    assert sorted(i.id for i in (*train, *test)) == sorted(i.id for i in items)
    assert {i.benchmark for i in train} == {i.benchmark for i in test} == {"trade", "roads"}


def test_a_passage_of_two_benchmarks_stays_on_one_side():
    items = items_of()
    twice = items + [replace(item, id=f"again.{item.id}", benchmark="other") for item in items]
    train, test = split_items(twice, 0.5, seed=0)
    assert not {i.passage_id for i in train} & {i.passage_id for i in test}


def test_the_split_hangs_on_the_seed_and_not_on_the_order_of_items():
    items = items_of()
    first, again = (split_items(given, 0.5, 1)[1] for given in (items, items[::-1]))
    assert {i.id for i in first} == {i.id for i in again}
    assert len({frozenset(i.passage_id for i in split_items(items, 0.5, seed)[1]) for seed in range(5)}) > 1


def test_training_examples_are_of_training_passages_only(material):
    trained = {e.passage_id for e in (*material.generation, *material.evaluation)}
    assert not trained & {item.passage_id for item in material.items}
    assert {item.passage_id for item, *_ in material.controlled} <= {item.passage_id for item in material.items}


@pytest.mark.parametrize("seed", [0, 1])
def test_all_arms_have_as_many_examples_and_both_has_half_of_each(material, seed):
    drawn = {a: draw_arm(a, seed, material.generation, material.evaluation, 8) for a in ARMS}
    counts = {
        arm: (sum(e.task == "generation" for e in d), sum(e.truth is True for e in d), sum(e.truth is False for e in d))
        for arm, d in drawn.items()
    }
    assert counts == {"base": (0, 0, 0), "generation": (8, 0, 0), "evaluation": (0, 4, 4), "both": (4, 2, 2)}
    assert {e.item_id for e in drawn["both"]} <= {e.item_id for e in drawn["generation"]}


def test_a_right_candidate_is_trained_with_the_wrong_one_of_its_item_and_the_same_protocol(material, tokenizer):
    drawn = draw_arm("evaluation", 0, material.generation, material.evaluation, 8)
    by_item = {i: [e for e in drawn if e.item_id == i] for i in {e.item_id for e in drawn}}
    for pair in by_item.values():
        assert sorted(e.truth for e in pair) == [False, True]
    asked_first = {e: "Is it Correct or" in tokenizer.decode(e.prompt_ids) for e in material.evaluation}
    by_protocol = {e.item_id: {asked_first[o] for o in material.evaluation if o.item_id == e.item_id} for e in drawn}
    assert all(len(found) == 1 for found in by_protocol.values())
    assert set(asked_first.values()) == {True, False}


def test_wrong_candidates_come_from_as_many_items_as_right_ones(material):
    """An item with several wrong candidates does not crowd out the others."""
    more = [replace(e, candidate=f"swap{i}") for i in range(4) for e in material.evaluation if not e.truth]
    drawn = draw_arm("evaluation", 0, material.generation, [*material.evaluation, *more], 12)
    wrong = [e.item_id for e in drawn if not e.truth]
    assert len(set(wrong)) == 6
    assert set(wrong) == {e.item_id for e in drawn if e.truth}


def test_seeds_draw_other_examples(material):
    draws = [draw_arm("generation", s, material.generation, material.evaluation, 4) for s in (0, 1, 2)]
    assert len({frozenset(e.item_id for e in drawn) for drawn in draws}) > 1


def test_too_few_examples_say_how_many_there_are(material):
    with pytest.raises(LoraError, match=r"needs 400 .* 12 to answer.* 12 right and 12 wrong"):
        arm_size(material.generation, material.evaluation, replace(TINY, examples=400))
    with pytest.raises(LoraError, match="0 right"):
        arm_size(material.generation, [e for e in material.evaluation if not e.truth], TINY)
    with pytest.raises(LoraError, match="two or more"):
        split_items(items_of(passages=2), 0.5, 0)


def test_candidates_without_wrong_ones_are_refused(prompting):
    items = items_of()
    with pytest.raises(LoraError, match="not both right and wrong"):
        lora_reading.material_of(items, candidates_for(items), prompting, replace(TINY, candidates=["gold", "own"]))


def test_examples_over_the_length_are_left_out_and_counted(prompting):
    items = items_of()
    judged = lora_arms.candidates_of(split_items(items, 0.5, 0)[0], candidates_for(items), ["gold", "swap"])
    longest = sorted(prompting.evaluation_example(*one).length for one in judged)[len(judged) * 3 // 4]
    found = lora_reading.material_of(items, candidates_for(items), prompting, replace(TINY, max_length=longest))
    assert found.too_long["generation"] == 0
    assert 0 < found.too_long["evaluation"] == len(judged) - len(found.evaluation)
    assert max(e.length for e in found.evaluation) <= longest


def test_a_label_is_taught_at_the_place_where_it_is_read(prompting):
    item = items_of()[0]
    for name, table in prompting.tables.items():
        for accept in (True, False):
            example = prompting.evaluation_example(item, "gold", "salt", accept)
            target = prompting.label_target(name, accept)
            assert any(target[: len(path)] == path for path in table.paths[0 if accept else 1])
        assert example.prompt_ids[-len(table.opener_ids) :] == table.opener_ids


def test_protocols_of_other_kinds_and_those_that_write_first_are_refused(tokenizer):
    with pytest.raises(LoraError, match=r"verify-Correct is of kind verify; one of kind answer"):
        Prompting(tokenizer, VERIFY[0], VERIFY)
    with pytest.raises(LoraError, match="writes before it answers"):
        Prompting(tokenizer, replace(ANSWER, thinking=Thinking(8)), VERIFY)


def test_prompts_are_those_of_the_judging_engine(tokenizer, prompting):
    """Token by token what the engine's own reader sends, opener included."""
    item = items_of()[0]
    task = {"messages": [{"role": "context", "content": item.context}, {"role": "user", "content": item.question}]}
    task |= {"reference": None, "replies_a": ["wool"], "replies_b": None, "order": None, "repeat": 0}
    for protocol in (ANSWER, *VERIFY):
        sent = asked(reader_of(JudgeConfig(), tokenizer, protocol, 2048), task | {"protocol": protocol.name})
        request = sent.questions()[0] if protocol.label_texts else sent.request([])
        put = list(request["prompt_token_ids"])
        own = prompting.verify_prompt(protocol.name, item, "wool") if protocol.label_texts else None
        assert put == list(own or prompting.answer_prompt(item))


class Scripted:
    """A reader that answers from a list and judges by the candidate's first token."""

    def __init__(self, texts, logprobs):
        self._texts, self._logprobs, self.asked = texts, logprobs, []

    def answers(self, prompts, max_new_tokens, closer):
        return [lora_training.Answer(text, False) for text in self._texts[: len(prompts)]]

    def label_logprobs(self, prompts, table):
        self.asked.append(len(prompts))
        return [self._logprobs[i % len(self._logprobs)] for i in range(len(prompts))]


def test_what_cannot_be_asked_or_read_is_a_row_with_its_reason(material):
    readings = [[math.log(0.6), math.log(0.2)], [math.nan, -1.0], [-math.inf, -math.inf], [-math.inf, math.log(0.5)]]
    reader = Scripted(["", *["clay"] * 50], readings)
    outcome = lora_reading.read_arm(reader, material, TINY, "base", 0, None)
    answers, reads = lora_reading.frames([outcome], material.items, lambda item, text: text in item.golds)
    first = material.items[0]
    assert answers.row(0, named=True)["status"] == "empty_response"
    assert answers.row(0, named=True)["correct"] is False
    silent = reads.filter(item_id=first.id, candidate="own")
    assert silent["status"].to_list() == ["empty_response"] * 2
    assert silent["p_accept"].null_count() == 2
    counts = dict(reads["status"].value_counts().iter_rows())
    assert set(counts) == {"ok", "bad_logprob", "no_label_mass", "empty_response"}
    fine = reads.filter(status="ok")
    assert {round(p, 9) for p in fine["p_accept"]} == {0.75, 0.0}
    assert {round(m, 9) for m in fine["label_mass"]} == {0.8, 0.5}
    asked = 2 * (len(material.items) + len(material.controlled))
    assert len(reads) == asked


def test_prompts_that_do_not_fit_are_too_long_and_not_sent(material):
    reader = Scripted(["x"] * 50, [[-1.0, -1.0]])
    outcome = lora_reading.read_arm(reader, material, replace(TINY, max_length=32), "base", 0, None)
    answers, reads = lora_reading.frames([outcome], material.items, lambda item, text: True)
    assert answers["status"].unique().to_list() == reads["status"].unique().to_list() == ["too_long"]
    assert answers["correct"].null_count() == len(answers)
    assert sum(reader.asked) == 0


def test_own_answers_are_true_where_the_oracle_says_so_in_that_arm(material):
    golds = [item.golds[0] for item in material.items]
    right = lora_reading.read_arm(Scripted(golds, [[-1.0, -2.0]]), material, TINY, "both", 1, None)
    wrong = lora_reading.read_arm(Scripted(["tar"] * 50, [[-1.0, -2.0]]), material, TINY, "base", 0, None)
    _, reads = lora_reading.frames([right, wrong], material.items, lambda item, text: text in item.golds)
    own = reads.filter(candidate="own")
    assert own.filter(arm="both")["truth"].all()
    assert not own.filter(arm="base")["truth"].any()
    assert reads["arm"][0] == "base"


def reported(material, arms, config=TINY):
    """The report of arms whose readers are scripted: {arm: (texts, log-probabilities)}."""
    golds = [item.golds[0] for item in material.items]
    told = {"right": golds, "wrong": ["tar"] * len(golds)}
    yes, no = [[-0.1, -3.0]], [[-3.0, -0.1]]
    training = lora_training.Training((2.0, 1.0), 1.0, 10, 100)
    found = [
        lora_reading.read_arm(
            Scripted(told[says], yes if accepts else no), material, config, arm, 0, None if arm == "base" else training
        )
        for arm, (says, accepts) in arms.items()
    ]
    answers, reads = lora_reading.frames(found, material.items, lambda item, text: text in item.golds)
    return report_of(found, answers, reads, material, config)


def test_arms_that_do_what_the_paper_saw_are_reported_so(material):
    arms = {"base": ("right", False), "generation": ("right", True), "evaluation": ("wrong", False)}
    report = reported(material, arms)
    assert [(c["arm"], c["verdict"], c["difference"]) for c in report.claims] == [
        ("generation", "as in the paper", 1.0),
        ("evaluation", "as in the paper", -1.0),
    ]
    text = "\n".join(report.lines())
    assert "accepts more wrong answers: as in the paper (false_accept +1.00" in text
    assert "evaluation, seed 0: 12 examples, 2 updates, loss 2.000 → 1.000" in text
    json.dumps(report.as_json(), allow_nan=False)


def test_a_report_says_that_so_few_passages_cannot_show_a_difference_after_correction(material):
    arms = {"base": ("right", False), "generation": ("right", True)}
    cautions = reported(material, arms).cautions
    assert any("6 test passages" in text and "Holm" in text for text in cautions)
    assert any("1 seed" in text for text in cautions)


def test_an_arm_that_says_the_same_of_everything_is_named(material):
    told = "\n".join(reported(material, {"base": ("right", False), "generation": ("wrong", True)}).cautions)
    assert "arm base rejects every candidate" in told
    assert "arm generation accepts every candidate" in told


def test_what_an_arm_was_trained_on_is_counted_in_the_report(material):
    report = reported(material, {"base": ("right", True), "both": ("wrong", True)})
    (training,) = report.trainings
    assert training["by_kind"] == {"generation": 6, "evaluation_right": 3, "evaluation_wrong": 3}
    assert (report.made["training_passages"], report.made["test_passages"]) == (6, 6)


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"arms": ["base"]}, "arms"),
        ({"arms": ["generation", "judging"]}, "arms"),
        ({"examples": 6}, "examples"),
        ({"evaluate_with": "vllm"}, "adapters"),
        ({"dtype": "float16"}, "dtype"),
        ({"test_share": 1.0}, "test_share"),
    ],
)
def test_values_that_make_no_sense_are_named(wrong, key):
    assert [fault.split(":")[0] for fault in lora_faults(replace(LoraConfig(), **wrong))] == [f"audit.lora.{key}"]
