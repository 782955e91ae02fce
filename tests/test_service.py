"""The reward service on a real Ray Serve with the scripted judge: under load, in a flood, when its judge is killed."""

import asyncio
import os
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from s3_fixtures import free_port
from served import as_request, body, config_of

from trustjudge_ray.config import ConfigError
from trustjudge_ray.serving_config import ServingConfig
from trustjudge_ray.training.adapters import RewardClient

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),  # Ray's own
]

TOKEN = "a-token-of-this-test-alone"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


@dataclass
class Running:
    """A service that runs, and the same rewards without it."""

    url: str
    config: ServingConfig
    temporary: Path

    def expected(self, *completions: str) -> list[float | None]:
        from trustjudge_ray.training import service

        return [reward.value for reward in service.build(self.config).rewards(list(map(as_request, completions)))]

    def processes(self, kind: str) -> list[psutil.Process]:
        """Those that are the front, or hold a judge, among what this test's Ray started."""
        return [
            process
            for process in psutil.Process().children(recursive=True)
            if f"ServeReplica:trustjudge-rewards:{kind}" in " ".join(process.cmdline())
        ]

    def judge(self) -> psutil.Process:
        """The process that holds the judge."""
        (found,) = self.processes("Judging")
        return found

    def client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self.url, headers=HEADERS, timeout=60, limits=limits)

    def post(self, *completions: str, **more: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/reward", json=body(*completions) | more, headers=HEADERS, timeout=60)


@pytest.fixture(scope="module")
def running(local_ray: None) -> Iterator[Running]:
    import ray

    from trustjudge_ray.training import service

    config = config_of(free_port())
    with service.serving(config, TOKEN) as url:
        yield Running(url, config, Path(ray.get_runtime_context().get_temp_dir()))


def rewards(answer: httpx.Response) -> list[float | None]:
    """The values, to be compared: what else is in a batch moves the last bit of a sum."""
    assert answer.status_code == 200, answer.text
    return pytest.approx([reward["value"] for reward in answer.json()["rewards"]], rel=1e-12, abs=0)


def test_many_clients_get_the_rewards_that_the_judge_gives_without_a_service(running):
    async def scene() -> list[httpx.Response]:
        async with running.client() as client:
            return await asyncio.gather(*(client.post("/v1/reward", json=body(*names)) for names in asked))

    asked = [[f"completion {i} {j}" for j in range(1 + i % 3)] for i in range(24)]
    for names, answer in zip(asked, asyncio.run(scene()), strict=True):
        assert rewards(answer) == running.expected(*names)
    direct = httpx.post(f"{running.url}/openrlhf", json={"query": ["p a"], "prompts": ["p "]}, headers=HEADERS)
    assert isinstance(direct.json()["rewards"][0], float)


def test_a_wrong_token_is_turned_away_and_the_right_one_lies_in_no_file_of_ray(running):
    headers = {"Authorization": "Bearer x"}
    assert httpx.post(f"{running.url}/v1/reward", json=body("a"), headers=headers).status_code == 401
    assert rewards(running.post("a")) == running.expected("a")
    files = [path for path in running.temporary.rglob("*") if path.is_file() and path.stat().st_size < 2**24]
    assert files
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]


def test_a_flood_is_refused_beyond_the_queue_and_every_client_is_told_when_to_come_again(running):
    async def scene() -> list[httpx.Response]:
        async with running.client() as client:
            bodies = [body(*(f"flood {i} {j}" for j in range(8))) for i in range(40)]
            return await asyncio.gather(*(client.post("/v1/reward", json=each) for each in bodies))

    answers = asyncio.run(scene())
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) == {200, 429}
    assert statuses[200] >= 64 // 8
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in answers if answer.status_code == 429)
    for i, answer in enumerate(answers):
        if answer.status_code == 200:
            assert rewards(answer) == running.expected(*(f"flood {i} {j}" for j in range(8)))


def test_a_deadline_is_kept_and_what_was_not_begun_is_not_judged_behind_the_clients_back(running):
    late = running.post("late", deadline=0.001)
    assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline")
    again = running.post("late")
    assert again.json()["rewards"][0]["calls"] == 1


