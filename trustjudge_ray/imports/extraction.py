"""Where the verdict stands in a judge's output, token by token. Only for importing: our own judges are given the place.

The rules are the reference program's, with its known errors put right: the last label in brackets is the verdict
(not the first, which may be quoted), the closing bracket was really written (not only considered), brackets may be
part of a longer token (`:[`, `]]`), and a label is exactly its text (`4`; neither `4.0` nor `04`).
"""

from collections.abc import Collection, Iterable, Sequence

_MARKS = str.maketrans("", "", "\u0120\u2581")
_LONGEST = 8
"""Tokens between brackets up to which an unreadable verdict is looked for; longer is prose."""


class Unreadable(ValueError):
    """No verdict can be read; says why."""


def clean(token: str) -> str:
    """A token as text: without the marks that tokenizers put for a space, and without white space around it."""
    return token.translate(_MARKS).strip()


def merged(listing: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Cleaned token → probability; the probabilities of tokens that become equal are added."""
    probs: dict[str, float] = {}
    for token, p in listing:
        text = clean(token)
        probs[text] = probs.get(text, 0.0) + p
    return probs


def verdict_position(sampled: Sequence[str | None], labels: Collection[str]) -> int:
    """The position of the verdict among the tokens that the judge wrote (None: nothing is known of a position).

    The last bracketed statement of a label counts. Where that one is split over several tokens (`[`, `8`, `5`,
    `]`) its probabilities are not listed anywhere, and an earlier one is not its substitute.

    Raises:
        Unreadable: there is none.
    """
    if not sampled:
        raise Unreadable("the output is empty")
    texts = ["" if token is None else clean(token) for token in sampled]
    for start in range(len(texts) - 1, -1, -1):
        if not texts[start].endswith("["):
            continue
        if start + 2 < len(texts) and texts[start + 1] in labels and texts[start + 2].startswith("]"):
            return start + 1
        inside = _inside(texts, start + 1)
        if inside is not None and _states(inside, labels):
            raise Unreadable(f"the verdict [{inside}] is not one token that is a label")
    raise Unreadable(_why_not(texts))


def _inside(texts: list[str], start: int) -> str | None:
    """What was written from `start` up to the next closing bracket, or None where that is far."""
    for end in range(start, min(start + _LONGEST, len(texts))):
        before, bracket, _ = texts[end].partition("]")
        if bracket:
            return "".join(texts[start:end]) + before
    return None


def _states(inside: str, labels: Collection[str]) -> bool:
    """Whether a text in brackets is meant as a verdict: a label, or a number on the labels' scale."""
    if inside in labels:
        return True
    try:
        return min(map(float, labels)) <= float(inside) <= max(map(float, labels))
    except ValueError:
        return False


def _why_not(texts: list[str]) -> str:
    if not any(text.endswith("[") for text in texts):
        return "no opening bracket was written"
    return "no label stands alone between brackets"
