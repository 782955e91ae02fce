"""The data card in worlds where the truth is known, against definitions written out, and as a page."""

import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import polars as pl
import pytest

from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.report import preferences as html
from trustjudge_ray.training.data_card import LABELS, Source, data_card, noise
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
        "score_rejected": 3.0, "label_original": None, "label_human": None,
    } | columns  # fmt: skip
    given["margin"] = 2 * np.broadcast_to(given["p"], n) - 1
    frame = pl.DataFrame({k: list(np.broadcast_to(np.array(v, dtype=object), n)) for k, v in given.items()})
    return frame.with_columns(
        pl.col("label_original", "label_human").cast(pl.String), pl.col("both_orders_agree").cast(pl.Boolean)
    )


def card(pairs, filters=None, source=None):
    return data_card(marked(pairs, filters or {}), source or Source(None, {}), BY, filters or {}, SETTINGS)


def labels(right):
    return ["chosen" if r else "rejected" for r in right]


def world(rng, n, sharpness=1.0):
    """p, and labels that are right as often as p says of a judge that is not `sharpness` times too sure."""
    truth = rng.uniform(0.5, 1.0, n)
    odds = (truth / (1 - truth)) ** sharpness
    return odds / (1 + odds), rng.random(n) < truth, truth


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


def parsed(text):
    page = _Page()
    page.feed(text)
    return page


def seen(text):
    """What is read of a page, less its style and the JSON at its end."""
    return " ".join(" ".join(parsed(text.split("</head>")[1]).text).split("data_card.json {")[0].split())


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


def test_the_noise_of_kept_pairs_is_not_calibrated_on_pairs_that_a_filter_took_out():
    rng = np.random.default_rng(4)
    p, right, truth = world(rng, 600)
    coins = rng.random(600) < 0.5
    pairs = pl.concat(
        [
            rows(600, p=p, label_original=labels(right)),
            rows(600, p=p, label_original=labels(coins), both_orders_agree=False, prompt_key=np.arange(600, 1200)),
        ]
    )
    found = card(pairs, {"both_orders_agree": True})
    noise = found["noise"]
    assert (noise["calibrated"], noise["labels"], noise["labelled_prompts"]) == (True, "original", 600)
    assert noise["expected"]["low"] < (1 - truth).mean() < noise["expected"]["high"]
    assert not any("does not fit" in line for line in found["cautions"])
    assert card(pairs)["noise"]["expected"]["low"] > noise["expected"]["high"], "of all pairs it is another"


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.2])
def test_an_expected_noise_rate_that_labels_do_not_bear_out_is_said_to_be_none(rate):
    rng = np.random.default_rng(6)
    p, wrong = rng.uniform(0.55, 0.99, 400), rng.permutation(400) < 400 * rate
    found = card(rows(400, p=p, label_human=labels(~wrong)))
    told = found["noise"]["by_label"]["human"]
    assert told["low"] <= rate <= told["high"]
    assert told["expected"] > told["high"]
    [caution] = [line for line in found["cautions"] if "does not fit" in line]
    assert f"call {rate:.1%} of" in caution


def test_an_expected_noise_rate_that_labels_bear_out_is_not_doubted_more_often_than_its_interval_says():
    doubted = 0
    for seed in range(8):
        p, right, _ = world(np.random.default_rng(seed), 60)
        found = card(rows(60, p=p, label_human=labels(right)))
        doubted += any("does not fit" in line for line in found["cautions"])
    assert doubted <= 1


def test_labelled_pairs_of_one_prompt_alone_have_no_interval_to_hold_a_rate_against():
    found = card(rows(5, label_human="chosen", prompt_key=7))["noise"]
    assert (found["calibrated"], found["labelled_prompts"], found["by_label"]["human"]["low"]) == (False, 1, None)


def test_without_labels_the_noise_is_the_judges_own_and_said_to_be():
    p = np.linspace(0.5, 0.9, 50)
    found = card(rows(50, p=p))
    assert found["noise"]["expected"]["value"] == pytest.approx((1 - p).mean())
    assert found["noise"]["expected"]["low"] < found["noise"]["expected"]["value"] < found["noise"]["expected"]["high"]
    assert (found["noise"]["calibrated"], found["calibration"]) == (False, None)
    assert any("judge's own" in line for line in found["cautions"])


