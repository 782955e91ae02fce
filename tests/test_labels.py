"""Reading labels: the events are disjoint, exact, and the same for every family of tokenizers."""

import json
import math
import random
from functools import cache
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from shared_inputs import shared
from small_tokenizers import byte_level, lower_casing, merging, tokenizer_of

from trustjudge_ray.judging.labels import LabelError, build_table, describe, merged_closers, read_alternatives, table_of
from trustjudge_ray.judging.protocols import Protocol

HUNDRED = [str(i) for i in range(1, 101)]
LETTERS = [chr(ord("A") + i) for i in range(20)]


def protocol(labels, opener="Score: [", closer="]"):
    return Protocol("p", "score", tuple(labels), "", "### Answer\n{answer}\n", (), opener, closer)


def spoken(table, conditional):
    """What a judge with P(token | prefix) = conditional(prefix)[token] gives the nodes of a table."""
    return [{t: math.log(conditional(n.prefix).get(t, 0) or 1e-300) for t in n.token_ids} for n in table.nodes]


def texts_of(table, tokenizer):
    return {tuple(tokenizer.convert_ids_to_tokens(list(n.prefix))) for n in table.nodes}


# --- what other systems listed at the label position -------------------------------------------------------------

CASES = [json.loads(line) for line in shared("inputs/score_cases.jsonl").read_text("utf-8").splitlines()]
STATUSES = {"invalid:nan_logprob": "bad_logprob", "invalid:no_label_mass": "no_label_mass"}


def scale_of(case):
    return LETTERS if case["scale"] == "A-T" else [str(i) for i in range(case["scale"][0], case["scale"][1] + 1)]


def check_wanted(logprobs, labels, want):
    p = {label: math.exp(x) for label, x in zip(labels, logprobs, strict=True) if x is not None}
    mass = sum(p.values())
    assert set(want) <= {"mean", "on_scale", "entropy"} | {f"p_{label}" for label in labels}
    for name, value in want.items():
        if name == "mean":
            got = sum(float(label) * x for label, x in p.items()) / mass
        elif name == "on_scale":
            got = mass
        elif name == "entropy":
            got = -sum(x / mass * math.log(x / mass) for x in p.values() if x)
        else:
            got = p[name.removeprefix("p_")] / mass
        assert got == pytest.approx(value, abs=1e-9), name


@pytest.mark.parametrize("case", [c for c in CASES if "alts" in c], ids=lambda c: c["id"])
def test_a_listed_label_position_gives_the_value_of_the_plain_definition(case):
    labels, want = scale_of(case), case["want"]
    reading = read_alternatives([(text, float(value)) for text, value in case["alts"]], labels)
    if str(want) in STATUSES:
        assert reading.status == STATUSES[want]
        return
    assert reading.status == "ok"
    if case["id"] == "S32b":  # policy: no NFKC, a full-width 5 is off the scale
        want = {"on_scale": math.exp(-2.4), "mean": 4.0}
    if case["id"] == "S33":  # the entry that repeats counts once
        p4, p5 = math.exp(-1.9), math.exp(-0.2)
        want = {"on_scale": p4 + p5, "mean": (4 * p4 + 5 * p5) / (p4 + p5)}
    check_wanted(reading.label_logprobs, labels, want)


@pytest.mark.parametrize("case", [c for c in CASES if "steps" in c], ids=lambda c: c["id"])
def test_a_label_of_several_tokens_is_the_product_of_its_steps(case):
    tokenizer, labels = tokenizer_of("digit_splitting"), scale_of(case)
    table = build_table(tokenizer, protocol(labels))
    listed = {"": case["steps"][0]} | {step["after"]: step["alts"] for step in case["steps"][1:]}

    def logprobs(node):
        after = dict(listed.get(tokenizer.decode(list(node.prefix)), []))
        return {t: float(after.get(tokenizer.decode([t]), -math.inf)) for t in node.token_ids}

    check_wanted(table.read([logprobs(node) for node in table.nodes]), labels, case["want"])


