"""The files of the browser of judgments: nothing is lost, misplaced or left behind, and nothing in them is code."""

import itertools
import json
import math
import re
from dataclasses import replace
from urllib.parse import parse_qs

import numpy as np
import polars as pl
import pytest
import reported_runs as world
from comparisons import game, score, table
from run_folders import write_run

from trustjudge_ray import browsing, runs
from trustjudge_ray.analysis.pairing import Side
from trustjudge_ray.analysis.scoring import scores
from trustjudge_ray.analysis.tolerances import parse_tolerances
from trustjudge_ray.analysis.verdicts import verdicts
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.judging import protocols
from trustjudge_ray.manifest import forget
from trustjudge_ray.report import browse, browse_rows
from trustjudge_ray.report.cells import Inputs
from trustjudge_ray.schema import PLACED_RESPONSES
from trustjudge_ray.store import RunFolder

SCALES, COMPARISONS = ("score-5", "score-100"), ("compare",)
NOTHING = pl.DataFrame(schema=dict(pl.Schema(PLACED_RESPONSES)))
HOSTILE = "</script><script>pwned=1</script><!-- & ]]> \u2028\u2029 \"'` ${7*7} {{7*7}}"


def inputs_of(said, known, settings=None):
    """These judgments with their SCORES and VERDICTS, as a report has them."""
    settings = settings or AnalysisConfig(tolerances=[0, 0.1])
    made = {"scores": scores(said, known), "verdicts": verdicts(said, parse_tolerances(settings.tolerances))}
    return Inputs("t", said, **made, metrics=NOTHING, ratings=NOTHING, protocols=known, settings=settings)


def read(files):
    """The data in the files, by name without folder and ending."""
    found = {}
    for name, content in files:
        called = re.fullmatch(r'trustjudge\("([a-z]+(?:-[0-9]{4})?)", (.*)\);\n', content.decode(), re.DOTALL)
        assert name == f"browse/{called[1]}.js"
        found[called[1]] = json.loads(called[2])
    return found


def of_kind(data, kind):
    return [data[name] for name in sorted(data) if name.startswith(kind)]


def rows_of(columns):
    """Columns as rows; those that hold nothing are left out of a file."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.fixture(scope="module")
def run():
    said = world.judgments(judges=world.JUDGES[:2], questions=30, scales=SCALES, comparisons=COMPARISONS)
    failed = pl.int_range(pl.len()) % 50 == 0
    said = said.with_columns(
        label_logprobs=pl.when(failed).then(None).otherwise("label_logprobs"),
        emitted=pl.when(failed).then(None).otherwise("emitted"),
        status=pl.when(failed).then(pl.lit("engine_error")).otherwise("status"),
        detail=pl.when(failed).then(pl.lit("the engine said: <no>")),
        rationale=pl.lit("because"),
        label_mass=pl.lit(0.5),
    )
    return inputs_of(said, {name: world.PROTOCOLS[name] for name in (*SCALES, *COMPARISONS)})


@pytest.fixture(scope="module")
def data(run):
    """The files of that run, smaller ones than usual so that there are several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(browse_rows, "GROUP_BYTES", 60_000)
        patch.setattr(browse_rows, "CHUNK_ROWS", 300)
        return read(browse.files(run, world.responses(30), "runs/x"))


# --- everything is there, once ---------------------------------------------------------------


def test_every_judgment_is_in_one_group_with_its_own_probabilities_status_and_texts(run, data):
    start, found = data["start"], {}
    for group in of_kind(data, "group"):
        for question in group["questions"]:
            for row in rows_of(question["judgments"]):
                assert row["t"] not in found
                found[row["t"]] = row | {"question": question}
    assert set(found) == set(run.judgments["task_id"])
    for judgment in run.judgments.to_dicts():
        row = found[judgment["task_id"]]
        answers = row["question"]["answers"]
        assert row["question"]["id"] == judgment["question_id"]
        assert start["lanes"][row["l"]] == [judgment["judge"], judgment["protocol"]]
        assert answers[row["a"]]["id"] == judgment["response_a"]
        assert answers[row["a"]]["replies"] == [f"{judgment['model_a']}{judgment['question_id'][1:]}"]
        assert (None if row["b"] is None else answers[row["b"]]["id"]) == judgment["response_b"]
        assert {0: "AB", 1: "BA", None: None}[row["o"]] == judgment["order"]
        assert start["statuses"][row["s"]] == judgment["status"]
        assert (row["said"], row["rationale"], row.get("detail")) == (
            judgment["emitted"],
            "because",
            judgment["detail"],
        )
        logs = judgment["label_logprobs"]
        assert row["p"] == (None if logs is None else [round(1e6 * math.exp(p)) for p in logs])
        assert row["w"] == 500_000


