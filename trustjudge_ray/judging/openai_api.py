"""A judge behind an OpenAI-compatible endpoint: a vLLM server, or a provider's model.

An endpoint lists at most its 20 most probable tokens. So a label that is not among them is null, `label_mass` is a
lower bound, and labels must be single tokens; a vLLM server on the route `completions` reports every label's token.
Where no log-probabilities are listed at all, `distribution: sampled` draws verdicts and counts them, which is another
estimand and is named so in the judge's identity. What a protocol lets the judge write first is written in a request of
its own (`openai_routes`).
"""

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from trustjudge_ray.config import ConfigError, JudgeConfig, judge_name
from trustjudge_ray.judging.base import JudgeError, Reading
from trustjudge_ray.judging.model_files import locate
from trustjudge_ray.judging.openai_answers import AnswerError, usage
from trustjudge_ray.judging.openai_http import Endpoint, NoAnswer
from trustjudge_ray.judging.openai_rationale import EMPTY, writing_arguments
from trustjudge_ray.judging.openai_requests import Request, Talk
from trustjudge_ray.judging.openai_routes import ROUTES, Route, trial, tried
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.judging.tokens import Tokenizer

_OWN_FIELDS = {
    "model": "judge.model",
    "messages": "the protocol",
    "prompt": "the protocol",
    "logprobs": "judge.distribution",
    "top_logprobs": "judge.top_logprobs",
    "stream": "the engine, which reads whole answers",
    "api_key": "the environment variable that judge.api_key_env names",
    "chat_template_kwargs": "judge.template_arguments",
}
"""Fields of a request that have a place of their own in the configuration."""
_FIXED = {
    "temperature": (None, 1),
    "top_p": (None, 1),
    "n": (None,),
    "seed": (None,),
    "stop": (None,),
    "logprob_token_ids": (None,),
}
"""Fields that decide what is read, with the only values that read it right; null sends none."""
_TRIAL = {
    "task_id": "trial",
    "spec": "trial",
    "question_id": "trial",
    "response_a": "a",
    "sample": 0,
    "repeat": 0,
    "messages": [{"role": "user", "content": "What is 2 + 2?"}],
    "reference": "4",
    "replies_a": ["2 + 2 is 4."],
}
"""The first small question to an endpoint, but for what depends on the protocol's kind."""
_LOCAL = re.compile(r"localhost|127\.\d+\.\d+\.\d+|::1")


def identity(judge: JudgeConfig, protocols: Sequence[Protocol]) -> dict[str, Any]:
    """What decides a judge's answers apart from its inputs, as a JSON value. Asks nobody.

    The endpoint's address is part of it, because a name alone does not say which weights answer; not where
    `judge.revision` says which. `notes` (what a reader of the judgments must know) decides nothing.

    Raises:
        ConfigError: a value outside its range.
        JudgeError: a protocol cannot be put to an endpoint, or a tokenizer is needed and not there.
    """
    refuse(judge)
    tokenizer = tokenizer_of(judge)
    routes = [_route(judge, protocol, tokenizer, judge.max_model_len) for protocol in protocols]
    return {
        "engine": "openai_api",
        "model": judge.model,
        "revision": judge.revision,
        "endpoint": None if judge.revision else str(judge.base_url).rstrip("/"),
        "route": judge.route,
        "distribution": judge.distribution,
        "read": _read(judge),
        "arguments": dict(judge.engine_args),
        "max_model_len": judge.max_model_len,
        "on_overflow": judge.on_overflow,
        "templates": {route.protocol.name: route.hash for route in routes},
        "notes": [*_notes(judge, protocols), *dict.fromkeys(note for route in routes for note in route.notes)],
    }


def refuse(judge: JudgeConfig) -> None:
    """Check what configures an endpoint.

    Raises:
        ConfigError: names the key, what it got and what would be right.
    """
    address = urlsplit(judge.base_url or "")
    checks: list[tuple[str, Any, bool, str]] = [
        ("model", judge.model, judge.model != "embedded", "the model's name as the endpoint calls it"),
        ("n", judge.n, 1 <= judge.n <= 1000, "from 1 to 1000"),
        ("top_logprobs", judge.top_logprobs, 1 <= judge.top_logprobs <= 20, "from 1 to 20"),
        ("timeout", judge.timeout, judge.timeout > 0, "seconds, more than 0"),
        ("max_retries", judge.max_retries, judge.max_retries >= 0, "0 or more"),
        ("concurrency", judge.concurrency, judge.concurrency >= 1, "1 or more"),
    ]
    for key, got, fine, right in checks:
        if not fine:
            raise ConfigError(f"judge.{key}: got {got!r}; {right}")
    if address.scheme not in ("http", "https") or not address.hostname or "@" in address.netloc or address.query:
        raise ConfigError(
            "judge.base_url: an address such as https://api.openai.com/v1, without user, password and ?parameters "
            "(not shown here: it may hold a secret)"
        )
    for key, value in judge.engine_args.items():
        if key in _OWN_FIELDS:
            raise ConfigError(f"judge.engine_args: '{key}' is set by {_OWN_FIELDS[key]}")
        if key in _FIXED and value not in _FIXED[key]:
            raise ConfigError(f"judge.engine_args: '{key}' is {value!r}; only {list(_FIXED[key])} reads verdicts right")


