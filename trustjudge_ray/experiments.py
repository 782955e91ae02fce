"""The parts of an audit that look into a model with transformers: where it looks, and what training does to it.

Each runs in Ray tasks of its own, beside the engine that judges.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import polars as pl

from trustjudge_ray.audit import qa
from trustjudge_ray.audit.qa import Item
from trustjudge_ray.audit_config import AuditConfig
from trustjudge_ray.config import ConfigError, JudgeConfig, LoadedConfig, model_name
from trustjudge_ray.judging import protocols
from trustjudge_ray.judging.base import RunError
from trustjudge_ray.judging.model_files import locate
from trustjudge_ray.runs import Notify


def attention(
    loaded: LoadedConfig, judge: JudgeConfig, settings: AuditConfig, items: Sequence[Item], generated: pl.DataFrame,
    notify: Notify,
) -> dict[str, Any] | None:  # fmt: skip
    """Where the judge looks when it answers and when it judges its answers; None where it is not asked for."""
    wanted = settings.attention
    if not wanted.items:
        return None
    from trustjudge_ray import pipeline
    from trustjudge_ray.audit.attention import AttentionError
    from trustjudge_ray.audit.hf_attention import measure

    model = judge if wanted.model is None else replace(judge, model=wanted.model, revision=None)
    told = generated.filter(condition="passage", status="ok").select("item_id", "output")
    notify(f"attention: {min(wanted.items, len(items))} items", None)
    work = partial(
        measure, locate(model), list(items), dict(told.iter_rows()), sample=wanted.items, seed=settings.seed,
        dtype=wanted.dtype, revision=model.revision, trust_remote_code=judge.trust_remote_code,
        template_arguments=judge.template_arguments,
    )  # fmt: skip
    pipeline.start(loaded.config.cluster)
    try:
        return pipeline.in_a_task(work, cpus=wanted.cpus, gpus=wanted.gpus) | {"model": model_name(model)}
    except AttentionError as error:
        raise RunError(f"audit.attention: {error}") from error


def lora(
    loaded: LoadedConfig, judge: JudgeConfig, settings: AuditConfig, items: Sequence[Item], drafts: pl.DataFrame,
    notify: Notify,
) -> dict[str, Any] | None:  # fmt: skip
    """What training adapters of the judge on either task does to both; None where it is not asked for."""
    config = settings.lora
    if config is None:
        return None
    from trustjudge_ray import pipeline
    from trustjudge_ray.audit import lora as training

    notify(f"lora: {len(config.trainings)} trainings", None)
    asked = protocols.load(config.answer_protocol), [protocols.load(name) for name in config.protocols]
    rule = settings.oracle if settings.oracle in qa.ORACLES else "f1"  # nobody is shown the golds of the arms' answers
    pipeline.start(loaded.config.cluster)
    try:
        found = training.experiment(
            training.Model(locate(judge), judge.revision, judge.trust_remote_code), items, drafts, asked, config,
            qa.ORACLES[rule], settings.min_mass, judge.template_arguments,
        )  # fmt: skip
    except training.LoraError as error:
        raise RunError(str(error)) from error
    return found.report.as_json() | {"oracle": rule}


def refuse_weightless(loaded: LoadedConfig, judge: JudgeConfig, settings: AuditConfig) -> None:
    """Only a judge whose weights are here can be looked into: said before anything is judged.

    Raises:
        ConfigError: the judge is an endpoint or scripted.
    """
    if judge.engine == "vllm":
        return
    if settings.attention.items and settings.attention.model is None:
        raise ConfigError(
            f"{loaded.source}: audit.attention.model: a {judge.engine} judge has no weights here; name a model"
        )
    if settings.lora is not None:
        raise ConfigError(f"{loaded.source}: audit.lora: a {judge.engine} judge has no weights here to be trained")
