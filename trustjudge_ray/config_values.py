"""What may stand in a configuration: values that make no sense are refused, overrides are read, secrets taken out."""

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from trustjudge_ray.audit_config import audit_faults
from trustjudge_ray.nearest import did_you_mean

if TYPE_CHECKING:
    from trustjudge_ray.config import ClusterConfig, Config, JudgeConfig


class ConfigError(ValueError):
    """A configuration cannot be used: names the file, the key, what it got and what would be right."""


_CHOICES = {
    "corpus.format": (
        *("flat", "trustjudge", "questions", "trl", "trl-conversational", "ultrafeedback", "ultrafeedback-binarized"),
        *("hh-rlhf", "prompt-responses", "fastchat", "arena-hard", "alpaca-eval", "openai-batch", "lmarena"),
        *("reward-bench", "auto"),
    ),
    "judge.engine": ("vllm", "openai_api", "scripted"),
    "judge.route": ("chat", "completions"),
    "judge.distribution": ("logprobs", "sampled"),
    "judge.dtype": ("bfloat16", "float16", "float32"),
    "judge.head_dtype": ("bfloat16", "float16", "float32"),
    "judge.on_overflow": ("truncate", "fail"),
    "plan.design": ("full", "blocks", "matching", "anchor"),
    "plan.orders": ("both", "one", "share"),
    "cluster.placement": ("node", "pack", "spread"),
    "analysis.identical": ("exclude", "include"),
    "analysis.on_empty": ("exclude", "lose"),
}
"""Keys that have a value out of a few."""

_RULES = {
    "score_rules": ("expected", "softmax_weighted", "geval", "baseline", "mode"),
    "verdict_rules": ("normalised", "likelihood", "ppl", "ppl_tiebreak", "baseline"),
}
"""The rules that a report can show, of `analysis`."""

COVARIATES = ("length", "headers", "lists", "bold")
"""What `analysis.covariates` may hold."""

GATE_WORDS = ("regressed", "regressed_by_smallest", "underpowered", "inconsistent", "missing", "judge_changed")
"""What `compare.fail_on` may hold."""


def choices(key: str) -> tuple[str, ...]:
    """What a key may hold, where that is one or more of a few words; none where it is anything else."""
    section, _, name = key.partition(".")
    lists = {"analysis.covariates": COVARIATES, "compare.fail_on": GATE_WORDS}
    rules = _RULES.get(name, ()) if section == "analysis" else ()
    return _CHOICES.get(key, lists.get(key, rules))


_SECRET = re.compile(r"^key$|(access|api)_?key|secret|token(?!iz)|password|credential", re.IGNORECASE)
"""Names of storage options and engine arguments whose value is never written to a run folder."""


def refuse_bad_values(config: "Config", names: list[str], source: str) -> None:
    """Refuse values of the right type that make no sense; `names` are what the judges are called in tables.

    Raises:
        ConfigError: with the key, what it got and what would be right.
    """
    for key, choices in _CHOICES.items():
        section, name = key.split(".")
        for holder in config.all_judges if section == "judge" else [getattr(config, section)]:
            value = getattr(holder, name)
            if value not in choices:
                raise ConfigError(
                    f"{source}: {key}: got {value!r}; one of {list(choices)}{did_you_mean(value, choices)}"
                )
    for key, fine, right in [*_numbers(config), *_resources(config.cluster)]:
        if not fine:
            section, _, name = key.partition(".")
            got = getattr(config, key) if not name else getattr(getattr(config, section), name)
            raise ConfigError(f"{source}: {key}: got {got!r}; {right}")
    for key, known in _RULES.items():
        rules = getattr(config.analysis, key)
        if not rules or not set(rules) <= set(known):
            near = _near(rules, known)
            raise ConfigError(f"{source}: analysis.{key}: got {rules!r}; one or more of {list(known)}{near}")
    for judge, name in zip(config.all_judges, names, strict=True):
        for wrong in _judge_faults(judge, name, config.cluster):
            raise ConfigError(f"{source}: {wrong}")
    for wrong in audit_faults(config.audit) if config.audit is not None else []:
        raise ConfigError(f"{source}: {wrong}")
    if len(set(names)) < len(names):
        raise ConfigError(f"{source}: judges: two are called the same in {names}; give each a `name`")


