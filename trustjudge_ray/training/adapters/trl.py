"""TRL: a reward function for GRPOTrainer and the other online trainers, `reward_funcs=TrlReward("rewards.yaml")`.

TRL calls it with a list for every column and takes a number or None for each completion. A group is not named and its
size is not passed: completions of equal prompts are one group, as far as this process sees them.
"""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from trustjudge_ray.training.adapters import RewardSource, plain_messages, plain_reference, plain_text, source
from trustjudge_ray.training.reward_hygiene import hygiene
from trustjudge_ray.training.rewards import Reward, RewardRequest

Log = Callable[[str, float], None]


class TrlReward:
    """A reward function. Holds only names, so it can be pickled; the judge is loaded at the first call."""

    def __init__(
        self,
        where: str | RewardSource | None = None,
        reference: str | None = "reference",
        group: str | None = None,
        name: str = "trustjudge",
    ) -> None:
        """
        Args:
            where: a configuration's path, a reward service's address, a source; None: what TRUSTJUDGE_REWARD names.
            reference: the column that holds reference answers; where the data set has no such column, there are none.
            group: a column that names groups; None: equal prompts.
            name: under which TRL logs its rewards.
        """
        self.__name__ = name
        self._where, self._reference, self._group = where, reference, group

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """A reward for each completion, None where it could not be judged."""
        requests = self._requests(prompts, completions, columns)
        return self._logged(requests, source(self._where).rewards(requests), columns)

    def _requests(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: dict[str, Any]
    ) -> list[RewardRequest]:
        nothing = [None] * len(prompts)
        references = columns.get(self._reference or "", nothing)
        groups = columns.get(self._group or "", nothing)
        return [
            RewardRequest(plain_messages(prompt), said(completion), plain_reference(reference), _text(group))
            for prompt, completion, reference, group in zip(prompts, completions, references, groups, strict=True)
        ]

    def _logged(
        self, requests: list[RewardRequest], rewards: list[Reward], columns: dict[str, Any]
    ) -> list[float | None]:
        """The values; the batch's figures go to TRL's log, each completion's status to its table of completions."""
        log: Log | None = columns.get("log_metric")
        for key, value in hygiene(requests, rewards).items() if log else ():
            if log and math.isfinite(value):
                log(f"{self.__name__}/{key}", value)
        if columns.get("log_extra"):
            columns["log_extra"](f"{self.__name__}_status", [reward.status for reward in rewards])
        if rewards and all(reward.value is None for reward in rewards):
            warnings.warn(self._nothing(rewards), RuntimeWarning, stacklevel=3)
        return [reward.value for reward in rewards]

    def _nothing(self, rewards: list[Reward]) -> str:
        """That a whole batch teaches nothing, and why."""
        statuses = Counter(reward.status for reward in rewards)
        why = ", ".join(f"{status} {count}" for status, count in statuses.most_common())
        mend = f"; reference answers are read from the column '{self._reference}'" if "no_reference" in statuses else ""
        return f"{self.__name__}: none of {len(rewards)} completions has a reward: {why}{mend}"


class AsyncTrlReward(TrlReward):
    """The same as a coroutine, which TRL runs beside the other asynchronous reward functions."""

    async def __call__(  # type: ignore[override]
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """A reward for each completion, None where it could not be judged."""
        requests = self._requests(prompts, completions, columns)
        return self._logged(requests, await source(self._where).arewards(requests), columns)


def said(completion: Any) -> str:
    """A completion as a text: of a conversational one what the assistant said, turn after turn."""
    if isinstance(completion, str):
        return completion
    turns = [plain_text(message.get("content")) for message in completion if message["role"] == "assistant"]
    return "\n\n".join(turn for turn in turns if turn)


def _text(group: Any) -> str | None:
    return None if group is None else str(group)
