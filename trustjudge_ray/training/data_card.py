"""What a set of preference pairs is like: what was dropped and why, whom the labels follow, how noisy they are.

Every share has an interval clustered by prompt, because pairs of one prompt are not independent. Plain data: what
`data_card.json` holds.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis import metrics
from trustjudge_ray.analysis.agreement import clustered, codes, jackknifed
from trustjudge_ray.analysis.calibration import (
    Scaling,
    fit_temperature,
    reliability_diagram,
    scaled,
    temperature_scaling,
)
from trustjudge_ray.analysis.inference import Array, ratio_intervals, soft_ratio_intervals
from trustjudge_ray.analysis.preference import difference_intervals
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.training.preference_filters import costs
from trustjudge_ray.training.preferences import Labeller

LABELS: Final = {"human": "label_human", "original": "label_original"}
"""The labels that pairs are held against, the more trusted first, with their column."""
MOST_CALIBRATED: Final = 20_000
"""Pairs that a temperature is fitted on at most: those of the prompts with the smallest hashes, whatever they hold."""
_FEW: Final = 30
"""Labelled prompts below which a temperature is told with a caution."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where the pairs come from.

    Attributes:
        rows: lines of the files, usable or not; None where the run does not say.
        quarantined: by reason, how many lines gave nothing.
    """

    rows: int | None
    quarantined: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Slice:
    """Readable pairs with a label: p (cases, 2) of chosen and rejected, right the same with a 1 at the label's side."""

    labels: str
    prompts: pl.Series
    p: Array
    right: Array


def data_card(
    pairs: pl.DataFrame, source: Source, labeller: Labeller, filters: Mapping[str, Any], settings: AnalysisConfig
) -> dict[str, Any]:
    """The card of all pairs, kept or not (`preference_filters.marked` rows).

    `counts`: rows, quarantined, pairs, kept, dropped, each with reasons. `filters`: `preference_filters.costs`.
    `length`, `position`, `agreement`, `calibration`, `noise`: see the functions of these names. `cautions`: what a
    reader must know first.
    """
    chosen = _labelled(pairs)
    scaling = _scaling(chosen, settings)
    usable = scaling if scaling and not scaling.at_edge else None
    card = {
        "labeller": asdict(labeller),
        "counts": _counts(pairs, source),
        "filters": costs(pairs, filters),
        "length": {name: length(some, settings) for name, some in _readable_and_kept(pairs).items()},
        "position": position(pairs, settings),
        "agreement": agreement(pairs, settings),
        "calibration": calibration(chosen, scaling, settings),
        "noise": noise(pairs, chosen if usable else None, settings),
    }
    return card | {"cautions": _cautions(card)}


def _readable_and_kept(pairs: pl.DataFrame) -> dict[str, pl.DataFrame]:
    return {"readable": pairs.filter(pl.col("status") == "ok"), "kept": pairs.filter("keep")}


def _counts(pairs: pl.DataFrame, source: Source) -> dict[str, Any]:
    dropped = pairs["drop_reason"].drop_nulls().value_counts().sort("drop_reason")
    return {
        "rows": source.rows,
        "quarantined": dict(sorted(source.quarantined.items())),
        "pairs": pairs.height,
        "prompts": pairs["prompt_key"].n_unique(),
        "kept": int(pairs["keep"].sum()),
        "dropped": dict(zip(dropped["drop_reason"].to_list(), dropped["count"].to_list(), strict=True)),
    }


def length(pairs: pl.DataFrame, settings: AnalysisConfig) -> dict[str, Any]:
    """How far the labels follow length. A judge that prefers longer answers is not biased by that alone: longer ones
    may be better, so the source's share stands beside it.

    `longer_chosen`: of the pairs of unlike length, the share whose longer answer is chosen; `longer_original`: the same
    of the source's labels. `correlation`: of ln(length ratio) with the signed margin, both through the origin (which
    side is called chosen makes no difference), Σxy/√(Σx²Σy²), from −1 to 1, with a jackknife interval over prompts.
    """
    unlike = pairs.filter(pl.col("length_chosen") != pl.col("length_rejected"))
    longer = (unlike["length_chosen"] > unlike["length_rejected"]).to_numpy()
    said = unlike["label_original"].is_not_null().to_numpy()
    theirs = (unlike["label_original"] == "chosen").fill_null(False).to_numpy() == longer
    same = {"same_length": pairs.height - unlike.height}
    ratio, margin = _log_ratio(pairs), pairs["margin"].to_numpy()

    def correlation(keep: NDArray[np.bool_]) -> float:
        x, y = ratio[keep], margin[keep]
        spread = float((x @ x) * (y @ y))
        return float(x @ y) / spread**0.5 if spread > 0 else float("nan")

    return {
        "longer_chosen": _share(unlike["prompt_key"], longer, settings, same),
        "longer_original": _share(
            unlike["prompt_key"].filter(pl.Series(said)),
            theirs[said],
            settings,
            same | {"no_label": int((~said).sum())},
        ),
        "correlation": _told(jackknifed(pairs["prompt_key"], correlation, settings, fisher=True)),
    }