def _near(given: list[str], known: tuple[str, ...]) -> str:
    """What the first of these words that is not known may stand for."""
    return next((did_you_mean(word, known) for word in given if word not in known), "")


def _numbers(config: "Config") -> list[tuple[str, bool, str]]:
    """Keys, whether their value is fine, and what would be right."""
    run, planned = config.run, config.plan
    priced = config.cluster.price_per_gpu_hour and config.cluster.gpus_per_replica
    return [
        ("corpus.paths", config.corpus.paths != [] or config.audit is not None, "at least one file, folder or glob"),
        ("run.max_failure_rate", 0 <= run.max_failure_rate <= 1, "a share from 0 to 1"),
        ("run.batch_size", run.batch_size > 0, "1 or more"),
        ("run.limit", run.limit is None or run.limit > 0, "1 or more, or nothing"),
        ("run.engine_deaths", run.engine_deaths >= 1, "1 or more"),
        ("run.max_judgments", run.max_judgments is None or run.max_judgments > 0, "1 or more, or nothing"),
        ("run.max_cost", _positive(run.max_cost), "more than 0, or nothing"),
        (
            "run.max_cost",
            run.max_cost is None or bool(priced),
            "cluster.price_per_gpu_hour and gpus_per_replica with it",
        ),
        ("plan.block", planned.block >= 2, "2 or more"),
        ("plan.rounds", planned.rounds >= 1, "1 or more"),
        ("plan.repeat", planned.repeat >= 0, "0 or more"),
        ("plan.repeat_share", 0 <= planned.repeat_share <= 1, "a share from 0 to 1"),
        ("plan.both_share", 0 < planned.both_share < 1, "a share between 0 and 1; for none or all orders one or both"),
        ("plan.anchor", planned.design != "anchor" or planned.anchor is not None, "the model to compare with"),
        ("analysis.confidence", 0.5 <= config.analysis.confidence < 1, "a share such as 0.95"),
        ("analysis.k", all(3 <= k <= 8 for k in config.analysis.k), "sizes from 3 to 8"),
        (
            "analysis.covariates",
            set(config.analysis.covariates) <= set(COVARIATES)
            and len(set(config.analysis.covariates)) == len(config.analysis.covariates),
            f"some of {list(COVARIATES)}, each once{_near(config.analysis.covariates, COVARIATES)}",
        ),
        ("analysis.ridge", 0 <= config.analysis.ridge < math.inf, "0 or more"),
        (
            "analysis.category_weights",
            all(0 < weight < math.inf for weight in config.analysis.category_weights.values()),
            "numbers over 0; rankings by category leave others out",
        ),
        ("protocols", config.protocols != [], "at least one protocol"),
        ("compare.smallest", 0 < config.compare.smallest < 1, "a share between 0 and 1, such as 0.02"),
        ("compare.bootstrap", config.compare.bootstrap >= 100, "100 or more"),
        (
            "compare.fail_on",
            set(config.compare.fail_on) <= set(GATE_WORDS),
            f"some of {list(GATE_WORDS)}{_near(config.compare.fail_on, GATE_WORDS)}",
        ),
    ]


