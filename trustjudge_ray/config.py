"""A run's configuration: typed, every field documented, unknown keys refused.

A file has the sections below and nothing else. References such as `${oc.env:KEY}` are resolved only in
memory: what a run folder keeps is the file as it was written (`unresolved_yaml`), so no secret is stored.
"""

from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trustjudge_ray import config_keys, config_values
from trustjudge_ray.analysis_config import AnalysisConfig as AnalysisConfig
from trustjudge_ray.audit_config import AuditConfig as AuditConfig
from trustjudge_ray.config_values import ConfigError as ConfigError
from trustjudge_ray.nearest import did_you_mean_file
from trustjudge_ray.nightly_config import CompareConfig as CompareConfig
from trustjudge_ray.nightly_config import NightlyConfig as NightlyConfig
from trustjudge_ray.preferences_config import PreferencesConfig as PreferencesConfig

EMBEDDED_NAME = "SmolLM2-135M-Instruct"
"""The model behind `judge.model: embedded`."""


@dataclass
class CorpusConfig:
    """Where the answers are and how their files look."""

    paths: list[str] = field(default_factory=list)
    """Files, folders or globs; local or s3://. gz and zst are read as they are."""
    format: str = "flat"
    """`flat` (one row a response), `trustjudge` (one row a question, answers nested), `questions` (one row a question,
    no answers yet: for `trustjudge answer`), a preference format or a public benchmark's, or `auto`: whichever of
    these the first rows of the files have the fields of."""
    fields: dict[str, str] = field(default_factory=dict)
    """Our field names to the file's, as {question_id: id, response: r}; a value that starts with `=` is a constant,
    in which `{file}` is the name of the file without folder and endings: {model: "={file}"}."""
    error_markers: list[str] = field(
        default_factory=lambda: [
            "$ERROR$",
            "**NETWORK ERROR DUE TO HIGH TRAFFIC. PLEASE REGENERATE OR REFRESH THIS PAGE.**",
        ]
    )
    """Texts that stand for an answer that was never given; such answers are not judged."""


@dataclass
class JudgeConfig:
    """Who judges."""

    name: str | None = None
    """The name in tables and reports; by default the last part of `model`."""
    audit: str | None = None
    """The folder of an audit of this judge, or its audit.json: reports show its card. It decides no judgment."""
    model: str = "embedded"
    """A Hugging Face model folder or name, or `embedded`: the small model that comes with the extra `cpu`."""
    revision: str | None = None
    """The hub's commit. Of an endpoint: your own word for the weights that it serves; with one, they count as the same
    judge behind whatever address."""
    engine: str = "vllm"
    """`vllm`, `openai_api` (an OpenAI-compatible endpoint), or `scripted` (deterministic, for tests and planted
    biases)."""
    dtype: str = "bfloat16"
    """Precision of the model's body: `bfloat16`, `float16` or `float32`."""
    head_dtype: str = "float32"
    """Precision of the output layer; bfloat16 logits move label log-probabilities by up to 0.27 nat."""
    max_model_len: int | None = None
    """Context in tokens; by default the model's own."""
    temperature: float = 0.0
    """At which `emitted` is drawn from the label distribution; 0 takes the most probable label."""
    on_overflow: str = "truncate"
    """A prompt over the context: `truncate` cuts the responses in the middle, `fail` gives status too_long."""
    trust_remote_code: bool = False
    """Whether code that comes with a model may run. Off unless you say so."""
    template_arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of the chat template, such as {enable_thinking: false}."""
    engine_args: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the engine, as it names them (vLLM: gpu_memory_utilization, quantization, ...). Of an
    endpoint: further fields of each request; null leaves out one that is sent otherwise."""
    base_url: str | None = None
    """Of an endpoint: its address up to the version, such as https://api.openai.com/v1."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the endpoint's key, on every machine that runs a judge: a local Ray inherits
    yours, on a cluster set it for the nodes (a runtime_env shows its variables in the dashboard)."""
    route: str = "chat"
    """`chat` asks for the bare label; `completions` sends token ids with the verdict's opener (a vLLM server)."""
    tokenizer: str | None = None
    """Of an endpoint: folder or hub name of the model's tokenizer, where `model` is only what the endpoint calls it."""
    distribution: str = "logprobs"
    """`logprobs` reads the listed log-probabilities; `sampled` draws `n` verdicts at temperature 1 and counts them."""
    n: int = 20
    """With distribution `sampled`: how many verdicts are drawn for each judgment, 1 to 1000."""
    top_logprobs: int = 20
    """How many log-probabilities to ask an endpoint for; some list fewer than 20."""
    timeout: float = 60.0
    """Seconds for one request to an endpoint, from its beginning to the last byte of the answer."""
    max_retries: int = 6
    """How often a request that got no answer is repeated."""
    concurrency: int = 16
    """Requests of one replica that are under way at once; run.batch_size should be a few times as large."""
    scripted: dict[str, Any] = field(default_factory=dict)
    """Of the scripted judge: quality {model: 0..1}, position_bias, intransitivity, noise, rationale (in words),
    answering, verifying, acceptance, failure_rate, poison, seconds_per_batch."""


