"""Counts over k-subsets against the plain definition, by brute force."""

import json
from itertools import combinations, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_inputs import shared

from trustjudge_ray.analysis.chance import chance_of_fault
from trustjudge_ray.analysis.transitivity import (
    FAULTS,
    UNKNOWN,
    count_subsets,
    is_chain,
    is_circular,
    is_equivalence,
    is_strict_cycle,
    is_ties,
    is_transitive,
    must_sample,
    sample_subsets,
)

TRIPLES = list(product((1, 0, -1), repeat=3))
SIGN = {">": 1, "=": 0, "<": -1}
NUMBERING_FREE = ("ratio", "strict_cycle", "chain", "ties")


def sign(x):
    return (x > 0) - (x < 0)


def naive(relations, k):
    """Complete k-subsets of one lane and, by fault, those that hold it: the definition, subset by subset."""
    complete, faulty = 0, dict.fromkeys(FAULTS, 0)
    for subset in combinations(range(len(relations)), k):
        if any(abs(int(relations[i, j])) > 1 for i, j in combinations(subset, 2)):
            continue
        complete += 1
        for name, fault in FAULTS.items():
            faulty[name] += any(
                fault(int(relations[i, j]), int(relations[j, m]), int(relations[i, m]))
                for i, j, m in combinations(subset, 3)
            )
    return complete, faulty


def random_relations(rng, lanes, n, share_unknown=0.1):
    known = (1 - share_unknown) * np.array([0.4, 0.25, 0.35])
    return rng.choice([1, 0, -1, UNKNOWN], size=(lanes, n, n), p=[*known, share_unknown]).astype(np.int8)


def assert_as_naive(relations, sizes=(3, 4, 5)):
    found = count_subsets(relations, sizes)
    for k, (lane, one) in product(sizes, enumerate(relations)):
        complete, faulty = naive(one, k)
        assert found[k].complete[lane] == complete
        assert {name: int(count[lane]) for name, count in found[k].faulty.items()} == faulty


@pytest.mark.parametrize("signs", TRIPLES)
def test_transitive_iff_some_weak_ordering_realises_it(signs):
    realisable = {(sign(i - j), sign(j - k), sign(i - k)) for i, j, k in product(range(3), repeat=3)}
    assert is_transitive(*signs) == (signs in realisable)


def test_the_reference_types_are_the_references():
    for line in shared("oracle/functions/triples.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        signs = tuple(SIGN[row[name]] for name in ("ij", "jk", "ik"))
        kind = "circular" if is_circular(*signs) else "equivalence" if is_equivalence(*signs) else None
        assert (is_transitive(*signs), kind) == (row["transitive"], row["violation"])


def test_the_14_intransitive_triples_are_2_cycles_6_chains_and_6_ties_and_no_triple_is_two_of_them():
    kinds = [(is_strict_cycle(*t), is_chain(*t), is_ties(*t)) for t in TRIPLES]
    assert np.sum(kinds, axis=0).tolist() == [2, 6, 6]
    assert [sum(kind) == 1 for kind in kinds] == [not is_transitive(*t) for t in TRIPLES]


def test_cycle_chain_and_ties_stay_what_they_are_when_responses_are_renumbered():
    for ij, jk, ik in TRIPLES:
        full = np.array([[0, ij, ik], [-ij, 0, jk], [-ik, -jk, 0]])
        kinds = set()
        for order in permutations(range(3)):
            renumbered = full[np.ix_(order, order)]
            signs = (int(renumbered[0, 1]), int(renumbered[1, 2]), int(renumbered[0, 2]))
            kinds.add(tuple(FAULTS[name](*signs) for name in NUMBERING_FREE))
        assert len(kinds) == 1


@pytest.mark.parametrize("n", [3, 4, 6, 8])
def test_counts_are_those_of_the_definition(n):
    relations = random_relations(np.random.default_rng(n), 6, n)
    relations[0] = np.where(relations[0] == UNKNOWN, 1, relations[0])
    assert_as_naive(relations)


@settings(max_examples=25, deadline=None)
@given(st.integers(3, 7), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3]))
def test_counts_are_those_of_the_definition_on_any_relations(n, seed, share_unknown):
    assert_as_naive(random_relations(np.random.default_rng(seed), 2, n, share_unknown))


@pytest.mark.parametrize("n", [33, 64, 65, 100])
def test_responses_beyond_one_word_of_bits_are_counted(n):
    """Seven responses spread over n, the others never compared: the same counts as the seven alone."""
    rng = np.random.default_rng(n)
    alone = random_relations(rng, 3, 7, 0.05)
    places = np.sort(rng.choice(n, 7, replace=False))
    places[-1] = n - 1
    wide = np.full((3, n, n), UNKNOWN, dtype=np.int8)
    wide[np.ix_(range(3), places, places)] = alone
    few, many = count_subsets(alone, [3, 4, 5]), count_subsets(wide, [3, 4, 5])
    for k in (3, 4, 5):
        assert many[k].complete.tolist() == few[k].complete.tolist()
        for name in FAULTS:
            assert many[k].faulty[name].tolist() == few[k].faulty[name].tolist()


def test_one_ordering_has_no_fault_however_many_lanes():
    order = np.sign(np.arange(20)[None, :] - np.arange(20)[:, None]).astype(np.int8)
    found = count_subsets(np.repeat(order[None], 70, axis=0), [3, 5])
    assert found[5].complete.tolist() == [15504] * 70
    assert all(not count.any() for k in (3, 5) for count in found[k].faulty.values())


def test_classes_that_do_not_depend_on_numbering_are_counted_alike_under_any():
    rng = np.random.default_rng(3)
    upper = np.triu(random_relations(rng, 1, 7, 0)[0], 1)
    full = upper - upper.T
    order = rng.permutation(7)
    plain, renumbered = (count_subsets(r[None].astype(np.int8), [3, 4]) for r in (full, full[np.ix_(order, order)]))
    for k, name in product((3, 4), NUMBERING_FREE):
        assert plain[k].faulty[name] == renumbered[k].faulty[name]


def test_sampled_subsets_estimate_the_counted_share():
    relations = random_relations(np.random.default_rng(0), 2, 12, 0.02)
    exact = count_subsets(relations, [4])[4]
    drawn = sample_subsets(relations, 4, 4000, np.random.default_rng(1))
    for name in FAULTS:
        share = exact.faulty[name] / exact.complete
        assert np.abs(drawn.faulty[name] / drawn.complete - share).max() < 0.04


def test_only_what_is_too_much_to_count_is_sampled():
    assert [must_sample(n, k) for n, k in ((100, 5), (101, 3), (20, 8), (60, 7))] == [False, True, False, True]


@pytest.mark.parametrize("tie_share", [0.0, 0.2, 1.0])
def test_chance_is_the_share_over_all_relations_weighted_by_how_likely_they_are(tie_share):
    for k in (3, 4):
        pairs = list(combinations(range(k), 2))
        expected = 0.0
        for signs in product((1, 0, -1), repeat=len(pairs)):
            relations = np.full((k, k), UNKNOWN)
            for (i, j), value in zip(pairs, signs, strict=True):
                relations[i, j] = value
            weight = np.prod([tie_share if value == 0 else (1 - tie_share) / 2 for value in signs])
            expected += weight * naive(relations, k)[1]["ratio"]
        assert chance_of_fault(tie_share, k) == pytest.approx(expected, abs=1e-12)
