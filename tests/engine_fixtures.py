"""The real judge for the session of tests: the embedded model in one float32 engine, and its protocols."""

import os
from typing import TYPE_CHECKING, Any

import pytest

from trustjudge_ray.config import JudgeConfig
from trustjudge_ray.judging.protocols import Protocol, parse

if TYPE_CHECKING:
    from trustjudge_ray.judging.vllm_engine import VllmJudge

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
"""Read when torch is first imported, in whichever test that is: waiting threads must not take the cores from others."""

CONTEXT = 256


def _score(points: int) -> Protocol:
    return parse(f"""
name: engine-{points}
kind: score
labels: {points}
user: |
  Rate the answer to the question from 1 to {points}.
  Question:
  {{question}}
  Answer:
  {{answer}}
  How good is it?
opener: "Score: ["
closer: "]"
""")


_COMPARE = parse("""
name: engine-compare
kind: compare
labels: {first: A, second: B, tie: C}
system: You compare answers.
user: |
  Which answer is better? Say A, B, or C for a tie.
  Question:
  {question}
  Answer A:
  {answer_a}
  Answer B:
  {answer_b}
  Which?
opener: "Verdict: ["
closer: "]"
""")

ENGINE_PROTOCOLS = {protocol.name: protocol for protocol in (_score(5), _score(100), _COMPARE)}
EXACT_JUDGE = JudgeConfig(dtype="float32", head_dtype="float32", max_model_len=CONTEXT)
"""The embedded judge in float32: what vLLM and another implementation must agree on."""


@pytest.fixture(scope="session")
def engine_judge() -> "VllmJudge":
    """The embedded judge with ENGINE_PROTOCOLS; EXACT_JUDGE is its configuration."""
    from trustjudge_ray.judging.vllm_engine import VllmJudge

    return VllmJudge(EXACT_JUDGE, ENGINE_PROTOCOLS)


@pytest.fixture(scope="session")
def embedded_tokenizer() -> Any:
    """The tokenizer of the embedded judge: splits numbers into digits, ChatML markers are special tokens."""
    from transformers import AutoTokenizer

    from trustjudge_ray.judging.embedded import embedded_model

    return AutoTokenizer.from_pretrained(embedded_model())
