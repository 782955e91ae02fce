"""Preference pairs as trainers read them: a function for each format, from PREFERENCES rows to the rows of a file.

`trl` (texts), `trl-conversational`, `trl-reward` (with a margin) and `kto` are the dataset formats of TRL; `verl` is
the table that its data preparation describes (data_source, prompt, ability, reward_model, extra_info). Every schema is
given, so that two parts of one export never differ.

Rows of `trl`, `trl-conversational` and `trl-reward` are pairs. Those of `kto` are answers and of `verl` prompts, each
once in the whole file: the parts of a run are read twice for them, first to select, then to write.
"""

import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trustjudge_ray.config_values import ConfigError
from trustjudge_ray.identity import content_hash
from trustjudge_ray.schema import MESSAGE

_TEXT: Final = pa.string()
_MESSAGES: Final = pa.list_(MESSAGE)
_MARKS: Final = {"user": "Human", "assistant": "Assistant"}
_UNMARKED: Final = ("system", "developer")
_SIDES: Final = ("chosen", "rejected")
JSON_LINES: Final = (".jsonl", ".ndjson")
PARQUET: Final = (".parquet", ".pq")

TRL: Final = pa.schema([("prompt", _TEXT), ("chosen", _TEXT), ("rejected", _TEXT)])
TRL_CONVERSATIONAL: Final = pa.schema([("prompt", _MESSAGES), ("chosen", _MESSAGES), ("rejected", _MESSAGES)])
TRL_REWARD: Final = pa.schema([*TRL_CONVERSATIONAL, ("margin", pa.float64())])
KTO: Final = pa.schema([("prompt", _MESSAGES), ("completion", _MESSAGES), ("label", pa.bool_())])
VERL: Final = pa.schema(
    [
        ("data_source", _TEXT),
        ("prompt", _MESSAGES),
        ("ability", _TEXT),
        ("reward_model", pa.struct([("style", _TEXT), ("ground_truth", _TEXT)])),
        (
            "extra_info",
            pa.struct(
                [
                    ("split", _TEXT),
                    ("index", pa.int64()),
                    ("pair_id", _TEXT),
                    ("prompt", _MESSAGES),
                    ("chosen", _TEXT),
                    ("rejected", _TEXT),
                    ("p", pa.float64()),
                ]
            ),
        ),
    ]
)

Rows = list[dict[str, Any]]


def transcript(messages: Rows) -> str:
    """A conversation as a text. One message of the user's is itself; any other is laid out as HH-RLHF transcripts are,
    up to the mark after which the assistant speaks. A system message that begins it stands before the first mark;
    messages of other roles, and such ones further on, have their role as the mark (`Tool:`)."""
    if [message["role"] for message in messages] == ["user"]:
        return str(messages[0]["content"])
    unmarked = [message for message in messages[:1] if message["role"] in _UNMARKED]
    said = [str(message["content"]) for message in unmarked] + [_turn(turn) for turn in messages[len(unmarked) :]]
    return "".join(said) + "\n\nAssistant:"


def _turn(message: dict[str, Any]) -> str:
    mark = _MARKS.get(message["role"]) or str(message["role"]).capitalize()
    return f"\n\n{mark}: {message['content']}"


def spoken(answer: Rows) -> str:
    """An answer as a text: its one turn as it is, several with the marks of a transcript between them."""
    first, *rest = answer
    return str(first["content"]) + "".join(map(_turn, rest))


@dataclass(frozen=True, slots=True)
class Selection:
    """What of the pairs of a run becomes rows, in a format whose rows are no pairs.

    Attributes:
        marks: for each pair, in their order: 1 where it stands for its prompt, else 0 (`surest_pairs`); or (pairs, 2),
            of chosen and rejected: 1 where the row of that answer stands here and says that it won, −1 where it says
            that it lost, 0 where none stands here (`answers_once`).
        counts: what went into it, and what was left out, by name.
    """

    marks: NDArray[np.int8]
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Place:
    """What verl's rows are called, how many rows of the file come before these, and of a format that selects, the
    marks of these."""

    data_source: str = "trustjudge"
    first: int = 0
    marks: NDArray[np.int8] | None = None


