"""Rewards against a judge whose mind is known: what is planted is what comes out, worked out by hand."""

import asyncio
import math
import random
import threading
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from corpora import compare_protocol, score_protocol

from trustjudge_ray.config import PlanConfig
from trustjudge_ray.judging import scripted
from trustjudge_ray.judging.base import JudgeGone, Reading
from trustjudge_ray.judging.plan import plan, spec
from trustjudge_ray.rewards_config import RewardConfig, reward_faults
from trustjudge_ray.schema import RESPONSES, from_rows
from trustjudge_ray.training.reward_hygiene import hygiene
from trustjudge_ray.training.reward_tasks import question_id, response_id
from trustjudge_ray.training.rewards import Reward, RewardError, RewardRequest, TrustJudgeReward

PROTOCOLS = {protocol.name: protocol for protocol in (score_protocol(), compare_protocol())}
NAMED = {"score_protocol": "score-5", "pair_protocol": "compare"}


class Watched:
    """A scripted judge that keeps what it was asked, and notices being asked twice at once."""

    def __init__(self, planted: dict[str, Any]) -> None:
        self._judge = scripted.ScriptedJudge(planted, PROTOCOLS)
        self._inside = threading.Semaphore(1)
        self.asked: list[pa.Table] = []
        self.read: list[Reading] = []
        self.at_once = False
        self.dead = False

    def judge(self, tasks: pa.Table) -> list[Reading]:
        free = self._inside.acquire(blocking=False)
        self.at_once |= not free
        self.asked.append(tasks)
        if self.dead:
            self._inside.release()
            raise JudgeGone("the engine has died")
        readings = self._judge.judge(tasks)
        self.read += readings
        self._inside.release()
        return readings

    @property
    def tasks(self) -> list[dict[str, Any]]:
        return [row for table in self.asked for row in table.to_pylist()]


def rewarder(planted: dict[str, Any], **settings: Any) -> tuple[TrustJudgeReward, Watched]:
    judge = Watched(planted)
    named = {"name": "scripted", "identity": scripted.identity(planted)}
    return TrustJudgeReward(RewardConfig(**NAMED | settings), judge, PROTOCOLS, **named), judge


def request(text: str, question: str = "Why?", reference: str | None = None, group: str | None = None) -> RewardRequest:
    return RewardRequest(({"role": "user", "content": question},), text, reference, group)


def quality(**texts: float) -> dict[str, Any]:
    """Planted by completion."""
    return {"quality": {response_id(text): value for text, value in texts.items()}}


def shown(first: float, second: float, bias: float = 0.0) -> tuple[float, float, float]:
    """What the scripted judge says of a pair: first, second, tie."""
    weights = [math.exp(4 * (first - second)), math.exp(-4 * (first - second)), math.exp(-1)]
    first_p, second_p, tie = (w / sum(weights) for w in weights)
    return (1 - bias) * first_p + bias, (1 - bias) * second_p, (1 - bias) * tie


def win(a: float, b: float, bias: float = 0.0) -> float:
    """½ Σ over orders of P(a wins) + P(tie)/2."""
    ahead, behind = shown(a, b, bias), shown(b, a, bias)
    return ((ahead[0] + ahead[2] / 2) + (behind[1] + behind[2] / 2)) / 2


def test_a_score_is_the_expected_label_and_not_the_likeliest():
    rewards, _ = rewarder(quality(good=0.8), mode="score")
    (found,) = rewards.rewards([request("good")])
    weights = [math.exp(-((0.8 - i / 4) ** 2) / 0.02) for i in range(5)]
    points = sum((i + 1) * w for i, w in enumerate(weights)) / sum(weights)
    assert found.value == pytest.approx((points - 1) / 4, abs=1e-6)
    assert found.details["score"] == pytest.approx(points, abs=1e-5)
    assert (found.status, found.calls) == ("ok", 1)
    in_points, _ = rewarder(quality(good=0.8), mode="score", scale="points")
    assert in_points.rewards([request("good")])[0].value == pytest.approx(points, abs=1e-5)
    discrete, _ = rewarder(quality(good=0.8), mode="score", score_rule="baseline", scale="points")
    assert discrete.rewards([request("good")])[0].value == 4


