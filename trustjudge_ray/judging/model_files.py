"""Where a judge's model lies, and a hash of what lies there."""

import hashlib
import re
from pathlib import Path

from trustjudge_ray.config import JudgeConfig
from trustjudge_ray.identity import content_hash
from trustjudge_ray.judging.base import JudgeError
from trustjudge_ray.judging.embedded import embedded_model

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_UNREAD = {".md", ".png", ".jpg", ".pdf"}
_WHOLE = 2**30
_BLOCK, _BLOCKS = 2**16, 1024


def locate(judge: JudgeConfig) -> str:
    """The folder of a judge's model, or its name on the Hugging Face hub.

    Raises:
        JudgeError: `judge.model` is a path and there is no model.
    """
    if judge.model == "embedded":
        return str(embedded_model())
    path = Path(judge.model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise JudgeError(f"judge.model: {path}: no config.json in it; name a Hugging Face model folder")
        return str(path.resolve())
    if path.exists() or not _HUB_NAME.fullmatch(judge.model):
        what = "is a file" if path.exists() else "there is no such folder"
        raise JudgeError(
            f"judge.model: {judge.model}: {what}; name a Hugging Face model folder, or a hub name such as org/model"
        )
    return judge.model


def folder_hash(folder: Path) -> str:
    """32 hex digits over names and contents of the files of a model folder, documentation and hidden files left out.

    Files up to 1 GiB are read whole. Of larger ones, 1024 blocks of 64 KiB, evenly spread from the first to the
    last byte, are read with the size: training changes weights everywhere, so other weights have other blocks.
    """
    files = sorted(
        f for f in folder.iterdir() if f.is_file() and f.suffix not in _UNREAD and not f.name.startswith(".")
    )
    return content_hash([[f.name, f.stat().st_size, _file_digest(f)] for f in files])


def _file_digest(file: Path) -> str:
    size = file.stat().st_size
    with file.open("rb") as stream:
        if size <= _WHOLE:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        digest = hashlib.sha256()
        for i in range(_BLOCKS):
            stream.seek((size - _BLOCK) * i // (_BLOCKS - 1))
            digest.update(stream.read(_BLOCK))
        return digest.hexdigest()