def tokenizer_of(judge: JudgeConfig) -> Tokenizer | None:
    """The tokenizer that `judge.tokenizer` names; for the route `completions`, which cannot do without, by default
    that of `judge.model`.

    Raises:
        JudgeError: it cannot be loaded.
    """
    named = judge.tokenizer or (judge.model if judge.route == "completions" else None)
    if named is None:
        return None
    hint = f"judge '{judge_name(judge)}': judge.tokenizer {named}: "
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise JudgeError(f"{hint}needs the package transformers, which is not installed") from error
    try:
        source = locate(replace(judge, model=named))
        return AutoTokenizer.from_pretrained(source, trust_remote_code=judge.trust_remote_code)
    except Exception as error:  # the hub, files and parsers raise a dozen unrelated classes
        reason = " ".join(str(error).split())[:300]
        raise JudgeError(
            f"{hint}cannot be loaded; name a folder or a hub name, or use judge.route: chat ({reason})"
        ) from None


class OpenAiJudge:
    """Asks the endpoint about each task of a batch, `judge.concurrency` at once."""

    def __init__(self, judge: JudgeConfig, protocols: Mapping[str, Protocol]) -> None:
        """Ask one small question for each protocol, so that what cannot work ends here.

        Raises:
            ConfigError: a value outside its range.
            JudgeError: key, model or address are wrong; no log-probabilities are listed; a label is several tokens.
        """
        refuse(judge)
        self._judge, self._who = judge, f"judge '{judge_name(judge)}'"
        self._endpoint = Endpoint(judge)
        self._pool = ThreadPoolExecutor(judge.concurrency, thread_name_prefix="endpoint")
        tokenizer = tokenizer_of(judge)
        context = judge.max_model_len
        if context is None and judge.route == "completions":
            context = self._context()
        self._routes = {name: _route(judge, protocol, tokenizer, context) for name, protocol in protocols.items()}
        for route in self._routes.values():
            self._try_labels(route)
            self._try_question(route)

    def judge(self, tasks: pa.Table) -> list[Reading]:
        """One reading for each TASK_TEXTS row, in order; a question that failed is a reading with a status.

        `prompt_tokens` and `cached_tokens` are the endpoint's counts, summed over a task's requests.

        Raises:
            JudgeError: no question can succeed any more (see `Endpoint.ask`).
        """
        asked = [(route := self._routes[row["protocol"]], route.ask(row)) for row in tasks.to_pylist()]
        waiting: list[Future[Reading] | Reading] = [
            talk if isinstance(talk, Reading) else self._pool.submit(self._answer, route, talk) for route, talk in asked
        ]
        try:
            return [found if isinstance(found, Reading) else found.result() for found in waiting]
        except BaseException:
            self._endpoint.stop()
            raise

    def close(self) -> None:
        """End connections and threads."""
        self._endpoint.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def describe(self) -> dict[str, Any]:
        """What is asked and how it is read, for the manifest and for people."""
        return {
            "engine": "openai_api",
            "endpoint": self._judge.base_url,
            "model": self._judge.model,
            "route": self._judge.route,
            "distribution": self._judge.distribution,
            "label_mass": _mass(self._judge),
            "budgets": {name: _budgets(r.protocol) for name, r in self._routes.items() if r.protocol.writes},
        }

    def _answer(self, route: Route, talk: Talk) -> Reading:
        """Put a task's requests to the endpoint, one after the other."""
        answers: list[Any] = []
        try:
            request = next(talk.requests)
            while True:
                answers.append(self._ask(route.path, request))
                request = talk.requests.send(answers[-1])
        except StopIteration as done:
            reading: Reading = done.value
        except NoAnswer as failure:
            reading = Reading(failure.status, detail=failure.detail)
        except AnswerError as error:
            reading = Reading("engine_error", detail=str(error))
        except JudgeError:
            self._endpoint.stop()
            raise
        known = talk.known if reading.status == "ok" else talk.known | {"detail": reading.detail}
        return replace(reading, **known, **usage(answers))

    def _ask(self, path: str, request: Request) -> Any:
        given = self._judge.engine_args
        body = writing_arguments(request.body, given) if request.writes else request.body | given
        merged = {"model": self._judge.model} | body
        return self._endpoint.ask("POST", path, {key: value for key, value in merged.items() if value is not None})

    def _context(self) -> int | None:
        """The context that the endpoint states for the model, as vLLM does; None where it does not."""
        try:
            listed = self._endpoint.ask("GET", "models", absent=True)
        except NoAnswer as failure:
            raise JudgeError(f"{self._who}: {self._judge.base_url}/models: {failure}; or set max_model_len") from None
        models = listed.get("data") if isinstance(listed, dict) else None
        for entry in models if isinstance(models, list) else []:
            if isinstance(entry, dict) and entry.get("id") == self._judge.model:
                stated = entry.get("max_model_len")
                return stated if isinstance(stated, int) and stated > 0 else None
        return None

    def _try_labels(self, route: Route) -> None:
        """Without a tokenizer, let the endpoint repeat each label that may be several tokens."""
        asked = [(label, self._pool.submit(self._ask, route.path, Request(trial(label)))) for label in route.unsure]
        try:
            for label, answer in asked:
                tried(label, answer.result(), route.protocol)
        except (NoAnswer, ValueError) as error:
            self._endpoint.stop()
            raise JudgeError(f"{self._who}: {error}") from None

    def _try_question(self, route: Route) -> None:
        compare = route.protocol.kind == "compare"
        task = _TRIAL | {"replies_b": ["It is 5."], "response_b": "b", "order": "AB"} if compare else _TRIAL
        talk = route.ask({"replies_b": None, "response_b": None, "order": None} | task)
        if isinstance(talk, Reading):
            raise JudgeError(f"{self._who}, protocol '{route.protocol.name}': {talk.detail}")
        reading = self._answer(route, talk)
        unreadable = reading.status == "no_label_mass" and self._judge.distribution == "sampled"
        silent = EMPTY in str(reading.detail)
        if reading.status != "ok" and not unreadable and not silent:
            hint = (
                "; without log-probabilities, set judge.distribution: sampled"
                if "lists no" in str(reading.detail)
                else ""
            )
            raise JudgeError(
                f"{self._who}, protocol '{route.protocol.name}': a first small question to {self._judge.base_url} "
                f"failed ({reading.status}): {reading.detail}{hint}"
            )


