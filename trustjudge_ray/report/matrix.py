"""Who beats whom: for every judge and comparison protocol the expected points of each model against each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from trustjudge_ray.report.cells import Cell, Inputs, share
from trustjudge_ray.report.tables import preferred

_SHADES: Final = 5
_STEP: Final = 0.08
"""A shade is as wide as this; the strongest is of all that lies further from one half."""


@dataclass(frozen=True, slots=True)
class Square:
    """A cell: its text with its value and its questions, and how it is shaded ("" where it is not)."""

    text: str
    questions: str
    shade: str


@dataclass(frozen=True, slots=True)
class Matrix:
    """One judge's and protocol's table: models from the best rating to the worst, and a row of squares for each."""

    title: str
    note: str
    models: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Square]]]


def matrices(inputs: Inputs) -> list[Matrix]:
    """A matrix for every judge and comparison protocol with a readable pair."""
    rule, found = inputs.settings.verdict_rule, []
    ranked = {(judge, protocol): rows for judge, protocol, _, rows in preferred(inputs)}
    for (judge, protocol), rows in win_rates(inputs).partition_by("judge", "protocol", as_dict=True).items():
        known = sorted(set(rows["model"]))
        if (judge, protocol) in ranked:
            order = ranked[str(judge), str(protocol)].sort("component", "rank", "model", nulls_last=True)["model"]
            known = [*(m for m in order if m in set(known)), *(m for m in known if m not in set(order))]
        at = {(row["model"], row["against"]): row for row in rows.to_dicts()}
        lines = [(row, [_square(at.get((row, column))) for column in known]) for row in known]
        found.append(Matrix(f"Who beats whom, by {judge} ({protocol})", _NOTE.format(rule=rule), known, lines))
    return found


_NOTE: Final = (
    "How often the row's model beats the column's: the judge's probability that its answer is better plus half that of "
    "a tie, both orders averaged, over the pairs that can be judged by rule {rule}; in brackets on how many questions. "
    "Stronger shades are further from one half, blue above it and orange below; a dash: never compared."
)


def win_rates(inputs: Inputs) -> pl.DataFrame:
    """judge, protocol, rule, model, against, value, pairs, questions; sorted.

    `value` is the mean of P(better) + ½ P(tie) over the pairs of two models' answers that have an outcome under the
    main verdict rule, at its smallest tolerance; identical texts are a certain tie. Pairs of one model's answers are
    left out. The values of (a, b) and of (b, a) add up to 1.
    """
    if "outcome" not in inputs.verdicts.columns:
        return pl.DataFrame(schema=_WIN_RATES)
    pairs = inputs.verdicts.filter(
        pl.col("rule") == inputs.settings.verdict_rule,
        pl.col("outcome").is_not_null(),
        pl.col("p_a").is_not_null(),
        pl.col("model_a") != pl.col("model_b"),
    ).filter(pl.col("tolerance") == pl.col("tolerance").min().over("judge", "protocol"))
    half, same = pl.col("p_tie") / 2, ("judge", "protocol", "rule", "question_id")
    forth = pairs.select(*same, model="model_a", against="model_b", points=pl.col("p_a") + half)
    back = pairs.select(*same, model="model_b", against="model_a", points=pl.col("p_b") + half)
    key = ("judge", "protocol", "rule", "model", "against")
    return (
        pl.concat([forth, back])
        .group_by(*key)
        .agg(value=pl.col("points").mean(), pairs=pl.len().cast(pl.Int64), questions=_QUESTIONS)
        .sort(*key)
    )


_QUESTIONS: Final = pl.col("question_id").n_unique().cast(pl.Int64)
_WIN_RATES: Final[dict[str, Any]] = {
    **dict.fromkeys(("judge", "protocol", "rule", "model", "against"), pl.String),
    "value": pl.Float64,
    "pairs": pl.Int64,
    "questions": pl.Int64,
}


def _square(row: dict[str, Any] | None) -> Square:
    if row is None:
        return Square("–", "", "")
    level = min(_SHADES, int(abs(row["value"] - 0.5) / _STEP + 0.5))
    shade = f"{'up' if row['value'] > 0.5 else 'down'}{level}" if level else ""
    return Square(share(row["value"]), Cell(str(row["questions"]), row["questions"]), shade)
