"""The numbers of a report that METRICS and RATINGS do not have, as `metrics.json` keeps them under `report`."""

import json
from typing import Any

import polars as pl

from trustjudge_ray.report.agreement import reliability_bars
from trustjudge_ray.report.cells import Inputs
from trustjudge_ray.report.judges import about_judges
from trustjudge_ray.report.matrix import win_rates
from trustjudge_ray.report.running import figures_of
from trustjudge_ray.report.scores import entropy_rows, judged_models, mean_distributions, mean_scores
from trustjudge_ray.report.summary import standings
from trustjudge_ray.report.tables import quarantined, statuses


def numbers(inputs: Inputs) -> dict[str, Any]:
    """Every further number that the page shows, unrounded, as values of JSON; no judgment's own.

    `run` is of the manifest; `people` and `audits` as `trustjudge agree` and `trustjudge audit` wrote them; `warnings`
    are sentences, with their numbers in them.
    """
    return {
        "extent": extent(inputs),
        "duplicates": inputs.duplicates,
        "standings": standings(inputs),
        "run": figures_of(inputs),
        "protocols": {
            name: {"labels": len(protocol.label_texts), "examples": len(protocol.examples)}
            for name, protocol in inputs.protocols.items()
        },
        "judges": {judge.name: {"family": judge.family, "billions": judge.billions} for judge in about_judges(inputs)},
        "statuses": statuses(inputs),
        "quarantine": quarantined(inputs),
        "models": judged_models(inputs),
        "mean_scores": mean_scores(inputs),
        "win_matrix": win_rates(inputs).to_dicts(),
        "entropies": entropy_rows(inputs),
        "reliability": reliability_bars(inputs),
        "label_distributions": mean_distributions(inputs),
        "ablation": [] if inputs.ablation is None else inputs.ablation.to_dicts(),
        "confidence": inputs.settings.confidence,
        "people": _people(inputs.people),
        "audits": {judge: card for judge, card in inputs.audits.items() if card is not None},
        "warnings": inputs.warnings,
    }


def _people(document: dict[str, Any] | None) -> dict[str, Any] | None:
    """What people said, with how many models each leaderboard has on both sides and on one."""
    if document is None:
        return None
    boards = [
        board | {"shared": len(board["models"]), "one_side": len(board["only_ours"]) + len(board["only_theirs"])}
        for board in document["leaderboard"]
    ]
    return document | {"leaderboard": boards}


def metrics_json(metrics: pl.DataFrame, ratings: pl.DataFrame, report: dict[str, Any] | None = None) -> bytes:
    """The content of `metrics.json`: METRICS and RATINGS, a line for each row, and the `numbers` of a report, if it is
    written already.

    Raises:
        ValueError: a number is NaN or infinite.
    """
    parts = []
    for name, table in (("metrics", metrics), ("ratings", ratings)):
        rows = (json.dumps(row, ensure_ascii=False, allow_nan=False) for row in table.iter_rows(named=True))
        parts.append(f'"{name}": [\n' + ",\n".join(rows) + "\n]")
    if report is not None:
        parts.append(f'"report": {json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False, default=str)}')
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode("utf-8")


def extent(inputs: Inputs) -> dict[str, int]:
    """How many judges, protocols, models, questions and judgments a report is about."""
    judgments = inputs.judgments
    pairs = judgments.select("model_a", "model_b").unique()
    return {
        "judges": judgments["judge"].n_unique(),
        "protocols": judgments["protocol"].n_unique(),
        "models": len(set(pairs["model_a"]) | set(pairs["model_b"].drop_nulls())),
        "questions": judgments["question_id"].n_unique(),
        "judgments": judgments.height,
    }
