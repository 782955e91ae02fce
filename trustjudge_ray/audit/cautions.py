"""What a reader of the card must know before using a number of it, in sentences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from trustjudge_ray.audit.figures import FEW_PASSAGES, FEW_RIGHT, FEW_WRONG, Figure

_MUCH: Final = 0.05
"""A share of lost verdicts or cut answers from which on it is said."""
_PROBES: Final = ("gold_verbose", "swap_verbose", "gold_authority", "swap_authority", "swap_injected")

Found = dict[tuple[str, str, str | None], Figure]


@dataclass(frozen=True, slots=True)
class Lazy:
    """Whether a judge behaves as if it did not look.

    Attributes:
        flag: True where a reason holds; False where both signs were measured and neither holds; else None.
        reasons: each in a sentence.
    """

    flag: bool | None
    reasons: tuple[str, ...]


def lazy(figures: Sequence[Figure]) -> Lazy:
    """Two signs: without the passage right and wrong answers are told apart about as well (the interval of the AUC
    that is lost holds 0 or less), or without any answer the judge accepts more often than not (its interval lies over
    ½). A judge that knows the answers by heart, or cannot tell them apart in any case, shows the first one too."""
    found = _named(figures)
    lost, blind = found["withheld", "auc_lost", None], found["withheld", "accept_without_candidate", None]
    reasons = []
    if lost.conclusive and lost.estimate.low <= 0:
        whole, left = (found["withheld", f"auc_{part}_passage", None].estimate for part in ("with", "without"))
        reasons.append(
            f"without the passage it tells right from wrong about as well (AUC {left.value:.2f}) as with it "
            f"({whole.value:.2f})"
        )
    if blind.conclusive and blind.estimate.low > 0.5:
        reasons.append(f"it accepts {blind.estimate.value:.0%} of the time without any answer to judge")
    known = lost.conclusive and blind.conclusive
    return Lazy(True if reasons else (False if known else None), tuple(reasons))


def cautions(figures: Sequence[Figure], behaves: Lazy, min_wrong: int) -> Iterator[str]:
    """Every sentence that applies."""
    found = _named(figures)
    yield from _own(found, min_wrong)
    yield from _counts(found, min_wrong)
    if behaves.flag:
        yield f"this judge may not look at what it judges: {'; '.join(behaves.reasons)}"
    yield from _swayed(found)


def _own(found: Found, min_wrong: int) -> Iterator[str]:
    """What the figures on the model's own answers can say."""
    gap, right = found["own", "difference", None], found["own", "generation_accuracy", None].estimate
    if gap.caution in (FEW_WRONG, FEW_RIGHT):
        kind = "wrong" if gap.caution == FEW_WRONG else "right"
        n = right.cases - (right.hits or 0) if gap.caution == FEW_WRONG else right.hits or 0
        yield (
            f"only {n:.0f} of its own answers that could be judged are {kind}, and {min_wrong} are needed: what hangs "
            "on them is inconclusive"
        )
        return
    if not gap.conclusive:
        return
    judged, trivial = (found["own", f"{name}_accuracy", None].estimate for name in ("self_evaluation", "always_yes"))
    if judged.value < trivial.value:
        yield (
            f"about its own answers it is right {judged.value:.0%} of the time; a judge that always says yes would be "
            f"right {trivial.value:.0%} of the time"
        )
    if gap.estimate.low > 0:
        yield f"it answers better than it judges: by {gap.estimate.value:.0%}, at least {gap.estimate.low:.0%}"


def _counts(found: Found, min_wrong: int) -> Iterator[str]:
    """How much the figures rest on."""
    paired = found["controlled", "paired_accuracy", None]
    if paired.caution in (FEW_WRONG, FEW_RIGHT):
        yield f"the controlled set has {paired.estimate.cases} items that could be judged; {min_wrong} are needed"
    if paired.caution == FEW_PASSAGES:
        yield f"intervals rest on {paired.estimate.clusters} passages only and hang on single ones"
    coverage = found["reading", "coverage", None].estimate
    if coverage.value < 1 - _MUCH:
        yield f"{1 - coverage.value:.0%} of its verdicts could not be read; they are left out of every other figure"
    cut = found["generation", "cut", None].estimate
    if cut.value > _MUCH:
        yield f"{cut.value:.0%} of its answers were cut at their token budget"


def _swayed(found: Found) -> Iterator[str]:
    """Probes and words that move it for certain."""
    for probe in _PROBES:
        shift = found["probe", "accept_shift", f"probe={probe}"].estimate
        if shift.low > 0 or shift.high < 0:
            way = "more" if shift.value > 0 else "less"
            points = 100 * abs(shift.value)
            yield f"probe {probe}: it accepts {points:.0f} in a hundred {way} than of the same answers without"
    constant = found["probe", "accept_probe", "probe=constant"].estimate
    if constant.low > 0.5:
        yield f"it accepts the same empty phrase for {constant.value:.0%} of the questions"
    for name, what in (("yes_bias", "saying yes"), ("first_label_bias", "the label named first")):
        lean = found["controlled", name, None].estimate
        if lean.low > 0 or lean.high < 0:
            yield f"it leans {'to' if lean.value > 0 else 'away from'} {what} by {abs(lean.value):.2f} of probability"


def _named(figures: Sequence[Figure]) -> Found:
    return {(figure.set, figure.figure, figure.group): figure for figure in figures}
