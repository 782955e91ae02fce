"""What a game's outcome is taken to be: the judge's probabilities, its likeliest label, or calibrated probabilities.

Each kind adds three columns to `games.soft_outcomes`, beside `y_…`, the probabilities as they are. Ratings of
different kinds have different spreads: an unsure judge pulls soft ratings together, a sure one apart, and neither says
anything about the models. Calibrated to what people said, they are on one scale, and without the judge's liking of a
slot; their intervals take the calibration as known.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from trustjudge_ray.analysis.games import OUTCOMES
from trustjudge_ray.analysis.slot_scaling import SlotScaling, slot_scaled, slot_scaling
from trustjudge_ray.config import AnalysisConfig

SOFT: Final = "y"
HARD: Final = "hard"
CALIBRATED: Final = "calibrated"
_EQUAL: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Calibration:
    """How one judge's comparisons of one protocol were calibrated; `scaling` is None where they could not be, and
    `note` says why."""

    judge: str
    protocol: str
    scaling: SlotScaling | None
    note: str | None = None


def with_hard(outcomes: pl.DataFrame) -> pl.DataFrame:
    """Outcomes with `hard_…`: a game's most probable outcome has all of it, of equally probable ones (within 1e-9) each
    its part. The arg-max of each order, after averaging over samples, and not what was emitted: that may be drawn."""
    soft = [pl.col(f"{SOFT}_{o}") for o in OUTCOMES]
    weight = pl.sum_horizontal(soft)
    top = [(p >= pl.max_horizontal(soft) - _EQUAL * weight).cast(pl.Float64) for p in soft]
    among = pl.sum_horizontal(top)
    return outcomes.with_columns(
        (weight * here / among).alias(f"{HARD}_{o}") for here, o in zip(top, OUTCOMES, strict=True)
    )


def with_calibrated(
    outcomes: pl.DataFrame, responses: pl.DataFrame | None, settings: AnalysisConfig
) -> tuple[pl.DataFrame, list[Calibration]]:
    """Outcomes with `calibrated_…`: each order's probabilities at the temperature, and with the offset of the first
    slot, that together fit people's scores best (`slot_scaling`).

    Fitted for every judge and protocol on the games whose two answers have a human score (a gap up to 1e-9 is a tie),
    by folds of questions: a question's own labels do not decide how it is calibrated; questions without labels have
    the fit of all. The offset is applied: people, whom these outcomes are calibrated to, see no slots, so what is left
    for Davidson's order effect is about 0. It is 0 where no two models were compared in both orders, for then a slot
    cannot be told from who was in it. Null where a judge has no temperature. Outcomes that no judge gave (identical
    texts, empty answers) stay.

    Args:
        responses: RESPONSES; without them, or without a human score, no game is calibrated and nothing is said.
    """
    nothing = outcomes.with_columns(pl.lit(None, pl.Float64).alias(f"{CALIBRATED}_{o}") for o in OUTCOMES)
    told = None if responses is None else _human(responses)
    if told is None or not told.height or not outcomes.height:
        return nothing, []
    parts, found = [], []
    with_people = _with_people(outcomes, told)
    for (judge, protocol), part in sorted(with_people.partition_by("judge", "protocol", as_dict=True).items()):
        fitted, calibration = _calibrated(part.sort("question_id", "first", "second"), judge, protocol, settings)
        parts.append(fitted)
        found.append(calibration)
    return pl.concat(parts).select(nothing.columns), found


def _human(responses: pl.DataFrame) -> pl.DataFrame:
    known = responses.select("question_id", "response_id", human=pl.col("human_score").fill_nan(None))
    return known.drop_nulls("human").unique(["question_id", "response_id"], keep="first", maintain_order=True)


def _with_people(outcomes: pl.DataFrame, human: pl.DataFrame) -> pl.DataFrame:
    """Outcomes with `wanted`: 0 where people prefer the first answer, 1 the second, 2 neither; null without a say."""
    for side in ("first", "second"):
        mine = human.rename({"response_id": f"response_{side}", "human": f"human_{side}"})
        outcomes = outcomes.join(mine, on=["question_id", f"response_{side}"], how="left")
    gap = pl.col("human_first") - pl.col("human_second")
    wanted = pl.when(gap.abs() <= _EQUAL).then(2).when(gap > 0).then(0).when(gap < 0).then(1)
    return outcomes.with_columns(wanted=pl.when("judged").then(wanted))


def _calibrated(
    part: pl.DataFrame, judge: str, protocol: str, settings: AnalysisConfig
) -> tuple[pl.DataFrame, Calibration]:
    soft = part.select(f"{SOFT}_{o}" for o in OUTCOMES).to_numpy()
    weight = soft.sum(axis=1, keepdims=True)
    p = soft / weight
    known = part["wanted"].is_not_null().to_numpy()
    question = part["question_id"].rank("dense").cast(pl.Int64).to_numpy() - 1
    right = np.eye(3)[part["wanted"].drop_nulls().to_numpy()]
    both = _both_orders(part.filter(pl.col("wanted").is_not_null()))
    scaling = slot_scaling(p[known], right, question[known], both, settings.seed) if known.any() else None
    note = None
    if scaling is None:
        note = "human scores in fewer than two questions"
    elif scaling.edge is not None:
        note = f"no temperature is the best, on all questions or on four fifths of them: {scaling.edge}"
    if scaling is None or note:
        empty = part.with_columns(pl.lit(None, pl.Float64).alias(f"{CALIBRATED}_{o}") for o in OUTCOMES)
        return empty, Calibration(judge, protocol, None, note)
    chosen = np.tile([scaling.temperature, scaling.offset], (int(question.max()) + 1, 1))
    chosen[question[known]] = np.array(scaling.folds)[scaling.fold]
    judged = part["judged"].to_numpy()[:, None]
    values = weight * np.where(judged, slot_scaled(p, *chosen[question].T), p)
    columns = [pl.Series(f"{CALIBRATED}_{o}", values[:, i]) for i, o in enumerate(OUTCOMES)]
    return part.with_columns(columns), Calibration(judge, protocol, scaling)


def _both_orders(games: pl.DataFrame) -> bool:
    """Whether some two models were compared with each of them first."""
    pairs = games.select("first", "second").unique()
    return pairs.join(pairs, left_on=["first", "second"], right_on=["second", "first"], how="semi").height > 0
