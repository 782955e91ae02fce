"""What the reward service counts, and how Prometheus reads it: the text format 0.0.4.

| name | kind | labels |
|---|---|---|
| `trustjudge_service_requests_total` | counter: HTTP requests | route, status |
| `trustjudge_service_seconds` | histogram: of an HTTP request | route |
| `trustjudge_service_expired_total` | counter: HTTP requests whose deadline came first | |
| `trustjudge_service_rejected_total` | counter: completions, of bodies for which there was no room | |
| `trustjudge_service_cached_total`, `…_shared_total` | counter: completions known, or being judged for another | |
| `trustjudge_service_dropped_total` | counter: completions that nobody waited for any more, not judged | |
| `trustjudge_service_failed_total` | counter: completions without a reward | status |
| `trustjudge_service_batch`, `trustjudge_service_batch_seconds` | histogram: completions of a batch, its time | |
| `trustjudge_service_waiting` | gauge: completions in the queue | |
| `trustjudge_service_engine_deaths_total` | counter: batches on which an engine died | |
"""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of the text."""
_SERVICE: Final = "trustjudge_service"
_SECONDS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_SIZES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One of the metrics; of a histogram the upper bounds of its buckets, ascending."""

    name: str
    kind: str
    told: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


METRICS: Final[dict[str, Metric]] = {
    "requests": Metric(f"{_SERVICE}_requests_total", "counter", "HTTP requests answered.", ("route", "status")),
    "seconds": Metric(f"{_SERVICE}_seconds", "histogram", "How long HTTP requests took.", ("route",), _SECONDS),
    "expired": Metric(f"{_SERVICE}_expired_total", "counter", "HTTP requests whose deadline came first."),
    "rejected": Metric(f"{_SERVICE}_rejected_total", "counter", "Completions for which there was no room."),
    "cached": Metric(f"{_SERVICE}_cached_total", "counter", "Completions whose reward was known."),
    "shared": Metric(f"{_SERVICE}_shared_total", "counter", "Completions that were being judged for another."),
    "dropped": Metric(f"{_SERVICE}_dropped_total", "counter", "Completions that nobody waited for any more."),
    "failed": Metric(f"{_SERVICE}_failed_total", "counter", "Completions without a reward.", ("status",)),
    "batch": Metric(f"{_SERVICE}_batch", "histogram", "Completions of a batch.", (), _SIZES),
    "batch_seconds": Metric(f"{_SERVICE}_batch_seconds", "histogram", "How long batches took.", (), _SECONDS),
    "waiting": Metric(f"{_SERVICE}_waiting", "gauge", "Completions in the queue."),
    "engine_deaths": Metric(f"{_SERVICE}_engine_deaths_total", "counter", "Batches on which an engine died."),
}
"""By the short names under which they are noted."""


@dataclass(slots=True)
class _Series:
    """A value; of a histogram the sum, with how many values fell into each bucket (the last is without a bound)."""

    value: float = 0.0
    buckets: list[int] = field(default_factory=list)


class Tally:
    """Counts, in one process."""

    def __init__(self) -> None:
        self._found: dict[str, dict[tuple[str, ...], _Series]] = {
            name: {} if metric.labels else {(): _new(metric)} for name, metric in METRICS.items()
        }

    def note(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """A counter grows by a value, a gauge becomes it, a histogram takes it in."""
        metric = METRICS[name]
        key = tuple((labels or {})[label] for label in metric.labels)
        series = self._found[name].setdefault(key, _new(metric))
        series.value = value if metric.kind == "gauge" else series.value + value
        if metric.bounds:
            series.buckets[bisect_left(metric.bounds, value)] += 1

    def text(self) -> str:
        """All of it, as Prometheus reads it."""
        lines: list[str] = []
        for name, found in self._found.items():
            metric = METRICS[name]
            lines += [f"# HELP {metric.name} {metric.told}", f"# TYPE {metric.name} {metric.kind}"]
            for key, series in found.items():
                labels = dict(zip(metric.labels, key, strict=True))
                plain = [_line(metric.name, labels, series.value)]
                lines += _histogram(metric, labels, series) if metric.bounds else plain
        return "\n".join(lines) + "\n"


def _new(metric: Metric) -> _Series:
    return _Series(buckets=[0] * (len(metric.bounds) + 1) if metric.bounds else [])


def _histogram(metric: Metric, labels: dict[str, str], series: _Series) -> list[str]:
    """Its buckets, each with all that is not above its bound, its sum and its count."""
    lines, count = [], 0
    for bound, inside in zip([*metric.bounds, math.inf], series.buckets, strict=True):
        count += inside
        lines.append(_line(f"{metric.name}_bucket", labels | {"le": _number(bound)}, count))
    return [*lines, _line(f"{metric.name}_sum", labels, series.value), _line(f"{metric.name}_count", labels, count)]


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{shown}}} {_number(value)}" if shown else f"{name} {_number(value)}"


def _number(value: float) -> str:
    return "+Inf" if value == math.inf else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
