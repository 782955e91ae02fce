"""What people's labels say about a run, as Markdown."""

from collections.abc import Sequence
from typing import Any, Final

from trustjudge_ray.report.comparison import markdown_table

_SHOWN: Final = {
    "agreement_pair_exact": "same outcome, ties included",
    "agreement_pair_decisive": "same winner where neither says tie",
    "agreement_pair_kappa": "Cohen's κ",
    "agreement_pair_kappa_quadratic": "Cohen's κ, quadratic weights",
    "agreement_pair_brier": "Brier score",
    "agreement_pair_ece": "calibration error",
    "agreement_pair_ece_scaled": "calibration error, temperature scaled on other questions",
    "agreement_pair_temperature": "temperature (over 1: too sure)",
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
        lines += ["## Against the leaderboard of people", "", *_board_table(boards), ""]
    return "\n".join(lines)


def _sheet_lines(sheet: dict[str, Any], rules: Sequence[str]) -> list[str]:
    what = "pairs" if sheet["kind"] == "compare" else "answers"
    alphas = ", ".join(f"{level} {_number(value)}" for level, value in sheet["alpha"].items() if value is not None)
    lines = [
        f"## Label sheet {sheet['sheet']}",
        "",
        f"{sheet['labelled']} of {sheet['drawn']} {what} labelled, drawn at random from {sheet['frame']} (seed "
        f"{sheet['seed']}); annotators: {', '.join(sheet['annotators'])}. "
        + (f"Krippendorff's α among them: {alphas}." if alphas else "Nothing has two labels, so no α."),
        "",
    ]
    if sheet["refused"]:
        lines += [f"**No estimate of the rest: {sheet['refused']}**", ""]
    powered = [_powered_cells(row) for row in sheet["powered"]]
    if powered:
        columns = ("judge", "protocol", "model", "quantity", "estimate", "interval", "labels alone", "judge alone")
        note = "Prediction-powered (PPI++): right whatever the judge is worth; a better judge makes it narrower."
        lines += [note, "", *markdown_table((*columns, "labels", "λ", "worth"), powered), ""]
    chosen = [m for m in sheet.get("metrics", []) if m["metric"] in _SHOWN and m["category"] is None]
    chosen = [m for m in chosen if m["verdict_rule"] is None or (m["verdict_rule"] in rules)]
    if chosen:
        columns = ("judge", "protocol", "verdict rule", "tolerance", "what", "value", "interval", "cases")
        lines += [*markdown_table(columns, [_metric_cells(m) for m in chosen]), ""]
    if any(each["reliability"] for each in sheet.get("calibration", [])):
        lines += ["Reliability: how often the likeliest outcome was right.", ""]
        lines += _reliability_table(sheet["calibration"])
    return lines


def _reliability_table(calibration: Sequence[dict[str, Any]]) -> list[str]:
    columns = ("judge", "protocol", "probability from", "to", "mean", "right", "interval", "pairs")
    rows = [
        (
            each["judge"],
            each["protocol"],
            f"{bar['start']:.1f}",
            f"{bar['end']:.1f}",
            _number(bar["confidence"]),
            _number(bar["right"]),
            _range(bar["low"], bar["high"]),
            str(bar["cases"]),
        )
        for each in calibration
        for bar in each["reliability"]
    ]
    return markdown_table(columns, rows)


def _powered_cells(row: dict[str, Any]) -> tuple[str, ...]:
    about = row["judge"], row["protocol"], row["model"] or "all", row["quantity"]
    if not row["labelled"]:
        return (*about, "–", "–", "–", "–", "0", "–", "–")
    alone = f"{_number(row['labels_value'])} ({_range(row['labels_low'], row['labels_high'])})"
    worth = "–" if row["worth"] is None else f"{row['worth']:.1f}×"
    value, interval = _number(row["value"]), _range(row["low"], row["high"])
    return (
        *about,
        value,
        interval,
        alone,
        _number(row["judge_value"]),
        str(row["labelled"]),
        _number(row["tuning"]),
        worth,
    )


def _metric_cells(m: dict[str, Any]) -> tuple[str, ...]:
    tolerance = "" if m["verdict_tolerance"] is None else f"{m['verdict_tolerance']:g}"
    about = m["judge"], m["protocol"], m["verdict_rule"] or "", tolerance, _SHOWN[m["metric"]]
    return (*about, _number(m["value"]), _range(m["low"], m["high"]), str(m["cases"]))


def _board_table(boards: Sequence[dict[str, Any]]) -> list[str]:
    columns = ("judge", "protocol", "rule", "models", "separability", "people's", "agreement", "Spearman", "Kendall")
    rows = []
    for board in boards:
        left = len(board["only_ours"]) + len(board["only_theirs"])
        models = f"{len(board['models'])}" + (f" ({left} on one side only)" if left else "")
        values = (board[name] for name in ("separability", "people_separability", "agreement", "spearman", "kendall"))
        rows.append((board["judge"], board["protocol"], board["rule"], models, *map(_number, values)))
    return markdown_table(columns, rows)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _range(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{low:.3f} … {high:.3f}"
