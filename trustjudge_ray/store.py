"""Run folders: what lies where, written atomically, read once per task.

Layout (DESIGN §4): `config.yaml`, `protocols/`, `responses/bucket=NNN.parquet`, `tasks/bucket=NNN.parquet`,
`judgments/bucket=NNN/part-*.parquet` (or `store.json`, which says where the store is that holds them), `quarantine/`,
what `evaluate` and `report` write, and `manifest.json` last. While a run works, `run.lock` is there (see `lease`).
"""

import contextlib
import json
import os
import re
import uuid
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import polars as pl
import pyarrow as pa

from trustjudge_ray import files
from trustjudge_ray.judging import protocols as protocol_files
from trustjudge_ray.judgment_store import SCHEMA, JudgmentStore, Parts
from trustjudge_ray.nearest import did_you_mean_file
from trustjudge_ray.schema import JUDGMENTS, PLACED_RESPONSES, TASKS
from trustjudge_ray.storage import StorageError, explained, filesystem, is_local, plain

PENDING_TASKS = pa.schema([*TASKS, pa.field("pending", pa.bool_(), nullable=False)])
"""TASKS of a run, each with whether a judge must still be asked when the run was planned."""

LINK: Final = "store.json"
"""Says where the shared store is that holds the run's judgments."""

_UNPLANNED: Final = "no tasks; this is not a run folder, or its run never got to planning"
_OF_THE_TASK: Final = frozenset({"judge", "protocol", "category"})
_STALE_SECONDS: Final = 3600
"""Other runs may be writing into a shared store: what is younger may be theirs."""
_BUCKET: Final = re.compile(r"/bucket=(\d+)[^/]*$")

Buckets = int | Collection[int] | None
"""One bucket, some of them, or all."""


