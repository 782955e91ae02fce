import math
from dataclasses import replace

import pytest
from openai_fixtures import (
    KEY,
    KEY_NAME,
    SERVED_CONTEXT,
    CannedEndpoint,
    chat_answer,
    completion_answer,
    error,
    rationale_answer,
    task,
    written_answer,
)

from trustjudge_ray.config import ConfigError, JudgeConfig
from trustjudge_ray.judging import openai_api, openai_routes, protocols
from trustjudge_ray.judging.base import JudgeError, judgments
from trustjudge_ray.judging.openai_api import OpenAiJudge
from trustjudge_ray.judging.protocols import Rationale, Sampling, Thinking
from trustjudge_ray.judging.tokens import own_ids
from trustjudge_ray.schema import TASK_TEXTS, from_rows

SCORE, COMPARE = protocols.load("score-5-rationale"), protocols.load("compare-rationale")
THINKING = replace(SCORE, thinking=Thinking(10), rationale=Rationale(12))
FOUR = math.log(math.exp(-0.7) + math.exp(-2.5))
"""What `chat_answer` says of the label 4."""


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv(KEY_NAME, KEY)


def settings(endpoint: CannedEndpoint, **changes) -> JudgeConfig:
    given = {"engine": "openai_api", "model": "gpt-x", "base_url": endpoint.url, "api_key_env": KEY_NAME}
    return JudgeConfig(**(given | {"max_retries": 0, "timeout": 30.0, "concurrency": 1} | changes))


def writes_then_says(rationale, verdict=None):
    """An endpoint that answers a request to write with the one, and a verdict's with the other."""
    verdict = verdict or chat_answer()
    return lambda request: rationale if request["body"]["max_tokens"] not in (1, 16) else verdict


def one(endpoint, rationale, verdict=None, protocol=SCORE, given=None, **changes):
    """The JUDGMENTS row of one task and its two requests, after a trial that goes well."""
    endpoint.otherwise = writes_then_says(rationale_answer())
    judge = OpenAiJudge(settings(endpoint, **changes), {protocol.name: protocol})
    asked = len(endpoint.requests)
    endpoint.otherwise = writes_then_says(rationale, verdict)
    tasks = from_rows([given or task(protocol, "Rayleigh scattering.")], TASK_TEXTS)
    (row,) = judgments(tasks, judge.judge(tasks), {protocol.name: protocol}).to_pylist()
    return row, [r["body"] for r in endpoint.requests[asked:]]


def test_the_judge_writes_in_a_first_turn_and_is_asked_for_the_bare_label_in_a_second(endpoint):
    row, (first, second) = one(endpoint, rationale_answer())
    assert (first["max_tokens"], first["temperature"], first["stop"]) == (192, 1.0, ["Score: ["])
    assert (first["logprobs"], "top_logprobs" in first, 0 <= first["seed"] < 2**31) == (True, False, True)
    assert (second["max_tokens"], second["top_logprobs"], "stop" in second) == (1, 20, False)
    assert second["messages"][:-2] == first["messages"]
    said, asked = second["messages"][-2:]
    assert said == {"role": "assistant", "content": "It names the cause."}
    assert asked["role"] == "user"
    assert "a whole number from 1 to 5" in asked["content"]
    assert "a whole number" not in first["messages"][-1]["content"]
    assert row["label_logprobs"] == [None, None, None, pytest.approx(FOUR, abs=1e-6), -1.5]
    assert (row["rationale"], row["rationale_cut"], row["thinking"]) == ("It names the cause.", False, None)


