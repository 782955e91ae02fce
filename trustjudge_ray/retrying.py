"""Asking the judge of a run again where it failed: which statuses, with what configuration, and what came of it.

The failed rows stay where they are; readers take a task's `ok` row before any other, so the tables have one row a task.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import yaml

from trustjudge_ray import config, runs
from trustjudge_ray.config import ConfigError, LoadedConfig, judge_name
from trustjudge_ray.judging import base, engines, plan, protocols
from trustjudge_ray.nearest import did_you_mean
from trustjudge_ray.store import RunFolder

NOT_KEPT = "(not kept)"
"""What `config.yaml` of a run has in place of a credential that was written out in clear."""


@dataclass(frozen=True)
class Retried:
    """What a retry came to. `became` is, for each status that was judged again, how many rows now have which status;
    `judged` is of the whole start, and `report` the text of the new report."""

    became: dict[str, dict[str, int]]
    judged: runs.Judged
    report: str = field(repr=False)


def reasons_of(given: Sequence[str]) -> frozenset[str]:
    """The statuses to judge again: those given, or every failure on the judge's side.

    Raises:
        ConfigError: a status that judging again cannot change, or that there is not.
    """
    for status in given:
        if status in (*base.CORPUS_FAILURES, "identical"):
            raise ConfigError(
                f"--reason {status}: this comes from the corpus, no judge was asked, and it would be the same again; "
                "mend the corpus and `trustjudge run` the same configuration"
            )
        if status not in base.JUDGE_FAILURES:
            near = did_you_mean(status, base.JUDGE_FAILURES)
            raise ConfigError(f"--reason {status}: no such failure; one of {', '.join(base.JUDGE_FAILURES)}{near}")
    return frozenset(given or base.JUDGE_FAILURES)


def configuration(folder: RunFolder, overrides: list[str]) -> LoadedConfig:
    """The configuration that a run folder keeps, with overrides and with references resolved here.

    Raises:
        ConfigError: the run was imported, a credential was not kept and is not passed, a reference is not set here, or
            an override makes another judge or protocol of it.
        JudgeError, ProtocolError: the judge or a protocol is not there any more.
    """
    source = f"{folder.path}/config.yaml"
    text = folder.read_bytes("config.yaml").decode("utf-8")
    if "corpus" not in (yaml.safe_load(text) or {}):
        raise ConfigError(
            f"{folder.path}: these judgments were imported; the judge that made them cannot be asked again"
        )
    loaded = config.loads(text, source, overrides)
    if loaded.config.out.rstrip("/") != folder.path:  # moved, or started from elsewhere
        loaded = config.loads(text, source, [*overrides, f"out={json.dumps(folder.path)}"])
    for key in _not_kept(loaded.config):
        raise ConfigError(
            f"{source}: {key} was written out in clear and not kept; pass it as a reference to your environment: "
            f"'{key}=${{oc.env:NAME}}'"
        )
    _refuse_another_judge(loaded, folder)
    return loaded


def _not_kept(settings: config.Config) -> Iterator[str]:
    judges = [("judge", settings.judge)] if settings.judge else [("judges", judge) for judge in settings.judges]
    trees: list[tuple[str, Any]] = [("storage_options", dict(settings.storage_options))]
    trees += [(f"{key}.engine_args", dict(judge.engine_args)) for key, judge in judges]
    while trees:
        key, value = trees.pop(0)
        if value == NOT_KEPT:
            yield key
        elif isinstance(value, dict):
            trees += [(f"{key}.{name}", inner) for name, inner in value.items()]


def _refuse_another_judge(loaded: LoadedConfig, folder: RunFolder) -> None:
    """A retry asks the same question: with another judge every task would be a new one, and all would be judged."""
    asked = [protocols.load(name) for name in loaded.config.protocols]
    specs = {}
    for judge in loaded.config.all_judges:
        name, identity = judge_name(judge), engines.identity(judge, asked)
        for protocol in asked:
            specs[name, protocol.name] = plan.spec(name, identity, protocol, judge.temperature).hash
    tasks = folder.tasks(columns=["judge", "protocol", "spec"])
    for judge_of, protocol_of, was in tasks.unique().sort("judge", "protocol", "spec").rows():
        if specs.get((judge_of, protocol_of)) != was:
            raise ConfigError(
                f"{folder.path}: judge '{judge_of}' with protocol '{protocol_of}' is not as it was in this run (model, "
                "endpoint, precision, engine arguments, protocol text or chat template); a retry asks the same again. "
                "Put it back, or `trustjudge run` a configuration of its own"
            )


def failed(loaded: LoadedConfig, reasons: frozenset[str]) -> pl.DataFrame:
    """The judgments of the run that failed for one of the reasons: task_id and status."""
    return _statuses(loaded).filter(pl.col("status").is_in(sorted(reasons)))


def _statuses(loaded: LoadedConfig) -> pl.DataFrame:
    judgments, _ = runs.folder_of(loaded).judgments(columns=["task_id", "status"])
    return judgments


def retry(loaded: LoadedConfig, reasons: frozenset[str], notify: runs.Notify) -> Retried:
    """Judge what failed for these reasons again, and what has no judgment yet; then evaluate and report.

    Raises: as `runs.judge`.
    """
    before = failed(loaded, reasons)
    judged, text = runs.run(loaded, notify, again=reasons)
    after = before.join(_statuses(loaded), on="task_id", how="left", suffix="_now")
    now = pl.col("status_now").fill_null("no longer in the corpus")
    became: dict[str, dict[str, int]] = {}
    for was, status, rows in after.group_by("status", now).len().sort("status", "status_now").rows():
        became.setdefault(was, {})[status] = rows
    return Retried(became, judged, text)
