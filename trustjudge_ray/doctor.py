"""Whether a run can begin: storage, corpus and judges, each check a finding, before a GPU is paid for. No Ray."""

import subprocess
from collections.abc import Generator, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trustjudge_ray import ingest, opening
from trustjudge_ray.config import Config, JudgeConfig, LoadedConfig, judge_name
from trustjudge_ray.corpus import duplicates, joining, reader
from trustjudge_ray.findings import FAILED, Finding, failed, passed, skipped
from trustjudge_ray.judging import checks, plan, protocols, trial
from trustjudge_ray.judging.base import JudgeError
from trustjudge_ray.judging.preview import Preview, preview
from trustjudge_ray.judging.protocols import Protocol, ProtocolError
from trustjudge_ray.judging.vllm_environment import is_cpu
from trustjudge_ray.schema import QUARANTINE, TASK_TEXTS, from_rows
from trustjudge_ray.storage import StorageError
from trustjudge_ray.store import RunFolder

SAMPLE_FILES, SAMPLE_ROWS = 10, 200
"""How many files, spread over the corpus, are looked into, and how many rows at the beginning of each."""
SAMPLE_JOINED = 200
"""How many files of a corpus that keeps its questions in a file of their own, which must not be missed."""
SAMPLE_PROMPTS = 500
"""How many prompts of each protocol are tried against the context."""
_LOW_MASS = 0.5


def examine(loaded: LoadedConfig, load: bool = True) -> Iterator[Finding]:
    """Make every check of a configuration, one finding after the other.

    Writes nothing but a small file in the run folder, which it removes again.

    Args:
        load: whether the judges are loaded and asked; otherwise that is a skipped check.
    """
    config = loaded.config
    try:
        asked = [protocols.load(name) for name in _protocol_names(config)]
    except ProtocolError as error:
        yield failed("configuration", error)
        asked = []
    else:
        names = ", ".join(protocol.name for protocol in asked)
        yield passed("configuration", f"{loaded.source}: protocols {names}; judges {_names(config)}")
    opened = yield from _with_format(loaded)
    sample = None if opened is None else (yield from _corpus(opened, asked))
    yield _run_folder(config)
    for judge in config.all_judges:
        for finding in _judge(config, judge, asked, sample, load):
            yield finding if len(config.all_judges) == 1 else _of(judge, finding)


def _protocol_names(config: Config) -> list[str]:
    """What the judges will be asked: of a configuration that is for an audit alone, by the audit."""
    if config.audit is None or config.corpus.paths:
        return list(config.protocols)
    return [*config.audit.answer_protocols, *config.audit.protocols, *config.audit.further_protocols]


def _names(config: Config) -> str:
    return ", ".join(judge_name(judge) for judge in config.all_judges)


def _of(judge: JudgeConfig, found: Finding) -> Finding:
    return Finding(f"{judge_name(judge)}: {found.check}", found.status, found.says, found.notes, found.details)


# --- storage and corpus ----------------------------------------------------------------------


def _with_format(loaded: LoadedConfig) -> Generator[Finding, None, Config | None]:
    """The configuration with the format that `corpus.format: auto` stands for; None where nobody can tell."""
    said: list[str] = []
    try:
        config = opening.resolved(loaded, said.append).config
    except reader.CorpusError as error:
        yield failed("corpus format", error)
        return None
    if said:
        yield passed("corpus format", said[0], [line.strip() for line in said[1:]])
    return config


