"""The command in this process: the interpreter's start would be most of the time."""

import contextlib
import io
import signal
import subprocess
import sys

import pytest

from trustjudge_ray.cli import perform


def trustjudge(*args: object, **environment: str) -> subprocess.CompletedProcess:
    """What a command line prints, and its exit status; with these environment variables."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["trustjudge", *map(str, args)])
        patch.setattr(signal, "signal", lambda *_: None)
        for name, value in environment.items():
            patch.setenv(name, value)
        status = perform()
    said = [stream.buffer.getvalue().decode("utf-8") for stream in (out, err)]
    return subprocess.CompletedProcess(list(args), status, *said)
