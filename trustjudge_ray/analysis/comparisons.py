"""The pairs of one judge and comparison protocol under every verdict rule and tolerance, arranged for counting."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trustjudge_ray.analysis.layout import Indices, Layout, by_reason
from trustjudge_ray.analysis.readouts import ReadoutError
from trustjudge_ray.analysis.tolerances import Tolerances
from trustjudge_ray.analysis.verdicts import UNDEFINED, VERDICT_RULES, Outcomes, Pairs, outcomes, rule_status


@dataclass(frozen=True, slots=True)
class RuleOutcomes:
    """What one verdict rule says about P pairs.

    Attributes:
        tolerances: T of them.
        outcomes: (T, P), UNDEFINED where the pair is left out.
        valid: (P,), which pairs are not.
        status: (P,), index into the pairs' statuses: for a pair that is left out, why; `missing_order` for one that
            was asked about in one order, whatever became of that.
    """

    tolerances: tuple[float, ...]
    outcomes: Outcomes
    valid: NDArray[np.bool_]
    status: NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Comparisons:
    """P pairs of one judge and protocol.

    Attributes:
        judge, protocol: None where there is none.
        question, first, second: (P,), numbers of the question and of the responses a and b in the layout.
        by_rule: verdict rule → its outcomes.
    """

    judge: str | None
    protocol: str | None
    pairs: Pairs
    question: Indices
    first: Indices
    second: Indices
    by_rule: Mapping[str, RuleOutcomes]

    def lost(self, rule: str, layout: Layout) -> dict[str, NDArray[np.float64]]:
        """The pairs that the rule leaves out: counts by reason, each (Q,)."""
        found = self.by_rule[rule]
        out = ~found.valid
        return by_reason(self.pairs.named(found.status[out]), self.question[out], layout.questions)

    def counted(self, chosen: NDArray[np.bool_], weights: NDArray[Any] | None, layout: Layout) -> NDArray[np.float64]:
        """How many of the chosen pairs each question has, or the sums of their weights: (Q,)."""
        weight = None if weights is None else weights[chosen]
        return np.bincount(self.question[chosen], weights=weight, minlength=layout.questions).astype(np.float64)


def compared(
    pairs: Pairs, judge: str | None, protocol: str | None, layout: Layout, tolerances: Tolerances, identical: bool
) -> Comparisons:
    """The pairs of this judge and protocol.

    Args:
        identical: whether pairs of equal texts count, as ties.

    Raises:
        ReadoutError: a pair is there twice, the second time with its responses exchanged.
    """
    mine = pairs.only(judge, protocol)
    question, _, first = layout.numbered(mine.keys, "response_a")
    _, _, second = layout.numbered(mine.keys, "response_b")
    _refuse_exchanged(mine, first, second)
    unplanned = ~mine.asked.all(axis=1) & ~mine.has("identical")
    by_rule = {}
    for rule in VERDICT_RULES:
        sizes = tolerances.by_rule[rule]
        found = np.stack([outcomes(mine, rule, tolerance) for tolerance in sizes])
        status = np.where(unplanned, mine.statuses.index("missing_order"), rule_status(mine, rule, found[0]))
        if not identical:
            found[:, mine.has("identical")] = UNDEFINED
        by_rule[rule] = RuleOutcomes(sizes, found, found[0] != UNDEFINED, status.astype(np.int16))
    return Comparisons(judge, protocol, mine, question, first, second, by_rule)


def _refuse_exchanged(pairs: Pairs, first: Indices, second: Indices) -> None:
    low, high = np.minimum(first, second), np.maximum(first, second)
    number, count = np.unique(np.stack([low, high]), axis=1, return_counts=True)
    if len(count) and count.max() > 1:
        twice = np.flatnonzero((low == number[0, count.argmax()]) & (high == number[1, count.argmax()]))
        row = pairs.keys.row(int(twice[0]), named=True)
        raise ReadoutError(
            f"judgments of protocol '{row['protocol']}', question {row['question_id']}: responses {row['response_a']} "
            f"and {row['response_b']} are a pair in both directions; response_a is always the one with the smaller id"
        )
