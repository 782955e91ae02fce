"""Commands about a run that is there: evaluate, report, show, retry, export; and import, which makes one."""

from typing import TYPE_CHECKING

import click

from trustjudge_ray.commands import completing, defend, output
from trustjudge_ray.commands.judging import finish, show_report, with_ray
from trustjudge_ray.commands.options import (
    JSON,
    OVERRIDES,
    QUIET,
    RUN,
    Words,
    existing_folder,
    folder,
    overrides_of,
    refuse_other,
)

if TYPE_CHECKING:
    from trustjudge_ray.retrying import Retried
    from trustjudge_ray.runs import Notify


@click.command(short_help="Compute every number of a run again, without a judge")
@RUN
@overrides_of("analysis")
@QUIET
@JSON
def evaluate(run_path: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Compute scores, verdicts, metrics and ratings again from the judgments of a run.

    \b
    trustjudge evaluate runs/demo analysis.tolerances=[0,0.5] analysis.k=[3,4]
    """
    from trustjudge_ray import runs

    opened = existing_folder(run_path, overrides)
    found = runs.evaluate(opened, runs.analysis_settings(opened, list(overrides)))
    for warning in found.warnings:
        output.note(f"note: {warning}")
    summary = {"metrics": found.metrics.height, "ratings": found.ratings.height, "warnings": found.warnings}
    told = f"{run_path}: {found.metrics.height} metrics; `trustjudge report {run_path}` writes the report of them"
    click.echo(runs.as_json_line(summary) if as_json else told)


@click.command()
@RUN
@overrides_of()
@QUIET
@JSON
def report(run_path: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Write the report of a run again from its tables. After other `analysis` settings, `evaluate` first.

    \b
    trustjudge report runs/demo
    """
    from trustjudge_ray import runs

    opened = existing_folder(run_path, overrides)
    path = f"{opened.path}/report.html"
    show_report(runs.report(opened), path, as_json)
    if as_json:
        output.document({"report": path, "text": f"{opened.path}/report.txt"})


@click.command()
@RUN
@OVERRIDES
@click.option(
    "--reason",
    "reasons",
    multiple=True,
    metavar="STATUS",
    help="Only what failed with this status; give it once for each. By default every failure on the judge's side.",
)
@QUIET
@JSON
def retry(run_path: str, overrides: tuple[str, ...], reasons: tuple[str, ...], as_json: bool) -> None:
    """Ask the judge of a run again where it failed; then evaluate and report, as `run` does.

    The run's own configuration is used, so call it where the run was started, with the same environment. What failed
    because of the corpus (an empty answer) would fail again and is refused: mend the corpus and `run`. What has no
    judgment yet is judged too.

    \b
    trustjudge retry runs/demo
    trustjudge retry s3://bucket/runs/nightly --reason engine_error judge.timeout=120
    """
    from trustjudge_ray import retrying

    wanted = retrying.reasons_of(reasons)
    loaded = retrying.configuration(existing_folder(run_path, overrides), list(overrides))
    if retrying.failed(loaded, wanted).is_empty():
        output.told(f"nothing to retry: no judgment of {run_path} is {' or '.join(sorted(wanted))}", as_json)
        if as_json:
            output.document({"retried": {}})
        return

    def work(notify: "Notify") -> "Retried":
        return retrying.retry(loaded, wanted, notify)

    done = with_ray(work)
    show_report(done.report, f"{loaded.config.out.rstrip('/')}/report.html", as_json)
    for was, now in done.became.items():
        still = "".join(f", {rows} {status}" for status, rows in now.items() if status != "ok")
        output.told(f"{was}: {sum(now.values())} judged again, {now.get('ok', 0)} ok now{still}", as_json)
    finish(done.judged, as_json, retried=done.became)


@click.command(short_help="The prompt and the probabilities behind one judgment")
@RUN
@click.argument("rest", nargs=-1, metavar="[TASK_ID] [key=value]...")
@click.option("--question", metavar="ID", help="List the judgments of a question.")
@click.option("--pair", nargs=2, metavar="A B", help="With --question: only of these two responses.")
@click.option("--response", metavar="ID", help="With --question: only those about this response.")
@click.option("--protocol", metavar="NAME", help="With --question: only of this protocol.")
@click.option("--tokens", is_flag=True, help="Show the prompt's token ids.")
@QUIET
@JSON
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
    """The exact prompt, the label table and the probabilities behind one judgment, by its task id or how that begins.

    \b
    trustjudge show runs/demo 3f9a
    trustjudge show runs/demo --question arith-1 --pair quartz-xl chalk-s
    """
    from trustjudge_ray import printing, runs, showing

    ids = [text for text in rest if "=" not in text]
    if len(ids) + (question is not None) != 1:
        raise click.UsageError("show: give either a TASK_ID, or --question")
    if question is None and (pair or response or protocol):
        raise click.UsageError("show: --pair, --response and --protocol go with --question")
    overrides = [text for text in rest if "=" in text]
    refuse_other(overrides, ["storage_options"], click.get_current_context())
    opened = existing_folder(run_path, overrides)
    if question is None:
        found = showing.judgment(opened, ids[0])
        lines = list(printing.judgment_lines(found, tokens))
    else:
        wanted = (*(pair or ()), *((response,) if response is not None else ()))
        rows = showing.judgments_about(opened, question, wanted, protocol)
        found, lines = {"judgments": rows}, [printing.list_line(row) for row in rows]
    click.echo(runs.as_json_line(printing.as_json(found)) if as_json else "\n".join(lines))


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


_IMPORTS = ["oracle", "trustjudge", "battles", "fastchat", "arena-hard", "alpaca-eval", "label-sheet"]


@click.command("import", cls=_ManyValued)
@click.argument("kind", metavar="FORMAT", type=Words(_IMPORTS))
@click.argument("files", nargs=-1, metavar="FILE...", shell_complete=completing.files())
@click.option("--single", multiple=True, metavar="FILE...", help="trustjudge: judgments of single answers.")
@click.option("--pairs", multiple=True, metavar="FILE...", help="trustjudge: judgments of pairs.")
@click.option("--questions", multiple=True, metavar="FILE", help="trustjudge: questions, for categories and scores.")
@click.option("--out", required=True, metavar="RUN", help="The run folder to make.")
@click.option("--judge", "judge_name", help="What the judge is called, where the files do not say.")
@click.option(
    "--scale", type=click.IntRange(min=2), help="trustjudge: points of the scores, where the files do not say."
)
@click.option("--baseline", metavar="MODEL", help="arena-hard: the model that all others met, where lines name none.")
@QUIET
@JSON
def import_(
    kind: str,
    files: tuple[str, ...],
    single: tuple[str, ...],
    pairs: tuple[str, ...],
    questions: tuple[str, ...],
    out: str,
    judge_name: str | None,
    scale: int | None,
    baseline: str | None,
    as_json: bool,
) -> None:
    """Make a run folder from judgments that another system made.

    \b
    trustjudge import oracle DIR --out runs/oracle
    trustjudge import trustjudge --single J_single_answer_grade_5_points.jsonl --pairs J_pairs.jsonl --out RUN
    trustjudge import battles battles.parquet --out runs/arena
    trustjudge import fastchat gpt-4_single.jsonl gpt-4_pair.jsonl question.jsonl --out runs/mt-bench
    trustjudge import arena-hard model_judgment/gpt-4.1/*.jsonl --out runs/arena-hard
    trustjudge import alpaca-eval annotations.json --out runs/alpaca
    trustjudge import label-sheet filled-in.csv --judge anna --out runs/mine
    """
    if kind == "label-sheet":
        defend.import_labels(list(files), out, judge_name, as_json)
        return
    from trustjudge_ray import imported_runs

    paths = _import_files(kind, [*files, *single, *pairs, *questions])
    summary = imported_runs.import_judgments(kind, paths, folder(out, ()), judge_name, scale, baseline)
    statuses = ", ".join(f"{n} {status}" for status, n in summary["statuses"].items())
    output.told(
        f"{summary['judgments']} judgments ({statuses or 'none'}), {summary['quarantined']} rows not readable", as_json
    )
    if summary["quarantined"] > summary["judgments"]:
        click.echo("warning: most rows could not be read; the quarantine of the run folder says why", err=True)
    for note in summary["notes"]:
        output.note(f"note: {note}")
    if as_json:
        output.document(summary)


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


@click.command()
@RUN
@click.argument("form", metavar="FORMAT")
@click.argument("path", metavar="OUT", shell_complete=completing.files())
@overrides_of("analysis", "preferences")
@click.option("--baseline", metavar="MODEL", help="alpaca-eval: the model that all others are compared with.")
@click.option("--judge", metavar="NAME", help="alpaca-eval, lmarena: the judge, where the run has several.")
@click.option("--protocol", metavar="NAME", help="alpaca-eval, lmarena: the comparison protocol, where it has several.")
@click.option("--rule", metavar="RULE", help="lmarena: the rating rule; by default bradley_terry.")
@QUIET
@JSON
def export(
    run_path: str,
    form: str,
    path: str,
    overrides: tuple[str, ...],
    baseline: str | None,
    judge: str | None,
    protocol: str | None,
    rule: str | None,
    as_json: bool,
) -> None:
    """Write a run's pairs for a trainer, or its numbers for a leaderboard.

    FORMAT: trl, trl-conversational, trl-reward (with margins), kto or verl, as Parquet or JSON Lines by the ending of
    OUT; alpaca-eval or lmarena, CSV or JSON; lm-eval, JSON. OUT is a local path or s3://.

    \b
    trustjudge export runs/pairs trl-conversational pairs.parquet
    trustjudge export runs/pairs kto kto.jsonl preferences.filters.min_margin=0.3
    trustjudge export runs/demo alpaca-eval leaderboard.csv --baseline quartz-xl
    trustjudge export runs/demo lmarena arena.csv
    trustjudge export runs/demo lm-eval results.json
    """
    from trustjudge_ray import labelling_preferences, leaderboard_exports, runs
    from trustjudge_ray.config import ConfigError, load_sections
    from trustjudge_ray.nearest import did_you_mean
    from trustjudge_ray.training.exports import EXPORTS

    known = (*EXPORTS, *leaderboard_exports.FORMATS)
    if form not in known:
        raise ConfigError(f"export: got '{form}'; one of {', '.join(known)}{did_you_mean(form, known)}")
    opened = existing_folder(run_path, overrides)
    wanted = leaderboard_exports.Wanted(judge, protocol, baseline, rule)
    if form in leaderboard_exports.FORMATS:
        refuse_other(overrides, ["storage_options"], click.get_current_context())
        done = leaderboard_exports.export(opened, form, path, wanted)
        click.echo(runs.as_json_line(done) if as_json else f"{done['path']}: {done['rows']} rows")
        return
    if wanted != leaderboard_exports.Wanted():
        raise click.UsageError("export: --baseline, --judge, --protocol and --rule go with alpaca-eval and lmarena")
    text = opened.read_bytes("config.yaml").decode("utf-8")
    given = load_sections(text, f"{opened.path}/config.yaml", ("analysis", "preferences"), list(overrides))
    done = labelling_preferences.export(opened, form, path, given.preferences, given.analysis)
    if done["made_again"]:
        output.note(f"{run_path}: its preferences and card were made again, with the filters of this export")
    counts = ", ".join(f"{name} {count}" for name, count in done["counts"].items())
    told = f"{done['path']}: {done['rows']} rows of {done['pairs']} pairs" + (f" ({counts})" if counts else "")
    click.echo(runs.as_json_line(done) if as_json else told)
