"""The report: every table by judge, protocol and scale, every number from the metrics, nothing left out in silence."""

from dataclasses import replace

import polars as pl
import pytest
import reported_runs as world
from reported_runs import COMPARISONS, JUDGES, SCALES
from run_folders import write_run

from trustjudge_ray import runs
from trustjudge_ray.analysis.evaluation import evaluate
from trustjudge_ray.analysis.pairing import Side
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.report import agreement, charts, consistency, granularity, judges, page, scores, tables

SMALL = {"judges": JUDGES[:1], "scales": SCALES[:1], "comparisons": COMPARISONS[:1]}


@pytest.fixture(scope="module")
def several():
    return world.inputs()


@pytest.fixture(scope="module")
def small():
    return world.inputs(**SMALL)


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", 70),
        ("SmolLM2-135M-Instruct", 0.135),
        ("Qwen2.5-0.5B", 0.5),
        ("mixtral-8x7b-instruct", 56),
        ("Qwen3-30B-A3B", 30),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", 8),
        ("Qwen2.5-7B-Instruct-4bit", 7),
        ("gpt-4o", None),
        ("tuned-7B-from-70B", None),
    ],
)
def test_a_size_is_what_the_name_says_and_nothing_where_it_says_two_things(model, billions):
    assert judges.billions_of(model) == (None if billions is None else pytest.approx(billions))


def test_judges_stand_by_family_then_size_not_by_letters(several):
    order = [about.name for about in judges.about_judges(several)]
    assert order == ["Llama-3.2-3B-Instruct", "Llama-3.1-70B-Instruct", "Qwen2.5-7B-Instruct", "mine"]
    counted = replace(several, manifest={"judges": {"mine": {"model": "x/Llama-3.1-8B", "parameters": 8_030_000_000}}})
    mine = next(about for about in judges.about_judges(counted) if about.name == "mine")
    assert (mine.family, mine.size) == ("llama", "8.03B")
    assert judges.about_judges(counted)[1].name == "mine"
    lines = pl.read_csv(judges.judges_csv(counted).encode())
    assert lines.row(1, named=True) | {"billions": 0} == {
        "judge": "mine",
        "family": "llama",
        "billions": 0,
        "model": "x/Llama-3.1-8B",
        "revision": None,
        "engine": None,
    }


def test_the_table_of_judges_has_each_measure_of_each_judge_with_the_numbers_of_metrics(several):
    table = judges.side_by_side(several)
    cr = [row for row in table.rows if row[0] == "CR against emitted verdicts"]
    assert len(cr) == len(JUDGES) * len(SCALES) * len(COMPARISONS)
    row = next(row for row in cr if row[1:3] == ("score-100 / compare", "Llama-3.2-3B-Instruct"))
    wanted = several.metrics.filter(
        pl.col("category").is_null(),
        metric="conflict_ratio",
        judge="Llama-3.2-3B-Instruct",
        protocol="score-100",
        pair_protocol="compare",
        verdict_rule="baseline",
        tolerance=0.0,
    )
    values = {m["score_rule"]: f"{100 * m['value']:.1f} %" for m in wanted.to_dicts()}
    assert (row[5], row[8]) == (values["baseline"], values["expected"])
    assert {row[0] for row in table.rows} == {
        *("CR against emitted verdicts", "NTR_3", "exact match with people", "Spearman with people", "flip rate")
    }


def test_each_comparison_protocol_has_its_leaderboard(several):
    boards = tables.leaderboards(several)
    for judge in JUDGES:
        told = [board.title for board in boards if board.title.startswith(f"Leaderboard by {judge} ")]
        assert told == [f"Leaderboard by {judge} ({name}, Davidson)" for name in COMPARISONS]
    shown = [line for line in tables.terminal(several).splitlines() if line.startswith("Leaderboard")]
    assert len(shown) == len(set(shown)) == len(boards), "the terminal has titles and no notes"


def without_comparisons(small, **settings):
    """The same run, every comparison of which has failed."""
    lost = pl.col("kind") == "compare"
    said = small.judgments.with_columns(
        status=pl.when(lost).then(pl.lit("no_verdict")).otherwise("status"),
        emitted=pl.when(~lost).then("emitted"),
        label_logprobs=pl.when(~lost).then("label_logprobs"),
    )
    chosen = replace(small.settings, **settings)
    found = evaluate(said, small.protocols, world.responses(), chosen)
    frames = {name: getattr(found, name) for name in ("scores", "verdicts", "metrics", "ratings")}
    return replace(small, judgments=said, settings=chosen, **frames)


