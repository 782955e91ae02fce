"""One arm of the LoRA experiment: train an adapter on examples, then answer and judge with it. torch, peft and
transformers are imported inside functions; nothing here knows Ray.

The loss is the mean over examples of each example's mean −ln p over its target tokens: a verdict of one token weighs as
much as an answer of ten, so that in the arm trained on both neither task drowns the other.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from trustjudge_ray.audit.lora_arms import Example, Ids, LoraError
from trustjudge_ray.audit.lora_config import LoraConfig
from trustjudge_ray.identity import seed_of
from trustjudge_ray.judging.labels import LabelTable

_IGNORED = -100


@dataclass(frozen=True, slots=True)
class Training:
    """How a training went.

    Attributes:
        losses: one for each update, before it was made.
        updates, epochs: how many updates were made, and how often each example was seen.
        trainable, parameters: of the adapter, and of the frozen model.
    """

    losses: tuple[float, ...]
    epochs: float
    trainable: int
    parameters: int

    @property
    def updates(self) -> int:
        return len(self.losses)


@dataclass(frozen=True, slots=True)
class Answer:
    """What was written after a prompt; `cut`: the end token did not come within the budget."""

    text: str
    cut: bool


def require_peft() -> Any:
    """The module peft.

    Raises:
        LoraError: it is not installed.
    """
    try:
        import peft
    except ImportError as error:
        raise LoraError(
            f"audit.lora: training needs the package {error.name or 'peft'}; pip install 'trustjudge-ray[lora]'"
        ) from error
    return peft


def use_threads(count: int) -> None:
    """Let torch compute with so many threads in this process: for a process that does nothing else."""
    import torch

    torch.set_num_threads(max(count, 1))


def load_model(source: str, config: LoraConfig, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """A causal language model on the device and in the precision that `config` names, ready to answer."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    where = config.device if config.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            source,
            revision=revision,
            dtype=getattr(torch, config.dtype),
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
        )
    finally:
        if bars:
            logging.enable_progress_bar()
    return model.to(where).eval()


