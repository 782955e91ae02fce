"""Adapters in a vLLM engine: one engine holds the model, a request says which adapter answers it.

On the CPU the process must be started with `vllm_environment.cpu_environment`; both builds of vLLM serve LoRA.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trustjudge_ray.audit.lora_arms import Ids, LoraError
from trustjudge_ray.audit.lora_config import LoraConfig
from trustjudge_ray.audit.lora_training import Answer, answer_of
from trustjudge_ray.judging.labels import LabelTable
from trustjudge_ray.judging.vllm_environment import CPU_BLOCK, is_cpu


class Engine:
    """A loaded model that takes adapters of `config.rank`."""

    def __init__(
        self,
        source: str,
        tokenizer: Any,
        config: LoraConfig,
        revision: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        """Load it.

        Raises:
            LoraError: vLLM cannot serve the model with adapters.
        """
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        import vllm

        self._vllm, self.tokenizer = vllm, tokenizer
        arguments: dict[str, Any] = {
            "model": source,
            "revision": revision,
            "trust_remote_code": trust_remote_code,
            "dtype": config.dtype,
            "max_model_len": config.max_length,
            "load_format": "safetensors",
            "enable_lora": True,
            "max_lora_rank": _rank(config.rank),
            "logprobs_mode": "raw_logprobs",
            "hf_overrides": {"head_dtype": "float32"},
            "use_tqdm_on_load": False,
            "seed": 0,
        }
        if is_cpu():
            arguments |= {"enforce_eager": True, "kv_cache_memory_bytes": 2**30, "block_size": CPU_BLOCK}
        try:
            self._llm = vllm.LLM(**arguments)
        except Exception as error:  # two dozen unrelated classes
            reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            raise LoraError(
                f"audit.lora.evaluate_with: vLLM cannot serve {source} with adapters: {reason[0]}; set "
                f"audit.lora.evaluate_with: transformers"
            ) from error

    def reader(self, adapter: Path | None, number: int) -> "VllmReader":
        """The model with an adapter, or as it is; every adapter has a `number` of its own, 1 or more."""
        from vllm.lora.request import LoRARequest

        request = None if adapter is None else LoRARequest(adapter.name, number, str(adapter))
        return VllmReader(self, request)

    def ask(self, prompts: Sequence[Ids], adapter: Any, **sampling: Any) -> list[Any]:
        """One completion for each prompt, the most probable tokens."""
        params = self._vllm.SamplingParams(temperature=0.0, detokenize=False, **sampling)
        requests = [{"prompt_token_ids": list(ids)} for ids in prompts]
        return [out.outputs[0] for out in self._llm.generate(requests, params, lora_request=adapter, use_tqdm=False)]


class VllmReader:
    """Answers and verdicts of the engine's model with one adapter: as `TransformersReader`, but for rounding."""

    def __init__(self, engine: Engine, adapter: Any) -> None:
        self._engine, self._adapter = engine, adapter

    def answers(self, prompts: Sequence[Ids], max_new_tokens: int, closer: str = "") -> list[Answer]:
        """The most probable next token again and again, up to an end token, the closer or the budget."""
        if not prompts:
            return []
        stop = [self._engine.tokenizer.eos_token_id]
        found = self._engine.ask(prompts, self._adapter, max_tokens=max_new_tokens, stop_token_ids=stop)
        read = [answer_of(one.token_ids, set(stop), closer, self._engine.tokenizer) for one in found]
        return [replace(a, cut=a.cut and one.finish_reason == "length") for a, one in zip(read, found, strict=True)]

    def label_logprobs(self, prompts: Sequence[Ids], table: LabelTable) -> list[list[float]]:
        """ln P(label) for each label after each prompt, opener included."""
        nodes: list[list[dict[int, float]]] = [[] for _ in prompts]
        for node in table.nodes:
            asked = [(*prompt, *node.prefix) for prompt in prompts]
            wanted = list(node.token_ids)
            found = self._engine.ask(asked, self._adapter, max_tokens=1, logprob_token_ids=wanted) if asked else []
            for place, one in enumerate(found):
                nodes[place].append({token: one.logprobs[0][token].logprob for token in wanted})
        return [table.read(answers) for answers in nodes]


def _rank(rank: int) -> int:
    """The smallest rank that vLLM makes room for and that holds this one."""
    return next((size for size in (8, 16, 32, 64, 128, 256, 320, 512) if size >= rank), rank)