def test_a_judge_whose_comparisons_failed_is_not_said_to_have_none(small):
    (board,) = tables.leaderboards(without_comparisons(small))
    assert board.title == f"Leaderboard by {JUDGES[0]} ({SCALES[0]}, mean score)"
    assert board.note.startswith(f"Mean score: {JUDGES[0]} has no readable comparison to rank by.")


def test_a_weighted_rating_and_the_plain_mean_beside_it_are_told_apart(small):
    (board,) = tables.leaderboards(without_comparisons(small, category_weights={"code": 3.0}))
    assert "mean score, unweighted" in board.columns
    assert "Ratings weigh questions by category" in board.note
    (plain,) = tables.leaderboards(without_comparisons(small))
    assert "mean score" in plain.columns
    assert "weigh" not in plain.note


def test_the_reference_stays_whatever_rules_are_shown():
    settings = AnalysisConfig(tolerances=[0], k=[3], score_rules=["expected"], verdict_rules=["normalised"])
    every, some = (world.inputs(s, **SMALL) for s in (AnalysisConfig(tolerances=[0], k=[3]), settings))
    assert judges.side_by_side(some).rows == judges.side_by_side(every).rows
    assert tables.findings(some) == tables.findings(every)
    assert any("conflict in" in text for text in tables.findings(some))


def test_an_anchored_leaderboard_says_who_is_at_1000_and_no_mean(small):
    anchored = replace(small, settings=replace(small.settings, anchor_model="b"))
    (board,) = tables.leaderboards(anchored)
    assert "b is 1000" in board.note
    assert "mean 1000" not in board.note


def test_scales_stand_side_by_side_coarse_ones_first(several):
    table = granularity.granularity(several, brief=True)
    assert len(table.rows) == len(JUDGES) * len(COMPARISONS) * len(SCALES) * 2
    every = granularity.granularity(several)
    assert len(every.rows) == len(JUDGES) * len(COMPARISONS) * len(SCALES) * len(several.settings.score_rules)
    assert [row[3] for row in table.rows[:6]] == ["5", "5", "10", "10", "100", "100"]
    assert [row[4] for row in table.rows[:2]] == ["baseline", "expected"]
    entropy = granularity.entropies(several)
    assert [row[:3] for row in entropy.rows[:3]] == [
        ("Llama-3.1-70B-Instruct", n, k) for n, k in zip(SCALES, ("5", "10", "100"), strict=True)
    ]


def test_a_curve_has_every_tolerance_and_chance_beside_it(several):
    points = consistency.curve(several, "non_transitivity_ratio")
    assert set(points["tolerance"]) == {0.0, 0.1}
    assert set(points["judge"]) == set(JUDGES)
    assert points["by_chance"].null_count() == points["ties"].null_count() == 0
    assert len(consistency.curves(several)) == 2
    one = world.inputs(AnalysisConfig(tolerances=[0], k=[3]), **SMALL)
    assert consistency.curves(one) == []
    assert "tolerances" not in charts.figures(one)


def test_lost_pairs_widen_a_ratio_to_its_best_and_worst_case(small):
    rows = small.judgments.with_row_index("at").with_columns(
        status=pl.when((pl.col("kind") == "compare") & (pl.col("at") % 7 == 0))
        .then(pl.lit("engine_error"))
        .otherwise("status")
    )
    said = rows.drop("at")
    found = evaluate(said, small.protocols, world.responses(), small.settings)
    lossy = replace(small, judgments=said, metrics=found.metrics)
    conflicts = consistency.consistency(lossy)[0]
    known = conflicts.columns.index("if all were known")
    assert all("…" in row[known] for row in conflicts.rows)
    assert {row[known] for row in consistency.consistency(small)[0].rows} == {"–"}


