"""A run and a fault: begun, disturbed at drawn moments, ended, compared with the undisturbed run, recorded."""

import contextlib
import json
import random
import re
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import verified
from corpora import protocol_files, rows, write_corpus
from drivers import Driver
from nodes import Nodes
from proxy import FaultProxy, Hold
from s3_fixtures import KEY, SECRET, Gateway

from trustjudge_ray.store import RunFolder

_SCRIPTED = {"engine": "scripted", "scripted": {"noise": 0.1, "seconds_per_batch": 0.5}}
_ENGINE = {"model": "embedded", "max_model_len": 512, "dtype": "float32"}
"""In bfloat16 the other tasks of a batch move log-probabilities by a tenth of a nat."""


@dataclass(frozen=True)
class Work:
    """What a trial's run judges."""

    questions: int
    models: tuple[str, ...]
    judge: dict[str, Any]
    batch_size: int
    replicas: int
    checks: dict[str, verified.Check]

    @property
    def tasks(self) -> int:
        """Every answer scored, every pair compared in both orders."""
        answers = len(self.models)
        return self.questions * (answers + answers * (answers - 1))


WORK = {
    "scripted": Work(18, ("m1", "m2", "m3", "m4"), _SCRIPTED, 8, 2, verified.SAME),
    "vLLM": Work(16, ("m1", "m2", "m3"), _ENGINE, 8, 1, verified.SAME_ENGINE),
}


TIMES = 3
"""How often each fault comes, in a run of its own: once in each third of it."""


@dataclass
class Record:
    """What a trial found: a line of the suite's record.

    Attributes:
        times: how often the fault came.
        at: share of the tasks that were committed when it came, each time; of what lies in the corpus, nothing.
        starts: how often the command was given; 1 where the run went on by itself.
        again: tasks that a judge was given again.
        lost: seconds more than the undisturbed run took, all starts together.
        further: rows in the store that the tables leave out.
    """

    fault: str
    judge: str
    times: int = 0
    at: list[float] = field(default_factory=list)
    starts: int = 0
    again: int = 0
    lost: float = 0.0
    further: int = 0
    note: str = ""
    checks: list[str] = field(default_factory=list)


class Stage:
    """Nodes, a store behind a proxy, and the undisturbed runs: what all trials share."""

    def __init__(self, scratch: Path, record: Path | None) -> None:
        self.scratch, self.record = scratch, record
        self.batches = scratch / "batches"
        self.batches.touch()
        self.protocols = protocol_files(scratch)
        self.gateway = Gateway()
        self.gateway.start()
        self.proxy = FaultProxy(self.gateway.port)
        noting = str(Path(__file__).parent / "noting")
        path = ":".join(filter(None, [noting, str(Path(__file__).parents[2])]))
        self.nodes = Nodes(3, 1, {"PYTHONPATH": path, "TRUSTJUDGE_BATCHES": str(self.batches)})
        self._undisturbed: dict[str, tuple[verified.Ended, float]] = {}

    def close(self) -> None:
        self.nodes.close()
        self.proxy.close()
        self.gateway.close()

    def undisturbed(self, judge: str) -> tuple[verified.Ended, float]:
        """The run that nothing disturbs, and its seconds."""
        if judge not in self._undisturbed:
            for name in ("warming up", "undisturbed"):  # the first run on new nodes takes longer
                trial = Trial(self, name, judge)
                try:
                    trial.goes_on(trial.start())
                finally:
                    trial.close()
            self._undisturbed[judge] = verified.ended(trial.folder), trial.seconds
        return self._undisturbed[judge]


