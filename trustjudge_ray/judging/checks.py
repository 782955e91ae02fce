"""Checks of a judge that need no weights: tokenizer, labels, chat template, precision, context, memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from trustjudge_ray.config import JudgeConfig
from trustjudge_ray.findings import Finding, failed, passed, skipped
from trustjudge_ray.judging.base import JudgeError
from trustjudge_ray.judging.labels import LabelError, build_table, describe, merged_closers
from trustjudge_ray.judging.model_size import GIB, ModelSize, model_size
from trustjudge_ray.judging.preview import NO_LIMIT, Preview
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.judging.slots import task_slots
from trustjudge_ray.judging.vllm_reading import MAX_IDS, Reader

MOST_CUT = 0.1
"""A higher share of judgments with cut responses counts as a context that is too small."""
DEFAULT_CPU_CACHE = GIB
"""The KV cache of a judge on the CPU where engine_args do not say otherwise."""
GPU_SHARE = 0.9
"""Of a GPU's memory that vLLM takes where engine_args do not say otherwise."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a judge gets here: `gpus` are the bytes of each GPU that was seen, `ram` the free memory; `cpu` is whether
    the engine runs on the CPU."""

    cpu: bool
    gpus: tuple[int, ...]
    ram: int | None
    tensor_parallel: int = 1


def check_labels(preview: Preview, protocols: Sequence[Protocol]) -> Iterator[Finding]:
    """Whether every protocol's labels can be read; a finding each, with the table in `details`."""
    for protocol in protocols:
        check = f"labels of {protocol.name}"
        if not protocol.label_texts:
            yield skipped(check, f"none: it asks for an answer of up to {protocol.max_tokens} tokens")
            continue
        try:
            table = build_table(preview.tokenizer, protocol)
        except LabelError as error:
            yield failed(check, error)
            continue
        rows = describe(table, preview.tokenizer)
        requests = sum(-(-len(node.token_ids) // MAX_IDS) for node in table.nodes)
        notes = []
        if table.opener != protocol.opener:
            notes.append(
                f"the end of the opener {protocol.opener!r} joins with the labels for this tokenizer: they are read "
                f"after {table.opener!r}, the rest of the opener with them"
            )
        longer = merged_closers(table, preview.tokenizer, protocol.closer)
        if longer:
            notes.append(
                f"a label that is the beginning of another is read with the closer {protocol.closer!r} alone, and "
                f"{len(longer)} tokens begin with it and go on ({', '.join(map(repr, longer[:3]))} ...): where the "
                f"judge likes to write these, label_mass is lower"
            )
        per = "1 request" if requests == 1 else f"{requests} requests"
        says = f"{len(rows)} labels after {table.opener!r}, {per} a judgment"
        details = {"opener": table.opener, "opener_ids": list(table.opener_ids), "labels": rows}
        yield passed(check, says, notes, details)


def check_template(preview: Preview, protocols: Sequence[Protocol]) -> Iterator[Finding]:
    """Whether the chat template carries every protocol, and what becomes of a system text."""
    if not protocols:
        yield skipped("chat template", "no protocol whose labels can be read")
        return
    notes: list[str] = []
    try:
        folds = preview.folds(protocols[0])
        for protocol in protocols:
            notes += preview.reader(protocol, NO_LIMIT).prompts.notes
    except (ValueError, JudgeError) as error:
        yield failed("chat template", error)
        return
    system = "has no system role: a system text begins the first user turn" if folds else "has a system role"
    isolated = not any("plain text" in note for note in notes)
    slots = "a response cannot leave its slot" if isolated else "responses can imitate its markers"
    yield passed("chat template", f"{system}; works with and without system text; {slots}", list(dict.fromkeys(notes)))


def check_precision(judge: JudgeConfig) -> Finding:
    """In which precision the judge is read; stated, and remarked on where it costs digits."""
    notes = []
    if judge.head_dtype != "float32":
        notes.append(
            f"logits in {judge.head_dtype} move label log-probabilities by up to 0.27 nat; judge.head_dtype: float32 "
            f"costs little"
        )
    return passed(
        "precision",
        f"body {judge.dtype}, output layer {judge.head_dtype}; log-probabilities kept as float32",
        notes,
        {"dtype": judge.dtype, "head_dtype": judge.head_dtype},
    )


def check_context(
    preview: Preview, protocols: Sequence[Protocol], tasks: dict[str, pa.Table], most_too_long: float
) -> Finding:
    """Whether sampled prompts fit into the context.

    FAILED where more than `most_too_long` of a protocol's judgments would be `too_long`, or more than MOST_CUT would
    see cut responses.

    Args:
        tasks: TASK_TEXTS rows to try, by protocol.
    """
    limit, own = preview.context, preview.own_context
    if limit is None:
        return failed("context", "the model's config states no context; set judge.max_model_len")
    if own is not None and limit > own and not _scaled(preview):
        return failed(
            "context", f"judge.max_model_len is {limit}, but the model takes {own} tokens; set it to {own} or less"
        )
    try:
        readers = [preview.reader(protocol) for protocol in protocols]
    except JudgeError as error:
        return failed("context", error)
    found = {r.protocol.name: _fit(r, limit, tasks[r.protocol.name]) for r in readers if len(tasks[r.protocol.name])}
    if not found:
        return skipped("context", f"{limit} tokens; no prompt to try in it")
    needed = max(fit["needed"] for fit in found.values())
    wrong = [
        f"{name}: {fit['too_long']} of {fit['tried']} prompts do not fit, {fit['cut']} lose a part of their responses"
        for name, fit in found.items()
        if fit["too_long"] > most_too_long * fit["tried"] or fit["cut"] > MOST_CUT * fit["tried"]
    ]
    details = {"context": limit, "needed": needed, "protocols": found}
    if wrong:
        return failed(
            "context", f"{limit} tokens are too few: {'; '.join(wrong)}; {_longer(needed, own)}", details=details
        )
    notes = [
        f"{name}: {fit['too_long']} of {fit['tried']} prompts do not fit, {fit['cut']} are cut in their responses"
        for name, fit in found.items()
        if fit["too_long"] or fit["cut"]
    ]
    tried = sum(fit["tried"] for fit in found.values())
    says = f"{limit} tokens; the longest of {tried} sampled prompts needs {needed}"
    return passed("context", says, notes, details=details)


def _scaled(preview: Preview) -> bool:
    """Whether the model's positions are stretched, so that its context is not what the config's number says."""
    rope = preview.model.get("rope_scaling") or preview.model.get("rope_parameters") or {}
    return (
        rope.get("rope_type", rope.get("type", "default")) != "default" or "hf_overrides" in preview.judge.engine_args
    )


def _fit(reader: Reader, context: int, tasks: pa.Table) -> dict[str, int]:
    """How the prompts of tasks fit: how many were tried, are too long, are cut, and the context that all need."""
    too_long = cut = longest = 0
    for task in tasks.to_pylist():
        slots = task_slots(reader.protocol, task)
        prompt = reader.prompts.build(slots)
        too_long += prompt.too_long
        cut += prompt.truncated
        longest = max(longest, reader.prompts.size(slots))
    return {"tried": len(tasks), "too_long": too_long, "cut": cut, "needed": longest + context - reader.room}


def _longer(needed: int, own: int | None) -> str:
    if own is None or needed <= own:
        takes = "" if own is None else f" (the model takes {own})"
        return f"set judge.max_model_len to {needed} or more{takes}"
    return f"{needed} would hold all, the model takes {own}: set judge.max_model_len to {own}, or take another judge"


def check_memory(preview: Preview, machine: Machine) -> Finding:
    """Weights and the KV cache of one full context against the memory that was seen; activations are not counted."""
    judge, context = preview.judge, preview.context or 0
    size = model_size(preview.model, preview.source, judge.dtype)
    if size is None:
        return skipped("memory", "the model's config does not say enough to work it out")
    cache = size.cache_per_token * context
    how = "counted in its files" if size.counted else "worked out from its config"
    says = (
        f"weights {size.weights / GIB:.2f} GiB ({size.parameters / 1e9:.2f} G parameters, {how}, in {judge.dtype}) + "
        f"KV cache of one context of {context} tokens {cache / GIB:.2f} GiB (2 × layers × KV heads × head size × bytes)"
    )
    details = {"weights": size.weights, "cache": cache, "parameters": size.parameters, "context": context}
    notes = []
    if "quantization" in judge.engine_args or "quantization_config" in preview.model:
        notes.append("the model is quantised: its weights take less than that")
    if machine.cpu:
        return _on_cpu(judge, size, says, notes, machine, details)
    return _on_gpus(judge, size.weights + cache, says, notes, machine, details)


def _on_cpu(
    judge: JudgeConfig, size: ModelSize, says: str, notes: list[str], machine: Machine, details: dict[str, int]
) -> Finding:
    cache = int(judge.engine_args.get("kv_cache_memory_bytes") or DEFAULT_CPU_CACHE)
    says += f"; on the CPU, with a KV cache of {cache / GIB:.2f} GiB"
    if details["cache"] > cache:
        fits = cache // size.cache_per_token
        return failed(
            "memory",
            f"{says}, which holds {fits} tokens: set judge.max_model_len to {fits} or less, or "
            f"judge.engine_args.kv_cache_memory_bytes to {details['cache']} or more",
            notes,
            details=details,
        )
    need = size.weights + cache
    if machine.ram is not None and need > machine.ram and not notes:
        return failed(
            "memory",
            f"{says}: {need / GIB:.2f} GiB a replica, and {machine.ram / GIB:.2f} GiB are free here; free memory, or "
            f"take a smaller judge or judge.dtype bfloat16",
            details=details,
        )
    free = "" if machine.ram is None else f" of {machine.ram / GIB:.2f} GiB that are free here"
    return passed("memory", f"{says}: {need / GIB:.2f} GiB a replica{free}", notes, details=details)


def _on_gpus(
    judge: JudgeConfig, need: int, says: str, notes: list[str], machine: Machine, details: dict[str, int]
) -> Finding:
    share = float(judge.engine_args.get("gpu_memory_utilization") or GPU_SHARE)
    each = need / machine.tensor_parallel
    says += f": {each / GIB:.2f} GiB on each of {machine.tensor_parallel} GPUs, and activations"
    if not machine.gpus:
        notes.append(f"no GPU is seen on this machine: compare with {share:.0%} of the memory of those that will judge")
        return passed("memory", says, notes, details=details)
    room = min(machine.gpus) * share
    if each > room and not any("quantised" in note for note in notes):
        return failed(
            "memory",
            f"{says}; a GPU here has {room / GIB:.2f} GiB for it ({share:.0%}): raise cluster.tensor_parallel (and "
            f"cluster.gpus_per_replica), lower judge.max_model_len, or take a smaller or quantised judge",
            notes,
            details=details,
        )
    return passed("memory", f"{says}; a GPU here has {room / GIB:.2f} GiB for it ({share:.0%})", notes, details=details)
