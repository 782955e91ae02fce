"""A ranking beside another one, people's say: how many pairs of models each tells apart, and whether they agree.

As Arena-Hard defines them (Li et al., arXiv 2406.11939): *separability with confidence* is the share of pairs of models
whose intervals do not overlap. *Agreement with confidence* is the mean over pairs of +1 where both rankings tell the
pair apart and order it alike, −1 where they order it oppositely, 0 where one of them does not tell it apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True, slots=True)
class Standings:
    """A leaderboard: model → (rating, low, high)."""

    name: str
    models: Mapping[str, tuple[float, float, float]]


@dataclass(frozen=True, slots=True)
class Separation:
    """Two leaderboards over the models that both have.

    Attributes:
        separability: of ours, over its pairs of common models; people_separability: of theirs.
        agreement: with confidence, from −1 to 1.
        agree, oppose, unclear: pairs by what they come to.
        spearman, kendall: of the ratings; None with fewer than two models or all ratings equal.
        models: in both, by name; only_ours, only_theirs: the others.
    """

    separability: float | None
    people_separability: float | None
    agreement: float | None
    agree: int
    oppose: int
    unclear: int
    spearman: float | None
    kendall: float | None
    models: list[str]
    only_ours: list[str]
    only_theirs: list[str]


def separation(ours: Standings, theirs: Standings) -> Separation:
    """Compare two leaderboards over the models that both have; intervals that touch overlap."""
    common = sorted(set(ours.models) & set(theirs.models))
    pairs = list(combinations(common, 2))
    told = [(_order(ours, x, y), _order(theirs, x, y)) for x, y in pairs]
    agree, oppose = sum(x * y > 0 for x, y in told), sum(x * y < 0 for x, y in told)
    count = len(pairs)
    return Separation(
        sum(x != 0 for x, _ in told) / count if count else None,
        sum(y != 0 for _, y in told) / count if count else None,
        (agree - oppose) / count if count else None,
        agree,
        oppose,
        count - agree - oppose,
        *_correlations([ours.models[m][0] for m in common], [theirs.models[m][0] for m in common]),
        common,
        sorted(set(ours.models) - set(theirs.models)),
        sorted(set(theirs.models) - set(ours.models)),
    )


def _order(standings: Standings, x: str, y: str) -> int:
    """+1 if x is surely better, −1 if y is, 0 if their intervals overlap."""
    (_, low_x, high_x), (_, low_y, high_y) = standings.models[x], standings.models[y]
    return int(low_x > high_y) - int(low_y > high_x)


def _correlations(ours: list[float], theirs: list[float]) -> tuple[float | None, float | None]:
    if len(ours) < 2 or len(set(ours)) < 2 or len(set(theirs)) < 2:
        return None, None
    from scipy import stats  # half a second, and only needed here

    return float(stats.spearmanr(ours, theirs).statistic), float(stats.kendalltau(ours, theirs).statistic)
