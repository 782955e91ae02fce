"""What Prometheus reads of a judge's process, at the port where Ray exports it."""

import time
import urllib.request

import pyarrow as pa
import pytest
from corpora import compare_protocol, responses, score_protocol

from trustjudge_ray.config import PlanConfig
from trustjudge_ray.judging import base, plan, scripted

pytestmark = pytest.mark.ray


def some_judgments() -> pa.Table:
    """Two scores and two comparisons, one of which failed."""
    protocols = {p.name: p for p in (score_protocol(), compare_protocol())}
    given = responses({"q": {"a": "one", "b": "two"}})
    tasks = plan.plan(given, [plan.Spec("scripted", p, p.name) for p in protocols.values()], PlanConfig(), [])
    tasks = plan.with_texts(tasks, given)
    readings = scripted.ScriptedJudge({"rationale": 7}, protocols).judge(tasks)
    readings[-1] = base.Reading("engine_error")
    return base.judgments(tasks, readings, protocols)


def exported(port: int, judge: str) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return [line for line in answer.read().decode().splitlines() if "trustjudge_" in line and judge in line]


def value(lines: list[str], name: str, *tags: str) -> float:
    (found,) = [line for line in lines if line.startswith(name + "{") and all(tag in line for tag in tags)]
    return float(found.rsplit(" ", 1)[1])


def test_judgments_tokens_batches_and_deaths_are_exported(local_ray: None):
    import ray

    from trustjudge_ray.pipeline.metrics import Metrics

    kept = ray.remote(Metrics).options(num_cpus=0).remote("scripted-exported")
    ray.get([kept.batch.remote(some_judgments(), 2.0), kept.engine_died.remote()])
    port, deadline = ray.nodes()[0]["MetricsExportPort"], time.monotonic() + 90
    while "engine_deaths" not in "".join(lines := exported(port, "scripted-exported")):
        assert time.monotonic() < deadline, "nothing was exported"
        time.sleep(0.2)
    total = "ray_trustjudge_judgments_total"
    assert value(lines, total, 'protocol="score-5"', 'status="ok"') == 2
    assert value(lines, total, 'protocol="compare"', 'status="ok"') == 1
    assert value(lines, total, 'protocol="compare"', 'status="engine_error"') == 1
    assert value(lines, "ray_trustjudge_output_tokens_total", 'protocol="score-5"') == 2 * (7 + 1)
    assert value(lines, "ray_trustjudge_batch_seconds_count") == 1
    assert value(lines, "ray_trustjudge_batch_seconds_sum") == 2
    assert value(lines, "ray_trustjudge_engine_deaths_total") == 1
