from dataclasses import replace
from types import SimpleNamespace

import pytest
import tokenizers
from engine_fixtures import CONTEXT, ENGINE_PROTOCOLS, EXACT_JUDGE
from small_tokenizers import tokenizer_of
from test_vllm_engine import BAD, GOOD, QUESTION, ask, task, teacher_forced

from trustjudge_ray.judging.base import JudgeError, judgments
from trustjudge_ray.judging.prompts import PromptBuilder
from trustjudge_ray.judging.protocols import Rationale, Thinking
from trustjudge_ray.judging.tokens import own_ids
from trustjudge_ray.judging.vllm_rationale import Section, kept
from trustjudge_ray.judging.vllm_reading import reader_of
from trustjudge_ray.schema import TASK_TEXTS, from_rows

FIVE, HUNDRED, THINKING = "engine-written-5", "engine-written-100", "engine-thinking"
SECTION = Section("rationale", (), (), "Score: [", True, 24, 0.0)


class Asked:
    """One batch through the engine, with every request and its parameters as they were sent."""

    def __init__(self, judge, rows):
        self.rows, self.calls = rows, []
        generate = judge._flight.generate

        def recorded(prompts, params, **options):
            self.calls.append([(p["prompt_token_ids"], q) for p, q in zip(prompts, params, strict=True)])
            return generate(prompts, params, **options)

        judge._flight.generate = recorded
        try:
            self.readings = ask(judge, rows)
        finally:
            judge._flight.generate = generate

    def verdict_prompts(self):
        """The first request of each task in the last call."""
        sent, found = iter(self.calls[-1]), []
        for row in self.rows:
            own = [next(sent) for _ in range(11 if row["protocol"] == HUNDRED else 1)]
            found.append(own[0][0])
        return found


@pytest.fixture(scope="module")
def written(engine_judge):
    """Three sampled rationales of two answers, two greedy ones before 100 labels, and two with thinking."""
    rows = [task(FIVE, answer) | {"sample": sample} for answer in (GOOD, BAD) for sample in range(3)]
    rows += [task(HUNDRED, GOOD), task(HUNDRED, BAD)]
    rows += [task(THINKING, GOOD, BAD, "AB"), task(THINKING, GOOD, BAD, "BA")]
    return Asked(engine_judge, rows)


def built(tokenizer, row):
    """The prompt of a row, and its protocol's opener, in token ids."""
    protocol = ENGINE_PROTOCOLS[row["protocol"]]
    shown = [row["replies_a"][0], *(row["replies_b"] or [])]
    if row["order"] == "BA":
        shown.reverse()
    names = ("answer_a", "answer_b") if len(shown) == 2 else ("answer",)
    slots = {"question": QUESTION} | dict(zip(names, shown, strict=True))
    prompt = PromptBuilder(tokenizer, protocol).build(slots).token_ids
    return prompt, tokenizer(protocol.opener, add_special_tokens=False)["input_ids"]


@pytest.mark.engine
def test_every_verdict_is_read_behind_what_was_written_and_our_opener(written, embedded_tokenizer):
    for row, reading, ids in zip(written.rows, written.readings, written.verdict_prompts(), strict=True):
        prompt, opener = built(embedded_tokenizer, row)
        assert reading.status == "ok"
        assert ids[: len(prompt)] == prompt
        assert ids[-len(opener) :] == opener
        between = embedded_tokenizer.decode(ids[len(prompt) : -len(opener)])
        thought = "" if reading.thinking is None else f"<think>\n{reading.thinking}\n</think>\n\n"
        assert between == thought + reading.rationale
        assert ENGINE_PROTOCOLS[row["protocol"]].opener.strip() not in reading.rationale


