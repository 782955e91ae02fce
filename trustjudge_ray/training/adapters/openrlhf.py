"""OpenRLHF: `--remote_rm_url` with the path of this file. Configured by the environment: TRUSTJUDGE_REWARD is a
configuration's path or a reward service's address. (Without this file, `--remote_rm_url http://…/openrlhf` asks the
service itself.)

OpenRLHF hands over texts after the chat template. Those of ChatML, Llama 3 and Gemma are taken apart into messages; any
other prompt, also one that only quotes such marks, is one turn of the user, marks included.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from trustjudge_ray.training.adapters import RewardSource, missing_of, plain_reference, source, value_or
from trustjudge_ray.training.reward_hygiene import hygiene
from trustjudge_ray.training.rewards import RewardError, RewardRequest

TURNS: Final = {
    "chatml": re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL),
    "llama3": re.compile(r"<\|start_header_id\|>(\w+)<\|end_header_id\|>\n\n(.*?)<\|eot_id\|>", re.DOTALL),
    "gemma": re.compile(r"<start_of_turn>(\w+)\n(.*?)<end_of_turn>", re.DOTALL),
}
"""Finished turns in templated texts: role and content."""
ENDS: Final = (
    "<|im_end|>",
    "<|eot_id|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<pad>",
)
"""What may stand at the end of a completion and is none of it."""
_BEGINNING: Final = re.compile(r"\s*(?:(?:<[^<>\s]+>|\[\w+\])\s*)*")
"""What may stand before the first turn: marks of the beginning."""
_OPEN_TURNS: Final = ("<|im_start|>", "<|start_header_id|>", "<start_of_turn>")
"""How what follows the last finished turn begins: the turn that is the completion."""
_ROLES: Final = {"model": "assistant"}
_LONGEST_MARK: Final = 32
"""Characters that a mark of the beginning before the prompt may have."""


def reward_func(
    queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], **ignored: Any
) -> dict[str, Any]:
    """Rewards as OpenRLHF takes them: tensors `rewards` and `scores` (the same), and `extra_logs` of `judged` and what
    `hygiene` found in the batch, repeated for each sample.

    Args:
        queries: prompt and completion in one text.
        labels: reference answers; None or blank for none.

    Raises:
        MissingRewardError: there is no reward, and `rewards.missing` says nothing to put in its place.
    """
    import torch

    values, logs = rewards_of(source(), queries, prompts, labels)
    rewards = torch.tensor(values, dtype=torch.float32)
    extra = {name: torch.tensor(column, dtype=torch.float32) for name, column in logs.items()}
    return {"rewards": rewards, "scores": rewards, "extra_logs": extra}


def rewards_of(
    given: RewardSource, queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]
) -> tuple[list[float], dict[str, list[float]]]:
    """The rewards, and columns for the log; without torch."""
    requests = [
        RewardRequest(turns(prompt), completion(query, prompt), plain_reference(label))
        for query, prompt, label in zip(queries, prompts, labels, strict=True)
    ]
    rewards = given.rewards(requests)
    values = [value_or(reward, missing_of(given), "OpenRLHF") for reward in rewards]
    figures = {name: [value] * len(values) for name, value in hygiene(requests, rewards).items()}
    return values, figures | {"judged": [float(reward.value is not None) for reward in rewards]}


def turns(prompt: str) -> tuple[dict[str, str], ...]:
    """The messages of a templated prompt, or all of it as one turn of the user: where text stands outside the turns,
    which would be lost."""
    for pattern in TURNS.values():
        found = list(pattern.finditer(prompt))
        if found and _nothing_outside(prompt, found):
            return tuple({"role": _ROLES.get(turn[1], turn[1]), "content": turn[2].strip()} for turn in found)
    return ({"role": "user", "content": prompt},)


def _nothing_outside(prompt: str, found: Sequence[re.Match[str]]) -> bool:
    between = "".join(prompt[turn.end() : after.start()] for turn, after in pairwise(found))
    rest = prompt[found[-1].end() :].strip()
    begins = _BEGINNING.fullmatch(prompt[: found[0].start()])
    return bool(begins) and not between.strip() and (not rest or rest.startswith(_OPEN_TURNS))


def completion(query: str, prompt: str) -> str:
    """What follows the prompt in a query, without marks of its end.

    Raises:
        RewardError: the query does not begin with its prompt (after a mark of the beginning), so that where the
            completion begins would be a guess.
    """
    start = query.find(prompt, 0, len(prompt) + _LONGEST_MARK)
    if start < 0:
        raise RewardError(
            f"OpenRLHF: a query does not begin with its prompt, got {query[:80]!r} for {prompt[:80]!r}; queries are "
            f"prompt and completion in one text"
        )
    text = query[start + len(prompt) :]
    while True:
        text = text.rstrip()
        ending = next((end for end in ENDS if text.endswith(end)), None)
        if ending is None:
            return text.strip()
        text = text.removesuffix(ending)