def test_perplexity_and_tokens_are_those_of_rationale_and_label_and_usage_of_both_turns(endpoint):
    row, _ = one(endpoint, rationale_answer())
    assert row["cumulative_logprob"] == pytest.approx(4 * -0.5 + FOUR, abs=1e-6)
    assert row["output_tokens"] == 4 + 1
    assert (row["prompt_tokens"], row["cached_tokens"]) == (40 + 50, 8 + 16)


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_where_the_endpoint_does_not_stop_at_the_opener_the_rationale_still_ends_there(endpoint, finish):
    """Its own verdict in the text is no part of the rationale, nor of its log-probability."""
    row, (_, second) = one(endpoint, rationale_answer("It is fine.\n\nScore: [5] because of", finish))
    assert second["messages"][-2]["content"] == "It is fine."
    assert (row["rationale"], row["rationale_cut"]) == ("It is fine.", False)
    assert row["output_tokens"] == 3 + 1
    assert row["emitted"] == "4"


def test_a_rationale_that_its_budget_cuts_is_flagged_and_its_verdict_read(endpoint):
    row, _ = one(endpoint, rationale_answer("It is fine, but", "length"))
    assert (row["status"], row["rationale_cut"], row["emitted"]) == ("ok", True, "4")


@pytest.mark.parametrize("listed", [False, True])
def test_tokens_that_are_not_those_of_the_rationale_count_for_nothing(endpoint, listed):
    """Not listed, or listed with the thinking before them: null, and not the label's perplexity for the whole's."""
    rationale = rationale_answer("It is fine.", listed=listed, reasoning_content="Hm.")
    if listed:
        rationale.body["choices"][0]["logprobs"]["content"].insert(0, {"token": "Hm.", "logprob": -3.0})
    row, _ = one(endpoint, rationale)
    assert row["status"] == "ok"
    assert (row["cumulative_logprob"], row["output_tokens"]) == (None, None)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thinking_that_the_endpoint_reports_is_kept_apart_and_not_sent_back(endpoint, name):
    row, (_, second) = one(endpoint, rationale_answer(**{name: "Hm, Rayleigh."}))
    assert (row["thinking"], row["rationale"]) == ("Hm, Rayleigh.", "It names the cause.")
    assert "Hm" not in str(second["messages"])


@pytest.mark.parametrize(
    ("rationale", "detail"),
    [
        (rationale_answer(""), "rationale is empty: the judge wrote nothing before 'Score: ['"),
        (rationale_answer("\n\nScore: [4]"), "rationale is empty: the judge wrote nothing"),
        (rationale_answer(None, "length", reasoning="Hm"), "thinking took its whole budget of 192 tokens; raise"),
        (rationale_answer("<think>\nHm, well", "length"), "writes its thinking into the rationale"),
        (rationale_answer("It is", "content_filter"), "content filter ended the rationale"),
        (rationale_answer(None, refusal="I cannot help"), "the judge refuses: 'I cannot help'"),
        (rationale_answer("It is", "tool_calls"), "ended with 'tool_calls'"),
        (rationale_answer("It is", None), "ended with None"),
        (rationale_answer(None, content=[{"type": "text"}]), "list where a text is meant"),
        (error(500, "broken"), "answers 500: broken"),
    ],
)
def test_what_cannot_be_used_as_a_rationale_is_a_failed_row_that_says_why(endpoint, rationale, detail):
    row, requests = one(endpoint, rationale)
    assert row["status"] == "engine_error"
    assert detail in row["detail"]
    assert len(requests) == 1
    assert row["label_logprobs"] is None


def test_a_token_without_a_log_probability_is_a_bad_one_and_not_a_certain_one(endpoint):
    rationale = rationale_answer()
    rationale.body["choices"][0]["logprobs"]["content"][1]["logprob"] = None
    assert one(endpoint, rationale)[0]["status"] == "bad_logprob"


def test_a_verdict_that_fails_keeps_the_rationale_that_was_paid_for(endpoint):
    filtered = chat_answer()
    filtered.body["choices"][0] |= {"finish_reason": "content_filter", "logprobs": None}
    row, _ = one(endpoint, rationale_answer("It is fine, but", "length"), filtered)
    assert (row["status"], row["rationale"], row["rationale_cut"]) == ("engine_error", "It is fine, but", True)
    assert "content filter withheld the answer" in row["detail"]
    assert row["prompt_tokens"] == 90


