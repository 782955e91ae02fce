"""What only a GPU can show, in about ten minutes on a machine with one: `python jobs/gpu_check.py [--model NAME]`.

Not tried on a GPU by its authors: it was written on a machine without one and tried there with `--cpu --small`. It
prints, check by check, the device; what bfloat16 does to label log-probabilities against float32; throughput; the
prefix and pipeline ratios; whether the engine's V2 runner scores tokens inside a prompt; and, where there are two GPUs,
whether tensor parallelism reads what one GPU reads. The last line is one JSON object with every figure; a check that
cannot be made here is `null` there, and one that fails says why, does not stop the others, and makes the exit status 1.
The model must fit into two fifths of a GPU's memory, because the pipeline ratio needs it twice.
"""

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from trustjudge_ray.judging.base import JudgeError
from trustjudge_ray.judging.vllm_environment import is_cpu


def main() -> int:
    """Make every check; 1 if one failed."""
    sys.path.insert(0, str(Path(__file__).parent))
    gpu: Any = importlib.import_module("benchmarks._gpu")
    parser = argparse.ArgumentParser(description="What only a GPU can show.")
    parser.add_argument("--model", default="embedded", help="a model folder or name; by default the embedded judge")
    parser.add_argument("--only", choices=list(gpu.CHECKS), help="just this check")
    parser.add_argument("--cpu", action="store_true", help="go on without a GPU, as far as that goes")
    parser.add_argument("--small", action="store_true", help="every step, quickly; the figures mean nothing")
    given = parser.parse_args()
    try:
        if is_cpu() and not given.cpu:
            parser.error("the installed vLLM runs on the CPU; install trustjudge-ray[gpu] on a GPU machine, or --cpu")
    except JudgeError as error:
        parser.error(str(error))
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever engines and workers print
    with out:
        check = gpu.Check(model=given.model, small=given.small, out=out)
        return 0 if gpu.run(check, [given.only] if given.only else list(gpu.CHECKS)) else 1


if __name__ == "__main__":
    sys.exit(main())
