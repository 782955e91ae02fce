"""What the reward service says over HTTP, without Ray: its routes over a real queue and the scripted judge."""

import asyncio
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import httpx
import pytest
from prometheus_client import parser
from starlette.requests import Request

from trustjudge_ray.config import ConfigError
from trustjudge_ray.judging import engines
from trustjudge_ray.serving_config import ServingConfig, is_loopback, loads
from trustjudge_ray.training.adapters import reward_protocols
from trustjudge_ray.training.rewards import Reward, RewardRequest, TrustJudgeReward
from trustjudge_ray.training.service_http import Routes, Token, reward_queue, rewarded
from trustjudge_ray.training.service_metrics import Tally
from trustjudge_ray.training.service_queue import EngineLost, Expired, Limits, QueueFull, Stopping

SALT = b"0123456789abcdef"


@functools.cache
def config_of(*overrides: str) -> ServingConfig:
    return loads("judge: {engine: scripted, scripted: {noise: 0.2, position_bias: 0.1}}", "test", list(overrides))


def judge_of(config: ServingConfig) -> TrustJudgeReward:
    settings, protocols = reward_protocols(config.rewards)
    return TrustJudgeReward(settings, engines.build(config.judge, protocols), protocols)


class Service:
    """The routes over a queue whose judge is asked in this process."""

    def __init__(
        self,
        config: ServingConfig,
        token: Token | None = None,
        ask: Any = None,
        loaded: bool = True,
        metrics: Callable[[], str] = lambda: "",
    ) -> None:
        self.judge, self.batches, self.answered = judge_of(config), [], []
        limits = Limits(max_batch=8, max_wait=0.01, max_queue=config.serve.max_queue, in_flight=2, cache=100)
        self.queue = reward_queue(self._judged, limits, lambda name, value: None)

        async def queued(requests: Sequence[RewardRequest], until: float) -> list[Reward]:
            return await rewarded(self.queue, requests, config.rewards, until)

        async def is_loaded() -> bool:
            return loaded

        routes = Routes(
            ask or queued,
            is_loaded,
            config.serve,
            config.rewards,
            token,
            self._note,
            metrics,
            lambda: self.queue.stopping,
        )

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await (await routes.respond(Request(scope, receive)))(scope, receive, send)

        self.app = app

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://service")

    async def _judged(self, requests: list[RewardRequest]) -> list[Reward]:
        self.batches.append(requests)
        return self.judge.rewards(requests)

    def _note(self, route: str, status: int, seconds: float) -> None:
        self.answered.append((route, status))


