"""Every number on a report page is one of metrics.json's, and the text beside it is that number, rounded."""

import json
import re

import polars as pl
import pytest
import report_page
import reported_runs as world
import tied_numbers
from comparisons import game, table
from run_folders import write_run

from trustjudge_ray import runs
from trustjudge_ray.analysis.ablation import ablation
from trustjudge_ray.analysis.pairing import Side
from trustjudge_ray.config import AnalysisConfig


def manifest():
    return {
        "judges": {"mine": {"model": "x/Llama-3.1-8B", "parameters": 8_030_000_000}},
        "tasks": 1_234_567,
        "judged_now": 400,
        "reused": 3,
        "left": 0,
        "further_rows": 0,
        "tokens": {"prompt": 1_293_094, "cached": 241_408, "output": 912},
        "seconds": {"judge": 116.223, "read": 1.9},
        "gpu_hours": 0.0645,
        "cost": 0.19,
    }


def people():
    estimate = {"judge": "mine", "protocol": "compare", "model": "a", "quantity": "win_rate", "labelled": 20}
    estimate |= {"value": 0.6123, "low": 0.5011, "high": 0.7213, "labels_value": 0.6, "labels_low": 0.4123}
    estimate |= {"labels_high": 0.8456, "judge_value": 0.7012, "tuning": 0.9123, "worth": 2.53}
    sheet = {"sheet": "s1", "kind": "compare", "drawn": 20, "frame": 90, "seed": 0, "labelled": 19, "refused": None}
    sheet |= {"annotators": ["anna", "ben"], "alpha": {"nominal": 0.8123}, "powered": [estimate]}
    board = {"judge": "mine", "protocol": "compare", "rule": "davidson", "models": ["a", "b"], "only_ours": ["c"]}
    board |= {"only_theirs": ["d", "e"], "separability": 0.333333, "people_separability": 0.5, "agreement": 0.61}
    return {"sheets": [sheet], "corpus": [], "leaderboard": [board | {"spearman": 0.4123, "kendall": None}]}


def written(path, settings=None, **which):
    """The folder, the page and metrics.json of a run with everything that a report can show."""
    said = world.judgments(**which)
    lost = pl.int_range(pl.len()) % 17 == 3
    said = said.with_columns(
        status=pl.when(lost).then(pl.lit("engine_error")).otherwise("status"),
        emitted=pl.when(~lost).then("emitted"),
        label_logprobs=pl.when(~lost).then("label_logprobs"),
    )
    said = pl.concat([said, table([game("q0", "a", "b", (0.2, 0.3, 0.5), judge="mine", protocol="compare", repeat=1)])])
    folder = write_run(path, Side("x", said, world.responses(), world.PROTOCOLS), finished=False)
    settings = settings or AnalysisConfig(tolerances=[0, 0.1], k=[3, 4])
    runs.evaluate(folder, settings)
    folder.write_json("manifest.json", manifest())
    folder.write_json("agreement.json", people())
    found = ablation(said, folder.protocols(), settings, world.responses())
    folder.write_bytes("ablation.csv", found.write_csv().encode())
    runs.report(folder)
    return folder, folder.read_bytes("report.html").decode(), folder.read_json("metrics.json")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    which = {"judges": world.JUDGES[:2], "scales": world.SCALES[:2], "comparisons": world.COMPARISONS[:1]}
    return written(tmp_path_factory.mktemp("run") / "run", **which)


def test_no_number_of_the_page_is_missing_from_metrics_json_or_shown_as_another(run):
    _, html, document = run
    root = report_page.read(html)
    assert tied_numbers.untied(root, document) == []
    assert sum(len(cell.values) for cell in root.all("td")) > 1500
    titles = {report_page.title_of(table) for table in root.all("table")}
    assert {"What it took", "Kinds of contradictions", "Non-transitivity ratio", "Label sheet s1"} <= titles
    assert any(title.startswith("Who beats whom") for title in titles)


def without(part, value):
    """The document with every number that is the value a little off."""
    if isinstance(part, dict):
        return {name: without(each, value) for name, each in part.items()}
    if isinstance(part, list):
        return [without(each, value) for each in part]
    if isinstance(part, bool) or not isinstance(part, int | float) or part != value:
        return part
    return part * (1 + 1e-12) if isinstance(part, float) else part + 10_000_019


def test_a_number_that_differs_in_metrics_json_is_found(run):
    _, html, document = run
    more, root = document["report"], report_page.read(html)

    def of(rows, column, **wanted):
        return next(row[column] for row in rows if all(row[name] == value for name, value in wanted.items()))

    for value in (
        of(document["metrics"], "value", metric="order_effect", category=None),
        of(document["ratings"], "rating", rule="davidson", category=None, judge="(all)"),
        of(more["win_matrix"], "value", judge="mine"),
        more["run"]["tokens"]["prompt"],
        of(more["ablation"], "value", judge="mine", metric="score_entropy"),
    ):
        assert tied_numbers.untied(root, without(document, value)), value


def test_a_number_that_differs_on_the_page_is_found(run):
    _, html, document = run
    cell = re.search(r'<td data-values="(0\.\d+)" class="num">(\d+\.\d) %</td>', html)
    assert cell
    other = f"{(float(cell[2]) + 0.3):.1f}"
    for other_page in (
        html.replace(cell[0], cell[0].replace(f">{cell[2]}", f">{other}"), 1),
        html.replace(cell[0], cell[0].replace(cell[1], cell[1][:-1] + str((int(cell[1][-1]) + 1) % 10)), 1),
        html.replace(cell[0], f"<td>{cell[2]} %</td>", 1),
    ):
        assert tied_numbers.untied(report_page.read(other_page), document)
    sentence = re.search(r"<dd[^>]*>.*?(\d+) models", html)
    other_page = html.replace(sentence[0], sentence[0].replace(f"{sentence[1]} models", "7 models"), 1)
    assert tied_numbers.untied(report_page.read(other_page), document)


def test_counts_of_a_million_are_not_rounded_on_the_page(run):
    _, html, _ = run
    assert "1\u202f293\u202f094" in html
    assert "1234567" in html


def test_metrics_json_is_strict_json_and_a_report_leaves_its_rows_as_evaluate_wrote_them(run):
    folder, _, document = run
    text = folder.read_bytes("metrics.json").decode()
    assert json.loads(text, parse_constant=pytest.fail)["metrics"] == document["metrics"]
    assert sum(line.startswith('{"metric": ') for line in text.splitlines()) == len(document["metrics"])
    for name in ("metrics", "ratings"):
        assert document[name] == pl.DataFrame(folder.read_table(f"{name}.parquet")).to_dicts()


def test_an_ablation_of_other_settings_is_not_shown_beside_new_numbers(tmp_path):
    folder, before, _ = written(tmp_path / "run", judges=world.JUDGES[:1], comparisons=world.COMPARISONS[:1])
    assert "Ablation" in before
    assert folder.read_json("metrics.json")["report"]["ablation"]
    runs.evaluate(folder, AnalysisConfig(tolerances=[0, 0.5], k=[3]))
    runs.report(folder)
    assert not folder.exists("ablation.csv")
    assert not folder.read_json("metrics.json")["report"].get("ablation")
