"""The two ways to put a task to an OpenAI-compatible endpoint, and how its answers are read.

`Completions` sends token ids up to the verdict's opener, exactly as the vLLM engine does. `Chat` sends turns and asks
for the bare label, which it reads at the first token. No HTTP here: requests and answers are JSON values, and a
conversation about a task is a generator that yields the one and is sent the other.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from trustjudge_ray.config import JudgeConfig
from trustjudge_ray.identity import content_hash
from trustjudge_ray.judging.base import Reading
from trustjudge_ray.judging.labels import LabelError, read_alternatives
from trustjudge_ray.judging.openai_answers import (
    ZERO,
    AnswerError,
    choices,
    first_token,
    mapping,
    most_probable,
    number,
    text,
    unlisted,
)
from trustjudge_ray.judging.openai_rationale import (
    answer_of,
    chat_section,
    completion_of,
    refuse_arguments,
    said,
    token_id,
    writing_notes,
)
from trustjudge_ray.judging.openai_requests import (
    DRAWN_TOKENS,
    Request,
    Requests,
    Talk,
    advice,
    draws,
    not_a_logprob,
    seeded,
    several_tokens,
)
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.judging.slots import fill, task_slots
from trustjudge_ray.judging.tokens import Tokenizer, own_ids
from trustjudge_ray.judging.vllm_rationale import Section, kept
from trustjudge_ray.judging.vllm_reading import Asked, Question, asked, reader_of, reading_of

_NO_LIMIT = 2**31
_VERDICT = "Now the verdict alone, as it follows from what you wrote."
_BARE = (
    "the judge is behind a chat endpoint: it is asked for the bare label instead of being given the verdict's opener, "
    "and it is not guaranteed that a response cannot leave its slot"
)
_ANSWERING = (
    "the judge is behind a chat endpoint: it is not guaranteed that a question or its passage cannot leave its slot"
)
_UNSHAPED = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Nothing but the temperature shapes what is drawn; else a vLLM server takes the model's generation config."""


class Chat:
    """System text and worked examples as turns; the judge is asked for the bare label, after a rationale in a turn of
    its own, or answers the question as it is.

    Attributes:
        path: where the requests go.
        hash: 32 hex digits over everything that the judge is told besides the task's texts.
        unsure: labels of which it is not known whether they are one token; to be tried on the endpoint.
        notes: what whoever reads the judgments must know.
    """

    path = "chat/completions"

    def __init__(self, protocol: Protocol, judge: JudgeConfig, tokenizer: Tokenizer | None, context: int | None):
        """`context` is not used: without the endpoint's template a prompt cannot be measured, so nothing is cut.

        Raises:
            LabelError: a label is not one token of `tokenizer`.
            ValueError: the endpoint cannot be told to write as the protocol says.
        """
        refuse_arguments(protocol, judge)
        self.protocol, self._judge = protocol, judge
        self._sampled = judge.distribution == "sampled"
        self._section = chat_section(protocol)
        self._turns = _turns(protocol)
        self._answers = protocol.kind == "answer"
        after = [] if self._section is None else [self._section.stop]
        after = [_verdict_turn(protocol), *after] if after and not self._answers else after
        self.hash = content_hash([self.path, self._turns, _asking(protocol), judge.template_arguments, *after])
        self.unsure = [label for label in protocol.label_texts if not (len(label) == 1 and label.isascii())]
        if tokenizer is not None or self._sampled:
            self.unsure = []
        if tokenizer is not None and not self._sampled:
            for label in protocol.label_texts:
                ids = own_ids(tokenizer, label)
                if len(ids) != 1:
                    raise several_tokens(protocol, label, tokenizer.convert_ids_to_tokens(ids))
        self.notes = [_ANSWERING if self._answers else _BARE, *writing_notes(protocol, judge)]

    def ask(self, task: dict[str, Any]) -> Talk | Reading:
        """The requests for one TASK_TEXTS row."""
        known: dict[str, Any] = {}
        return Talk(self._requests(task, known), known)

    def _requests(self, task: dict[str, Any], known: dict[str, Any]) -> Requests:
        user = fill(self.protocol.user, task_slots(self.protocol, task))
        if self._section is None:
            turns = [*self._turns, _turn("user", user + _asking(self.protocol))]
        else:
            turns = [*self._turns, _turn("user", user)]
            written = yield self._writing(turns, self._section, task)
            found = said(written, self._section)
            if self._answers:
                known |= {"thinking": found.thinking, "rationale_cut": found.cut}
                return answer_of(found, written)
            known |= found.known
            if found.logprob is not None and math.isnan(found.logprob):
                return not_a_logprob("a token of the rationale")
            turns += [_turn("assistant", found.text), _turn("user", _verdict_turn(self.protocol))]
        body = self._body(turns) | {"temperature": 1.0, "top_p": 1.0}
        if self._sampled:
            return (yield from self._draws(body, task))
        answer = yield Request(body | {"max_tokens": 1, "logprobs": True, "top_logprobs": self._judge.top_logprobs})
        return self._read(answer)

    def _writing(self, turns: Sequence[dict[str, str]], section: Section, task: Mapping[str, Any]) -> Request:
        sampling = section.sampling(task)
        body = self._body(turns) | {name: sampling[name] for name in ("max_tokens", "temperature", "stop")}
        body |= {"top_p": 1.0} | seeded(sampling["seed"])
        return Request(body if self._sampled else body | {"logprobs": True}, writes=True)

    def _body(self, turns: Sequence[dict[str, str]]) -> dict[str, Any]:
        template = self._judge.template_arguments
        return {"messages": list(turns)} | ({"chat_template_kwargs": template} if template else {})

    def _draws(self, body: dict[str, Any], task: Mapping[str, Any]) -> Requests:
        return draws(body | {"max_tokens": DRAWN_TOKENS}, self._drawn, task["task_id"], self._judge.n, self.protocol)

    def _read(self, answer: Any) -> Reading:
        """The label distribution of an answer, without tokens and flags.

        Raises:
            AnswerError: it has none.
        """
        listed = first_token(answer).get("top_logprobs")
        if not isinstance(listed, list):
            raise unlisted(choices(answer)[0])
        pairs = [(text(mapping(entry).get("token")), number(mapping(entry).get("logprob"))) for entry in listed]
        return read_alternatives(most_probable(pairs, self._judge.top_logprobs), self.protocol.label_texts)

    def _drawn(self, choice: Any) -> str:
        """What a drawn answer says, "" where it was cut."""
        content = mapping(mapping(choice).get("message")).get("content") or ""
        return "" if mapping(choice).get("finish_reason") == "length" else text(content).strip()


