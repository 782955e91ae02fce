"""The canary: a model that gives every question the same empty answer, and must end last.

A judge that ranks it anywhere else reads something other than the answers. (Null models that reach high win rates with
one constant text: Zheng et al., arXiv 2410.07137; theirs is written to mislead the judge, ours only to be polite.)
"""

import json
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from trustjudge_ray.config_values import ConfigError
from trustjudge_ray.identity import id_key
from trustjudge_ray.schema import PLACED_RESPONSES, check, from_rows

NAME: Final = "null"
"""What the canary is called in every table."""
TEXT: Final = (
    "Thank you very much for your question. I appreciate that you took the time to write, and I hope that this "
    "message finds you well. Please let me know if there is anything else that I can help you with."
)
"""What it answers, in every turn. Changing it changes its tasks, and nobody else's."""
META_JSON: Final = json.dumps({"canary": True})
"""By which its responses are told from those of a corpus' own model of that name."""
SOURCE: Final = "plan.canary"
"""Where its responses say they come from."""


def with_canary(responses: pa.Table) -> pa.Table:
    """The responses with one more for each question, by the model `NAME`.

    It shows the question as the row with the smallest id shows it, in as many turns as the longest of the others, and
    has no human score. Its id is the model's name; where all ids of a question are whole numbers it is one too (−1,
    or the next one down that is free): a word among them would order them anew, and exchange sides a and b of pairs
    that are there without it. So no other task changes where every pair is asked for (`plan.design: full`).

    Args:
        responses: PLACED_RESPONSES; all rows of a question must be among them.

    Raises:
        ConfigError: the corpus has a model of that name.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    columns = [name for name in PLACED_RESPONSES.names if name not in ("replies", "human_score", "meta_json")]
    turns = pc.list_value_length(responses["replies"]).to_pylist()
    for row, count in zip(responses.select(columns).to_pylist(), turns, strict=True):
        if row["model"] == NAME:
            raise ConfigError(
                f"plan.canary: {row['source']}:{row['line']}: the corpus has a model '{NAME}', which is what the "
                "canary is called; rename the model in the corpus, or leave plan.canary out"
            )
        rows.setdefault(row["question_id"], []).append(row | {"turns": count})
    added = from_rows([_canary(group) for group in rows.values()], PLACED_RESPONSES)
    return check(pa.concat_tables([responses, added]), PLACED_RESPONSES)


def _canary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    ids = [row["response_id"] for row in rows]
    key = id_key(ids)
    first = min(rows, key=lambda row: key(row["response_id"]))
    said = {"response_id": _free_id(ids), "model": NAME, "replies": [TEXT] * max(1, *(row["turns"] for row in rows))}
    about = {name: first[name] for name in ("question_id", "category", "messages", "reference")}
    return about | said | {"human_score": None, "meta_json": META_JSON, "source": SOURCE, "line": 0}


def _free_id(ids: list[str]) -> str:
    """An id that none of these is, and that leaves their order as it is."""
    if isinstance(id_key(ids)(ids[0]), tuple):
        taken = {int(i) for i in ids}
        return str(next(n for n in range(-1, -len(ids) - 2, -1) if n not in taken))
    name = NAME
    while name in ids:
        name += "_"
    return name
