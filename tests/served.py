"""A reward service to be started: its configuration with the scripted judge, and what it is asked."""

import json
from typing import Any

from trustjudge_ray.serving_config import ServingConfig, loads
from trustjudge_ray.training.rewards import RewardRequest


def config_of(port: int, **serve: Any) -> ServingConfig:
    given = {
        "judge": {"engine": "scripted", "scripted": {"seconds_per_batch": 0.05, "noise": 0.3, "poison": "KILLER"}},
        "serve": {"port": port, "max_batch": 8, "max_queue": 64, "max_requests": 64, "deadline": 40, "grace": 3}
        | serve,
        "cluster": {"cpus_per_replica": 0.5},
    }
    given["serve"] |= serve
    return loads(json.dumps(given), "test")


def as_request(completion: str) -> RewardRequest:
    return RewardRequest(({"role": "user", "content": "Say something."},), completion)


def body(*completions: str) -> dict[str, Any]:
    return {"requests": [{"messages": list(as_request(c).messages), "completion": c} for c in completions]}