def test_each_sample_has_a_seed_of_its_own_and_a_repetition_has_the_same(endpoint):
    given = task(SCORE, "Rayleigh scattering.")
    seeds = [
        one(endpoint, rationale_answer(), given=given | changes)[1][0]["seed"]
        for changes in ({}, {"sample": 1}, {"sample": 2}, {"repeat": 1, "task_id": "again"})
    ]
    assert len(set(seeds)) == 3
    assert seeds[3] == seeds[0]
    greedy = replace(SCORE, sampling=Sampling(0.0))
    _, (first, _) = one(endpoint, rationale_answer(), protocol=greedy)
    assert (first["temperature"], "seed" in first) == (0.0, False)


def test_seed_and_stop_can_be_left_out_for_an_endpoint_that_refuses_them(endpoint):
    arguments = {"seed": None, "stop": None}
    row, (first, _) = one(endpoint, rationale_answer("Fine. Score: [5]"), engine_args=arguments)
    assert {"seed", "stop"}.isdisjoint(first)
    assert row["rationale"] == "Fine."
    notes = openai_api.identity(settings(endpoint, engine_args=arguments), [SCORE])["notes"]
    assert any("without seeds" in note for note in notes)
    assert any("its own word" in note for note in openai_api.identity(settings(endpoint), [SCORE])["notes"])
    with pytest.raises(ConfigError, match="'seed' is 5"):
        openai_api.identity(settings(endpoint, engine_args={"seed": 5}), [SCORE])


def test_what_is_configured_for_the_verdict_does_not_change_what_is_written(endpoint):
    greedy = replace(SCORE, sampling=Sampling(0.0))
    endpoint.otherwise = lambda r: chat_answer() if r["body"]["max_completion_tokens"] == 1 else rationale_answer()
    arguments = {"temperature": 1, "max_tokens": None, "max_completion_tokens": 1}
    judge = OpenAiJudge(settings(endpoint, engine_args=arguments), {greedy.name: greedy})
    judge.judge(from_rows([task(greedy, "x")], TASK_TEXTS))
    first, second = [r["body"] for r in endpoint.requests[-2:]]
    assert (first["temperature"], first["max_completion_tokens"], "max_tokens" in first) == (0.0, 192, False)
    assert (second["temperature"], second["max_completion_tokens"]) == (1, 1)


@pytest.mark.parametrize(
    ("protocol", "arguments", "message"),
    [
        (THINKING, {}, r"think within a budget of its own \(10 tokens\).*judge.route: completions"),
        (replace(SCORE, sampling=Sampling(0.0)), {"temperature": None}, "leaves out temperature.*set that to 1.0"),
        (SCORE, {"max_tokens": None}, "leaves out max_tokens.*add max_completion_tokens: 1"),
    ],
)
def test_what_an_endpoint_cannot_do_is_refused_before_anyone_is_asked(endpoint, protocol, arguments, message):
    with pytest.raises(JudgeError, match=message):
        openai_api.identity(settings(endpoint, engine_args=arguments), [protocol])
    assert endpoint.requests == []


def test_an_endpoint_that_only_thinks_is_refused_at_the_start_with_what_to_change(endpoint):
    endpoint.otherwise = rationale_answer(None, "length", reasoning_content="Hm")
    with pytest.raises(JudgeError, match="score-5-rationale.*thinking took its whole budget.*enable_thinking: false"):
        OpenAiJudge(settings(endpoint), {SCORE.name: SCORE})


def test_a_judge_that_wrote_nothing_about_the_first_small_question_is_not_refused_for_it(endpoint):
    endpoint.otherwise = writes_then_says(rationale_answer(""))
    judge = OpenAiJudge(settings(endpoint), {SCORE.name: SCORE})
    endpoint.otherwise = writes_then_says(rationale_answer())
    assert judge.judge(from_rows([task(SCORE, "x")], TASK_TEXTS))[0].status == "ok"


