"""Exports of an evaluated run for leaderboards: `alpaca-eval` and `lmarena` (CSV or JSON), `lm-eval` (JSON).

The numbers are those that `evaluate` wrote (`report.leaderboards`). A file is written whole or not at all.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
import yaml

from trustjudge_ray import files
from trustjudge_ray.config import ConfigError
from trustjudge_ray.report import leaderboards
from trustjudge_ray.report.leaderboards import LMARENA_RULE, Lane, Tables, lane_of
from trustjudge_ray.runs import report_inputs
from trustjudge_ray.schema import RESPONSES
from trustjudge_ray.storage import StorageError, explained, filesystem, is_local
from trustjudge_ray.store import RunFolder


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a leaderboard is asked to show; None where the run has only one.

    Attributes:
        baseline: of `alpaca-eval`; by default `analysis.anchor_model`, or `plan.anchor`.
        rule: of `lmarena`, a rating rule.
    """

    judge: str | None = None
    protocol: str | None = None
    baseline: str | None = None
    rule: str | None = None


Rows = list[dict[str, Any]]


def _alpaca_eval(tables: Tables, lane: Lane, wanted: Wanted, folder: RunFolder) -> Rows:
    baseline = wanted.baseline or tables.settings.anchor_model or _planned_anchor(folder)
    if baseline is None:
        models = tables.ratings.filter(judge=lane.judge, protocol=lane.protocol)["model"].unique().sort()
        raise ConfigError(f"export: alpaca-eval compares with one model; name it with --baseline: {', '.join(models)}")
    return leaderboards.alpaca_eval(tables, lane, baseline)


def _lmarena(tables: Tables, lane: Lane, wanted: Wanted, folder: RunFolder) -> Rows:
    return leaderboards.lmarena(tables, lane, wanted.rule or LMARENA_RULE)


LEADERBOARDS: Final[Mapping[str, Callable[[Tables, Lane, Wanted, RunFolder], Rows]]] = {
    "alpaca-eval": _alpaca_eval,
    "lmarena": _lmarena,
}
"""The layouts that are rows."""
FORMATS: Final = (*LEADERBOARDS, "lm-eval")
_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "alpaca-eval": ("judge", "protocol", "baseline"),
    "lmarena": ("judge", "protocol", "rule"),
    "lm-eval": (),
}
_ENDINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "alpaca-eval": (".csv", ".json"),
    "lmarena": (".csv", ".json"),
    "lm-eval": (".json",),
}


def export(folder: RunFolder, form: str, path: str, wanted: Wanted) -> dict[str, Any]:
    """Write a run's numbers in the layout of a leaderboard; `format`, `path` and `rows` of it.

    Args:
        form: one of `FORMATS`.
        path: local or s3://, with an ending that says CSV or JSON.

    Raises:
        ConfigError: the ending, an option or a name does not fit.
        StorageError: the run was not evaluated, or storage refuses.
    """
    _refuse(form, path, wanted)
    if not folder.exists("metrics.json"):
        raise StorageError(f"{folder.path}: not evaluated yet; first trustjudge evaluate {folder.path}")
    tables, manifest = tables_of(folder)
    if form == "lm-eval":
        document: Any = leaderboards.lm_eval(tables, _about(tables, manifest))
        rows = len(document["results"])
    else:
        lane = lane_of(tables, wanted.judge, wanted.protocol)
        document = LEADERBOARDS[form](tables, lane, wanted, folder)
        rows = len(document)
    _write(folder, path, _encoded(form, path, document))
    return {"format": form, "path": path, "rows": rows}


def tables_of(folder: RunFolder) -> tuple[Tables, dict[str, Any]]:
    """What an export is made of, and the run's manifest."""
    inputs, known = report_inputs(folder), folder.responses()
    responses = known if known.height else pl.DataFrame(RESPONSES.empty_table())
    tables = Tables(inputs.judgments, responses, inputs.scores, inputs.ratings, inputs.protocols, inputs.settings)
    return tables, inputs.manifest


def _refuse(form: str, path: str, wanted: Wanted) -> None:
    if not path.lower().endswith(_ENDINGS[form]):
        raise ConfigError(f"export: {path}: {form} is written as {' or '.join(_ENDINGS[form])}, by the file's ending")
    for name in ("judge", "protocol", "baseline", "rule"):
        if getattr(wanted, name) is not None and name not in _OPTIONS[form]:
            raise ConfigError(f"export: --{name} does not belong to {form}")


def _planned_anchor(folder: RunFolder) -> str | None:
    """The anchor of the run's plan, if its design is `anchor`; of other designs it is no baseline."""
    if not folder.exists("config.yaml"):
        return None
    tree = yaml.safe_load(folder.read_bytes("config.yaml").decode("utf-8"))
    planned = tree.get("plan") if isinstance(tree, dict) else None
    if not isinstance(planned, dict) or planned.get("design") != "anchor":
        return None
    anchor = planned.get("anchor")
    return anchor if isinstance(anchor, str) and "${" not in anchor else None


def _about(tables: Tables, manifest: dict[str, Any]) -> dict[str, Any]:
    """The harness's `config`, and where the numbers come from."""
    judges = tables.judgments["judge"].unique().sort().to_list()
    return {
        "config": {"model": "trustjudge_ray", "model_args": {"judges": judges}, "limit": None},
        "git_hash": manifest.get("git_commit"),
        "trustjudge_ray": manifest.get("trustjudge_ray"),
    }


def _encoded(form: str, path: str, document: Any) -> bytes:
    if path.lower().endswith(".csv"):
        columns = leaderboards.ALPACA_EVAL if form == "alpaca-eval" else list(document[0])
        return leaderboards.csv_text(document, columns).encode("utf-8")
    if form == "alpaca-eval":
        document = [{"name" if key == "" else key: value for key, value in row.items()} for row in document]
    return (json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode("utf-8")


def _write(folder: RunFolder, path: str, content: bytes) -> None:
    with explained(path):
        fs, inner = filesystem(path, folder.options)
        files.commit(fs, os.path.abspath(inner) if is_local(path) else inner, content)
