"""Whether verdicts over k responses fit one ordering with ties: exact counts over all k-subsets, with bitsets.

A *lane* is one question under one verdict rule and tolerance. For every pair i < j of a lane a word of bits says
which l > j make a triple without fault. A k-subset is free of faults if all its triples are, so the faultless
subsets are found by intersecting these words, level by level, for all lanes at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import combinations, product
from math import comb
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

UNKNOWN: Final = 2
"""In relations: the pair is not valid (so is every number but +1, 0 and −1)."""
_SIGNS: Final = (1, 0, -1)

Relations = NDArray[np.int8]
Counts = NDArray[np.int64]
Words = NDArray[Any]

MOST_RESPONSES: Final = 100
MOST_SUBSETS: Final = 6_000_000
"""Beyond either (responses; (k−1)-subsets of one question) subsets are sampled instead of counted."""

_PARENTS_BYTES: Final = 1_000_000
_FEWEST_LANES: Final = 16
_BLOCK_WORDS: Final = 16_384


def is_transitive(ij: int, jk: int, ik: int) -> bool:
    """Whether three verdicts on i, j, k can come from one ordering with ties (+1 first, 0 tie, −1 second).

    i>j and j<k say nothing about i and k; otherwise (i, k) must have the sign that the other two imply.
    """
    return ij * jk == -1 or ik == _implied(ij, jk)


def is_circular(ij: int, jk: int, ik: int) -> bool:
    """The reference's type: i?k is strictly the opposite of what i?j and j?k imply."""
    return ij * jk != -1 and ik * _implied(ij, jk) == -1


def is_equivalence(ij: int, jk: int, ik: int) -> bool:
    """The reference's other type: every contradiction that is not circular."""
    return not is_transitive(ij, jk, ik) and not is_circular(ij, jk, ik)


def is_strict_cycle(ij: int, jk: int, ik: int) -> bool:
    """a>b, b>c, c>a: does not depend on the numbering."""
    return ij == jk == -ik != 0


def is_chain(ij: int, jk: int, ik: int) -> bool:
    """a>b, b>c, a=c: a chain with tied ends; does not depend on the numbering."""
    return not is_transitive(ij, jk, ik) and (ij, jk, ik).count(0) == 1


def is_ties(ij: int, jk: int, ik: int) -> bool:
    """a=b, b=c, a≠c: ties that are not transitive; does not depend on the numbering."""
    return (ij, jk, ik).count(0) == 2


Fault = Callable[[int, int, int], bool]
FAULTS: Final[dict[str, Fault]] = {
    "ratio": lambda ij, jk, ik: not is_transitive(ij, jk, ik),
    "circular": is_circular,
    "equivalence": is_equivalence,
    "strict_cycle": is_strict_cycle,
    "chain": is_chain,
    "ties": is_ties,
}
"""What may be wrong with a triple i < j < k, by the name of its metric."""


@dataclass(frozen=True, slots=True)
class SubsetCounts:
    """Of the k-subsets of each lane: how many have every pair valid, and how many of these hold a fault."""

    complete: Counts
    faulty: Mapping[str, Counts]


