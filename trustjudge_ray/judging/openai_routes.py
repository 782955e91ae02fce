"""The two ways to put a task to an OpenAI-compatible endpoint, and how each answer is read.

`Completions` sends token ids up to the verdict's opener, exactly as the vLLM engine does. `Chat` sends turns and asks
for the bare label, which it reads at the first token. No HTTP here: bodies of requests and answers as JSON values.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from trustjudge_ray.config import JudgeConfig
from trustjudge_ray.identity import content_hash
from trustjudge_ray.judging.base import Reading
from trustjudge_ray.judging.labels import LabelError, build_table, read_alternatives
from trustjudge_ray.judging.prompts import PromptBuilder
from trustjudge_ray.judging.protocols import Protocol, fill, task_slots
from trustjudge_ray.judging.tokens import Tokenizer, own_ids

_TOKEN_ID = "token_id:"
_DRAWN_TOKENS = 16
"""Room for a drawn label and what ends it."""
_ZERO = -9999.0
_ADVICE = (
    "use a protocol whose labels are single tokens, such as score-5, or engine vllm, which reads labels of several, "
    "or distribution: sampled"
)


class AnswerError(ValueError):
    """An endpoint's answer does not hold what was asked for."""


@dataclass(frozen=True, slots=True)
class Question:
    """The body of a request, without the model's name, and what is known about its prompt."""

    body: dict[str, Any]
    truncated: bool = False


class Chat:
    """System text and worked examples as turns; the judge is asked for the bare label.

    Attributes:
        path: where the question goes.
        hash: 32 hex digits over everything that the judge is told besides the task's texts.
        unsure: labels of which it is not known whether they are one token; to be tried on the endpoint.
        notes: what whoever reads the judgments must know.
    """

    path = "chat/completions"

    def __init__(self, protocol: Protocol, judge: JudgeConfig, tokenizer: Tokenizer | None, context: int | None):
        """`context` is not used: without the endpoint's template a prompt cannot be measured, so nothing is cut.

        Raises:
            LabelError: a label is not one token of `tokenizer`.
        """
        self.protocol, self._judge = protocol, judge
        self._sampled = judge.distribution == "sampled"
        self._turns = _turns(protocol)
        self.hash = content_hash([self.path, self._turns, _asking(protocol), judge.template_arguments])
        self.unsure = [text for text in protocol.label_texts if not (len(text) == 1 and text.isascii())]
        if tokenizer is not None or self._sampled:
            self.unsure = []
        if tokenizer is not None and not self._sampled:
            for text in protocol.label_texts:
                ids = own_ids(tokenizer, text)
                if len(ids) != 1:
                    raise _several_tokens(protocol, text, tokenizer.convert_ids_to_tokens(ids))
        self.notes = [
            "the judge is behind a chat endpoint: it is asked for the bare label instead of being given the verdict's "
            "opener, and it is not guaranteed that a response cannot leave its slot",
        ]

    def ask(self, task: dict[str, Any]) -> Question | Reading:
        """The request for one TASK_TEXTS row."""
        user = fill(self.protocol.user, task_slots(self.protocol, task)) + _asking(self.protocol)
        body: dict[str, Any] = {"messages": [*self._turns, {"role": "user", "content": user}]}
        if self._judge.template_arguments:
            body["chat_template_kwargs"] = self._judge.template_arguments
        if self._sampled:
            return Question(body | {"max_tokens": _DRAWN_TOKENS, "temperature": 1.0, "top_p": 1.0})
        return Question(
            body
            | {"max_tokens": 1, "temperature": 1.0, "top_p": 1.0}
            | {"logprobs": True, "top_logprobs": self._judge.top_logprobs}
        )

    def read(self, answer: Any) -> Reading:
        """The label distribution of an answer, without tokens and flags.

        Raises:
            AnswerError: it has none.
        """
        listed = _first_token(answer).get("top_logprobs")
        if not isinstance(listed, list):
            raise AnswerError("the endpoint's answer lists no log-probabilities")
        pairs = [(_text(_mapping(entry).get("token")), _number(_mapping(entry).get("logprob"))) for entry in listed]
        return read_alternatives(_most_probable(pairs, self._judge.top_logprobs), self.protocol.label_texts)

    def drawn(self, choice: Any) -> str:
        """What a drawn answer says, "" where it was cut."""
        choice = _mapping(choice)
        said = _mapping(choice.get("message")).get("content") or ""
        return "" if choice.get("finish_reason") == "length" else _text(said).strip()


