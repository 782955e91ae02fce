"""The fault suite: whole with `-m faults` (`make test-faults`), otherwise only its short form."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("trials", "verified", "drivers")

from trials import Stage, Trial  # noqa: E402 (after the line above)

RECORD = Path("runs/faults.jsonl")


def _whole(config: pytest.Config) -> bool:
    return "faults" in config.getoption("-m")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without being asked for by its marker the whole suite is left out: it takes half an hour."""
    if _whole(config):
        return
    left_out = [item for item in items if item.get_closest_marker("faults")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def _scope(fixture_name: str, config: pytest.Config) -> str:
    """The whole suite starts nodes and store once; beside other tests they must not stay."""
    return "session" if _whole(config) else "module"


@pytest.fixture(scope=_scope)
def stage(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Nodes, store and proxy."""
    record = RECORD if _whole(pytestconfig) else None
    if record:
        record.parent.mkdir(exist_ok=True)
        record.write_text("")
    made = Stage(tmp_path_factory.mktemp("faults"), record)
    yield made
    made.close()


@pytest.fixture
def begin(stage: Stage) -> Iterator[Callable[..., Trial]]:
    """Makes trials, whose processes end with the test; the undisturbed run is judged before."""
    made: list[Trial] = []

    def new(fault: str, judge: str = "scripted", **options) -> Trial:
        stage.undisturbed(judge)
        made.append(Trial(stage, fault, judge, **options))
        return made[-1]

    yield new
    for trial in made:
        trial.close()
