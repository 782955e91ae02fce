"""Commands that start from a configuration: run, judge, answer, audit, preferences, validate, doctor, plan."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from trustjudge_ray.commands import output
from trustjudge_ray.commands.options import CONFIG, JSON, LIMIT, OVERRIDES, QUIET, load, with_format

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
@QUIET
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
    show_report(text, f"{loaded.config.out.rstrip('/')}/report.html", as_json)
    finish(judged, as_json)


@click.command()
@CONFIG
@OVERRIDES
@LIMIT
@QUIET
@JSON
def judge(config_path: str, overrides: tuple[str, ...], limit: int | None, as_json: bool) -> None:
    """Only the judgments: what has none yet is judged. `evaluate` and `report` make the rest of them.

    \b
    trustjudge judge my.yaml
    trustjudge judge my.yaml cluster.replicas=4 --limit 100 --json
    """
    loaded = load(config_path, overrides, limit)

    def work(notify: "Notify") -> "Judged":
        from trustjudge_ray import runs

        return runs.judge(loaded, notify)

    finish(with_ray(work), as_json)


@click.command()
@CONFIG
@OVERRIDES
@LIMIT
@QUIET
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
    output.told(f"{answered.answers} answers: {answered.paths}", as_json)
    finish(answered.judged, as_json, answers=answered.answers, paths=answered.paths)


@click.command()
@CONFIG
@OVERRIDES
@click.option("--limit", type=click.IntRange(min=1), help="Only so many items.")
@QUIET
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
    output.told(audited.text, as_json)
    output.told(f"card: {audited.path}", as_json)
    if as_json:
        output.document(audited.card)
    for reason in audited.failed:
        output.error(reason)
    if audited.failed:
        sys.exit(1)


@click.command()
@CONFIG
@OVERRIDES
@LIMIT
@QUIET
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
    swapped = labelled.card["counts"]["swapped"]
    against = f"; {swapped['pairs']} of {swapped['of']} kept labels are the other way round in the source"
    told = f"{kept} pairs kept, {sum(dropped.values())} dropped{f' ({reasons})' if reasons else ''}"
    output.told(told + (against if swapped["of"] else ""), as_json)
    output.told(f"card: {loaded.config.out.rstrip('/')}/preferences.html", as_json)
    finish(labelled.judged, as_json, card=labelled.card)


@click.command()
@CONFIG
@OVERRIDES
@QUIET
@JSON
def validate(config_path: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Read the corpus and name every line that cannot be used, with the reason; no judge.

    \b
    trustjudge validate my.yaml
    trustjudge validate my.yaml corpus.fields.response=text --json
    """
    loaded = with_format(load(config_path, overrides))
    from trustjudge_ray import ingest, runs

    with tempfile.TemporaryDirectory(prefix="trustjudge-validate-") as scratch:
        found = runs.validate(loaded, Path(scratch))
    for problem in found["problems"]:
        line = "" if problem["line"] is None else f":{problem['line']}"
        output.told(f"{problem['source']}{line}: {problem['reason']}: {problem['detail'] or ''}", as_json)
    output.told(f"{found['rows']} rows can be judged, {found['quarantined']} cannot be used", as_json)
    if found["unasked"]:
        output.told(f"NOTE: {ingest.unasked_note(found['unasked'])}", as_json)
    if as_json:
        output.document(found)


@click.command()
@CONFIG
@OVERRIDES
@click.option("--no-load", is_flag=True, help="Leave out the check that loads the judge.")
@QUIET
@JSON
def doctor(config_path: str, overrides: tuple[str, ...], no_load: bool, as_json: bool) -> None:
    """Check storage, corpus and judges before a run is paid for: each check passed, or what to change.

    Exit status 1 if a check failed.

    \b
    trustjudge doctor my.yaml
    trustjudge doctor my.yaml judge.model=/models/judge --no-load
    """
    loaded = load(config_path, overrides)
    from dataclasses import asdict

    from trustjudge_ray import doctor as checks
    from trustjudge_ray import findings, printing

    found = []
    for finding in checks.examine(loaded, load=not no_load):
        found.append(finding)
        for line in printing.finding_lines(finding):
            output.told(line, as_json)
    fine = all(finding.status != findings.FAILED for finding in found)
    if as_json:
        listed = [asdict(finding) for finding in found]
        output.document(printing.as_json({"passed": fine, "checks": listed}))
    if not fine:
        sys.exit(1)


@click.command(short_help="What a run would come to: judgments, tokens, hours, cost")
@CONFIG
@OVERRIDES
@LIMIT
@click.option("--sample", type=click.IntRange(min=1), default=50, help="Questions whose tokens are counted.")
@QUIET
@JSON
def plan(config_path: str, overrides: tuple[str, ...], limit: int | None, sample: int, as_json: bool) -> None:
    """How many judgments, tokens, GPU-hours and what cost a run would come to; writes nothing.

    \b
    trustjudge plan my.yaml
    trustjudge plan my.yaml plan.design=matching plan.rounds=4 cluster.price_per_gpu_hour=2.5
    """
    loaded = with_format(load(config_path, overrides, limit))
    from trustjudge_ray import estimate, printing

    with tempfile.TemporaryDirectory(prefix="trustjudge-plan-") as scratch:
        found = estimate.estimate(loaded, Path(scratch), sample)
    if as_json:
        output.document(found)
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
        from trustjudge_ray import runs

        raise click.ClickException(runs.NO_RAY) from error
    from trustjudge_ray import printing

    notes = open(os.devnull, "w") if output.is_quiet() else contextlib.nullcontext(sys.stderr)  # noqa: SIM115
    with notes as stream, contextlib.redirect_stdout(stream), printing.ProgressLines(stream) as lines:
        done = work(lines)
        pipeline.stop()
    return done


def show_report(text: str, path: str, as_json: bool) -> None:
    """Print a report's text and where its page is, also beside a JSON object, unless only that is wanted."""
    if not (as_json and output.is_quiet()):
        judgments = f"{path.removesuffix('report.html')}judgments.html"
        click.echo(f"{text}\nreport: {path}\nevery judgment, the worst contradictions first: {judgments}")


def finish(judged: "Judged", as_json: bool, **more: object) -> None:
    """Say how judging ended: the JSON line with `more` in it, why the run counts as failed; then end with status 1."""
    from dataclasses import asdict

    if judged.now == 0 and not judged.left:
        output.note(f"nothing to judge: all {judged.tasks} judgments are there")
    if as_json:
        shown = {name: value for name, value in asdict(judged).items() if name != "manifest"}
        output.document(shown | more)
    wrong = [*judged.over_limit, *([judged.stopped] if judged.stopped else [])]
    for reason in wrong:
        output.error(reason)
    if wrong:
        sys.exit(1)
