"""Conflict and non-transitivity of two runs over the pairs that are valid in both, by question."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl

from trustjudge_ray.analysis.canary import canary_of, without_canary
from trustjudge_ray.analysis.consistency import score_signs
from trustjudge_ray.analysis.games import Array, binned
from trustjudge_ray.analysis.pairing import SIDES, Lane, Overlap, Side, touched_models
from trustjudge_ray.analysis.scoring import scores
from trustjudge_ray.analysis.tolerances import parse_tolerances
from trustjudge_ray.analysis.transitivity import UNKNOWN, count_subsets, must_sample
from trustjudge_ray.analysis.verdicts import UNDEFINED, outcomes, pairs_of
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.identity import id_key

_PAIR: Final = ["question_id", "response_a", "response_b"]


@dataclass(frozen=True, slots=True)
class SharedRatio:
    """A ratio of two runs over what is valid in both.

    Attributes:
        hits_a, hits_b, cases: (Q,); the cases are the same on both sides.
        left_out: pairs (of a conflict ratio) or questions (of a non-transitivity ratio) that were not counted, by
            reason.
        identical: whether all judgments behind it are the same on both sides.
    """

    measure: str
    lane: str
    rule: str
    k: int | None
    hits_a: Array
    hits_b: Array
    cases: Array
    left_out: dict[str, int]
    identical: bool = False


def shared_ratios(
    a: Side, b: Side, lanes: Sequence[Lane], shared: Overlap, settings: AnalysisConfig
) -> list[SharedRatio]:
    """`conflict_ratio` of every score lane with every comparison lane of the same judges, against the verdict rule
    `baseline`, and `non_transitivity_ratio` by k; the main rules and `baseline`, at the smallest tolerances.

    Pairs of identical texts are left out, as `settings.identical` says, and a canary always. Pairs are those of the
    same response ids.
    """
    a, b = (_of_answers(side) for side in (a, b))
    found: list[SharedRatio] = []
    of_kind = {kind: [lane for lane in lanes if lane.kind == kind] for kind in ("score", "compare")}
    for compared in of_kind["compare"]:
        verdicts = _verdicts(a, b, compared, shared, settings)
        same = not touched_models(a, b, compared, shared)
        for scored in of_kind["score"]:
            if (scored.judge_a, scored.judge_b) == (compared.judge_a, compared.judge_b):
                rows = _conflicts(a, b, scored, compared, verdicts, shared, settings)
                both = same and not touched_models(a, b, scored, shared)
                found += [replace(row, identical=both) for row in rows]
        for rule in dict.fromkeys((settings.verdict_rule, "baseline")):
            for k in sorted(set(settings.k)):
                found.append(replace(_circles(verdicts, compared, rule, k, shared), identical=same))
    return found


def _of_answers(side: Side) -> Side:
    return replace(side, judgments=without_canary(side.judgments, canary_of(side.responses)))


def _verdicts(a: Side, b: Side, lane: Lane, shared: Overlap, settings: AnalysisConfig) -> pl.DataFrame:
    """Pairs of the common questions that both runs compared: the outcome of each rule on each side, null where it is
    not valid."""
    tolerances = parse_tolerances(settings.tolerances)
    tables = []
    for name, side in zip(SIDES, (a, b), strict=True):
        mine = side.judgments.filter(pl.col("kind") == "compare", pl.col("question_id").is_in(shared.questions))
        pairs = pairs_of(lane.chosen(mine, name))
        table = pairs.keys.select(*_PAIR)
        for rule in dict.fromkeys((settings.verdict_rule, "baseline")):
            outcome = outcomes(pairs, rule, tolerances.by_rule[rule][0])
            if settings.identical == "exclude":
                outcome[pairs.has("identical")] = UNDEFINED
            known = pl.Series(f"{rule}_{name}", outcome, dtype=pl.Int32)
            table = table.with_columns(known.set(known == UNDEFINED, None))
        tables.append(table)
    return tables[0].join(tables[1], on=_PAIR).sort(_PAIR)


def _conflicts(
    a: Side, b: Side, scored: Lane, compared: Lane, verdicts: pl.DataFrame, shared: Overlap, settings: AnalysisConfig
) -> list[SharedRatio]:
    tolerances = parse_tolerances(settings.tolerances)
    place = _places(verdicts, shared)
    found = []
    for rule in dict.fromkeys((settings.score_rule, "baseline")):
        signs, known = [], np.ones(verdicts.height, dtype=bool)
        for name, side in zip(SIDES, (a, b), strict=True):
            mine = scored.chosen(side.judgments.filter(pl.col("kind") == "score"), name)
            table = scores(mine, dict(side.protocols)).filter(pl.col("rule") == rule)
            values = side.protocols[scored.protocol_a if name == "a" else scored.protocol_b].values
            pair = [_scores_of(verdicts, table, response) for response in ("response_a", "response_b")]
            known &= ~np.isnan(pair[0]) & ~np.isnan(pair[1])
            signs.append(score_signs(pair[0], pair[1], tolerances.score_points(values)[0]))
        outcome = [verdicts[f"baseline_{name}"].to_numpy().astype(np.float64) for name in SIDES]
        valid = ~np.isnan(outcome[0]) & ~np.isnan(outcome[1])
        use, size = known & valid, len(shared.questions)
        hits = [
            binned(place[use], (s[use] != v[use]).astype(np.float64), size) for s, v in zip(signs, outcome, strict=True)
        ]
        left = {"no_verdict": int((~valid).sum()), "no_score": int((valid & ~known).sum())}
        lane = f"{scored.name} | {compared.name}"
        left = {reason: n for reason, n in left.items() if n}
        found.append(
            SharedRatio(
                "conflict_ratio", lane, rule, None, hits[0], hits[1], binned(place[use], np.ones(use.sum()), size), left
            )
        )
    return found


def _scores_of(verdicts: pl.DataFrame, table: pl.DataFrame, response: str) -> Array:
    mine = table.select("question_id", pl.col("response_id").alias(response), "score")
    joined = verdicts.join(mine, on=["question_id", response], how="left", maintain_order="left")
    return joined["score"].cast(pl.Float64).to_numpy()


def _circles(verdicts: pl.DataFrame, lane: Lane, rule: str, k: int, shared: Overlap) -> SharedRatio:
    """NTR_k over the subsets whose every pair is valid in both runs."""
    valid = verdicts.drop_nulls([f"{rule}_{name}" for name in SIDES])
    size, counted = len(shared.questions), {"a": np.zeros(len(shared.questions)), "b": np.zeros(len(shared.questions))}
    cases, too_many = np.zeros(size), 0
    place = {question: i for i, question in enumerate(shared.questions)}
    by_width: dict[int, list[tuple[int, np.ndarray]]] = {}
    for (question,), rows in valid.partition_by(["question_id"], as_dict=True, maintain_order=True).items():
        tables = _tables(rows, rule)
        if must_sample(tables.shape[1], k):
            too_many += 1
            continue
        by_width.setdefault(tables.shape[1], []).append((place[str(question)], tables))
    for group in by_width.values():
        at = np.array([where for where, _ in group])
        for i, name in enumerate(SIDES):
            found = count_subsets(np.stack([tables[i] for _, tables in group]), [k], faults=("ratio",))[k]
            counted[name][at] = found.faulty["ratio"]
            cases[at] = found.complete
    left = {"questions_with_too_many_answers": too_many, "no_verdict": verdicts.height - valid.height}
    left = {reason: n for reason, n in left.items() if n}
    return SharedRatio("non_transitivity_ratio", lane.name, rule, k, counted["a"], counted["b"], cases, left)


def _tables(rows: pl.DataFrame, rule: str) -> np.ndarray:
    """(2, n, n) relations of one question on both sides; UNKNOWN where a pair is not valid in both."""
    ids = sorted({*rows["response_a"], *rows["response_b"]}, key=id_key([*rows["response_a"], *rows["response_b"]]))
    number = {name: i for i, name in enumerate(ids)}
    found = np.full((2, len(ids), len(ids)), UNKNOWN, dtype=np.int8)
    for left, right, *signs in rows.select("response_a", "response_b", *(f"{rule}_{s}" for s in SIDES)).iter_rows():
        i, j = number[left], number[right]
        flip = 1 if i < j else -1
        found[:, min(i, j), max(i, j)] = [flip * sign for sign in signs]
    return found


def _places(rows: pl.DataFrame, shared: Overlap) -> np.ndarray:
    place = {question: i for i, question in enumerate(shared.questions)}
    return np.array([place[question] for question in rows["question_id"]], dtype=np.int64)
