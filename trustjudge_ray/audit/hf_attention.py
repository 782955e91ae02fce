"""The attention of a Hugging Face causal model in a few rows, at the memory of a forward pass.

Eager attention keeps layers × heads × tokens² weights. Here the model computes its output as it always does, and
beside it the weights of the rows that are asked for: layers × heads × rows × tokens. For that an attention function is
registered with transformers; a model that does not call it is refused by name, and so is one whose rows are not those
of its own eager attention on a short prompt. Beside the rows nothing grows faster than in the model's own forward
pass: linearly, but for a mask of tokens² bytes where the model has sliding windows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trustjudge_ray.audit.attention import AttentionError, SegmentedPrompt, all_masses, described, masses
from trustjudge_ray.audit.attention_prompts import prompts_of
from trustjudge_ray.audit.qa import Item
from trustjudge_ray.identity import seed_of

Weights = NDArray[np.float32]

IMPLEMENTATION: Final = "trustjudge_attention_rows"
"""The name under which transformers knows the attention function."""
TOLERANCES: Final = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""How much of the attention may lie elsewhere than in eager attention (see `displaced`), which rounds scores to the
model's own dtype: ten times and more what rounding was seen to do (3e-7, 7e-4 and 5e-3)."""
_CHECKED_TOKENS: Final = 64
_BLOCK: Final = 128


class _Recording:
    """The rows that are asked for, and what each layer that was called gave: (heads, rows, tokens).

    There is room for all layers from the start: small arrays that are kept between large ones that come and go would
    hold the allocator's heap at its highest.
    """

    def __init__(self, rows: Sequence[int], shape: tuple[int, int, int], layers: int) -> None:
        self.rows = list(rows)
        self._room: list[Weights] = [np.zeros(shape, np.float32) for _ in range(layers)]
        self.layers: list[Weights] = []

    def add(self, weights: Weights) -> None:
        """Keep what the next layer gave."""
        free = self._room.pop() if self._room and self._room[-1].shape == weights.shape else np.empty_like(weights)
        free[:] = weights
        self.layers.append(free)


_RECORDING: ContextVar[_Recording | None] = ContextVar("attention_recording", default=None)


def attention_rows(model: Any, token_ids: Sequence[int], rows: Sequence[int] = (-1,)) -> list[Weights]:
    """The attention weights of a prompt in the rows of some query tokens.

    Args:
        model: a causal model of transformers in evaluation mode.
        token_ids: one prompt; nothing is padded.
        rows: positions of the query tokens; −1 is the last.

    Returns:
        For each attention layer (heads, rows, tokens) in float32; what a row may not see has weight 0. A row sums to 1,
        or to less where the model has learnt sinks. Grouped queries have a row for each query head. Sliding
        windows, soft-capping, position biases and sinks are the model's own.

    Raises:
        AttentionError: the model is in training mode; or its attention cannot be intercepted, or not in every layer.
        ValueError: no such row.
    """
    import torch

    size = len(token_ids)
    if not rows or any(not -size <= row < size for row in rows):
        raise ValueError(f"rows: got {list(rows)}; positions in a prompt of {size} tokens, −1 the last")
    if model.training:
        raise AttentionError(f"{_name(model)}: is in training mode, where attention is dropped at random; model.eval()")
    layers = attention_layers(model)
    heads = model.config.get_text_config(decoder=True).num_attention_heads
    recording = _Recording([row % size for row in rows], (heads, len(rows), size), layers)
    with _recorded(model, recording), torch.inference_mode():
        model.base_model(input_ids=torch.tensor([list(token_ids)], device=model.device), use_cache=False)
    if not recording.layers or len(recording.layers) != layers:
        raise AttentionError(
            f"{_name(model)}: attention can be read in {len(recording.layers)} of {layers} layers: its code does not "
            f"call transformers' attention interface there; measure a model whose code does"
        )
    return recording.layers


def attention_layers(model: Any) -> int:
    """How many layers of a model have attention over tokens: all, unless its config says that some are of another
    kind."""
    config = model.config.get_text_config(decoder=True)
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    return sum("attention" in kind and "linear" not in kind for kind in kinds)


def _name(model: Any) -> str:
    path = getattr(model, "name_or_path", "")
    return f"{type(model).__name__} ({path})" if path else type(model).__name__


