"""The command `trustjudge`: its commands (in `commands`), its errors and its exit status.

Exit status: 0 done, 1 failed, 2 usage or configuration, 130 interrupted, 143 ended by SIGTERM. A user's mistake is
one message.
"""

import atexit
import os
import signal
import sys
from typing import NoReturn

import click

from trustjudge_ray import __version__, config
from trustjudge_ray.commands import defend, existing, judging, serving


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="trustjudge")
def cli() -> None:
    """Judge model answers with LLM judges on Ray, and say how far the numbers can be trusted.

    \b
    trustjudge run configs/demo.yaml
    trustjudge COMMAND --help

    CONFIG is a YAML file, RUN the folder that a run writes (its `out`), local or s3://. Any key of the configuration
    can be changed on the command line: `plan.block=4`. Exit status: 0 done, 1 failed, 2 usage or configuration.
    """


for command in (
    judging.run,
    judging.judge,
    judging.answer,
    judging.audit,
    judging.preferences,
    serving.serve_rewards,
    judging.validate,
    judging.doctor,
    judging.plan,
    existing.evaluate,
    existing.report,
    existing.retry,
    existing.show,
    existing.import_,
    existing.export,
    defend.ablation,
    defend.compare,
    defend.nightly,
    defend.label_sheet,
    defend.agree,
):
    cli.add_command(command)


class _Terminated(BaseException):
    """SIGTERM came."""


def _terminate(*_: object) -> None:
    raise _Terminated


def _stopped(status: int) -> int:
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # what was started is being ended; a second Ctrl-C would leave some of it
    click.echo("stopped; what was judged is saved: the same command goes on from there", err=True)
    return status


def main() -> NoReturn:
    """Entry point: does what the command line asks for, and ends the process."""
    status = perform()
    if "ray" in sys.modules:  # at exit Ray's C++ objects can wait for one another for ever
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def perform() -> int:
    """Do what the command line asks for; every error of ours is one message. The exit status."""
    signal.signal(signal.SIGTERM, _terminate)
    usage, failure = _errors()
    try:
        cli.main(standalone_mode=False)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except click.ClickException as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        return _stopped(130)
    except _Terminated:
        return _stopped(143)
    except usage as error:
        click.echo(f"error: {error}", err=True)
        return 2
    except failure as error:
        click.echo(f"error: {error}", err=True)
        return 1
    return 0


def _errors() -> tuple[tuple[type[BaseException], ...], tuple[type[BaseException], ...]]:
    from trustjudge_ray.audit.item_files import ItemFileError
    from trustjudge_ray.corpus.reader import CorpusConfigError, CorpusError
    from trustjudge_ray.imports import ImportFileError
    from trustjudge_ray.judging.base import JudgeError, RunError
    from trustjudge_ray.judging.protocols import ProtocolError
    from trustjudge_ray.schema import SchemaError
    from trustjudge_ray.showing import NotFoundError
    from trustjudge_ray.storage import StorageError

    return (config.ConfigError, CorpusConfigError, ProtocolError), (
        CorpusError,
        ImportFileError,
        ItemFileError,
        NotFoundError,
        StorageError,
        JudgeError,
        RunError,
        SchemaError,
    )
