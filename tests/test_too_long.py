"""What does not fit: nothing longer than the context reaches an engine, and responses of a pair are cut alike."""

from functools import cache
from itertools import product
from pathlib import Path
from tempfile import mkdtemp

import pytest
from small_judges import small_judge

from trustjudge_ray.config import JudgeConfig
from trustjudge_ray.judging import protocols, slots
from trustjudge_ray.judging.base import JudgeError, Reading
from trustjudge_ray.judging.preview import Preview, preview
from trustjudge_ray.judging.vllm_rationale import Written
from trustjudge_ray.judging.vllm_reading import asked

NAMES = ("score-5", "score-100", "compare", "score-5-rationale", "score-5-reference", "score-5-conversation")
THINKING = """
name: thinking
kind: score
labels: 5
user: "{answer}"
thinking: {max_tokens: 40}
opener: "Score: ["
closer: "]"
"""


@cache
def judge() -> Preview:
    return preview(JudgeConfig(model=str(small_judge(Path(mkdtemp(prefix="tjr-judge-")) / "judge", context=100_000))))


def within(context: int, protocol: protocols.Protocol, on_overflow: str = "truncate"):
    seen = judge()
    settings = JudgeConfig(model=seen.judge.model, on_overflow=on_overflow)
    return Preview(settings, seen.source, seen.tokenizer, seen.model).reader(protocol, context)


def task(protocol: protocols.Protocol, words: tuple[int, int], order: str = "AB", question: str = "Why?") -> dict:
    pair = protocol.kind == "compare"
    return {
        "messages": [{"role": "user", "content": question}],
        "reference": "because",
        "replies_a": ["good " * words[0]],
        "replies_b": ["bad " * words[1]] if pair else None,
        "order": order if pair else None,
        "repeat": 0,
    }


def literal_tokens(protocol: protocols.Protocol) -> int:
    reader = within(10**6, protocol)
    return reader.prompts.size(dict.fromkeys(slots.SLOTS, "")) + 10**6 - reader.room


@pytest.mark.parametrize("name", [*NAMES, "thinking"])
def test_no_request_is_longer_than_the_context_whatever_the_responses(name):
    protocol = protocols.parse(THINKING) if name == "thinking" else protocols.load(name)
    least = literal_tokens(protocol)
    seen = set()
    for over, words in product((5, 24, 60, 61, 62, 63, 200), ((1, 1), (70, 3), (500, 400))):
        reader = within(least + over, protocol)
        one = asked(reader, task(protocol, words))
        if isinstance(one, Reading):
            seen.add(one.status)
            continue
        seen.add("cut" if one.truncated else "whole")
        while (section := one.next_section()) is not None:
            request = one.request(section.before)["prompt_token_ids"]
            assert len(request) + section.max_tokens <= least + over
            one.add(section, Written("", [7] * section.max_tokens, 0.0, True))
        assert all(len(request["prompt_token_ids"]) + 1 <= least + over for request in one.questions())
    assert seen == {"too_long", "cut", "whole"}


def test_fail_gives_too_long_instead_of_a_cut_response():
    protocol = protocols.load("compare")
    context = literal_tokens(protocol) + 100
    cut = asked(within(context, protocol), task(protocol, (300, 2)))
    failed = asked(within(context, protocol, "fail"), task(protocol, (300, 2)))
    assert not isinstance(cut, Reading)
    assert cut.truncated
    assert isinstance(failed, Reading)
    assert (failed.status, failed.truncated) == ("too_long", False)
    assert not isinstance(asked(within(context, protocol, "fail"), task(protocol, (3, 2))), Reading)


def test_both_orders_of_a_pair_lose_the_same_tokens():
    protocol = protocols.load("compare")
    reader = within(literal_tokens(protocol) + 90, protocol)
    kept = {}
    for order in ("AB", "BA"):
        given = task(protocol, (400, 30), order)
        laid = dict(reader.prompts.laid_out(slots.task_slots(protocol, given)))
        first, second = laid["answer_a"], laid["answer_b"]
        kept[order] = (first, second) if order == "AB" else (second, first)
    assert kept["AB"] == kept["BA"]
    long, short = kept["AB"]
    assert len(short) < len(long) <= 90


def test_only_responses_are_cut():
    protocol = protocols.load("score-5")
    reader = within(literal_tokens(protocol) + 100, protocol)
    one = asked(reader, task(protocol, (5, 5), question="why " * 300))
    assert isinstance(one, Reading)
    assert one.status == "too_long"


def test_a_context_that_budgets_fill_is_refused_before_any_task():
    with pytest.raises(JudgeError, match=r"has no room for a prompt .*raise judge\.max_model_len or lower max_tokens"):
        within(100, protocols.load("score-5-rationale"))
