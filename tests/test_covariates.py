"""Length and style as covariates of a game: how they are counted, fitted, and when they are left out."""

import numpy as np
import polars as pl
import pytest
from comparisons import game
from rankings import WORTHS, answers, by_model, metric, ranked
from scipy.optimize import minimize

from trustjudge_ray.analysis.bradley_terry import fit_davidson
from trustjudge_ray.analysis.covariates import properties
from trustjudge_ray.analysis.games import Games
from trustjudge_ray.analysis.standing import ELO
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.corpus.canary import META_JSON
from trustjudge_ray.schema import RESPONSES, from_rows

TEXTS = {
    "plain words": (0, 0, 0),
    "# Title\n\n## Part\n#no header\n": (2, 0, 0),
    "- one\n* two\n1. three\n2) four\n-5 is a number": (0, 4, 0),
    "a **bold** word and __another__, 2 ** 3 ** 4": (0, 0, 2),
    "```python\n# a comment\n- x\n```\n# One": (1, 0, 0),
    "```\n# never closed": (0, 0, 0),
}


def test_characters_headers_lists_and_bold_are_counted_and_code_is_no_style():
    responses = answers({(q, "m"): text for q, text in enumerate(TEXTS)})
    counted = properties(responses, ["length", "headers", "lists", "bold"]).sort("question_id")
    assert dict(zip(TEXTS, counted.select("headers", "lists", "bold").rows(), strict=True)) == TEXTS
    assert counted["length"].to_list() == [len(text) for text in TEXTS]


def wordy(rng, questions, slope, worths=WORTHS, verbose=1.5):
    """A judge that likes length: judgments, RESPONSES. Of the models dee writes longest."""
    rows, texts = [], {}
    for q in range(questions):
        long = {m: int(rng.uniform(20, 400) * (verbose if m == "dee" else 1.0)) for m in worths}
        texts |= {(str(q), m): "x" * n for m, n in long.items()}
        for first in worths:
            for second in worths:
                if first != second:
                    z = (long[first] - long[second]) / (long[first] + long[second])
                    d = worths[first] - worths[second] + 0.3 + slope * z
                    weight = np.exp([d / 2, -d / 2, -1.0])
                    rows.append(game(q, first, second, tuple(np.eye(3)[rng.choice(3, p=weight / weight.sum())])))
    return rows, answers(texts)


CONTROLLED = AnalysisConfig(covariates=["length"])


def test_a_planted_liking_of_length_is_found_and_taken_out_of_the_ratings():
    rows, responses = wordy(np.random.default_rng(6), 150, slope=3.0, verbose=4.0)
    found = ranked(rows, CONTROLLED, responses)
    misled, fair = by_model(found), by_model(found, "davidson_controlled")
    truth = {m: 1000 + ELO * worth for m, worth in WORTHS.items()}
    assert misled["dee"] > truth["dee"] + 100
    limits = [by_model(found, "davidson_controlled", side) for side in ("low", "high")]
    assert all(limits[0][m] - 5 < truth[m] < limits[1][m] + 5 for m in truth)
    assert fair["dee"] == min(fair.values())
    length = metric(found, "covariate_length")
    assert length["low"] > 0.8
    assert (length["cases"], length["questions"]) == (len(rows), 150)
    none = metric(ranked(wordy(np.random.default_rng(7), 150, 0.0)[0], CONTROLLED, responses), "covariate_length")
    assert none["low"] < 0 < none["high"]


def test_the_controlled_model_is_the_maximum_of_its_likelihood():
    rng = np.random.default_rng(8)
    f, s = np.nonzero(~np.eye(4, dtype=bool))
    first, second, question = np.tile(f, 12), np.tile(s, 12), np.repeat(np.arange(12), len(f))
    outcome, z = rng.dirichlet(np.ones(3), len(first)), rng.normal(size=(len(first), 2))
    fit = fit_davidson(Games(tuple("abcd"), 12, question, first, second, outcome, z), np.zeros(4, dtype=np.int64))

    def loss(x):
        d = x[first] - x[second] + x[4] + z @ x[5:7]
        logits = np.stack([d / 2, -d / 2, np.full_like(d, x[7])], axis=1)
        return -(outcome * (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))).sum()

    best = minimize(loss, np.zeros(8), method="BFGS", options={"gtol": 1e-7}).x
    np.testing.assert_allclose(fit.theta, best[:4] - best[:4].mean(), atol=1e-4)
    np.testing.assert_allclose([fit.order_effect, *fit.coefficients, fit.log_nu], best[4:], atol=1e-4)
    assert (fit.coefficients_se > 0).all()


