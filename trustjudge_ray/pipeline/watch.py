"""What a judge's process keeps to: it says what it begins before it begins it, and gives suspects the engine alone."""

import contextlib
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trustjudge_ray.judging import base
from trustjudge_ray.pipeline.attempts import Attempts, Sending, Suspect

_PATIENCE = 60.0
"""Seconds to wait for the record of attempts; without it a batch is sent whole."""


def keep_attempts(limit: int) -> Any:
    """The handle of an actor that keeps Attempts: on the driver's node, without resources of its own, and private to
    whoever has the handle. It ends with its last handle. If it dies it forgets, and only more tries are made."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    kept = ray.remote(Attempts).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here)
    return kept.remote(limit)


class Watch:
    """A replica's line to the record of attempts. Whatever happens to the record, judging goes on."""

    def __init__(self, attempts: Any) -> None:
        self._attempts = attempts
        self._slot = ray.get_runtime_context().get_actor_id() or "driver"
        self._life = uuid.uuid4().hex

    def starting(self) -> bool:
        """Say that an engine is being loaded; whether the process before this one died of its work.

        Raises:
            base.RunError: it died so often that the run must end.
        """
        died, over = self._ask("starting", self._slot, self._life, default=(False, None))
        if over is not None:
            raise base.RunError(over)
        return bool(died)

    def started(self) -> None:
        """Say that the engine is loaded."""
        self._ask("started", self._slot, default=None)

    def says(self, words: str) -> None:
        """Hand on an engine's last words."""
        self._ask("says", self._slot, words[:500], default=None)

    def begin(self, batch: str, tasks: pa.Table) -> Sending:
        """How to send a batch of TASKS."""
        whole = Sending([list(range(len(tasks)))])
        return self._ask("begin", self._slot, self._life, batch, suspects(tasks), default=whole)

    def sending(self, batch: str, tasks: list[str]) -> None:
        """Say that these tasks go into the engine alone."""
        self._ask("sending", batch, tasks, default=None)

    def finished(self, batch: str, tasks: list[str] | None) -> None:
        """Say that these tasks came out of it; None: the whole batch, and it is done with."""
        self._attempts.finished.remote(self._slot, batch, tasks)

    def done(self, batch: str) -> None:
        """Say that a batch is done with."""
        self._attempts.done.remote(batch)

    def _ask(self, what: str, *given: Any, default: Any) -> Any:
        try:
            return ray.get(getattr(self._attempts, what).remote(*given), timeout=_PATIENCE)
        except ray.exceptions.RayError:
            return default


def suspects(tasks: pa.Table) -> list[Suspect]:
    """The tasks' ids, each with the answers that it shows."""
    columns = (tasks[name].to_pylist() for name in ("task_id", "question_id", "response_a", "response_b"))
    return [
        (task, ((question, a), (question, b)) if b is not None else ((question, a),))
        for task, question, a, b in zip(*columns, strict=True)
    ]


class Turns:
    """Who may use the engine: up to `room` batches together, or one alone, who need not wait for ever."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._inside = 0
        self._waiting_alone = 0
        self._change = threading.Condition()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Beside others."""
        with self._change:
            self._change.wait_for(lambda: self._inside < self._room and not self._waiting_alone)
            self._inside += 1
        try:
            yield
        finally:
            self._leave(1)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """With nobody beside."""
        with self._change:
            self._waiting_alone += 1
            self._change.wait_for(lambda: self._inside == 0)
            self._waiting_alone -= 1
            self._inside = self._room
        try:
            yield
        finally:
            self._leave(self._room)

    def _leave(self, places: int) -> None:
        with self._change:
            self._inside -= places
            self._change.notify_all()