def test_the_index_has_the_same_judgments_in_the_same_order_as_the_groups(run, data):
    start, listed, grouped = data["start"], [], []
    for group in of_kind(data, "group"):
        for q in group["questions"]:
            grouped += [(q["id"], q["answers"], r) for r in rows_of(q["judgments"])]
    for part in of_kind(data, "index"):
        row, first = 0, 0
        columns = {name: part[name] for name in "abloseg"}
        for question, count, answers in zip(part["questions"], part["rows"], part["answers"], strict=True):
            models = part["models"][first : first + answers]
            for i in range(row, row + count):
                listed.append((question, models, {name: values[i] for name, values in columns.items()}))
            row, first = row + count, first + answers
        assert row == len(part["l"])
        assert first == len(part["ids"])
    assert len(listed) == len(grouped) == run.judgments.height
    for (question, models, mine), (other, answers, row) in zip(listed, grouped, strict=True):
        assert question == other
        assert [start["models"][m] for m in models] == [a["model"] for a in answers]
        assert {name: mine[name] for name in "ablos"} == {name: row[name] for name in "ablos"}
        protocol = start["protocols"][start["lanes"][mine["l"]][1]]
        assert (None if mine["e"] is None else protocol["labels"][mine["e"]]) == row["said"]
        if row["p"] is None:
            assert mine["g"] is None
        else:
            first, second = sorted(row["p"])[-1:-3:-1]
            assert mine["g"] == pytest.approx(1e6 * (first - second) / sum(row["p"]), abs=50)


def test_scores_and_verdicts_of_a_question_are_those_of_the_tables(run, data):
    start, scored, compared = data["start"], 0, 0
    for group in of_kind(data, "group"):
        for question in group["questions"]:
            ids = [answer["id"] for answer in question["answers"]]
            for row in rows_of(question["scores"]):
                judge, protocol = start["lanes"][row["l"]]
                same = {"judge": judge, "protocol": protocol, "question_id": question["id"]}
                for one in run.scores.filter(response_id=ids[row["a"]], **same).to_dicts():
                    told = row[one["rule"]]
                    assert told == one["status"] if one["score"] is None else float(told) == round(one["score"], 4)
                    scored += 1
            for row in rows_of(question["verdicts"]):
                judge, protocol = start["lanes"][row["l"]]
                same = {"judge": judge, "protocol": protocol, "question_id": question["id"]}
                same |= {"response_a": ids[row["a"]], "response_b": ids[row["b"]]}
                for one in run.verdicts.filter(tolerance=0, **same).to_dicts():
                    assert row[one["rule"]] == (one["status"] if one["outcome"] is None else str(one["outcome"]))
                    assert row["p"] == (
                        None if one["p_a"] is None else [round(1e6 * one[f"p_{x}"]) for x in ("a", "b", "tie")]
                    )
                    compared += 1
    assert (scored, compared) == (run.scores.height, run.verdicts.filter(tolerance=0).height)


def test_a_question_is_found_in_the_file_that_the_page_looks_into(data):
    known = data["questions"]
    assert known["ids"] == sorted({f"q{i}" for i in range(30)})
    for kind in ("group", "index"):
        parts = of_kind(data, kind)
        starts = known["groups" if kind == "group" else "index"]
        assert len(parts) == len(starts) > 2
        for part, first in zip(parts, starts, strict=True):
            ids = [q["id"] for q in part["questions"]] if kind == "group" else part["questions"]
            assert ids == known["ids"][first : first + len(ids)]


@pytest.mark.parametrize("seed", range(20))
def test_files_are_cut_between_questions_and_are_no_larger_than_meant_unless_one_question_is(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 40, size=rng.integers(1, 60))
    found = browse_rows.cuts(sizes, 50)
    assert (found[0], found[-1]) == (0, len(sizes))
    for start, stop in itertools.pairwise(found):
        assert start < stop
        assert sizes[start:stop].sum() <= 50 or stop == start + 1
        assert stop == len(sizes) or sizes[start : stop + 1].sum() > 50


def test_ids_that_are_numbers_are_in_the_order_of_numbers():
    rows = [score(str(q), str(r), np.eye(5)[0]) for q in (10, 9, 100) for r in (11, 2)]
    data = read(browse.files(inputs_of(table(rows), {"score": world.PROTOCOLS["score-5"]}), NOTHING, "r"))
    assert data["questions"]["ids"] == ["9", "10", "100"]
    assert [a["id"] for a in data["group-0000"]["questions"][0]["answers"]] == ["2", "11"]


