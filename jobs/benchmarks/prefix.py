"""How much of its prompts a judge computes, in the plan's order and in others, when the cache is small.

Both orders of all pairs of six answers, a protocol without worked examples (whose prefix would be shared by every
prompt), and a cache of a quarter of the working set: of all blocks that an engine with endless memory would keep. The
figure is prompt tokens computed over prompt tokens sent, as the engine counts them. The reference program asks pair
after pair, each in both orders.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from trustjudge_ray.config import RunConfig
from trustjudge_ray.judging.model_files import locate
from trustjudge_ray.judging.protocols import Protocol, load
from trustjudge_ray.judging.vllm_reading import reader_of

from . import Options
from ._judging import (
    CONTEXT,
    block_size,
    demo_tasks,
    engine_process,
    judge_config,
    refuse_failures,
    requests_of,
    tokens_of,
)

ORDERS = ("planned", "shuffled", "reference")


@dataclass(frozen=True, slots=True)
class Sharing:
    """What was sent: how many prompts and tokens, and how many of these in the distinct blocks (the working set) and
    in the cache; the computed share of each order, and what an endless cache would leave to compute."""

    prompts: int
    sent: int
    working_set: int
    cache: int
    least: float
    computed: dict[str, float]


def run(options: Options) -> dict[str, Any]:
    """Compute the shares with the embedded judge."""
    found = measure("embedded", 2 if options.small else 12)
    options.say(
        f"{found.prompts} prompts, {found.sent} tokens, {found.working_set} of them in distinct blocks, a cache of "
        f"{found.cache}; computed over sent (with an endless cache {found.least:.3f}):"
    )
    options.say("  " + ", ".join(f"{order} {share:.3f}" for order, share in found.computed.items()))
    return dict(found.computed)


def measure(model: str, questions: int) -> Sharing:
    """The shares of one judge over so many questions of the demo corpus, in a process of its own."""
    with engine_process() as process:
        return process.submit(_measure, model, questions).result()


def _measure(model: str, questions: int) -> Sharing:
    from trustjudge_ray.judging.vllm_engine import VllmJudge

    protocol = replace(load("compare"), name="compare-plain", examples=())
    tasks = demo_tasks(questions, [protocol])
    prompts = _prompts(model, protocol, tasks)
    distinct = {hash(tuple(ids[:end])) for ids in prompts for end in range(block_size(), len(ids), block_size())}
    blocks = len(distinct) // 4
    sent = sum(map(len, prompts))
    arguments = {"block_size": block_size(), "num_gpu_blocks_override": blocks}
    longest = max(map(len, prompts)) + 8
    judge = VllmJudge(judge_config(model, max_model_len=longest, engine_args=arguments), {protocol.name: protocol})
    computed = {order: _computed(judge, tasks.take(_order(tasks, order)), sent) for order in ORDERS}
    hit = sum((len(ids) - 1) // block_size() for ids in prompts) * block_size() - len(distinct) * block_size()
    return Sharing(
        prompts=len(prompts),
        sent=sent,
        working_set=len(distinct) * block_size(),
        cache=blocks * block_size(),
        least=1 - hit / sent,
        computed=computed,
    )


def _prompts(model: str, protocol: Protocol, tasks: pa.Table) -> list[list[int]]:
    """The token ids of each task's only request."""
    from transformers import AutoTokenizer

    judge = judge_config(model)
    reader = reader_of(judge, AutoTokenizer.from_pretrained(locate(judge)), protocol, CONTEXT)
    return [requests_of(reader, task)[0]["prompt_token_ids"] for task in tasks.to_pylist()]


def _order(tasks: pa.Table, order: str) -> Sequence[int]:
    """The places of the tasks in an order: the plan's, a random one, or pair after pair in both orders."""
    places = list(range(len(tasks)))
    if order == "shuffled":
        random.Random(0).shuffle(places)
    if order == "reference":
        keys = tasks.select(["question_id", "response_a", "response_b", "order"]).to_pylist()
        question = {name: i for i, name in enumerate(dict.fromkeys(key["question_id"] for key in keys))}
        places.sort(key=lambda i: (question[keys[i]["question_id"]], *list(keys[i].values())[1:]))
    return places


def _computed(judge: Any, tasks: pa.Table, sent: int) -> float:
    """Prompt tokens computed over sent, from an empty cache, in batches as a run makes them."""
    judge._llm.reset_prefix_cache()
    size = RunConfig().batch_size
    batches = [tasks.slice(start, size) for start in range(0, len(tasks), size)]
    readings = [reading for batch in batches for reading in refuse_failures(judge.judge(batch))]
    counted, cached = tokens_of(readings)
    if counted != sent:
        raise RuntimeError("the judge sent other prompts than those that the cache was sized for")
    return 1 - cached / sent