class Completions:
    """Token ids up to the verdict's opener: the place and the tokens that the vLLM engine reads.

    Attributes as `Chat`.
    """

    path = "completions"
    unsure: Sequence[str] = ()

    def __init__(self, protocol: Protocol, judge: JudgeConfig, tokenizer: Tokenizer | None, context: int | None):
        """`context` is the endpoint's in tokens; None does not cut prompts.

        Raises:
            ValueError: the tokenizer or its template cannot carry the protocol (LabelError, TemplateError).
        """
        assert tokenizer is not None
        self.protocol, self._judge, self._context = protocol, judge, context
        self._sampled = judge.distribution == "sampled"
        self._new_tokens = _DRAWN_TOKENS if self._sampled else 1
        self._table = build_table(tokenizer, protocol)
        if not self._sampled and len(self._table.nodes) > 1:
            longest = max(range(len(self._table.paths)), key=lambda i: max(map(len, self._table.paths[i])))
            path = max(self._table.paths[longest], key=len)
            raise _several_tokens(protocol, protocol.label_texts[longest], tokenizer.convert_ids_to_tokens(list(path)))
        self._prompts = PromptBuilder(
            tokenizer,
            protocol,
            max_prompt_tokens=None if context is None else context - len(self._table.opener_ids) - self._new_tokens,
            on_overflow=cast(Literal["truncate", "fail"], judge.on_overflow),
            template_arguments=judge.template_arguments,
        )
        self.hash = content_hash([self.path, self._prompts.template_hash, self._table.opener_ids, self._table.paths])
        self.notes = list(self._prompts.notes)

    def ask(self, task: dict[str, Any]) -> Question | Reading:
        """The request for one TASK_TEXTS row, or the failed reading of one that cannot be put."""
        try:
            prompt = self._prompts.build(task_slots(self.protocol, task))
        except ValueError as error:
            return Reading("engine_error", detail=f"the prompt cannot be built: {error}")
        ids = [*prompt.token_ids, *self._table.opener_ids]
        if prompt.too_long or (self._context is not None and len(ids) + self._new_tokens > self._context):
            return Reading("too_long", detail=f"does not fit into the context of {self._context} tokens")
        body: dict[str, Any] = {"prompt": ids, "max_tokens": self._new_tokens, "temperature": 1.0, "top_p": 1.0}
        if self._sampled:
            body |= {"stop": [self.protocol.closer or "\n"], "top_k": 0, "repetition_penalty": 1.0}
        else:
            body |= {"logprobs": self._judge.top_logprobs, "return_tokens_as_token_ids": True}
        return Question(body, prompt.truncated)

    def read(self, answer: Any) -> Reading:
        """As `Chat.read`. Tokens that the endpoint names by id are summed by id, so that no two texts are confused."""
        logprobs = _mapping(choices(answer)[0]).get("logprobs")
        listed = logprobs.get("top_logprobs") if isinstance(logprobs, dict) else None
        if not isinstance(listed, list) or not listed or not isinstance(listed[0], dict):
            raise AnswerError("the endpoint's answer lists no log-probabilities")
        pairs = _most_probable([(key, _number(value)) for key, value in listed[0].items()], self._judge.top_logprobs)
        if all(key.startswith(_TOKEN_ID) for key, _ in pairs):
            return self._by_id(pairs)
        if self._table.opener != self.protocol.opener:
            raise AnswerError(
                "the endpoint names tokens by their text, and with this tokenizer a label joins with the opener's end"
            )
        return read_alternatives(pairs, self.protocol.label_texts)

    def drawn(self, choice: Any) -> str:
        """As `Chat.drawn`: the text up to the closer."""
        choice = _mapping(choice)
        if choice.get("finish_reason") == "length":
            return ""
        moved = self.protocol.opener[len(self._table.opener) :]
        return _text(choice.get("text")).removeprefix(moved).strip()

    def _by_id(self, pairs: Sequence[tuple[str, float]]) -> Reading:
        try:
            found = {int(key.removeprefix(_TOKEN_ID)): value for key, value in pairs}
        except ValueError:
            raise AnswerError("the endpoint names a token by what is no id") from None
        if any(math.isnan(value) for value in found.values()):
            return Reading("bad_logprob", detail="a listed log-probability is not one")
        found = {token: value if value > _ZERO else -math.inf for token, value in found.items()}
        node = self._table.nodes[0]
        values = self._table.read([{token: found.get(token, -math.inf) for token in node.token_ids}])
        listed = [any(path[0] in found for path in paths) for paths in self._table.paths]
        if not any(there and value != -math.inf for there, value in zip(listed, values, strict=True)):
            return Reading("no_label_mass", detail=f"no label is among the {len(found)} listed tokens")
        return Reading(label_logprobs=[v if there else None for v, there in zip(values, listed, strict=True)])


Route = Chat | Completions
ROUTES: dict[str, type[Chat] | type[Completions]] = {"chat": Chat, "completions": Completions}


