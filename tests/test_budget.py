"""What one start may ask for: exactly so many judgments, and no batch that would take it over its cost."""

import json

import pytest

from trustjudge_ray import budget, config
from trustjudge_ray.config import ClusterConfig, ConfigError, RunConfig

PENDING = {"one": {0: 5, 1: 3, 7: 4}, "two": {0: 2, 1: 3}}


def amount(pending: budget.Pending) -> int:
    return sum(sum(buckets.values()) for buckets in pending.values())


@pytest.mark.parametrize("most", range(1, 20))
def test_no_more_than_allowed_is_asked_and_no_less_where_there_is_as_much(most):
    kept = budget.within(PENDING, most)
    assert amount(kept) == min(most, 17)
    for judge, buckets in kept.items():
        assert all(0 < n <= PENDING[judge][bucket] for bucket, n in buckets.items())


def test_judges_get_the_same_questions_as_far_as_the_budget_goes():
    assert budget.within(PENDING, 7) == {"one": {0: 5}, "two": {0: 2}}
    assert budget.within(PENDING, 9) == {"one": {0: 5, 1: 2}, "two": {0: 2}}


def test_without_a_limit_everything_pending_is_asked():
    assert budget.within(PENDING, None) is PENDING


def test_all_replicas_that_there_may_be_are_paid_for():
    cluster = ClusterConfig(replicas=2, max_replicas=8, gpus_per_replica=2, price_per_gpu_hour=3.0)
    assert budget.hourly_cost(cluster) == 48.0
    assert budget.until(RunConfig(max_cost=12.0), cluster, start=1000.0) == 1000.0 + 900.0
    assert budget.until(RunConfig(), cluster, start=1000.0) is None


@pytest.mark.parametrize("cluster", [ClusterConfig(gpus_per_replica=1), ClusterConfig(price_per_gpu_hour=2.0)])
def test_without_a_price_or_a_gpu_there_is_no_cost_rather_than_a_cost_of_nothing(cluster):
    assert budget.hourly_cost(cluster) is None


def test_a_batch_is_not_begun_that_would_end_after_the_money():
    allowance = budget.Allowance(until=100.0)
    assert allowance.allows(99.0), "nothing is known of batches yet"
    allowance.took(10.0)
    allowance.took(4.0)
    assert allowance.allows(79.0)
    assert not allowance.allows(81.0), "the longest batch is what counts, not the last one"
    assert budget.Allowance(until=None).allows(1e12)


def load(run: dict, cluster: dict) -> config.LoadedConfig:
    judge = {"engine": "scripted"}
    return config.loads(json.dumps({"corpus": {"paths": ["x"]}, "judge": judge, "run": run, "cluster": cluster}))


def test_a_cost_needs_a_price_and_gpus_to_be_counted_by():
    priced = {"price_per_gpu_hour": 2.0, "gpus_per_replica": 1, "tensor_parallel": 1}
    assert load({"max_cost": 5}, priced).config.run.max_cost == 5.0
    for missing in priced.keys() - {"tensor_parallel"}:
        kept = {name: value for name, value in priced.items() if name != missing}
        with pytest.raises(ConfigError, match=r"run\.max_cost: got 5\.0; cluster\.price_per_gpu_hour"):
            load({"max_cost": 5}, kept)


@pytest.mark.parametrize("run", [{"max_judgments": 0}, {"max_cost": 0}, {"max_cost": -1}])
def test_a_budget_of_nothing_is_refused(run):
    with pytest.raises(ConfigError, match=r"run\.max_"):
        load(run, {"price_per_gpu_hour": 2.0, "gpus_per_replica": 1})


def test_the_reason_names_the_limit_that_ended_the_start():
    both = RunConfig(max_judgments=100, max_cost=5.0)
    assert budget.reason(both, 100, 7, 1.0).startswith("run.max_judgments is 100: 100 judgments")
    assert budget.reason(both, 60, 47, 4.9).startswith("run.max_cost is 5, of which 4.90 is spent: 60 judgments")