@pytest.mark.parametrize("bias", [0.0, 0.6])
def test_a_planted_position_bias_does_not_reach_the_anchor_reward(bias):
    planted = {"quality": {response_id("good"): 0.7, response_id("same"): 0.5, "reference": 0.5}, "position_bias": bias}
    rewards, judge = rewarder(planted, mode="anchor")
    good, same = rewards.rewards(
        [request("good", reference="the reference"), request("same", reference="the reference")]
    )
    assert good.value == pytest.approx(win(0.7, 0.5, bias), abs=1e-6)
    assert same.value == pytest.approx(0.5, abs=1e-6)
    assert good.details["order_effect"] == pytest.approx(bias, abs=0.2)
    assert sorted(task["order"] for task in judge.tasks) == ["AB", "AB", "BA", "BA"]
    one, one_judge = rewarder(planted, mode="anchor", both_orders=False)
    alone = one.rewards([request("same", reference="the reference")])[0]
    assert len(one_judge.tasks) == alone.calls == 1
    sign = 1 if (one_judge.tasks[0]["order"] == "AB") == (one_judge.tasks[0]["response_a"] != "reference") else -1
    assert alone.value == pytest.approx(0.5 + sign * bias / 2, abs=1e-6)
    assert "order_effect" not in alone.details


@pytest.mark.parametrize("failure_rate", [0.0, 0.25])
def test_a_group_is_the_mean_over_readable_opponents_by_brute_force(failure_rate):
    texts = ["a", "b", "c", "c", "d", "e", "e", "e", "f"]
    planted = {"position_bias": 0.3, "failure_rate": failure_rate}
    rewards, judge = rewarder(planted, mode="group")
    found = rewards.rewards([request(text) for text in texts])
    orders: dict[tuple[str, str], list[float | None]] = {}
    for task, reading in zip(judge.tasks, judge.read, strict=True):
        a, b = task["replies_a"][0], task["replies_b"][0]
        wins = None
        if reading.status == "ok":
            p = np.exp(reading.label_logprobs)
            wins = p[0 if task["order"] == "AB" else 1] + p[2] / 2
        orders.setdefault((a, b), []).append(wins)
        orders.setdefault((b, a), []).append(None if wins is None else 1 - wins)
    assert all(len(values) == 2 for values in orders.values())
    for i, text in enumerate(texts):
        wins = []
        for j, other in enumerate(texts):
            if i != j and other == text:
                wins.append(0.5)
            elif i != j and None not in orders[text, other]:
                wins.append(sum(orders[text, other]) / 2)
        if set(wins) <= {0.5}:  # nothing but copies
            assert (found[i].value, found[i].status) == (None, "engine_error")
            continue
        assert found[i].value == pytest.approx(sum(wins) / len(wins), abs=1e-6)
        assert (found[i].details["opponents"], found[i].details["asked"]) == (len(wins), len(texts) - 1)
    assert (failure_rate == 0) == all(reward.details["opponents"] == 8 for reward in found)


def test_win_probabilities_of_a_whole_group_sum_to_half_its_size():
    rewards, _ = rewarder({"position_bias": 0.4, "noise": 0.2}, mode="group")
    found = rewards.rewards([request(f"answer {i % 7}") for i in range(10)])
    assert sum(reward.value for reward in found) == pytest.approx(5.0, abs=1e-5)


@pytest.mark.parametrize("mode", ["score", "anchor", "group"])
def test_a_failed_judgment_is_none_and_never_a_number(mode):
    rewards, _ = rewarder({"failure_rate": 1.0}, mode=mode)
    found = rewards.rewards([request(text, reference="r") for text in ("a", "b", "b")])
    assert [(reward.value, reward.status) for reward in found] == [(None, "engine_error")] * 3


class Odd:
    """A judge whose first label always has this log-probability, and the others what is left."""

    def __init__(self, logprob: float) -> None:
        self._logprob = logprob

    def judge(self, tasks: pa.Table) -> list[Reading]:
        counts = [len(PROTOCOLS[name].label_texts) for name in tasks["protocol"].to_pylist()]
        return [Reading(label_logprobs=[self._logprob, *[-3.0] * (count - 1)]) for count in counts]


@pytest.mark.parametrize("logprob", [math.nan, math.inf, 1000.0, 2.0])
@pytest.mark.parametrize("mode", ["score", "anchor", "group"])
def test_what_is_no_log_probability_is_a_failure_and_neither_a_number_nor_an_exception(mode, logprob):
    rewards = TrustJudgeReward(RewardConfig(mode=mode, **NAMED), Odd(logprob), PROTOCOLS)
    found = rewards.rewards([request(text, reference="r") for text in ("a", "b")])
    assert [(reward.value, reward.status) for reward in found] == [(None, "bad_logprob")] * 2


