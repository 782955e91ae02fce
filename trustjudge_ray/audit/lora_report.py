"""What the LoRA experiment found, beside the directions that arXiv 2606.28050 reports, as JSON and as lines of text."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import polars as pl

from trustjudge_ray.audit.lora_arms import Example, draw_arm
from trustjudge_ray.audit.lora_config import ARMS, LoraConfig
from trustjudge_ray.audit.lora_reading import Material, Outcome
from trustjudge_ray.audit.lora_training import Training
from trustjudge_ray.audit.transfer import BASE, MEASURES, transfer_matrix


@dataclass(frozen=True, slots=True)
class Direction:
    """A difference to the base that the paper reports: `sign` +1 is a rise."""

    arm: str
    measure: str
    sign: int
    text: str


PAPER: Final = (
    Direction("generation", "false_accept", 1, "trained to answer only, the judge accepts more wrong answers"),
    Direction("evaluation", "generation_accuracy", -1, "trained to judge only, it answers worse"),
    Direction("both", "generation_accuracy", 1, "trained on both, it answers a little better"),
    Direction("both", "controlled_accuracy", 1, "trained on both, it judges a little better"),
)
"""The paper's directions, each in the measure of ours that comes nearest; its sizes are those of other models."""
AS_PAPER, NOT_AS_PAPER, NOT_SHOWN = "as in the paper", "not as in the paper", "not shown"


@dataclass(frozen=True, slots=True)
class LoraReport:
    """The whole experiment.

    Attributes:
        matrix: MATRIX.
        claims: one for each of PAPER whose arm was trained.
        trainings: one for each arm and seed.
        made: sizes of the split and the configuration.
    """

    matrix: pl.DataFrame
    claims: list[dict[str, Any]]
    trainings: list[dict[str, Any]]
    made: dict[str, Any]
    cautions: list[str]

    def as_json(self) -> dict[str, Any]:
        """The card's `lora`: no NaN, plain values."""
        return {
            "matrix": self.matrix.to_dicts(),
            "claims": self.claims,
            "trainings": self.trainings,
            "made": self.made,
            "cautions": self.cautions,
        }

    def lines(self) -> list[str]:
        """For a terminal: the matrix (all benchmarks together, then each), the trainings, the claims, the cautions."""
        found: list[str] = []
        for benchmark in self.matrix["benchmark"].unique(maintain_order=True):
            rows = self.matrix.filter(pl.col("benchmark").eq_missing(benchmark))
            found += [f"benchmark: {benchmark or 'all together'}", *_table(rows), ""]
        found += [_training_line(training) for training in self.trainings]
        found += ["", "Beside arXiv 2606.28050:", *(f"- {_claim_line(claim)}" for claim in self.claims)]
        return found + [f"caution: {text}" for text in self.cautions]


def report_of(
    outcomes: Sequence[Outcome],
    answers: pl.DataFrame,
    reads: pl.DataFrame,
    material: Material,
    config: LoraConfig,
    min_mass: float = 0.5,
) -> LoraReport:
    """The report of all outcomes; `answers` and `reads` are `lora_reading.frames` of them."""
    matrix = transfer_matrix(answers, reads, min_mass, config.confidence)
    trainings = [_training_row(outcome, material) for outcome in _ordered(outcomes) if outcome.training]
    made = {
        "examples_per_arm": material.size,
        "too_long": material.too_long,
        "training_passages": len({e.passage_id for e in (*material.generation, *material.evaluation)}),
        "test_passages": len({item.passage_id for item in material.items}),
        "test_items": len(material.items),
        "controlled_candidates": len(material.controlled),
        "min_mass": min_mass,
        "test_seconds": {f"{o.arm}-{o.seed}": o.seconds.get("test") for o in _ordered(outcomes)},
        "config": asdict(config),
    }
    return LoraReport(matrix, claims_of(matrix), trainings, made, _cautions(matrix, answers, config))


def claims_of(matrix: pl.DataFrame) -> list[dict[str, Any]]:
    """Each of PAPER beside what was measured over all benchmarks: `as in the paper` where the interval of the
    difference lies on the paper's side of 0, `not as in the paper` where it lies on the other, else `not shown`."""
    rows = {(r["arm"], r["measure"]): r for r in matrix.filter(pl.col("benchmark").is_null()).to_dicts()}
    found = []
    for claim in PAPER:
        row = rows.get((claim.arm, claim.measure))
        if row is not None:
            low, high = row["difference_low"], row["difference_high"]
            numbers = {"difference": row["difference"], "low": low, "high": high, "p_holm": row["p_holm"]}
            found.append(asdict(claim) | numbers | {"verdict": _verdict(low, high, claim.sign)})
    return found


def _verdict(low: float | None, high: float | None, sign: int) -> str:
    if low is None or high is None or low <= 0 <= high:
        return NOT_SHOWN
    return AS_PAPER if (low > 0) == (sign > 0) else NOT_AS_PAPER


