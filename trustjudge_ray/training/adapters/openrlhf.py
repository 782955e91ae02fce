"""OpenRLHF: `--remote_rm_url` with the path of this file. Configured by the environment: TRUSTJUDGE_REWARD is a
configuration's path or a reward service's address. (Without this file, `--remote_rm_url http://…/openrlhf` asks the
service itself.)

OpenRLHF hands over texts after the chat template. Those of ChatML, Llama 3 and Gemma are taken apart into messages; any
other prompt, also one that only quotes such marks, is one turn of the user, marks included.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, Final

from trustjudge_ray.corpus.values import ROLES
from trustjudge_ray.training.adapters import RewardSource, gathered, missing_of, plain_reference, source, value_or
from trustjudge_ray.training.reward_hygiene import FIGURES, hygiene
from trustjudge_ray.training.reward_tasks import role_of
from trustjudge_ray.training.rewards import RewardError, RewardRequest

TURNS: Final = {
    "<|im_start|>": re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\s*", re.DOTALL),
    "<|start_header_id|>": re.compile(
        r"<\|start_header_id\|>(\w+)<\|end_header_id\|>\n\n(.*?)<\|eot_id\|>\s*", re.DOTALL
    ),
    "<start_of_turn>": re.compile(r"<start_of_turn>(\w+)\n(.*?)<end_of_turn>\s*", re.DOTALL),
}
"""How turns begin (ChatML, Llama 3, Gemma), and a finished one: role, content and the blanks that follow it."""
_OPEN: Final = re.compile(
    r"(?:<\|im_start\|>\w+\n|<\|start_header_id\|>\w+<\|end_header_id\|>\n\n|<start_of_turn>\w+\n)"
    r"\s*(?:<think>\s*(?:</think>\s*)?)?"
)
"""How the completion's own turn begins, with marks of thinking that its template puts before it."""
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
BEGINNINGS: Final = (
    "<s>",
    "<bos>",
    "<|begin_of_text|>",
    "<|startoftext|>",
    "<|endoftext|>",
    "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
    "<BOS_TOKEN>",
    "[gMASK]",
    "<sop>",
)
"""What may stand before the first turn and before a prompt, and is none of it: marks of the beginning, as Llama 2 and
Mistral, Gemma, Llama 3, others, GPT-2, DeepSeek, Command and (two of them) GLM have them."""
_BEGINNING: Final = re.compile(rf"\s*(?:(?:{'|'.join(map(re.escape, BEGINNINGS))})\s*)*")
_MARK: Final = re.compile(rf"{'|'.join(map(re.escape, BEGINNINGS))}|\s")
_MOST_MARKS: Final = 6
"""Marks and blanks between them that are looked at before a prompt."""


def reward_func(
    queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], **ignored: Any
) -> dict[str, Any]:
    """Rewards as OpenRLHF takes them: tensors `rewards` and `scores` (the same), and `extra_logs` of `judged` and what
    `hygiene` found in the batch, repeated for each sample. They always have the same names, NaN where there is nothing
    to take a figure over: OpenRLHF cannot put together samples whose logs name different figures.

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
    rewards = gathered(given, requests)
    values = [value_or(reward, missing_of(given), "OpenRLHF") for reward in rewards]
    found = hygiene(requests, rewards)
    figures = {name: [found.get(name, math.nan)] * len(values) for name in FIGURES}
    return values, figures | {"judged": [float(reward.value is not None) for reward in rewards]}


def turns(prompt: str) -> tuple[dict[str, str], ...]:
    """The messages of a templated prompt, or all of it as one turn of the user: where text stands outside the turns, or
    the completion's own turn has begun with some, which would be lost; or where a turn's role is none that is known."""
    for mark, pattern in TURNS.items():
        start = end = prompt.find(mark)
        if start < 0 or not _BEGINNING.fullmatch(prompt, 0, start):
            continue
        found = []
        while turn := pattern.match(prompt, end):
            found.append({"role": role_of(turn[1]), "content": turn[2].strip()})
            end = turn.end()
        known = all(each["role"] in ROLES for each in found)
        if found and known and (end == len(prompt) or _OPEN.fullmatch(prompt, end)):
            return tuple(found)
    return ({"role": "user", "content": prompt},)


def completion(query: str, prompt: str) -> str:
    """What follows the prompt in a query, without marks of its end.

    Raises:
        RewardError: the query does not begin with its prompt (after marks of the beginning), so that where the
            completion begins would be a guess.
    """
    start, end = _end_of(prompt, query), len(query)
    while True:
        while end > start and query[end - 1].isspace():
            end -= 1
        ending = next((mark for mark in ENDS if query.endswith(mark, start, end)), None)
        if ending is None:
            return query[start:end].strip()
        end -= len(ending)


def _end_of(prompt: str, query: str) -> int:
    """Where the prompt ends with which a query begins.

    Raises:
        RewardError: it begins with something else.
    """
    start = 0
    for _ in range(_MOST_MARKS + 1):
        if query.startswith(prompt, start):
            return start + len(prompt)
        mark = _MARK.match(query, start)
        if mark is None:
            break
        start = mark.end()
    raise RewardError(
        f"OpenRLHF: a query does not begin with its prompt, got {query[:80]!r} for {prompt[:80]!r}; queries are prompt "
        f"and completion in one text"
    )
