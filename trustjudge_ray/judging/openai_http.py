"""One JSON answer for one JSON question to an OpenAI-compatible endpoint, or the failure in words.

The only module that speaks HTTP to a judge. The key comes from the environment, goes into one header, and into
nothing else: no message holds it, whatever the endpoint sends back.
"""

import json
import math
import os
import random
import re
import threading
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from trustjudge_ray.config import JudgeConfig, judge_name
from trustjudge_ray.judging.base import JudgeError

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0
"""Seconds before the first repetition, doubled each time up to the second."""
_LONGEST_ASKED = 300.0
"""An endpoint that asks for a longer pause than this does not answer."""
_LARGEST = 16 * 2**20
_GIVE_UP = 32
"""After so many questions in a row without an answer, each repeated as configured, the endpoint is gone."""
_AGAIN = {408, 409, 425, 429}
_TOO_LONG = re.compile(
    r"context[ _]length|context window|maximum (?:model|input|prompt) length|too (?:long|many tokens)"
)
_NOT_A_KEY = re.compile(r"[^\x21-\x7e]")
_LIKE_A_KEY = re.compile(r"(?i:bearer|basic)\s+\S+|\bsk-[\w*.-]+|\S*\*{3,}\S*")


class NoAnswer(Exception):
    """One question got no usable answer: `status` and `detail` of the failed judgment."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class Endpoint:
    """An endpoint that may be asked from several threads.

    Connection failures, 408, 409, 425, 429 and 5xx are repeated up to `judge.max_retries` times, after pauses that
    double, with jitter, or as long as a Retry-After header says (all threads then pause). Nothing else is repeated.
    """

    def __init__(self, judge: JudgeConfig) -> None:
        """Opens no connection yet.

        Raises:
            JudgeError: the variable that `judge.api_key_env` names holds what cannot be a key.
        """
        self._who = f"judge '{judge_name(judge)}'"
        self._base = str(judge.base_url).rstrip("/")
        self._key_name, self._model = judge.api_key_env, judge.model
        self._key = os.environ.get(judge.api_key_env, "").strip()
        if _NOT_A_KEY.search(self._key):
            raise JudgeError(
                f"{self._who}: the environment variable {judge.api_key_env} holds spaces, line breaks or other "
                "characters that no key has"
            )
        self._timeout, self._retries = float(judge.timeout), judge.max_retries
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        self._client = httpx.Client(
            headers=headers,
            timeout=self._timeout,
            limits=httpx.Limits(max_connections=judge.concurrency, max_keepalive_connections=judge.concurrency),
        )
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._not_before, self._unanswered = 0.0, 0

    def __repr__(self) -> str:
        return f"Endpoint({self._base})"

    def stop(self) -> None:
        """Let every thread that waits give up."""
        self._stopped.set()

    def close(self) -> None:
        """Stop, and close the connections."""
        self.stop()
        self._client.close()

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None, absent: bool = False) -> Any:
        """The endpoint's answer as JSON (of whatever form); None for a 404 where `absent` is as good as an answer.

        Raises:
            NoAnswer: this question failed: `too_long`, or `engine_error`.
            JudgeError: no question can succeed: wrong key, model or address, no credit left, or nobody answers.
        """
        content = None if body is None else json.dumps(body).encode("ascii")
        failure, tries = "", 0
        while tries <= self._retries:
            self._wait_for_turn()
            tries += 1
            pause: float | None = None
            try:
                status, headers, answer = self._exchange(method, f"{self._base}/{path}", content)
            except httpx.RequestError as error:
                failure = self._transport(error)
            else:
                if status not in _AGAIN and status < 500:
                    self._unanswered = 0
                    return None if absent and status in (404, 405) else self._settled(status, answer)
                failure = self._refusal(status, answer)
                pause = _retry_after(headers)
                if pause is not None and pause > _LONGEST_ASKED:
                    failure += f", and asks to come back in {pause:.0f} s"
                    break
            if tries <= self._retries:
                self._pause(tries, pause)
        raise self._given_up(f"{failure} ({tries} {'try' if tries == 1 else 'tries'})")

    def _exchange(self, method: str, url: str, content: bytes | None) -> tuple[int, httpx.Headers, bytes]:
        """One request. The time limit is for all of it, not only for each pause between two bytes."""
        deadline = time.monotonic() + self._timeout
        with self._client.stream(method, url, content=content) as response:
            body = bytearray()
            for chunk in response.iter_bytes():
                body += chunk
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("")
                if len(body) > _LARGEST:
                    raise httpx.ReadError(f"an answer of more than {_LARGEST} bytes")
            return response.status_code, response.headers, bytes(body)

    def _settled(self, status: int, answer: bytes) -> Any:
        """The JSON of a 200, or the failure that every other status means."""
        if status == 200:
            try:
                return json.loads(answer)
            except ValueError:
                raise NoAnswer("engine_error", f"the endpoint's answer is not JSON ({len(answer)} bytes)") from None
        if status in (401, 403):
            key = f"the key in {self._key_name}" if self._key else f"no key: {self._key_name} is not set where it runs"
            raise JudgeError(
                f"{self._who}: {self._base} refuses ({status}) {key}; set it to a key that may use the judge"
            )
        if status == 402:
            raise JudgeError(f"{self._who}: {self._base} wants to be paid (402); {self._message(answer)}")
        if status in (404, 405):
            raise JudgeError(
                f"{self._who}: {self._base} has no model '{self._model}', or judge.base_url or judge.route is wrong "
                f"({status}): {self._message(answer)}"
            )
        if 300 <= status < 400:
            raise JudgeError(
                f"{self._who}: {self._base} redirects ({status}); judge.base_url must be the final address"
            )
        said = self._message(answer)
        if status == 413 or _TOO_LONG.search(said.lower()):
            raise NoAnswer("too_long", f"the endpoint refuses the length ({status}): {said}")
        raise NoAnswer("engine_error", f"the endpoint refuses the request ({status}): {said}")

    def _refusal(self, status: int, answer: bytes) -> str:
        said = self._message(answer)
        if status == 429 and "insufficient_quota" in answer[:4096].decode("utf-8", "replace"):
            raise JudgeError(f"{self._who}: no credit is left with {self._base} (429, insufficient_quota)")
        return f"the endpoint answers {status}: {said}"

    def _message(self, answer: bytes) -> str:
        """What an error says, on one short line, without anything like a key."""
        try:
            found: Any = json.loads(answer)
        except ValueError:
            found = None
        for name in ("error", "message", "detail"):
            found = found.get(name, found) if isinstance(found, dict) else found
        text = " ".join(found.split()) if isinstance(found, str) else "it does not say why"
        if self._key:
            text = text.replace(self._key, "(key)")
        text = _LIKE_A_KEY.sub("(key)", text)
        return text if len(text) <= 300 else text[:300] + " …"

    def _transport(self, error: httpx.RequestError) -> str:
        if isinstance(error, httpx.TimeoutException):
            return f"no answer within {self._timeout:g} s"
        said = " ".join(str(error).split()) or type(error).__name__
        return f"no connection to the endpoint, or it broke: {said.replace(self._key, '(key)') if self._key else said}"

    def _pause(self, tries: int, asked: float | None) -> None:
        if asked is not None:
            with self._lock:
                self._not_before = max(self._not_before, time.monotonic() + asked)
            return
        longest = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** (tries - 1))
        self._stopped.wait(longest * random.uniform(0.5, 1.0))

    def _wait_for_turn(self) -> None:
        """Wait until the pause that the endpoint asked for is over; a little longer, so that not all come at once."""
        while not self._stopped.is_set() and (left := self._not_before - time.monotonic()) > 0:
            self._stopped.wait(left + random.uniform(0.0, min(0.25 * left, 5.0)))
        if self._stopped.is_set():
            raise NoAnswer("engine_error", "another question stopped the run")

    def _given_up(self, failure: str) -> Exception:
        with self._lock:
            self._unanswered += 1
            gone = self._unanswered >= _GIVE_UP
        if not gone:
            return NoAnswer("engine_error", failure)
        return JudgeError(
            f"{self._who}: {self._base} gave no answer to {_GIVE_UP} questions in a row, the last one: {failure}; what "
            "was judged is saved: the same command goes on from there"
        )


def _retry_after(headers: httpx.Headers) -> float | None:
    """Seconds that a Retry-After header asks for (a number, or a date), or None."""
    given = headers.get("retry-after", "").strip()
    try:
        seconds = float(given)
    except ValueError:
        try:
            date = parsedate_to_datetime(given)
        except ValueError:
            return None
        seconds = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return max(seconds, 0.0) if math.isfinite(seconds) else None
