"""Leaderboards of a run: every number is the run's own, and what it does not have is empty."""

import csv
import io
import json
import math
import statistics

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from comparisons import game, table
from reported_runs import MODELS, inputs, responses

from trustjudge_ray.analysis.evaluation import evaluate
from trustjudge_ray.cli import cli
from trustjudge_ray.config import AnalysisConfig, ConfigError
from trustjudge_ray.imported_runs import import_judgments
from trustjudge_ray.judging import protocols
from trustjudge_ray.leaderboard_exports import Wanted, export
from trustjudge_ray.report.leaderboards import ALPACA_EVAL, Lane, Tables, alpaca_eval, lane_of, lm_eval, lmarena
from trustjudge_ray.runs import evaluate as evaluate_run
from trustjudge_ray.storage import StorageError
from trustjudge_ray.store import RunFolder

COMPARE = {"compare": protocols.load("compare")}
WIN, LOSS, TIE = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)


def tables_of(rows, settings=None, known=None):
    judged, settings = table(rows), settings or AnalysisConfig(tolerances=[0], k=[3])
    found = evaluate(judged, COMPARE, known, settings)
    empty = responses().clear() if known is None else known
    return Tables(judged, empty, found.scores, found.ratings, COMPARE, settings)


def reported(**which):
    made = inputs(judges=("mine",), **which)
    return Tables(made.judgments, responses(), made.scores, made.ratings, made.protocols, made.settings)


def anchored(told):
    """Games of models with the baseline `base` in both orders; told: model → by question the two outcomes for it."""
    rows = []
    for model, games in told.items():
        for q, pair in enumerate(games):
            for (first, second), p in zip(((model, "base"), ("base", model)), pair, strict=True):
                mine = p if first == model else (p[1], p[0], p[2])
                rows.append(game(f"q{q}", first, second, mine, emitted="tie"))
    return rows


@pytest.fixture(scope="module")
def full():
    return reported(questions=6)


LANE = Lane("mine", "compare")


def preferences(tables, model, baseline):
    """By question the mean of P(win) + P(tie)/2 over both orders, from the judgments alone."""
    found = {}
    for row in tables.judgments.filter(kind="compare", protocol="compare").to_dicts():
        if {row["model_a"], row["model_b"]} != {model, baseline}:
            continue
        a, b, tie = (math.exp(x) for x in row["label_logprobs"])
        share = ((a if row["model_a"] == model else b) + tie / 2) / (a + b + tie)
        found.setdefault(row["question_id"], []).append(share)
    return [statistics.mean(shares) for shares in found.values()]


def test_alpaca_evals_numbers_are_those_of_its_definition(full):
    rows = {row[""]: row for row in alpaca_eval(full, LANE, "a")}
    assert set(rows) == set(MODELS) - {"a"}
    for model, row in rows.items():
        told = preferences(full, model, "a")
        assert tuple(row) == ALPACA_EVAL
        assert row["win_rate"] == pytest.approx(100 * statistics.mean(told))
        assert row["standard_error"] == pytest.approx(100 * statistics.stdev(told) / math.sqrt(len(told)))
        wins, losses = sum(p > 0.5 for p in told), sum(p < 0.5 for p in told)
        assert (row["n_wins"], row["n_wins_base"], row["n_draws"], row["n_total"]) == (wins, losses, 0, 6)
        assert row["discrete_win_rate"] == pytest.approx(100 * wins / 6)
        assert (row["avg_length"], row["length_controlled_winrate"]) == (2, None)  # `a0` … `d5`
    assert [row["win_rate"] for row in rows.values()] == sorted((r["win_rate"] for r in rows.values()), reverse=True)


def test_against_the_baseline_alone_the_win_rate_is_that_of_the_ratings_also_where_an_order_is_missing():
    rows = anchored({"m": [(WIN, LOSS), (WIN, TIE), (LOSS, WIN)], "n": [(TIE, TIE), (WIN, WIN), (LOSS, LOSS)]})
    for judged in (rows, rows[1:-1]):
        tables = tables_of(judged)
        rated = tables.ratings.filter(pl.col("category").is_null(), rule="win_rate")
        known = dict(rated.select("model", "rating").rows())
        for row in alpaca_eval(tables, LANE_OF_GAMES, "base"):
            assert row["win_rate"] == pytest.approx(100 * known[row[""]], abs=1e-12)


LANE_OF_GAMES = Lane("j", "compare")


