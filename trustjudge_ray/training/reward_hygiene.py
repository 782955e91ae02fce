"""What to watch while training on rewards, as numbers for a trainer's own log."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from trustjudge_ray.training.reward_tasks import group_of
from trustjudge_ray.training.rewards import Reward, RewardRequest

SAME = 1e-9
"""Rewards nearer to each other than this are the same."""
DETAILS: Final = ("label_mass", "entropy", "p_tie", "agree", "order_effect")
"""Of a reward's details those that a batch's mean is told of."""
FIGURES: Final = ("missing", "calls", "cut", *DETAILS, "no_spread", "length_correlation")
"""All that `hygiene` may tell."""


def hygiene(requests: Sequence[RewardRequest], rewards: Sequence[Reward]) -> dict[str, float]:
    """Figures of one batch, each only where there is something to take it over.

    `missing`: share of completions without a reward. `calls`: judgments asked for each completion. `cut`: share of
        completions that were judged on texts that were cut to the judge's context.
    `no_spread`: share of groups (of at least two rewards) whose rewards are all the same: they teach a
        group-normalised trainer nothing.
    `length_correlation`: Pearson's, of reward and ln(characters + 1): rises where a policy learns to please by length.
    Means of what the rewards' details have: `label_mass`, `entropy`, `p_tie` (the tie share), `agree` (both orders have
        the same likeliest outcome) and `order_effect` (what the judge gives to the slot that is shown first).
    """
    values = [reward.value for reward in rewards]
    found = {
        "missing": sum(value is None for value in values) / max(len(values), 1),
        "calls": sum(reward.calls for reward in rewards) / max(len(values), 1),
        "cut": sum("cut" in reward.details for reward in rewards) / max(len(values), 1),
    }
    for name in DETAILS:
        told = [reward.details[name] for reward in rewards if name in reward.details]
        found |= {name: math.fsum(told) / len(told)} if told else {}
    groups: dict[tuple[str, str], list[float]] = {}
    read: list[tuple[float, float]] = []
    for request, value in zip(requests, values, strict=True):
        if value is not None:
            groups.setdefault(group_of(request), []).append(value)
            read.append((value, math.log(len(request.completion) + 1)))
    flat = [max(group) - min(group) <= SAME for group in groups.values() if len(group) > 1]
    found |= {"no_spread": sum(flat) / len(flat)} if flat else {}
    if len(read) > 2 and all(np.ptp([pair[i] for pair in read]) > SAME for i in (0, 1)):
        found["length_correlation"] = float(np.corrcoef(np.array(read).T)[0, 1])
    return found
