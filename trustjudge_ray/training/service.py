"""The reward service on Ray Serve: a front that queues and answers, and replicas that each hold a judge.

The front is one process without an engine, so that the death of an engine breaks no connection. A replica whose engine
has died ends its process, Serve starts it anew, and the front sends the batch again (`service_queue`). What the front
counts (`service_metrics`) is told by itself at `/metrics`, and through Ray's own metrics, where Ray puts `ray_` before
each name.
"""

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

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
from trustjudge_ray.training.service_engine import Timed, end
from trustjudge_ray.training.service_http import Routes, Token, rewarded
from trustjudge_ray.training.service_metrics import METRICS, Metric, Tally
from trustjudge_ray.training.service_queue import EngineLost, Expired, Limits, RewardQueue

APP = "trustjudge-rewards"
BATCHES_AT_ONCE = 2
"""Batches that a replica holds: while one is judged, the next is there."""
_PAUSE = 0.5
"""Seconds before a batch is sent again where there is no replica to send it to."""
_SHORTEST_TOKEN = 16
_REMIND = 30.0
"""Seconds after which it is said again what is waited for."""


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
            end(str(error))
        return [replace(reward, details=dict(reward.details)) for reward in found]

    async def loaded(self) -> bool:
        """Whether the judge is there: this process answers nothing before."""
        return True


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
            note=self._metrics.note,
        )
        self._routes = Routes(
            self._ask,
            self._loaded,
            config.serve,
            config.rewards,
            token,
            self._metrics.answered,
            self._metrics.own.text,
        )

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
def serving(config: ServingConfig, token: str | None, say: Callable[[str], None] = lambda line: None) -> Iterator[str]:
    """Serve rewards while the context lasts; gives the service's address. A cluster is joined or started, and left to
    the caller (`pipeline.stop`); a Serve that ran there before goes on running.

    Args:
        say: is told every half minute what is waited for while the judge is loading, for as long as that takes.

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
        with telling(say, _waited_for):
            _run(_application(config, known))
        up = True
        yield f"http://{_shown(config.serve.host)}:{config.serve.port}"
        with contextlib.suppress(ray.exceptions.RayError, RayServeException, TimeoutError):
            serve.get_app_handle(APP).drain.remote().result(timeout_s=config.serve.grace + 5)
    finally:
        if not up:
            _kill_replicas()
        with quiet():
            if running:
                serve.delete(APP)
            else:
                serve.shutdown()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Leave out what Ray prints for the driver: that Serve's controller, which is ended here, is dead."""
    from ray._private import worker

    worker._worker_logs_enabled = False
    try:
        yield
    finally:
        worker._worker_logs_enabled = True


@contextlib.contextmanager
def telling(say: Callable[[str], None], waited_for: Callable[[], str], every: float = _REMIND) -> Iterator[None]:
    """Say again and again, every so many seconds, what is waited for, while the context lasts."""
    over = threading.Event()

    def tell() -> None:
        rounds = 0
        while not over.wait(every):
            rounds += 1
            with contextlib.suppress(ray.exceptions.RayError, RayServeException):
                say(f"still starting after {rounds * every:g} s: {waited_for()}")

    thread = threading.Thread(target=tell, name="telling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _waited_for() -> str:
    """What Serve says of the deployments that are not there: that a judge is loading, or does not fit."""
    told = serve.status().applications.get(APP)
    lacking = {} if told is None else {n: d.message for n, d in told.deployments.items() if d.status != "HEALTHY"}
    if Judging.__name__ in lacking:
        return f"the judge is not loaded. {' '.join(lacking[Judging.__name__].split())}".strip()
    return "the judge is there, its front not yet" if lacking else "Ray Serve begins"


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
