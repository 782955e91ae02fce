"""Order of the suite (quick tests first), and the parts that it starts once."""

import hypothesis
import pytest

hypothesis.settings.register_profile("suite", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("suite")

pytest_plugins = ["engine_fixtures", "cluster_fixtures", "s3_fixtures", "openai_fixtures", "browser_fixtures"]

_LAST = ("ray", "engine", "s3", "browser", "demo")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Quick tests first, then those that need Ray, an engine, an S3 server, a browser, the whole demo; heavy ones and
    trainings only if they are asked for by their marker."""
    for marker in ("heavy", "lora", "training"):
        if marker not in config.getoption("-m"):
            left_out = [item for item in items if item.get_closest_marker(marker)]
            items[:] = [item for item in items if item not in left_out]
            config.hook.pytest_deselected(items=left_out)

    def weight(item: pytest.Item) -> int:
        return max((i + 1 for i, name in enumerate(_LAST) if item.get_closest_marker(name)), default=0)

    items.sort(key=weight)
