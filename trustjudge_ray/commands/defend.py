"""Commands about numbers that must hold: `ablation`, `compare`, `nightly`, `label-sheet`, `agree`.

Thin: what a test would want to call lies in `comparing`, `labelling` and the analysis.
"""

import contextlib
import io
import sys

import click

from trustjudge_ray import config, config_values
from trustjudge_ray.commands import completing, judging, output
from trustjudge_ray.commands.options import CONFIG, JSON, OVERRIDES, QUIET, RUN, Words, existing_folder, overrides_of

_FAIL_ON = click.option(
    "--fail-on",
    multiple=True,
    type=Words(config_values.GATE_WORDS),
    help="Exit with 1 if this holds; may be given several times. Instead of compare.fail_on.",
)


@click.command()
@click.argument("run_a", metavar="RUN_A", shell_complete=completing.folders)
@click.argument("run_b", metavar="RUN_B", shell_complete=completing.folders)
@overrides_of("analysis", "compare")
@_FAIL_ON
@click.option("--out", metavar="FOLDER", help="Where comparison.md and comparison.json are written; by default RUN_B.")
@QUIET
@JSON
def compare(
    run_a: str, run_b: str, overrides: tuple[str, ...], fail_on: tuple[str, ...], out: str | None, as_json: bool
) -> None:
    """What changed from RUN_A to RUN_B: paired by question, with intervals and a verdict for every model.

    Both are computed by the settings of RUN_B (`analysis`, `compare`). Exit status 0, also where a model regressed,
    unless a gate is given.

    \b
    trustjudge compare runs/monday runs/tuesday
    trustjudge compare runs/monday runs/tuesday --fail-on regressed compare.smallest=0.01
    """
    from trustjudge_ray import comparing
    from trustjudge_ray.store import RunFolder

    options = config.storage_options(list(overrides))
    a, b = comparing.opened(run_a, options), comparing.opened(run_b, options)
    analysis, settings = comparing.settings_of(b, list(overrides))
    settings.fail_on = list(fail_on) or settings.fail_on
    found, failed = comparing.compare_folders(a, b, analysis, settings)
    text = comparing.write(RunFolder(out, options) if out else b, found, failed)
    _tell(text, comparing.as_document(found, failed), failed, as_json)


@click.command()
@CONFIG
@OVERRIDES
@_FAIL_ON
@QUIET
@JSON
@click.pass_context
def nightly(
    ctx: click.Context, config_path: str, overrides: tuple[str, ...], fail_on: tuple[str, ...], as_json: bool
) -> None:
    """`run`, then `compare` with the last night that succeeded; comparison.md lies in the run folder.

    With a shared `store` only what is new is judged. Exit status 1 if the run failed, or by compare.fail_on.

    \b
    trustjudge nightly configs/nightly.yaml out=s3://my-bucket/nights/2026-11-30
    """
    from trustjudge_ray import comparing
    from trustjudge_ray.store import RunFolder

    loaded = config.load(config_path, list(overrides)).config
    tonight = RunFolder(loaded.out, dict(loaded.storage_options), loaded.store)
    with contextlib.redirect_stdout(io.StringIO()) if as_json and output.is_quiet() else contextlib.nullcontext():
        status = _run(ctx, config_path, overrides)
    before, told = comparing.earlier_night(tonight, loaded.nightly.against, loaded.run.max_failure_rate)
    for text in told:
        output.note(f"note: {text}")
    if before is None:
        output.note("no earlier night to compare with")
        if as_json:
            output.document({"against": None, "notes": told})
        sys.exit(status or int(loaded.nightly.require))
    loaded.compare.fail_on = list(fail_on) or loaded.compare.fail_on
    found, failed = comparing.compare_folders(before, tonight, loaded.analysis, loaded.compare)
    text = comparing.write(tonight, found, failed)
    _tell(text, comparing.as_document(found, failed), failed, as_json)
    sys.exit(status)