@pytest.mark.engine
def test_labels_and_rationale_have_the_probabilities_of_teacher_forcing(
    written, engine_judge, embedded_tokenizer, witness
):
    """Another implementation: prompt, rationale and opener in one pass, and the labels' tokens behind them."""
    table = judgments(from_rows(written.rows, TASK_TEXTS), written.readings, ENGINE_PROTOCOLS).to_pylist()
    chosen = [(i, row["protocol"]) for i, row in enumerate(written.rows) if row["protocol"] != THINKING]
    for i, name in chosen:
        prompt, opener = built(embedded_tokenizer, written.rows[i])
        ids = written.verdict_prompts()[i]
        paths = [own[0] for own in engine_judge._readers[name].table.paths]
        expected = teacher_forced(witness, ids, paths)
        assert list(written.readings[i].label_logprobs) == pytest.approx(expected, abs=1e-3)
        rationale = ids[len(prompt) : -len(opener)]
        (total,) = teacher_forced(witness, prompt, [rationale])
        emitted = expected.index(max(expected))
        assert table[i]["cumulative_logprob"] == pytest.approx(total + expected[emitted], abs=1e-3)
        assert table[i]["output_tokens"] == len(rationale) + len(paths[emitted])


@pytest.mark.engine
def test_a_rationale_that_hits_its_budget_is_flagged_and_others_are_not(written):
    sampled = [r for row, r in zip(written.rows, written.readings, strict=True) if row["protocol"] == FIVE]
    assert {r.rationale_cut for r in sampled} == {True, False}
    for reading in sampled:
        assert (22 if reading.rationale_cut else 0) <= reading.rationale_tokens <= 24
        assert len(reading.label_logprobs) == 5


@pytest.mark.engine
def test_samples_differ_and_each_comes_again_with_its_seed(written, engine_judge):
    texts = [r.rationale for r in written.readings[:6]]
    assert len(set(texts[:3])) > 1
    assert len(set(texts[3:])) > 1
    again = Asked(engine_judge, [written.rows[4], written.rows[1]]).readings
    assert [r.rationale for r in again] == [texts[4], texts[1]]


@pytest.mark.engine
def test_a_repetition_writes_the_same_and_computes_its_prompt_again(written, engine_judge):
    row = written.rows[4] | {"repeat": 1, "task_id": "another"}
    (again,) = ask(engine_judge, [row])
    assert again.rationale == written.readings[4].rationale
    assert again.cached_tokens == 0
    assert list(again.label_logprobs) == pytest.approx(list(written.readings[4].label_logprobs), abs=1e-3)


@pytest.mark.engine
def test_thinking_is_closed_at_its_budget_and_kept_apart(written):
    for reading in written.readings[-2:]:
        assert reading.thinking
        assert "think>" not in reading.thinking + reading.rationale
        assert "thinking was closed at its budget of 10 tokens" in reading.detail
        assert reading.rationale_tokens <= 12
    assert all(r.thinking is None for r in written.readings[:-2])


@pytest.mark.engine
def test_nothing_that_a_judge_may_write_reaches_beyond_the_context(engine_judge):
    rows = [task(FIVE, "word " * 4000), task(THINKING, "word " * 4000, "other " * 4000, "AB")]
    rows.append(task(FIVE, GOOD, question="why? " * 2000))
    sent = Asked(engine_judge, rows)
    assert [r.status for r in sent.readings] == ["ok", "ok", "too_long"]
    assert all(r.truncated for r in sent.readings[:2])
    lengths = [len(ids) + params.max_tokens for call in sent.calls for ids, params in call]
    assert max(lengths) <= CONTEXT


@pytest.mark.engine
def test_a_batch_of_more_prompt_tokens_than_one_step_takes_is_written_with_its_seeds(engine_judge):
    """The CPU engine dies of a seeded request whose prompt it computes in two steps."""
    questions = [f"{n} times {n} is the answer to what question, and why? " * 5 for n in range(10, 60)]
    readings = ask(engine_judge, [task(THINKING, GOOD, BAD, "AB", question=question) for question in questions])
    most = engine_judge._llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens
    assert sum(reading.prompt_tokens for reading in readings) > most
    assert {reading.status for reading in readings} == {"ok"}


@pytest.mark.engine
def test_a_context_that_the_budgets_fill_is_refused_with_both_numbers(embedded_tokenizer):
    greedy = replace(ENGINE_PROTOCOLS[FIVE], rationale=Rationale(240))
    with pytest.raises(JudgeError, match=r"context of 240 tokens .* \(rationale 240\); raise judge.max_model_len"):
        reader_of(EXACT_JUDGE, embedded_tokenizer, greedy, 240)


