"""Does a judge prefer answers of its own family, and more than others do on the same pairs?

Only pairs of an answer of the judge's family with one of another known family say anything. What its preference is
held against: people's scores, and judges that have no stake in the pair, which is to say whose family is known and is
neither answer's. Without either there is a share and nothing to compare it with: no bias can be claimed from it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis.comparisons import Comparisons
from trustjudge_ray.analysis.families import family_of
from trustjudge_ray.analysis.layout import Indices, Layout
from trustjudge_ray.analysis.length_bias import Known, people_of
from trustjudge_ray.analysis.preference import Marked, Reference, preference_rows
from trustjudge_ray.analysis.verdicts import UNDEFINED

_UNMARKED: Final = ("", "judge_of_unknown_family", "model_of_unknown_family", "both_own_family", "no_own_family")
_UNKNOWN: Final = ""

Names = NDArray[np.object_]


def own_family_rows(
    layout: Layout,
    comparisons: Comparisons,
    others: Sequence[Comparisons],
    known: Known,
    families: Mapping[str, str],
    confidence: float,
) -> list[pl.DataFrame]:
    """METRICS `own_family_preference`, beside people `own_family_preference_{people,minus_people}` and beside other
    judges `own_family_preference_{judges,minus_judges}`: `preference_rows` of the answer of the judge's own family.

    Other judges speak with one voice, the sign of the sum of their verdicts under the same rule and tolerance.

    `excluded_by`: `judge_of_unknown_family`, `model_of_unknown_family`, `both_own_family`, `no_own_family`;
    `no_human_score`, `human_tie`; `no_neutral_judge`, `judges_tie`; and what `preference_rows` names.

    Args:
        others: what the other judges of the run say with the same protocol.
        families: `analysis.families`.
    """
    own = _family(comparisons.judge or "", families)
    a, b = (_families(comparisons.pairs.keys[side], families) for side in ("model_a", "model_b"))
    people = people_of(comparisons, known)
    neutral = list(_neutral(comparisons, others, families, (a, b), len(layout.responses)))
    references = {
        "people": dict.fromkeys(comparisons.by_rule, people),
        "judges": {rule: _voice(comparisons, rule, neutral) for rule in comparisons.by_rule},
    }
    marked = _marked(own, a, b)
    return preference_rows(layout, comparisons, "own_family_preference", marked, references, confidence)


def _marked(own: str, a: Names, b: Names) -> Marked:
    a_own, b_own = (np.asarray((side == own) & (own != _UNKNOWN), dtype=bool) for side in (a, b))
    unknown = np.asarray((a == _UNKNOWN) | (b == _UNKNOWN), dtype=bool)
    side = np.where(unknown, 0, a_own.astype(np.int8) - b_own.astype(np.int8)).astype(np.int8)
    nobody = np.full(len(a), own == _UNKNOWN)
    why = np.select([nobody, unknown, a_own & b_own], [1, 2, 3], 4)
    return Marked(side, why, _UNMARKED)


def _neutral(
    comparisons: Comparisons,
    others: Sequence[Comparisons],
    families: Mapping[str, str],
    sides: tuple[Names, Names],
    responses: int,
) -> Iterator[tuple[Comparisons, Indices, Indices]]:
    """Judges without a stake: which of our pairs each has judged too, and where it has them."""
    ours = comparisons.first * responses + comparisons.second
    for other in others:
        family = _family(other.judge or "", families)
        if family == _UNKNOWN or not len(other.question):
            continue
        theirs = other.first * responses + other.second
        by = np.argsort(theirs, kind="stable")
        place = by[np.minimum(np.searchsorted(theirs[by], ours), len(by) - 1)]
        without_stake = np.asarray((sides[0] != family) & (sides[1] != family), dtype=bool)
        chosen = np.flatnonzero((theirs[place] == ours) & without_stake)
        yield other, chosen, place[chosen]


def _voice(comparisons: Comparisons, rule: str, neutral: Sequence[tuple[Comparisons, Indices, Indices]]) -> Reference:
    """(T, P) what the neutral judges say together; a judge without a verdict on a pair says nothing there."""
    shape = comparisons.by_rule[rule].outcomes.shape
    total, voices = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.int32)
    for other, mine, theirs in neutral:
        said = other.by_rule[rule].outcomes[:, theirs]
        readable = said != UNDEFINED
        total[:, mine] += np.where(readable, said, 0)
        voices[:, mine] += readable
    outcomes = np.where(voices == 0, UNDEFINED, np.sign(total)).astype(np.int8)
    return Reference(outcomes, "no_neutral_judge", "judges_tie")


def _families(models: pl.Series, families: Mapping[str, str]) -> Names:
    """(P,) family names, `_UNKNOWN` where a name says nothing."""
    names = models.unique().to_list()
    by_name = {name: _family(name, families) for name in names}
    return models.replace_strict(by_name, return_dtype=pl.String).to_numpy() if names else np.array([], dtype=object)


def _family(name: str, families: Mapping[str, str]) -> str:
    return family_of(name, families) or _UNKNOWN
