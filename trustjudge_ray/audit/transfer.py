"""What training on one task did to the other: a matrix of arms and measures, tested against the untrained model.

Every arm answers and judges the same test items. A passage is the unit that is sampled (`analysis.inference`): items
and candidates of one passage are not independent, nor are the trainings of several seeds, which are pooled within it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import polars as pl

from trustjudge_ray.analysis.inference import Array, ratio_intervals
from trustjudge_ray.analysis.paired import paired_ratios
from trustjudge_ray.audit.verdicts import decision
from trustjudge_ray.identity import seed_of

BASE: Final = "base"
_KEYS: Final = {"arm": pl.String, "seed": pl.Int32, "item_id": pl.String, "passage_id": pl.String}
ANSWERS: Final[dict[str, Any]] = _KEYS | {
    "benchmark": pl.String,
    "status": pl.String,
    "output": pl.String,
    "cut": pl.Boolean,
    "correct": pl.Boolean,
}
"""One row for each arm, seed and test item; `correct` by the audit's primary oracle, null where it does not decide."""
READS: Final[dict[str, Any]] = _KEYS | {
    "benchmark": pl.String,
    "candidate": pl.String,
    "truth": pl.Boolean,
    "protocol": pl.String,
    "status": pl.String,
    "p_accept": pl.Float64,
    "label_mass": pl.Float64,
}
"""One row for each verdict of one protocol; the candidate `own` is the arm's own answer, the others are the same for
every arm."""
MATRIX: Final[dict[str, Any]] = {
    "arm": pl.String,
    "benchmark": pl.String,
    "measure": pl.String,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "hits": pl.Float64,
    "cases": pl.Int64,
    "excluded": pl.Int64,
    "passages": pl.Int64,
    "by_seed": pl.List(pl.Float64),
    "caution": pl.String,
    "difference": pl.Float64,
    "difference_low": pl.Float64,
    "difference_high": pl.Float64,
    "detectable": pl.Float64,
    "p_value": pl.Float64,
    "p_t": pl.Float64,
    "p_holm": pl.Float64,
    "shared_passages": pl.Int64,
    "difference_caution": pl.String,
}
"""`benchmark` null is all together. `by_seed` has the value of each training alone. From `difference` on: arm less base
over the passages that both have cases of, null for the base; see `transfer_matrix`."""
EXACT_PASSAGES: Final = 13
"""Up to so many passages all sign flips are tried, beyond FLIPS random ones."""
FLIPS: Final = 20_000

_OWN = pl.col("candidate") == "own"
_READ = pl.col("reason").is_null()


def verdicts_of(reads: pl.DataFrame, min_mass: float) -> pl.DataFrame:
    """One verdict for each arm, seed, item and candidate: the mean p_accept of its protocols, as on the card.

    Other than on the card a verdict of little label mass stands, and is counted as unreadable beside: training on
    judging teaches the labels themselves, and where it left out what the base does not say in labels, arms would be
    compared on other items, or on none.

    Args:
        reads: READS.
        min_mass: with less probability on the labels a judge would not have said one.

    Returns:
        The keys, truth, `reason` (why there is no verdict, or null: one protocol without is enough; of several reasons
        the first in the alphabet), `low_mass` (of any protocol) and `accepts`: 1 where the mean is over one half, ½
        where it is exactly that, else 0; null without a verdict.
    """
    keys = ["arm", "seed", "item_id", "passage_id", "benchmark", "candidate"]
    why = pl.when(pl.col("status") != "ok").then(pl.col("status"))
    found = reads.group_by(keys, maintain_order=True).agg(
        pl.col("truth").first(),
        why.drop_nulls().min().alias("reason"),
        (pl.col("label_mass") < min_mass).any().alias("low_mass"),
        pl.col("p_accept").mean(),
    )
    return found.with_columns(accepts=pl.when(_READ).then(decision(pl.col("p_accept")))).drop("p_accept")


def _generation_accuracy(answers: pl.DataFrame, verdicts: pl.DataFrame) -> pl.DataFrame:
    """Share of the arm's answers that the oracle calls right; an empty answer is not right."""
    given = pl.col("status").is_in(["ok", "empty_response"])
    return answers.with_columns(hit=pl.when(given).then(pl.col("correct").cast(pl.Float64)))


def _right(verdicts: pl.DataFrame) -> pl.DataFrame:
    known = verdicts.filter(pl.col("truth").is_not_null())
    return known.with_columns(hit=pl.when("truth").then("accepts").otherwise(1 - pl.col("accepts")))


def _self_accuracy(answers: pl.DataFrame, verdicts: pl.DataFrame) -> pl.DataFrame:
    """Share of right verdicts on the arm's own answers: it accepts what the oracle calls right, and nothing else."""
    return _right(verdicts.filter(_OWN))


def _controlled_accuracy(answers: pl.DataFrame, verdicts: pl.DataFrame) -> pl.DataFrame:
    """Share of right verdicts on the candidates that are the same for every arm."""
    return _right(verdicts.filter(~_OWN))