def request(completion: str, asked: str = "Why is the sky blue?", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": asked}], "completion": completion, **more}


def as_given(given: dict[str, Any]) -> RewardRequest:
    return RewardRequest(tuple(given["messages"]), given["completion"], given.get("reference"), given.get("group"))


def post(service: Service, route: str, *bodies: Any, headers: Any = None) -> list[httpx.Response]:
    """The answers to bodies that are sent at once; bytes are sent as they are."""

    async def sent() -> list[httpx.Response]:
        async with service.client() as client:
            contents = [body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies]
            return await asyncio.gather(*(client.post(route, content=c, headers=headers) for c in contents))

    return asyncio.run(sent())


def values(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    return answer.json()["rewards"]


def close(numbers: dict[str, float]) -> Any:
    """Equal but for the last bits, which what else is in a batch moves."""
    return pytest.approx(numbers, rel=1e-12, abs=0)


@pytest.mark.parametrize("mode", ["score", "anchor", "group", "null"])
def test_clients_at_once_get_the_rewards_that_each_would_have_got_alone(mode):
    config = config_of(f"rewards.mode={mode}")
    texts = ["rayleigh", "the sea", "", "magic", "dust", "rayleigh", "light"]
    bodies = [
        {"requests": [request(f"{texts[(i + j) % 7]} {j % 2}", asked=f"q{i % 2}") for j in range(5)]} for i in range(4)
    ]
    bodies.append({"requests": [request(t, reference="scattering", group="g") for t in texts]})
    bodies.append({"requests": [request(t, reference="scattering", group="g") for t in texts[2:]]})
    service = Service(config)
    for body, answer in zip(bodies, post(service, "/v1/reward", *bodies), strict=True):
        alone = judge_of(config).rewards([as_given(given) for given in body["requests"]])
        for got, right in zip(values(answer), alone, strict=True):
            assert (got["status"], got["value"] is None) == (right.status, right.value is None)
            numbers = got["details"] | ({} if got["value"] is None else {"value": got["value"]})
            assert numbers == close(dict(right.details) | ({} if right.value is None else {"value": right.value}))
    assert max(len(batch) for batch in service.batches) > 5, "no bodies were judged together"


def test_groups_of_two_clients_are_not_one_group_though_they_share_a_batch_and_a_name():
    bodies = [{"requests": [request(t, group="step 1") for t in texts]} for texts in (["a", "b"], ["c", "d", "e"])]
    service = Service(config_of("rewards.mode=group"))
    answers = [values(answer) for answer in post(service, "/v1/reward", *bodies)]
    assert [[reward["details"]["asked"] for reward in each] for each in answers] == [[1.0] * 2, [2.0] * 3]
    assert len(service.batches) == 1


def test_a_completion_asked_again_costs_no_judgment_and_says_so():
    service = Service(config_of())
    first, second = post(service, "/v1/reward", {"requests": [request("a")]}, {"requests": [request("a")] * 2})
    assert sorted(reward["calls"] for answer in (first, second) for reward in values(answer)) == [0, 0, 1]
    (third,) = post(service, "/v1/reward", {"requests": [request("a", group="named")]})
    assert values(third)[0]["calls"] == 0
    assert len(service.batches) == 1
    (fourth,) = post(service, "/v1/reward", {"requests": [request("a", reference="r")]})
    assert values(fourth)[0]["calls"] == 2


def test_a_group_in_which_a_comparison_failed_is_judged_again_and_not_kept_as_it_was():
    service = Service(config_of("rewards.mode=group", "judge.scripted.failure_rate=0.2"))
    body = {"requests": [request(text) for text in "abcdef"]}
    (first,), (again,) = (post(service, "/v1/reward", body) for _ in range(2))
    told = values(first)
    assert all(reward["value"] is not None for reward in told)
    assert any(reward["details"]["opponents"] < reward["details"]["asked"] for reward in told)
    assert len(service.batches) == 2
    assert sum(reward["calls"] for reward in values(again)) > 0
    whole = Service(config_of("rewards.mode=group"))
    for _ in range(2):
        post(whole, "/v1/reward", body)
    assert len(whole.batches) == 1


def test_openrlhf_gets_numbers_for_what_follows_each_prompt():
    service, config = Service(config_of()), config_of()
    prompt = "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    body = {
        "query": [f"<s>{prompt}Because.<|im_end|>", "Plain: yes"],
        "prompts": [prompt, "Plain: "],
        "labels": ["It is so.", ""],
        "images": [],
    }
    (answer,) = post(service, "/openrlhf", body)
    expected = judge_of(config).rewards(
        [
            RewardRequest(({"role": "user", "content": "Why?"},), "Because.", "It is so."),
            RewardRequest(({"role": "user", "content": "Plain: "},), "yes"),
        ]
    )
    numbers = [reward.value for reward in expected]
    logs = {"judged": [1.0, 1.0], "calls": [2.0, 1.0]}
    assert answer.json() == {"rewards": numbers, "scores": numbers, "extra_logs": logs}
    for labels in ({}, {"labels": None}):
        (unlabelled,) = post(service, "/openrlhf", {"query": ["Plain: yes"], "prompts": ["Plain: "], **labels})
        assert unlabelled.json()["rewards"] == numbers[1:]


def test_a_failed_judgment_is_null_and_never_a_number_unless_one_was_chosen():
    bad = {"query": ["p fine", "p "], "prompts": ["p ", "p "]}
    service = Service(config_of())
    (plain,) = post(service, "/v1/reward", {"requests": [request("")]})
    assert (values(plain)[0]["value"], values(plain)[0]["status"]) == (None, "empty_response")
    (refused,) = post(service, "/openrlhf", bad)
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "query[1]")
    (chosen,) = post(Service(config_of("rewards.missing=-1")), "/openrlhf", bad)
    assert chosen.json()["rewards"][1] == -1
    assert chosen.json()["extra_logs"] == {"judged": [1.0, 0.0], "calls": [1.0, 0.0]}


