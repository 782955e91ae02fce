"""Rewards over HTTP, as the contract of the service has it, and what a client does when the service is full or lost."""

import asyncio
import json
import math
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import numpy as np
import pytest
from openai_fixtures import BusyHTTPServer

from trustjudge_ray.config import ConfigError
from trustjudge_ray.training import adapters
from trustjudge_ray.training.adapters import verl
from trustjudge_ray.training.adapters.client import _seconds, _spread
from trustjudge_ray.training.adapters.trl import AsyncTrlReward, TrlReward
from trustjudge_ray.training.rewards import RewardRequest


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


@contextmanager
def service(
    answers: list[tuple[int, dict[str, str], Any] | None], port: int = 0, together: int = 1
) -> Iterator[tuple[str, list[Any]]]:
    """An HTTP server on this machine that gives these answers one after the other (None: it resets the connection),
    and what it was asked. It answers when so many ask `together`."""
    asked: list[Any] = []
    there = threading.Barrier(together)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((self.path, self.headers.get("Authorization"), json.loads(body)))
            given = answers[len(asked) - 1]
            if given is None:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
                return
            status, headers, answer = given
            there.wait(20)
            said = json.dumps(answer).encode()
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(said))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *args: Any) -> None:
            pass

    server = BusyHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


ASKED = [RewardRequest((turn("user", "Why?"),), "so", "because"), RewardRequest((turn("user", "Why?"),), "", group="g")]
GIVEN = [
    {"value": 0.75, "status": "ok", "calls": 2, "details": {"p_win": 0.75, "label_mass": None}},
    {"value": None, "status": "empty_response", "calls": 0, "details": {}},
]


def test_the_client_comes_again_when_the_service_is_full_and_keeps_a_missing_reward_missing():
    with service([(429, {"Retry-After": "0"}, {}), (200, {}, {"rewards": GIVEN})]) as (url, asked):
        found = adapters.RewardClient(url, token="secret").rewards(ASKED)
    assert [(reward.value, reward.status, reward.calls) for reward in found] == [
        (0.75, "ok", 2),
        (None, "empty_response", 0),
    ]
    assert found[0].details == {"p_win": 0.75}
    messages = [{"role": "user", "content": "Why?"}]
    wanted = [
        {"messages": messages, "completion": "so", "reference": "because"},
        {"messages": messages, "completion": "", "group": "g"},
    ]
    assert asked == [("/v1/reward", "Bearer secret", {"requests": wanted})] * 2


def test_a_token_in_the_address_is_sent_and_shown_by_no_message():
    with service([(200, {}, {"rewards": GIVEN}), (401, {}, {"error": "no"})]) as (url, asked):
        client = adapters.RewardClient(url.replace("http://", "http://any:se%2Dcret@"))
        client.rewards(ASKED)
        with pytest.raises(adapters.RewardServiceError, match=url) as told:
            client.rewards(ASKED)
    assert [authorization for _, authorization, _ in asked] == ["Bearer se-cret"] * 2
    assert "se-cret" not in str(told.value)


