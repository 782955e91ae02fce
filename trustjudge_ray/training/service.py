"""The reward service on Ray Serve: how it is started, and how it is ended (`service_front` has what runs there).

One cluster has one reward service. A command that starts it again takes the place of the one before, whose command then
leaves alone what is no longer its own.
"""

import contextlib
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray import serve
from ray.serve.exceptions import RayServeException

from trustjudge_ray.config import ClusterConfig, ConfigError, JudgeConfig
from trustjudge_ray.judging import base, engines
from trustjudge_ray.pipeline import placement, session
from trustjudge_ray.serving_config import ServeConfig, ServingConfig, is_loopback
from trustjudge_ray.training.adapters import reward_protocols
from trustjudge_ray.training.service_front import BATCHES_AT_ONCE, Front, Judging
from trustjudge_ray.training.service_front import build as build
from trustjudge_ray.training.service_http import Token

APP = "trustjudge-rewards"
_MARK = "deployed_by"
"""Under which the front's `user_config` has the mark of the command that deployed it."""
_SHORTEST_TOKEN = 16
_REMIND = 30.0
"""Seconds after which it is said again what is waited for."""
_GONE = (ray.exceptions.RayError, RayServeException, TimeoutError)
"""What is raised where Serve, the application or the cluster is not there any more."""


@contextlib.contextmanager
def serving(config: ServingConfig, token: str | None, say: Callable[[str], None] = lambda line: None) -> Iterator[str]:
    """Serve rewards while the context lasts; gives the service's address. A cluster is joined or started, and left to
    the caller (`pipeline.stop`); a Serve that ran there before goes on running.

    One that runs on the cluster already is replaced, also where this one's judge then does not load; whoever has been
    replaced ends nothing but what is its own.

    Args:
        say: is told every half minute what is waited for while the judge is loading, for as long as that takes; and at
            the end that the service is another's by now.

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
    mine, up = secrets.token_hex(8), False
    try:
        if not running:
            _listen(config.serve)
        with telling(say, _waited_for):
            _run(_application(config, known, mine))
        up = True
        yield f"http://{_shown(config.serve.host)}:{config.serve.port}"
        with contextlib.suppress(*_GONE):
            if _owner() == mine:
                serve.get_app_handle(APP).drain.remote().result(timeout_s=config.serve.grace + 5)
    finally:
        with quiet(), contextlib.suppress(*_GONE):
            _end(mine, up, running, say)


def _owner() -> str:
    """The mark of the command whose reward service is on the cluster; "" where there is none. Serve's own time of a
    deployment does not tell them apart: it stays what it was when another takes the place."""
    from ray.serve.context import _get_global_client

    client = _get_global_client(raise_if_no_controller_running=False)
    found = client.get_serve_details()["applications"].get(APP) if client else None
    front = (found or {}).get("deployments", {}).get(Front.__name__) or {}
    return str(((front.get("deployment_config") or {}).get("user_config") or {}).get(_MARK, ""))


def _end(mark: str, up: bool, running: bool, say: Callable[[str], None]) -> None:
    """End what a command has deployed, if that is still there, and Serve with it where nothing else is there that
    another has; a Serve that was `running` before goes on. `up`: it had started."""
    owner = _owner()
    mine = owner == mark or not (up or owner)
    if mine and not up:
        _kill_replicas()
    if up and not mine:
        say("another command has taken this service's place, and goes on" if owner else "another has ended the service")
    others = set(serve.status().applications) - ({APP} if mine else set())
    if not running and not others:
        serve.shutdown()
    elif mine and (not up or _owner() == mark):
        serve.delete(APP)


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
    with contextlib.suppress(*_GONE):
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


def _application(config: ServingConfig, token: Token | None, mark: str) -> Any:
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
        user_config={_MARK: mark},
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