def _false_accept(answers: pl.DataFrame, verdicts: pl.DataFrame) -> pl.DataFrame:
    """Share of the wrong candidates, the same for every arm, that are accepted."""
    return verdicts.filter(~_OWN & ~pl.col("truth")).with_columns(hit="accepts")


def _false_reject(answers: pl.DataFrame, verdicts: pl.DataFrame) -> pl.DataFrame:
    """Share of the right candidates, the same for every arm, that are not accepted."""
    return verdicts.filter(~_OWN & pl.col("truth")).with_columns(hit=1 - pl.col("accepts"))


def _self_false_accept(answers: pl.DataFrame, verdicts: pl.DataFrame) -> pl.DataFrame:
    """Share of the arm's own wrong answers that it accepts: over other answers in each arm."""
    return verdicts.filter(_OWN & ~pl.col("truth")).with_columns(hit="accepts")


def _unreadable(answers: pl.DataFrame, verdicts: pl.DataFrame) -> pl.DataFrame:
    """Share of verdicts that the judge did not give, or whose labels have less than the least mass in a protocol; what
    was never asked is no case."""
    asked = ~pl.col("reason").is_in(["empty_response", "too_long"]).fill_null(False)
    return verdicts.with_columns(hit=pl.when(asked).then((~_READ | pl.col("low_mass")).cast(pl.Float64)))


MEASURES: Final[dict[str, Callable[[pl.DataFrame, pl.DataFrame], pl.DataFrame]]] = {
    "generation_accuracy": _generation_accuracy,
    "self_accuracy": _self_accuracy,
    "controlled_accuracy": _controlled_accuracy,
    "false_accept": _false_accept,
    "false_reject": _false_reject,
    "self_false_accept": _self_false_accept,
    "unreadable": _unreadable,
}
"""From ANSWERS and `verdicts_of` the cases of a measure: rows with `hit` (0 to 1), null where a case is excluded."""


def transfer_matrix(
    answers: pl.DataFrame, reads: pl.DataFrame, min_mass: float = 0.5, confidence: float = 0.95
) -> pl.DataFrame:
    """The MATRIX of ANSWERS and READS: each arm and measure, over all and (where there are several) by benchmark.

    - `value` is Σ hits / Σ cases over passages and seeds, with `inference.ratio_intervals` by passage: what other
      passages would give. What other seeds would give is seen in `by_seed` only.
    - `difference` and its interval are `paired.paired_ratios` by passage, Student's t; `p_t` goes with it, and
      `detectable` is the true difference that this test set would find with a probability of 80 %.
    - `p_value` is the exact test of whether arm and base could change places within each passage: of all sign flips
      (over EXACT_PASSAGES passages: FLIPS random ones) the share whose difference is at least as large.
    - `p_holm` corrects `p_value` for the whole matrix (Holm, Scandinavian Journal of Statistics 6, 1979, 65-70): over
      all its tests, one or more false alarms come in at most 5 of 100 such matrices when read at 0.05.

    Raises:
        ValueError: there is no base arm, or a frame has other columns.
    """
    _refuse_columns(answers, ANSWERS, "answers")
    _refuse_columns(reads, READS, "reads")
    if not answers["arm"].is_in([BASE]).any():
        raise ValueError(f"answers: no rows of the arm 'base', with which others are compared; got {_arms(answers)}")
    benchmarks = sorted(answers["benchmark"].unique())
    groups: list[str | None] = [None, *(benchmarks if len(benchmarks) > 1 else [])]
    rows: list[dict[str, Any]] = []
    verdicts = verdicts_of(reads, min_mass)
    for measure, cases_of in MEASURES.items():
        cases = cases_of(answers, verdicts)
        for benchmark in groups:
            chosen = cases if benchmark is None else cases.filter(pl.col("benchmark") == benchmark)
            rows += _rows(chosen, {"measure": measure, "benchmark": benchmark}, _arms(answers), confidence)
    for row, adjusted in zip(rows, holm(np.array([row.get("p_value", np.nan) for row in rows])), strict=True):
        row["p_holm"] = adjusted
    order = pl.col("arm").replace_strict({arm: i for i, arm in enumerate(_arms(answers))}, return_dtype=pl.Int32)
    plain = [{name: _plain(row.get(name)) for name in MATRIX} for row in rows]
    return pl.DataFrame(plain, schema=MATRIX).sort(order, pl.col("benchmark"), maintain_order=True, nulls_last=False)


def holm(p_values: Array) -> Array:
    """Holm's step-down correction: sorted, the i-th smallest of m (from 0) times m − i, never below one before it and
    at most 1. NaN is no test: it stays, and does not count in m."""
    adjusted = np.full(len(p_values), np.nan)
    tests = np.flatnonzero(~np.isnan(p_values))
    order = tests[np.argsort(p_values[tests], kind="stable")]
    adjusted[order] = np.minimum(np.maximum.accumulate(p_values[order] * np.arange(len(order), 0, -1)), 1)
    return adjusted