def trl(rows: Rows, place: Place) -> Rows:
    """TRL's standard format: three texts a pair. Prompt and answer follow each other as they stand, with no mark in
    between unless the prompt is a transcript: models with a chat template are better served by `trl-conversational`."""
    found = []
    for row in rows:
        prompt = transcript(row["prompt"])
        space = " " if prompt.endswith("\n\nAssistant:") else ""
        found.append({"prompt": prompt} | {side: space + spoken(row[side]) for side in ("chosen", "rejected")})
    return found


def trl_conversational(rows: Rows, place: Place) -> Rows:
    """TRL's conversational format: three lists of messages a pair."""
    return [{name: row[name] for name in TRL_CONVERSATIONAL.names} for row in rows]


def trl_reward(rows: Rows, place: Place) -> Rows:
    """The same with `margin`, 2p − 1 from 0 to 1, which TRL's RewardTrainer takes from the difference of rewards."""
    return [{name: row[name] for name in TRL_REWARD.names} for row in rows]


def kto(rows: Rows, place: Place) -> Rows:
    """TRL's unpaired format: a row for every answer of a prompt, with its label (`answers_once`)."""
    return [
        {"prompt": row["prompt"], "completion": row[side], "label": bool(mark > 0)}
        for row, marks in _selected(rows, place)
        for side, mark in zip(_SIDES, marks, strict=True)
        if mark
    ]


def answers_once(pairs: Iterable[dict[str, Any]]) -> Selection:
    """Every answer of every prompt once, where it first appears. Its label says whether it won more of its kept pairs
    than it lost. One that won as often as it lost is left out: it is an example of neither.

    `counts`: answers; won_and_lost, those that did both, whichever they did more; even, those left out.
    """
    told = ([row["prompt"], row[side]] for row in pairs for side in _SIDES)
    keys = np.fromiter(map(_key, told), dtype=np.uint64)
    _, first, answer = np.unique(keys, return_index=True, return_inverse=True)
    is_chosen = np.arange(len(keys)) % 2 == 0
    won, lost = (np.bincount(answer[some], minlength=len(first)) for some in (is_chosen, ~is_chosen))
    marks = np.zeros(len(keys), dtype=np.int8)
    marks[first] = np.sign(won - lost)
    both, even = int(((won > 0) & (lost > 0)).sum()), int((won == lost).sum())
    return Selection(marks.reshape(-1, 2), {"answers": len(first), "won_and_lost": both, "even": even})


def verl(rows: Rows, place: Place) -> Rows:
    """verl's table: a row for every prompt, of whose pairs one stands for it (`surest_pairs`).

    `ground_truth` is the chosen answer, which a reward can be anchored to; `extra_info` has the prompt, because verl's
    `compute_score` is not given it, and the pair. `index` counts the rows of the file; `ability` is `chat`.
    """
    standing = [row for row, mark in _selected(rows, place) if mark]
    return [_verl_row(row, index, place.data_source) for index, row in enumerate(standing, place.first)]


def surest_pairs(pairs: Iterable[dict[str, Any]]) -> Selection:
    """For every prompt its pair with the largest p, of equal ones the first.

    `counts`: prompts; other_pairs, those that do not stand for theirs.
    """
    told = np.fromiter(((_key(row["prompt"]), row["p"]) for row in pairs), dtype=[("prompt", "u8"), ("p", "f8")])
    order = np.lexsort((-told["p"], told["prompt"]))
    prompts = told["prompt"][order]
    best = order[np.flatnonzero(np.append(True, prompts[1:] != prompts[:-1])[: len(order)])]
    marks = np.zeros(len(told), dtype=np.int8)
    marks[best] = 1
    return Selection(marks, {"prompts": len(best), "other_pairs": len(told) - len(best)})


def _selected(rows: Rows, place: Place) -> Iterator[tuple[dict[str, Any], Any]]:
    if place.marks is None:
        raise ValueError("the rows of this format are selected over the whole run first: `write` does")
    return zip(rows, place.marks.tolist(), strict=True)


def _key(value: Any) -> int:
    """64 bits of a hash of it."""
    return int(content_hash(value)[:16], 16)


