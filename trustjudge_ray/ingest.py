"""From users' files to the responses of a run folder: read, sort into buckets, settle duplicates.

No Ray here: `validate` calls these one after the other, the pipeline calls them in tasks.

The responses of a question arrive from many files (one for each model). They meet in a staging area of the run folder:
a task reads its files in small batches and stages parts of at most 64 MB by bucket; then each bucket is read as a
whole. Memory is bounded by a part, later by a bucket, whatever the size of the corpus; what is staged survives the
death of any worker or node, and a task done again overwrites its own parts.

Ray Data's own shuffle (`repartition(keys=…)`, which in Ray 2.60 is made of tasks) works on two CPUs and survives the
death of its workers too. Staging is kept beside it because the shuffle holds the corpus in the nodes' object stores and
has it read again where a node takes its share along, starts workers of an environment of its own (about ten seconds
on two CPUs, more than a small run reads for), and is not there for `validate` and `plan`, which run without Ray.
"""

import functools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trustjudge_ray.config import CorpusConfig
from trustjudge_ray.corpus import duplicates, joining, reader
from trustjudge_ray.corpus.canary import SOURCE as CANARY_SOURCE
from trustjudge_ray.corpus.canary import with_canary
from trustjudge_ray.identity import bucket_of, id_key, joined_hash
from trustjudge_ray.schema import PLACED_RESPONSES, QUARANTINE, check
from trustjudge_ray.store import RunFolder

STAGING = "ingest"
_ASKED = f"{STAGING}/asked"
_JOINS = "join"
"""How the parts are called whose questions and answers are yet to be joined."""
_ROWS_A_PART = 50_000
_BYTES_A_PART = 64 * 2**20


def ingest_file(
    path: str, corpus: CorpusConfig, folder: RunFolder, options: dict[str, Any] | None = None
) -> dict[str, Any]:
    """`ingest_files` of one file."""
    return ingest_files([path], corpus, folder, options)[0]


