"""Preference pairs as trainers read them: a function for each format, from PREFERENCES rows to the rows of a file.

`trl` (texts), `trl-conversational`, `trl-reward` (with a margin) and `kto` are the dataset formats of TRL; `verl` is
the table that its data preparation describes (data_source, prompt, ability, reward_model, extra_info). Every schema is
given, so that two parts of one export never differ.
"""

import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from trustjudge_ray.config_values import ConfigError
from trustjudge_ray.identity import content_hash
from trustjudge_ray.schema import MESSAGE

_TEXT: Final = pa.string()
_MESSAGES: Final = pa.list_(MESSAGE)
_MARKS: Final = {"user": "Human", "assistant": "Assistant"}
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
    up to the mark after which the assistant speaks; a system message stands before the first mark."""
    if [message["role"] for message in messages] == ["user"]:
        return str(messages[0]["content"])
    said = "".join(_turn(message) for message in messages)
    return f"{said}\n\nAssistant:"


def _turn(message: dict[str, Any]) -> str:
    mark = _MARKS.get(message["role"])
    return f"\n\n{mark}: {message['content']}" if mark else str(message["content"])


def spoken(answer: Rows) -> str:
    """An answer as a text: its one turn as it is, several with the marks of a transcript between them."""
    first, *rest = answer
    return str(first["content"]) + "".join(map(_turn, rest))


@dataclass(frozen=True, slots=True)
class Place:
    """What verl's rows are called, and how many rows of the file come before these."""

    data_source: str = "trustjudge"
    first: int = 0


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
    """TRL's unpaired format: a row for every answer of a prompt, whose label says whether it won more of its kept pairs
    than it lost. An answer that won as often as it lost is left out: it is an example of neither."""
    answers: dict[str, tuple[dict[str, Any], int]] = {}
    for row in rows:
        for side, won in (("chosen", 1), ("rejected", -1)):
            key = content_hash([row["prompt"], row[side]])
            told, wins = answers.get(key, ({"prompt": row["prompt"], "completion": row[side]}, 0))
            answers[key] = told, wins + won
    return [told | {"label": wins > 0} for told, wins in answers.values() if wins]


def verl(rows: Rows, place: Place) -> Rows:
    """verl's table: a row for every prompt, of whose pairs the one with the largest p stands for it.

    `ground_truth` is the chosen answer, which a reward can be anchored to; `extra_info` has the prompt, because verl's
    `compute_score` is not given it, and the pair. `index` counts the rows of the file; `ability` is `chat`.
    """
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = content_hash(row["prompt"])
        if key not in best or row["p"] > best[key]["p"]:
            best[key] = row
    return [_verl_row(row, index, place.data_source) for index, row in enumerate(best.values(), place.first)]


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


def write(parts: Iterable[pa.Table], name: str, path: str, sink: Sink, data_source: str = "trustjudge") -> int:
    """Write PREFERENCES parts one after the other to an open file; how many rows it has.

    The kind of file is that of the path's ending. `kto` and `verl` bring the answers of one prompt together within each
    part: where pairs of several lines share a prompt, they may lie in several.

    Raises:
        ConfigError: as `refuse_bad_export`.
    """
    refuse_bad_export(name, path)
    tables = _tables(parts, name, data_source)
    lines = path.lower().endswith(JSON_LINES)
    return _write_lines(tables, sink) if lines else _write_parquet(tables, SCHEMAS[name], sink)


def _tables(parts: Iterable[pa.Table], name: str, data_source: str) -> Iterator[pa.Table]:
    first = 0
    for part in parts:
        kept = part.filter(part["keep"]).to_pylist()
        table = pa.Table.from_pylist(EXPORTS[name](kept, Place(data_source, first)), schema=SCHEMAS[name])
        first += len(table)
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
