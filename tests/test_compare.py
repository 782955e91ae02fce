"""Two runs beside each other: what changed, by how much, and what must not be called a change."""

import json

import numpy as np
import polars as pl
import pytest
from comparisons import game, score, table
from corpora import SCORE, compare_protocol, responses

from trustjudge_ray.analysis.compare import (
    IMPROVED,
    NO_DIFFERENCE,
    REGRESSED,
    UNDERPOWERED,
    compare_runs,
)
from trustjudge_ray.analysis.evaluation import evaluate
from trustjudge_ray.analysis.gate import CONDITIONS, failures
from trustjudge_ray.analysis.pairing import Side
from trustjudge_ray.config import AnalysisConfig, CompareConfig
from trustjudge_ray.config_values import GATE_WORDS
from trustjudge_ray.identity import joined_hash
from trustjudge_ray.judging.protocols import parse
from trustjudge_ray.report.comparison import as_document, markdown

ANALYSIS = AnalysisConfig(tolerances=[0])
SETTINGS = CompareConfig(bootstrap=200)
PROTOCOLS = {"score": parse(SCORE.replace("score-5", "score")), "compare": compare_protocol()}


def side(name, rows, texts=None, protocols=PROTOCOLS):
    """A run whose task ids depend on what was judged: the answers' texts, the judge, the order."""
    texts = texts or {}
    named = []
    for row in rows:
        q = row["question_id"]
        if row["kind"] == "compare":
            row = row | {"emitted": ("a", "b", "tie")[int(np.argmax(row["label_logprobs"]))]}
        said = [texts.get(q, {}).get(row[m] or "", "") for m in ("response_a", "response_b")]
        about = (
            row["spec"],
            row["judge"],
            row["protocol"],
            q,
            row["response_a"],
            row["response_b"] or "",
            row["order"] or "",
        )
        named.append(row | {"task_id": joined_hash(*about, *said)})
    known = responses(texts) if texts else responses({"-": {"-": "-"}}).slice(0, 0)
    judgments = table([{k: v for k, v in row.items() if k != "task_id"} for row in named])
    judgments = judgments.with_columns(task_id=pl.Series([row["task_id"] for row in named]))
    return Side(name, judgments, pl.DataFrame(known), protocols)


def scores_of(levels, rng, questions=40, spread=0.4, **columns):
    """Score judgments: each model's level moves by question; a distribution over 1 … 5 around it."""
    rows = []
    for q in range(questions):
        for model, level in levels.items():
            x = np.clip(level + rng.normal(0, spread), 1, 5)
            low = min(int(x), 4)
            p = np.zeros(5)
            p[low - 1], p[low] = low + 1 - x, x - low
            rows.append(score(q, model, tuple(p), **columns))
    return rows


def round_robin(worths, rng, questions=40, spread=0.5, **columns):
    rows = []
    for q in range(questions):
        here = {m: w + rng.normal(0, spread) for m, w in worths.items()}
        for first in worths:
            for second in worths:
                if first != second:
                    weight = np.exp([(here[first] - here[second]) / 2, (here[second] - here[first]) / 2, -1.0])
                    rows.append(game(q, first, second, tuple(weight / weight.sum()), **columns))
    return rows


def texts_of(models, questions, version=None):
    """{question: {model: text}}; a model in `version` has another text."""
    version = version or {}
    return {str(q): {m: f"{m} says {q}, version {version.get(m, 0)}" for m in models} for q in range(questions)}


def by_model(found, measure):
    return {change.model: change for change in found.changes if change.measure == measure}


def test_a_run_compared_with_itself_is_exactly_zero_everywhere():
    rng = np.random.default_rng(0)
    rows = scores_of({"m1": 3, "m2": 4, "m3": 2}, rng) + round_robin({"m1": 0, "m2": 1, "m3": -1}, rng)
    texts = texts_of(["m1", "m2", "m3"], 40)
    found = compare_runs(
        side("a", rows, texts), side("b", rows, texts), AnalysisConfig(tolerances=[0], k=[3]), SETTINGS
    )
    assert {c.measure for c in found.changes} == {"mean_score", "win_rate"}
    assert {c.measure for c in found.consistency} == {"conflict_ratio", "non_transitivity_ratio"}
    for change in [*found.changes, *found.consistency]:
        assert (change.difference, change.low, change.high) == (0.0, 0.0, 0.0)
        assert change.verdict == NO_DIFFERENCE
        assert change.identical
    for rank in found.ranks:
        assert (rank.rating_difference, rank.p_up, rank.p_down) == (0.0, 0.0, 0.0)
    assert found.warnings == []


