"""The `preferences` section of a run's configuration: which judgments label pairs, and which pairs are kept."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class PreferencesConfig:
    """How judgments become preference pairs (`jobs/preferences.py`, `trustjudge export`)."""

    judge: str | None = None
    """Whose judgments: a judge's name; by default the run's only, or first, judge."""
    protocol: str | None = None
    """The comparison protocol that decides; by default the run's first."""
    score_protocol: str | None = None
    """The score protocol whose expected scores stand beside it; by default the run's first, if it has one."""
    filters: dict[str, Any] = field(default_factory=dict)
    """Which pairs are kept, by name: `min_margin` (0 to 1), `both_orders_agree`, `scores_agree`, `no_cycle` (true),
    `max_p_tie`, `min_label_mass` (0 to 1), `max_length_ratio` (1 or more), `min_score` (points of the scale). A pair
    goes to the side table for the first one that it does not pass."""
    data_source: str = "trustjudge"
    """What verl's rows are called: it picks the reward function by this."""
