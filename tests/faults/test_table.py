"""The page shows what the record says, and nothing where a fault was not tried often enough."""

import json

import pytest
import table

RECORD = {"fault": "x", "judge": "scripted", "progress": 0.5, "starts": 1, "again": 8, "lost": 2.4, "checks": ["a"]}


def test_the_table_replaces_the_former_one_and_nothing_else(tmp_path):
    page, record = tmp_path / "page.md", tmp_path / "record.jsonl"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    trials = [RECORD | {"trial": i, "again": 8 * i, "starts": 1 + i // 2} for i in range(3)]
    record.write_text("".join(json.dumps(trial) + "\n" for trial in trials))
    for _ in range(2):
        table.main(record, page)
        before, line, after = page.read_text().partition(
            "| x | scripted | 3 | 50%, 50%, 50% | went on 2×, started again 1× | 8 (0–16) | 2 | 3 |\n"
        )
        assert line, before
        assert (before.startswith("before\n"), "old" in before, after) == (True, False, f"{table.END}\nafter\n")


@pytest.mark.parametrize("trials", [0, 2])
def test_a_fault_that_was_tried_less_than_three_times_is_no_line(trials):
    with pytest.raises(ValueError, match="less than 3 times"):
        table.table([RECORD] * trials)