def ingest_files(
    paths: list[str], corpus: CorpusConfig, folder: RunFolder, options: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Read files into the run folder's staging area, by bucket; what each held. Small files share their parts.

    Args:
        options: storage options of the files, where they are not the folder's.

    Returns:
        Of each file its `source`, the `rows` (answers) read, `questions` and `references` where they have rows of
        their own, `quarantined`, size and SHA-256, and the `buckets` it has rows in.
    """
    options = folder.options if options is None else options
    staging = _Staging(folder, paths, corpus.format in joining.JOINED)
    ledgers = [_ingest(path, corpus, options, staging) for path in paths]
    staging.write()
    if staging.asked_in:
        folder.write_json(f"{_ASKED}/{joined_hash(*paths)}.json", staging.asked_in)
    return ledgers


def read(
    path: str, corpus: CorpusConfig, options: dict[str, Any], batch_rows: int = 4096
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """A file of the corpus as (PLACED_RESPONSES, QUARANTINE) tables, what it says of questions and references as rows
    of their own (`corpus.joining`).

    Raises:
        CorpusError: as `reader.read`.
    """
    refers = _holds_references(path, corpus)
    for rows, quarantine in reader.read(path, corpus.format, dict(corpus.fields), options, batch_rows):
        yield (joining.as_references(rows) if refers else rows), quarantine


def _ingest(path: str, corpus: CorpusConfig, options: dict[str, Any], staging: "_Staging") -> dict[str, Any]:
    counts = {"rows": 0, "questions": 0, "references": 0, "quarantined": 0}
    buckets: set[int] = set()
    for rows, quarantine in read(path, corpus, options):
        for kind, count in joining.kinds(rows).items():
            counts[kind] += count
        counts["quarantined"] += len(quarantine)
        buckets |= staging.add(check(rows, PLACED_RESPONSES), check(quarantine, QUARANTINE))
    if counts["questions"]:
        staging.asked_in.append(path)
    fingerprint = reader.fingerprint(path, options)
    place = {"source": path, "sha256": fingerprint.sha256, "bytes": fingerprint.size, "buckets": sorted(buckets)}
    return place | counts


def _holds_references(path: str, corpus: CorpusConfig) -> bool:
    """Whether a file's answers are reference answers, as those in a folder of that name are."""
    return corpus.format in joining.JOINED and joining.REFERENCE_FOLDER in path.split("/")[:-1]


class _Staging:
    """Gathers the reader's small batches to parts worth writing, named by the files and their place in them; and the
    files that ask questions, for messages about answers to none of them."""

    def __init__(self, folder: RunFolder, paths: list[str], joins: bool) -> None:
        self._folder, self._paths = folder, paths
        self._kind = _JOINS if joins else "part"
        self._number = 0
        self.asked_in: list[str] = []
        self._clear()

    def _clear(self) -> None:
        self._responses: list[pa.Table] = []
        self._buckets: list[int] = []
        self._rejected: list[pa.Table] = []
        self._rows = self._bytes = 0

    def add(self, responses: pa.Table, quarantine: pa.Table) -> set[int]:
        """Take in a batch; the buckets that it has rows in."""
        buckets = [bucket_of(question_id) for question_id in responses["question_id"].to_pylist()]
        self._responses.append(responses)
        self._buckets += buckets
        self._rejected.append(quarantine)
        self._rows += len(responses) + len(quarantine)
        self._bytes += responses.nbytes + quarantine.nbytes
        if self._rows >= _ROWS_A_PART or self._bytes >= _BYTES_A_PART:
            self.write()
        return set(buckets)

    def write(self) -> None:
        """Write what was taken in, and forget it."""
        name = joined_hash(*self._paths, str(self._number))
        if self._buckets:
            responses = pa.concat_tables(self._responses)
            for bucket, rows in sorted(self._places().items()):
                part = responses.take(pa.array(rows))
                self._folder.write_table(f"{STAGING}/bucket={bucket:03d}/{self._kind}-{name}.parquet", part)
        if any(map(len, self._rejected)):
            self._folder.write_table(f"quarantine/files-{name}.parquet", pa.concat_tables(self._rejected))
        self._number += 1
        self._clear()

    def _places(self) -> dict[int, list[int]]:
        """The rows of each bucket."""
        places: dict[int, list[int]] = {}
        for row, bucket in enumerate(self._buckets):
            places.setdefault(bucket, []).append(row)
        return places


def first_questions(folder: RunFolder, limit: int) -> set[str]:
    """The first `limit` question ids of the staged corpus, in id order."""
    ids: set[str] = set()
    for name in folder.names(STAGING):
        if f"/{_JOINS}-" in name:
            rows = folder.read_table(name, ["question_id", "response_id", "replies"])
            ids.update(rows.filter(joining.is_answer(rows))["question_id"].to_pylist())
        elif not name.startswith(_ASKED):
            ids.update(folder.read_table(name, ["question_id"])["question_id"].to_pylist())
    return set(sorted(ids, key=id_key(list(ids)))[:limit])


def settle_bucket(bucket: int, folder: RunFolder, questions: set[str] | None = None, canary: bool = False) -> pa.Table:
    """Bring one bucket's staged rows together, join answers to questions, settle duplicates, write and return its
    responses; with `questions` only theirs; with `canary` one more for each question (`corpus.canary`).

    Raises:
        ConfigError: there is to be a canary, and a model has its name.
    """
    names = folder.names(f"{STAGING}/bucket={bucket:03d}")
    rows = pa.concat_tables([folder.read_table(name) for name in names])
    quarantine = QUARANTINE.empty_table()
    if any(f"/{_JOINS}-" in name for name in names):
        rows, quarantine = joining.joined(rows, functools.cache(lambda: _asked_in(folder)))
    responses, repeated = duplicates.deduplicate(rows)
    quarantine = pa.concat_tables([quarantine, repeated])
    if questions is not None:
        wanted = pa.array(sorted(questions), pa.string())
        responses = responses.filter(pc.is_in(responses["question_id"], value_set=wanted))
    if canary:
        responses = with_canary(responses)
    folder.write_table(f"responses/bucket={bucket:03d}.parquet", check(responses, PLACED_RESPONSES))
    if len(quarantine):
        folder.write_table(f"quarantine/bucket={bucket:03d}.parquet", check(quarantine, QUARANTINE))
    return responses


def unasked(responses: pa.Table) -> int:
    """How many responses of a corpus have no question; canaries do not count."""
    empty = pc.equal(pc.list_value_length(responses["messages"]), 0)
    return pc.sum(pc.and_(empty, pc.not_equal(responses["source"], CANARY_SOURCE))).as_py() or 0


def unasked_note(count: int) -> str:
    """What to know of so many responses without a question."""
    have = "response has" if count == 1 else "responses have"
    return (
        f"{count} {have} no question: a judge reads the answers alone. Where there are questions, name their file in "
        "corpus.paths too, or map corpus.fields.question"
    )


def notes(folder: RunFolder) -> list[str]:
    """What to know of the corpus of a run; of an import nothing."""
    names = [name for name in folder.names("responses") if "/bucket=" in name]
    count = sum(unasked(folder.read_table(name, ["messages", "source"])) for name in names)
    return [unasked_note(count)] if count else []


def _asked_in(folder: RunFolder) -> list[str]:
    """The files of the corpus that ask questions."""
    return sorted(path for name in folder.names(_ASKED) for path in folder.read_json(name))


def clear(folder: RunFolder) -> None:
    """Forget what an earlier start read: the corpus is read anew each time, judgments stay."""
    for name in (STAGING, "responses", "quarantine", "tasks"):
        folder.remove(name)
