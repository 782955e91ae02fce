"""The page and text of an audit, and a card attached to a leaderboard: nothing lost, misread or let in."""

import json
import re
from copy import deepcopy
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import planted_audits as planted
import polars as pl
import pytest
import reported_runs as world
from run_folders import write_run

from trustjudge_ray import runs
from trustjudge_ray.analysis.pairing import Side
from trustjudge_ray.audit import attention, qa
from trustjudge_ray.audit.attached import CardError, read_card
from trustjudge_ray.audit.card import card
from trustjudge_ray.audit.lora_report import claims_of
from trustjudge_ray.audit.transfer import ANSWERS, READS, transfer_matrix
from trustjudge_ray.audit_config import AuditConfig
from trustjudge_ray.report import audit_tables, audited, page, rendering, tables
from trustjudge_ray.report.audit import audit_page, audit_text
from trustjudge_ray.report.audit_findings import findings
from trustjudge_ray.storage import filesystem

JUDGE = {"model": "tiny", "revision": "r1", "precision": {"dtype": "bfloat16"}, "templates": {"p": "t"}, "notes": ["n"]}
HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>{{ 7*7 }}\" onload=\"y"


def of(judge, passages=16, each=4, **settings):
    """The card of a planted judge as `audit.json` has it."""
    reads, pairs, generated = planted.tables(judge, passages, each)
    agreed = qa.agreement(generated).to_dicts()
    found = card(reads, pairs, generated, agreed, AuditConfig(**settings))
    about = {
        "judge": {"name": "tiny-judge", "identity": JUDGE},
        "made": {"date": "2026-03-02", "tokens": {"prompt": 7}},
    }
    return json.loads(json.dumps(replace(found, **about).as_json(), allow_nan=False))


@pytest.fixture(scope="module")
def coin():
    return of(replace(planted.COIN, unreadable=0.1, answers=0.5, shifts=(("swap_injected", 6.0),)))


@pytest.fixture(scope="module")
def coins_page(coin):
    return audit_page(coin)


def measured():
    """What attention came to for two items of two passages, in every task that is compared."""
    rng, parts = np.random.default_rng(0), []
    segments = ("sink", "instruction", "context", "context", "question", "candidate", "template")
    for task in sorted({task for pair in attention.COMPARISONS.values() for task in pair}):
        for item in ("i1", "i2"):
            prompt = attention.SegmentedPrompt(task, item, f"p-{item}", tuple(range(len(segments))), segments)
            parts.append(attention.masses(prompt, rng.dirichlet(np.ones(len(segments)), size=2)))
    return attention.described(attention.all_masses(parts))


def trained():
    """A LoRA experiment of two arms over three passages."""
    answers, reads = [], []
    for arm, right in (("base", (True, True, False)), ("generation", (True, False, False))):
        for passage, correct in enumerate(right):
            keys = {"arm": arm, "seed": 0, "item_id": f"i{passage}", "passage_id": f"p{passage}", "benchmark": "own"}
            answers.append(keys | {"status": "ok", "output": "x", "cut": False, "correct": correct})
            for name, truth in (("own", correct), ("gold", True), ("swap", False)):
                told = {"candidate": name, "truth": truth, "protocol": "v", "status": "ok", "label_mass": 0.9}
                reads.append(keys | told | {"p_accept": 0.9 if arm == "generation" else 0.4})
    matrix = transfer_matrix(pl.DataFrame(answers, schema=ANSWERS), pl.DataFrame(reads, schema=READS))
    training = {"arm": "generation", "seed": 0, "examples": 8, "updates": 4, "first_loss": 2.5, "last_loss": 0.5}
    about = {"trainings": [training | {"trainable": 1000}], "cautions": ["one seed only"], "made": {}}
    return {"matrix": matrix.to_dicts(), "claims": claims_of(matrix)} | about


@pytest.fixture(scope="module")
def full(coin):
    """A card with everything that may be measured."""
    return coin | {"attention": measured(), "lora": trained()}


@pytest.fixture(scope="module")
def full_page(full):
    return audit_page(full)


