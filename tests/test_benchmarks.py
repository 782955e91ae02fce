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


def test_coverage_is_simulated_in_every_world_and_far_above_that_of_independent_cases():
    figures = last_line("coverage", "--small")
    assert figures["benchmark"] == "coverage"
    for name in ("cr", "ntr3", "ntr5", "win_rate"):
        assert 0.8 <= figures[name] <= 1
        assert figures["naive"][name] < 0.7
    assert 0.8 <= figures["rating"] <= 1
    assert {name: len(shares) for name, shares in figures["worlds"].items()} == {
        "cr": 3,
        "ntr3": 3,
        "ntr5": 3,
        "win_rate": 6,
        "rating": 2,
    }


def test_what_is_planted_is_looked_for_in_rankings_by_every_design_and_between_nights():
    figures = last_line("planted", "--small")
    assert figures["benchmark"] == "planted"
    assert figures["as_the_judge"], "the nights are not what the scripted judge says"
    assert len(figures["designs"]) == 6
    assert all(0.5 < of_design["tau"] <= 1 for of_design in figures["designs"].values())
    assert 0.25 < figures["share"] < 0.3
    assert figures["effect"] > 0.3
    assert figures["power"] > 0


@pytest.mark.heavy
@pytest.mark.engine
@pytest.mark.slow
def test_labels_are_read_at_every_remainder_of_the_cache_block():
    assert last_line("labels", "--small")["ratio"] > 0


def test_a_reference_that_is_none_is_one_message():
    command = [sys.executable, str(BENCHMARK), "analysis", "--reference", str(BENCHMARK.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "has no folder trustjudge" in done.stderr


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.heavy
def test_the_planned_order_computes_no_more_than_a_shuffled_one():
    figures = last_line("prefix", "--small")
    assert 0 < figures["planned"] <= 0.6
    assert figures["planned"] < figures["shuffled"]
    assert 0 < figures["reference"] < 1


@pytest.mark.engine
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.heavy
def test_the_pipeline_is_compared_with_the_bare_engine_on_its_own_prompts():
    assert last_line("pipeline", "--small")["ratio"] > 0


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.heavy
def test_a_float32_head_reads_labels_nearer_to_float32_than_a_bfloat16_head():
    figures = last_line("precision", "--small")
    assert 0 < figures["float32_head"]["mean"] < figures["bfloat16"]["mean"]


@pytest.mark.engine
@pytest.mark.slow
def test_the_gpu_check_says_what_it_cannot_do_here_and_how_to_go_on():
    script = BENCHMARK.parent / "gpu_check.py"
    refused = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert "--cpu" in refused.stderr
    for check in ("prompt_scores", "tensor_parallel"):
        command = [sys.executable, str(script), "--cpu", "--small", "--only", check]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert (done.returncode, json.loads(done.stdout.splitlines()[-1])) == (0, {"gpu_check": {check: None}})


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.heavy
def test_memory_is_measured_of_the_driver_the_judge_and_the_other_workers():
    figures = last_line("memory", "--small")
    assert min(figures[f"{part}_mb"] for part in ("driver", "judge", "worker")) > 10
    assert figures["ratio"] == max(figures[f"{part}_ratio"] for part in ("driver", "judge", "worker"))


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.heavy
def test_a_finished_run_judges_nothing_and_a_new_model_exactly_its_own():
    figures = last_line("resume", "--small")
    assert (figures["judged"], figures["added"]) == (0, 4 * (1 + 2 * 20))
    assert figures["tasks_per_second"] > 0


@pytest.mark.slow
@pytest.mark.heavy
def test_a_bucket_is_measured_at_two_sizes_and_what_lies_between_is_told_by_the_task():
    figures = last_line("buckets", "--small")
    assert 100 < figures["bytes"] < 1000
    assert {"plan_us", "count_us", "read_us", "plan_kb", "count_kb", "read_kb"} <= figures.keys()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.heavy
def test_two_replicas_are_measured_beside_one_and_every_judgment_is_made():
    figures = last_line("scaling", "--small")
    assert figures["replicas"] == 2
    assert figures["ratio"] > 0


@pytest.mark.engine
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.heavy
def test_labelling_pairs_is_measured_beside_the_bare_engine():
    figures = last_line("preferences", "--small")
    assert figures["ratio"] > 0
    assert figures["judgments_per_pair"] == 4


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.heavy
def test_the_reward_service_loses_and_mixes_up_no_answer():
    figures = last_line("service", "--small")
    assert (figures["lost"], figures["doubled"]) == (0, 0)
