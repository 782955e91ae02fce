"""A policy takes steps on rewards with TRL's GRPOTrainer on the CPU: `make test-training`."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_tokenizers import tokenizer_of

from trustjudge_ray.judging import protocols, scripted
from trustjudge_ray.judging.embedded import embedded_model
from trustjudge_ray.rewards_config import RewardConfig
from trustjudge_ray.training.adapters.trl import AsyncTrlReward, TrlReward
from trustjudge_ray.training.rewards import TrustJudgeReward

pytestmark = pytest.mark.training
PROTOCOLS = {name: protocols.load(name) for name in ("score-5", "compare")}
CHATML = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
CHATML += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
ASKED = ("Why is the sky blue?", "How is bread made?", "What is a tide?", "Who needs sleep?")
STEPS, GENERATIONS = 3, 4


def reward(planted: dict[str, Any], **settings: Any) -> TrustJudgeReward:
    judge = scripted.ScriptedJudge(planted, PROTOCOLS)
    named = {"name": "scripted", "identity": scripted.identity(planted)}
    return TrustJudgeReward(
        RewardConfig(score_protocol="score-5", pair_protocol="compare", **settings), judge, PROTOCOLS, **named
    )


def tiny_llama() -> tuple[Any, Any]:
    """A random policy of some ten thousand weights, and its tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tokenizer_of("digit_splitting")
    tokenizer.chat_template = CHATML
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token or "<|im_end|>"
    torch.manual_seed(1)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.pad_token_id}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **size, **ids)), tokenizer


def small_smollm() -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct, out of the package that carries the embedded judge."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = embedded_model()
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def trained(policy: tuple[Any, Any], reward_function: TrlReward, folder: Path, new_tokens: int = 12) -> Any:
    """The trainer after three steps; `log_history` is what it logged."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = policy
    rows = [{"prompt": [{"role": "user", "content": text}], "reference": f"About this: {text}"} for text in ASKED]
    settings = GRPOConfig(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=2 * GENERATIONS,
        num_generations=GENERATIONS,
        max_completion_length=new_tokens,
        learning_rate=1e-4,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=3,
        temperature=1.0,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model, reward_function, args=settings, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    trainer.train()
    moved = [not weight.equal(before[name]) for name, weight in trainer.model.named_parameters()]
    assert any(moved)
    return trainer


def logged(trainer: Any, key: str) -> list[float]:
    return [row[key] for row in trainer.state.log_history if key in row]


@pytest.mark.parametrize("mode", ["score", "anchor", "group"])
def test_grpo_steps_on_each_mode_with_rewards_that_vary_within_groups(mode, tmp_path):
    trainer = trained(tiny_llama(), TrlReward(reward({}, mode=mode)), tmp_path)
    assert len(logged(trainer, "reward")) == STEPS
    assert min(logged(trainer, "reward_std")) > 0
    assert max(logged(trainer, "frac_reward_zero_std")) < 1
    assert all(0 <= value <= 1 for value in logged(trainer, "rewards/trustjudge/mean"))
    assert set(logged(trainer, "trustjudge/missing")) == {0.0}
    watched = {"score": "entropy", "anchor": "order_effect", "group": "agree"}[mode]
    assert len(logged(trainer, f"trustjudge/{watched}")) == STEPS
    assert all(math.isfinite(value) for value in logged(trainer, "loss"))
    if mode == "group":
        assert logged(trainer, "reward") == pytest.approx([0.5] * STEPS, abs=1e-6)


def test_failed_judgments_leave_training_finite_and_are_counted(tmp_path):
    trainer = trained(tiny_llama(), AsyncTrlReward(reward({"failure_rate": 0.4}, mode="score")), tmp_path)
    missing = logged(trainer, "trustjudge/missing")
    assert 0 < sum(missing) / STEPS < 1
    assert all(math.isfinite(value) for value in logged(trainer, "loss") + logged(trainer, "reward"))
    assert min(logged(trainer, "reward")) > 0


@pytest.mark.parametrize("mode", ["score", "group"])
def test_smollm2_takes_three_steps(mode, tmp_path):
    trainer = trained(small_smollm(), TrlReward(reward({}, mode=mode)), tmp_path)
    figures = ("reward", "reward_std", "frac_reward_zero_std", "loss", "trustjudge/missing", "trustjudge/calls")
    print(f"\nSmolLM2-135M, {mode}:", *(f"{key} {logged(trainer, key)}" for key in figures), sep="\n  ")
    assert len(logged(trainer, "reward")) == STEPS
    assert min(logged(trainer, "reward_std")) > 0
    assert all(math.isfinite(value) for value in logged(trainer, "loss"))


def test_the_example_learns_beyond_its_interval_and_further_than_from_emitted_labels(tmp_path):
    job = Path(__file__).parent.parent / "jobs" / "rewards_example.py"
    given = [sys.executable, str(job), "--seeds", "4", "--plot", str(tmp_path / "plots" / "rewards.svg")]
    done = subprocess.run(given, capture_output=True, text=True, timeout=250, check=True)
    told = json.loads(done.stdout.splitlines()[-1])["trained_on"]
    score = told["TrustJudge score"]
    assert score["rise"] > score["half_width"] > 0
    assert told["TrustJudge group"]["quality"] > told["discrete"]["quality"]
    assert score["quality"] > told["discrete"]["quality"]
    assert (tmp_path / "plots" / "rewards.svg").read_text("utf-8").startswith("<svg")