def test_labels_that_are_not_listed_are_null_and_not_zero():
    assert read_alternatives([("4", -0.5), ("5", -math.inf)], ["3", "4", "5"]).label_logprobs == [None, -0.5, -math.inf]


def test_two_tokens_with_one_text_add_up_and_do_not_overwrite_each_other():
    reading = read_alternatives([("A", math.log(0.25)), ("A", math.log(0.5)), ("ĠA", math.log(0.125))], ["A", "B"])
    assert math.exp(reading.label_logprobs[0]) == pytest.approx(0.875)


@pytest.mark.parametrize("value", [-9999.0, -math.inf])
def test_a_stand_in_for_minus_infinity_is_no_label_mass(value):
    assert read_alternatives([("4", value), ("The", -0.1)], ["4", "5"]).status == "no_label_mass"


def test_a_label_with_a_space_of_its_own_is_not_taken_for_another():
    assert read_alternatives([(" A", -1.0), ("A", -2.0)], ["A", " A"]).label_logprobs == [-2.0, -1.0]


# --- the table ---------------------------------------------------------------------------------------------------


@st.composite
def judges(draw):
    """Labels with spellings of up to three tokens of three, and a judge that says any of four tokens anywhere."""
    path = st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple)
    spellings = draw(st.lists(st.lists(path, min_size=1, max_size=3), min_size=2, max_size=4))
    seed = draw(st.integers(0, 2**32))

    @cache
    def conditional(prefix):
        rng = random.Random(f"{seed}{prefix}")
        weights = [rng.random() ** 4 for _ in range(4)]
        return {token: w / sum(weights) for token, w in enumerate(weights)}

    return spellings, conditional


@settings(deadline=None, max_examples=60)
@given(judges())
def test_events_are_disjoint_and_their_probabilities_are_those_of_the_whole_texts(judge):
    """Witness: all texts of four tokens, each given to the label that alone is left at the first such place."""
    spellings, conditional = judge
    labels = [str(i) for i in range(len(spellings))]
    try:
        table = table_of(spellings, labels)
    except LabelError:
        assume(False)
    truth = [0.0] * len(labels)
    for text in product(range(4), repeat=4):
        p = math.prod(conditional(text[:i])[token] for i, token in enumerate(text))
        for end in range(1, 5):
            left = {i for i, own in enumerate(spellings) for path in own if path[:end] == text[:end]}
            if len(left) < 2:
                for label in left:
                    truth[label] += p
                break
    got = [math.exp(x) for x in table.read(spoken(table, conditional))]
    assert got == pytest.approx(truth, abs=1e-12)
    assert sum(got) <= 1 + 1e-12


@settings(deadline=None)
@given(judges())
def test_labels_are_refused_exactly_when_one_begins_another(judge):
    spellings, _ = judge
    begins = any(
        longer[: len(path)] == path
        for i, own in enumerate(spellings)
        for j, other in enumerate(spellings)
        if i != j
        for path in own
        for longer in other
    )
    labels = [str(i) for i in range(len(spellings))]
    if begins:
        with pytest.raises(LabelError):
            table_of(spellings, labels)
    else:
        assert len(table_of(spellings, labels).nodes) >= 1


@pytest.mark.parametrize("kind", ["digit_splitting", "qwen_like", "llama_like", "llama_first", "llama_always"])
def test_a_hundred_labels_of_split_digits_take_eleven_requests(kind):
    tokenizer = tokenizer_of(kind)
    table = build_table(tokenizer, protocol(HUNDRED))
    firsts = {(str(i),) for i in range(1, 10)}
    assert texts_of(table, tokenizer) == {(), ("1", "0")} | firsts
    assert len(table.nodes) == 11
    assert table.nodes[0].prefix == ()
    assert table.depth == 2


