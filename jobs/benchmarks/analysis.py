"""The reference program's calculators against ours on the same judgments, what `evaluate` costs, and ratings.

Both sides start from their loaded form (the reference: dictionaries of token probabilities; ours: arrays), with the
two orders of a pair at hand, and end at the ratio with its counts. `--reference` names a checkout of the program;
nothing of it lies here. Without it only our own costs are measured. Ratings: see `_ratings`.
"""

import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from trustjudge_ray.analysis.consistency import score_signs
from trustjudge_ray.analysis.evaluation import evaluate
from trustjudge_ray.analysis.scoring import SCORING_RULES
from trustjudge_ray.analysis.transitivity import UNKNOWN, count_subsets
from trustjudge_ray.analysis.verdicts import UNDEFINED, outcomes
from trustjudge_ray.config import AnalysisConfig

from . import Options, alternating, seconds
from ._judgments import Arrays, both_forms, many
from ._ratings import rated
from ._reference import Reference

RESPONSES, SCALE = 20, 100
RULES = ("baseline", "geval", "softmax_weighted")
QUESTIONS: dict[str | int, int] = {"cr": 100, 3: 40, 4: 6, 5: 1}
"""So many that the reference takes seconds, not hours."""
TYPES = {"circle": "circular", "equal": "equivalence"}
"""The reference's names for the types of contradiction, and ours."""


def run(options: Options) -> dict[str, Any]:
    """Measure all; `equal` says whether the two sides' counts are the same."""
    figures: dict[str, Any] = {}
    if options.reference:
        figures |= _against(options, Reference(options.reference))
    questions = 24 if options.small else 2400
    with tempfile.TemporaryDirectory(prefix="trustjudge-benchmark-") as scratch:
        path = Path(scratch) / "judgments.parquet"
        table, _ = many(questions, RESPONSES, np.random.default_rng(1))
        pq.write_table(table, path, compression="zstd")
        rows = len(table)
        del table
        code = f"from benchmarks.analysis import evaluate_once; evaluate_once({str(path)!r})"
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=Path(__file__).parent.parent,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    took, memory = map(float, done.stdout.split())
    options.say(f"evaluate, {rows:,} judgments: {took:.1f} s, {memory:.2f} GB at most (reading Parquet included)")
    return figures | {"evaluate_seconds": took, "evaluate_gb": memory} | rated(options)


def evaluate_once(path: str) -> None:
    """In a process of its own: read, evaluate, print seconds and peak gigabytes."""
    _, protocols = many(1, 2, np.random.default_rng(0))
    settings = AnalysisConfig()

    def work() -> None:
        evaluate(pl.read_parquet(path), protocols, None, settings)

    took = seconds(work)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(took, memory)


def _against(options: Options, reference: Reference) -> dict[str, Any]:
    """Speed-ups, and whether the counts agree."""
    counts = dict.fromkeys(QUESTIONS, 2) if options.small else QUESTIONS
    loaded, arrays = both_forms(max(counts.values()), RESPONSES, SCALE, np.random.default_rng(0))
    figures: dict[str, Any] = {}
    equal = True
    for rule in RULES:
        calculator = reference.conflict(loaded.of_questions(counts["cr"]), SCALE, rule)
        theirs = calculator.calculate_conflict_proportion
        conflict = _conflict(arrays.of_questions(counts["cr"]), rule)
        found = theirs()
        equal &= conflict() == (found["conflict_count"], found["total"])
        figures[f"cr_{rule}"] = _speed_up(options, f"CR, {rule}", conflict, theirs)
    for k in (3,) if options.small else (3, 4, 5):
        part = loaded.of_questions(counts[k])
        calculator = reference.transitivity(part, k, "likelihood")
        theirs, ours = (
            calculator.calculate_non_transitivity_proportion,
            _transitivity(arrays.of_questions(counts[k]), k),
        )
        equal &= ours() == _counts(theirs())
        figures[f"ntr{k}"] = _speed_up(options, f"NTR_{k}, likelihood", ours, theirs)
    return figures | {"cr": min(figures[f"cr_{rule}"] for rule in RULES), "equal": equal}


def _speed_up(options: Options, what: str, ours: Callable[[], object], theirs: Callable[[], object]) -> float:
    """How many times as long the reference takes: the median of alternating pairs."""
    repeats = max(int(0.05 / max(seconds(ours), 1e-6)), 1)

    def ours_repeated() -> None:
        for _ in range(repeats):
            ours()

    ratio, ratios = alternating(ours_repeated, theirs, 1 if options.small else 5)
    options.say(f"{what}: {ratio * repeats:,.0f} times as fast, of {', '.join(f'{r * repeats:,.0f}' for r in ratios)}")
    return ratio * repeats


def _conflict(arrays: Arrays, rule: str) -> Callable[[], tuple[int, int]]:
    """From distributions to (conflicts, pairs) under a score rule."""
    first, second = (arrays.question * RESPONSES + place for place in (arrays.i, arrays.j))

    def ratio() -> tuple[int, int]:
        score = SCORING_RULES[rule](arrays.readout)
        relation = outcomes(arrays.pairs, "baseline", 0.0)
        a, b = score[first], score[second]
        valid = (relation != UNDEFINED) & ~np.isnan(a) & ~np.isnan(b)
        return int(((score_signs(a, b, 0.0) != relation) & valid).sum()), int(valid.sum())

    return ratio


def _transitivity(arrays: Arrays, k: int) -> Callable[[], dict[str, int]]:
    """From distributions to the counts of k-subsets under the rule `likelihood`."""
    faults = ("ratio", *TYPES.values())
    questions = int(arrays.question.max()) + 1

    def ratio() -> dict[str, int]:
        table = np.full((questions, RESPONSES, RESPONSES), UNKNOWN, dtype=np.int8)
        table[arrays.question, arrays.i, arrays.j] = outcomes(arrays.pairs, "likelihood", 0.0)
        found = count_subsets(table, [k], faults)[k]
        return {"total": int(found.complete.sum())} | {name: int(found.faulty[name].sum()) for name in faults}

    return ratio


def _counts(found: dict[str, Any]) -> dict[str, int]:
    """The reference's counts under our names."""
    types = {ours: found["error_type_counts"].get(theirs, 0) for theirs, ours in TYPES.items()}
    return {"total": found["total"], "ratio": found["non_transitive_count"], **types}
