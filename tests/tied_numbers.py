"""Holds a report page against metrics.json: which of its numbers are not there, or are shown as others."""

import re

import report_page

TEXTS = {
    *("judge", "model", "protocol", "comparison", "scores", "score rule", "verdict rule", "rule", "rules", "kind"),
    *("measure", "family", "size", "what", "without bias", "what it says", "step", "metric", "side", "quantity"),
    *("status or reason", "property"),
}
"""Columns of names and words: digits in them are no numbers of the run."""
APART = {"Calibration", "Noise floor"}
"""Tables whose numbers beside an interval are of other rows of METRICS."""
CONSTANT = {"50 %", "95 %"}
"""What a coin gives, and the nominal coverage of intervals."""


def untied(root, document):
    """What on a page is not one of the document's numbers: every discrepancy in words."""
    numbers, together = report_page.known(document)
    more = document["report"]
    names = {*more["judges"], *more["protocols"], *(row["model"] for row in more["models"])}
    names = sorted((name for name in names if re.search(r"\d", name)), key=len, reverse=True)
    told = []
    for shown in root.all("table"):
        title = report_page.title_of(shown)
        heads = [head.text for head in shown.all("thead")[0].all("th")]
        for row in shown.all("tbody")[0].all("tr"):
            cells = [child for child in row.children if child.tag in ("td", "th")]
            for head, cell in zip(heads, cells, strict=True):
                where = f"{title}, {head}: {cell.text!r}"
                if not cell.values and head not in TEXTS and re.search(r"\d", cell.text) and cell.tag == "td":
                    told.append(f"{where} has no numbers behind it")
                told += _unknown(cell, numbers, where) + _unlike(cell, names, where)
            told += _torn(title, heads, cells, together)
    for element in root.all("dd", "li", "p"):
        if element.values:
            told += _unknown(element, numbers, element.text)
        if element.tag != "p" and (element.values or element.tag == "dd"):
            told += _unlike(element, names, element.text)
    return told


def _unknown(element, numbers, where):
    return [f"{where}: {value!r} is not in metrics.json" for value in element.values if value not in numbers]


def _unlike(element, names, where):
    """Numbers of a text against the values behind it, one by one."""
    text = element.text.replace("\u00a0", " ")
    for name in names:
        text = text.replace(name, "")
    for constant in CONSTANT if element.tag != "td" else ():
        text = text.replace(constant, "")
    if not element.values:
        return (
            []
            if element.tag in ("td", "th") or not re.search(r"\d", text)
            else [f"{where}: a number without its value"]
        )
    shown = report_page.NUMBER.findall(text)
    if len(shown) != len(element.values):
        return [f"{where}: shows {shown} and has {element.values}"]
    pairs = zip(shown, element.values, strict=True)
    return [f"{where}: {text} is not {value!r}" for text, value in pairs if not report_page.shows(text, value)]


def _torn(title, heads, cells, together):
    """Value, interval and cases of a row must stand in one row of metrics.json."""
    told = []
    for i, head in enumerate(heads):
        if head != "interval" or title in APART or not cells[i].values:
            continue
        beside = {value for cell in cells[i - 1 : i + 2] for value in cell.values}
        if not any(beside <= each for each in together):
            told.append(f"{title}: {[cell.text for cell in cells]}: {sorted(beside)} are of no one row")
    return told
