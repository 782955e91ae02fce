"""The `compare` and `nightly` sections of a configuration: when a difference between two runs counts."""

from dataclasses import dataclass, field


@dataclass
class CompareConfig:
    """What `compare` and `jobs/nightly.py` make of a difference between two runs."""

    smallest: float = 0.02
    """The smallest difference that matters, as a share of the measure's range: of a 1–5 score 0.08 points, of a win
    rate or a ratio 2 percentage points. A comparison that could not have shown it is called underpowered."""
    fail_on: list[str] = field(default_factory=list)
    """What makes the exit status 1: `regressed` (a model, or all together), `regressed_by_smallest` (by at least
    `smallest`), `underpowered`, `inconsistent` (a conflict or non-transitivity ratio rose), `missing` (models or
    questions that one run lacks), `judge_changed`. Empty: never."""
    bootstrap: int = 500
    """Resamples of the questions, for ranks."""


@dataclass
class NightlyConfig:
    """What `jobs/nightly.py` compares tonight's run with."""

    against: str | None = None
    """A run folder; or the folder that the nights lie in, of which the newest complete one other than tonight's is
    taken. By default the folder that `out` lies in."""
    require: bool = False
    """Whether a first night, with nothing to compare with, fails."""