@dataclass
class PlanConfig:
    """Which judgments are asked for."""

    design: str = "full"
    """Comparisons: `full` (all pairs of a question), `blocks` (`block` responses a question, all their pairs),
    `matching` (`rounds` balanced random perfect matchings a question), `anchor` (all against `anchor`)."""
    orders: str = "both"
    """In which orders a pair is shown: `both`, `one` (drawn for each pair), or `share` (one, and both for `both_share`
    of the pairs)."""
    both_share: float = 0.2
    """With orders `share`: of how many pairs both orders are asked; drawn by `seed`."""
    rounds: int = 1
    """With design `matching`: how many matchings a question gets. At an odd number of responses one sits out each."""
    block: int = 5
    """With design `blocks`: how many responses of a question are drawn, 2 or more."""
    anchor: str | None = None
    """With design `anchor`: the model that all others are compared with."""
    seed: int = 0
    """Of everything that a plan draws: pairs, orders, what is judged again."""
    repeat: int = 0
    """Judge a sample of the tasks so many times again, in other batches: the noise floor of the engine."""
    repeat_share: float = 0.1
    """Share of the responses, and of the pairs, that are judged again; drawn by `seed`."""
    only: dict[str, list[str]] = field(default_factory=dict)
    """Protocols that are put to the responses of some models alone, such as {compare: [ours, theirs]}."""
    canary: bool = False
    """Add a model `null` that gives every question the same polite, empty answer. It is judged like any other and must
    end last; the report says loudly where it does not."""


@dataclass
class RunConfig:
    """How far a run goes and when it counts as failed."""

    max_failure_rate: float = 0.02
    """Highest share of judge-side failures, overall and for each model, before `run` exits with 1."""
    limit: int | None = None
    """Only the first so many questions, in the order of their ids; for trying things out."""
    max_judgments: int | None = None
    """At most so many judgments are asked of judges in one start; what is reused is free. A run that stops for this
    saves everything and exits with 1; started again, it goes on."""
    max_cost: float | None = None
    """What one start may cost at `cluster.price_per_gpu_hour`, counted from the start of the engines for all replicas
    that there may be. No batch is begun that would take the cost over it."""
    batch_size: int = 64
    """Judgments handed to an engine at once, and written as one part."""
    engine_deaths: int = 2
    """How often the engine may die on a judgment that it was given alone before that becomes a failed row."""


@dataclass
class ClusterConfig:
    """What Ray gives to a judge. Resources are named here and nowhere else."""

    address: str | None = None
    """A Ray cluster to join; by default the one that started this job, or a local one."""
    replicas: int = 1
    """How many judges work side by side, each with an engine of its own."""
    max_replicas: int | None = None
    """With more than `replicas`, the pool grows and shrinks between the two."""
    gpus_per_replica: float = 0.0
    """GPUs of one replica, as many as tensor_parallel; less than 1 where several replicas share a GPU."""
    cpus_per_replica: float = 1.0
    """CPUs that Ray sets aside for one replica."""
    tensor_parallel: int = 1
    """GPUs over which a model is split."""
    batches_in_flight: int = 4
    """Batches of `run.batch_size` that a vLLM judge works on at once: while the last of one are judged, those of the
    next keep the engine full."""
    placement: str = "node"
    """Where a replica of several GPUs runs: `node`, all on one machine; `pack`, on as few machines as have room;
    `spread`, over many. Across machines vLLM's workers are Ray's (not tried on GPUs)."""
    num_cpus: int | None = None
    """Size of a local cluster; by default this machine's."""
    tokens_per_second: float | None = None
    """For `plan`: prompt tokens that one replica computes in a second, as measured."""
    output_tokens_per_second: float | None = None
    """For `plan`: tokens of rationale and thinking that one replica writes in a second, as measured."""
    price_per_gpu_hour: float | None = None
    """For `plan`: what an hour of one GPU costs, in whatever currency."""
    object_store_gb: float | None = None
    """Memory of a local cluster's object store, in GiB; by default what Ray takes."""


