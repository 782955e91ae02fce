"""The command that begins: init."""

from pathlib import Path

import click

from trustjudge_ray import config_values
from trustjudge_ray.commands import completing, output
from trustjudge_ray.commands.options import QUIET, Words

_CORPUS = (".jsonl", ".ndjson", ".json", ".parquet", ".pq", ".gz", ".zst")


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=completing.files(*_CORPUS))
@click.option(
    "--format",
    "form",
    metavar="FORMAT",
    type=Words(config_values.choices("corpus.format")),
    help="How the files are laid out, where several formats fit.",
)
@click.option(
    "--field", "fields", multiple=True, metavar="OURS=YOURS", help="What a field is, such as response=text; one each."
)
@click.option("--out", metavar="CONFIG", help="Write to this file, which must not be there, instead of printing.")
@click.option("--force", is_flag=True, help="With --out: write over a file that is there.")
@QUIET
def init(files: tuple[str, ...], form: str | None, fields: tuple[str, ...], out: str | None, force: bool) -> None:
    """Print a configuration for a corpus, with comments. It runs as it is, with the small judge that comes along.

    Reads the beginning of each FILE (a file, folder or glob; local or s3://), recognises the format, and guesses which
    of your fields are the question, the model and its answer; the comments say what was guessed from what. Where none
    names the model, the name of the file does.

    \b
    trustjudge init answers.jsonl > my.yaml
    trustjudge init answers/*.jsonl --out my.yaml
    trustjudge init answers.jsonl --field response=text --field model==ours-v2
    trustjudge run my.yaml
    """
    from trustjudge_ray import initial_config

    if out is not None and not force and Path(out).exists():
        raise click.UsageError(f"--out {out}: is there already; another name, or --force to write over it")
    given = [field.partition("=") for field in fields]
    wrong = next((field for field, (ours, _, theirs) in zip(fields, given, strict=True) if not (ours and theirs)), None)
    if wrong is not None:
        raise click.UsageError(
            f"--field {wrong}: write OURS=YOURS, such as response=text, or model==NAME for a constant"
        )
    name = Path(out).stem if out else initial_config.run_name(files[0])
    text, warnings = initial_config.of_files(list(files), form, {ours: theirs for ours, _, theirs in given}, name)
    for warning in warnings:
        output.note(f"note: {warning}")
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"--out {out}: {error.strerror or error}") from error
    then = "preferences" if "\npreferences:\n" in text else "run"
    output.note(f"{out}: written; next: trustjudge validate {out}, then trustjudge {then} {out}")
