"""cluster.yaml as Ray's own loader, schema and autoscaler read it. No cloud is asked."""

import copy
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trustjudge_ray import config

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "cluster.yaml").read_text("utf-8")
GPU_TYPES = ("spot_gpu", "ondemand_gpu")


@pytest.fixture
def cluster() -> dict[str, Any]:
    """The file as `ray up` prepares it: with Ray's defaults for AWS, and checked by its schema."""
    pytest.importorskip("ray")
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(yaml.safe_load(TEXT))
    validate_config(prepared)
    return prepared


@pytest.fixture
def leaderboard() -> config.ClusterConfig:
    return config.load(ROOT / "configs" / "leaderboard.yaml").config.cluster


def test_rays_schema_refuses_what_it_does_not_know(cluster):
    """The schema check is a real one: the same file with one misspelt key does not pass."""
    from jsonschema import ValidationError
    from ray.autoscaler._private.util import prepare_config, validate_config

    misspelt = yaml.safe_load(TEXT)
    misspelt["idle_timeout_minuets"] = misspelt.pop("idle_timeout_minutes")
    with pytest.raises(ValidationError, match="idle_timeout_minuets"):
        validate_config(prepare_config(misspelt))


def test_a_replica_fits_every_gpu_worker_and_no_head(cluster, leaderboard):
    """A replica that fits nowhere waits for ever, and a judge on the head would be one without a GPU."""
    types = cluster["available_node_types"]
    for name in GPU_TYPES:
        assert types[name]["resources"]["GPU"] >= leaderboard.gpus_per_replica > 0
        assert types[name]["resources"]["CPU"] >= leaderboard.cpus_per_replica + 0.5
    assert types["head"]["resources"]["GPU"] == 0
    assert types["head"]["max_workers"] == 0
    assert leaderboard.gpus_per_replica == leaderboard.tensor_parallel