@dataclass
class Config:
    """A run."""

    out: str = "runs/run"
    """The run folder: a local path or s3://…"""
    store: str | None = None
    """A judgment store shared by runs; by default the run folder's own."""
    storage_options: dict[str, Any] = field(default_factory=dict)
    """For fsspec, one set for corpus, run folder and store; credentials belong in the environment."""
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    judge: JudgeConfig | None = None
    judges: list[JudgeConfig] = field(default_factory=list)
    """Several judges; instead of `judge`."""
    protocols: list[str] = field(default_factory=lambda: ["score-5", "compare"])
    """Built-in names, or paths of YAML files."""
    plan: PlanConfig = field(default_factory=PlanConfig)
    run: RunConfig = field(default_factory=RunConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    analysis: AnalysisConfig = field(default_factory=AnalysisConfig)
    compare: CompareConfig = field(default_factory=CompareConfig)
    nightly: NightlyConfig = field(default_factory=NightlyConfig)
    preferences: PreferencesConfig = field(default_factory=PreferencesConfig)
    audit: AuditConfig | None = None
    """Of `trustjudge audit`; a configuration with it needs no corpus."""

    @property
    def all_judges(self) -> list[JudgeConfig]:
        """The judges of the run, whichever key named them; the embedded one where none did."""
        return self.judges or [self.judge or JudgeConfig()]


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration and the file text it came from, with references unresolved."""

    config: Config
    unresolved_yaml: str
    source: str
    recognised: dict[str, Any] | None = None
    """Of `corpus.format: auto`: how many `files` there are, and what each that was looked into is (`by`)."""


def load(path: str | Path, overrides: list[str] | None = None) -> LoadedConfig:
    """Read a configuration file and apply `key=value` overrides.

    Raises:
        ConfigError: the file is missing or not YAML, a key is unknown, a value has the wrong type.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        hint = did_you_mean_file(path) if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(f"{path}: {error.strerror or error}; a configuration is a YAML file{hint}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 ({error}); save it as UTF-8") from error
    return loads(text, str(path), overrides)


def loads(text: str, source: str = "configuration", overrides: list[str] | None = None) -> LoadedConfig:
    """The same from a text; `source` names it in messages."""
    try:
        written = OmegaConf.create(text)
    except Exception as error:  # yaml and omegaconf raise half a dozen unrelated classes here
        said = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
        corpus = text.lstrip().startswith(("{", "["))
        hint = f"; if it is a corpus: trustjudge init {source} writes a configuration for it" if corpus else ""
        raise ConfigError(f"{source}: not readable as YAML: {said}{hint}") from error
    if not isinstance(written, DictConfig):
        raise ConfigError(f"{source}: a configuration is a mapping with sections such as `corpus:`")
    changes = config_values.override_tree(overrides or [])
    for tree, where in ((written, source), (changes, "override")):
        config_keys.refuse_unknown(OmegaConf.to_container(tree, resolve=False), Config, where)
    where = f"{source} with overrides" if overrides else source
    try:
        merged = OmegaConf.merge(
            OmegaConf.structured(Config), *(config_keys.with_lists(tree, Config) for tree in (written, changes))
        )
        config = OmegaConf.to_object(merged)
    except (OmegaConfBaseException, TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {_reason(error)}") from error
    assert isinstance(config, Config)
    if config.judge and config.judges:
        raise ConfigError(f"{where}: `judge` and `judges` are both given; use one of them")
    config_values.refuse_bad_values(config, [judge_name(judge) for judge in config.all_judges], where)
    kept = OmegaConf.to_container(OmegaConf.merge(written, changes), resolve=False)
    shown = config_values.without_secrets(kept if isinstance(kept, dict) else {})
    unresolved = OmegaConf.to_yaml(OmegaConf.create(shown), resolve=False)
    return LoadedConfig(config, unresolved, source)


def with_sections(loaded: LoadedConfig, **sections: Any) -> LoadedConfig:
    """The same configuration with other values for these keys of Config, in memory and in its text.

    A judge of the configuration stays in the text as it is written there, references unresolved, but for the fields
    that the new value changes.
    """
    written = OmegaConf.to_container(OmegaConf.create(loaded.unresolved_yaml), resolve=False)
    kept = {str(key): value for key, value in written.items()} if isinstance(written, dict) else {}
    before = dict(kept)
    for key, value in sections.items():
        plain = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
        kept[key] = _judge_text(value, loaded.config, before) if isinstance(value, JudgeConfig) else plain
    shown = config_values.without_secrets({key: value for key, value in kept.items() if value not in (None, [])})
    text = OmegaConf.to_yaml(OmegaConf.create(shown), resolve=False)
    return replace(loaded, config=replace(loaded.config, **sections), unresolved_yaml=text)


def _judge_text(judge: JudgeConfig, config: Config, written: dict[str, Any]) -> dict[str, Any]:
    """A judge as the text has it, with the fields that are other now; all its fields if the text has none so named."""
    listed = written.get("judges") if config.judges else written.get("judge") or {}
    texts = listed if isinstance(listed, list) else [listed]
    new = asdict(judge)
    for was, text in zip(config.all_judges, texts, strict=False):
        if judge_name(was) == judge_name(judge) and isinstance(text, dict):
            changed = {name: value for name, value in new.items() if value != asdict(was)[name]}
            same = {key: value for key, value in text.items() if key not in changed}
            return same | {name: value for name, value in changed.items() if value is not None}
    return new


def load_sections(text: str, source: str, names: tuple[str, ...], overrides: list[str]) -> Config:
    """Only these sections of a configuration text, the others as by default: they may refer to another environment."""
    written = OmegaConf.create(text)
    sections = {name: written.get(name) or {} for name in names} if isinstance(written, DictConfig) else {}
    kept = OmegaConf.create(sections | {"corpus": {"paths": ["-"]}})
    return loads(OmegaConf.to_yaml(kept, resolve=False), source, overrides).config


def load_analysis(text: str, source: str, overrides: list[str]) -> AnalysisConfig:
    """Only the `analysis` section of a configuration text."""
    return load_sections(text, source, ("analysis",), overrides).analysis


def load_compare(text: str, source: str, overrides: list[str]) -> tuple[AnalysisConfig, CompareConfig]:
    """Only the `analysis` and `compare` sections of a configuration text."""
    config = load_sections(text, source, ("analysis", "compare"), overrides)
    return config.analysis, config.compare


def load_judges(text: str, source: str) -> list[JudgeConfig]:
    """Only the judges of a configuration text."""
    written = OmegaConf.create(text)
    sections = {key: written[key] for key in ("judge", "judges") if isinstance(written, DictConfig) and key in written}
    kept = OmegaConf.create({"corpus": {"paths": ["-"]}} | sections)
    return loads(OmegaConf.to_yaml(kept, resolve=False), source).config.all_judges


def storage_options(overrides: list[str]) -> dict[str, Any]:
    """The `storage_options` among overrides, for commands that have a run folder and no configuration file."""
    section = config_values.override_tree(overrides).get("storage_options")
    found = OmegaConf.to_container(section, resolve=True) if section is not None else {}
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}


def judge_name(judge: JudgeConfig) -> str:
    """What a judge is called in tables: its `name`, or the last part of its model."""
    if judge.name:
        return judge.name
    if judge.engine == "vllm" and judge.model == "embedded":
        return EMBEDDED_NAME
    return "scripted" if judge.engine == "scripted" else judge.model.rstrip("/").rsplit("/", 1)[-1]


def model_name(judge: JudgeConfig) -> str:
    """The last part of its model's name or path, whatever the judge is called."""
    return judge_name(replace(judge, name=None))


def _reason(error: Exception) -> str:
    key = getattr(error, "full_key", None)
    first = str(error).splitlines()[0]
    return f"{key}: {first}" if key else first
