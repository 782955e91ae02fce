"""An HTTP proxy before a real S3 server: passes requests on, and can be busy, slow, break connections or hold a write.

It knows how far a run is, because every part that is committed passes through it.
"""

import contextlib
import io
import random
import re
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow.parquet as pq

_PART = re.compile(r"/judgments/.*part-[^/?]*\.parquet")
_BUSY_BODY = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)
_CHUNK = 65536


@dataclass(frozen=True)
class Weather:
    """What the store is like. Shares of requests, drawn by the proxy's seed.

    Attributes:
        busy: answered 503 SlowDown, and not passed on.
        cut: broken off in the middle: half of what the client sends, or half of what the server answers.
        slow: kept waiting for up to `seconds`.
    """

    busy: float = 0.0
    cut: float = 0.0
    slow: float = 0.0
    seconds: float = 0.0


@dataclass
class Hold:
    """A part that is being written, stopped after half of its bytes until it is released.

    Attributes:
        writer: the port that the writing process speaks from.
    """

    after: int
    writer: int = 0
    complete: bool = True
    held: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def release(self, complete: bool) -> None:
        """Let the rest of the part through, or (not `complete`) lose it on the way."""
        self.complete = complete
        self.released.set()


@dataclass
class Counts:
    """What has passed, since the last `forget`."""

    parts: dict[str, int] = field(default_factory=dict)
    rows_written: int = 0
    requests: int = 0
    busy: int = 0
    cut: int = 0
    slow: int = 0


class FaultProxy:
    """Listens on a port of its own before a server on this machine."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._lock = threading.Lock()
        self._rng = random.Random(0)
        self._hold: Hold | None = None
        self.weather = Weather()
        self.counts = Counts()
        proxy = self

        class Connection(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    proxy._serve(self.request, self.client_address[1])

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection, bind_and_activate=False)
        self._server.daemon_threads, self._server.request_queue_size = True, 128
        self._server.server_bind()
        self._server.server_activate()
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def begin(self, seed: int) -> None:
        """A new trial: nothing counted, fair weather, and a seed of its own."""
        with self._lock:
            self._rng, self._hold = random.Random(seed), None
            self.weather, self.counts = Weather(), Counts()

    @property
    def rows(self) -> int:
        """Rows of the different parts that were committed."""
        with self._lock:
            return sum(self.counts.parts.values())

    @contextlib.contextmanager
    def holding_a_part(self, after: int) -> Iterator[Hold]:
        """Holds the first part that is written once so many rows are committed. Released at the end at the latest."""
        hold = Hold(after)
        with self._lock:
            self._hold = hold
        try:
            yield hold
        finally:
            hold.released.set()
            with self._lock:
                self._hold = None

    # --- one connection, one request ---------------------------------------------------------

    def _serve(self, client: socket.socket, port: int) -> None:
        client.settimeout(60)
        head, begun = _head_of(client)
        if head is None:
            return
        method, path, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        length = _length(head)
        busy, cut, wait = self._draw()
        if wait:
            time.sleep(wait)
        if b"100-continue" in head.lower() and not begun:
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if busy:
            _drain(client, length - len(begun))
            body = b"" if method == "HEAD" else _BUSY_BODY
            client.sendall(_closing(b"HTTP/1.1 503 Slow Down", b"Content-Type: application/xml", len(_BUSY_BODY), body))
            return
        with socket.create_connection(("127.0.0.1", self._upstream), timeout=5) as server:
            server.settimeout(60)
            server.sendall(_without_connection(head))
            part = method == "PUT" and _PART.search(path) is not None
            sent = self._forward(client, server, begun, length, port if part else 0, cut and length > 1)
            if sent is None:
                _reset(client)
                return
            answer = _whole(server)
        if cut and length <= 1:
            client.sendall(answer[: len(answer) // 2])
            _reset(client)
            return
        if part and answer[9:12] == b"200":
            self._committed(path, sent)
        client.sendall(answer)

    def _draw(self) -> tuple[bool, bool, float]:
        with self._lock:
            draws = [self._rng.random() for _ in range(4)]
            busy, cut, slow = draws[0] < self.weather.busy, draws[1] < self.weather.cut, draws[2] < self.weather.slow
            self.counts.requests += 1
            self.counts.busy += busy
            self.counts.cut += cut and not busy
            self.counts.slow += slow
            return busy, cut and not busy, draws[3] * self.weather.seconds if slow else 0.0

    def _forward(
        self, client: socket.socket, server: socket.socket, begun: bytes, length: int, port: int, cut: bool
    ) -> bytes | None:
        """The body, passed on; None where it was broken off. `port` is the writer's if this is a part."""
        body = begun
        while len(body) < length:
            more = client.recv(_CHUNK)
            if not more:
                return None
            body += more
        half = len(body) // 2
        server.sendall(body[:half])
        if cut:
            return None
        if (hold := self._take_hold() if port else None) is not None:
            hold.writer = port
            hold.held.set()
            hold.released.wait(60)
            if not hold.complete:
                return None
        server.sendall(body[half:])
        return body

    def _take_hold(self) -> Hold | None:
        with self._lock:
            if self._hold is None or sum(self.counts.parts.values()) < self._hold.after:
                return None
            hold, self._hold = self._hold, None
            return hold

    def _committed(self, path: str, body: bytes) -> None:
        rows = pq.ParquetFile(io.BytesIO(body)).metadata.num_rows
        with self._lock:
            self.counts.parts[path.split("?")[0]] = rows
            self.counts.rows_written += rows


def _head_of(client: socket.socket) -> tuple[bytes | None, bytes]:
    """The request's head with the empty line at its end, and what has come of the body."""
    got = b""
    while b"\r\n\r\n" not in got:
        more = client.recv(_CHUNK)
        if not more:
            return None, b""
        got += more
    head, body = got.split(b"\r\n\r\n", 1)
    return head + b"\r\n\r\n", body


def _length(head: bytes) -> int:
    found = re.search(rb"(?im)^content-length:\s*(\d+)", head)
    if not found and re.search(rb"(?im)^transfer-encoding:\s*chunked", head):
        raise OSError("chunked requests are not passed on")
    return int(found.group(1)) if found else 0


def _without_connection(head: bytes) -> bytes:
    """The head with one request a connection; `Expect` has been answered. Neither is signed."""
    kept = re.sub(rb"(?im)^(?:connection|expect):[^\r\n]*\r\n", b"", head)
    return kept[:-2] + b"Connection: close\r\n\r\n"


def _closing(status: bytes, kind: bytes, length: int, body: bytes) -> bytes:
    return b"\r\n".join([status, kind, b"Content-Length: %d" % length, b"Connection: close", b"", body])


def _whole(server: socket.socket) -> bytes:
    """The server's answer to the end of its connection."""
    answer = b""
    while more := server.recv(_CHUNK):
        answer += more
    if not answer:
        raise OSError("the server closed the connection without an answer")
    return answer


def _drain(client: socket.socket, left: int) -> None:
    while left > 0 and (more := client.recv(min(left, _CHUNK))):
        left -= len(more)


def _reset(client: socket.socket) -> None:
    """Close as a broken network does."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
