"""For notebooks: judge a corpus, evaluate a run again, open one, compare two; tables come as Polars frames.

    import trustjudge_ray as tj

    run = tj.judge("answers.jsonl", protocols=["score-5", "compare"], limit=20)
    run                       # in a notebook: leaderboard, what to know first, a link to the report
    run.leaderboard()

These wrap what the command line calls and add nothing to it: the same configuration, run folder, numbers and errors
(`ConfigError`, `CorpusError`, `ProtocolError`, `StorageError`, `JudgeError`, `RunError`). Only `judge` needs Ray. A Ray
that this process has started or joined already is used and left running; otherwise `judge` joins the configured cluster
or starts a local one, and leaves or ends it before it returns.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, Final

from trustjudge_ray import api_arguments, comparing, config, printing, runs
from trustjudge_ray.api_arguments import Corpus, Judge, PathText
from trustjudge_ray.api_views import Compared, Run
from trustjudge_ray.judging.base import RunError
from trustjudge_ray.progress import Progress
from trustjudge_ray.store import RunFolder

__all__ = ["Compared", "Corpus", "Judge", "Run", "compare", "evaluate", "judge", "open_run"]

_SECONDS: Final = 5.0
"""Between two lines of progress."""


def judge(
    corpus: Corpus,
    *,
    judge: Judge | Sequence[Judge] | None = None,
    protocols: PathText | Sequence[PathText] | None = None,
    design: str | None = None,
    out: PathText | None = None,
    limit: int | None = None,
    format: str | None = None,
    fields: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
    quiet: bool = False,
    **sections: Any,
) -> Run:
    """Judge, evaluate and report, as `trustjudge run` does; called again with the same `out`, it goes on.

    Args:
        corpus: paths, or the rows: dictionaries, a Polars frame, an Arrow table. Rows are kept in the run folder, under
            `corpus/`, so that the folder can be judged again from itself.
        judge: who judges, several as a list; by default the embedded judge.
        protocols: built-in names or paths of YAML files; by default `score-5` and `compare`.
        design: `plan.design`.
        out: the run folder; by default a new one among the temporary files, which is not removed. On a cluster of
            several machines give a place that all reach.
        limit: only the first so many questions.
        format: `corpus.format`.
        fields: `corpus.fields`, our names to those of the rows.
        overrides: `key=value`, as on the command line.
        quiet: say nothing on standard error.
        sections: any other key of a configuration: `plan={"block": 4}`, `analysis={"k": [3]}`, `store="s3://…"`.

    Raises:
        ConfigError, ProtocolError, CorpusError, StorageError, JudgeError: as the command line says them.
        RunError: also where the run ended and counts as failed (`run.max_failure_rate`, a budget). What was judged is
            saved, evaluated and reported then: `open_run(out)` has it.
    """
    where = os.fspath(out) if out is not None else tempfile.mkdtemp(prefix="trustjudge-")
    if not where.strip():
        raise config.ConfigError("judge(): out: got an empty text; a folder, or leave it out for a temporary one")
    paths, content = api_arguments.corpus_files(corpus, where.rstrip("/"))
    who, judging = api_arguments.who_judges(judge)
    arguments = {
        "out": where,
        "corpus": {"paths": paths, "format": format, "fields": fields},
        who: judging,
        "protocols": protocols,
        "plan": {"design": design},
        "run": {"limit": limit},
    }
    loaded = config.loads(api_arguments.configuration(arguments, sections), "judge()", list(overrides))
    if content is not None:
        RunFolder(where, dict(loaded.config.storage_options)).write_bytes(api_arguments.kept_name(content), content)
    with _ray(), redirect_stdout(sys.stderr):  # Ray prints there
        judged, _ = runs.run(loaded, _silence if quiet else _Lines())
    wrong = [*judged.over_limit, *([judged.stopped] if judged.stopped else [])]
    run = Run(runs.folder_of(loaded))
    if wrong:
        raise RunError(f"{'; '.join(wrong)}; what was judged is saved: open_run({run.path!r})")
    return run


def evaluate(
    run: Run | PathText,
    *,
    overrides: Sequence[str] = (),
    storage_options: Mapping[str, Any] | None = None,
    **analysis: Any,
) -> Run:
    """Compute every table of a run again from its judgments, and its report; no judge, no Ray.

    Args:
        analysis: keys of the configuration's section `analysis`, such as `tolerances=[0, 0.5]`, `k=[3]`; what is not
            given is as the run's configuration says.
        overrides: the same as text, `analysis.k=[3]`.

    Raises:
        ConfigError: a key is unknown, or a value makes no sense.
        StorageError: there is no run, or storage refuses.
    """
    opened = _opened(run, storage_options)
    changes = [api_arguments.setting(f"analysis.{key}", value) for key, value in analysis.items()]
    runs.evaluate(opened.folder, runs.analysis_settings(opened.folder, [*changes, *overrides]))
    runs.report(opened.folder)
    return opened


def open_run(path: PathText, storage_options: Mapping[str, Any] | None = None) -> Run:
    """A run that is there, whoever made it: `judge`, the command line, an import.

    Raises:
        StorageError: it is no run folder, or storage refuses.
    """
    return Run(comparing.opened(os.fspath(path), dict(storage_options or {})))


def compare(
    run_a: Run | PathText,
    run_b: Run | PathText,
    *,
    overrides: Sequence[str] = (),
    storage_options: Mapping[str, Any] | None = None,
) -> Compared:
    """What changed from run A to run B, paired by question, as `trustjudge compare` computes it; writes nothing.

    Args:
        overrides: of the sections `analysis` and `compare` of run B, such as `compare.smallest=0.01`.

    Raises:
        RunError: they have no judged question and model in common.
        ConfigError, StorageError: as elsewhere.
    """
    a, b = _opened(run_a, storage_options).folder, _opened(run_b, storage_options).folder
    return Compared(*comparing.compare_folders(a, b, *comparing.settings_of(b, list(overrides))))


def _opened(run: Run | PathText, options: Mapping[str, Any] | None) -> Run:
    return run if isinstance(run, Run) else open_run(run, options)


@contextmanager
def _ray() -> Iterator[None]:
    """A Ray that was there stays; one that starts within ends with it.

    Raises:
        RunError: Ray is not installed.
    """
    before = sys.modules.get("ray")  # who has not imported it has not started it
    running = before is not None and before.is_initialized()
    try:
        from trustjudge_ray import pipeline
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise RunError(runs.NO_RAY) from error
    try:
        yield
    finally:
        if not running:
            pipeline.stop()


class _Lines:
    """Progress as lines for a person who reads along: what is being done, and every few seconds how far it is."""

    def __init__(self) -> None:
        self._shown = time.monotonic()

    def __call__(self, what: str, progress: Progress | None) -> None:
        now = time.monotonic()
        if progress is None:
            print(what, file=sys.stderr, flush=True)
        elif progress.finished or now - self._shown >= _SECONDS:
            self._shown = now
            print(printing.progress_line(progress), file=sys.stderr, flush=True)


def _silence(_: str, __: Progress | None) -> None:
    return
