"""Content ids: what a thing is called is a hash of what it is."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

BUCKETS = 64
"""Into how many buckets questions hash. Fixed: a shared store is laid out by it."""


def content_hash(value: Any) -> str:
    """32 hex digits of the SHA-256 of a JSON value (keys sorted, no spaces; NaN is refused)."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:32]


def joined_hash(*parts: str) -> str:
    """32 hex digits of the SHA-256 of texts, each preceded by its length, so that no two lists collide."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8")
        digest.update(b"%d:" % len(raw))
        digest.update(raw)
    return digest.hexdigest()[:32]


def bucket_of(question_id: str) -> int:
    """The bucket (0 … BUCKETS − 1) of a question: the same on every machine and in every version."""
    return int.from_bytes(hashlib.sha256(question_id.encode("utf-8")).digest()[:4], "big") % BUCKETS


def seed_of(*parts: str) -> int:
    """A 63-bit seed from texts: the same for the same texts."""
    return int(joined_hash(*parts)[:16], 16) >> 1


def id_key(ids: list[str]) -> Callable[[str], Any]:
    """The sort key for the ids of one question: as numbers if all are whole numbers, else by code point."""
    if all(i.isascii() and i.removeprefix("-").isdigit() for i in ids):
        return lambda i: (int(i), i)
    return lambda i: i
