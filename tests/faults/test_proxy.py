"""The proxy does what it is told: a fault suite whose faults never arrive would show nothing."""

import http.client
import io
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from proxy import FaultProxy, Weather

PART = "/corpora/run/judgments/bucket=001/part-x.parquet"


class Store(BaseHTTPRequestHandler):
    """Keeps what is put, when all of it has come."""

    kept: dict[str, bytes]

    def log_message(self, *_) -> None: ...

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if len(body) == int(self.headers["Content-Length"]):
            self.kept[self.path] = body
        self.answer(b"")

    def do_GET(self) -> None:
        self.answer(self.kept[self.path])

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def kept() -> dict[str, bytes]:
    return {}


@pytest.fixture
def proxy(kept: dict[str, bytes]) -> Iterator[FaultProxy]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Kept", (Store,), {"kept": kept}))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    made = FaultProxy(server.server_port)
    yield made
    made.close()
    server.shutdown()
    server.server_close()


def ask(proxy: FaultProxy, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
    connection.request(method, path, body)
    answer = connection.getresponse()
    return answer.status, answer.read()


def part(rows: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"task_id": [str(i) for i in range(rows)]}), sink)
    return sink.getvalue()


def test_what_is_sent_arrives_and_committed_rows_are_counted_once(proxy, kept):
    for _ in range(2):
        assert ask(proxy, "PUT", PART, part(7))[0] == 200
    ask(proxy, "PUT", "/corpora/run/ingest/bucket=001/part-x.parquet", part(3))
    assert ask(proxy, "GET", PART) == (200, part(7))
    assert (proxy.rows, proxy.counts.rows_written) == (7, 14)


def test_a_busy_store_keeps_nothing(proxy, kept):
    proxy.weather = Weather(busy=1.0)
    status, body = ask(proxy, "PUT", PART, part(7))
    assert status == 503
    assert b"SlowDown" in body
    assert (kept, proxy.rows, proxy.counts.busy) == ({}, 0, 1)


@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_a_connection_that_is_cut_breaks_in_the_middle(proxy, kept, method):
    kept["/x"] = b"y" * 1000
    proxy.weather = Weather(cut=1.0)
    with pytest.raises((http.client.HTTPException, OSError)):
        ask(proxy, method, "/x" if method == "GET" else PART, part(7) if method == "PUT" else None)
    assert (list(kept), proxy.rows, proxy.counts.cut) == (["/x"], 0, 1)


@pytest.mark.parametrize("complete", [True, False])
def test_a_held_part_is_there_only_when_it_was_let_through(proxy, kept, complete):
    ask(proxy, "PUT", PART, part(7))
    with proxy.holding_a_part(after=7) as hold:
        other = PART.replace("part-x", "part-z")
        sending = threading.Thread(target=lambda: ask_and_forget(proxy, other))
        sending.start()
        assert hold.held.wait(10)
        assert (hold.writer > 0, list(kept)) == (True, [PART])
        hold.release(complete)
        sending.join(10)
    assert list(kept) == ([PART, other] if complete else [PART])
    assert proxy.rows == (14 if complete else 7)


def ask_and_forget(proxy: FaultProxy, path: str) -> None:
    try:
        ask(proxy, "PUT", path, part(7))
    except (http.client.HTTPException, OSError):
        return