@pytest.mark.parametrize(
    ("statuses", "told"),
    [
        (["ok", "engine_error"], (502, "query[1]", "1")),
        (["bad_logprob", "engine_error"], (502, "query[0]", "1")),
        (["empty_response"], (422, "query[0]", None)),
        (["no_reference"], (422, "query[0]", None)),
        (["ok", "alone_in_group"], (422, "query[1]", None)),
        (["too_long"], (422, "query[0]", None)),
        (["engine_error", "ok", "empty_response"], (422, "query[2]", None)),
    ],
)
def test_openrlhf_is_not_told_to_come_again_for_what_will_never_have_a_reward(statuses, told):
    async def ask(requests: Sequence[RewardRequest], until: float) -> list[Reward]:
        return [Reward(0.5 if status == "ok" else None, status) for status in statuses]

    bad = {"query": ["p a"] * len(statuses), "prompts": ["p "] * len(statuses)}
    (refused,) = post(Service(config_of(), ask=ask), "/openrlhf", bad)
    error = refused.json()["error"]
    assert (refused.status_code, error["field"], refused.headers.get("Retry-After")) == told
    assert error["code"] == "no_reward"


@pytest.mark.parametrize(
    ("overrides", "texts", "status", "place"),
    [
        (["rewards.mode=group"], "abc", 200, 0),
        (["rewards.mode=group"], "abcd", 413, 3),
        (["rewards.mode=group"], "abcabcabc", 200, 0),
        (["rewards.mode=group"], ["a", "b", "", " ", "c"], 200, 0),
        (["rewards.mode=group", "rewards.opponents=1"], "abcdef", 200, 0),
        (["rewards.mode=group", "rewards.opponents=1"], "abcdefg", 413, 6),
        (["rewards.mode=group", "rewards.opponents=2"], "abcd", 413, 3),
        (["rewards.mode=score"], "abcdefg", 200, 0),
        ([], "abcdefg", 200, 0),
    ],
)
def test_a_group_that_would_keep_the_judge_longer_than_a_batch_may_take_is_refused(overrides, texts, status, place):
    """With 3 for a group, at most 3 * 2 judgments."""
    service = Service(config_of("serve.max_group=3", *overrides))
    (answer,) = post(service, "/v1/reward", {"requests": [request(text) for text in texts]})
    body = {"query": [f"p {text}" for text in texts], "prompts": ["p "] * len(texts)}
    (other,) = post(service, "/openrlhf", body)
    assert answer.status_code == status
    if status == 413:
        assert (answer.json()["error"]["field"], other.status_code) == (f"requests[{place}]", 413)
        assert other.json()["error"]["field"] == f"query[{place}]"
        assert service.batches == []
    groups = {"requests": [request(text, asked=f"{i // 3}") for i, text in enumerate(texts)]}
    assert post(service, "/v1/reward", groups)[0].status_code == 200, "each group is counted by itself"


def test_openrlhf_may_send_nothing_for_it_divides_a_batch_among_its_addresses():
    service = Service(config_of())
    (answer,) = post(service, "/openrlhf", {"query": [], "prompts": [], "labels": []})
    assert answer.json() == {"rewards": [], "scores": [], "extra_logs": {"judged": [], "calls": []}}
    assert service.batches == []


