"""The command `trustjudge`. Thin: what a test would want to call lies in `runs`.

Exit status: 0 done, 1 failed, 2 usage or configuration, 130 interrupted, 143 ended by SIGTERM. A user's mistake is
one message.
"""

import contextlib
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from trustjudge_ray import __version__, commands_defend, config

if TYPE_CHECKING:
    from trustjudge_ray.runs import Judged
    from trustjudge_ray.store import RunFolder

_OVERRIDES = click.argument("overrides", nargs=-1, metavar="[key=value]...")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")
_LIMIT = click.option("--limit", type=click.IntRange(min=1), help="Only the first so many questions.")
_CONFIG = click.argument("config_path", metavar="CONFIG")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="trustjudge")
def cli() -> None:
    """Judge model answers with LLM judges on Ray, and say how far the numbers can be trusted."""


@cli.command()
@_CONFIG
@_OVERRIDES
@_LIMIT
@_JSON
def run(config_path: str, overrides: tuple[str, ...], limit: int | None, as_json: bool) -> None:
    """Plan, judge, evaluate and report; run again, it continues where it stopped.

    \b
    trustjudge run configs/demo.yaml
    trustjudge run my.yaml out=runs/try plan.block=4 --limit 10
    """
    loaded = _load(config_path, overrides, limit)
    judged, text = _judge(loaded, whole=True)
    click.echo(text)
    click.echo(f"report: {loaded.config.out.rstrip('/')}/report.html")
    _finish(judged, as_json)


@cli.command()
@_CONFIG
@_OVERRIDES
@_LIMIT
@_JSON
def judge(config_path: str, overrides: tuple[str, ...], limit: int | None, as_json: bool) -> None:
    """Only the judgments: what has none yet is judged."""
    judged, _ = _judge(_load(config_path, overrides, limit), whole=False)
    _finish(judged, as_json)


