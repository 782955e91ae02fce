"""The `audit.lora` section of an audit's configuration: does training on one task disturb the other?"""

from dataclasses import dataclass, field

ARMS = ("base", "generation", "evaluation", "both")
"""Untrained; trained to answer; trained to judge; trained half on each."""


@dataclass
class LoraConfig:
    """The LoRA experiment (arXiv 2606.28050): arms of the same size, each put to both tasks on passages not seen. An
    audit with this section trains the judge `len(seeds)` times for each arm but `base`."""

    arms: list[str] = field(default_factory=lambda: list(ARMS))
    """Some of `base`, `generation`, `evaluation`, `both`; `base` is always evaluated, the others are compared to it."""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    """One training for each: they decide the draw of examples, their order, the adapter's first weights and dropout.
    The split into training and test passages is the same in all."""
    test_share: float = 0.5
    """Share of each benchmark's passages that are kept for the test; an item goes where its passage goes."""
    split_seed: int = 0
    """Of the split into training and test passages, and of `test_items`."""
    examples: int | None = None
    """Training examples of every arm, a multiple of 4: in `both` half are of each task, and of evaluation examples half
    are right. By default as many as the task with fewer has."""
    test_items: int | None = None
    """At most so many test items, drawn by `split_seed`; by default all of the test passages."""
    candidates: list[str] = field(default_factory=lambda: ["gold", "swap"])
    """The candidates of evaluation examples, accepted and rejected in equal number. `gold` and `swap` are written
    alike, so that only the passage tells them apart; the model's own answers would also differ in style."""
    answer_protocol: str = "answer-passage"
    """How the model is asked to answer, in training and test."""
    protocols: list[str] = field(default_factory=lambda: ["verify-correct-incorrect", "verify-incorrect-correct"])
    """The verify protocols trained and tested; a training example has one of them in turn, a test judgment all."""
    rank: int = 16
    """Of an adapter."""
    alpha: float = 32.0
    """An adapter's update is scaled by alpha / rank."""
    dropout: float = 0.05
    """On an adapter's input while it is trained."""
    target_modules: list[str] = field(
        default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    )
    """The linear layers that get an adapter, by the end of their name; [all-linear] takes all but the output layer."""
    learning_rate: float = 2e-4
    """Of AdamW: the highest, reached after `warmup` and let down to 0 in a straight line."""
    warmup: float = 0.1
    """Share of the steps."""
    weight_decay: float = 0.0
    """Of AdamW."""
    max_grad_norm: float = 1.0
    """Longer gradients are cut to this norm."""
    epochs: float = 1.0
    """How often each example is seen, where `steps` does not say how many updates there are."""
    steps: int | None = None
    """How many updates; by default as `epochs` says."""
    batch_size: int = 8
    """Examples computed at once; an update is made of `batch_size · gradient_accumulation`."""
    gradient_accumulation: int = 2
    """Batches that make one update."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, about a third slower."""
    max_length: int = 2048
    """Tokens of prompt and target; longer examples and test prompts are left out, and counted."""
    dtype: str = "bfloat16"
    """Precision of the frozen model: `bfloat16` or `float32`. Adapters are trained in float32."""
    device: str = "auto"
    """`cuda`, `cpu`, or `auto`: the GPU where the task has one."""
    evaluate_with: str = "transformers"
    """`transformers`, in the process that trained; or `vllm`: one engine with all adapters, when all are trained."""
    eval_batch_size: int = 16
    """Test prompts computed at once."""
    adapters: str | None = None
    """A local or shared folder in which trained adapters are kept, one for each arm and seed."""
    gpus_per_arm: float = 0.0
    """GPUs of one training: 0 or 1, or a part of one that several share. Ray runs as many trainings at once as there
    is room for."""
    cpus_per_arm: float = 1.0
    """CPUs of one training: what Ray sets aside, and its threads."""
    confidence: float = 0.95
    """Nominal coverage of its intervals."""

    @property
    def trainings(self) -> list[tuple[str, int]]:
        """Arm and seed of each training, in order."""
        return [(arm, seed) for arm in self.arms if arm != "base" for seed in self.seeds]


def lora_faults(config: LoraConfig) -> list[str]:
    """Values of the right type that make no sense, each as key, what it got and what would be right."""
    checks = _rules(config)
    return [f"audit.lora.{key}: got {getattr(config, key)!r}; {right}" for key, fine, right in checks if not fine]


def _rules(c: LoraConfig) -> list[tuple[str, bool, str]]:
    """Keys, whether their value is fine, and what would be right."""
    return [
        ("arms", set(c.arms) <= set(ARMS) and len(set(c.arms)) == len(c.arms), f"some of {list(ARMS)}, each once"),
        ("arms", bool(set(c.arms) - {"base"}), "at least one arm that is trained"),
        ("seeds", bool(c.seeds) and len(set(c.seeds)) == len(c.seeds), "one or more whole numbers, each once"),
        ("test_share", 0 < c.test_share < 1, "a share between 0 and 1"),
        ("examples", c.examples is None or (c.examples >= 4 and c.examples % 4 == 0), "a multiple of 4"),
        ("test_items", c.test_items is None or c.test_items >= 1, "1 or more, or nothing"),
        ("candidates", len(c.candidates) >= 2, "two or more, some of them right and some wrong"),
        ("protocols", bool(c.protocols), "one or more verify protocols"),
        ("rank", c.rank >= 1, "1 or more"),
        ("alpha", c.alpha > 0, "more than 0"),
        ("dropout", 0 <= c.dropout < 1, "a share from 0 to below 1"),
        ("target_modules", bool(c.target_modules), "names of linear layers, or [all-linear]"),
        ("learning_rate", c.learning_rate > 0, "more than 0"),
        ("warmup", 0 <= c.warmup < 1, "a share from 0 to below 1"),
        ("weight_decay", c.weight_decay >= 0, "0 or more"),
        ("max_grad_norm", c.max_grad_norm > 0, "more than 0"),
        ("epochs", c.epochs > 0, "more than 0"),
        ("steps", c.steps is None or c.steps >= 1, "1 or more, or nothing"),
        ("batch_size", c.batch_size >= 1, "1 or more"),
        ("gradient_accumulation", c.gradient_accumulation >= 1, "1 or more"),
        ("max_length", c.max_length >= 32, "32 tokens or more"),
        ("dtype", c.dtype in ("bfloat16", "float32"), "one of bfloat16, float32"),
        ("device", c.device in ("auto", "cpu", "cuda"), "one of auto, cpu, cuda"),
        ("evaluate_with", c.evaluate_with in ("transformers", "vllm"), "one of transformers, vllm"),
        ("eval_batch_size", c.eval_batch_size >= 1, "1 or more"),
        ("adapters", c.adapters is None or bool(c.adapters.strip()), "a folder, or nothing"),
        ("adapters", c.evaluate_with != "vllm" or c.adapters is not None, "a folder, from which vLLM reads them"),
        ("gpus_per_arm", 0 <= c.gpus_per_arm <= 1, "from 0 to 1: a model is trained on one GPU"),
        ("cpus_per_arm", c.cpus_per_arm > 0, "more than 0"),
        ("confidence", 0.5 <= c.confidence < 1, "a share such as 0.95"),
    ]  # fmt: skip
