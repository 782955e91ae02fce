"""The bias card: what a judge prefers besides quality, beside people and other judges, and in which words."""

import json
from itertools import combinations

import numpy as np
import polars as pl
import pytest
from comparisons import game, score, table
from run_folders import write_run
from scipy import stats

from trustjudge_ray.analysis.evaluation import evaluate
from trustjudge_ray.analysis.families import family_of, with_judges
from trustjudge_ray.analysis.pairing import Side
from trustjudge_ray.analysis.preference import difference_intervals
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.corpus.canary import META_JSON
from trustjudge_ray.imports.base import compare_protocol, score_protocol
from trustjudge_ray.report import bias
from trustjudge_ray.report.tables import Inputs
from trustjudge_ray.schema import RESPONSES, from_rows

PROTOCOLS = {"score": score_protocol(5), "compare": compare_protocol()}
SETTINGS = AnalysisConfig(tolerances=[0.0], k=[3])
SURE = {"first": (0.9, 0.05, 0.05), "second": (0.05, 0.9, 0.05)}


def both_orders(question, a, b, winner, judge="j", p=0.8):
    """Two judgments of a < b that agree: `winner` is better with probability p."""
    rest = (1 - p) / 2
    wins, loses, ties = (p, rest, rest), (rest, p, rest), (rest, rest, p)
    seen = ties if winner is None else wins if winner == a else loses
    swapped = (seen[1], seen[0], seen[2])
    about = {
        "judge": judge,
        "emitted": {a: "a", b: "b", None: "tie"}[winner],
        "response_a": f"{a}",
        "response_b": f"{b}",
    }
    return [game(question, a, b, seen, **about), game(question, b, a, swapped, **about)]


