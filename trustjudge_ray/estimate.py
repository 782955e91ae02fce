"""What a run would come to: judgments, tokens, hours, cost, and what its design can show. No Ray."""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trustjudge_ray import ingest, opening
from trustjudge_ray.config import ClusterConfig, Config, JudgeConfig, LoadedConfig, judge_name
from trustjudge_ray.corpus import reader
from trustjudge_ray.designs import PAIR, Meetings, closed, supports
from trustjudge_ray.identity import seed_of
from trustjudge_ray.judging import plan, protocols
from trustjudge_ray.judging.base import JudgeError
from trustjudge_ray.judging.preview import preview
from trustjudge_ray.judging.prompt_tokens import PrefixCache, TokenCounts, count_tokens, shared_tokens
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.judging.vllm_environment import CPU_BLOCK, is_cpu
from trustjudge_ray.schema import PLACED_RESPONSES, TASKS
from trustjudge_ray.storage import StorageError
from trustjudge_ray.store import RunFolder

SAMPLE = 50
"""Questions whose prompts are tokenised, unless the user says otherwise."""
GPU_BLOCK = 16
"""Tokens of a block of vLLM's prefix cache on GPUs, where engine_args do not say otherwise."""


def estimate(loaded: LoadedConfig, scratch: Path, sample: int = SAMPLE) -> dict[str, Any]:
    """Read the whole corpus, plan it, and count the tokens of `sample` questions. Writes nothing but to `scratch`.

    Args:
        scratch: an empty local folder for rows on their way to the search for duplicates.

    Returns:
        `questions`, `responses`, `judgments` (asked of judges, all of them together), `by_protocol` (kind, judgments of
        one judge, known without a judge by status), `pairs`, `supports` (what the design can show, in words), and for
        each judge `tokens` by protocol (see TokenCounts, scaled up from `sampled_questions`), `hours` and `cost`, each
        None with a reason in `notes` where it cannot be told.

    Raises:
        ProtocolError, CorpusError, StorageError, JudgeError: one message each.
    """
    config = opening.resolved(loaded, lambda _: None).config
    asked = [protocols.load(name) for name in config.protocols]
    specs = [plan.Spec("", protocol, protocol.name) for protocol in asked]
    folder, buckets = _read(config, scratch)
    chosen = _chosen(folder, buckets, sample)
    planned, kept_tasks, kept_rows = _Planned(), [], []
    for bucket in buckets:
        responses = folder.read_table(f"responses/bucket={bucket:03d}.parquet")
        tasks = plan.plan(responses, specs, config.plan, list(config.corpus.error_markers))
        planned.add(responses, tasks)
        kept_tasks.append(tasks.filter(pc.is_in(tasks["question_id"], value_set=chosen)))
        kept_rows.append(responses.filter(pc.is_in(responses["question_id"], value_set=chosen)))
    tasks = pa.concat_tables([TASKS.empty_table(), *kept_tasks])
    rows = pa.concat_tables([PLACED_RESPONSES.empty_table(), *kept_rows])
    judges = {judge_name(j): _judge(j, config, asked, planned, tasks, rows) for j in config.all_judges}
    return {
        "questions": planned.questions,
        "responses": planned.responses,
        "sampled_questions": len(chosen),
        "judgments": sum(planned.asked.values()) * len(config.all_judges),
        "pairs": planned.pairs,
        "by_protocol": [planned.row(protocol) for protocol in asked],
        "judges": judges,
        "supports": list(_supported(config, asked, planned, rows, tasks)),
        "measured": _measured(loaded, asked, sum(planned.asked.values()) * len(config.all_judges)),
    }


def _supported(
    config: Config, asked: list[Protocol], planned: "_Planned", rows: pa.Table, tasks: pa.Table
) -> Iterator[str]:
    """What the design can show, in words; `rows` and `tasks` are those of the sampled questions."""
    identical = config.analysis.identical == "include"
    subsets = {k: closed(rows, tasks, k, identical) for k in sorted(set(config.analysis.k))}
    sampled = len(rows["question_id"].unique())
    kinds = {protocol.kind for protocol in asked}
    return supports(config, kinds, planned.meetings, planned.questions, subsets, sampled)


def _read(config: Config, scratch: Path) -> tuple[RunFolder, list[int]]:
    """The corpus in a scratch folder, duplicates settled; the buckets that have responses of the run."""
    folder, options = RunFolder(str(scratch)), dict(config.storage_options)
    inputs = reader.expand(list(config.corpus.paths), options)
    ledgers = [ingest.ingest_file(path, config.corpus, folder, options) for path in inputs]
    buckets = sorted({bucket for ledger in ledgers for bucket in ledger["buckets"]})
    wanted = None if config.run.limit is None else ingest.first_questions(folder, config.run.limit)
    for bucket in buckets:
        ingest.settle_bucket(bucket, folder, wanted, config.plan.canary)
    return folder, buckets


def _chosen(folder: RunFolder, buckets: list[int], sample: int) -> pa.Array:
    """The questions to look into: those with the smallest hashes, so that the choice depends on nothing else."""
    ids = (i for bucket in buckets for i in _questions_of(folder, bucket))
    return pa.array(heapq.nsmallest(sample, ids, key=lambda i: seed_of("estimate", i)), pa.string())


