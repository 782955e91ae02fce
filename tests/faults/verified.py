"""What must be true of a run after a fault: it is the undisturbed run."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import polars as pl
from polars.testing import assert_frame_equal

from trustjudge_ray import runs
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.store import RunFolder

_PART = re.compile(r"^(judgments/.*)part-[^/]*\.parquet$")
_TEMPORARY = re.compile(r"\.(tmp|probe)-|^ingest/")
_KEYS = {
    "scores": ["judge", "protocol", "question_id", "response_id", "rule"],
    "verdicts": ["judge", "protocol", "question_id", "response_a", "response_b", "rule", "tolerance"],
}


@dataclass(frozen=True)
class Ended:
    """A run that came to its end.

    Attributes:
        names: of its files, all parts of a bucket as one; without what `evaluate` wrote.
        further: rows of the store that the tables leave out, because another row of the same task counts.
    """

    names: frozenset[str]
    judgments: pl.DataFrame
    further: int
    scores: pl.DataFrame
    verdicts: pl.DataFrame
    counts: dict[str, int]


def ended(folder: RunFolder) -> Ended:
    """Read a run that ended, and evaluate it."""
    names = frozenset(_PART.sub(r"\1part", name) for name in folder.names(""))
    judgments, further = folder.judgments()
    found = runs.evaluate(folder, AnalysisConfig())
    counts = folder.read_json("manifest.json")["counts"]
    return Ended(names, judgments, further, found.scores, found.verdicts, counts)


def same_tasks(found: Ended, expected: Ended) -> None:
    assert sorted(found.judgments["task_id"]) == sorted(expected.judgments["task_id"])


def none_twice(found: Ended, _: Ended) -> None:
    assert found.judgments["task_id"].n_unique() == found.judgments.height
    for name, key in _KEYS.items():
        table: pl.DataFrame = getattr(found, name)
        assert table.select(key).is_unique().all(), f"{name}: a row twice"
        assert table.height > 0


def same_statuses(found: Ended, expected: Ended) -> None:
    columns = ["task_id", "status"]
    assert_frame_equal(found.judgments.select(columns), expected.judgments.select(columns))
    assert found.counts == expected.counts


def same_values(found: Ended, expected: Ended) -> None:
    """Judgments to the last bit; scores and verdicts, which are sums of them, to 1e-9."""
    assert found.judgments.equals(expected.judgments)
    for name, key in _KEYS.items():
        mine, others = (getattr(each, name).sort(key) for each in (found, expected))
        assert_frame_equal(mine, others, abs_tol=1e-9)


def near_values(found: Ended, expected: Ended) -> None:
    """Log-probabilities of a real engine in float32, whose last bits depend on what else is in a batch."""
    columns = ["task_id", "label_logprobs"]
    both = found.judgments.select(columns).join(expected.judgments.select(columns), on="task_id", suffix="_expected")
    apart = both.explode("label_logprobs", "label_logprobs_expected")
    assert apart.select((pl.col("label_logprobs") - pl.col("label_logprobs_expected")).abs().max()).item() < 0.001


def nothing_left(found: Ended, expected: Ended) -> None:
    assert [name for name in found.names if _TEMPORARY.search(name)] == []
    assert found.names == expected.names


Check = Callable[[Ended, Ended], None]

SAME: dict[str, Check] = {
    "the task ids of the undisturbed run": same_tasks,
    "no row twice": none_twice,
    "its statuses": same_statuses,
    "its values, bit for bit": same_values,
    "nothing left over in the store": nothing_left,
}
SAME_ENGINE = {name: check for name, check in SAME.items() if check is not same_values} | {
    "its log-probabilities within 0.001 nat": near_values
}


def same_but(failed: pl.Expr) -> dict[str, Check]:
    """What holds where the judgments that `failed` selects could not be made, and all others were."""

    def they_failed(found: Ended, expected: Ended) -> None:
        bad = found.judgments.filter(pl.col("status") != "ok")
        assert set(bad["task_id"]) == set(expected.judgments.filter(failed)["task_id"])
        assert set(bad["status"]) == {"engine_error"}
        assert bad["detail"].null_count() == 0
        assert found.counts == {"ok": found.judgments.height - bad.height, "engine_error": bad.height}

    def others_same(found: Ended, expected: Ended) -> None:
        assert found.judgments.filter(~failed).equals(expected.judgments.filter(~failed))

    kept = {name: check for name, check in SAME.items() if check not in (same_statuses, same_values)}
    return kept | {
        "only what shows the poison failed, with a reason": they_failed,
        "all other values, bit for bit": others_same,
    }
