"""What a judge writes: thinking, rationale or answer, as requests to an engine, and what is kept of them.

Two phases. First the judge writes, up to its budget, its end of turn, or the text that comes next anyway (the closing
marker of its thinking, the verdict's opener). Then that text is put as token ids of ours, and the verdict is read in a
second request that finds everything before it in the cache. So there is a verdict whatever was written.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trustjudge_ray.identity import seed_of
from trustjudge_ray.judging.prompts import PromptBuilder
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.judging.tokens import Tokenizer, own_ids

_CONTEXT = 8
"""So many ids before a text are decoded with it: some tokenizers write the first token of a text differently."""


class SectionError(ValueError):
    """A protocol's thinking does not fit the chat template: says what the template does, and what to change."""


@dataclass(frozen=True, slots=True)
class Section:
    """One stretch of free writing.

    Attributes:
        name: `thinking`, `rationale` or `output` (an answer).
        before, after: token ids that are put before and after what the judge writes.
        stop: the text at which the judge's writing ends; it is not kept. Empty: at its end of turn alone.
        strip: white space at the end of what was written goes, because what is put next begins with its own.
    """

    name: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    stop: str
    strip: bool
    max_tokens: int
    temperature: float

    @property
    def room(self) -> int:
        """The most tokens of context that it takes."""
        return len(self.before) + self.max_tokens + len(self.after)

    def sampling(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """The sampling parameters of a task, as vLLM names them.

        The seed is the same in every repetition of a task, so that these differ by the engine's noise alone.
        """
        about = ("spec", "question_id", "response_a", "response_b", "order", "sample")
        drawn = self.temperature > 0
        return {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": seed_of("written", self.name, *(str(task[name]) for name in about)) if drawn else None,
            "stop": [self.stop] if self.stop else None,
            "skip_special_tokens": False,
            "logprobs": 0,
            "flat_logprobs": True,
        }


@dataclass(frozen=True, slots=True)
class Written:
    """What is kept of a section: its text is what its token ids decode to (but for white space at its end).

    `logprob` is the sum of the raw log-probabilities of the ids, `cut` whether the budget ended it.
    """

    text: str
    token_ids: list[int]
    logprob: float
    cut: bool


def sections_of(protocol: Protocol, tokenizer: Tokenizer, prompts: PromptBuilder) -> tuple[Section, ...]:
    """What the judge writes, in order: before its verdict, or as its answer.

    Raises:
        SectionError: the protocol has a thinking section, which the chat template already closes.
    """
    found = []
    temperature = protocol.sampling.temperature
    if protocol.thinking is not None:
        thinking = protocol.thinking
        begun = prompts.rendered.rstrip()
        if begun.endswith(thinking.close.strip()):
            raise SectionError(
                f"the protocol has a thinking section, but the chat template ends with {thinking.close.strip()!r} and "
                "so closes it before it begins; set judge.template_arguments (for many models enable_thinking: true), "
                "or take the key thinking out of the protocol"
            )
        opened = begun.endswith(thinking.open.strip())
        before = () if opened else tuple(own_ids(tokenizer, thinking.open))
        after, stop = tuple(own_ids(tokenizer, thinking.close)), thinking.close.strip()
        strip = thinking.close[0].isspace()
        found.append(Section("thinking", before, after, stop, strip, thinking.max_tokens, temperature))
    if protocol.rationale is not None:
        stop, strip = protocol.opener.lstrip(), protocol.opener[0].isspace()
        found.append(Section("rationale", (), (), stop, strip, protocol.rationale.max_tokens, temperature))
    if protocol.max_tokens is not None:
        put = tuple(own_ids(tokenizer, protocol.opener)) if protocol.opener else ()
        found.append(Section("output", put, (), protocol.closer, True, protocol.max_tokens, temperature))
    return tuple(found)


def kept(section: Section, tokenizer: Any, prompt_ids: Sequence[int], completion: Any) -> Written:
    """What is kept of an engine's completion after `prompt_ids`: the longest run of its tokens that decodes to the
    beginning of its text. The rest is the stop text's, an end of turn, or half a character.

    Raises:
        ValueError: the engine did not report the tokens' log-probabilities.
    """
    ids = list(completion.token_ids)
    values = sampled_logprobs(completion, ids)
    text = completion.text.rstrip() if section.strip else completion.text
    context = list(prompt_ids[-_CONTEXT:])
    start = len(_decoded(tokenizer, context))
    count, decoded = len(ids), ""
    while count:
        decoded = _decoded(tokenizer, context + ids[:count])[start:]
        if text.startswith(decoded):
            break
        count -= 1
    cut = completion.finish_reason == "length"
    return Written(decoded if count else "", ids[:count], math.fsum(values[:count]), cut)


def sampled_logprobs(completion: Any, token_ids: Sequence[int]) -> list[float]:
    """The raw log-probability of each token that was sampled.

    Raises:
        ValueError: the engine reports none, or those of other tokens.
    """
    flat = completion.logprobs
    starts = [] if flat is None else flat.start_indices[: len(token_ids)]
    if [flat.token_ids[i] for i in starts] != list(token_ids):
        raise ValueError("the engine did not report the log-probabilities of the tokens that it sampled")
    return [flat.logprobs[i] for i in starts]


def _decoded(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