def _questions_of(folder: RunFolder, bucket: int) -> Iterator[str]:
    table = folder.read_table(f"responses/bucket={bucket:03d}.parquet", ["question_id"])
    return iter(table["question_id"].unique().to_pylist())


class _Planned:
    """Sums over the buckets of a plan."""

    def __init__(self) -> None:
        self.questions = self.responses = self.pairs = 0
        self.meetings = Meetings()
        self.asked: Counter[str] = Counter()
        self.known: Counter[tuple[str, str]] = Counter()

    def add(self, responses: pa.Table, tasks: pa.Table) -> None:
        self.questions += len(responses["question_id"].unique())
        self.responses += len(responses)
        for protocol, status in zip(tasks["protocol"].to_pylist(), tasks["status"].to_pylist(), strict=True):
            if status is None:
                self.asked[protocol] += 1
            else:
                self.known[protocol, status] += 1
        self.pairs += len(tasks.filter(pc.is_valid(tasks["response_b"])).group_by(PAIR).aggregate([]))
        self.meetings.add(responses, tasks)

    def row(self, protocol: Protocol) -> dict[str, Any]:
        return {
            "protocol": protocol.name,
            "kind": protocol.kind,
            "judgments": self.asked[protocol.name],
            "known": {status: n for (name, status), n in sorted(self.known.items()) if name == protocol.name},
        }


# --- tokens, hours, cost ---------------------------------------------------------------------


def _judge(
    judge: JudgeConfig, config: Config, asked: list[Protocol], planned: _Planned, tasks: pa.Table, rows: pa.Table
) -> dict[str, Any]:
    """Tokens, hours and cost of one judge."""
    seen = replace(judge, model=judge.tokenizer) if judge.engine == "openai_api" and judge.tokenizer else judge
    if judge.engine == "scripted" or (judge.engine == "openai_api" and not judge.tokenizer):
        reason = (
            "a scripted judge reads no tokens" if judge.engine == "scripted" else "set judge.tokenizer to count tokens"
        )
        return {"tokens": {}, "hours": None, "cost": None, "notes": [reason]}
    view = preview(seen)
    block = int(judge.engine_args.get("block_size") or (CPU_BLOCK if _runs_on_cpu() else GPU_BLOCK))
    cache = PrefixCache(block)
    tokens: dict[str, TokenCounts] = {}
    for protocol in asked:
        wanted = tasks.filter(pc.and_(pc.equal(tasks["protocol"], protocol.name), pc.is_null(tasks["status"])))
        reader = view.reader(protocol)
        counted = count_tokens(reader, plan.with_texts(wanted, rows).to_pylist(), cache)
        factor = planned.asked[protocol.name] / max(counted.judgments, 1)
        tokens[protocol.name] = counted.scaled(factor, shared_tokens(reader, block))
    notes = [
        f"prefix sharing in full blocks of {block} tokens, and a KV cache that holds at least a question's prompts"
    ]
    hours, cost, why = _hours(tokens.values(), config.cluster)
    return {
        "tokens": {name: asdict(counts) for name, counts in tokens.items()},
        "hours": hours,
        "cost": cost,
        "notes": notes + why,
    }


def _runs_on_cpu() -> bool:
    try:
        return is_cpu()
    except JudgeError:
        return False


def _hours(
    tokens: Iterable[TokenCounts], cluster: ClusterConfig
) -> tuple[dict[str, float] | None, float | None, list[str]]:
    """Hours of all replicas together, of all GPUs together and on the clock; cost; why something is missing."""
    counts = list(tokens)
    computed, written = sum(c.computed for c in counts), sum(c.written for c in counts)
    if cluster.tokens_per_second is None:
        return None, None, ["no rate stated: set cluster.tokens_per_second (prompt tokens a second of one replica)"]
    seconds = computed / cluster.tokens_per_second
    if written:
        if cluster.output_tokens_per_second is None:
            why = "no rate stated for what the judge writes: set cluster.output_tokens_per_second"
            return None, None, [why]
        seconds += written / cluster.output_tokens_per_second
    replica = seconds / 3600
    hours = {"replica": replica, "clock": replica / (cluster.max_replicas or cluster.replicas)}
    if not cluster.gpus_per_replica:
        return hours, None, ["no GPUs configured (cluster.gpus_per_replica): no GPU-hours and no cost"]
    hours["gpu"] = replica * cluster.gpus_per_replica
    if cluster.price_per_gpu_hour is None:
        return hours, None, ["no price stated: set cluster.price_per_gpu_hour"]
    return hours, hours["gpu"] * cluster.price_per_gpu_hour, []


def _measured(loaded: LoadedConfig, asked: list[Protocol], judgments: int) -> dict[str, Any] | None:
    """The rate at which the run folder was judged, if it was, by these judges with these protocols."""
    config = loaded.config
    try:
        folder = RunFolder(config.out, dict(config.storage_options), config.store)
        manifest = folder.read_json("manifest.json") if folder.exists("manifest.json") else {}
    except StorageError:
        return None
    same = manifest.get("protocols") == {protocol.name: protocol.hash for protocol in asked}
    same = same and set(manifest.get("judges", {})) == {judge_name(judge) for judge in config.all_judges}
    seconds = manifest.get("seconds", {}).get("judge") or 0
    if not same or not manifest.get("judged_now") or not seconds:
        return None
    rate = manifest["judged_now"] / seconds
    return {"run": folder.path, "judgments_per_second": rate, "clock_hours": judgments / rate / 3600}
