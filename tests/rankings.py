"""Rankings of small JUDGMENTS tables, read back by model, and answers with texts and human scores."""

import polars as pl
from comparisons import table

from trustjudge_ray.analysis.ranking import rankings
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.schema import METRICS, RATINGS, RESPONSES, check, from_rows

WORTHS = {"ada": 0.9, "bob": 0.3, "cy": -0.2, "dee": -1.0}
NAMES = tuple(WORTHS)


def ranked(rows, config=None, responses=None):
    found = rankings(table(rows), {}, config or AnalysisConfig(), responses=responses)
    check(found.ratings.to_arrow(), RATINGS)
    check(found.metrics.to_arrow(), METRICS)
    return found


def by_model(found, rule="davidson", column="rating"):
    rows = found.ratings.filter(pl.col("rule") == rule, pl.col("category").is_null())
    return dict(zip(rows["model"], rows[column], strict=True))


def metric(found, name):
    (row,) = found.metrics.filter(pl.col("metric") == name, pl.col("category").is_null()).to_dicts()
    return row


def answers(texts, human=None):
    """RESPONSES of (question, model) → text, with human scores where they are known."""
    rows = [
        {"question_id": str(q), "response_id": m, "model": m, "replies": [text], "messages": []}
        | ({} if human is None or (q, m) not in human else {"human_score": human[q, m]})
        for (q, m), text in texts.items()
    ]
    return pl.DataFrame(pl.from_arrow(from_rows(rows, RESPONSES)))
