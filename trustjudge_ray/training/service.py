"""The reward service on Ray Serve: a front that queues and answers, and replicas that each hold a judge.

The front is one process without an engine, so that the death of an engine breaks no connection. A replica whose engine
has died ends its process, Serve starts it anew, and the front sends the batch again (`service_queue`). What the front
counts, for Prometheus through Ray's own metrics (Ray puts `ray_` before each name):

| name | kind | tags |
|---|---|---|
| `trustjudge_service_requests_total` | counter: HTTP requests | route, status |
| `trustjudge_service_seconds` | histogram: of an HTTP request | route |
| `trustjudge_service_expired_total` | counter: HTTP requests whose deadline came first | |
| `trustjudge_service_rejected_total` | counter: completions, of bodies for which there was no room | |
| `trustjudge_service_cached_total`, `…_shared_total` | counter: completions known, or being judged for another | |
| `trustjudge_service_dropped_total` | counter: completions that nobody waited for any more, not judged | |
| `trustjudge_service_failed_total` | counter: completions without a reward | status |
| `trustjudge_service_batch`, `trustjudge_service_batch_seconds` | histogram: completions of a batch, its time | |
| `trustjudge_service_waiting` | gauge: completions in the queue | |
| `trustjudge_service_engine_deaths_total` | counter: batches on which an engine died | |
"""

import asyncio
import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import pyarrow as pa
import ray
from ray import serve
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException, ReplicaUnavailableError
from ray.util.metrics import Counter, Gauge, Histogram
from starlette.requests import Request
from starlette.responses import Response

from trustjudge_ray.config import ClusterConfig, ConfigError, JudgeConfig
from trustjudge_ray.judging import base, engines
from trustjudge_ray.pipeline import placement, session
from trustjudge_ray.pipeline.judges import end_with_parent
from trustjudge_ray.serving_config import ServeConfig, ServingConfig, is_loopback
from trustjudge_ray.training.adapters import loaded, reward_protocols
from trustjudge_ray.training.rewards import Reward, RewardRequest, TrustJudgeReward
from trustjudge_ray.training.service_http import Routes, Token, rewarded
from trustjudge_ray.training.service_queue import EngineLost, Expired, Limits, RewardQueue

APP = "trustjudge-rewards"
BATCHES_AT_ONCE = 2
"""Batches that a replica holds: while one is judged, the next is there."""
_PAUSE = 0.5
"""Seconds before a batch is sent again where there is no replica to send it to."""
_SHORTEST_TOKEN = 16
_SECONDS = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]
_SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


class Judging:
    """Holds a judge, and rewards batches with it."""

    def __init__(self, config: ServingConfig) -> None:
        end_with_parent()
        self._rewards = build(config, lambda judge: Timed(judge, config.serve.batch_timeout))

    async def rewards(self, requests: list[RewardRequest]) -> list[Reward]:
        """One reward for each request, in order."""
        try:
            found = await asyncio.to_thread(self._rewards.rewards, requests)
        except base.JudgeGone as error:
            _end(str(error))
        return [replace(reward, details=dict(reward.details)) for reward in found]

    async def loaded(self) -> bool:
        """Whether the judge is there: this process answers nothing before."""
        return True


class Timed:
    """A judge that has so many seconds for a batch, from when it begins on it, and ends its process if it has not
    finished then: of an engine that hangs nothing else can be made. What waits for its turn is not timed."""

    def __init__(self, judge: base.Judge, seconds: float) -> None:
        self._judge, self._seconds = judge, seconds

    def judge(self, tasks: pa.Table) -> list[base.Reading]:
        """The judge's own readings."""
        told = f"{len(tasks)} judgments took longer than serve.batch_timeout, {self._seconds:g} s: it hangs"
        timer = threading.Timer(self._seconds, _end, [told])
        timer.daemon = True
        timer.start()
        try:
            return self._judge.judge(tasks)
        finally:
            timer.cancel()


def _end(why: str) -> NoReturn:
    """End this process, whose judge is gone, and what it started: an engine that hangs would keep its GPU. Serve starts
    the replica anew; an exception would leave one that cannot judge."""
    import psutil  # Ray's own copy, which is found when Ray is imported

    print(f"judge gone: {why}", file=sys.stderr, flush=True)
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    os._exit(1)