def count_subsets(
    relations: Relations, sizes: Sequence[int], faults: Sequence[str] = tuple(FAULTS)
) -> dict[int, SubsetCounts]:
    """Count complete and faulty k-subsets exactly.

    Args:
        relations: (lanes, n, n), entry [·, i, j] is +1, 0 or −1 as i is better than j, equal, or worse, and any
            other number where the pair is not valid. Only i < j is read, in the order of the responses' ids.
        sizes: the k, each 3 or more.
        faults: names out of FAULTS.

    Returns:
        By k, arrays over lanes.
    """
    lanes, n = relations.shape[:2]
    sizes = sorted(set(sizes))
    complete = {k: np.full(lanes, comb(n, k), dtype=np.int64) for k in sizes}
    free = {k: {name: np.zeros(lanes, dtype=np.int64) for name in faults} for k in sizes}
    deepest = max(sizes, default=3)
    width = max(comb(n, max(deepest - 2, 2)), 1) * _words(n)[1] * _words(n)[0].itemsize
    step = max(_PARENTS_BYTES // width, _FEWEST_LANES)
    for start in range(0, lanes if n >= 3 else 0, step):
        lane = slice(start, start + step)
        marks = _Marks.of(relations[lane])
        for name in faults:
            for k, count in _count_free(marks.faultless(FAULTS[name]), n, sizes).items():
                free[k][name][lane] = count
        holes = marks.holes()
        if holes.any():
            for k, count in _count_free(marks.faultless(None)[:, :, holes], n, sizes).items():
                complete[k][lane][holes] = count
    return {k: SubsetCounts(complete[k], {name: complete[k] - free[k][name] for name in faults}) for k in sizes}


def must_sample(responses: int, k: int) -> bool:
    """Whether the k-subsets of so many responses are too many to count."""
    return responses > MOST_RESPONSES or comb(responses, k - 1) > MOST_SUBSETS


def sample_subsets(
    relations: Relations, k: int, draws: int, rng: np.random.Generator, faults: Sequence[str] = tuple(FAULTS)
) -> SubsetCounts:
    """The same from `draws` random k-subsets of each lane: counts among the drawn, every subset equally likely."""
    lanes, n = relations.shape[:2]
    drawn = np.sort(np.argpartition(rng.random((draws, n)), k - 1, axis=1)[:, :k], axis=1)
    complete = np.ones((lanes, draws), dtype=bool)
    faulty = {name: np.zeros((lanes, draws), dtype=bool) for name in faults}
    tables = {name: np.array([FAULTS[name](*signs) for signs in product((-1, 0, 1), repeat=3)]) for name in faults}
    for i, j in combinations(range(k), 2):
        complete &= np.abs(relations[:, drawn[:, i], drawn[:, j]].astype(np.int16)) <= 1
    for i, j, m in combinations(range(k), 3):
        signs = [relations[:, drawn[:, x], drawn[:, y]].astype(np.int16) for x, y in ((i, j), (j, m), (i, m))]
        code = np.clip(9 * signs[0] + 3 * signs[1] + signs[2] + 13, 0, 26)
        for name in faults:
            faulty[name] |= tables[name][code]
    return SubsetCounts(complete.sum(axis=1), {name: (complete & bad).sum(axis=1) for name, bad in faulty.items()})


def _implied(ij: int, jk: int) -> int:
    return (ij + jk > 0) - (ij + jk < 0)


def _words(n: int) -> tuple[np.dtype[Any], int]:
    """The word type for n bits, and how many words they take."""
    return (np.dtype(np.uint32), 1) if n <= 32 else (np.dtype(np.uint64), -(-n // 64))


@dataclass(frozen=True, slots=True)
class _Marks:
    """For every response i a word of the l > i with i?l among some signs: signs → (n, words, lanes)."""

    words: Mapping[frozenset[int], Words]

    @classmethod
    def of(cls, relations: Relations) -> "_Marks":
        lanes, n = relations.shape[:2]
        word, words = _words(n)
        size = word.itemsize * 8
        padded = np.full((lanes, n, words * size), UNKNOWN, dtype=np.int8)
        padded[:, :, :n] = relations
        after = np.packbits(np.arange(words * size)[None] > np.arange(n)[:, None], axis=1, bitorder="little")
        after = after.view(word.newbyteorder("<")).astype(word)[:, :, None]
        marks = {}
        for sign in _SIGNS:
            packed = np.packbits(padded == sign, bitorder="little").view(word.newbyteorder("<"))
            marks[frozenset({sign})] = (
                packed.reshape(lanes, n, words).transpose(1, 2, 0).astype(word, order="C") & after
            )
        for some in (_SIGNS[:2], _SIGNS[1:], _SIGNS[::2], _SIGNS):
            marks[frozenset(some)] = reduce(np.bitwise_or, (marks[frozenset({sign})] for sign in some))
        return cls(marks)

    def holes(self) -> NDArray[np.bool_]:
        """Which lanes have a pair that is not valid."""
        valid = self.words[frozenset(_SIGNS)]
        return _bits(valid) < comb(len(valid), 2)

    def faultless(self, fault: Fault | None) -> Words:
        """(pairs, words, lanes): the l > j for which i, j, l has three valid pairs and not this fault."""
        n, words, lanes = self.words[frozenset({0})].shape
        i, j = np.triu_indices(n, 1)
        dtype = self.words[frozenset({0})].dtype
        word, shift = j // (dtype.itemsize * 8), (j % (dtype.itemsize * 8)).astype(dtype)
        free = np.zeros((len(i), words, lanes), dtype=dtype)
        for ij in _SIGNS:
            fine = np.zeros_like(free)
            for signs_j, signs_i in _fine_triples(ij, fault):
                term = self.words[signs_j].take(j, axis=0)
                term &= self.words[signs_i].take(i, axis=0)
                fine |= term
            here = self.words[frozenset({ij})][i, word]
            here >>= shift[:, None]
            here &= dtype.type(1)
            fine &= np.negative(here, out=here)[:, None]
            free |= fine
        return free


def _fine_triples(ij: int, fault: Fault | None) -> list[tuple[frozenset[int], frozenset[int]]]:
    """For i?j: which j?l go with which i?l, as (signs of j?l, signs of i?l)."""
    groups: dict[frozenset[int], set[int]] = {}
    for jl in _SIGNS:
        allowed = frozenset(il for il in _SIGNS if fault is None or not fault(ij, jl, il))
        groups.setdefault(allowed, set()).add(jl)
    return [(frozenset(others), allowed) for allowed, others in groups.items() if allowed]


@dataclass(frozen=True, slots=True)
class _Level:
    """The r-subsets of n responses in lexicographic order, each as an extension of an (r−1)-subset by a later one.

    Attributes:
        members: (subsets, r).
        parent: (subsets,), the number of the subset without its last member.
        sibling: (subsets,), the number of the subset without its last but one.
        ends: (subsets,), the number of the pair of its last two.
    """

    members: NDArray[np.int16]
    parent: NDArray[np.int32]
    sibling: NDArray[np.int32]
    ends: NDArray[np.int32]


@lru_cache(maxsize=4)
def _level(n: int, r: int) -> _Level:
    before = _level(n, r - 1).members if r > 3 else np.stack(np.triu_indices(n, 1), axis=1).astype(np.int16)
    room = n - 1 - before[:, -1].astype(np.int32)
    parent = np.repeat(np.arange(len(before), dtype=np.int32), room)
    further = np.arange(len(parent), dtype=np.int32) - np.repeat(np.cumsum(room, dtype=np.int32) - room, room) + 1
    members = np.column_stack([before[parent], before[parent, -1] + further.astype(np.int16)])
    number = np.zeros((n, n), dtype=np.int32)
    number[np.triu_indices(n, 1)] = np.arange(comb(n, 2))
    # Subsets that differ in their last member only follow each other, so a sibling lies that much further on.
    return _Level(members, parent, parent + further, number[members[:, -2], members[:, -1]])


def _count_free(free: Words, n: int, sizes: Sequence[int]) -> dict[int, Counts]:
    """For each k the number of k-subsets all of whose triples are in `free`, by lane. `sizes` ascend."""
    counts = {3: _bits(free)} if 3 in sizes else {}
    joiners = free
    for k in range(4, max(sizes, default=3) + 1):
        joiners, count = _extend(joiners, free, _level(n, k - 1), keep=k < sizes[-1])
        if k in sizes:
            counts[k] = count
    return counts


def _extend(joiners: Words, free: Words, level: _Level, keep: bool) -> tuple[Words, Counts]:
    """Who may join an (r−1)-subset, as words, to the same for r-subsets; with the number of all that may, by lane.

    A faultless S∪{m} may be joined by those who may join S, those who may join S without its last member s but with
    m, and those who may join s and m: together these are all its triples. Words are empty where S∪{m} has a fault.
    """
    words, lanes = free.shape[1:]
    size = free.dtype.itemsize * 8
    total = np.zeros(lanes, dtype=np.int64)
    out = np.zeros((len(level.parent) if keep else 0, words, lanes), dtype=free.dtype)
    step = max(_BLOCK_WORDS // (words * lanes), 1)
    alive: NDArray[np.bool_] = np.any(joiners, axis=(1, 2))
    rows = np.flatnonzero(alive[level.parent] & alive[level.sibling])
    last = level.members[rows, -1].astype(np.int64)
    word = last // size
    bit = free.dtype.type(1) << (last % size).astype(free.dtype)
    for start in range(0, len(rows), step):
        block = slice(start, start + step)
        row = rows[block]
        joint = joiners.take(level.parent[row], axis=0)
        own = joint[:, 0] if words == 1 else joint[np.arange(len(joint)), word[block]]
        joins = (own & bit[block, None]).astype(bool)[:, None]
        joint &= joiners.take(level.sibling[row], axis=0)
        joint &= free.take(level.ends[row], axis=0)
        total += _sum(np.bitwise_count(joint) * joins)
        if keep:
            out[row] = joint * joins
    return out, total


def _bits(words: Words) -> Counts:
    """How many bits are set, by lane."""
    return _sum(np.bitwise_count(words))


def _sum(counts: NDArray[np.uint8]) -> Counts:
    """Sums by lane of numbers up to 64; short sums in 16 bits, which take half the time."""
    short = counts.shape[0] * counts.shape[1] * 64 < 2**16
    return counts.sum(axis=(0, 1), dtype=np.uint16 if short else np.int64).astype(np.int64)
