"""Run folders made without a judge: from judgments that a test wrote."""

import polars as pl
import pyarrow as pa

from trustjudge_ray import runs
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.identity import bucket_of
from trustjudge_ray.schema import JUDGMENTS, PLACED_RESPONSES, TASKS, check
from trustjudge_ray.store import PENDING_TASKS, RunFolder


def write_run(path, side, config="analysis: {bootstrap: 0}\n", finished=True):
    """A run folder of an `analysis.pairing.Side`, evaluated, with its manifest if `finished`."""
    folder = RunFolder(str(path))
    folder.write_bytes("config.yaml", config.encode())
    folder.write_protocols(list(side.protocols.values()))
    judgments = side.judgments.with_columns(bucket=pl.col("question_id").map_elements(bucket_of, return_dtype=pl.Int64))
    for (bucket,), part in judgments.partition_by(["bucket"], as_dict=True).items():
        rows = check(part.drop("bucket").to_arrow(), JUDGMENTS)
        folder.write_judgments(int(bucket), rows)
        tasks = rows.select(TASKS.names).append_column("pending", pa.array([False] * len(rows)))
        folder.write_table(f"tasks/bucket={bucket:03d}.parquet", check(tasks, PENDING_TASKS))
    if side.responses.height:
        folder.write_table("responses/all.parquet", check(side.responses.to_arrow(), PLACED_RESPONSES))
    if finished:
        runs.evaluate(folder, AnalysisConfig(tolerances=[0], k=[3]))
        folder.write_json("manifest.json", {})
    return folder
