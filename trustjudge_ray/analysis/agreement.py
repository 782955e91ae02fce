"""Agreement of scores and verdicts with people's scores (RESPONSES.human_score).

People's scores give every pair of a question's answers an outcome by their sign; a gap up to 1e-9 is a tie. Pairs
and answers of one question are clustered, as everywhere.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import stdtrit

from trustjudge_ray.analysis import metrics
from trustjudge_ray.analysis.calibration import calibration_error
from trustjudge_ray.analysis.games import Array, Index, binned
from trustjudge_ray.analysis.inference import RatioIntervals, mean_intervals, ratio_intervals
from trustjudge_ray.config import AnalysisConfig

_EQUAL: Final = 1e-9
_FOLDS: Final = 50
_NO_SPREAD: Final = 1e-12


def agreement_metrics(
    scores: pl.DataFrame, verdicts: pl.DataFrame, responses: pl.DataFrame, settings: AnalysisConfig
) -> pl.DataFrame:
    """METRICS of agreement, for every judge, protocol, rule, tolerance and category (null: overall, `(none)`:
    the uncategorised).

    By verdict rule and tolerance:
    - `agreement_pair_exact`: share of pairs whose outcome, ties included, is people's.
    - `agreement_pair_decisive`: share of pairs with people's winner, among those where neither is a tie.
    - `agreement_pair_kappa`: Cohen's κ over the three outcomes (Educ. Psychol. Meas. 20, 1960, 37-46).
    By score rule, where a pair's outcome is the sign of the scores' difference at tolerance 0:
    - `agreement_score_pair_exact`, `agreement_score_pair_decisive`.
    - `agreement_spearman`, `agreement_kendall` (τ-b): of the score with people's, over all answers together.
    By comparison protocol alone, of the probabilities p_a, p_b, p_tie:
    - `agreement_pair_brier`: mean Σ (p − outcome)², from 0 to 2.
    - `agreement_pair_ece`: mean gap between the largest probability and how often it is right, in ten bins of equal
      width weighted by pairs; no interval.

    Ratios have `ratio_intervals`, the Brier score a clustered t interval, correlations and κ a t interval from a
    jackknife over at most 50 random groups of questions (`settings.seed`), correlations on Fisher's scale.
    `excluded_by`: `no_human_score`, the status of a verdict or score that is missing, `identical` texts (not judged),
    and for decisive pairs `human_tie` and `judge_tie`.

    Args:
        scores, verdicts: SCORES and VERDICTS.
        responses: RESPONSES; more columns than question_id, response_id and human_score are ignored.

    Returns:
        No row without a single human score; otherwise every combination, `value` null where it has no case.
    """
    human = responses.select("question_id", "response_id", pl.col("human_score").fill_nan(None).alias("human"))
    human = human.drop_nulls("human").unique(["question_id", "response_id"], keep="first", maintain_order=True)
    if not human.height:
        return metrics.frame([])
    rows: list[dict[str, Any]] = []
    for about, part in parts(with_people(verdicts, human), ["judge", "protocol", "rule", "tolerance"]):
        rule, tolerance = about.pop("rule"), about.pop("tolerance")
        rows += pair_rows(part, about | {"verdict_rule": rule, "verdict_tolerance": tolerance}, settings)
    pair = ["judge", "protocol", "question_id", "response_a", "response_b"]
    once = verdicts.unique(pair, keep="first", maintain_order=True)
    for about, part in parts(with_people(once, human), ["judge", "protocol"]):
        rows += probability_rows(part, about, settings)
    told = scores.join(human, on=["question_id", "response_id"], how="left")
    for about, part in parts(told, ["judge", "protocol", "rule"]):
        rows += _score_rows(part, about | {"score_rule": about.pop("rule"), "tolerance": 0.0}, settings)
    return metrics.frame(rows)


def with_people(verdicts: pl.DataFrame, human: pl.DataFrame) -> pl.DataFrame:
    """VERDICTS with `wanted`, the outcome by people's scores, and `reason`, why a pair cannot be compared."""
    for side in ("a", "b"):
        mine = human.rename({"response_id": f"response_{side}", "human": f"human_{side}"})
        verdicts = verdicts.join(mine, on=["question_id", f"response_{side}"], how="left")
    gap = pl.col("human_a") - pl.col("human_b")
    return verdicts.with_columns(
        wanted=pl.when(gap.abs() <= _EQUAL).then(0).otherwise(gap.sign()).cast(pl.Int32),
        reason=pl.when(gap.is_null())
        .then(pl.lit("no_human_score"))
        .when((pl.col("status") == "identical") | pl.col("outcome").is_null())
        .then(pl.col("status")),
    )


