"""Which family a model belongs to, by its name: models of one maker that grew from one another.

A fine-tune or distillation belongs to the family of the model whose weights it started from, where its name says so:
`DeepSeek-R1-Distill-Llama-8B` is a llama, `DeepSeek-R1` a deepseek. It keeps that model's tokenizer and most of its
habits, and comparing a distillation with its base means comparing within a family. Whoever sees it otherwise says so
in `analysis.families`.
"""

import glob
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

_NAMES: Final[dict[str, str]] = {
    "llama": r"llama|vicuna|alpaca",
    "qwen": r"qwen|qwq|qvq",
    "mistral": r"mistral|mixtral|ministral|codestral|magistral|devstral|pixtral|zephyr",
    "gemini": r"gemini|gemma",
    "phi": r"(?<![a-z])phi(?=$|[\d\W_])",
    "smollm": r"smollm",
    "gpt": r"^o[134]\b|/o[134]\b|chatgpt|davinci|(?<![a-z])gpt(?!4all|[\W_]?(?:j|neo|neox)(?:$|[\W_]))",
    "claude": r"claude",
    "deepseek": r"deepseek",
    "command": r"\bcommand(?=[\W_])|\baya\b|c4ai",
    "yi": r"\byi(?=[\W_]\d)",
    "glm": r"glm",
    "grok": r"\bgrok",
    "nova": r"\bnova\b",
    "nemotron": r"nemotron",
    "falcon": r"falcon",
    "olmo": r"olmo",
    "internlm": r"internlm",
    "granite": r"granite",
    "kimi": r"\bkimi\b|moonshot",
}
"""Family → a pattern for names in lower case; the first that fits counts. Families whose weights others start from come
before those that are distilled into them."""


def family_of(name: str, overrides: Mapping[str, str] | None = None) -> str | None:
    """The family of a model or judge, or None where its name says nothing.

    Args:
        overrides: `analysis.families`, names or globs to families; the first that fits counts, before `_NAMES`.
    """
    lowered = name.lower()
    for pattern, family in (overrides or {}).items():
        if fnmatchcase(lowered, str(pattern).lower()):
            return family
    return next((family for family, pattern in _NAMES.items() if re.search(pattern, lowered)), None)


def with_judges(overrides: Mapping[str, str], models: Mapping[str, str]) -> dict[str, str]:
    """The overrides, and further ones for judges whose own name says nothing: their model's family.

    Args:
        models: the model of each judge, by what the judge is called.
    """
    silent = {name: family_of(model, overrides) for name, model in models.items() if not family_of(name, overrides)}
    return dict(overrides) | {glob.escape(name): family for name, family in silent.items() if family}
