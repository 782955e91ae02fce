"""The `audit` section of a configuration: what a judge is asked before it is trusted, and what it must show."""

import math
from dataclasses import dataclass, field, fields
from operator import attrgetter

from trustjudge_ray.audit.lora_config import LoraConfig, lora_faults

ORACLES = ("f1", "exact", "contains", "shown_gold")
"""What may decide whether an answer is right (`audit.oracle`)."""

GATE_VERDICTS = ("PASS", "WARN", "BLOCK", "INCONCLUSIVE")
"""What the gates can say together."""
DTYPES = ("bfloat16", "float16", "float32")

VERIFY_PROTOCOLS = (
    "verify-correct-incorrect",
    "verify-incorrect-correct",
    "verify-right-yes-no",
    "verify-right-no-yes",
    "verify-wrong-yes-no",
    "verify-wrong-no-yes",
)
"""The six that are counterbalanced: three ways to accept, each with its labels named in both orders."""

NO_PASSAGE_PROTOCOL = "verify-no-passage"
"""What a judge is asked without the passage."""
POSITION_PROTOCOL = "compare-passage"
"""What it is asked about gold and swap, in both orders."""


@dataclass
class GateConfig:
    """Two thresholds of one figure. See `audit.gates` for what is held against them."""

    warn: float
    """The figure itself must not be worse than this, or the gate says WARN."""
    block: float
    """Where the figure is worse than `warn` and the worse end of its interval is worse than this, the gate says BLOCK.
    Worse is lower for a gate that asks for at least so much, higher for one that asks for at most so much."""


@dataclass
class GatesConfig:
    """What a judge must show. A gate that is null is not applied: {both_order_agreement: null}."""

    auc: GateConfig | None = field(default_factory=lambda: GateConfig(warn=0.8, block=0.5))
    """At least: AUC of the log-odds on the controlled set. Chance is 0.5: what is not shown to be better blocks."""
    acquiescence: GateConfig | None = field(default_factory=lambda: GateConfig(warn=0.2, block=0.5))
    """At most: the size of false accept rate − false reject rate on the controlled set, whichever its sign: a judge
    that rejects everything is as useless as one that accepts everything."""
    candidate_withheld: GateConfig | None = field(default_factory=lambda: GateConfig(warn=0.5, block=0.9))
    """At most: share of items accepted where the judge is shown no answer at all."""
    both_order_agreement: GateConfig | None = field(default_factory=lambda: GateConfig(warn=0.8, block=0.3))
    """At least: share of pairs with the same winner in both orders."""
    coverage: GateConfig | None = field(default_factory=lambda: GateConfig(warn=0.9, block=0.5))
    """At least: share of verdicts on own, gold and swapped answers that can be read."""


AT_LEAST = ("auc", "both_order_agreement", "coverage")
"""Gates that ask for at least so much; the others ask for at most."""


@dataclass
class AttentionConfig:
    """Where the judge looks when it answers and when it judges: measured with transformers, in a process of its own."""

    items: int = 0
    """Of how many items, drawn by `audit.seed`; 0 measures nothing."""
    model: str | None = None
    """A Hugging Face folder or hub name; by default the audited judge's own."""
    dtype: str = "float32"
    """Precision: `bfloat16`, `float16` or `float32`."""
    gpus: float = 0.0
    """GPUs of the Ray task that measures."""
    cpus: float = 1.0
    """CPUs of that task."""


@dataclass
class AuditConfig:
    """What `trustjudge audit` asks of a judge."""

    items: list[str] = field(default_factory=list)
    """Files of questions with passages and gold answers. Empty: the project's own small set."""
    format: str = "auto"
    """How `items` are written; `auto` looks."""
    limit: int | None = None
    """Only so many items."""
    oracle: str = "f1"
    """What decides whether the judge's own answers are right: `f1` (token F1 of at least ½), `exact`, `contains`, or
    `shown_gold` (a judge that is shown the gold)."""
    protocols: list[str] = field(default_factory=lambda: list(VERIFY_PROTOCOLS))
    """How a judge is asked whether an answer is right. An answer's verdict is their mean."""
    answer_protocols: list[str] = field(default_factory=lambda: ["answer-passage", "answer-closed-book"])
    """How it is asked to answer: with the passage and without it."""
    probes: bool = True
    """Whether padded, authoritative, injected and constant answers, both orders and withheld parts are asked too."""
    min_mass: float = 0.5
    """A verdict whose labels have less of the judge's probability than this cannot be read."""
    min_wrong: int = 20
    """With fewer wrong (or right) answers than this, what hangs on them is inconclusive."""
    seed: int = 0
    """Of everything that is drawn: items, candidates, repeats."""
    gates: GatesConfig = field(default_factory=GatesConfig)
    fail_on: list[str] = field(default_factory=lambda: ["BLOCK", "INCONCLUSIVE"])
    """Verdicts of the gates that make the exit status 1. Empty: never."""
    oracle_judge: str | None = None
    """The name of one of `judges`, which is shown the golds and says whether the answers of the other are right: the
    oracle `shown_gold`. Without it that oracle, if chosen, is the audited judge itself."""
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    lora: LoraConfig | None = None
    """Train adapters of the judge on either task, and see what that does to the other. Null trains nothing."""

    @property
    def further_protocols(self) -> list[str]:
        """What is asked beside `protocols` where there are probes."""
        return [NO_PASSAGE_PROTOCOL, POSITION_PROTOCOL] if self.probes else []


def audit_faults(audit: AuditConfig) -> list[str]:
    """Values of the right type that make no sense, each as key, what it got and what would be right."""
    checks = [
        ("oracle", audit.oracle in ORACLES, f"one of {list(ORACLES)}"),
        ("limit", audit.limit is None or audit.limit > 0, "1 or more, or nothing"),
        ("protocols", audit.protocols != [], "at least one protocol of kind verify"),
        ("answer_protocols", audit.answer_protocols != [], "at least one protocol of kind answer"),
        ("min_mass", 0 <= audit.min_mass <= 1, "a share from 0 to 1"),
        ("min_wrong", audit.min_wrong >= 2, "2 or more"),
    ]
    checks += [
        ("attention.items", audit.attention.items >= 0, "0 or more"),
        ("attention.gpus", audit.attention.gpus >= 0, "0 or more"),
        ("attention.cpus", audit.attention.cpus > 0, "more than 0"),
        ("attention.dtype", audit.attention.dtype in DTYPES, f"one of {list(DTYPES)}"),
        ("fail_on", set(audit.fail_on) <= set(GATE_VERDICTS), f"some of {list(GATE_VERDICTS)}"),
    ]
    found = [f"audit.{key}: got {attrgetter(key)(audit)!r}; {right}" for key, fine, right in checks if not fine]
    found += lora_faults(audit.lora) if audit.lora is not None else []
    for gate in fields(audit.gates):
        limits: GateConfig | None = getattr(audit.gates, gate.name)
        if limits is not None:
            found += _limit_faults(gate.name, limits)
    return found


def _limit_faults(name: str, limits: GateConfig) -> list[str]:
    shares = all(math.isfinite(value) and 0 <= value <= 1 for value in (limits.warn, limits.block))
    ordered = limits.block <= limits.warn if name in AT_LEAST else limits.block >= limits.warn
    if shares and ordered:
        return []
    right = "block ≤ warn" if name in AT_LEAST else "block ≥ warn"
    return [f"audit.gates.{name}: got warn {limits.warn!r}, block {limits.block!r}; shares from 0 to 1, {right}"]
