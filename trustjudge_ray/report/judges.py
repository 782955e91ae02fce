"""Judges side by side: family, size, and what each of them comes to by the reference's rules and by ours."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from trustjudge_ray.analysis.families import family_of
from trustjudge_ray.analysis.games import POOLED
from trustjudge_ray.report.cells import Form, Inputs, Table, confidence, interval, number, overall, share, texts, whole

_SIZE: Final = re.compile(r"(?<![a-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?![a-z0-9])", re.IGNORECASE)
_UNITS: Final = {"b": 1.0, "m": 1e-3}


@dataclass(frozen=True, slots=True)
class JudgeAbout:
    """What is known of a judge: its family, and its billions of parameters; None where its name does not say."""

    name: str
    family: str | None
    billions: float | None

    @property
    def size(self) -> str:
        """The size as people write it: 70B, 135M."""
        if self.billions is None:
            return "–"
        return f"{self.billions:.3g}B" if self.billions >= 1 else f"{1000 * self.billions:.3g}M"

    @property
    def order(self) -> tuple[bool, str, bool, float, str]:
        """Sorts by family, then size, then name; what is not known comes last."""
        return (self.family is None, self.family or "", self.billions is None, self.billions or 0.0, self.name)


def billions_of(model: str) -> float | None:
    """Billions of parameters as the last part of a model's name says: `70B` is 70, `135M` 0.135, `8x7B` 56 (an upper
    bound: experts share layers). None where it says nothing, or more than one thing (`-70B-…-8B`)."""
    found = {
        float(many or 1) * float(number) * _UNITS[unit.lower()]
        for many, number, unit in _SIZE.findall(model.rstrip("/").rsplit("/", 1)[-1])
    }
    return found.pop() if len(found) == 1 else None


def about_judges(inputs: Inputs) -> list[JudgeAbout]:
    """Every judge of the tables, by family and size; from the manifest's `parameters` and `model`, and its own name."""
    identities, families = inputs.manifest.get("judges", {}), inputs.settings.families
    names = [name for name in inputs.metrics["judge"].drop_nulls().unique() if name != POOLED]
    return sorted((_about(name, identities.get(name, {}), families) for name in names), key=lambda judge: judge.order)


def _about(name: str, identity: dict[str, Any], families: dict[str, str]) -> JudgeAbout:
    model, counted = str(identity.get("model") or ""), identity.get("parameters")
    told = [text for text in (name, model) if text]
    family = next((found for text in told if (found := family_of(text, families)) is not None), None)
    billions = counted / 1e9 if isinstance(counted, int) else None
    for text in told:
        billions = billions if billions is not None else billions_of(text)
    return JudgeAbout(name, family, billions)


def judges_csv(inputs: Inputs) -> str:
    """Judges with family, size and what the manifest knows of them, a line each: to be joined to `metrics.csv`."""
    identities = inputs.manifest.get("judges", {})
    kinds = {"judge": pl.String, "family": pl.String, "billions": pl.Float64}
    rows = []
    for judge in about_judges(inputs):
        known = {name: identities.get(judge.name, {}).get(name) for name in _KNOWN}
        rows.append({"judge": judge.name, "family": judge.family, "billions": judge.billions} | known)
    return pl.DataFrame(rows, schema=kinds | dict.fromkeys(_KNOWN, pl.String), strict=False).write_csv()


_KNOWN: Final = ("model", "revision", "engine")


@dataclass(frozen=True, slots=True)
class _Measure:
    """A row of the table: a metric by the reference's rule and by ours.

    Attributes:
        rule: the column of METRICS that tells the two apart, or None where there is one number.
        k: which subsets.
    """

    title: str
    metric: str
    rule: str | None
    form: Form
    k: int | None = None


_MEASURES: Final = (
    _Measure("CR against emitted verdicts", "conflict_ratio", "score_rule", share),
    _Measure("NTR_3", "non_transitivity_ratio", "verdict_rule", share, 3),
    _Measure("NTR_5", "non_transitivity_ratio", "verdict_rule", share, 5),
    _Measure("exact match with people", "agreement_pair_exact", "verdict_rule", share),
    _Measure("Spearman with people", "agreement_spearman", "score_rule", number),
    _Measure("flip rate", "flip_rate", None, share),
)


def side_by_side(inputs: Inputs) -> Table:
    """A row for every measure, protocol and judge; coarse scales first, judges by family and size."""
    rows = overall(inputs)
    found = {judge.name: judge for judge in about_judges(inputs)}
    cells = [line for measure in _MEASURES for line in _lines(rows, measure, found, inputs)]
    ours = f"{inputs.settings.score_rule} for scores, {inputs.settings.verdict_rule} for verdicts"
    return Table(
        "Judges side by side",
        f"Baseline: emitted labels, as the reference's rules read them. Ours: {ours}. CR holds the "
        "scores of both against emitted verdicts, as the paper does; against our verdicts: under Consistency. "
        "Lower is better for CR, NTR and flips, higher for agreement. At the smallest tolerances of the run; "
        f"intervals are {confidence(inputs.settings)}, clustered by question. Size is what the model's name says.",
        (
            *("measure", "protocol", "judge", "family", "size"),
            *("baseline", "interval", "cases", "ours", "interval", "cases"),
        ),
        cells,
    )


def _lines(
    rows: pl.DataFrame, measure: _Measure, judges: dict[str, JudgeAbout], inputs: Inputs
) -> Iterator[tuple[str, ...]]:
    chosen = rows.filter(pl.col("metric") == measure.metric, pl.col("cases") > 0, pl.col("judge").is_in(list(judges)))
    if measure.metric == "conflict_ratio":
        chosen = chosen.filter(pl.col("verdict_rule") == "baseline")
    if measure.k is not None:
        chosen = chosen.filter(pl.col("k") == measure.k)
    lines: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    labels: dict[str, int] = {}
    for m in chosen.to_dicts():
        where = " / ".join(texts(m, *(name for name in ("protocol", "pair_protocol") if m[name] is not None)))
        rule = "baseline" if measure.rule is None else m[measure.rule]
        lines.setdefault((where, m["judge"]), {})[rule] = m
        labels[where] = len(inputs.protocols[m["protocol"]].label_texts) if m["protocol"] in inputs.protocols else 0
    own = {"score_rule": inputs.settings.score_rule, "verdict_rule": inputs.settings.verdict_rule, None: ""}
    for where, name in sorted(lines, key=lambda key: (labels[key[0]], key[0], judges[key[1]].order)):
        by_rule, judge = lines[where, name], judges[name]
        both = (_cells(by_rule.get(rule), measure.form) for rule in ("baseline", own[measure.rule]))
        yield (measure.title, where, name, judge.family or "–", judge.size, *(cell for part in both for cell in part))


def _cells(m: dict[str, Any] | None, form: Form) -> tuple[str, str, str]:
    return ("–", "–", "–") if m is None else (form(m["value"]), interval(m, form), whole(m["cases"]))
