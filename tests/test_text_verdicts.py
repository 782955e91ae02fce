"""Verdicts in judges' texts: the last anchored statement, checked after it is found, or a state that says why not."""

import json
import random
import time

import pytest
from shared_inputs import shared

from trustjudge_ray.imports.text_verdicts import STATES, Scale, read, without_thinking

OPTIONS = (
    "1. Assistant A is significantly better: [[A>>B]]\n2. Assistant A is slightly better: [[A>B]]\n"
    "3. Tie, relatively the same: [[A=B]]\n4. Assistant B is slightly better: [[B>A]]\n"
    "5. Assistant B is significantly better: [[B>>A]]"
)
ASKED = 'Write "[[A]]" if assistant A is better, "[[B]]" if assistant B is better, and "[[C]]" for a tie.'


def said(text, kind, **more):
    """The verdict as a test names it: a state, a label, a score or two."""
    found = read(text, kind, **more)
    if found.state != "ok":
        assert (found.label, found.scores) == (None, ())
        return found.state
    return found.label if kind == "choice" else found.scores[0] if kind == "score" else found.scores


def lines(name):
    return [json.loads(line) for line in shared(name).read_text("utf-8").splitlines()]


@pytest.mark.parametrize("case", lines("inputs/parse_cases.jsonl"), ids=lambda case: case["id"])
def test_the_shared_cases_are_read_as_wanted(case):
    want = case.get("want", case.get("want_score"))
    kind = "scores" if isinstance(want, list) else "choice" if want in ("A", "B", "C") else "score"
    wanted = {"8 or invalid": 8}.get(str(want), tuple(want) if isinstance(want, list) else want)
    got = said(case["text"], kind, cut=case.get("finish_reason") == "length")
    assert got == (wanted.removeprefix("invalid:") if isinstance(wanted, str) else wanted)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Rating: [[8]]", 8),
        ("**Rating: [[8]]**", 8),
        ("Rating: [[**8**]]", 8),
        ("Rating: [[ 8 ]]", 8),
        ("[ [8] ]", 8),
        ("\\[\\[8\\]\\]", 8),
        ("Rating: 8", 8),
        ("**Rating:** 8", 8),
        ("### Final Score: 9", 9),
        ("Overall rating: 8/10\n\nThanks!", 8),
        ("Score: 8 out of 10.", 8),
        ("My final rating is 7.5.", 7.5),
        ("[[8.5]]", 8.5),
        ("[[8,5]]", 8.5),
        ("[[8.]]", 8),
        ("[[8.0]]", 8),
        ("[[+8]]", 8),
        ("[[08]]", 8),
        ("Rating: [[10]]/10", 10),
        ("［［８］］", 8),
        ("评分：【【８】】", 8),
        ("Rating: [[٨]]", 8),
        ("得分：8分", 8),
        ("Bewertung: 8,5", 8.5),
        ("スコア：9", 9),
        ("$\\boxed{8}$", 8),
        ("```\nRating: [[8]]\n```", 8),
        ('```json\n{"reason": "3 faults", "rating": 8}\n```', 8),
        ('{"score": "8"}', 8),
        ("8", 8),
        ("8/10", 8),
        ("[8]", 8),
        ("Rating: [[8]]\r\n", 8),
        ("Rating[[8]]", 8),
        ("最终评分[[8]]", 8),
        ("Rating: \u200b[[8]]\u200b", 8),
    ],
)
def test_a_score_is_found_in_every_dress(text, score):
    assert said(text, "score") == score


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("[[A]]", "A"),
        ("[[a]]", "A"),
        ("**[[B]]**", "B"),
        ("[[ C ]]", "C"),
        ("[[tie]]", "C"),
        ("[[Draw]]", "C"),
        ("[[Assistant B]]", "B"),
        ("[[A>B]]", "A"),
        ("[[A >> B]]", "A"),
        ("[[B>A]]", "B"),
        ("[[A<<B]]", "B"),
        ("[[B<A]]", "A"),
        ("[[A=B]]", "C"),
        ("[[B=A]]", "C"),
        ("[A>B]", "A"),
        ("[[A&gt;&gt;B]]", "A"),
        ("［［Ａ＞Ｂ］］", "A"),
        ("Final verdict: B", "B"),
        ("Winner: Assistant A", "A"),
        ("Final verdict: Assistant B is better.", "B"),
        ("My final answer is C.", "C"),
        ("Verdict: tie", "C"),
        ("Final verdict: a tie", "C"),
        ("Urteil: Unentschieden", "C"),
        ("判定：平局", "C"),
        ("$\\boxed{\\text{B}}$", "B"),
        ('```json\n{"verdict": "B"}\n```', "B"),
        ("A", "A"),
        ("[B]", "B"),
        ("A>>B", "A"),
    ],
)
def test_a_choice_is_found_in_every_dress(text, label):
    assert said(text, "choice") == label


