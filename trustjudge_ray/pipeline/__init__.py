"""Ray moves batches: files into buckets, buckets into tasks, tasks through judges into parts.

Three passes over Ray Data, each resumable because everything it writes is named by its content: `read_corpus` (one
task a file), `plan_tasks` (bucket after bucket), `judge_pending` (blocks of at most `run.batch_size` tasks through a
pool of judge actors, each written as a part of every bucket in it). Only ledgers of a few numbers come back to the
driver. Ray is imported here and in no other package.
"""

from trustjudge_ray.pipeline.counting import count_judgments
from trustjudge_ray.pipeline.judges import judge_identity, judge_pending
from trustjudge_ray.pipeline.planning import Planned, plan_tasks, read_corpus
from trustjudge_ray.pipeline.session import start, stop
from trustjudge_ray.pipeline.single import in_a_task

__all__ = [
    "Planned",
    "count_judgments",
    "in_a_task",
    "judge_identity",
    "judge_pending",
    "plan_tasks",
    "read_corpus",
    "start",
    "stop",
]
