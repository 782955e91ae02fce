"""Report and browser of judgments in real headless Chromium: they work, fit, stay within their folder, run no text."""

import json
import subprocess
import sys
from pathlib import Path

import large_run
import numpy as np
import polars as pl
import pytest
import report_page
import reported_runs as world
import tied_numbers
from browser_fixtures import NARROW, WIDE
from comparisons import game, score, table
from run_folders import write_run

from trustjudge_ray import runs
from trustjudge_ray.analysis.pairing import Side
from trustjudge_ray.judging import protocols
from trustjudge_ray.report import browse
from trustjudge_ray.schema import PLACED_RESPONSES, from_rows

pytestmark = pytest.mark.browser

_CODE = "window.pwned.push(document.title)"
HOSTILE = (
    f"</script><script>{_CODE}</script><img src=x onerror='{_CODE}'><svg onload={_CODE}><iframe srcdoc='<script>"
    f'parent.{_CODE}</script>\'></iframe><a href="javascript:{_CODE}">a</a> ]]> --> {{{{7*7}}}} ${{7*7}} `"\' &amp; '
    f"\u2028\u2029 </style></title></textarea>"
)
SHOWN = ("<script>", "onerror=", "javascript:", "{{7*7}}", "${7*7}", "]]>", "&amp;", "</style></title></textarea>")


PLACES = (
    *("judgments.html", "judgments.html#kind=cycles", "judgments.html#kind=flips", "judgments.html#view=all"),
    "judgments.html#pair=q0&a=model-00&b=model-01",
    "judgments.html#answer=q0&a=model-02",
    "judgments.html#cycle=q0&x=model-00&y=model-01&z=model-02&judge=large-judge&protocol=compare",
    "report.html",
)


def reported(path, side):
    """A run folder of these judgments, evaluated and reported."""
    runs.report(write_run(path, side))
    return path


@pytest.fixture(scope="session")
def large(tmp_path_factory):
    side = large_run.side()
    return side, reported(tmp_path_factory.mktemp("large") / "run", side)


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    side = large_run.side(judgments=3 * large_run.PER_QUESTION, words=400)
    return side, reported(tmp_path_factory.mktemp("small") / "run", side)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    names = [f"{HOSTILE} {letter}" for letter in "xyz"]
    rows, texts = [], []
    for q in (f"{HOSTILE} 1", f"{HOSTILE} 2"):
        about = {"judge": HOSTILE, "category": HOSTILE, "rationale": HOSTILE, "detail": HOSTILE}
        rows += [score(q, name, np.eye(5)[i], protocol="hostile-score", **about) for i, name in enumerate(names)]
        ring = [(names[0], names[1]), (names[1], names[2]), (names[2], names[0])]
        for first, second in ring:
            told = {"protocol": "hostile-compare", **about}
            rows.append(game(q, first, second, (0.8, 0.1, 0.1), emitted="a" if first < second else "b", **told))
            rows.append(game(q, second, first, (0.2, 0.7, 0.1), emitted="tie", **told))
        asked = {"question_id": q, "category": HOSTILE, "messages": [{"role": HOSTILE, "content": HOSTILE}]}
        asked |= {"reference": HOSTILE, "source": HOSTILE, "line": 1}
        texts += [asked | {"response_id": name, "model": name, "replies": [HOSTILE]} for name in names]
    known = {}
    for name, kind in (("hostile-score", "score-5"), ("hostile-compare", "compare")):
        like = protocols.to_yaml(world.PROTOCOLS[kind]).replace(f"name: {kind}\n", f"name: {name}\n")
        parsed = protocols.parse(like)
        known[name] = protocols.replace(parsed, system=HOSTILE, examples=())
    responses = pl.DataFrame(from_rows(texts, PLACED_RESPONSES))
    return reported(tmp_path_factory.mktemp("hostile") / "run", Side("h", table(rows), responses, known))


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    """The demo, run as `make demo` runs it."""
    out = tmp_path_factory.mktemp("demo") / "demo"
    line = [sys.executable, "-m", "trustjudge_ray", "run", "configs/demo.yaml", f"out={out}"]
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=280, check=False, cwd=Path(__file__).parents[1]
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


def texts(page, selector):
    return [text.strip() for text in page.locator(selector).all_inner_texts()]


def says(watched, beginning):
    """Wait until the list says how many it shows."""
    watched.page.locator(f".counted:text-matches('^{beginning}')").wait_for()


