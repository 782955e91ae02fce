"""The real judge: a vLLM engine in this process, on GPUs or on the CPU.

The only module that imports vLLM, and only when a judge is built. What is asked and how labels are read is decided
by `prompts`, `labels`, `vllm_rationale` and `vllm_reading`; here requests are put to the engine.
"""

import dataclasses
import functools
import inspect
import logging
import os
import re
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from trustjudge_ray.config import EMBEDDED_NAME, JudgeConfig, judge_name
from trustjudge_ray.judging.base import JudgeError, JudgeGone, Reading
from trustjudge_ray.judging.model_files import folder_hash, locate
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.judging.vllm_environment import CPU_BLOCK
from trustjudge_ray.judging.vllm_environment import cpu_environment as cpu_environment
from trustjudge_ray.judging.vllm_environment import is_cpu as is_cpu
from trustjudge_ray.judging.vllm_flight import Flight
from trustjudge_ray.judging.vllm_rationale import Section, kept
from trustjudge_ray.judging.vllm_reading import Asked, asked, reader_of, reading_of

_OWN_KEYS = {
    "model": "judge.model",
    "tokenizer": "judge.model",
    "revision": "judge.revision",
    "tokenizer_revision": "judge.revision",
    "dtype": "judge.dtype",
    "max_model_len": "judge.max_model_len",
    "trust_remote_code": "judge.trust_remote_code",
    "tensor_parallel_size": "cluster.tensor_parallel",
}
"""Engine arguments that have a place of their own in the configuration."""

_FIXED = {"logprobs_mode": "raw_logprobs", "skip_tokenizer_init": False, "runner": "generate"}
"""Engine arguments that decide what is read; nothing else would be right."""

_SAME_NUMBERS = {
    "gpu_memory_utilization", "kv_cache_memory_bytes", "max_num_seqs", "max_num_batched_tokens", "block_size",
    "enable_prefix_caching", "enable_chunked_prefill", "enforce_eager", "cpu_offload_gb", "download_dir", "hf_token",
    "use_tqdm_on_load", "disable_log_stats", "max_logprobs", "distributed_executor_backend", "async_scheduling", "seed",
    "pipeline_parallel_size", "max_parallel_loading_workers",
}  # fmt: skip
"""Engine arguments that decide memory and speed; all others are part of a judge's identity."""

_log = logging.getLogger(__name__)


def identity(judge: JudgeConfig, protocols: Sequence[Protocol]) -> dict[str, Any]:
    """What decides a judge's answers apart from its inputs, as a JSON value. Loads tokenizer and config, no weights.

    `revision` is the hub's commit, or a hash of the model folder's files; `precision` also holds every engine
    argument that may change a number; `templates` hashes, for each protocol, the rendered chat template and the token
    ids at which labels are read; `notes` (what a reader of the judgments must know) decides nothing.

    Raises:
        JudgeError: there is no such model, or a protocol cannot be put to it.
    """
    _refuse_arguments(judge, known=None)
    source = locate(judge)
    tokenizer, revision = _tokenizer(judge, source), _revision(judge, source)
    readers = {p.name: reader_of(judge, tokenizer, p, judge.max_model_len or 2**31) for p in protocols}
    changing = {key: value for key, value in judge.engine_args.items() if key not in _SAME_NUMBERS}
    return {
        "engine": "vllm",
        "model": EMBEDDED_NAME if judge.model == "embedded" else Path(source).name if Path(source).is_dir() else source,
        "revision": revision,
        "precision": {"dtype": judge.dtype, "head_dtype": judge.head_dtype} | changing,
        "max_model_len": judge.max_model_len,
        "on_overflow": judge.on_overflow,
        "templates": {name: reader.hash for name, reader in readers.items()},
        "notes": list(dict.fromkeys(note for reader in readers.values() for note in reader.prompts.notes)),
    }


