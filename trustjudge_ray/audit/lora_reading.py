"""An arm of the LoRA experiment put to the test: it answers, judges its own answers and the controlled candidates."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from typing import Protocol as Interface

import polars as pl

from trustjudge_ray.audit.lora_arms import (
    Example,
    Ids,
    LoraError,
    Prompting,
    arm_size,
    candidates_of,
    fitting,
    limited,
    split_items,
)
from trustjudge_ray.audit.lora_config import ARMS, LoraConfig
from trustjudge_ray.audit.lora_training import Answer, Training
from trustjudge_ray.audit.transfer import ANSWERS, READS
from trustjudge_ray.judging.labels import LabelTable

if TYPE_CHECKING:
    from trustjudge_ray.audit.qa import Item

Judged = tuple["Item", str, str, bool | None]
"""An item, the name of a candidate, its text, and whether it is right (None: only the oracle will tell)."""


class Reader(Interface):
    """A model that answers and judges."""

    def answers(self, prompts: Sequence[Ids], max_new_tokens: int, closer: str = "") -> list[Answer]:
        """The greedy answer after each prompt, up to the closer."""
        ...

    def label_logprobs(self, prompts: Sequence[Ids], table: LabelTable) -> list[list[float]]:
        """ln P(label) for each label after each prompt, opener included."""
        ...


@dataclass(frozen=True, slots=True)
class Material:
    """What all arms are made of and tested with.

    Attributes:
        generation, evaluation: what training examples are drawn from; none is of a test passage.
        size: how many of them each arm has.
        items, controlled: the test.
        too_long: how many training examples of each task were left out for their length.
    """

    prompting: Prompting
    generation: list[Example]
    evaluation: list[Example]
    size: int
    items: list["Item"]
    controlled: list[Judged]
    too_long: dict[str, int]


def material_of(
    items: Sequence["Item"], candidates: pl.DataFrame, prompting: Prompting, config: LoraConfig
) -> Material:
    """Split the passages, build the training examples and choose the test.

    Args:
        candidates: CANDIDATES rows of these items (item_id, candidate, text, truth); those that `config.candidates`
            names are used, in training and as controlled set.

    Raises:
        LoraError: there are too few passages, examples or candidates.
    """
    train, test = split_items(items, config.test_share, config.split_seed)
    test = limited(test, config.test_items, config.split_seed)
    generation, long_answers = fitting(map(prompting.generation_example, train), config.max_length)
    judged = candidates_of(train, candidates, config.candidates)
    evaluation, long_verdicts = fitting((prompting.evaluation_example(*one) for one in judged), config.max_length)
    controlled: list[Judged] = list(candidates_of(test, candidates, config.candidates))
    if {truth for _, _, _, truth in controlled} != {True, False}:
        raise LoraError(
            f"audit.lora.candidates: of {config.candidates} {len(test)} test items have {len(controlled)}, not both "
            f"right and wrong ones; candidates are {sorted(candidates['candidate'].unique())}"
        )
    size = arm_size(generation, evaluation, config)
    too_long = {"generation": long_answers, "evaluation": long_verdicts}
    return Material(prompting, generation, evaluation, size, test, controlled, too_long)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one training (or the base) answered and judged.

    Attributes:
        answers: ANSWERS rows without `correct`; reads: READS rows, whose truth is not yet known for `own`.
        training: None of the base.
    """

    arm: str
    seed: int
    answers: list[dict[str, Any]]
    reads: list[dict[str, Any]]
    training: Training | None = None
    seconds: dict[str, float] = field(default_factory=dict)


def read_arm(
    reader: Reader, material: Material, config: LoraConfig, arm: str, seed: int, training: Training | None = None
) -> Outcome:
    """Put an arm to both tasks. What is longer than `config.max_length` is `too_long`, an answer of nothing is
    `empty_response` and is not judged."""
    keys = {"arm": arm, "seed": seed}
    answers = _answers(reader, material, config, keys)
    texts = {row["item_id"]: row["output"] for row in answers if row["status"] == "ok"}
    own: list[Judged] = [(item, "own", texts[item.id], None) for item in material.items if item.id in texts]
    reads = [
        row
        for protocol in material.prompting.tables
        for row in _verdicts(reader, material.prompting, protocol, [*own, *material.controlled], config, keys)
    ]
    silent = [item for item in material.items if item.id not in texts]
    status = {row["item_id"]: row["status"] for row in answers}
    for protocol in material.prompting.tables:
        reads += [_read(keys, (item, "own", "", None), protocol) | {"status": status[item.id]} for item in silent]
    return Outcome(arm, seed, answers, reads, training)


