"""Which judgments a run asks for: one row of TASKS for each, in an order that shares prompt prefixes.

Deterministic: the same responses, specs and settings give the same table, whatever the machine.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pyarrow as pa

from trustjudge_ray.config import PlanConfig
from trustjudge_ray.identity import content_hash, hash_of, id_key, joined, joined_hash, seed_of
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.schema import TASK_TEXTS, TASKS, check

_ROWS_AT_ONCE = 50_000
"""Rows are made as Python tuples, which take ten times the memory of a table's, and turned into a table so many at a
time."""

Pair = tuple[dict[str, Any], dict[str, Any]]
_FAULTS = ("empty_response", "error_marker")
_BOTH = ("AB", "BA")
_JOINED_ORDERS = {order: joined(order) for order in (*_BOTH, "")}

_ANSWERER = {"joined": joined("answer"), "fault": None}
"""What stands in the place of a response where there is none yet: the judge is asked to give it."""

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

    Comparisons pair the responses of one question as `settings.design` says, in the orders of `settings.orders`;
    `response_a` has the smaller id. A protocol that `settings.only` names is put to those models' responses alone. Of
    kind `answer` there is one task a question, whatever its responses: `response_a` and `model_a` are the judge, whose
    response it will be. A task whose outcome needs no judge carries its status: `empty_response` and
    `error_marker` (with `a`, `b` or `a,b` as detail, the answers concerned), `identical` (two equal texts),
    `missing_reference` (a protocol that shows a reference, and a row without one). Any other task has a row for
    each of its protocol's samples, and for each of `settings.repeat` repetitions if it is drawn to be judged again.

    Who else is in the corpus changes no task: with another model or question there are further tasks, and those that
    there were have the ids that they had, so that a store has their judgments. It is in the nature of `blocks` and
    `matching` that the pairs of a question are drawn anew when it gets another answer, and the scores alone stay. In
    any design a question is another one when its messages or its reference change, and the sides of a pair change
    where a question whose response ids were all whole numbers gets one that is not, if the two orders differ on them.

    Returns:
        Rows sorted by judge, protocol, question, first shown and second shown answer, and sample. Repetitions follow
        those of their judge and protocol, shuffled, so that they meet other tasks in their batches.
    """
    questions = _questions(responses, error_markers)
    rows: list[tuple] = []
    tables = []
    for wanted in specs:
        writer = _Rows(wanted)
        for ask in _all_asks(wanted.protocol, questions, settings):
            rows += writer.of(ask)
            if len(rows) >= _ROWS_AT_ONCE:
                tables.append(_table(rows))
                rows = []
        rows += _again(writer, _all_asks(wanted.protocol, questions, settings), settings)
    return pa.concat_tables([*tables, _table(rows)])


def _table(rows: list[tuple]) -> pa.Table:
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
    asks = [kind == "answer" for kind in tasks["kind"].to_pylist()]
    any_of = {question: place for (question, _), place in where.items()} if any(asks) else {}
    keys = zip(asks, questions, tasks["response_a"].to_pylist(), strict=True)
    a = pa.array([any_of[q] if answers else where[q, r] for answers, q, r in keys], pa.int64())
    b_ids = tasks["response_b"].to_pylist()
    b = pa.array([None if r is None else where[q, r] for q, r in zip(questions, b_ids, strict=True)], pa.int64())
    columns = {name: tasks[name] for name in TASKS.names} | {
        "messages": responses["messages"].take(a),
        "reference": pa.array([references[question] for question in questions], pa.string()),
        "replies_a": _without(asks, responses["replies"].take(a)),
        "replies_b": responses["replies"].take(b),
    }
    return check(pa.table(columns), TASK_TEXTS)