def answers(given):
    """RESPONSES from {(question, model): (length, human score)}; a third entry is meta_json."""
    rows = [
        {
            "question_id": str(question),
            "response_id": model,
            "model": model,
            "messages": [],
            "replies": ["x" * (length // 2), "é" * (length - length // 2)],
            "human_score": human,
            "meta_json": more[0] if more else None,
        }
        for (question, model), (length, human, *more) in given.items()
    ]
    return pl.DataFrame(pl.from_arrow(from_rows(rows, RESPONSES)))


def metrics(rows, responses=None, **settings):
    return evaluate(table(rows), PROTOCOLS, responses, AnalysisConfig(tolerances=[0.0], k=[3], **settings)).metrics


def one(found, metric, judge="j", verdict_rule=None, score_rule=None, protocol=None):
    """The one row of a metric, overall, by the main rules unless told otherwise."""
    mine = found.filter(pl.col("metric") == metric, pl.col("judge") == judge, pl.col("category").is_null())
    mine = mine if protocol is None else mine.filter(protocol=protocol)
    if mine["verdict_rule"].null_count() == 0:
        mine = mine.filter(verdict_rule=verdict_rule or "normalised")
    if mine["score_rule"].null_count() == 0:
        mine = mine.filter(score_rule=score_rule or "expected")
    (row,) = mine.to_dicts()
    return row | {"excluded_by": json.loads(row["excluded_by"])}


# --- position by margin ----------------------------------------------------------------------


def test_flips_of_clear_pairs_are_counted_apart_from_those_of_close_ones():
    rows = both_orders(0, "a", "b", "a") + both_orders(1, "a", "b", "a", p=0.99)
    close = {"response_a": "a", "response_b": "b"}
    rows += [
        game(2, "a", "b", SURE["first"], emitted="a", **close),
        game(2, "b", "a", SURE["first"], emitted="b", **close),
    ]
    found = metrics(rows)
    assert [one(found, f"flip_rate{m}")["hits"] for m in ("", "_close", "_middle", "_clear")] == [1, 1, 0, 0]
    assert [one(found, f"flip_rate{m}")["cases"] for m in ("", "_close", "_middle", "_clear")] == [3, 1, 0, 2]
    assert one(found, "flip_rate_close")["excluded_by"] == {"other_margin": 2}
    assert one(found, "order_effect_close")["value"] == pytest.approx(0.85)
    assert one(found, "order_effect_clear")["value"] == pytest.approx(0)


# --- length ----------------------------------------------------------------------------------


def test_length_is_counted_by_hand_and_everything_left_out_has_its_reason():
    rows, given = [], {}
    for question, (short, long, winner, human) in enumerate(
        [
            (10, 20, "b", (1, 1)),  # longer wins, people: equal
            (10, 20, "b", (2, 1)),  # longer wins, people: the shorter
            (10, 20, "a", (1, 2)),  # shorter wins, people: the longer
            (10, 10, "a", (1, 2)),  # as long
            (10, 20, None, (1, 2)),  # the judge says tie
            (10, 20, "b", (1, None)),  # people say nothing
        ]
    ):
        rows += both_orders(question, "a", "b", winner)
        given |= {(question, "a"): (short, human[0]), (question, "b"): (long, human[1])}
    rows += both_orders(6, "a", "b", "a")  # no text
    rows += both_orders(7, "a", "null", "a")
    given |= {(7, "a"): (10, 1.0), (7, "null"): (99, None, META_JSON)}
    found = metrics(rows, answers(given))
    lost = {"no_text": 1, "same_length": 1, "tie": 1}  # the canary's pair is none of them
    row = one(found, "length_preference")
    assert (row["hits"], row["cases"], row["excluded_by"]) == (3, 4, lost)
    row = one(found, "length_preference_people")
    assert (row["hits"], row["cases"]) == (1, 2)
    assert row["excluded_by"] == lost | {"no_human_score": 1, "human_tie": 1}
    row = one(found, "length_preference_minus_people")
    assert (row["value"], row["cases"]) == (0.0, 2)
    assert row["low"] < 0 < row["high"]


def test_a_judge_of_length_is_told_from_one_that_agrees_with_people_who_like_long_answers():
    rng = np.random.default_rng(1)
    rows, given = [], {}
    for question in range(60):
        lengths, human = rng.permutation(4) + 10, rng.permutation(4)
        if rng.random() < 0.6:
            human = np.argsort(np.argsort(lengths))
        given |= {(question, m): (int(n), float(h)) for m, n, h in zip("abcd", lengths, human, strict=True)}
        for i, j in combinations(range(4), 2):
            a, b = "abcd"[i], "abcd"[j]
            rows += both_orders(question, a, b, a if lengths[i] > lengths[j] else b, judge="long")
            rows += both_orders(question, a, b, a if human[i] > human[j] else b, judge="fair")
    found = metrics(rows, answers(given))
    assert one(found, "length_preference", "long")["value"] == 1
    assert one(found, "length_preference", "fair")["low"] > 0.5, "people like long answers, and so does who agrees"
    assert one(found, "length_preference_minus_people", "long")["low"] > 0
    fair = one(found, "length_preference_minus_people", "fair")
    assert fair["value"] == 0
    assert fair["low"] < 0 < fair["high"], "never without a width"


def test_lengths_and_scores_are_correlated_within_questions_not_across_them():
    rng = np.random.default_rng(0)
    rows, given, wanted = [], {}, []
    for question in range(12):
        lengths = rng.permutation(5) + 10 * (question + 1)
        level = 1 + question % 3
        p = np.full((5, 5), 0.02)
        p[np.arange(5), np.where(np.argsort(np.argsort(-lengths)) > 2, level + 1, level)] += 0.9
        rows += [score(question, m, p[i] / p[i].sum()) for i, m in enumerate("abcde")]
        human = rng.integers(1, 5, 5)
        given |= {(question, m): (int(n), float(h)) for m, n, h in zip("abcde", lengths, human, strict=True)}
        judge = stats.spearmanr((p / p.sum(1, keepdims=True)) @ np.arange(1, 6), lengths).statistic
        wanted.append((judge, stats.spearmanr(human, lengths).statistic))
    found = metrics(rows, answers(given))
    judge, people = np.nanmean(np.array(wanted), axis=0)
    assert one(found, "length_correlation")["value"] == pytest.approx(judge)
    assert judge < -0.5, "while the longest answers over all questions have the highest scores"
    assert one(found, "length_correlation_people")["value"] == pytest.approx(people)
    assert one(found, "length_correlation_minus_people")["value"] == pytest.approx(judge - people)
    assert one(found, "length_correlation")["cases"] == 12


def test_a_question_without_a_correlation_is_left_out_and_counted():
    same, other = (0.0, 0.0, 1.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0, 0.0)
    rows = [score(q, m, same if q < 1 or m == "a" else other) for q in range(4) for m in "ab"]
    given = {(q, m): (10 if q < 2 or m == "a" else 20, 1.0 if q < 3 else None) for q in range(4) for m in "ab"}
    found = metrics(rows, answers(given))
    row = one(found, "length_correlation")
    assert (row["value"], row["cases"]) == (-1.0, 2)
    assert row["excluded_by"] == {"same_scores": 1, "same_lengths": 1}
    row = one(found, "length_correlation_people")
    assert (row["value"], row["cases"]) == (None, 0)
    assert row["excluded_by"] == {
        "same_scores": 1, "same_lengths": 1, "same_human_scores": 1, "fewer_than_two_human_scores": 1,
    }  # fmt: skip


def test_without_texts_there_are_rows_without_a_case_and_a_reason():
    rows = both_orders(0, "a", "b", "a") + [score(0, m, (0, 0, 1, 0, 0)) for m in "ab"]
    found = metrics(rows)
    assert one(found, "length_preference")["excluded_by"] == {"no_text": 1}
    assert one(found, "length_correlation")["excluded_by"] == {"fewer_than_two_answers": 1}
    assert one(found, "own_family_preference")["excluded_by"] == {"judge_of_unknown_family": 1}
    assert {one(found, m)["cases"] for m in ("length_preference", "length_preference_minus_people")} == {0}


# --- own family ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama"),
        ("DeepSeek-R1-Distill-Llama-8B", "llama"),
        ("DeepSeek-R1-Distill-Qwen-7B", "qwen"),
        ("DeepSeek-R1", "deepseek"),
        ("gpt-4o-2024-08-06", "gpt"),
        ("o3-mini", "gpt"),
        ("gpt-j-6b", None),
        ("gpt4all-13b", None),
        ("gemma-2-9b-it", "gemini"),
        ("Mixtral-8x7B", "mistral"),
        ("microsoft/phi-2", "phi"),
        ("dolphin-2", None),
        ("SmolLM2-135M-Instruct", "smollm"),
        ("null", None),
    ],
)
def test_families_by_name(name, family):
    assert family_of(name) == family


