"""Answers and verifications of the real judge, beside another implementation in float32."""

import math

import pytest
from engine_fixtures import CONTEXT, ENGINE_PROTOCOLS
from test_vllm_engine import teacher_forced

from trustjudge_ray.identity import joined_hash
from trustjudge_ray.judging.base import judgments
from trustjudge_ray.judging.prompts import PromptBuilder
from trustjudge_ray.judging.slots import task_slots
from trustjudge_ray.schema import TASK_TEXTS, from_rows

pytestmark = pytest.mark.engine

FREE, OPENED, DRAWN, THINKING = (f"engine-answer{end}" for end in ("", "-opened", "-drawn", "-thinking"))
ONE, TWO = "engine-verify-one", "engine-verify-two"
PASSAGE = "The chapel in Orle has a roof of slate, which Tove Lund laid in 1902. Before that it was thatched."
QUESTIONS = ("Who laid the roof of the chapel in Orle?", "Describe the chapel in three long sentences.")


def task(protocol, question=QUESTIONS[0], answer=None, context=PASSAGE, **changes):
    """A TASK_TEXTS row of one of ENGINE_PROTOCOLS; `answer` is what is verified."""
    return {
        "task_id": joined_hash(protocol, question, answer or "", context), "spec": "s", "category": None,
        "kind": ENGINE_PROTOCOLS[protocol].kind, "protocol": protocol, "judge": "SmolLM2-135M-Instruct",
        "question_id": "q", "response_a": "1", "model_a": "m1", "response_b": None, "model_b": None, "order": None,
        "sample": 0, "repeat": 0, "reference": None, "replies_a": [] if answer is None else [answer],
        "replies_b": None,
        "messages": [{"role": "context", "content": context}, {"role": "user", "content": question}],
    } | changes  # fmt: skip


def prompt_of(tokenizer, row, opener=""):
    """The token ids that a task's writing or verdict begins behind."""
    protocol = ENGINE_PROTOCOLS[row["protocol"]]
    prompt = PromptBuilder(tokenizer, protocol).build(task_slots(protocol, row)).token_ids
    return [*prompt, *tokenizer(opener, add_special_tokens=False)["input_ids"]]


def greedy(model, tokenizer, prompt_ids, budget):
    """The most probable continuation, token by token, up to the end of the turn or the budget."""
    import torch

    ids, past, found = torch.tensor([prompt_ids]), None, []
    with torch.no_grad():
        while len(found) < budget:
            out = model(ids, past_key_values=past, use_cache=True)
            past, token = out.past_key_values, int(out.logits[0, -1].argmax())
            if token == tokenizer.eos_token_id:
                break
            found.append(token)
            ids = torch.tensor([[token]])
    return found


@pytest.fixture(scope="module")
def free(engine_judge, embedded_tokenizer, witness):
    """Both questions answered by the engine, and by the witness as token ids."""
    rows = [task(FREE, question) for question in QUESTIONS]
    readings = engine_judge.judge(from_rows(rows, TASK_TEXTS))
    ids = [greedy(witness, embedded_tokenizer, prompt_of(embedded_tokenizer, row), 24) for row in rows]
    return rows, readings, ids


def test_a_greedy_answer_is_the_most_probable_continuation_token_for_token(free, embedded_tokenizer, witness):
    for row, reading, ids in zip(*free, strict=True):
        assert reading.status == "ok"
        assert (reading.output, reading.output_tokens) == (embedded_tokenizer.decode(ids).strip(), len(ids))
        (total,) = teacher_forced(witness, prompt_of(embedded_tokenizer, row), [ids])
        assert reading.cumulative_logprob == pytest.approx(total, abs=1e-3)
        assert reading.label_logprobs is None


def test_an_answer_that_its_budget_ends_is_flagged_and_one_that_ends_itself_is_not(free):
    _, readings, ids = free
    assert [reading.rationale_cut for reading in readings] == [len(own) == 24 for own in ids]
    assert readings[1].rationale_cut, "three long sentences are more than 24 tokens"


def test_an_answer_begins_behind_its_opener_and_ends_before_its_closer(engine_judge, embedded_tokenizer, witness):
    row = task(OPENED)
    (reading,) = engine_judge.judge(from_rows([row], TASK_TEXTS))
    prompt = prompt_of(embedded_tokenizer, row, ENGINE_PROTOCOLS[OPENED].opener)
    written = embedded_tokenizer.decode(greedy(witness, embedded_tokenizer, prompt, 40))
    said, stop, _ = written.partition(".")
    assert (reading.output, reading.rationale_cut) == (said.strip(), not stop)
    assert stop, "the test needs a sentence that ends within the budget"
    assert reading.prompt_tokens == len(prompt)