@pytest.mark.parametrize("mode", ["score", "anchor", "group"])
def test_a_reward_for_a_text_that_was_cut_says_so_and_its_batch_tells_how_many(mode):
    rewards, judge = rewarder({}, mode=mode)
    cuts = judge.judge

    def judged(tasks: pa.Table) -> list[Reading]:
        long = ["long" in row["replies_a"] + (row["replies_b"] or []) for row in tasks.to_pylist()]
        return [replace(reading, truncated=cut) for reading, cut in zip(cuts(tasks), long, strict=True)]

    judge.judge = judged  # type: ignore[method-assign]
    asked = [request("long", "q", "r"), request("short", "q", "r"), request("a", "p", "r"), request("b", "p", "r")]
    for found in (rewards.rewards(asked), rewards.rewards(asked)):
        told = [reward.details.get("cut") for reward in found]
        assert told == [1.0, 1.0 if mode == "group" else None, None, None], "kept judgments too"
        assert hygiene(asked, found)["cut"] == pytest.approx(sum(map(bool, told)) / 4)


@pytest.mark.parametrize("mode", ["score", "anchor", "group"])
def test_an_empty_completion_is_not_judged_and_takes_nothing_from_the_others(mode):
    rewards, judge = rewarder({}, mode=mode)
    found = rewards.rewards([request(text, reference="r") for text in ("", " \n", "", "good", "bad")])
    alone = rewarder({}, mode=mode)[0].rewards([request(text, reference="r") for text in ("good", "bad")])
    assert [(reward.value, reward.status, reward.calls) for reward in found[:3]] == [(None, "empty_response", 0)] * 3
    assert [reward.value for reward in found[3:]] == [reward.value for reward in alone]
    assert all("".join(task["replies_a"]).strip() for task in judge.tasks)


@pytest.mark.parametrize("seed", range(6))
def test_an_empty_completion_is_drawn_by_nobody_and_takes_no_opponent_from_the_others(seed):
    rewards, judge = rewarder({}, mode="group", opponents=1, seed=seed)
    found = rewards.rewards([request(text) for text in ("a", "", "b", " ", "c", "\n", "d")])
    alone = rewarder({}, mode="group", opponents=1, seed=seed)[0].rewards([request(text) for text in "abcd"])
    assert [reward.value for reward in found[::2]] == [reward.value for reward in alone]
    assert {reward.details["asked"] for reward in found[::2]} == {1.0}
    assert [reward.status for reward in found[1::2]] == ["empty_response"] * 3
    assert len(judge.tasks) == 4


def test_copies_beside_an_empty_completion_still_tie():
    rewards, _ = rewarder({}, mode="group")
    assert [reward.value for reward in rewards.rewards([request(text) for text in ("same", "", "same")])] == [
        0.5,
        None,
        0.5,
    ]
    assert [reward.status for reward in rewards.rewards([request(text) for text in ("one", "", " ")])] == [
        "alone_in_group",
        "empty_response",
        "empty_response",
    ]
    assert [reward.status for reward in rewards.rewards([request("")] * 2)] == ["empty_response"] * 2


def test_identical_completions_are_a_tie_that_no_judge_is_asked_about():
    rewards, judge = rewarder({}, mode="group")
    found = rewards.rewards([request("same")] * 4)
    assert [(reward.value, reward.calls, reward.details["p_tie"]) for reward in found] == [(0.5, 0, 1.0)] * 4
    anchored, judge_too = rewarder({}, mode="anchor")
    assert anchored.rewards([request("same", reference="same")])[0].value == 0.5
    assert judge.tasks == judge_too.tasks == []


def test_copies_weigh_in_a_drawn_group_as_in_the_whole_one():
    """Two of five others are copies: their tie counts two fifths, though only one of the three others is drawn."""
    texts = ["x", "x", "x", "p", "q", "r"]
    rewards, judge = rewarder(quality(x=0.5, p=0.1, q=0.1, r=0.1), mode="group", opponents=1)
    found = rewards.rewards([request(text) for text in texts])
    assert len(judge.tasks) == 4
    assert found[0].value == pytest.approx(2 / 5 * 0.5 + 3 / 5 * win(0.5, 0.1), abs=1e-6)