def test_all_replicas_of_the_leaderboard_find_a_place(cluster, leaderboard):
    types = cluster["available_node_types"]
    on_one = min(int(types[name]["resources"]["GPU"] // leaderboard.gpus_per_replica) for name in GPU_TYPES)
    wanted = math.ceil((leaderboard.max_replicas or leaderboard.replicas) / on_one)
    assert cluster["max_workers"] == wanted
    assert types["spot_gpu"]["max_workers"] + types["ondemand_gpu"]["min_workers"] == wanted
    assert types["ondemand_gpu"]["max_workers"] == wanted, "without spot the run may still have all of them"


def test_spot_and_on_demand_are_the_same_machine(cluster):
    """Ray compares priorities only of types that fit equally well: another resource, and the order is another."""
    spot, other = (copy.deepcopy(cluster["available_node_types"][name]) for name in GPU_TYPES)
    assert spot["node_config"].pop("InstanceMarketOptions")["MarketType"] == "spot"
    assert spot["node_config"] == other["node_config"]
    assert spot["resources"] == other["resources"]
    assert spot["priority"] > other["priority"]


def launched(cluster: dict[str, Any], replicas: int, lately: dict[str, float] | None = None) -> dict[str, int]:
    """What Ray's autoscaler starts for so many pending replicas of the leaderboard.

    Args:
        lately: what Ray remembers of types that did not come up (0: just now, 1: long ago).
    """
    from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
    from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
    from ray.autoscaler.v2.utils import ResourceRequestUtil

    settings = config.load(ROOT / "configs" / "leaderboard.yaml").config.cluster
    bundle = {"GPU": settings.gpus_per_replica, "CPU": settings.cpus_per_replica}
    asked = AutoscalingConfig(copy.deepcopy(cluster), skip_content_hash=True)
    request = SchedulingRequest(
        disable_launch_config_check=True,
        node_type_configs=asked.get_node_type_configs(),
        max_num_nodes=asked.get_max_num_nodes(),
        resource_requests=ResourceRequestUtil.group_by_count([ResourceRequestUtil.make(bundle)] * replicas),
        recoverable_resource_availabilities=lately or {},
    )
    reply = ResourceDemandScheduler(event_logger=None).schedule(request)
    assert not reply.infeasible_resource_requests
    return {launch.instance_type: launch.count for launch in reply.to_launch}


@pytest.mark.parametrize(
    ("replicas", "lately", "started"),
    [
        (0, {}, {"ondemand_gpu": 1}),
        (2, {}, {"ondemand_gpu": 1}),
        (8, {}, {"ondemand_gpu": 1, "spot_gpu": 3}),
        (8, {"spot_gpu": 0.0}, {"ondemand_gpu": 4}),
    ],
)
def test_rays_autoscaler_takes_spot_first_and_on_demand_where_spot_does_not_come_up(cluster, replicas, lately, started):
    assert launched(cluster, replicas, lately) == started


def test_with_spot_taken_out_of_the_file_all_replicas_run_on_demand(cluster):
    """What docs/cluster.md tells one to do when AWS refuses every spot machine."""
    cluster["available_node_types"]["spot_gpu"]["max_workers"] = 0
    assert launched(cluster, 8) == {"ondemand_gpu": 4}


def test_a_launch_that_aws_refuses_does_not_count_against_spot(cluster):
    """Why one worker is always on demand. When Ray learns to count refusals, this fails, and the file can change."""
    from ray.autoscaler.v2.instance_manager.subscribers.cloud_resource_monitor import CloudResourceMonitor
    from ray.core.generated.instance_manager_pb2 import Instance, InstanceUpdateEvent

    monitor = CloudResourceMonitor()
    monitor.notify([InstanceUpdateEvent(instance_type="spot_gpu", new_instance_status=Instance.ALLOCATION_FAILED)])
    assert monitor.get_recoverable_resource_availabilities() == {}
    monitor.notify([InstanceUpdateEvent(instance_type="spot_gpu", new_instance_status=Instance.ALLOCATION_TIMEOUT)])
    assert monitor.get_recoverable_resource_availabilities() == {"spot_gpu": 0.0}


def test_no_account_no_key_and_one_token(cluster):
    assert not re.search(r"\b\d{12}\b|AKIA|aws_secret|arn:aws", TEXT)
    assert all("IamInstanceProfile" in t["node_config"] for t in cluster["available_node_types"].values())
    assert cluster["file_mounts"]["/home/ubuntu/.ray/auth_token"] == "~/.ray/auth_token"
    assert any("RAY_AUTH_MODE=token" in command for command in cluster["initialization_commands"])


def test_every_mounted_file_of_the_project_is_there_and_enough_to_install(cluster):
    """A mount that does not exist ends `ray up` after the head was paid for."""
    mounted = {local for local in cluster["file_mounts"].values() if not local.startswith("~")}
    assert all((ROOT / local).exists() for local in mounted)
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    needed = set(re.findall(r'(?:readme = |license-files = \[)"([^"]+)"', project)) | {
        "pyproject.toml",
        "trustjudge_ray",
    }
    assert needed <= mounted


def test_the_dashboard_is_not_open_to_the_world_and_the_autoscaler_runs(cluster):
    (start,) = [c for c in cluster["head_start_ray_commands"] if "ray start" in c]
    assert "--dashboard-host=127.0.0.1" in start
    assert "--autoscaling-config=~/ray_bootstrap_config.yaml" in start


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray, when its command line is imported
def test_ray_start_knows_every_option_of_the_start_commands(cluster):
    """An unknown option is found out on the cloud, after the machine was paid for."""
    from ray.scripts.scripts import start

    known = {name for option in start.params for name in option.opts}
    commands = cluster["head_start_ray_commands"] + cluster["worker_start_ray_commands"]
    used = {option for command in commands for option in re.findall(r"--[a-z-]+", command)}
    assert used <= known
    assert len(used) > 5
