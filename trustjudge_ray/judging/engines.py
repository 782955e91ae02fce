"""Which engines there are: the one place that names them all. An engine is imported when it is first asked for."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trustjudge_ray.config import ClusterConfig, JudgeConfig
from trustjudge_ray.judging import scripted
from trustjudge_ray.judging.base import Judge
from trustjudge_ray.judging.protocols import Protocol


def identity(judge: JudgeConfig, protocols: Sequence[Protocol]) -> dict[str, Any]:
    """What decides a judge's answers, as its engine states it; loads no weights.

    Raises:
        JudgeError: there is no such model, or a protocol cannot be put to it.
    """
    if judge.engine == "scripted":
        return scripted.identity(dict(judge.scripted))
    if judge.engine == "openai_api":
        from trustjudge_ray.judging import openai_api

        return openai_api.identity(judge, protocols)
    from trustjudge_ray.judging import vllm_engine

    return vllm_engine.identity(judge, protocols)


def try_out(judge: JudgeConfig, protocols: Sequence[Protocol]) -> None:
    """Ask an endpoint a first small question from here, before actors are started that would fail one by one.

    Raises:
        JudgeError: the endpoint cannot be used as configured.
    """
    if judge.engine == "openai_api":
        from trustjudge_ray.judging import openai_api

        openai_api.OpenAiJudge(judge, {protocol.name: protocol for protocol in protocols}).close()


def batches_at_once(judge: JudgeConfig, cluster: ClusterConfig) -> int:
    """How many batches a judge is given at once: an endpoint has `judge.concurrency` instead."""
    return cluster.batches_in_flight if judge.engine == "vllm" else 1


def build(
    judge: JudgeConfig, protocols: dict[str, Protocol], tensor_parallel: int = 1, backend: str | None = None
) -> Judge:
    """The judge, loaded and ready.

    Args:
        backend: what starts the workers of a model that is split, as vLLM calls it; None leaves it to vLLM.

    Raises:
        JudgeError: it cannot be loaded as configured, or a protocol cannot be put to it.
    """
    if judge.engine == "scripted":
        return scripted.ScriptedJudge(dict(judge.scripted), protocols)
    if judge.engine == "openai_api":
        from trustjudge_ray.judging import openai_api

        return openai_api.OpenAiJudge(judge, protocols)
    from trustjudge_ray.judging import vllm_engine, vllm_environment

    os.environ.update(vllm_environment.claim_compile_cache())
    if backend is not None:
        judge = replace(judge, engine_args={"distributed_executor_backend": backend} | judge.engine_args)
    return vllm_engine.VllmJudge(judge, protocols, tensor_parallel)
