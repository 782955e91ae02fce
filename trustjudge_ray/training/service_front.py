"""The two deployments of the reward service: a front that queues and answers, and replicas that each hold a judge.

The front is one process without an engine, so that the death of an engine breaks no connection. A replica whose engine
has died ends its process, Serve starts it anew, and the front sends the batch again (`service_queue`). What the front
counts (`service_metrics`) is told by itself at `/metrics`, and through Ray's own metrics, where Ray puts `ray_` before
each name.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from ray import exceptions
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException, ReplicaUnavailableError
from ray.util.metrics import Counter, Gauge, Histogram
from starlette.requests import Request
from starlette.responses import Response

from trustjudge_ray.judging import base
from trustjudge_ray.pipeline import placement
from trustjudge_ray.pipeline.judges import end_with_parent
from trustjudge_ray.serving_config import ServingConfig
from trustjudge_ray.training.adapters import loaded
from trustjudge_ray.training.rewards import Reward, RewardRequest, TrustJudgeReward
from trustjudge_ray.training.service_engine import Timed, end
from trustjudge_ray.training.service_http import Routes, Token, reward_queue, rewarded
from trustjudge_ray.training.service_metrics import METRICS, Metric, Tally
from trustjudge_ray.training.service_queue import EngineLost, Expired, Limits

BATCHES_AT_ONCE = 2
"""Batches that a replica holds: while one is judged, the next is there."""
_PAUSE = 0.5
"""Seconds before a batch is sent again where there is no replica to send it to."""
_LOST: Final = (
    exceptions.RayActorError,
    exceptions.WorkerCrashedError,
    exceptions.OutOfMemoryError,
    exceptions.NodeDiedError,
    exceptions.LocalRayletDiedError,
    exceptions.ObjectLostError,
)
"""What Ray says of a process that ended with a batch, by itself, with its machine or by the memory monitor, or whose
answer was lost with it."""
_log = logging.getLogger(__name__)


class Judging:
    """Holds a judge, and rewards batches with it."""

    def __init__(self, config: ServingConfig) -> None:
        end_with_parent()
        self._rewards = build(config, lambda judge: Timed(judge, config.serve.batch_timeout))

    async def rewards(self, requests: list[RewardRequest]) -> list[Reward]:
        """One reward for each request, in order."""
        try:
            return await asyncio.to_thread(self._rewards.rewards, requests)
        except base.JudgeGone as error:
            end(str(error))

    async def loaded(self) -> bool:
        """Whether the judge is there: this process answers nothing before."""
        return True


class Front:
    """Takes HTTP requests, queues what they ask, and answers. Holds no engine."""

    def __init__(self, judging: Any, config: ServingConfig, token: Token | None) -> None:
        self._judging, self._config, self._metrics = judging, config, _Metrics()
        for handler in logging.getLogger("ray.serve").handlers:  # to Serve's own log of the front, with the time
            logging.getLogger(__package__).addHandler(handler)
        self._queue = reward_queue(self._judged, limits(config), self._metrics.note)
        self._routes = Routes(
            self._ask,
            self._loaded,
            config.serve,
            config.rewards,
            token,
            note=self._metrics.answered,
            metrics=self._metrics.own.text,
            stopping=lambda: self._queue.stopping,
        )

    def reconfigure(self, given: dict[str, str]) -> None:
        """Serve wants this where there is a `user_config`: it has the mark of the command that deployed the front, and
        is for that command alone."""

    async def __call__(self, request: Request) -> Response:
        return await self._routes.respond(request)

    async def drain(self) -> None:
        """Refuse what comes from now on, and finish what was taken in, within `serve.grace`."""
        await self._queue.drain(self._config.serve.grace)

    async def _ask(self, requests: Sequence[RewardRequest], until: float) -> list[Reward]:
        try:
            found = await rewarded(self._queue, requests, self._config.rewards, until)
        except Expired:
            self._metrics.note("expired", 1)
            raise
        self._metrics.rewarded(found)
        return found

    async def _judged(self, requests: list[RewardRequest]) -> Sequence[Reward]:
        try:
            return await self._judging.rewards.remote(requests)
        except (exceptions.RayError, RayServeException) as error:
            lost = engine_lost(error)
            if lost is None:
                raise
            if lost.begun:
                _log.error("the judge's process died with a batch of %d completions: %s", len(requests), error)
            else:
                await asyncio.sleep(_PAUSE)
            raise lost from error

    async def _loaded(self) -> bool:
        try:
            async with asyncio.timeout(1.0):
                return bool(await self._judging.loaded.remote())
        except (TimeoutError, exceptions.RayError, RayServeException):
            return False


def build(config: ServingConfig, around: Callable[[base.Judge], base.Judge] = lambda judge: judge) -> TrustJudgeReward:
    """The judge of a configuration, loaded, with its rewards; `around` is put around the judge."""
    return loaded(config, placement.backend(config.cluster), around)


def limits(config: ServingConfig) -> Limits:
    """What the queue holds."""
    given, most = config.serve, config.cluster.max_replicas or config.cluster.replicas
    return Limits(
        max_batch=given.max_batch,
        max_wait=given.max_wait,
        max_queue=given.max_queue,
        in_flight=BATCHES_AT_ONCE * most,
        cache=config.rewards.cache,
        engine_deaths=given.engine_deaths,
    )


def engine_lost(error: Exception) -> EngineLost | None:
    """What an error of Serve or Ray says of the engine that had a batch: that it died with it, or that there was none.
    None where the engine lives: what the judge raised (whatever that is), and what was cancelled."""
    if isinstance(error, DeploymentUnavailableError | ReplicaUnavailableError):
        return EngineLost("no judge is running", begun=False)
    if isinstance(error, exceptions.RayTaskError) or not isinstance(error, _LOST):
        return None
    told = str(error).strip().splitlines() or [type(error).__name__]
    return EngineLost(f"the judge's process died: {told[0]}")


class _Metrics:
    """What the front counts, for itself and for Ray."""

    def __init__(self) -> None:
        self.own = Tally()
        self._rays = {name: _of_ray(metric) for name, metric in METRICS.items()}

    def note(self, name: str, value: float, labels: dict[str, str] | None = None) -> None:
        """A metric has a new value, or one more; a counter of nothing does not."""
        there = self._rays[name]
        self.own.note(name, value, labels)
        if isinstance(there, Gauge):
            there.set(value, labels)
        elif isinstance(there, Histogram):
            there.observe(value, labels)
        elif value:
            there.inc(value, labels)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """An HTTP request was answered."""
        self.note("requests", 1, {"route": route, "status": str(status)})
        self.note("seconds", seconds, {"route": route})

    def rewarded(self, rewards: Sequence[Reward]) -> None:
        """A body's rewards were given."""
        for reward in rewards:
            if reward.value is None:
                self.note("failed", 1, {"status": reward.status})


def _of_ray(metric: Metric) -> Counter | Gauge | Histogram:
    if metric.kind == "histogram":
        return Histogram(metric.name, metric.told, list(metric.bounds), metric.labels)
    return (Gauge if metric.kind == "gauge" else Counter)(metric.name, metric.told, metric.labels)