def _route(judge: JudgeConfig, protocol: Protocol, tokenizer: Tokenizer | None, context: int | None) -> Route:
    try:
        return ROUTES[judge.route](protocol, judge, tokenizer, context)
    except ValueError as error:
        raise JudgeError(f"judge '{judge_name(judge)}': {error}") from error


def _asks_for_labels(judge: JudgeConfig) -> bool:
    """Whether the endpoint is asked for the labels' tokens by their ids, however probable they are."""
    return (judge.route, judge.distribution) == ("completions", "logprobs") and (
        "logprob_token_ids" not in judge.engine_args
    )


def _read(judge: JudgeConfig) -> dict[str, Any]:
    """How labels are read, as part of the identity."""
    if judge.distribution == "sampled":
        return {"draws": judge.n}
    return {"top_logprobs": judge.top_logprobs} | ({"label_ids": True} if _asks_for_labels(judge) else {})


def _budgets(protocol: Protocol) -> dict[str, int]:
    parts = {"thinking": protocol.thinking, "rationale": protocol.rationale}
    budgets = {name: part.max_tokens for name, part in parts.items() if part is not None}
    return budgets | ({} if protocol.max_tokens is None else {"output": protocol.max_tokens})


def _mass(judge: JudgeConfig) -> str:
    if judge.distribution == "sampled":
        return "the share of draws that could be read"
    lower = f"a lower bound: only the {judge.top_logprobs} most probable tokens are listed"
    return f"exact where no label is null; elsewhere {lower}" if _asks_for_labels(judge) else lower


def _notes(judge: JudgeConfig, protocols: Sequence[Protocol]) -> list[str]:
    address = urlsplit(str(judge.base_url))
    lower = (
        f"the endpoint lists only its {judge.top_logprobs} most probable tokens: label_mass is a lower bound, and "
        "a label that is not among them is null"
    )
    if judge.distribution == "sampled":
        notes = [
            f"label probabilities are shares of {judge.n} sampled verdicts, not the judge's own probabilities; "
            "label_mass is the share that could be read"
        ]
    elif _asks_for_labels(judge):
        notes = [f"label_mass is exact where no label is null; else {lower}"]
    else:
        notes = [lower]
    notes = notes if any(protocol.label_texts for protocol in protocols) else []
    notes.append("which weights answer, and in which precision, is the endpoint's word")
    if address.scheme == "http" and not _LOCAL.fullmatch(address.hostname or ""):
        notes.append("the endpoint's address is http, not https: texts and key travel unencrypted")
    return notes