MALFORMED = [
    ({}, 422, "requests"),
    ({"requests": []}, 422, "requests"),
    ({"requests": {}}, 422, "requests"),
    ({"requests": [request("a")], "dedline": 3}, 422, "dedline"),
    ({"requests": [request("a")], "deadline": 0}, 422, "deadline"),
    ({"requests": [request("a")], "deadline": True}, 422, "deadline"),
    ({"requests": [request("a")], "deadline": "5"}, 422, "deadline"),
    ({"requests": [request("a"), 7]}, 422, "requests[1]"),
    ({"requests": [request("a", refrence="x")]}, 422, "requests[0].refrence"),
    ({"requests": [request("a", reference=4)]}, 422, "requests[0].reference"),
    ({"requests": [request("a", group=["g"])]}, 422, "requests[0].group"),
    ({"requests": [{"messages": [{"role": "user", "content": "q"}]}]}, 422, "requests[0].completion"),
    ({"requests": [request("a") | {"messages": []}]}, 422, "requests[0].messages"),
    ({"requests": [request("a") | {"messages": "q"}]}, 422, "requests[0].messages"),
    ({"requests": [request("a") | {"messages": ["q"]}]}, 422, "requests[0].messages[0]"),
    (
        {"requests": [request("a") | {"messages": [{"role": "king", "content": ""}]}]},
        422,
        "requests[0].messages[0].role",
    ),
    ({"requests": [request("a") | {"messages": [{"role": "user"}]}]}, 422, "requests[0].messages[0].content"),
    ({"requests": [request("a") | {"messages": [{"role": "user", "content": "", "name": "n"}]}]}, 422, None),
    ({"requests": [request("half \ud83d")]}, 422, "requests[0].completion"),
    ({"\ud83d": 1, "requests": [request("a")]}, 422, "\\ud83d"),
    ({"requests": [request("a")] * 9}, 413, "requests"),
    ([request("a")], 400, None),
    (b"", 400, None),
    (b"{", 400, None),
    (b'{"requests": NaN}', 400, None),
    (b'"\xff"', 400, None),
    (b"[" * 5_000, 400, None),
    (b"1" * 5000, 400, None),
    (
        b'{"requests": [{"messages": [{"role": "user", "content": "q"}], "completion": "a", "completion": "b"}]}',
        400,
        None,
    ),
    (json.dumps({"requests": [request("long " * 2000)]}).encode(), 413, None),
]


@pytest.mark.parametrize(("body", "status", "field"), MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_body_is_refused_with_its_field_and_judged_by_nobody(body, status, field):
    service = Service(config_of("serve.max_requests=8", "serve.max_body_mb=0.009"))
    (answer,) = post(service, "/v1/reward", body)
    assert (answer.status_code, service.batches) == (status, [])
    error = answer.json()["error"]
    assert error["message"]
    if field:
        assert error["field"] == field


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompts": ["p"]}, "query"),
        ({"query": ["p a"]}, "prompts"),
        ({"query": ["p a"], "prompts": ["p", "p"]}, "prompts"),
        ({"query": ["p a"], "prompts": ["p"], "labels": []}, "labels"),
        ({"query": ["p a", "p b"], "prompts": ["p", "p"], "labels": [None]}, "labels"),
        ({"query": ["p a"], "prompts": ["p"], "labels": [3]}, "labels[0]"),
        ({"query": ["p a", None], "prompts": ["p", "p"]}, "query[1]"),
        ({"query": ["p a"], "prompts": [["p"]]}, "prompts[0]"),
        ({"query": ["completion alone"], "prompts": ["another prompt"]}, "query[0]"),
        ({"query": ["any other text. p a"], "prompts": ["p "]}, "query[0]"),
    ],
)
def test_a_malformed_body_of_openrlhf_is_refused_with_its_field(body, field):
    (answer,) = post(Service(config_of()), "/openrlhf", body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, field)


def test_a_large_body_without_a_length_is_broken_off_and_one_that_never_comes_is_not_waited_for():
    service, read = Service(config_of("serve.max_body_mb=0.01", "serve.deadline=0.05", "serve.max_wait=0")), []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            read.append(1000)
            yield b" " * 1000

    async def silent() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async def sent() -> list[int]:
        async with service.client() as client:
            return [(await client.post("/v1/reward", content=body())).status_code for body in (endless, silent)]

    assert asyncio.run(sent()) == [413, 408]
    assert sum(read) < 20_000


