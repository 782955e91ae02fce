"""Texts to token ids as they stand inside a prompt.

Two things go wrong when pieces of a prompt are tokenised one by one: tokenizers of the SentencePiece kind put a
space mark before every text, and a text can spell a control token. So a piece is tokenised after a sentinel whose
ids are taken away again, and foreign texts never yield the id of a control token.
"""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any
from typing import Protocol as Interface

_SENTINELS = ("\n", "1", "a", ".", " ")
"""Tried in this order: prompts have a newline before most pieces, and the others part from what a newline joins."""
_MARKUP = re.compile(r"[^\w\s].*[^\w\s]", re.DOTALL)
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class TokenError(ValueError):
    """A text cannot be tokenised safely: names the text, the token, and what to change."""


class Tokenizer(Interface):
    """What is used of a Hugging Face fast tokenizer."""

    @property
    def is_fast(self) -> bool: ...
    @property
    def all_special_ids(self) -> list[int]: ...
    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]: ...
    @property
    def unk_token_id(self) -> int | None: ...
    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def eos_token_id(self) -> int | None: ...
    def __call__(self, text: str, **options: Any) -> Mapping[str, Any]: ...
    def apply_chat_template(self, conversation: list[dict[str, str]], **options: Any) -> Any: ...
    def get_vocab(self) -> Mapping[str, int]: ...
    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]: ...
    def decode(self, token_ids: list[int], **options: Any) -> str: ...


def control_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """The ids that steer the model and that no foreign text may yield.

    Special tokens, and added tokens that look like markup although they are not flagged special (`<think>`,
    `<tool_call>`, `<|fim_prefix|>` in several families). The unknown token is not one of them, unless it also begins
    or ends texts; nor are the byte tokens (`<0x0A>`) with which some tokenizers write what they have no token for.
    """
    added = tokenizer.added_tokens_decoder
    steering = {i for i, token in added.items() if token.special or _MARKUP.fullmatch(token.content.strip())}
    ordinary = {tokenizer.unk_token_id} - {tokenizer.bos_token_id, tokenizer.eos_token_id}
    ordinary |= {i for i, token in added.items() if _BYTE.fullmatch(token.content)}
    return frozenset((steering | set(tokenizer.all_special_ids)) - ordinary)


def beginning_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a template's text at the beginning of a prompt, with the tokenizer's start token once: where the
    text does not spell it and the tokenizer puts it before texts by default, it is added."""
    ids = _encode(tokenizer, text, own=True)["input_ids"] if text else []
    start = _start_ids(tokenizer)
    return ids if not start or ids[:1] == start[:1] else start + ids


def _start_ids(tokenizer: Tokenizer) -> list[int]:
    """What the tokenizer puts before a text of its own accord: the start token of many families, or nothing."""
    plain = _encode(tokenizer, "a", own=True)["input_ids"]
    full = list(tokenizer("a", add_special_tokens=True)["input_ids"])
    at = next((i for i in range(len(full) - len(plain) + 1) if full[i : i + len(plain)] == plain), 0)
    return full[:at]


def own_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a template's or protocol's text inside a prompt; control tokens in it are recognised."""
    return _in_place(tokenizer, text, own=True)[0]


def foreign_ids(tokenizer: Tokenizer, text: str, control: frozenset[int]) -> list[int]:
    """The ids of a user's text inside a prompt: whatever it spells, none of `control` is among them.

    Where the tokenizer recognises one all the same (added tokens that are not flagged special), the text is cut
    inside that spelling and the parts are tokenised apart.

    Raises:
        TokenError: a single character is a control token, so that it cannot be cut.
    """
    ids, sentinel = _in_place(tokenizer, text, own=False)
    if control.isdisjoint(ids):
        return ids
    spans = _encode(tokenizer, sentinel + text, own=False, return_offsets_mapping=True)["offset_mapping"][-len(ids) :]
    cuts = {0, len(text)}
    for token_id, (start, end) in zip(ids, spans, strict=True):
        if token_id not in control:
            continue
        start, end = start - len(sentinel), end - len(sentinel)
        if end - start < 2:
            token = tokenizer.convert_ids_to_tokens([token_id])[0]
            raise TokenError(
                f"the text {text[start:end]!r} is the control token {token!r} (id {token_id}) of this tokenizer and "
                f"cannot be told from it; use a tokenizer in which no ordinary character is a special token"
            )
        cuts.add((start + end) // 2)
    parts = [text[a:b] for a, b in pairwise(sorted(cuts))]
    return [i for part in parts for i in foreign_ids(tokenizer, part, control)]


def _in_place(tokenizer: Tokenizer, text: str, own: bool) -> tuple[list[int], str]:
    """Ids of `text` after the first sentinel that does not join with it, and that sentinel ("" where all join)."""
    if not text:
        return [], ""
    for sentinel in _SENTINELS:
        before = _encode(tokenizer, sentinel, own)["input_ids"]
        ids = _encode(tokenizer, sentinel + text, own)["input_ids"]
        if before and ids[: len(before)] == before:
            return ids[len(before) :], sentinel
    return _encode(tokenizer, text, own)["input_ids"], ""


def _encode(tokenizer: Tokenizer, text: str, own: bool, **options: Any) -> Mapping[str, Any]:
    return tokenizer(
        text,
        add_special_tokens=False,
        split_special_tokens=not own,
        truncation=False,
        padding=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
        **options,
    )