# --- it works --------------------------------------------------------------------------------


def test_the_first_look_at_100_000_judgments_loads_no_more_than_it_shows(opened, large):
    watched = opened(large[1])
    assert watched.page.locator("table.list tbody tr").count() == 50
    files = [name for name in watched.loaded if name.startswith("browse/")]
    assert files == ["browse/start.js", "browse/worst-0000.js"]
    assert sum((large[1] / name).stat().st_size for name in [*files, "judgments.html"]) < 500_000
    watched.check()


def test_of_100_000_judgments_those_that_fit_a_filter_are_found_and_sorted(opened, large):
    watched, said = opened(large[1], "judgments.html#view=all"), large[0].judgments
    page = watched.page
    assert page.inner_text(".counted") == f"{said.height:,} of {said.height:,} judgments."
    page.fill("input[name=q]", "q41")
    page.select_option("select[name=model]", "model-03")
    page.select_option("select[name=protocol]", "compare")
    mine = said.filter(
        pl.col("question_id") == "q41", (pl.col("model_a") == "model-03") | (pl.col("model_b") == "model-03")
    ).filter(protocol="compare")
    says(watched, f"{mine.height} of ")
    page.click("th button:has-text('Label mass')")
    page.wait_for_selector("th[aria-sort=ascending]")
    wanted = [f"{100 * mass:.1f} %" for mass in mine["label_mass"].drop_nulls().sort()]
    shown = texts(page, "table.list tbody td:nth-child(7)")
    assert [text for text in shown if text != "–"] == wanted
    page.click("th button:has-text('Label mass')")
    page.wait_for_selector("th[aria-sort=descending]")
    assert [text for text in texts(page, "table.list tbody td:nth-child(7)") if text != "–"] == wanted[::-1]
    page.select_option("select[name=status]", "engine_error")
    failed = mine.filter(status="engine_error").height
    says(watched, f"{failed} of ")
    assert {"q=q41", "status=engine_error"} <= set(page.url.split("#")[1].split("&")), "a link to what is shown"
    watched.check()


def test_a_contradiction_opens_with_both_answers_and_both_orders_and_the_way_back_is_kept(opened, large):
    side, folder = large
    watched = opened(folder)
    page = watched.page
    first = page.locator("table.list tbody a").first
    question, link = first.inner_text(), first.get_attribute("href")
    first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".side-b")
    worst = side.judgments.filter(question_id=question, protocol="compare")
    pair = page.url.split("&a=")[1].split("&b=")
    both = worst.filter(response_a=pair[0], response_b=pair[1]).sort("order")
    answers = dict(
        side.responses.filter(question_id=question).select("response_id", pl.col("replies").list.get(0)).rows()
    )
    assert texts(page, ".side-a .text, .side-b .text") == [answers[pair[0]], answers[pair[1]]]
    p = np.exp(np.array(both["label_logprobs"].to_list()))
    numbers = [f"{100 * share:.1f} %" for share in (p / p.sum(axis=1, keepdims=True)).ravel()]
    assert texts(page, "section:has(> h3:has-text('compare, by')) .share") == numbers
    assert [f"show {folder} {task}" in page.inner_text("main") for task in both["task_id"]] == [True, True]
    assert page.evaluate("document.activeElement.tagName") == "H2"
    page.go_back()
    page.wait_for_selector(f'a[href="{link}"]')
    assert page.evaluate("document.activeElement.getAttribute('href')") == link
    watched.check()


def test_a_choice_made_with_the_keyboard_leaves_the_keyboard_where_it_was(opened, small):
    watched = opened(small[1], "judgments.html#view=all")
    page, focus = watched.page, "document.activeElement.name"
    page.focus("select[name=protocol]")
    for protocol in ("compare", "score-100", "score-5"):
        page.keyboard.press("ArrowDown")
        page.locator(f"table.list tbody tr:first-child td:nth-child(4) span:text-is('{protocol}')").wait_for()
        assert (page.input_value("select[name=protocol]"), page.evaluate(focus)) == (protocol, "protocol")
    page.focus("input[name=q]")
    page.keyboard.type("q1")
    says(watched, "15 of ")
    assert page.evaluate(focus) == "q"
    page.focus("button[name=by-gap]")
    page.keyboard.press("Enter")
    page.wait_for_selector("th[aria-sort=ascending]")
    assert page.evaluate(focus) == "by-gap"
    watched.check()


