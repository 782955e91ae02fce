"""Tables of an audit as a judge with planted habits would leave them: READS, PAIRS, GENERATED."""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import polars as pl

from trustjudge_ray.audit.card import Card, card
from trustjudge_ray.audit.verdicts import GENERATED, PAIRS, READS
from trustjudge_ray.audit_config import AuditConfig

WAYS = [(polarity, first) for polarity in ("correct", "right", "wrong") for first in ("accept", "reject")]
TWINS = {
    "gold_verbose": "gold",
    "swap_verbose": "swap",
    "gold_authority": "gold",
    "swap_authority": "swap",
    "swap_injected": "swap",
}


@dataclass(frozen=True)
class Judge:
    """What is planted. Log-odds of an answer are ±strength, +strength where it is accepted.

    Attributes:
        skill: probability that an answer's verdict is right, drawn once an answer.
        accepts_all: every verdict accepts.
        yes, first: what saying yes and the label named first add to log-odds.
        lazy: the passage makes no difference. Others are at 0 ± noise without it.
        blind: log-odds without an answer.
        spread: noise of the log-odds, shared by all ways of asking.
        unreadable: share of answers (candidates of an item) of which one reading has too little mass.
        shifts: what a probe adds to log-odds.
        slot: log-odds for the answer shown first.
        answers: share of questions that it answers right, with the passage.
    """

    skill: float = 1.0
    accepts_all: bool = False
    yes: float = 0.0
    first: float = 0.0
    lazy: bool = False
    blind: float = -3.0
    strength: float = 3.0
    spread: float = 0.3
    unreadable: float = 0.0
    shifts: tuple[tuple[str, float], ...] = ()
    slot: float = 0.0
    answers: float = 0.6


PERFECT = Judge()
ALWAYS_YES = Judge(accepts_all=True, lazy=True, blind=3.0, slot=9.0, spread=0.0)
RANDOM = Judge(skill=0.5, lazy=True, blind=-0.5)
COIN = Judge(skill=0.75, blind=-1.0)


def audited(judge: Judge, passages: int = 12, each: int = 4, seed: int = 1, **settings) -> Card:
    """The card of a planted judge."""
    if settings:
        return card(*tables(judge, passages, each, seed), [], AuditConfig(**settings))
    return _audited(judge, passages, each, seed)


@cache
def _audited(judge: Judge, passages: int, each: int, seed: int) -> Card:
    return card(*tables(judge, passages, each, seed), [], AuditConfig())


@cache
def tables(judge: Judge, passages: int = 12, each: int = 4, seed: int = 1):
    """READS, PAIRS, GENERATED of so many passages with so many questions each."""
    rng = np.random.default_rng(seed)
    reads, pairs, generated = [], [], []
    for n in range(passages * each):
        item = {
            "item_id": f"i{n:04}",
            "passage_id": f"p{n // each:03}",
            "benchmark": "even" if n % 2 == 0 else "odd",
            "hops": 1 + n % 3 if n % 5 else None,
            "answerable": n % 4 != 0,
        }
        own = bool(rng.random() < judge.answers)
        reads += _reads(judge, item, own, ("wrong", "sibling", "perturbed")[n % 3], rng)
        pairs += _pairs(judge, item, rng)
        generated += _generated(item, own, bool(rng.random() < judge.answers / 2))
    oracles = dict.fromkeys(("f1", "exact", "contains"), pl.Boolean)
    return pl.DataFrame(reads, READS), pl.DataFrame(pairs, PAIRS), pl.DataFrame(generated, GENERATED | oracles)


def _reads(judge, item, own, kind, rng):
    rows, shifts = [], dict(judge.shifts)
    answers = {
        "own": (own, None),
        "gold": (True, None),
        "swap": (False, kind),
        "closed_book": (False, "closed_book"),
        "constant": (False, None),
    }
    odds = {}
    for name, (truth, negative) in answers.items():
        right = rng.random() < judge.skill
        odds[name] = judge.strength * (1 if judge.accepts_all or truth == right else -1) + rng.normal(0, judge.spread)
        ways = WAYS if name != "constant" else WAYS[:2]
        told = item | {"candidate": name, "truth": truth, "negative": negative}
        rows += _asked(judge, told, "full", odds[name] + shifts.get(name, 0), ways, rng)
        if name in ("own", "gold", "swap"):
            rows += _asked(judge, told, "no_passage", odds[name] if judge.lazy else rng.normal(), WAYS[:1], rng)
    for name, base in TWINS.items():
        told = item | {"candidate": name, "truth": base == "gold", "base": base}
        rows += _asked(judge, told, "full", odds[base] + shifts.get(name, 0), WAYS[:2], rng)
    told = item | {"candidate": "gold", "truth": True}
    return rows + _asked(judge, told, "no_candidate", judge.blind + rng.normal(0, 0.1), WAYS[:1], rng)


def _asked(judge, told, condition, odds, ways, rng):
    broken = rng.integers(len(ways)) if condition == "full" and rng.random() < judge.unreadable else None
    rows = []
    for place, (polarity, first) in enumerate(ways):
        yes = {"correct": 0, "right": 1, "wrong": -1}[polarity]
        x = odds + judge.yes * yes + judge.first * (1 if first == "accept" else -1)
        way = {"protocol": f"{condition}-{polarity}-{first}", "polarity": polarity, "first": first}
        read = {"p_accept": 1 / (1 + math.exp(-x)), "log_odds": x, "label_mass": 0.1 if place == broken else 0.9}
        rows.append(told | way | read | {"condition": condition, "repeat": 0, "status": "ok"})
    return rows


def _pairs(judge, item, rng):
    rows = []
    for order, sign in (("AB", 1), ("BA", -1)):
        better = judge.strength * (1 if rng.random() < judge.skill else -1)
        p = 0.9 / (1 + math.exp(-(better * (not judge.accepts_all) + judge.slot * sign)))
        seen = {"p_gold": p, "p_swap": 0.9 - p, "p_tie": 0.1, "label_mass": 0.95}
        kept = {name: item[name] for name in ("item_id", "passage_id", "benchmark")}
        rows.append(kept | {"order": order, "status": "ok"} | seen)
    return rows


def _generated(item, own, memory):
    rows = []
    for condition, right in (("passage", own), ("closed_book", memory)):
        told = {"condition": condition, "status": "ok", "output": "said", "cut": False}
        rows.append(item | told | {"f1": right, "exact": right, "contains": True})
    return rows


def number(found: Card, figure: str, of: str, group: str | None = None):
    """The one figure of this name."""
    chosen = [f for f in found.figures if (f.figure, f.set, f.group) == (figure, of, group)]
    assert len(chosen) == 1, f"{len(chosen)} figures {figure}, {of}, {group}"
    return chosen[0]


def holds(figure, truth):
    """Whether the figure's interval holds what was planted."""
    return figure.estimate.low - 1e-9 <= truth <= figure.estimate.high + 1e-9
