"""The tables, stated once. Every boundary checks against these; nothing is ever inferred.

Non-null columns are the ones marked `!` in the design. `check` is called wherever a table is
written or comes from outside.
"""

from typing import Final

import pyarrow as pa


class SchemaError(ValueError):
    """A table is not what its schema says: names the table, the column, and what was found."""


MESSAGE: Final = pa.struct([pa.field("role", pa.string()), pa.field("content", pa.string())])


def _must(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


RESPONSES: Final = pa.schema(
    [
        _must("question_id", pa.string()),
        pa.field("category", pa.string()),
        _must("messages", pa.list_(MESSAGE)),
        pa.field("reference", pa.string()),
        _must("response_id", pa.string()),
        _must("model", pa.string()),
        _must("replies", pa.list_(pa.string())),
        pa.field("human_score", pa.float64()),
        pa.field("meta_json", pa.string()),
    ]
)

PLACED_RESPONSES: Final = pa.schema([*RESPONSES, _must("source", pa.string()), _must("line", pa.int32())])
"""RESPONSES with the place that each row was read from: what a run folder keeps in `responses/`."""

QUARANTINE: Final = pa.schema(
    [
        _must("source", pa.string()),
        pa.field("line", pa.int32()),
        _must("reason", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("raw", pa.string()),
    ]
)

TASKS: Final = pa.schema(
    [
        _must("task_id", pa.string()),
        _must("spec", pa.string()),
        _must("kind", pa.string()),
        _must("protocol", pa.string()),
        _must("judge", pa.string()),
        _must("question_id", pa.string()),
        pa.field("category", pa.string()),
        _must("response_a", pa.string()),
        _must("model_a", pa.string()),
        pa.field("response_b", pa.string()),
        pa.field("model_b", pa.string()),
        pa.field("order", pa.string()),
        _must("sample", pa.int32()),
        _must("repeat", pa.int32()),
        pa.field("status", pa.string()),
        pa.field("detail", pa.string()),
    ]
)
"""One row per judgment that a run wants. `status` is set where it is known without a judge
(`identical`, `empty_response`, `error_marker`, `missing_reference`), and null where the judge must be asked."""

TASK_TEXTS: Final = pa.schema(
    [
        *TASKS,
        _must("messages", pa.list_(MESSAGE)),
        pa.field("reference", pa.string()),
        _must("replies_a", pa.list_(pa.string())),
        pa.field("replies_b", pa.list_(pa.string())),
    ]
)
"""TASKS with the texts that a judge reads. `a` and `b` are candidates; `order` says which is shown first."""

JUDGMENTS: Final = pa.schema(
    [
        _must("task_id", pa.string()),
        _must("spec", pa.string()),
        _must("kind", pa.string()),
        _must("protocol", pa.string()),
        _must("judge", pa.string()),
        _must("question_id", pa.string()),
        pa.field("category", pa.string()),
        _must("response_a", pa.string()),
        _must("model_a", pa.string()),
        pa.field("response_b", pa.string()),
        pa.field("model_b", pa.string()),
        pa.field("order", pa.string()),
        pa.field("label_logprobs", pa.list_(pa.float64())),
        pa.field("label_mass", pa.float64()),
        pa.field("emitted", pa.string()),
        pa.field("cumulative_logprob", pa.float64()),
        pa.field("output_tokens", pa.int32()),
        pa.field("rationale", pa.string()),
        pa.field("thinking", pa.string()),
        pa.field("output", pa.string()),
        _must("sample", pa.int32()),
        _must("repeat", pa.int32()),
        pa.field("prompt_tokens", pa.int32()),
        pa.field("cached_tokens", pa.int32()),
        _must("truncated", pa.bool_()),
        pa.field("rationale_cut", pa.bool_()),
        _must("status", pa.string()),
        pa.field("detail", pa.string()),
    ]
)

SCORES: Final = pa.schema(
    [
        _must("judge", pa.string()),
        _must("protocol", pa.string()),
        _must("question_id", pa.string()),
        pa.field("category", pa.string()),
        _must("response_id", pa.string()),
        _must("model", pa.string()),
        _must("rule", pa.string()),
        pa.field("score", pa.float64()),
        pa.field("label_mass", pa.float64()),
        pa.field("entropy", pa.float64()),
        pa.field("entropy_share", pa.float64()),
        _must("status", pa.string()),
    ]
)
"""A row for every response and rule. `entropy` in nats over the renormalised labels, `entropy_share` the
same over ln K; `status` says why a score is null."""

VERDICTS: Final = pa.schema(
    [
        _must("judge", pa.string()),
        _must("protocol", pa.string()),
        _must("question_id", pa.string()),
        pa.field("category", pa.string()),
        _must("response_a", pa.string()),
        _must("response_b", pa.string()),
        _must("model_a", pa.string()),
        _must("model_b", pa.string()),
        _must("rule", pa.string()),
        _must("tolerance", pa.float64()),
        pa.field("outcome", pa.int32()),
        pa.field("p_a", pa.float64()),
        pa.field("p_b", pa.float64()),
        pa.field("p_tie", pa.float64()),
        pa.field("margin", pa.float64()),
        _must("status", pa.string()),
    ]
)
"""A row for every pair, rule and tolerance. `outcome` +1 a better, 0 tie, -1 b better, null where the pair
is not valid; `status` says why."""

METRICS: Final = pa.schema(
    [
        _must("metric", pa.string()),
        pa.field("judge", pa.string()),
        pa.field("protocol", pa.string()),
        pa.field("pair_protocol", pa.string()),
        pa.field("score_rule", pa.string()),
        pa.field("verdict_rule", pa.string()),
        pa.field("k", pa.int32()),
        pa.field("tolerance", pa.float64()),
        pa.field("verdict_tolerance", pa.float64()),
        pa.field("category", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("low", pa.float64()),
        pa.field("high", pa.float64()),
        pa.field("hits", pa.float64()),
        pa.field("cases", pa.int64()),
        pa.field("questions", pa.int64()),
        pa.field("excluded", pa.int64()),
        pa.field("excluded_by", pa.string()),
    ]
)

RATINGS: Final = pa.schema(
    [
        _must("judge", pa.string()),
        _must("protocol", pa.string()),
        _must("rule", pa.string()),
        pa.field("category", pa.string()),
        _must("component", pa.int32()),
        _must("status", pa.string()),
        _must("model", pa.string()),
        pa.field("rating", pa.float64()),
        pa.field("low", pa.float64()),
        pa.field("high", pa.float64()),
        pa.field("rank", pa.int32()),
        pa.field("rank_low", pa.int32()),
        pa.field("rank_high", pa.int32()),
        _must("games", pa.float64()),
        _must("wins", pa.float64()),
        _must("losses", pa.float64()),
        _must("ties", pa.float64()),
    ]
)

_NAMES: Final = {
    id(schema): name
    for name, schema in {
        "RESPONSES": RESPONSES,
        "PLACED_RESPONSES": PLACED_RESPONSES,
        "QUARANTINE": QUARANTINE,
        "TASKS": TASKS,
        "TASK_TEXTS": TASK_TEXTS,
        "JUDGMENTS": JUDGMENTS,
        "SCORES": SCORES,
        "VERDICTS": VERDICTS,
        "METRICS": METRICS,
        "RATINGS": RATINGS,
    }.items()
}


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without large or view variants, which other libraries prefer and Parquet does not tell apart."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in kind])
    return kind


def check(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return `table` with its columns in the schema's order, or say which column is wrong.

    Raises:
        SchemaError: a column is missing, unknown, of another type, or holds nulls where none may be.
    """
    what = _NAMES.get(id(schema), "table")
    missing = [name for name in schema.names if name not in table.column_names]
    unknown = [name for name in table.column_names if name not in schema.names]
    if missing or unknown:
        raise SchemaError(f"{what}: columns missing {missing}, unknown {unknown}; it has {schema.names}")
    columns = []
    for field in schema:
        column = table.column(field.name)
        if _plain(column.type) != _plain(field.type) and column.null_count < len(column):
            raise SchemaError(f"{what}.{field.name}: {column.type} where {field.type} is meant")
        if not field.nullable and column.null_count:
            row = column.combine_chunks().is_null().index(True).as_py()
            raise SchemaError(f"{what}.{field.name}: null in row {row}; every row needs one")
        columns.append(column.cast(field.type) if column.type != field.type else column)
    return pa.table(columns, schema=schema)


def from_rows(rows: list[dict], schema: pa.Schema) -> pa.Table:
    """Rows (dicts) to a checked table; a key that the schema lacks is an error, a missing one is null.

    Raises:
        SchemaError: an unknown key, a wrong type, or a null where none may be.
    """
    known = set(schema.names)
    for row in rows:
        if not known.issuperset(row):
            raise SchemaError(f"{_NAMES.get(id(schema), 'table')}: unknown keys {sorted(set(row) - known)}")
    nullable = pa.schema([field.with_nullable(True) for field in schema])
    try:
        table = pa.Table.from_pylist(rows, schema=nullable)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SchemaError(f"{_NAMES.get(id(schema), 'table')}: {error}") from error
    return check(table, schema)