def choices(answer: Any) -> list[Any]:
    """The choices of an answer, at least one.

    Raises:
        AnswerError: there are none.
    """
    found = _mapping(answer).get("choices")
    if not isinstance(found, list) or not found:
        raise AnswerError("the endpoint's answer has no choices")
    return found


def usage(answer: Any) -> dict[str, int | None]:
    """`prompt_tokens` and `cached_tokens` as the endpoint counted them, None where it does not say."""
    told = answer.get("usage") if isinstance(answer, dict) else None
    told = told if isinstance(told, dict) else {}
    details = told.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return {"prompt_tokens": _count(told.get("prompt_tokens")), "cached_tokens": _count(cached)}


def counted(drawn: Sequence[str], protocol: Protocol) -> Reading:
    """A distribution from drawn verdicts: ln of each label's share of *all* draws; a label never drawn has −inf.

    What is not exactly a label is in no label's share, so the label mass is the share that could be read.
    """
    counts = Counter(drawn)
    shares = [counts[text] / len(drawn) for text in protocol.label_texts]
    if not any(shares):
        return Reading("no_label_mass", detail=f"none of {len(drawn)} draws is a label; the first is {drawn[0][:60]!r}")
    return Reading(label_logprobs=[math.log(share) if share else -math.inf for share in shares])


def trial(label: str) -> dict[str, Any]:
    """The body of a chat request whose answer shows whether a label is one token."""
    turn = {"role": "user", "content": f"Repeat the text after the colon and write nothing else: {label}"}
    return {"messages": [turn], "max_tokens": 4, "temperature": 0.0, "logprobs": True, "top_logprobs": 1}


def tried(label: str, answer: Any, protocol: Protocol) -> None:
    """Look at the answer to a `trial`.

    Raises:
        LabelError: the label is several tokens, or the answer does not show it.
    """
    token = _text(_first_token(answer).get("token"))
    text = token.removeprefix(" ")
    if text == label:
        return
    if text and label.startswith(text):
        raise _several_tokens(protocol, label, [token, "…"])
    raise LabelError(
        f"protocol {protocol.name}: cannot tell whether label {label!r} is one token of this endpoint (asked to repeat "
        f"it, the endpoint began with {token[:40]!r}); name the model's tokenizer in judge.tokenizer, or {_ADVICE}"
    )


def _several_tokens(protocol: Protocol, label: str, tokens: Sequence[str]) -> LabelError:
    return LabelError(
        f"protocol {protocol.name}: an endpoint's answer is read at one token, and label {label!r} takes several "
        f"({list(tokens)}); {_ADVICE}"
    )


def _turns(protocol: Protocol) -> list[dict[str, str]]:
    """The turns before the task's own; examples answer with the bare label, as the judge is to."""
    turns = [{"role": "system", "content": protocol.system}] if protocol.system.strip() else []
    for example in protocol.examples:
        turns.append({"role": "user", "content": fill(protocol.user, example.slots) + _asking(protocol)})
        turns.append({"role": "assistant", "content": example.label})
    return turns


def _asking(protocol: Protocol) -> str:
    texts = protocol.label_texts
    numbers = texts == tuple(str(i + 1) for i in range(len(texts)))
    which = (
        f"a whole number from 1 to {texts[-1]}" if numbers else f"one of {json.dumps(texts, ensure_ascii=False)[1:-1]}"
    )
    if protocol.kind == "compare":
        which += f" ({texts[0]}: the first is better, {texts[1]}: the second is better, {texts[2]}: a tie)"
    return f"\n\nAnswer with {which}, and write nothing else, no quotes."


def _first_token(answer: Any) -> Mapping[str, Any]:
    logprobs = _mapping(choices(answer)[0]).get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list) or not content:
        raise AnswerError("the endpoint's answer lists no log-probabilities")
    return _mapping(content[0])


def _most_probable(pairs: Sequence[tuple[str, float]], most: int) -> list[tuple[str, float]]:
    """The `most` highest: some endpoints list the token that was drawn besides, whose presence is chance.

    Raises:
        AnswerError: there are none.
    """
    if not pairs:
        raise AnswerError("the endpoint's answer lists no log-probabilities")
    if len(pairs) <= most or any(math.isnan(value) for _, value in pairs):
        return list(pairs)
    return sorted(pairs, key=lambda pair: -pair[1])[:most]


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise AnswerError(f"the endpoint's answer has {type(value).__name__} where a mapping is meant")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise AnswerError(f"the endpoint's answer has {type(value).__name__} where a text is meant")
    return value


def _number(value: Any) -> float:
    """A log-probability; null is NaN, which JSON cannot write otherwise."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AnswerError(f"the endpoint's answer has {type(value).__name__} where a log-probability is meant")
    return float(value)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