def test_a_cycle_opens_with_its_three_answers_and_three_pairs(opened, small):
    watched = opened(small[1], "judgments.html#kind=cycles")
    page = watched.page
    names = texts(page, "table.list tbody tr:first-child td:nth-child(2)")[0].split(" > ")
    page.locator("table.list tbody a").first.click()
    page.wait_for_selector("h3:has-text('Answers')")
    assert texts(page, "main > section > h3 > a") == [f"{names[i]} and {names[j]}" for i, j in ((0, 1), (1, 2), (0, 2))]
    winners = [text.split(": ")[1] for text in texts(page, "main > section > h3") if " better" in text]
    assert winners == [f"{names[0]} better", f"{names[1]} better", f"{names[2]} better"]
    assert page.locator(".sides .bars").count() == 6
    watched.check()


def test_links_from_elsewhere_show_the_question_the_pair_and_the_answer_that_they_name(opened, small):
    watched = opened(small[1])
    for link, wanted in (
        (browse.link(q="q1"), f"{large_run.PER_QUESTION} of {3 * large_run.PER_QUESTION} judgments of the question q1"),
        (browse.link(pair="q1", a="model-01", b="model-04"), "model-01 and model-04"),
        (browse.link(pair="q1", a="model-04", b="model-01"), "model-01 and model-04"),
        (browse.link(answer="q2", a="model-00"), "model-00 on question 2"),
        (browse.link(pair="q99", a="model-01", b="model-04"), "Question q99: not in this browser"),
        (browse.link(pair="q1", a="nobody", b="model-04"), "no judgment is about a response nobody"),
    ):
        watched.open(link)
        assert wanted in watched.page.inner_text("main")
    watched.check()


def test_a_data_file_that_is_gone_is_said_and_not_an_empty_page(opened, small, tmp_path):
    (tmp_path / "judgments.html").write_bytes((small[1] / "judgments.html").read_bytes())
    watched = opened(tmp_path)
    assert "browse/start.js cannot be loaded" in watched.page.inner_text("main")


@pytest.mark.parametrize("page_name", ["report.html", "judgments.html"])
def test_the_theme_goes_from_the_systems_to_light_and_dark_and_is_kept(opened, served, small, page_name):
    watched = opened(served(small[1]), page_name)
    page, seen = watched.page, []
    for _ in range(3):
        seen.append(
            page.evaluate("[document.documentElement.dataset.theme, getComputedStyle(document.body).backgroundColor]")
        )
        page.click("#theme")
    light, dark = seen[1][1], seen[2][1]
    assert [theme for theme, _ in seen] == [None, "light", "dark"]
    assert seen[0][1] == light != dark
    page.click("#theme")
    page.click("#theme")
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    watched.check()


def test_tables_of_a_large_report_sort_and_filter(opened, large):
    watched = opened(large[1], "report.html")
    page = watched.page
    board = page.locator("#leaderboard table").first
    head = board.locator("thead th", has_text="rating").first
    head.locator("button").click()
    order = head.get_attribute("aria-sort")
    models = board.locator("tbody tr").all_inner_texts()
    head.locator("button").click()
    assert board.locator("tbody tr").all_inner_texts() == models[::-1]
    assert {order, head.get_attribute("aria-sort")} == {"ascending", "descending"}
    box = page.locator("p.filter").first
    rows = page.locator(f"#{box.locator('input').get_attribute('aria-controls')} tr")
    wanted = rows.nth(0).locator("td, th").all_inner_texts()[0:2]
    box.locator("input").fill(" ".join(wanted))
    visible = [row for row in rows.all() if row.is_visible()]
    assert 0 < len(visible) < rows.count()
    assert all(word.lower() in row.inner_text().lower() for row in visible for word in " ".join(wanted).split())
    page.click("a[href^='judgments.html']")
    page.wait_for_selector("table.list")
    watched.check()


def test_both_pages_work_from_a_web_server_as_from_a_disk(opened, served, small):
    watched = opened(served(small[1]))
    for name in PLACES:
        watched.open(name)
        assert len(watched.page.inner_text("main")) > 500
    watched.check()


# --- it fits ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_is_wider_than_a_phone_or_a_laptop(opened, small, scheme):
    for window in (NARROW, WIDE):
        watched = opened(small[1], PLACES[0], window, scheme)
        for place in PLACES:
            watched.open(place)
            assert watched.overflow() <= 0, (place, window)
        watched.check()


