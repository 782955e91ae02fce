"""One benchmark a file: `run(options)` says figures for a person and returns those of the JSON line."""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO


@dataclass(frozen=True)
class Options:
    """What the command line asks for, and the standard output that only `say` writes to."""

    reference: Path | None
    small: bool
    out: TextIO

    def say(self, text: str) -> None:
        """Print a line for a person."""
        print(text, file=self.out, flush=True)


def seconds(work: Callable[[], object]) -> float:
    """How long a call takes. What was left behind before it is collected first, and not on its account."""
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def alternating(first: Callable[[], object], second: Callable[[], object], pairs: int) -> tuple[float, list[float]]:
    """The median of second/first over pairs of runs, and all ratios; each pair in the other order than the last."""
    ratios = []
    for pair in range(pairs):
        if pair % 2:
            later = seconds(second)
            ratios.append(later / seconds(first))
        else:
            earlier = seconds(first)
            ratios.append(seconds(second) / earlier)
    return statistics.median(ratios), ratios
