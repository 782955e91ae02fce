"""Which judgments a run asks for: one row of TASKS for each, in an order that shares prompt prefixes.

Deterministic: the same responses, specs and settings give the same table, whatever the machine.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pyarrow as pa

from trustjudge_ray.config import PlanConfig
from trustjudge_ray.identity import content_hash, id_key, joined_hash, seed_of
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.schema import TASK_TEXTS, TASKS, check

Pair = tuple[dict[str, Any], dict[str, Any]]
Ask = tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None, str | None]
"""Question, response a, response b and order."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One judge with one protocol. `hash` covers everything about the two that decides an answer."""

    judge: str
    protocol: Protocol
    hash: str


def spec(judge: str, identity: dict[str, Any], protocol: Protocol, temperature: float) -> Spec:
    """The spec of a judge (its identity as the engine states it) with a protocol."""
    template = identity.get("templates", {}).get(protocol.name)
    decides = {k: v for k, v in identity.items() if k not in ("templates", "notes")}
    what = {"judge": decides, "protocol": protocol.hash, "template": template, "temperature": temperature}
    return Spec(judge, protocol, content_hash(what))


def plan(responses: pa.Table, specs: list[Spec], settings: PlanConfig, error_markers: list[str]) -> pa.Table:
    """TASKS for the responses (RESPONSES rows; all rows of a question must be among them).

    Comparisons pair the responses of one question as `settings.design` says; `response_a` has the smaller
    id. A task whose outcome needs no judge carries its status: `empty_response` and `error_marker` (with
    `a`, `b` or `a,b` as detail, the answers concerned), `identical` (two equal texts), `missing_reference` (a
    protocol that shows a reference, and a row without one). Any other task has a row for
    each of its protocol's samples, and for each of `settings.repeat` repetitions if it is drawn to be judged again.

    Returns:
        Rows sorted by judge, protocol, question, first shown and second shown answer, and sample. Repetitions follow
        those of their judge and protocol, shuffled, so that they meet other tasks in their batches.
    """
    questions = _questions(responses, error_markers)
    rows: list[tuple] = []
    for wanted in specs:
        asked = [ask for question in questions for ask in _asks(wanted.protocol, question, settings)]
        for ask in asked:
            rows += (_row(wanted, *ask, sample) for sample in range(_samples(wanted.protocol, ask)))
        rows += _again(wanted, asked, settings)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(TASKS)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, TASKS, strict=True)], schema=TASKS)


def with_texts(tasks: pa.Table, responses: pa.Table) -> pa.Table:
    """TASK_TEXTS: the tasks with the texts that they are about, in their order; `reference` is the question's.

    Raises:
        KeyError: a task names a response that is not among `responses`.
    """
    where = {
        key: i
        for i, key in enumerate(
            zip(responses["question_id"].to_pylist(), responses["response_id"].to_pylist(), strict=True)
        )
    }
    given: dict[str, list[str | None]] = {}
    for question, text in zip(responses["question_id"].to_pylist(), responses["reference"].to_pylist(), strict=True):
        given.setdefault(question, []).append(text)
    references = {question: _reference(texts) for question, texts in given.items()}
    questions = tasks["question_id"].to_pylist()
    a = pa.array([where[key] for key in zip(questions, tasks["response_a"].to_pylist(), strict=True)], pa.int64())
    b_ids = tasks["response_b"].to_pylist()
    b = pa.array([None if r is None else where[q, r] for q, r in zip(questions, b_ids, strict=True)], pa.int64())
    columns = {name: tasks[name] for name in TASKS.names} | {
        "messages": responses["messages"].take(a),
        "reference": pa.array([references[question] for question in questions], pa.string()),
        "replies_a": responses["replies"].take(a),
        "replies_b": responses["replies"].take(b),
    }
    return check(pa.table(columns), TASK_TEXTS)


def _questions(responses: pa.Table, error_markers: list[str]) -> list[dict[str, Any]]:
    """The questions with their responses, both in id order, hashed once each."""
    markers = {marker.strip() for marker in error_markers}
    grouped: dict[str, list[dict[str, Any]]] = {}
    for row in responses.to_pylist():
        grouped.setdefault(row["question_id"], []).append(row)
    questions = []
    for question_id in sorted(grouped, key=id_key(list(grouped))):
        rows = grouped[question_id]
        key = id_key([row["response_id"] for row in rows])
        rows.sort(key=lambda row: key(row["response_id"]))
        reference = _reference([row["reference"] for row in rows])
        for row in rows:
            row["reference"] = reference
            row["text_hash"] = joined_hash(*row["replies"])
            row["fault"] = _fault(row["replies"], markers)
        asked = [part for m in rows[0]["messages"] for part in (m["role"] or "", m["content"] or "")]
        questions.append(
            {
                "question_id": question_id,
                "category": rows[0]["category"],
                "hash": joined_hash(*asked, "reference", reference or ""),
                "responses": rows,
            }
        )
    return questions


def _reference(given: Sequence[str | None]) -> str | None:
    """The reference of a question: the first that a row gives (rows that give another are in quarantine)."""
    return next((text for text in given if text and text.strip()), given[0])


def _fault(replies: list[str], markers: set[str]) -> str | None:
    stripped = [(reply or "").strip() for reply in replies]
    if not any(stripped):
        return "empty_response"
    return "error_marker" if any(reply in markers for reply in stripped) else None


