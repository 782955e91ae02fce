"""What a run took: judgments, tokens, seconds, money; and on what it ran. From its manifest."""

from typing import Any, Final

from trustjudge_ray.report.cells import Cell, Inputs, Table, share, whole

_COUNTS: Final = {
    "tasks": "judgments that the run wants",
    "judged_now": "judged at the last start",
    "reused": "found judged already",
    "left": "left out because a budget ended",
    "further_rows": "further rows of the same tasks, left out",
    "truncated": "judged with answers cut to the context",
}
_TOKENS: Final = {
    "prompt": "tokens of prompts",
    "cached": "  of these, read from the prefix cache",
    "output": "tokens that the judge wrote",
}
_STEPS: Final = {
    "start": "starting Ray and the judges",
    "read": "reading the corpus",
    "plan": "planning",
    "judge": "judging",
    "count": "counting",
    "evaluate": "evaluating",
    "report": "reporting",
}


def figures_of(inputs: Inputs) -> dict[str, Any]:
    """What the manifest counts: counts, tokens, seconds, gpu_hours, cost, judged_per_second, cached_share. A figure
    that it lacks, as that of an imported run does, is left out."""
    manifest = inputs.manifest
    found: dict[str, Any] = {name: manifest[name] for name in _COUNTS if isinstance(manifest.get(name), int)}
    tokens = manifest.get("tokens") or {}
    found["tokens"] = {name: tokens[name] for name in _TOKENS if name in tokens}
    found["seconds"] = dict(manifest.get("seconds") or {})
    found |= {name: manifest[name] for name in ("gpu_hours", "cost") if manifest.get(name) is not None}
    judging = found["seconds"].get("judge")
    if judging and found.get("judged_now"):
        found["judged_per_second"] = found["judged_now"] / judging
    if tokens.get("prompt") and "cached" in tokens:
        found["cached_share"] = tokens["cached"] / tokens["prompt"]
    return found


def cost_and_time(inputs: Inputs) -> Table:
    """Counts and tokens of all judgments of the run; seconds, GPU-hours and cost of its last start."""
    found = figures_of(inputs)
    rows: list[tuple[str, str]] = [(words, whole(found[name])) for name, words in _COUNTS.items() if name in found]
    rows += [(words, _grouped(found["tokens"][name])) for name, words in _TOKENS.items() if name in found["tokens"]]
    if "cached_share" in found:
        rows.append(("  share of prompts from the cache", share(found["cached_share"])))
    seconds = found["seconds"]
    rows += [(f"seconds, {_STEPS.get(name, name)}", Cell(f"{taken:.1f}", taken)) for name, taken in seconds.items()]
    if "judged_per_second" in found:
        rows.append(("judgments a second", Cell(f"{found['judged_per_second']:.2f}", found["judged_per_second"])))
    if "gpu_hours" in found:
        rows.append(("GPU-hours at most", Cell(f"{found['gpu_hours']:.3f}", found["gpu_hours"])))
    if "cost" in found:
        rows.append(("cost, at the configured price", Cell(f"{found['cost']:.2f}", found["cost"])))
    return Table(
        "What it took",
        "Counts and tokens are of all judgments of the run, whenever they were made; seconds, GPU-hours and cost of "
        "its last start.",
        ("what", "value"),
        rows,
        empty="the run has no manifest that counts",
    )


def _grouped(count: int) -> str:
    return Cell(f"{count:,}".replace(",", "\u202f"), count)