def test_a_draw_is_a_question_and_not_an_order():
    (row,) = alpaca_eval(tables_of(anchored({"m": [(WIN, LOSS), (TIE, TIE), (WIN, TIE)]})), LANE_OF_GAMES, "base")
    assert [row[name] for name in ("n_wins", "n_wins_base", "n_draws", "n_total")] == [1, 0, 2, 3]
    assert row["discrete_win_rate"] == pytest.approx(100 * 2 / 3)
    assert row["win_rate"] == pytest.approx(100 * (0.5 + 0.5 + 0.75) / 3)


def test_what_a_run_does_not_have_is_null_and_never_zero():
    rows = anchored({"m": [(WIN, LOSS)]}) + [game("q0", "x", "m", TIE), game("q0", "m", "x", TIE)]
    found = {row[""]: row for row in alpaca_eval(tables_of(rows), LANE_OF_GAMES, "base")}
    assert (found["m"]["standard_error"], found["m"]["avg_length"]) == (None, None)
    assert [found["x"][name] for name in ("win_rate", "standard_error", "discrete_win_rate")] == [None] * 3
    assert found["x"]["n_total"] == 0
    assert list(found) == ["m", "x"]


def test_length_controlled_is_the_chance_by_the_ratings_that_control_for_length():
    plain = responses(questions=6)
    lengths = np.random.default_rng(0).integers(5, 400, plain.height)
    known = plain.with_columns(replies=pl.Series([["x" * int(n)] for n in lengths]))
    settings = AnalysisConfig(tolerances=[0], k=[3], covariates=["length"])
    made = inputs(settings=settings, known=known, judges=("mine",), questions=6)
    tables = Tables(made.judgments, known, made.scores, made.ratings, made.protocols, settings)
    rated = tables.ratings.filter(pl.col("category").is_null(), judge="mine", protocol="compare")
    ratings = dict(rated.filter(rule="davidson_controlled").select("model", "rating").rows())
    assert len(ratings) == 4
    for row in alpaca_eval(tables, LANE, "a"):
        odds = 10 ** ((ratings[row[""]] - ratings["a"]) / 400)
        assert row["length_controlled_winrate"] == pytest.approx(100 * odds / (1 + odds))


def test_lmarenas_table_is_the_ratings_of_one_rule(full):
    rated = full.ratings.filter(pl.col("category").is_null(), judge="mine", protocol="compare")
    for rule in ("bradley_terry", "davidson"):
        known = {row["model"]: row for row in rated.filter(rule=rule).to_dicts()}
        rows = lmarena(full, LANE, rule)
        assert [row["Model"] for row in rows] == sorted(known, key=lambda model: (known[model]["rank"], model))
        for row in rows:
            mine = known[row["Model"]]
            assert (row["Arena Score"], row["Lower"], row["Upper"]) == (mine["rating"], mine["low"], mine["high"])
            assert (row["Rank* (UB)"], row["Votes"], row["Group"]) == (mine["rank_low"], 36, 1)
            assert mine["games"] == pytest.approx(36)
            up, down = round(mine["high"] - mine["rating"]), round(mine["rating"] - mine["low"])
            assert row["95% CI"] == f"+{up}/-{down}"
    with pytest.raises(ConfigError, match="got 'glicko'; mine, compare is rated by bradley_terry, davidson"):
        lmarena(full, LANE, "glicko")


def test_a_rating_without_bounds_is_empty_and_groups_that_never_met_are_told_apart():
    rows = anchored({"m": [(WIN, WIN), (WIN, WIN)]})
    rows += [game(f"q{q}", *shown, p) for q, p in ((0, WIN), (1, LOSS)) for shown in (("x", "y"), ("y", "x"))]
    found = lmarena(tables_of(rows), LANE_OF_GAMES)
    by_model = {row["Model"]: row for row in found}
    assert (by_model["m"]["Arena Score"], by_model["m"]["95% CI"]) == (None, None)
    assert by_model["m"]["Group"] == by_model["base"]["Group"] != by_model["x"]["Group"] == by_model["y"]["Group"]


