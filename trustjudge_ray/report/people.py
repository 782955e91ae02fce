"""What people's labels say about a run: as Markdown, and as tables of a report."""

from collections.abc import Sequence
from typing import Any, Final

from trustjudge_ray.report.agreement import WORDS
from trustjudge_ray.report.cells import Cell, Table, decimal, interval, number, said, whole
from trustjudge_ray.report.comparison import markdown_table

_SHOWN: Final = {
    f"agreement_pair_{name}": WORDS[f"agreement_pair_{name}"]
    for name in ("exact", "decisive", "kappa", "kappa_quadratic", "brier", "ece", "ece_scaled", "temperature")
}


_NO_ESTIMATE: Final = (
    "Agreement with them is in the report. They were not drawn at random by `trustjudge label-sheet`, so nothing is "
    "concluded from them about answers without one."
)


def people_markdown(document: dict[str, Any], rules: Sequence[str]) -> str:
    """Agreement with labels of sheets, with the corpus's human scores, and with a leaderboard of people.

    Args:
        document: `sheets`, `corpus` and `leaderboard`, as `trustjudge agree --json` has them.
        rules: the verdict rules to show.
    """
    lines: list[str] = []
    for sheet in document["sheets"]:
        lines += [*_sheet_lines(sheet, rules), ""]
    if document["corpus"]:
        lines += ["## Probabilities against the corpus's human scores", "", _NO_ESTIMATE, ""]
        lines += [*_reliability_table(document["corpus"]), ""]
    boards = document["leaderboard"]
    if boards:
        lines += [
            "## Against the leaderboard of people",
            "",
            *markdown_table(_BOARD_COLUMNS, [_board_cells(board) for board in boards]),
            "",
        ]
    return "\n".join(lines)


def people_tables(document: dict[str, Any], rules: Sequence[str]) -> list[Table]:
    """The same as tables of a report, without the corpus's human scores, which a report reads itself."""
    tables: list[Table] = []
    for sheet in document["sheets"]:
        named = f"Label sheet {sheet['sheet']}"
        refused = f"No estimate of the rest: {sheet['refused']}" if sheet["refused"] else "no estimate"
        about = said("{} {}", _about(sheet), _POWERED)
        tables.append(Table(named, about, _POWERED_COLUMNS, [_powered_cells(row) for row in sheet["powered"]], refused))
        shown = [_metric_cells(m) for m in _chosen(sheet, rules)]
        tables.append(Table(f"{named}: agreement", "With what people wrote.", _METRIC_COLUMNS, shown))
        bars = _reliability_cells(sheet.get("calibration", []))
        tables.append(Table(f"{named}: reliability", _RELIABILITY, _RELIABILITY_COLUMNS, bars))
    boards = [_board_cells(board) for board in document["leaderboard"]]
    note = "Rankings of the run beside the one that people made (`trustjudge agree --leaderboard`)."
    tables.append(Table("Against the leaderboard of people", note, _BOARD_COLUMNS, boards))
    return [table for table in tables if table.rows or table.columns is _POWERED_COLUMNS]


def _sheet_lines(sheet: dict[str, Any], rules: Sequence[str]) -> list[str]:
    lines = [f"## Label sheet {sheet['sheet']}", "", _about(sheet), ""]
    if sheet["refused"]:
        lines += [f"**No estimate of the rest: {sheet['refused']}**", ""]
    powered = [_powered_cells(row) for row in sheet["powered"]]
    if powered:
        lines += [_POWERED, "", *markdown_table(_POWERED_COLUMNS, powered), ""]
    chosen = _chosen(sheet, rules)
    if chosen:
        lines += [*markdown_table(_METRIC_COLUMNS, [_metric_cells(m) for m in chosen]), ""]
    if any(each["reliability"] for each in sheet.get("calibration", [])):
        lines += [_RELIABILITY, "", *_reliability_table(sheet["calibration"])]
    return lines