def _asks(protocol: Protocol, question: dict[str, Any], settings: PlanConfig) -> Iterator[Ask]:
    """What is judged of a question: its responses, or pairs of them in the orders in which they are shown."""
    if protocol.kind == "compare":
        return _comparisons(question, settings)
    return ((question, response, None, None) for response in question["responses"])


def _samples(protocol: Protocol, ask: Ask) -> int:
    """How many rationales are asked for; one row where no judge is asked."""
    _, a, b, _ = ask
    return protocol.samples if _known_status(a, b, protocol)[0] is None else 1


def _again(wanted: Spec, asked: list[Ask], settings: PlanConfig) -> list[tuple]:
    """Rows of repetitions 1 … `settings.repeat`. A pair is drawn with all its orders, everything with its samples."""
    if not settings.repeat:
        return []
    drawn = [
        ask for ask in asked if _known_status(ask[1], ask[2], wanted.protocol)[0] is None and _is_drawn(ask, settings)
    ]
    numbers = [
        (sample, repeat) for repeat in range(1, settings.repeat + 1) for sample in range(wanted.protocol.samples)
    ]
    rows = [_row(wanted, *ask, sample, repeat) for sample, repeat in numbers for ask in drawn]
    random.Random(seed_of("again", str(settings.seed), wanted.hash)).shuffle(rows)
    return rows


def _is_drawn(ask: Ask, settings: PlanConfig) -> bool:
    question, a, b, _ = ask
    ids = [question["question_id"], a["response_id"], b["response_id"] if b else ""]
    return seed_of("repeat", str(settings.seed), *ids) < settings.repeat_share * 2**63


def _comparisons(question: dict[str, Any], settings: PlanConfig) -> Iterator[Ask]:
    rng = random.Random(seed_of("plan", str(settings.seed), question["question_id"]))
    place = {id(row): i for i, row in enumerate(question["responses"])}
    games = []
    for first, second in DESIGNS[settings.design](question["responses"], settings, rng):
        a, b = sorted((first, second), key=lambda row: place[id(row)])
        orders = ("AB", "BA") if settings.orders == "both" else (rng.choice(("AB", "BA")),)
        games += [(a, b, order) for order in orders]
    games.sort(key=lambda g: (place[id(g[0] if g[2] == "AB" else g[1])], place[id(g[1] if g[2] == "AB" else g[0])]))
    return ((question, a, b, order) for a, b, order in games)


def _row(
    wanted: Spec, question: dict, a: dict, b: dict | None, order: str | None, sample: int, repeat: int = 0
) -> tuple:
    status, detail = _known_status(a, b, wanted.protocol)
    ids = [a["response_id"], a["model"], a["text_hash"]]
    ids += [b["response_id"], b["model"], b["text_hash"], order or ""] if b else []
    ids += [str(sample), str(repeat)]
    task_id = joined_hash(wanted.hash, wanted.protocol.kind, question["question_id"], question["hash"], *ids)
    return (
        task_id,
        wanted.hash,
        wanted.protocol.kind,
        wanted.protocol.name,
        wanted.judge,
        question["question_id"],
        question["category"],
        a["response_id"],
        a["model"],
        b["response_id"] if b else None,
        b["model"] if b else None,
        order,
        sample,
        repeat,
        status,
        detail,
    )


def _known_status(a: dict, b: dict | None, protocol: Protocol) -> tuple[str | None, str | None]:
    sides = {"a": a} | ({"b": b} if b else {})
    for fault in ("empty_response", "error_marker"):
        hit = [side for side, row in sides.items() if row["fault"] == fault]
        if hit:
            return fault, ",".join(hit)
    if b and a["replies"] == b["replies"]:
        return "identical", None
    if "reference" in protocol.slots and not (a["reference"] or "").strip():
        return "missing_reference", f"protocol {protocol.name} shows a reference, and the row has none"
    return None, None


def _full(rows: list[dict], settings: PlanConfig, rng: random.Random) -> Iterator[Pair]:
    """All pairs."""
    return combinations(rows, 2)


def _blocks(rows: list[dict], settings: PlanConfig, rng: random.Random) -> Iterator[Pair]:
    """All pairs of `block` responses drawn at random; of all of them where there are no more."""
    drawn = rows if len(rows) <= settings.block else rng.sample(rows, settings.block)
    return combinations(drawn, 2)


def _matching(rows: list[dict], settings: PlanConfig, rng: random.Random) -> Iterator[Pair]:
    """`rounds` random perfect matchings that share no pair (circle method on a random order); at an odd
    number of responses one sits out each round."""
    seats: list[dict | None] = [*rows]
    rng.shuffle(seats)
    if len(seats) % 2:
        seats.append(None)
    for _ in range(min(settings.rounds, len(seats) - 1)):
        half = len(seats) // 2
        for first, second in zip(seats[:half], reversed(seats[half:]), strict=True):
            if first is not None and second is not None:
                yield first, second
        seats = [seats[0], seats[-1], *seats[1:-1]]


def _anchor(rows: list[dict], settings: PlanConfig, rng: random.Random) -> Iterator[Pair]:
    """Every response against each response of the model `anchor`."""
    anchors = [row for row in rows if row["model"] == settings.anchor]
    return ((row, anchor) for anchor in anchors for row in rows if row["model"] != settings.anchor)


DESIGNS: dict[str, Callable[[list[dict], PlanConfig, random.Random], Iterator[Pair]]] = {
    "full": _full,
    "blocks": _blocks,
    "matching": _matching,
    "anchor": _anchor,
}