def _answers(reader: Reader, material: Material, config: LoraConfig, keys: dict[str, Any]) -> list[dict[str, Any]]:
    prompts = {item.id: material.prompting.answer_prompt(item) for item in material.items}
    budget = material.prompting.max_tokens
    fit = [item.id for item in material.items if len(prompts[item.id]) + budget <= config.max_length]
    written = reader.answers([prompts[i] for i in fit], budget, material.prompting.closer)
    given = dict(zip(fit, written, strict=True))
    rows = []
    for item in material.items:
        row = keys | {"item_id": item.id, "passage_id": item.passage_id, "benchmark": item.benchmark}
        answer = given.get(item.id)
        status = "too_long" if answer is None else "ok" if answer.text else "empty_response"
        rows.append(row | {"status": status, "output": answer and answer.text, "cut": answer and answer.cut})
    return rows


def _verdicts(
    reader: Reader,
    prompting: Prompting,
    protocol: str,
    judged: Sequence[Judged],
    config: LoraConfig,
    keys: dict[str, Any],
) -> list[dict[str, Any]]:
    """READS rows of one protocol."""
    table = prompting.tables[protocol]
    prompts = [prompting.verify_prompt(protocol, item, text) for item, _, text, _ in judged]
    fit = [place for place, ids in enumerate(prompts) if len(ids) + table.depth + 1 <= config.max_length]
    found = dict(zip(fit, reader.label_logprobs([prompts[place] for place in fit], table), strict=True))
    return [
        _read(keys, one, protocol) | (_reading(found[place]) if place in found else {"status": "too_long"})
        for place, one in enumerate(judged)
    ]


def _read(keys: dict[str, Any], one: Judged, protocol: str) -> dict[str, Any]:
    item, candidate, _, truth = one
    named = {"item_id": item.id, "passage_id": item.passage_id, "benchmark": item.benchmark, "candidate": candidate}
    return keys | named | {"truth": truth, "protocol": protocol, "p_accept": None, "label_mass": None}


def _reading(logprobs: Sequence[float]) -> dict[str, Any]:
    """Status, p_accept and label_mass of ln P(accept) and ln P(reject)."""
    if any(math.isnan(value) for value in logprobs):
        return {"status": "bad_logprob"}
    accept, reject = (math.exp(value) for value in logprobs)
    top = max(logprobs)
    if top == -math.inf:
        return {"status": "no_label_mass", "label_mass": 0.0}
    shares = [math.exp(value - top) for value in logprobs]
    return {"status": "ok", "p_accept": shares[0] / sum(shares), "label_mass": min(accept + reject, 1.0)}


def frames(
    outcomes: Sequence[Outcome], items: Sequence["Item"], correct: Callable[["Item", str], bool | None]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """ANSWERS and READS of all outcomes; `correct` is the audit's primary oracle (None: it does not decide), which also
    says what is true of the arms' own answers. An empty answer is not right."""
    by_id = {item.id: item for item in items}
    ordered = sorted(outcomes, key=lambda outcome: (ARMS.index(outcome.arm), outcome.seed))
    answers = [row | {"correct": _correct(row, by_id, correct)} for outcome in ordered for row in outcome.answers]
    truth = {(row["arm"], row["seed"], row["item_id"]): row["correct"] for row in answers}
    reads = [
        row | ({"truth": truth[row["arm"], row["seed"], row["item_id"]]} if row["candidate"] == "own" else {})
        for outcome in ordered
        for row in outcome.reads
    ]
    return pl.DataFrame(answers, schema=ANSWERS), pl.DataFrame(reads, schema=READS)


def _correct(
    row: dict[str, Any], by_id: dict[str, "Item"], correct: Callable[["Item", str], bool | None]
) -> bool | None:
    if row["status"] == "empty_response":
        return False
    return correct(by_id[row["item_id"]], row["output"]) if row["status"] == "ok" else None