def test_one_model_that_fell_is_found_and_the_others_do_not_rise_because_of_it():
    models, rng = {"m1": 0.0, "m2": 1.0, "m3": -1.0}, np.random.default_rng(1)
    before = round_robin(models, rng, spread=0.0)
    after = round_robin(models | {"m2": 0.2}, rng, spread=0.0)
    a, b = side("a", before, texts_of(models, 40)), side("b", after, texts_of(models, 40, {"m2": 1}))
    changes = by_model(compare_runs(a, b, ANALYSIS, SETTINGS), "win_rate")
    assert changes["m2"].verdict == REGRESSED
    for model in ("m1", "m3"):
        assert changes[model].difference == 0.0
        assert changes[model].verdict == NO_DIFFERENCE
        assert changes[model].note.startswith("against opponents whose answers did not change")


def test_a_difference_is_that_of_the_questions_own_differences():
    rng = np.random.default_rng(2)
    a = side("a", scores_of({"m": 3.0, "n": 3.0}, rng))
    b = side("b", scores_of({"m": 3.2, "n": 3.0}, rng))
    change = by_model(compare_runs(a, b, ANALYSIS, SETTINGS), "mean_score")["m"]

    def expected(run):
        rows = run.judgments.filter(model_a="m").sort("question_id")
        return np.array([np.exp(logs) @ np.arange(1, 6) for logs in rows["label_logprobs"].to_numpy()])

    gaps = expected(b) - expected(a)
    assert change.difference == pytest.approx(gaps.mean())
    assert change.before == pytest.approx(expected(a).mean())
    error = gaps.std(ddof=1) / np.sqrt(len(gaps))
    from scipy.stats import t

    assert change.low_alone == pytest.approx(gaps.mean() - t.ppf(0.975, len(gaps) - 1) * error)
    assert change.low <= change.low_alone
    assert change.detectable > (t.ppf(0.975, 39) + t.ppf(0.8, 39)) * error * 0.99
    assert change.matters == pytest.approx(0.02 * 4)


def test_too_few_questions_are_called_underpowered_not_unchanged():
    rng = np.random.default_rng(3)
    a, b = (side(name, scores_of({"m": 3.0}, rng, questions=8)) for name in "ab")
    found = by_model(compare_runs(a, b, ANALYSIS, SETTINGS), "mean_score")
    assert found["m"].verdict == UNDERPOWERED
    assert found["m"].detectable > found["m"].matters
    assert "few questions" in found["m"].note
    sure = CompareConfig(bootstrap=200, smallest=0.9)
    assert by_model(compare_runs(a, b, ANALYSIS, sure), "mean_score")["m"].verdict == NO_DIFFERENCE


def test_what_only_one_run_has_is_named_counted_and_left_out():
    rng = np.random.default_rng(4)
    a = side("a", scores_of({"m": 3.0, "old": 5.0}, rng, questions=12))
    rows = scores_of({"m": 3.0, "new": 1.0}, rng, questions=10)
    rows[0] = rows[0] | {"status": "engine_error", "label_logprobs": None}
    found = compare_runs(a, side("b", rows), ANALYSIS, SETTINGS)
    assert found.overlap.only_a == {"questions": ["10", "11"], "models": ["old"]}
    assert found.overlap.only_b == {"questions": [], "models": ["new"]}
    assert any("1 models only in a, left out: old" in text for text in found.warnings)
    changes = by_model(found, "mean_score")
    assert set(changes) == {None, "m"}
    assert changes["m"].questions == 9
    assert changes["m"].unpaired == 1
    assert found.excluded == {"score: j, score": {"no_score_b": 1, "only_a": 1}}


def test_a_question_whose_text_changed_is_another_question():
    rng = np.random.default_rng(5)
    rows = scores_of({"m": 3.0}, rng, questions=6)
    a, b = (side(name, rows, texts_of(["m"], 6)) for name in "ab")
    other = b.responses.with_columns(
        messages=pl.when(pl.col("question_id") == "3")
        .then(pl.Series([[{"role": "user", "content": "something else"}]] * 6))
        .otherwise("messages")
    )
    found = compare_runs(a, Side("b", b.judgments, other, PROTOCOLS), ANALYSIS, SETTINGS)
    assert found.overlap.changed == ["3"]
    assert by_model(found, "mean_score")["m"].questions == 5


