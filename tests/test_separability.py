from itertools import combinations

import numpy as np
import pytest

from trustjudge_ray.analysis.separability import Standings, separation


def board(**models):
    return Standings("x", {name: (middle, middle - half, middle + half) for name, (middle, half) in models.items()})


def test_pairs_agree_oppose_or_are_not_told_apart_as_arena_hard_defines_it():
    ours = board(a=(10, 1), b=(5, 1), c=(4.5, 1), d=(0, 1), ours=(3, 1))
    theirs = board(a=(100, 1), b=(50, 1), c=(40, 1), d=(70, 1), theirs=(3, 1))
    found = separation(ours, theirs)
    # a beats b, c and d in both; b and c overlap in ours; d is last in ours and second in theirs.
    assert (found.agree, found.oppose, found.unclear) == (3, 2, 1)
    assert found.agreement == pytest.approx(1 / 6)
    assert (found.separability, found.people_separability) == (5 / 6, 1.0)
    assert (found.models, found.only_ours, found.only_theirs) == (["a", "b", "c", "d"], ["ours"], ["theirs"])


def test_it_is_the_definition_pair_by_pair_and_a_board_agrees_with_itself_as_far_as_it_separates():
    rng = np.random.default_rng(0)
    boards = [board(**{f"m{i}": (rng.normal(0, 2), rng.uniform(0, 1.5)) for i in range(12)}) for _ in range(2)]
    score = []
    for x, y in combinations(boards[0].models, 2):
        signs = []
        for each in boards:
            (_, low_x, high_x), (_, low_y, high_y) = each.models[x], each.models[y]
            signs.append(1 if low_x > high_y else -1 if low_y > high_x else 0)
        score.append(signs[0] * signs[1])
    assert separation(*boards).agreement == pytest.approx(np.mean(score))
    assert separation(*boards).agreement == separation(*boards[::-1]).agreement
    assert separation(boards[0], boards[0]).agreement == separation(*boards).separability


def test_touching_intervals_overlap_and_nothing_in_common_says_nothing():
    assert separation(board(a=(1, 1), b=(3, 1)), board(a=(0, 0), b=(1, 0))).separability == 0.0
    nothing = separation(board(a=(1, 1)), board(b=(1, 1)))
    assert (nothing.separability, nothing.agreement, nothing.spearman) == (None, None, None)
