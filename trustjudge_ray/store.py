"""Run folders: what lies where, written atomically, read once per task.

Layout (DESIGN §4): `config.yaml`, `protocols/`, `responses/bucket=NNN.parquet`, `tasks/bucket=NNN.parquet`,
`judgments/bucket=NNN/part-*.parquet`, `quarantine/*.parquet`, what `evaluate` and `report` write, and
`manifest.json` last. A part is named by a hash of its task ids: written twice, it overwrites itself.
"""

import contextlib
import json
import re
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from trustjudge_ray.identity import joined_hash
from trustjudge_ray.judging import protocols as protocol_files
from trustjudge_ray.schema import JUDGMENTS, PLACED_RESPONSES, TASKS, check
from trustjudge_ray.storage import StorageError, explained, filesystem

PENDING_TASKS = pa.schema([*TASKS, pa.field("pending", pa.bool_(), nullable=False)])
"""TASKS of a run, each with whether a judge must still be asked when the run was planned."""

_TEMPORARY = re.compile(r"\.(tmp|probe)-[0-9a-f]{32}$")
_STALE_SECONDS = 3600
"""Other runs may be writing into a shared store: what is younger may be theirs."""


class RunFolder:
    """A run folder on local or S3 storage.

    Args:
        path: local path or s3://…
        storage_options: for fsspec.
        store: where judgments lie if not in the folder itself.
    """

    def __init__(self, path: str, storage_options: dict[str, Any] | None = None, store: str | None = None) -> None:
        self.path = path.rstrip("/")
        self.options = storage_options or {}
        self.store = (store or f"{self.path}/judgments").rstrip("/")
        self._fs, self._root = filesystem(self.path, self.options)
        self._store_fs, self._store_root = filesystem(self.store, self.options)

    def __reduce__(self) -> tuple:
        return (RunFolder, (self.path, self.options, self.store))

    @property
    def _owns_store(self) -> bool:
        return self.store.startswith(self.path + "/")

    # --- files -------------------------------------------------------------------------------

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all."""
        with explained(f"{self.path}/{name}"):
            _commit(self._fs, f"{self._root}/{name}", content)

    def write_table(self, name: str, table: pa.Table) -> None:
        """Write a Parquet file whole or not at all."""
        self.write_bytes(name, _parquet(table))

    def read_bytes(self, name: str) -> bytes:
        """A file's content.

        Raises:
            StorageError: it is not there, or storage refuses.
        """
        with explained(f"{self.path}/{name}"):
            return self._fs.cat_file(f"{self._root}/{name}")

    def read_table(self, name: str, columns: list[str] | None = None) -> pa.Table:
        """A Parquet file's table.

        Raises:
            StorageError: it is not there, storage refuses, or it is damaged.
        """
        return _table(pa.BufferReader(self.read_bytes(name)), f"{self.path}/{name}", columns)

    def exists(self, name: str) -> bool:
        """Whether a file or folder of that name is in the run folder."""
        with explained(f"{self.path}/{name}"):
            return self._fs.exists(f"{self._root}/{name}")

    def names(self, folder: str) -> list[str]:
        """The files under a folder of the run folder, as names in it, sorted; none if it does not exist."""
        with explained(f"{self.path}/{folder}"):
            return [path.removeprefix(self._root + "/") for path in _find(self._fs, f"{self._root}/{folder}")]

    def remove(self, folder: str) -> None:
        """Remove a file or folder of the run folder, if it is there."""
        where = f"{self._root}/{folder}"
        with explained(f"{self.path}/{folder}"), contextlib.suppress(FileNotFoundError):
            if _is_disk(self._fs):
                self._fs.rm(where, recursive=True)
                return
            with ThreadPoolExecutor(8) as pool:  # one by one: not every store knows S3's request for many
                list(pool.map(self._fs.rm_file, _find(self._fs, where)))

    def remove_temporary(self) -> int:
        """Remove what an interrupted write left behind; how many files that was.

        In a store that other runs share only what is older than an hour. Writes to S3 leave nothing behind.
        """
        own = [path for path in _top(self._fs, self._root) if _TEMPORARY.search(path)]
        if _is_disk(self._fs):
            own += [path for path in _find(self._fs, self._root) if _TEMPORARY.search(path) and path not in own]
        for path in own:
            _remove(self._fs, path)
        if self._owns_store or not _is_disk(self._store_fs):
            return len(own)
        left = [path for path in _find(self._store_fs, self._store_root) if _TEMPORARY.search(path)]
        stale = [path for path in left if _age(self._store_fs, path) > _STALE_SECONDS]
        for path in stale:
            _remove(self._store_fs, path)
        return len(own) + len(stale)

    def probe(self) -> None:
        """Write, read and remove a small file, so that a storage error comes before any work, and soon.

        Raises:
            StorageError: storage refuses one of the three, or does not answer within half a minute.
        """
        for place in [self.path] if self._owns_store else [self.path, self.store]:
            fs, root = filesystem(place, self.options, patient=False)
            path = f"{root}/.probe-{uuid.uuid4().hex}"
            with explained(place):
                _commit(fs, path, b"probe")
                found = fs.cat_file(path)
                fs.rm_file(path)
            if found != b"probe":
                raise StorageError(f"{place}: a file read back differs from what was written")

    def refuse_absent(self) -> None:
        """One look, so that a wrong path or a store that does not answer is an error soon.

        Raises:
            StorageError: there is no run folder, or storage refuses or does not answer within half a minute.
        """
        fs, root = filesystem(self.path, self.options, patient=False)
        with explained(self.path):
            found = fs.exists(f"{root}/config.yaml")
        if not found:
            raise StorageError(f"{self.path}: not a run folder: it has no config.yaml")

    # --- tables ------------------------------------------------------------------------------

    def write_judgments(self, bucket: int, judgments: pa.Table) -> str:
        """Commit judgments of one bucket as a part; its name."""
        table = check(judgments, JUDGMENTS)
        name = f"bucket={bucket:03d}/part-{joined_hash(*sorted(table['task_id'].to_pylist()))}.parquet"
        with explained(f"{self.store}/{name}"):
            _commit(self._store_fs, f"{self._store_root}/{name}", _parquet(table))
        return name

    def judged(self, bucket: int) -> set[str]:
        """The task ids of a bucket that have a judgment: only that column is read."""
        parts = self._parts(bucket)
        return {i for part in parts for i in self._read_part(part, ["task_id"])["task_id"].to_pylist()}

    def judgments(self, tasks: pl.DataFrame | None = None, bucket: int | None = None) -> tuple[pl.DataFrame, int]:
        """The judgments of this run's tasks, one row a task, and how many further rows were left out.

        Of several rows of one task (an orphaned actor may write late) `ok` comes first, then the smallest
        part name. The category is the task's, so that a corpus that was recategorised counts as it is now. With a
        `bucket` only its parts are read.
        """
        wanted = self.tasks().select("task_id", "category") if tasks is None else tasks.select("task_id", "category")
        with ThreadPoolExecutor(8) as pool:
            tables = list(pool.map(self._named_part, self._parts(bucket)))
        if not tables:
            return pl.DataFrame(schema=_polars_schema(JUDGMENTS)), 0
        rows = pl.concat([pl.DataFrame(table) for table in tables]).drop("category").join(wanted, on="task_id")
        kept = rows.sort(pl.col("status") != "ok", "part").unique("task_id", keep="first").sort("task_id")
        return kept.select(JUDGMENTS.names), rows.height - kept.height

    def tasks(self) -> pl.DataFrame:
        """All tasks of the run (PENDING_TASKS)."""
        tables = [self.read_table(name) for name in self.names("tasks")]
        if not tables:
            raise StorageError(f"{self.path}: no tasks; this is not a run folder, or its run never got to planning")
        return pl.DataFrame(pa.concat_tables(tables))

    def responses(self) -> pl.DataFrame:
        """All responses of the run (PLACED_RESPONSES); an empty frame where the run has none (imports)."""
        tables = [self.read_table(name) for name in self.names("responses")]
        return (
            pl.DataFrame(pa.concat_tables(tables)) if tables else pl.DataFrame(schema=_polars_schema(PLACED_RESPONSES))
        )

    def quarantine(self) -> pl.DataFrame | None:
        """All quarantined rows, or None where there is none."""
        tables = [self.read_table(name) for name in self.names("quarantine")]
        return pl.DataFrame(pa.concat_tables(tables)) if tables else None

    def write_protocols(self, protocols: list[protocol_files.Protocol]) -> None:
        """Keep the protocols of the run as they were used."""
        for protocol in protocols:
            self.write_bytes(f"protocols/{protocol.name}.yaml", protocol_files.to_yaml(protocol).encode("utf-8"))

    def protocols(self) -> dict[str, protocol_files.Protocol]:
        """The protocols of the run by name."""
        names = self.names("protocols")
        loaded = [protocol_files.parse(self.read_bytes(name).decode("utf-8"), name) for name in names]
        return {protocol.name: protocol for protocol in loaded}

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file (NaN is refused)."""
        text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False, default=str)
        self.write_bytes(name, text.encode("utf-8"))

    def read_json(self, name: str) -> Any:
        """A JSON file's value."""
        return json.loads(self.read_bytes(name))

    def _parts(self, bucket: int | None) -> list[str]:
        where = self._store_root if bucket is None else f"{self._store_root}/bucket={bucket:03d}"
        with explained(self.store):
            return [path for path in _find(self._store_fs, where) if path.endswith(".parquet")]

    def _read_part(self, path: str, columns: list[str] | None = None) -> pa.Table:
        with explained(path), self._store_fs.open(path, "rb") as file:
            return _table(file, path, columns)

    def _named_part(self, path: str) -> pa.Table:
        table = self._read_part(path)
        return table.append_column("part", pa.repeat(pa.scalar(path), len(table)))