def test_reliability_counts_every_pair_once_and_calibration_has_its_temperature(several):
    bars = agreement.reliability_bars(several)
    mine = [bar for bar in bars if (bar["judge"], bar["protocol"]) == ("mine", "compare")]
    assert sum(bar["cases"] for bar in mine) == 4 * 6
    assert all(bar["start"] <= bar["confidence"] <= bar["end"] for bar in bars)
    titles = [table.title for table in agreement.agreement(several)]
    assert titles == ["Agreement, rule by rule", "Calibration", "Reliability"]
    calibration = agreement.agreement(several)[1]
    assert len(calibration.rows) == len(JUDGES) * len(COMPARISONS)


def test_without_people_the_report_has_no_agreement_and_says_so():
    unscored = world.responses().with_columns(human_score=pl.lit(None, dtype=pl.Float64))
    alone = world.inputs(known=unscored, **SMALL)
    assert agreement.agreement(alone) == []
    assert "no human scores" in page.page(alone)


def test_the_confidence_of_the_settings_is_the_one_that_is_told():
    shown = world.inputs(AnalysisConfig(tolerances=[0], k=[3], confidence=0.9), **SMALL)
    html = page.page(shown)
    assert "90 %" in html
    assert "95 %" not in html.split('<section id="run"')[0]
    assert all("Intervals are 90 %" in board.note for board in tables.leaderboards(shown))


def test_a_report_tells_what_its_tables_were_computed_with(tmp_path):
    side = Side("x", world.judgments(**SMALL), world.responses(), world.PROTOCOLS)
    folder = write_run(tmp_path / "run", side)
    runs.evaluate(folder, AnalysisConfig(tolerances=[0], k=[3], confidence=0.8, score_rules=["geval", "baseline"]))
    shown = runs.report_inputs(folder)
    assert (shown.settings.confidence, shown.settings.score_rule) == (0.8, "geval")
    runs.report(folder)
    assert "Intervals are 80 %" in (tmp_path / "run" / "report.html").read_text()


def test_distributions_of_two_judges_are_never_averaged(several):
    panels = {(row["judge"], row["protocol"]) for row in scores.mean_distributions(several)}
    assert panels == {(judge, name) for judge in JUDGES for name in SCALES}


def test_a_score_without_a_distribution_is_left_out_of_the_figure(several):
    rows = several.judgments.with_columns(
        label_logprobs=pl.when(pl.col("judge") == "mine").then(None).otherwise("label_logprobs")
    )
    judges_of = {row["judge"] for row in scores.mean_distributions(replace(several, judgments=rows))}
    assert judges_of == set(JUDGES) - {"mine"}


def test_every_figure_is_on_the_page_and_a_rationale_is_told():
    html = page.page(world.inputs(judges=JUDGES[:1], scales=SCALES[:1]))
    assert html.count("</svg>") == len(charts.CHARTS)
    assert "a rationale of up to 256 tokens first" in html
    assert html.count("no rationale") == 2


def test_the_terminal_shows_judges_side_by_side_only_where_there_are_several(several, small):
    assert "Judges side by side" in tables.terminal(several)
    alone = tables.terminal(small)
    assert "Judges side by side" not in alone
    assert "Granularity" not in alone


def sheet(**changes):
    """What `trustjudge agree --json` says about a sheet of pairs."""
    estimate = {"judge": "mine", "protocol": "compare", "model": "<a>", "quantity": "win_rate", "labelled": 20}
    estimate |= {"value": 0.61, "low": 0.5, "high": 0.72, "labels_value": 0.6, "labels_low": 0.4, "labels_high": 0.8}
    estimate |= {"judge_value": 0.7, "tuning": 0.9, "worth": 2.5}
    about = {"sheet": "s1", "kind": "compare", "drawn": 20, "frame": 90, "seed": 0, "labelled": 20}
    about |= {"annotators": ["anna", "ben"], "alpha": {"nominal": 0.8}, "powered": [estimate], "refused": None}
    return about | changes


def test_what_people_said_of_a_sheet_is_on_the_page_with_its_estimates_or_why_there_are_none(small):
    said = {
        "sheets": [sheet(), sheet(sheet="s2", powered=[], refused="the run has other pairs now")],
        "leaderboard": [],
    }
    html = page.page(replace(small, people=said), {})
    assert "Krippendorff&#39;s α among them: nominal 0.800" in html
    assert "0.500 … 0.720" in html
    assert "&lt;a&gt;" in html
    assert "No estimate of the rest: the run has other pairs now" in html
    assert "Label sheet" not in page.page(small, {})
