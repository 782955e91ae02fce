"""How far judging is."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trustjudge_ray.judging.base import JUDGE_FAILURES

_SETTLED = 2.0
"""Seconds after the first part before a rate is told: the first parts of several replicas come all at once."""


@dataclass
class Progress:
    """How far the judging of one start is.

    Attributes:
        total: judgments that this start asks for.
        reused: judgments of the run that were there before.
        judged: made in this start, failed ones too.
        failed: of these, on the judge's side.
        tokens: of their prompts; `cached` of them were in the engine's cache.
        written: tokens of their outputs.
        finished: whether no more will come.
        began: when the first batch went to an engine, in seconds since the epoch by the clock of its node.
    """

    total: int = 0
    reused: int = 0
    judged: int = 0
    failed: int = 0
    tokens: int = 0
    cached: int = 0
    written: int = 0
    finished: bool = False
    began: float | None = None
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    _first: tuple[float, int] | None = field(default=None, repr=False)
    _last: float = field(default=0.0, repr=False)

    def starts(self) -> None:
        """Another judge is started: until its first part there is no rate, however long that takes."""
        self._first = None

    def add(self, ledger: dict[str, Any]) -> None:
        """A part was committed, with these rows, statuses and tokens."""
        self.judged += ledger["rows"]
        self.failed += sum(n for status, n in ledger["statuses"].items() if status in JUDGE_FAILURES)
        self.tokens += ledger["prompt_tokens"]
        self.cached += ledger["cached_tokens"]
        self.written += ledger["output_tokens"]
        self.began = min(self.began or ledger["began"], ledger["began"])
        self._last = self.clock()
        if self._first is None:
            self._first = (self._last, self.judged)

    @property
    def rate(self) -> float | None:
        """Judgments a second since the judge's first part was committed: starting an engine does not count. None until
        two seconds after it. When finished, until the last part."""
        if self._first is None:
            return None
        began, before = self._first
        took = (self._last if self.finished else self.clock()) - began
        return (self.judged - before) / took if took >= _SETTLED else None

    @property
    def left(self) -> float | None:
        """Seconds until `total` is judged at this rate; None while nothing can be said."""
        rate = self.rate
        return (self.total - self.judged) / rate if rate else None

    def figures(self) -> dict[str, Any]:
        """All of it under the names of a log: `rate` in judgments a second, `eta` in seconds."""
        rate, left = self.rate, self.left
        return {
            "judged": self.judged,
            "total": self.total,
            "failed": self.failed,
            "reused": self.reused,
            "rate": None if rate is None else round(rate, 2),
            "eta": None if left is None else round(left),
            "tokens": self.tokens,
            "cached": self.cached,
            "written": self.written,
        }