class Tables(HTMLParser):
    """Reads a page into its tables, and notes what is not closed, captioned or scoped, or would be loaded."""

    VOID = ("meta", "br", "img", "link", "input")

    def __init__(self, html):
        super().__init__()
        self.rows, self.open, self.wrong, self.tables, self.captions = [], [], [], 0, 0
        self.scripts = []
        self.feed(html)
        self.close()
        self.wrong += ["a script"] * (self.scripts != [str(rendering.script("theme.js"))])

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.wrong += [f"{tag} loads {name}" for name in ("src", "href", "data", "xlink:href") if name in given]
        self.wrong += [f"{tag} runs {name}" for name in given if name.startswith("on")]
        if tag in ("img", "link", "iframe", "object", "form"):
            self.wrong.append(f"a {tag}")
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "th" and given.get("scope") not in ("col", "row"):
            self.wrong.append("a th without scope")
        self.tables += tag == "table"
        self.captions += tag == "caption"
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> closes another")

    def handle_data(self, data):
        if self.open and self.open[-1] in ("th", "td"):
            self.rows[-1][-1] += data
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)


def ranged(row):
    """`value [low, high]` as the card says it, written a second time."""
    if row["value"] is None:
        return "–"
    ends = "" if row["low"] is None else f" [{row['low']:.3f}, {row['high']:.3f}]"
    return f"{row['value']:.3f}{ends}"


# --- the page --------------------------------------------------------------------------------


def test_no_figure_of_a_real_card_is_without_a_place_on_the_page(coin):
    assert {row["figure"] for row in coin["figures"] if row["set"] == "probe"}, "the planted card has probes"
    assert audit_tables.further(coin) == []


def test_each_figure_stands_in_one_row_with_its_own_interval_counts_and_reasons(coin, coins_page):
    rows = Tables(coins_page).rows
    shown = {("own", "auc", None): "AUC of the log-odds", ("controlled", "paired_accuracy", None): "items whose right"}
    shown |= {("own", "always_yes_accuracy", None): "a judge that always says yes"}
    shown |= {("probe", "accept_shift", "probe=swap_injected"): "swap_injected"}
    shown |= {("controlled", "false_accept", "negative=sibling"): "sibling"}
    shown |= {("reading", "unreadable", "reason=low_mass"): "low_mass"}
    shown |= {("withheld", "decision_changed", "candidate=own"): "own"}
    for key, begins in shown.items():
        row = next(r for r in coin["figures"] if (r["set"], r["figure"], r["group"]) == key)
        hits = str(row["cases"]) if row["hits"] is None else f"{row['hits']:g} / {row['cases']}"
        reasons = ", ".join(f"{reason} {n}" for reason, n in row["excluded_by"].items())
        cells = [ranged(row), hits, str(row["clusters"]), f"{row['excluded']}: {reasons}" if reasons else "0"]
        fits = [cell for cell in rows if cell and cell[0].startswith(begins) and cell[-5:-1] == cells]
        assert fits, (key, cells)


def test_a_figure_that_nobody_foresaw_is_shown_and_not_dropped(coin):
    new = dict(coin["figures"][0], set="later", figure="patience", group="mood=calm", value=0.1234)
    rows = Tables(audit_page(coin | {"figures": [*coin["figures"], new]})).rows
    assert any(row[:3] == ["patience", "later", "mood=calm"] and row[3].startswith("0.123") for row in rows)


@pytest.mark.parametrize("name", ["attention", "lora"])
def test_what_was_not_measured_is_said_and_what_was_is_shown(coins_page, full_page, name):
    missing = {"attention": "Attention was not measured.", "lora": "No adapters were trained."}[name]
    assert missing in coins_page
    assert missing not in full_page


def test_attention_has_every_segment_of_every_task_and_both_controls_beside_the_raw_ratio(full, full_page):
    found, rows = full["attention"], Tables(full_page).rows
    for entry in found["table"]:
        cell = f"{entry['mass']:.3f} [{entry['low']:.3f}, {entry['high']:.3f}]"
        assert any(row[:3] == [entry["task"], entry["segment"], cell] for row in rows)
    ratios = [row for row in rows if len(row) == 8 and row[1] in ("mass", "without_sink")]
    assert [row[0] for row in ratios if row[1] == "mass"] == [
        *("as they come", "equally long text after the passage", "passage last in both")
    ]
    assert "Attention describes a model and proves nothing" in full_page
    assert "proves nothing" in audit_text(full)