def test_a_body_that_is_compressed_is_told_so_and_one_with_a_byte_order_mark_is_read():
    body = json.dumps({"requests": [request("a")]}).encode()
    for coding, status in (("gzip", 415), ("deflate, gzip", 415), ("identity", 200)):
        (answer,) = post(Service(config_of()), "/v1/reward", body, headers={"Content-Encoding": coding})
        assert answer.status_code == status
    (marked,) = post(Service(config_of()), "/v1/reward", b"\xef\xbb\xbf" + body)
    assert values(marked)[0]["status"] == "ok"


def test_a_key_that_stands_twice_among_very_many_is_found_in_a_time_that_does_not_grow_with_their_square():
    keys = ", ".join(f'"{i}": 0' for i in range(400_000))
    began = time.process_time()
    (answer,) = post(Service(config_of()), "/v1/reward", f'{{{keys}, "399999": 1}}'.encode())
    assert (answer.status_code, "'399999' stands twice" in answer.json()["error"]["message"]) == (400, True)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("length", [b"\xb2", b"-1", b"", b"9" * 5000])
def test_a_length_that_is_none_is_refused_and_does_not_end_in_a_traceback(length):
    (answer,) = post(Service(config_of()), "/v1/reward", b"{}", headers={"Content-Length": length})
    assert answer.status_code == 413


def test_a_deadline_beyond_all_floats_is_as_long_as_there_is():
    body = json.dumps({"requests": [request("a")], "deadline": 10**400}).encode()
    (answer,) = post(Service(config_of()), "/v1/reward", body)
    assert answer.status_code == 200


def test_routes_and_methods_that_are_not_there_are_named():
    async def sent() -> list[tuple[int, str | None]]:
        async with service.client() as client:
            asked = [("GET", "/"), ("GET", "/v1/reward"), ("POST", "/healthz"), ("HEAD", "/healthz")]
            told = [await client.request(method, route) for method, route in asked]
            return [(answer.status_code, answer.headers.get("Allow")) for answer in told]

    service = Service(config_of())
    assert asyncio.run(sent()) == [(404, None), (405, "POST"), (405, "GET, HEAD"), (200, None)]
    assert service.answered == [("other", 404), ("/v1/reward", 405), ("/healthz", 405), ("/healthz", 200)]


def test_health_is_503_until_a_judge_is_loaded_and_needs_no_token():
    async def status(service: Service) -> tuple[int, bool]:
        async with service.client() as client:
            answer = await client.get("/healthz")
            return answer.status_code, "Retry-After" in answer.headers

    token = Token.of("secret of sixteen", SALT)
    assert asyncio.run(status(Service(config_of(), token))) == (200, False)
    assert asyncio.run(status(Service(config_of(), token, loaded=False))) == (503, True)


def test_health_is_503_while_the_service_is_being_ended():
    service = Service(config_of())

    async def scene() -> list[tuple[int, str | None]]:
        async with service.client() as client:
            await service.queue.drain(0.0)
            answer = await client.get("/healthz")
            return [(answer.status_code, answer.json().get("error", {}).get("code"))]

    assert asyncio.run(scene()) == [(503, "stopping")]


def test_what_is_raised_inside_reaches_the_log_whole_and_the_client_without_its_words(caplog):
    (answer,) = post(Service(config_of(), ask=raising(KeyError("secret"))), "/v1/reward", {"requests": [request("a")]})
    assert (answer.status_code, "secret" in answer.text) == (500, False)
    (record,) = [record for record in caplog.records if record.exc_info]
    kind, error, trace = record.exc_info
    assert (kind, error.args, trace is not None) == (KeyError, ("secret",), True)


def test_why_a_completion_was_given_up_is_in_the_log_and_its_status_is_engine_error(caplog):
    async def dies(requests: list[RewardRequest]) -> list[Reward]:
        raise EngineLost("killed by the memory monitor")

    service = Service(config_of())
    service.queue = reward_queue(dies, Limits(8, 0.0, 10, 1, 10), lambda name, value: None)
    (answer,) = post(service, "/v1/reward", {"requests": [request("a")]})
    assert values(answer)[0]["status"] == "engine_error"
    assert "killed by the memory monitor" in caplog.text