@click.command()
@RUN
@overrides_of("analysis")
@QUIET
@JSON
def ablation(run_path: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """What each step of the method changes in a run: coarse to fine scales, emitted labels to distributions.

    Every cell with its interval, coverage and the value by chance, and its difference from the first step on the same
    questions. Writes ablation.csv and ablation.txt into the run folder; `report` shows them until `evaluate` is called.

    \b
    trustjudge ablation runs/demo analysis.k=[3]
    """
    from trustjudge_ray import runs
    from trustjudge_ray.analysis.ablation import ablation as table_of
    from trustjudge_ray.report.steps import ablation_text

    folder = existing_folder(run_path, overrides)
    judgments, _ = folder.judgments()
    settings = runs.analysis_settings(folder, list(overrides))
    found = table_of(judgments, folder.protocols(), settings, folder.responses())
    if found.is_empty():
        raise click.UsageError(f"{run_path}: no judgment of an answer or a pair: there are no steps to compare")
    text = ablation_text(found)
    folder.write_bytes("ablation.csv", found.write_csv().encode("utf-8"))
    folder.write_bytes("ablation.txt", text.encode("utf-8"))
    click.echo(runs.as_json_line({"ablation": found.to_dicts()}) if as_json else text)


@click.command("label-sheet")
@RUN
@overrides_of()
@click.option("--n", "count", type=click.IntRange(min=1), default=200, show_default=True, help="How many to draw.")
@click.option("--kind", type=Words(["compare", "score"]), default="compare", help="Pairs, or single answers.")
@click.option("--protocol", metavar="NAME", help="With --kind score: the protocol whose scale people use.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--out", metavar="FILE", required=True, help="The CSV file to write.", shell_complete=completing.files(".csv")
)
@QUIET
@JSON
def label_sheet(
    run_path: str,
    overrides: tuple[str, ...],
    count: int,
    kind: str,
    protocol: str | None,
    seed: int,
    out: str,
    as_json: bool,
) -> None:
    """Draw pairs or answers of a run at random, for people to label; without the models' names.

    People fill in the column `better` (1, 2 or tie) or `score`; then `trustjudge import label-sheet FILE... --out RUN`
    reads them back and `trustjudge agree RUN` says what they come to.

    \b
    trustjudge label-sheet runs/demo --n 200 --out sheet.csv
    trustjudge label-sheet runs/demo --kind score --protocol score-5 --out scores.csv
    """
    from pathlib import Path

    from trustjudge_ray import labelling, runs

    folder = existing_folder(run_path, overrides)
    sheet, text = labelling.draw_sheet(folder, kind, count, seed, protocol)
    try:
        Path(out).write_text(text, encoding="utf-8-sig")
    except OSError as error:
        raise click.ClickException(f"{out}: {error.strerror or error}") from error
    about = {"sheet": sheet.name, "drawn": len(sheet.units), "frame": sheet.frame, "probability": sheet.probability}
    said = (
        f"{out}: {len(sheet.units)} of {sheet.frame} {'pairs' if kind == 'compare' else 'answers'}, sheet {sheet.name}"
    )
    click.echo(runs.as_json_line(about | {"file": out}) if as_json else said)


def import_labels(files: list[str], out: str, annotator: str | None, as_json: bool) -> None:
    """`import label-sheet`: what people wrote into sheets of a run, with every cell that says nothing."""
    from trustjudge_ray import comparing, labelling, runs

    if not files:
        raise click.UsageError("import label-sheet: no file given")
    found = labelling.import_labels(comparing.opened(out, {}), files, annotator)
    for problem in found["problems"]:
        line = "" if problem["line"] is None else f":{problem['line']}"
        got = f": got {problem['got']!r}" if problem["got"] else ""
        click.echo(f"{problem['file']}{line}: {problem['unit']}: {problem['reason']}{got}", err=True)
    counts = ", ".join(f"{n} {reason}" for reason, n in found["reasons"].items())
    replaced = f", {found['replaced']} otherwise than before" if found["replaced"] else ""
    said = f"{found['labels']} labels{replaced} of sheets {', '.join(found['sheets'])}" + (
        f"; without a label: {counts}" if counts else ""
    )
    click.echo(runs.as_json_line(found) if as_json else said)


@click.command()
@RUN
@overrides_of("analysis", "compare")
@click.option("--leaderboard", metavar="FILE", help="People's ranking, a CSV file with model, rating, low and high.")
@QUIET
@JSON
def agree(run_path: str, overrides: tuple[str, ...], leaderboard: str | None, as_json: bool) -> None:
    """How far a run's judges agree with people's labels, and what people would say about the rest.

    Labels are those of `label-sheet`. Of people's scores in the corpus the reliability diagram is shown here, their
    agreement is in the report. Writes agreement.json and agreement.md into the run folder.

    \b
    trustjudge agree runs/demo
    trustjudge agree runs/demo --leaderboard people.csv analysis.tolerances=[0]
    """
    from trustjudge_ray import comparing, labelling, runs
    from trustjudge_ray.report import people

    folder = existing_folder(run_path, overrides)
    settings, _ = comparing.settings_of(folder, list(overrides))
    sheets = labelling.agreement_with_labels(folder, settings)
    boards = labelling.against_leaderboard(folder, leaderboard) if leaderboard else []
    document = {"sheets": sheets, "corpus": labelling.calibration_with_scores(folder, settings), "leaderboard": boards}
    if not any(document.values()):
        wanted = "labels (see label-sheet), human scores in the corpus, or a --leaderboard"
        raise click.UsageError(f"{run_path}: nothing of people to compare with: {wanted}")
    text = people.people_markdown(document, settings.verdict_rules[:1])
    folder.write_json("agreement.json", document)
    folder.write_bytes("agreement.md", text.encode("utf-8"))
    click.echo(runs.as_json_line(document) if as_json else text)


def _run(ctx: click.Context, config_path: str, overrides: tuple[str, ...]) -> int:
    """The command `run`; its exit status."""
    try:
        ctx.invoke(judging.run, config_path=config_path, overrides=overrides, limit=None, as_json=False)
    except SystemExit as ended:
        if ended.code != 1:
            raise
        return 1
    return 0


def _tell(text: str, document: dict[str, object], failed: list[str], as_json: bool) -> None:
    if as_json:
        output.document(document)
    else:
        click.echo(output.painted(text))
    for reason in failed:
        output.error(reason)
    if failed:
        sys.exit(1)
