"""Judges without weights: a small tokenizer with a chat template and a config.json in a folder."""

import json
from pathlib import Path

from small_tokenizers import TEMPLATES, tokenizer_of
from transformers import PreTrainedTokenizerFast

CONTEXT = 2048


def small_judge(
    folder: Path,
    tokenizer: PreTrainedTokenizerFast | None = None,
    template: str = "chatml",
    context: int = CONTEXT,
    **config: object,
) -> Path:
    """A model folder that can be looked into, but not loaded."""
    tokenizer = tokenizer or tokenizer_of("digit_splitting")
    tokenizer.chat_template = TEMPLATES[template]
    try:
        tokenizer.save_pretrained(folder)
    finally:
        tokenizer.chat_template = None
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = {"model_type": "llama", "vocab_size": 800, "max_position_embeddings": context, **size, **config}
    (folder / "config.json").write_text(json.dumps(model))
    return folder