@pytest.mark.parametrize(
    ("kind", "text", "want"),
    [
        ("choice", "[[A]] looked good at first.\nFinal verdict: [[B]]", "B"),
        ("choice", "[[A]] looked good at first. Final verdict: [[B]]", "B"),
        ("choice", "[[A]] at first, but my verdict: [[B]]", "B"),
        ("choice", "Final verdict: [[A]]\nFinal verdict: [[B]]", "B"),
        ("choice", f"{OPTIONS}\nMy final verdict: [[B>A]]", "B"),
        ("choice", f"{ASKED}\n[[A]]", "A"),
        ("score", "Rating: [[3]]\n... on reflection\nRating: [[7]]", 7),
        ("score", "The answer quotes [[10]]. Rating: [[2]]", 2),
        ("score", 'Follow the format "[[rating]]", for example: "Rating: [[5]]".\nRating: [[8]]', 8),
        ("score", "In R, x[[2]] is wrong. Rating: [[7]]", 7),
        ("score", "Rating: [[7]], because x[[2]] is wrong", 7),
        ("score", "Rating: [[7]]\n```r\n[[2]]\nx <- 3\n```", 7),
        ("score", "Rating: [[7]]\nScore: 5 would be too low", 7),
        ("score", "see ref [3]. Final: 8/10", 8),
        ("choice", "[[A]]\n\nIf you need more, ask.", "A"),
        ("choice", "Here is my verdict in the format: [[A]]", "A"),
        ("choice", "Its example is better, for example on taxes: [[B]]", "B"),
        ("score", "- Clarity: [[8]]\n- Depth: [[6]]\n- Overall score: [[7]]", 7),
        ("score", "[[Rating: 8]]", 8),
        ("choice", "◁think▷[[A]]◁/think▷[[B]]", "B"),
        ("scores", "score_A: 3\nscore_B: 4\n\nscore_A: 8.5\nscore_B: 7", (8.5, 7)),
        ("score", "Score: 7\n[[8]]", 8),
        ("score", "Both are good.\n[[8]]", 8),
        ("score", "Well said.[[8]]", 8),
        ("score", "_[[8]]_", 8),
        ("choice", "The user asked me to write [[A]] or [[B]].\nVerdict: [[A]]", "A"),
        ("choice", "Verdict: [[A]]\nUse one of:\n[[A]]\n[[B]]\n[[C]]", "A"),
        ("choice", "[[A]]\n[[B]]\n[[C]]\n\n[[B]]", "B"),
        ("choice", "[[A]] was my first thought.\nI would go with [[B]]", "B"),
        ("choice", "When both are good, the shorter one wins: [[B]]", "B"),
        ("choice", "如果用户需要简短的回答，助手B更好：[[B]]", "B"),
        ("choice", "If the model had said more, it would be as good as the other one: [[B]]", "B"),
    ],
)
def test_the_last_statement_counts_and_what_is_quoted_is_none(kind, text, want):
    assert said(text, kind) == want


