"""The `rewards` section of a configuration: how a judge's judgments become a reward for training."""

import math
from dataclasses import dataclass

MODES = ("score", "anchor", "group")
SCALES = ("unit", "points")
SCORE_RULES = ("expected", "softmax_weighted", "geval", "baseline", "mode")


@dataclass
class RewardConfig:
    """What a completion is judged against, and what number that gives."""

    mode: str | None = None
    """`score`: the expected score. `anchor`: P(it beats the request's reference), P(tie)/2 included. `group`: the mean
    of that over the other completions of its group. By default `anchor` for a request that has a reference, else
    `score`."""
    score_protocol: str = "score-5-conversation"
    """Of mode `score`: a built-in name, or the path of a YAML file. What has no {conversation} (`score-5`) shows the
    judge the user's turns alone: no system turn, no earlier answer."""
    pair_protocol: str = "compare-conversation"
    """Of modes `anchor` and `group`; likewise `compare`."""
    score_rule: str = "expected"
    """How a distribution becomes a score; `baseline` is the discrete reward, the label that was emitted."""
    opponents: int | None = None
    """Of mode `group`: so many opponents are drawn for each completion, by `seed` (one more for some in a group of an
    odd number). By default all others."""
    both_orders: bool = True
    """Whether a pair is judged in both orders; else in one, drawn for each pair by `seed`."""
    scale: str = "unit"
    """A score's: `unit` maps the scale's ends to 0 and 1, `points` leaves it. Of pairs rewards are probabilities."""
    dead_zone: float = 0.0
    """A pair whose win probability is nearer to ½ than this counts as ½."""
    seed: int = 0
    """Of drawn opponents and orders."""
    cache: int = 100_000
    """How many judgments are kept, by content: the same completion is not judged again. 0 keeps none."""
    gather_seconds: float = 0.02
    """How long an asynchronous call waits for others that are judged in one batch with it."""
    missing: float | None = None
    """What trainers get that know no missing reward (verl, OpenRLHF) where there is none; by default they get an
    error. TRL gets None in any case, from its 1.6 on."""


def reward_faults(rewards: RewardConfig) -> list[str]:
    """Values of the right type that make no sense, each as key, what it got and what would be right."""
    checks = [
        ("mode", rewards.mode is None or rewards.mode in MODES, f"one of {list(MODES)}, or nothing"),
        ("score_rule", rewards.score_rule in SCORE_RULES, f"one of {list(SCORE_RULES)}"),
        ("scale", rewards.scale in SCALES, f"one of {list(SCALES)}"),
        ("opponents", rewards.opponents is None or rewards.opponents > 0, "1 or more, or nothing for all"),
        ("dead_zone", 0 <= rewards.dead_zone < 0.5, "a probability below 0.5"),
        ("cache", rewards.cache >= 0, "0 or more"),
        ("gather_seconds", 0 <= rewards.gather_seconds < math.inf, "0 or more"),
        ("missing", rewards.missing is None or math.isfinite(rewards.missing), "a number, or nothing"),
    ]
    return [f"rewards.{key}: got {getattr(rewards, key)!r}; {right}" for key, fine, right in checks if not fine]