class RunFolder:
    """A run folder on local or S3 storage.

    Args:
        path: local path or s3://…
        storage_options: for fsspec.
        store: the store in which the run's judgments lie, if they are shared with other runs. A folder that was
            planned knows its store itself (`store.json`).
    """

    def __init__(self, path: str, storage_options: dict[str, Any] | None = None, store: str | None = None) -> None:
        self.path = path.rstrip("/")
        self.options = storage_options or {}
        self._given = store.rstrip("/") if store else None
        self._asks_link = True
        self._stores: list[JudgmentStore] = []
        self._fs, self._root = filesystem(self.path, self.options)

    def __reduce__(self) -> tuple:
        return (RunFolder, (self.path, self.options, self._given), {"_asks_link": self._asks_link})

    @property
    def store(self) -> str:
        """Where the run's judgments are written."""
        return self._judgment_stores()[0].path

    # --- files -------------------------------------------------------------------------------

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all."""
        with explained(f"{self.path}/{name}"):
            files.commit(self._fs, f"{self._root}/{name}", content)

    def write_table(self, name: str, table: pa.Table) -> None:
        """Write a Parquet file whole or not at all."""
        self.write_bytes(name, files.parquet(table))

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
        return files.table(self.read_bytes(name), f"{self.path}/{name}", columns)

    def exists(self, name: str) -> bool:
        """Whether a file or folder of that name is in the run folder."""
        with explained(f"{self.path}/{name}"):
            return self._fs.exists(f"{self._root}/{name}")

    def names(self, folder: str) -> list[str]:
        """The files under a folder of the run folder, as names in it, sorted; none if it does not exist."""
        return [path.removeprefix(self._root + "/") for path in files.find(self._fs, f"{self._root}/{folder}")]

    def remove(self, folder: str) -> None:
        """Remove a file or folder of the run folder, if it is there."""
        where = f"{self._root}/{folder}"
        with explained(f"{self.path}/{folder}"), contextlib.suppress(FileNotFoundError):
            if files.is_disk(self._fs):
                self._fs.rm(where, recursive=True)
                return
            with ThreadPoolExecutor(8) as pool:  # one by one: not every store knows S3's request for many
                list(pool.map(self._fs.rm_file, files.find(self._fs, where)))

    def remove_temporary(self) -> int:
        """Remove what an interrupted write left behind; how many files that was.

        In a store that other runs share only what is older than an hour. Writes to S3 leave nothing behind.
        """
        left = {path for path in files.top(self._fs, self._root) if files.TEMPORARY.search(path)}
        if files.is_disk(self._fs):
            left |= {path for path in files.find(self._fs, self._root) if files.TEMPORARY.search(path)}
        for path in left:
            files.remove(self._fs, path)
        if self._given is None:
            return len(left)
        fs, root = filesystem(self._given, self.options)
        shared = [path for path in files.find(fs, root) if files.TEMPORARY.search(path)] if files.is_disk(fs) else []
        stale = [path for path in shared if files.age(fs, path) > _STALE_SECONDS]
        for path in stale:
            files.remove(fs, path)
        return len(left) + len(stale)

    def probe(self) -> None:
        """Write, read and remove a small file, so that a storage error comes before any work, and soon.

        Raises:
            StorageError: storage refuses one of the three, does not answer within half a minute, or the store is not
                one that runs share.
        """
        for place in [self.path] if self._given is None else [self.path, self._given]:
            fs, root = filesystem(place, self.options, patient=False)
            path = f"{root}/.probe-{uuid.uuid4().hex}"
            with explained(place):
                try:
                    files.commit(fs, path, b"probe")
                    found = fs.cat_file(path)
                except BaseException:
                    with contextlib.suppress(Exception):
                        fs.rm_file(path)
                    raise
                filesystem(place, self.options)[0].rm_file(path)  # patiently: it works, and nothing is to stay
            if found != b"probe":
                raise StorageError(f"{place}: a file read back differs from what was written")
        if self._given is not None:
            JudgmentStore(self._given, self.options, shared=True).refuse_other()

    def refuse_absent(self) -> None:
        """One look, so that a wrong path or a store that does not answer is an error soon.

        Raises:
            StorageError: there is no run folder, or storage refuses or does not answer within half a minute.
        """
        fs, root = filesystem(self.path, self.options, patient=False)
        with explained(self.path):
            found = fs.exists(f"{root}/config.yaml")
        if not found:
            absent = is_local(self.path) and not os.path.exists(root)
            hint = did_you_mean_file(plain(self.path)) if absent else ""
            raise StorageError(f"{self.path}: not a run folder: it has no config.yaml{hint}")

    # --- judgments ---------------------------------------------------------------------------

    def keep_store(self) -> None:
        """Say in the folder where the run's judgments lie, for commands that know the folder alone."""
        if self._given is None:
            self.remove(LINK)
        else:
            local = is_local(self._given)
            whole = os.path.abspath(plain(self._given)) if local else self._given
            beside = local and is_local(self.path)
            near = os.path.relpath(whole, os.path.abspath(plain(self.path))) if beside else None
            self.write_json(LINK, {"store": whole, "from_here": near})
        self._asks_link, self._stores = False, []

    def write_judgments(self, bucket: int, judgments: pa.Table) -> list[str]:
        """Commit judgments of one bucket as a part (in a shared store as one for each spec); their names."""
        return self._judgment_stores()[0].write(bucket, judgments)

    def judged(self, bucket: int, specs: set[str] | None = None, again: frozenset[str] = frozenset()) -> set[str]:
        """The task ids of a bucket that have a judgment; only the ids are read, and statuses if `again` is given.

        Args:
            specs: of a shared store, read only what these have.
            again: statuses that do not count. A task that has a row with another one has a judgment, and one that
                has an `ok` row has one in any case.
        """
        columns = ["task_id", "status"] if again else ["task_id"]
        found: set[str] = set()
        for store in self._judgment_stores():
            rows = store.read(store.parts(bucket, specs), columns)
            if again:
                rows = rows.filter((pl.col("status") == "ok") | ~pl.col("status").is_in(sorted(again)))
            found.update(rows["task_id"].to_list())
        return found

    def judgments(
        self, tasks: pl.DataFrame | None = None, bucket: Buckets = None, columns: list[str] | None = None
    ) -> tuple[pl.DataFrame, int]:
        """The judgments of this run's tasks, one row a task, by task id, and how many further rows were left out.

        Of several rows of one task (an orphaned actor may write late, two runs may judge at once) `ok` comes first,
        then the smallest part name. Judge and protocol are called, and the question is categorised, as the task says:
        another run may have judged it under other names.

        Args:
            tasks: PENDING_TASKS rows, by default all of the run (or of the buckets).
            bucket: read this bucket, or these, and nothing of others.
            columns: of JUDGMENTS; only these are read, and what the choice among rows needs.
        """
        wanted = list(columns or JUDGMENTS.names)
        ids = ["task_id", "spec", *sorted(_OF_THE_TASK.intersection(wanted))]
        read = [name for name in JUDGMENTS.names if name in {*wanted, "task_id", "status"} - _OF_THE_TASK]
        kept, further = [pl.DataFrame(schema=SCHEMA).select(wanted)], 0
        for given, places in self._by_bucket(tasks, bucket, ids):
            rows = pl.concat([store.read(parts, read) for store, parts in places])
            rows = rows.join(given.select(ids).drop("spec"), on="task_id", maintain_order="left")
            one = _one_a_task(rows)
            kept.append(one.select(wanted))
            further += rows.height - one.height
        whole = pl.concat(kept)
        return whole.sort("task_id") if "task_id" in wanted and bucket is None else whole, further

    def _by_bucket(
        self, tasks: pl.DataFrame | None, bucket: Buckets, ids: list[str]
    ) -> Iterator[tuple[pl.DataFrame, list[tuple[JudgmentStore, Parts]]]]:
        """The tasks of each bucket (or all that are given) with its parts, each store and folder listed once; those of
        buckets that are named all together."""
        if bucket is not None:
            given, numbers = self.tasks(bucket, ids) if tasks is None else tasks, _numbers(bucket)
            theirs = _specs(given)
            yield given, [(store, _parts(store, numbers, theirs)) for store in self._judgment_stores()]
            return
        planned = self._task_files() if tasks is None else {}
        if tasks is None and not planned:
            raise StorageError(f"{self.path}: {_UNPLANNED}")
        shared = any(store.shared for store in self._judgment_stores())
        specs = _specs(self.tasks(columns=["spec"]) if tasks is None else tasks) if shared else None
        listed = [(store, store.by_bucket(specs)) for store in self._judgment_stores()]
        for number in sorted({number for _, found in listed for number in found}):
            given = self._read_tasks(planned.get(number, {}), ids) if tasks is None else tasks
            yield given, [(store, found.get(number, {})) for store, found in listed]

    def _judgment_stores(self) -> list[JudgmentStore]:
        """The store that the run writes to; after it the folder's own, from before it was given a shared one.

        Raises:
            StorageError: the store that the folder names is not there.
        """
        if not self._stores:
            own = JudgmentStore(f"{self.path}/judgments", self.options, shared=False)
            where = self._given or (self._linked() if self._asks_link else None)
            self._stores = [*([JudgmentStore(where, self.options, shared=True)] if where else []), own]
        return self._stores

    def _linked(self) -> str | None:
        """The shared store that the folder names: where it was, or in the same place relative to the folder."""
        if not self.exists(LINK):
            return None
        link = self.read_json(LINK)
        places = [link["store"]]
        if link.get("from_here") and is_local(self.path):
            places.append(os.path.normpath(os.path.join(os.path.abspath(plain(self.path)), link["from_here"])))
        for place in places:
            if JudgmentStore(place, self.options, shared=True).exists():
                return place
        raise StorageError(
            f"{self.path}: its judgments lie in the store {link['store']}, and nothing is there, seen from this "
            f"machine; if the store was moved, write the new place into {self.path}/{LINK}"
        )

    # --- other tables ------------------------------------------------------------------------

    def tasks(self, bucket: Buckets = None, columns: list[str] | None = None) -> pl.DataFrame:
        """Tasks of the run (PENDING_TASKS): all, or those of a bucket or several, of which there may be none.

        Raises:
            StorageError: the run has no tasks at all.
        """
        found = self._task_files()
        if bucket is not None:
            found = {number: found[number] for number in _numbers(bucket) if number in found}
        elif not found:
            raise StorageError(f"{self.path}: {_UNPLANNED}")
        return self._read_tasks({path: size for parts in found.values() for path, size in parts.items()}, columns)

    def buckets(self) -> list[int]:
        """The buckets in which the run has tasks, in order; none before it was planned."""
        return list(self.bucket_bytes())

    def bucket_bytes(self) -> dict[int, int]:
        """The same, each with the bytes that its tasks take in storage."""
        return {number: sum(parts.values()) for number, parts in sorted(self._task_files().items())}

    def _task_files(self) -> dict[int, Parts]:
        """The files of tasks by bucket."""
        found: dict[int, Parts] = {}
        for path, size in sorted(files.sizes(self._fs, f"{self._root}/tasks").items()):
            if number := _BUCKET.search(path):
                found.setdefault(int(number[1]), {})[path] = size
        return found

    def _read_tasks(self, parts: Parts, columns: list[str] | None = None) -> pl.DataFrame:
        return files.frame(self._fs, parts, columns or PENDING_TASKS.names, dict(pl.Schema(PENDING_TASKS)))

    def responses(self) -> pl.DataFrame:
        """All responses of the run (PLACED_RESPONSES); an empty frame where the run has none (imports)."""
        tables = [self.read_table(name) for name in self.names("responses")]
        return pl.DataFrame(pa.concat_tables([PLACED_RESPONSES.empty_table(), *tables]))

    def quarantine(self) -> pl.DataFrame | None:
        """All quarantined rows, or None where there is none."""
        tables = [self.read_table(name) for name in self.names("quarantine")]
        return pl.DataFrame(pa.concat_tables(tables)) if tables else None

    def write_protocols(self, protocols: list[protocol_files.Protocol]) -> None:
        """Keep the protocols of the run as they were used, and none that an earlier start used."""
        texts = {f"protocols/{p.name}.yaml": protocol_files.to_yaml(p).encode("utf-8") for p in protocols}
        for name, text in texts.items():
            self.write_bytes(name, text)
        for name in set(self.names("protocols")) - set(texts):
            self.remove(name)

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


def _numbers(bucket: int | Collection[int]) -> Collection[int]:
    return (bucket,) if isinstance(bucket, int) else bucket


def _parts(store: JudgmentStore, buckets: Collection[int], specs: set[str]) -> Parts:
    return {path: size for bucket in buckets for path, size in store.parts(bucket, specs).items()}


def _specs(tasks: pl.DataFrame) -> set[str]:
    return set(tasks["spec"].unique().to_list())


def _one_a_task(rows: pl.DataFrame) -> pl.DataFrame:
    """Of several rows of a task the first `ok` one, or the first; sorted by task id."""
    if rows["task_id"].is_unique().all():
        return rows.sort("task_id")
    ok_first = rows.sort(pl.col("status") != "ok", maintain_order=True)
    return ok_first.unique("task_id", keep="first", maintain_order=True).sort("task_id")