def test_several_answers_of_a_model_to_one_question_have_covariates_of_their_own():
    texts = {("q", "a1"): 10, ("q", "a2"): 90, ("q", "b"): 50}
    rows, many = [], []
    for n in range(40):
        many += [
            {"question_id": f"{n}", "response_id": r, "model": r[0], "replies": ["x" * size], "messages": []}
            for (_, r), size in texts.items()
        ]
        for r, won in (("a1", (0.2, 0.7, 0.1)), ("a2", (0.7, 0.2, 0.1))):
            rows += [game(n, "a", "b", won, response_a=r), game(n, "b", "a", (won[1], won[0], won[2]), response_a=r)]
    responses = pl.DataFrame(pl.from_arrow(from_rows(many, RESPONSES)))
    found = ranked(rows, CONTROLLED, responses)
    assert metric(found, "covariate_length")["value"] > 1
    assert by_model(found, "davidson_controlled", "games") == pytest.approx({"a": 160, "b": 160})


def test_a_covariate_that_says_nothing_or_only_which_models_met_is_left_out_and_named():
    rows, responses = wordy(np.random.default_rng(9), 20, 0.0)
    config = AnalysisConfig(covariates=["length", "headers"])
    found = ranked(rows, config, responses)
    assert any("headers is left out: it is the same in both answers" in told for told in found.warnings)
    assert {name for name in found.metrics["metric"] if name.startswith("covariate_")} == {"covariate_length"}
    two = [row for row in rows if {row["model_a"], row["model_b"]} == {"ada", "dee"}]
    same = answers({(str(q), m): "x" * n for q in range(20) for m, n in (("ada", 10), ("dee", 40))})
    alone = ranked(two, CONTROLLED, same)
    assert any("length is left out: which models met says all" in told for told in alone.warnings)
    assert "davidson_controlled" not in set(alone.ratings["rule"])


def test_texts_that_are_missing_are_said_and_their_games_left_out():
    rows, responses = wordy(np.random.default_rng(10), 20, 1.0)
    assert any("no texts of answers" in told for told in ranked(rows, CONTROLLED).warnings)
    some = responses.filter(pl.col("question_id") != "3")
    found = ranked(rows, CONTROLLED, some)
    assert any("davidson_controlled: 12 of 240 games are left out" in told for told in found.warnings)
    assert metric(found, "covariate_length")["cases"] == 228


def test_a_covariate_that_explains_every_outcome_gives_no_ratings_instead_of_huge_ones():
    rng, rows, texts = np.random.default_rng(11), [], {}
    for q in range(30):
        long = {m: int(rng.uniform(20, 400)) for m in "abc"}
        texts |= {(str(q), m): "x" * n for m, n in long.items()}
        rows += [game(q, f, s, "first" if long[f] > long[s] else "second") for f in "abc" for s in "abc" if f != s]
    found = ranked(rows, CONTROLLED, answers(texts))
    assert "davidson_controlled" not in set(found.ratings["rule"])
    assert any("do not bound the covariates" in told for told in found.warnings)


def test_weighted_games_are_counted_once_in_the_controlled_ranking_too():
    rows, responses = wordy(np.random.default_rng(12), 20, 1.0)
    rows = [row | {"category": "code" if int(row["question_id"]) < 5 else "prose"} for row in rows]
    config = AnalysisConfig(covariates=["length"], category_weights={"code": 3})
    found = ranked(rows, config, responses)
    assert by_model(found, "davidson_controlled", "games") == by_model(found, "davidson", "games")
    assert by_model(found, "davidson_controlled", "wins") == by_model(found, "davidson", "wins")
    assert metric(found, "covariate_length")["cases"] == len(rows)
    assert by_model(found, "davidson_controlled") != by_model(
        ranked(rows, CONTROLLED, responses), "davidson_controlled"
    )


def test_where_no_text_is_known_nothing_is_said_about_what_the_texts_are_like():
    rows, responses = wordy(np.random.default_rng(13), 5, 1.0)
    elsewhere = responses.with_columns(question_id=pl.lit("other ") + pl.col("question_id"))
    found = ranked(rows, CONTROLLED, elsewhere)
    assert any("60 of 60 games are left out: a text" in told for told in found.warnings)
    assert not any("the same in both answers" in told for told in found.warnings)


def test_a_canary_changes_neither_the_unit_of_length_nor_the_controlled_ratings_of_the_others():
    rows, responses = wordy(np.random.default_rng(14), 20, 1.0)
    config = AnalysisConfig(covariates=["length"], category_weights={"code": 3})
    rows = [row | {"category": "code" if int(row["question_id"]) < 5 else "prose"} for row in rows]
    short = answers({(str(q), "null"): "x" * 5 for q in range(20)}).with_columns(meta_json=pl.lit(META_JSON))
    worse = [
        game(q, m, "null", (0.97, 0.02, 0.01), category="code" if q < 5 else "prose") for q in range(20) for m in WORTHS
    ]
    plain, found = ranked(rows, config, responses), ranked(rows + worse, config, pl.concat([responses, short]))
    for column in ("value", "low", "high", "cases"):
        assert metric(found, "covariate_length")[column] == pytest.approx(metric(plain, "covariate_length")[column])
    assert by_model(found, "davidson_controlled") == pytest.approx(by_model(plain, "davidson_controlled"))
    assert "null" in by_model(found)
    assert any("games with the canary 'null' are left out" in told for told in found.warnings)