# --- more than the page can hold -------------------------------------------------------------


def test_of_a_run_over_the_limit_the_questions_with_contradictions_come_first_and_the_page_says_what_is_left_out(run):
    worst = browse.contradictions(run, NOTHING)
    each = run.judgments.filter(question_id="q0").height
    chosen = browse.questions_within(run.judgments, worst, 3 * each + 1)
    first = [ids[0] for lane in worst if (ids := lane.rows["question_id"].to_list())]
    assert len(chosen) == 3
    assert chosen == list(dict.fromkeys(first))[:3]
    data = read(browse.files(run, world.responses(30), "runs/x", limit=3 * each + 1))
    assert (data["start"]["shown"], data["start"]["total"]) == (3 * each, run.judgments.height)
    assert any(
        f"{3 * each} of the run's" in note and "3 of its 30 questions" in note for note in data["start"]["notes"]
    )
    assert data["questions"]["ids"] == sorted(chosen)
    assert [lane["total"] for lane in data["start"]["worst"]] == [lane.total for lane in worst], (
        "counts are of the whole"
    )
    assert browse.questions_within(run.judgments, worst, run.judgments.height) == sorted({f"q{i}" for i in range(30)})


def test_a_question_that_is_larger_than_what_is_left_does_not_keep_out_the_smaller_ones_after_it():
    rows = [score(q, f"m{i}", np.eye(5)[0]) for q, n in (("a", 3), ("b", 9), ("c", 2)) for i in range(n)]
    assert browse.questions_within(table(rows), [], 6) == ["a", "c"]


# --- nothing is code -------------------------------------------------------------------------


def test_no_text_can_end_its_script_or_begin_markup():
    rows = [score(HOSTILE, HOSTILE, np.eye(5)[0], judge=HOSTILE, rationale=HOSTILE, detail=HOSTILE, category=HOSTILE)]
    rows += [game(HOSTILE, *pair, "tie", judge=HOSTILE, emitted="a") for pair in ((HOSTILE, "x"), ("x", HOSTILE))]
    known = {"score": world.PROTOCOLS["score-5"], "compare": world.PROTOCOLS["compare"]}
    texts = world.responses(1).head(1).with_columns(
        question_id=pl.lit(HOSTILE), response_id=pl.lit(HOSTILE), replies=pl.lit([HOSTILE])
    )  # fmt: skip
    inputs = replace(inputs_of(table(rows), known), title=HOSTILE)
    made = list(browse.files(inputs, texts, HOSTILE))
    assert not [name for name, content in made if re.search("[<>&\u2028\u2029]", content.decode())]
    data = read(made)
    assert data["start"]["title"] == data["start"]["judges"][0] == data["questions"]["ids"][0] == HOSTILE
    question = data["group-0000"]["questions"][0]
    assert question["answers"][0]["replies"] == question["judgments"]["rationale"][:1] == [HOSTILE]
    page = browse.page(HOSTILE)
    assert HOSTILE not in page
    assert page.count("<script>") == page.count("</script>") == 4


def test_a_link_comes_back_as_it_was_made_whatever_the_ids_hold():
    made = browse.link(pair=HOSTILE, a="x&b=y", b="50 %+")
    assert made.startswith("judgments.html#")
    assert not re.search(r"[<>\s]", made)
    assert parse_qs(made.split("#")[1]) == {"pair": [HOSTILE], "a": ["x&b=y"], "b": ["50 %+"]}


# --- runs that lack something ----------------------------------------------------------------


def test_imported_judgments_without_texts_or_probabilities_are_shown_and_the_lack_is_said():
    rows = [score("q", m, np.eye(5)[i], label_logprobs=None) for i, m in enumerate("xy")]
    rows += [game("q", *pair, "tie", emitted="a", label_logprobs=None) for pair in (("x", "y"), ("y", "x"))]
    known = {"score": world.PROTOCOLS["score-5"], "compare": world.PROTOCOLS["compare"]}
    data = read(browse.files(inputs_of(table(rows), known), NOTHING, "r"))
    question = data["group-0000"]["questions"][0]
    assert [(a["id"], a.get("replies")) for a in question["answers"]] == [("x", None), ("y", None)]
    assert question["messages"] is None
    assert "p" not in question["judgments"]
    assert question["judgments"]["said"] == ["1", "2", "a", "a"]
    assert any("no texts of questions and answers" in note for note in data["start"]["notes"])
    assert [lane["total"] for lane in data["start"]["worst"]] == [1, 0, 0]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "There is no judgment"),
        ([score("q", "x", np.eye(5)[0])], "No comparisons were asked for"),
        ([game("q", "x", "y", "first", emitted="a")], "No scores were asked for"),
    ],
)
def test_a_run_of_one_kind_or_of_nothing_says_what_is_not_there(rows, said):
    known = {"score": world.PROTOCOLS["score-5"], "compare": world.PROTOCOLS["compare"]}
    data = read(browse.files(inputs_of(table(rows), known), NOTHING, "r"))
    assert any(said in note for note in data["start"]["notes"])
    assert data["start"]["total"] == len(rows) == sum(len(part["l"]) for part in of_kind(data, "index"))