def _table(source: Any, path: str, columns: list[str] | None) -> pa.Table:
    try:
        return pq.read_table(source, columns=columns)
    except pa.ArrowInvalid as error:
        said = str(error).splitlines()[0]
        raise StorageError(
            f"{path}: not a readable Parquet file ({said}); remove it, and judge what it held"
        ) from error


def _parquet(table: pa.Table) -> bytes:
    """Parquet bytes: zstd, and byte-stream-split for the doubles of `label_logprobs`."""
    sink = pa.BufferOutputStream()
    split = ["label_logprobs.list.element"] if "label_logprobs" in table.column_names else False
    pq.write_table(table, sink, compression="zstd", use_byte_stream_split=split, use_dictionary=_dictionary(table))
    return sink.getvalue().to_pybytes()


def _dictionary(table: pa.Table) -> list[str]:
    return [f.name for f in table.schema if pa.types.is_string(f.type) and f.name != "task_id"]


def _commit(fs: Any, path: str, content: bytes) -> None:
    """Local: write beside, then rename. S3: one PUT appears whole or not at all."""
    if not _is_disk(fs):
        fs.pipe_file(path, content)
        return
    fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
    temporary = f"{path}.tmp-{uuid.uuid4().hex}"
    fs.pipe_file(temporary, content)
    fs.mv(temporary, path)


def _is_disk(fs: Any) -> bool:
    return "file" in (fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,))


def _age(fs: Any, path: str) -> float:
    """Seconds since a file was written; 0 if it is gone by now."""
    with contextlib.suppress(FileNotFoundError):
        return time.time() - fs.modified(path).timestamp()
    return 0.0


def _remove(fs: Any, path: str) -> None:
    with explained(path), contextlib.suppress(FileNotFoundError):
        fs.rm_file(path)


def _top(fs: Any, folder: str) -> list[str]:
    """What lies in a folder itself; nothing if it does not exist."""
    fs.invalidate_cache()
    with explained(folder), contextlib.suppress(FileNotFoundError):
        return fs.ls(folder, detail=False)
    return []


def _find(fs: Any, folder: str) -> list[str]:
    fs.invalidate_cache()
    with contextlib.suppress(FileNotFoundError):
        return sorted(fs.find(folder))
    return []


def _polars_schema(schema: pa.Schema) -> dict[str, Any]:
    return dict(pl.Schema(schema))