@pytest.mark.parametrize("calibrated", [False, True])
def test_the_interval_of_the_noise_rate_is_never_above_a_half_and_holds_the_truth_with_few_prompts(calibrated):
    held = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        truth = np.clip(rng.uniform(0.5, 1, 4).repeat(12) + rng.normal(0, 0.05, 48), 0.5, 1 - 1e-6)
        given = {"label_human": labels(rng.random(48) < truth)} if calibrated else {}
        pairs = rows(48, p=truth, prompt_key=np.arange(4).repeat(12), **given)
        found = noise(marked(pairs, {}), SETTINGS)["expected"]
        assert 0 <= found["low"] <= found["value"] <= found["high"] <= 0.5
        held += found["low"] <= 0.25 <= found["high"]
    assert held >= 36


def test_close_pairs_of_three_prompts_do_not_have_a_noise_rate_of_up_to_all_pairs():
    found = card(rows(3, p=[0.52, 0.6, 0.55]))["noise"]["expected"]
    assert found["value"] == pytest.approx((0.48 + 0.4 + 0.45) / 3)
    assert found["low"] < 0.4 < 0.48 < found["high"] <= 0.5, "wider than the three themselves"


ONE_WRONG = labels(np.arange(40) != 7)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"label_original": "chosen"}, "the sharper"),
        ({"label_original": "rejected"}, "the flatter"),
        ({"label_original": ONE_WRONG}, "hangs on few prompts"),
        ({"label_original": ONE_WRONG, "prompt_key": 7}, "one prompt alone"),
    ],
)
def test_the_edge_of_the_search_is_no_temperature_and_nothing_is_computed_with_it(given, reason):
    found = card(rows(40, p=np.linspace(0.6, 0.9, 40), **given))
    fitted = found["calibration"]["temperature_scaling"]
    assert (fitted["temperature"], fitted["folds"], fitted["after"]) == (None, None, None)
    assert reason in fitted["reason"]
    assert not found["noise"]["calibrated"]
    assert any("No temperature" in line and reason in line for line in found["cautions"])
    text = seen(html.page(found, "run"))
    assert reason in text
    assert not re.search(r"with T|54\.59|0\.018|-0\.000", text)
    p = np.linspace(0.6, 0.9, 40)
    assert found["noise"]["expected"]["value"] == pytest.approx((1 - p).mean())


def test_no_number_of_the_page_is_a_negative_zero():
    found = card(rows(20, p_ab=0.8, p_ba=0.80004))
    assert -0.0005 < found["position"]["before"]["order_effect"]["value"] < 0
    assert "-0.000" not in seen(html.page(found, "run"))


def test_peoples_labels_come_before_the_sources():
    pairs = rows(40, label_original="chosen", label_human=labels(np.arange(40) % 4 > 0))
    found = card(pairs)
    assert (next(iter(LABELS)), found["calibration"]["labels"]) == ("human", "human")
    agree = {name: found["agreement"][name]["kept"]["value"] for name in LABELS}
    assert agree == {"human": 0.75, "original": 1.0}


@pytest.mark.parametrize(
    ("people", "source", "chosen"),
    [
        (1, 60, "original"),
        (29, 60, "original"),
        (30, 60, "human"),
        (12, 12, "human"),
        (12, 13, "original"),
    ],
)
def test_a_few_labels_of_peoples_do_not_switch_off_the_calibration_on_many_of_the_sources(people, source, chosen):
    right = labels(np.arange(60) % 4 > 0)
    about = {"label_human": [*right[:people], *[None] * (60 - people)]}
    about |= {"label_original": [*right[:source], *[None] * (60 - source)]}
    found = card(rows(60, p=np.linspace(0.55, 0.95, 60), **about))
    passed = {"human": people} if chosen == "original" else {}
    for part in ("calibration", "noise"):
        assert (found[part]["labels"], found[part]["passed_over"]) == (chosen, passed)
    told = [line for line in found["cautions"] if "too few to calibrate on" in line]
    assert [f"of {people} prompt" in line for line in told] == [True] * len(passed)
    assert found["noise"]["calibrated"]


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
    assert found["kept"]["order_effect"]["value"] == pytest.approx((0.25 + -0.1) / 2)


