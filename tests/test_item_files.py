"""Files of questions: each official shape as it is published, every question that cannot be used named, none lost."""

import gzip
import json
from pathlib import Path

import pytest
import zstandard

from trustjudge_ray.audit.item_files import FORMATS, ItemFileError, own_items, parse
from trustjudge_ray.audit.item_reading import read_items
from trustjudge_ray.audit.qa import ABSTENTION, ORACLES, accepting, token_f1
from trustjudge_ray.storage import StorageError

DATA = Path(__file__).parent / "data" / "audit"
FILES = {
    "squad_1.json": "squad",
    "squad_2.json": "squad",
    "drop.json": "drop",
    "hotpotqa.json": "hotpotqa",
    "musique.jsonl": "musique",
    "items.jsonl": "items",
}
ITEM = {"id": "q", "context": "The gate is green.", "question": "What colour is the gate?", "golds": ["green"]}


def read(name, format="auto"):
    return parse((DATA / name).read_bytes(), name, format)


def lines(*objects):
    return "\n".join(json.dumps(each) for each in objects).encode()


def changed(**keys):
    return {key: value for key, value in (ITEM | keys).items() if value is not ...}


def only(*objects):
    """The one problem of a file of lines without an item."""
    found = parse(lines(*objects), "f.jsonl", "items")
    assert found.items == ()
    (problem,) = found.problems
    return problem


@pytest.mark.parametrize(("name", "format"), FILES.items())
def test_each_shape_is_recognised_and_read_as_when_it_is_named(name, format):
    found = read(name)
    assert found.format == format
    assert found == read(name, format)
    assert set(FORMATS) == set(FILES.values())
    for item in found.items:
        assert len(accepting(item, item.golds[0])) == len(ORACLES)


def test_squad_1_keeps_the_golds_in_their_order_once():
    first, second = read("squad_1.json").items
    assert (first.id, first.golds, first.answerable, first.hops) == ("g1", ("green", "green bottles"), True, None)
    assert first.context.startswith("The glassworks")
    assert second.golds == ("1911",)


def test_squad_2_has_plausible_answers_as_wrong_ones_and_names_a_question_without_answers():
    found = read("squad_2.json")
    impossible, possible = found.items
    assert (impossible.golds, impossible.answerable, impossible.wrong) == ((ABSTENTION,), False, ("1911",))
    assert (possible.golds, possible.answerable) == (("Embry",), True)
    (problem,) = found.problems
    assert (problem.reason, problem.place) == ("no_gold", "data[0].paragraphs[0].qas[2]")


def test_one_passage_in_two_files_is_one_cluster():
    assert {item.passage_id for name in ("squad_1.json", "squad_2.json") for item in read(name).items} == {
        read("squad_1.json").items[0].passage_id
    }


def test_a_broken_squad_paragraph_does_not_take_the_ones_behind_it_along():
    good = {
        "context": "The gate is green.",
        "qas": [{"id": "a", "question": "Colour?", "answers": [{"text": "green"}]}],
    }
    content = {"data": [{"paragraphs": [{"context": "no questions"}, "no object", good]}, {"title": "no paragraphs"}]}
    found = parse(json.dumps(content).encode(), "s.json")
    assert [item.id for item in found.items] == ["a"]
    assert [(p.place, p.reason) for p in found.problems] == [
        ("data[0].paragraphs[0]", "missing_key"),
        ("data[0].paragraphs[1]", "wrong_type"),
        ("data[1]", "missing_key"),
    ]


def test_drop_writes_numbers_dates_and_spans_as_texts():
    found = read("drop.json")
    assert [(item.id, item.golds) for item in found.items] == [
        ("d1", ("375", "375 farms")),
        ("d2", ("5 May 1893",)),
        ("d3", ("Rye, oats", "Rye and oats")),
    ]
    assert {item.passage_id for item in found.items} == {"county_1"}
    assert [(p.place, p.reason) for p in found.problems] == [("county_1.qa_pairs[3]", "no_gold")]


def test_hotpotqa_counts_distinct_titles_as_hops_and_keeps_yes_and_no():
    bridge, comparison = read("hotpotqa.json").items
    assert (bridge.hops, bridge.golds) == (2, ("Osse valley",))
    assert bridge.context == (
        "Tarn Organ\nThe Tarn Organ was built by Lucan Breve. It has 1,204 pipes.\n\n"
        "Lucan Breve\nLucan Breve built organs. He was born in the Osse valley."
    )
    assert (comparison.golds, comparison.wrong) == (("no",), ("yes",))


