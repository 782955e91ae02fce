"""Cycles: three answers to a question whose three verdicts fit no ordering with ties, the worst first."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, permutations, product
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis.transitivity import MOST_RESPONSES, UNKNOWN, is_chain, is_strict_cycle, is_ties
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.report.contradictions import LISTED, Contradictions, names, valid_verdicts

_TRIPLES_AT_ONCE: Final = 2_000_000
Indices = NDArray[np.int64]

_TYPES: Final = {
    "strict_cycle": (is_strict_cycle, (1, 1, -1)),
    "chain": (is_chain, (1, 1, 0)),
    "ties": (is_ties, (0, 0, 1)),
}
"""By type, the worst first: which three verdicts (on 1 and 2, 2 and 3, 1 and 3) are of it, and how it is told: x over y
over z over x; x over y over z equal to x; x equal to y equal to z below x."""


def _codes() -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """By code of three verdicts (see `_code`): the type's number from 1 (0: no contradiction), and which of the three
    answers are x, y and z."""
    rank, told = np.zeros(27, dtype=np.int8), np.zeros((27, 3), dtype=np.int8)
    for signs in product((-1, 0, 1), repeat=3):
        pair = {(0, 1): signs[0], (1, 2): signs[1], (0, 2): signs[2]}
        pair |= {(j, i): -sign for (i, j), sign in pair.items()}
        for number, (is_it, wanted) in enumerate(_TYPES.values(), start=1):
            if is_it(*signs):
                code = int(_code(*(np.array(sign) for sign in signs)))
                fits = [o for o in permutations(range(3)) if _told(pair, o) == wanted]
                rank[code], told[code] = number, fits[0]
    return rank, told


def _told(pair: Mapping[tuple[int, int], int], order: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = order
    return pair[x, y], pair[y, z], pair[x, z]


def _code(first: NDArray[np.int8], second: NDArray[np.int8], third: NDArray[np.int8]) -> Indices:
    """0 … 26 for three verdicts of −1, 0, 1 each; 13, no contradiction, where one is UNKNOWN."""
    code = 9 * first.astype(np.int64) + 3 * second + third + 13
    return np.where((first == UNKNOWN) | (second == UNKNOWN) | (third == UNKNOWN), 13, code)


_RANK, _ORDER = _codes()


def cycles(verdicts: pl.DataFrame, settings: AnalysisConfig, listed: int = LISTED) -> list[Contradictions]:
    """Three answers to a question whose three verdicts fit no ordering with ties, for every judge and protocol.

    Ordered by type (`strict_cycle`: x over y over z over x; `chain`: x over y over z, and x equal to z; `ties`: x equal
    to y equal to z, and x over z), then by strength, the smallest of the three verdicts' margins. Rules as in
    `conflicts`. Questions with over 100 compared answers are left out, and counted.

    Returns:
        `rows` with question_id, type, x, y, z and model_x, model_y, model_z, margin_xy, margin_yz, margin_xz, strength.
    """
    found = []
    for judge, protocol in names(verdicts):
        rule, tolerance, valid = valid_verdicts(verdicts, judge, protocol, settings)
        field = _Field.of(valid)
        best = _Best.empty()
        cases, counts = 0, np.zeros(4, dtype=np.int64)
        for some, closed in field.contradictions():
            cases += closed
            counts += np.bincount(some.rank, minlength=4)
            best = best.joined(some, listed)
        by_type = {name: int(n) for name, n in zip(_TYPES, counts[1:], strict=True) if n}
        found.append(
            Contradictions(
                "cycles", judge, protocol, None, None, rule, None, tolerance, cases, int(counts[1:].sum()), by_type,
                field.too_many, field.told(best),
            )
        )  # fmt: skip
    return found


@dataclass(frozen=True, slots=True)
class _Best:
    """Contradictory triples: rank of the type, smallest margin (−inf where unknown), question, three answers (numbers
    in the question), code."""

    rank: NDArray[np.int8]
    strength: NDArray[np.float64]
    question: Indices
    answers: Indices
    code: Indices

    @classmethod
    def empty(cls) -> "_Best":
        none = np.zeros(0, dtype=np.int64)
        return cls(none.astype(np.int8), none.astype(np.float64), none, none.reshape(0, 3), none)

    def joined(self, more: "_Best", listed: int) -> "_Best":
        """The worst of both, in order; of equal ones the first by question and answers."""
        rank = np.concatenate([self.rank, more.rank])
        strength = np.concatenate([self.strength, more.strength])
        question = np.concatenate([self.question, more.question])
        answers = np.concatenate([self.answers, more.answers])
        code = np.concatenate([self.code, more.code])
        order = np.lexsort((*answers.T[::-1], question, -strength, rank))[:listed]
        return _Best(rank[order], strength[order], question[order], answers[order], code[order])


@dataclass(frozen=True, slots=True)
class _Field:
    """The valid pairs of one judge and protocol as entries of a table for each question.

    Attributes:
        answers: question_id, response, model, question (0 … Q−1), place (0 … n−1), by question and id.
        width: (Q,), how many answers each question has that are in two pairs or more.
        question, i, j: (P,), i < j; sign, margin: (P,), of i against j.
        too_many: questions that are wider than can be looked through.
    """

    answers: pl.DataFrame
    width: Indices
    question: Indices
    i: Indices
    j: Indices
    sign: NDArray[np.int8]
    margin: NDArray[np.float64]
    too_many: int

    @classmethod
    def of(cls, valid: pl.DataFrame) -> "_Field":
        sides = [valid.select("question_id", response=f"response_{side}", model=f"model_{side}") for side in ("a", "b")]
        answers = (
            pl.concat(sides)
            .group_by("question_id", "response")
            .agg(pl.col("model").min(), pairs=pl.len())
            .filter(pl.col("pairs") > 1)
            .sort("question_id", "response")
            .with_columns(
                question=pl.col("question_id").rle_id().cast(pl.Int64),
                place=pl.int_range(pl.len()).over("question_id"),
            )
        )
        place = answers.select("question_id", "response", "question", "place")
        pairs = valid.join(place, left_on=["question_id", "response_a"], right_on=["question_id", "response"]).join(
            place.drop("question"),
            left_on=["question_id", "response_b"],
            right_on=["question_id", "response"],
            suffix="_b",
        )
        question, a, b = (pairs[name].to_numpy() for name in ("question", "place", "place_b"))
        width = np.bincount(answers["question"].to_numpy())
        flip = np.where(a < b, 1, -1)
        return cls(
            answers, width, question, np.minimum(a, b), np.maximum(a, b),
            (pairs["outcome"].to_numpy() * flip).astype(np.int8),
            pairs["verdict_margin"].fill_null(-np.inf).to_numpy(), int((width > MOST_RESPONSES).sum()),
        )  # fmt: skip

    def contradictions(self) -> Iterator[tuple[_Best, int]]:
        """Some questions' contradictory triples after the other, each with how many of their triples are closed."""
        for width in np.unique(self.width[(self.width >= 3) & (self.width <= MOST_RESPONSES)]):
            questions = np.flatnonzero(self.width == width)
            triples = _triples(int(width))
            step = max(_TRIPLES_AT_ONCE // len(triples), 1)
            for start in range(0, len(questions), step):
                yield self._among(questions[start : start + step], int(width), triples)

    def _among(self, questions: Indices, width: int, triples: Indices) -> tuple[_Best, int]:
        here = np.isin(self.question, questions)
        lane, i, j = np.searchsorted(questions, self.question[here]), self.i[here], self.j[here]
        sign = np.full((len(questions), width, width), UNKNOWN, dtype=np.int8)
        margin = np.zeros(sign.shape)
        sign[lane, i, j], margin[lane, i, j] = self.sign[here], self.margin[here]
        first, second, third = triples.T
        three = sign[:, first, second], sign[:, second, third], sign[:, first, third]
        code = _code(*three)
        at, triple = np.nonzero(_RANK[code])
        x, y, z = triples[triple].T
        weakest = np.minimum(np.minimum(margin[at, x, y], margin[at, y, z]), margin[at, x, z])
        found = code[at, triple]
        closed = int(np.logical_and.reduce([part != UNKNOWN for part in three]).sum())
        return _Best(_RANK[found], weakest, questions[at], triples[triple], found), closed

    def told(self, best: _Best) -> pl.DataFrame:
        """The rows of `cycles`."""
        order = _ORDER[best.code].astype(np.int64)
        starts = np.cumsum(self.width) - self.width
        numbers = starts[best.question][:, None] + np.take_along_axis(best.answers, order, axis=1)
        columns = {"question_id": self.answers["question_id"].gather(numbers[:, 0])}
        columns["type"] = pl.Series(list(_TYPES), dtype=pl.String).gather(best.rank.astype(np.int64) - 1)
        for name, kind in (("", "response"), ("model_", "model")):
            for i, letter in enumerate("xyz"):
                columns[f"{name}{letter}"] = self.answers[kind].gather(numbers[:, i])
        known = pl.DataFrame({"question": self.question, "i": self.i, "j": self.j, "margin": self.margin})
        for name, (i, j) in {"xy": (0, 1), "yz": (1, 2), "xz": (0, 2)}.items():
            places = np.sort(np.take_along_axis(best.answers, order[:, [i, j]], axis=1), axis=1)
            wanted = pl.DataFrame({"question": best.question, "i": places[:, 0], "j": places[:, 1]})
            joined = wanted.join(known, on=["question", "i", "j"], how="left", maintain_order="left")
            columns[f"margin_{name}"] = _finite(joined["margin"])
        return pl.DataFrame(columns | {"strength": _finite(pl.Series(best.strength))})


@lru_cache(maxsize=4)
def _triples(width: int) -> Indices:
    """(triples, 3) numbers of answers i < j < l."""
    return np.array(list(combinations(range(width), 3)), dtype=np.int64)


def _finite(values: pl.Series) -> pl.Series:
    return values.set(values == -np.inf, None)