def test_the_transfer_matrix_shows_each_arm_with_its_difference_to_the_base(full, full_page):
    found, rows = full["lora"], Tables(full_page).rows
    wanted = next(r for r in found["matrix"] if (r["arm"], r["measure"]) == ("generation", "false_accept"))
    cells = next(row for row in rows if row[:3] == ["false_accept", "all", "generation"])
    assert cells[3:5] == [ranged(wanted), "3 / 3"]
    assert cells[6].startswith(f"{wanted['difference']:.3f} [")
    assert any(row[1:3] == [found["claims"][0]["verdict"], "false_accept"] for row in rows)


def test_nothing_in_a_card_becomes_markup_or_is_loaded(full):
    bad = deepcopy(full) | {"cautions": [HOSTILE]}
    bad["judge"] = {"name": HOSTILE, "identity": JUDGE | {"model": HOSTILE, "notes": [HOSTILE]}}
    bad["benchmarks"], bad["made"] = {HOSTILE: 64}, {"date": HOSTILE, HOSTILE: {"a": HOSTILE}}
    bad["oracle"]["primary"] = bad["oracle"]["agreement"][0]["first"] = HOSTILE
    bad["gates"][0] |= {"gate": HOSTILE, "text": HOSTILE, "status": HOSTILE}
    bad["attention"]["table"][0]["task"] = bad["lora"]["matrix"][0]["arm"] = bad["lora"]["cautions"][0] = HOSTILE
    for row in bad["figures"]:
        row["excluded_by"] = {HOSTILE: 1}
    bad["figures"].append(dict(bad["figures"][0], set=HOSTILE, figure=HOSTILE, group=f"benchmark={HOSTILE}"))
    html = audit_page(bad)
    assert Tables(html).wrong == []
    assert "49" not in re.findall(r"alert\(&#39;x&#39;\)[^{]*", html)[0]
    assert not re.search(r"@import|url\((?!#)", html)
    assert set(re.findall(r"https?://[^\s\"'<]+", html)) <= {
        *("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink")
    }


def test_every_table_has_a_caption_every_head_a_scope_and_every_tag_its_end(full_page):
    read = Tables(full_page)
    assert read.wrong == []
    assert read.open == []
    assert read.tables == read.captions > 20


def test_the_worst_gate_is_read_first_and_the_verdict_before_all_numbers(coin):
    mixed = deepcopy(coin) | {"verdict": "BLOCK"}
    for gate, status in zip(mixed["gates"], ("PASS", "WARN", "INCONCLUSIVE", "BLOCK", "PASS"), strict=True):
        gate |= {"status": status}
    html, text = audit_page(mixed), audit_text(mixed)
    assert html.index(">BLOCK<") < html.index("What the gate says") < html.index("<table")
    assert text.index("BLOCK") < text.index("Gates")
    lists = (
        html[html.index("What the gate says") : html.index("What was found")],
        text.split("Gates\n")[1].split("\n\n")[0],
    )
    for shown in (*lists, "".join(line + "\n" for line in audited.audited("x", mixed, JUDGE).lines[1:])):
        order = re.findall(r"(?:<strong[^>]*>|^ *)(BLOCK|INCONCLUSIVE|WARN|PASS)\b", shown, re.MULTILINE)
        assert order == ["BLOCK", "INCONCLUSIVE", "WARN", "PASS", "PASS"]
    assert all(gate["text"] in html for gate in coin["gates"])


@pytest.mark.parametrize("lacks", ["figures", "gates", "both"])
def test_a_card_without_figures_or_gates_still_has_a_page_and_claims_nothing(coin, lacks):
    empty = coin | {name: [] for name in ("figures", "gates") if lacks in (name, "both")}
    html, text = audit_page(empty), audit_text(empty)
    assert Tables(html).wrong == []
    assert coin["verdict"] in text
    if lacks != "gates":
        assert all("cannot be said" in sentence for sentence in findings(empty))
        assert "nothing to report: none of these figures is in the card" in html


