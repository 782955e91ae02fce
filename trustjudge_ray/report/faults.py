"""Kinds of contradictions: what a conflict ratio and a non-transitivity ratio are made of."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from trustjudge_ray.report.cells import Inputs, Table, beside, counts, main_rules, share, texts


@dataclass(frozen=True, slots=True)
class _Kinds:
    """A ratio, what its cases are, and the kinds that add up to it, in words by metric."""

    ratio: str
    of: str
    words: dict[str, str]


CONFLICTS: Final = _Kinds(
    "conflict_ratio",
    "pairs",
    {
        "conflict_reversal": "reversal: scores and verdict prefer different answers",
        "conflict_score_tie": "equal scores, yet a verdict",
        "conflict_pair_tie": "different scores, yet a tie",
    },
)
CIRCLES: Final = _Kinds(
    "non_transitivity_ratio",
    "subsets of 3",
    {
        "non_transitivity_strict_cycle": "cycle: a > b > c > a",
        "non_transitivity_chain": "chain with tied ends: a > b > c, a = c",
        "non_transitivity_ties": "ties that are not transitive: a = b = c, a > c",
    },
)
_REFERENCE: Final = {
    "non_transitivity_circular": "circular, as the reference counts them",
    "non_transitivity_equivalence": "against equivalence, as the reference counts them",
}


def faults(inputs: Inputs) -> Table:
    """A row for every kind of contradiction, of the main rules and `baseline`, at the smallest tolerances."""
    cells = [
        (
            row["judge"],
            row["line"],
            row["kind"],
            share(row["share"]),
            counts(row) if row["hits"] is not None else "–",
            share(row["ratio"]),
        )
        for row in fault_rows(inputs, reference=True)
    ]
    return Table(
        "Kinds of contradictions",
        "What CR and NTR are made of: the three kinds of each add up to it. Cycles, chains and ties do not depend on "
        "how answers are numbered; the reference's two types do, and divide the same subsets in another way.",
        ("judge", "rules", "kind", "share", "cases", "ratio"),
        cells,
        named=2,
    )


def fault_rows(inputs: Inputs, reference: bool = False) -> list[dict[str, Any]]:
    """Every kind of contradiction as a share of the cases of its ratio: judge, of (what the cases are), line (by which
    rules), kind, place (in its ratio), share, hits, cases, ratio.

    Args:
        reference: with the reference's two types too, which divide the same subsets in another way.
    """
    rows = main_rules(inputs)
    emitted = rows.filter(pl.col("metric") == CONFLICTS.ratio, pl.col("verdict_rule") == "baseline")
    triples = rows.filter(pl.col("metric") == CIRCLES.ratio, pl.col("k") == 3)
    found = [row for m in emitted.to_dicts() if m["cases"] for row in _kinds(rows, m, CONFLICTS, CONFLICTS.words)]
    words = CIRCLES.words | (_REFERENCE if reference else {})
    return found + [row for m in triples.to_dicts() if m["cases"] for row in _kinds(rows, m, CIRCLES, words)]


def _kinds(rows: pl.DataFrame, m: dict[str, Any], kinds: _Kinds, words: dict[str, str]) -> Iterator[dict[str, Any]]:
    names = ("protocol", "pair_protocol", "score_rule") if kinds is CONFLICTS else ("protocol", "verdict_rule")
    line = ", ".join(text for text in texts(m, *names) if text)
    for place, (metric, kind) in enumerate(words.items()):
        found = beside(rows, metric, m) or {"value": None, "hits": None, "cases": 0}
        yield {
            "judge": m["judge"],
            "of": kinds.of,
            "line": line,
            "kind": kind,
            "place": place,
            "share": found["value"],
            "hits": found["hits"],
            "cases": found["cases"],
            "ratio": m["value"],
        }
