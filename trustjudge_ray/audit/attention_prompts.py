"""The prompts whose attention is measured: one item asked for its answer and asked about, and the controls.

They are the measurement's own and apart from the protocols that judge: between two tasks only what is compared may
differ. The chat template is cut into its own text, which is `template`, and ours, which is `instruction`; the item's
texts fill the rest and cannot become control tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trustjudge_ray.audit.attention import SegmentedPrompt
from trustjudge_ray.audit.qa import Item
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.judging.slots import pieces
from trustjudge_ray.judging.templates import render
from trustjudge_ray.judging.tokens import Tokenizer, beginning_ids, control_ids, foreign_ids, own_ids

_SYSTEM = "You work from the passage that you are given and from nothing else."
_PASSAGE, _QUESTION = "Passage:\n{context}", "Question:\n{question}\n\n"
_CANDIDATE = "Proposed answer:\n{answer}\n\n"
_JUDGE = "Is the proposed answer correct, going by the passage? Reply with one word only, Correct or Incorrect."
_ANSWER = "Answer the question in a few words."
_FILLER = (
    "Take in the passage as a whole, and each of its sentences, before you write a word of your reply. Then think of "
    "what was asked, and of nothing that was not asked. Be brief, be plain, and stay with what was written there."
)
_TASKS = {
    "generation": f"{_PASSAGE}\n\n{_QUESTION}{_ANSWER}",
    "evaluation": f"{_PASSAGE}\n\n{_QUESTION}{_CANDIDATE}{_JUDGE}",
    "generation_equal_trailing": f"{_PASSAGE}\n\n{_QUESTION}{_CANDIDATE}{{conversation}}\n{_ANSWER}",
    "generation_context_last": f"{_QUESTION}{_ANSWER}\n\n{_PASSAGE}",
    "evaluation_context_last": f"{_QUESTION}{_CANDIDATE}{_JUDGE}\n\n{_PASSAGE}",
}
"""User texts; the filler of the control stands in the slot {conversation}."""
_SEGMENT_OF = {"context": "context", "question": "question", "answer": "candidate", "conversation": "instruction"}


@dataclass(frozen=True, slots=True)
class _Part:
    """Ids of a literal, or a slot to be filled, and the segment that they are of."""

    segment: str
    slot: str | None
    ids: tuple[int, ...]


def prompts_of(
    tokenizer: Tokenizer,
    items: Iterable[Item],
    answers: Mapping[str, str],
    template_arguments: Mapping[str, Any] | None = None,
) -> list[SegmentedPrompt]:
    """Five prompts an item, in the order of the items. Each ends where the assistant's turn begins: the first token of
    the answer or of the verdict is predicted from the last token of the prompt.

    - `generation`: passage, question, “answer”. `evaluation`: passage, question, candidate, “is it correct?”.
    - `generation_equal_trailing`: what `evaluation` has after the passage, the candidate included, but for the last
      sentence, which asks for the answer. Filler before it makes up for what it is shorter, to the token: the
      passage is as far from the end, and competes with the same texts.
    - `generation_context_last`, `evaluation_context_last`: question, candidate if any, what is asked, and then the
      passage, after which only the template's own text follows.

    The candidate is the model's own answer, `answers[item.id]`; where it has none, the item's first gold.

    Raises:
        TemplateError: the chat template cannot carry the texts.
        TokenError: a text cannot be kept apart from control tokens.
        ValueError: an item has neither answer nor gold; or this tokenizer leaves no room for the filler.
    """
    control = control_ids(tokenizer)
    layouts = {task: _layout(tokenizer, task, user, template_arguments or {}) for task, user in _TASKS.items()}
    filler = tuple(own_ids(tokenizer, _FILLER))[: _missing(layouts, len(own_ids(tokenizer, _FILLER)))]
    prompts = []
    for item in items:
        texts = {"context": item.context, "question": item.question, "answer": _candidate(item, answers)}
        ids = {slot: tuple(foreign_ids(tokenizer, text, control)) for slot, text in texts.items()}
        ids["conversation"] = filler
        prompts += [_filled(task, item, layout, ids) for task, layout in layouts.items()]
    return prompts


def _candidate(item: Item, answers: Mapping[str, str]) -> str:
    own = answers.get(item.id, "")
    if not own.strip() and not item.golds:
        raise ValueError(f"item {item.id!r}: no answer of the model's own and no gold; one of them is the candidate")
    return own if own.strip() else item.golds[0]


def _layout(tokenizer: Tokenizer, task: str, user: str, arguments: Mapping[str, Any]) -> list[_Part]:
    """The prompt's literals as ids, and its slots."""
    protocol = Protocol(
        name=f"attention-{task}",
        kind="verify",
        label_texts=("Correct", "Incorrect"),
        system=_SYSTEM,
        user=user,
        examples=(),
        opener="",
        closer="",
    )
    (_, start), *rest = _cut(render(tokenizer, protocol, arguments).parts, protocol)
    parts = [_Part("template", None, tuple(beginning_ids(tokenizer, start)))]
    for segment, text in rest:
        if segment == "slot":
            parts.append(_Part(_SEGMENT_OF[text], text, ()))
        else:
            parts.append(_Part(segment, None, tuple(own_ids(tokenizer, text))))
    return parts


def _cut(rendered: Sequence[tuple[bool, str]], protocol: Protocol) -> list[tuple[str, str]]:
    """(`template`, `instruction` or `slot`, text or slot name) in order, the first of the template's own, perhaps "".

    `render` has made sure that our texts are in its literals once and unchanged but for blanks at the ends.
    """
    ours = [text for is_slot, text in pieces(protocol.user) if not is_slot]
    if pieces(protocol.user)[-1][0]:
        ours.append("")
    literals = [text for is_slot, text in rendered if not is_slot]
    head, tail = ours[0].lstrip(), ours[-1].rstrip()
    before, _, between = literals[0].removesuffix(head).partition(protocol.system.strip())
    found = [("template", before), ("instruction", protocol.system.strip()), ("template", between)]
    found.append(("instruction", head))
    for is_slot, text in rendered[1:-1]:
        found.append(("slot", text) if is_slot else ("instruction", text))
    found += [("instruction", tail), ("template", literals[-1].removeprefix(tail))]
    return found[:1] + [part for part in found[1:] if part[1]]


def _missing(layouts: Mapping[str, list[_Part]], most: int) -> int:
    """How many tokens of filler make what follows the passage as long as it is in `evaluation`."""
    trailing = {}
    for task in ("evaluation", "generation_equal_trailing"):
        slots = [part.slot for part in layouts[task]]
        trailing[task] = sum(len(part.ids) for part in layouts[task][slots.index("context") :])
    missing = trailing["evaluation"] - trailing["generation_equal_trailing"]
    if not 0 <= missing <= most:
        raise ValueError(
            f"this tokenizer writes what is asked after the passage in {trailing} tokens: the filler would have to be "
            f"{missing} tokens long, and can be 0 to {most}; measure another model"
        )
    return missing


def _filled(task: str, item: Item, layout: Sequence[_Part], ids_of: Mapping[str, tuple[int, ...]]) -> SegmentedPrompt:
    token_ids: list[int] = []
    segments: list[str] = []
    for part in layout:
        ids = part.ids if part.slot is None else ids_of[part.slot]
        token_ids += ids
        segments += [part.segment] * len(ids)
    return SegmentedPrompt(task, item.id, item.passage_id, tuple(token_ids), ("sink", *segments[1:]))