def _log_ratio(pairs: pl.DataFrame) -> Array:
    """ln of chosen's over rejected's characters; an answer without any counts as one."""
    sides = (np.maximum(pairs[f"length_{side}"].to_numpy().astype(np.float64), 1) for side in ("chosen", "rejected"))
    return np.asarray(np.log(next(sides)) - np.log(next(sides)), dtype=np.float64)


def position(pairs: pl.DataFrame, settings: AnalysisConfig) -> dict[str, Any]:
    """What the order of showing did, `before` (each order read alone, all readable pairs), `after` (both averaged, as
    the labels are), and `kept` (each order alone, of the pairs that are kept: what filters took out).

    `order_effect`: mean of P(shown first wins) − P(shown second wins) over both orders, −1 to 1, 0 is unbiased. After
    averaging it is 0 whatever the judge, since both orders then say the same of the pair. `disagree`: share of pairs
    whose orders have unlike outcomes: whose label would hang on the order if one alone were read; after averaging none.
    """
    readable = pairs.filter(pl.col("status") == "ok")
    averaged = readable.with_columns(p_ab="p", p_ba="p", both_orders_agree=True)
    found = {"before": readable, "after": averaged, "kept": pairs.filter("keep")}
    return {name: _position(some, settings) for name, some in found.items()}


def _position(pairs: pl.DataFrame, settings: AnalysisConfig) -> dict[str, Any]:
    effect = ((2 * pairs["p_ab"] - 1) - (2 * pairs["p_ba"] - 1)) / 2
    disagree = (~pairs["both_orders_agree"]).to_numpy()
    return {
        "order_effect": _told(clustered(pairs["prompt_key"], effect.to_numpy(), difference_intervals, settings)),
        "disagree": _share(pairs["prompt_key"], disagree, settings, {}),
    }


def agreement(pairs: pl.DataFrame, settings: AnalysisConfig) -> dict[str, Any]:
    """By label (`human`, `original`) and set of pairs (`readable`, `kept`): the share of labelled pairs whose chosen
    side the label prefers too, and how many have no label (or a tie)."""
    found: dict[str, Any] = {}
    for labels, column in LABELS.items():
        found[labels] = {}
        for name, some in _readable_and_kept(pairs).items():
            told = some.filter(pl.col(column).is_not_null())
            right, left = (told[column] == "chosen").to_numpy(), {"no_label": some.height - told.height}
            found[labels][name] = _share(told["prompt_key"], right, settings, left)
    return found


def _labelled(pairs: pl.DataFrame) -> _Slice | None:
    """The labelled slice: people's labels if there are any, else the source's; None where there are none."""
    for labels, column in LABELS.items():
        told = pairs.filter(pl.col("status") == "ok", pl.col(column).is_not_null()).sort("prompt_key", "pair_id")
        if told.height:
            told = told.head(MOST_CALIBRATED)
            wins = told["p"].to_numpy()
            right = (told[column] == "chosen").to_numpy().astype(np.float64)
            return _Slice(labels, told["prompt_key"], np.stack([wins, 1 - wins], 1), np.stack([right, 1 - right], 1))
    return None


def _scaling(chosen: _Slice | None, settings: AnalysisConfig) -> Scaling | None:
    if chosen is None:
        return None
    question, _ = codes(chosen.prompts)
    return temperature_scaling(chosen.p, chosen.right, question, settings.seed)


def calibration(chosen: _Slice | None, scaling: Scaling | None, settings: AnalysisConfig) -> dict[str, Any] | None:
    """Whether p is right as often as it says, on the labelled slice: reliability, and the temperature T of p^(1/T)
    (`analysis.calibration`), over chosen and rejected; None without labels. Over 1 the judge is too sure.

    Labels of the source are held to be right here, so a temperature over 1 also means that these are noisy.
    """
    if chosen is None:
        return None
    question, prompts = codes(chosen.prompts)
    bins = reliability_diagram(chosen.p, chosen.right, question, settings.confidence)
    fitted = {name: value for name, value in asdict(scaling).items() if name != "fold"} if scaling else None
    if fitted:
        fitted["folds"] = list(fitted["folds"])
    about = {"labels": chosen.labels, "pairs": len(chosen.p), "prompts": prompts}
    told = [{name: metrics.plain(value) for name, value in asdict(each).items()} for each in bins]
    return about | {"reliability": told, "temperature_scaling": fitted}


