"""Which judgments a run asks for: one row of TASKS for each, in an order that shares prompt prefixes.

Deterministic: the same responses, specs and settings give the same table, whatever the machine.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pyarrow as pa

from trustjudge_ray.config import PlanConfig
from trustjudge_ray.identity import content_hash, id_key, joined_hash, seed_of
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.schema import TASK_TEXTS, TASKS, check

Pair = tuple[dict[str, Any], dict[str, Any]]


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
    `a`, `b` or `a,b` as detail, the answers concerned), `identical` (two equal texts).

    Returns:
        Rows sorted by judge, protocol, question, first shown and second shown answer.
    """
    questions = _questions(responses, error_markers)
    rows: list[tuple] = []
    for wanted in specs:
        for question in questions:
            if wanted.protocol.kind == "score":
                rows += (_row(wanted, question, response, None, None) for response in question["responses"])
            else:
                rows += _comparisons(wanted, question, settings)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(TASKS)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, TASKS, strict=True)], schema=TASKS)


def with_texts(tasks: pa.Table, responses: pa.Table) -> pa.Table:
    """TASK_TEXTS: the tasks with the texts that they are about, in their order.

    Raises:
        KeyError: a task names a response that is not among `responses`.
    """
    where = {
        key: i
        for i, key in enumerate(
            zip(responses["question_id"].to_pylist(), responses["response_id"].to_pylist(), strict=True)
        )
    }
    questions = tasks["question_id"].to_pylist()
    a = pa.array([where[key] for key in zip(questions, tasks["response_a"].to_pylist(), strict=True)], pa.int64())
    b_ids = tasks["response_b"].to_pylist()
    b = pa.array([None if r is None else where[q, r] for q, r in zip(questions, b_ids, strict=True)], pa.int64())
    columns = {name: tasks[name] for name in TASKS.names} | {
        "messages": responses["messages"].take(a),
        "reference": responses["reference"].take(a),
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
        for row in rows:
            row["text_hash"] = joined_hash(*row["replies"])
            row["fault"] = _fault(row["replies"], markers)
        asked = [part for m in rows[0]["messages"] for part in (m["role"] or "", m["content"] or "")]
        questions.append(
            {
                "question_id": question_id,
                "category": rows[0]["category"],
                "hash": joined_hash(*asked, "reference", rows[0]["reference"] or ""),
                "responses": rows,
            }
        )
    return questions


def _fault(replies: list[str], markers: set[str]) -> str | None:
    stripped = [(reply or "").strip() for reply in replies]
    if not any(stripped):
        return "empty_response"
    return "error_marker" if any(reply in markers for reply in stripped) else None


def _comparisons(wanted: Spec, question: dict[str, Any], settings: PlanConfig) -> Iterator[tuple]:
    rng = random.Random(seed_of("plan", str(settings.seed), question["question_id"]))
    place = {id(row): i for i, row in enumerate(question["responses"])}
    games = []
    for first, second in DESIGNS[settings.design](question["responses"], settings, rng):
        a, b = sorted((first, second), key=lambda row: place[id(row)])
        orders = ("AB", "BA") if settings.orders == "both" else (rng.choice(("AB", "BA")),)
        games += [(a, b, order) for order in orders]
    games.sort(key=lambda g: (place[id(g[0] if g[2] == "AB" else g[1])], place[id(g[1] if g[2] == "AB" else g[0])]))
    return (_row(wanted, question, a, b, order) for a, b, order in games)


def _row(wanted: Spec, question: dict, a: dict, b: dict | None, order: str | None) -> tuple:
    status, detail = _known_status(a, b)
    ids = [a["response_id"], a["model"], a["text_hash"]]
    ids += [b["response_id"], b["model"], b["text_hash"], order or ""] if b else []
    task_id = joined_hash(wanted.hash, wanted.protocol.kind, question["question_id"], question["hash"], *ids, "0", "0")
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
        0,
        0,
        status,
        detail,
    )


def _known_status(a: dict, b: dict | None) -> tuple[str | None, str | None]:
    sides = {"a": a} | ({"b": b} if b else {})
    for fault in ("empty_response", "error_marker"):
        hit = [side for side, row in sides.items() if row["fault"] == fault]
        if hit:
            return fault, ",".join(hit)
    if b and a["replies"] == b["replies"]:
        return "identical", None
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