def test_answers_and_verifications_of_an_audit_are_shown_with_what_was_said():
    known = {name: protocols.load(name) for name in ("answer", "verify-correct-incorrect")}
    written = {"kind": "answer", "protocol": "answer", "label_logprobs": None, "emitted": None, "output": "Paris"}
    verified = {"kind": "verify", "protocol": "verify-correct-incorrect", "emitted": "incorrect"}
    rows = [score("q", "judge", np.eye(5)[0], **written), score("q", "own", (0.25, 0.75), **verified)]
    labels = list(known["verify-correct-incorrect"].emitted_names)
    rows[1]["emitted"] = labels[1]
    data = read(browse.files(inputs_of(table(rows), known), NOTHING, "r"))
    question = data["group-0000"]["questions"][0]
    assert question["judgments"]["output"] == [None, "Paris"]
    assert question["judgments"]["p"] == [[250_000, 750_000], None]
    assert data["index-0000"]["e"] == [1, None]
    assert any("No scores and no comparisons" in note for note in data["start"]["notes"])


def test_what_is_no_number_is_null_and_not_a_file_that_cannot_be_read():
    rows = [score("q", m, np.eye(5)[0]) for m in "xyz"]
    rows[0]["label_logprobs"] = [math.nan, -1.0, math.inf, None, -math.inf]
    rows[0] |= {"status": "bad_logprob", "label_mass": math.nan}
    rows[1]["label_logprobs"] = [None] * 5
    data = read(browse.files(inputs_of(table(rows), {"score": world.PROTOCOLS["score-5"]}), NOTHING, "r"))
    judgments = data["group-0000"]["questions"][0]["judgments"]
    assert judgments["p"][0][0] is None
    assert judgments["p"][0][3:] == [None, 0]
    assert judgments["p"][1] == [None] * 5
    assert data["index-0000"]["g"][1] is None
    assert "w" not in judgments


# --- run folders -----------------------------------------------------------------------------


def small_side(questions=2):
    said = world.judgments(judges=("mine",), questions=questions, scales=("score-5",), comparisons=("compare",))
    return Side("s", said, world.responses(questions), {n: world.PROTOCOLS[n] for n in ("score-5", "compare")})


def test_a_report_leaves_no_file_of_an_earlier_browser_behind_and_a_new_start_removes_it(tmp_path):
    folder = write_run(tmp_path / "run", small_side())
    folder.write_bytes("browse/group-0007.js", b"old")
    folder.write_bytes("judgments.html", b"old")
    runs.report(folder)
    names = folder.names("browse")
    assert "browse/start.js" in names
    assert "browse/group-0007.js" not in names
    assert b"Content-Security-Policy" in folder.read_bytes("judgments.html")
    assert b'href="judgments.html' in folder.read_bytes("report.html")
    start = read([("browse/start.js", folder.read_bytes("browse/start.js"))])["start"]
    assert start["total"] == folder.judgments()[0].height
    assert start["run"] == str(tmp_path / "run")
    forget(folder)
    assert not folder.exists("judgments.html")
    assert folder.names("browse") == []


@pytest.mark.s3
def test_a_browser_on_s3_is_whole_and_replaces_the_one_before(s3, run, data):
    folder = RunFolder(f"s3://{s3.bucket}/browser/run", s3.options)
    folder.write_bytes("browse/group-0009.js", b"old")
    folder.write_table("responses/all.parquet", world.responses(30).to_arrow().cast(PLACED_RESPONSES))
    browsing.write(folder, run)
    found = read((name, folder.read_bytes(name)) for name in folder.names("browse"))
    assert "group-0009" not in found
    assert len(found["questions"]["ids"]) == len(data["questions"]["ids"])
    assert found["start"]["total"] == data["start"]["total"]
    assert folder.exists("judgments.html")
