"""Measures one part of the system: `python jobs/benchmark.py NAME [--reference DIR] [--small]`.

Prints the figures for a person, then one JSON object as the last line of standard output. `--small` is the quick form:
it runs every step, but its figures mean nothing.
"""

import argparse
import importlib
import json
import os
import pkgutil
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "benchmarks"
NAMES = sorted(m.name for m in pkgutil.iter_modules([str(FOLDER)]) if not m.name.startswith("_"))


def main() -> None:
    """Run one benchmark; whatever engines and workers print meanwhile goes to standard error."""
    parser = argparse.ArgumentParser(description="Measure one part of the system.")
    parser.add_argument("name", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--reference", type=Path, metavar="DIR", help="a checkout of the reference program")
    parser.add_argument("--small", action="store_true", help="run every step, quickly; the figures mean nothing")
    given = parser.parse_args()
    if given.reference and not (given.reference / "trustjudge").is_dir():
        parser.error(f"--reference: {given.reference} has no folder trustjudge; a checkout of the reference program")
    sys.path.insert(0, str(Path(__file__).parent))
    options = importlib.import_module("benchmarks").Options(
        reference=given.reference,
        small=given.small,
        out=os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8"),
    )
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    figures = importlib.import_module(f"benchmarks.{given.name}").run(options)
    options.say(json.dumps({"benchmark": given.name, **figures}, allow_nan=False))
    options.out.close()


if __name__ == "__main__":
    main()
