"""Two runs compared: paired differences by model and overall, changes of consistency and of rank, and what to make of
them.

B is compared with A: a difference is B − A. A question is the unit that is sampled. All verdicts about models come from
one family of intervals (`paired`, single-step max-t), so that in all of them together a false alarm comes in at most
1 − confidence of comparisons; those about consistency are a family of their own.
"""

from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Final

import numpy as np

from trustjudge_ray.analysis import paired as differences
from trustjudge_ray.analysis.games import Array
from trustjudge_ray.analysis.inference import linearised
from trustjudge_ray.analysis.paired import Differences
from trustjudge_ray.analysis.pairing import (
    SIDES,
    Lane,
    Overlap,
    Paired,
    Side,
    lanes,
    overlap,
    paired_games,
    paired_scores,
)
from trustjudge_ray.analysis.rank_changes import RankChange, game_ranks, score_ranks
from trustjudge_ray.analysis.shared_consistency import shared_ratios
from trustjudge_ray.config import AnalysisConfig, CompareConfig

IMPROVED: Final = "improved"
REGRESSED: Final = "regressed"
NO_DIFFERENCE: Final = "no difference shown"
UNDERPOWERED: Final = "underpowered"
VERDICTS: Final = (REGRESSED, IMPROVED, NO_DIFFERENCE, UNDERPOWERED)
LOWER_IS_BETTER: Final = frozenset({"conflict_ratio", "non_transitivity_ratio"})


@dataclass(frozen=True, slots=True)
class Change:
    """One quantity in both runs, over the questions that both have.

    Attributes:
        measure: `mean_score`, `win_rate`, `conflict_ratio`, `non_transitivity_ratio`, or `judge_shift`.
        lane: judge and protocol; both sides' where they differ.
        rule: the score rule, or the verdict rule.
        model: None for all together.
        before, after, difference: in the measure's own unit; `difference` is after − before, less the judge's shift
            where `bridged`.
        low, high: the interval of the difference that holds for all of its family at once.
        low_alone, high_alone: that of this difference on its own.
        p_value: adjusted for the family.
        detectable: the smallest true difference that this comparison finds four times out of five.
        matters: the smallest difference that matters, `compare.smallest` in the measure's unit.
        questions: over how many it is taken; unpaired: how many more (scores by question, or games) one side has.
        verdict: one of VERDICTS; None of a judge's shift.
        identical: whether every judgment behind it is the same on both sides: then the difference is exactly 0.
        note: what else to know.
    """

    measure: str
    lane: str
    rule: str
    model: str | None
    k: int | None
    before: float | None
    after: float | None
    difference: float | None
    low: float | None
    high: float | None
    low_alone: float | None
    high_alone: float | None
    p_value: float | None
    detectable: float | None
    matters: float
    questions: int
    unpaired: int
    verdict: str | None
    identical: bool = False
    bridged: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two runs come to beside each other.

    Attributes:
        a, b: names of the runs.
        changes: by model and overall; consistency: of consistency; ranks: by model.
        warnings: what a reader must know first.
        other_judges: lanes whose judge, protocol or decoding differ.
        overlap: what was compared, and what only one side has.
        excluded: by lane and reason, what was not read or has no partner.
    """

    a: str
    b: str
    changes: list[Change]
    consistency: list[Change]
    ranks: list[RankChange]
    warnings: list[str]
    other_judges: list[str]
    overlap: Overlap
    excluded: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row before inference: hits and cases as shares of a range, (Q,) each."""

    change: Change
    sums_a: Array
    sums_b: Array
    cases: Array
    identical: bool
    unpaired: int = 0
    lowest: float = 0.0
    span: float = 1.0
    shift: tuple[Array, Array, Array] | None = None