class VllmJudge:
    """Reads the whole label distribution of each task: one one-token request for each place where labels part.

    All requests of a batch go to the engine together, those of one task one after the other, so that they share the
    cached prompt. Where a protocol lets the judge write first, a batch is written, then read. Several threads may
    judge a batch each at the same time: the engine runs the requests of all (`jobs/benchmark.py rationale`).
    """

    def __init__(self, judge: JudgeConfig, protocols: dict[str, Protocol], tensor_parallel: int = 1) -> None:
        """Load the engine and warm it up.

        Raises:
            JudgeError: the model cannot be loaded as configured, or a protocol cannot be put to it.
        """
        source = locate(judge)
        vllm = _import_vllm()
        from vllm.sampling_params import RequestOutputKind

        _refuse_arguments(judge, known=_argument_names(vllm))
        self._tokenizer = _tokenizer(judge, source)
        drawn = any(protocol.writes and protocol.sampling.temperature > 0 for protocol in protocols.values())
        self._llm = _load(vllm, judge, source, tensor_parallel, drawn)
        self._model = self._llm.llm_engine.vllm_config.model_config
        _refuse_precision(judge, self._model)
        self._version = str(vllm.__version__)
        self._sampling = functools.partial(vllm.SamplingParams, output_kind=RequestOutputKind.FINAL_ONLY)
        self._flight, self._tokenizing = Flight(self._llm.llm_engine), threading.Lock()
        self._readers = {
            name: reader_of(judge, self._tokenizer, protocol, self._model.max_model_len)
            for name, protocol in protocols.items()
        }
        self._params = {
            name: [self._sampling(**question.sampling) for question in reader.questions]
            for name, reader in self._readers.items()
        }
        self._warm_up(judge)

    def judge(self, tasks: pa.Table) -> list[Reading]:
        """One reading for each TASK_TEXTS row, in order.

        `prompt_tokens` is the length of prompt and opener, counted once a task and without what the judge wrote;
        `cached_tokens` is how much the engine had of the task's first request.

        Raises:
            JudgeGone: the engine died; this process can judge no more.
        """
        rows = tasks.to_pylist()
        with self._tokenizing:  # a tokenizer serves one thread at a time
            found = [asked(self._readers[task["protocol"]], task) for task in rows]
        sent = [one for one in found if isinstance(one, Asked)]
        self._write(sent)
        outputs = iter(self._generate([one for one in sent if one.failure is None]))
        return [
            one
            if isinstance(one, Reading)
            else reading_of(one, [] if one.failure else [next(outputs) for _ in one.reader.questions])
            for one in found
        ]

    def describe(self) -> dict[str, Any]:
        """What was loaded, for the manifest: engine, device, context, precision, and each protocol's label table."""
        return {
            "engine": f"vllm {self._version}",
            "device": _device(),
            "model": str(self._model.model),
            "max_model_len": int(self._model.max_model_len),
            "dtype": _dtype_name(self._model.dtype),
            "head_dtype": _dtype_name(self._model.head_dtype),
            "labels": {
                name: {
                    "opener_ids": list(reader.table.opener_ids),
                    "requests": len(reader.questions),
                    "budgets": {section.name: section.max_tokens for section in reader.sections},
                    "paths": dict(zip(reader.protocol.label_texts, map(list, reader.table.paths), strict=True)),
                }
                for name, reader in self._readers.items()
            },
        }

    def _write(self, sent: Sequence[Asked]) -> None:
        """Let the judge write the sections that its protocols have, section after section."""
        while writing := [(one, section) for one in sent if (section := one.next_section())]:
            requests = [one.request(section.before) for one, section in writing]
            params = [self._sampling(**section.sampling(one.task)) for one, section in writing]
            for (one, section), output in zip(writing, self._send(requests, params), strict=True):
                self._take(one, section, output)

    def _take(self, one: Asked, section: Section, output: Any) -> None:
        if not one.written:
            one.cached = output.num_cached_tokens
        try:
            with self._tokenizing:
                one.add(section, kept(section, self._tokenizer, output.prompt_token_ids, output.outputs[0]))
        except (ValueError, IndexError) as error:
            one.failure = f"the {section.name} cannot be read: {error}"

    def _generate(self, sent: Sequence[Asked]) -> list[Any]:
        """The engine's answers to the questions of each task, one after the other."""
        requests = [request for one in sent for request in one.questions()]
        return self._send(requests, [params for one in sent for params in self._params[one.reader.protocol.name]])

    def _send(self, requests: Sequence[dict[str, Any]], params: Sequence[Any]) -> list[Any]:
        if not requests:
            return []
        try:
            return self._flight.generate(requests, params)
        except Exception as error:  # whatever it is, requests of this batch are left inside the engine
            raise JudgeGone(f"the engine failed on {len(requests)} requests: {_reason(error)}") from error

    def _warm_up(self, judge: JudgeConfig) -> None:
        try:
            self._generate([Asked(reader, {}, [], False, 0) for reader in self._readers.values()])
        except JudgeGone as error:
            raise JudgeError(f"{_named(judge)}: the model loads but does not run: {error}") from error


