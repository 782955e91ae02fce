"""The claims of docs/theory.md as properties, through the functions that a run uses."""

import numpy as np
import pytest
from comparisons import game, table
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trustjudge_ray.analysis.scoring import Readout, baseline, entropy, expected, mode
from trustjudge_ray.analysis.verdicts import A_BETTER, B_BETTER, TIE, outcomes, pairs_of

LABELS = 5
VALUES = np.arange(1.0, LABELS + 1)

distributions = st.lists(st.floats(0.001, 1), min_size=LABELS, max_size=LABELS).map(lambda w: np.array(w) / sum(w))
perplexities = st.floats(1.01, 50)


def readout(*rows, emitted=None):
    said = np.array([row.argmax() for row in rows]) if emitted is None else np.array(emitted)
    return Readout(np.stack(rows), said, VALUES)


def gap_to_second(p):
    return np.sort(p)[-1] - np.sort(p)[-2]


@given(distributions, st.floats(0.05, 0.95))
def test_one_mode_different_expectations(p, share):
    """Mass moved from the least probable label to another that is not the mode moves the expectation alone."""
    assume(gap_to_second(p) > 1e-3)
    source, target = (place for place in np.argsort(p)[:2])
    q = p.copy()
    moved = share * min(p[source], gap_to_second(p))
    q[source], q[target] = p[source] - moved, p[target] + moved
    both = readout(p, q)
    assert mode(both)[0] == mode(both)[1]
    assert abs(np.diff(expected(both))[0]) == pytest.approx(moved * abs(source - target))
    assert np.diff(expected(both))[0] != 0


@given(distributions, st.floats(0.1, 0.9))
def test_one_discrete_score_different_entropies(p, surer):
    """Mixing with certainty of the mode leaves every discrete score and lowers the entropy."""
    assume(gap_to_second(p) > 1e-3)
    q = (1 - surer) * p + surer * np.eye(LABELS)[p.argmax()]
    both = readout(p, q)
    for rule in (mode, baseline):
        assert rule(both)[0] == rule(both)[1]
    assert entropy(both.probabilities)[1] < entropy(both.probabilities)[0]


@given(
    st.lists(st.one_of(st.just(0.0), st.floats(0.01, 1)), min_size=20, max_size=20).filter(any),
    st.lists(st.integers(0, 4), min_size=20, max_size=20),
)
def test_merging_labels_never_adds_entropy(weights, coarse):
    p = np.array(weights) / sum(weights)
    merged = np.bincount(coarse, weights=p, minlength=5)
    fine, rough = entropy(np.stack([p]))[0], entropy(np.stack([merged]))[0]
    possible = [label for label, mass in zip(coarse, p, strict=True) if mass > 0]
    if len(set(possible)) == len(possible):
        assert rough == pytest.approx(fine)
    else:
        assert rough < fine


@given(distributions, st.integers(0, LABELS - 2), st.floats(0.05, 1))
def test_dominance_is_kept_by_the_expectation(p, source, share):
    q = p.copy()
    moved = share * p[source]
    q[source] -= moved
    q[source + 1] += moved
    lower, higher = expected(readout(p, q))
    assert higher > lower


def test_an_expectation_does_not_hold_the_distribution():
    both = readout(np.array([0, 0, 1.0, 0, 0]), np.array([0.5, 0, 0, 0, 0.5]))
    assert expected(both).tolist() == [3, 3]
    assert entropy(both.probabilities) == pytest.approx([0, np.log(2)])


def confidences(perplexity):
    """Weights of the two orders, ∝ 1/PPL."""
    weight = 1 / np.asarray(perplexity)
    return weight / weight.sum()


@given(perplexities, perplexities, perplexities)
def test_perplexity_lowers_the_entropy_of_an_ambiguous_pair(one, other, third):
    uncertain = entropy(np.stack([confidences((one, other))]))[0]
    if abs(np.log(one / other)) > 1e-3:
        assert uncertain < np.log(2)
    assert entropy(np.stack([confidences((one, one))]))[0] == pytest.approx(np.log(2), rel=1e-15)
    gaps = [abs(np.log(one / x)) for x in (other, third)]
    if abs(gaps[0] - gaps[1]) > 1e-3:
        further = entropy(np.stack([confidences((one, third))]))[0]
        assert (further < uncertain) == (gaps[1] > gaps[0])


def ambiguous(first, second, tokens=7):
    """The two orders emit a and b; with these perplexities."""
    rows = []
    for said, shown, perplexity in (("a", ("x", "y"), first), ("b", ("y", "x"), second)):
        more = {"cumulative_logprob": -tokens * float(np.log(perplexity)), "output_tokens": tokens}
        rows.append(game("q", *shown, "tie", emitted=said, **more))
    return pairs_of(table(rows))


@settings(max_examples=25, deadline=None)
@given(perplexities, perplexities)
def test_ppl_rules_decide_for_the_more_confident_order(first, second):
    assume(abs(first - second) > 1e-6)
    weight = confidences((first, second))
    wanted = A_BETTER if weight[0] > weight[1] else B_BETTER
    for rule in ("ppl", "ppl_tiebreak"):
        assert outcomes(ambiguous(first, second), rule, 0.0).tolist() == [wanted]
        assert outcomes(ambiguous(first, first), rule, 0.0).tolist() == [TIE]
    assert outcomes(ambiguous(first, second), "baseline", 0.0).tolist() == [TIE]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), st.floats(0, 3))
def test_a_slot_preference_cancels(weights, preference):
    """The odds of the first slot are multiplied alike in both orders: it never makes the worse one win."""
    x, y, tie = np.array(weights) / sum(weights)
    assume(x == y or abs(x - y) > 1e-6)
    lift = np.exp(preference)
    x_first, y_first = np.array([x * lift, y, tie]), np.array([y * lift, x, tie])
    rows = [game("q", "x", "y", tuple(x_first / x_first.sum())), game("q", "y", "x", tuple(y_first / y_first.sum()))]
    alike = np.array([lift, 1, 0.5]) / (lift + 1.5)
    rows += [game("equal", *shown, tuple(alike)) for shown in (("x", "y"), ("y", "x"))]
    pairs = pairs_of(table(rows))
    for rule in ("normalised", "likelihood"):
        equal, unequal = outcomes(pairs, rule, 0.0)
        assert equal == TIE
        assert unequal in (TIE, np.sign(x - y))
        if preference == 0 and tie < max(x, y) - 1e-6:
            assert unequal == np.sign(x - y)
