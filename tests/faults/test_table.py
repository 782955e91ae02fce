"""The page shows what the record says, and nothing where a fault was not tried often enough."""

import json

import pytest
import table

RECORD = {
    "fault": "x",
    "judge": "scripted",
    "times": 3,
    "at": [0.2, 0.5, 0.8],
    "starts": 3,
    "again": 24,
    "lost": 7.2,
    "checks": ["a"],
}


def test_the_table_replaces_the_former_one_and_nothing_else(tmp_path):
    page, record = tmp_path / "page.md", tmp_path / "record.jsonl"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    record.write_text(json.dumps(RECORD) + "\n")
    for _ in range(2):
        table.main(record, page)
        before, line, after = page.read_text().partition(
            "| x | scripted | 3 | 20%, 50%, 80% | started again 2× | 8 | 2 | 1 |\n"
        )
        assert line, before
        assert (before.startswith("before\n"), "old" in before, after) == (True, False, f"{table.END}\nafter\n")


@pytest.mark.parametrize("records", [[], [RECORD | {"times": 2}]])
def test_a_fault_that_came_less_than_three_times_is_no_line(records):
    with pytest.raises(ValueError, match="less than 3 times"):
        table.table(records)
