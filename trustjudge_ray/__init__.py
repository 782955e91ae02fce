"""Judging of model answers with LLM judges on Ray: distributions, consistency, rankings.

For notebooks: `judge`, `evaluate`, `open_run`, `compare` (see `trustjudge_ray.api`). They are loaded when they are
first used, so that this import stays fast.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trustjudge_ray.api import Compared, Run, compare, evaluate, judge, open_run
    from trustjudge_ray.config import ConfigError, JudgeConfig

__version__ = "0.1.0"

__all__ = ["Compared", "ConfigError", "JudgeConfig", "Run", "compare", "evaluate", "judge", "open_run"]


def __getattr__(name: str) -> Any:
    """The names of `__all__`, from the modules that they live in."""
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    if name in ("ConfigError", "JudgeConfig"):
        from trustjudge_ray import config

        return getattr(config, name)
    from trustjudge_ray import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
