"""The real judge: a vLLM engine in this process, on GPUs or on the CPU.

The only module that imports vLLM, and only when a judge is built. What is asked and how labels are read is decided
by `prompts` and `labels`; here requests are put to the engine and read back.
"""

import dataclasses
import inspect
import logging
import math
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import pyarrow as pa

from trustjudge_ray.config import EMBEDDED_NAME, JudgeConfig, judge_name
from trustjudge_ray.identity import content_hash
from trustjudge_ray.judging.base import JudgeError, JudgeGone, Reading
from trustjudge_ray.judging.labels import LabelTable, build_table
from trustjudge_ray.judging.model_files import folder_hash, locate
from trustjudge_ray.judging.prompts import PromptBuilder
from trustjudge_ray.judging.protocols import Protocol, task_slots
from trustjudge_ray.judging.vllm_environment import cpu_environment as cpu_environment
from trustjudge_ray.judging.vllm_environment import is_cpu as is_cpu

_MAX_IDS = 128
"""So many token ids vLLM reports for one request."""

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
    readers = {p.name: _reader(judge, tokenizer, p, judge.max_model_len or 2**31) for p in protocols}
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


@dataclasses.dataclass(frozen=True, slots=True)
class _Question:
    """One request of a task: the log-probabilities of `token_ids` after prompt, opener and `prefix`, at `node`."""

    node: int
    prefix: tuple[int, ...]
    token_ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Reader:
    """How one protocol is put to the engine and read back."""

    protocol: Protocol
    prompts: PromptBuilder
    table: LabelTable
    questions: tuple[_Question, ...]

    @property
    def hash(self) -> str:
        """Over the rendered template and where the labels are read."""
        return content_hash([self.prompts.template_hash, self.table.opener_ids, self.table.paths])

    def read(self, answers: Sequence[Mapping[int, float]]) -> list[float]:
        """ln P(label) for each label from one mapping for each question; all NaN where any of them is."""
        nodes: list[dict[int, float]] = [{} for _ in self.table.nodes]
        for question, answer in zip(self.questions, answers, strict=True):
            nodes[question.node].update(answer)
        if any(math.isnan(value) for node in nodes for value in node.values()):
            return [math.nan] * len(self.protocol.label_texts)
        return self.table.read(nodes)


@dataclasses.dataclass(frozen=True, slots=True)
class _Asked:
    """A task whose requests go to the engine."""

    reader: _Reader
    token_ids: list[int]
    truncated: bool


class VllmJudge:
    """Reads the whole label distribution of each task: one one-token request for each place where labels part.

    All requests of a batch go to the engine in one call, those of one task one after the other, so that they share
    the cached prompt.
    """

    def __init__(self, judge: JudgeConfig, protocols: dict[str, Protocol], tensor_parallel: int = 1) -> None:
        """Load the engine and warm it up.

        Raises:
            JudgeError: the model cannot be loaded as configured, or a protocol cannot be put to it.
        """
        source = locate(judge)
        vllm = _import_vllm()
        _refuse_arguments(judge, known=_argument_names(vllm))
        self._tokenizer = _tokenizer(judge, source)
        self._llm = _load(vllm, judge, source, tensor_parallel)
        self._model = self._llm.llm_engine.vllm_config.model_config
        _refuse_precision(judge, self._model)
        self._version = str(vllm.__version__)
        self._readers = {
            name: _reader(judge, self._tokenizer, protocol, self._model.max_model_len)
            for name, protocol in protocols.items()
        }
        self._params = {
            name: [_sampling(vllm, question) for question in reader.questions] for name, reader in self._readers.items()
        }
        self._warm_up(judge)

    def judge(self, tasks: pa.Table) -> list[Reading]:
        """One reading for each TASK_TEXTS row, in order.

        `prompt_tokens` is the length of prompt and opener, counted once a task; `cached_tokens` is how much of it
        the engine had for the task's first request.

        Raises:
            JudgeGone: the engine died; this process can judge no more.
        """
        asked = [self._asked(task) for task in tasks.to_pylist()]
        outputs = iter(self._generate([a for a in asked if isinstance(a, _Asked)]))
        return [
            a if isinstance(a, Reading) else _reading(a, [next(outputs) for _ in a.reader.questions]) for a in asked
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
                    "paths": dict(zip(reader.protocol.label_texts, map(list, reader.table.paths), strict=True)),
                }
                for name, reader in self._readers.items()
            },
        }

    def _asked(self, task: dict[str, Any]) -> _Asked | Reading:
        reader = self._readers[task["protocol"]]
        try:
            prompt = reader.prompts.build(task_slots(reader.protocol, task))
        except ValueError as error:
            return Reading("engine_error", detail=f"the prompt cannot be built: {error}")
        token_ids = [*prompt.token_ids, *reader.table.opener_ids]
        if prompt.too_long or len(token_ids) + reader.table.depth >= self._model.max_model_len:
            return Reading("too_long", detail=f"does not fit into the context of {self._model.max_model_len} tokens")
        return _Asked(reader, token_ids, prompt.truncated)

    def _generate(self, asked: Iterable[_Asked]) -> list[Any]:
        prompts, params = [], []
        for task in asked:
            prompts += [{"prompt_token_ids": [*task.token_ids, *question.prefix]} for question in task.reader.questions]
            params += self._params[task.reader.protocol.name]
        if not prompts:
            return []
        try:
            return self._llm.generate(prompts, params, use_tqdm=False)
        except Exception as error:  # whatever it is, requests of this batch are left inside the engine
            raise JudgeGone(f"the engine failed on {len(prompts)} requests: {_reason(error)}") from error

    def _warm_up(self, judge: JudgeConfig) -> None:
        try:
            self._generate([_Asked(reader, list(reader.table.opener_ids), False) for reader in self._readers.values()])
        except JudgeGone as error:
            raise JudgeError(f"{_named(judge)}: the model loads but does not run: {error}") from error