class Completions:
    """Token ids up to the verdict's opener: the requests, the place and the tokens of the vLLM engine.

    The server is asked for the log-probability of every label's token (`logprob_token_ids`, which vLLM 0.32 takes on
    this route): then nothing is null and the label mass is exact. From a server that lists only its most probable
    tokens, what is not among them is null. Thinking, a rationale and an answer are written as in the engine.

    Attributes as `Chat`.
    """

    path = "completions"
    unsure: Sequence[str] = ()

    def __init__(self, protocol: Protocol, judge: JudgeConfig, tokenizer: Tokenizer | None, context: int | None):
        """`context` is the endpoint's in tokens; None does not cut prompts.

        Raises:
            ValueError: labels of several tokens, or fields of requests with which the judge would write otherwise.
            JudgeError: the tokenizer, its template or the context cannot carry the protocol.
        """
        assert tokenizer is not None
        refuse_arguments(protocol, judge)
        self.protocol, self._judge, self._tokenizer = protocol, judge, tokenizer
        self._sampled = judge.distribution == "sampled"
        further = DRAWN_TOKENS - 1 if self._sampled and protocol.label_texts else 0
        self._reader = reader_of(judge, tokenizer, protocol, _NO_LIMIT if context is None else context - further)
        table = self._reader.table
        if not self._sampled and len(table.nodes) > 1:
            longest = max(range(len(table.paths)), key=lambda i: max(map(len, table.paths[i])))
            path = max(table.paths[longest], key=len)
            raise several_tokens(protocol, protocol.label_texts[longest], tokenizer.convert_ids_to_tokens(list(path)))
        self.hash = content_hash([self.path, self._reader.hash])
        self.notes = [*self._reader.prompts.notes, *writing_notes(protocol, judge)]

    def ask(self, task: dict[str, Any]) -> Talk | Reading:
        """The requests for one TASK_TEXTS row, or the failed reading of one that cannot be put."""
        one = asked(self._reader, task)
        if isinstance(one, Reading):
            return one
        known: dict[str, Any] = {"truncated": one.truncated}
        return Talk(self._requests(one, known), known)

    def _requests(self, one: Asked, known: dict[str, Any]) -> Requests:
        while (section := one.next_section()) is not None:
            answer = yield self._writing(one, section)
            self._keep(one, section, answer, known)
        if "output" in one.written:
            return reading_of(one, [])
        if any(math.isnan(written.logprob) for written in one.written.values()):
            return not_a_logprob("a token that the judge wrote")
        if not self._sampled:
            return (yield from self._verdict(one))
        prompt = _prompt(one.request(self._reader.table.opener_ids))
        body = prompt | {"max_tokens": DRAWN_TOKENS, "temperature": 1.0, "stop": [self.protocol.closer or "\n"]}
        return (yield from draws(body | _UNSHAPED, self._drawn, one.task["task_id"], self._judge.n, self.protocol))

    def _writing(self, one: Asked, section: Section) -> Request:
        sampling = section.sampling(one.task)
        body = _prompt(one.request(section.before)) | _UNSHAPED | seeded(sampling["seed"])
        body |= {name: sampling[name] for name in ("max_tokens", "temperature", "stop", "skip_special_tokens")}
        return Request(body | {"logprobs": 0, "return_tokens_as_token_ids": True}, writes=True)

    def _keep(self, one: Asked, section: Section, answer: Any, known: dict[str, Any]) -> None:
        """Take in an answer to `_writing`, as the engine does."""
        sent = one.request(section.before)["prompt_token_ids"]
        try:
            written = kept(section, self._tokenizer, sent, completion_of(answer, section))
        except (ValueError, IndexError, OverflowError) as error:
            raise AnswerError(f"the {section.name} cannot be read: {error}") from error
        one.add(section, written)
        if section.name == "thinking":
            known["thinking"] = written.text
            if written.cut:
                known["detail"] = f"the thinking was closed at its budget of {section.max_tokens} tokens"
        if section.name != "rationale":
            return
        known |= {"rationale": written.text, "rationale_cut": written.cut}
        known |= {"rationale_logprob": written.logprob, "rationale_tokens": len(written.token_ids)}

    def _verdict(self, one: Asked) -> Requests:
        """The label distribution: exact where the endpoint reports the tokens that it is asked for."""
        found: dict[int, float] = {}
        for question, prompt in zip(self._reader.questions, one.questions(), strict=True):
            pairs = _listed((yield self._question(question, prompt)))
            ids = _by_id(pairs)
            if ids is None or not _as_asked(ids, question):
                return self._most_probable(pairs)
            found |= ids
        if any(math.isnan(value) for value in found.values()):
            return not_a_logprob("a label")
        node = self._reader.table.nodes[0]
        return Reading(label_logprobs=self._reader.table.read([{i: _finite(found[i]) for i in node.token_ids}]))

    def _question(self, question: Question, prompt: Mapping[str, Any]) -> Request:
        body = _prompt(prompt) | {"max_tokens": 1, "temperature": 1.0, "top_p": 1.0}
        body |= {"logprobs": self._judge.top_logprobs, "logprob_token_ids": list(question.token_ids)}
        return Request(body | {"return_tokens_as_token_ids": True})

    def _most_probable(self, listed: Sequence[tuple[str, float]]) -> Reading:
        """From the most probable tokens alone. What is named by id is summed by id, so that no two texts are
        confused."""
        pairs = most_probable(listed, self._judge.top_logprobs)
        ids = _by_id(pairs)
        table = self._reader.table
        if ids is None and table.opener != self.protocol.opener:
            raise AnswerError(
                "the endpoint names tokens by their text, and with this tokenizer a label joins with the opener's end"
            )
        if ids is None:
            return read_alternatives(pairs, self.protocol.label_texts)
        if any(math.isnan(value) for value in ids.values()):
            return not_a_logprob("a listed token")
        values = table.read([{i: _finite(ids.get(i, -math.inf)) for i in table.nodes[0].token_ids}])
        there = [any(path[0] in ids for path in paths) for paths in table.paths]
        if not any(own and value != -math.inf for own, value in zip(there, values, strict=True)):
            return Reading("no_label_mass", detail=f"no label is among the {len(ids)} listed tokens")
        return Reading(label_logprobs=[value if own else None for value, own in zip(values, there, strict=True)])

    def _drawn(self, choice: Any) -> str:
        """What a drawn answer says up to the closer, "" where it was cut."""
        choice = mapping(choice)
        if choice.get("finish_reason") == "length":
            return ""
        moved = self.protocol.opener[len(self._reader.table.opener) :]
        return text(choice.get("text")).removeprefix(moved).strip()