def test_a_configured_family_comes_before_the_built_in_names():
    given = {"deepseek-r1-distill-*": "deepseek", "Basalt-M": "llama"}
    assert family_of("DeepSeek-R1-Distill-Llama-8B", given) == "deepseek"
    assert family_of("basalt-m", given) == "llama"
    assert family_of("basalt-xl", given) is None


def test_a_judge_called_by_a_name_that_says_nothing_has_its_models_family(tmp_path):
    rows = [r for q in range(3) for r in both_orders(q, "Llama-1", "gpt-4", "Llama-1", judge="nightly")]
    side = Side("t", table(rows), answers({}), PROTOCOLS)
    config = "judge: {name: nightly, model: meta-llama/Llama-3.1-8B-Instruct}\n"
    folder = write_run(tmp_path / "run", side, config)
    assert one(pl.DataFrame(folder.read_table("metrics.parquet")), "own_family_preference", "nightly")["cases"] == 3
    assert with_judges({"nightly": "acme"}, {"nightly": "Llama-1"}) == {"nightly": "acme"}
    assert with_judges({}, {"gpt-4-judge": "Llama-1", "x": "y"}) == {}


def families(rng, questions, bias):
    """A llama judge that adds `bias` to its own family, a claude judge that adds none, and a qwen judge that adds none
    and whose word does not count where a qwen plays. Models and people know the quality."""
    models = {"Llama-1": 0.0, "gpt-4": 0.1, "mystery": 0.0, "qwen-2": 0.0, "qwen-3": 0.2}
    names = sorted(models)
    rows, given = [], {}
    for question in range(questions):
        quality = {m: models[m] + rng.normal() for m in names}
        given |= {(question, m): (10, quality[m]) for m in names}
        for judge, more in (("llama-judge", bias), ("claude-judge", 0.0), ("qwen-judge", 9.0)):
            family = family_of(judge)
            seen = {m: quality[m] + rng.normal(0, 0.5) + more * (family_of(m) == family) for m in names}
            for a, b in combinations(names, 2):
                rows += both_orders(question, a, b, a if seen[a] > seen[b] else b, judge=judge)
    return rows, answers(given)