def compare_runs(a: Side, b: Side, analysis: AnalysisConfig, settings: CompareConfig) -> Comparison:
    """Compare run B with run A.

    Args:
        analysis: rules, tolerances, confidence and seed: the same for both sides.
        settings: what matters, and how many resamples.
    """
    shared = overlap(a, b)
    belonging, lonely = lanes(a, b)
    warnings = [*_about_judges(belonging, shared), *_about_overlap(a, b, shared), *lonely]
    something = bool(shared.questions and shared.models)
    rows: list[_Row] = []
    ranks: list[RankChange] = []
    excluded: dict[str, dict[str, int]] = {}
    for lane in belonging if something else []:
        if lane.kind == "score":
            mine = paired_scores(a, b, lane, shared, analysis.score_rule)
            rows += _score_rows(mine, lane, shared, analysis.score_rule)
            ranks += score_ranks(mine, lane, settings.bootstrap, analysis.confidence, analysis.seed)
        elif lane.kind == "compare":
            mine, before, after = paired_games(a, b, lane, shared, analysis.on_empty)
            rows += _model_rows(mine, lane, "win_rate", "soft", _unchanged(mine, shared))
            placed, notes = game_ranks(before, after, lane, settings.bootstrap, analysis.confidence, analysis.seed)
            ranks += placed
            warnings += notes
        else:
            continue
        excluded[f"{lane.kind}: {lane.name}"] = mine.excluded
        warnings += _about_pairing(mine, lane)
    consistency = _consistency_rows(a, b, belonging, shared, analysis) if something else []
    return Comparison(
        a.name,
        b.name,
        _judged(rows, analysis, settings),
        _judged(consistency, analysis, settings),
        ranks,
        warnings,
        [lane.name for lane in belonging if not lane.same],
        shared,
        excluded,
    )


def _score_rows(mine: Paired, lane: Lane, shared: Overlap, rule: str) -> list[_Row]:
    """A row for every model and one for all; with another judge, less its shift on the answers both judged."""
    same = _unchanged(mine, shared)
    rows = _model_rows(mine, lane, "mean_score", rule, same)
    everything = _row(mine, lane, "mean_score", rule, None, np.ones(len(mine.models), dtype=bool), "")
    if lane.same or ((mine.cases * same).sum(axis=0) > 0).sum() < 2:
        return [everything, *rows]
    on = [(table * same).sum(axis=0) for table in (mine.sums_a, mine.sums_b, mine.cases)]
    shift = replace(everything, change=replace(everything.change, measure="judge_shift"))
    shift = replace(shift, sums_a=on[0], sums_b=on[1], cases=on[2])
    bridge = (on[0], on[1], on[2])
    return [shift, *(replace(row, shift=bridge) for row in rows)]


def _unchanged(mine: Paired, shared: Overlap) -> Array:
    models = {name: i for i, name in enumerate(mine.models)}
    questions = {name: i for i, name in enumerate(shared.questions)}
    found = np.zeros(mine.cases.shape)
    for question, model in shared.unchanged.iter_rows():
        if question in questions and model in models:
            found[models[model], questions[question]] = 1.0
    return found


def _model_rows(mine: Paired, lane: Lane, measure: str, rule: str, unchanged: Array) -> list[_Row]:
    rows = []
    for m, model in enumerate(mine.models):
        chosen = np.arange(len(mine.models)) == m
        some = mine.cases[m] > 0
        still = some.any() and unchanged[m][some].all() and not mine.identical[m]
        notes = mine.field[m], "its answers did not change" if still else ""
        rows.append(_row(mine, lane, measure, rule, model, chosen, "; ".join(note for note in notes if note)))
    return rows


def _row(mine: Paired, lane: Lane, measure: str, rule: str, model: str | None, chosen: Any, note: str) -> _Row:
    some = mine.cases[chosen].sum(axis=1) > 0
    return _Row(
        _blank(measure, lane.name, rule, model, None, note),
        mine.sums_a[chosen].sum(axis=0),
        mine.sums_b[chosen].sum(axis=0),
        mine.cases[chosen].sum(axis=0),
        bool(some.any() and mine.identical[chosen][some].all()),
        int(np.array(mine.unpaired)[chosen].sum()),
        mine.lowest,
        mine.span,
    )


def _consistency_rows(a: Side, b: Side, belonging: list[Lane], shared: Overlap, analysis: AnalysisConfig) -> list[_Row]:
    rows = []
    for ratio in shared_ratios(a, b, belonging, shared, analysis):
        left = ", ".join(f"{reason} {n}" for reason, n in ratio.left_out.items())
        note = f"left out: {left}" if left else ""
        blank = _blank(ratio.measure, ratio.lane, ratio.rule, None, ratio.k, note)
        rows.append(_Row(blank, ratio.hits_a, ratio.hits_b, ratio.cases, ratio.identical))
    return rows


