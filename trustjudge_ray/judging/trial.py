"""A few tasks through a judge in a process of its own, which has the environment that judging gives it.

`try_judge` starts this module as a program: a judge on the CPU needs variables that must be there before a process
starts, and one that dies takes nobody with it.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from trustjudge_ray.config import ClusterConfig, ConfigError, JudgeConfig
from trustjudge_ray.judging import engines, protocols
from trustjudge_ray.judging.base import JudgeError, JudgeGone, judgments
from trustjudge_ray.judging.vllm_environment import cpu_environment
from trustjudge_ray.schema import TASK_TEXTS, from_rows


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of it: `judgments` rows (task_id, protocol, status, label_logprobs, label_mass, emitted, detail),
    seconds to load and to judge, peak memory of the process in bytes, what the judge says of itself; or an `error`."""

    judgments: list[dict[str, Any]]
    load_seconds: float = 0.0
    judge_seconds: float = 0.0
    peak_bytes: int = 0
    described: dict[str, Any] | None = None
    error: str | None = None


def try_judge(judge: JudgeConfig, asked: list[protocols.Protocol], tasks: pa.Table, cluster: ClusterConfig) -> Trial:
    """Load a judge and put TASK_TEXTS rows to it, as the pipeline would, in another process."""
    request = {
        "judge": asdict(judge),
        "protocols": [protocols.to_yaml(protocol) for protocol in asked],
        "tasks": tasks.to_pylist(),
        "tensor_parallel": cluster.tensor_parallel,
    }
    environment = dict(os.environ)
    if judge.engine == "vllm" and not cluster.gpus_per_replica:
        environment |= cpu_environment()
    with tempfile.TemporaryDirectory(prefix="trustjudge-trial-") as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", "trustjudge_ray.judging.trial", str(answer)]
        with (Path(folder) / "log").open("w+b") as log:
            done = subprocess.run(
                command, input=json.dumps(request).encode(), stdout=log, stderr=log, env=environment, check=False
            )
            log.seek(0)
            said = log.read().decode("utf-8", "replace").strip().splitlines()
        if answer.exists():
            return Trial(**json.loads(answer.read_text("utf-8")))
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
    hint = "; signal 9 is most often a machine out of memory" if done.returncode == -9 else ""
    return Trial(
        [], error=f"the judge's process ended with {how}{hint}; its last words: {said[-1] if said else 'none'}"
    )


def main() -> None:
    """The program: a request from standard input, the answer to the file that is named."""
    request = json.load(sys.stdin)
    judge = JudgeConfig(**request["judge"])
    asked = {protocol.name: protocol for protocol in map(protocols.parse, request["protocols"])}
    tasks = from_rows(request["tasks"], TASK_TEXTS)
    try:
        trial = _tried(judge, asked, tasks, request["tensor_parallel"])
    except (ConfigError, JudgeError, JudgeGone) as error:
        trial = Trial([], error=str(error))
    answer = Path(sys.argv[1])
    written = answer.with_suffix(".part")
    written.write_text(json.dumps(asdict(trial), default=str), "utf-8")
    written.rename(answer)


def _tried(judge: JudgeConfig, asked: dict[str, protocols.Protocol], tasks: pa.Table, tensor_parallel: int) -> Trial:
    started = time.monotonic()
    loaded = engines.build(judge, asked, tensor_parallel)
    ready = time.monotonic()
    rows = judgments(tasks, loaded.judge(tasks), asked, judge.temperature)
    done = time.monotonic()
    describe = getattr(loaded, "describe", None)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    kept = ["task_id", "kind", "protocol", "status", "label_logprobs", "label_mass", "emitted", "output", "detail"]
    kept += ["prompt_tokens"]
    described = describe() if describe else None
    return Trial(rows.select(kept).to_pylist(), ready - started, done - ready, peak, described)


if __name__ == "__main__":
    main()
