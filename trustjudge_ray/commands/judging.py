"""Commands that start from a configuration: run, judge, answer, audit, preferences, validate, doctor, plan."""

import contextlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from trustjudge_ray.commands.options import CONFIG, JSON, LIMIT, OVERRIDES, load

if TYPE_CHECKING:
    from trustjudge_ray.answering import Answered
    from trustjudge_ray.auditing import Audited
    from trustjudge_ray.labelling_preferences import Labelled
    from trustjudge_ray.runs import Judged, Notify

T = TypeVar("T")


@click.command()
@CONFIG
@OVERRIDES
@LIMIT
@JSON
def run(config_path: str, overrides: tuple[str, ...], limit: int | None, as_json: bool) -> None:
    """Plan, judge, evaluate and report; run again, it continues where it stopped.

    \b
    trustjudge run configs/demo.yaml
    trustjudge run my.yaml out=runs/try plan.block=4 --limit 10
    """
    loaded = load(config_path, overrides, limit)

    def work(notify: "Notify") -> "tuple[Judged, str]":
        from trustjudge_ray import runs

        return runs.run(loaded, notify)

    judged, text = with_ray(work)
    click.echo(text)
    click.echo(f"report: {loaded.config.out.rstrip('/')}/report.html")
    finish(judged, as_json)


@click.command()
@CONFIG
@OVERRIDES
@LIMIT
@JSON
def judge(config_path: str, overrides: tuple[str, ...], limit: int | None, as_json: bool) -> None:
    """Only the judgments: what has none yet is judged."""
    loaded = load(config_path, overrides, limit)

    def work(notify: "Notify") -> "Judged":
        from trustjudge_ray import runs

        return runs.judge(loaded, notify)

    finish(with_ray(work), as_json)


@click.command()
@CONFIG
@OVERRIDES
@LIMIT
@JSON
def answer(config_path: str, overrides: tuple[str, ...], limit: int | None, as_json: bool) -> None:
    """Let the configured models answer the questions of a corpus; run again, it continues where it stopped.

    The answers are written as a corpus that `run` can judge: format flat, OUT/answers/*.jsonl.

    \b
    trustjudge answer my.yaml corpus.format=questions corpus.paths=[questions.jsonl] out=runs/answers
    """
    loaded = load(config_path, overrides, limit)

    def work(notify: "Notify") -> "Answered":
        from trustjudge_ray import answering

        return answering.answer(loaded, notify)

    answered = with_ray(work)
    click.echo(f"{answered.answers} answers: {answered.paths}", err=as_json)
    finish(answered.judged, as_json, answers=answered.answers, paths=answered.paths)


@click.command()
@CONFIG
@OVERRIDES
@click.option("--limit", type=click.IntRange(min=1), help="Only so many items.")
@JSON
def audit(config_path: str, overrides: tuple[str, ...], limit: int | None, as_json: bool) -> None:
    """Audit the judge: does it judge as well as it answers, does it read what it judges, does it say yes too easily?

    Writes OUT/audit.json and OUT/audit.html. Exit status 1 if a gate says what `audit.fail_on` lists.

    \b
    trustjudge audit configs/audit.yaml
    trustjudge audit my.yaml audit.items=[dev-v2.0.json] audit.limit=500
    """
    loaded = load(config_path, ["audit={}", *overrides, *([f"audit.limit={limit}"] if limit else [])])

    def work(notify: "Notify") -> "Audited":
        from trustjudge_ray import auditing

        return auditing.audit(loaded, notify)

    audited = with_ray(work)
    click.echo(audited.text, err=as_json)
    click.echo(f"card: {audited.path}", err=as_json)
    if as_json:
        from trustjudge_ray import runs

        click.echo(runs.as_json_line(audited.card))
    for reason in audited.failed:
        click.echo(f"error: {reason}", err=True)
    if audited.failed:
        sys.exit(1)


