"""`trustjudge serve-rewards` as a process: how it ends, whatever it is doing, and what an engine that hangs costs."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai_fixtures import KEY, KEY_NAME, Canned, chat_answer
from s3_fixtures import free_port
from served import body, config_of

pytestmark = pytest.mark.ray

BATCHES = """
import asyncio, json, subprocess, sys
from trustjudge_ray.serving_config import loads
from trustjudge_ray.training.rewards import RewardRequest
from trustjudge_ray.training.service import Judging

async def batches():
    judging = Judging(loads(sys.argv[1], "test"))
    engine = subprocess.Popen(["sleep", "1000"])  # holds this process's output open as long as it lives
    asked = [RewardRequest(({"role": "user", "content": "Why?"},), f"completion {i}") for i in range(3)]
    found = await asyncio.gather(*(judging.rewards([each]) for each in asked))
    print([reward.status for (reward,) in found])
    engine.kill()

asyncio.run(batches())
"""


@pytest.mark.parametrize(
    ("seconds", "timeout", "told"), [(1.0, 2.5, (0, "['ok', 'ok', 'ok']\n")), (1000.0, 0.5, (1, ""))]
)
def test_a_batch_has_its_time_from_when_the_judge_begins_on_it_and_one_that_hangs_ends_the_process_and_its_engine(
    seconds, timeout, told
):
    given = {
        "judge": {"engine": "scripted", "scripted": {"seconds_per_batch": seconds}},
        "serve": {"batch_timeout": timeout},
    }
    done = subprocess.run(
        [sys.executable, "-c", BATCHES, json.dumps(given)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == told, done.stderr
    assert ("serve.batch_timeout" in done.stderr) == (told[0] == 1)


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")  # Ray's own
def test_what_is_waited_for_is_said_again_and_again_until_the_service_has_started():
    from trustjudge_ray.training import service

    said: list[str] = []
    often = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 3:
            often.set()

    with service.telling(say, lambda: "the judge: it is loading", every=0.01):
        assert often.wait(30)
    count = len(said)
    assert said[1] == "still starting after 0.02 s: the judge: it is loading"
    assert "telling" not in {thread.name for thread in threading.enumerate()}
    assert len(said) == count


class Command:
    """`trustjudge serve-rewards` with a configuration, as a process of its own."""

    def __init__(self, folder: Path, given: dict[str, Any], **environment: str) -> None:
        path, self.url = folder / "rewards.yaml", f"http://127.0.0.1:{given['serve']['port']}"
        path.write_text(json.dumps(given), "utf-8")
        inherited = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        self._said = (folder / "said").open("w+b")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trustjudge_ray", "serve-rewards", str(path)],
            stderr=self._said,
            env=inherited | environment,
            start_new_session=True,
        )

    @property
    def said(self) -> str:
        return Path(self._said.name).read_text("utf-8", "replace")

    def wait_until(self, there: Callable[[], object]) -> None:
        end = time.monotonic() + 120
        while not there():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < end, self.said
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.05)

    def started(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self, number: int, seconds: float) -> int:
        """Send a signal, twice as one does who has no patience; the exit status, when nothing of it is left."""
        mine = self.started()
        self.process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.3)
        self.process.send_signal(number)
        status = self.process.wait(seconds)
        assert mine
        assert psutil.wait_procs(mine, timeout=20)[1] == []
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{self.url}/healthz")
        return status


SIGNALS = [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.heavy)]
"""With the exit status that each leaves."""


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    begun: list[Command] = []

    def begin(given: dict[str, Any], **environment: str) -> Command:
        begun.append(Command(tmp_path, given, **environment))
        return begun[-1]

    yield begin
    for each in begun:
        for process in [*(each.started() if each.process.poll() is None else []), each.process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        each.process.wait()


@pytest.mark.heavy
@pytest.mark.slow
def test_an_engine_that_hangs_costs_what_it_was_asked_and_not_the_service(command):
    given = asdict(config_of(free_port(), deadline=120, batch_timeout=1))
    given["judge"]["scripted"] = {"seconds_per_batch": 1000.0}
    service = command(given)
    service.wait_until(lambda: "Ctrl-C ends the service" in service.said)
    (replica,) = [p for p in service.started() if "trustjudge-rewards:Judging" in " ".join(p.cmdline())]
    told = httpx.post(f"{service.url}/v1/reward", json=body("hangs"), timeout=150).json()["rewards"][0]
    assert (told["value"], told["status"]) == (None, "engine_error")
    assert not replica.is_running()
    told = httpx.post(f"{service.url}/v1/reward", json=body(""), timeout=150).json()["rewards"][0]
    assert told["status"] == "empty_response"  # by a judge's process that is there again
    assert service.end(signal.SIGTERM, 60) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), SIGNALS)
def test_a_signal_while_the_engine_is_loading_ends_the_command_and_leaves_nothing(command, endpoint, number, status):
    endpoint.otherwise = lambda _: Canned(chat_answer().body, fault="slow" if len(endpoint.requests) > 1 else "")
    given = asdict(config_of(free_port()))
    given["judge"] = {"engine": "openai_api", "model": "m", "base_url": endpoint.url, "api_key_env": KEY_NAME}
    given["rewards"]["mode"] = "score"
    service = command(given, **{KEY_NAME: KEY})
    service.wait_until(lambda: len(endpoint.requests) > 1)  # the first was asked by the command itself
    assert service.end(number, 15) == status
    assert service.said.splitlines()[-1] == "stopped"
    assert "Traceback" not in service.said


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), SIGNALS)
def test_a_signal_while_ray_is_starting_ends_the_command_and_leaves_nothing(command, number, status):
    service = command(asdict(config_of(free_port())))
    service.wait_until(lambda: any("gcs_server" in process.name() for process in service.started()))
    assert service.end(number, 30) == status
    assert service.said.splitlines()[-1] == "stopped"


@pytest.mark.heavy
@pytest.mark.slow
def test_a_sigterm_that_ray_gets_too_ends_the_command_all_the_same(command):
    """As `timeout` and many a supervisor send it: to the whole group of processes."""
    service = command(asdict(config_of(free_port())))
    service.wait_until(lambda: "Ctrl-C ends the service" in service.said)
    mine = service.started()
    os.killpg(service.process.pid, signal.SIGTERM)
    assert service.process.wait(60) in (0, 143), service.said
    assert psutil.wait_procs(mine, timeout=60)[1] == []


@pytest.mark.slow
def test_the_command_serves_until_sigterm_answers_what_it_took_in_and_leaves_nothing(tmp_path):
    config = asdict(config_of(free_port(), deadline=20))
    config["judge"]["scripted"]["seconds_per_batch"] = 1.0
    path, url = tmp_path / "rewards.yaml", f"http://127.0.0.1:{config['serve']['port']}"
    path.write_text(json.dumps(config), "utf-8")
    command = "from trustjudge_ray.commands.serving import serve_rewards as serve; serve()"
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with subprocess.Popen(
        [sys.executable, "-c", command, str(path)], stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stderr is not None
        said = b""
        while b"Ctrl-C ends the service" not in said:
            line = process.stderr.readline()
            assert line, said.decode()
            said += line
        mine = psutil.Process(process.pid).children(recursive=True)

        async def scene() -> list[int]:
            async with httpx.AsyncClient(base_url=url, timeout=30) as client:
                taken_in = asyncio.create_task(client.post("/v1/reward", json=body("a", "b")))
                await asyncio.wait([taken_in], timeout=0.3)
                process.send_signal(signal.SIGTERM)
                return [(await taken_in).status_code]

        assert asyncio.run(scene()) == [200]
        _, rest = process.communicate(timeout=60)
    assert process.returncode == 0, (said + rest).decode()
    assert rest.decode().splitlines() == ["stopping: what was taken in is answered"], "Ray's own words about its end"
    assert mine
    assert psutil.wait_procs(mine, timeout=10)[1] == []
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz")