def test_musique_has_hops_from_the_id_and_both_versions_of_a_question_in_one_cluster():
    found = read("musique.jsonl")
    full, cut = found.items
    assert (full.id, full.golds, full.hops) == ("3hop1__7_8_9", ("Dray", "the town of Dray"), 3)
    assert (cut.id, cut.golds, cut.wrong) == ("3hop1__7_8_9/unanswerable", (ABSTENTION,), ("Dray",))
    assert full.passage_id == cut.passage_id
    assert found.problems == ()


def test_our_own_form_fills_in_what_is_not_given():
    first, second = read("items.jsonl").items
    assert (first.golds, first.wrong, first.benchmark, first.passage_id) == (
        ("80", "eighty"),
        ("two",),
        "ferries",
        "alva",
    )
    assert (second.id, second.golds, second.benchmark, second.hops) == ("2", (ABSTENTION,), "own", None)


@pytest.mark.parametrize(
    ("keys", "reason", "says"),
    [
        ({"golds": ...}, "no_gold", "line 1: 'What colour is the gate?' has no answer and is not marked unanswerable"),
        ({"golds": []}, "no_gold", "has no answer"),
        ({"golds": ["  "]}, "wrong_type", "got '  '; a text that is not blank is meant"),
        ({"golds": [3]}, "wrong_type", "got 3; a text"),
        ({"golds": "green"}, "wrong_type", "line 1.golds: got 'green'; a list is meant"),
        ({"golds": ..., "gold": ["green"]}, "unknown_key", "'gold', which is no key of an item; 'golds' is meant?"),
        ({"wrongs": ["red"]}, "unknown_key", "'wrong' is meant?"),
        ({"question": ...}, "missing_key", "line 1: no 'question'; it has ['context', 'golds', 'id']"),
        ({"context": ""}, "wrong_type", "line 1.context: got ''"),
        ({"answerable": "false"}, "wrong_type", "line 1.answerable: got 'false'; true or false is meant"),
        ({"answerable": False}, "gold_of_unanswerable", "marked unanswerable, but has the answer 'green'"),
        ({"hops": 0}, "wrong_type", "line 1.hops: got 0"),
        ({"hops": True}, "wrong_type", "line 1.hops: got True"),
        ({"golds": ["\ud800"]}, "lone_surrogate", "half of a surrogate pair"),
    ],
)
def test_a_question_that_cannot_be_used_is_named_with_its_place_and_what_is_meant(keys, reason, says):
    problem = only(changed(**keys))
    assert (problem.source, problem.place, problem.reason) == ("f.jsonl", "line 1", reason)
    assert says in problem.detail


def test_a_wrong_answer_that_an_oracle_takes_for_right_is_left_out_and_said():
    found = parse(lines(changed(golds=["dark green"], wrong=["Green.", "red", "red"])), "f", "items")
    assert found.items[0].wrong == ("red",)
    assert "'Green.' is right for f1; left out" in found.problems[0].detail


def test_other_keys_of_the_users_own_are_passed_over():
    assert len(parse(lines(changed(title="Gates", split="dev")), "f", "items").items) == 1


def test_a_line_that_is_no_json_costs_that_line_alone():
    content = lines(ITEM) + b'\n{"id": \n' + lines(changed(id="r")) + b'\n{"id": "s", "id": "t"}\n[1]\n'
    found = parse(b"\xef\xbb\xbf" + content, "f.jsonl")
    assert [item.id for item in found.items] == ["q", "r"]
    assert [(p.place, p.reason) for p in found.problems] == [
        ("line 2", "invalid_json"),
        ("line 4", "invalid_json"),
        ("line 5", "wrong_type"),
    ]
    assert "'id' comes twice" in found.problems[1].detail


def test_an_id_again_is_kept_once_and_with_other_content_not_at_all():
    found = parse(lines(ITEM, ITEM, changed(id="r"), changed(id="r", golds=["blue"]), changed(id="r")), "f", "items")
    assert [item.id for item in found.items] == ["q"]
    assert [(p.place, p.reason) for p in found.problems] == [
        ("line 2", "duplicate_item"),
        ("line 3", "conflicting_duplicate"),
        ("line 4", "conflicting_duplicate"),
        ("line 5", "conflicting_duplicate"),
    ]