def test_a_planted_preference_for_the_own_family_is_found_beside_people_and_beside_neutral_judges():
    found = metrics(*families(np.random.default_rng(2), 60, bias=1.0))
    for reference in ("people", "judges"):
        assert one(found, f"own_family_preference_minus_{reference}", "llama-judge")["low"] > 0
    row = one(found, "own_family_preference", "llama-judge")
    assert row["cases"] == 60 * 3
    assert row["excluded_by"] == {"model_of_unknown_family": 60 * 4, "no_own_family": 60 * 3}
    assert one(found, "own_family_preference", "claude-judge")["cases"] == 0, "no model of its family plays"
    both = one(found, "own_family_preference", "qwen-judge")["excluded_by"]
    assert both["both_own_family"] == 60


def test_no_preference_is_found_where_none_was_planted():
    found = metrics(*families(np.random.default_rng(3), 60, bias=0.0))
    for reference in ("people", "judges"):
        row = one(found, f"own_family_preference_minus_{reference}", "llama-judge")
        assert row["low"] < 0 < row["high"]
        assert row["cases"] > 100


def test_a_judge_of_the_opponents_family_is_no_reference():
    rows = [
        r
        for judge, winner in (("llama-judge", "Llama-1"), ("qwen-judge", "qwen-2"), ("nameless", "qwen-2"))
        for q in range(4)
        for r in both_orders(q, "Llama-1", "qwen-2", winner, judge=judge)
    ]
    found = metrics(rows)
    row = one(found, "own_family_preference_minus_judges", "llama-judge")
    assert (row["cases"], row["excluded_by"]) == (0, {"no_neutral_judge": 4})
    assert one(metrics(rows, families={"nameless": "acme"}), "own_family_preference_minus_judges", "llama-judge")[
        "value"
    ] == pytest.approx(1.0)


# --- saturation ------------------------------------------------------------------------------


def test_scores_at_the_ends_of_the_scale_and_distributions_on_one_label_are_counted():
    certain, nearly, top = (0, 0, 0, 0, 1.0), (0, 0, 0.1, 0, 0.9), (0, 0, 0, 0.02, 0.98)
    rows = [score(0, m, p) for m, p in zip("abcd", (certain, nearly, top, (1.0, 0, 0, 0, 0)), strict=True)]
    rows.append(score(0, "e", certain, status="engine_error", label_logprobs=None, emitted=None))
    rows[0] |= {"label_mass": 1.0}
    found = metrics(rows)
    assert (one(found, "score_saturation_top")["hits"], one(found, "score_saturation_bottom")["hits"]) == (2, 1)
    assert one(found, "score_saturation_top", score_rule="baseline")["hits"] == 3
    row = one(found, "label_saturation", protocol="score")
    assert (row["hits"], row["cases"], row["excluded_by"]) == (2, 4, {"engine_error": 1})


# --- intervals and words ---------------------------------------------------------------------


def test_differences_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(0)
    worlds, questions = 1500, 40
    cases = rng.integers(2, 12, (worlds, questions)).astype(float)
    lean = rng.normal(0, 0.2, (worlds, questions))
    sums = rng.binomial(cases.astype(int), np.clip(0.35 + lean, 0, 1)) - rng.binomial(cases.astype(int), 0.25)
    found = difference_intervals(sums.astype(float), cases)
    truth = np.clip(0.35 + rng.normal(0, 0.2, 200_000), 0, 1).mean() - 0.25
    assert 0.93 < ((found.low <= truth) & (truth <= found.high)).mean() < 0.97


def card(found, judge="j", brief=False, column=-1):
    """The lines of a judge's card by metric: its last column, which is what it says, or another."""
    nothing = pl.DataFrame()
    inputs = Inputs("t", nothing, nothing, nothing, found, nothing, PROTOCOLS, SETTINGS)
    (mine,) = [t for t in bias.cards(inputs, brief) if t.title == f"Bias card of {judge}"]
    named = {line.what: metric for metric, line in bias.LINES.items() if not line.what.startswith("  ")}
    said, parent = {}, ""
    for row in mine.rows:
        parent = named.get(row[0], parent)
        said[parent if row[0] in named else f"{parent} {row[0].strip()}"] = row[column]
    return said


