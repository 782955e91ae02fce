"""Writes requirements/cpu.lock: every package of `.[cpu,dev]`, pinned, as pip resolves them here and now.

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
LOCK = ROOT / "requirements" / "cpu.lock"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
HEADER = """\
# Everything that `make install` puts into .venv, for Python {python} on Linux x86_64. Written by scripts/lock.py.
# To be installed with --no-deps: what requirements/left-out.txt names is missing on purpose.
"""


def listed(name: str) -> list[str]:
    """The lines of a requirements file without comments."""
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    return [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip()]


def normal(name: str) -> str:
    """A package name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve(*options: str) -> dict[str, str] | None:
    """Name and version of every package that a fresh environment would get, or None where pip finds no solution."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    done = subprocess.run([*command, *options, f"{ROOT}[cpu,dev]"], stdout=subprocess.PIPE, check=False)
    if done.returncode:
        return None
    found = [package["metadata"] for package in json.loads(done.stdout)["install"]]
    return {normal(package["name"]): package["version"] for package in found}


def main() -> None:
    """Resolves with pip's own configuration first, then with PyTorch's CPU index beside it."""
    resolved = resolve() or resolve("--extra-index-url", TORCH_INDEX)
    if resolved is None:
        sys.exit("lock.py: pip found no set of versions that fits; its message is above")
    unwanted = {normal(name) for name in listed("left-out.txt")} | {"trustjudge-ray", "pip"}
    pins = {f"{name}=={version}" for name, version in resolved.items() if name not in unwanted}
    pins |= set(listed("no-deps.txt"))
    python = ".".join(platform.python_version_tuple()[:2])
    LOCK.write_text(HEADER.format(python=python) + "\n".join(sorted(pins)) + "\n")
    print(f"{LOCK}: {len(pins)} packages")


if __name__ == "__main__":
    main()
