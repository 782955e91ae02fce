"""The data card in worlds where the truth is known, against definitions written out, and as a page."""

import json
import math
from html.parser import HTMLParser

import numpy as np
import polars as pl
import pytest

from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.report import preferences as html
from trustjudge_ray.training.data_card import LABELS, Source, data_card
from trustjudge_ray.training.preference_filters import marked
from trustjudge_ray.training.preferences import Labeller

SETTINGS = AnalysisConfig()
BY = Labeller("judge", "compare", "score")


def rows(n, **columns):
    """Readable measured pairs of a prompt each; a column is a value for all or one each."""
    given = {
        "prompt_key": np.arange(n), "pair_id": [f"p{i}" for i in range(n)], "status": "ok", "decided": True,
        "cycle": False, "p": 0.8, "p_ab": 0.8, "p_ba": 0.8, "p_tie": 0.0, "both_orders_agree": True,
        "label_mass": 1.0, "length_chosen": 20, "length_rejected": 10, "scores_agree": True, "score_chosen": 4.0,
        "label_original": None, "label_human": None,
    } | columns  # fmt: skip
    given["margin"] = 2 * np.broadcast_to(given["p"], n) - 1
    frame = pl.DataFrame({k: list(np.broadcast_to(np.array(v, dtype=object), n)) for k, v in given.items()})
    return frame.with_columns(pl.col("label_original", "label_human").cast(pl.String))


def card(pairs, filters=None, source=None):
    return data_card(marked(pairs, filters or {}), source or Source(None, {}), BY, filters or {}, SETTINGS)


def labels(right):
    return ["chosen" if r else "rejected" for r in right]


def world(rng, n, sharpness=1.0):
    """p, and labels that are right as often as p says of a judge that is not `sharpness` times too sure."""
    truth = rng.uniform(0.5, 1.0, n)
    odds = (truth / (1 - truth)) ** sharpness
    return odds / (1 + odds), rng.random(n) < truth, truth


def test_every_row_is_counted_once_by_what_became_of_it():
    pairs = pl.concat([rows(3), rows(2, status="empty_side"), rows(4, p=0.55)])
    found = card(pairs, {"min_margin": 0.3}, Source(11, {"prompts_differ": 2}))["counts"]
    assert found["kept"] == 3
    assert found["dropped"] == {"empty_side": 2, "min_margin": 4}
    assert found["kept"] + sum(found["dropped"].values()) + sum(found["quarantined"].values()) == found["rows"]


def test_a_judge_that_is_too_sure_gets_its_temperature_and_its_noise_back():
    p, right, truth = world(np.random.default_rng(3), 4000, sharpness=2.0)
    found = card(rows(4000, p=p, label_original=labels(right)))
    fitted = found["calibration"]["temperature_scaling"]
    assert fitted["temperature"] == pytest.approx(2.0, abs=0.15)
    assert fitted["after"]["log_loss"] < fitted["before"]["log_loss"]
    noise = found["noise"]
    assert noise["calibrated"]
    assert noise["expected"]["low"] < (1 - truth).mean() < noise["expected"]["high"]
    assert noise["expected"]["value"] == pytest.approx((1 - truth).mean(), abs=0.02)
    assert np.minimum(p, 1 - p).mean() < noise["expected"]["low"], "uncalibrated it would be far too low"
    assert noise["by_label"]["original"]["value"] == (~right).mean()


def test_without_labels_the_noise_is_the_judges_own_and_said_to_be():
    p = np.linspace(0.5, 0.9, 50)
    found = card(rows(50, p=p))
    assert found["noise"]["expected"]["value"] == pytest.approx((1 - p).mean())
    assert found["noise"]["expected"]["low"] < found["noise"]["expected"]["value"] < found["noise"]["expected"]["high"]
    assert (found["noise"]["calibrated"], found["calibration"]) == (False, None)
    assert any("judge's own" in line for line in found["cautions"])


def test_labels_that_are_always_right_give_no_temperature_to_trust():
    found = card(rows(40, p=np.linspace(0.6, 0.9, 40), label_original="chosen"))
    assert found["calibration"]["temperature_scaling"]["at_edge"]
    assert not found["noise"]["calibrated"]
    assert any("No temperature" in line for line in found["cautions"])


def test_peoples_labels_come_before_the_sources():
    pairs = rows(40, label_original="chosen", label_human=labels(np.arange(40) % 4 > 0))
    found = card(pairs)
    assert (next(iter(LABELS)), found["calibration"]["labels"]) == ("human", "human")
    agree = {name: found["agreement"][name]["kept"]["value"] for name in LABELS}
    assert agree == {"human": 0.75, "original": 1.0}


