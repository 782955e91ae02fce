"""Writes the table of docs/reliability.md from the record of the whole fault suite."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

TIMES = 3
BEGIN, END = "<!-- from the suite's record: begin -->", "<!-- from the suite's record: end -->"
_ENDS = {False: "went on", True: "started again"}
_HEAD = (
    "| fault | judge | times | at (share judged) | the driver | rows judged again | seconds lost | checks passed |\n"
    "|---|---|---|---|---|---|---|---|\n"
)


def table(records: list[dict[str, Any]]) -> str:
    """Markdown: one line for each fault, in the order of the record.

    Raises:
        ValueError: a fault was tried less than three times, or nothing was.
    """
    faults: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        faults.setdefault((record["fault"], record["judge"]), []).append(record)
    few = [fault for (fault, _), trials in faults.items() if len(trials) < TIMES]
    if few or not faults:
        raise ValueError(f"tried less than {TIMES} times: {few or 'every fault'}; run the whole suite")
    return _HEAD + "".join(_line(fault, judge, trials) for (fault, judge), trials in faults.items())


def _line(fault: str, judge: str, trials: list[dict[str, Any]]) -> str:
    went_on = sum(trial["starts"] == 1 for trial in trials)
    again = len(trials) - went_on
    driver = f"went on {went_on}×, started again {again}×" if went_on and again else _ENDS[again > 0]
    cells = [
        fault,
        judge,
        str(len(trials)),
        ", ".join(f"{trial['progress']:.0%}" for trial in trials),
        driver,
        _span(trial["again"] for trial in trials),
        _span(round(max(trial["lost"], 0)) for trial in trials),
        f"{sum(len(trial['checks']) for trial in trials)}",
    ]
    return "| " + " | ".join(cells) + " |\n"


def _span(values: Iterable[int]) -> str:
    found = sorted(values)
    return str(found[0]) if found[0] == found[-1] else f"{median(found):g} ({found[0]}–{found[-1]})"


def main(record: Path, page: Path) -> None:
    """Replace the table of the page."""
    records = [json.loads(line) for line in record.read_text("utf-8").splitlines()]
    text = page.read_text("utf-8")
    before, rest = text.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    page.write_text(f"{before}{BEGIN}\n{table(records)}{END}{after}", "utf-8")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except (OSError, ValueError) as error:
        sys.exit(f"docs/reliability.md is not written: {error}")