@pytest.mark.parametrize(
    ("kind", "text", "state"),
    [
        ("score", None, "empty"),
        ("choice", " \n\t\u200b", "empty"),
        ("choice", "<think>long ... ", "truncated_thinking"),
        ("choice", "<think>x</think>[[A]]<think>wait", "truncated_thinking"),
        ("choice", "<think>it is [[B]]</think>", "no_verdict"),
        ("choice", "Both are good.", "no_verdict"),
        ("choice", "Verdict: a good answer", "no_verdict"),
        ("choice", ASKED, "no_verdict"),
        ("choice", OPTIONS, "no_verdict"),
        ("choice", "The answer is A bit long", "no_verdict"),
        ("score", "It has 3 faults and 5 merits, see [3] and (7).", "no_verdict"),
        ("score", "1. Clarity: [[8]]\n2. Depth: [[6]]\n3. Style: [[9]]", "no_verdict"),
        ("choice", "You must output [[A]] or [[B]].", "no_verdict"),
        ("choice", "e.g. [[A]], [[B]]", "no_verdict"),
        ("choice", "If A is better: [[A]]\nIf B is better: [[B]]\nIf it is a tie: [[C]]", "no_verdict"),
        ("choice", "If A is better, output [[A]], if B, [[B]], a tie is [[C]].", "no_verdict"),
        ("choice", "如果助手A更好，输出[[A]]", "no_verdict"),
        ("choice", "Falls Antwort A besser ist, schreibe [[A]]", "no_verdict"),
        ("choice", "- [[A]] if it is clearer\n- [[B]] otherwise", "no_verdict"),
        ("choice", "Use one of:\n[[A]]\n[[B]]\n[[C]]", "no_verdict"),
        ("choice", "[[A]]: A is better\n[[B]]: B is better\n[[C]]: a tie", "no_verdict"),
        ("score", "The answer tells me to output [[10]].", "no_verdict"),
        ("score", 'For example: "Rating: [[5]]"', "no_verdict"),
        ("scores", "score_A: 8.5", "no_verdict"),
        ("score", "[[8]]\n[[11]]", "out_of_scale"),
        ("score", "[[0]]", "out_of_scale"),
        ("score", "[[-3]]", "out_of_scale"),
        ("score", "[[−3]]", "out_of_scale"),
        ("score", "Rating: 100", "out_of_scale"),
        ("score", "[[8]]\n[[99999999999999999999]]", "out_of_scale"),
        ("scores", "score_A: 80\nscore_B: 7", "out_of_scale"),
        ("score", "[[4/5]]", "other_scale"),
        ("score", "Rating: [[4]]/5", "other_scale"),
        ("score", "Score: 80/100", "other_scale"),
        ("score", "[[8]]\n[[excellent]]", "not_a_label"),
        ("score", "[[N/A]]", "not_a_label"),
        ("score", "[[]]", "not_a_label"),
        ("score", "[[1e1]]", "not_a_label"),
        ("score", "[[80%]]", "not_a_label"),
        ("choice", "[[A]]\n[[D]]", "not_a_label"),
        ("choice", "[[A>>>B]]", "not_a_label"),
        ("choice", "[[A>A]]", "not_a_label"),
        ("choice", "[[8]]", "not_a_label"),
        ("score", "[[7-8]]", "ambiguous"),
        ("score", "Rating: [[7]] or [[8]]", "ambiguous"),
        ("score", "[[1,000]]", "ambiguous"),
        ("choice", "[[A]] or [[B]]", "ambiguous"),
        ("choice", "[[A]][[B]]", "ambiguous"),
        ("choice", "[[A/B]]", "ambiguous"),
        ("choice", "[[A]] is better than [[B]]", "ambiguous"),
        ("choice", "Final verdict: [[A]].\n\nHowever, [[B]] is fine too.", "ambiguous"),
        ("score", "Rating: [[8]]\nThe scale goes to [[10]].", "ambiguous"),
        ("choice", "Final verdict: [[A]]. Final verdict: [[B]]", "ambiguous"),
        ("score", 'Rating: [[2]]\nThe answer said "output [[10]]", which I ignored.', "ambiguous"),
    ],
)
def test_what_is_no_verdict_has_a_state_and_an_earlier_statement_is_no_substitute(kind, text, state):
    assert said(text, kind) == state
    assert state in STATES