def pair_rows(part: pl.DataFrame, about: dict[str, Any], settings: AnalysisConfig) -> list[dict[str, Any]]:
    found = _outcome_rows(part, about, "agreement_pair", settings)
    used = part.filter(pl.col("reason").is_null())
    said, wanted = used["outcome"].to_numpy(), used["wanted"].to_numpy()
    kappa = jackknifed(used["question_id"], lambda keep: _kappa(said[keep], wanted[keep]), settings, fisher=False)
    return [*found, {"metric": "agreement_pair_kappa"} | about | kappa | excluded(part)]


def _outcome_rows(
    part: pl.DataFrame, about: dict[str, Any], name: str, settings: AnalysisConfig
) -> list[dict[str, Any]]:
    """The exact and the decisive share, from the columns outcome, wanted and reason."""
    tie = (
        pl.when(pl.col("reason").is_not_null())
        .then(pl.col("reason"))
        .when(pl.col("wanted") == 0)
        .then(pl.lit("human_tie"))
        .when(pl.col("outcome") == 0)
        .then(pl.lit("judge_tie"))
    )
    rows = []
    for metric, cases in (("exact", part), ("decisive", part.with_columns(reason=tie))):
        used = cases.filter(pl.col("reason").is_null())
        hits = (used["outcome"] == used["wanted"]).cast(pl.Float64).to_numpy()
        found = clustered(used["question_id"], hits, ratio_intervals, settings)
        rows.append({"metric": f"{name}_{metric}"} | about | found | excluded(cases))
    return rows


def probability_rows(
    part: pl.DataFrame, about: dict[str, Any], settings: AnalysisConfig, unsaid: str = "no_human_score"
) -> list[dict[str, Any]]:
    """Brier's score and the calibration error of pairs with `wanted`."""
    part = of_probabilities(part, unsaid)
    used = part.filter(pl.col("reason").is_null())
    p, right = probabilities(used)
    brier = clustered(used["question_id"], ((p - right) ** 2).sum(1), mean_intervals, settings) | {"hits": None}
    ece = {"value": calibration_error(p, right), "cases": used.height, "questions": used["question_id"].n_unique()}
    return [
        {"metric": "agreement_pair_brier"} | about | brier | excluded(part),
        {"metric": "agreement_pair_ece"} | about | ece | excluded(part),
    ]


def of_probabilities(part: pl.DataFrame, unsaid: str = "no_human_score") -> pl.DataFrame:
    """Pairs with `wanted`, and as `reason` why their probabilities cannot be held against it: `unsaid` where it is
    null."""
    unread = pl.any_horizontal(pl.col("p_a", "p_b", "p_tie").is_null())
    return part.with_columns(
        reason=pl.when(pl.col("wanted").is_null())
        .then(pl.lit(unsaid))
        .when((pl.col("status") == "identical") | unread)
        .then(pl.when(pl.col("status") == "ok").then(pl.lit("no_label_mass")).otherwise("status"))
    )


def probabilities(used: pl.DataFrame) -> tuple[Array, Array]:
    """(cases, 3) each: P(a better), P(b better), P(tie), and a 1 at what people said."""
    said = used["wanted"].replace_strict({1: 0, -1: 1, 0: 2}, return_dtype=pl.Int64).to_numpy()
    return used.select("p_a", "p_b", "p_tie").to_numpy(), np.eye(3)[said]


def _score_rows(part: pl.DataFrame, about: dict[str, Any], settings: AnalysisConfig) -> list[dict[str, Any]]:
    reason = (
        pl.when(pl.col("human").is_null())
        .then(pl.lit("no_human_score"))
        .when(pl.col("score").is_null())
        .then(pl.col("status"))
    )
    part = part.with_columns(reason=reason)
    found = _outcome_rows(_score_pairs(part), about, "agreement_score_pair", settings)
    used = part.filter(pl.col("reason").is_null())
    score, human = used["score"].to_numpy(), used["human"].to_numpy()
    from scipy import stats  # half a second, and only needed where there are human scores

    for metric, correlation in (("spearman", stats.spearmanr), ("kendall", stats.kendalltau)):
        value = jackknifed(used["question_id"], _between(score, human, correlation), settings, fisher=True)
        plain = {key: entry for key, entry in about.items() if key != "tolerance"}
        found.append({"metric": f"agreement_{metric}"} | plain | value | excluded(part))
    return found