def _without(asks: list[bool], replies: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """The replies, none where the judge is asked to answer."""
    if not any(asks):
        return replies
    kept = [[] if answers else given for answers, given in zip(asks, replies.to_pylist(), strict=True)]
    return pa.array(kept, replies.type)


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
            row["joined"] = joined(row["response_id"], row["model"], row["text_hash"])
            row["fault"] = _fault(row["replies"], markers)
        asked = [part for m in rows[0]["messages"] for part in (m["role"] or "", m["content"] or "")]
        questions.append(
            {
                "question_id": question_id,
                "category": rows[0]["category"],
                "joined": joined(question_id, joined_hash(*asked, "reference", reference or "")),
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
    if protocol.kind == "answer":
        return iter([(question, _ANSWERER | {"reference": question["responses"][0]["reference"]}, None, None)])
    if protocol.name in settings.only:
        models = settings.only[protocol.name]
        question = question | {"responses": [row for row in question["responses"] if row["model"] in models]}
    if protocol.kind == "compare":
        return _comparisons(question, settings)
    return ((question, response, None, None) for response in question["responses"])


def _all_asks(protocol: Protocol, questions: list[dict[str, Any]], settings: PlanConfig) -> Iterator[Ask]:
    """What is judged of all questions, one after the other."""
    return (ask for question in questions for ask in _asks(protocol, question, settings))


def _again(writer: "_Rows", asked: Iterable[Ask], settings: PlanConfig) -> list[tuple]:
    """Rows of repetitions 1 … `settings.repeat`. A pair is drawn with all its orders, everything with its samples."""
    if not settings.repeat:
        return []
    drawn = [ask for ask in asked if writer.status(ask)[0] is None and _is_drawn(ask, settings)]
    numbers = [
        (sample, repeat) for repeat in range(1, settings.repeat + 1) for sample in range(writer.spec.protocol.samples)
    ]
    rows = [writer.row(ask, sample, repeat, None, None) for sample, repeat in numbers for ask in drawn]
    random.Random(seed_of("again", str(settings.seed), writer.spec.hash)).shuffle(rows)
    return rows


def _is_drawn(ask: Ask, settings: PlanConfig) -> bool:
    question, a, b, _ = ask
    ids = [question["question_id"], a.get("response_id", ""), b["response_id"] if b else ""]
    return seed_of("repeat", str(settings.seed), *ids) < settings.repeat_share * 2**63


def _comparisons(question: dict[str, Any], settings: PlanConfig) -> Iterator[Ask]:
    rng = random.Random(seed_of("plan", str(settings.seed), question["question_id"]))
    place = {id(row): i for i, row in enumerate(question["responses"])}
    games = []
    for first, second in DESIGNS[settings.design](question["responses"], settings, rng):
        a, b = sorted((first, second), key=lambda row: place[id(row)])
        ids = (question["question_id"], a["response_id"], b["response_id"])
        games += [(a, b, order) for order in ORDERS[settings.orders](ids, settings)]
    games.sort(key=lambda g: (place[id(g[0] if g[2] == "AB" else g[1])], place[id(g[1] if g[2] == "AB" else g[0])]))
    return ((question, a, b, order) for a, b, order in games)


def _one_order(ids: tuple[str, ...], settings: PlanConfig) -> Sequence[str]:
    """Drawn for the pair alone, so that it stays when other answers come."""
    return (_BOTH[seed_of("order", str(settings.seed), *ids) & 1],)


def _share_in_both(ids: tuple[str, ...], settings: PlanConfig) -> Sequence[str]:
    """Both orders if the pair is drawn, alone like its one order, which the others keep: a larger share adds tasks and
    takes none away."""
    drawn = seed_of("both orders", str(settings.seed), *ids) < settings.both_share * 2**63
    return _BOTH if drawn else _one_order(ids, settings)


ORDERS: dict[str, Callable[[tuple[str, ...], PlanConfig], Sequence[str]]] = {
    "both": lambda ids, settings: _BOTH,
    "one": _one_order,
    "share": _share_in_both,
}
"""In which orders a pair is shown, from the ids of its question and of both responses."""


class _Rows:
    """Writes the rows of a spec. What every task of a spec, a question or a response has in common is joined once, so
    that a task id costs one hash of a few hundred bytes."""

    def __init__(self, wanted: Spec) -> None:
        self.spec = wanted
        self._begins = joined(wanted.hash, wanted.protocol.kind)
        self._names = (wanted.hash, wanted.protocol.kind, wanted.protocol.name, wanted.judge)
        self._shows_reference = "reference" in wanted.protocol.slots

    def of(self, ask: Ask) -> list[tuple]:
        """A row for each rationale that is asked for; one where no judge is asked."""
        status, detail = self.status(ask)
        samples = self.spec.protocol.samples if status is None else 1
        return [self.row(ask, sample, 0, status, detail) for sample in range(samples)]

    def row(self, ask: Ask, sample: int, repeat: int, status: str | None, detail: str | None) -> tuple:
        question, a, b, order = ask
        pieces = [self._begins, question["joined"], a["joined"]]
        pieces += [b["joined"], _JOINED_ORDERS[order or ""]] if b else []
        task_id = hash_of(b"".join(pieces) + b"%d:%d%d:%d" % (len(str(sample)), sample, len(str(repeat)), repeat))
        first = (self.spec.judge,) * 2 if a.get("response_id") is None else (a["response_id"], a["model"])
        ids = (*first, *((b["response_id"], b["model"]) if b else (None, None)))
        names = (task_id, *self._names, question["question_id"], question["category"])
        return (*names, *ids, order, sample, repeat, status, detail)

    def status(self, ask: Ask) -> tuple[str | None, str | None]:
        """Status and detail, where they are known without a judge."""
        _, a, b, _ = ask
        if a["fault"] or (b and b["fault"]):
            sides = {"a": a} | ({"b": b} if b else {})
            fault = next(f for f in _FAULTS if any(row["fault"] == f for row in sides.values()))
            return fault, ",".join(side for side, row in sides.items() if row["fault"] == fault)
        if b and a["text_hash"] == b["text_hash"]:
            return "identical", None
        if self._shows_reference and not (a["reference"] or "").strip():
            return "missing_reference", f"protocol {self.spec.protocol.name} shows a reference, and the row has none"
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
