"""The command `trustjudge`: its commands (in `commands`), its errors and its exit status.

Exit status: 0 done, 1 failed, 2 usage or configuration, 130 interrupted, 143 ended by SIGTERM. A user's mistake is
one message. A reader of the output that goes away (`| head`) is no failure: the status is what it would have been.
"""

import atexit
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final, NoReturn

import click

from trustjudge_ray import __version__, config_values
from trustjudge_ray.commands import beginning, completion, defend, existing, judging, output, serving
from trustjudge_ray.nearest import nearest

GROUPS: Final[dict[str, tuple[click.Command, ...]]] = {
    "Begin": (beginning.init, judging.validate, judging.doctor, judging.plan),
    "Judge": (
        *(judging.run, judging.judge, judging.answer, judging.audit, judging.preferences),
        *(defend.nightly, existing.retry, serving.serve_rewards),
    ),
    "Look at a run": (
        *(existing.report, existing.evaluate, existing.show, defend.compare, defend.ablation),
        *(defend.label_sheet, defend.agree),
    ),
    "Bring in, take out": (existing.import_, existing.export),
    "The command itself": (completion.completion,),
}
"""Every command, in the order of the help."""

_RESUMABLE: Final = ("run", "judge", "answer", "audit", "preferences", "nightly", "retry")
"""Commands that save what was judged, and go on from there."""


class _Commands(click.Group):
    """The commands in groups, and a word for whoever misspells one or forgets it."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups with a line for each command."""
        width = max(len(command.name or "") for group in GROUPS.values() for command in group)
        for title, commands in GROUPS.items():
            room = formatter.width - formatter.current_indent - width - 4
            with formatter.section(title):
                formatter.write_dl(
                    [((c.name or "").ljust(width), _short(c.short_help or c.help or "", room)) for c in commands]
                )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first word names.

        Raises:
            click.UsageError: there is none of that name; says which one may be meant.
        """
        if not ctx.resilient_parsing and not args[0].startswith("-") and args[0] not in self.commands:
            raise click.UsageError(_no_command(args[0], self.commands), ctx)
        return super().resolve_command(ctx, args)


def _short(told: str, room: int) -> str:
    """The first sentence of a help text, or as much of it as has room, cut where it pauses longest."""
    sentence = " ".join(told.split("\n\n")[0].split()).split(". ")[0].rstrip(".:?")
    while len(sentence) > room and (pause := max(sentence.rfind(mark) for mark in ";:")) > 0:
        sentence = sentence[:pause]
    while len(sentence) > room and (pause := sentence.rfind(",")) > 0:
        sentence = sentence[:pause]
    return sentence if len(sentence) <= room else f"{sentence[: room - 1].rsplit(' ', 1)[0]} …"


def _no_command(given: str, known: Iterable[str]) -> str:
    if given.endswith((".yaml", ".yml")):
        return f"'{given}' is no command; a command comes first: trustjudge run {shlex.quote(given)}"
    if given.endswith((".jsonl", ".parquet", ".json")):
        return f"'{given}' is no command; to make a configuration for it: trustjudge init {shlex.quote(given)}"
    near = nearest(given, known)
    hint = f" Did you mean '{near}'?" if near else " `trustjudge --help` lists them."
    return f"No such command '{given}'.{hint}"


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="trustjudge")
def cli() -> None:
    """Judge model answers with LLM judges on Ray, and say how far the numbers can be trusted.

    \b
    trustjudge init answers.jsonl > my.yaml
    trustjudge run my.yaml
    trustjudge run configs/demo.yaml
    trustjudge COMMAND --help

    CONFIG is a YAML file, RUN the folder that a run writes (its `out`), local or s3://. Any key of the configuration
    can be changed on the command line: `plan.block=4`. Exit status: 0 done, 1 failed, 2 usage or configuration.
    """


for _group in GROUPS.values():
    for _command in _group:
        cli.add_command(_command)


class _Terminated(BaseException):
    """SIGTERM came."""


def _terminate(*_: object) -> None:
    raise _Terminated


def _stopped(status: int) -> int:
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # what was started is being ended; a second Ctrl-C would leave some of it
    asked = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if asked in _RESUMABLE:
        click.echo(f"to go on: {_command_line()}", err=True)
        click.echo("stopped; what was judged is saved: the same command goes on from there", err=True)
    else:
        click.echo("stopped", err=True)
    return status


def _command_line() -> str:
    """The command as it can be typed again. A credential in it is not repeated."""
    module = os.path.basename(sys.argv[0]) == "__main__.py"
    words = [config_values.shown_override(word) if "=" in word else word for word in sys.argv[1:]]
    return shlex.join([*(("python", "-m", "trustjudge_ray") if module else ("trustjudge",)), *words])


def main() -> NoReturn:
    """Entry point: does what the command line asks for, and ends the process."""
    with _readers_may_leave():
        status = perform()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    if "ray" in sys.modules:  # at exit Ray's C++ objects can wait for one another for ever
        atexit._run_exitfuncs()
        os._exit(status)
    sys.exit(status)


class _Leavable:
    """A stream whose reader may go away, as `head` does: what is written after that goes nowhere."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write as the stream does."""
        with self._leaving():
            return int(self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush as the stream does."""
        with self._leaving():
            self._stream.flush()

    @contextlib.contextmanager
    def _leaving(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextlib.contextmanager
def _readers_may_leave() -> Iterator[None]:
    found = sys.stdout, sys.stderr
    for name, stream in zip(("stdout", "stderr"), found, strict=True):
        if stream is not None:  # closed by whoever started this
            setattr(sys, name, _Leavable(stream))
    yield
    sys.stdout, sys.stderr = found


def perform() -> int:
    """Do what the command line asks for; every error of ours is one message. The exit status."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        names = {"prog_name": completion.PROGRAM, "complete_var": completion.VARIABLE}
        cli.main(**names, standalone_mode=False, color=output.colour())
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except click.ClickException as error:
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help' for help.\n", err=True)
        output.error(error.format_message())
        return 2
    except (click.Abort, KeyboardInterrupt):
        return _stopped(130)
    except _Terminated:
        return _stopped(143)
    except Exception as error:
        status = _status(error)
        if status is None:
            raise
        output.error(str(error))
        return status
    return 0


def _status(error: Exception) -> int | None:
    """The exit status of an error that has a message for the user; None of any other, which is a fault of ours."""
    from trustjudge_ray.audit.item_files import ItemFileError
    from trustjudge_ray.corpus.reader import CorpusConfigError, CorpusError
    from trustjudge_ray.imports import ImportFileError
    from trustjudge_ray.judging.base import JudgeError, RunError
    from trustjudge_ray.judging.protocols import ProtocolError
    from trustjudge_ray.schema import SchemaError
    from trustjudge_ray.showing import NotFoundError
    from trustjudge_ray.storage import StorageError

    if isinstance(error, config_values.ConfigError | CorpusConfigError | ProtocolError):
        return 2
    failures = CorpusError | ImportFileError | ItemFileError | NotFoundError | StorageError
    return 1 if isinstance(error, failures | JudgeError | RunError | SchemaError) else None