def test_the_second_turn_is_part_of_the_identity_of_what_it_judges(endpoint, monkeypatch):
    plain = protocols.load("score-5")
    before = openai_api.identity(settings(endpoint), [SCORE, plain])["templates"]
    monkeypatch.setattr(openai_routes, "_VERDICT", "Say it.")
    after = openai_api.identity(settings(endpoint), [SCORE, plain])["templates"]
    assert before[SCORE.name] != after[SCORE.name]
    assert before[plain.name] == after[plain.name]


def test_worked_examples_write_their_rationale_in_a_turn_before_the_label(endpoint):
    row, (first, _) = one(
        endpoint, rationale_answer(), chat_answer([("B", -0.1)]), COMPARE, task(COMPARE, "x", "y", "BA")
    )
    turns = first["messages"]
    assert [m["role"] for m in turns] == ["system", *["user", "assistant"] * 2 * len(COMPARE.examples), "user"]
    assert [m["content"] for m in turns[2:5:2]] == [COMPARE.examples[0].rationale, "B"]
    assert "(A: the first is better, B: the second is better, C: a tie)" in turns[3]["content"]
    assert (row["emitted"], row["label_logprobs"][1]) == ("a", None)


def test_drawn_verdicts_are_drawn_after_one_rationale(endpoint):
    drawn = chat_answer()
    drawn.body["choices"] = [{"message": {"content": s}, "finish_reason": "stop"} for s in ("4", "4", "5", "4")]
    row, (first, second) = one(endpoint, rationale_answer(listed=False), drawn, distribution="sampled", n=4)
    assert "logprobs" not in first
    assert (second["n"], second["messages"][-2]["content"]) == (4, "It names the cause.")
    assert (row["label_mass"], row["emitted"], row["cumulative_logprob"]) == (pytest.approx(1.0), "4", None)


# --- token ids ---------------------------------------------------------------------------------


def completions(endpoint, protocol, *script, **changes):
    """The row of one task through the route completions, and its requests: after the trial's, the same answers."""
    endpoint.script = [error(404), *script, *script]
    judge = OpenAiJudge(
        settings(endpoint, route="completions", tokenizer="embedded", **changes), {protocol.name: protocol}
    )
    asked = len(endpoint.requests)
    tasks = from_rows([task(protocol, "Rayleigh scattering.")], TASK_TEXTS)
    (reading,) = judge.judge(tasks)
    (row,) = judgments(tasks, [reading], {protocol.name: protocol}).to_pylist()
    return row | {"said": reading.detail}, [r["body"] for r in endpoint.requests[asked:]]


def labels_at(tokenizer, *values):
    """A vLLM server's answer to a request for the labels 1 to 5, beside the token that it drew."""
    ids = tokenizer.convert_tokens_to_ids([str(n) for n in range(1, len(values) + 1)])
    other = tokenizer.convert_tokens_to_ids("The")
    return completion_answer({f"token_id:{i}": x for i, x in zip([other, *ids], (-0.1, *values), strict=True)})


