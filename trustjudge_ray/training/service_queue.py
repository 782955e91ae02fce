"""A bounded queue in front of a judge: gathers what many clients ask into batches, and gives each its own answers.

What is asked comes in *units*: requests that must be judged together (a request alone, or a group), with a key that is
a hash of their content. A unit is judged once however many clients wait for it, and its answers are kept. A unit that
nobody waits for any more is dropped if it was not begun; what was begun is judged to the end, and kept. Runs in one
event loop, by that loop's clock.

When the engine dies its units are sent again, first in line: once as they were (a machine may have been lost), then
each by itself with nothing else under way, so that the one which kills engines is found out; that one is answered as
failed after `engine_deaths` deaths by itself.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Q = TypeVar("Q")
R = TypeVar("R")
Note = Callable[[str, float], None]
"""Is told what happens, by name: `cached`, `shared`, `dropped`, `rejected` (requests), `waiting` (how many there are
now), `batch` (its size), `batch_seconds`, `engine_deaths`."""

_ALONE_AFTER = 2
"""Deaths after which a unit is sent by itself."""
_LONGEST_ADVICE = 60.0
"""Seconds: the longest time after which a client is told to come again."""


class QueueFull(Exception):
    """There is no room; `retry_after` is in how many seconds there will be, after those who were told so before."""

    def __init__(self, retry_after: int, waiting: int, most: int) -> None:
        super().__init__(f"{waiting} requests are waiting, of {most} that may; come again in {retry_after} s")
        self.retry_after = retry_after


class Expired(Exception):
    """The deadline came first. `engine_lost`: an engine died on what is missing, and none has finished it since; or
    there was none when the deadline came."""

    def __init__(self, missing: int, asked: int, engine_lost: bool) -> None:
        why = "; the engine died and is being started anew" if engine_lost else ""
        super().__init__(f"{missing} of {asked} requests were not judged before the deadline{why}")
        self.engine_lost = engine_lost


class Stopping(Exception):
    """The service is being ended; nothing more is taken in."""


class EngineLost(Exception):
    """The engine died on a batch. `begun` is false where there was no engine that could have begun it."""

    def __init__(self, message: str, begun: bool = True) -> None:
        super().__init__(message)
        self.begun = begun


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the queue holds and how it makes batches. Sizes are in requests, times in seconds."""

    max_batch: int
    max_wait: float
    """How long the first unit of a batch waits for others."""
    max_queue: int
    in_flight: int
    """Batches that are judged at once."""
    cache: int
    engine_deaths: int = 1


@dataclass(frozen=True, slots=True)
class Unit(Generic[Q]):
    """Requests that are judged together; `key` is a hash of their content."""

    key: str
    requests: tuple[Q, ...]


@dataclass(slots=True, eq=False)
class _Entry(Generic[Q, R]):
    unit: Unit[Q]
    arrived: float
    until: float
    done: "asyncio.Future[tuple[R, ...]]"
    waiters: int = 0
    deaths: int = 0
    deaths_alone: int = 0
    single: bool = False
    """Whether it is sent by itself, because a batch that it was in failed."""

    @property
    def size(self) -> int:
        return len(self.unit.requests)

    @property
    def suspect(self) -> bool:
        return self.deaths >= _ALONE_AFTER


_Found = tuple[_Entry[Q, R] | tuple[R, ...], bool]
"""Of a unit the entry to wait for or its kept answers, and whether it was taken in for this asker."""


