"""Questions about passages, and oracles: rules that tell from the gold answers whether an answer is right.

Texts are compared as the evaluation script of SQuAD (arXiv:1606.05250, arXiv:1806.03822) compares them: in small
letters, without punctuation, without the articles a, an and the, white space as one space. For ASCII text `normalised`
is what that script does. Decided beyond it:

- Unicode: compatibility forms are one form (NFKC), and every character of the categories punctuation, modifier symbol
  and format is removed like ASCII punctuation, as is the minus sign; the script leaves ’ and – standing.
- A text of which nothing is left ("A", "The", "+") keeps its articles, or else its punctuation; for the script all such
  texts are equal.
- Numbers are texts: "3" is not "three" and "3.5" is "35", as in the script (and as DROP's counts no number word).
  Other ways of writing a gold belong into `golds`.
"""

import string
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from typing import Any, Final

import numpy as np
import polars as pl

ABSTENTION: Final = "The passage does not say."
"""The gold of an unanswerable item."""

F1_THRESHOLD: Final = 0.5
"""From which token F1 on an answer is right for the oracle `f1`."""

SHOWN_GOLD: Final = "shown_gold"
"""The column of GENERATED with what a judge said that was shown the gold; not computed here."""

AGREEMENT: Final = {
    "first": pl.String,
    "second": pl.String,
    "value": pl.Float64,
    "kappa": pl.Float64,
    "hits": pl.Int64,
    "cases": pl.Int64,
    "excluded": pl.Int64,
}

_ARTICLES = frozenset({"a", "an", "the"})
_ASCII_PUNCTUATION = frozenset(string.punctuation)
_REMOVED_CATEGORIES = ("P", "Sk")
_MINUS = "\u2212"

_WHOLE = (
    *("unanswerable", "unknown", "no answer", "na", "not answerable", "not known", "not available"),
    *("not stated", "not mentioned", "not given", "not specified", "not said", "not provided"),
    *("not enough information", "insufficient information", "no information"),
    *("i do not know", "i dont know", "do not know", "dont know", "cannot say", "cannot tell"),
)
"""What an answer that says nothing else means by it."""

_SOURCES = ("passage", "text", "context", "paragraph")
_SAYING = ("say", "state", "mention", "give", "tell", "specify", "provide", "include", "contain", "answer")
_SAID = ("stated", "mentioned", "given", "specified", "provided", "said", "found", "contained", "answered", "included")
_ASKED = ("answered", "determined", "known", "said", "told", "inferred")
_WITHIN = (
    *(" ".join(words) for words in product(_SOURCES, ("does not", "doesnt", "do not", "did not"), _SAYING)),
    *(" ".join(words) for words in product(("not",), _SAID, ("in", "by"), _SOURCES)),
    *(" ".join(words) for words in product(("cannot be", "can not be", "cant be"), _ASKED)),
    *("question is unanswerable", "no information about", "no information on", "no mention of"),
)
"""What may stand anywhere in an answer."""

_ADVERBS = frozenset({"explicitly", "directly", "clearly", "specifically", "actually", "itself"})


@dataclass(frozen=True, slots=True)
class Item:
    """A question about a passage.

    Attributes:
        passage_id: what intervals are clustered by; items of one passage share it.
        golds: right answers, the first the one that is shown; (ABSTENTION,) where `answerable` is false.
        wrong: answers that someone could take for right and that are not.
        hops: how many facts must be put together; None if nobody has said so.
    """

    id: str
    benchmark: str
    passage_id: str
    context: str
    question: str
    golds: tuple[str, ...]
    answerable: bool
    wrong: tuple[str, ...] = ()
    hops: int | None = None


def normalised(text: str) -> str:
    """The text as it is compared; empty only if it holds nothing but white space and format characters."""
    return " ".join(tokens(text))


@lru_cache(maxsize=1 << 14)
def tokens(text: str) -> tuple[str, ...]:
    """The words of the normalised text."""
    words = _bare(text).split()
    kept = [word for word in words if word not in _ARTICLES]
    return tuple(kept or words or unicodedata.normalize("NFC", _visible(text).lower()).split())


def _bare(text: str) -> str:
    """Small letters without punctuation. Twice, because the compatibility form of ⑴ is (1)."""
    return _composed(_unpunctuated(_folded(_unpunctuated(text))))


def _folded(text: str) -> str:
    return _composed(_composed(_visible(text)).lower())


def _visible(text: str) -> str:
    """Without format characters, such as the soft hyphen."""
    return "".join(ch for ch in text if unicodedata.category(ch) != "Cf")