@pytest.mark.engine
def test_token_ids_are_written_and_read_behind_as_in_the_engine(endpoint, embedded_tokenizer):
    """And labels far outside the 20 most probable tokens are exact: the server is asked for them."""
    ids = own_ids(embedded_tokenizer, "It is right.\n\nScore: [")
    values = (-30.0, -3.0, -2.5, -0.5, -9999.0)
    verdict = labels_at(embedded_tokenizer, *values)
    row, (first, second) = completions(endpoint, SCORE, written_answer(ids, "It is right.\n\n"), verdict)
    kept = own_ids(embedded_tokenizer, "It is right.")
    assert second["prompt"] == [*first["prompt"], *kept, *own_ids(embedded_tokenizer, SCORE.opener)]
    assert second["logprob_token_ids"] == embedded_tokenizer.convert_tokens_to_ids(list("12345"))
    assert (first["max_tokens"], first["stop"], first["temperature"]) == (192, ["Score: ["], 1.0)
    assert (first["top_k"], first["repetition_penalty"], first["skip_special_tokens"]) == (0, 1.0, False)
    assert row["label_logprobs"] == [*values[:4], -math.inf]
    assert row["label_mass"] == pytest.approx(sum(map(math.exp, values)))
    assert (row["rationale"], row["rationale_cut"], row["output_tokens"]) == ("It is right.", False, len(kept) + 1)
    assert row["cumulative_logprob"] == pytest.approx(-0.5 * len(kept) - 0.5)


@pytest.mark.engine
def test_token_ids_of_thinking_are_closed_at_the_budget_before_the_rationale(endpoint, embedded_tokenizer):
    thought, why = (own_ids(embedded_tokenizer, said) for said in ("Hm, sky", "Right. It is"))
    script = written_answer(thought, "Hm, sky", "length"), written_answer(why, "Right. It is", "length")
    row, bodies = completions(endpoint, THINKING, *script, labels_at(embedded_tokenizer, *[-2.0] * 5))
    opened, closed = (own_ids(embedded_tokenizer, s) for s in (THINKING.thinking.open, THINKING.thinking.close))
    assert [b["max_tokens"] for b in bodies] == [10, 12, 1]
    assert bodies[0]["prompt"][-len(opened) :] == opened
    assert bodies[1]["prompt"] == [*bodies[0]["prompt"], *thought, *closed]
    assert (row["thinking"], row["rationale"], row["rationale_cut"]) == ("Hm, sky", "Right. It is", True)
    assert row["output_tokens"] == len(why) + 1
    assert "thinking was closed at its budget of 10 tokens" in row["said"]


@pytest.mark.engine
def test_a_server_that_does_not_name_what_it_wrote_by_ids_is_refused_at_the_start(endpoint, embedded_tokenizer):
    written = written_answer([5, 6], "It is")
    written.body["choices"][0]["logprobs"]["tokens"] = ["It", " is"]
    with pytest.raises(JudgeError, match="does not name the tokens .* by their ids.*judge.route: chat"):
        completions(endpoint, SCORE, written)


@pytest.mark.engine
def test_a_server_that_lists_what_it_was_not_asked_for_gives_a_lower_bound(endpoint, embedded_tokenizer):
    """It ignores the labels' ids: what is listed is then the most probable tokens, and the rest is null, not zero."""
    plain = protocols.load("score-5")
    four, other = embedded_tokenizer.convert_tokens_to_ids(["4", "The"])
    listed = completion_answer({f"token_id:{four}": -0.5, f"token_id:{other}": -1.0})
    row, (body,) = completions(endpoint, plain, listed)
    assert row["label_logprobs"] == [None, None, None, -0.5, None]
    endpoint.requests.clear()
    _, (body,) = completions(endpoint, plain, listed, engine_args={"logprob_token_ids": None})
    assert "logprob_token_ids" not in body
    asks, not_asks = (
        openai_api.identity(settings(endpoint, route="completions", tokenizer="embedded", engine_args=a), [plain])
        for a in ({}, {"logprob_token_ids": None})
    )
    assert asks["read"] != not_asks["read"]


@pytest.mark.engine
def test_a_repetition_computes_its_prompt_again(endpoint, embedded_tokenizer):
    """Else the server's cache makes the noise floor look lower than it is."""
    judge = settings(endpoint, route="completions", tokenizer="embedded")
    route = openai_routes.Completions(protocols.load("score-5"), judge, embedded_tokenizer, None)
    bodies = [next(route.ask(task(SCORE, "x") | {"repeat": n}).requests).body for n in (0, 1, 2)]
    assert "cache_salt" not in bodies[0]
    assert bodies[1]["cache_salt"] != bodies[2]["cache_salt"]