def _blank(measure: str, lane: str, rule: str, model: str | None, k: int | None, note: str) -> Change:
    """A change of which nothing is known yet."""
    unknown: dict[str, Any] = {f.name: None for f in fields(Change) if f.default is MISSING}
    about = {"measure": measure, "lane": lane, "rule": rule, "model": model, "k": k, "note": note}
    return Change(**(unknown | {"matters": 0.0, "questions": 0, "unpaired": 0} | about))


def _judged(rows: list[_Row], analysis: AnalysisConfig, settings: CompareConfig) -> list[Change]:
    """The rows with their intervals and verdicts: one family of those that may differ at all."""
    some = [row for row in rows if row.cases.sum() > 0]
    open_rows = [row for row in some if not row.identical and row.change.measure != "judge_shift"]
    shifts = [row for row in some if row.change.measure == "judge_shift"]
    found = {id(row): _settled(row, settings) for row in some if row.identical}
    found |= {id(row): _nothing_shared(row, settings) for row in rows if row.cases.sum() == 0}
    for family in (open_rows, shifts):
        inferred = _differences(family, analysis) if family else None
        for d, row in enumerate(family):
            assert inferred is not None
            found[id(row)] = _filled(row, inferred, d, settings)
    return [found[id(row)] for row in rows]


def _differences(rows: list[_Row], analysis: AnalysisConfig) -> Differences:
    rng = np.random.default_rng(analysis.seed)
    before = np.stack([row.sums_a for row in rows]), np.stack([row.cases for row in rows])
    after = np.stack([row.sums_b for row in rows]), before[1]
    if any(row.shift is not None for row in rows):
        return _bridged(rows, before, after, rng, analysis.confidence)
    within = all((x >= -1e-9).all() and (x <= before[1] + 1e-9).all() for x in (before[0], after[0]))
    # A score rule may leave its scale (geval is not renormalised): a difference without bounds.
    inference = differences.paired_ratios if within else differences.paired_means
    return inference(before, after, rng, analysis.confidence)


def _bridged(
    rows: list[_Row], before: tuple[Array, Array], after: tuple[Array, Array], rng: Any, confidence: float
) -> Differences:
    """Differences less that of the answers which both judges read, for the rows that have such a shift."""
    sides = [linearised(*side) for side in (before, after)]
    value, influence = sides[1].value - sides[0].value, sides[1].influence - sides[0].influence
    freedom = np.minimum(sides[0].freedom, sides[1].freedom)
    for d, row in enumerate(rows):
        if row.shift is not None:
            shift = [linearised(sums, row.shift[2]) for sums in row.shift[:2]]
            value[d] -= shift[1].value - shift[0].value
            influence[d] -= shift[1].influence - shift[0].influence
            freedom[d] = min(freedom[d], float(shift[0].freedom))
    found = differences.from_influence(value, influence, freedom, rng, confidence)
    questions = (before[1] > 0).sum(axis=1)
    return replace(found, first=sides[0].value, second=sides[1].value, questions=questions)


def _filled(row: _Row, found: Differences, d: int, settings: CompareConfig) -> Change:
    def number(values: Array, at: float = 0.0) -> float | None:
        value = at + row.span * float(values[d])
        return value if np.isfinite(value) else None

    low, high, least = number(found.joint_low), number(found.joint_high), number(found.joint_detectable)
    matters = settings.smallest * row.span
    caution = {"few_questions": "few questions", "no_interval": "no interval: fewer than two questions"}
    notes = [row.change.note, caution.get(str(found.caution[d]), "")]
    verdict = _verdict(row.change.measure, low, high, least, matters)
    return replace(
        row.change,
        before=number(found.first, row.lowest),
        after=number(found.second, row.lowest),
        difference=number(found.value),
        low=low,
        high=high,
        low_alone=number(found.low),
        high_alone=number(found.high),
        p_value=None if np.isnan(found.joint_p_value[d]) else float(found.joint_p_value[d]),
        detectable=least,
        matters=matters,
        questions=int(found.questions[d]),
        unpaired=row.unpaired,
        verdict=None if row.change.measure == "judge_shift" else verdict,
        bridged=row.shift is not None,
        note="; ".join(note for note in notes if note),
    )