def test_a_large_batch_is_sent_in_parts_that_cut_no_group_and_comes_back_in_order():
    requests = [RewardRequest((turn("user", f"q{i % 3}"),), f"answer {i}") for i in range(9)]

    parts = [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    given = [
        (200, {}, {"rewards": [{"value": float(i), "status": "ok", "calls": 1, "details": {}} for i in part]})
        for part in parts
    ]
    with service(given) as (url, asked):
        found = adapters.RewardClient(url, most=5).rewards(requests)
    assert [[int(row["completion"].split()[1]) for row in body["requests"]] for _, _, body in asked] == parts
    assert [reward.value for reward in found] == [float(i) for i in range(9)]


def test_long_texts_are_sent_in_bodies_that_the_service_lets_through():
    """Twelve completions of 0.9 MB as JSON, of which three pairs are groups, are no body of 10.8 MB."""
    requests = [RewardRequest((turn("user", f"q{i % 9}"),), f"{i}" + "é" * 150_000) for i in range(12)]
    given = [{"value": 0.5, "status": "ok", "calls": 1, "details": {}}]
    with service([(200, {}, {"rewards": given * n}) for n in (4, 4, 4)]) as (url, asked):
        assert len(adapters.RewardClient(url).rewards(requests)) == 12
    bodies = [body["requests"] for _, _, body in asked]
    assert max(len(json.dumps(rows)) for rows in bodies) < 4_001_000
    sent = [[int(row["completion"].split("é")[0]) for row in rows] for rows in bodies]
    assert sent == [[0, 9, 1, 10], [2, 11, 3, 4], [5, 6, 7, 8]]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((400, {}, {"error": "no messages"}), "HTTP 400: .*no messages"),
        ((200, {}, {"rewards": GIVEN[:1]}), "1 rewards for 2 requests"),
        ((200, {}, {"result": []}), "no rewards in its answer"),
        *(
            ((200, {}, {"rewards": [GIVEN[0], GIVEN[1] | {"value": value}]}), "no rewards in its answer")
            for value in (math.nan, "0.5", True)
        ),
        ((200, {"Content-Length": "9999"}, {"rewards": GIVEN}), ".*is the reward service running"),
        ((503, {"Retry-After": "0"}, {"error": "starting"}), "HTTP 503: .*starting"),
    ],
)
def test_an_answer_without_rewards_is_an_error_that_names_the_service(answer, message):
    with (
        service([answer] * 2) as (url, _),
        pytest.raises(adapters.RewardServiceError, match=f"{url}/v1/reward: {message}"),
    ):
        adapters.RewardClient(url, tries=2).rewards(ASKED)


FOUND = (200, {}, {"rewards": GIVEN})


def hasty(url: str, **given: Any) -> adapters.RewardClient:
    """A client that does not wait between its tries."""
    client = adapters.RewardClient(url, **given)
    client._pause.set()
    return client


BROKEN_OFF = (200, {"Content-Length": "9999"}, {"rewards": GIVEN})


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("lost", [None, BROKEN_OFF, *((status, {}, "gone") for status in (500, 502, 503, 504))])
def test_a_service_that_gave_rewards_and_is_lost_for_a_moment_does_not_end_the_training(lost, asynchronous):
    with service([FOUND, lost, FOUND]) as (url, asked):
        trainer = AsyncTrlReward(url) if asynchronous else TrlReward(url)
        for _ in range(2):
            found = trainer(["Why?"] * 2, ["so", ""])
            assert (asyncio.run(found) if asynchronous else found) == [0.75, None]
    assert len(asked) == 3
    assert asked[1] == asked[2]


def test_samples_that_a_trainer_asks_about_one_by_one_reach_the_service_together():
    async def scene() -> list[dict[str, float]]:
        return await asyncio.gather(
            *(verl.compute_score("x", f"{i}", None, {"prompt": "Why?"}, config=url) for i in range(60))
        )

    with service([(200, {}, {"rewards": GIVEN[:1]})] * 60, together=60) as (url, _):
        assert [told["score"] for told in asyncio.run(scene())] == [0.75] * 60


def test_a_service_that_is_started_again_is_found_again():
    with service([FOUND]) as (url, _):
        client = adapters.RewardClient(url)
        client.rewards(ASKED)
    back = threading.Event()

    def start_again() -> None:
        with service([FOUND], int(url.rsplit(":", 1)[1])):
            back.wait(30)

    starting = threading.Timer(0.2, start_again)
    starting.start()
    try:
        assert client.rewards(ASKED)[0].value == 0.75
    finally:
        back.set()
        starting.join()


def test_a_service_that_stays_away_is_an_error_after_so_many_tries():
    with service([FOUND, None, None]) as (url, asked):
        client = adapters.RewardClient(url, tries=2)
        client.rewards(ASKED)
        with pytest.raises(adapters.RewardServiceError, match="is the reward service running"):
            client.rewards(ASKED)
    assert len(asked) == 3


@pytest.mark.parametrize("broken", [None, BROKEN_OFF])
def test_a_connection_that_is_broken_off_at_a_first_call_ends_no_training_and_a_wrong_port_is_told_soon(broken):
    with service([broken, broken, FOUND]) as (url, asked):
        assert hasty(url).rewards(ASKED)[0].value == 0.75
    assert asked[0] == asked[2]
    with service([broken] * 4) as (url, asked):
        with pytest.raises(adapters.RewardServiceError, match="is the reward service"):
            hasty(url).rewards(ASKED)
        assert len(asked) == 3