Route = Chat | Completions
ROUTES: dict[str, type[Chat] | type[Completions]] = {"chat": Chat, "completions": Completions}


def trial(label: str) -> dict[str, Any]:
    """The body of a chat request whose answer shows whether a label is one token."""
    turn = {"role": "user", "content": f"Repeat the text after the colon and write nothing else: {label}"}
    return {"messages": [turn], "max_tokens": 4, "temperature": 0.0, "logprobs": True, "top_logprobs": 1}


def tried(label: str, answer: Any, protocol: Protocol) -> None:
    """Look at the answer to a `trial`.

    Raises:
        LabelError: the label is several tokens, or the answer does not show it.
    """
    token = text(first_token(answer).get("token"))
    repeated = token.removeprefix(" ")
    if repeated == label:
        return
    if repeated and label.startswith(repeated):
        raise several_tokens(protocol, label, [token, "…"])
    raise LabelError(
        f"protocol {protocol.name}: cannot tell whether label {label!r} is one token of this endpoint (asked to repeat "
        f"it, the endpoint began with {token[:40]!r}); name the model's tokenizer in judge.tokenizer, or "
        f"{advice(protocol)}"
    )


def _turns(protocol: Protocol) -> list[dict[str, str]]:
    """The turns before the task's own; examples answer with the bare label, as the judge is to, and where they have a
    rationale it is a turn before that, as the judge's is."""
    turns = [_turn("system", protocol.system)] if protocol.system.strip() else []
    for example in protocol.examples:
        user = fill(protocol.user, example.slots)
        if example.rationale is None:
            turns.append(_turn("user", user + _asking(protocol)))
        else:
            turns += [_turn("user", user), _turn("assistant", example.rationale)]
            turns.append(_turn("user", _verdict_turn(protocol)))
        turns.append(_turn("assistant", example.label))
    return turns


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _verdict_turn(protocol: Protocol) -> str:
    """The user turn after a rationale."""
    return _VERDICT + _asking(protocol)