def test_eight_and_eighty_five_are_told_apart_by_the_closer():
    tokenizer = tokenizer_of("digit_splitting")
    table = build_table(tokenizer, protocol(HUNDRED))
    ids = {text: tokenizer.convert_tokens_to_ids(text) for text in [*"0123456789", "]"]}

    def conditional(prefix):
        rng = random.Random(str(prefix))
        weights = {i: rng.random() for i in ids.values()}
        return {i: w / sum(weights.values()) for i, w in weights.items()}

    def p(text):
        path = tuple(ids[c] for c in text)
        return math.prod(conditional(path[:i])[token] for i, token in enumerate(path))

    got = dict(zip(HUNDRED, map(math.exp, table.read(spoken(table, conditional))), strict=True))
    wanted = {text: p(text) if len(text) == 2 and text != "10" else p(text + "]") for text in HUNDRED}
    assert got == pytest.approx(wanted | {"100": p("100")})
    assert sum(got.values()) < 1


def test_one_to_ten_reads_the_closer_after_one_only():
    tokenizer = tokenizer_of("digit_splitting")
    rows = {row["label"]: row for row in describe(build_table(tokenizer, protocol(HUNDRED[:10])), tokenizer)}
    assert rows["1"]["tokens"] == [["1", "]"]]
    assert rows["10"]["tokens"] == [["1", "0"]]
    assert rows["9"]["tokens"] == [["9"]]
    assert [rows[label]["requests"] for label in ("1", "10", "9")] == [2, 2, 1]


def test_both_spellings_of_a_letter_are_summed_in_one_request():
    tokenizer = tokenizer_of("byte_level")
    table = build_table(tokenizer, protocol("ABC", "Verdict: ["))
    assert [row["tokens"] for row in describe(table, tokenizer)] == [[["A"], ["ĠA"]], [["B"], ["ĠB"]], [["C"], ["ĠC"]]]
    a, spaced, *others = table.nodes[0].token_ids
    logprobs = {a: math.log(0.25), spaced: math.log(0.5)} | dict.fromkeys(others, -math.inf)
    assert [math.exp(x) for x in table.read([logprobs])] == pytest.approx([0.75, 0, 0])


def test_no_label_gets_a_second_spelling_where_one_of_them_cannot():
    """` 1` may begin ` 10`: with it alone, label 1 would be credited with what was said for 10."""
    tokenizer = merging(" 1", " 2")
    table = build_table(tokenizer, protocol(["1", "2", "10"], "Score:["))
    assert [row["tokens"] for row in describe(table, tokenizer)] == [[["1", "]"]], [["2"]], [["1", "0"]]]


def test_multi_word_labels_with_one_beginning_are_read_to_where_they_part():
    tokenizer = tokenizer_of("byte_level")
    labels = ["Strongly agree", "Agree", "Neutral", "Disagree", "Strongly disagree"]
    table = build_table(tokenizer, protocol(labels, "Verdict: ["))
    rows = describe(table, tokenizer)
    assert rows[0]["token_ids"][0][:-1] == rows[4]["token_ids"][0][:-1]
    assert rows[0]["token_ids"][0][-1] != rows[4]["token_ids"][0][-1]
    assert rows[2]["requests"] == 1


def test_a_closer_that_joins_with_the_label_is_a_second_spelling():
    tokenizer = merging("5]", "0]")
    table = build_table(tokenizer, protocol(["1", "10", "5"], "Score:["))
    rows = {row["label"]: row["tokens"] for row in describe(table, tokenizer)}
    assert rows == {"1": [["1", "]"]], "10": [["1", "0]"], ["1", "0"]], "5": [["5]"], ["5"]]}


