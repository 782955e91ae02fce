"""Whether the canary (`corpus.canary`) ends last, as it must: it gives every question the same empty answer.

It is only ranked: what is so easy to tell from the rest says nothing of a judge's consistency, bias or agreement.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis import metrics
from trustjudge_ray.analysis.standing import Standing
from trustjudge_ray.corpus.canary import META_JSON, NAME

CANARY_RULES: Final = ("davidson", "mean_score")
"""The rating rules by which it is held against the others: of comparisons, and of scores."""
_MOST_NAMED: Final = 10


def canary_of(responses: pl.DataFrame) -> str | None:
    """What the canary of these RESPONSES is called; None where there is none. A corpus' own model of its name is no
    canary."""
    if not {"model", "meta_json"} <= set(responses.columns):
        return None
    mine = responses.filter(pl.col("model") == NAME, pl.col("meta_json") == META_JSON)
    return NAME if mine.height else None


def without_canary(rows: pl.DataFrame, canary: str | None) -> pl.DataFrame:
    """JUDGMENTS, SCORES, VERDICTS or RESPONSES that do not concern it: those of other models and of pairs of others."""
    sides = [name for name in ("model", "model_a", "model_b") if name in rows.columns]
    return rows if canary is None else rows.filter(*(pl.col(side).ne_missing(canary) for side in sides))


def canary_metrics(ratings: pl.DataFrame, canary: str | None) -> pl.DataFrame:
    """METRICS `above_canary`, for every judge, protocol and category with a ranking that it is in: of the other models
    that it met, directly or through others, the share that stands significantly above it (`rank_low` of RATINGS by
    CANARY_RULES). 1 is right. Without a canary there is no row.

    `excluded_by`: `never_met`, and `no_interval` where nothing can be significant (one question).
    """
    chosen = ratings.filter(pl.col("rule").is_in(CANARY_RULES))
    rows: list[dict[str, Any]] = []
    for row in chosen.filter(pl.col("model") == canary).to_dicts() if canary else []:
        about = {name: row[name] for name in ("judge", "protocol", "category")}
        same = [pl.col(name).eq_missing(pl.lit(row[name])) for name in (*about, "rule")]
        components = chosen.filter(*same)["component"]
        peers = int((components == row["component"]).sum()) - 1
        reasons = {"never_met": len(components) - 1 - peers}
        counts: dict[str, Any] = {"cases": 0, "value": None}
        if row["rank_low"] is None:
            reasons["no_interval"] = peers
        elif peers:
            above = row["rank_low"] - 1
            counts = {"hits": float(above), "cases": peers, "value": above / peers}
        rows.append({"metric": "above_canary"} | about | counts | metrics.reasons(reasons))
    return metrics.frame(rows)


def canary_notes(
    models: Sequence[str], component: NDArray[np.int64], standing: Standing, canary: str | None
) -> list[str]:
    """What must be said of the canary's place in one ranking; nothing where every other model is significantly above.

    Args:
        component: (models,) as in `connectivity.structure`.
    """
    if canary is None:
        return []
    what = f"'{canary}', one polite and empty answer to every question,"
    if canary not in models:
        return [f"CANARY: {what} is not in this ranking: none of its judgments could be used, so it shows nothing"]
    me, names = list(models).index(canary), np.array(models, dtype=object)
    met = (component == component[me]) & (names != canary)
    below = met & standing.above[me]
    level = met & ~below & ~standing.surely_above[:, me]
    apart = component != component[me]
    told = []
    if below.any():
        told.append(f"CANARY ALARM: {what} is ranked above {_listed(names[below])}: this ranking is not about answers")
    if level.any():
        told.append(
            f"CANARY: {what} is not significantly below {_listed(names[level])}: this run does not show that the judge "
            "tells their answers from none"
        )
    if apart.any():
        told.append(f"CANARY: {what} never met {_listed(names[apart])}, directly or through others")
    return told


def _listed(names: Any) -> str:
    chosen = sorted(names)
    more = f" and {len(chosen) - _MOST_NAMED} more" if len(chosen) > _MOST_NAMED else ""
    return ", ".join(chosen[:_MOST_NAMED]) + more
