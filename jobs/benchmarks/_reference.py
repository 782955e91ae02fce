"""The reference program's calculators, loaded from a checkout and fed with judgments in the form that they keep in
memory. Their code runs as it is; only reading, log files and progress bars are taken out, which all cost time.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

PairKey = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Loaded:
    """(question, response) → token → probability; (question, i, j) → both orders and the question's responses."""

    single: dict[tuple[int, int], dict[str, float]]
    pairs: dict[PairKey, dict[str, Any]]

    def of_questions(self, count: int) -> "Loaded":
        """The first so many questions."""
        return Loaded(
            {key: value for key, value in self.single.items() if key[0] < count},
            {key: value for key, value in self.pairs.items() if key[0] < count},
        )


class Reference:
    """The calculators of a checkout."""

    def __init__(self, checkout: Path) -> None:
        with _importable(checkout / "trustjudge"):
            self._conflict: Any = importlib.import_module("ConflictCalculator")
            self._transitivity: Any = importlib.import_module("NonTransitivityCalculator")

    def conflict(self, loaded: Loaded, scale: int, method: str) -> Any:
        """A calculator of conflict ratios that holds these judgments."""

        base: Any = self._conflict.ConflictCalculator

        class Fed(base):
            def set_single_answer_grade_data(self) -> Any:
                return loaded.single

            def set_pairwise_comparison_data(self) -> Any:
                return loaded.pairs

        return Fed({}, "", scale, "", "no-such-folder/log", "judge", 0.0, 1, method)

    def transitivity(self, loaded: Loaded, length: int, method: str) -> Any:
        """A calculator of non-transitivity ratios that holds these judgments; all its pairs count as logged."""

        base: Any = self._transitivity.NonTransitivityCalculator

        class Fed(base):
            def set_pairwise_comparison_data(self) -> Any:
                return loaded.pairs

        calculator = Fed({}, "", "no-such-folder/log", length, 0.0, 1, "judge", method)
        calculator.logged_pairs = set(loaded.pairs)
        return calculator


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let the program's modules find each other; vLLM and tqdm, which they import and do not need here, stay out."""
    engine, bars = ModuleType("vllm"), ModuleType("tqdm")
    engine.LLM, bars.tqdm = object, lambda steps, **_: steps  # type: ignore[attr-defined]
    hidden = {name: sys.modules.get(name) for name in ("vllm", "tqdm", "common")}
    sys.modules |= {"vllm": engine, "tqdm": bars}
    sys.modules.pop("common", None)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name, module in hidden.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