def test_another_judge_is_said_loudly_and_its_shift_is_not_a_models_change():
    rng = np.random.default_rng(6)
    models = {f"m{i}": 2.0 + i / 4 for i in range(5)}
    before = scores_of(models, rng, spread=0.1)
    shifted = {m: level + 0.6 for m, level in models.items()} | {"m4": models["m4"]}
    after = scores_of(shifted, rng, spread=0.1, judge="k", spec="t")
    a, b = side("a", before, texts_of(models, 40)), side("b", after, texts_of(models, 40, {"m4": 1}))
    found = compare_runs(a, b, ANALYSIS, SETTINGS)
    assert found.other_judges == ["j, score → k, score"]
    assert any("NOT THE SAME JUDGE" in text and "judge_shift" in text for text in found.warnings)
    shift = by_model(found, "judge_shift")[None]
    assert shift.difference == pytest.approx(0.6, abs=0.05)
    changes = by_model(found, "mean_score")
    assert changes["m4"].difference == pytest.approx(-0.6, abs=0.1)
    assert changes["m4"].verdict == REGRESSED
    assert all(changes[m].verdict != REGRESSED and abs(changes[m].difference) < 0.1 for m in ("m0", "m1", "m2", "m3"))


def test_the_same_judge_under_another_spec_is_another_judge():
    rng = np.random.default_rng(7)
    rows = scores_of({"m": 3.0}, rng)
    found = compare_runs(side("a", rows), side("b", [row | {"spec": "t"} for row in rows]), ANALYSIS, SETTINGS)
    assert found.other_judges == ["j, score"]
    assert not any(change.identical for change in found.changes)


def test_consistency_of_a_side_is_that_of_its_evaluation_where_both_are_complete():
    rng = np.random.default_rng(8)
    models = {f"m{i}": 3 + 0.2 * i for i in range(5)}
    worths = {m: 0.3 * i for i, m in enumerate(models)}
    runs = [scores_of(models, rng) + round_robin(worths, rng, spread=1.0) for _ in range(2)]
    sides = [side(name, run) for name, run in zip("ab", runs, strict=True)]
    found = compare_runs(*sides, ANALYSIS, SETTINGS)
    metrics = [evaluate(s.judgments, dict(PROTOCOLS), None, ANALYSIS).metrics for s in sides]
    assert len(found.consistency) == 2 + 2 * 3
    for change in found.consistency:
        for table_, value in zip(metrics, (change.before, change.after), strict=True):
            rows = table_.filter(
                pl.col("metric") == change.measure,
                pl.col("category").is_null(),
                pl.col("tolerance") == 0.0,
                pl.col("k").eq_missing(pl.lit(change.k)),
                pl.col("score_rule" if change.measure == "conflict_ratio" else "verdict_rule") == change.rule,
            )
            if change.measure == "conflict_ratio":
                rows = rows.filter(verdict_rule="baseline")
            assert rows["value"].to_list() == [pytest.approx(value)]


def test_lower_conflict_is_an_improvement():
    rng = np.random.default_rng(9)
    models = {"m0": 2.0, "m1": 4.0}
    scored = scores_of(models, rng, spread=0.0)
    right = [
        game(q, x, y, "first" if x == "m1" else "second") for q in range(40) for x, y in (("m0", "m1"), ("m1", "m0"))
    ]
    wrong = [
        game(q, x, y, "first" if x == "m0" else "second") for q in range(40) for x, y in (("m0", "m1"), ("m1", "m0"))
    ]
    found = compare_runs(side("a", scored + wrong), side("b", scored + right), ANALYSIS, SETTINGS)
    conflict = next(c for c in found.consistency if c.measure == "conflict_ratio")
    assert (conflict.before, conflict.after, conflict.verdict) == (1.0, 0.0, IMPROVED)
    back = compare_runs(side("a", scored + right), side("b", scored + wrong), ANALYSIS, SETTINGS)
    assert failures(back, ["inconsistent"])
    assert not failures(found, ["inconsistent"])