def _asking(protocol: Protocol) -> str:
    """How the bare label is asked for; nothing where the judge answers."""
    if not protocol.label_texts:
        return ""
    texts = _as_named(protocol) if protocol.kind == "verify" else protocol.label_texts
    numbers = texts == tuple(str(i + 1) for i in range(len(texts)))
    which = (
        f"a whole number from 1 to {texts[-1]}" if numbers else f"one of {json.dumps(texts, ensure_ascii=False)[1:-1]}"
    )
    if protocol.kind == "compare":
        which += f" ({texts[0]}: the first is better, {texts[1]}: the second is better, {texts[2]}: a tie)"
    return f"\n\nAnswer with {which}, and write nothing else, no quotes."


def _as_named(protocol: Protocol) -> Sequence[str]:
    """The labels in the order in which the user text names them last, else the protocol's: protocols that differ in
    nothing but that order must not end on the same one."""
    words = [re.compile(rf"(?<!\w){re.escape(label)}(?!\w)") for label in protocol.label_texts]
    places = [max((m.start() for m in word.finditer(protocol.user)), default=-1) for word in words]
    if min(places) < 0:
        return protocol.label_texts
    return [label for _, label in sorted(zip(places, protocol.label_texts, strict=True))]


def _prompt(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request to the engine in the words of a completions endpoint."""
    return {"prompt" if name == "prompt_token_ids" else name: value for name, value in request.items()}


def _listed(answer: Any) -> list[tuple[str, float]]:
    """The tokens at the verdict's place as a completions endpoint names them, with their log-probabilities."""
    logprobs = mapping(choices(answer)[0]).get("logprobs")
    listed = logprobs.get("top_logprobs") if isinstance(logprobs, dict) else None
    if not isinstance(listed, list) or not listed or not isinstance(listed[0], dict) or not listed[0]:
        raise unlisted(choices(answer)[0])
    return [(name, number(value)) for name, value in listed[0].items()]


def _by_id(pairs: Sequence[tuple[str, float]]) -> dict[int, float] | None:
    """The log-probabilities by token id, or None where a token is named by its text."""
    found = [(token_id(name), value) for name, value in pairs]
    named = {i: value for i, value in found if i is not None}
    return named if len(named) == len(pairs) else None


def _as_asked(ids: Mapping[int, float], question: Question) -> bool:
    """Whether an endpoint reports the tokens that it was asked for, and beside them only the one that it drew."""
    return set(question.token_ids) <= ids.keys() and len(ids) <= len(question.token_ids) + 1


def _finite(value: float) -> float:
    return value if value > ZERO else -math.inf
