"""What measuring attention costs in memory, and how far it is from eager attention, with the embedded judge.

Each side in a process of its own: peak resident memory above that after loading the model and one short prompt, so
that weights are no part of it. `plain` is the model's own forward pass without a cache and with the last token's logits
alone; `rows` the same with the last token's attention read in every layer; `eager` the model's own attention maps,
which grow with the square of the tokens and are tried at a quarter of the length only.
"""

import ctypes
import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trustjudge_ray.audit.hf_attention import attention_rows, difference_from_eager, eager_rows
from trustjudge_ray.judging.embedded import embedded_model

from . import Options

_SIDE = "TRUSTJUDGE_BENCHMARK_SIDE"
_SHORT = 16
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""Large blocks are given back when they are freed: what is measured is what is in use, not the heap's slack, which
differs between runs of the same side by a factor of two."""


def run(options: Options) -> dict[str, Any]:
    """Measure both sides at the full length, rows also at half of it, and the difference from eager attention."""
    if _SIDE in os.environ:
        side, length = os.environ[_SIDE].split(":")
        return _side(side, int(length))
    tokens, compared = (256, 64) if options.small else (4096, 512)
    measured = [("plain", tokens), ("rows", tokens), ("rows", tokens // 2)]
    measured += [("plain", tokens // 4), ("eager", tokens // 4)]
    peaks = {}
    for name, size in measured:
        peaks[name, size] = _apart(f"{name}:{size}")["peak_mb"]
        options.say(f"{name} at {size:,} tokens: {peaks[name, size]:.0f} MB above the loaded model")
    difference = _apart(f"difference:{compared}")["difference"]
    figures = {
        "ratio": peaks["rows", tokens] / peaks["plain", tokens],
        "growth": peaks["rows", tokens] / peaks["rows", tokens // 2],
        "eager_ratio": peaks["eager", tokens // 4] / peaks["plain", tokens // 4],
        "difference": difference,
        "plain_mb": peaks["plain", tokens],
        "rows_mb": peaks["rows", tokens],
    }
    options.say(
        f"rows at {tokens:,} tokens: {figures['ratio']:.2f} times the memory of the plain forward pass, and "
        f"{figures['growth']:.2f} times that at half the tokens; eager maps at {tokens // 4:,} tokens: "
        f"{figures['eager_ratio']:.1f} times"
    )
    options.say(
        f"greatest difference from eager attention at {compared} tokens, all layers and heads: {difference:.1e}"
    )
    return figures


def _apart(side: str) -> dict[str, float]:
    """The figures of one side, from a process that was started for it alone."""
    command = [sys.executable, str(Path(__file__).parent.parent / "benchmark.py"), "attention"]
    environment = os.environ | _ALLOCATOR | {_SIDE: side}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"attention: the process of {side} ended with {done.returncode}; see above")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _side(side: str, tokens: int) -> dict[str, float]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = embedded_model()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = _ids(AutoTokenizer.from_pretrained(folder), tokens)
    if side == "difference":
        rows = (0, tokens // 3, tokens // 2, -1)
        return {"difference": difference_from_eager(model, ids, rows)}

    def plain(ids: list[int]) -> None:
        with torch.inference_mode():
            model(input_ids=torch.tensor([ids]), use_cache=False, logits_to_keep=1)

    sides: dict[str, Callable[[list[int]], object]] = {
        "plain": plain,
        "rows": lambda ids: attention_rows(model, ids),
        "eager": lambda ids: eager_rows(model, ids),
    }
    sides[side](ids[:_SHORT])
    return {"peak_mb": _peak_above(lambda: sides[side](ids))}


def _ids(tokenizer: Any, tokens: int) -> list[int]:
    text = "".join(f"Ferry {i} left at {i % 12 + 1} with {i * 7 % 40} people on board.\n" for i in range(tokens // 4))
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"][:tokens]
    if len(ids) < tokens:
        raise RuntimeError(f"the text has {len(ids)} tokens; {tokens} are needed")
    return ids


def _peak_above(work: Callable[[], object]) -> float:
    """Megabytes of resident memory at the peak of `work` above what there was before."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what loading freed would hide what is measured
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _status("VmRSS")
    work()
    return (_status("VmHWM") - before) / 1000


def _status(name: str) -> int:
    """Kilobytes of a line of this process's status."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text("utf-8"), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"/proc/self/status has no {name}: this benchmark needs Linux")
    return int(found.group(1))