def _composed(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def _unpunctuated(text: str) -> str:
    return "".join(ch for ch in text if not _is_punctuation(ch))


def _is_punctuation(ch: str) -> bool:
    return ch in _ASCII_PUNCTUATION or ch == _MINUS or unicodedata.category(ch).startswith(_REMOVED_CATEGORIES)


_WHOLE_TOKENS = frozenset(tokens(phrase) for phrase in _WHOLE)
_WITHIN_TOKENS = frozenset(tokens(phrase) for phrase in _WITHIN)
_WITHIN_LENGTHS = sorted({len(run) for run in _WITHIN_TOKENS})


def abstains(answer: str) -> bool:
    """Whether an answer says that there is none: it is one of `_WHOLE`, or one of `_WITHIN` is a run of its words.

    An answer that abstains and then guesses abstains.
    """
    said = tuple(word for word in tokens(answer) if word not in _ADVERBS)
    runs = (said[i : i + n] for n in _WITHIN_LENGTHS for i in range(len(said) - n + 1))
    return said in _WHOLE_TOKENS or any(run in _WITHIN_TOKENS for run in runs)


def token_f1(answer: str, gold: str) -> float:
    """F1 of the answer's words against the gold's, 0 to 1: 2c / (a + g), for a and g words with c in common.

    Words are counted as often as they come (bags). 1 if both have none.
    """
    said, wanted = tokens(answer), tokens(gold)
    if not said and not wanted:
        return 1.0
    return 2 * sum((Counter(said) & Counter(wanted)).values()) / (len(said) + len(wanted))


def exact(item: Item, answer: str) -> bool:
    """Whether the answer is one of the golds, both normalised."""
    return _right(item, answer, lambda gold: tokens(answer) == tokens(gold))


def f1(item: Item, answer: str) -> bool:
    """Whether the answer's token F1 is at least F1_THRESHOLD against one of the golds."""
    return _right(item, answer, lambda gold: token_f1(answer, gold) >= F1_THRESHOLD)


def contains(item: Item, answer: str) -> bool:
    """Whether the words of one of the golds stand in the answer, one after the other."""
    return _right(item, answer, lambda gold: is_run(tokens(gold), tokens(answer)))


ORACLES: Final[dict[str, Callable[[Item, str], bool]]] = {"exact": exact, "f1": f1, "contains": contains}
"""Item and answer → whether the answer is right.

For every oracle: an answer without a word is wrong. An unanswerable item's answer is right if and only if it abstains.
An answerable item's answer is right if it equals a gold, otherwise wrong if it abstains, otherwise as the rule says.
"""


def accepting(item: Item, answer: str) -> tuple[str, ...]:
    """The names of the oracles for which the answer is right."""
    return tuple(name for name, oracle in ORACLES.items() if oracle(item, answer))


def _right(item: Item, answer: str, rule: Callable[[str], bool]) -> bool:
    said = tokens(answer)
    if not said:
        return False
    if not item.answerable:
        return abstains(answer)
    if any(said == tokens(gold) for gold in item.golds):
        return True
    return not abstains(answer) and any(rule(gold) for gold in item.golds)


def is_run(run: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """Whether the words of `run`, at least one, stand in `words` one after the other."""
    return bool(run) and any(words[i : i + len(run)] == run for i in range(len(words) - len(run) + 1))


def agreement(generated: pl.DataFrame) -> pl.DataFrame:
    """How far each two oracles say the same of the same answers.

    Cohen's κ = (p − e) / (1 − e), p the share of agreement (`value`) and e what two oracles with these shares of right
    answers would reach by chance (Educ. Psychol. Meas. 20, 1960, 37-46); null where e is 1 or there is no case.

    Args:
        generated: rows with one bool column per oracle, null where the answer was not read.

    Returns:
        AGREEMENT, a row for each two of ORACLES and SHOWN_GOLD that are columns. `cases` are rows on which both speak,
        `hits` those on which they agree, `excluded` the rest.
    """
    names = [name for name in (*ORACLES, SHOWN_GOLD) if name in generated.columns]
    rows = [_agreement(generated, first, second) for first, second in combinations(names, 2)]
    return pl.DataFrame(rows, schema=AGREEMENT)


def _agreement(generated: pl.DataFrame, first: str, second: str) -> dict[str, Any]:
    read = generated.select(first, second).drop_nulls()
    one, other = read[first].to_numpy().astype(bool), read[second].to_numpy().astype(bool)
    cases, hits = read.height, int(np.sum(one == other))
    about = {"first": first, "second": second, "hits": hits, "cases": cases, "excluded": generated.height - cases}
    if not cases:
        return about | {"value": None, "kappa": None}
    p, q = int(one.sum()), int(other.sum())
    chance = p * q + (cases - p) * (cases - q)  # times cases², so that 1 is exactly 1
    kappa = None if chance == cases**2 else (hits * cases - chance) / (cases**2 - chance)
    return about | {"value": hits / cases, "kappa": kappa}
