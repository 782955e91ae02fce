"""The benchmarks' quick forms: every step runs and the last line is the JSON object that machines read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parent.parent / "jobs" / "benchmark.py"


def last_line(*arguments):
    command = [sys.executable, str(BENCHMARK), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    *_, last = done.stdout.splitlines()
    return json.loads(last)


def test_analysis_measures_evaluate_without_a_reference():
    figures = last_line("analysis", "--small")
    assert figures["benchmark"] == "analysis"
    assert min(figures[name] for name in ("evaluate_seconds", "evaluate_gb", "davidson_seconds")) > 0


@pytest.mark.engine
@pytest.mark.slow
def test_labels_are_read_at_every_remainder_of_the_cache_block():
    assert last_line("labels", "--small")["ratio"] > 0


def test_a_reference_that_is_none_is_one_message():
    command = [sys.executable, str(BENCHMARK), "analysis", "--reference", str(BENCHMARK.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "has no folder trustjudge" in done.stderr
