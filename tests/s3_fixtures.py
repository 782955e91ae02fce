"""A real S3 server on a free port of this machine, started and ended by the session of tests."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

KEY, SECRET = "trustjudge-test", "trustjudge-secret"


@dataclass(frozen=True)
class S3Server:
    """Where the server is, and what reaches it: storage options, or variables of the environment."""

    endpoint: str
    bucket: str = "corpora"

    @property
    def options(self) -> dict[str, str]:
        return {"key": KEY, "secret": SECRET, "endpoint_url": self.endpoint}

    @property
    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": self.endpoint}


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """The server with one bucket, `corpora`."""
    home = Path(tempfile.mkdtemp(prefix="tjs3-", dir="/tmp"))
    program, meta = Path(sys.executable).parent / "juicefs", f"sqlite3://{home}/meta.db"
    make = [program, "format", meta, "tests", "--storage", "file", "--bucket", f"{home}/blocks/"]
    subprocess.run(make, check=True, capture_output=True, timeout=60)
    port = free_port()
    serve = [program, "gateway", meta, f"127.0.0.1:{port}", "--multi-buckets", "--no-usage-report", "--no-banner"]
    serve += ["--cache-dir", f"{home}/cache"]
    keys = {"MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET}
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(serve, env=os.environ | keys, stdout=log, stderr=log)
    try:
        found = S3Server(f"http://127.0.0.1:{port}")
        _make_bucket(found, server, home / "log")
        yield found
    finally:
        server.terminate()
        server.wait(20)
        shutil.rmtree(home, ignore_errors=True)


def _make_bucket(found: S3Server, server: subprocess.Popen, log: Path) -> None:
    """Asked until the server answers: it is another program, and says in no other way that it is ready."""
    import s3fs

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        try:
            s3fs.S3FileSystem(**found.options, skip_instance_cache=True).mkdir(found.bucket)
            return
        except Exception:
            time.sleep(0.2)
    raise RuntimeError(f"the S3 server did not start: {log.read_text(errors='replace')[-2000:]}")