def test_lm_evals_results_are_the_ratings_with_errors_by_question(full):
    document = lm_eval(full, {"git_hash": "abc"})
    assert set(document) == {
        *("results", "group_subtasks", "configs", "versions", "n-shot", "higher_is_better", "n-samples", "git_hash")
    }
    rated = full.ratings.filter(pl.col("category").is_null()).to_dicts()
    assert set(document["results"]) == {f"{r['judge']}/{r['protocol']}/{r['model']}" for r in rated}
    for row in rated:
        cells = document["results"][f"{row['judge']}/{row['protocol']}/{row['model']}"]
        name = {"mean_score": "mean_score{},expected", "win_rate": "win_rate{},none"}.get(
            row["rule"], f"rating{{}},{row['rule']}"
        )
        assert [cells[name.format(part)] for part in ("", "_low", "_high")] == [row["rating"], row["low"], row["high"]]
        if name.startswith("rating"):
            assert cells[name.format("_stderr")] == "N/A"
    scored = full.scores.filter(protocol="score-10", model="b", rule="expected")["score"].to_list()
    told = document["results"]["mine/score-10/b"]["mean_score_stderr,expected"]
    assert told == pytest.approx(statistics.stdev(scored) / math.sqrt(6))
    per_question = {}
    for rival in "acd":
        for q, share in enumerate(preferences(full, "b", rival)):
            per_question.setdefault(q, []).append(share)
    means = [statistics.mean(shares) for shares in per_question.values()]
    told = document["results"]["mine/compare/b"]["win_rate_stderr,none"]
    assert told == pytest.approx(statistics.stdev(means) / math.sqrt(6))
    assert document["n-samples"]["mine/score-10/b"] == {"original": 6, "effective": 6}
    assert document["n-samples"]["mine/compare/b"] == {"original": 36, "effective": 36}
    assert document["versions"]["mine/compare/b"] == full.protocols["compare"].hash[:12]
    assert document["higher_is_better"]["mine/compare/b"] == {"rating": True, "win_rate": True}


def test_what_was_asked_and_not_read_is_in_lm_evals_counts():
    rows = anchored({"m": [(WIN, LOSS), (WIN, WIN)]})
    rows[0] |= {"status": "no_verdict", "label_logprobs": None, "label_mass": None, "emitted": None}
    document = lm_eval(tables_of(rows), {})
    assert document["n-samples"]["j/compare/m"] == {"original": 4, "effective": 3}


def unread(rows):
    return [row | {"status": "no_verdict", "label_logprobs": None, "label_mass": None, "emitted": None} for row in rows]


def test_a_model_of_which_nothing_was_read_stays_on_the_leaderboards_without_numbers():
    tables = tables_of([*anchored({"m": [(WIN, LOSS)] * 3}), *unread(anchored({"z": [(WIN, WIN)] * 3}))])
    board = {row[""]: row for row in alpaca_eval(tables, Lane("j", "compare"), "base")}
    assert [(name, row["n_total"], row["win_rate"]) for name, row in board.items()] == [("m", 3, 50.0), ("z", 0, None)]
    document = lm_eval(tables, {})
    assert document["results"]["j/compare/z"] == {"alias": "j/compare/z"}
    assert document["n-samples"]["j/compare/z"] == {"original": 6, "effective": 0}


def test_a_run_of_unreadable_comparisons_is_not_said_to_compare_nothing():
    with pytest.raises(ConfigError, match="none of the run's 6 comparisons could be read"):
        lane_of(tables_of(unread(anchored({"m": [(WIN, WIN)] * 3}))), None, None)


def test_scores_of_several_judges_together_have_their_counts_and_error():
    made = inputs(judges=("mine", "other"))
    tables = Tables(made.judgments, responses(), made.scores, made.ratings, made.protocols, made.settings)
    document = lm_eval(tables, {})
    scale = next(name for name, protocol in made.protocols.items() if protocol.kind == "score")
    found = made.scores.filter(protocol=scale, model="a", rule=made.settings.score_rule).drop_nulls("score")
    by_question = [statistics.mean(part["score"]) for part in found.partition_by("question_id")]
    task = f"(all)/{scale}/a"
    assert document["n-samples"][task]["effective"] == found.height > len(by_question)
    cells = document["results"][task]
    assert cells[f"mean_score,{made.settings.score_rule}"] == pytest.approx(statistics.mean(found["score"]))
    error = statistics.stdev(by_question) / math.sqrt(len(by_question))
    assert cells[f"mean_score_stderr,{made.settings.score_rule}"] == pytest.approx(error)


