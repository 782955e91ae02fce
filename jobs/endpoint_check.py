"""Do vLLM in the actor and the same model behind an OpenAI-compatible endpoint read the same labels?

Start the server in the precision to be compared (`--dtype bfloat16 --hf-overrides '{"head_dtype": "float32"}'`), then:

    python jobs/endpoint_check.py http://127.0.0.1:8000/v1 SERVED_NAME --model embedded --dtype bfloat16

Prints, over 48 tasks, the differences of the label log-probabilities that both report, and as the last line one JSON
object. Labels whose further spelling (` A` beside `A`) the endpoint does not list are lower bounds, and differ by that.
"""

import argparse
import json

from trustjudge_ray.config import JudgeConfig
from trustjudge_ray.identity import joined_hash
from trustjudge_ray.judging import engines, protocols
from trustjudge_ray.judging.base import Reading
from trustjudge_ray.schema import TASK_TEXTS, from_rows

QUESTIONS = [(f"What is {n} times {n}?", f"It is {n * n}.", f"{n} is a nice number.") for n in range(2, 14)]


def tasks() -> list[dict]:
    """TASK_TEXTS rows: for each question two scores, and one comparison in both orders."""
    rows = []
    for question, good, bad in QUESTIONS:
        for name, a, b, order in (
            ("score-5", good, None, None),
            ("score-5", bad, None, None),
            ("compare", good, bad, "AB"),
            ("compare", good, bad, "BA"),
        ):
            rows.append(
                {
                    "task_id": joined_hash(name, question, a, order or ""),
                    "spec": "check",
                    "kind": name.split("-")[0],
                    "protocol": name,
                    "judge": "judge",
                    "question_id": question,
                    "category": None,
                    "response_a": "1",
                    "model_a": "a",
                    "response_b": b and "2",
                    "model_b": b and "b",
                    "order": order,
                    "sample": 0,
                    "repeat": 0,
                    "messages": [{"role": "user", "content": question}],
                    "reference": None,
                    "replies_a": [a],
                    "replies_b": b and [b],
                }
            )
    return rows


def gaps(direct: list[Reading], through: list[Reading]) -> tuple[list[float], int]:
    """Absolute differences of what both report, and how many labels the endpoint does not list."""
    found, unlisted = [], 0
    for a, b in zip(direct, through, strict=True):
        for x, y in zip(a.label_logprobs or [], b.label_logprobs or [], strict=False):
            if y is None:
                unlisted += 1
            elif x is not None:
                found.append(abs(x - y))
    return found, unlisted


def main() -> None:
    """Ask the endpoint first, then load the engine: the two need not fit into memory while both work."""
    parser = argparse.ArgumentParser(description="Compare an endpoint with the engine in the actor.")
    parser.add_argument("base_url")
    parser.add_argument("served", help="what the endpoint calls the model")
    parser.add_argument("--model", default="embedded", help="the same model for the engine in this process")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--max-model-len", type=int, default=1024)
    given = parser.parse_args()
    asked = {name: protocols.load(name) for name in ("score-5", "compare")}
    table = from_rows(tasks(), TASK_TEXTS)
    endpoint = JudgeConfig(
        engine="openai_api",
        model=given.served,
        tokenizer=given.model,
        base_url=given.base_url,
        route="completions",
        max_model_len=given.max_model_len,
    )
    here = JudgeConfig(model=given.model, dtype=given.dtype, max_model_len=given.max_model_len)
    through = engines.build(endpoint, asked).judge(table)
    direct = engines.build(here, asked).judge(table)
    failed = [r.detail for r in (*through, *direct) if r.status != "ok"]
    report = {"check": "endpoint", "dtype": given.dtype, "tasks": len(table), "failed": len(failed)}
    for name in asked:
        chosen = [i for i, protocol in enumerate(table["protocol"].to_pylist()) if protocol == name]
        found, unlisted = gaps([direct[i] for i in chosen], [through[i] for i in chosen])
        mean = sum(found) / max(len(found), 1)
        print(f"{name}: {len(found)} labels, mean difference {mean:.2e}, largest {max(found, default=0):.2e} nat")
        print(f"{name}: {unlisted} labels are not among the listed tokens")
        report |= {f"{name}_largest": max(found, default=None), f"{name}_unlisted": unlisted}
    for detail in failed[:5]:
        print(f"failed: {detail}")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
