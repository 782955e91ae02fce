"""Two commands that serve rewards on one cluster: the second takes the place of the first, which must not end it."""

from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from corpora import SCORE
from s3_fixtures import free_port
from served import body, config_of

from trustjudge_ray.judging.base import RunError

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),  # Ray's own
]


def test_a_command_whose_place_another_has_taken_does_not_end_the_others_service(local_ray):
    from ray import serve

    from trustjudge_ray.training import service

    port, said = free_port(), []
    with ExitStack() as second:
        with service.serving(config_of(port), None, said.append) as url:
            asked = httpx.post(f"{url}/v1/reward", json=body("a"), timeout=60).json()["rewards"][0]
            assert second.enter_context(service.serving(config_of(port), None)) == url
        assert said == ["another command has taken this service's place, and goes on"]
        again = httpx.post(f"{url}/v1/reward", json=body("a"), timeout=60).json()["rewards"][0]
        assert again == asked  # `calls` too: the first's front, which knew it, is gone
        assert httpx.get(f"{url}/healthz").status_code == 200
    assert serve.status().applications == {}
    serve.shutdown()


@pytest.mark.heavy
def test_a_second_command_that_fails_before_it_has_deployed_anything_leaves_the_firsts_service_alone(local_ray):
    from ray import serve

    from trustjudge_ray.training import service

    port = free_port()
    with service.serving(config_of(port), None) as url:
        given = config_of(port)
        given.cluster.cpus_per_replica = -1.0  # Serve refuses this when the application is put together
        with pytest.raises(ValueError, match="num_cpus"), service.serving(given, None):
            pass
        assert httpx.post(f"{url}/v1/reward", json=body("a"), timeout=60).status_code == 200
    assert not serve.status().proxies


@pytest.mark.heavy
def test_a_second_command_whose_judge_does_not_load_has_taken_the_place_and_leaves_nothing(
    local_ray, tmp_path, monkeypatch
):
    from ray import serve

    from trustjudge_ray.training import service

    def gone(*given: Any) -> Any:
        path.unlink()  # after the command has read it, before the judge does
        return application(*given)

    port, said, path, application = free_port(), [], tmp_path / "mine.yaml", service._application
    path.write_text(SCORE.replace("name: score-5", "name: mine"), "utf-8")
    with service.serving(config_of(port), None, said.append) as url:
        given = config_of(port)
        given.rewards.mode, given.rewards.score_protocol = "score", str(path)
        monkeypatch.setattr(service, "_application", gone)
        with pytest.raises(RunError, match=r"(?s)does not start: .*mine\.yaml"), service.serving(given, None):
            pass
        assert serve.status().applications == {}
        assert httpx.get(f"{url}/healthz").status_code == 404  # Serve's own: no application
    assert said == ["another has ended the service"]
    assert not serve.status().proxies