@pytest.mark.parametrize("status", ["engine_error", "ok"])
def test_a_card_of_nothing_kept_is_a_card(status):
    found = card(rows(3, status=status), {"min_margin": 0.9})
    assert found["counts"]["kept"] == 0
    assert found["noise"]["expected"]["value"] is None
    assert any("No pair is kept" in line for line in found["cautions"])
    json.dumps(found, allow_nan=False)
    assert "–" in html.page(found, "run")


def test_the_page_escapes_names_and_reasons_and_loads_nothing():
    nasty = "<script>alert(1)</script>"
    by = Labeller(nasty, "compare", None)
    pairs = marked(pl.concat([rows(5, label_original="chosen"), rows(2, status=nasty)]), {"max_p_tie": 0.5})
    about = {"tool": nasty, "engine": nasty, "model": nasty, "corpus": [nasty]}
    found = data_card(pairs, Source(9, {nasty: 2}, run=about), by, {"max_p_tie": 0.5}, SETTINGS)
    page = parsed(html.page(found, nasty))
    assert {tag for tag, _ in page.tags}.isdisjoint({"img", "link", "iframe"})
    assert [attrs for tag, attrs in page.tags if tag == "script"] == [{}], "the theme's, as it stands"
    links = [attrs[name] for _, attrs in page.tags for name in ("src", "href") if name in attrs]
    assert links == ["manifest.json", "pairs.html", "#words"], "a link beside the page loads nothing"
    text = " ".join(page.text)
    assert text.count(nasty) >= 8
    assert "100.0 %" in text


def warned(pairs, words, filters=None, source=None):
    """The cautions with these words."""
    return [line for line in card(pairs, filters, source)["cautions"] if words in line]


def test_a_run_without_a_filter_is_said_to_keep_every_readable_pair():
    assert warned(rows(40), "No filter is on")
    assert not warned(rows(40), "No filter is on", {"max_p_tie": 0.9})
    assert warned(rows(40), "No filter is on", {"no_cycle": False}), "switched off is not on"


@pytest.mark.parametrize(("unlike", "told"), [(8, False), (9, True)])
def test_orders_that_often_disagree_are_told_with_their_counts(unlike, told):
    lines = warned(rows(40, both_orders_agree=np.arange(40) >= unlike), "orders disagree")
    assert [f"in {unlike} of 40 compared pairs" in line for line in lines] == [True] * told


def test_pairs_whose_orders_cancel_each_other_out_are_not_left_out_of_the_position_bias():
    even = {"status": "no_preference", "p": 0.5, "p_ab": 0.9, "p_ba": 0.1, "both_orders_agree": False}
    pairs = pl.concat([rows(30), rows(10, **even), rows(5, status="engine_error", both_orders_agree=None)])
    assert "in 10 of 40 compared pairs" in warned(pairs, "orders disagree")[0]
    found = card(pairs)["position"]
    assert found["before"]["order_effect"]["value"] == pytest.approx((10 * 0.8 + 30 * 0) / 40)
    assert found["kept"]["disagree"]["hits"] == 0


def test_labels_that_are_swapped_against_the_source_are_counted_among_kept_pairs_and_told_first():
    said = [*["rejected"] * 7, *["chosen"] * 20, *[None] * 3]
    pairs = pl.concat([rows(30, label_original=said), rows(5, p=0.51, label_original="rejected")])
    found = card(pairs, {"min_margin": 0.5})
    assert found["counts"]["swapped"] == {"pairs": 7, "of": 27}
    assert any("in 7 of 27 kept pairs" in line for line in found["cautions"])
    assert "swapped against the source 7 of 27" in seen(html.page(found, "run"))
    assert not warned(rows(40, label_original="chosen"), "swapped")


