"""The LoRA experiment on Ray: one task for each arm and seed, each with the CPUs and GPUs that `audit.lora` names.

A task loads the model, trains its adapter and puts it to the test. It depends on nothing but its arguments, so Ray may
run it again elsewhere when a node dies. What an arm learns and how it is tested is decided by `lora_arms`,
`lora_training` and `lora_reading`. The caller has joined a Ray cluster (`pipeline.start`).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import ray

from trustjudge_ray.audit import lora_reading, lora_training
from trustjudge_ray.audit.lora_arms import LoraError, Prompting, draw_arm
from trustjudge_ray.audit.lora_config import LoraConfig
from trustjudge_ray.audit.lora_reading import Material, Outcome
from trustjudge_ray.audit.lora_report import LoraReport, report_of
from trustjudge_ray.audit.lora_training import Training
from trustjudge_ray.identity import seed_of
from trustjudge_ray.judging.protocols import Protocol

if TYPE_CHECKING:
    from trustjudge_ray.audit.qa import Item


@dataclass(frozen=True, slots=True)
class Model:
    """A Hugging Face folder or hub name, the hub's commit, and whether code that comes with it may run."""

    source: str
    revision: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True)
class Experiment:
    """The report, and the ANSWERS and READS that it is computed from."""

    report: LoraReport
    answers: pl.DataFrame
    reads: pl.DataFrame


def experiment(
    model: Model,
    items: Sequence["Item"],
    candidates: pl.DataFrame,
    protocols: tuple[Protocol, Sequence[Protocol]],
    config: LoraConfig,
    correct: Callable[["Item", str], bool | None],
    min_mass: float = 0.5,
    template_arguments: Mapping[str, Any] | None = None,
    done: Callable[[Outcome], None] = lambda outcome: None,
) -> Experiment:
    """The whole experiment.

    Args:
        candidates: CANDIDATES rows of the items.
        protocols: the one that answers (`config.answer_protocol`) and those that verify (`config.protocols`).
        correct: the audit's oracle for the arms' own answers.
        done: told of each outcome as it comes.

    Raises:
        LoraError: see `lora_reading.material_of` and `outcomes`.
    """
    prompting = Prompting(_tokenizer(model), protocols[0], protocols[1], template_arguments)
    material = lora_reading.material_of(items, candidates, prompting, config)
    found = []
    for outcome in outcomes(model, material, config):
        found.append(outcome)
        done(outcome)
    answers, reads = lora_reading.frames(found, material.items, correct)
    return Experiment(report_of(found, answers, reads, material, config, min_mass), answers, reads)


def outcomes(model: Model, material: Material, config: LoraConfig) -> Iterator[Outcome]:
    """The outcome of the base and of each training, as they are finished.

    Raises:
        LoraError: peft is missing, the cluster has not what one task needs, or a task failed; the others are ended.
    """
    lora_training.require_peft()
    _refuse_too_small(config)
    shared = ray.put(material)
    runs = {"transformers": _trained_and_tested, "vllm": _trained_then_tested}
    yield from runs[config.evaluate_with](model, shared, config)


def _trained_and_tested(model: Model, shared: Any, config: LoraConfig) -> Iterator[Outcome]:
    jobs = [("base", 0), *config.trainings]
    yield from _finished({_submit(_arm, config, model, shared, config, *job): job for job in jobs})


def _trained_then_tested(model: Model, shared: Any, config: LoraConfig) -> Iterator[Outcome]:
    """The adapters by one process each, then all of them by one engine."""
    jobs = {_submit(_adapter, config, model, shared, config, *job): job for job in config.trainings}
    trained = {(arm, seed): (training, took) for arm, seed, training, took in _finished(jobs)}
    for found in kept_outcomes(model, shared, config):
        training, took = trained.get((found.arm, found.seed), (None, 0.0))
        seconds = found.seconds | ({"train": took} if training else {})
        yield replace(found, training=training, seconds=seconds)


def kept_outcomes(model: Model, material: Any, config: LoraConfig) -> list[Outcome]:
    """The base and every adapter that is kept in `config.adapters`, answered and judged by one vLLM engine.

    Args:
        material: Material, or a Ray reference to it.

    Raises:
        LoraError: an adapter is not there, or vLLM cannot serve the model with it.
    """
    from trustjudge_ray.judging.vllm_environment import cpu_environment

    threads = max(int(config.cpus_per_arm), 1)
    environment = {} if config.gpus_per_arm else {"runtime_env": {"env_vars": cpu_environment(threads)}}
    engine = _submit(_engine, config, model, material, config, **environment)
    return list(next(_finished({engine: ("of all kinds", 0)})))


def _submit(work: Any, config: LoraConfig, *arguments: Any, **options: Any) -> Any:
    """Start a task in a process that ends with it: the next one finds its memory, on the GPU too, free."""
    resources = {"num_cpus": config.cpus_per_arm, "num_gpus": config.gpus_per_arm}
    return ray.remote(max_calls=1, **resources, **options)(work).remote(*arguments)