@pytest.mark.parametrize(
    ("content", "format", "says"),
    [
        (b"", "auto", "f: empty"),
        (b"\xff\xfe{", "auto", "f: byte 1 is not UTF-8"),
        (b'{"data": [}', "squad", "f: line 1, column 11: not JSON"),
        (b'{"data": {}}', "squad", "f: an object with ['data']; a SQuAD file is one object"),
        (b"[1]", "drop", "f: a list of 1, first int '1'; a DROP file is one object"),
        (b"{}", "hotpotqa", "f: an object with []; a HotpotQA file is one list"),
        (b'[{"q": 1}]', "auto", "f: not recognised: an object with ['q']; name its format"),
        (b"[]", "auto", "f: not recognised: nothing"),
        (
            b'{"question": "What?", "answer": "that"}',
            "auto",
            "f: not recognised: an object with ['question', 'answer']",
        ),
        (b"{}", "sqaud", "f: unknown format 'sqaud'; there are auto, drop, hotpotqa, items, musique, squad"),
    ],
)
def test_a_file_that_is_none_of_its_format_is_one_clear_error(content, format, says):
    with pytest.raises(ItemFileError) as raised:
        parse(content, "f", format)
    assert says in str(raised.value)


def test_a_hotpotqa_question_with_a_damaged_frame_is_a_problem_of_its_own():
    content = json.loads((DATA / "hotpotqa.json").read_text("utf-8"))
    content[0]["context"][0] = ["Tarn Organ", "not a list"]
    content[1]["context"][1][1] = [4]
    found = parse(json.dumps(content).encode(), "h.json")
    assert [(p.place, p.reason) for p in found.problems] == [("[0]", "wrong_type"), ("[1]", "wrong_type")]
    assert "[0].context[0]: got ['Tarn Organ', 'not a list']; [title, [sentences]] is meant" in found.problems[0].detail


@pytest.mark.parametrize(
    "packed",
    [
        gzip.compress,
        lambda content: gzip.compress(content[:40]) + gzip.compress(content[40:]),
        zstandard.ZstdCompressor().compress,
        lambda content: b"".join(zstandard.ZstdCompressor().compress(part) for part in (content[:40], content[40:])),
    ],
)
def test_compressed_files_are_read_to_the_end_of_their_last_part(packed, tmp_path):
    path = tmp_path / "items.bin"
    path.write_bytes(packed((DATA / "items.jsonl").read_bytes()))
    (found,) = read_items([str(path)])
    assert found.items == read("items.jsonl").items


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_compressed_file_that_is_cut_off_is_an_error_not_a_shorter_set(pack, tmp_path):
    path = tmp_path / "cut"
    path.write_bytes(pack((DATA / "items.jsonl").read_bytes())[:-6])
    with pytest.raises(ItemFileError, match="damaged or end too early"):
        read_items([str(path)])


def test_an_id_of_an_earlier_file_is_left_out_of_the_later_one_and_said(tmp_path):
    path = tmp_path / "more.jsonl"
    path.write_bytes(lines(changed(id="i1"), ITEM))
    first, second = read_items([str(DATA / "items.jsonl"), str(path)])
    assert [item.id for item in first.items] == ["i1", "2"]
    assert [item.id for item in second.items] == ["q"]
    assert f"the id 'i1' is in {DATA / 'items.jsonl'} already" in second.problems[0].detail


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StorageError, match="none.jsonl: not there"):
        read_items([str(tmp_path / "none.jsonl")])


def test_the_own_set_is_as_large_and_as_varied_as_the_card_needs():
    items = own_items()
    passages = {item.passage_id for item in items}
    assert len(items) >= 48
    assert len(passages) == 12
    assert min(sum(item.passage_id == passage for item in items) for passage in passages) >= 4
    assert sum(not item.answerable for item in items) >= 8
    assert sum(item.hops == 2 and item.answerable for item in items) >= 10
    assert {item.hops for item in items} == {1, 2}
    assert all(80 <= len(item.context.split()) <= 140 for item in items)


def test_every_gold_of_the_own_set_is_right_and_every_wrong_answer_wrong_for_every_oracle():
    for item in own_items():
        assert item.wrong, item.id
        for gold in item.golds:
            assert len(accepting(item, gold)) == len(ORACLES), (item.id, gold)
        for wrong in item.wrong:
            assert accepting(item, wrong) == (), (item.id, wrong)
            assert max(token_f1(wrong, gold) for gold in item.golds) < 0.5, (item.id, wrong)


def test_a_question_of_the_own_set_that_needs_one_sentence_has_its_answer_in_the_passage():
    for item in own_items():
        if item.answerable and item.hops == 1:
            assert "contains" in accepting(item, item.context), item.id


@pytest.mark.parametrize("nothing", ["\u200b", "\u00ad \u2060", " "])
def test_a_gold_that_cannot_be_seen_is_a_problem_of_its_item_and_not_the_end_of_the_audit(nothing):
    problem = only(changed(golds=[nothing, "green"]))
    assert problem.reason == "wrong_type"
    assert "not blank" in problem.detail
