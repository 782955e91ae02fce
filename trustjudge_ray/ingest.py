"""From users' files to the responses of a run folder: read, sort into buckets, settle duplicates.

No Ray here: `validate` calls these one after the other, the pipeline calls them in tasks.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trustjudge_ray.config import CorpusConfig
from trustjudge_ray.corpus import duplicates, reader
from trustjudge_ray.identity import bucket_of, id_key, joined_hash
from trustjudge_ray.schema import PLACED_RESPONSES, QUARANTINE, check
from trustjudge_ray.store import RunFolder

STAGING = "ingest"
_ROWS_A_PART = 50_000


def ingest_file(
    path: str, corpus: CorpusConfig, folder: RunFolder, options: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Read one file into the run folder's staging area, by bucket; what it held.

    Args:
        options: storage options of the file, where they are not the folder's.

    Returns:
        `source`, `rows` read, `quarantined`, size and SHA-256 of the file, and the `buckets` it has rows in.
    """
    options = folder.options if options is None else options
    rows = quarantined = 0
    buckets: set[int] = set()
    rejected: list[pa.Table] = []
    for number, (responses, quarantine) in enumerate(_large(path, corpus, options)):
        rows += len(responses)
        quarantined += len(quarantine)
        if len(quarantine):
            rejected.append(check(quarantine, QUARANTINE))
        for bucket, part in _by_bucket(check(responses, PLACED_RESPONSES)):
            buckets.add(bucket)
            folder.write_table(f"{STAGING}/bucket={bucket:03d}/part-{joined_hash(path, str(number))}.parquet", part)
    if rejected:
        folder.write_table(f"quarantine/file-{joined_hash(path)}.parquet", pa.concat_tables(rejected))
    fingerprint = reader.fingerprint(path, options)
    return {
        "source": path,
        "rows": rows,
        "quarantined": quarantined,
        "sha256": fingerprint.sha256,
        "bytes": fingerprint.size,
        "buckets": sorted(buckets),
    }


def first_questions(folder: RunFolder, limit: int) -> set[str]:
    """The first `limit` question ids of the staged corpus, in id order."""
    ids: set[str] = set()
    for name in folder.names(STAGING):
        ids.update(folder.read_table(name, ["question_id"])["question_id"].to_pylist())
    return set(sorted(ids, key=id_key(list(ids)))[:limit])


def settle_bucket(bucket: int, folder: RunFolder, questions: set[str] | None = None) -> pa.Table:
    """Bring one bucket's staged rows together, settle duplicates, write and return its responses; with `questions`
    only theirs."""
    parts = [folder.read_table(name) for name in folder.names(f"{STAGING}/bucket={bucket:03d}")]
    responses, quarantine = duplicates.deduplicate(pa.concat_tables(parts))
    if questions is not None:
        wanted = pa.array(sorted(questions), pa.string())
        responses = responses.filter(pc.is_in(responses["question_id"], value_set=wanted))
    folder.write_table(f"responses/bucket={bucket:03d}.parquet", check(responses, PLACED_RESPONSES))
    if len(quarantine):
        folder.write_table(f"quarantine/bucket={bucket:03d}.parquet", check(quarantine, QUARANTINE))
    return responses


def clear(folder: RunFolder) -> None:
    """Forget what an earlier start read: the corpus is read anew each time, judgments stay."""
    for name in (STAGING, "responses", "quarantine", "tasks"):
        folder.remove(name)


def _large(path: str, corpus: CorpusConfig, options: dict[str, Any]) -> Iterator[tuple[pa.Table, pa.Table]]:
    """The reader's small batches gathered to parts worth writing."""
    responses: list[pa.Table] = []
    rejected: list[pa.Table] = []
    for rows, quarantine in reader.read(path, corpus.format, dict(corpus.fields), options):
        responses.append(rows)
        rejected.append(quarantine)
        if sum(map(len, responses)) >= _ROWS_A_PART:
            yield pa.concat_tables(responses), pa.concat_tables(rejected)
            responses, rejected = [], []
    if responses:
        yield pa.concat_tables(responses), pa.concat_tables(rejected)


def _by_bucket(responses: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    where: dict[int, list[int]] = {}
    for i, question_id in enumerate(responses["question_id"].to_pylist()):
        where.setdefault(bucket_of(question_id), []).append(i)
    return ((bucket, responses.take(pa.array(rows))) for bucket, rows in sorted(where.items()))