@contextmanager
def _recorded(model: Any, recording: _Recording) -> Iterator[None]:
    """While it lasts the model's layers call `_attention`, with the masks that they give to sdpa."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(IMPLEMENTATION, _attention)
    AttentionMaskInterface.register(IMPLEMENTATION, AttentionMaskInterface()["sdpa"])
    before = model.config._attn_implementation
    token = _RECORDING.set(recording)
    try:
        model.set_attn_implementation(IMPLEMENTATION)
        yield
    finally:
        _RECORDING.reset(token)
        model.set_attn_implementation(before)


def _attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> tuple[Any, None]:
    """An attention function of transformers: the output, and the weights of the rows into the recording.

    query (1, heads, tokens, size), key and value (1, groups, tokens, size); the output is (1, tokens, heads, size).
    `softcap` and `s_aux` (learnt sinks) are not known to sdpa, so there the output is computed here, block by block.
    """
    from transformers import AttentionInterface

    recording = _RECORDING.get()
    if recording is not None:
        weights = _weights(module, query, key, attention_mask, recording.rows, options)
        recording.add(weights[0].cpu().numpy())
    if options.get("softcap") is None and options.get("s_aux") is None:
        return AttentionInterface()["sdpa"](module, query, key, value, attention_mask, **options)
    return _blockwise(module, query, key, value, attention_mask, options), None


def _weights(module: Any, query: Any, key: Any, mask: Any, rows: list[int], options: Mapping[str, Any]) -> Any:
    """softmax(cap(q·kᵀ·scaling) + bias + mask) of the rows in float32: (1, heads, rows, tokens), without the sink's."""
    import torch

    _, heads, length, size = query.shape
    groups, tokens = key.shape[1:3]
    asked = query[:, :, rows].float().reshape(1, groups, heads // groups * len(rows), size)
    scaling = options.get("scaling")
    scores = asked @ key.float().transpose(2, 3) * (size**-0.5 if scaling is None else scaling)
    scores = scores.view(1, heads, len(rows), tokens)
    if (cap := options.get("softcap")) is not None:
        scores = torch.tanh(scores / cap) * cap
    if (bias := options.get("position_bias")) is not None:
        scores = scores + bias[:, :, rows]
    scores = _masked(scores, mask, rows, length)
    if (sinks := options.get("s_aux")) is not None:
        column = sinks.float().reshape(1, heads, 1, 1).expand(1, heads, len(rows), 1)
        return torch.cat([scores, column], dim=-1).softmax(dim=-1)[..., :-1]
    return scores.softmax(dim=-1)


def _masked(scores: Any, mask: Any, rows: list[int], length: int) -> Any:
    """Scores with −inf where a row may not look; without a mask, after itself."""
    import torch

    tokens = scores.shape[-1]
    if mask is None:
        at = torch.arange(tokens, device=scores.device)
        own = torch.tensor(rows, device=scores.device) + tokens - length
        return scores.masked_fill(at[None] > own[:, None], -torch.inf)
    allowed = mask[:, :, rows, :tokens]
    return scores.masked_fill(~allowed, -torch.inf) if mask.dtype == torch.bool else scores + allowed


def _blockwise(module: Any, query: Any, key: Any, value: Any, mask: Any, options: Mapping[str, Any]) -> Any:
    """The attention's output from `_weights`, so many rows at a time."""
    import torch

    _, heads, length, _ = query.shape
    groups, tokens, size = value.shape[1:]
    parts = []
    for start in range(0, length, _BLOCK):
        rows = list(range(start, min(start + _BLOCK, length)))
        weights = _weights(module, query, key, mask, rows, options).to(value.dtype)
        by_group = weights.view(1, groups, heads // groups * len(rows), tokens) @ value
        parts.append(by_group.view(1, heads, len(rows), size))
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous()


def eager_rows(model: Any, token_ids: Sequence[int], rows: Sequence[int] = (-1,)) -> list[Weights]:
    """The same as `attention_rows` out of the model's own eager attention: memory grows with the square of tokens."""
    import torch

    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            ids = torch.tensor([list(token_ids)], device=model.device)
            maps = model.base_model(input_ids=ids, use_cache=False, output_attentions=True).attentions
    finally:
        model.set_attn_implementation(before)
    return [of_layer[0, :, list(rows)].float().cpu().numpy() for of_layer in maps or () if of_layer is not None]


def difference_from_eager(model: Any, token_ids: Sequence[int], rows: Sequence[int] = (-1,)) -> float:
    """The greatest absolute difference between `attention_rows` and `eager_rows`; inf where their shapes differ."""
    return max((float(np.abs(ours - eager).max()) for ours, eager in _both(model, token_ids, rows)), default=np.inf)


def displaced(model: Any, token_ids: Sequence[int], rows: Sequence[int] = (-1,)) -> float:
    """The share of attention that `attention_rows` and `eager_rows` put on different tokens: half the sum of absolute
    differences after averaging over heads, averaged over rows and layers; inf where their shapes differ."""
    moved = [
        float(np.abs(ours.mean(axis=0) - eager.mean(axis=0)).sum(axis=-1).mean()) / 2
        for ours, eager in _both(model, token_ids, rows)
    ]
    return float(np.mean(moved)) if moved else np.inf


def _both(model: Any, token_ids: Sequence[int], rows: Sequence[int]) -> list[tuple[Weights, Weights]]:
    """Rows and eager rows of each layer; nothing where their shapes differ."""
    ours, eager = attention_rows(model, token_ids, rows), eager_rows(model, token_ids, rows)
    alike = [layer.shape for layer in ours] == [layer.shape for layer in eager]
    return list(zip(ours, eager, strict=True)) if alike else []


def measure(
    model_path: str,
    items: Sequence[Item],
    answers: Mapping[str, str],
    *,
    sample: int = 64,
    seed: int = 0,
    dtype: str = "float32",
    revision: str | None = None,
    trust_remote_code: bool = False,
    template_arguments: Mapping[str, Any] | None = None,
    confidence: float = 0.95,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """What `audit.json` has under `attention`: where a model looks when it answers and when it judges.

    The five prompts of `attention_prompts` are put to the model for a sample of the items; where one of an item's
    prompts is longer than the model's context, the item is left out in all tasks and counted. On a GPU, if torch
    sees one, else on the CPU; the model must fit one device.

    Args:
        model_path: a Hugging Face folder or hub name.
        answers: the model's own answers by item id; the first gold stands in for one that is missing or blank.
        sample: at most so many items, drawn by `seed` and item id, whatever their order.
        progress: is told (prompts done, prompts in all).

    Returns:
        `attention.described` and model, dtype, seed, asked (items drawn), excluded_by, own_answers (items whose
        candidate is the model's own), difference_from_eager (`displaced`), caution. JSON-able: what is not finite is
        None.

    Raises:
        AttentionError: the model cannot be loaded, its prompts cannot be built, its attention cannot be intercepted or
            is not that of eager attention, or no item fits.
        ValueError: an unknown dtype.
    """
    model, tokenizer = _loaded(model_path, dtype, revision, trust_remote_code)
    drawn = sampled(items, sample, seed)
    try:
        prompts = prompts_of(tokenizer, drawn, answers, template_arguments)
    except ValueError as error:
        raise AttentionError(f"{model_path}: its prompts cannot be built: {error}") from error
    fitting = _fitting(prompts, getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None))
    if not fitting:
        raise AttentionError(f"{model_path}: none of {len(drawn)} items fits the model's context in every task")
    kept = {prompt.item_id for prompt in fitting}
    return {
        "model": model_path,
        "dtype": dtype,
        "seed": seed,
        "asked": len(drawn),
        "excluded_by": {"too_long": len(drawn) - len(kept)} if len(kept) < len(drawn) else {},
        "own_answers": sum(bool(answers.get(item_id, "").strip()) for item_id in kept),
        "difference_from_eager": _checked(model, fitting[0].token_ids, dtype),
        "caution": "attention describes where a model looks; it does not explain what it decides",
    } | described(_put(model, fitting, progress), confidence)


def _put(model: Any, prompts: Sequence[SegmentedPrompt], progress: Callable[[int, int], None] | None) -> pl.DataFrame:
    """MASSES of the prompts."""
    parts = []
    for number, prompt in enumerate(prompts, 1):
        layers = attention_rows(model, prompt.token_ids)
        parts.append(masses(prompt, np.stack([layer[:, 0].mean(axis=0) for layer in layers])))
        if progress:
            progress(number, len(prompts))
    return all_masses(parts)


def sampled(items: Sequence[Item], sample: int, seed: int) -> list[Item]:
    """At most `sample` items, the same for the same seed whatever else is in the list or in which order."""
    drawn = sorted(items, key=lambda item: seed_of("attention", str(seed), item.id))[:sample]
    return sorted(drawn, key=lambda item: item.id)


def _fitting(prompts: Sequence[SegmentedPrompt], limit: int | None) -> list[SegmentedPrompt]:
    """The prompts of items all of whose prompts fit."""
    long = {prompt.item_id for prompt in prompts if limit is not None and len(prompt.token_ids) > limit}
    return [prompt for prompt in prompts if prompt.item_id not in long]


def _checked(model: Any, token_ids: Sequence[int], dtype: str) -> float:
    """How far the rows are from eager attention on the beginning of a prompt, if that is near enough."""
    short = token_ids[:_CHECKED_TOKENS]
    difference = displaced(model, short, (len(short) // 2, -1))
    if not difference <= TOLERANCES[dtype]:
        raise AttentionError(
            f"{_name(model)}: {difference:.2g} of its attention lies elsewhere than in its own eager attention, where "
            f"{TOLERANCES[dtype]:g} may be rounding: it does something to attention that is not known here"
        )
    return difference


def _loaded(model_path: str, dtype: str, revision: str | None, trust_remote_code: bool) -> tuple[Any, Any]:
    """The model in evaluation mode on its device, and its tokenizer."""
    if dtype not in TOLERANCES:
        raise ValueError(f"dtype: got {dtype!r}; one of {list(TOLERANCES)}")
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise AttentionError(
            f"{model_path}: measuring attention needs {error.name}; pip install 'trustjudge-ray[cpu]' or [gpu]"
        ) from error
    source = {"revision": revision, "trust_remote_code": trust_remote_code}
    try:
        model = AutoModelForCausalLM.from_pretrained(model_path, dtype=getattr(torch, dtype), **source)
        tokenizer = AutoTokenizer.from_pretrained(model_path, **source)
    except (OSError, ValueError) as error:
        raise AttentionError(f"{model_path}: cannot be loaded by transformers: {error}") from error
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), tokenizer