def swap_test(first: tuple[Array, Array], second: tuple[Array, Array], rng: np.random.Generator) -> float:
    """The two-sided p-value of Σh₂/Σn₂ − Σh₁/Σn₁ when the two sides may change places within each passage.

    Without passages that both sides have cases of it is NaN. Exact up to EXACT_PASSAGES passages; with P passages no
    p-value is below 2^(1 − P). Beyond, (1 + count)/(1 + FLIPS).

    Args:
        first, second: (hits, cases) of each passage, (P,); scaled so that an unchanged side has the same sums.
    """
    (h1, n1), (h2, n2) = (tuple(np.asarray(part, dtype=np.float64) for part in side) for side in (first, second))
    both = (n1 > 0) & (n2 > 0)
    if not both.any():
        return float("nan")
    h1, n1, h2, n2 = h1[both], n1[both], h2[both], n2[both]
    exact = len(h1) <= EXACT_PASSAGES
    flips = _all_flips(len(h1)) if exact else rng.integers(0, 2, (FLIPS, len(h1))).astype(np.float64)
    ratio_first = (h1.sum() + flips @ (h2 - h1)) / (n1.sum() + flips @ (n2 - n1))
    ratio_second = (h2.sum() + flips @ (h1 - h2)) / (n2.sum() + flips @ (n1 - n2))
    seen = abs(h2.sum() / n2.sum() - h1.sum() / n1.sum())
    count = int((np.abs(ratio_second - ratio_first) >= seen - 1e-12).sum())
    return count / len(flips) if exact else (1 + count) / (1 + FLIPS)


def _all_flips(passages: int) -> Array:
    """(2^P, P) of 0 and 1."""
    return ((np.arange(2**passages)[:, None] >> np.arange(passages)) & 1).astype(np.float64)


def _rows(cases: pl.DataFrame, keys: Mapping[str, Any], arms: list[str], confidence: float) -> list[dict[str, Any]]:
    """MATRIX rows of one measure and benchmark, one for each arm."""
    hits, counts = _by_passage(cases, arms)
    found = ratio_intervals(hits, counts, confidence)
    rows = []
    for i, arm in enumerate(arms):
        own = cases.filter(pl.col("arm") == arm)
        row = dict(keys) | {"arm": arm, "excluded": own["hit"].null_count(), "by_seed": _by_seed(own)}
        for name in ("value", "low", "high", "hits", "cases", "caution"):
            row[name] = getattr(found, name)[i]
        row |= {"passages": found.questions[i], "cases": int(found.cases[i])}
        rows.append(row)
    base, seeds = arms.index(BASE), [max(cases.filter(pl.col("arm") == arm)["seed"].n_unique(), 1) for arm in arms]
    for i, row in enumerate(rows):
        if i != base:
            sides = [(hits[j] / seeds[j], counts[j] / seeds[j]) for j in (base, i)]
            row |= _against(sides[0], sides[1], confidence, seed_of("transfer", *map(str, keys.values()), arms[i]))
    return rows


def _against(
    base: tuple[Array, Array], arm: tuple[Array, Array], confidence: float, seed: int
) -> dict[str, float | int | str]:
    """The columns of MATRIX that compare an arm with the base."""
    rng = np.random.default_rng(seed)
    found = paired_ratios(base, arm, rng, confidence, rounds=1)
    return {
        "difference": found.value[0],
        "difference_low": found.low[0],
        "difference_high": found.high[0],
        "detectable": found.detectable[0],
        "p_t": found.p_value[0],
        "p_value": swap_test(base, arm, rng),
        "shared_passages": int(found.questions[0]),
        "difference_caution": str(found.caution[0]),
    }


def _by_passage(cases: pl.DataFrame, arms: list[str]) -> tuple[Array, Array]:
    """(arms, passages) hits and cases, excluded ones left out."""
    passages = sorted(cases["passage_id"].unique())
    column, line = {name: i for i, name in enumerate(passages)}, {arm: i for i, arm in enumerate(arms)}
    hits, counts = np.zeros((2, len(arms), max(len(passages), 1)))
    sums = cases.filter(pl.col("hit").is_not_null()).group_by("arm", "passage_id").agg(pl.col("hit").sum(), pl.len())
    for arm, passage, hit, number in sums.iter_rows():
        hits[line[arm], column[passage]], counts[line[arm], column[passage]] = hit, number
    return hits, counts


def _by_seed(cases: pl.DataFrame) -> list[float | None]:
    """The value of each seed, ascending; null where it has no case."""
    means = cases.group_by("seed").agg(pl.col("hit").mean()).sort("seed")
    return means["hit"].to_list()


def _arms(answers: pl.DataFrame) -> list[str]:
    """The arms, base first, the others in the order of their first row."""
    found = answers["arm"].unique(maintain_order=True).to_list()
    return sorted(found, key=lambda arm: arm != BASE)


def _plain(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and np.isnan(value) else value


def _refuse_columns(frame: pl.DataFrame, schema: Mapping[str, Any], name: str) -> None:
    if dict(frame.schema) != dict(schema):
        raise ValueError(f"{name}: columns {dict(frame.schema)}; {dict(schema)}")