@pytest.mark.parametrize(("prompts", "told"), [(29, True), (30, False)])
def test_few_prompts_are_told_whatever_the_number_of_pairs(prompts, told):
    assert bool(warned(rows(90, prompt_key=np.arange(90) % prompts), f"of {prompts} prompts")) is told
    loose, narrow = rows(90, prompt_key=np.arange(90) % prompts), rows(50, p=0.51, prompt_key=np.arange(100, 150))
    filtered = warned(pl.concat([loose, narrow]), f"of {prompts} prompts", {"min_margin": 0.3})
    assert bool(filtered) is told, "prompts of dropped pairs do not count"


def test_failures_of_the_judge_are_told_before_the_numbers():
    source = Source(40, {}, judgments=160, failed={"too_long": 2, "engine_error": 46})
    [line] = warned(rows(40), "judge failed", source=source)
    assert "on 48 of 160 judgments (engine_error 46, too_long 2)" in line
    assert not warned(rows(40), "judge failed", source=Source(40, {}, judgments=160))


def test_a_zero_that_holds_whatever_the_judge_is_not_told_as_a_measurement():
    found = card(rows(40, p_ab=0.9, p_ba=0.7))
    after = found["position"]["after"]
    assert after["by_construction"]
    assert [after[name] for name in ("order_effect", "disagree")] == [{"value": 0.0, "low": None, "high": None}] * 2
    text = seen(html.page(found, "run"))
    assert "both orders averaged 0 by construction 0 by construction each order alone, kept pairs" in text


def test_the_page_says_filters_as_a_configuration_has_them_and_where_its_pairs_came_from():
    about = {
        "tool": "1.2.3",
        "engine": "vllm",
        "model": "org/judge-7b",
        "corpus": [f"part-{i}.jsonl" for i in range(9)],
    }
    filters = {"both_orders_agree": True, "min_margin": 0.25}
    text = seen(html.page(card(rows(40), filters, Source(40, {}, run=about)), "run"))
    assert "both_orders_agree true 0 0 40 0 min_margin 0.25 0" in text
    for words in ("org/judge-7b", "vllm", "trustjudge_ray 1.2.3", "part-0.jsonl", "and 6 more", "manifest.json"):
        assert words in text
    assert "manifest.json" not in seen(html.page(card(rows(40)), "run")), "there is none to link to"


def test_the_page_names_the_confidence_that_its_intervals_have():
    found = data_card(marked(rows(40), {}), Source(40, {}), BY, {}, AnalysisConfig(confidence=0.9))
    assert found["confidence"] == 0.9
    assert "90 % confidence" in seen(html.page(found, "run"))


def test_answers_that_could_not_be_used_of_rows_that_are_and_texts_that_were_cut_are_counted():
    found = card(rows(40), source=Source(40, {}, {"missing_field": 3}, judgments=160, cut=7))
    assert (found["counts"]["answers"], found["counts"]["cut"]) == ({"missing_field": 3}, 7)
    assert "answer not usable, of a row that is used: missing_field 3" in seen(html.page(found, "run"))
    assert any("Texts were cut to the judge's context in 7 of 160 judgments" in line for line in found["cautions"])
    assert not warned(rows(40), "Texts were cut", source=Source(40, {}, judgments=160))


def test_tables_of_nothing_are_a_sentence_each_and_no_row_of_dashes():
    page = parsed(html.page(card(rows(3, status="engine_error", both_orders_agree=None)), "run"))
    text = " ".join(" ".join(page.text).split())
    assert text.count("Nothing to report") == 9
    assert [tag for tag, _ in page.tags].count("table") == 1, "what became of the rows"


def test_labels_that_nobody_gave_are_a_sentence_and_no_rows_of_dashes():
    text = seen(html.page(card(rows(40, label_original="chosen")), "run"))
    assert "No readable pair has a label of people's." in text
    assert "people's labels" not in text
    assert "the source's labels, kept pairs 100.0 %" in text