def _about(sheet: dict[str, Any]) -> str:
    """What was drawn and labelled, and how far annotators agree."""
    what = "pairs" if sheet["kind"] == "compare" else "answers"
    alphas = [said("{} {}", level, number(value)) for level, value in sheet["alpha"].items() if value is not None]
    agreed = said(f"Krippendorff's α among them: {', '.join('{}' for _ in alphas)}.", *alphas)
    return said(
        "{} of {} {} labelled, drawn at random from {} (seed {}); annotators: {}. {}",
        *(whole(sheet["labelled"]), whole(sheet["drawn"]), what, whole(sheet["frame"]), whole(sheet["seed"])),
        ", ".join(sheet["annotators"]),
        agreed if alphas else "Nothing has two labels, so no α.",
    )


def _chosen(sheet: dict[str, Any], rules: Sequence[str]) -> list[dict[str, Any]]:
    """The metrics of a sheet that people are shown."""
    shown = [m for m in sheet.get("metrics", []) if m["metric"] in _SHOWN and m["category"] is None]
    return [m for m in shown if m["verdict_rule"] is None or m["verdict_rule"] in rules]


_POWERED: Final = "Prediction-powered (PPI++): right whatever the judge is worth; a better judge makes it narrower."
_RELIABILITY: Final = "Reliability: how often the likeliest outcome was right."
_POWERED_COLUMNS: Final = (
    *("judge", "protocol", "model", "quantity", "estimate", "interval", "labels alone", "judge alone"),
    *("labels", "λ", "worth"),
)
_METRIC_COLUMNS: Final = ("judge", "protocol", "verdict rule", "tolerance", "what", "value", "interval", "cases")
_RELIABILITY_COLUMNS: Final = ("judge", "protocol", "probability from", "to", "mean", "right", "interval", "pairs")
_BOARD_COLUMNS: Final = (
    *("judge", "protocol", "rule", "models", "separability", "people's", "agreement", "Spearman", "Kendall"),
)


def _reliability_table(calibration: Sequence[dict[str, Any]]) -> list[str]:
    return markdown_table(_RELIABILITY_COLUMNS, _reliability_cells(calibration))


def _reliability_cells(calibration: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            each["judge"],
            each["protocol"],
            Cell(f"{bar['start']:.1f}", bar["start"]),
            Cell(f"{bar['end']:.1f}", bar["end"]),
            number(bar["confidence"]),
            number(bar["right"]),
            interval(bar, number),
            whole(bar["cases"]),
        )
        for each in calibration
        for bar in each["reliability"]
    ]


def _powered_cells(row: dict[str, Any]) -> tuple[str, ...]:
    about = row["judge"], row["protocol"], row["model"] or "all", row["quantity"]
    if not row["labelled"]:
        return (*about, "–", "–", "–", "–", whole(row["labelled"]), "–", "–")
    ends = {"low": row["labels_low"], "high": row["labels_high"]}
    return (
        *about,
        number(row["value"]),
        interval(row, number),
        said("{} ({})", number(row["labels_value"]), interval(ends, number)),
        number(row["judge_value"]),
        whole(row["labelled"]),
        number(row["tuning"]),
        "–" if row["worth"] is None else Cell(f"{row['worth']:.1f}×", row["worth"]),
    )


def _metric_cells(m: dict[str, Any]) -> tuple[str, ...]:
    tolerance = "" if m["verdict_tolerance"] is None else decimal(m["verdict_tolerance"])
    about = m["judge"], m["protocol"], m["verdict_rule"] or "", tolerance, _SHOWN[m["metric"]]
    return (*about, number(m["value"]), interval(m, number), whole(m["cases"]))


def _board_cells(board: dict[str, Any]) -> tuple[str, ...]:
    left = len(board["only_ours"]) + len(board["only_theirs"])
    models = whole(len(board["models"]))
    if left:
        models = said("{} ({} on one side only)", models, whole(left))
    values = (board[name] for name in ("separability", "people_separability", "agreement", "spearman", "kendall"))
    return (board["judge"], board["protocol"], board["rule"], models, *map(number, values))