def test_the_card_says_in_words_what_the_intervals_show():
    found = metrics(*families(np.random.default_rng(2), 60, bias=1.0))
    said = card(found, "llama-judge")
    assert said["own_family_preference"] == "prefers its own family"
    assert said["own_family_preference less people's"] == "prefers its own family more than people do"
    assert said["own_family_preference less other judges'"] == "prefers its own family more than other judges do"
    assert said["first_slot_preference"] == said["order_effect"] == "no preference shown"
    assert said["flip_rate"] == "none seen"
    assert said["noise_flips"].startswith("not measured")
    assert said["length_preference"] == "no cases: same length (600)"
    assert not any("no cases" in text for text in card(found, "llama-judge", brief=True).values())


def test_nothing_is_called_a_bias_without_something_to_compare_with():
    rows = [r for q in range(30) for r in both_orders(q, "Llama-1", "gpt-4", "Llama-1", judge="llama-judge")]
    said = card(metrics(rows), "llama-judge")
    assert said["own_family_preference"] == "prefers its own family; nothing to compare with, so no bias is shown"
    assert said["own_family_preference less people's"] == "no cases: no human score (30)"


def test_a_judge_that_guesses_is_not_said_to_dislike_length():
    rng = np.random.default_rng(0)
    rows, given = [], {}
    for question in range(200):
        given |= {(question, "a"): (10, 0.0), (question, "b"): (20, float(rng.random() < 0.95) - 0.5)}
        rows += both_orders(question, "a", "b", "ab"[rng.integers(2)])
    found = metrics(rows, answers(given))
    said = card(found)
    assert said["length_preference"] == "no preference shown"
    assert card(found, column=-2)["length_preference"].startswith("people's: 9")
    wanted = "prefers longer answers less than people do (a judge that guesses does, too)"
    assert said["length_preference less people's"] == wanted


def test_first_slots_are_not_accused_where_the_better_answer_always_stood_there():
    pair = {"response_a": "a", "response_b": "b"}
    rows = [game(q, "a", "b", SURE["first"], emitted="a", **pair) for q in range(40)]
    found = metrics(rows)
    assert one(found, "first_slot_preference")["low"] > 0.5
    said = card(found)
    assert said["first_slot_preference"] == "cannot be told from better answers: no pair was read both ways"
    assert said["order_effect_logit"] == "the games do not bound it"
    both = [r for q in range(40, 60) for r in both_orders(q, "a", "b", "a")]
    wanted = "prefers the first slot, or better answers stood there: pairs read both ways do not show it"
    assert card(metrics(rows + both))["first_slot_preference"] == wanted
    biased = [
        game(q, *names, SURE["first"], emitted=names[0], **pair)
        for q in range(40, 60)
        for names in (("a", "b"), ("b", "a"))
    ]
    assert card(metrics(rows + biased))["first_slot_preference"] == "prefers the first slot"


def test_an_order_effect_that_every_pair_shares_has_an_interval_with_a_width():
    rows = [
        game(q, *names, "first", emitted=names[0], response_a="a", response_b="b")
        for q in range(6)
        for names in (("a", "b"), ("b", "a"))
    ]
    row = one(metrics(rows), "order_effect")
    assert (row["value"], row["high"]) == (1.0, 1.0)
    assert row["low"] < 0.7


def test_a_sum_is_not_shown_as_a_count():
    rows = [
        game(q, *names, "second", emitted=names[1], response_a="a", response_b="b")
        for q in range(18)
        for names in (("a", "b"), ("b", "a"))
    ]
    shown = card(metrics(rows), column=-3)
    assert (shown["order_effect"], shown["flip_rate"], shown["first_slot_preference"]) == ("18", "18 / 18", "0 / 36")


@pytest.mark.parametrize("questions", [1, 3])
def test_few_cases_are_called_few(questions):
    said = card(metrics([r for q in range(questions) for r in both_orders(q, "a", "b", "ab"[q % 2])]))
    assert said["first_slot_preference"].startswith("too few cases")
    assert said["flip_rate"].startswith("too few cases")