def test_the_probability_of_a_rank_is_the_share_of_resampled_questions():
    rng = np.random.default_rng(10)
    a = side("a", scores_of({"m": 3.0, "n": 3.1}, rng))
    b = side("b", scores_of({"m": 3.2, "n": 3.1}, rng))
    many = CompareConfig(bootstrap=4000)
    found = {r.model: r for r in compare_runs(a, b, ANALYSIS, many).ranks}

    def cells(run):
        rows = run.judgments.sort("question_id", "model_a")
        values = [np.exp(logs) @ np.arange(1, 6) for logs in rows["label_logprobs"].to_numpy()]
        return np.array(values).reshape(40, 2)

    before, after = cells(a), cells(b)
    up = []
    for _ in range(4000):
        drawn = rng.integers(40, size=40)
        gaps = [np.diff(each[drawn].mean(axis=0))[0] for each in (before, after)]
        up.append((gaps[0] > 0) and (gaps[1] < 0))
    assert found["m"].p_up == pytest.approx(np.mean(up), abs=0.04)
    assert found["m"].p_up == found["n"].p_down


def test_ratings_of_comparisons_are_those_of_the_ranking_of_each_run():
    rng = np.random.default_rng(11)
    runs = [side(n, round_robin({"m1": 0.0, "m2": w, "m3": -1.0}, rng)) for n, w in (("a", 1.0), ("b", 2.0))]
    found = {rank.model: rank for rank in compare_runs(*runs, ANALYSIS, SETTINGS).ranks}
    for run, name in zip(runs, ("rating_before", "rating_after"), strict=True):
        ratings = evaluate(run.judgments, dict(PROTOCOLS), None, ANALYSIS).ratings
        rows = ratings.filter(pl.col("rule") == "davidson", pl.col("category").is_null())
        for row in rows.to_dicts():
            assert getattr(found[row["model"]], name) == pytest.approx(row["rating"])
    assert found["m2"].rating_low < found["m2"].rating_difference < found["m2"].rating_high


def test_an_unplanted_change_is_hardly_ever_called_one():
    """Over twelve models and two measures at once: at most about one comparison in twenty, here of 80."""
    rng, alarms = np.random.default_rng(12), 0
    levels = {f"m{i:02d}": 2 + i / 6 for i in range(12)}
    quick = CompareConfig(bootstrap=100)
    for _ in range(80):
        runs = [side(name, scores_of(levels, rng, questions=25)) for name in "ab"]
        found = compare_runs(*runs, ANALYSIS, quick)
        alarms += any(change.verdict in (IMPROVED, REGRESSED) for change in found.changes)
    assert alarms <= 10  # P(more | 5 %) is below 1 %


def test_every_gate_word_has_a_condition_and_fires_on_what_it_names():
    assert tuple(CONDITIONS) == GATE_WORDS
    rng = np.random.default_rng(13)
    a = side("a", scores_of({"m": 4.0, "n": 2.0, "gone": 2.0}, rng, spread=0.03))
    b = side("b", scores_of({"m": 3.0, "n": 2.0}, rng, spread=0.03))
    found = compare_runs(a, b, ANALYSIS, SETTINGS)
    assert [f.split(":")[0] for f in failures(found, GATE_WORDS)] == ["regressed", "regressed_by_smallest", "missing"]
    assert "m (mean_score, j, score)" in failures(found, ["regressed"])[0]
    assert failures(found, []) == []


def test_the_document_holds_every_number_and_the_page_escapes_names():
    rng = np.random.default_rng(14)
    a, b = (side(name, scores_of({"<b>|m": 3.0, "n": 2.0}, rng, questions=2)) for name in "ab")
    found = compare_runs(a, b, ANALYSIS, SETTINGS)
    document = json.loads(json.dumps(as_document(found, ["x"]), allow_nan=False))
    assert document["passed"] is False
    assert len(document["changes"]) == 3
    page = markdown(found)
    assert "<b>" not in page
    assert "&lt;b&gt;\\|m" in page


def test_runs_with_nothing_in_common_have_no_change_and_say_so():
    rng = np.random.default_rng(15)
    a, b = side("a", scores_of({"m": 3.0}, rng)), side("b", scores_of({"n": 3.0}, rng))
    found = compare_runs(a, b, ANALYSIS, SETTINGS)
    assert found.changes == found.consistency == found.ranks == []
    assert any("nothing can be compared" in text for text in found.warnings)


def test_scores_on_two_scales_are_compared_as_shares_of_them():
    ten = parse(SCORE.replace("score-5", "score").replace("labels: 5", "labels: 10"))
    rows_a = [score(q, "m", (0, 0, 1, 0, 0)) for q in range(10)]
    rows_b = [score(q, "m", (0,) * 9 + (1,), spec="t", protocol="ten") for q in range(10)]
    a = side("a", rows_a)
    b = side("b", rows_b, protocols={"ten": ten})
    change = by_model(compare_runs(a, b, ANALYSIS, SETTINGS), "mean_score")["m"]
    assert (change.before, change.after) == (0.5, 1.0)
    assert "share" in change.note


