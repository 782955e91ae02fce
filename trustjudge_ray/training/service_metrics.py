"""What the reward service counts, as Prometheus reads it.

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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

TYPE: Final = CONTENT_TYPE_LATEST
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


class Tally:
    """Counts, in one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._found = {name: _made(metric, self._registry) for name, metric in METRICS.items()}

    def note(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """A counter grows by a value, a gauge becomes it, a histogram takes it in."""
        found = self._found[name]
        one = found.labels(**labels) if labels else found
        if isinstance(one, Counter):
            one.inc(value)
        elif isinstance(one, Gauge):
            one.set(value)
        else:
            one.observe(value)

    def text(self) -> str:
        """All of it, as Prometheus reads it."""
        return generate_latest(self._registry).decode("utf-8")


def _made(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    if metric.bounds:
        return Histogram(metric.name, metric.told, metric.labels, registry=registry, buckets=metric.bounds)
    return (Counter if metric.kind == "counter" else Gauge)(metric.name, metric.told, metric.labels, registry=registry)