def test_a_figure_without_an_interval_is_drawn_and_told_without_one():
    found = of(planted.PERFECT, passages=1, each=24)
    assert any(row["value"] is not None and row["low"] is None for row in found["figures"])
    html = audit_page(found)
    assert "None" not in html
    assert not re.search(r"\bnan\b", html, re.IGNORECASE)
    assert "of one passage only, so without an interval" in html
    assert html.count("<svg") == 1


def test_the_chart_has_every_gate_with_both_thresholds(coin, coins_page):
    html = coins_page
    drawn = html[html.index("<svg") : html.index("</svg>")]
    marks = re.findall(r'aria-label="at: ([\d.]+); name: (\w+); threshold: (warns|blocks) at"', drawn)
    said = {
        (gate["gate"], word, gate[end])
        for gate in coin["gates"]
        for end, word in (("warn", "warns"), ("block", "blocks"))
    }
    assert {(name, word, float(at)) for at, name, word in marks} == said
    assert "wrong answers accepted" in drawn


# --- what was found --------------------------------------------------------------------------


def changed(found, of_set, figure, **values):
    """The card with one figure's numbers replaced."""
    rows = [
        row | values if (row["set"], row["figure"], row["group"]) == (of_set, figure, None) else row
        for row in deepcopy(found["figures"])
    ]
    return found | {"figures": rows}


ENOUGH = {"caution": "", "conclusive": True}


@pytest.mark.parametrize(
    ("which", "low", "high", "begins"),
    [
        (("own", "difference", 0), 0.01, 0.2, "It answers better than it judges:"),
        (("own", "difference", 0), -0.2, -0.01, "It judges better than it answers:"),
        (("own", "difference", 0), -0.1, 0.2, "It is not shown to judge better than it answers"),
        (("own", "difference", 0), -0.2, 0.1, "It is not shown to judge better than it answers"),
        (("controlled", "acquiescence", 1), 0.01, 0.2, "It accepts too easily:"),
        (("controlled", "acquiescence", 1), -0.2, -0.01, "It rejects too easily:"),
        (("controlled", "acquiescence", 1), -0.2, 0.2, "It is not shown to accept too easily"),
        (("withheld", "auc_lost", 2), 0.01, 0.2, "It uses the passage:"),
        (("withheld", "auc_lost", 2), -0.01, 0.2, "It is not shown to use the passage:"),
        (("withheld", "accept_without_candidate", 2), 0.51, 0.9, "It may not look at the answer:"),
        (("withheld", "accept_without_candidate", 2), 0.1, 0.49, "It mostly rejects where there is no answer:"),
        (("withheld", "accept_without_candidate", 2), 0.4, 0.7, "It is not shown to look at the answer:"),
        (("withheld", "accept_without_candidate", 2), 0.3, 0.6, "It is not shown to look at the answer:"),
    ],
)
def test_a_sentence_claims_a_direction_only_where_the_whole_interval_has_it(coin, which, low, high, begins):
    of_set, figure, place = which
    told = findings(changed(coin, of_set, figure, value=(low + high) / 2, low=low, high=high, **ENOUGH))
    assert begins in told[place]


def test_too_few_wrong_answers_give_no_sentence_on_judging_and_mark_the_figures():
    found = of(replace(planted.COIN, answers=0.95))
    told = findings(found)[0]
    assert told == "Whether it judges better than it answers cannot be said: too few wrong answers."
    line = next(line for line in audit_text(found).splitlines() if line.lstrip().startswith("answers − verdicts"))
    assert line.endswith("too few wrong answers: inconclusive")


def test_a_question_whose_every_answer_was_unreadable_is_not_said_to_be_unasked(coin):
    lost = {"value": None, "low": None, "high": None, "cases": 0, "excluded": 64, "excluded_by": {"low_mass": 64}}
    blind = changed(coin, "withheld", "accept_without_candidate", **lost, caution="no_cases", conclusive=False)
    assert findings(blind)[2].endswith("cannot be said: no cases (left out 64: low_mass 64).")