def _ordered(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return sorted(outcomes, key=lambda outcome: (ARMS.index(outcome.arm), outcome.seed))


def _training_row(outcome: Outcome, material: Material) -> dict[str, Any]:
    training = outcome.training
    assert isinstance(training, Training)
    drawn = draw_arm(outcome.arm, outcome.seed, material.generation, material.evaluation, material.size)
    return {
        "arm": outcome.arm,
        "seed": outcome.seed,
        "examples": len(drawn),
        "by_kind": _kinds(drawn),
        "updates": training.updates,
        "epochs": training.epochs,
        "first_loss": training.losses[0],
        "last_loss": training.losses[-1],
        "losses": list(training.losses),
        "trainable": training.trainable,
        "parameters": training.parameters,
        "seconds": outcome.seconds.get("train"),
    }


def _kinds(drawn: Sequence[Example]) -> dict[str, int]:
    """How many examples to answer, and right and wrong ones to judge."""
    return {
        "generation": sum(example.task == "generation" for example in drawn),
        "evaluation_right": sum(example.truth is True for example in drawn),
        "evaluation_wrong": sum(example.truth is False for example in drawn),
    }


def _cautions(matrix: pl.DataFrame, answers: pl.DataFrame, config: LoraConfig) -> list[str]:
    found = []
    tests = matrix.filter(pl.col("p_value").is_not_null())
    most = tests["shared_passages"].max()
    if isinstance(most, int) and 2.0 ** (1 - most) * len(tests) > 1 - config.confidence:
        found.append(
            f"with {most} test passages no p-value is below {2.0 ** (1 - most):.2g}: none of the {len(tests)} tests "
            f"can be under {1 - config.confidence:.2g} after Holm's correction, whatever the arms do"
        )
    if len(config.seeds) < 3:
        found.append(f"{len(config.seeds)} seed(s): how much of a difference is the luck of one training is not known")
    found += _one_sided(matrix)
    cut = answers["cut"].fill_null(False).sum()
    if cut:
        found.append(
            f"{cut} of {len(answers)} answers were not finished within the max_tokens of {config.answer_protocol} and "
            f"are read as they are"
        )
    return found


def _one_sided(matrix: pl.DataFrame) -> list[str]:
    """Arms that give every controlled candidate the same verdict."""
    rows = matrix.filter(pl.col("benchmark").is_null())
    rates = {(arm, measure): value for arm, measure, value in rows.select("arm", "measure", "value").iter_rows()}
    words = {(1.0, 0.0): ("accepts", "equals its"), (0.0, 1.0): ("rejects", "is 1 less its")}
    found = []
    for arm in rows["arm"].unique(maintain_order=True):
        told = words.get((rates[arm, "false_accept"], rates[arm, "false_reject"]))
        if told is not None:
            found.append(
                f"arm {arm} {told[0]} every candidate, right or wrong: where it does so with its own answers too, its "
                f"self_accuracy {told[1]} generation_accuracy and says nothing of judging"
            )
    return found


def _table(rows: pl.DataFrame) -> list[str]:
    """Measures as lines and arms as columns: the values, then the differences to the base."""
    arms = rows["arm"].unique(maintain_order=True).to_list()
    cells = {(row["measure"], row["arm"]): row for row in rows.to_dicts()}
    values = [[_value(cells[measure, arm]) for arm in arms] for measure in MEASURES]
    trained = [arm for arm in arms if arm != BASE]
    changes = [[_change(cells[measure, arm]) for arm in trained] for measure in MEASURES]
    return [*_columns("", arms, values), "", *_columns("less base", trained, changes)]


def _columns(title: str, heads: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    width = max(len(text) for line in cells for text in line) + 2
    lines = [title.ljust(22) + "".join(head.ljust(width) for head in heads)]
    lines += [m.ljust(22) + "".join(c.ljust(width) for c in line) for m, line in zip(MEASURES, cells, strict=True)]
    return [line.rstrip() for line in lines]


def _value(row: dict[str, Any]) -> str:
    if row["value"] is None:
        return "no case"
    reach = "" if row["low"] is None else f" [{row['low']:.2f}, {row['high']:.2f}]"
    return f"{row['value']:.2f}{reach} n={row['cases']}"


def _change(row: dict[str, Any]) -> str:
    if row["difference"] is None:
        return "no case"
    low, high = row["difference_low"], row["difference_high"]
    return f"{row['difference']:+.2f}" + ("" if low is None else f" [{low:+.2f}, {high:+.2f}]")


def _training_line(training: dict[str, Any]) -> str:
    return (
        f"{training['arm']}, seed {training['seed']}: {training['examples']} examples, {training['updates']} updates, "
        f"loss {training['first_loss']:.3f} → {training['last_loss']:.3f}"
    )


def _claim_line(claim: dict[str, Any]) -> str:
    if claim["difference"] is None:
        return f"{claim['text']}: {claim['verdict']} (no case)"
    reach = "no interval" if claim["low"] is None else f"{claim['low']:+.2f} to {claim['high']:+.2f}"
    adjusted = "" if claim["p_holm"] is None else f", Holm p = {claim['p_holm']:.2g}"
    return f"{claim['text']}: {claim['verdict']} ({claim['measure']} {claim['difference']:+.2f}, {reach}{adjusted})"
