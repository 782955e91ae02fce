"""Judgments to preference pairs: sides, order, reasons, cycles; run folders; the job with a planted preference."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from comparisons import game, score, table
from corpora import compare_protocol, protocol_files, score_protocol
from hypothesis import given, settings
from hypothesis import strategies as st

from trustjudge_ray import config, labelling_preferences, runs
from trustjudge_ray.cli import cli
from trustjudge_ray.config import AnalysisConfig, ConfigError
from trustjudge_ray.corpus.canary import META_JSON
from trustjudge_ray.corpus.duplicates import deduplicate
from trustjudge_ray.corpus.formats import parse_lines
from trustjudge_ray.identity import bucket_of
from trustjudge_ray.judging.base import RunError
from trustjudge_ray.preferences_config import PreferencesConfig
from trustjudge_ray.schema import PLACED_RESPONSES, QUARANTINE, TASKS, check, from_rows
from trustjudge_ray.storage import open_binary
from trustjudge_ray.store import PENDING_TASKS, RunFolder
from trustjudge_ray.training.preferences import PREFERENCES, Labeller, measured, preferences, with_cycles

PROTOCOLS = {"compare": compare_protocol(), "score": score_protocol()}
BY = Labeller("j", "compare", "score")


def answer(question, response, text, messages=(("user", "ask"),), said=None, human=None, model=None):
    """A RESPONSES row; `said` is what the source said of it."""
    meta = None if said is None else json.dumps({"preference": said})
    return {
        "question_id": str(question),
        "messages": [{"role": role, "content": content} for role, content in messages],
        "response_id": response,
        "model": model or response,
        "replies": [text] if isinstance(text, str) else text,
        "human_score": human,
        "meta_json": meta,
        "source": "test",
        "line": 1,
    }


def pair(question="q", chosen="good answer", rejected="bad", messages=(("user", "ask"),), **columns):
    """The responses of a pair as the formats give them."""
    texts = {"chosen": (chosen, 1.0), "rejected": (rejected, 0.0)}
    return [answer(question, side, text, messages, {"score": s}, **columns) for side, (text, s) in texts.items()]


def judged(p_ab, p_ba, question="q", a="chosen", b="rejected", **columns):
    """Both orders; probabilities of a better, b better, tie, whatever was shown first."""
    swapped = (p_ba[1], p_ba[0], p_ba[2])
    return [game(question, a, b, tuple(p_ab), **columns), game(question, b, a, swapped, **columns)]


def made(judgments, answers, filters=None, by=BY):
    responses = from_rows(answers, PLACED_RESPONSES)
    return preferences(table(judgments), responses, PROTOCOLS, by, filters or {}).to_pylist()


def one(*given, **options):
    [row] = made(*given, **options)
    return row


def test_p_is_the_mean_of_both_orders_renormalised_and_each_order_is_told_by_who_was_shown_first():
    row = one(judged((0.4, 0.1, 0.0), (0.3, 0.5, 0.2)), pair())
    assert row["p"] == pytest.approx((0.8 + 0.4) / 2)
    assert (row["p_ab"], row["p_ba"], row["p_tie"]) == (pytest.approx(0.8), pytest.approx(0.4), pytest.approx(0.1))
    assert row["margin"] == pytest.approx(2 * row["p"] - 1)
    assert row["label_mass"] == pytest.approx(0.5), "the order with less counts"
    assert row["both_orders_agree"] is False
    assert row["chosen"] == [{"role": "assistant", "content": "good answer"}]


def test_the_side_that_the_judge_prefers_is_chosen_whatever_the_source_said():
    row = one(judged((0.1, 0.8, 0.1), (0.3, 0.6, 0.1)), pair())
    assert row["chosen"] == [{"role": "assistant", "content": "bad"}]
    assert (row["label_original"], row["length_chosen"], row["length_rejected"]) == ("rejected", 3, 11)
    assert row["p"] == pytest.approx((0.85 + 0.65) / 2)
    assert row["p_ab"] == pytest.approx(0.65), "chosen, the source's rejected, was shown first in the order BA"
    assert row["p_ba"] == pytest.approx(0.85)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(0.01, 1), min_size=6, max_size=6))
def test_naming_the_responses_the_other_way_round_changes_no_row(p):
    ab, ba = p[:3], p[3:]
    turned = [(x[1], x[0], x[2]) for x in (ba, ab)]
    scaled = [[x / (sum(order) + 0.5) for x in order] for order in (ab, ba)]
    turned = [[x / (sum(order) + 0.5) for x in order] for order in turned]
    first = one(judged(*scaled, a="a", b="b"), [answer("q", "a", "left"), answer("q", "b", "right")])
    second = one(judged(*turned, a="a", b="b"), [answer("q", "a", "right"), answer("q", "b", "left")])
    if abs(first["margin"]) < 1e-6:
        return
    assert first.keys() == second.keys() == set(PREFERENCES.names)
    for name, value in first.items():
        if name not in ("pair_id", "model_chosen", "model_rejected"):
            assert second[name] == (pytest.approx(value) if isinstance(value, float) else value), name


def test_scores_and_entropies_stand_with_their_own_side():
    flat, sure = (0.2, 0.2, 0.2, 0.2, 0.2), (0.0, 1.0, 0.0, 0.0, 0.0)
    judgments = [*judged((0.1, 0.9, 0.0), (0.1, 0.9, 0.0)), score("q", "chosen", flat), score("q", "rejected", sure)]
    row = one(judgments, pair())
    assert (row["score_chosen"], row["score_rejected"]) == (2.0, pytest.approx(3.0))
    assert (row["entropy_chosen"], row["entropy_rejected"]) == (0.0, pytest.approx(math.log(5)))
    assert row["scores_agree"] is False
    without = one(judgments, pair(), by=Labeller("j", "compare", None))
    assert (without["score_chosen"], without["scores_agree"]) == (None, None)


def test_equal_scores_do_not_agree_with_a_preference():
    same = [score("q", side, (0.0, 0.0, 0.0, 1.0, 0.0)) for side in ("chosen", "rejected")]
    assert one([*judged((0.9, 0.1, 0), (0.9, 0.1, 0)), *same], pair())["scores_agree"] is False


def test_a_canary_wins_no_pair():
    answers = pair()
    answers[0]["meta_json"] = META_JSON
    assert one(judged((0.9, 0.1, 0), (0.9, 0.1, 0)), answers)["drop_reason"] == "canary"


def test_a_circle_through_a_canary_is_no_cycle_of_the_prompt():
    circle = [("x", "y"), ("y", "z"), ("z", "x")]
    answers = [row for q, texts in enumerate(circle) for row in pair(q, *texts)]
    answers[0]["meta_json"] = META_JSON
    judgments = [row for q in range(3) for row in judged((0.9, 0.1, 0), (0.9, 0.1, 0), q)]
    assert not any(row["cycle"] for row in made(judgments, answers))


@pytest.mark.parametrize(
    ("judgments", "reason"),
    [
        (judged((0, 0, 1), (0, 0, 1), status="identical"), "identical_sides"),
        (judged((0, 0, 1), (0, 0, 1), status="empty_response", label_logprobs=None), "empty_side"),
        (judged((0.9, 0.1, 0), (0.9, 0.1, 0))[:1], "missing_order"),
        ([game("q", "chosen", "rejected", "first"), game("q", "rejected", "chosen", "first", status="engine_error")],
         "engine_error"),
        (judged((0.4, 0.4, 0.2), (0.3, 0.3, 0.4)), "no_preference"),
        (judged((0, 0, 0), (0.9, 0.1, 0)), "no_label_mass"),
    ],
)  # fmt: skip
def test_a_pair_without_a_preference_is_dropped_by_name_and_keeps_the_sources_sides(judgments, reason):
    row = one(judgments, pair())
    assert (row["keep"], row["drop_reason"]) == (False, reason)
    assert row["chosen"][0]["content"] == "good answer"


def test_a_tie_that_is_the_likeliest_outcome_still_has_a_preferred_side_that_a_filter_can_drop():
    judgments = judged((0.3, 0.1, 0.6), (0.3, 0.1, 0.6))
    assert one(judgments, pair())["keep"]
    row = one(judgments, pair(), {"max_p_tie": 0.5})
    assert (row["drop_reason"], row["p_tie"]) == ("max_p_tie", pytest.approx(0.6))


def test_a_model_that_nobody_named_is_null_and_a_named_one_stands_with_its_answer():
    judgments = judged((0.1, 0.9, 0), (0.1, 0.9, 0))
    unnamed = one(judgments, pair())
    assert (unnamed["model_chosen"], unnamed["model_rejected"]) == (None, None)
    answers = pair()
    answers[1] |= {"model": "lama", "meta_json": json.dumps({"preference": {"score": 0.0, "model": "lama"}})}
    named = one(judgments, answers)
    assert (named["model_chosen"], named["model_rejected"]) == ("lama", None)
    plain = one(judgments, [answer("q", "chosen", "x", model="m1"), answer("q", "rejected", "y", model="m2")])
    assert (plain["model_chosen"], plain["label_original"]) == ("m2", None)
    theirs = [
        row | {"meta_json": '{"preference":"A"}'} for row in [answer("q", "chosen", "x"), answer("q", "rejected", "y")]
    ]
    assert one(judgments, theirs)["model_chosen"] == "rejected", "a field of the user's that is called preference"


def test_peoples_scores_are_a_label_of_their_own_and_equal_ones_are_none():
    judgments = judged((0.1, 0.9, 0), (0.1, 0.9, 0))
    answers = pair()
    answers[0]["human_score"], answers[1]["human_score"] = 1.0, 4.0
    assert one(judgments, answers)["label_human"] == "chosen"
    answers[0]["human_score"] = 4.0
    assert one(judgments, answers)["label_human"] is None


def test_several_turns_keep_the_users_turns_between_them():
    asked = (("system", "s"), ("user", "one"), ("user", "two"))
    row = one(judged((0.9, 0.1, 0), (0.9, 0.1, 0)), pair(chosen=["a1", "a2"], rejected=["b1", "b2"], messages=asked))
    assert [m["content"] for m in row["prompt"]] == ["s", "one"]
    assert [(m["role"], m["content"]) for m in row["chosen"]] == [
        ("assistant", "a1"), ("user", "two"), ("assistant", "a2"),
    ]  # fmt: skip
    assert [m["content"] for m in row["rejected"]] == ["b1", "two", "b2"]
    long = (("user", "one"), ("assistant", "x"), ("user", "two"))
    row = one(judged((0.9, 0.1, 0), (0.9, 0.1, 0)), pair(messages=long))
    assert [m["content"] for m in row["prompt"]] == ["one", "x", "two"]


def test_a_users_turn_within_answers_that_follow_a_tools_message_does_not_move_into_the_prompt():
    asked = (("user", "one"), ("assistant", "call"), ("tool", "21"), ("user", "two"))
    row = one(judged((0.9, 0.1, 0), (0.9, 0.1, 0)), pair(chosen=["a1", "a2"], rejected=["b1", "b2"], messages=asked))
    assert [m["content"] for m in row["prompt"]] == ["one", "call", "21"]
    assert [m["content"] for m in row["chosen"]] == ["a1", "two", "a2"]
    lone = one(judged((0.9, 0.1, 0), (0.9, 0.1, 0)), pair(chosen=["a1", "a2"], rejected=["b1", "b2"], messages=()))
    assert (lone["prompt"], [m["content"] for m in lone["rejected"]]) == ([], ["b1", "b2"])


def test_answers_to_no_prompt_are_no_pair_that_a_trainer_would_fail_on_and_make_no_circle_with_those_of_others():
    circle = [("x", "y"), ("y", "z"), ("z", "x")]
    answers = [row for q, texts in enumerate(circle) for row in pair(q, *texts, messages=())]
    judgments = [row for q in range(3) for row in judged((0.9, 0.1, 0), (0.9, 0.1, 0), q)]
    rows = made(judgments, answers)
    assert {(row["drop_reason"], row["cycle"]) for row in rows} == {("no_prompt", False)}


def relations(rng, answers, questions):
    """Random verdicts and ties on all pairs of so many answers, as judgments and as {question: {(i, j): sign}}."""
    rows, signs = [], {}
    for q in range(questions):
        for i, j in itertools.combinations(range(answers), 2):
            sign = int(rng.integers(-1, 2))
            p = {1: (0.8, 0.1, 0.1), -1: (0.1, 0.8, 0.1), 0: (0.1, 0.2, 0.7)}[sign]
            rows += judged(p, p, str(q), f"r{i}", f"r{j}")
            signs.setdefault(str(q), {})[i, j] = sign
    return rows, signs


def has_circle(signs, answers):
    """By definition: some sequence of different answers in which each is better than the next, and the last than the
    first."""
    better = {(i, j) if sign > 0 else (j, i) for (i, j), sign in signs.items() if sign}
    return any(
        all((path[k], path[(k + 1) % size]) in better for k in range(size))
        for size in range(2, answers + 1)
        for path in itertools.permutations(range(answers), size)
    )


def test_a_prompt_has_a_cycle_exactly_where_its_strict_verdicts_go_round():
    answers, questions = 4, 60
    rows, signs = relations(np.random.default_rng(1), answers, questions)
    texts = [answer(q, f"r{i}", f"text {i}", (("user", f"ask {q}"),)) for q in range(questions) for i in range(answers)]
    found = with_cycles(measured(table(rows), from_rows(texts, PLACED_RESPONSES), PROTOCOLS, BY))
    told = {q: set(part["cycle"]) for (q,), part in found.partition_by(["question_id"], as_dict=True).items()}
    expected = {q: {has_circle(of_question, answers)} for q, of_question in signs.items()}
    assert told == expected
    assert len({frozenset(value) for value in expected.values()}) == 2, "the drawn worlds are all alike"


def test_pairs_of_several_lines_make_a_cycle_of_their_prompt_and_other_prompts_have_none():
    circle = [("x", "y"), ("y", "z"), ("z", "x")]
    answers = [row for q, (c, r) in enumerate(circle) for row in pair(q, c, r)]
    answers += pair("other", "y", "x", (("user", "else"),))
    judgments = [row for q in (0, 1, 2, "other") for row in judged((0.9, 0.1, 0), (0.9, 0.1, 0), q)]
    cycles = {row["pair_id"]: row["cycle"] for row in made(judgments, answers)}
    assert cycles == {"0": True, "1": True, "2": True, "other": False}
    dropped = [row["drop_reason"] for row in made(judgments, answers, {"no_cycle": True})]
    assert dropped == ["no_cycle"] * 3 + [None]
    assert not any(row["cycle"] for row in made(judgments[2:], answers[2:]))


def transcripts(path: Path, pairs: int, empty: int = 0) -> Path:
    """HH-RLHF-like lines; `good` answers and `poor` ones, every third with its sides swapped by the source."""
    lines = []
    for i in range(pairs):
        sides = [f"A good and whole answer to {i}.", f"No {i}."]
        if i % 3 == 0:
            sides.reverse()
        start = f"\n\nHuman: Hello, I am {i}.\n\nAssistant: Hello.\n\nHuman: What is {i} and one?\n\nAssistant: "
        lines.append({"chosen": start + sides[0], "rejected": start + sides[1] * (i >= empty)})
    lines.append({"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: c\n\nAssistant: d"})
    lines.append({"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: b"})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def loaded(tmp_path: Path, corpus: Path, format: str, **sections) -> config.LoadedConfig:
    """A run with the scripted judge, which prefers `chosen` by a fixed quality."""
    given = {
        "out": str(tmp_path / "run"),
        "corpus": {"paths": [str(corpus)]},
        "judge": {"engine": "scripted", "scripted": {"quality": {"chosen": 0.8, "rejected": 0.4}, "noise": 0.15}},
        "protocols": protocol_files(tmp_path),
        "run": {"batch_size": 64},
        "plan": {"orders": "both"},
    }
    found = config.loads(json.dumps(given | sections), "test.yaml")
    found.config.corpus.format = format
    return found


@pytest.mark.parametrize(
    ("sections", "asked", "message"),
    [
        ({"plan": {"orders": "one"}}, {}, "plan.orders: got 'one'"),
        ({"plan": {"canary": True}}, {}, "plan.canary"),
        ({}, {"filters": {"min_margn": 0.1}}, "did you mean 'min_margin'"),
        ({}, {"protocol": "score-5"}, r"preferences.protocol: got 'score-5'; .* \['compare'\]"),
        ({}, {"judge": "nobody"}, "preferences.judge: got 'nobody'"),
    ],
)
def test_a_run_that_cannot_label_pairs_is_refused_before_anything_is_judged(tmp_path, sections, asked, message):
    corpus = transcripts(tmp_path / "hh.jsonl", 2)
    with pytest.raises(ConfigError, match=message):
        labelling_preferences.label(
            loaded(tmp_path, corpus, "hh-rlhf", **sections), PreferencesConfig(**asked), lambda *_: None
        )
    assert not (tmp_path / "run").exists()


def test_a_run_that_planned_nothing_says_so(tmp_path):
    folder = RunFolder(str(tmp_path))
    folder.write_protocols([compare_protocol()])
    folder.write_table("tasks/bucket=000.parquet", PENDING_TASKS.empty_table())
    with pytest.raises(RunError, match="no pair of responses"):
        labelling_preferences.write(folder, PreferencesConfig(), AnalysisConfig())


def judged_folder(path, judgments, answers, options=None, unjudged=()):
    """A run folder as `judge` leaves it, without a judge; the tasks `unjudged` have no judgment."""
    folder = RunFolder(path, options)
    folder.write_protocols(list(PROTOCOLS.values()))
    rows, responses = table(judgments), from_rows(answers, PLACED_RESPONSES)
    for bucket in {bucket_of(question) for question in rows["question_id"]}:
        here = rows.filter(pl.col("question_id").map_elements(bucket_of, pl.Int64) == bucket)
        tasks = here.select(TASKS.names).with_columns(pending=pl.lit(False), status=pl.lit(None, pl.String))
        folder.write_table(f"tasks/bucket={bucket:03d}.parquet", check(tasks.to_arrow(), PENDING_TASKS))
        folder.write_judgments(bucket, here.filter(~pl.col("task_id").is_in(unjudged)).to_arrow())
        mine = pa.array([bucket_of(q) == bucket for q in responses["question_id"].to_pylist()])
        folder.write_table(f"responses/bucket={bucket:03d}.parquet", responses.filter(mine))
    return folder


def test_a_pair_that_a_budget_left_unjudged_is_in_the_side_table(tmp_path):
    judgments = [row for q in range(4) for row in judged((0.9, 0.1, 0), (0.9, 0.1, 0), q)]
    answers = [row for q in range(4) for row in pair(q)]
    folder = judged_folder(str(tmp_path), judgments, answers, unjudged=["000002", "000003", "000006"])
    card = labelling_preferences.write(folder, PreferencesConfig(), AnalysisConfig())
    assert (card["counts"]["kept"], card["counts"]["dropped"]) == (2, {"not_judged": 2})


def test_the_card_counts_the_failures_of_its_judge_alone_and_of_what_was_asked_alone(tmp_path):
    first = [row for q in range(4) for row in judged((0.9, 0.1, 0), (0.9, 0.1, 0), q)]
    first[0] |= {"status": "engine_error"}
    said, by = {"chosen": "ok", "rejected": "too_long"}, PROTOCOLS["score"].name
    scores = [score(0, side, (0, 0, 0, 1, 0), status=status, protocol=by) for side, status in said.items()]
    others = [row | {"judge": "other", "status": "engine_error"} for row in first]
    empty = [row | {"status": "empty_response"} for row in judged((0.9, 0.1, 0), (0.9, 0.1, 0), 5)]
    answers = [row for q in (0, 1, 2, 3, 5) for row in pair(q)]
    folder = judged_folder(str(tmp_path), first + scores + empty + others, answers, unjudged=["000007"])
    card = labelling_preferences.write(folder, PreferencesConfig(judge="j"), AnalysisConfig())
    counts = card["counts"]
    assert (counts["judgments"], counts["failed"]) == (7 + 2, {"engine_error": 1, "too_long": 1})
    assert any("failed on 2 of 9 judgments" in line for line in card["cautions"])


def test_the_card_says_of_the_run_what_its_manifest_says(tmp_path):
    judgments = [row for q in range(3) for row in judged((0.9, 0.1, 0), (0.9, 0.1, 0), q)]
    folder = judged_folder(str(tmp_path), judgments, [row for q in range(3) for row in pair(q)])
    assert labelling_preferences.write(folder, PreferencesConfig(), AnalysisConfig())["run"] is None
    manifest = {"trustjudge_ray": "9.8.7", "judges": {"j": {"engine": "vllm", "model": "org/judge"}}}
    folder.write_json("manifest.json", manifest | {"corpus": {"files": [{"source": "some/pairs.jsonl", "rows": 3}]}})
    card = labelling_preferences.write(folder, PreferencesConfig(), AnalysisConfig())
    assert card["run"] == {"tool": "9.8.7", "engine": "vllm", "model": "org/judge", "corpus": ["some/pairs.jsonl"]}
    page = folder.read_bytes("preferences.html").decode("utf-8")
    assert all(words in page for words in ("9.8.7", "org/judge", "some/pairs.jsonl", 'href="manifest.json"'))


def test_pairs_written_part_by_part_are_those_of_one_go_and_cycles_cross_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(labelling_preferences, "_BYTES_AT_ONCE", 1)
    circle = [("x", "y"), ("y", "z"), ("z", "x")] * 4
    answers = [row for q, (c, r) in enumerate(circle) for row in pair(q, c, r, (("user", f"ask {q // 3}"),))]
    judgments = [row for q in range(len(circle)) for row in judged((0.9, 0.1, 0), (0.7, 0.1, 0.2), q)][:-2]
    folder = judged_folder(str(tmp_path), judgments, answers[:-2])
    filters = {"no_cycle": True}
    labelling_preferences.write(folder, PreferencesConfig(filters=filters), AnalysisConfig())
    parts = [folder.read_table(n) for name in ("preferences", "preferences-dropped") for n in folder.names(name)]
    assert len(parts) > 3, "the questions of a prompt are all in one part"
    written = {row["pair_id"]: row for row in pa.concat_tables(parts).to_pylist()}
    expected = {row["pair_id"]: row for row in made(judgments, answers[:-2], filters, Labeller("j", "compare", None))}
    assert written == expected
    assert sum(row["keep"] for row in written.values()) == 2, "of the last prompt one arrow of the circle is missing"


def test_other_filters_leave_no_row_of_the_earlier_ones_behind(tmp_path):
    judgments = [row for q in range(6) for row in judged((0.5 + q / 20, 0.2, 0.1), (0.5, 0.2, 0.1), q)]
    folder = judged_folder(str(tmp_path), judgments, [row for q in range(6) for row in pair(q)])
    for least in (0.4, 0.0, 0.45):
        card = labelling_preferences.write(folder, PreferencesConfig(filters={"min_margin": least}), AnalysisConfig())
        lengths = [
            sum(len(folder.read_table(n)) for n in folder.names(name))
            for name in ("preferences", "preferences-dropped")
        ]
        assert lengths == [card["counts"]["kept"], 6 - card["counts"]["kept"]]


def test_a_line_is_not_readable_only_where_nothing_of_it_was_and_counts_once(tmp_path):
    answers = pair("0") + pair("1")
    for line, row in enumerate(answers):
        row["line"] = line // 2 + 1
    judgments = [row for q in "01" for row in judged((0.9, 0.1, 0), (0.9, 0.1, 0), q)]
    folder = judged_folder(str(tmp_path), judgments, answers)
    bad = [(1, "missing_field"), (7, "duplicate_row"), (7, "duplicate_row"), (8, "not_json")]
    rows = [{"source": "test", "line": line, "reason": reason} for line, reason in bad]
    folder.write_table("quarantine/files.parquet", from_rows(rows, QUARANTINE))
    counts = labelling_preferences.write(folder, PreferencesConfig(), AnalysisConfig())["counts"]
    assert (counts["rows"], counts["quarantined"]) == (4, {"duplicate_row": 1, "not_json": 1})


def test_a_run_of_the_first_questions_alone_does_not_pass_its_own_lines_off_as_those_of_the_files(tmp_path):
    folder = judged_folder(str(tmp_path), judged((0.9, 0.1, 0), (0.9, 0.1, 0)), pair())
    rows = [{"source": "test", "line": line, "reason": "not_json"} for line in (8, 9)]
    folder.write_table("quarantine/files.parquet", from_rows(rows, QUARANTINE))
    for text, expected in (("out: x\n", 3), ("run: {limit: 1}\n", None), ("run: {limit: null}\n", 3), ("run:\n", 3)):
        folder.write_bytes("config.yaml", text.encode())
        card = labelling_preferences.write(folder, PreferencesConfig(), AnalysisConfig())
        assert card["counts"]["rows"] == expected
        assert any("run.limit" in line for line in card["cautions"]) is (expected is None)


def test_an_export_is_of_the_filters_that_are_asked_for_whatever_was_written_before(tmp_path):
    judgments = [row for q in range(4) for row in judged((0.5 + q / 10, 0.2, 0.1), (0.5, 0.2, 0.1), q)]
    folder = judged_folder(str(tmp_path), judgments, [row for q in range(4) for row in pair(q)])
    for least, rows in ((0.0, 4), (0.45, 1), (0.0, 4)):
        asked = PreferencesConfig(filters={"min_margin": least})
        told = labelling_preferences.export(folder, "trl", str(tmp_path / "x.jsonl"), asked, AnalysisConfig())
        assert told["rows"] == rows
    before = {name: folder.read_bytes(name) for name in folder.names("")}
    none = PreferencesConfig(filters={"min_margin": 0.99})
    with pytest.raises(RunError, match="no pair is kept, so there is nothing .*: min_margin 4; .*=null"):
        labelling_preferences.export(folder, "trl", str(tmp_path / "y.jsonl"), none, AnalysisConfig())
    assert {name: folder.read_bytes(name) for name in folder.names("")} == before


def test_a_filter_of_the_file_is_taken_out_by_null_in_either_command(tmp_path):
    judgments = [row for q in range(4) for row in judged((0.5 + q / 10, 0.2, 0.1), (0.5, 0.2, 0.1), q)]
    folder = judged_folder(str(tmp_path / "run"), judgments, [row for q in range(4) for row in pair(q)])
    text = "corpus: {paths: [x]}\npreferences: {filters: {min_margin: 0.45, both_orders_agree: true}}\n"
    folder.write_bytes("config.yaml", text.encode())
    null = "preferences.filters.min_margin=null"
    for overrides, rows, on in (
        ([], 1, 2),
        ([null], 4, 1),
        ([null, null.replace("min_margin", "both_orders_agree")], 4, 0),
    ):
        line = ["export", folder.path, "trl", str(tmp_path / "x.jsonl"), *overrides, "--json"]
        told = json.loads(CliRunner().invoke(cli, line).stdout)
        assert (told["rows"], len(folder.read_json("data_card.json")["filters"])) == (rows, on)
        labels = config.loads(text, "my.yaml", overrides).config.preferences
        card = labelling_preferences.write(folder, labels, AnalysisConfig())
        assert (card["counts"]["kept"], len(card["filters"])) == (rows, on)


def test_an_export_by_another_judge_is_not_taken_for_one_by_the_first(tmp_path):
    first = [row for q in range(3) for row in judged((0.9, 0.1, 0), (0.9, 0.1, 0), q)]
    second = [row | {"judge": "k"} for q in range(3) for row in judged((0.1, 0.9, 0), (0.1, 0.9, 0), q)]
    folder = judged_folder(str(tmp_path), first + second, [row for q in range(3) for row in pair(q)])
    for judge, chosen in ((None, "good answer"), ("k", "bad"), (None, "good answer"), ("j", "good answer")):
        out, asked = tmp_path / "x.jsonl", PreferencesConfig(judge=judge)
        labelling_preferences.export(folder, "trl", str(out), asked, AnalysisConfig())
        assert {json.loads(line)["chosen"] for line in out.read_text().splitlines()} == {chosen}


def test_an_export_with_a_misspelt_filter_is_refused_by_name_also_where_a_card_is_there(tmp_path):
    folder = judged_folder(str(tmp_path), judged((0.9, 0.1, 0), (0.9, 0.1, 0)), pair())
    labelling_preferences.write(folder, PreferencesConfig(), AnalysisConfig())
    asked = PreferencesConfig(filters={"min_margn": 0.1})
    with pytest.raises(ConfigError, match="did you mean 'min_margin'"):
        labelling_preferences.export(folder, "trl", str(tmp_path / "x.jsonl"), asked, AnalysisConfig())


@pytest.mark.parametrize("recorded", [True, False])
def test_a_line_of_whose_pair_one_side_alone_was_refused_does_not_vanish_from_the_counts(tmp_path, recorded):
    line = {"prompt": "p", "chosen": "a", "rejected": "b", "human_rejected": 0}
    lines = [line | {"human_chosen": 1}, line | {"human_chosen": 2}, line | {"chosen": "c"}]
    [(rows, _)] = parse_lines(["".join(json.dumps(one) + "\n" for one in lines).encode()], "test", "trl", {})
    stay, bad = deduplicate(rows)
    answers = stay.to_pylist()
    assert len(answers) == 3, "the rejected side of line 1 is alone, the pair of line 3 is whole"
    question = answers[-1]["question_id"]
    alone = [score(answers[0]["question_id"], "rejected", (0.0, 0.0, 0.0, 1.0, 0.0))]
    folder = judged_folder(str(tmp_path), judged((0.9, 0.1, 0), (0.9, 0.1, 0), question) + alone, answers)
    if recorded:
        folder.write_table("quarantine/files.parquet", bad)
    counts = labelling_preferences.write(folder, PreferencesConfig(), AnalysisConfig())["counts"]
    lost = {"conflicting_duplicate": 2} if recorded else {"too_few_responses": 1}
    assert (counts["quarantined"], counts["pairs"]) == (lost, 1)
    assert counts["rows"] == counts["pairs"] + sum(lost.values())


def test_an_answer_that_cannot_be_used_of_a_row_that_is_and_texts_that_were_cut_are_counted(tmp_path):
    sets = [{"prompt": "p", "responses": ["a", {"model": "m"}, "b"]}, {"prompt": "p2", "responses": ["c", "d"]}]
    lines = "".join(json.dumps(one) + "\n" for one in sets).encode()
    [(rows, bad)] = parse_lines([lines], "test", "prompt-responses", {})
    answers, judgments = rows.to_pylist(), []
    for question, cut in ((answers[0]["question_id"], True), (answers[-1]["question_id"], False)):
        ids = [row["response_id"] for row in answers if row["question_id"] == question]
        judgments += judged((0.9, 0.1, 0), (0.9, 0.1, 0), question, *ids, truncated=cut)
    folder = judged_folder(str(tmp_path), judgments, answers)
    folder.write_table("quarantine/files.parquet", bad)
    counts = labelling_preferences.write(folder, PreferencesConfig(), AnalysisConfig())["counts"]
    assert (counts["rows"], counts["pairs"], counts["quarantined"]) == (2, 2, {})
    assert (counts["answers"], counts["cut"], counts["judgments"]) == ({bad["reason"][0].as_py(): 1}, 2, 4)


@pytest.mark.s3
def test_preferences_and_exports_on_s3_are_those_on_a_disk(tmp_path, s3):
    judgments = [row for q in range(5) for row in judged((0.9, 0.1, 0), (0.1 * q, 0.1, 0.1), q)]
    answers = [row for q in range(5) for row in pair(q)]
    asked, told = PreferencesConfig(filters={"both_orders_agree": True}), []
    for place, options in ((str(tmp_path), None), (f"s3://{s3.bucket}/preferences", s3.options)):
        folder = judged_folder(f"{place}/run", judgments, answers, options)
        path = f"{place}/out/pairs.parquet"
        labelling_preferences.export(folder, "trl-reward", path, asked, AnalysisConfig())
        with open_binary(path, options) as file:
            told.append((pq.read_table(file).to_pylist(), folder.read_json("data_card.json")))
    assert told[0] == told[1]
    assert told[0][0]


@pytest.mark.ray
def test_every_line_is_kept_dropped_or_quarantined_and_the_planted_preference_is_found(tmp_path, local_ray):
    pairs, empty = 60, 4
    corpus = transcripts(tmp_path / "hh.jsonl", pairs, empty)
    asked = PreferencesConfig(filters={"min_margin": 0.2, "both_orders_agree": True, "no_cycle": True})
    given = loaded(tmp_path, corpus, "hh-rlhf")
    done = labelling_preferences.label(given, asked, lambda *_: None)
    run = tmp_path / "run"
    kept = pl.read_parquet(run / "preferences" / "*.parquet")
    dropped = pl.read_parquet(run / "preferences-dropped" / "*.parquet")
    counts = done.card["counts"]
    assert kept.height + dropped.height + sum(counts["quarantined"].values()) == counts["rows"] == pairs + 2
    assert counts["quarantined"] == {"prompts_differ": 1}
    assert dict(dropped["drop_reason"].value_counts().rows()) == counts["dropped"]
    assert (counts["dropped"]["empty_side"], counts["dropped"]["identical_sides"]) == (empty, 1)
    assert kept["keep"].all()
    assert not dropped["keep"].any()
    agree = (kept["label_original"] == "chosen").mean()
    assert agree > 0.9, "the judge was planted to prefer the source's chosen side"
    assert done.card["agreement"]["original"]["kept"]["value"] == pytest.approx(agree)
    assert kept["prompt"].list.len().to_list() == [3] * kept.height
    assert json.loads((run / "data_card.json").read_text()) == done.card
    again = labelling_preferences.label(given, asked, lambda *_: None)
    assert (again.judged.now, again.card) == (0, done.card)

    out = tmp_path / "pairs.parquet"
    folder = runs.folder_of(given)
    told = labelling_preferences.export(folder, "trl-conversational", str(out), asked, given.config.analysis)
    assert told["pairs"] == told["rows"] == pl.read_parquet(out).height == kept.height
    looser = PreferencesConfig()
    told = labelling_preferences.export(folder, "trl", str(tmp_path / "all.jsonl"), looser, given.config.analysis)
    assert told["rows"] == pairs + 1 - empty - 1, "other filters than the card's: the pairs are made anew"