@click.command()
@CONFIG
@OVERRIDES
@LIMIT
@JSON
def preferences(config_path: str, overrides: tuple[str, ...], limit: int | None, as_json: bool) -> None:
    """Label preference pairs in both orders; run again, it continues where it stopped.

    Writes OUT/preferences (the pairs that are kept), OUT/preferences-dropped (the others, each with its reason) and
    OUT/preferences.html. `trustjudge export` makes files for trainers of them.

    \b
    trustjudge preferences configs/preferences.yaml
    trustjudge preferences my.yaml preferences.filters.min_margin=0.3
    """
    loaded = load(config_path, overrides, limit)

    def work(notify: "Notify") -> "Labelled":
        from trustjudge_ray import labelling_preferences

        return labelling_preferences.label(loaded, loaded.config.preferences, notify)

    labelled = with_ray(work)
    kept, dropped = labelled.card["counts"]["kept"], labelled.card["counts"]["dropped"]
    reasons = ", ".join(f"{reason} {n}" for reason, n in dropped.items())
    click.echo(f"{kept} pairs kept, {sum(dropped.values())} dropped{f' ({reasons})' if reasons else ''}", err=as_json)
    click.echo(f"card: {loaded.config.out.rstrip('/')}/preferences.html", err=as_json)
    finish(labelled.judged, as_json, card=labelled.card)


@click.command()
@CONFIG
@OVERRIDES
@JSON
def validate(config_path: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Read the corpus and name every line that cannot be used, with the reason; no judge."""
    loaded = load(config_path, overrides)
    from trustjudge_ray import runs

    with tempfile.TemporaryDirectory(prefix="trustjudge-validate-") as scratch:
        found = runs.validate(loaded, Path(scratch))
    for problem in found["problems"]:
        line = "" if problem["line"] is None else f":{problem['line']}"
        click.echo(f"{problem['source']}{line}: {problem['reason']}: {problem['detail'] or ''}", err=as_json)
    click.echo(f"{found['rows']} rows can be judged, {found['quarantined']} cannot be read", err=as_json)
    if as_json:
        click.echo(runs.as_json_line(found))


@click.command()
@CONFIG
@OVERRIDES
@click.option("--no-load", is_flag=True, help="Leave out the check that loads the judge.")
@JSON
def doctor(config_path: str, overrides: tuple[str, ...], no_load: bool, as_json: bool) -> None:
    """Check storage, corpus and judges before a run is paid for: each check passed, or what to change.

    Exit status 1 if a check failed.
    """
    loaded = load(config_path, overrides)
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


@click.command()
@CONFIG
@OVERRIDES
@LIMIT
@click.option("--sample", type=click.IntRange(min=1), default=50, help="Questions whose tokens are counted.")
@JSON
def plan(config_path: str, overrides: tuple[str, ...], limit: int | None, sample: int, as_json: bool) -> None:
    """How many judgments, tokens, GPU-hours and what cost a run would come to; writes nothing."""
    loaded = load(config_path, overrides, limit)
    from trustjudge_ray import estimate, printing, runs

    with tempfile.TemporaryDirectory(prefix="trustjudge-plan-") as scratch:
        found = estimate.estimate(loaded, Path(scratch), sample)
    if as_json:
        click.echo(runs.as_json_line(found))
        return
    for line in printing.estimate_lines(found):
        click.echo(line)


def with_ray(work: Callable[["Notify"], T]) -> T:
    """What `work` returns. Its progress goes to standard error, and so does what Ray prints meanwhile: standard output
    is the command's alone. Afterwards the cluster is left.

    Raises:
        click.ClickException: Ray is not installed.
    """
    try:
        from trustjudge_ray import pipeline
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise click.ClickException(
            "judging needs Ray, which is not installed: pip install 'trustjudge-ray[gpu]' for vLLM on GPUs, '[cpu]' "
            "for vLLM on the CPU, '[ray]' for the scripted judge; evaluate, report and import work without it"
        ) from error
    from trustjudge_ray import printing

    with contextlib.redirect_stdout(sys.stderr), printing.ProgressLines(sys.stderr) as lines:
        done = work(lines)
        pipeline.stop()
    return done


def finish(judged: "Judged", as_json: bool, **more: object) -> None:
    """Say how judging ended: the JSON line with `more` in it, why the run counts as failed; then end with status 1."""
    from dataclasses import asdict

    from trustjudge_ray import runs

    if judged.now == 0 and not judged.left:
        click.echo(f"nothing to judge: all {judged.tasks} judgments are there", err=True)
    if as_json:
        shown = {name: value for name, value in asdict(judged).items() if name != "manifest"}
        click.echo(runs.as_json_line(shown | more))
    wrong = [*judged.over_limit, *([judged.stopped] if judged.stopped else [])]
    for reason in wrong:
        click.echo(f"error: {reason}", err=True)
    if wrong:
        sys.exit(1)