def test_of_several_judges_or_protocols_one_must_be_named():
    made = inputs(judges=("mine", "other"), scales=())
    tables = Tables(made.judgments, responses(), made.scores, made.ratings, made.protocols, made.settings)
    with pytest.raises(ConfigError, match=r"several protocols, name one with --protocol: compare, compare-rationale"):
        lane_of(tables, None, None)
    with pytest.raises(ConfigError, match=r"several judges, name one with --judge: \(all\), mine, other"):
        lane_of(tables, None, "compare")
    with pytest.raises(ConfigError, match="judge: got 'x'; the run has"):
        lane_of(tables, "x", "compare")
    assert lane_of(tables, "(all)", "compare") == Lane("(all)", "compare")
    with pytest.raises(ConfigError, match="baseline: got 'x'; the models are a, b, c, d"):
        alpaca_eval(tables, Lane("mine", "compare"), "x")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """An imported run of two models against a baseline."""
    folder = tmp_path_factory.mktemp("export")
    rows = [
        {"instruction": f"q{q}", "output_1": "base", "generator_1": "base", "output_2": f"{model} {q}"}
        | {"generator_2": model, "annotator": "w", "preference": p}
        for model, told in {"m": (1.25, 1.5, 1.0), "n": (1.9, 1.75, 1.6)}.items()
        for q, p in enumerate(told)
    ]
    (folder / "annotations.json").write_text(json.dumps(rows))
    opened = RunFolder(str(folder / "run"))
    import_judgments("alpaca-eval", [str(folder / "annotations.json")], opened)
    evaluate_run(opened, AnalysisConfig())
    return opened


def test_a_csv_reads_back_as_the_same_numbers_and_the_json_says_null(run, tmp_path):
    done = export(run, "alpaca-eval", str(tmp_path / "board.csv"), Wanted(baseline="base"))
    assert done == {"format": "alpaca-eval", "path": str(tmp_path / "board.csv"), "rows": 2}
    rows = list(csv.DictReader(io.StringIO((tmp_path / "board.csv").read_text())))
    assert [(row[""], float(row["win_rate"]), row["n_draws"], row["avg_length"]) for row in rows] == [
        ("n", pytest.approx(75), "0", "3"),
        ("m", pytest.approx(25), "1", "3"),
    ]
    assert [row["length_controlled_winrate"] for row in rows] == ["", ""]
    export(run, "alpaca-eval", str(tmp_path / "board.json"), Wanted(baseline="base"))
    told = json.loads((tmp_path / "board.json").read_text())
    assert [(row["name"], row["length_controlled_winrate"]) for row in told] == [("n", None), ("m", None)]
    assert [row["win_rate"] for row in told] == [float(row["win_rate"]) for row in rows]


def test_the_baseline_may_be_that_of_the_settings_or_of_the_plan(run, tmp_path):
    with pytest.raises(ConfigError, match="name it with --baseline: base, m, n"):
        export(run, "alpaca-eval", str(tmp_path / "a.csv"), Wanted())
    text = run.read_bytes("config.yaml")
    run.write_bytes("config.yaml", b"plan: {design: anchor, anchor: m}\n")
    try:
        export(run, "alpaca-eval", str(tmp_path / "a.csv"), Wanted())
    finally:
        run.write_bytes("config.yaml", text)
    assert [line.split(",")[0] for line in (tmp_path / "a.csv").read_text().splitlines()] == ["", "base", "n"]


def test_the_command_refuses_what_would_change_nothing_and_writes_nothing(run, tmp_path):
    cases = [
        (["lm-eval", "r.csv"], "lm-eval is written as .json"),
        (["lmarena", "r.txt"], "lmarena is written as .csv or .json"),
        (["lmarena", "r.csv", "--baseline", "m"], "--baseline does not belong to lmarena"),
        (["alpaca-evals", "r.csv"], "did you mean 'alpaca-eval'?"),
        (["trl", "r.parquet", "--baseline", "m"], "go with alpaca-eval and lmarena"),
        (["lmarena", "r.csv", "analysis.k=[3]"], "changes nothing here"),
    ]
    for (form, name, *rest), message in cases:
        done = CliRunner().invoke(cli, ["export", run.path, form, str(tmp_path / name), *rest])
        assert message in f"{done.output} {done.exception}"
    assert list(tmp_path.iterdir()) == []
    done = CliRunner().invoke(cli, ["export", run.path, "lm-eval", str(tmp_path / "new" / "r.json"), "--json"])
    assert json.loads(done.output.splitlines()[-1])["rows"] == 3
    assert set(json.loads((tmp_path / "new" / "r.json").read_text())["results"]) == {
        f"w/alpaca-eval/{model}" for model in ("base", "m", "n")
    }


def test_a_run_that_was_not_evaluated_is_one_message(tmp_path):
    folder = RunFolder(str(tmp_path / "run"))
    folder.write_bytes("config.yaml", b"analysis: {}\n")
    with pytest.raises(StorageError, match="not evaluated yet; first trustjudge evaluate"):
        export(folder, "lmarena", str(tmp_path / "a.csv"), Wanted())
