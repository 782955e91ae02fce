"""What a judge behind an endpoint writes, before its verdict or as its answer: what it is asked to write, and what is
kept of it.

A chat endpoint writes in a first turn, and the verdict is asked for in a second one. A vLLM server is sent token ids
and writes exactly what the vLLM engine would: `vllm_rationale` decides there what is kept.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trustjudge_ray.config import JudgeConfig
from trustjudge_ray.judging.base import Reading
from trustjudge_ray.judging.openai_answers import (
    ZERO,
    AnswerError,
    chat_tokens,
    choices,
    mapping,
    number,
    text,
    tokens_written,
)
from trustjudge_ray.judging.openai_requests import not_a_logprob
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.judging.vllm_rationale import Section

TOKEN_ID = "token_id:"
"""How a vLLM server names a token by its id."""
_ENDED = ("stop", "length", "eos_token", "stop_sequence", "end_turn")
"""Ways to end in which what was written can be used; only `length` cuts it."""
EMPTY = "is empty: the judge wrote nothing"
"""In the reason where a judge went straight to its verdict or end: one task's failure, not the endpoint's."""
_ROUNDING = 1e-3
"""How far above 0 a log-probability may be by rounding; beyond, it is none."""
_THINKING_OFF = (
    "switch the judge's thinking off (for many models judge.template_arguments: {enable_thinking: false}, or "
    "judge.engine_args: {reasoning_effort: minimal})"
)


@dataclass(frozen=True, slots=True)
class Said:
    """A rationale or an answer from a chat endpoint.

    `logprob` and `tokens` are of the fewest first tokens whose text holds it; None where the endpoint does not list
    its tokens so that they can be told from thinking and from what was cut off.
    """

    text: str
    thinking: str | None
    cut: bool
    logprob: float | None
    tokens: int | None

    @property
    def known(self) -> dict[str, Any]:
        """The fields of a Reading that it fills."""
        return {
            "rationale": self.text,
            "thinking": self.thinking,
            "rationale_cut": self.cut,
            "rationale_logprob": self.logprob,
            "rationale_tokens": self.tokens,
        }


def chat_section(protocol: Protocol) -> Section | None:
    """What a chat endpoint lets the judge write in its first turn. An answer's thinking and text share both budgets.

    Raises:
        ValueError: thinking with a budget of its own before a verdict, which a chat endpoint cannot be given.
    """
    temperature = protocol.sampling.temperature
    if protocol.max_tokens is not None:
        budget = protocol.max_tokens + (0 if protocol.thinking is None else protocol.thinking.max_tokens)
        return Section("output", (), (), protocol.closer, True, budget, temperature)
    if protocol.thinking is not None:
        raise ValueError(
            f"protocol '{protocol.name}': a chat endpoint cannot be told to think within a budget of its own "
            f"({protocol.thinking.max_tokens} tokens) and to close it before the verdict; use judge.route: completions "
            "(a vLLM server), engine vllm, or a protocol without the key thinking (what the endpoint itself reports as "
            "reasoning is kept apart)"
        )
    if protocol.rationale is None:
        return None
    return Section("rationale", (), (), protocol.opener.strip(), True, protocol.rationale.max_tokens, temperature)


def refuse_arguments(protocol: Protocol, judge: JudgeConfig) -> None:
    """Check that further fields of requests leave the judge free to write as the protocol says.

    Raises:
        ValueError: without `temperature` or a budget it would write something else.
    """
    given, temperature = judge.engine_args, protocol.sampling.temperature
    if not protocol.writes:
        return
    if "temperature" in given and given["temperature"] is None and temperature != 1.0:
        raise ValueError(
            f"protocol '{protocol.name}': judge.engine_args leaves out temperature, so the judge would write at its "
            f"own (mostly 1) and not at sampling.temperature {temperature:g}; set that to 1.0"
        )
    if "max_tokens" in given and given["max_tokens"] is None and not given.get("max_completion_tokens"):
        raise ValueError(
            f"protocol '{protocol.name}': judge.engine_args leaves out max_tokens, so what the judge writes would have "
            "no budget; add max_completion_tokens: 1 (the budget is then sent under that name)"
        )


def writing_arguments(body: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A request for writing with `judge.engine_args` in it, None where a field is left out.

    What these say about temperature and length is meant for the verdict: here only the name of the budget counts.
    """
    own = {"temperature", "max_tokens", "max_completion_tokens"}
    merged = dict(body) | {key: value for key, value in given.items() if key not in own or value is None}
    if given.get("max_completion_tokens") is not None:
        merged |= {"max_tokens": None, "max_completion_tokens": body["max_tokens"]}
    return merged