class Front:
    """Takes HTTP requests, queues what they ask, and answers. Holds no engine."""

    def __init__(self, judging: Any, config: ServingConfig, token: Token | None) -> None:
        self._judging, self._config, self._metrics = judging, config, _Metrics()
        self._queue = RewardQueue[RewardRequest, Reward](
            self._judged,
            limits(config),
            keep=lambda reward: reward.final,
            again=lambda reward: replace(reward, calls=0),
            failed=lambda why: Reward(None, "engine_error"),
            note=self._metrics.of_queue,
        )
        self._routes = Routes(self._ask, self._loaded, config.serve, config.rewards, token, self._metrics.answered)

    async def __call__(self, request: Request) -> Response:
        return await self._routes.respond(request)

    async def drain(self) -> None:
        """Refuse what comes from now on, and finish what was taken in, within `serve.grace`."""
        await self._queue.drain(self._config.serve.grace)

    async def _ask(self, requests: Sequence[RewardRequest], until: float) -> list[Reward]:
        try:
            found = await rewarded(self._queue, requests, self._config.rewards, until)
        except Expired:
            self._metrics.expired.inc()
            raise
        self._metrics.rewarded(found)
        return found

    async def _judged(self, requests: list[RewardRequest]) -> Sequence[Reward]:
        try:
            return await self._judging.rewards.remote(requests)
        except ray.exceptions.RayActorError as error:
            raise EngineLost(f"the judge's process died: {str(error).splitlines()[0]}") from error
        except (DeploymentUnavailableError, ReplicaUnavailableError) as error:
            await asyncio.sleep(_PAUSE)
            raise EngineLost("no judge is running", begun=False) from error

    async def _loaded(self) -> bool:
        try:
            async with asyncio.timeout(1.0):
                return bool(await self._judging.loaded.remote())
        except (TimeoutError, ray.exceptions.RayError, RayServeException):
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


@contextlib.contextmanager
def serving(config: ServingConfig, token: str | None) -> Iterator[str]:
    """Serve rewards while the context lasts; gives the service's address. A cluster is joined or started, and left to
    the caller (`pipeline.stop`); a Serve that ran there before goes on running.

    Raises:
        ConfigError: the service would listen to others without a token, its port is taken, or it does not fit.
        base.JudgeError: the judge cannot be used as configured.
        base.RunError: the service does not start.
    """
    known = _known(config.serve, token)
    _, protocols = reward_protocols(config.rewards)
    engines.identity(config.judge, list(protocols.values()))
    engines.try_out(config.judge, list(protocols.values()))
    session.start(config.cluster)
    running = bool(serve.status().proxies)
    logging.getLogger("ray.serve").setLevel(logging.CRITICAL)  # its errors are raised, and told in one message
    _refuse_address(config.serve, running)
    up = False
    try:
        if not running:
            _listen(config.serve)
        _run(_application(config, known))
        up = True
        yield f"http://{_shown(config.serve.host)}:{config.serve.port}"
        with contextlib.suppress(ray.exceptions.RayError, RayServeException, TimeoutError):
            serve.get_app_handle(APP).drain.remote().result(timeout_s=config.serve.grace + 5)
    finally:
        if not up:
            _kill_replicas()
        if running:
            serve.delete(APP)
        else:
            serve.shutdown()


def _kill_replicas() -> None:
    """End what has not started: Serve would wait until its engine is loaded to end it."""
    with contextlib.suppress(ray.exceptions.RayError, RayServeException):
        serve.delete(APP, _blocking=False)
        for told in ray.util.list_named_actors(all_namespaces=True):
            if told["name"].startswith(f"SERVE_REPLICA::{APP}#"):
                with contextlib.suppress(ValueError):  # it has ended by itself
                    ray.kill(ray.get_actor(told["name"], told["namespace"]))


def _known(given: ServeConfig, token: str | None) -> Token | None:
    if token and (len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token):
        raise ConfigError(
            f"{given.token_env}: the token has {len(token)} characters; {_SHORTEST_TOKEN} or more, of ASCII and "
            "without a space"
        )
    if not token and not is_loopback(given.host):
        raise ConfigError(
            f"serve.host: {given.host} is reached by others, and {given.token_env} is not set; set it to a token that "
            "clients must send, or listen on 127.0.0.1"
        )
    return Token.of(token, os.urandom(16)) if token else None


def _refuse_address(given: ServeConfig, running: bool) -> None:
    """
    Raises:
        ConfigError: the port is taken, or Serve runs already and listens elsewhere: it cannot be changed.
    """
    if not running:
        family = socket.AF_INET6 if ":" in given.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((given.host, given.port))
            except OSError as error:
                raise ConfigError(f"serve.port: {given.host}:{given.port}: {error.strerror}; another port") from error
        return
    from ray.serve.context import _get_global_client

    there = _get_global_client().http_config
    if (there.host, there.port) != (given.host, given.port):
        raise ConfigError(
            f"serve: Serve runs on this cluster already and listens on {there.host}:{there.port}, not on {given.host}:"
            f"{given.port}; set serve.host and serve.port to those, or end it"
        )


def _listen(given: ServeConfig) -> None:
    """Start Serve, which listens where the configuration says."""
    serve.start(
        proxy_location="HeadOnly",
        http_options={"host": given.host, "port": given.port},
        logging_config={"log_level": "WARNING", "enable_access_log": False},
    )