# --- no text becomes code --------------------------------------------------------------------


def test_markup_in_a_corpus_is_shown_as_it_is_and_runs_nothing(opened, hostile):
    start = browse.link
    one, two, names = f"{HOSTILE} 1", f"{HOSTILE} 2", [f"{HOSTILE} {letter}" for letter in "xyz"]
    places = [
        *(
            "judgments.html",
            start(kind="cycles"),
            start(kind="flips"),
            start(view="all"),
            start(q=one),
            start(q=HOSTILE),
        ),
        *(start(pair=two, a=names[0], b=names[1]), start(answer=one, a=names[2])),
        start(cycle=one, x=names[0], y=names[1], z=names[2], judge=HOSTILE, protocol="hostile-compare"),
        start(pair=HOSTILE, a=HOSTILE, b=HOSTILE),
    ]
    watched = opened(hostile, window=NARROW)
    page = watched.page
    for place in places:
        watched.open(place)
        text = page.text_content("main")
        assert [mark for mark in SHOWN if mark not in text] == [], place
        assert page.locator("img, iframe, object, embed, svg, base, main script, [onerror], [onload]").count() == 0
        assert watched.overflow() <= 0, place
        links = page.evaluate("[...document.querySelectorAll('a')].map((link) => link.getAttribute('href'))")
        assert [link for link in links if link != "report.html" and not link.startswith("#")] == []
        for summary in page.locator("summary").all():
            summary.click()
    watched.check()


def test_markup_in_a_corpus_is_text_in_the_report_too(opened, hostile):
    watched = opened(hostile, "report.html", NARROW)
    page = watched.page
    for summary in page.locator("summary").all():
        summary.click()
    text = page.text_content("main")
    assert [mark for mark in SHOWN if mark not in text] == []
    assert (
        page.locator("iframe, object, embed, base, main script, [onerror], [onload], a[href^='javascript']").count()
        == 0
    )
    assert watched.overflow() <= 0
    watched.check()


def test_the_policy_of_the_page_stops_what_a_slip_would_let_in(opened, small):
    page = opened(small[1]).page
    tried = page.evaluate(
        """() => {
            const tried = {};
            try { document.body.insertAdjacentHTML("beforeend", "<b>x</b>"); } catch { tried.html = false; }
            const script = document.createElement("script");
            try { script.text = "window.pwned.push(1)"; document.head.append(script); } catch { tried.inline = false; }
            return fetch("report.html").then(() => ({ ...tried, fetch: true }), () => ({ ...tried, fetch: false }));
        }"""
    )
    assert tried == {"html": False, "inline": False, "fetch": False}
    assert page.evaluate("window.pwned") == []


# --- the demo --------------------------------------------------------------------------------


@pytest.mark.demo
@pytest.mark.heavy
@pytest.mark.engine
@pytest.mark.ray
@pytest.mark.parametrize("window", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_demos_report_and_its_judgments_open_sort_filter_and_show_a_contradiction(opened, demo, window):
    watched = opened(demo, "report.html", window)
    page = watched.page
    assert "quartz-xl" in page.inner_text("#leaderboard")
    head = page.locator("#leaderboard table").first.locator("thead th").first
    head.locator("button").click()
    assert head.get_attribute("aria-sort") is not None
    page.click("#theme")
    assert watched.overflow() <= 0
    page.click("a[href^='judgments.html']")
    page.locator("table.list tbody a").first.click()
    page.wait_for_selector(".side-b")
    assert page.locator("h3:has-text('compare, by') ~ .sides .bars").count() == 2
    page.click("nav a[data-view=all]")
    page.fill("input[name=q]", "arith-1")
    page.locator(".counted:has-text('of the question arith-1')").wait_for()
    assert watched.overflow() <= 0
    watched.check()


@pytest.mark.demo
@pytest.mark.heavy
@pytest.mark.engine
@pytest.mark.ray
def test_every_number_of_the_demos_report_is_in_its_metrics_json(demo):
    root = report_page.read((demo / "report.html").read_text("utf-8"))
    assert tied_numbers.untied(root, json.loads((demo / "metrics.json").read_text("utf-8"))) == []
    assert sum(len(cell.values) for cell in root.all("td")) > 500