def test_agreement_leaves_out_pairs_without_a_label_and_says_how_many():
    pairs = rows(10, label_original=[*labels([True] * 6 + [False] * 2), None, None])
    found = card(pairs)["agreement"]["original"]["readable"]
    assert (found["hits"], found["cases"], found["excluded"]) == (6, 8, {"no_label": 2})


def test_intervals_are_wider_where_pairs_share_their_prompts():
    right = np.repeat(np.arange(20) % 3 > 0, 10)
    alone = card(rows(200, label_original=labels(right)))["agreement"]["original"]["kept"]
    shared = card(rows(200, label_original=labels(right), prompt_key=np.repeat(np.arange(20), 10)))
    shared = shared["agreement"]["original"]["kept"]
    assert (alone["value"], alone["prompts"], shared["prompts"]) == (shared["value"], 200, 20)
    assert shared["high"] - shared["low"] > 2.5 * (alone["high"] - alone["low"])


def test_length_correlation_is_the_same_whichever_side_is_called_chosen_and_is_its_definition():
    rng = np.random.default_rng(5)
    one, other, p = rng.integers(5, 200, 60), rng.integers(5, 200, 60), rng.uniform(0, 1, 60)
    turned = np.where(p >= 0.5, p, 1 - p)
    sides = {"length_chosen": np.where(p >= 0.5, one, other), "length_rejected": np.where(p >= 0.5, other, one)}
    found = card(rows(60, p=turned, **sides))["length"]["readable"]["correlation"]
    x, y = np.log(one / other), 2 * p - 1
    assert found["value"] == pytest.approx(sum(x * y) / math.sqrt(sum(x * x) * sum(y * y)))
    assert found["low"] < found["value"] < found["high"]
    both = np.corrcoef(np.concatenate([x, -x]), np.concatenate([y, -y]))[0, 1]
    assert found["value"] == pytest.approx(both), "Pearson's, of every pair told both ways"


def test_the_longer_side_of_the_source_is_told_beside_the_judges():
    pairs = pl.concat(
        [
            rows(6, label_original="rejected"),
            rows(2, length_rejected=30, label_original="chosen"),
            rows(2, length_rejected=20),
        ]
    )
    found = card(pairs)["length"]["readable"]
    assert (found["longer_chosen"]["hits"], found["longer_chosen"]["cases"]) == (6, 8)
    assert found["longer_original"]["value"] == 0.0
    assert found["longer_chosen"]["excluded"] == {"same_length": 2}


def test_position_bias_is_there_before_averaging_gone_after_and_less_where_orders_must_agree():
    ab, ba = np.array([0.9, 0.9, 0.95, 0.8]), np.array([0.2, 0.3, 0.7, 0.9])
    pairs = rows(4, p=(ab + ba) / 2, p_ab=ab, p_ba=ba, both_orders_agree=(ab > 0.5) == (ba > 0.5))
    found = card(pairs, {"both_orders_agree": True})["position"]
    first = list(ab) + [1 - p for p in ba]
    assert found["before"]["order_effect"]["value"] == pytest.approx(np.mean([2 * p - 1 for p in first]))
    assert (found["before"]["disagree"]["hits"], found["before"]["disagree"]["cases"]) == (2, 4)
    assert found["after"]["order_effect"]["value"] == 0
    assert found["kept"]["order_effect"]["value"] == pytest.approx((0.25 + -0.1) / 2)


@pytest.mark.parametrize("status", ["engine_error", "ok"])
def test_a_card_of_nothing_kept_is_a_card(status):
    found = card(rows(3, status=status), {"min_margin": 0.9})
    assert found["counts"]["kept"] == 0
    assert found["noise"]["expected"]["value"] is None
    assert "No pair is kept" in found["cautions"][0]
    json.dumps(found, allow_nan=False)
    assert "–" in html.page(found, "run")


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_escapes_names_and_reasons_and_loads_nothing():
    nasty = "<script>alert(1)</script>"
    by = Labeller(nasty, "compare", None)
    pairs = marked(pl.concat([rows(5, label_original="chosen"), rows(2, status=nasty)]), {"max_p_tie": 0.5})
    found = data_card(pairs, Source(9, {nasty: 2}), by, {"max_p_tie": 0.5}, SETTINGS)
    page = _Page()
    page.feed(html.page(found, nasty))
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "img", "link", "iframe"})
    assert not any(name in ("src", "href") for _, attrs in page.tags for name in attrs)
    text = " ".join(page.text)
    assert text.count(nasty) >= 4
    assert "100.0 %" in text
