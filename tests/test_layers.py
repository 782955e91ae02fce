import subprocess
import sys

import pytest
from layers import package_sources, violations


def test_modules_import_only_what_their_layer_allows():
    assert violations(package_sources()) == []


@pytest.mark.parametrize(
    ("module", "line", "complaint"),
    [
        ("analysis.scoring", "import ray", "imports ray"),
        ("store", "from ray import data", "imports ray"),
        ("pipeline", "def f():\n    import vllm", "imports vllm"),
        ("judging.labels", "import time", "imports time"),
        ("analysis.verdicts", "from trustjudge_ray.store import RunFolder", "edge store"),
        ("report.page", "import trustjudge_ray.pipeline", "edge pipeline"),
    ],
)
def test_a_forbidden_import_is_found(module, line, complaint):
    assert any(complaint in wrong for wrong in violations({module: line}))


def test_analysis_and_command_line_start_without_ray_vllm_and_torch():
    probe = (
        "import sys, builtins\n"
        "heavy = {'ray', 'vllm', 'torch', 'transformers'}\n"
        "real = builtins.__import__\n"
        "def guarded(name, *rest):\n"
        "    if name.split('.')[0] in heavy: raise ImportError('not installed: ' + name)\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = guarded\n"
        "import trustjudge_ray, trustjudge_ray.runs, trustjudge_ray.cli\n"
        "from trustjudge_ray.analysis import evaluation, ranking\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
