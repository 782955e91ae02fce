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


class Gateway:
    """The server's process: it can be killed, and started again on the same port with what it holds."""

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="tjs3-", dir="/tmp"))
        self._program, self._meta = Path(sys.executable).parent / "juicefs", f"sqlite3://{self._home}/meta.db"
        make = [self._program, "format", self._meta, "tests", "--storage", "file", "--bucket", f"{self._home}/blocks/"]
        subprocess.run(make, check=True, capture_output=True, timeout=60)
        self.port = free_port()
        self.where = S3Server(f"http://127.0.0.1:{self.port}")
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start it, and wait until it answers: it is another program, and says in no other way that it is ready."""
        import s3fs

        serve = [self._program, "gateway", self._meta, f"127.0.0.1:{self.port}", "--multi-buckets", "--no-banner"]
        serve += ["--no-usage-report", "--cache-dir", f"{self._home}/cache"]
        keys = {"MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET}
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(serve, env=os.environ | keys, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                fs = s3fs.S3FileSystem(**self.where.options, skip_instance_cache=True)
                if not fs.exists(self.where.bucket):
                    fs.mkdir(self.where.bucket)
                return
            except Exception:
                time.sleep(0.2)
        said = (self._home / "log").read_text(errors="replace")[-2000:]
        raise RuntimeError(f"the S3 server did not start: {said}")

    def kill(self) -> None:
        """End it at once, whatever it is doing."""
        if self._process:
            self._process.kill()
            self._process.wait(20)

    def close(self) -> None:
        """End it, and remove what it holds."""
        if self._process:
            self._process.terminate()
            self._process.wait(20)
        shutil.rmtree(self._home, ignore_errors=True)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """The server with one bucket, `corpora`."""
    gateway = Gateway()
    try:
        gateway.start()
        yield gateway.where
    finally:
        gateway.close()