@pytest.mark.engine
@pytest.mark.parametrize(("tail", "opened"), [("", True), ("<think>\\n", False)])
def test_thinking_is_opened_once_whoever_opens_it(embedded_tokenizer, tail, opened):
    reader = reader_of(_with_tail(tail), embedded_tokenizer, ENGINE_PROTOCOLS[THINKING], CONTEXT)
    assert bool(reader.sections[0].before) == opened


@pytest.mark.engine
def test_a_template_that_closes_the_thinking_itself_is_refused(embedded_tokenizer):
    judge = _with_tail("<think>\\n\\n</think>\\n\\n")
    with pytest.raises(JudgeError, match=r"template ends with '</think>'.*enable_thinking: true"):
        reader_of(judge, embedded_tokenizer, ENGINE_PROTOCOLS[THINKING], CONTEXT)
    own = replace(ENGINE_PROTOCOLS[THINKING], thinking=Thinking(10, "[THINK]", "[/THINK]"))
    assert reader_of(judge, embedded_tokenizer, own, CONTEXT).sections[0].before


def _with_tail(tail):
    template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n" + tail.replace("\\n", "\n") + "{% endif %}"
    )
    return replace(EXACT_JUDGE, template_arguments={"chat_template": template})


def completion(tokenizer, prompt, ids, end="length", stop=SECTION.stop):
    """What the engine gives for these ids after a prompt, decoded as it does it; `end` is stop, eos or length."""
    stream, core = tokenizers.decoders.DecodeStream(ids=prompt, skip_special_tokens=False), tokenizer._tokenizer
    text = "".join(stream.step(core, i) or "" for i in ids)
    ids = [*ids, tokenizer.eos_token_id] if end == "eos" else ids
    flat = SimpleNamespace(token_ids=ids, logprobs=[-1.0] * len(ids), start_indices=list(range(len(ids))))
    return SimpleNamespace(
        token_ids=ids,
        text=text.partition(stop)[0] if end == "stop" else text,
        finish_reason="length" if end == "length" else "stop",
        stop_reason=stop if end == "stop" else None,
        logprobs=flat,
    )


KINDS = ("digit_splitting", "qwen_like", "llama_like", "llama_always", "unigram")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("text", "end", "expected"),
    [
        ("It says Score: [5", "stop", "It says"),
        ("A good answer. \nScore: [", "stop", "A good answer."),
        ("Score: [", "stop", ""),
        ("A good answer ", "eos", "A good answer"),
        ("A good answer", "length", "A good answer"),
    ],
)
def test_what_is_kept_is_what_stands_before_the_opener(kind, text, end, expected):
    """In tokenizers whose first token, or last before the opener, is written differently; nothing of the opener."""
    tokenizer = tokenizer_of(kind)
    prompt = tokenizer("Say\n", add_special_tokens=False)["input_ids"]
    ids = own_ids(tokenizer, text)
    found = kept(SECTION, tokenizer, prompt, completion(tokenizer, prompt, ids, end))
    assert found.token_ids == ids[: len(found.token_ids)]
    assert expected.startswith(found.text.strip())
    assert len(expected) - len(found.text.strip()) <= 1, "at most a mark that is one token with the space after it"
    assert found.logprob == -len(found.token_ids)
    assert found.cut == (end == "length")


def test_a_control_token_that_the_judge_wrote_is_kept_and_shown():
    tokenizer = tokenizer_of("digit_splitting")
    ids = tokenizer("a <|im_start|> b", add_special_tokens=False)["input_ids"]
    assert kept(SECTION, tokenizer, [5], completion(tokenizer, [5], ids)).token_ids == ids


@pytest.mark.parametrize("kind", KINDS[:4])
def test_half_a_character_at_the_budget_is_not_kept(kind):
    tokenizer = tokenizer_of(kind)
    prompt = tokenizer("Say\n", add_special_tokens=False)["input_ids"]
    ids = own_ids(tokenizer, "fine 𓀀")
    for end in range(1, len(ids)):
        found = kept(SECTION, tokenizer, prompt, completion(tokenizer, prompt, ids[:end]))
        assert "\ufffd" not in found.text
        assert "fine".startswith(found.text.strip())
    assert kept(SECTION, tokenizer, prompt, completion(tokenizer, prompt, ids)).text.endswith("𓀀")