def test_a_service_that_is_late_at_the_first_call_is_asked_again_for_what_it_has_judged_meanwhile():
    late = (504, {}, {"error": {"code": "deadline", "message": "2 of 2 requests were not judged before the deadline"}})
    with service([late, FOUND]) as (url, asked):
        assert hasty(url).rewards(ASKED)[0].value == 0.75
    assert asked[0] == asked[1]


def test_a_service_that_is_there_and_full_is_asked_more_often_than_one_that_is_lost():
    full, gone = (429, {"Retry-After": "0"}, {}), (502, {}, "gone")
    with service([FOUND, full, gone, full, full, FOUND, full, gone, gone]) as (url, asked):
        client = hasty(url, tries=2)
        for _ in range(2):
            client.rewards(ASKED)
        with pytest.raises(adapters.RewardServiceError, match="HTTP 502"):
            client.rewards(ASKED)
        assert len(asked) == 9
    with service([full] * 7) as (url, asked):
        client = hasty(url, tries=2)
        with pytest.raises(adapters.RewardServiceError, match="HTTP 429"):
            client.rewards(ASKED)
        assert len(asked) == 6


def test_clients_that_were_refused_together_do_not_come_again_together_nor_earlier_than_they_were_told():
    waits = [_spread(f"body {i}".encode(), attempt) for i in range(50) for attempt in range(3)]
    assert len(set(waits)) == 150
    assert all(1 <= wait < 1.5 for wait in waits)
    assert np.mean(waits) == pytest.approx(1.25, abs=0.05)


@pytest.mark.parametrize("answer", [(status, {}, "gone") for status in (500, 502, 504)])
def test_what_never_gave_a_reward_is_not_asked_again_and_a_wrong_address_is_told_at_once(answer):
    with service([answer, FOUND]) as (url, asked), pytest.raises(adapters.RewardServiceError):
        adapters.RewardClient(url).rewards(ASKED)
    assert len(asked) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 408, 413, 422, 500])
def test_a_refusal_is_told_at_once_also_by_a_service_that_gave_rewards(status):
    with service([FOUND, (status, {"Retry-After": "0"}, {"error": {"code": "no"}}), FOUND]) as (url, asked):
        client = adapters.RewardClient(url)
        client.rewards(ASKED)
        with pytest.raises(adapters.RewardServiceError, match=f"HTTP {status}: .*no"):
            client.rewards(ASKED)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("told", "attempt", "seconds"),
    [
        ("7", 0, 7.0),
        ("60", 0, 60.0),
        ("9" * 400, 0, 60.0),
        ("1", 4, 8.0),
        *((odd, 1, 1.0) for odd in ("nan", "-3", "0", "", None, "Wed, 21 Oct 2026 07:28:00 GMT")),
        (None, 2000, 30.0),
    ],
)
def test_a_client_comes_again_no_sooner_than_it_is_told_and_ever_later_while_others_are_served(told, attempt, seconds):
    assert _seconds(told, attempt) == seconds


def test_a_token_that_no_header_can_hold_is_refused_without_being_shown():
    for token in ("secret of a file\n", "s\u00e9cret", "secret\r\nX-Other: 1"):
        with pytest.raises(ConfigError, match="TRUSTJUDGE_SERVICE_TOKEN: the token holds") as told:
            adapters.RewardClient("http://127.0.0.1:1", token=token)
        assert "cret" not in str(told.value)


def test_a_service_that_is_not_there_is_an_error_that_asks_whether_it_runs():
    with service([]) as (url, _):
        pass
    with pytest.raises(adapters.RewardServiceError, match="is the reward service running"):
        adapters.RewardClient(url).rewards(ASKED)


def test_a_trainer_is_pointed_at_a_service_by_its_address():
    with service([(200, {}, {"rewards": GIVEN})] * 2) as (url, asked):
        assert TrlReward(url)(["Why?"] * 2, ["so", ""]) == [0.75, None]
        assert asyncio.run(AsyncTrlReward(url)(["Why?"] * 2, ["so", ""])) == [0.75, None]
    assert len(asked) == 2
