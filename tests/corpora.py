"""Small corpora and protocols that several tests use."""

import json
from pathlib import Path

import pyarrow as pa

from trustjudge_ray.judging import protocols
from trustjudge_ray.schema import PLACED_RESPONSES, from_rows

SCORE = """
name: score-5
kind: score
labels: 5
system: Rate the answer.
user: |
  Question:
  {question}

  Answer:
  {answer}
opener: "Score: ["
closer: "]"
"""

COMPARE = """
name: compare
kind: compare
labels: {first: A, second: B, tie: C}
system: Compare the answers.
user: |
  Question:
  {question}

  Answer A:
  {answer_a}

  Answer B:
  {answer_b}
opener: "Better: ["
closer: "]"
"""


def score_protocol() -> protocols.Protocol:
    return protocols.parse(SCORE)


def compare_protocol() -> protocols.Protocol:
    return protocols.parse(COMPARE)


def protocol_files(folder: Path) -> list[str]:
    """Both protocols as files; their paths."""
    (folder / "score.yaml").write_text(SCORE)
    (folder / "compare.yaml").write_text(COMPARE)
    return [str(folder / "score.yaml"), str(folder / "compare.yaml")]


def rows(questions: int, models: list[str]) -> list[dict]:
    """Flat corpus rows: every model answers every question with a text of its own."""
    return [
        {
            "question_id": q,
            "category": f"c{q % 2}",
            "question": f"What is {q} plus {q}?",
            "model": model,
            "response": f"{model} says {2 * q}.",
            "human_score": 1 + i % 5,
        }
        for q in range(questions)
        for i, model in enumerate(models)
    ]


def write_corpus(path: Path, given: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in given))
    return path


def responses(texts: dict[str, dict[str, str]]) -> pa.Table:
    """PLACED_RESPONSES from {question: {model: text}}."""
    return from_rows(
        [
            {
                "question_id": question,
                "category": None,
                "messages": [{"role": "user", "content": f"ask {question}"}],
                "response_id": model,
                "model": model,
                "replies": [text],
                "source": "test",
                "line": 1,
            }
            for question, answers in texts.items()
            for model, text in answers.items()
        ],
        PLACED_RESPONSES,
    )
