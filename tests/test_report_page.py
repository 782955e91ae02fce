"""The report page as a document: nothing runs that is not ours, nothing is loaded, and everybody can read it."""

import json
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from importlib import resources
from itertools import pairwise

import altair
import polars as pl
import pytest
import report_page
import reported_runs as world

from trustjudge_ray.analysis.evaluation import evaluate
from trustjudge_ray.report import charts, drawing, numbers, page, rendering

SMALL = {"judges": world.JUDGES[:1], "scales": world.SCALES[:2], "comparisons": world.COMPARISONS[:1]}
HOSTILE = '</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028{{ 7*7 }}" onload="y'


@pytest.fixture(scope="module")
def small():
    return world.inputs(**SMALL)


@pytest.fixture(scope="module")
def html(small):
    return page.page(small)


@pytest.fixture(scope="module")
def root(html):
    return report_page.read(html)


def policy_of(root):
    return next(m.attrs["content"] for m in root.all("meta") if m.attrs.get("http-equiv") == "Content-Security-Policy")


def test_only_our_scripts_run_and_each_is_allowed_by_its_hash(root):
    policy = policy_of(root)
    assert "unsafe-eval" not in policy
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]
    scripts = [script for script in root.all("script") if script.attrs.get("type") != "application/json"]
    hashes = {f"'sha256-{b64encode(sha256(script.text.encode()).digest()).decode()}'" for script in scripts}
    assert hashes == set(policy.split("script-src ")[1].split(";")[0].split())
    assert len(scripts) == 4
    assert {name for element in root.all(*ALL) for name in element.attrs if name.startswith("on")} == set()


ALL = (
    "a",
    "body",
    "button",
    "div",
    "figure",
    "html",
    "input",
    "img",
    "main",
    "section",
    "svg",
    "td",
    "th",
    "g",
    "path",
)


def test_the_page_loads_nothing(root):
    assert policy_of(root).startswith("default-src 'none'")
    assert root.all("link", "img", "iframe", "object", "embed") == []
    assert all("src" not in script.attrs for script in root.all("script"))
    assert all(not re.match(r"\w+:", a.attrs["href"]) for a in root.all("a"))


def test_a_corpus_full_of_markup_stays_text_in_tables_and_in_charts(small):
    bad = {name: HOSTILE if name == "a" else name for name in world.MODELS}
    said = small.judgments.with_columns(*(small.judgments[side].replace(bad) for side in ("model_a", "model_b")))
    named = {name: getattr(small, name) for name in ("ratings", "scores")}
    named = {name: table.with_columns(table["model"].replace(bad)) for name, table in named.items()}
    html = page.page(replace(small, judgments=said, title=HOSTILE, warnings=[HOSTILE], **named))
    root = report_page.read(html)
    assert len([s for s in root.all("script") if s.attrs.get("type") != "application/json"]) == 4
    assert root.all("img") == []
    assert root.all("h1")[0].text == HOSTILE
    data = next(s.text for s in root.all("script") if s.attrs.get("id") == "chart-specs")
    assert "<" not in data
    assert "\u2028" not in data
    specs = json.loads(data)
    assert any(row["model"] == HOSTILE for spec in specs["score_distributions"] for row in spec["data"]["values"])
    assert '"expr"' not in data
    assert specs["ratings"][0]["layer"][0]["encoding"]["y"]["sort"] == {"field": "order", "op": "min"}


def test_json_in_a_page_comes_back_as_it_was_and_nothing_in_it_ends_a_script():
    value = {"a": "</script><!--", "b": "\u2028&amp;", "c": [1.5, None, "é"]}
    text = str(rendering.as_json(value))
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == value
    with pytest.raises(ValueError, match="NaN|nan|compliant"):
        rendering.as_json(float("nan"))
    with pytest.raises(ValueError, match="cannot stand in a page"):
        rendering.inline("let a = '</SCRIPT>'")


