"""How one protocol is put to a vLLM engine and read back: which requests a task takes, and what their answers mean.

Needs no engine: `vllm_engine` sends the requests.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from trustjudge_ray.config import JudgeConfig, judge_name
from trustjudge_ray.identity import content_hash
from trustjudge_ray.judging.base import JudgeError, Reading
from trustjudge_ray.judging.labels import LabelTable, build_table
from trustjudge_ray.judging.prompts import PromptBuilder
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.judging.slots import task_slots
from trustjudge_ray.judging.vllm_rationale import Section, Written, sections_of

MAX_IDS = 128
"""So many token ids vLLM reports for one request."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request of a task: the log-probabilities of `token_ids` after prompt, opener and `prefix`, at `node`."""

    node: int
    prefix: tuple[int, ...]
    token_ids: tuple[int, ...]

    @property
    def sampling(self) -> dict[str, Any]:
        """Its sampling parameters, as vLLM names them."""
        return {
            "max_tokens": 1,
            "temperature": 0.0,
            "logprob_token_ids": list(self.token_ids),
            "flat_logprobs": True,
            "detokenize": False,
        }


@dataclass(frozen=True, slots=True)
class Reader:
    """One protocol with one tokenizer.

    Attributes:
        sections: what the judge writes before its verdict, in order; mostly nothing.
        questions: the requests that read the verdict.
        room: the most tokens that a prompt may have: sections, opener and labels fit behind it.
    """

    protocol: Protocol
    prompts: PromptBuilder
    table: LabelTable
    sections: tuple[Section, ...]
    questions: tuple[Question, ...]
    room: int

    @property
    def hash(self) -> str:
        """Over the rendered template, and where sections and labels begin."""
        put = [[section.before, section.after] for section in self.sections if section.before or section.after]
        return content_hash(
            [self.prompts.template_hash, self.table.opener_ids, self.table.paths, *([put] if put else [])]
        )

    @property
    def label_tokens(self) -> list[int]:
        """With how many tokens each label is read."""
        return [len(paths[0]) for paths in self.table.paths]

    def read(self, answers: Sequence[Mapping[int, float]]) -> list[float]:
        """ln P(label) for each label from one mapping for each question; all NaN where any of them is."""
        nodes: list[dict[int, float]] = [{} for _ in self.table.nodes]
        for question, answer in zip(self.questions, answers, strict=True):
            nodes[question.node].update(answer)
        if any(math.isnan(value) for node in nodes for value in node.values()):
            return [math.nan] * len(self.protocol.label_texts)
        return self.table.read(nodes)


@dataclass(slots=True)
class Asked:
    """A task whose requests go to the engine.

    Attributes:
        token_ids: everything before the opener: the prompt, and whatever was written since.
        put: how many of these, and of the opener, are ours and not the judge's.
        written: what is kept of each section so far, by name.
        cached: how much of its first request the engine had.
        failure: why it cannot be read, where a section went wrong.
    """

    reader: Reader
    task: dict[str, Any]
    token_ids: list[int]
    truncated: bool
    put: int
    written: dict[str, Written] = field(default_factory=dict)
    cached: int | None = None
    failure: str | None = None

    def next_section(self) -> Section | None:
        """The section to be written next, or None where the verdict is."""
        left = self.reader.sections[len(self.written) :]
        return left[0] if left and self.failure is None else None

    def request(self, ids: Sequence[int]) -> dict[str, Any]:
        """A request for what comes after everything so far and `ids`.

        Repetitions share no cached block with the first judgment: they must compute the prompt in their own batch.
        """
        salt = {"cache_salt": f"repeat {self.task['repeat']}"} if self.task.get("repeat") else {}
        return {"prompt_token_ids": [*self.token_ids, *ids], **salt}

    def questions(self) -> list[dict[str, Any]]:
        """The requests that read the verdict, in the reader's order."""
        opener = self.reader.table.opener_ids
        return [self.request([*opener, *question.prefix]) for question in self.reader.questions]

    def add(self, section: Section, written: Written) -> None:
        """Take in what was written; what comes after it is put."""
        self.written[section.name] = written
        self.token_ids += [*section.before, *written.token_ids, *section.after]
        self.put += len(section.before) + len(section.after)