def load_tokenizer(source: str, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The model's tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=trust_remote_code)


def with_adapter(model: Any, config: LoraConfig, seed: int) -> Any:
    """The model with a fresh adapter, which changes nothing yet; only the adapter's weights can be trained.

    Raises:
        LoraError: peft is missing, or the model lacks a target module.
    """
    import torch

    peft = require_peft()
    targets: Any = list(config.target_modules)
    if targets == ["all-linear"]:
        targets = "all-linear"
    else:
        _refuse_missing(model, targets)
    torch.manual_seed(seed)
    return peft.get_peft_model(
        model,
        peft.LoraConfig(
            task_type="CAUSAL_LM",
            r=config.rank,
            lora_alpha=config.alpha,
            lora_dropout=config.dropout,
            target_modules=targets,
        ),
    )


def _refuse_missing(model: Any, targets: Sequence[str]) -> None:
    import torch

    ends = {name.rsplit(".", 1)[-1] for name, part in model.named_modules() if _is_linear(part, torch)}
    missing = [target for target in targets if target.rsplit(".", 1)[-1] not in ends]
    if missing:
        raise LoraError(
            f"audit.lora.target_modules: the model has no linear layer {missing}; it has {sorted(ends)}; name some of "
            f"them, or [all-linear]"
        )


def _is_linear(part: Any, torch: Any) -> bool:
    """Also of GPT-2's kind, a linear layer with its weight turned round."""
    return isinstance(part, torch.nn.Linear) or type(part).__name__ == "Conv1D"


def train(model: Any, examples: Sequence[Example], config: LoraConfig, seed: int, pad_id: int) -> Training:
    """Train the adapter of `with_adapter`; the same examples, seed and number of threads give the same adapter on the
    CPU. The model is left ready to answer.

    Args:
        examples: in the order in which they are seen in the first epoch; later ones are shuffled by `seed`.

    Raises:
        LoraError: there is nothing to train on, or the loss is no longer a number.
    """
    import torch

    if not examples:
        raise LoraError("audit.lora: an arm without training examples; use the base model as it is")
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(weights, lr=config.learning_rate, weight_decay=config.weight_decay)
    each = config.batch_size * config.gradient_accumulation
    updates = config.steps or max(math.ceil(config.epochs * len(examples) / each), 1)
    if config.gradient_checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    losses, stream = [], _stream(examples, seed)
    with _deterministic(torch):
        torch.manual_seed(seed)
        model.train()
        for update in range(updates):
            drawn = [next(stream) for _ in range(min(each, len(examples)))]
            for group in optimiser.param_groups:
                group["lr"] = config.learning_rate * rate_at(update, updates, config.warmup)
            losses.append(_update(model, drawn, config, pad_id, weights, optimiser))
            if not math.isfinite(losses[-1]):
                raise LoraError(
                    f"audit.lora: the loss of update {update + 1} is {losses[-1]}; lower audit.lora.learning_rate"
                )
    model.eval()
    if config.gradient_checkpointing:
        model.gradient_checkpointing_disable()
    frozen = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
    seen = updates * min(each, len(examples)) / len(examples)
    return Training(tuple(losses), seen, sum(weight.numel() for weight in weights), frozen)


def rate_at(update: int, updates: int, warmup: float) -> float:
    """The share of the learning rate in an update (from 0): up in a straight line over `warmup · updates`, then down
    to 0 after the last one."""
    rising = round(warmup * updates)
    if update < rising:
        return (update + 1) / (rising + 1)
    return (updates - update) / (updates - rising)


def _stream(examples: Sequence[Example], seed: int) -> Iterator[Example]:
    """The examples in their order, then again and again, each time in another one."""
    yield from examples
    for epoch in count(1):
        order = sorted(range(len(examples)), key=lambda i: seed_of("lora epoch", str(seed), str(epoch), str(i)))
        yield from (examples[i] for i in order)


def _update(
    model: Any, drawn: Sequence[Example], config: LoraConfig, pad_id: int, weights: Sequence[Any], optimiser: Any
) -> float:
    """One update on these examples; their mean loss before it."""
    import torch

    optimiser.zero_grad()
    total = 0.0
    ordered = sorted(drawn, key=lambda example: example.length)
    for start in range(0, len(ordered), config.batch_size):
        loss = example_losses(model, ordered[start : start + config.batch_size], pad_id).sum() / len(ordered)
        loss.backward()
        total += float(loss.detach())
    torch.nn.utils.clip_grad_norm_(weights, config.max_grad_norm)
    optimiser.step()
    return total


def example_losses(model: Any, examples: Sequence[Example], pad_id: int) -> Any:
    """(examples,) each example's mean −ln p(target token | all before it), a tensor that can be trained on.

    The logits of the prompt are not computed: those of a large vocabulary would be most of the memory.
    """
    import torch

    longest = max(len(example.target_ids) for example in examples)
    inputs = _left_padded([(*e.prompt_ids, *e.target_ids) for e in examples], pad_id, model.device)
    rows = [[_IGNORED] * (longest - len(e.target_ids)) + list(e.target_ids) for e in examples]
    target = torch.tensor(rows, device=model.device)
    logits = model(**inputs, logits_to_keep=longest + 1, use_cache=False).logits[:, :-1].float()
    flat = torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), target.reshape(-1), ignore_index=_IGNORED, reduction="none"
    )
    counts = (target != _IGNORED).sum(dim=1)
    return flat.reshape(target.shape).sum(dim=1) / counts


def _left_padded(rows: Sequence[Ids], pad_id: int, device: Any) -> dict[str, Any]:
    """Token ids, mask and positions of texts of unequal length, which all end in the last column."""
    import torch

    width = max(len(row) for row in rows)
    ids = torch.tensor([[pad_id] * (width - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0)}


@contextmanager
def _deterministic(torch: Any) -> Iterator[None]:
    """Deterministic algorithms where there are any; where there are none torch's own, without a word."""
    before, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)


