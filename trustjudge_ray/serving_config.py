"""The configuration of a reward service: who judges, how judgments become rewards, and how they are served."""

import ipaddress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trustjudge_ray import config, config_values
from trustjudge_ray.config import ClusterConfig, ConfigError, JudgeConfig
from trustjudge_ray.nearest import did_you_mean, did_you_mean_file
from trustjudge_ray.rewards_config import RewardConfig, reward_faults


@dataclass
class ServeConfig:
    """How rewards are served."""

    host: str = "127.0.0.1"
    """Where to listen. Anything but this machine alone (127.0.0.1, ::1, localhost) needs a token."""
    port: int = 8700
    """1 to 65535."""
    token_env: str = "TRUSTJUDGE_SERVICE_TOKEN"
    """The environment variable that holds the token, for the command that starts the service. Where it is set, clients
    send `Authorization: Bearer …`; the workers get a salted hash of it."""
    max_batch: int = 64
    """Completions that are rewarded together, at most."""
    max_wait: float = 0.02
    """Seconds for which the first completion of a batch waits for others."""
    max_queue: int = 4096
    """Completions that may wait. With more, clients get 429 and are told when to come again."""
    deadline: float = 60.0
    """Seconds within which a client has its answer, or 504. A client may ask for less. Longer than an engine takes to
    start, if clients shall not notice that one died."""
    max_requests: int = 1024
    """Completions in one HTTP request."""
    max_group: int = 64
    """Of mode `group`: different completions of a group, which is judged in one piece and in n·(n − 1) judgments. With
    `rewards.opponents` it may be larger, as long as it costs no more than such a one. Larger values need a longer
    `batch_timeout`."""
    max_body_mb: float = 8.0
    """Size of one HTTP request, in megabytes (10⁶ bytes)."""
    max_open: int = 1024
    """HTTP requests that are open at once."""
    batch_timeout: float = 600.0
    """Seconds that a judge may take for a batch, counted from when it begins on it and not while another is judged
    first. One that has not finished then counts as dead: its process is ended and started anew. Longer than the largest
    batch takes (`max_batch` completions, or one group that has more)."""
    engine_deaths: int = 1
    """How often the engine may die on a completion that it was given alone before that is answered as failed."""
    grace: float = 20.0
    """Seconds that are given, at the end, to what was taken in."""


@dataclass
class ServingConfig:
    """A reward service."""

    judge: JudgeConfig = field(default_factory=JudgeConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    rewards: RewardConfig = field(default_factory=RewardConfig)
    serve: ServeConfig = field(default_factory=ServeConfig)


def load(path: str | Path, overrides: list[str] | None = None) -> ServingConfig:
    """Read a configuration file and apply `key=value` overrides.

    Raises:
        ConfigError: the file is missing or not YAML, a key is unknown, a value makes no sense.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        hint = did_you_mean_file(path) if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(f"{path}: {error}; a configuration is a YAML file in UTF-8{hint}") from error
    return loads(text, str(path), overrides)


def loads(text: str, source: str = "configuration", overrides: list[str] | None = None) -> ServingConfig:
    """The same from a text; `source` names it in messages."""
    try:
        written = OmegaConf.create(text)
    except Exception as error:  # yaml and omegaconf raise half a dozen unrelated classes here
        raise ConfigError(f"{source}: not readable as YAML: {error}") from error
    if not isinstance(written, DictConfig):
        raise ConfigError(f"{source}: a configuration is a mapping with sections such as `judge:`")
    merged = OmegaConf.to_container(
        OmegaConf.merge(written, config_values.override_tree(overrides or [])), resolve=False
    )
    tree: dict[str, Any] = {str(key): value for key, value in merged.items()} if isinstance(merged, dict) else {}
    known = [f.name for f in fields(ServingConfig)]
    for key in tree:
        if key not in known:
            near = did_you_mean(key, known)
            raise ConfigError(f"{source}: unknown key '{key}'; the configuration of a reward service has {known}{near}")
    shared = {key: tree[key] for key in ("judge", "cluster") if tree.get(key) is not None}
    judging = OmegaConf.create({"corpus": {"paths": ["-"]}} | shared)
    read = config.loads(OmegaConf.to_yaml(judging, resolve=False), source).config
    rewards: RewardConfig = _section(tree.get("rewards"), "rewards", RewardConfig, source)
    serve: ServeConfig = _section(tree.get("serve"), "serve", ServeConfig, source)
    for wrong in [*_faults(serve), *reward_faults(rewards)]:
        raise ConfigError(f"{source}: {wrong}")
    return ServingConfig(read.all_judges[0], read.cluster, rewards, serve)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _section(given: Any, name: str, cls: type, source: str) -> Any:
    if given is not None and not isinstance(given, dict):
        raise ConfigError(f"{source}: {name}: got {given!r}; a mapping with {[f.name for f in fields(cls)]}")
    unknown = sorted(set(given or ()) - {f.name for f in fields(cls)})
    if unknown:
        known = sorted(f.name for f in fields(cls))
        near = did_you_mean(unknown[0], known)
        raise ConfigError(f"{source}: {name}: unknown key '{unknown[0]}'; it has {known}{near}")
    try:
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(cls), given or {}))
    except (OmegaConfBaseException, TypeError, ValueError) as error:
        key = getattr(error, "full_key", None)
        raise ConfigError(f"{source}: {name}.{key or ''}: {str(error).splitlines()[0]}") from error


def _faults(serve: ServeConfig) -> list[str]:
    """Values of the right type that make no sense, each as key, what it got and what would be right."""
    checks = [
        ("host", bool(serve.host), "an address of this machine"),
        ("port", 1 <= serve.port <= 65535, "1 to 65535"),
        ("token_env", bool(serve.token_env), "the name of an environment variable"),
        ("max_batch", serve.max_batch >= 1, "1 or more"),
        ("max_wait", 0 <= serve.max_wait < serve.deadline, f"seconds, fewer than serve.deadline, {serve.deadline:g}"),
        ("deadline", 0 < serve.deadline < 86400, "seconds, more than 0"),
        ("max_requests", 1 <= serve.max_requests <= serve.max_queue, f"1 to serve.max_queue, {serve.max_queue}"),
        ("max_group", serve.max_group >= 2, "2 or more"),
        ("max_body_mb", 0 < serve.max_body_mb <= 1024, "megabytes, to 1024"),
        ("max_open", serve.max_open >= 1, "1 or more"),
        ("batch_timeout", 0 < serve.batch_timeout < 86400, "seconds, more than 0"),
        ("engine_deaths", serve.engine_deaths >= 1, "1 or more"),
        ("grace", 0 <= serve.grace < 3600, "seconds"),
    ]
    return [f"serve.{key}: got {getattr(serve, key)!r}; {right}" for key, fine, right in checks if not fine]
