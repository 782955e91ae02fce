"""Models answer the questions of a corpus, through the engine, the store and the pipeline that judge.

What comes out is a corpus: `answers/bucket=NNN.jsonl` in the run folder, format `flat`, for a run that judges it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from trustjudge_ray import runs
from trustjudge_ray.config import Config, LoadedConfig, with_sections
from trustjudge_ray.judging import protocols
from trustjudge_ray.judging.base import JUDGE_FAILURES
from trustjudge_ray.judging.protocols import ProtocolError
from trustjudge_ray.runs import Judged, Notify
from trustjudge_ray.store import RunFolder

ANSWERS = "answers"
"""The folder, in the run folder, that holds the answers as a corpus."""
_COLUMNS = ["task_id", "protocol", "question_id", "model_a", "sample", "status", "output"]


@dataclass(frozen=True)
class Answered:
    """What answering came to: how judging went, and how many answers were written to `paths`."""

    judged: Judged
    answers: int
    paths: str


def answer(loaded: LoadedConfig, notify: Notify) -> Answered:
    """Let the configured judges answer every question of the corpus, and write their answers as a corpus.

    Where the configuration names no protocols, `answer` is used: the question is the whole user turn. Questions that
    nobody has answered yet are a corpus of format `questions`; of any other the questions are taken and the responses
    left alone. Done again, it asks again where a model failed.

    Raises:
        ProtocolError: a protocol is not of kind `answer`. Otherwise as `runs.judge`.
    """
    named = loaded.config.protocols
    asked = ["answer"] if named == Config().protocols else named
    for protocol in map(protocols.load, asked):
        if protocol.kind != "answer":
            raise ProtocolError(
                f"protocols: '{protocol.name}' is of kind {protocol.kind}; `answer` asks those of kind answer"
            )
    given = with_sections(loaded, protocols=asked)
    judged = runs.judge(given, notify, frozenset(JUDGE_FAILURES))
    folder = runs.folder_of(given)
    for line in _unshown(folder):
        notify(line, None)
    return Answered(judged, write_corpus(folder), f"{folder.path}/{ANSWERS}/*.jsonl")


def _unshown(folder: RunFolder) -> Iterator[str]:
    """What to know where the corpus has passages that no protocol shows."""
    if any({"context", "conversation"} & set(protocol.slots) for protocol in folder.protocols().values()):
        return
    roles = pl.col("messages").list.eval(pl.element().struct.field("role")).list.contains("context")
    passages = 0
    for bucket in folder.buckets():
        asked = pl.DataFrame(folder.read_table(f"responses/bucket={bucket:03d}.parquet", ["question_id", "messages"]))
        passages += asked.filter(roles)["question_id"].n_unique()
    if passages:
        yield (
            f"note: {passages} questions have a passage (context), and the protocols {list(folder.protocols())} do not "
            "show it; protocols: [answer-passage] does"
        )


def write_corpus(folder: RunFolder) -> int:
    """Write the answers of a run folder as files of format `flat`; how many there are.

    `model` is the judge's name and `response_id` too, with the protocol's name where there are several, and the number
    of the sample where there are several. Failed answers are left out; the manifest counts them.
    """
    folder.remove(ANSWERS)
    several = {name: len(folder.protocols()) > 1 for name in folder.protocols()}
    drawn = {name: protocol.samples > 1 for name, protocol in folder.protocols().items()}
    count = 0
    for bucket in folder.buckets():
        rows = [json.dumps(row, ensure_ascii=False) for row in _rows(folder, bucket, several, drawn)]
        count += len(rows)
        if rows:
            folder.write_bytes(f"{ANSWERS}/bucket={bucket:03d}.jsonl", ("\n".join(rows) + "\n").encode())
    return count


def _rows(folder: RunFolder, bucket: int, several: dict[str, bool], drawn: dict[str, bool]) -> Iterator[dict[str, Any]]:
    found, _ = folder.judgments(bucket=bucket, columns=_COLUMNS)
    asked = pl.DataFrame(folder.read_table(f"responses/bucket={bucket:03d}.parquet"))
    questions = {
        row["question_id"]: row for row in asked.unique("question_id", keep="first", maintain_order=True).to_dicts()
    }
    for row in found.filter(pl.col("status") == "ok").sort("question_id", "model_a", "protocol", "sample").to_dicts():
        about = questions[row["question_id"]]
        response = row["model_a"]
        response += f"/{row['protocol']}" if several[row["protocol"]] else ""
        response += f"#{row['sample']}" if drawn[row["protocol"]] else ""
        yield {
            "question_id": row["question_id"],
            "category": about["category"],
            "messages": about["messages"],
            "reference": about["reference"],
            "model": row["model_a"],
            "response_id": response,
            "response": row["output"],
        }