def _nothing_shared(row: _Row, settings: CompareConfig) -> Change:
    """A row without a case in both runs."""
    note = "; ".join(note for note in (row.change.note, "nothing that both runs have could be read") if note)
    return replace(
        row.change, matters=settings.smallest * row.span, unpaired=row.unpaired, verdict=UNDERPOWERED, note=note
    )


def _settled(row: _Row, settings: CompareConfig) -> Change:
    """A row whose judgments are the same ones on both sides: nothing is uncertain about its difference."""
    value = row.lowest + row.span * float(row.sums_b.sum() / row.cases.sum())
    zeros: dict[str, Any] = dict.fromkeys(("difference", "low", "high", "low_alone", "high_alone"), 0.0)
    note = "; ".join(note for note in (row.change.note, "the same answers and judgments on both sides") if note)
    counts: dict[str, Any] = {"matters": settings.smallest * row.span, "questions": int((row.cases > 0).sum())}
    counts["unpaired"] = row.unpaired
    verdict = None if row.change.measure == "judge_shift" else NO_DIFFERENCE
    settled: dict[str, Any] = {"before": value, "after": value, "identical": True, "note": note, "verdict": verdict}
    return replace(row.change, **zeros, **counts, **settled)


def _verdict(measure: str, low: float | None, high: float | None, least: float | None, matters: float) -> str:
    """A difference that the family's interval keeps from 0; else whether a difference that matters would have shown."""
    if low is None or high is None:
        return UNDERPOWERED
    if low > 0 or high < 0:
        return IMPROVED if (low > 0) != (measure in LOWER_IS_BETTER) else REGRESSED
    return NO_DIFFERENCE if least is not None and least <= matters else UNDERPOWERED


def _about_judges(belonging: list[Lane], shared: Overlap) -> list[str]:
    told = []
    for lane in belonging:
        if lane.same or lane.kind not in ("score", "compare"):
            continue
        whom = "judge" if lane.judge_a != lane.judge_b else "protocol" if lane.protocol_a != lane.protocol_b else ""
        what = f"the {whom} changed" if whom else "the judge, its protocol or its decoding changed under the same name"
        if lane.kind == "score" and shared.unchanged.height:
            how = (
                "only answers that both judged are compared, and models' differences are less the judge's shift on the "
                f"{shared.unchanged.height} answers that did not change (judge_shift)"
            )
        else:
            how = "only what both judged is compared, and nothing tells a model's change from the judge's"
        told.append(f"NOT THE SAME JUDGE in {lane.name}: {what}; {how}")
    return told


def _about_overlap(a: Side, b: Side, shared: Overlap) -> list[str]:
    told = []
    for side, only in ((a, shared.only_a), (b, shared.only_b)):
        for what, names in only.items():
            if names:
                told.append(f"{len(names)} {what} only in {side.name}, left out: {named(names)}")
    if shared.changed:
        told.append(f"{len(shared.changed)} questions have another text in each run, left out: {named(shared.changed)}")
    if not shared.questions or not shared.models:
        told.append("the runs have no question and model in common: nothing can be compared")
    if not shared.texts:
        told.append("a run holds no texts (an import): questions are taken to be the same by their ids")
    return told


def _about_pairing(mine: Paired, lane: Lane) -> list[str]:
    """Said where more than a tenth of what one run holds has no partner in the other."""
    lonely, both = sum(mine.excluded.get(f"only_{side}", 0) for side in SIDES), mine.common
    what = "scores" if lane.kind == "score" else "games"
    if lonely <= 0.1 * (both + lonely):
        return []
    plan = "" if lane.kind == "score" else "; were the runs planned alike (models, design, orders, rounds, seed)?"
    return [f"{lane.name}: {lonely} {what} of one run have no partner in the other, {both} have one{plan}"]


def named(names: list[str], most: int = 10) -> str:
    """Names as a sentence holds them."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
