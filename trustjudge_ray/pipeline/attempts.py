"""Who died of what: batches begun and not finished, so that a judgment that kills engines is found and left out.

An engine that dies takes its process with it, perhaps without a word (a segmentation fault, the kernel's out-of-memory
killer). Ray starts the process anew and gives it the batch again. What Ray does not do is to ask whose fault it was:
that is kept here. A batch on which an engine died is sent again in chunks of about the root of its size, a chunk that
kills judgment by judgment, and a judgment that has killed alone `limit` times becomes a failed row. Chunks and single
judgments have the engine to themselves, so that no other batch takes the blame.
"""

import math
from collections import Counter
from dataclasses import dataclass, field

STARTS = 3
"""Deaths of a replica in a row while it was loading after which the run ends."""
SHOWN_IN = 3
"""So many judgments that show an answer must each have killed engines alone before it is held to be the reason."""
SPARE = 6
"""Deaths of a replica in a row, without one judgment in between, beyond what such an answer costs: the run ends."""

Text = tuple[str, str]
"""A question's and a response's id: one answer that a judge reads."""
Suspect = tuple[str, tuple[Text, ...]]
"""A task's id and the answers that it shows."""


@dataclass(frozen=True, slots=True)
class Sending:
    """How a batch is to be put to the engine.

    Attributes:
        groups: places in the batch, each group a call of its own.
        alone: whether the engine must have nothing else to do meanwhile.
        failed: places that are not to be sent, each with the reason.
    """

    groups: list[list[int]]
    alone: bool = False
    failed: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Batch:
    """A batch that some replica has begun; `under_way` are its tasks that are inside an engine."""

    slot: str
    life: str
    tasks: dict[str, tuple[Text, ...]]
    under_way: list[str] = field(default_factory=list)
    deaths: int = 0
    smallest: dict[str, int] = field(default_factory=dict)
    """Of each task that was inside when an engine died: the smallest number of tasks that were."""


@dataclass(slots=True)
class _Replica:
    """A replica: its present process (`life`), and how the former ones ended."""

    life: str = ""
    loading: bool = False
    failed_starts: int = 0
    in_a_row: int = 0
    last_words: str = ""


