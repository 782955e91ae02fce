"""What a reader of a data card must know before its numbers, each in a sentence with its counts."""

from collections.abc import Mapping
from typing import Any, Final

_FEW: Final = 30
"""Prompts below which their number is told with a caution."""
_OFTEN: Final = 0.2
"""Share of compared pairs from which on orders that disagree are told."""


def cautions(card: Mapping[str, Any]) -> list[str]:
    """The cautions of a card (`data_card`), the most far-reaching first."""
    found = [*_of_rows(card["counts"]), *_of_few(card["noise"]["expected"]["prompts"]), *_of_judging(card)]
    if not card["filters"]:
        found.append("No filter is on: every readable pair is kept, however narrow or contradictory its label is.")
    found += _of_noise(card["noise"])
    for name, share in card["agreement"].items():
        if share["readable"]["high"] is not None and share["readable"]["high"] < 0.5:
            found.append(f"The judge prefers the other side than the {name} labels more often than not.")
    return found


def _of_rows(counts: Mapping[str, Any]) -> list[str]:
    found = []
    if counts["rows"] is None:
        found.append("The run took the first questions alone (run.limit); lines that cannot be read are of all files.")
    if not counts["kept"]:
        found.append("No pair is kept: the reasons are below.")
    elif counts["kept"] < counts["pairs"] / 2:
        found.append(f"Less than half of the pairs are kept ({counts['kept']} of {counts['pairs']}).")
    return found


def _of_few(prompts: int) -> list[str]:
    """Of the prompts of kept pairs, where there are any."""
    if not 0 < prompts < _FEW:
        return []
    named = "1 prompt" if prompts == 1 else f"{prompts} prompts"
    return [f"The kept pairs are of {named}: shares and intervals of so few say little about others."]


def _of_judging(card: Mapping[str, Any]) -> list[str]:
    found = []
    counts, failed = card["counts"], sum(card["counts"]["failed"].values())
    if failed:
        reasons = ", ".join(f"{reason} {n}" for reason, n in counts["failed"].items())
        found.append(
            f"The judge failed on {failed} of {counts['judgments']} judgments ({reasons}): such a pair has no "
            "preference and is dropped, or has no scores."
        )
    if counts["cut"]:
        found.append(
            f"Texts were cut to the judge's context in {counts['cut']} of {counts['judgments']} judgments: it has not "
            "read all of what it judges there."
        )
    unlike = card["position"]["before"]["disagree"]
    if unlike["cases"] and unlike["value"] > _OFTEN:
        found.append(
            f"The two orders disagree in {unlike['hits']:.0f} of {unlike['cases']} compared pairs "
            f"({unlike['value']:.1%}): there the surer order decides the label."
        )
    swapped = counts["swapped"]
    if swapped["pairs"]:
        found.append(
            f"Labels are swapped against the source in {swapped['pairs']} of {swapped['of']} kept pairs that it "
            f"labelled ({swapped['pairs'] / swapped['of']:.1%}): its chosen answer is rejected now."
        )
    return found


def _of_noise(told: Mapping[str, Any]) -> list[str]:
    """What the expected noise rate rests on, and whether the labels that it was calibrated on bear it out."""
    if told["labels"] is None:
        return ["No labels to calibrate on: the expected noise rate trusts the judge's own probabilities."]
    found = [
        f"People's labels of kept pairs are of {prompts} prompt{'' if prompts == 1 else 's'}, too few to calibrate "
        f"on: the {told['labels']} labels are taken."
        for prompts in told["passed_over"].values()
    ]
    if not told["calibrated"]:
        found.append(
            "No temperature is the best on the labelled kept pairs "
            f"({told['no_temperature']}): the expected noise rate is not calibrated."
        )
    elif told["labelled_prompts"] < _FEW:
        found.append(f"The temperature comes from {told['labelled_prompts']} prompts alone.")
    wrong = told["by_label"][told["labels"]]
    if wrong["low"] is not None and not wrong["low"] <= wrong["expected"] <= wrong["high"]:
        found.append(
            f"The expected noise rate does not fit the {told['labels']} labels: they call {wrong['value']:.1%} of the "
            f"labelled kept pairs wrong, the judge's probabilities {wrong['expected']:.1%}. Go by the labels."
        )
    return found
