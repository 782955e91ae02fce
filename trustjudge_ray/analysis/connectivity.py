"""Who can be ranked against whom, and which parameters the games can bound."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components

from trustjudge_ray.analysis.games import Games

NEVER = 1e-6
"""A share of points at or below this counts as none: no rating is believed to be more than 2,400 points away."""

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Structure:
    """How the models of a ranking hang together.

    Attributes:
        component: models that met, directly or through others, share a number (1, 2, …; the largest first).
        group: models whose difference the games bound share a number: each took points from each, directly or
            through others (strongly connected; Ford, Amer. Math. Monthly 64, 1957, 28-33). Points between groups
            all went one way.
        bounded: whether the model is in the one largest group of its component, of two models or more.
        above: (models, models) whether the row's model is infinitely above the column's.
        surely_above: the same, over steps between groups which met in so many questions that winning all by
            chance would be significant (sign test).
    """

    component: Labels
    group: Labels
    bounded: NDArray[np.bool_]
    above: NDArray[np.bool_]
    surely_above: NDArray[np.bool_]


def structure(games: Games, confidence: float) -> Structure:
    """The groups of a ranking. A model without games cannot occur."""
    points = games.points()
    met = points + points.T
    took = points > NEVER * met
    component = _largest_first(connected_components(met > 0, directed=False)[1], met)
    group = connected_components(csr_array(took), directed=True, connection="strong")[1].astype(np.int64)
    between = group[:, None] != group[None, :]
    sure = _questions_between(games, group) >= np.log2(2 / (1 - confidence))
    return Structure(
        component,
        group,
        _bounded(component, group, met),
        _reach(took & between, group),
        _reach(took & between & sure, group),
    )


def _largest_first(labels: Labels, met: Array) -> Labels:
    """Components numbered from 1 by size, then by games, then by their first model."""
    keys = [(-(labels == c).sum(), -met[labels == c].sum(), np.argmax(labels == c)) for c in range(labels.max() + 1)]
    rank = np.empty(len(keys), dtype=np.int64)
    rank[sorted(range(len(keys)), key=keys.__getitem__)] = np.arange(1, len(keys) + 1)
    return rank[labels]


def _bounded(component: Labels, group: Labels, met: Array) -> NDArray[np.bool_]:
    bounded = np.zeros(len(group), dtype=bool)
    for c in np.unique(component):
        sizes = []
        for g in np.unique(group[component == c]):
            inside = group == g
            sizes.append(((int(inside.sum()), float(met[np.ix_(inside, inside)].sum())), g))
        sizes.sort(reverse=True)
        alone = len(sizes) == 1 or sizes[0][0] > sizes[1][0]
        if sizes[0][0][0] > 1 and alone:
            bounded |= group == sizes[0][1]
    return bounded


def _questions_between(games: Games, group: Labels) -> NDArray[np.int64]:
    """(models, models): in how many questions the models' groups met."""
    n = len(games.models)
    one, two = group[games.first], group[games.second]
    apart = one != two
    one, two, question = one[apart], two[apart], games.question[apart]
    pair = np.unique(np.stack([question, np.minimum(one, two), np.maximum(one, two)]), axis=1)
    table = coo_array((np.ones(pair.shape[1], dtype=np.int64), (pair[1], pair[2])), shape=(n, n)).toarray()
    table = table + table.T
    return table[group[:, None], group[None, :]]


def _reach(edges: NDArray[np.bool_], group: Labels) -> NDArray[np.bool_]:
    """Transitive closure over groups: a member of a group is above all that any member is above."""
    same = (group[:, None] == group[None, :]).astype(np.float32)
    step = same @ edges.astype(np.float32) @ same > 0
    while True:
        further = step | (step.astype(np.float32) @ step.astype(np.float32) > 0)
        if (further == step).all():
            return step
        step = further


def seen_outcomes(outcome: Array) -> NDArray[np.bool_]:
    """(cells, 3) which outcomes of an ordered pair occurred at all."""
    return outcome > NEVER * outcome.sum(-1, keepdims=True)


def order_is_bounded(first: Labels, second: Labels, seen: NDArray[np.bool_], models: int) -> bool:
    """Whether the games bound the order effect: no change of it, with whatever change of ratings and ties,
    keeps every outcome that occurred at its most probable."""
    both = seen[:, 0] & seen[:, 1]
    pairs = set(zip(first[both].tolist(), second[both].tolist(), strict=True))
    if any((j, i) in pairs for i, j in pairs):
        return True
    return not any(_direction(first, second, seen, models, order=sign, tie=None) for sign in (1.0, -1.0))


def ties_are_bounded(first: Labels, second: Labels, seen: NDArray[np.bool_], models: int) -> bool:
    """The same for the tie parameter, with the order effect held. Ties and decisive games must both occur, and
    the decisive ones must not all be explained by ties between neighbours on one line."""
    if not seen[:, 2].any() or not seen[:, :2].any():
        return False
    if (seen[:, 0] & seen[:, 1]).any():
        return True
    return not _direction(first, second, seen, models, order=0.0, tie=1.0)


def _direction(
    first: Labels, second: Labels, seen: NDArray[np.bool_], models: int, order: float, tie: float | None
) -> bool:
    """Whether ratings u (and a tie direction v, if free) exist so that with d = u_first − u_second + order each
    outcome seen is the largest of d/2, −d/2 and v: then the likelihood never falls along that direction."""
    blocks, cells = [], np.arange(len(first))
    for outcome, (d_own, v_own) in enumerate(((0.5, 0.0), (-0.5, 0.0), (0.0, 1.0))):
        for rival, (d_rival, v_rival) in enumerate(((0.5, 0.0), (-0.5, 0.0), (0.0, 1.0))):
            if rival != outcome:
                blocks.append((cells[seen[:, outcome]], d_rival - d_own, v_rival - v_own))
    at = np.concatenate([b[0] for b in blocks])
    d = np.concatenate([np.full(len(b[0]), b[1]) for b in blocks])
    v = np.concatenate([np.full(len(b[0]), b[2]) for b in blocks])
    row = np.arange(len(at))
    matrix = coo_array(
        (
            np.concatenate([d, -d, v]),
            (np.tile(row, 3), np.concatenate([first[at], second[at], np.full(len(at), models)])),
        ),
        shape=(len(at), models + 1),
    ).tocsr()
    limits = [(None, None)] * models + [(tie, tie)]
    from scipy.optimize import linprog  # slow to import, and rarely needed

    found = linprog(np.zeros(models + 1), A_ub=matrix, b_ub=-d * order, bounds=limits, method="highs")
    return found.status != 2
