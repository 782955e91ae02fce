"""A real local Ray for the session of tests: its own temp folder, ended by its own handle."""

import shutil
import tempfile
from collections.abc import Iterator

import pytest

from trustjudge_ray.config import ClusterConfig


def start(folder: str) -> None:
    """A local Ray with three CPUs, unless there is one."""
    import ray

    from trustjudge_ray import pipeline

    if not ray.is_initialized():
        ray.init(
            num_cpus=3,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="warning",
            object_store_memory=256 * 2**20,
            _temp_dir=folder,
        )
    pipeline.start(ClusterConfig())


@pytest.fixture(scope="session")
def local_ray() -> Iterator[str]:
    """One local Ray for all tests; its folder. `ray stop` is never called: it would end every Ray on the machine."""
    from trustjudge_ray import pipeline

    temporary = tempfile.mkdtemp(prefix="tjr-", dir="/tmp")
    start(temporary)
    yield temporary
    pipeline.stop()
    shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture(autouse=True)
def ray_again(request: pytest.FixtureRequest) -> None:
    """Where a test has ended the session's Ray, as a command does, the next one that needs it has another."""
    if "local_ray" in request.fixturenames:
        start(request.getfixturevalue("local_ray"))