class TransformersReader:
    """Answers and verdicts of a loaded model, with an adapter or without, as the judging engine reads them."""

    def __init__(self, model: Any, tokenizer: Any, batch_size: int) -> None:
        self._model, self._tokenizer, self._batch = model, tokenizer, batch_size
        self._pad = pad_id(tokenizer)

    def answers(self, prompts: Sequence[Ids], max_new_tokens: int, closer: str = "") -> list[Answer]:
        """The most probable next token again and again, up to an end token, the closer or the budget."""
        import torch
        from transformers import GenerationConfig

        ends = end_ids(self._model, self._tokenizer)
        greedy = GenerationConfig(
            max_new_tokens=max_new_tokens, do_sample=False, pad_token_id=self._pad, eos_token_id=sorted(ends)
        )
        found: dict[int, Answer] = {}
        for places in self._batches(prompts):
            inputs = _left_padded([prompts[place] for place in places], self._pad, self._model.device)
            del inputs["position_ids"]  # `generate` makes them of the mask
            with torch.inference_mode():
                written = self._model.generate(**inputs, generation_config=greedy)
            for place, row in zip(places, written[:, inputs["input_ids"].shape[1] :].tolist(), strict=True):
                found[place] = answer_of(row, ends, closer, self._tokenizer)
        return [found[place] for place in range(len(prompts))]

    def label_logprobs(self, prompts: Sequence[Ids], table: LabelTable) -> list[list[float]]:
        """ln P(label) for each label after each prompt (opener included), the raw probabilities multiplied along the
        label's tokens as `LabelTable.read` does."""
        nodes: list[list[dict[int, float]]] = [[] for _ in prompts]
        for node in table.nodes:
            asked = [(*prompt, *node.prefix) for prompt in prompts]
            for place, values in enumerate(self._next_logprobs(asked, node.token_ids)):
                nodes[place].append(dict(zip(node.token_ids, values, strict=True)))
        return [table.read(answers) for answers in nodes]

    def _next_logprobs(self, prompts: Sequence[Ids], token_ids: Ids) -> list[list[float]]:
        import torch

        found: dict[int, list[float]] = {}
        for places in self._batches(prompts):
            inputs = _left_padded([prompts[place] for place in places], self._pad, self._model.device)
            with torch.inference_mode(), _float32_head(self._model):
                logits = self._model(**inputs, logits_to_keep=1, use_cache=False).logits[:, -1].float()
                picked = torch.log_softmax(logits, dim=-1)[:, list(token_ids)]
            found |= dict(zip(places, picked.tolist(), strict=True))
        return [found[place] for place in range(len(prompts))]

    def _batches(self, prompts: Sequence[Ids]) -> Iterator[list[int]]:
        """Places of prompts, those of like length together."""
        order = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
        yield from (order[start : start + self._batch] for start in range(0, len(order), self._batch))


@contextmanager
def _float32_head(model: Any) -> Iterator[None]:
    """The output layer in float32, as the judging engine has it: bfloat16 logits move log-probabilities by up to 0.27
    nat. An output layer that is no plain linear one, or has an adapter, is left as it is."""
    import torch

    head = model.get_output_embeddings()
    if type(head) is not torch.nn.Linear or head.weight.dtype == torch.float32:
        yield
        return

    def exact(part: Any, inputs: Any, logits: Any) -> Any:
        bias = None if part.bias is None else part.bias.float()
        return torch.nn.functional.linear(inputs[0].float(), part.weight.float(), bias)

    hook = head.register_forward_hook(exact)
    try:
        yield
    finally:
        hook.remove()


def pad_id(tokenizer: Any) -> int:
    """What stands before shorter texts of a batch; it is masked, so any token will do."""
    return int(tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id)


def end_ids(model: Any, tokenizer: Any) -> set[int]:
    """The tokens that end an answer: the model's own and the tokenizer's."""
    own = getattr(model.generation_config, "eos_token_id", None)
    ids = own if isinstance(own, list) else [own]
    return {int(i) for i in (*ids, tokenizer.eos_token_id) if i is not None}


def answer_of(ids: Sequence[int], ends: set[int], closer: str, tokenizer: Any) -> Answer:
    """The text up to the first end token, or to the closer (none where it is "") if that comes first."""
    at = next((place for place, token in enumerate(ids) if token in ends), None)
    text = tokenizer.decode(list(ids[:at]), skip_special_tokens=True)
    closed = bool(closer) and closer in text
    return Answer((text.partition(closer)[0] if closed else text).strip(), at is None and not closed)


def save_adapter(model: Any, folder: Path) -> None:
    """Write the adapter's weights (safetensors) and configuration."""
    model.save_pretrained(str(folder), safe_serialization=True)
