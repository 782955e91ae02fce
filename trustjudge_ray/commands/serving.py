"""The command that serves: serve-rewards."""

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import click

from trustjudge_ray.commands import completing
from trustjudge_ray.commands.options import CONFIG

_LONGEST_END = 30.0
"""Seconds that ending may take beyond `serve.grace`: a Ray that the same signal has ended answers nobody."""


def _whole() -> type:
    from trustjudge_ray.serving_config import ServingConfig

    return ServingConfig


@click.command("serve-rewards")
@CONFIG
@click.argument("overrides", nargs=-1, metavar="[key=value]...", shell_complete=completing.overrides(_whole, ()))
def serve_rewards(config_path: str, overrides: tuple[str, ...]) -> None:
    """Serve rewards over HTTP until SIGTERM or Ctrl-C; what was taken in by then is answered.

    One that comes while the service is starting ends it at once, exit status 143 or 130; later the status is 0.
    POST /v1/reward, POST /openrlhf, GET /healthz, GET /metrics. Listens on this machine alone unless `serve.host` says
    otherwise; then clients must send the token that the environment variable `serve.token_env` holds.

    \b
    trustjudge serve-rewards configs/rewards.yaml
    trustjudge serve-rewards configs/rewards.yaml serve.port=8800 cluster.replicas=2
    """
    from trustjudge_ray import serving_config

    config = serving_config.load(config_path, list(overrides))
    try:
        from trustjudge_ray import pipeline
        from trustjudge_ray.training import service
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("ray", "starlette", "fastapi", "uvicorn", "grpc_reflection"):
            raise
        raise click.ClickException(
            f"serving needs {error.name}, which is not installed: pip install 'trustjudge-ray[serve]'"
        ) from error
    from trustjudge_ray.config import judge_name

    token = os.environ.pop(config.serve.token_env, None)  # or every process of a Ray that is started here inherits it
    _only_the_first_signal()
    with contextlib.redirect_stdout(sys.stderr):
        try:
            click.echo(f"loading {judge_name(config.judge)}; Ctrl-C gives up", err=True)
            with service.serving(config, token, _say) as address, _end_of_service(config.serve.grace) as end:
                click.echo(f"rewards of {judge_name(config.judge)} at {address}; Ctrl-C ends the service", err=True)
                select.select([end], [], [])
                click.echo("stopping: what was taken in is answered", err=True)
        finally:
            with service.quiet():
                pipeline.stop()


def _say(line: str) -> None:
    click.echo(line, err=True)


def _only_the_first_signal() -> None:
    """Let the first SIGTERM or SIGINT do what it does now, and ignore those that follow: they would interrupt the
    ending of what was started, for which there is a limit."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    found = {number: signal.getsignal(number) for number in numbers}

    def first(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        _end_at_last(number, _LONGEST_END)
        handler = found[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number, handler in found.items():
        if callable(handler):
            signal.signal(number, first)


@contextlib.contextmanager
def _end_of_service(grace: float) -> Iterator[int]:
    """A file descriptor that can be read from when SIGTERM or SIGINT has come. They stay caught after the context: a
    second one must not interrupt the ending of what was started, for which there is a limit."""
    reading, writing = os.pipe()

    def caught(number: int, frame: FrameType | None) -> None:
        os.write(writing, b".")
        _end_at_last(number, grace + _LONGEST_END)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, caught)
    yield reading


def _end_at_last(number: int, seconds: float) -> None:
    """End this process and what it started after so many seconds, with the status of a signal's end, whatever it still
    waits for then."""
    timer = threading.Timer(seconds, _give_up, [number])
    timer.daemon = True
    timer.start()


def _give_up(number: int) -> None:
    from trustjudge_ray.training import service_engine

    click.echo("the cluster does not answer any more: ended without it", err=True)
    service_engine.end_all(128 + number)
