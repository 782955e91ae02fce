"""What a set of preference pairs is like: what was dropped and why, whom the labels follow, how noisy they are.

Every share has an interval clustered by prompt, because pairs of one prompt are not independent. Plain data: what
`data_card.json` holds.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.analysis import metrics
from trustjudge_ray.analysis.agreement import clustered, codes, jackknifed
from trustjudge_ray.analysis.calibration import (
    Scaling,
    end_of_search,
    fit_temperature,
    reliability_diagram,
    scaled,
    temperature_scaling,
)
from trustjudge_ray.analysis.inference import Array, RatioIntervals, ratio_intervals, soft_ratio_intervals
from trustjudge_ray.analysis.preference import difference_intervals
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.training.data_card_cautions import cautions
from trustjudge_ray.training.data_card_doubtful import doubtful
from trustjudge_ray.training.preference_filters import costs
from trustjudge_ray.training.preferences import Labeller

LABELS: Final = {"human": "label_human", "original": "label_original"}
"""The labels that pairs are held against, the more trusted first, with their column."""
ENOUGH: Final = 30
"""Prompts with labels from which on these are calibrated on, though less trusted ones have more."""
MOST_CALIBRATED: Final = 20_000
"""Pairs that a temperature is fitted on at most: those of the prompts with the smallest hashes, whatever they hold."""
_COMPARED: Final = ("ok", "no_preference")
"""Statuses of pairs whose both orders were read: where these cancel each other out there is no preference."""
_ONE_PROMPT: Final = "the labelled pairs are of one prompt alone"
_NO_END: Final = {
    "sharp": "the sharper the judge's probabilities are made, the better they fit the labels, without end",
    "flat": "the flatter the judge's probabilities are made, the better they fit the labels, without end",
    "folds": "it hangs on few prompts: fitted without a fifth of them it has no end",
}
"""Why there is no best temperature."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where the pairs come from.

    Attributes:
        rows: lines of the files, usable or not; None where the run took the first questions alone (`run.limit`).
        quarantined: by reason, how many lines gave nothing.
        answers: by reason, how many answers could not be used of lines that gave pairs of others.
        judgments: how many judgments the labeller was asked for and gave, or failed on: comparisons, and scores if any.
        cut: in how many of these texts were cut to the judge's context.
        failed: by reason, how many of these it failed on.
        run: what the run was, as far as its manifest tells: `tool` (version), `engine`, `model`, `corpus` (paths); None
            without a manifest.
    """

    rows: int | None
    quarantined: Mapping[str, int]
    answers: Mapping[str, int] = field(default_factory=dict)
    judgments: int = 0
    cut: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)
    run: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Slice:
    """Readable pairs with a label: p (cases, 2) of chosen and rejected, right the same with a 1 at the label's side.
    `passed_over`: of more trusted labels, of how many prompts there are too few."""

    labels: str
    passed_over: dict[str, int]
    prompts: pl.Series
    p: Array
    right: Array


def data_card(
    pairs: pl.DataFrame, source: Source, labeller: Labeller, filters: Mapping[str, Any], settings: AnalysisConfig
) -> dict[str, Any]:
    """The card of all pairs, kept or not (`preference_filters.marked` rows).

    `counts`: rows, quarantined, answers, pairs, kept, dropped, judgments, cut, failed (`Source`); `swapped`, how many
    of the kept pairs `of` the source's labelling have its chosen answer as rejected. `confidence`: of every interval.
    `filters`: `preference_filters.costs`. `length`, `position`, `agreement`, `calibration`, `noise`: see the functions
    of these names. `doubtful`: the kept pairs to read first (`data_card_doubtful`). `cautions`: what a reader must know
    first.
    """
    chosen = _labelled(pairs)
    card = {
        "labeller": asdict(labeller),
        "run": None if source.run is None else dict(source.run),
        "confidence": settings.confidence,
        "counts": _counts(pairs, source),
        "filters": costs(pairs, filters),
        "length": {name: length(some, settings) for name, some in _readable_and_kept(pairs).items()},
        "position": position(pairs, settings),
        "agreement": agreement(pairs, settings),
        "calibration": calibration(chosen, _scaling(chosen, settings), settings),
        "noise": noise(pairs.filter("keep"), settings),
        "doubtful": doubtful(pairs.filter("keep")),
    }
    return card | {"cautions": cautions(card)}


def _readable_and_kept(pairs: pl.DataFrame) -> dict[str, pl.DataFrame]:
    return {"readable": pairs.filter(pl.col("status") == "ok"), "kept": pairs.filter("keep")}


def _counts(pairs: pl.DataFrame, source: Source) -> dict[str, Any]:
    theirs = pairs.filter("keep")["label_original"].drop_nulls()
    dropped = pairs["drop_reason"].drop_nulls().value_counts().sort("drop_reason")
    return {
        "rows": source.rows,
        "quarantined": dict(sorted(source.quarantined.items())),
        "answers": dict(sorted(source.answers.items())),
        "pairs": pairs.height,
        "prompts": pairs["prompt_key"].n_unique(),
        "kept": int(pairs["keep"].sum()),
        "dropped": dict(zip(dropped["drop_reason"].to_list(), dropped["count"].to_list(), strict=True)),
        "swapped": {"pairs": int((theirs == "rejected").sum()), "of": len(theirs)},
        "judgments": source.judgments,
        "cut": source.cut,
        "failed": dict(sorted(source.failed.items())),
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
    """What the order of showing did, `before` (each order read alone, all compared pairs: also those that have no
    preference because their orders cancel each other out), `after` (both averaged, as the labels are), and `kept` (each
    order alone, of the pairs that are kept: what filters took out).

    `order_effect`: mean of P(shown first wins) − P(shown second wins) over both orders, −1 to 1, 0 is unbiased.
    `disagree`: share of pairs whose orders have unlike outcomes: whose label would hang on the order if one alone were
    read. `by_construction`: after averaging both are 0 whatever the judge, since both orders then say the same of a
    pair: nothing is measured, and there is no interval.
    """
    compared = pairs.filter(pl.col("status").is_in(_COMPARED), pl.col("both_orders_agree").is_not_null())
    zero = {"value": 0.0, "low": None, "high": None}
    averaged = {"by_construction": True, "order_effect": zero, "disagree": zero}
    kept = _position(pairs.filter("keep"), settings)
    return {"before": _position(compared, settings), "after": averaged, "kept": kept}


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
    """The labelled slice: people's labels if ENOUGH prompts have them or as many as have the source's, else the
    source's; None where there are none."""
    readable = pairs.filter(pl.col("status") == "ok")
    told = {name: readable.filter(pl.col(column).is_not_null()) for name, column in LABELS.items()}
    prompts = {name: some["prompt_key"].n_unique() for name, some in told.items()}
    labels = max(LABELS, key=lambda name: min(prompts[name], ENOUGH))
    if not prompts[labels]:
        return None
    names = list(LABELS)
    passed = {name: prompts[name] for name in names[: names.index(labels)] if prompts[name]}
    some = told[labels].sort("prompt_key", "pair_id").head(MOST_CALIBRATED)
    wins, right = some["p"].to_numpy(), (some[LABELS[labels]] == "chosen").to_numpy().astype(np.float64)
    p, right = np.stack([wins, 1 - wins], axis=1), np.stack([right, 1 - right], axis=1)
    return _Slice(labels, passed, some["prompt_key"], p, right)


