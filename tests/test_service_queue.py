"""The queue in front of a judge, in an event loop whose time jumps: nothing waits for real, and a hang is an error."""

import asyncio
import math
import selectors
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trustjudge_ray.training.adapters import client
from trustjudge_ray.training.service_queue import EngineLost, Expired, Limits, QueueFull, RewardQueue, Stopping, Unit

FAR = 1e6


class JumpingLoop(asyncio.SelectorEventLoop):
    """Its clock jumps to whatever comes next."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Jump(self))

    def time(self) -> float:
        return self.now


class _Jump(selectors.SelectSelector):
    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._of = loop

    def select(self, timeout: float | None = None) -> list:
        if timeout is None:
            raise AssertionError("somebody waits for what never comes")
        self._of.now += max(timeout, 0.0)
        return super().select(0)


def play(scene: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(scene)


@dataclass
class Engine:
    """Answers `x` with `("answer", x)` after `seconds`; dies or raises where it is told to."""

    seconds: float = 1.0
    deadly: str = ""
    """A request that holds this kills it."""
    wrong: str = ""
    """At a request that holds this it raises."""
    unread: str = ""
    """A request that holds this has a failure for an answer."""
    slow: str = ""
    """A batch with a request that holds this takes ten times as long."""
    deaths: int = 0
    """How often it dies whatever it is asked."""
    down: int = 0
    """How often there is none."""
    batches: list[list[str]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    alone: list[bool] = field(default_factory=list)

    async def judge(self, requests: list[str]) -> Sequence[tuple[str, str]]:
        if self.down:
            self.down -= 1
            await asyncio.sleep(self.seconds)
            raise EngineLost("none", begun=False)
        self.batches.append(requests)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.alone.append(self.at_once == 1)
        await asyncio.sleep(self.seconds * (10 if self.slow and any(self.slow in r for r in requests) else 1))
        self.at_once -= 1
        if self.deaths or (self.deadly and any(self.deadly in r for r in requests)):
            self.deaths = max(self.deaths - 1, 0)
            raise EngineLost("died")
        if self.wrong and any(self.wrong in r for r in requests):
            raise ZeroDivisionError(requests)
        return [("failed" if self.unread and self.unread in r else "answer", r) for r in requests]

    @property
    def judged(self) -> Counter:
        return Counter(r for batch in self.batches for r in batch)


def queue_of(engine: Engine, notes: Counter | None = None, **given: Any) -> RewardQueue[str, tuple[str, str]]:
    limits = {"max_batch": 4, "max_wait": 0.1, "max_queue": 100, "in_flight": 1, "cache": 100}
    told = Counter() if notes is None else notes
    return RewardQueue(
        engine.judge,
        Limits(**{**limits, **given}),
        keep=lambda answer: answer[0] != "failed",
        again=lambda answer: answer if answer[0] == "failed" else ("again", answer[1]),
        failed=lambda why: ("failed", why),
        note=lambda name, value: told.update({name: value}),
    )


def unit(*requests: str) -> Unit[str]:
    return Unit("+".join(requests), requests)


async def ask(queue: RewardQueue, *names: str, seconds: float = FAR, after: float = 0.0) -> list:
    await asyncio.sleep(after)
    return await queue.ask([unit(name) for name in names], asyncio.get_running_loop().time() + seconds)


def own(*names: str) -> list[tuple[str, str]]:
    return [("answer", name) for name in names]


def test_answers_of_several_units_are_not_put_in_the_order_in_which_they_were_judged():
    async def scene() -> None:
        queue = queue_of(Engine(), max_batch=2, in_flight=3)
        assert await queue.ask([unit("c"), unit("a", "d"), unit("b")], FAR) == own("c", "a", "d", "b")

    play(scene())


def test_a_batch_waits_for_others_only_so_long_and_holds_only_so_many():
    async def scene() -> list[list[str]]:
        queue = queue_of(engine := Engine(0.0), in_flight=9)
        await asyncio.gather(*(ask(queue, f"a{i}", after=0.02 * i) for i in range(4)), ask(queue, "b", after=0.07))
        await asyncio.gather(ask(queue, "c"), ask(queue, "d", after=0.09), ask(queue, "e", after=0.11))
        return engine.batches

    assert play(scene()) == [["a0", "a1", "a2", "a3"], ["b"], ["c", "d"], ["e"]]


def test_a_unit_is_not_split_and_one_over_the_size_of_a_batch_is_judged_nevertheless():
    async def scene() -> list[list[str]]:
        queue = queue_of(engine := Engine())
        pair, many = unit("a", "b", "c"), unit(*"defghi")
        await asyncio.gather(queue.ask([pair], FAR), queue.ask([unit("x", "y")], FAR), queue.ask([many], FAR))
        return engine.batches

    assert play(scene()) == [["a", "b", "c"], ["x", "y"], list("defghi")]


def test_first_come_is_first_judged_and_no_more_batches_fly_than_may():
    async def scene() -> Engine:
        queue = queue_of(engine := Engine(), in_flight=2)
        await asyncio.gather(*(ask(queue, str(i), after=i / 1000) for i in range(40)))
        return engine

    engine = play(scene())
    assert [r for batch in engine.batches for r in batch] == [str(i) for i in range(40)]
    assert engine.most_at_once == 2


def test_a_full_queue_refuses_the_whole_body_and_says_when_there_is_room():
    async def scene() -> None:
        notes: Counter = Counter()
        queue = queue_of(engine := Engine(8.0), notes, max_queue=5, max_wait=0.0)
        first = [asyncio.create_task(ask(queue, "w0", "w1", "w2", "w3"))]
        await first[0]
        flying = asyncio.create_task(ask(queue, "f0", "f1", "f2", "f3"))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(ask(queue, "a", "b", "c", after=1))
        await asyncio.sleep(2)
        with pytest.raises(QueueFull) as full:
            await ask(queue, "d", "e", "g")
        assert (queue.waiting, notes["rejected"]) == (3, 3)
        assert full.value.retry_after == 3 * 8 / 4  # three wait, and four took eight seconds
        assert await ask(queue, "d", "e") == own("d", "e")
        await asyncio.gather(flying, waiting)
        assert engine.judged == Counter("abcde") + Counter(f"{x}{i}" for x in "wf" for i in range(4))

    play(scene())


def test_who_is_refused_after_others_is_told_a_later_time_until_nobody_is_served_any_more():
    async def scene() -> None:
        queue = queue_of(Engine(8.0), max_queue=4, max_wait=0.0)
        await ask(queue, *"abcd")  # so the queue knows that it takes two seconds for each
        flying, waiting = (asyncio.create_task(ask(queue, *names)) for names in ("efgh", "ijkl"))
        await asyncio.sleep(1)
        told = []
        for names in ("mn", "opq", "r", *(f"{i}" for i in range(60))):
            with pytest.raises(QueueFull) as full:
                await ask(queue, *names)
            told.append(full.value.retry_after)
        assert told[:4] == [8, 12, 18, 20]  # four wait, then those two, those three …
        assert told[-1] == 60
        await asyncio.gather(flying, waiting)
        again = [asyncio.create_task(ask(queue, *names)) for names in ("stuv", "wxyz")]
        await asyncio.sleep(1)
        with pytest.raises(QueueFull) as full:
            await ask(queue, "late")
        assert full.value.retry_after == 8
        await asyncio.gather(*again)

    play(scene())


@pytest.mark.parametrize(("seconds", "rounds"), [(0.05, 3), (2.0, 1), (2.0, 3)])
def test_of_many_trainers_that_ask_at_once_with_room_for_few_none_gives_up(seconds, rounds):
    """64 trainers, each with a body of eight, and a queue with room for four bodies."""
    tries = 24  # of a service that is full

    async def scene() -> Engine:
        queue = queue_of(engine := Engine(seconds), max_queue=32, in_flight=2, max_batch=8)

        async def trainer(i: int) -> None:
            for step in range(rounds):
                for attempt in range(tries):
                    try:
                        await ask(queue, *(f"{i} {step} {j}" for j in range(8)))
                        break
                    except QueueFull as full:
                        wait = client._seconds(str(full.retry_after), attempt)
                        await asyncio.sleep(wait * client._spread(f"{i} {step}".encode(), attempt))
                else:
                    raise AssertionError(f"trainer {i} gave up")

        await asyncio.gather(*(trainer(i) for i in range(64)))
        return engine

    assert set(play(scene()).judged.values()) == {1}


def test_what_is_known_or_already_waiting_needs_no_room():
    async def scene() -> None:
        queue = queue_of(Engine(), max_queue=2, max_wait=0.0)
        assert await ask(queue, "k") == own("k")
        flying = asyncio.create_task(ask(queue, "f"))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(ask(queue, "a", "b"))
        await asyncio.sleep(0.5)
        joined = [("again", name) for name in "kfab"]
        assert await ask(queue, "k", "f", "a", "b") == joined
        await asyncio.gather(flying, waiting)

    play(scene())


def test_what_was_not_begun_at_the_deadline_is_never_judged():
    async def scene() -> None:
        queue = queue_of(engine := Engine(10.0), max_wait=0.0)
        flying = asyncio.create_task(ask(queue, "f"))
        await asyncio.sleep(1)
        with pytest.raises(Expired, match="2 of 2") as late:
            await ask(queue, "late", "f", seconds=8.0)
        assert not late.value.engine_lost
        assert await flying == own("f")
        assert (queue.waiting, queue.under_way, engine.batches) == (0, 0, [["f"]])

    play(scene())


def test_a_deadline_that_is_over_when_its_turn_comes_is_not_judged_though_nobody_noticed_yet():
    async def scene() -> None:
        queue = queue_of(engine := Engine(1.0), max_wait=0.0)
        flying = asyncio.create_task(ask(queue, "f"))
        late = asyncio.create_task(ask(queue, "late", seconds=1.0))  # its timer and the engine's fire together
        assert await flying == own("f")
        with pytest.raises(Expired):
            await late
        await asyncio.sleep(5)
        assert engine.batches == [["f"]]

    play(scene())


def test_a_deadline_of_before_now_gets_what_is_known_and_nothing_else():
    async def scene() -> None:
        queue = queue_of(engine := Engine())
        await ask(queue, "k")
        assert await ask(queue, "k", seconds=-1) == [("again", "k")]
        with pytest.raises(Expired):
            await ask(queue, "n", seconds=-1)
        assert (engine.judged, queue.waiting) == (Counter("k"), 0)

    play(scene())


def test_what_was_begun_is_kept_for_a_client_that_comes_again_after_its_deadline():
    async def scene() -> None:
        queue = queue_of(engine := Engine(10.0))
        with pytest.raises(Expired, match="1 of 1"):
            await ask(queue, "a", seconds=5)
        assert await ask(queue, "a", after=1) == [("again", "a")]  # still flying
        assert await ask(queue, "a", seconds=0.001) == [("again", "a")]
        assert engine.batches == [["a"]]

    play(scene())


def test_a_client_that_goes_away_takes_along_what_was_not_begun_but_not_what_others_wait_for():
    async def scene() -> None:
        notes: Counter = Counter()
        queue = queue_of(engine := Engine(), notes, max_wait=0.0)
        flying = asyncio.create_task(ask(queue, "f"))
        await asyncio.sleep(0.1)
        gone, stays = asyncio.create_task(ask(queue, "a", "b")), asyncio.create_task(ask(queue, "b"))
        await asyncio.sleep(0.1)
        gone.cancel()
        await asyncio.wait([gone])
        assert (queue.waiting, notes["dropped"]) == (1, 1)
        assert [await flying, await stays] == [own("f"), [("again", "b")]]
        assert engine.judged == Counter("fb")

    play(scene())


def test_a_later_deadline_keeps_alive_what_the_first_client_gave_up():
    async def scene() -> None:
        queue = queue_of(Engine(10.0), max_wait=0.0)
        flying = asyncio.create_task(ask(queue, "f"))
        await asyncio.sleep(0)
        brief = asyncio.create_task(ask(queue, "a", seconds=1))
        patient = asyncio.create_task(ask(queue, "a", after=0.5))
        with pytest.raises(Expired):
            await brief
        assert await patient == [("again", "a")]
        await flying

    play(scene())


def test_the_same_question_at_once_is_judged_once_and_counts_for_the_first_alone():
    async def scene() -> None:
        queue = queue_of(engine := Engine())
        found = await asyncio.gather(*(ask(queue, "a", "b", "a") for _ in range(20)))
        assert found[0] == [("answer", "a"), ("answer", "b"), ("again", "a")]
        assert all(answers == [("again", name) for name in "aba"] for answers in found[1:])
        assert engine.judged == Counter("ab")

    play(scene())


def test_an_exception_reaches_all_who_wait_and_none_whose_unit_was_only_in_the_same_batch():
    async def scene() -> None:
        queue = queue_of(engine := Engine(wrong="bad"))
        guilty = [asyncio.create_task(ask(queue, "bad")) for _ in range(3)]
        fine = [asyncio.create_task(ask(queue, name)) for name in "ab"]
        await asyncio.wait(guilty)
        assert [type(task.exception()) for task in guilty] == [ZeroDivisionError] * 3
        assert [await task for task in fine] == [own("a"), own("b")]
        assert engine.batches == [["bad", "a", "b"], ["bad"], ["a"], ["b"]]
        with pytest.raises(ZeroDivisionError):  # and is not kept
            await ask(queue, "bad")

    play(scene())


def test_too_few_answers_are_an_error_and_no_shift_of_answers_to_the_wrong_client():
    async def scene() -> None:
        async def short(requests: list[str]) -> list[tuple[str, str]]:
            return own(*requests)[1:]

        queue = queue_of(engine := Engine())
        engine.judge = short  # type: ignore[method-assign]
        queue = queue_of(engine)
        for name in "ab":
            with pytest.raises(ValueError, match="0 answers to 1"):
                await ask(queue, name)

    play(scene())


def test_an_engine_that_dies_once_costs_nobody_the_answer_and_none_is_doubled():
    async def scene() -> None:
        notes: Counter = Counter()
        queue = queue_of(engine := Engine(deaths=2), notes, in_flight=2)
        found = await asyncio.gather(*(ask(queue, f"{i}") for i in range(12)))
        assert found == [own(f"{i}") for i in range(12)]
        assert engine.batches[2:] == engine.batches[:2] + [[f"{i}" for i in range(8, 12)]]  # the same, first in line
        assert notes["engine_deaths"] == 2

    play(scene())


def test_a_request_that_kills_engines_fails_after_so_many_deaths_alone_and_its_neighbours_do_not():
    async def scene(engine_deaths: int) -> Engine:
        queue = queue_of(engine := Engine(deadly="poison", slow="5"), in_flight=3, engine_deaths=engine_deaths)
        names = ["a", "poison", "b", *(f"{i}" for i in range(9))]  # 5 flies on while the others die
        found = await asyncio.gather(*(ask(queue, name) for name in names))
        assert found == [[("failed", "died")] if name == "poison" else own(name) for name in names]
        assert await ask(queue, "a") == [("again", "a")]
        return engine

    for deaths in (1, 2):
        engine = play(scene(deaths))
        assert engine.judged["poison"] == 2 + deaths
        alone = [lonely for batch, lonely in zip(engine.batches, engine.alone, strict=True) if batch == ["poison"]]
        assert alone == [True] * deaths


def test_a_failure_is_not_given_again_to_the_next_who_asks():
    async def scene() -> None:
        queue = queue_of(engine := Engine(deadly="x", unread="y"))
        assert await ask(queue, "x") == [("failed", "died")]
        assert await ask(queue, "y") == [("failed", "y")]
        engine.deadly = engine.unread = ""
        assert await ask(queue, "x", "y") == own("x", "y")

    play(scene())


@pytest.mark.parametrize("fault", [{"deaths": 1}, {"wrong": "a"}])
def test_what_nobody_waits_for_any_more_when_its_engine_dies_or_raises_is_counted_as_dropped(fault):
    async def scene() -> None:
        for names in ("a", "ab"):
            notes: Counter = Counter()
            queue = queue_of(engine := Engine(**fault), notes, max_wait=0.0)
            gone = [asyncio.create_task(ask(queue, name, seconds=0.5)) for name in names]
            with pytest.raises(Expired):
                await asyncio.gather(*gone)
            await asyncio.sleep(10)
            assert (notes["dropped"], len(engine.batches), queue.waiting) == (len(names), 1, 0)

    play(scene())


def test_waiting_for_an_engine_to_start_is_no_death_of_those_who_wait():
    async def scene() -> None:
        queue = queue_of(engine := Engine(down=30))
        assert await ask(queue, "a", "b") == own("a", "b")
        assert engine.batches == [["a", "b"]]

    play(scene())


def test_a_deadline_that_comes_while_the_engine_is_gone_says_so_and_nothing_of_it_is_left():
    async def scene() -> None:
        queue = queue_of(engine := Engine(deaths=1))
        asked = asyncio.create_task(ask(queue, "a", seconds=1.5))
        await asyncio.sleep(1.2)
        engine.down = 10
        with pytest.raises(Expired) as late:
            await asked
        assert late.value.engine_lost
        engine.down = 0
        await asyncio.sleep(20)
        assert (queue.waiting, queue.under_way) == (0, 0)

    play(scene())


def test_who_came_while_there_was_no_engine_is_told_so_and_who_came_after_it_was_back_only_of_the_deadline():
    async def scene() -> None:
        queue = queue_of(engine := Engine(down=10), max_batch=1)
        early = [asyncio.create_task(ask(queue, name, seconds=5)) for name in ("sent", "behind")]
        await asyncio.wait(early)
        assert [task.exception().engine_lost for task in early] == [True, True]
        engine.down, engine.slow = 0, "slow"
        assert await ask(queue, "a") == own("a")
        with pytest.raises(Expired) as late:
            await ask(queue, "slow", seconds=5)
        assert not late.value.engine_lost

    play(scene())


def test_what_is_kept_is_bounded_in_answers_and_the_longest_unused_goes_first():
    async def scene() -> None:
        queue = queue_of(engine := Engine(), cache=3)
        for name in ("a", "b", "c", "a"):
            await ask(queue, name)
        await queue.ask([unit("d")], FAR)
        assert await ask(queue, "a", "c") == [("again", "a"), ("again", "c")]
        assert await ask(queue, "b") == own("b")
        await queue.ask([unit(*"wxyz")], FAR)  # more than may be kept
        assert await queue.ask([unit(*"wxyz")], FAR) == own(*"wxyz")
        assert engine.judged["b"] == engine.judged["w"] == 2

    play(scene())


def test_nothing_is_kept_where_nothing_shall_be():
    async def scene() -> Engine:
        queue = queue_of(engine := Engine(), cache=0)
        assert [await ask(queue, "a"), await ask(queue, "a")] == [own("a"), own("a")]
        return engine

    assert play(scene()).judged == Counter("aa")


def test_at_the_end_what_was_taken_in_is_answered_and_no_more_is_taken_in():
    async def scene() -> None:
        queue = queue_of(Engine(2.0), max_wait=3600.0, max_batch=2)
        asked = asyncio.create_task(ask(queue, "a", "b", "c"))
        await asyncio.sleep(1)
        ending = asyncio.create_task(queue.drain(60.0))
        await asyncio.sleep(0)
        with pytest.raises(Stopping):
            await ask(queue, "d")
        await ending
        assert asyncio.get_running_loop().time() == 4.0
        assert await asked == own("a", "b", "c")

    play(scene())


def test_what_is_not_done_when_the_time_to_end_is_over_is_told_so():
    async def scene() -> None:
        queue = queue_of(Engine(100.0), max_wait=0.0)
        asked = [asyncio.create_task(ask(queue, name, after=i)) for i, name in enumerate("ab")]
        await asyncio.sleep(2)
        await queue.drain(5.0)
        await asyncio.wait(asked)
        assert [type(task.exception()) for task in asked] == [Stopping, Stopping]
        assert asyncio.get_running_loop().time() == 7.0
        assert (queue.waiting, queue.under_way) == (0, 0)

    play(scene())


@dataclass(frozen=True)
class Client:
    after: float
    seconds: float
    names: tuple[str, ...]
    patience: float
    """After so long it goes away without a word."""


CLIENTS = st.builds(
    Client,
    after=st.floats(0, 5),
    seconds=st.sampled_from([0.5, 2.0, 8.0, 1000.0]),
    names=st.lists(st.sampled_from(["a", "b", "c", "d", "poison", "bad", "e", "f", "g"]), min_size=1, max_size=4).map(
        tuple
    ),
    patience=st.sampled_from([0.7, 1000.0, 1000.0]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(CLIENTS, max_size=12), st.integers(0, 2), st.integers(1, 3), st.sampled_from([0, 2, 100]))
def test_whatever_happens_each_client_gets_its_own_answers_or_a_reason(clients, deaths, in_flight, cache):
    async def scene() -> None:
        engine = Engine(deaths=deaths, deadly="poison", wrong="bad")
        most = max((len(client.names) for client in clients), default=1)
        queue = queue_of(engine, max_queue=max(6, most), in_flight=in_flight, cache=cache)

        async def act(client: Client) -> None:
            asked = asyncio.create_task(ask(queue, *client.names, seconds=client.seconds, after=client.after))
            await asyncio.wait([asked], timeout=client.patience)
            if not asked.done():
                asked.cancel()
                return
            error = asked.exception()
            assert isinstance(error, Expired | QueueFull | ZeroDivisionError | None)
            if isinstance(error, ZeroDivisionError):
                assert "bad" in client.names
            elif error is None:
                found = ["poison" if answer[0] == "failed" else answer[1] for answer in asked.result()]
                assert found == list(client.names)
            elif isinstance(error, Expired):
                assert math.isclose(asyncio.get_running_loop().time(), client.after + client.seconds)

        await asyncio.gather(*map(act, clients))
        await asyncio.sleep(1000)
        assert (queue.waiting, queue.under_way, engine.at_once) == (0, 0, 0)
        assert engine.most_at_once <= in_flight
        assert all(len(set(batch)) == len(batch) <= 4 for batch in engine.batches)

    play(scene())