def writing_notes(protocol: Protocol, judge: JudgeConfig) -> list[str]:
    """What whoever reads the judgments must know about what was written."""
    if not protocol.writes:
        return []
    notes = []
    what = "rationale" if protocol.max_tokens is None else "answer"
    if protocol.sampling.temperature > 0:
        seeded = "seed" not in judge.engine_args
        notes.append(
            f"{what}s are drawn with a seed for each, and whether the endpoint keeps to it is its own word: judged "
            f"again, a task may get another {what}"
            if seeded
            else f"{what}s are drawn without seeds: judged again, a task gets another {what}"
        )
    if judge.route == "chat" and what == "answer":
        notes += _answer_notes(protocol)
    elif judge.route == "chat":
        notes.append(
            "the rationale is the judge's first turn, and the verdict is asked for in a second; top_k and penalties of "
            "the rationale are the endpoint's own"
        )
        notes.append(
            "cumulative_logprob and output_tokens are null where the endpoint does not list the rationale's tokens: "
            "the verdict rules ppl and ppl_tiebreak then leave the pair out"
        )
    return notes


def _answer_notes(protocol: Protocol) -> list[str]:
    notes = [
        "top_k and penalties of answers are the endpoint's own, and cumulative_logprob is null where it does not list "
        "an answer's tokens"
    ]
    if protocol.opener:
        notes.append(f"a chat endpoint begins its answer itself: {protocol.opener!r} is not put before it")
    if protocol.thinking is not None:
        notes.append("the endpoint thinks within the budgets of thinking and answer together, if it thinks at all")
    return notes


def said(answer: Any, section: Section) -> Said:
    """What is kept of the answer to a chat request to write: its text up to the section's stop text.

    Raises:
        AnswerError: nothing was written, the answer is malformed, or a filter ended it; says what to change.
    """
    choice = mapping(choices(answer)[0])
    message = mapping(choice.get("message"))
    thinking = _thinking(message)
    reason = _ended(choice, message, section)
    written, stopped = _up_to_stop(text(message.get("content") or ""), section)
    if written.lstrip().startswith("<think>"):
        raise AnswerError(
            f"the endpoint writes its thinking into the {_called(section)}; let it keep it apart (a vLLM server: "
            f"--reasoning-parser), or {_THINKING_OFF}"
        )
    written = written.rstrip()
    if not written:
        raise _nothing_written(reason, thinking, section)
    count, logprob = _covering(chat_tokens(choice), written)
    return Said(written, thinking, reason == "length" and not stopped, logprob, count)


def answer_of(found: Said, answer: Any) -> Reading:
    """A chat endpoint's answer to the question of a task, from what is kept of it.

    Where its tokens are listed `output_tokens` counts those of the text, else it is the endpoint's own count.
    """
    if found.logprob is not None and math.isnan(found.logprob):
        return not_a_logprob("a token of the answer")
    tokens = found.tokens if found.tokens is not None else tokens_written(answer, found.thinking is not None)
    return Reading(output=found.text.strip(), cumulative_logprob=found.logprob, output_tokens=tokens)


def _called(section: Section) -> str:
    return "answer" if section.name == "output" else section.name


def _up_to_stop(written: str, section: Section) -> tuple[str, bool]:
    """A text up to the section's stop text, and whether that was in it."""
    if not section.stop:
        return written, False
    before, stopped, _ = written.partition(section.stop)
    return before, bool(stopped)


def _nothing_written(reason: str, thinking: str | None, section: Section) -> AnswerError:
    if thinking and reason == "length":
        key = "max_tokens" if section.name == "output" else f"{section.name}.max_tokens"
        return AnswerError(
            f"the {_called(section)} is empty: thinking took its whole budget of {section.max_tokens} tokens; raise "
            f"the protocol's {key}, or {_THINKING_OFF}"
        )
    stop = f"{section.stop!r} or " if section.stop else ""
    return AnswerError(f"the {_called(section)} {EMPTY} before {stop}the end of its turn")