def test_without_the_token_nobody_is_rewarded_and_no_body_is_read():
    service = Service(config_of(), Token.of("secret of sixteen", SALT))
    wrong = [None, "", "Bearer", "Bearer secret", "secret of sixteen", "Basic secret of sixteen", "Bearer sécret"]
    for header in wrong:
        headers = None if header is None else {"Authorization": header.encode()}
        (answer,) = post(service, "/v1/reward", b"not JSON", headers=headers)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer"), header
    for right in ("Bearer secret of sixteen", "bearer  secret of sixteen"):
        (answer,) = post(service, "/v1/reward", {"requests": [request("a")]}, headers={"Authorization": right})
        assert answer.status_code == 200
    assert "secret" not in repr(Token.of("secret of sixteen", SALT))


def test_the_token_may_come_in_an_address_which_is_all_that_openrlhf_can_be_given():
    service = Service(config_of(), Token.of("secret:of+sixteen", SALT))

    async def sent() -> list[int]:
        async with service.client() as client:
            users = [("any", "secret:of+sixteen"), ("", "secret:of+sixteen"), ("secret:of+sixteen", ""), ("any", "of")]
            asked = {"query": ["p a"], "prompts": ["p "]}
            return [(await client.post("/openrlhf", json=asked, auth=user)).status_code for user in users]

    assert asyncio.run(sent()) == [200, 200, 401, 401]
    for odd in ("Basic", "Basic !", "Basic /w==", "Basic " + "A" * 7):
        assert post(service, "/openrlhf", {}, headers={"Authorization": odd})[0].status_code == 401


def test_what_was_counted_is_told_as_prometheus_reads_it_and_to_nobody_without_the_token():
    tally = Tally()
    for seconds in (0.01, 0.2, 500.0):
        tally.note("seconds", seconds, {"route": "/v1/reward"})
    for route in ("/v1/reward", "/v1/reward", 'a "b"\\n\n'):
        tally.note("requests", 1, {"route": route, "status": "200"})
    for waiting in (7, 3):
        tally.note("waiting", waiting)
    service = Service(config_of(), Token.of("secret of sixteen", SALT), metrics=tally.text)

    async def got(**headers: str) -> httpx.Response:
        async with service.client() as client:
            return await client.get("/metrics", headers=headers)

    assert asyncio.run(got()).status_code == 401
    answer = asyncio.run(got(Authorization="Bearer secret of sixteen"))
    assert answer.headers["content-type"].startswith("text/plain; version=")
    families = {family.name: family for family in parser.text_string_to_metric_families(answer.text)}
    read = {
        (s.name.removeprefix("trustjudge_service_"), *(v for _, v in sorted(s.labels.items(), reverse=True))): s.value
        for f in families.values()
        for s in f.samples
    }
    assert families["trustjudge_service_seconds"].type == "histogram"
    buckets = [(key[2], value) for key, value in read.items() if key[0] == "seconds_bucket"]
    assert buckets[:4] == [("0.01", 1), ("0.03", 1), ("0.1", 1), ("0.3", 2)]
    assert buckets[-2:] == [("100.0", 2), ("+Inf", 3)]
    assert read["seconds_sum", "/v1/reward"] == pytest.approx(500.21)
    assert read["seconds_count", "/v1/reward"] == 3
    assert read["requests_total", "200", "/v1/reward"] == 2
    assert read["requests_total", "200", 'a "b"\\n\n'] == 1
    assert (read["waiting",], read["expired_total",], read["batch_count",]) == (3, 0, 0)


