"""A Ray of several nodes on this machine: a head that judges nothing, and nodes that can be killed and replaced."""

import os
import shutil
import tempfile
import time
from typing import Any

import psutil

JUDGE = "JudgeActor"
"""What the process of a judge is called."""
_RAYS_OWN = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")
_MEMORY = 80 * 2**20
_QUIET = {
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_idle_worker_killing_time_threshold_ms": "600000",  # starting a worker anew costs seconds
}


class Nodes:
    """`count` nodes of `cpus` CPUs each beside the head. Every process of theirs gets `environment` as well."""

    def __init__(self, count: int, cpus: int, environment: dict[str, str]) -> None:
        from ray._common.utils import reset_ray_address
        from ray.cluster_utils import Cluster

        self._count, self._cpus = count, cpus
        self._temporary = tempfile.mkdtemp(prefix="tjf-", dir="/tmp")
        self._before = {name: os.environ.get(name) for name in environment | _QUIET}
        os.environ.update(environment | _QUIET)
        head = {"num_cpus": 0, "object_store_memory": _MEMORY, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head | {"temp_dir": self._temporary})
        reset_ray_address()  # otherwise a local Ray that another test starts would join these nodes
        self.address: str = self._cluster.address
        self.heal()

    def heal(self) -> None:
        """As many nodes as in the beginning again."""
        while len(self._cluster.worker_nodes) < self._count:
            self._cluster.add_node(num_cpus=self._cpus, object_store_memory=_MEMORY)

    def close(self) -> None:
        self._cluster.shutdown()
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(self._temporary, ignore_errors=True)

    def judges(self) -> list[psutil.Process]:
        """The processes that hold a judge, on whatever node."""
        return [process for process in self.workers() if JUDGE in _called(process)]

    def node_of(self, process: psutil.Process) -> Any:
        """The node that a worker belongs to."""
        above = {parent.pid for parent in process.parents()}
        return next(node for node in self._cluster.worker_nodes if _raylet(node) in above)

    def kill(self, node: Any) -> None:
        """End a node at once, with all that runs on it."""
        workers = psutil.Process(_raylet(node)).children(recursive=True)
        self._cluster.remove_node(node, allow_graceful=False)
        for worker in workers:  # when a machine goes, nothing of it lives on
            try:
                worker.kill()
            except psutil.NoSuchProcess:
                continue

    def busy(self, seconds: float) -> list[str]:
        """What still works, or holds a judge, for a job so many seconds later; nothing as soon as nothing does."""
        deadline = time.monotonic() + seconds
        while True:
            called = [_called(process) for process in self.workers()]
            working = [name for name in called if name.startswith("ray::") and not name.startswith(_RAYS_OWN)]
            if not working or time.monotonic() > deadline:
                return working
            time.sleep(0.1)

    def workers(self) -> list[psutil.Process]:
        found = []
        for node in self._cluster.worker_nodes:
            try:
                found += psutil.Process(_raylet(node)).children(recursive=True)
            except psutil.NoSuchProcess:
                continue
        return found


def _raylet(node: Any) -> int:
    return node.all_processes["raylet"][0].process.pid


def _called(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def speaker(port: int) -> psutil.Process:
    """The process that has a connection from this port of this machine."""
    for connection in psutil.net_connections("tcp4"):
        if connection.pid and connection.laddr.port == port and connection.pid != os.getpid():
            return psutil.Process(connection.pid)
    raise AssertionError(f"no process speaks from port {port}")