def test_sentences_carry_the_numbers_of_the_card_and_the_trivial_judges(coin):
    numbers = {(r["set"], r["figure"]): r for r in coin["figures"] if r["group"] is None}
    first, second, _ = findings(coin)
    for name in ("generation_accuracy", "self_evaluation_accuracy", "always_yes_accuracy", "always_no_accuracy"):
        assert f"{100 * numbers['own', name]['value']:.1f} %" in first
    assert ranged(numbers["own", "difference"]) in first
    for name in ("false_accept", "false_reject"):
        assert f"{100 * numbers['controlled', name]['value']:.1f} %" in second


# --- the text --------------------------------------------------------------------------------


def test_the_text_fits_a_terminal_and_its_columns_stand_under_each_other(coin, full):
    lines = audit_text(full).splitlines()
    assert len(lines) <= 75
    assert len(audit_text(coin).splitlines()) <= 64
    start = next(i for i, line in enumerate(lines) if line.startswith("Main figures")) + 1
    table = lines[start : lines.index("", start)]
    assert len(table) > 25
    columns = [match.start() for match in re.finditer("-+", table[1])]
    for line in table[2:]:
        assert all(line[at - 1] == " " and line[at : at + 1] != " " for at in columns[1:3]), line


def test_what_was_never_asked_is_not_a_row_of_zeros_in_the_text():
    reads, pairs, generated = planted.tables(planted.COIN)
    alone = card(reads.filter(condition="full"), pairs.clear(), generated, [], AuditConfig())
    text = audit_text(alone.as_json())
    assert "same winner in both orders" not in text.split("Main figures")[1]
    assert "not measured" in text


# --- attached to a leaderboard ---------------------------------------------------------------

ONE = {"judges": world.JUDGES[:1], "scales": world.SCALES[:1], "comparisons": world.COMPARISONS[:1], "questions": 2}


@pytest.fixture(scope="module")
def plain():
    return world.inputs(manifest={"judges": {"mine": JUDGE}}, **ONE)


def shown(inputs):
    """The two forms of a report, text with its lines joined."""
    return re.sub(r"\s+", " ", tables.terminal(inputs)), page.page(inputs, {})


def test_a_judge_without_a_card_is_said_not_to_be_audited(plain):
    for text in shown(plain):
        assert "not audited" in text
        assert "PASS" not in text.split("</style>")[-1]
    both = replace(plain, audits={"mine": None, "another": {"verdict": "PASS"}})
    assert all("not audited" in text for text in shown(both)), "the card of another judge is none of this one"


def test_a_card_of_this_judge_shows_verdict_gates_and_figures_without_a_warning(plain, coin):
    for text in shown(replace(plain, audits={"mine": coin})):
        assert "another judge" not in text
        assert "not audited" not in text
        numbers = {(r["set"], r["figure"]): r for r in coin["figures"] if r["group"] is None}
        for name, words in (("auc", "AUC"), ("acquiescence", "acquiescence")):
            assert f"{words} {ranged(numbers['controlled', name])}" in text
        assert "64 items over 16 passages (even 32, odd 32), 2026-03-02" in text
        for gate in coin["gates"]:
            assert f"{gate['status']} {gate['gate']}: {gate['text']}" in text


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"revision": "r2"}, "revision r1 in the card, r2 in this run"),
        ({"model": "big"}, "model tiny in the card, big in this run"),
        (
            {"precision": {"dtype": "float16"}},
            "precision.dtype bfloat16 in the card, float16 in this run",
        ),
        (
            {"precision": {"dtype": "bfloat16", "quantization": "fp8"}},
            "precision.quantization not known in the card, fp8 in this run",
        ),
        (
            {"script": {"quality": dict.fromkeys("abcdef", 0.5)}},
            ", ".join(f"script.quality.{m} not known in the card, 0.5 in this run" for m in "abcd") + ", and 2 more",
        ),
        ({"endpoint": "https://x"}, "endpoint not known in the card, https://x in this run"),
        ({"templates": {"p": "other"}, "notes": [], "max_model_len": 9}, None),
    ],
)
def test_a_card_of_other_weights_or_precision_is_not_taken_for_this_judge(plain, coin, changes, told):
    inputs = replace(plain, manifest={"judges": {"mine": JUDGE | changes}}, audits={"mine": coin})
    (found,) = audited.audits(inputs)
    if told is None:
        assert found.warnings == []
        assert "another judge" not in audited.audits_text(inputs)
    else:
        assert found.warnings == [f"the card is of another judge: {told}"]
        assert f"  ! the card is of another judge: {told[:8]}" in audited.audits_text(inputs)