def test_the_command_leaves_no_token_in_its_environment_for_the_processes_of_ray_to_inherit(tmp_path):
    (tmp_path / "rewards.yaml").write_text("judge: {engine: scripted}", "utf-8")
    probe = (  # a token that is too short, so that it ends before Ray is started
        "import os, sys\n"
        "from click.testing import CliRunner\n"
        "from trustjudge_ray.commands.serving import serve_rewards\n"
        "told = CliRunner().invoke(serve_rewards, sys.argv[1:])\n"
        "print(type(told.exception).__name__, 'pass-word' in str(told.exception), 'MY_TOKEN' in os.environ)\n"
    )
    command = [sys.executable, "-c", probe, str(tmp_path / "rewards.yaml"), "serve.token_env=MY_TOKEN"]
    environment = os.environ | {"MY_TOKEN": "pass-word"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["ConfigError", "False", "False"], done.stderr


def raising(error: Exception) -> Callable[..., Awaitable[list[Reward]]]:
    async def ask(requests: Sequence[RewardRequest], until: float) -> list[Reward]:
        raise error

    return ask


@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (QueueFull(7, 10, 10), 429, "full", "7"),
        (Expired(1, 2, engine_lost=False), 504, "deadline", None),
        (Expired(1, 2, engine_lost=True), 503, "judge_lost", "5"),
        (Stopping("ending"), 503, "stopping", "5"),
        (ZeroDivisionError("/home/somebody/secret"), 500, "judge_error", None),
    ],
)
def test_each_reason_for_no_reward_has_its_status_and_what_the_judge_raised_stays_inside(error, status, code, retry):
    (answer,) = post(Service(config_of(), ask=raising(error)), "/v1/reward", {"requests": [request("a")]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers.get("Retry-After") == retry
    assert "secret" not in answer.text


def test_a_client_may_ask_for_less_time_than_there_is_and_not_for_more():
    given = []

    async def ask(requests: Sequence[RewardRequest], until: float) -> list[Reward]:
        given.append(until - asyncio.get_running_loop().time())
        return [Reward(0.5, "ok", details={"score": float("inf")})]

    service = Service(config_of("serve.deadline=30"), ask=ask)
    answers = post(
        service,
        "/v1/reward",
        *({"requests": [request("a")]} | more for more in ({"deadline": 4}, {"deadline": 90}, {})),
    )
    assert [round(seconds) for seconds in given] == [4, 30, 30]
    assert [values(answer)[0]["details"] for answer in answers] == [{"score": None}] * 3, "JSON knows no infinity"


def test_more_open_requests_than_may_be_are_told_to_come_again():
    release = asyncio.Event()

    async def ask(requests: Sequence[RewardRequest], until: float) -> list[Reward]:
        await release.wait()
        return [Reward(0.5, "ok")]

    async def scene() -> list[int]:
        service = Service(config_of("serve.max_open=3"), ask=ask)
        async with service.client() as client:
            body = {"requests": [request("a")]}
            tasks = [asyncio.create_task(client.post("/v1/reward", json=body)) for _ in range(5)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            release.set()
            first = [answer.status_code for answer in await asyncio.gather(*tasks)]
            return [*first, (await client.post("/v1/reward", json=body)).status_code]

    assert asyncio.run(scene()) == [200, 200, 200, 429, 429, 200]


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("serve.max_queu=3", "unknown key 'max_queu'"),
        ("servce.port=3", "unknown key 'servce'"),
        ("serve=7", "serve: got 7"),
        ("serve.port=0", "serve.port: got 0"),
        ("serve.port=many", "serve.port"),
        ("serve.max_requests=5000", "serve.max_requests: got 5000; 1 to serve.max_queue"),
        ("serve.max_wait=60", "fewer than serve.deadline"),
        ("serve.host=", "serve.host"),
        ("serve.max_group=1", "serve.max_group: got 1; 2 or more"),
        ("serve.batch_timeout=0", "serve.batch_timeout: got 0.0; seconds, more than 0"),
        ("serve.batch_timeout=.nan", "serve.batch_timeout: got nan"),
        ("rewards.mode=best", "rewards.mode: got 'best'"),
        ("rewards.modes=score", "unknown key 'modes'"),
        ("judge.modle=x", "unknown key 'modle'"),
        ("cluster.replicas=0", "cluster.replicas: got 0"),
    ],
)
def test_a_mistake_in_the_configuration_is_named(override, complaint):
    with pytest.raises(ConfigError, match="test") as refused:
        config_of(override)
    assert complaint in str(refused.value)


def test_only_addresses_of_this_machine_alone_are_loopback():
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.example.org", "2130706433"))