class Trial:
    """A run with a fault. What is random about it is drawn from the fault's name.

    Args:
        local: a folder of this machine for the run, instead of the store.
        overrides: of the configuration, `key=value`.
    """

    def __init__(
        self,
        stage: Stage,
        fault: str,
        judge: str = "scripted",
        local: Path | None = None,
        overrides: tuple[str, ...] = (),
    ) -> None:
        self.stage, self.work = stage, WORK[judge]
        self.record = Record(fault, judge)
        seed = zlib.crc32(fault.encode())
        self.rng = random.Random(seed)
        self.drivers: list[Driver] = []
        self.seconds = 0.0
        name = re.sub(r"\W+", "-", f"{fault} {judge}")
        self._local, self._overrides = local, overrides
        self._out = str(local) if local else f"s3://{stage.gateway.where.bucket}/{name}/run"
        self.folder = RunFolder(self._out, {} if local else dict(stage.gateway.where.options))
        self._config = stage.scratch / f"{name}.yaml"
        self._config.write_text(json.dumps(self._tree()))
        stage.proxy.begin(seed)
        stage.nodes.heal()
        stage.batches.write_text("")

    def _tree(self) -> dict[str, Any]:
        work, stage = self.work, self.stage
        corpus = write_corpus(stage.scratch / f"{work.questions}.jsonl", rows(work.questions, list(work.models)))
        there = f"s3://{stage.gateway.where.bucket}/{corpus.name}"
        RunFolder(there.rsplit("/", 1)[0], dict(stage.gateway.where.options)).write_bytes(
            corpus.name, corpus.read_bytes()
        )
        options = {"key": KEY, "secret": SECRET, "endpoint_url": f"http://127.0.0.1:{stage.proxy.port}"}
        return {
            "out": self._out,
            "corpus": {"paths": [str(corpus) if self._local else there]},
            "judge": work.judge,
            "protocols": stage.protocols,
            "storage_options": {} if self._local else options,
            "run": {"batch_size": work.batch_size},
            "cluster": {"address": stage.nodes.address, "replicas": work.replicas, "cpus_per_replica": 0.5},
        }

    # --- the run -----------------------------------------------------------------------------

    def start(self) -> Driver:
        """Give the command."""
        self.record.starts += 1
        return self.intrude()

    def intrude(self) -> Driver:
        """Give the command by mistake, once more."""
        driver = Driver("judge", str(self._config), *self._overrides, "--json")
        self.drivers.append(driver)
        return driver

    def goes_on(self, driver: Driver) -> str:
        """Fails unless the driver ends with everything judged; what it said."""
        code, _, said = self._ended(driver)
        assert code == 0, said
        return said

    def fails(self, driver: Driver, status: int, saying: str) -> None:
        """Fails unless the driver ends with this exit status and one message that says so."""
        code, out, said = self._ended(driver)
        assert (code, out) == (status, ""), said
        assert saying in said, said
        assert "Traceback" not in said, said

    def ends(self, driver: Driver) -> tuple[int, str]:
        """Exit status and what was said, when it ends, however it does."""
        code, _, said = self._ended(driver)
        return code, said

    def goes_on_or_again(self, driver: Driver) -> None:
        """Wait for the driver; where the fault ended it with a message and status 1, give the command again."""
        while True:
            code, said = self.ends(driver)
            if code == 0:
                return
            driver = self._again(code, said)

    def _again(self, code: int, said: str) -> Driver:
        assert code == 1, said
        assert "Traceback" not in said, said
        assert self.record.starts < 2 * TIMES, said
        self.record.note = said.splitlines()[-1]
        return self.start()

    def _ended(self, driver: Driver) -> tuple[int, str, str]:
        found = driver.end()
        self.seconds += time.monotonic() - driver.began
        return found

    # --- the moment --------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """How many rows are committed."""
        if self._local is None:
            return self.stage.proxy.rows
        return sum(pq.read_metadata(part).num_rows for part in self._local.glob("judgments/**/part-*.parquet"))

    def moments(self) -> list[int]:
        """Random progresses, in rows: one early in each third of the run."""
        return [int((i + self.rng.uniform(0.1, 0.5)) / TIMES * self.work.tasks) for i in range(TIMES)]

    def reach(self, driver: Driver, committed: int) -> None:
        """Wait until so many rows are committed; that is the moment."""
        driver.wait_until(lambda: self.rows >= committed, f"{committed} rows")
        assert driver.process.poll() is None, f"the run was over at {committed} rows: {driver.said}"
        self.now()

    def reach_or_again(self, driver: Driver, committed: int) -> Driver:
        """The same; where a fault ends the driver with a message and status 1, the command is given again. The driver
        that works then. Not yet the moment."""
        while self.rows < committed:
            try:
                driver.wait_until(lambda: self.rows >= committed, f"{committed} rows")
            except AssertionError:
                if driver.process.poll() is None:
                    raise
                driver = self._again(*self.ends(driver))
        return driver

    @contextlib.contextmanager
    def in_a_part(self, driver: Driver, committed: int) -> Iterator[Hold]:
        """The same moment, while the next part is being written: half of it has gone to the store."""
        with self.stage.proxy.holding_a_part(committed) as hold:
            driver.wait_until(hold.held.is_set, f"a part is written after {committed} rows")
            self.now()
            yield hold

    def now(self) -> None:
        """This is the moment of the fault."""
        self.record.times += 1
        self.record.at.append(self.rows / self.work.tasks)

    @property
    def begun(self) -> int:
        """Tasks that judges were given so far, batch by batch as each begins."""
        return sum(int(line.split()[1]) for line in self.stage.batches.read_text().splitlines())

    def at_work(self) -> int:
        """The id of the process that was given the last batch, while not all batches are committed."""
        begun = self.stage.batches.read_text().splitlines()
        assert self.rows < self.work.tasks, "everything is committed"
        return int(begun[-1].split()[0])

    # --- the end -----------------------------------------------------------------------------

    def check(self, checks: dict[str, verified.Check] | None = None) -> None:
        """Compare with the undisturbed run; fails where there is a difference, otherwise records the trial."""
        begun = self.begun
        for driver in self.drivers:
            driver.leaves_nothing()
        assert self.stage.nodes.busy(60) == []
        found = verified.ended(self.folder)
        expected, seconds = self.stage.undisturbed(self.record.judge)
        for name, holds in (checks or self.work.checks).items():
            holds(found, expected)
            self.record.checks.append(name)
        self.record.checks.append("no process left over")
        self.record.further = found.further
        self.record.again = begun - self.work.tasks
        self.record.lost = self.seconds - seconds
        if self.stage.record:
            with self.stage.record.open("a") as lines:
                lines.write(json.dumps(asdict(self.record)) + "\n")

    def close(self) -> None:
        for driver in self.drivers:
            driver.give_up()