def _scaling(chosen: _Slice | None, settings: AnalysisConfig) -> Scaling | None:
    if chosen is None:
        return None
    question, _ = codes(chosen.prompts)
    return temperature_scaling(chosen.p, chosen.right, question, settings.seed)


def _no_temperature(chosen: _Slice, scaling: Scaling | None) -> str | None:
    """Why there is no temperature; None where there is one."""
    if scaling is None:
        return _ONE_PROMPT
    if not scaling.at_edge:
        return None
    return _NO_END[end_of_search(chosen.p, chosen.right, scaling.temperature) or "folds"]


def calibration(chosen: _Slice | None, scaling: Scaling | None, settings: AnalysisConfig) -> dict[str, Any] | None:
    """Whether p is right as often as it says, on the labelled slice: reliability, and the temperature T of p^(1/T)
    (`analysis.calibration`), over chosen and rejected; None without labels. Over 1 the judge is too sure. Where the
    search ends at an edge, for all pairs or for a fold, there is no optimum: T, folds and losses with it are null, and
    `reason` says why. `passed_over`: of more trusted labels than these, of how many prompts there are too few.

    Labels of the source are held to be right here, so a temperature over 1 also means that these are noisy.
    """
    if chosen is None:
        return None
    question, prompts = codes(chosen.prompts)
    bins = reliability_diagram(chosen.p, chosen.right, question, settings.confidence)
    fitted = _fitted(scaling, _no_temperature(chosen, scaling))
    about = {"labels": chosen.labels, "passed_over": chosen.passed_over, "pairs": len(chosen.p), "prompts": prompts}
    told = [{name: metrics.plain(value) for name, value in asdict(each).items()} for each in bins]
    return about | {"reliability": told, "temperature_scaling": fitted}