@cli.command()
@_CONFIG
@_OVERRIDES
@_JSON
def validate(config_path: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Read the corpus and name every line that cannot be used, with the reason; no judge."""
    loaded = _load(config_path, overrides, None)
    from trustjudge_ray import runs

    with tempfile.TemporaryDirectory(prefix="trustjudge-validate-") as scratch:
        found = runs.validate(loaded, Path(scratch))
    for problem in found["problems"]:
        line = "" if problem["line"] is None else f":{problem['line']}"
        click.echo(f"{problem['source']}{line}: {problem['reason']}: {problem['detail'] or ''}", err=as_json)
    click.echo(f"{found['rows']} rows can be judged, {found['quarantined']} cannot be read", err=as_json)
    if as_json:
        click.echo(runs.as_json_line(found))


@cli.command()
@click.argument("run_path", metavar="RUN")
@_OVERRIDES
@_JSON
def evaluate(run_path: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Compute scores, verdicts, metrics and ratings again from the judgments of a run.

    \b
    trustjudge evaluate runs/demo analysis.tolerances=[0,0.5] analysis.k=[3,4]
    """
    from trustjudge_ray import runs

    folder = _folder(run_path, overrides)
    folder.refuse_absent()
    found = runs.evaluate(folder, runs.analysis_settings(folder, list(overrides)))
    for warning in found.warnings:
        click.echo(f"note: {warning}", err=True)
    summary = {"metrics": found.metrics.height, "ratings": found.ratings.height, "warnings": found.warnings}
    click.echo(runs.as_json_line(summary) if as_json else f"{run_path}: {found.metrics.height} metrics")


class _ManyValued(click.Command):
    """Lets an option take all values up to the next option: `--single a.jsonl b.jsonl`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        many = {"--single", "--pairs", "--questions"}
        spread: list[str] = []
        current = None
        for arg in args:
            if arg.startswith("-"):
                current = arg if arg in many else None
                spread += [] if current else [arg]
            else:
                spread += [current, arg] if current else [arg]
        return super().parse_args(ctx, spread)


@cli.command("import", cls=_ManyValued)
@click.argument("kind", metavar="FORMAT", type=click.Choice(["oracle", "trustjudge", "battles", "label-sheet"]))
@click.argument("files", nargs=-1, metavar="FILE...")
@click.option("--single", multiple=True, metavar="FILE...", help="trustjudge: judgments of single answers.")
@click.option("--pairs", multiple=True, metavar="FILE...", help="trustjudge: judgments of pairs.")
@click.option("--questions", multiple=True, metavar="FILE", help="trustjudge: questions, for categories and scores.")
@click.option("--out", required=True, metavar="RUN", help="The run folder to make.")
@click.option("--judge", "judge_name", help="What the judge is called, where the files do not say.")
@click.option(
    "--scale", type=click.IntRange(min=2), help="trustjudge: points of the scores, where the files do not say."
)
@_JSON
def import_(
    kind: str,
    files: tuple[str, ...],
    single: tuple[str, ...],
    pairs: tuple[str, ...],
    questions: tuple[str, ...],
    out: str,
    judge_name: str | None,
    scale: int | None,
    as_json: bool,
) -> None:
    """Make a run folder from judgments that another system made.

    \b
    trustjudge import oracle DIR --out runs/oracle
    trustjudge import trustjudge --single J_single_answer_grade_5_points.jsonl --pairs J_pairs.jsonl --out RUN
    trustjudge import battles battles.parquet --out runs/arena
    trustjudge import label-sheet filled-in.csv --judge anna --out runs/mine
    """
    if kind == "label-sheet":
        commands_defend.import_labels(list(files), out, judge_name, as_json)
        return
    from trustjudge_ray import imported_runs, runs

    paths = _import_files(kind, [*files, *single, *pairs, *questions])
    summary = imported_runs.import_judgments(kind, paths, _folder(out, ()), judge_name, scale)
    statuses = ", ".join(f"{n} {status}" for status, n in summary["statuses"].items())
    click.echo(
        f"{summary['judgments']} judgments ({statuses or 'none'}), {summary['quarantined']} rows not readable",
        err=as_json,
    )
    if summary["quarantined"] > summary["judgments"]:
        click.echo("warning: most rows could not be read; the quarantine of the run folder says why", err=True)
    if as_json:
        click.echo(runs.as_json_line(summary))


def _import_files(kind: str, given: list[str]) -> list[str]:
    from trustjudge_ray.imports import oracle
    from trustjudge_ray.storage import present

    if not given:
        raise click.UsageError(f"import {kind}: no file given")
    found: list[str] = []
    for path in given:
        inside = [f"{path.rstrip('/')}/{name}" for name in oracle.FILES] if kind == "oracle" else []
        there = [file for file in inside if present(file)]
        if inside and not there and not path.endswith(".jsonl"):
            raise click.UsageError(
                f"import oracle: {path}: a folder with {', '.join(oracle.FILES)}; none of them is there"
            )
        found += there or [path]
    return found


@cli.command()
@click.argument("run_path", metavar="RUN")
@_OVERRIDES
def report(run_path: str, overrides: tuple[str, ...]) -> None:
    """Write the report of a run again from its tables."""
    from trustjudge_ray import runs

    folder = _folder(run_path, overrides)
    folder.refuse_absent()
    click.echo(runs.report(folder))
    click.echo(f"report: {folder.path}/report.html")


@cli.command()
@_CONFIG
@_OVERRIDES
@click.option("--no-load", is_flag=True, help="Leave out the check that loads the judge.")
@_JSON
def doctor(config_path: str, overrides: tuple[str, ...], no_load: bool, as_json: bool) -> None:
    """Check storage, corpus and judges before a run is paid for: each check passed, or what to change.

    Exit status 1 if a check failed.
    """
    loaded = _load(config_path, overrides, None)
    from dataclasses import asdict

    from trustjudge_ray import doctor as checks
    from trustjudge_ray import findings, printing, runs

    found = []
    for finding in checks.examine(loaded, load=not no_load):
        found.append(finding)
        for line in printing.finding_lines(finding):
            click.echo(line, err=as_json)
    fine = all(finding.status != findings.FAILED for finding in found)
    if as_json:
        listed = [asdict(finding) for finding in found]
        click.echo(runs.as_json_line(printing.as_json({"passed": fine, "checks": listed})))
    if not fine:
        sys.exit(1)


@cli.command()
@_CONFIG
@_OVERRIDES
@_LIMIT
@click.option("--sample", type=click.IntRange(min=1), default=50, help="Questions whose tokens are counted.")
@_JSON
def plan(config_path: str, overrides: tuple[str, ...], limit: int | None, sample: int, as_json: bool) -> None:
    """How many judgments, tokens, GPU-hours and what cost a run would come to; writes nothing."""
    loaded = _load(config_path, overrides, limit)
    from trustjudge_ray import estimate, printing, runs

    with tempfile.TemporaryDirectory(prefix="trustjudge-plan-") as scratch:
        found = estimate.estimate(loaded, Path(scratch), sample)
    if as_json:
        click.echo(runs.as_json_line(found))
        return
    for line in printing.estimate_lines(found):
        click.echo(line)


@cli.command()
@click.argument("run_path", metavar="RUN")
@click.argument("rest", nargs=-1, metavar="[TASK_ID] [key=value]...")
@click.option("--question", metavar="ID", help="List the judgments of a question.")
@click.option("--pair", nargs=2, metavar="A B", help="With --question: only of these two responses.")
@click.option("--response", metavar="ID", help="With --question: only those about this response.")
@click.option("--protocol", metavar="NAME", help="With --question: only of this protocol.")
@click.option("--tokens", is_flag=True, help="Show the prompt's token ids.")
@_JSON
def show(
    run_path: str,
    rest: tuple[str, ...],
    question: str | None,
    pair: tuple[str, str] | None,
    response: str | None,
    protocol: str | None,
    tokens: bool,
    as_json: bool,
) -> None:
    """The exact prompt, the label table and the probabilities behind one judgment.

    \b
    trustjudge show runs/demo 3f9a            (a task id, or its beginning)
    trustjudge show runs/demo --question arith-1 --pair quartz-xl chalk-s
    """
    from trustjudge_ray import printing, runs, showing

    ids = [text for text in rest if "=" not in text]
    if len(ids) + (question is not None) != 1:
        raise click.UsageError("show: give either a TASK_ID, or --question")
    if question is None and (pair or response or protocol):
        raise click.UsageError("show: --pair, --response and --protocol go with --question")
    folder = _folder(run_path, tuple(text for text in rest if "=" in text))
    folder.refuse_absent()
    if question is None:
        found = showing.judgment(folder, ids[0])
        lines = list(printing.judgment_lines(found, tokens))
    else:
        wanted = (*(pair or ()), *((response,) if response is not None else ()))
        rows = showing.judgments_about(folder, question, wanted, protocol)
        found, lines = {"judgments": rows}, [printing.list_line(row) for row in rows]
    click.echo(runs.as_json_line(printing.as_json(found)) if as_json else "\n".join(lines))


commands_defend.register(cli)


class _Terminated(BaseException):
    """SIGTERM came."""


def _terminate(*_: object) -> None:
    raise _Terminated


def _stopped(status: int) -> NoReturn:
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # what was started is being ended; a second Ctrl-C would leave some of it
    click.echo("stopped; what was judged is saved: the same command goes on from there", err=True)
    sys.exit(status)


def main() -> None:
    """Entry point: every error of ours is one message and an exit status."""
    signal.signal(signal.SIGTERM, _terminate)
    usage, failure = _errors()
    try:
        cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        _stopped(130)
    except _Terminated:
        _stopped(143)
    except usage as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except failure as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


def _errors() -> tuple[tuple[type[BaseException], ...], tuple[type[BaseException], ...]]:
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
        NotFoundError,
        StorageError,
        JudgeError,
        RunError,
        SchemaError,
    )


def _load(path: str, overrides: tuple[str, ...], limit: int | None) -> config.LoadedConfig:
    changes = [*overrides] + ([f"run.limit={limit}"] if limit else [])
    return config.load(path, changes)


def _folder(path: str, overrides: tuple[str, ...]) -> "RunFolder":
    from trustjudge_ray.store import RunFolder

    return RunFolder(path, config.storage_options(list(overrides)))


def _judge(loaded: config.LoadedConfig, whole: bool) -> tuple["Judged", str]:
    """Judge; where `whole`, also evaluate and report, and return the report's text."""
    try:
        from trustjudge_ray import pipeline, runs
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise click.ClickException(
            "judging needs Ray, which is not installed: pip install 'trustjudge-ray[gpu]' for vLLM on GPUs, '[cpu]' "
            "for vLLM on the CPU, '[ray]' for the scripted judge; evaluate, report and import work without it"
        ) from error

    printed = 0.0

    def notify(what: str, progress: runs.Progress | None) -> None:
        nonlocal printed
        if progress is None:
            click.echo(what, err=True)
            return
        now = time.monotonic()
        if now - printed < 2 and progress.judged < progress.total:
            return
        printed = now
        left = "" if progress.left is None else f", {progress.left:.0f} s left"
        click.echo(
            f"judged {progress.judged} of {progress.total}, {progress.failed} failed, {progress.rate:.1f}/s{left}",
            err=True,
        )

    with contextlib.redirect_stdout(sys.stderr):  # Ray prints remarks; standard output is the command's alone
        judged, text = runs.run(loaded, notify) if whole else (runs.judge(loaded, notify), "")
        pipeline.stop()
    if judged.now == 0:
        click.echo(f"nothing to judge: all {judged.tasks} judgments are there", err=True)
    return judged, text


def _finish(judged: "Judged", as_json: bool) -> None:
    from dataclasses import asdict

    from trustjudge_ray import runs

    if as_json:
        shown = {name: value for name, value in asdict(judged).items() if name != "manifest"}
        click.echo(runs.as_json_line(shown))
    for reason in judged.over_limit:
        click.echo(f"error: {reason}", err=True)
    if judged.over_limit:
        sys.exit(1)
