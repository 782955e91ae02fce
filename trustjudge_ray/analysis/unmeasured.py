"""Rows for what a run does not measure: METRICS have one for every combination, also without a case.

`consistency_metrics` makes its own. Agreement with people, votes and the Davidson fit only know what there is; here
their missing rows are added, so that a table can be joined to another run's without holes.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final

import polars as pl

from trustjudge_ray.analysis import metrics
from trustjudge_ray.analysis.calibration import BINS, RELIABILITY
from trustjudge_ray.analysis.games import soft_outcomes
from trustjudge_ray.analysis.scoring import SCORING_RULES
from trustjudge_ray.analysis.tolerances import Tolerances
from trustjudge_ray.analysis.verdicts import VERDICT_RULES

BY_VERDICT_RULE: Final = tuple(
    f"agreement_pair_{name}" for name in ("exact", "decisive", "kappa", "kappa_linear", "kappa_quadratic")
)
BY_COMPARISON: Final = (
    *(f"agreement_pair_{name}" for name in ("brier", "ece", "log_loss", "temperature")),
    *(f"agreement_pair_brier_{name}" for name in ("reliability", "resolution", "uncertainty", "within_bins")),
    *(f"agreement_pair_{name}_scaled" for name in ("log_loss", "brier", "ece")),
    *(f"{name}{number / BINS:.1f}" for number in range(BINS) for name in RELIABILITY.values()),
)
BY_SCORE_PAIR: Final = ("agreement_score_pair_exact", "agreement_score_pair_decisive")
BY_SCORE: Final = ("agreement_spearman", "agreement_kendall")
OF_FIT: Final = ("order_effect_logit", "tie_parameter")
OF_VOTES: Final = "alpha_votes"

_KEYS: Final = (
    "metric",
    "judge",
    "protocol",
    "score_rule",
    "verdict_rule",
    "tolerance",
    "verdict_tolerance",
    "category",
)
_Key = tuple[str | None, str | None, str | None, str | None]
_Reasons = Mapping[_Key, Mapping[str, int]]
"""By unit, judge, protocol and category: how many have no value, by reason."""


def unmeasured_rows(
    found: pl.DataFrame,
    judgments: pl.DataFrame,
    scores: pl.DataFrame,
    verdicts: pl.DataFrame,
    names: Mapping[str, Sequence[str | None]],
    tolerances: Tolerances,
    on_empty: str,
) -> pl.DataFrame:
    """METRICS that `found` lacks: `value` null, `cases` 0.

    Pairs and answers that are there have no human score (if they had one, their row were there): they are `excluded`
    as `no_human_score`. Without a fit there is no game: every comparison is `excluded` as `soft_outcomes` says.

    Args:
        found: METRICS of a run, with every category of it.
        judgments: JUDGMENTS that the fit reads.
        scores, verdicts: SCORES and VERDICTS that people's scores are held against.
        names: the run's protocols by kind, `score` and `compare`; [None] where there is none.
        on_empty: of the settings.
    """
    categories = found["category"].unique().sort(nulls_last=False).to_list()
    asked = judgments["judge"].unique().sort().to_list() or [None]
    there = {**_there(scores, verdicts), **_no_games(found, judgments, on_empty)}
    rows = [
        _row(about | {"judge": judge, "category": category}, unit, there)
        for judge, category, (about, unit) in product(asked, categories, list(_combinations(names, tolerances)))
    ]
    return metrics.frame(rows).join(found, on=list(_KEYS), how="anti", nulls_equal=True, maintain_order="left")


def _combinations(
    names: Mapping[str, Sequence[str | None]], tolerances: Tolerances
) -> Iterator[tuple[dict[str, Any], str | None]]:
    """What tells the rows of one judge and category apart, and which unit each is about (None: no count of what is
    missing)."""
    for protocol in names["compare"]:
        about: dict[str, Any] = {"protocol": protocol}
        for rule in VERDICT_RULES:
            for metric, tolerance in product(BY_VERDICT_RULE, tolerances.by_rule[rule]):
                yield about | {"metric": metric, "verdict_rule": rule, "verdict_tolerance": tolerance}, "pair"
        yield from ((about | {"metric": metric}, "pair") for metric in BY_COMPARISON)
        yield from ((about | {"metric": metric}, "game") for metric in OF_FIT)
    for protocol, rule in product(names["score"], SCORING_RULES):
        of: dict[str, Any] = {"protocol": protocol, "score_rule": rule}
        yield from ((of | {"metric": metric, "tolerance": 0.0}, "score pair") for metric in BY_SCORE_PAIR)
        yield from ((of | {"metric": metric}, "score") for metric in BY_SCORE)
    for protocol in dict.fromkeys([*names["compare"], *names["score"]]):
        yield {"protocol": protocol, "metric": OF_VOTES}, None


def _row(about: dict[str, Any], unit: str | None, there: _Reasons) -> dict[str, Any]:
    lost = there.get((unit, about["judge"], about["protocol"], about["category"]), {})
    return about | {"cases": 0, "questions": 0} | metrics.reasons(lost)


def _no_games(found: pl.DataFrame, judgments: pl.DataFrame, on_empty: str) -> _Reasons:
    """Why comparisons are no games, where none of a judge, protocol and category is."""
    scope = ["judge", "protocol", "category"]
    fitted = found.filter(metric=OF_FIT[0]).select(scope)
    named = judgments.with_columns(pl.col("category").fill_null(metrics.UNCATEGORISED))
    unfitted = named.join(fitted, on=scope, how="anti")
    return _by_scope("game", soft_outcomes(unfitted, on_empty)[1].group_by(*scope, "reason").agg(n=pl.len()))


def _there(scores: pl.DataFrame, verdicts: pl.DataFrame) -> _Reasons:
    """How many pairs, scores and pairs of scores there are, by judge, protocol and category (None: all)."""
    pairs = verdicts.filter(pl.col("rule") == "baseline").group_by("judge", "protocol", "category").agg(n=pl.len())
    answers = scores.filter(pl.col("rule") == next(iter(SCORING_RULES)))
    each = answers.group_by("judge", "protocol", "category", "question_id").agg(n=pl.len().cast(pl.Int64))
    tables = {"pair": pairs, "score": each, "score pair": each.with_columns(n=pl.col("n") * (pl.col("n") - 1) // 2)}
    counts: dict[_Key, Mapping[str, int]] = {}
    for unit, table in tables.items():
        counts |= _by_scope(unit, table.with_columns(reason=pl.lit("no_human_score")))
    return counts


def _by_scope(unit: str, table: pl.DataFrame) -> dict[_Key, Mapping[str, int]]:
    """Sums of `n` by reason for each judge, protocol and category, and over all categories."""
    counts: dict[_Key, dict[str, int]] = {}
    grouped = table.group_by("judge", "protocol", "category", "reason").agg(pl.col("n").sum())
    for judge, protocol, category, reason, n in grouped.iter_rows():
        for key in ((unit, judge, protocol, category or metrics.UNCATEGORISED), (unit, judge, protocol, None)):
            of_key = counts.setdefault(key, {})
            of_key[reason] = of_key.get(reason, 0) + int(n)
    return dict(counts)
