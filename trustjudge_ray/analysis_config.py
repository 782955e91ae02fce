"""The `analysis` section of a run's configuration: which numbers `evaluate` computes."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class AnalysisConfig:
    """Which numbers `evaluate` computes. All score and verdict rules are always computed."""

    tolerances: Any = None
    """Gaps below which two scores or verdicts are tied; by default 0, 0.05 and 0.1. One list for all, or
    {score: [...], likelihood: [...], ppl: [...]}; in points of the scale. A score tolerance may be a share of the
    scale's range, written as text: "5%"."""
    k: list[int] = field(default_factory=lambda: [3, 4, 5])
    """Sizes of the answer subsets of the non-transitivity ratio."""
    score_rules: list[str] = field(
        default_factory=lambda: ["expected", "softmax_weighted", "geval", "baseline", "mode"]
    )
    """The score rules that the report shows, the main one first."""
    verdict_rules: list[str] = field(
        default_factory=lambda: ["normalised", "likelihood", "ppl", "ppl_tiebreak", "baseline"]
    )
    """The verdict rules that the report shows, the main one first."""
    identical: str = "exclude"
    """Pairs of equal texts in CR and NTR: `exclude` or `include` (as ties)."""
    on_empty: str = "exclude"
    """Comparisons with an empty answer in rankings: `exclude`, or `lose`."""
    confidence: float = 0.95
    """Nominal coverage of every interval, 0.5 to below 1."""
    bootstrap: int = 0
    """Bootstrap rounds for rank intervals; 0 uses the sandwich covariance."""
    covariates: list[str] = field(default_factory=list)
    """What the rating rule `davidson_controlled` takes out of ratings: some of `length` (characters), `headers`,
    `lists` and `bold` (Markdown) of the answers. Empty: the rule is not computed."""
    ridge: float = 0.0
    """Precision of a normal prior around equal ratings: its standard deviation is 174/√ridge points. Over 0, ratings
    are shrunk, and models that won or lost everything have one, without an interval."""
    category_weights: dict[str, float] = field(default_factory=dict)
    """How much a game of a category weighs in the overall rankings, such as {coding: 2}; others weigh 1, `(none)` is
    the uncategorised."""
    anchor_model: str | None = None
    """The model whose rating is 1000 in place of the mean's; intervals are then those of the difference to it."""
    families: dict[str, str] = field(default_factory=dict)
    """Model and judge names to families, before the built-in names (`analysis.families`): {my-tune-7b: llama, acme-*:
    acme}. A name may be a glob; the first that fits counts, whatever its case."""
    seed: int = 0
    """Of everything that is drawn: bootstrap resamples, folds of calibration, sampled subsets, orders for Elo."""

    @property
    def score_rule(self) -> str:
        """The main score rule."""
        return self.score_rules[0]

    @property
    def verdict_rule(self) -> str:
        """The main verdict rule."""
        return self.verdict_rules[0]