def test_runs_that_were_planned_differently_are_compared_on_their_common_games_and_say_so():
    rng = np.random.default_rng(16)
    models = {"m1": 0.0, "m2": 1.0, "m3": -1.0}
    before, after = (round_robin(models, rng) for _ in range(2))
    one_order = [row for row in after if row["order"] == "AB"]
    found = compare_runs(side("a", before), side("b", one_order), ANALYSIS, SETTINGS)
    assert any("120 games of one run have no partner in the other, 120 have one" in text for text in found.warnings)
    ab = [row for row in before if row["order"] == "AB"]
    alike = compare_runs(side("a", ab), side("b", one_order), ANALYSIS, SETTINGS)
    assert by_model(found, "win_rate")["m1"].difference == by_model(alike, "win_rate")["m1"].difference
    assert not any("no partner" in text for text in alike.warnings)


def test_a_model_that_could_not_be_read_on_one_side_is_a_row_and_not_gone():
    rng = np.random.default_rng(17)
    before = scores_of({"m": 3.0, "n": 3.0}, rng, questions=6)
    after = [r | ({"status": "engine_error", "label_logprobs": None} if r["model_a"] == "n" else {}) for r in before]
    found = by_model(compare_runs(side("a", before), side("b", after), ANALYSIS, SETTINGS), "mean_score")
    assert (found["n"].questions, found["n"].unpaired, found["n"].verdict) == (0, 6, UNDERPOWERED)
    assert found["n"].difference is None
    assert found["m"].difference == 0.0


def test_a_change_without_new_answers_is_said_to_be_one():
    """The same answers judged otherwise: the judge is not as it was, whatever its spec says."""
    rng = np.random.default_rng(18)
    texts = texts_of(["m"], 40)
    a = side("a", scores_of({"m": 3.0}, rng, spread=0.1), texts)
    b = side("b", scores_of({"m": 3.5}, rng, spread=0.1), texts)
    change = by_model(compare_runs(a, b, ANALYSIS, SETTINGS), "mean_score")["m"]
    assert (change.verdict, change.note) == (IMPROVED, "its answers did not change")


def test_several_votes_on_a_pair_are_one_game():
    def votes(name, second):
        rows = [game(q, "x", "y", outcome, sample=s) for q in range(20) for s, outcome in enumerate(("first", second))]
        rows += [game(q, "x", "y", "first", sample=0) for q in range(20)]  # one more vote under the same number
        numbered = table(rows)
        return Side(name, numbered, pl.DataFrame(responses({"-": {"-": "-"}})).clear(), PROTOCOLS)

    found = by_model(compare_runs(votes("a", "first"), votes("b", "second"), ANALYSIS, SETTINGS), "win_rate")["x"]
    assert (found.before, found.after) == (1.0, pytest.approx(2 / 3))


def test_the_other_way_round_every_difference_is_its_opposite_whatever_the_order_of_rows():
    rng = np.random.default_rng(19)
    models = {"m1": 2.5, "m2": 3.0, "m3": 3.5}
    runs = [scores_of(models, rng, 15) + round_robin(models, rng, 15) for _ in range(2)]
    there = compare_runs(side("a", runs[0]), side("b", runs[1]), ANALYSIS, SETTINGS)
    shuffled = [[run[i] for i in rng.permutation(len(run))] for run in runs]
    back = compare_runs(side("b", shuffled[1]), side("a", shuffled[0]), ANALYSIS, SETTINGS)
    assert len(there.changes) == len(back.changes) == 7
    for one, other in zip([*there.changes, *there.consistency], [*back.changes, *back.consistency], strict=True):
        assert (one.model, one.measure, one.rule, one.k) == (other.model, other.measure, other.rule, other.k)
        if one.difference is None:
            assert other.difference is None
            continue
        assert other.difference == pytest.approx(-one.difference, abs=1e-12)
        assert (other.low, other.high) == (pytest.approx(-one.high), pytest.approx(-one.low))
    for rank in there.ranks:
        opposite = next(r for r in back.ranks if (r.model, r.rule) == (rank.model, rank.rule))
        assert opposite.rating_difference == pytest.approx(-rank.rating_difference, abs=1e-6)
        assert (opposite.p_up, opposite.p_down) == (rank.p_down, rank.p_up)