def _score_pairs(part: pl.DataFrame) -> pl.DataFrame:
    """All pairs of a question's answers: question_id, outcome, wanted and reason (of the first answer that has one)."""
    rows = part.select("question_id", "score", "human", "reason").with_row_index("at")
    pairs = rows.join(rows, on="question_id", suffix="_b").filter(pl.col("at") < pl.col("at_b"))
    score, human = pl.col("score") - pl.col("score_b"), pl.col("human") - pl.col("human_b")
    return pairs.select(
        "question_id",
        outcome=pl.when(score.abs() <= _EQUAL).then(0).otherwise(score.sign()).cast(pl.Int32),
        wanted=pl.when(human.abs() <= _EQUAL).then(0).otherwise(human.sign()).cast(pl.Int32),
        reason=pl.coalesce("reason", "reason_b"),
    )


def clustered(
    question: pl.Series,
    values: Array,
    intervals: Callable[[Array, Array, float], RatioIntervals],
    settings: AnalysisConfig,
) -> dict[str, Any]:
    """The mean of values with its interval, as METRICS columns."""
    code, size = codes(question)
    found = intervals(binned(code, values, size), binned(code, np.ones(len(code)), size), settings.confidence)
    counts = {"hits": found.hits, "cases": int(found.cases), "questions": found.questions}
    return {"value": found.value, "low": found.low, "high": found.high} | counts


def jackknifed(
    question: pl.Series, statistic: Callable[[Any], float], settings: AnalysisConfig, fisher: bool
) -> dict[str, Any]:
    """A statistic of the kept rows with a jackknife t interval over groups of questions; none where it is undefined
    in a group's absence, where no absence changes it (there is nothing to learn its error from), at ±1 on Fisher's
    scale, or for fewer than two questions."""
    code, size = codes(question)
    value = statistic(np.ones(len(code), dtype=bool)) if len(code) else np.nan
    row = {"value": value, "low": np.nan, "high": np.nan, "cases": len(code), "questions": size}
    if size < 2 or np.isnan(value):
        return row
    folds = min(size, _FOLDS)
    fold = (np.random.default_rng(settings.seed).permutation(size) % folds)[code]
    without = np.array([statistic(fold != f) for f in range(folds)])
    there, back = (np.arctanh, np.tanh) if fisher else (np.positive, np.positive)
    with np.errstate(divide="ignore", invalid="ignore"):
        centre, moved = there(value), there(np.clip(without, -1, 1))
        error = np.sqrt((folds - 1) / folds * ((moved - moved.mean()) ** 2).sum())
        half = stdtrit(folds - 1, (1 + settings.confidence) / 2) * error
        low, high = back(centre - half), back(centre + half)
    if np.isfinite(error) and error > _NO_SPREAD:
        row |= {"low": max(low, -1.0), "high": min(high, 1.0)}
    return row


def _between(score: Array, human: Array, correlation: Any) -> Callable[[Any], float]:
    """A correlation of the kept answers; NaN where either side is constant."""

    def of(keep: NDArray[np.bool_]) -> float:
        x, y = score[keep].round(9), human[keep]
        if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
            return float("nan")
        return float(correlation(x, y).statistic)

    return of


def _kappa(said: Index, wanted: Index) -> float:
    """(observed − expected agreement) / (1 − expected); NaN where both always say the same one thing."""
    if not len(said):
        return float("nan")
    table = np.zeros((3, 3))
    np.add.at(table, (said + 1, wanted + 1), 1 / len(said))
    expected = float(table.sum(0) @ table.sum(1))
    return float("nan") if expected > 1 - 1e-12 else (float(np.trace(table)) - expected) / (1 - expected)


def codes(question: pl.Series) -> tuple[Index, int]:
    """Questions as 0 … n − 1, in the order of their ids."""
    if not len(question):
        return np.zeros(0, dtype=np.int64), 0
    code = question.rank("dense").to_numpy().astype(np.int64) - 1
    return code, int(code.max()) + 1


def excluded(part: pl.DataFrame) -> dict[str, Any]:
    counts = part.filter(pl.col("reason").is_not_null()).group_by("reason").agg(n=pl.len())
    return metrics.reasons(dict(zip(counts["reason"], counts["n"], strict=True)))


def parts(rows: pl.DataFrame, by: list[str]) -> Iterator[tuple[dict[str, Any], pl.DataFrame]]:
    """Every combination of `by`, overall and then by category."""
    for key, part in sorted(rows.partition_by(by, as_dict=True).items(), key=lambda item: item[0]):
        about = dict(zip(by, key, strict=True))
        yield about | {"category": None}, part
        named = part.with_columns(pl.col("category").fill_null(metrics.UNCATEGORISED))
        for (category,), some in sorted(named.partition_by(["category"], as_dict=True).items()):
            yield about | {"category": category}, some
