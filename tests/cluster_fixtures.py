"""A real local Ray for the session of tests: its own temp folder, ended by its own handle."""

import shutil
import tempfile
from collections.abc import Iterator

import pytest

from trustjudge_ray.config import ClusterConfig


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """One local Ray with two CPUs. `ray stop` is never called: it would end every Ray on the machine."""
    import ray

    from trustjudge_ray import pipeline

    temporary = tempfile.mkdtemp(prefix="tjr-", dir="/tmp")
    ray.init(
        num_cpus=3,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="warning",
        object_store_memory=256 * 2**20,
        _temp_dir=temporary,
    )
    pipeline.start(ClusterConfig())
    yield
    pipeline.stop()
    shutil.rmtree(temporary, ignore_errors=True)