def _reader(judge: JudgeConfig, tokenizer: Any, protocol: Protocol, max_model_len: int) -> _Reader:
    try:
        table = build_table(tokenizer, protocol)
        room = max_model_len - len(table.opener_ids) - table.depth - 1
        prompts = PromptBuilder(
            tokenizer,
            protocol,
            max_prompt_tokens=room,
            on_overflow=cast(Literal["truncate", "fail"], judge.on_overflow),
            template_arguments=judge.template_arguments,
        )
    except ValueError as error:
        raise JudgeError(f"{_named(judge)}, protocol '{protocol.name}': {error}") from error
    questions = tuple(
        _Question(index, node.prefix, tuple(node.token_ids[first : first + _MAX_IDS]))
        for index, node in enumerate(table.nodes)
        for first in range(0, len(node.token_ids), _MAX_IDS)
    )
    return _Reader(protocol, prompts, table, questions)


def _reading(asked: _Asked, outputs: list[Any]) -> Reading:
    tokens = {"prompt_tokens": len(asked.token_ids), "cached_tokens": outputs[0].num_cached_tokens}
    try:
        answers = [_logprobs(output, q.token_ids) for output, q in zip(outputs, asked.reader.questions, strict=True)]
    except ValueError as error:
        return Reading("engine_error", detail=str(error), truncated=asked.truncated, **tokens)
    return Reading("ok", asked.reader.read(answers), truncated=asked.truncated, **tokens)


def _logprobs(output: Any, token_ids: tuple[int, ...]) -> dict[int, float]:
    """The log-probabilities that were asked for. The flat lists begin with the token that was sampled.

    Raises:
        ValueError: the engine reports other tokens, or none.
    """
    flat = output.outputs[0].logprobs if output.outputs else None
    if flat is None or tuple(flat.token_ids[1:]) != token_ids:
        got = "none" if flat is None else f"{flat.token_ids[1:6]} …"
        raise ValueError(
            f"asked for the log-probabilities of tokens {list(token_ids[:5])} …, the engine reported {got}"
        )
    return dict(zip(token_ids, flat.logprobs[1:], strict=True))


def _sampling(vllm: Any, question: _Question) -> Any:
    return vllm.SamplingParams(
        max_tokens=1, temperature=0.0, logprob_token_ids=list(question.token_ids), flat_logprobs=True, detokenize=False
    )


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


def _load(vllm: Any, judge: JudgeConfig, source: str, tensor_parallel: int) -> Any:
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
        arguments |= {"enforce_eager": True, "kv_cache_memory_bytes": 2**30, "block_size": 32}
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