@pytest.mark.parametrize(("size", "opponents"), [(8, 3), (7, 3), (7, 2), (5, 1), (6, 5), (4, 9)])
def test_every_completion_meets_as_many_opponents_as_asked_for(size, opponents):
    rewards, judge = rewarder({}, mode="group", opponents=opponents)
    requests = [request(f"answer {i}") for i in range(size)]
    found = rewards.rewards(requests)
    wanted = min(opponents, size - 1)
    met = [reward.details["opponents"] for reward in found]
    assert min(met) == wanted
    assert max(met) <= wanted + size % 2
    assert len(judge.tasks) == sum(met)  # half as many pairs, each in both orders
    again = rewarder({}, mode="group", opponents=opponents)[0].rewards(requests[::-1])
    assert [reward.value for reward in again[::-1]] == [reward.value for reward in found]
    if wanted < size - 1:
        drawn = [rewarder({}, mode="group", opponents=opponents, seed=seed)[0].rewards(requests) for seed in range(5)]
        assert len({tuple(reward.value for reward in one) for one in drawn}) > 1


def test_completions_of_other_conversations_and_other_named_groups_are_no_opponents():
    rewards, judge = rewarder({}, mode="group")
    requests = [request("a", "one"), request("b", "one"), request("a", "two"), request("c", "one", group="g")]
    requests.append(request("d", "one", group="g"))
    found = rewards.rewards(requests)
    assert {frozenset((t["replies_a"][0], t["replies_b"][0])) for t in judge.tasks} == {
        frozenset("ab"),
        frozenset("cd"),
    }
    assert (found[2].value, found[2].status) == (None, "alone_in_group")
    assert found[0].value == rewarder({}, mode="group")[0].rewards(requests[:2])[0].value


def test_one_completion_in_two_groups_is_judged_against_the_opponents_of_each():
    planted = quality(x=0.5, weak=0.1, strong=0.9)
    rewards, _ = rewarder(planted, mode="group")
    groups = [
        request("x", group="1"),
        request("weak", group="1"),
        request("x", group="2"),
        request("strong", group="2"),
    ]
    found = rewards.rewards(groups)
    assert found[0].value == pytest.approx(win(0.5, 0.1), abs=1e-6)
    assert found[2].value == pytest.approx(win(0.5, 0.9), abs=1e-6)


def test_without_a_mode_the_reference_decides_and_without_a_reference_there_is_no_anchor():
    rewards, judge = rewarder({})
    found = rewards.rewards([request("a", reference="r"), request("a"), request("b", reference="  ")])
    assert ["p_win" in reward.details for reward in found] == [True, False, False]
    assert sorted(task["kind"] for task in judge.tasks) == ["compare", "compare", "score", "score"]
    assert len(judge.asked) == 1
    anchored, _ = rewarder({}, mode="anchor")
    assert [reward.status for reward in anchored.rewards([request("a"), request("a", reference="r")])] == [
        "no_reference",
        "ok",
    ]


def test_tasks_have_the_ids_of_a_run_over_the_same_responses():
    """So a store knows them, and an engine's seeds are those of the run."""
    requests = [request(text, reference="the reference") for text in ("a", "b")]
    rewards, judge = rewarder({"noise": 0.1}, mode="anchor")
    rewards.rewards(requests)
    asked = requests[0]
    row = {"question_id": question_id(asked), "messages": list(asked.messages), "reference": "the reference"}
    names = [(response_id("a"), "a"), (response_id("b"), "b"), ("reference", "the reference")]
    rows = [row | {"response_id": name, "model": name, "replies": [text]} for name, text in names]
    wanted = spec("scripted", scripted.identity({"noise": 0.1}), compare_protocol(), 0.0)
    settings = PlanConfig(design="anchor", anchor="reference")
    run = plan(from_rows(rows, RESPONSES), [wanted], settings, [])
    assert sorted(task["task_id"] for task in judge.tasks) == sorted(run["task_id"].to_pylist())


def test_a_dead_zone_calls_a_near_tie_a_tie_and_leaves_the_rest():
    planted = {"quality": {response_id("near"): 0.51, response_id("far"): 0.9, "reference": 0.5}}
    rewards, _ = rewarder(planted, mode="anchor", dead_zone=0.1)
    near, far = rewards.rewards([request("near", reference="r"), request("far", reference="r")])
    assert near.value == 0.5
    assert far.value == pytest.approx(win(0.9, 0.5), abs=1e-6)