def test_headings_descend_one_by_one_and_ids_and_links_are_whole(root):
    levels = [int(h.tag[1]) for h in root.all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [e.attrs["id"] for e in every(root) if "id" in e.attrs]
    assert len(ids) == len(set(ids))
    targets = [a.attrs["href"][1:] for a in root.all("a") if a.attrs["href"].startswith("#")]
    assert set(targets) <= set(ids)
    assert len(targets) > 10
    named = [e.attrs[n] for e in every(root) for n in ("aria-labelledby", "aria-controls", "for") if n in e.attrs]
    assert set(named) <= set(ids)


def every(element):
    return [element, *(each for child in element.children for each in every(child))]


def test_landmarks_tables_inputs_and_figures_have_names(root):
    assert [len(root.all(tag)) for tag in ("main", "nav", "header")] == [1, 1, 1]
    assert root.all("html")[0].attrs["lang"] == "en"
    assert root.all("a")[0].has("class", "skip")
    labelled = {label.attrs["for"] for label in root.all("label")}
    assert {box.attrs["id"] for box in root.all("input")} == labelled
    assert len(labelled) > 3
    for shown in root.all("table"):
        assert report_page.title_of(shown)
        assert {head.attrs.get("scope") for head in shown.all("thead")[0].all("th")} == {"col"}
        rows = shown.all("tbody")[0].all("tr")
        assert all([head.attrs.get("scope") for head in row.all("th")] == ["row"] for row in rows)
        assert shown.parent.attrs["tabindex"] == "0"
        assert shown.parent.attrs["role"] == "region"
        filters = shown.parent.parent.all("input")
        assert len(filters) == ((len(rows) > 8) and not shown.has("class", "matrix"))
    stills = [e for e in root.all("div") if e.has("class", "still")]
    assert all(e.children[0].attrs["role"] == "img" and e.children[0].attrs["aria-label"] for e in stills)
    assert len(stills) == len([e for e in root.all("figure") if e.all("figcaption")[0].text.strip()])


def test_a_run_of_one_judge_names_it_once_and_a_run_of_two_in_every_row(root):
    heads = {head.text for shown in root.all("table") for head in shown.all("thead")[0].all("th")}
    assert "judge" not in heads
    two = report_page.read(page.page(world.inputs(**SMALL | {"judges": world.JUDGES[:2]}), {}))
    assert "judge" in {head.text for shown in two.all("table") for head in shown.all("thead")[0].all("th")}


def test_charts_are_drawn_again_from_data_in_the_page_and_there_is_no_runtime_without_charts(small, root):
    specs = json.loads(next(s.text for s in root.all("script") if s.attrs.get("id") == "chart-specs"))
    shown = {figure.attrs["data-chart"] for figure in root.all("figure")}
    assert shown == set(specs) == {name for name, chart in charts.CHARTS.items() if chart(small) is not None}
    assert '"url"' not in json.dumps(specs)
    for panel in (panel for panels in specs.values() for panel in panels):
        altair.Chart.from_dict(
            panel
        )  # raises where it is against Vega-Lite's schema: the page's own drawing does not look
    bare = page.page(small, {})
    assert "vegaEmbed" not in bare
    assert len(bare) < 600_000


def test_the_runtime_needs_no_network_and_interprets_expressions_itself():
    runtime = drawing.runtime()
    assert "vegaEmbed" in runtime
    assert "</script" not in runtime
    assert "ast: true" in str(rendering.script("charts.js"))


def test_single_judgments_are_linked_only_where_the_run_has_them(small):
    assert "Browse single judgments" not in page.page(small, {})
    linked = report_page.read(page.page(replace(small, browser="judgments.html"), {}))
    assert "judgments.html" in {a.attrs["href"] for a in linked.all("a")}


def lost(judgments, kind=None):
    """The judgments, those of a kind (or all) failed."""
    gone = pl.lit(True) if kind is None else pl.col("kind") == kind
    return judgments.with_columns(
        status=pl.when(gone).then(pl.lit("engine_error")).otherwise("status"),
        emitted=pl.when(~gone).then("emitted"),
        label_logprobs=pl.when(~gone).then("label_logprobs"),
    )


ODD = {
    "scores only": lambda said: said.filter(kind="score"),
    "comparisons only": lambda said: said.filter(kind="compare"),
    "comparisons failed": lambda said: lost(said, "compare"),
    "scores failed": lambda said: lost(said, "score"),
    "all failed": lost,
    "one model": lambda said: said.filter(pl.col("kind") == "score", pl.col("model_a") == "a"),
    "one question": lambda said: said.filter(question_id="q0"),
    "one order": lambda said: said.filter((pl.col("kind") == "score") | (pl.col("order") == "AB")),
    "nothing": lambda said: said.clear(),
}


@pytest.mark.parametrize("which", ODD)
def test_an_odd_run_has_a_page_with_three_sentences_and_its_numbers(small, which):
    said = ODD[which](small.judgments)
    found = evaluate(said, small.protocols, world.responses(), small.settings)
    frames = {name: getattr(found, name) for name in ("scores", "verdicts", "metrics", "ratings", "warnings")}
    odd = replace(small, judgments=said, **frames)
    root = report_page.read(page.page(odd, {}))
    sentences = [dd.text for dd in root.all("dd")]
    assert len(sentences) == 3
    assert all(text.endswith(".") and "None" not in text and "nan" not in text for text in sentences)
    assert json.loads(numbers.metrics_json(odd.metrics, odd.ratings, numbers.numbers(odd)))["report"]["extent"]
    assert set(charts.figures(odd)) <= set(charts.CHARTS)
    if which in ("all failed", "nothing"):
        assert sentences[0].startswith("No model leads")


def colours(text):
    """The colours of a theme by name."""
    found = {}
    for name, value in re.findall(r"--([a-z-]+): ([^;]+);", text):
        if value.startswith("#"):
            plain = value[1:] if len(value) == 7 else "".join(c * 2 for c in value[1:])
            found[name] = tuple(int(plain[i : i + 2], 16) for i in (0, 2, 4))
        else:
            found[name] = tuple(int(part) for part in value.split())
    return found


def contrast(one, other):
    """WCAG 2's contrast of two colours."""

    def luminance(colour):
        parts = [c / 255 for c in colour]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_words_can_be_read_in_both_themes():
    style = (resources.files("trustjudge_ray.report") / "style.css").read_text("utf-8")
    light, *dark = [colours(block) for block in re.findall(r":root[^{]*\{([^}]*)\}", style)]
    assert dark[0] == dark[1]
    for theme in (light, dark[0]):
        for ink in ("ink", "soft", "accent", "good", "warn", "bad"):
            for paper in ("paper", "raised"):
                assert contrast(theme[ink], theme[paper]) >= 4.5, (ink, paper)
        assert contrast(theme["ink"], theme["mark"]) >= 4.5
        for heat in ("heat-up", "heat-down"):
            strongest = [0.5 * a + 0.5 * b for a, b in zip(theme[heat], theme["paper"], strict=True)]
            assert contrast(theme["ink"], strongest) >= 4.5, heat