def noise(pairs: pl.DataFrame, chosen: _Slice | None, settings: AnalysisConfig) -> dict[str, Any]:
    """How many of the kept labels are wrong, by two estimators.

    `expected`: the mean of min(p, 1 − p): if p is right as often as it says, this is the share of wrong labels. With a
    labelled slice p is calibrated on it (p^(1/T), renormalised), and the interval is a jackknife over prompts that fits
    T anew each time; else p is the judge's own, which is often too sure: then it is too low.
    `by_label`: the share of labelled kept pairs whose label prefers the other side. It also counts the label's own
    errors, so it is the judge's error rate only where labels are right.
    """
    kept = pairs.filter("keep")
    p = np.stack([kept["p"].to_numpy(), 1 - kept["p"].to_numpy()], axis=1)
    if chosen is None:
        low = p.min(axis=1) if len(p) else np.zeros(0)
        expected = clustered(kept["prompt_key"], low, soft_ratio_intervals, settings)
    else:
        expected = _refitted(kept["prompt_key"], p, chosen, settings)
    by_label = {}
    for labels, column in LABELS.items():
        told = kept.filter(pl.col(column).is_not_null())
        wrong, left = (told[column] != "chosen").to_numpy(), {"no_label": kept.height - told.height}
        by_label[labels] = _share(told["prompt_key"], wrong, settings, left)
    return {"calibrated": chosen is not None, "expected": _told(expected), "by_label": by_label}


def _refitted(prompts: pl.Series, p: Array, chosen: _Slice, settings: AnalysisConfig) -> dict[str, Any]:
    """The mean of min(p, 1 − p) after calibration, jackknifed over prompts of both the kept and the labelled pairs."""
    everything = pl.concat([prompts, chosen.prompts])
    kept = np.arange(len(everything)) < len(p)

    def statistic(keep: NDArray[np.bool_]) -> float:
        fitted, some = keep[~kept], keep[kept]
        if not fitted.any() or not some.any():
            return float("nan")
        temperature = fit_temperature(chosen.p[fitted], chosen.right[fitted])
        return float(scaled(p[some], temperature).min(axis=1).mean())

    row = jackknifed(everything, statistic, settings, fisher=False)
    row |= {"low": max(row["low"], 0.0), "high": min(row["high"], 0.5)} if not np.isnan(row["low"]) else {}
    return row | {"cases": len(p), "questions": prompts.n_unique()}


def _share(
    prompts: pl.Series, hits: NDArray[np.bool_], settings: AnalysisConfig, excluded: Mapping[str, int]
) -> dict[str, Any]:
    """A share of pairs with its interval, and what was left out of it by reason."""
    return _told(clustered(prompts, hits.astype(np.float64), ratio_intervals, settings), excluded)


def _told(row: Mapping[str, Any], excluded: Mapping[str, int] | None = None) -> dict[str, Any]:
    """A number as the card has it: null where there is none; `prompts` is how many bear it."""
    names = {"value": "value", "low": "low", "high": "high", "hits": "hits", "cases": "cases", "questions": "prompts"}
    found = {theirs: metrics.plain(row[ours]) for ours, theirs in names.items() if ours in row}
    return found | {"excluded": {reason: n for reason, n in (excluded or {}).items() if n}}


def _cautions(card: Mapping[str, Any]) -> list[str]:
    """What to know before the numbers."""
    counts, fitted = card["counts"], card["calibration"]
    found = []
    if not counts["kept"]:
        found.append("No pair is kept: the reasons are below.")
    elif counts["kept"] < counts["pairs"] / 2:
        found.append(f"Less than half of the pairs are kept ({counts['kept']} of {counts['pairs']}).")
    if fitted is None:
        found.append("No labels to calibrate on: the expected noise rate trusts the judge's own probabilities.")
    elif fitted["temperature_scaling"] is None or fitted["temperature_scaling"]["at_edge"]:
        found.append("No temperature is the best on the labelled pairs: the expected noise rate is not calibrated.")
    elif fitted["prompts"] < _FEW:
        found.append(f"The temperature comes from {fitted['prompts']} prompts alone.")
    for name, share in card["agreement"].items():
        if share["readable"]["high"] is not None and share["readable"]["high"] < 0.5:
            found.append(f"The judge prefers the other side than the {name} labels more often than not.")
    return found
