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

_WRITTEN = """
name: engine-written-{points}
kind: score
labels: {points}
system: First say why, then end with Score and a number from 1 to {points}.
user: |
  Question:
  {{question}}
  Answer:
  {{answer}}
examples:
  - {{question: "Is fire hot?", answer: Fire is hot., rationale: It is right., label: "4"}}
  - {{question: "Is ice cold?", answer: It is warm., rationale: It is wrong., label: "1"}}
rationale: {{max_tokens: 24}}
sampling: {{temperature: {temperature}}}
samples: {samples}
opener: "\\nScore: ["
closer: "]"
"""

_THINKING = parse("""
name: engine-thinking
kind: compare
labels: {first: A, second: B, tie: C}
user: |
  Which answer is better? Say A, B, or C for a tie.
  Question:
  {question}
  Answer A:
  {answer_a}
  Answer B:
  {answer_b}
thinking: {max_tokens: 10}
rationale: {max_tokens: 12}
sampling: {temperature: 1.0, seed: 5}
opener: "\\n\\nVerdict: ["
closer: "]"
""")

_ANSWER = """
name: {name}
kind: answer
system: Answer the question from the passage.
user: |
  Passage:
  {{context}}
  Question:
  {{question}}
max_tokens: {budget}
{more}
"""

_VERIFY = """
name: engine-verify-{name}
kind: verify
labels: {{accept: {accept}, reject: {reject}}}
user: |
  Passage:
  {{context}}
  Question:
  {{question}}
  Answer:
  {{answer}}
  Is it right? Say {accept} or {reject}.
opener: "Verdict: ["
closer: "]"
"""

_PLAIN = (_score(5), _score(100), _COMPARE)
_WRITING = (
    parse(_WRITTEN.format(points=5, temperature=1.0, samples=3)),
    parse(_WRITTEN.format(points=100, temperature=0.0, samples=1)),
    _THINKING,
)
_AUDITED = (
    parse(_ANSWER.format(name="engine-answer", budget=24, more="")),
    parse(_ANSWER.format(name="engine-answer-opened", budget=40, more='opener: "It seems that"\ncloser: "."')),
    parse(_ANSWER.format(name="engine-answer-drawn", budget=12, more="sampling: {temperature: 1.0}\nsamples: 2")),
    parse(_ANSWER.format(name="engine-answer-thinking", budget=12, more="thinking: {max_tokens: 10}")),
    parse(_VERIFY.format(name="one", accept="Yes", reject="No")),
    parse(_VERIFY.format(name="two", accept="Not wrong", reject="Not right")),
)
ENGINE_PROTOCOLS = {protocol.name: protocol for protocol in (*_PLAIN, *_WRITING, *_AUDITED)}
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


@pytest.fixture(scope="session")
def witness() -> Any:
    """The embedded judge in another implementation, float32."""
    import torch
    from transformers import AutoModelForCausalLM

    from trustjudge_ray.judging.embedded import embedded_model

    return AutoModelForCausalLM.from_pretrained(embedded_model(), dtype=torch.float32).eval()
