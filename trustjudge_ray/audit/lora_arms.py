"""What the arms of the LoRA experiment are trained on and tested with: passages split, examples drawn, prompts built.

Knows tokens, not models: `lora_training` trains on what is drawn here, `lora` runs the arms.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from trustjudge_ray.audit.lora_config import LoraConfig
from trustjudge_ray.identity import seed_of
from trustjudge_ray.judging.labels import LabelTable, build_table
from trustjudge_ray.judging.prompts import PromptBuilder
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.judging.tokens import Tokenizer, control_ids, foreign_ids, own_ids

if TYPE_CHECKING:
    from trustjudge_ray.audit.qa import Item

Ids = tuple[int, ...]
LEAST_EXAMPLES: Final = 4
"""Of each arm: one of each task and truth in `both`."""


class LoraError(RuntimeError):
    """The experiment cannot be made: says what is missing, what there is, and what to change."""


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and what the model is trained to say after it.

    Attributes:
        task: `generation` or `evaluation`.
        truth: of an evaluation example, whether its candidate is right; None of a generation example.
        candidate: of an evaluation example, which one; "" of a generation example.
        target_ids: the only tokens whose loss counts.
    """

    item_id: str
    passage_id: str
    task: str
    candidate: str
    truth: bool | None
    prompt_ids: Ids
    target_ids: Ids

    @property
    def length(self) -> int:
        """Tokens of prompt and target."""
        return len(self.prompt_ids) + len(self.target_ids)


class Prompting:
    """Prompts and targets of both tasks for one tokenizer, built as the judging engines build them.

    Attributes:
        tables: by protocol, where its labels are read.
        end_id: the token that ends an answer.
        closer, max_tokens: where an answer stops otherwise.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        answer: Protocol,
        verify: Sequence[Protocol],
        template_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Protocols of kind `answer` and `verify`.

        Raises:
            LoraError: a protocol is of another kind or lets the judge write first, or answers have no end token.
            TemplateError, LabelError: the tokenizer cannot carry a protocol.
        """
        for kind, protocol in [("answer", answer), *(("verify", p) for p in verify)]:
            if protocol.kind != kind or protocol.thinking is not None or protocol.rationale is not None:
                first = " that writes before it answers" if protocol.kind == kind else ""
                raise LoraError(
                    f"audit.lora: protocol {protocol.name} is of kind {protocol.kind}{first}; one of kind {kind} "
                    f"without thinking and rationale"
                )
        if tokenizer.eos_token_id is None:
            raise LoraError("the tokenizer has no end token, with which an answer could be learnt to end; set one")
        self._tokenizer, self._control = tokenizer, control_ids(tokenizer)
        self._answer = PromptBuilder(tokenizer, answer, template_arguments=template_arguments)
        self._verify = {p.name: PromptBuilder(tokenizer, p, template_arguments=template_arguments) for p in verify}
        self._protocols = {protocol.name: protocol for protocol in verify}
        self.tables: dict[str, LabelTable] = {p.name: build_table(tokenizer, p) for p in verify}
        self._opener = own_ids(tokenizer, answer.opener) if answer.opener else []
        self.end_id, self.closer, self.max_tokens = tokenizer.eos_token_id, answer.closer, answer.max_tokens or 1

    def answer_prompt(self, item: "Item") -> Ids:
        """The prompt after which the model answers, with the answer's opener."""
        slots = {"context": item.context, "question": item.question}
        return (*self._answer.build(slots).token_ids, *self._opener)

    def verify_prompt(self, protocol: str, item: "Item", text: str) -> Ids:
        """The prompt after which the label is read, with the verdict's opener."""
        slots = {"context": item.context, "question": item.question, "answer": text}
        return (*self._verify[protocol].build(slots).token_ids, *self.tables[protocol].opener_ids)

    def answer_target(self, text: str) -> Ids:
        """An answer and the token that ends it."""
        return (*foreign_ids(self._tokenizer, text, self._control), self.end_id)

    def label_target(self, protocol: str, accept: bool) -> Ids:
        """The label that accepts or rejects, as it is spelled after the opener."""
        asked, table = self._protocols[protocol], self.tables[protocol]
        ids = own_ids(self._tokenizer, asked.opener + asked.label_texts[0 if accept else 1])
        return tuple(ids[len(table.opener_ids) :])

    def generation_example(self, item: "Item") -> Example:
        """The item with its first gold answer."""
        target = self.answer_target(item.golds[0])
        return Example(item.id, item.passage_id, "generation", "", None, self.answer_prompt(item), target)

    def evaluation_example(self, item: "Item", candidate: str, text: str, truth: bool) -> Example:
        """A candidate with the label that is right for it; the protocol is drawn by the item, the same one for all its
        candidates, so that no label goes with a protocol."""
        names = list(self.tables)
        protocol = names[seed_of("lora protocol", item.id) % len(names)]
        prompt, target = self.verify_prompt(protocol, item, text), self.label_target(protocol, truth)
        return Example(item.id, item.passage_id, "evaluation", candidate, truth, prompt, target)


