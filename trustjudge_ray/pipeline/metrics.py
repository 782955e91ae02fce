"""What a judge's process counts for Prometheus, through Ray's own metrics (port and scraping: Ray's manual, "Metrics").

| name | kind | tags |
|---|---|---|
| `trustjudge_judgments_total` | counter | judge, protocol, status |
| `trustjudge_prompt_tokens_total`, `trustjudge_cached_tokens_total`, `trustjudge_output_tokens_total` | counter | judge, protocol |
| `trustjudge_batch_seconds` | histogram | judge |
| `trustjudge_engine_deaths_total` | counter | judge |

Ray puts `ray_` before each name. What a process counted since it last reported (RAY_metrics_report_interval_ms) goes
with it when it is killed: these are for watching; the manifest has the numbers.
"""  # noqa: E501

import pyarrow as pa
from ray.util.metrics import Counter, Histogram

_SECONDS = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0]
_TOKENS = ("prompt_tokens", "cached_tokens", "output_tokens")


class Metrics:
    """The counters of one process, for one judge."""

    def __init__(self, judge: str) -> None:
        self._judge = {"judge": judge}
        judged = "Judgments that were made, failed ones too."
        self._judgments = Counter("trustjudge_judgments_total", judged, ("judge", "protocol", "status"))
        self._tokens = {
            name: Counter(f"trustjudge_{name}_total", f"The sum of {name} of judgments.", ("judge", "protocol"))
            for name in _TOKENS
        }
        self._seconds = Histogram("trustjudge_batch_seconds", "How long batches took.", _SECONDS, ("judge",))
        self._deaths = Counter("trustjudge_engine_deaths_total", "Engines that died and were replaced.", ("judge",))

    def batch(self, judgments: pa.Table, seconds: float) -> None:
        """A batch was judged."""
        self._seconds.observe(seconds, self._judge)
        by = judgments.group_by(["protocol", "status"])
        wanted = [("task_id", "count"), *((name, "sum") for name in _TOKENS)]
        for row in by.aggregate(wanted).to_pylist():
            protocol = self._judge | {"protocol": row["protocol"]}
            self._judgments.inc(row["task_id_count"], protocol | {"status": row["status"]})
            for name in _TOKENS:
                if row[f"{name}_sum"]:
                    self._tokens[name].inc(row[f"{name}_sum"], protocol)

    def engine_died(self) -> None:
        """The process before this one died at work or while loading."""
        self._deaths.inc(1, self._judge)