def _import_vllm() -> Any:
    """vLLM, quiet. What cannot be set any more in a running process is left to `cpu_environment`."""
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    late = {key: value for key, value in cpu_environment().items() if key != "LD_PRELOAD"}
    for key, value in (quiet | late).items():
        os.environ.setdefault(key, value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import vllm
    except ImportError as error:
        raise JudgeError(f"judge.engine 'vllm': vLLM is installed but does not import: {_reason(error)}") from error
    return vllm


def _load(vllm: Any, judge: JudgeConfig, source: str, tensor_parallel: int, drawn: bool) -> Any:
    """The engine; `drawn` says that texts will be drawn with seeds."""
    arguments: dict[str, Any] = {
        "model": source,
        "revision": judge.revision,
        "trust_remote_code": judge.trust_remote_code,
        "dtype": judge.dtype,
        "max_model_len": judge.max_model_len,
        "tensor_parallel_size": tensor_parallel,
        "load_format": "safetensors",
        "enable_prefix_caching": True,
        "use_tqdm_on_load": False,
        "seed": 0,
    }
    if is_cpu():
        arguments |= {"enforce_eager": True, "kv_cache_memory_bytes": 2**30, "block_size": CPU_BLOCK}
        if drawn:  # a prompt computed in two steps turns its seed back, which vLLM cannot do on a CPU: it dies
            arguments["enable_chunked_prefill"] = False
    arguments |= judge.engine_args | _FIXED
    if judge.head_dtype != judge.dtype:
        arguments["hf_overrides"] = {"head_dtype": judge.head_dtype} | (arguments.get("hf_overrides") or {})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return vllm.LLM(**arguments)
    except Exception as error:  # two dozen unrelated classes, several screens each
        _log.debug("vLLM did not load", exc_info=True)
        kv = "KV cache" in str(error)
        hint = "set judge.max_model_len or judge.engine_args.kv_cache_memory_bytes: " if kv else ""
        raise JudgeError(f"{_named(judge)}: vLLM cannot load {source}: {hint}{_reason(error)}") from None


def _argument_names(vllm: Any) -> set[str]:
    from vllm.engine.arg_utils import EngineArgs

    return {f.name for f in dataclasses.fields(EngineArgs)} | set(inspect.signature(vllm.LLM.__init__).parameters)


def _refuse_arguments(judge: JudgeConfig, known: set[str] | None) -> None:
    for key, value in judge.engine_args.items():
        if key in _OWN_KEYS:
            raise JudgeError(f"{_named(judge)}: engine_args: '{key}' is set by {_OWN_KEYS[key]}")
        if key in _FIXED and value != _FIXED[key]:
            raise JudgeError(f"{_named(judge)}: engine_args: '{key}' is {value!r}; only {_FIXED[key]!r} is read right")
        if known is not None and key not in known - {"self", "kwargs"}:
            raise JudgeError(f"{_named(judge)}: engine_args: vLLM has no argument '{key}'")


def _refuse_precision(judge: JudgeConfig, model: Any) -> None:
    """The engine falls back to another precision with a mere warning; a judge's identity would then be wrong."""
    got = (_dtype_name(model.dtype), _dtype_name(model.head_dtype))
    if got != (judge.dtype, judge.head_dtype):
        raise JudgeError(
            f"{_named(judge)}: dtype and head_dtype are {judge.dtype} and {judge.head_dtype}, "
            f"but the engine runs in {got[0]} and {got[1]}; configure what it can do"
        )


def _tokenizer(judge: JudgeConfig, source: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source, revision=judge.revision, trust_remote_code=judge.trust_remote_code)
    except Exception as error:
        raise _not_found(judge, source, "tokenizer", error) from None


def _revision(judge: JudgeConfig, source: str) -> str:
    """The hub's commit of a model, or a hash of its folder."""
    if Path(source).is_dir():
        return folder_hash(Path(source))
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(source, revision=judge.revision, trust_remote_code=judge.trust_remote_code)
    except Exception as error:
        raise _not_found(judge, source, "config", error) from None
    commit = getattr(config, "_commit_hash", None)
    if not commit:
        raise JudgeError(
            f"{_named(judge)}: cannot tell which commit of {source} is used; give judge.revision a commit hash"
        )
    return str(commit)


def _not_found(judge: JudgeConfig, source: str, what: str, error: Exception) -> JudgeError:
    _log.debug("no %s", what, exc_info=error)
    hint = "" if Path(source).is_dir() else f"{source} is no folder here, and as a hub model "
    return JudgeError(f"{_named(judge)}: {hint}its {what} cannot be loaded: {_reason(error)}")


def _device() -> str:
    from vllm.platforms import current_platform

    return str(current_platform.get_device_name())


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _named(judge: JudgeConfig) -> str:
    return f"judge '{judge_name(judge)}'"


def _reason(error: BaseException) -> str:
    """An exception's message as one line, without what pydantic wraps around it."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = re.sub(r"^\d+ validation errors? for \w+ (Value error, )?", "", text).partition(" [type=")[0]
    return text if len(text) <= 400 else text[:400] + " …"
