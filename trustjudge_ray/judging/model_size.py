"""How much memory a model takes, from its files and its config: weights, and the cache of one full context."""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
GIB = 2**30


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Bytes of a model.

    Attributes:
        parameters: how many weights.
        counted: they were counted in the files; otherwise worked out from the config of a dense decoder.
        weights: parameters × bytes of the dtype.
        cache_per_token: 2 × layers × key-value heads × head size × bytes of the dtype. An upper bound for models
            that keep less (sliding windows, latent attention).
    """

    parameters: int
    counted: bool
    weights: int
    cache_per_token: int


def model_size(config: Mapping[str, Any], source: str, dtype: str) -> ModelSize | None:
    """The size of a model in a dtype; None where its config does not say what is needed."""
    counted = stored_parameters(Path(source)) if Path(source).is_dir() else None
    try:
        parameters = counted or _dense_parameters(config)
        cache = 2 * config["num_hidden_layers"] * _kv_heads(config) * _head_size(config) * _BYTES[dtype]
    except (KeyError, TypeError):
        return None
    return ModelSize(parameters, counted is not None, parameters * _BYTES[dtype], cache)


def stored_parameters(folder: Path) -> int | None:
    """How many weights the safetensors files of a folder hold, read from their headers; None where there are none."""
    total = 0
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with file.open("rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                header = json.loads(stream.read(length))
        except (struct.error, ValueError, MemoryError, OverflowError):
            return None
        total += sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    return total or None


def _head_size(config: Mapping[str, Any]) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def _kv_heads(config: Mapping[str, Any]) -> int:
    return config.get("num_key_value_heads") or config["num_attention_heads"]


def _dense_parameters(config: Mapping[str, Any]) -> int:
    """Embeddings, attention and a gated MLP (once for each expert) of a decoder; norms and biases are left out."""
    hidden, heads, size = config["hidden_size"], config["num_attention_heads"], _head_size(config)
    attention = 2 * hidden * heads * size + 2 * hidden * _kv_heads(config) * size
    experts = config.get("num_experts") or config.get("num_local_experts") or 1
    mlp = 3 * hidden * (config.get("moe_intermediate_size") or config["intermediate_size"]) * experts
    embeddings = config["vocab_size"] * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return embeddings + config["num_hidden_layers"] * (attention + mlp)
