import pytest
from corpora import COMPARE, SCORE, compare_protocol

from trustjudge_ray.judging import protocols, slots


def test_yes_stays_a_word_and_dollar_braces_stay_text():
    text = SCORE.replace("labels: 5", "labels: [No, Yes]").replace("Rate the answer.", "cost ${oc.env:HOME} {x}")
    protocol = protocols.parse(text)
    assert protocol.label_texts == ("No", "Yes")
    assert protocol.values == (1.0, 2.0)
    assert protocol.system == "cost ${oc.env:HOME} {x}"


def test_answers_with_braces_and_slot_names_are_filled_literally_and_once():
    filled = slots.fill("{question}\n{answer}", {"question": "{answer} {0}", "answer": "{question} %s"})
    assert filled == "{answer} {0}\n{question} %s"


def test_the_order_decides_which_answer_is_shown_first():
    task = {"messages": [{"role": "user", "content": "q"}], "reference": None, "replies_a": ["x"], "replies_b": ["y"]}
    filled = slots.task_slots(compare_protocol(), task | {"order": "BA"})
    assert (filled["answer_a"], filled["answer_b"]) == ("y", "x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("kind: score", "kind: rate"), r"kind: got 'rate'; one of score, compare"),
        (("{answer}", "{answr}"), r"user: needs the slot \{answer\} exactly once"),
        (("labels: 5", "labels: [A, A]"), "at least two different texts"),
        (("labels: 5", "labels: 1"), "a number of points"),
        (("  Answer:\n", "  Answer: "), r"before \{answer\} must end in a newline"),
        (("system:", "sytem:"), "unknown key 'sytem'"),
        (("labels: 5", "labels: {good: 1, bad: 2}"), "labels: got a mapping"),
        (("labels: 5", "labels: ²"), "a number of points"),
        (("labels: 5", "labels: [1, 1.0]"), "two labels stand for one number"),
        (("labels: 5", "labels: [good, ' good']"), "at least two different texts"),
        (('closer: "]"', "closer: [']']"), "closer: got a list; a text"),
        (("name: ", "name: {a: b}\n#"), "name: got a mapping; a text"),
        (('closer: "]"', "examples: [{question: [a], answer: b, label: '5'}]"), r"examples\[0\]: question: got a list"),
        (('closer: "]"', "examples: [{question: a, answer: b, label: '7'}]"), r"examples\[0\]: label: got '7'"),
        (('closer: "]"', "examples: [{question: a, label: '5'}]"), r"examples\[0\]: no text for the slot 'answer'"),
    ],
)
def test_a_wrong_protocol_is_refused_with_the_place(change, message):
    with pytest.raises(protocols.ProtocolError, match=message):
        protocols.parse(SCORE.replace(*change), "my.yaml")


def test_labels_that_are_no_finite_numbers_are_words():
    assert protocols.parse(SCORE.replace("labels: 5", "labels: [nan, inf]")).values == (1.0, 2.0)
    assert protocols.parse(SCORE.replace("labels: 5", "labels: [0, 2.5]")).values == (0.0, 2.5)


def test_a_file_in_another_encoding_is_one_message(tmp_path):
    (tmp_path / "p.yaml").write_bytes(SCORE.replace("Rate", "Café").encode("latin-1"))
    with pytest.raises(protocols.ProtocolError, match=r"p\.yaml: byte \d+ is not UTF-8; save the file as UTF-8"):
        protocols.load(str(tmp_path / "p.yaml"))


def test_the_hash_of_a_protocol_is_fixed_because_stores_are_keyed_by_it():
    assert protocols.load("score-5").hash == "bcee89ea63840f0b8443888ade36f5d3"
    assert protocols.load("compare").hash == "e8b912f455b329e0305b1fa2b8edbc43"


def test_a_protocol_survives_being_written_and_read():
    for text in (SCORE, COMPARE + "examples: [{question: a, answer_a: b, answer_b: '1', label: tie}]\n"):
        protocol = protocols.parse(text)
        again = protocols.parse(protocols.to_yaml(protocol))
        assert (again, again.hash) == (protocol, protocol.hash)


def test_every_built_in_protocol_loads():
    assert {"score-5", "score-10", "score-100", "compare"} <= set(protocols.builtin_names())
    for name in protocols.builtin_names():
        assert protocols.load(name).name == name


def test_a_missing_protocol_names_those_that_exist():
    with pytest.raises(protocols.ProtocolError, match=r"'score-7'.*score-5"):
        protocols.load("score-7")
