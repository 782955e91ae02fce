"""Writes requirements/cpu.lock and requirements/training.lock: every package of an environment, pinned, as pip resolves
them here and now. Training has its own, because TRL warns beside vLLM.

    .venv/bin/python scripts/lock.py

Nothing is installed. requirements/left-out.txt is left out, requirements/no-deps.txt is added as it stands.
"""

import json
import platform
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = {
    "cpu": ["{root}[cpu,dev]"],
    "training": [
        "{root}[ray,trl]",
        "accelerate>=1.10",
        "gguf>=0.17",
        "hypothesis",
        "psutil",
        "pytest",
        "pytest-timeout",
    ],
}
"""What each lock is resolved from; where packages are in the first one too, in the same versions."""
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
HEADER = """\
# Everything of one environment of scripts/install.sh, for Python {python} on Linux x86_64. Written by scripts/lock.py.
# To be installed with --no-deps: what requirements/left-out.txt names is missing on purpose.
"""


def listed(name: str) -> list[str]:
    """The lines of a requirements file without comments."""
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    return [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip()]


def normal(name: str) -> str:
    """A package name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve(wanted: list[str], *options: str) -> dict[str, str] | None:
    """Name and version of every package that a fresh environment would get, or None where pip finds no solution."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    packages = [package.format(root=ROOT) for package in wanted]
    done = subprocess.run([*command, *options, *packages], stdout=subprocess.PIPE, check=False)
    if done.returncode:
        return None
    found = [package["metadata"] for package in json.loads(done.stdout)["install"]]
    return {normal(package["name"]): package["version"] for package in found}


def write(name: str) -> None:
    """Resolves with pip's own configuration first, then with PyTorch's CPU index beside it."""
    wanted = [*ENVIRONMENTS[name], *([] if name == "cpu" else ["--constraint", str(ROOT / "requirements/cpu.lock")])]
    resolved = resolve(wanted) or resolve(wanted, "--extra-index-url", TORCH_INDEX)
    if resolved is None:
        sys.exit("lock.py: pip found no set of versions that fits; its message is above")
    unwanted = {normal(name) for name in listed("left-out.txt")} | {"trustjudge-ray", "pip"}
    pins = {f"{name}=={version}" for name, version in resolved.items() if name not in unwanted}
    pins |= set(listed("no-deps.txt"))
    python = ".".join(platform.python_version_tuple()[:2])
    lock = ROOT / "requirements" / f"{name}.lock"
    lock.write_text(HEADER.format(python=python) + "\n".join(sorted(pins)) + "\n")
    print(f"{lock}: {len(pins)} packages")


if __name__ == "__main__":
    for environment in sys.argv[1:] or ENVIRONMENTS:
        write(environment)