@pytest.mark.engine
def test_drawn_verdicts_come_behind_the_written_token_ids_and_the_opener(endpoint, embedded_tokenizer):
    judge = settings(endpoint, route="completions", tokenizer="embedded", distribution="sampled", n=3)
    talk = openai_routes.Completions(SCORE, judge, embedded_tokenizer, None).ask(task(SCORE, "x"))
    first = next(talk.requests).body
    why = own_ids(embedded_tokenizer, "It is right")
    drawn = talk.requests.send(written_answer(why, "It is right").body).body
    assert drawn["prompt"] == [*first["prompt"], *why, *own_ids(embedded_tokenizer, SCORE.opener)]
    assert (drawn["n"], drawn["stop"], talk.known["rationale"]) == (3, ["]"], "It is right")


# --- a real server -----------------------------------------------------------------------------

ANSWERS = ("Air scatters short blue wavelengths of sunlight more than long red ones.", "Maybe paint.", "It is blue.")


@pytest.fixture
def written_engine():
    """The engine in this process, with the server's model, precision and context."""
    from trustjudge_ray.judging.vllm_engine import VllmJudge

    greedy = replace(SCORE, sampling=Sampling(0.0))
    exact = JudgeConfig(dtype="float32", head_dtype="float32", max_model_len=SERVED_CONTEXT)
    return VllmJudge(exact, {greedy.name: greedy})


@pytest.mark.engine
@pytest.mark.slow
def test_a_rationale_through_the_endpoint_is_the_one_that_the_engine_writes(vllm_server, written_engine):
    greedy = replace(SCORE, sampling=Sampling(0.0))
    rows = from_rows([task(greedy, answer) for answer in ANSWERS], TASK_TEXTS)
    through = OpenAiJudge(vllm_server.judge(route="completions", timeout=300.0), {greedy.name: greedy}).judge(rows)
    direct = written_engine.judge(rows)
    for a, b in zip(direct, through, strict=True):
        assert (a.status, b.status) == ("ok", "ok"), b.detail
        assert (a.rationale, a.rationale_cut, a.rationale_tokens) == (b.rationale, b.rationale_cut, b.rationale_tokens)
        assert list(b.label_logprobs) == pytest.approx(list(a.label_logprobs), abs=1e-3)
        assert b.rationale_logprob == pytest.approx(a.rationale_logprob, abs=1e-2)
    gap = max(
        abs(x - y)
        for a, b in zip(direct, through, strict=True)
        for x, y in zip(a.label_logprobs, b.label_logprobs, strict=True)
    )
    print(f"\nfloat32: rationales of {[a.rationale_tokens for a in direct]} tokens, largest difference {gap:.2e}")


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.heavy
def test_a_real_chat_endpoint_gives_every_judgment_a_distribution_after_its_rationale(vllm_server):
    given = [task(SCORE, answer) | {"sample": sample} for answer in ANSWERS for sample in range(2)]
    given += [task(COMPARE, ANSWERS[0], ANSWERS[1], order) for order in ("AB", "BA")]
    both = {protocol.name: protocol for protocol in (SCORE, COMPARE)}
    judge = OpenAiJudge(vllm_server.judge(timeout=300.0), both)
    rows = from_rows(given, TASK_TEXTS)
    readings = judge.judge(rows)
    assert [r.status for r in readings] == ["ok"] * len(given), [r.detail for r in readings]
    assert all(r.rationale and SCORE.opener.strip() not in r.rationale for r in readings)
    assert readings[0].rationale != readings[1].rationale
    stored = judgments(rows, readings, both).to_pylist()
    assert all(row["cumulative_logprob"] < 0 and row["output_tokens"] > 1 for row in stored)
    print(f"\n{[(r['output_tokens'], r['rationale_cut'], round(r['label_mass'], 3)) for r in stored]}")