class RewardQueue(Generic[Q, R]):
    """Units in, answers out.

    Args:
        judge: judges a batch: one answer for each request, in order. Raises EngineLost when the engine died; any other
            exception reaches all who wait for the batch.
        keep: whether an answer may be given again to the same question; a failure may not.
        again: what is given in place of an answer to all but the first who asked for it.
        failed: the answer of each request of a unit on which engines died, from the reason.
        note: is told what happens.
    """

    def __init__(
        self,
        judge: Callable[[list[Q]], Awaitable[Sequence[R]]],
        limits: Limits,
        keep: Callable[[R], bool],
        again: Callable[[R], R],
        failed: Callable[[str], R],
        note: Note = lambda name, value: None,
    ) -> None:
        self._judge, self._limits, self._note = judge, limits, note
        self._keep, self._again, self._failed = keep, again, failed
        self._waiting: OrderedDict[str, _Entry[Q, R]] = OrderedDict()
        self._begun: dict[str, _Entry[Q, R]] = {}
        self._kept: OrderedDict[str, tuple[R, ...]] = OrderedDict()
        self._kept_size = self._size = 0
        self._flights: set[asyncio.Task[None]] = set()
        self._exclusive = self._stopping = self._engine_lost = False
        self._timer: asyncio.TimerHandle | None = None
        self._pace = self._promised = 0.0

    @property
    def waiting(self) -> int:
        """Requests that are not begun."""
        return self._size

    @property
    def under_way(self) -> int:
        """Batches that are being judged."""
        return len(self._flights)

    @property
    def stopping(self) -> bool:
        """Whether nothing is taken in any more."""
        return self._stopping

    async def ask(self, units: Sequence[Unit[Q]], until: float) -> list[R]:
        """The answers to the requests of all units, in order.

        Args:
            until: the deadline, in the event loop's time.

        Raises:
            QueueFull: there is no room for all of them; none is taken in.
            Expired: some were not judged in time.
            Stopping: the queue takes nothing in any more, or was ended.
            Exception: what the judge raised.
        """
        found = self._admit(units, until)
        entries = [answer for answer, _ in found if isinstance(answer, _Entry)]
        try:
            self._pump()
            await self._finished(entries, until)
        finally:
            for entry in entries:
                self._leave(entry)
        answers: list[R] = []
        for answer, mine in found:
            known = answer.done.result() if isinstance(answer, _Entry) else answer
            answers += known if mine else map(self._again, known)
        return answers

    async def drain(self, seconds: float) -> None:
        """Take nothing in any more, wait so long for what is there, and end the rest with Stopping."""
        self._stopping = True
        self._pump()
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self._flights and loop.time() < end:
            await asyncio.wait(self._flights, timeout=end - loop.time(), return_when=asyncio.FIRST_COMPLETED)
        for flight in self._flights:
            flight.cancel()
        for entry in [*self._waiting.values(), *self._begun.values()]:
            _fail(entry, Stopping("the service is being ended"))
        self._waiting.clear()
        self._size = 0

    def _admit(self, units: Sequence[Unit[Q]], until: float) -> list["_Found[Q, R]"]:
        """All are taken in, or none."""
        if self._stopping:
            raise Stopping("the service is being ended")
        known = (self._kept, self._waiting, self._begun)
        fresh = {unit.key: unit for unit in units if not any(unit.key in where for where in known)}
        wanted = sum(len(unit.requests) for unit in fresh.values())
        if wanted and self._size + wanted > self._limits.max_queue:
            self._note("rejected", sum(len(unit.requests) for unit in units))
            raise QueueFull(self._seconds_to_room(wanted), self._size, self._limits.max_queue)
        return [self._found(unit, until) for unit in units]

    def _found(self, unit: Unit[Q], until: float) -> "_Found[Q, R]":
        if unit.key in self._kept:
            self._kept.move_to_end(unit.key)
            self._note("cached", len(unit.requests))
            return self._kept[unit.key], False
        entry = self._waiting.get(unit.key) or self._begun.get(unit.key)
        mine = entry is None
        if entry is None:
            loop = asyncio.get_running_loop()
            entry = _Entry(unit, loop.time(), until, loop.create_future())
            self._put(entry)
        else:
            self._note("shared", len(unit.requests))
        entry.waiters += 1
        entry.until = max(entry.until, until)
        return entry, mine

    async def _finished(self, entries: list["_Entry[Q, R]"], until: float) -> None:
        futures = {entry.done for entry in entries}
        if not futures:
            return
        left = max(0.0, until - asyncio.get_running_loop().time())
        done, _ = await asyncio.wait(futures, timeout=left, return_when=asyncio.FIRST_EXCEPTION)
        for future in done:
            future.result()
        missing = {id(entry): entry for entry in entries if not entry.done.done()}.values()
        if missing:
            asked = sum(entry.size for entry in {id(entry): entry for entry in entries}.values())
            lost = self._engine_lost or any(entry.deaths for entry in missing)
            raise Expired(sum(entry.size for entry in missing), asked, lost)

    def _leave(self, entry: "_Entry[Q, R]") -> None:
        entry.waiters -= 1
        if not entry.waiters and self._waiting.get(entry.unit.key) is entry:
            self._remove(entry)
            self._note("dropped", entry.size)

    def _put(self, entry: "_Entry[Q, R]") -> None:
        self._waiting[entry.unit.key] = entry
        self._size += entry.size
        self._note("waiting", self._size)

    def _remove(self, entry: "_Entry[Q, R]") -> None:
        del self._waiting[entry.unit.key]
        self._size -= entry.size
        self._note("waiting", self._size)

    def _pump(self) -> None:
        """Send what is due, as far as the engine takes batches; otherwise see to it that this is called in time."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting and len(self._flights) < self._limits.in_flight and not self._exclusive:
            first = next(iter(self._waiting.values()))
            if first.suspect and self._flights:
                return
            due = first.arrived + self._limits.max_wait
            full = self._size >= self._limits.max_batch or first.single or first.deaths > 0 or self._stopping
            if not full and loop.time() < due:
                self._timer = loop.call_at(due, self._pump)
                return
            batch = self._take(loop.time())
            if batch:
                self._send(batch)

    def _take(self, now: float) -> list["_Entry[Q, R]"]:
        """The next batch, in the order of arrival. Units whose deadline is over are left out, and dropped."""
        batch: list[_Entry[Q, R]] = []
        size = 0
        while self._waiting:
            entry = next(iter(self._waiting.values()))
            single = entry.single or entry.suspect
            if batch and (single or size + entry.size > self._limits.max_batch):
                break
            self._remove(entry)
            if entry.until <= now:
                self._note("dropped", entry.size)
                continue
            batch.append(entry)
            size += entry.size
            if single:
                break
        return batch

    def _send(self, batch: list["_Entry[Q, R]"]) -> None:
        self._exclusive = batch[0].suspect
        self._begun |= {entry.unit.key: entry for entry in batch}
        flight = asyncio.get_running_loop().create_task(self._fly(batch))
        self._flights.add(flight)

    async def _fly(self, batch: list["_Entry[Q, R]"]) -> None:
        requests = [request for entry in batch for request in entry.unit.requests]
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            answers = list(await self._judge(requests))
            self._engine_lost = False
            if len(answers) != len(requests):
                raise ValueError(f"the judge gave {len(answers)} answers to {len(requests)} requests")
            self._landed(batch, answers, loop.time() - began)
        except EngineLost as lost:
            self._died(batch, lost)
        except Exception as error:
            self._raised(batch, error)
        finally:
            for entry in batch:
                if self._begun.get(entry.unit.key) is entry:
                    del self._begun[entry.unit.key]
            self._flights.discard(asyncio.current_task())
            self._exclusive = False
            self._pump()
            if not self._flights and not self._waiting:
                self._promised = 0.0  # who was promised a turn has had it, or does not come

    def _landed(self, batch: list["_Entry[Q, R]"], answers: list[R], seconds: float) -> None:
        self._note("batch", len(answers))
        self._note("batch_seconds", seconds)
        pace = seconds / len(answers)
        self._pace = pace if not self._pace else 0.8 * self._pace + 0.2 * pace
        start = 0
        for entry in batch:
            own = tuple(answers[start : start + entry.size])
            start += entry.size
            if all(self._keep(answer) for answer in own):
                self._store(entry.unit.key, own)
            if not entry.done.done():
                entry.done.set_result(own)

    def _died(self, batch: list["_Entry[Q, R]"], lost: EngineLost) -> None:
        """Put the units of a batch back, first in line and in their order; those that had their tries are failed."""
        self._note("engine_deaths", float(lost.begun))
        self._engine_lost = True
        for entry in reversed(batch):
            del self._begun[entry.unit.key]
            entry.deaths_alone += lost.begun and entry.suspect
            entry.deaths += lost.begun
            if entry.deaths_alone >= self._limits.engine_deaths and entry.waiters:
                entry.done.set_result((self._failed(str(lost)),) * entry.size)
            else:
                self._put_back(entry)

    def _raised(self, batch: list["_Entry[Q, R]"], error: Exception) -> None:
        """A unit that was judged by itself fails; those of a batch are tried each by itself, for one client's fault is
        not another's."""
        for entry in reversed(batch):
            del self._begun[entry.unit.key]
            if len(batch) == 1 and entry.waiters:
                _fail(entry, error)
            else:
                entry.single = True
                self._put_back(entry)

    def _put_back(self, entry: "_Entry[Q, R]") -> None:
        """First in line, if anybody still waits for it; else it is dropped."""
        if entry.done.done():
            return
        if not entry.waiters:
            self._note("dropped", entry.size)
            return
        self._put(entry)
        self._waiting.move_to_end(entry.unit.key, last=False)

    def _store(self, key: str, answers: tuple[R, ...]) -> None:
        """Keep answers, and of all that are kept the last used."""
        self._kept[key] = answers
        self._kept_size += len(answers)
        while self._kept_size > self._limits.cache:
            _, oldest = self._kept.popitem(last=False)
            self._kept_size -= len(oldest)

    def _seconds_to_room(self, wanted: int) -> int:
        """In how many seconds to come again, at the pace of the last batches, from 1 to a minute: when what waits will
        have been begun, and one after the other. Told the same time, all would come at once, and most in vain."""
        now, each = asyncio.get_running_loop().time(), self._pace / self._limits.in_flight
        turn = min(max(now + self._size * each, self._promised), now + _LONGEST_ADVICE)
        self._promised = turn + wanted * each
        return math.ceil(max(turn - now, 1.0))


def _fail(entry: "_Entry[Q, R]", error: Exception) -> None:
    if not entry.done.done():
        entry.done.set_exception(error)
        entry.done.exception()  # seen, also where nobody waits