def _fitted(scaling: Scaling | None, reason: str | None) -> dict[str, Any]:
    """A temperature as the card has it."""
    names = ("temperature", "folds", "before", "after", "cases", "questions", "at_edge")
    found: dict[str, Any] = {name: getattr(scaling, name, None) for name in names}
    if scaling is None or reason is not None:
        found |= dict.fromkeys(("temperature", "folds", "after"))
    else:
        found["folds"] = list(scaling.folds)
    return found | {"reason": reason}


def noise(kept: pl.DataFrame, settings: AnalysisConfig) -> dict[str, Any]:
    """How many of the kept labels are wrong, by two estimators.

    `expected`: the mean of min(p, 1 − p): if p is right as often as it says, this is the share of wrong labels. Where
    kept pairs are labelled p is calibrated on these (p^(1/T), renormalised; of all readable pairs T would be another,
    since filters take out what p alone does not tell), and the interval is a jackknife over prompts that fits T anew
    each time; else p is the judge's own, which is often too sure: then it is too low. From 0 to 0.5, and so is its
    interval. `calibrated`, `labels`, `labelled_prompts`, `passed_over` and `no_temperature` (why not) say on what.
    `by_label`: the share of labelled kept pairs whose label prefers the other side. It also counts the label's own
    errors, so it is the judge's error rate only where labels are right. Its `expected` is the mean of min(p, 1 − p) of
    these same pairs: where that lies outside the interval, p says little about who is right, at whatever temperature,
    and the interval of `expected` is not one of the noise rate (`cautions`).
    """
    told = _labelled(kept)
    scaling = _scaling(told, settings)
    reason = _no_temperature(told, scaling) if told else None
    chosen = told if reason is None else None
    p = np.stack([kept["p"].to_numpy(), 1 - kept["p"].to_numpy()], axis=1)
    low = (p if chosen is None else scaled(p, fit_temperature(chosen.p, chosen.right))).min(axis=1)
    if chosen is None:
        expected = clustered(kept["prompt_key"], low, _halves, settings)
    else:
        expected = _refitted(kept["prompt_key"], p, chosen, settings)
    on: dict[str, Any] = {
        "labels": told.labels if told else None,
        "labelled_prompts": told.prompts.n_unique() if told else 0,
    }
    on |= {"passed_over": told.passed_over if told else {}, "no_temperature": reason}
    by_label = {name: _against(kept, column, low, settings) for name, column in LABELS.items()}
    return {"calibrated": chosen is not None} | on | {"expected": _told(expected), "by_label": by_label}


def _halves(sums: Array, cases: Array, confidence: float) -> RatioIntervals:
    """Means of quantities from 0 to 0.5, with intervals in there."""
    found = soft_ratio_intervals(np.minimum(2 * sums, cases), cases, confidence)
    return replace(found, value=found.value / 2, low=found.low / 2, high=found.high / 2, hits=found.hits / 2)


def _against(kept: pl.DataFrame, column: str, low: Array, settings: AnalysisConfig) -> dict[str, Any]:
    """The share of labelled pairs whose label prefers the other side, and of the same pairs the `expected`."""
    said = kept[column].is_not_null().to_numpy()
    labelled = kept.filter(said)
    wrong, left = (labelled[column] != "chosen").to_numpy(), {"no_label": kept.height - labelled.height}
    of_these = float(low[said].mean()) if said.any() else None
    return _share(labelled["prompt_key"], wrong, settings, left) | {"expected": of_these}


def _refitted(prompts: pl.Series, p: Array, chosen: _Slice, settings: AnalysisConfig) -> dict[str, Any]:
    """The mean of min(p, 1 − p) after calibration, jackknifed over prompts of both the kept and the labelled pairs."""
    everything = pl.concat([prompts, chosen.prompts])
    kept = np.arange(len(everything)) < len(p)

    def statistic(keep: NDArray[np.bool_]) -> float:
        fitted, some = keep[~kept], keep[kept]
        if not fitted.any() or not some.any():
            return float("nan")
        p_told, right = chosen.p[fitted], chosen.right[fitted]
        temperature = fit_temperature(p_told, right)
        if end_of_search(p_told, right, temperature):
            return float("nan")
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