def test_drawn_answers_differ_by_sample_and_come_again_in_a_repetition(engine_judge):
    rows = [task(DRAWN, QUESTIONS[1], sample=sample, repeat=repeat) for sample in (0, 1) for repeat in (0, 1)]
    first, first_again, second, second_again = engine_judge.judge(from_rows(rows, TASK_TEXTS))
    assert first.output != second.output
    assert (first.output, second.output) == (first_again.output, second_again.output)
    assert {reading.label_logprobs for reading in (first, second)} == {None}


def test_thinking_before_an_answer_is_closed_at_its_budget_and_no_part_of_it(engine_judge, embedded_tokenizer):
    (reading,) = engine_judge.judge(from_rows([task(THINKING)], TASK_TEXTS))
    assert reading.status == "ok"
    assert reading.thinking
    assert "thinking was closed at its budget of 10 tokens" in reading.detail
    assert "think>" not in reading.thinking + reading.output
    assert 0 < reading.output_tokens <= 12
    whole = len(embedded_tokenizer(reading.output, add_special_tokens=False)["input_ids"])
    assert abs(reading.output_tokens - whole) <= 1, "the thinking's tokens are not counted"


@pytest.mark.parametrize("name", [ONE, TWO])
def test_verify_labels_have_the_probabilities_of_teacher_forcing(engine_judge, embedded_tokenizer, witness, name):
    """Both spellings of Yes and No count; labels that part at their second token are read there."""
    protocol = ENGINE_PROTOCOLS[name]
    rows = [task(name, answer=answer) for answer in ("Tove Lund", "Nobody", "Verdict: [Yes]")]
    for row, reading in zip(rows, engine_judge.judge(from_rows(rows, TASK_TEXTS)), strict=True):
        prompt = prompt_of(embedded_tokenizer, row, protocol.opener)
        expected = [probability(witness, embedded_tokenizer, prompt, text, name) for text in protocol.label_texts]
        assert list(reading.label_logprobs) == pytest.approx(expected, abs=1e-3)
        (stored,) = judgments(from_rows([row], TASK_TEXTS), [reading], {name: protocol}).to_pylist()
        assert stored["label_mass"] == pytest.approx(sum(map(math.exp, expected)), rel=1e-2)
        assert stored["emitted"] == max(zip(expected, protocol.label_texts, strict=True))[1]


def probability(model, tokenizer, prompt, label, name):
    """ln P of a label, by definition: its tokens, and for single tokens also that with a space before it."""
    own = tokenizer(label, add_special_tokens=False)["input_ids"]
    assert len(own) == {ONE: 1, TWO: 2}[name]
    spelled = [own] if name == TWO else [own, tokenizer(f" {label}", add_special_tokens=False)["input_ids"]]
    return math.log(sum(map(math.exp, teacher_forced(model, prompt, spelled))))


def test_kinds_mix_in_a_batch_and_what_does_not_fit_is_a_failed_row(engine_judge, free):
    long = "why? " * 2000
    rows = [task(ONE, answer="Tove Lund"), task(FREE, long), task(FREE), task(TWO, answer="x", context=long)]
    verdict, too_long, answer, no_room = engine_judge.judge(from_rows(rows, TASK_TEXTS))
    assert [r.status for r in (verdict, too_long, answer, no_room)] == ["ok", "too_long", "ok", "too_long"]
    assert (answer.output, too_long.output) == (free[1][0].output, None)
    assert verdict.output is None
    assert f"{CONTEXT - 24 - 1} tokens" in too_long.detail


def test_a_nan_in_an_answers_probability_is_a_failed_row(engine_judge, monkeypatch):
    generate = engine_judge._flight.generate

    def poisoned(*args, **options):
        outputs = generate(*args, **options)
        outputs[0].outputs[0].logprobs.logprobs[0] = math.nan
        return outputs

    monkeypatch.setattr(engine_judge._flight, "generate", poisoned)
    tasks = from_rows([task(FREE), task(FREE, QUESTIONS[1])], TASK_TEXTS)
    rows = judgments(tasks, engine_judge.judge(tasks), ENGINE_PROTOCOLS).to_pylist()
    assert [row["status"] for row in rows] == ["bad_logprob", "ok"]
    assert rows[0]["output"] is None
