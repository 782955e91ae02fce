"""Who is blamed when an engine dies: the record of attempts, driven as a replica drives it."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trustjudge_ray.pipeline.attempts import Attempts, Suspect

Kills = Callable[[list[str]], bool]


class RunOver(Exception):
    """The record said that the run must end."""


class Replica:
    """What a judge's process does with its batches, over all its lives."""

    def __init__(self, attempts: Attempts, kills: Kills, slot: str = "r") -> None:
        self.attempts, self.kills, self.slot = attempts, kills, slot
        self.life = -1
        self.sent: list[int] = []
        self.failed: dict[str, str] = {}
        self.answered: set[str] = set()
        self.lives()

    def lives(self) -> None:
        """A new process loads an engine."""
        self.life += 1
        _, over = self.attempts.starting(self.slot, str(self.life))
        if over is not None:
            raise RunOver(over)
        self.attempts.started(self.slot)

    def judge(self, name: str, tasks: Sequence[Suspect]) -> None:
        """One batch, again and again until nothing of it is left."""
        while not self.tries(name, tasks):
            self.lives()

    def tries(self, name: str, tasks: Sequence[Suspect]) -> bool:
        """One batch, once; whether the engine lived."""
        sending = self.attempts.begin(self.slot, str(self.life), name, list(tasks))
        for group in sending.groups:
            ids = [tasks[place][0] for place in group]
            if sending.alone:
                self.attempts.sending(name, ids)
            self.sent.append(len(ids))
            if self.kills(ids):
                return False
            self.attempts.finished(self.slot, name, ids if sending.alone else None)
            self.answered |= set(ids)
        self.failed |= {tasks[place][0]: why for place, why in sending.failed.items()}
        if sending.alone:
            self.attempts.done(name)
        return True


def batch(size: int, response: str | None = None) -> list[Suspect]:
    """Tasks that each show an answer of their own, or all the same one and one of their own."""
    own = [(f"t{i}", ((("q", f"r{i}"),))) for i in range(size)]
    return own if response is None else [(task, (("q", response), *texts)) for task, texts in own]


@given(st.integers(1, 80), st.sets(st.integers(0, 79), max_size=3), st.integers(1, 3))
def test_poison_fails_after_so_many_deaths_alone_and_nothing_else_does(size: int, places: set[int], limit: int):
    poison = {f"t{place}" for place in places if place < size}
    deaths: dict[str, int] = dict.fromkeys(poison, 0)

    def kills(ids: list[str]) -> bool:
        if len(ids) == 1 and ids[0] in poison:
            deaths[ids[0]] += 1
        return not poison.isdisjoint(ids)

    replica = Replica(Attempts(limit), kills)
    replica.judge("b", batch(size))
    assert set(replica.failed) == poison
    assert replica.answered == {f"t{i}" for i in range(size)} - poison
    assert all(limit <= died <= limit + (size == 1) for died in deaths.values())
    assert replica.life <= 1 + len(poison) * (1 + limit)
    replica.kills = lambda ids: False
    replica.sent.clear()
    replica.judge("next", batch(64))
    assert replica.sent == [64], "after the poison batches are whole again"


def test_an_answer_that_kills_in_every_judgment_costs_a_few_engines_and_not_two_for_each():
    replica = Replica(Attempts(2), lambda ids: True)
    replica.judge("b", batch(64, response="killer"))
    assert (len(replica.failed), replica.life) == (64, 8)
    assert "killer of question q" in replica.failed["t63"]


def test_an_answer_that_was_judged_is_not_held_to_be_the_reason():
    poison = {"t10", "t11", "t12", "t13"}
    replica = Replica(Attempts(2), lambda ids: not poison.isdisjoint(ids))
    replica.judge("b", batch(64, response="beside all of them"))
    assert set(replica.failed) == poison


def test_an_engine_that_dies_on_everything_ends_the_run_with_its_last_words():
    attempts = Attempts(2)
    replica = Replica(attempts, lambda ids: bool(attempts.says("r", "no memory")) or True)
    with pytest.raises(RunOver, match=r"12 times in a row without one judgment.*no memory"):
        list(map(replica.judge, "abcdefghi", [batch(64)] * 9))
    assert replica.life == 12


def test_an_engine_that_dies_whenever_it_loads_ends_the_run():
    attempts = Attempts(2)
    said = [attempts.starting("r", str(life)) for life in range(4)]
    assert [died for died, _ in said] == [False, True, True, True]
    assert [over is None for _, over in said] == [True, True, True, False]
    assert "3 times in a row while it was loading" in str(said[-1][1])


def test_deaths_of_other_causes_fail_nothing_and_only_make_the_chunks_of_that_batch_small():
    strokes = iter([True, False, True] + [False] * 100)
    replica = Replica(Attempts(2), lambda ids: next(strokes))
    replica.judge("b", batch(64))
    assert (replica.failed, len(replica.answered), replica.life) == ({}, 64, 2)
    replica.judge("next", batch(64))
    assert replica.sent[-1] == 64


def test_a_batch_that_was_in_the_engine_beside_poison_is_cleared_without_a_death_of_its_own():
    attempts = Attempts(2)
    replica = Replica(attempts, lambda ids: "t3" in ids)
    beside = [(f"b{i}", (("p", f"r{i}"),)) for i in range(9)]
    attempts.begin("r", "0", "beside", beside)
    assert not replica.tries("poison", batch(16))
    replica.lives()
    sending = attempts.begin("r", "1", "beside", beside)
    assert (sending.alone, [len(group) for group in sending.groups], sending.failed) == (True, [3, 3, 3], {})
    replica.judge("beside", beside)
    replica.judge("poison", batch(16))
    assert set(replica.failed) == {"t3"}


def test_a_batch_that_moved_to_another_replica_still_knows_whom_it_killed():
    attempts = Attempts(1)
    first = Replica(attempts, lambda ids: "t5" in ids, "one")
    assert not first.tries("b", batch(16))
    second = Replica(attempts, lambda ids: "t5" in ids, "two")
    second.judge("b", batch(16))
    assert set(second.failed) == {"t5"}


def test_a_record_that_was_lost_makes_only_more_tries():
    replica = Replica(Attempts(2), lambda ids: "t5" in ids)
    for _ in range(2):
        assert not replica.tries("b", batch(16))
        replica.lives()
    replica.attempts = Attempts(2)
    replica.attempts.sending("b", ["t5"])
    replica.attempts.finished("r", "b", ["t5"])
    replica.judge("b", batch(16))
    assert set(replica.failed) == {"t5"}