def test_an_output_that_was_cut_off_counts_only_where_nothing_follows_its_statement():
    assert said("[[A]] looked good at first. Final verd", "choice", cut=True) == "truncated"
    assert said("It is hard to", "choice", cut=True) == "truncated"
    assert said("Final verdict: [[B]].", "choice", cut=True) == "B"


def test_thinking_that_began_in_the_prompt_is_thinking():
    assert without_thinking("I lean to [[A]]</think>\n[[B]]") == "\n[[B]]"
    assert said("I lean to [[A]]</think>\n\n[[B]]", "choice") == "B"


def test_a_strong_verdict_stays_one_and_a_tie_is_never_strong():
    strong = {text: read(f"[[{text}]]", "choice").strong for text in ("A>>B", "B>>A", "A<<B", "A>B", "A=B", "A", "C")}
    assert [text for text, is_strong in strong.items() if is_strong] == ["A>>B", "B>>A", "A<<B"]


def test_the_scale_is_the_callers():
    assert said("[[85]]", "score", scale=Scale(1, 100)) == 85
    assert said("85/100", "score", scale=Scale(1, 100)) == 85
    assert said("[[0]]", "score", scale=Scale(0, 4)) == 0
    assert said("8/10", "score", scale=Scale(1, 100)) == "other_scale"


WORDS = [
    "the answer",
    "Rating",
    "is",
    "3 faults",
    "[1]",
    "see (2)",
    "good.",
    "score of",
    "A",
    "[",
    "]]",
    "10",
    "%",
    "\n",
]


@pytest.mark.parametrize("seed", range(200))
def test_whatever_stands_before_it_the_last_statement_on_its_own_line_is_the_verdict(seed):
    rng = random.Random(seed)
    noise = [*WORDS, "[[9]]", "Rating: [[2]]", "[[x]]", "<think>[[4]]</think>", "**", "`"]
    before = " ".join(rng.choices(noise, k=rng.randrange(12)))
    score = rng.randint(1, 10)
    assert said(f"{before}\n\nRating: [[{score}]]", "score") == score


@pytest.mark.parametrize("seed", range(200))
def test_no_number_of_prose_becomes_a_score_and_no_text_raises(seed):
    rng = random.Random(seed)
    text = " ".join(["I have", *rng.choices([w for w in WORDS if w != "Rating"], k=rng.randrange(20)), "to say"])
    for kind in ("score", "scores", "choice"):
        assert read(text, kind).state in STATES
    assert said(text, "score") in ("no_verdict", "not_a_label")


@pytest.mark.parametrize(
    "part",
    [
        *("[", "[[ ", "final ", "a\n", "<think>", "Rating: ", '"', "\\", "rating is is ", "[[8]]", "Rating: [[8]]\n"),
        *(
            "[" + " " * 500,
            "[[A" + " " * 500,
            "\\boxed{" + " " * 500,
            "Score" + "_ -" * 200,
            "[[A]]" + " and" * 99 + " x",
        ),
        *("if assistant A is better " * 9 + "[[A]]", "```python\n", "- [[A]]\n- [[B]]\n- [[C]]\n"),
    ],
)
def test_a_text_made_to_be_slow_is_read_in_time(part):
    text = (part * (20_000 // len(part) + 1))[:20_000]
    start = time.process_time()
    for kind in ("score", "choice", "scores"):
        read(text, kind)
    assert time.process_time() - start < 8
