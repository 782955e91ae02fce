"""A real local Ray for the session of tests: its own temp folder, ended by its own handle."""

import shutil
import tempfile
from collections.abc import Iterator

import pytest

from trustjudge_ray.config import ClusterConfig


@pytest.fixture(scope="session")
def ray_folder() -> Iterator[str]:
    """Where the session's Ray keeps what it writes. `ray stop` is never called: it would end every Ray on the machine."""
    temporary = tempfile.mkdtemp(prefix="tjr-", dir="/tmp")
    yield temporary
    from trustjudge_ray import pipeline

    pipeline.stop()
    shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture
def local_ray(ray_folder: str) -> None:
    """One local Ray with three CPUs for all tests; where one of them has ended it, as a command does, another one."""
    import ray

    from trustjudge_ray import pipeline

    if not ray.is_initialized():
        ray.init(
            num_cpus=3,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="warning",
            object_store_memory=256 * 2**20,
            _temp_dir=ray_folder,
        )
    pipeline.start(ClusterConfig())
