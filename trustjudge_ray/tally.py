"""What the judgments of a run come to, counted bucket after bucket: no more than one bucket is ever in memory."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from trustjudge_ray.judging import base
from trustjudge_ray.store import RunFolder

TOKENS = ("prompt", "cached", "output")
_COLUMNS = ["judge", "model_a", "model_b", "status", "truncated", *(f"{name}_tokens" for name in TOKENS)]


@dataclass
class Tally:
    """Judgments by status, their tokens, how many had cut answers, how many further rows of a task were left out,
    and judge-side failures overall and for each model."""

    statuses: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOKENS, 0))
    truncated: int = 0
    further: int = 0
    failures: list[base.Share] = field(default_factory=list)

    @property
    def judgments(self) -> int:
        """How many there are, failed ones too."""
        return sum(self.statuses.values())


def of_bucket(bucket: int, folder: RunFolder) -> dict[str, Any]:
    """The counts of one bucket, as values of JSON: without the label log-probabilities, which are most of a part."""
    return of(*folder.judgments(bucket=bucket, columns=_COLUMNS))


def of(judgments: pl.DataFrame, further: int) -> dict[str, Any]:
    """The counts of some judgments, as values of JSON."""
    statuses = judgments["status"].value_counts()
    return {
        "statuses": dict(statuses.rows()),
        "tokens": {name: int(judgments[f"{name}_tokens"].sum() or 0) for name in TOKENS},
        "truncated": int(judgments["truncated"].sum() or 0),
        "further": further,
        "failures": base.failure_shares(judgments),
    }


def total(counts: Iterable[dict[str, Any]]) -> Tally:
    """The sum of the counts of buckets; statuses in the order of their number."""
    statuses: Counter[str] = Counter()
    failures: dict[tuple[str, str | None], list[int]] = {}
    whole = Tally()
    for each in counts:
        statuses.update(each["statuses"])
        for name, tokens in each["tokens"].items():
            whole.tokens[name] += tokens
        whole.truncated += each["truncated"]
        whole.further += each["further"]
        for judge, model, failed, cases in each["failures"]:
            sums = failures.setdefault((judge, model), [0, 0])
            sums[0] += failed
            sums[1] += cases
    whole.statuses = dict(sorted(statuses.items(), key=lambda pair: (-pair[1], pair[0])))
    keys = sorted(failures, key=lambda key: (key[1] is not None, key[0], key[1] or ""))
    whole.failures = [(judge, model, failures[judge, model][0], failures[judge, model][1]) for judge, model in keys]
    return whole
