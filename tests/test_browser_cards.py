"""The data card and the audit in real headless Chromium: they fit a phone, have the theme button, and run no text."""

import pytest
from browser_fixtures import NARROW, WIDE
from test_audit_page import JUDGE, of, planted
from test_browser import HOSTILE
from test_data_card import card, rows

from trustjudge_ray.report.audit import audit_page
from trustjudge_ray.report.doubtful import pairs_page
from trustjudge_ray.report.excerpts import Excerpt
from trustjudge_ray.report.preferences import page
from trustjudge_ray.training.data_card_doubtful import listed

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def cards(tmp_path_factory):
    """A folder with the pages; the data card's pairs have long words, many lines, and texts that would be code."""
    folder = tmp_path_factory.mktemp("cards")
    ids = [HOSTILE, "0" * 300, *(f"p{i}" for i in range(28))]
    found = card(rows(30, pair_id=ids, label_original="rejected", label_human="rejected", score_rejected=5.0))
    texts = dict.fromkeys(listed(found), Excerpt(HOSTILE, 2, "W" * 400, HOSTILE + "line\n" * 100))
    (folder / "preferences.html").write_text(page(found, HOSTILE), "utf-8")
    (folder / "pairs.html").write_text(pairs_page(found, HOSTILE, texts), "utf-8")
    audited = of(planted.COIN) | {"cautions": [HOSTILE], "judge": {"name": HOSTILE + "W" * 200, "identity": JUDGE}}
    (folder / "audit.html").write_text(audit_page(audited), "utf-8")
    return folder


@pytest.mark.parametrize("name", ["preferences.html", "pairs.html", "audit.html"])
@pytest.mark.parametrize("window", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_card_fits_its_window_and_nothing_in_it_runs(opened, cards, name, window):
    watched = opened(cards, name, window)
    watched.page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert watched.overflow() <= 0
    assert "{{7*7}}" in watched.page.inner_text("main")
    watched.check()


def test_the_sides_of_a_pair_stand_side_by_side_where_there_is_room_and_else_below_each_other(opened, cards):
    for window, beside in ((WIDE, True), (NARROW, False)):
        left, right = opened(cards, "pairs.html", window).page.locator(".sides").first.locator("> div").all()
        left, right = left.bounding_box(), right.bounding_box()
        assert (left["y"] == right["y"], left["x"] < right["x"]) == (beside, beside)


@pytest.mark.parametrize("name", ["preferences.html", "pairs.html", "audit.html"])
def test_the_theme_of_a_card_is_the_one_that_the_other_pages_of_the_run_have(opened, served, cards, name):
    watched = opened(served(cards), name)
    paper = "getComputedStyle(document.body).backgroundColor"
    light = watched.page.evaluate(paper)
    watched.page.click("#theme")
    watched.page.click("#theme")
    assert watched.page.evaluate(paper) != light
    watched.open("audit.html" if name == "preferences.html" else "preferences.html")
    assert watched.page.evaluate("document.documentElement.dataset.theme") == "dark"
    watched.check()