def _finished(jobs: dict[Any, tuple[str, int]]) -> Iterator[Any]:
    """What each task returns, as it ends. The first failure ends the others."""
    left = list(jobs)
    try:
        while left:
            (done, *_), left = ray.wait(left, num_returns=1)
            try:
                found = ray.get(done)
            except ray.exceptions.RayError as error:
                raise _failure(error, *jobs[done]) from error
            yield found
    finally:
        for task in left:
            ray.cancel(task, force=True)


def _failure(error: Exception, arm: str, seed: int) -> LoraError:
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, LoraError):
        return LoraError(str(cause))
    said = (str(cause).strip().splitlines() or [""])[0]
    memory = "out of memory" in str(cause).lower()
    advice = "; lower audit.lora.batch_size, or set gradient_checkpointing" if memory else ""
    return LoraError(f"audit.lora: arm {arm}, seed {seed}: {type(cause).__name__}: {said}{advice}")


def _refuse_too_small(config: LoraConfig) -> None:
    """Ray would wait for ever for what no cluster has."""
    have = ray.cluster_resources()
    for kind, key in (("CPU", "cpus_per_arm"), ("GPU", "gpus_per_arm")):
        need = getattr(config, key)
        if need > have.get(kind, 0.0):
            raise LoraError(
                f"audit.lora.{key}: one training needs {need:g} {kind}s, this Ray has {have.get(kind, 0.0):g}; lower "
                f"it, or join a larger cluster with cluster.address"
            )


def _arm(model: Model, material: Material, config: LoraConfig, arm: str, seed: int) -> Outcome:
    """A task: train (but for the base), then test in the same process."""
    seconds: dict[str, float] = {}
    loaded, tokenizer = _loaded(model, config)
    training = None
    if arm != "base":
        with _timed(seconds, "train"):
            loaded, training = _fit(loaded, tokenizer, material, config, arm, seed)
    reader = lora_training.TransformersReader(loaded, tokenizer, config.eval_batch_size)
    with _timed(seconds, "test"):
        found = lora_reading.read_arm(reader, material, config, arm, seed, training)
    return replace(found, seconds=seconds)


def _adapter(
    model: Model, material: Material, config: LoraConfig, arm: str, seed: int
) -> tuple[str, int, Training, float]:
    """A task: train and keep the adapter."""
    seconds: dict[str, float] = {}
    loaded, tokenizer = _loaded(model, config)
    with _timed(seconds, "train"):
        _, training = _fit(loaded, tokenizer, material, config, arm, seed)
    return arm, seed, training, seconds["train"]


def _engine(model: Model, material: Material, config: LoraConfig) -> list[Outcome]:
    """A task: one vLLM engine answers and judges with every adapter."""
    from trustjudge_ray.audit.lora_vllm import Engine

    engine = Engine(model.source, _tokenizer(model), config, model.revision, model.trust_remote_code)
    found = []
    for number, (arm, seed) in enumerate([("base", 0), *config.trainings]):
        reader = engine.reader(None if arm == "base" else _kept(config, arm, seed), number)
        seconds: dict[str, float] = {}
        with _timed(seconds, "test"):
            outcome = lora_reading.read_arm(reader, material, config, arm, seed)
        found.append(replace(outcome, seconds=seconds))
    return found


def _fit(
    loaded: Any, tokenizer: Any, material: Material, config: LoraConfig, arm: str, seed: int
) -> tuple[Any, Training]:
    """The model with the arm's adapter, trained and, if a folder is named, kept."""
    own = seed_of("lora", arm, str(seed))
    fitted = lora_training.with_adapter(loaded, config, own)
    examples = draw_arm(arm, seed, material.generation, material.evaluation, material.size)
    training = lora_training.train(fitted, examples, config, own, lora_training.pad_id(tokenizer))
    if config.adapters is not None:
        lora_training.save_adapter(fitted, _folder(config, arm, seed))
    return fitted, training


def _folder(config: LoraConfig, arm: str, seed: int) -> Path:
    assert config.adapters is not None
    return Path(config.adapters).expanduser().resolve() / f"{arm}-{seed}"


def _kept(config: LoraConfig, arm: str, seed: int) -> Path:
    folder = _folder(config, arm, seed)
    if not (folder / "adapter_config.json").is_file():
        raise LoraError(
            f"audit.lora.adapters: {folder}: no adapter_config.json in it; train arm {arm} with seed {seed} first, and "
            f"on a cluster name a folder that all machines share"
        )
    return folder


def _loaded(model: Model, config: LoraConfig) -> tuple[Any, Any]:
    lora_training.use_threads(int(config.cpus_per_arm))
    loaded = lora_training.load_model(model.source, config, model.revision, model.trust_remote_code)
    return loaded, _tokenizer(model)


def _tokenizer(model: Model) -> Any:
    return lora_training.load_tokenizer(model.source, model.revision, model.trust_remote_code)


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - began
