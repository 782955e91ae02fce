"""The reward service under load: 64 clients at once, a scripted judge that takes 20 ms for a batch.

Three parts, one after another, against one service. *Steady*: for a minute each client posts the next request when it
has the answer to the last. *Killed*: the same for 20 seconds, and the judge's process is killed after a third of it.
*Flood*: every client posts so many completions at once that most find no room. Every completion is a text of its own,
so that each answer can be held against the reward that the judge gives without a service: an answer that is another's
is `mixed`, one that cost more than one judgment `doubled`, a request without an answer and without a refusal `lost`.
Clients and service share the machine.
"""

import asyncio
import itertools
import json
import math
import socket
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import psutil

from trustjudge_ray import pipeline
from trustjudge_ray.serving_config import ServingConfig, loads
from trustjudge_ray.training import service
from trustjudge_ray.training.rewards import RewardRequest

from . import Options

CLIENTS = 64
COMPLETIONS = 4
"""Of a request in the steady part and when the judge is killed."""
FLOOD = 32
"""Of a request in the flood."""
QUESTION = "Name a number, and say why."
_CHECKED = 512
"""Completions that the judge without a service is asked for at once."""


@dataclass
class Load:
    """What came back. Seconds are of requests that were answered with rewards."""

    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0
    bare: int = 0
    """Refusals with 429 or 503 that do not say when to come again."""

    def quantile(self, share: float) -> float:
        """The time within which this share of the answers came."""
        return sorted(self.seconds)[min(len(self.seconds) - 1, math.ceil(share * len(self.seconds)) - 1)]

    def take(self, names: list[str], answer: aiohttp.ClientResponse, content: bytes, took: float) -> None:
        """An answer, or a refusal."""
        self.statuses[answer.status] += 1
        if answer.status != 200:
            self.bare += answer.status in (429, 503) and "Retry-After" not in answer.headers
            return
        self.seconds.append(took)
        self.ends.append(time.monotonic())
        rewards = json.loads(content)["rewards"]
        self.lost += len(rewards) != len(names)
        for name, reward in zip(names, rewards, strict=False):
            self.doubled += reward["calls"] != 1 or name in self.answers
            self.answers[name] = reward


def run(options: Options) -> dict[str, Any]:
    """Measure."""
    steady_seconds, killed_seconds = (3.0, 6.0) if options.small else (60.0, 20.0)
    config = _config()
    with service.serving(config, None) as url:
        steady = asyncio.run(_load(url, "steady", steady_seconds))
        with service.quiet():  # that a worker died is what was meant
            killed, gap = _killed(url, killed_seconds)
        flood = asyncio.run(_flood(url))
    with service.quiet():
        pipeline.stop()
    mixed = sum(_mixed(config, load) for load in (steady, killed, flood))
    for line in _described(steady, steady_seconds, killed, gap, flood, mixed):
        options.say(line)
    return {
        "clients": CLIENTS,
        "p50_ms": 1000 * statistics.median(steady.seconds),
        "p99_ms": 1000 * steady.quantile(0.99),
        "completions_per_second": len(steady.answers) / steady_seconds,
        "rejected": steady.statuses[429],
        "lost": steady.lost + killed.lost + flood.lost,
        "doubled": steady.doubled + flood.doubled,
        "mixed": mixed,
        "killed_refused": sum(killed.statuses.values()) - killed.statuses[200],
        "killed_seconds_without_answers": gap,
        "flood_rejected": flood.statuses[429],
        "flood_answered": flood.statuses[200],
    }


def _config() -> ServingConfig:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    given = {
        "judge": {"engine": "scripted", "scripted": {"seconds_per_batch": 0.02, "noise": 0.3}},
        "serve": {"port": port, "max_batch": 64, "max_queue": CLIENTS * COMPLETIONS, "max_requests": 64},
    }
    return loads(json.dumps(given), "benchmark")