def _resources(cluster: "ClusterConfig") -> list[tuple[str, bool, str]]:
    """The same of what Ray is asked for."""
    most, gpus = cluster.max_replicas, cluster.gpus_per_replica
    apart = cluster.placement == "node" or (gpus >= 2 and gpus == int(gpus))
    return [
        ("cluster.replicas", cluster.replicas >= 1, "1 or more"),
        ("cluster.max_replicas", most is None or most >= cluster.replicas, "cluster.replicas or more, or nothing"),
        ("cluster.cpus_per_replica", cluster.cpus_per_replica >= 0, "0 or more"),
        ("cluster.gpus_per_replica", gpus >= 0, "0 or more"),
        ("cluster.tensor_parallel", cluster.tensor_parallel >= 1, "1 or more"),
        ("cluster.batches_in_flight", cluster.batches_in_flight >= 1, "1 or more"),
        ("cluster.placement", apart, "'node', as cluster.gpus_per_replica is not 2 or more whole GPUs"),
        ("cluster.tokens_per_second", _positive(cluster.tokens_per_second), "more than 0"),
        ("cluster.output_tokens_per_second", _positive(cluster.output_tokens_per_second), "more than 0"),
        ("cluster.price_per_gpu_hour", (cluster.price_per_gpu_hour or 0) >= 0, "0 or more"),
    ]


def _judge_faults(judge: "JudgeConfig", name: str, cluster: "ClusterConfig") -> Iterator[str]:
    """What is wrong with a judge, that is called `name` in tables, on this cluster."""
    if judge.engine == "scripted" and not name.startswith("scripted"):
        yield (
            f"judge.name: got {judge.name!r}; a scripted judge's name starts with 'scripted', "
            "so that no table takes it for a model"
        )
    if (judge.base_url is None) == (judge.engine == "openai_api") or "@" in (judge.base_url or ""):
        yield "judge.base_url: with engine openai_api only; an address without a password"
    parts = cluster.tensor_parallel * int(judge.engine_args.get("pipeline_parallel_size") or 1)
    gpus = cluster.gpus_per_replica
    if judge.engine == "vllm" and gpus and gpus != parts and not (parts == 1 and gpus < 1):
        yield (
            f"cluster.gpus_per_replica: got {gpus:g}; cluster.tensor_parallel (with pipeline_parallel_size in "
            f"judge.engine_args) splits the model over {parts}: {parts}, or a share of one GPU where that is 1"
        )


def override_tree(overrides: list[str]) -> DictConfig:
    """`a.b=1` as a tree. Values are YAML, except that a leading zero keeps a value text (`007` is no 7)."""
    tree = OmegaConf.create({})
    for item in overrides:
        key, sep, value = item.partition("=")
        if not sep or not key:
            raise ConfigError(f"override '{shown_override(item)}': write key=value, for example plan.block=4")
        plain = value.strip()
        if plain.isdigit() and len(plain) > 1 and plain.startswith("0"):
            parsed: Any = plain
        else:
            try:
                parsed = OmegaConf.to_container(OmegaConf.create(f"v: {value}"), resolve=False)["v"]  # type: ignore
            except Exception as error:
                said = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
                raise ConfigError(f"override '{shown_override(item)}': value is not YAML: {said}") from error
        OmegaConf.update(tree, key, parsed, force_add=True)
    return tree


def without_secrets(tree: dict[Any, Any]) -> dict[Any, Any]:
    """A configuration as a run folder may keep it: a credential among storage options or engine arguments that is
    written out in clear becomes `(not kept)`. Changes `tree`."""
    judges = [tree.get("judge"), *(tree.get("judges") or [])]
    for holder, key in [(tree, "storage_options"), *((j, "engine_args") for j in judges if isinstance(j, dict))]:
        if key in holder:
            holder[key] = _hidden(holder[key])
    return tree


def shown_override(override: str) -> str:
    """An override as a message may repeat it: a credential in it is not."""
    key, _, value = override.partition("=")
    parts = key.split(".")
    holds = parts[0] == "storage_options" or "engine_args" in parts
    return f"{key}={_hidden(value, parts[-1])}" if holds else override


def _hidden(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _hidden(inner, str(key)) for key, inner in value.items()}
    secret = _SECRET.search(name) and isinstance(value, str) and not value.startswith("${")
    return "(not kept)" if secret else value


def _positive(value: float | None) -> bool:
    return value is None or value > 0