def _application(config: ServingConfig, token: Token | None) -> Any:
    given, cluster = config.serve, config.cluster
    shared: dict[str, Any] = {"graceful_shutdown_wait_loop_s": 0.1, "graceful_shutdown_timeout_s": given.grace}
    shared["logging_config"] = {"log_level": "WARNING", "enable_access_log": False}
    judging = serve.deployment(Judging).options(
        max_ongoing_requests=BATCHES_AT_ONCE * (cluster.max_replicas or cluster.replicas) + 100,
        health_check_period_s=2,
        **_replicas(cluster),
        **_resources(config.judge, cluster),
        **shared,
    )
    front = serve.deployment(Front).options(
        num_replicas=1,
        max_ongoing_requests=given.max_open + 100,
        max_queued_requests=given.max_open,
        ray_actor_options={"num_cpus": 0},
        **shared,
    )
    return front.bind(judging.bind(config), config, token)


def _replicas(cluster: ClusterConfig) -> dict[str, Any]:
    if cluster.max_replicas is None or cluster.max_replicas == cluster.replicas:
        return {"num_replicas": cluster.replicas}
    bounds = {"min_replicas": cluster.replicas, "max_replicas": cluster.max_replicas}
    return {"autoscaling_config": bounds | {"target_ongoing_requests": BATCHES_AT_ONCE}}


def _resources(judge: JudgeConfig, cluster: ClusterConfig) -> dict[str, Any]:
    """What Serve is asked for, for each replica. Over several machines (not tried on GPUs) the replica is in a
    placement group with a bundle for each GPU, in which vLLM's Ray backend starts its workers."""
    actor: dict[str, Any] = {"num_cpus": cluster.cpus_per_replica}
    if judge.engine == "vllm" and placement.backend(cluster) is not None:
        bundles = [{"GPU": 1.0, "CPU": cluster.cpus_per_replica}] + [{"GPU": 1.0}] * (int(cluster.gpus_per_replica) - 1)
        return {
            "ray_actor_options": actor,
            "placement_group_bundles": bundles,
            "placement_group_strategy": cluster.placement.upper(),
        }
    if cluster.gpus_per_replica:
        actor["num_gpus"] = cluster.gpus_per_replica
    elif judge.engine == "vllm":
        from trustjudge_ray.judging import vllm_engine

        actor["runtime_env"] = {"env_vars": vllm_engine.cpu_environment()}
    return {"ray_actor_options": actor}


def _run(application: Any) -> None:
    try:
        serve.run(application, name=APP, route_prefix="/")
    except (RuntimeError, ValueError, TimeoutError, RayServeException) as error:
        told = serve.status().applications.get(APP)
        reasons = [told.message, *(d.message for d in told.deployments.values())] if told else []
        raise base.RunError(
            f"the reward service does not start: {' '.join(r for r in reasons if r) or error}"
        ) from error


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class _Metrics:
    """What the front counts; the table is above."""

    def __init__(self) -> None:
        name = "trustjudge_service_{}".format
        self._requests = Counter(name("requests_total"), "HTTP requests answered.", ("route", "status"))
        self._seconds = Histogram(name("seconds"), "How long HTTP requests took.", _SECONDS, ("route",))
        self._failed = Counter(name("failed_total"), "Completions without a reward.", ("status",))
        self.expired = Counter(name("expired_total"), "HTTP requests whose deadline came first.")
        self._counters = {
            each: Counter(name(f"{each}_total"), f"Completions that were {each}.")
            for each in ("cached", "shared", "dropped", "rejected")
        }
        self._counters["engine_deaths"] = Counter(name("engine_deaths_total"), "Batches on which an engine died.")
        self._histograms = {
            "batch": Histogram(name("batch"), "Completions of a batch.", _SIZES),
            "batch_seconds": Histogram(name("batch_seconds"), "How long batches took.", _SECONDS),
        }
        self._waiting = Gauge(name("waiting"), "Completions in the queue.")

    def answered(self, route: str, status: int, seconds: float) -> None:
        """An HTTP request was answered."""
        self._requests.inc(1, {"route": route, "status": str(status)})
        self._seconds.observe(seconds, {"route": route})

    def rewarded(self, rewards: Sequence[Reward]) -> None:
        """A body's rewards were given."""
        for reward in rewards:
            if reward.value is None:
                self._failed.inc(1, {"status": reward.status})

    def of_queue(self, name: str, value: float) -> None:
        """What the queue notes."""
        if name in self._histograms:
            self._histograms[name].observe(value)
        elif name in self._counters:
            if value:
                self._counters[name].inc(value)
        else:
            self._waiting.set(value)