def reader_of(judge: JudgeConfig, tokenizer: Any, protocol: Protocol, max_model_len: int) -> Reader:
    """A protocol made ready for a judge's tokenizer and context.

    Raises:
        JudgeError: the protocol cannot be put to it: template, labels, or a context that its budgets fill.
    """
    where = f"judge '{judge_name(judge)}', protocol '{protocol.name}'"
    try:
        table = build_table(tokenizer, protocol)
        sections = sections_of(protocol, tokenizer, _prompts(judge, tokenizer, protocol, None))
        room = max_model_len - len(table.opener_ids) - table.depth - 1 - sum(section.room for section in sections)
        prompts = _prompts(judge, tokenizer, protocol, room)
    except ValueError as error:
        raise JudgeError(f"{where}: {error}") from error
    if room < 1:
        budgets = ", ".join(f"{section.name} {section.max_tokens}" for section in sections)
        raise JudgeError(
            f"{where}: a context of {max_model_len} tokens has no room for a prompt beside what the protocol lets the "
            f"judge write ({budgets or 'nothing'}); raise judge.max_model_len or lower max_tokens"
        )
    questions = tuple(
        Question(index, node.prefix, tuple(node.token_ids[first : first + MAX_IDS]))
        for index, node in enumerate(table.nodes)
        for first in range(0, len(node.token_ids), MAX_IDS)
    )
    return Reader(protocol, prompts, table, sections, questions, room)


def asked(reader: Reader, task: dict[str, Any]) -> Asked | Reading:
    """A TASK_TEXTS row as requests, or the reading of one that cannot be put to the engine."""
    try:
        prompt = reader.prompts.build(task_slots(reader.protocol, task))
    except ValueError as error:
        return Reading("engine_error", detail=f"the prompt cannot be built: {error}")
    if prompt.too_long or len(prompt.token_ids) > reader.room:
        behind = " before what the judge may write" if reader.sections else ""
        return Reading("too_long", detail=f"does not fit into the {reader.room} tokens of context{behind}")
    put = len(prompt.token_ids) + len(reader.table.opener_ids)
    return Asked(reader, task, list(prompt.token_ids), prompt.truncated, put)


def reading_of(asked: Asked, outputs: Sequence[Any]) -> Reading:
    """What the judge said, from the engine's answers to `asked.questions()`."""
    rationale, thinking, answer = (asked.written.get(name) for name in ("rationale", "thinking", "output"))
    known: dict[str, Any] = {
        "prompt_tokens": asked.put,
        "cached_tokens": asked.cached if asked.written else outputs[0].num_cached_tokens if outputs else None,
        "truncated": asked.truncated,
    }
    if thinking is not None:
        known["thinking"] = thinking.text
    if rationale is not None:
        known |= {"rationale": rationale.text, "rationale_cut": rationale.cut}
    if asked.failure is not None:
        return Reading("engine_error", detail=asked.failure, **known)
    if any(math.isnan(written.logprob) for written in asked.written.values()):
        return Reading("bad_logprob", detail="the log-probability of a token that the judge wrote is NaN", **known)
    if thinking is not None and thinking.cut:
        known["detail"] = f"the thinking was closed at its budget of {asked.reader.sections[0].max_tokens} tokens"
    if answer is not None:
        return Reading(
            output=answer.text.strip(),
            rationale_cut=answer.cut,
            cumulative_logprob=answer.logprob,
            output_tokens=len(answer.token_ids),
            **known,
        )
    try:
        answers = [logprobs(output, q.token_ids) for output, q in zip(outputs, asked.reader.questions, strict=True)]
    except ValueError as error:
        return Reading("engine_error", detail=str(error), **known)
    if rationale is not None:
        known |= {"rationale_logprob": rationale.logprob, "rationale_tokens": len(rationale.token_ids)}
    return Reading("ok", asked.reader.read(answers), label_tokens=asked.reader.label_tokens, **known)


def logprobs(output: Any, token_ids: tuple[int, ...]) -> dict[int, float]:
    """The log-probabilities that were asked for. The flat lists begin with the token that was sampled.

    Raises:
        ValueError: the engine reports other tokens, or none.
    """
    flat = output.outputs[0].logprobs if output.outputs else None
    if flat is None or tuple(flat.token_ids[1:]) != token_ids:
        got = "none" if flat is None else f"{flat.token_ids[1:6]} …"
        raise ValueError(
            f"asked for the log-probabilities of tokens {list(token_ids[:5])} …, the engine reported {got}"
        )
    return dict(zip(token_ids, flat.logprobs[1:], strict=True))


def _prompts(judge: JudgeConfig, tokenizer: Any, protocol: Protocol, room: int | None) -> PromptBuilder:
    return PromptBuilder(
        tokenizer,
        protocol,
        max_prompt_tokens=room,
        on_overflow=cast(Literal["truncate", "fail"], judge.on_overflow),
        template_arguments=judge.template_arguments,
    )