class Attempts:
    """The record of one judge's replicas in one run. Plain Python; the pipeline keeps it in a Ray actor.

    Args:
        limit: how often a judgment alone may kill an engine (`run.engine_deaths`).
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._hopeless = SHOWN_IN * limit + SPARE
        self._replicas: dict[str, _Replica] = {}
        self._batches: dict[str, _Batch] = {}
        self._killed: Counter[str] = Counter()
        self._last_words: dict[str, str] = {}
        self._condemned: Counter[Text] = Counter()
        self._harmless: set[Text] = set()

    def starting(self, slot: str, life: str) -> tuple[bool, str | None]:
        """A process begins to load an engine for a replica: did the one before it die at work or while loading, and, if
        this must not go on, why."""
        replica = self._replicas.setdefault(slot, _Replica())
        lost = [batch for batch in self._batches.values() if batch.slot == slot and batch.life != life]
        at_work = [batch for batch in lost if batch.under_way]
        for batch in at_work:
            self._blame(batch, replica.last_words)
        replica.in_a_row += bool(at_work)
        replica.failed_starts += replica.loading
        died = bool(at_work) or replica.loading
        said = f"; its last words: {replica.last_words}" if replica.last_words else ""
        replica.life, replica.loading, replica.last_words = life, True, ""
        look = "; memory, driver and the worker's log in Ray's session folder say more"
        if replica.failed_starts >= STARTS:
            return died, f"the engine died {replica.failed_starts} times in a row while it was loading{said}{look}"
        if replica.in_a_row >= self._hopeless:
            why = f"the engine died {replica.in_a_row} times in a row without one judgment in between"
            return died, f"{why}{said}{look}; what was judged is saved"
        return died, None

    def started(self, slot: str) -> None:
        """The engine is loaded."""
        replica = self._replicas.setdefault(slot, _Replica())
        replica.loading, replica.failed_starts = False, 0

    def says(self, slot: str, words: str) -> None:
        """What an engine said before its process ends."""
        self._replicas.setdefault(slot, _Replica()).last_words = words

    def begin(self, slot: str, life: str, batch: str, suspects: list[Suspect]) -> Sending:
        """How to send a batch. One that never killed is under way from now on, all of it."""
        known = self._batches.get(batch)
        if known is None:
            known = self._batches[batch] = _Batch(slot, life, dict(suspects))
        elif known.under_way and known.life != life:  # Ray gave it to another replica
            self._blame(known, "")
        known.slot, known.life = slot, life
        if not known.deaths:
            known.under_way = list(known.tasks)
            return Sending([list(range(len(suspects)))])
        return self._apart(known, suspects)

    def sending(self, batch: str, tasks: list[str]) -> None:
        """These tasks of a batch go into the engine, which has nothing else to do."""
        if batch in self._batches:
            self._batches[batch].under_way = tasks

    def finished(self, slot: str, batch: str, tasks: list[str] | None = None) -> None:
        """The engine has answered these tasks of a batch: none of them is under suspicion any more. None: it has
        answered the whole batch at once, and nothing of it is left to send."""
        self._replicas.setdefault(slot, _Replica()).in_a_row = 0
        if tasks is None:
            self.done(batch)
            return
        known = self._batches.get(batch)
        if known is None:
            return
        known.under_way = []
        if known.deaths:
            for task in tasks:
                known.smallest.pop(task, None)
                self._harmless.update(known.tasks.get(task, ()))

    def done(self, batch: str) -> None:
        """Nothing of a batch is left to send."""
        self._batches.pop(batch, None)

    def _blame(self, batch: _Batch, words: str) -> None:
        """An engine died with tasks of this batch inside it."""
        alone = batch.deaths > 0 and len(batch.under_way) == 1
        together = len(batch.under_way)
        for task in batch.under_way:
            batch.smallest[task] = min(batch.smallest.get(task, together), together)
        if alone:
            (task,) = batch.under_way
            self._killed[task] += 1
            self._last_words[task] = words
            if self._killed[task] == self._limit:
                self._condemned.update(batch.tasks.get(task, ()))
        batch.deaths += 1
        batch.under_way = []

    def _apart(self, batch: _Batch, suspects: list[Suspect]) -> Sending:
        """A batch that killed, in chunks and, where a chunk killed, judgment by judgment."""
        chunk = max(1, math.isqrt(len(suspects)))
        groups: list[list[int]] = []
        failed: dict[int, str] = {}
        size = 0
        for place, (task, texts) in enumerate(suspects):
            why = self._why_not(task, texts, batch)
            if why is not None:
                failed[place] = why
                continue
            wanted = 1 if batch.smallest.get(task, chunk + 1) <= chunk else chunk
            if not groups or len(groups[-1]) >= size or wanted != size:
                groups.append([])
                size = wanted
            groups[-1].append(place)
        return Sending(groups, True, failed)

    def _why_not(self, task: str, texts: tuple[Text, ...], batch: _Batch) -> str | None:
        """Why a task is not sent any more, if it is not."""
        again = "`trustjudge retry` judges it again"
        if self._killed[task] >= self._limit:
            said = f" (its last words: {self._last_words[task]})" if self._last_words.get(task) else ""
            return f"the engine died {self._killed[task]} times on this judgment alone{said}; {again}"
        for question, response in texts if task in batch.smallest else ():
            shown = self._condemned[question, response]
            if shown >= SHOWN_IN and (question, response) not in self._harmless:
                what = f"response {response} of question {question}"
                return f"not asked: the engine died on {what} in {shown} other judgments, each alone; {again}"
        return None
