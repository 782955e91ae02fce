"""A judge behind an OpenAI-compatible endpoint: a vLLM server, or a provider's model.

An endpoint lists at most its 20 most probable tokens. So a label that is not among them is null, `label_mass` is a
lower bound, and labels must be single tokens. Where no log-probabilities are listed at all, `distribution: sampled`
draws verdicts and counts them, which is another estimand and is named so in the judge's identity.
"""

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from trustjudge_ray.config import ConfigError, JudgeConfig, judge_name
from trustjudge_ray.identity import seed_of
from trustjudge_ray.judging.base import JudgeError, Reading
from trustjudge_ray.judging.model_files import locate
from trustjudge_ray.judging.openai_http import Endpoint, NoAnswer
from trustjudge_ray.judging.openai_routes import ROUTES, AnswerError, Question, Route, choices, counted, trial, tried
from trustjudge_ray.judging.openai_routes import usage as usage_of
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
_FIXED = {"temperature": (None, 1), "top_p": (None, 1), "n": (None,)}
"""Fields that decide what is read, with the only values that read it right; null sends none."""
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
    routes = [_route(judge, protocol, tokenizer_of(judge), judge.max_model_len) for protocol in protocols]
    sampled = judge.distribution == "sampled"
    return {
        "engine": "openai_api",
        "model": judge.model,
        "revision": judge.revision,
        "endpoint": None if judge.revision else str(judge.base_url).rstrip("/"),
        "route": judge.route,
        "distribution": judge.distribution,
        "read": {"draws": judge.n} if sampled else {"top_logprobs": judge.top_logprobs},
        "arguments": dict(judge.engine_args),
        "max_model_len": judge.max_model_len,
        "on_overflow": judge.on_overflow,
        "templates": {route.protocol.name: route.hash for route in routes},
        "notes": [*_notes(judge), *dict.fromkeys(note for route in routes for note in route.notes)],
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

        Raises:
            JudgeError: no question can succeed any more (see `Endpoint.ask`).
        """
        rows = tasks.to_pylist()
        asked = [self._routes[row["protocol"]].ask(row) for row in rows]
        waiting: list[Future[Reading] | Reading] = [
            question
            if isinstance(question, Reading)
            else self._pool.submit(self._answer, self._routes[row["protocol"]], question, row["task_id"])
            for row, question in zip(rows, asked, strict=True)
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
            "label_mass": "the share of draws that could be read"
            if self._judge.distribution == "sampled"
            else f"a lower bound: only the {self._judge.top_logprobs} most probable tokens are listed",
        }

    def _answer(self, route: Route, question: Question, task_id: str) -> Reading:
        try:
            reading, tokens = self._read(route, question, task_id)
        except NoAnswer as failure:
            return Reading(failure.status, detail=failure.detail, truncated=question.truncated)
        except AnswerError as error:
            return Reading("engine_error", detail=str(error), truncated=question.truncated)
        except JudgeError:
            self._endpoint.stop()
            raise
        return replace(reading, truncated=question.truncated, **tokens)

    def _read(self, route: Route, question: Question, task_id: str) -> tuple[Reading, dict[str, Any]]:
        if self._judge.distribution == "logprobs":
            answer = self._ask(route.path, question.body)
            return route.read(answer), usage_of(answer)
        drawn: list[str] = []
        tokens: dict[str, Any] = {}
        while len(drawn) < self._judge.n:
            left = self._judge.n - len(drawn)
            seed = seed_of("draw", task_id, str(len(drawn))) % 2**31
            answer = self._ask(route.path, question.body | {"n": left, "seed": seed})
            drawn += [route.drawn(choice) for choice in choices(answer)][:left]
            tokens = tokens or usage_of(answer)
        return counted(drawn, route.protocol), tokens

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        merged = {"model": self._judge.model} | body | self._judge.engine_args
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
        asked = [(label, self._pool.submit(self._ask, route.path, trial(label))) for label in route.unsure]
        try:
            for label, answer in asked:
                tried(label, answer.result(), route.protocol)
        except (NoAnswer, ValueError) as error:
            self._endpoint.stop()
            raise JudgeError(f"{self._who}: {error}") from None

    def _try_question(self, route: Route) -> None:
        compare = route.protocol.kind == "compare"
        task = {
            "messages": [{"role": "user", "content": "What is 2 + 2?"}],
            "reference": "4",
            "replies_a": ["2 + 2 is 4."],
            "replies_b": ["It is 5."] if compare else None,
            "order": "AB" if compare else None,
        }
        question = route.ask(task)
        if isinstance(question, Reading):
            raise JudgeError(f"{self._who}, protocol '{route.protocol.name}': {question.detail}")
        reading = self._answer(route, question, "trial")
        unreadable = reading.status == "no_label_mass" and self._judge.distribution == "sampled"
        if reading.status != "ok" and not unreadable:
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
    if protocol.writes:
        raise JudgeError(
            f"judge '{judge_name(judge)}', protocol '{protocol.name}': engine openai_api reads verdicts without a "
            "rationale; use a protocol without one, or engine vllm"
        )
    try:
        return ROUTES[judge.route](protocol, judge, tokenizer, context)
    except ValueError as error:
        raise JudgeError(f"judge '{judge_name(judge)}': {error}") from error


def _notes(judge: JudgeConfig) -> list[str]:
    address = urlsplit(str(judge.base_url))
    if judge.distribution == "sampled":
        notes = [
            f"label probabilities are shares of {judge.n} sampled verdicts, not the judge's own probabilities; "
            "label_mass is the share that could be read"
        ]
    else:
        notes = [
            f"the endpoint lists only its {judge.top_logprobs} most probable tokens: label_mass is a lower bound, and "
            "a label that is not among them is null"
        ]
    notes.append("which weights answer, and in which precision, is the endpoint's word")
    if address.scheme == "http" and not _LOCAL.fullmatch(address.hostname or ""):
        notes.append("the endpoint's address is http, not https: texts and key travel unencrypted")
    return notes