def _corpus(config: Config, asked: list[Protocol]) -> Generator[Finding, None, pa.Table | None]:
    """The corpus's files and first rows; returns the rows (PLACED_RESPONSES), or None where there are none."""
    if not config.corpus.paths:
        yield skipped("corpus", "none is configured: an audit takes its questions from audit.items")
        return None
    try:
        files = reader.expand(list(config.corpus.paths), dict(config.storage_options))
    except reader.CorpusError as error:
        yield failed("corpus", error)
        return None
    yield passed("corpus", f"{len(files)} files, the first {files[0]}", details={"files": len(files)})
    joins = config.corpus.format in joining.JOINED
    chosen = files[:: max(1, -(-len(files) // (SAMPLE_JOINED if joins else SAMPLE_FILES)))]
    try:
        read = [_first_rows(path, config) for path in chosen]
    except reader.CorpusError as error:
        yield failed("corpus rows", error)
        return None
    rows, unjoined = pa.concat_tables([responses for responses, _ in read]), QUARANTINE.empty_table()
    if joins:
        rows, unjoined = joining.of_sample(rows)
    rows, further = duplicates.deduplicate(rows)
    rejected = pa.concat_tables([quarantine for _, quarantine in read] + [unjoined, further])
    if not len(rows):
        yield failed(
            "corpus rows", f"none of the first rows can be read{_example(rejected)}; see `trustjudge validate`"
        )
        return None
    notes = (
        [f"{len(rejected)} rows cannot be read{_example(rejected)}; see `trustjudge validate`"] if len(rejected) else []
    )
    questions, models = (len(rows[name].unique()) for name in ("question_id", "model"))
    says = f"{len(rows)} sampled from {len(chosen)} files: {questions} questions, {models} models"
    yield passed("corpus rows", says, notes, {"rows": len(rows), "quarantined": len(rejected)})
    for protocol in asked:
        yield from _missing_slots(protocol, rows)
    return rows


def _first_rows(path: str, config: Config) -> tuple[pa.Table, pa.Table]:
    return next(ingest.read(path, config.corpus, dict(config.storage_options), SAMPLE_ROWS))


def _example(rejected: pa.Table) -> str:
    if not len(rejected):
        return ""
    first = rejected.slice(0, 1).to_pylist()[0]
    where = first["source"] if first["line"] is None else f"{first['source']}:{first['line']}"
    return f", such as {where}: {first['reason']}: {first['detail']}"


def _missing_slots(protocol: Protocol, rows: pa.Table) -> Iterator[Finding]:
    """Where the corpus lacks what a protocol shows: a finding each for reference, question and passage."""
    lacking = {}
    if "reference" in protocol.slots:
        given = {row["question_id"] for row in rows.select(["question_id", "reference"]).to_pylist() if _text(row)}
        lacking["reference"] = [i not in given for i in rows["question_id"].to_pylist()]
    roles = [{message["role"] for message in messages} for messages in rows["messages"].to_pylist()]
    if {"question", "conversation"} & set(protocol.slots):
        lacking["question"] = [not asked - {"context"} for asked in roles]
    if "context" in protocol.slots:
        lacking["context"] = ["context" not in asked for asked in roles]
    for slot, missing in lacking.items():
        if not any(missing):
            continue
        place = rows.slice(missing.index(True), 1).to_pylist()[0]
        what = (
            f"{sum(missing)} of {len(missing)} sampled rows have no {slot}, which the protocol shows (such as "
            f"{place['source']}:{place['line']})"
        )
        fate = "they get the status missing_reference" if slot == "reference" else "they are judged without it"
        change = f"map corpus.fields.{slot} to the field that holds it, or leave the protocol out"
        if all(missing):
            yield failed(f"slots of {protocol.name}", f"{what}; {change}")
        else:
            yield passed(f"slots of {protocol.name}", "filled for some rows", [f"{what}: {fate}"])


def _text(row: dict[str, Any]) -> bool:
    return bool((row["reference"] or "").strip())


def _run_folder(config: Config) -> Finding:
    try:
        folder = RunFolder(config.out, dict(config.storage_options), config.store)
        folder.probe()
    except StorageError as error:
        return failed("run folder", f"out: {error}")
    places = folder.path if config.store is None else f"{folder.path} and {folder.store}"
    return passed("run folder", f"{places}: a file written, read back and removed")


# --- judges ----------------------------------------------------------------------------------


def _judge(
    config: Config, judge: JudgeConfig, asked: list[Protocol], sample: pa.Table | None, load: bool
) -> Iterator[Finding]:
    readable = asked
    tasks = {protocol.name: _tasks(protocol, config, sample) for protocol in asked}
    if judge.engine == "vllm":
        readable = yield from _previewed(config, judge, asked, tasks)
    check = "judge answers"
    if not load:
        yield skipped(check, "not loaded, as you said")
    elif len(readable) < len(asked) or not asked:
        yield skipped(check, "not asked, because of what failed above")
    else:
        rows = [_one(protocol, tasks[protocol.name], judge) for protocol in asked]
        yield _answers(check, trial.try_judge(judge, asked, pa.concat_tables(rows), config.cluster))


def _previewed(
    config: Config, judge: JudgeConfig, asked: list[Protocol], tasks: dict[str, pa.Table]
) -> Generator[Finding, None, list[Protocol]]:
    """The checks that need no weights; returns the protocols that can be put to the judge."""
    try:
        seen = preview(judge)
    except JudgeError as error:
        yield failed("judge", error)
        return []
    yield passed("judge", f"{judge.model}: tokenizer and config found at {seen.source}")
    readable = []
    for protocol, finding in zip(asked, checks.check_labels(seen, asked), strict=True):
        readable += [protocol] if finding.status != FAILED else []
        yield finding
    template = next(checks.check_template(seen, readable))
    yield template
    yield checks.check_precision(judge)
    fitting = [] if template.status == FAILED else readable
    context = checks.check_context(seen, fitting, tasks, config.run.max_failure_rate)
    yield context
    memory = _memory(seen, config)
    yield memory
    return [] if FAILED in (template.status, context.status, memory.status) else readable


def _memory(seen: Preview, config: Config) -> Finding:
    try:
        cpu = is_cpu()
    except JudgeError as error:
        return failed("memory", error)
    return checks.check_memory(seen, checks.Machine(cpu, _gpus(), _free_ram(), config.cluster.tensor_parallel))


def _gpus() -> tuple[int, ...]:
    """The bytes of each GPU that NVIDIA's own program names; none where it is not there or does not answer."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return tuple(int(line) * 2**20 for line in done.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()


def _free_ram() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            found = [line.split()[1] for line in file if line.startswith("MemAvailable:")]
    except OSError:
        return None
    return int(found[0]) * 1024 if found else None


def _tasks(protocol: Protocol, config: Config, sample: pa.Table | None) -> pa.Table:
    """Up to SAMPLE_PROMPTS of the judgments that the sample asks of a protocol, spread evenly, with their texts."""
    if sample is None:
        return TASK_TEXTS.empty_table()
    planned = plan.plan(sample, [plan.Spec("judge", protocol, "")], config.plan, list(config.corpus.error_markers))
    planned = planned.filter(pc.and_(pc.is_null(planned["status"]), pc.equal(planned["repeat"], 0)))
    step = max(1, -(-len(planned) // SAMPLE_PROMPTS))
    return plan.with_texts(planned.take(pa.array(range(0, len(planned), step), pa.int64())), sample)


def _one(protocol: Protocol, tasks: pa.Table, judge: JudgeConfig) -> pa.Table:
    """One task of a protocol: the sample's first, or one made up."""
    if len(tasks):
        return tasks.slice(0, 1)
    both = (
        {"response_b": "2", "model_b": "2", "order": "AB", "replies_b": ["Five."]} if protocol.kind == "compare" else {}
    )
    made_up = {
        "task_id": protocol.name, "spec": "", "kind": protocol.kind, "protocol": protocol.name, "repeat": 0,
        "sample": 0, "judge": judge_name(judge), "question_id": "1", "response_a": "1", "model_a": "1",
        "messages": [{"role": "user", "content": "How many are two and two?"}], "replies_a": ["Four."],
        "reference": "Four.",
    }  # fmt: skip
    return from_rows([made_up | both], TASK_TEXTS)


def _answers(check: str, tried: trial.Trial) -> Finding:
    if tried.error is not None:
        return failed(check, tried.error)
    details = {"judgments": tried.judgments, "described": tried.described, "peak_bytes": tried.peak_bytes}
    wrong = [f"{row['protocol']}: {row['status']}: {row['detail']}" for row in tried.judgments if row["status"] != "ok"]
    if wrong:
        return failed(check, f"the judge loads, but does not answer: {'; '.join(wrong)}", details=details)
    said = [_said(row) for row in tried.judgments]
    notes = [
        f"{row['protocol']}: only {row['label_mass']:.1%} of the judge's probability went to labels; look at what it "
        f"is asked, and at the opener"
        for row in tried.judgments
        if row["kind"] != "answer" and row["label_mass"] < _LOW_MASS
    ]
    says = (
        f"loaded in {tried.load_seconds:.0f} s, answered in {tried.judge_seconds:.1f} s, at most "
        f"{tried.peak_bytes / 2**30:.2f} GiB of memory; {'; '.join(said)}"
    )
    return passed(check, says, notes, details=details)


def _said(row: dict[str, Any]) -> str:
    if row["kind"] == "answer":
        return f"{row['protocol']}: {row['output'][:60]!r}"
    return f"{row['protocol']}: {row['emitted']} (label mass {row['label_mass']:.3g})"