@pytest.mark.parametrize("mode", ["score", "anchor", "group"])
def test_what_was_judged_is_not_judged_again_and_calls_add_up_to_what_was(mode):
    rewards, judge = rewarder({}, mode=mode)
    first = [request(f"answer {i}", f"q{q}", "r") for q in range(3) for i in (0, 1, 2, 2)]
    found = rewards.rewards(first)
    assert sum(reward.calls for reward in found) == len(judge.tasks) > 0
    before = len(judge.tasks)
    again = rewards.rewards(first)
    assert [reward.value for reward in again] == [reward.value for reward in found]
    assert {reward.calls for reward in again} == {0}
    assert len(judge.tasks) == before
    more = rewards.rewards([*first, request("new", "q1", "r")])
    wanted = {"score": 1, "anchor": 2, "group": 6}[mode]
    assert sum(reward.calls for reward in more) == len(judge.tasks) - before == wanted


def test_failures_are_asked_about_again_and_a_full_cache_forgets_the_oldest():
    flaky, judge = rewarder({"failure_rate": 1.0}, mode="score")
    flaky.rewards([request("a")])
    flaky.rewards([request("a")])
    assert len(judge.tasks) == 2
    small, judge = rewarder({}, mode="score", cache=2)
    small.rewards([request(text) for text in "abc"])
    assert small.rewards([request("c")])[0].calls == 0
    assert small.rewards([request("a")])[0].calls == 1
    none, judge = rewarder({}, mode="score", cache=0)
    none.rewards([request("a")])
    assert none.rewards([request("a")])[0].calls == 1


def test_concurrent_calls_are_judged_together_one_batch_at_a_time_with_the_values_of_a_single_call():
    rewards, judge = rewarder({"seconds_per_batch": 0.05}, mode="score", gather_seconds=0.02)
    requests = [request(f"answer {i}", f"q{i % 5}") for i in range(40)]

    async def calls() -> list[list[Reward]]:
        return await asyncio.gather(*[rewards.arewards([one]) for one in requests])

    found = [reward for (reward,) in asyncio.run(calls())]
    assert len(judge.asked) <= 3
    assert not judge.at_once
    alone = rewarder({}, mode="score")[0]
    assert [reward.value for reward in found] == pytest.approx([alone.rewards([one])[0].value for one in requests])


