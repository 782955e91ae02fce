"""TRL: a reward function for GRPOTrainer and the other online trainers, `reward_funcs=TrlReward("rewards.yaml")`.

TRL calls it with a list for every column and takes a number or None for each completion. A group is not named and its
size is not passed: completions of equal prompts are one group, as far as this process sees them. Some trainers take
None for 0: there it is an error, unless `rewards.missing` says what to give instead.
"""

import asyncio
import importlib.metadata
import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from trustjudge_ray.training.adapters import (
    RewardSource,
    missing_of,
    plain_messages,
    plain_reference,
    plain_text,
    refuse_no_messages,
    source,
    value_or,
)
from trustjudge_ray.training.reward_hygiene import hygiene
from trustjudge_ray.training.rewards import Reward, RewardError, RewardRequest

Log = Callable[[str, float], None]
_REFERENCE: Final = "reference"
_KNOWS_NONE: Final = (1, 6)
"""The first version of TRL that leaves a completion without a reward out of its group."""


class TrlReward:
    """A reward function. Given the name of a source it holds only names, so that it can be pickled; the judge is loaded
    at the first call."""

    def __init__(
        self,
        where: str | RewardSource | None = None,
        reference: str | None = _REFERENCE,
        group: str | None = None,
        name: str = "trustjudge",
    ) -> None:
        """
        Args:
            where: a configuration's path, a reward service's address, a source; None: what TRUSTJUDGE_REWARD names.
            reference: the column that holds reference answers; None: there are none. The data set may be without the
                column `reference`, but not without one of another name.
            group: a column that names groups; None: equal prompts.
            name: under which TRL logs its rewards.
        """
        self.__name__ = name
        self._where, self._reference, self._group = where, reference, group

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """A reward for each completion, None where it could not be judged.

        Raises:
            RewardError: the data set has no column of a name that was given, or one that does not fit.
        """
        requests = self._requests(prompts, completions, columns)
        return self._logged(requests, source(self._where).rewards(requests), columns)

    def _requests(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: dict[str, Any]
    ) -> list[RewardRequest]:
        nothing = [None] * len(prompts)
        for name in (self._reference, self._group):
            if name not in (None, _REFERENCE, *columns):
                there = sorted(key for key, column in columns.items() if isinstance(column, list))
                raise RewardError(f"{self.__name__}: the data set has no column '{name}'; it has {there}")
        references, groups = (columns.get(name or "") for name in (self._reference, self._group))
        references, groups = nothing if references is None else references, nothing if groups is None else groups
        given = {"prompts": prompts, "completions": completions, self._reference: references, self._group: groups}
        for name, column in given.items():
            if isinstance(column, str) or len(column) != len(prompts):
                told = "a text" if isinstance(column, str) else f"{len(column)} entries"
                raise RewardError(
                    f"{self.__name__}: {name}: got {told} for {len(prompts)} prompts; a list with one each"
                )
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
        trainer = _takes_none_for_0(columns)
        if trainer is None:
            return [reward.value for reward in rewards]
        return [value_or(reward, missing_of(source(self._where)), trainer) for reward in rewards]

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
        judge = await asyncio.to_thread(source, self._where)
        return self._logged(requests, await judge.arewards(requests), columns)


def _takes_none_for_0(columns: dict[str, Any]) -> str | None:
    """Who calls, if it is a trainer that sums over what is missing: any before TRL 1.6; later one that hands over its
    state and no log (OnlineDPO, SDPO): those that know None hand over both (GRPO, RLOO) or neither."""
    try:
        version = importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError:
        return None
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < _KNOWS_NONE:
        return f"TRL {version}"
    stateful = type(columns.get("trainer_state")).__name__ == "TrainerState"
    return "this trainer of TRL" if stateful and "log_metric" not in columns else None


def said(completion: Any) -> str:
    """A completion as a text: of a conversational one what the assistant said, turn after turn.

    Raises:
        RewardError: it is neither a text nor messages.
    """
    if isinstance(completion, str):
        return completion
    refuse_no_messages("completion", completion)
    turns = [plain_text(message.get("content")) for message in completion if message["role"] == "assistant"]
    return "\n\n".join(turn for turn in turns if turn)


def _text(group: Any) -> str | None:
    return None if group is None else str(group)