def test_tokens_that_begin_with_the_closer_are_named_where_it_is_read_and_never_change_a_path():
    joined, plain = merging("].", "].)", "]]"), merging("12")
    ten = build_table(joined, protocol(HUNDRED[:10]))
    assert merged_closers(ten, joined, "]") == ["].", "].)", "]]"]
    assert merged_closers(build_table(joined, protocol(HUNDRED[:5])), joined, "]") == []
    assert merged_closers(build_table(plain, protocol(HUNDRED[:10])), plain, "]") == []
    assert texts_of(ten, joined) == texts_of(build_table(plain, protocol(HUNDRED[:10])), plain) == {(), ("1",)}


def test_an_opener_that_joins_with_a_label_ends_earlier():
    """With `Verdict: ` before it, the judge would never say `A`: it says ` A` after `Verdict:`."""
    tokenizer = tokenizer_of("byte_level")
    table = build_table(tokenizer, protocol("AB", "Verdict: ", ""))
    assert table.opener == "Verdict:"
    assert tokenizer.decode(list(table.opener_ids)) == "Verdict:"
    assert [row["tokens"] for row in describe(table, tokenizer)] == [[["ĠA"], ["A"]], [["ĠB"], ["B"]]]
    bracket = build_table(merging("[A"), protocol("AB", "Say:["))
    assert bracket.opener == "Say:"
    assert [row["tokens"] for row in describe(bracket, merging("[A"))] == [[["[A"]], [["[", "B"]]]


@pytest.mark.parametrize("kind", ["llama_like", "llama_always", "unigram"])
def test_no_stray_space_mark_stands_before_opener_or_label(kind):
    tokenizer = tokenizer_of(kind)
    table = build_table(tokenizer, protocol("ABC", "Score: ["))
    assert tokenizer.convert_ids_to_tokens(list(table.opener_ids))[0][0] != "▁"
    assert all(row["tokens"][0] == [row["label"]] for row in describe(table, tokenizer))


def test_a_certain_judge_gives_its_label_all_and_the_others_nothing():
    table = build_table(tokenizer_of("byte_level"), protocol("ABC"))
    root = dict.fromkeys(table.nodes[0].token_ids, -math.inf) | {table.nodes[0].token_ids[0]: 0.0}
    assert table.read([root]) == [0.0, -math.inf, -math.inf]


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.5])
def test_what_is_no_log_probability_is_not_read_as_one(bad):
    table = build_table(tokenizer_of("byte_level"), protocol("ABC"))
    first, *others = table.nodes[0].token_ids
    read = table.read([dict.fromkeys(others, -2.0) | {first: bad}])
    assert math.isnan(read[0])
    assert not any(math.isnan(x) for x in read[1:])


def test_an_engine_that_leaves_a_token_out_is_found_out():
    table = build_table(tokenizer_of("byte_level"), protocol("ABC"))
    with pytest.raises(KeyError):
        table.read([{table.nodes[0].token_ids[0]: -1.0}])
    with pytest.raises(ValueError, match="0 mappings of log-probabilities for 1 nodes"):
        table.read([])


@pytest.mark.parametrize(
    "tokenizer, given, message",
    [
        (lambda: tokenizer_of("digit_splitting"), protocol(HUNDRED, closer=""), "'1' and '10'.*a closer such as"),
        (lower_casing, protocol(["A", "a", "B"]), "'A' and 'a' cannot be told apart.*other label texts"),
        (lower_casing, protocol(["A", "Z"]), "cannot write the label 'Z'"),
        (lambda: byte_level(size=300), protocol(["8", "8] and more"]), "'8' and '8. and more' cannot"),
        (lambda: merging("[A"), protocol("AB", "["), "joins with the labels .* put a word before it"),
    ],
)
def test_labels_that_cannot_be_read_are_refused_with_a_way_out(tokenizer, given, message):
    with pytest.raises(LabelError, match=message):
        build_table(tokenizer(), given)


def test_full_width_digits_are_labels_of_their_own():
    table = build_table(tokenizer_of("byte_level"), protocol(["5", "５"]))
    assert set(table.paths[0]).isdisjoint(table.paths[1])