def _verl_row(row: dict[str, Any], index: int, data_source: str) -> dict[str, Any]:
    chosen, rejected = spoken(row["chosen"]), spoken(row["rejected"])
    about = {"split": "train", "index": index, "pair_id": row["pair_id"], "prompt": row["prompt"], "p": row["p"]}
    return {
        "data_source": data_source,
        "prompt": row["prompt"],
        "ability": "chat",
        "reward_model": {"style": "model", "ground_truth": chosen},
        "extra_info": about | {"chosen": chosen, "rejected": rejected},
    }


Export = Callable[[Rows, Place], Rows]
EXPORTS: Final[dict[str, Export]] = {
    "trl": trl,
    "trl-conversational": trl_conversational,
    "trl-reward": trl_reward,
    "kto": kto,
    "verl": verl,
}
SELECTIONS: Final[dict[str, Callable[[Iterable[dict[str, Any]]], Selection]]] = {
    "kto": answers_once,
    "verl": surest_pairs,
}
"""For formats whose rows are no pairs, how they are selected over the pairs of a whole run."""
SCHEMAS: Final[dict[str, pa.Schema]] = {
    "trl": TRL,
    "trl-conversational": TRL_CONVERSATIONAL,
    "trl-reward": TRL_REWARD,
    "kto": KTO,
    "verl": VERL,
}


def refuse_bad_export(name: str, path: str) -> None:
    """Refuse what cannot be exported, before anything is read.

    Raises:
        ConfigError: no such format, or the file's ending says no kind of file.
    """
    if name not in EXPORTS:
        raise ConfigError(f"export: got '{name}'; one of {list(EXPORTS)}")
    if not path.lower().endswith(JSON_LINES + PARQUET):
        raise ConfigError(f"export: {path}: Parquet ({', '.join(PARQUET)}) or JSON Lines ({', '.join(JSON_LINES)})")


class Sink(Protocol):
    """A file that is being written."""

    def write(self, content: bytes, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Written:
    """How many rows a file got, and the counts of its `Selection`: none where every pair is a row."""

    rows: int
    counts: dict[str, int]


Parts = Callable[[], Iterable[pa.Table]]
"""PREFERENCES part by part, from the first one each time that it is called."""


def write(parts: Parts, name: str, path: str, sink: Sink, data_source: str = "trustjudge") -> Written:
    """Write the kept pairs of PREFERENCES parts, one part after the other, to an open file.

    The kind of file is that of the path's ending. Texts are held a part at a time, and of a format that selects some
    130 bytes a pair.

    Raises:
        ConfigError: as `refuse_bad_export`.
    """
    refuse_bad_export(name, path)
    found = SELECTIONS[name](row for part in parts() for row in _kept(part)) if name in SELECTIONS else None
    tables = _tables(parts(), name, data_source, found.marks if found else None)
    lines = path.lower().endswith(JSON_LINES)
    rows = _write_lines(tables, sink) if lines else _write_parquet(tables, SCHEMAS[name], sink)
    return Written(rows, found.counts if found else {})


def _kept(part: pa.Table) -> Rows:
    return list(part.filter(part["keep"]).to_pylist())


def _tables(
    parts: Iterable[pa.Table], name: str, data_source: str, marks: NDArray[np.int8] | None
) -> Iterator[pa.Table]:
    first = pairs = 0
    for part in parts:
        rows = _kept(part)
        mine = None if marks is None else marks[pairs : pairs + len(rows)]
        table = pa.Table.from_pylist(EXPORTS[name](rows, Place(data_source, first, mine)), schema=SCHEMAS[name])
        first, pairs = first + len(table), pairs + len(rows)
        yield table


def _write_parquet(tables: Iterable[pa.Table], schema: pa.Schema, sink: Sink) -> int:
    rows = 0
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table)
            rows += len(table)
    return rows


def _write_lines(tables: Iterable[pa.Table], sink: Sink) -> int:
    rows = 0
    for table in tables:
        text = io.StringIO()
        for row in table.to_pylist():
            text.write(json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n")
        sink.write(text.getvalue().encode("utf-8"))
        rows += len(table)
    return rows