def test_a_judge_that_is_killed_in_mid_load_costs_no_answer_and_mixes_none_up(running):
    clients, each = 16, 12
    health: list[int] = []

    async def scene() -> list[tuple[list[str], httpx.Response]]:
        answered: list[tuple[list[str], httpx.Response]] = []

        async def one(client: httpx.AsyncClient, i: int) -> None:
            for j in range(each):
                names = [f"killed {i} {j} {k}" for k in range(2)]
                answered.append((names, await client.post("/v1/reward", json=body(*names))))
                if len(answered) == clients * each // 3:
                    health.append((await client.get("/healthz")).status_code)
                    os.kill(before.pid, signal.SIGKILL)
                    await asyncio.to_thread(before.wait, 10)
                    health.append((await client.get("/healthz")).status_code)

        async with running.client() as client:
            await asyncio.gather(*(one(client, i) for i in range(clients)))
        return answered

    before = running.judge()
    answered = asyncio.run(scene())
    assert len(answered) == clients * each
    statuses = Counter(answer.status_code for _, answer in answered)
    assert set(statuses) <= {200, 503}
    assert statuses[200] > clients * each // 3
    asked = [name for names, _ in answered for name in names]
    right = dict(zip(asked, running.expected(*asked), strict=True))
    for names, answer in answered:
        if answer.status_code == 200:
            assert rewards(answer) == [right[name] for name in names]
        else:
            assert "Retry-After" in answer.headers
    assert rewards(running.post("after")) == running.expected("after")
    assert running.judge().pid != before.pid
    assert [*health, httpx.get(f"{running.url}/healthz").status_code] == [200, 503, 200]
    logs = [path.read_text("utf-8") for path in running.temporary.rglob("serve/replica_*_Front_*.log")]
    assert any("died with a batch" in log for log in logs), "nobody would find out why"


@pytest.mark.slow
@pytest.mark.heavy
def test_a_completion_that_kills_judges_fails_alone_and_its_neighbours_are_answered(running):
    async def scene() -> list[httpx.Response]:
        async with running.client() as client:
            return await asyncio.gather(*(client.post("/v1/reward", json=body(name)) for name in names))

    names = ["fine 1", "KILLER", "fine 2"]
    fine, deadly, too = asyncio.run(scene())
    assert [rewards(fine), rewards(too)] == [running.expected("fine 1"), running.expected("fine 2")]
    assert [deadly.json()["rewards"][0][key] for key in ("value", "status")] == [None, "engine_error"]


def test_what_happened_is_counted_where_prometheus_reads(running):
    import ray

    assert running.post("").json()["rewards"][0]["status"] == "empty_response"
    port, end = ray.nodes()[0]["MetricsExportPort"], time.monotonic() + 60
    wanted = [
        'requests_total{.*route="/v1/reward".*status="200"',
        'requests_total{.*status="429"',
        "rejected_total",
        "expired_total",
        "failed_total",
        "engine_deaths_total",
        "batch_count",
        "seconds_count",
        "waiting",
    ]
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            lines = [line for line in answer.read().decode().splitlines() if "trustjudge_service_" in line]
        missing = [name for name in wanted if not any(all(part in line for part in name.split(".*")) for line in lines)]
        if not missing:
            break
        assert time.monotonic() < end, f"not exported: {missing}"
    told = httpx.get(f"{running.url}/metrics", headers=HEADERS).text.splitlines()
    assert not [name for name in wanted if not any(all(part in line for part in name.split(".*")) for line in told)]
    assert httpx.get(f"{running.url}/metrics").status_code == 401


def test_a_service_that_would_listen_elsewhere_than_it_says_or_to_others_without_a_token_does_not_start(running):
    from trustjudge_ray.training import service

    for config, token, complaint in [
        (config_of(free_port()), None, "listens on 127.0.0.1"),
        (config_of(free_port(), host="0.0.0.0"), None, "TRUSTJUDGE_SERVICE_TOKEN is not set"),
        (config_of(free_port(), host="0.0.0.0"), "short", "16 or more"),
    ]:
        with pytest.raises(ConfigError, match=complaint), service.serving(config, token):
            pass
    assert running.post("still there").status_code == 200


@pytest.mark.heavy
def test_a_front_that_is_killed_costs_a_client_that_had_rewards_no_answer(running):
    client = RewardClient(running.url, TOKEN)
    assert [reward.value for reward in client.rewards([as_request("before")])] == running.expected("before")
    names = [f"in flight {i}" for i in range(24)]
    (front,) = running.processes("Front")

    async def scene() -> list[float | None]:
        asked = [asyncio.create_task(client.arewards([as_request(name)])) for name in names]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        front.kill()
        return [reward.value for (reward,) in await asyncio.gather(*asked)]

    assert asyncio.run(scene()) == pytest.approx(running.expected(*names), rel=1e-12, abs=0)
    assert not front.is_running()