def split_items(items: Sequence["Item"], share: float, seed: int) -> tuple[list["Item"], list["Item"]]:
    """Training and test items: of each benchmark's passages a share (rounded, at least one on either side where there
    are two) is kept for the test, drawn by `seed`. A passage of two benchmarks goes with the first by name.

    Raises:
        LoraError: fewer than two passages are left on a side: no interval could be given, or nothing be learnt.
    """
    home: dict[str, str] = {}
    for item in items:
        home[item.passage_id] = min(item.benchmark, home.get(item.passage_id, item.benchmark))
    by_benchmark: dict[str, list[str]] = defaultdict(list)
    for passage, benchmark in home.items():
        by_benchmark[benchmark].append(passage)
    kept: set[str] = set()
    for passages in by_benchmark.values():
        passages.sort(key=lambda passage: seed_of("lora split", str(seed), passage))
        number = round(share * len(passages))
        kept |= set(passages[: min(max(number, 1), len(passages) - 1)])
    train = [item for item in items if item.passage_id not in kept]
    test = [item for item in items if item.passage_id in kept]
    sides = {"training": len({i.passage_id for i in train}), "test": len({i.passage_id for i in test})}
    if min(sides.values()) < 2:
        raise LoraError(
            f"audit.lora: {len(home)} passages give {sides['training']} for training and {sides['test']} for the test; "
            f"both need two or more: add passages, or change audit.lora.test_share"
        )
    return train, test


def limited(items: Sequence["Item"], most: int | None, seed: int) -> list["Item"]:
    """At most so many items, drawn by `seed`, in their order."""
    if most is None or most >= len(items):
        return list(items)
    drawn = sorted(items, key=lambda item: seed_of("lora test", str(seed), item.id))[:most]
    chosen = {item.id for item in drawn}
    return [item for item in items if item.id in chosen]


def candidates_of(
    items: Sequence["Item"], candidates: pl.DataFrame, names: Iterable[str]
) -> list[tuple["Item", str, str, bool]]:
    """Item, name, text and truth of the named candidates of some items; those whose truth is not known are left out.

    Args:
        candidates: CANDIDATES rows: item_id, candidate, text, truth.
    """
    by_id = {item.id: item for item in items}
    named = pl.col("candidate").is_in(list(names)) & pl.col("item_id").is_in(list(by_id))
    rows = candidates.filter(named & pl.col("truth").is_not_null()).sort("item_id", "candidate")
    return [
        (by_id[item_id], name, text, truth)
        for item_id, name, text, truth in rows.select("item_id", "candidate", "text", "truth").iter_rows()
    ]


def fitting(examples: Iterable[Example], max_length: int) -> tuple[list[Example], int]:
    """The examples that have at most so many tokens, and how many have more."""
    every = list(examples)
    kept = [example for example in every if example.length <= max_length]
    return kept, len(every) - len(kept)


def arm_size(generation: Sequence[Example], evaluation: Sequence[Example], config: LoraConfig) -> int:
    """How many examples every arm has: `config.examples`, or the greatest multiple of 4 that both tasks can give.

    Raises:
        LoraError: there are fewer than that.
    """
    right = sum(example.truth is True for example in evaluation)
    wrong = len(evaluation) - right
    have = min(len(generation), 2 * min(right, wrong))
    wanted = config.examples or max(have // 4 * 4, LEAST_EXAMPLES)
    if wanted > have:
        raise LoraError(
            f"audit.lora: every arm needs {wanted} training examples; there are {len(generation)} to answer, and to "
            f"judge {right} right and {wrong} wrong candidates, of which equal numbers are taken; add items, lower "
            f"audit.lora.examples or audit.lora.test_share, or raise audit.lora.max_length"
        )
    return wanted


def draw_arm(
    arm: str, seed: int, generation: Sequence[Example], evaluation: Sequence[Example], size: int
) -> list[Example]:
    """The `size` training examples of an arm, in the order in which they are seen; [] of `base`.

    `generation` and `evaluation` have them of their task, `both` half of each; of evaluation examples half are right.
    Items are drawn in one order for all arms of a seed: a right candidate comes with a wrong one of the same item, and
    the items of `both` are the first ones of the other arms'.
    """
    parts = {"base": (0, 0), "generation": (size, 0), "evaluation": (0, size), "both": (size // 2, size // 2)}
    answering, judging = parts[arm]
    right = [example for example in evaluation if example.truth]
    wrong = [example for example in evaluation if not example.truth]
    chosen = _first(generation, seed, answering) + _first(right, seed, judging // 2) + _first(wrong, seed, judging // 2)
    return sorted(chosen, key=lambda e: seed_of("lora order", arm, str(seed), e.task, e.item_id, e.candidate))


def _first(examples: Sequence[Example], seed: int, number: int) -> list[Example]:
    """The first so many examples by the seed's order of items; an item's second one comes after every item's first."""
    ranked = sorted(examples, key=lambda e: seed_of("lora candidate", str(seed), e.item_id, e.candidate))
    seen: dict[str, int] = defaultdict(int)
    turns = []
    for example in ranked:
        turns.append((seen[example.item_id], seed_of("lora item", str(seed), example.item_id), example))
        seen[example.item_id] += 1
    return [example for _, _, example in sorted(turns, key=lambda turn: turn[:2])[:number]]
