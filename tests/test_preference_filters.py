"""Each filter at its limit, the first reason that applies, and what each filter costs."""

import polars as pl
import pytest

from trustjudge_ray.config import ConfigError
from trustjudge_ray.training.preference_filters import FILTERS, costs, marked, refuse_bad_filters


def filtered(**values):
    """A readable pair with these values, for a filter."""
    row = {"status": "ok", "margin": 0.5, "both_orders_agree": True, "scores_agree": True, "p_tie": 0.1}
    row |= {"label_mass": 0.9, "length_chosen": 10, "length_rejected": 20, "cycle": False, "score_chosen": 4.0} | values
    return pl.DataFrame([row], schema_overrides={"score_chosen": pl.Float64, "scores_agree": pl.Boolean})


@pytest.mark.parametrize(
    ("name", "value", "column", "fails"),
    [
        ("min_margin", 0.5, "margin", 0.4999),
        ("both_orders_agree", True, "both_orders_agree", False),
        ("scores_agree", True, "scores_agree", False),
        ("max_p_tie", 0.1, "p_tie", 0.11),
        ("min_label_mass", 0.9, "label_mass", 0.89),
        ("max_length_ratio", 2.0, "length_chosen", 9),
        ("max_length_ratio", 2.0, "length_chosen", 41),
        ("no_cycle", True, "cycle", True),
        ("min_score", 4.0, "score_chosen", 3.9),
    ],
)
def test_each_filter_keeps_its_limit_and_drops_what_is_beyond(name, value, column, fails):
    assert marked(filtered(), {name: value})["drop_reason"].to_list() == [None]
    assert marked(filtered(**{column: fails}), {name: value})["drop_reason"].to_list() == [name]


@pytest.mark.parametrize(
    ("name", "value", "columns"),
    [
        ("min_margin", 0.2, {"margin": 0.6 - 0.4}),
        ("max_p_tie", 0.3, {"p_tie": 0.1 + 0.2}),
        ("min_label_mass", 0.8, {"label_mass": 0.5 + 0.1 + 0.1 + 0.1}),
        ("max_length_ratio", 4.1, {"length_chosen": 410, "length_rejected": 100}),
        ("min_score", 0.3, {"score_chosen": 0.1 * 3 - 2e-16}),
    ],
)
def test_float_noise_drops_no_pair_that_lies_at_a_limit(name, value, columns):
    assert marked(filtered(**columns), {name: value})["drop_reason"].to_list() == [None]


def test_a_filter_that_cannot_be_read_says_so_and_one_that_is_off_drops_nothing():
    unscored = filtered(scores_agree=None, score_chosen=None)
    assert marked(unscored, {"scores_agree": True})["drop_reason"].to_list() == ["scores_agree_unknown"]
    assert marked(unscored, {"scores_agree": False})["keep"].to_list() == [True]


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_that_is_null_is_as_good_as_none_also_one_of_scores_that_there_are_not(name):
    refuse_bad_filters({name: None}, False)
    poor = filtered(margin=0.0, both_orders_agree=False, scores_agree=None, p_tie=1.0, label_mass=0.0, length_chosen=0)
    found = marked(poor.with_columns(cycle=True, score_chosen=None), {name: None})
    assert found["keep"].to_list() == [True]
    assert costs(found, {name: None}) == []


def test_a_pair_goes_for_the_first_filter_and_counts_for_every_one():
    rows = pl.concat(
        [filtered(margin=0.1, p_tie=0.9), filtered(p_tie=0.9), filtered(), filtered(status="engine_error")]
    )
    filters = {"min_margin": 0.3, "max_p_tie": 0.5}
    found = marked(rows, filters)
    assert found["drop_reason"].to_list() == ["min_margin", "max_p_tie", None, "engine_error"]
    told = {row["filter"]: (row["not_pass"], row["dropped"], row["readable"]) for row in costs(found, filters)}
    assert told == {"min_margin": (1, 1, 3), "max_p_tie": (2, 1, 3)}


@pytest.mark.parametrize(
    ("filters", "scored", "message"),
    [
        ({"min_margn": 0.1}, True, "did you mean 'min_margin'"),
        ({"min_margin": 10}, True, "from 0 to 1"),
        ({"min_margin": True}, True, "a number from 0 to 1"),
        ({"no_cycle": 1}, True, "true, or false"),
        ({"max_length_ratio": 0.5}, True, "of 1 or more"),
        ({"min_score": 3}, False, "no score protocol"),
        ({"min_margn": None}, True, "did you mean 'min_margin'"),
        ({"min_margin": "none"}, True, "a number from 0 to 1, or null for none"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_refused(filters, scored, message):
    with pytest.raises(ConfigError, match=message):
        refuse_bad_filters(filters, scored)
