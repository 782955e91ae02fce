"""Writes the table of docs/reliability.md from the record of the whole fault suite."""

import json
import sys
from pathlib import Path
from typing import Any

TIMES = 3
BEGIN, END = "<!-- from the suite's record: begin -->", "<!-- from the suite's record: end -->"
_HEAD = (
    "| fault | judge | times | at (share judged) | the driver | rows judged again | seconds lost | checks passed |\n"
    "|---|---|---|---|---|---|---|---|\n"
)


def table(records: list[dict[str, Any]]) -> str:
    """Markdown: one line for each fault, in the order of the record.

    Raises:
        ValueError: a fault came less than three times, or nothing was tried.
    """
    few = [record["fault"] for record in records if record["times"] < TIMES]
    if few or not records:
        raise ValueError(f"tried less than {TIMES} times: {few or 'every fault'}; run the whole suite")
    return _HEAD + "".join(map(_line, records))


def _line(record: dict[str, Any]) -> str:
    times, again = record["times"], record["starts"] - 1
    cells = [
        record["fault"],
        record["judge"],
        str(times),
        ", ".join(f"{share:.0%}" for share in record["at"]) or "–",
        f"started again {again}×" if again else "went on",
        f"{record['again'] / times:.0f}",
        f"{max(record['lost'], 0) / times:.0f}",
        str(len(record["checks"])),
    ]
    return "| " + " | ".join(cells) + " |\n"


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
