"""Where judgments lie, in parts: a run folder's own `judgments/`, or a store that runs share.

A part holds judgments of one bucket of questions and is named by a hash of its task ids: written twice, it overwrites
itself. A run's own store is laid out as `bucket=NNN/part-*.parquet`. A shared one has that layout for every spec
(judge, protocol and decoding), `spec=HASH/bucket=NNN/part-*.parquet`, and each part holds one spec: a run lists and
reads what its own judges and protocols have, bucket by bucket, however much other runs have put there.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from trustjudge_ray import files
from trustjudge_ray.identity import joined_hash
from trustjudge_ray.schema import JUDGMENTS, check
from trustjudge_ray.storage import StorageError, explained, filesystem

SCHEMA: Final[dict[str, Any]] = dict(pl.Schema(JUDGMENTS))
_PART: Final = re.compile(r"/bucket=(\d+)/[^/]+\.parquet")
_SPEC: Final = re.compile(r"/spec=([^/]+)$")

Parts = dict[str, int]
"""Paths of parts with their bytes, in the order in which they count."""


class JudgmentStore:
    """Judgments of a run, or of many.

    Args:
        path: local path or s3://…
        storage_options: for fsspec.
        shared: whether it is laid out by spec.
    """

    def __init__(self, path: str, storage_options: dict[str, Any], shared: bool) -> None:
        self.path, self.shared = path, shared
        self.fs, self.root = filesystem(path, storage_options)

    def write(self, bucket: int, judgments: pa.Table) -> list[str]:
        """Commit judgments of one bucket: a part, or in a shared store one for each spec; their names."""
        table = check(judgments, JUDGMENTS)
        if not self.shared:
            return [self._write(f"bucket={bucket:03d}", table)]
        specs = sorted(pc.unique(table["spec"]).to_pylist())
        split = {spec: table.filter(pc.equal(table["spec"], spec)) for spec in specs}
        return [self._write(f"spec={spec}/bucket={bucket:03d}", part) for spec, part in split.items()]

    def _write(self, folder: str, table: pa.Table) -> str:
        name = f"{folder}/part-{joined_hash(*sorted(table['task_id'].to_pylist()))}.parquet"
        with explained(f"{self.path}/{name}"):
            files.commit(self.fs, f"{self.root}/{name}", files.parquet(table))
        return name

    def parts(self, bucket: int, specs: Iterable[str] | None = None) -> Parts:
        """The parts of a bucket; of a shared store those of these specs, or of all. Nothing else is listed."""
        folders = [f"{self.root}/bucket={bucket:03d}"]
        if self.shared:
            folders = [f"{self.root}/spec={spec}/bucket={bucket:03d}" for spec in self._specs(specs)]
        return {path: size for folder in folders for path, size in self._found(folder).items()}

    def by_bucket(self, specs: Iterable[str] | None = None) -> dict[int, Parts]:
        """All parts by bucket, from one listing (of a shared store: one for each spec)."""
        folders = [f"{self.root}/spec={spec}" for spec in self._specs(specs)] if self.shared else [self.root]
        sorted_out: dict[int, Parts] = {}
        for folder in folders:
            for path, size in self._found(folder).items():
                part = _PART.fullmatch(path.removeprefix(folder))
                if part:
                    sorted_out.setdefault(int(part[1]), {})[path] = size
        return sorted_out

    def read(self, parts: Parts, columns: list[str]) -> pl.DataFrame:
        """Columns of parts, in the parts' order.

        Raises:
            StorageError: a part is damaged.
        """
        return files.frame(self.fs, parts, columns, SCHEMA)

    def refuse_other(self) -> None:
        """Refuse to share what is not a store laid out by spec.

        Raises:
            StorageError: it is a run folder, or a run's own judgments.
        """
        names = (
            {path.rstrip("/").rsplit("/", 1)[-1] for path in files.top(self.fs, self.root)} if self.shared else set()
        )
        if "config.yaml" in names or any(name.startswith("bucket=") for name in names):
            what = "a run folder" if "config.yaml" in names else "the judgments of one run"
            raise StorageError(f"store: {self.path}: that is {what}; a store that runs share is a folder of its own")

    def exists(self) -> bool:
        """Whether anything is there."""
        with explained(self.path):
            return self.fs.exists(self.root)

    def _specs(self, specs: Iterable[str] | None) -> list[str]:
        if specs is not None:
            return sorted(specs)
        found = (_SPEC.search(path.rstrip("/")) for path in files.top(self.fs, self.root))
        return sorted(match[1] for match in found if match)

    def _found(self, folder: str) -> Parts:
        return {path: size for path, size in sorted(files.sizes(self.fs, folder).items()) if path.endswith(".parquet")}