async def _load(url: str, part: str, seconds: float) -> Load:
    """So many clients, each with one request after another."""
    load, end = Load(), time.monotonic() + seconds

    async def one(client: aiohttp.ClientSession, number: int) -> None:
        count = 0
        while time.monotonic() < end:
            names = [f"{part} {number} {count} {i}" for i in range(COMPLETIONS)]
            count += 1
            await _post(client, names, load)

    async with _client(url) as client:
        await asyncio.gather(*(one(client, number) for number in range(CLIENTS)))
    return load


def _killed(url: str, seconds: float) -> tuple[Load, float]:
    """The same, with the judge's process killed after a third; also the longest time without any answer.

    Raises:
        RuntimeError: there is not exactly one process of the judge's.
    """

    async def both() -> Load:
        async def kill() -> None:
            await asyncio.sleep(seconds / 3)
            judging = [
                process
                for process in psutil.Process().children(recursive=True)
                if f"ServeReplica:{service.APP}:Judging" in " ".join(process.cmdline())
            ]
            if len(judging) != 1:
                raise RuntimeError(f"{len(judging)} processes of the judge's are here; 1 was to be killed")
            judging[0].kill()

        load, _ = await asyncio.gather(_load(url, "killed", seconds), kill())
        return load

    load = asyncio.run(both())
    ends = sorted(load.ends)
    return load, max((b - a for a, b in itertools.pairwise(ends)), default=0.0)


async def _flood(url: str) -> Load:
    load = Load()
    async with _client(url) as client:
        names = [[f"flood {number} {i}" for i in range(FLOOD)] for number in range(CLIENTS)]
        await asyncio.gather(*(_post(client, each, load) for each in names))
    return load


def _client(url: str) -> aiohttp.ClientSession:
    room, patience = aiohttp.TCPConnector(limit=CLIENTS), aiohttp.ClientTimeout(total=120)
    return aiohttp.ClientSession(url, connector=room, timeout=patience)


async def _post(client: aiohttp.ClientSession, names: list[str], load: Load) -> None:
    asked = [{"messages": [{"role": "user", "content": QUESTION}], "completion": name} for name in names]
    began = time.monotonic()
    try:
        async with client.post("/v1/reward", json={"requests": asked}) as answer:
            content = await answer.read()
    except (aiohttp.ClientError, TimeoutError):
        load.lost += 1
        return
    load.take(names, answer, content, time.monotonic() - began)


def _mixed(config: ServingConfig, load: Load) -> int:
    """Answers that are not what the judge says of that completion, without a service."""
    judge, names, wrong = service.build(config), list(load.answers), 0
    for start in range(0, len(names), _CHECKED):
        some = names[start : start + _CHECKED]
        requests = [RewardRequest(({"role": "user", "content": QUESTION},), name) for name in some]
        for name, right in zip(some, judge.rewards(requests), strict=True):
            got = load.answers[name]["value"]
            wrong += got is None or right.value is None or not math.isclose(got, right.value, rel_tol=1e-12)
    return wrong


def _described(steady: Load, seconds: float, killed: Load, gap: float, flood: Load, mixed: int) -> list[str]:
    return [
        f"{CLIENTS} clients for {seconds:g} s: {len(steady.seconds)} requests of {COMPLETIONS} completions answered, "
        f"{len(steady.answers) / seconds:.0f} completions a second; "
        f"p50 {1000 * statistics.median(steady.seconds):.0f} ms, "
        f"p99 {1000 * steady.quantile(0.99):.0f} ms, slowest {1000 * max(steady.seconds):.0f} ms; "
        f"statuses {dict(steady.statuses)}",
        f"  lost {steady.lost}, doubled {steady.doubled}",
        f"judge killed in mid-load: statuses {dict(killed.statuses)}, lost {killed.lost}; "
        f"{gap:.1f} s without an answer",
        f"flood of {CLIENTS} × {FLOOD} completions, room for {CLIENTS * COMPLETIONS}: statuses {dict(flood.statuses)}, "
        f"lost {flood.lost}, refusals without Retry-After {flood.bare + killed.bare + steady.bare}",
        f"answers that are another's, in all parts: {mixed}",
    ]