def test_a_doubt_about_whose_card_it_is_stands_on_both_forms_of_the_report(plain, coin):
    text, html = shown(replace(plain, manifest={}, audits={"mine": coin}))
    doubt = "the run does not say which model, revision and precision judged; the card is of tiny-judge"
    assert f"! {doubt}" in text
    assert f"<li>{doubt}</li>" in html
    assert "the card may be of another judge" in html


def test_an_attached_card_cannot_put_markup_into_the_report(plain, coin):
    bad = deepcopy(coin)
    bad["gates"][0] |= {"gate": HOSTILE, "text": HOSTILE}
    bad["judge"], bad["made"], bad["benchmarks"] = {"name": HOSTILE}, {"date": HOSTILE}, {HOSTILE: 1}
    html = page.page(replace(plain, audits={"mine": bad}), {})
    assert HOSTILE not in html
    assert "<script>alert" not in html
    assert "<img" not in html
    assert "alert(&#39;x&#39;)" in html


def test_a_run_folder_shows_the_card_that_lies_in_it(tmp_path, coin):
    side = Side("x", world.judgments(**ONE), world.responses(), world.PROTOCOLS)
    folder = write_run(tmp_path / "run", side)
    assert "mine: not audited" in tables.terminal(runs.report_inputs(folder))
    folder.write_json("audits.json", {"mine": coin})
    assert f"mine: {coin['verdict']}" in tables.terminal(runs.report_inputs(folder))


# --- reading a card --------------------------------------------------------------------------


def test_a_card_is_found_by_its_file_by_its_folder_and_in_a_store(tmp_path, coin):
    written = json.dumps(coin).encode()
    (tmp_path / "audit.json").write_bytes(written)
    fs, inner = filesystem("memory://audits/one")
    fs.pipe_file(f"{inner}/audit.json", written)
    for path in (str(tmp_path), f"{tmp_path}/", f"{tmp_path}/audit.json", "memory://audits/one"):
        assert read_card(path, {}) == coin


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"verdict": NaN}', "NaN is no number in JSON"),
        (b"[1]", "a list, not an object"),
        (b'{"metrics": []}', "no 'gates', 'figures'"),
        ({"verdict": "FINE"}, "verdict 'FINE', not one of ['PASS', 'WARN', 'BLOCK', 'INCONCLUSIVE']"),
        ({"gates": {}}, "'gates' is a dict"),
        ({"gates": [{"gate": "auc"}]}, "gates[0]: no 'status'"),
        ({"figures": [7]}, "figures[0]: a int, not an object"),
    ],
)
def test_what_is_no_card_is_refused_with_its_place_and_fault(tmp_path, coin, content, told):
    path = tmp_path / "audit.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(coin | content).encode())
    with pytest.raises(CardError, match=re.escape(told)) as caught:
        read_card(str(path), {})
    assert str(caught.value).startswith(f"judge.audit: {path}: ")
    assert "trustjudge audit wrote" in str(caught.value)


def test_a_figure_of_the_wrong_type_is_refused_before_a_report_breaks_on_it(tmp_path, coin):
    wrong = deepcopy(coin)
    wrong["figures"][2]["value"] = "0.5"
    (tmp_path / "audit.json").write_text(json.dumps(wrong))
    with pytest.raises(CardError, match=r"figures\[2\]: 'value' is a str"):
        read_card(str(tmp_path), {})


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_a_card_that_is_not_there_is_one_message_that_names_the_path(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(CardError, match=f"judge.audit: {tmp_path}/{name}.*no such file"):
        read_card(str(tmp_path / name), {})
