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
    """32 hex digits of the SHA-256 of `joined` texts."""
    return hash_of(joined(*parts))


def joined(*parts: str) -> bytes:
    """Texts, each preceded by its length, so that no two lists give the same bytes. What is joined piece by piece is
    the same as what is joined at once."""
    return b"".join(b"%d:%s" % (len(raw), raw) for raw in (part.encode("utf-8") for part in parts))


def hash_of(content: bytes) -> str:
    """32 hex digits of the SHA-256 of bytes."""
    return hashlib.sha256(content).hexdigest()[:32]


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