def test_calls_from_several_threads_do_not_ask_the_judge_at_once():
    rewards, judge = rewarder({"seconds_per_batch": 0.01}, mode="score")
    threads = [
        threading.Thread(target=lambda i=i: asyncio.run(rewards.arewards([request(f"answer {i}")])))
        if i % 2
        else threading.Thread(target=rewards.rewards, args=([request(f"answer {i}")],))
        for i in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(judge.tasks) == 12
    assert not judge.at_once


def test_a_judge_that_dies_is_told_to_every_caller_and_the_next_call_is_answered():
    rewards, judge = rewarder({}, mode="score")
    judge.dead = True

    async def calls() -> list[Any]:
        asked = [rewards.arewards([request(f"answer {i}")]) for i in range(5)]
        told = await asyncio.gather(*asked, return_exceptions=True)
        judge.dead = False
        return [*told, *await rewards.arewards([request("later")])]

    *told, later = asyncio.run(calls())
    assert [type(error) for error in told] == [JudgeGone] * 5
    assert later.status == "ok"


def test_a_caller_who_gives_up_takes_no_answer_from_the_others():
    rewards, _ = rewarder({}, mode="score", gather_seconds=0.05)

    async def calls() -> tuple[bool, list[Reward]]:
        gone, stays = (asyncio.ensure_future(rewards.arewards([request(text)])) for text in ("a", "b"))
        await asyncio.sleep(0)
        gone.cancel()
        found = await stays
        return gone.cancelled(), found

    cancelled, found = asyncio.run(calls())
    assert cancelled
    assert found[0].value == pytest.approx(rewarder({}, mode="score")[0].rewards([request("b")])[0].value)


def test_groups_of_two_calls_stay_apart_whatever_they_are_named():
    rewards, _ = rewarder(quality(x=0.5, weak=0.1, strong=0.9), mode="group", gather_seconds=0.05)

    async def calls(group: str | None) -> list[list[Reward]]:
        parts = (["x", "weak"], ["x", "strong"])
        return await asyncio.gather(*[rewards.arewards([request(t, group=group) for t in part]) for part in parts])

    for name in (None, "", "g"):
        apart = asyncio.run(calls(name))
        assert apart[0][0].value == pytest.approx(win(0.5, 0.1), abs=1e-6)
        assert apart[1][0].value == pytest.approx(win(0.5, 0.9), abs=1e-6)


def test_the_order_of_requests_changes_no_reward():
    requests = [request(f"answer {i % 6}", f"q{i % 2}", "r" if i % 3 else None) for i in range(12)]
    shuffled = random.Random(2).sample(range(12), 12)
    for settings in ({}, {"mode": "group"}):
        found = rewarder({"noise": 0.1}, **settings)[0].rewards(requests)
        other = rewarder({"noise": 0.1}, **settings)[0].rewards([requests[i] for i in shuffled])
        assert [reward.value for reward in other] == pytest.approx([found[i].value for i in shuffled])


def test_better_answers_get_more_in_every_mode():
    planted = quality(worst=0.2, middle=0.5, best=0.7) | {"position_bias": 0.5}
    planted["quality"]["reference"] = 0.5
    for mode in ("score", "anchor", "group"):
        for texts in permutations(("worst", "middle", "best")):
            found = rewarder(planted, mode=mode)[0].rewards([request(text, reference="r") for text in texts])
            by_text = dict(zip(texts, (reward.value for reward in found), strict=True))
            assert by_text["worst"] < by_text["middle"] < by_text["best"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "rank"}, r"rewards.mode: got 'rank'; one of \['score', 'anchor', 'group'\]"),
        ({"opponents": 0}, "rewards.opponents: got 0; 1 or more"),
        ({"dead_zone": 0.5}, "rewards.dead_zone: got 0.5; a probability below 0.5"),
        ({"mode": "score", "score_protocol": "compare"}, "rewards.score_protocol: 'compare' is of kind compare"),
        ({"mode": "group", "pair_protocol": "other"}, r"rewards.pair_protocol: got 'other'; one of the judge's"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_what_would_be_right(settings, message):
    with pytest.raises(RewardError, match=message):
        rewarder({}, **settings)


def test_a_text_that_is_none_is_named_and_fails_nobody_elses_call():
    rewards, judge = rewarder({}, mode="score", gather_seconds=0.05)
    for bad, field in [
        (request("half \ud83d"), r"requests\[1\].completion: half of a surrogate pair at 5"),
        (request("a", question="\udcff"), r"requests\[1\].messages\[0\].content"),
        (request(5), r"requests\[1\].completion: got int; a text"),
        (request("a", reference=["r"]), r"requests\[1\].reference: got list; a text"),
        (RewardRequest((), "a"), r"requests\[1\].messages: none; one or more"),
        (RewardRequest(({"role": "user"},), "a"), r"requests\[1\].messages\[0\].content: got NoneType; a text"),
        (request("a", reference="\ud83d"), r"requests\[1\].reference"),
    ]:
        with pytest.raises(RewardError, match=field):
            rewards.rewards([request("fine"), bad])
    assert judge.asked == []

    async def calls() -> list[Any]:
        asked = [rewards.arewards([one]) for one in (request("\ud83d"), request("fine"))]
        return await asyncio.gather(*asked, return_exceptions=True)

    broken, (fine,) = asyncio.run(calls())
    assert isinstance(broken, RewardError)
    assert fine.status == "ok"


def test_requests_that_can_be_read_only_once_are_all_rewarded():
    rewards, _ = rewarder({}, mode="score")
    wanted = rewards.rewards([request("a"), request("b")])
    for found in (rewards.rewards(map(request, "ab")), asyncio.run(rewards.arewards(map(request, "ab")))):
        assert [reward.value for reward in found] == [reward.value for reward in wanted]


def test_the_default_settings_have_no_fault():
    assert reward_faults(RewardConfig()) == []


def test_hygiene_counts_missing_rewards_flat_groups_and_reward_for_length():
    requests = [request("a" * n, question) for question in ("one", "two") for n in (1, 3, 8)] + [request("", "one")]
    values = [0.1, 0.5, 0.9, 0.4, 0.4, 0.4, None]
    rewards = [Reward(value, "ok" if value else "empty_response", 2, {"p_tie": 0.25}) for value in values]
    found = hygiene(requests, rewards)
    assert found["missing"] == pytest.approx(1 / 7)
    assert (found["no_spread"], found["calls"], found["p_tie"]) == (0.5, 2.0, 0.25)
    logs = [math.log(n + 1) for n in (1, 3, 8)] * 2
    assert found["length_correlation"] == pytest.approx(np.corrcoef(logs, values[:6])[0, 1])
    assert hygiene(requests[:1], rewards[:1]).keys() == {"missing", "calls", "cut", "p_tie"}