def _thinking(message: Mapping[str, Any]) -> str | None:
    """What the endpoint keeps apart as thinking; servers name it in two ways."""
    for name in ("reasoning_content", "reasoning"):
        if isinstance(message.get(name), str) and message[name]:
            return str(message[name])
    return None


def _ended(choice: Mapping[str, Any], message: Mapping[str, Any], section: Section) -> str:
    """Why the writing ended, if it can be used."""
    if message.get("refusal"):
        raise AnswerError(f"the judge refuses: {str(message['refusal'])[:200]!r}")
    return ended(choice, section)


def ended(choice: Mapping[str, Any], section: Section) -> str:
    """The `finish_reason` of a choice that wrote something.

    Raises:
        AnswerError: it is missing, or one with which the text cannot be used, such as a content filter's.
    """
    reason = choice.get("finish_reason")
    if reason == "content_filter":
        raise AnswerError(f"the endpoint's content filter ended the {_called(section)}")
    if reason not in _ENDED:
        raise AnswerError(f"the endpoint's answer ended with {reason!r}; one of {list(_ENDED)} can be used")
    return str(reason)


def _covering(tokens: Sequence[Any], written: str) -> tuple[int | None, float | None]:
    """How many first tokens hold `written`, and the sum of their log-probabilities (NaN where one is no such thing);
    None where the tokens do not spell it."""
    wanted, spelled, values = written.encode("utf-8", "replace"), b"", []
    for entry in tokens:
        if len(spelled) >= len(wanted):
            break
        spelled += _bytes(mapping(entry))
        values.append(number(mapping(entry).get("logprob")))
    if not spelled.startswith(wanted) or any(value <= ZERO for value in values):
        return None, None
    if any(value > _ROUNDING for value in values):
        return len(values), math.nan
    return len(values), math.fsum(values)


def _bytes(entry: Mapping[str, Any]) -> bytes:
    given = entry.get("bytes")
    if isinstance(given, list) and all(isinstance(b, int) and 0 <= b < 256 for b in given):
        return bytes(given)
    return text(entry.get("token")).encode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Flat:
    """The sampled tokens' log-probabilities, laid out as the engine does."""

    token_ids: list[int]
    logprobs: list[float]
    start_indices: list[int]


@dataclass(frozen=True, slots=True)
class Completion:
    """The first choice of an answer on the route `completions`, laid out as the engine's completions are."""

    token_ids: list[int]
    text: str
    finish_reason: str
    logprobs: Flat


def completion_of(answer: Any, section: Section) -> Completion:
    """An answer to a request for writing; its text ends before the section's stop text, whether or not the server
    does that.

    Raises:
        AnswerError: it does not name its tokens by id, with a log-probability each, or cannot be used.
    """
    choice = mapping(choices(answer)[0])
    logprobs = choice.get("logprobs")
    logprobs = logprobs if isinstance(logprobs, dict) else {}
    tokens, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(values, list) or len(tokens) != len(values):
        raise AnswerError("the endpoint's answer lists no log-probabilities of what was written")
    ids = [token_id(text(token)) for token in tokens]
    if None in ids:
        raise AnswerError(
            "the endpoint does not name the tokens that were written by their ids, as a vLLM server does, so that "
            "nothing can be put or read right behind them; use judge.route: chat"
        )
    found = [i for i in ids if i is not None]
    numbers = [number(value) for value in values]
    numbers = [math.nan if value > _ROUNDING else value for value in numbers]
    flat = Flat(found, numbers, list(range(len(found))))
    written, stopped = _up_to_stop(text(choice.get("text")), section)
    return Completion(found, written, "stop" if stopped else ended(choice, section), flat)


def token_id(name: str) -> int | None:
    """The id by which an endpoint names a token, or None where it names it by its text.

    Raises:
        AnswerError: an id that is none.
    """
    if not name.startswith(TOKEN_ID):
        return None
    digits = name.removeprefix(TOKEN_ID)
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        raise AnswerError("the endpoint names a token by what is no id")
    return int(digits)
