"""The card of a judge: every figure of the audit, what the gate says, and what a reader must know."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import polars as pl

from trustjudge_ray.audit.cautions import Lazy, cautions, lazy
from trustjudge_ray.audit.figures import Cases, Figure, by_value, counts_of
from trustjudge_ray.audit.gates import Gate, gates, verdict
from trustjudge_ray.audit.probes import position_figures, probe_figures, repeat_figures, withheld_figures
from trustjudge_ray.audit.response_bias import (
    controlled_figures,
    controlled_verdicts,
    generation_figures,
    label_figures,
    own_figures,
    own_verdicts,
)
from trustjudge_ray.audit.verdicts import GENERATED, PAIRS, READS, combined, conform, items_of, unasked, with_reasons
from trustjudge_ray.audit_config import ORACLES, AuditConfig, GatesConfig

READING: Final = "reading"
JUDGED: Final = ("own", "gold", "swap")
"""The candidates whose verdicts must be readable, for `coverage`."""


@dataclass(frozen=True, slots=True)
class Card:
    """What an audit found.

    Attributes:
        verdict: all gates together: PASS, WARN, BLOCK or INCONCLUSIVE.
        gates: what each says.
        figures: every number; where nothing was asked it has no cases, and is there all the same.
        lazy: whether the judge behaves as if it did not look.
        cautions: what a reader must know, a sentence each.
        items, passages, benchmarks: how many items, passages, and items of each benchmark.
        primary: the oracle that decides what is right.
        agreement: how far oracles agree, as the caller has it.
        judge, attention, lora, made: for the caller to fill with `dataclasses.replace`.
    """

    verdict: str
    gates: tuple[Gate, ...]
    figures: tuple[Figure, ...]
    lazy: Lazy
    cautions: tuple[str, ...]
    items: int
    passages: int
    benchmarks: Mapping[str, int]
    primary: str
    agreement: Sequence[Mapping[str, Any]]
    judge: Mapping[str, Any] = field(default_factory=dict)
    attention: Mapping[str, Any] | None = None
    lora: Mapping[str, Any] | None = None
    made: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The content of `audit.json`; numbers that are not finite are null."""
        return {
            "verdict": self.verdict,
            "gates": [gate.as_json() for gate in self.gates],
            "judge": dict(self.judge),
            "items": self.items,
            "passages": self.passages,
            "benchmarks": dict(self.benchmarks),
            "oracle": {"primary": self.primary, "agreement": [dict(row) for row in self.agreement]},
            "figures": [figure.as_json() for figure in self.figures],
            "lazy": {"flag": self.lazy.flag, "reasons": list(self.lazy.reasons)},
            "cautions": list(self.cautions),
            "attention": self.attention,
            "lora": self.lora,
            "made": dict(self.made),
        }


def card(
    reads: pl.DataFrame,
    pairs: pl.DataFrame,
    generated: pl.DataFrame,
    oracle_agreement: Sequence[Mapping[str, Any]],
    settings: AuditConfig,
) -> Card:
    """Compute the card.

    Args:
        reads: READS rows of one judge.
        pairs: PAIRS rows, of `compare-passage`.
        generated: GENERATED rows, with a Boolean column per oracle.
        oracle_agreement: passed on.

    Raises:
        AuditTableError: a table lacks a column, or a value is not of its type.
    """
    oracles = [name for name in ORACLES if name in generated.columns]
    generated = conform(generated, GENERATED, "GENERATED", oracles)
    reads = with_reasons(conform(reads, READS, "READS"), settings.min_mass)
    reads = reads.sort("item_id", "candidate", "condition", "protocol", "repeat")
    pairs = conform(pairs, PAIRS, "PAIRS")
    items = items_of(reads, generated, pairs)
    figures = tuple(_figures(reads, pairs, generated, items, oracles, settings))
    said = gates(figures, _asked_for(settings), settings.min_wrong)
    behaves = lazy(figures)
    return Card(
        verdict=verdict(said),
        gates=said,
        figures=figures,
        lazy=behaves,
        cautions=tuple(cautions(figures, behaves, settings.min_wrong)),
        items=items.height,
        passages=items["passage_id"].n_unique(),
        benchmarks=counts_of(items["benchmark"]),
        primary=settings.oracle,
        agreement=tuple(oracle_agreement),
    )


def _asked_for(settings: AuditConfig) -> GatesConfig:
    """The gates whose figures were asked for: without probes nothing is withheld and nothing compared."""
    if settings.probes:
        return settings.gates
    return replace(settings.gates, candidate_withheld=None, both_order_agreement=None)


def _figures(
    reads: pl.DataFrame,
    pairs: pl.DataFrame,
    generated: pl.DataFrame,
    items: pl.DataFrame,
    oracles: list[str],
    settings: AuditConfig,
) -> Iterator[Figure]:
    size, least = items["passage_id"].n_unique(), settings.min_wrong
    full = reads.filter(pl.col("condition") == "full")
    own, controlled = own_verdicts(full, items), controlled_verdicts(full, items)
    yield from generation_figures(generated, items, settings.oracle, oracles, size)
    yield from own_figures(own, least, size)
    yield from controlled_figures(controlled, full, least, size)
    yield from label_figures(controlled, full, size)
    yield from withheld_figures(reads, items, least, size)
    yield from probe_figures(reads, items, size)
    yield from repeat_figures(reads, items, size)
    yield from position_figures(pairs, items, settings.min_mass, size)
    yield from reading_figures(reads, items, size)


def reading_figures(reads: pl.DataFrame, items: pl.DataFrame, size: int) -> Iterator[Figure]:
    """How well verdicts can be read.

    `coverage`: share of the verdicts on JUDGED, passage and answer shown, that can be read, also by candidate;
    `unreadable` the share that cannot for each reason (`reason=low_mass`); `readable_readings`, share of single
    readings, of all conditions and repetitions, also by protocol; `label_mass`, the mean probability of the labels in
    readings with status ok, also by protocol. An answer of nothing is put to no judge and counts in none.
    """
    full = reads.filter(pl.col("condition") == "full", pl.col("candidate").is_in(JUDGED))
    at = items.select("item_id", "cluster")
    verdicts = combined(full).join(at, on="item_id").with_columns(unasked().alias("out"))
    read = pl.col("reason").is_null()
    yield Cases(verdicts, size).share("coverage", READING, None, read)
    for group, frame in by_value(verdicts, "candidate"):
        yield Cases(frame, size).share("coverage", READING, group, read)
    for reason in counts_of(verdicts.filter(pl.col("out").is_null())["reason"]):
        because = (pl.col("reason") == reason).fill_null(False)
        yield Cases(verdicts, size).share("unreadable", READING, f"reason={reason}", because)
    rows = reads.join(at, on="item_id").with_columns(unasked().alias("out"))
    failed = pl.when(pl.col("status").ne_missing("ok")).then(pl.col("status").fill_null("no_status"))
    unknown = pl.when(pl.col("label_mass").is_null() | pl.col("label_mass").is_nan()).then(pl.lit("no_probability"))
    weighed = rows.with_columns(pl.coalesce(failed, unknown).alias("out"))
    mass = pl.col("label_mass").clip(0.0, 1.0)
    yield Cases(rows, size).share("readable_readings", READING, None, read)
    yield Cases(weighed, size).share("label_mass", READING, None, mass, soft=True)
    for group, single in by_value(rows, "protocol"):
        yield Cases(single, size).share("readable_readings", READING, group, read)
    for group, single in by_value(weighed, "protocol"):
        yield Cases(single, size).share("label_mass", READING, group, mass, soft=True)
