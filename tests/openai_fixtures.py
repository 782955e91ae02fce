"""OpenAI-compatible endpoints on this machine: one with canned answers and faults, and vLLM's own server."""

import contextlib
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from s3_fixtures import free_port

from trustjudge_ray.config import JudgeConfig
from trustjudge_ray.identity import joined_hash
from trustjudge_ray.judging.protocols import Protocol

KEY_NAME, KEY = "TRUSTJUDGE_TEST_KEY", "sk-test-0123456789abcdef"
SERVED_CONTEXT = 1024
LISTED = [("4", -0.7), (" 4", -2.5), ("5", -1.5), ("A", -2.5), ("B", -3.0), ("The", -4.0)]
"""What the canned endpoint says of every first token: labels 1, 2, 3 and C are not listed."""


@dataclass(frozen=True)
class Canned:
    """One answer. `fault`: `reset` breaks the connection, `cut` ends the body early, `slow` waits for the end."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    fault: str = ""

    @property
    def encoded(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


def error(status: int, message: str = "no", code: str = "", **headers: str) -> Canned:
    return Canned({"error": {"message": message, "code": code}}, status, headers)


def chat_answer(listed: Any = LISTED, said: str = "4") -> Canned:
    entries = [{"token": token, "logprob": value} for token, value in listed]
    first = {"token": entries[0]["token"], "logprob": entries[0]["logprob"], "top_logprobs": entries}
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": said}, "logprobs": {"content": [first]}}
    return Canned({"choices": [choice], "usage": {"prompt_tokens": 50, "prompt_tokens_details": {"cached_tokens": 16}}})


def rationale_answer(
    said: str | None = "It names the cause.", finish: str | None = "stop", listed: bool = True, **message: Any
) -> Canned:
    """A chat answer that writes `said`; each word is a token of log-probability −0.5, listed or not."""
    tokens = [{"token": word, "logprob": -0.5, "top_logprobs": []} for word in re.findall(r"\s*\S+", said or "")]
    choice = {"finish_reason": finish, "message": {"content": said} | message}
    choice |= {"logprobs": {"content": tokens}} if listed else {}
    return Canned({"choices": [choice], "usage": {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 8}}})


def written_answer(ids: list[int], said: str, finish: str = "stop", logprob: float = -0.5) -> Canned:
    """What a vLLM server gives for a request to write, on the route completions."""
    logprobs = {"tokens": [f"token_id:{i}" for i in ids], "token_logprobs": [logprob] * len(ids)}
    return Canned({"choices": [{"text": said, "finish_reason": finish, "logprobs": logprobs}]})


def completion_answer(listed: dict[str, float | None]) -> Canned:
    return Canned({"choices": [{"index": 0, "text": "4", "logprobs": {"top_logprobs": [listed]}}]})


class BusyHTTPServer(ThreadingHTTPServer):
    """An HTTP server that many may ask at once: the socket's own queue of 5 resets connections on a loaded machine."""

    request_queue_size = 128
    daemon_threads = True


class CannedEndpoint:
    """Answers `script` one after the other, then `otherwise`; keeps what was asked in `requests`."""

    def __init__(self) -> None:
        self.script: list[Canned] = []
        self.otherwise: Any = chat_answer()
        self.requests: list[dict[str, Any]] = []
        self.over, self._lock = threading.Event(), threading.Lock()
        self.server = BusyHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def next(self, request: dict[str, Any]) -> Canned:
        with self._lock:
            self.requests.append(request)
            if self.script:
                return self.script.pop(0)
            return self.otherwise(request) if callable(self.otherwise) else self.otherwise

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None: ...

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._give(body)

            def do_GET(self) -> None:
                self._give(None)

            def _give(self, body: Any) -> None:
                canned = endpoint.next(
                    {"path": self.path, "headers": dict(self.headers), "body": body, "at": time.monotonic()}
                )
                if canned.fault == "reset":
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.close_connection = True
                    return
                if canned.fault == "slow":
                    endpoint.over.wait(20)
                content = canned.encoded
                self.close_connection = canned.fault != ""
                self.send_response(canned.status)
                for name, value in canned.headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(content) + (99 if canned.fault == "cut" else 0)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # a client that waited long enough is gone
                    self.wfile.write(content)

        return Handler

    def close(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def endpoint() -> Iterator[CannedEndpoint]:
    """A canned endpoint of this test's own."""
    canned = CannedEndpoint()
    yield canned
    canned.close()


def task(protocol: Protocol, answer: str, other: str | None = None, order: str | None = None) -> dict[str, Any]:
    """A TASK_TEXTS row."""
    return {
        "task_id": joined_hash(protocol.name, answer, other or "", order or ""), "spec": "s", "category": None,
        "kind": protocol.kind, "protocol": protocol.name, "judge": "judge", "question_id": "q",
        "response_a": "1", "model_a": "m1", "response_b": other and "2", "model_b": other and "m2",
        "order": order, "sample": 0, "repeat": 0, "reference": None, "replies_a": [answer],
        "replies_b": other and [other], "messages": [{"role": "user", "content": "Why is the sky blue?"}],
    }  # fmt: skip


@dataclass(frozen=True)
class VllmServer:
    """vLLM's OpenAI server with the embedded model."""

    url: str
    model: str

    def judge(self, **changes: Any) -> JudgeConfig:
        settings = {"engine": "openai_api", "model": self.model, "tokenizer": "embedded", "base_url": self.url}
        return JudgeConfig(**(settings | {"api_key_env": KEY_NAME, "concurrency": 8} | changes))


@pytest.fixture(scope="session")
def vllm_server() -> Iterator[VllmServer]:
    """The server in float32, as `engine_judge`, with a context that takes a rationale; it wants the key KEY."""
    with serving("float32", SERVED_CONTEXT) as found:
        yield found


class serving:
    """Start vLLM's server in a precision, and end it."""

    def __init__(self, dtype: str, context: int) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="tjv-", dir="/tmp"))
        self._port, self._dtype, self._context = free_port(), dtype, context

    def __enter__(self) -> VllmServer:
        from trustjudge_ray.judging.embedded import embedded_model
        from trustjudge_ray.judging.vllm_environment import cpu_environment

        model = "smollm2-served"
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
        command += ["--port", str(self._port), "--model", str(embedded_model()), "--served-model-name", model]
        command += ["--dtype", self._dtype, "--max-model-len", str(self._context), "--enforce-eager"]
        command += ["--hf-overrides", json.dumps({"head_dtype": "float32"})] if self._dtype != "float32" else []
        command += ["--kv-cache-memory-bytes", str(2**28), "--block-size", "32", "--max-num-seqs", "16"]
        command += ["--no-enable-chunked-prefill"]  # on a CPU, a seed and a prompt computed in two steps end the server
        quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_API_KEY": KEY}
        environment = os.environ | cpu_environment() | quiet
        environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
        with (self._home / "log").open("wb") as log:
            self._server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self._home)
        url = f"http://127.0.0.1:{self._port}"
        try:
            self._wait(url)
        except BaseException:
            self.__exit__()
            raise
        return VllmServer(f"{url}/v1", model)

    def __exit__(self, *_: object) -> None:
        self._server.terminate()
        try:
            self._server.wait(30)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait(10)
        shutil.rmtree(self._home, ignore_errors=True)

    def _wait(self, url: str) -> None:
        """Asked until it answers: it is another program, and says in no other way that it is ready."""
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and self._server.poll() is None:
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.3)
        log = (self._home / "log").read_text(errors="replace")
        raise RuntimeError(f"vLLM's server did not start: {log[-2000:]}")
