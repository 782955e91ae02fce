"""Reading labels exactly: at which places of the token tree the judge is read, and what P(label) is there.

Nothing is searched for in generated text. The engine appends the opener's ids to a prompt and asks for the
log-probabilities of a few tokens at a few places (`Node`); `LabelTable.read` turns them into ln P(label).
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from trustjudge_ray.judging.base import Reading
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.judging.tokens import Tokenizer, own_ids

Path = tuple[int, ...]
_ROUNDING = 1e-3
"""How far above 0 a log-probability may be by rounding; beyond, it is none."""
_ZERO = -9999.0
"""Servers that cannot send −inf send this, or less."""
_SPACE_MARKS = (" ", "Ġ", "▁")


class LabelError(ValueError):
    """Labels cannot be read or told apart: names the labels, their tokens, and what to change."""


@dataclass(frozen=True, slots=True)
class Node:
    """A place at which the judge is read: after prompt, opener and `prefix`, the log-probabilities of `token_ids`.

    There may be more `token_ids` than an engine takes in one request; it splits them.
    """

    prefix: Path
    token_ids: Path


@dataclass(frozen=True)
class LabelTable:
    """How the labels of one protocol are read with one tokenizer.

    P(label) is the sum, over the label's `paths`, of the product of the raw probabilities along the path. A path ends
    where no other label is left. No path is the beginning of another, so the events are disjoint and their
    probabilities sum to at most 1.

    Attributes:
        opener, opener_ids: what is put before the label. The text is the protocol's opener, or the beginning of it
            where its end joins with the label into one token (`Score: ` and `4`); the paths then begin with the rest.
        label_texts: the protocol's, in its order.
        paths: for each label its paths, one for each spelling.
        nodes: where to read; the first is the root, whose prefix is empty.
    """

    opener: str
    opener_ids: Path
    label_texts: tuple[str, ...]
    paths: tuple[tuple[Path, ...], ...]
    nodes: tuple[Node, ...]

    @property
    def depth(self) -> int:
        """The longest prefix of a node: so many tokens of context are needed beyond prompt, opener and one token."""
        return max((len(node.prefix) for node in self.nodes), default=0)

    @cached_property
    def _steps(self) -> list[list[list[tuple[int, int]]]]:
        """For each label, for each path: the (node, token id) pairs whose probabilities are multiplied."""
        index = {node.prefix: i for i, node in enumerate(self.nodes)}
        return [[[(index[p[:i]], p[i]) for i in range(len(p))] for p in paths] for paths in self.paths]

    def read(self, logprobs: Sequence[Mapping[int, float]]) -> list[float]:
        """ln P(label) for each label, from a mapping of token id to raw natural log-probability for each node.

        −inf is probability 0. A NaN (or a log-probability clearly above 0, which is none) makes every label that
        depends on it NaN.

        Raises:
            ValueError: not one mapping for each node.
            KeyError: a token that a node asks for is missing.
        """
        if len(logprobs) != len(self.nodes):
            raise ValueError(f"{len(logprobs)} mappings of log-probabilities for {len(self.nodes)} nodes")
        return [
            _log_sum([math.fsum(_checked(logprobs[node][token]) for node, token in path) for path in paths])
            for paths in self._steps
        ]


def build_table(tokenizer: Tokenizer, protocol: Protocol) -> LabelTable:
    """The label table of a protocol; labels are tokenised in place, between its opener and its closer.

    A label that is the beginning of another in tokens (8 and 85) goes on with the closer, so that the two are told
    apart there. A closer that joins with the end of a label (`5]` as one token) is a second spelling beside the
    label's own. ` A` is a second spelling of `A` where each label so written is one token of its own; otherwise no
    label gets it, because then some labels would be credited with more spellings than others.

    An answer has no labels, and nothing is put before them.

    Raises:
        LabelError: labels cannot be told apart, or the tokenizer does not know them.
    """
    if not protocol.label_texts:
        return LabelTable("", (), (), (), ())
    place = _place(tokenizer, protocol)
    spellings = [_spellings(tokenizer, place, text, protocol) for text in protocol.label_texts]
    least = _least(tokenizer, place, spellings, protocol)
    spaced = _spaced(tokenizer, place, spellings, protocol)
    clash = _clash(spellings)
    if clash is not None:
        first, second, path = clash
        tokens = tokenizer.convert_ids_to_tokens(list(path))
        advice = "other label texts" if protocol.closer else "a closer such as ']', or other label texts"
        raise LabelError(
            f"protocol {protocol.name}: labels {protocol.label_texts[first]!r} and {protocol.label_texts[second]!r} "
            f"cannot be told apart: the first is the tokens {tokens} (ids {list(path)}), and the second begins with "
            f"them; give the protocol {advice}"
        )
    return table_of(
        [own + further for own, further in zip(spellings, spaced, strict=True)],
        protocol.label_texts,
        place.opener,
        place.opener_ids,
        least,
    )


def table_of(
    spellings: Sequence[Sequence[Path]],
    label_texts: Sequence[str],
    opener: str = "",
    opener_ids: Path = (),
    least: Mapping[Path, int] = MappingProxyType({}),
) -> LabelTable:
    """A label table from each label's spellings in tokens, closers included where there are any.

    Every spelling is followed up to the place where only its own label is left, and for at least `least` tokens (1).

    Raises:
        LabelError: a label's spelling is the beginning of another label's, or the same.
    """
    clash = _clash(spellings)
    if clash is not None:
        first, second, path = clash
        raise LabelError(f"labels {label_texts[first]!r} and {label_texts[second]!r} share the tokens {list(path)}")
    below = _labels_below(spellings)
    paths: list[tuple[Path, ...]] = []
    asked: dict[Path, dict[int, None]] = {(): {}}
    for own in spellings:
        ends = _ends(own, below, least)
        paths.append(ends)
        for path in ends:
            for i, token in enumerate(path):
                asked.setdefault(path[:i], {})[token] = None
    nodes = tuple(Node(prefix, tuple(tokens)) for prefix, tokens in asked.items())
    return LabelTable(opener, opener_ids, tuple(label_texts), tuple(paths), nodes)


def describe(table: LabelTable, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """A row for each label: its text, how it is spelled, the token ids and token texts read, and the requests needed.

    `spellings`, `token_ids` and `tokens` have one entry for each path; a path ends where no other label is left, so
    `1` of the labels 1 … 5 is read as itself and `1` of 1 … 100 with the closer.
    """
    rows = []
    for text, paths in zip(table.label_texts, table.paths, strict=True):
        rows.append(
            {
                "label": text,
                "spellings": [tokenizer.decode(list(path)) for path in paths],
                "token_ids": [list(path) for path in paths],
                "tokens": [tokenizer.convert_ids_to_tokens(list(path)) for path in paths],
                "requests": len({path[:i] for path in paths for i in range(len(path))}),
            }
        )
    return rows


def merged_closers(table: LabelTable, tokenizer: Tokenizer, closer: str) -> list[str]:
    """Texts of the tokens that begin with the closer and go on (`].`, or `]` and a newline), where a label is read
    with the closer because it is the beginning of another; otherwise none.

    Their probability is left out on purpose: P(8) = p(8)·p(]|8) is one definition for every tokenizer. A judge that
    likes to write such a token has less label mass on those labels (8, not 85) than it means: `label_mass` shows it.
    """
    spelled = own_ids(tokenizer, closer)
    closing = [path for own in table.paths for path in own if tokenizer.decode(list(path)).endswith(closer)]
    if not spelled or not closing:
        return []
    plain = "".join(tokenizer.convert_ids_to_tokens(spelled))
    longer = sorted(i for token, i in tokenizer.get_vocab().items() if token.startswith(plain) and token != plain)
    return [tokenizer.decode([i]) for i in longer]


def read_alternatives(alternatives: Sequence[tuple[str, float]], label_texts: Sequence[str]) -> Reading:
    """Read the label position from a listed top-k of (token text, log-probability), as other systems store it.

    A token is a label where its text is the label, or the label after one space (also written Ġ or ▁): nothing else is
    normalised, so a full-width 5 is not the label 5. An entry that repeats (same token, same log-probability) counts
    once; different tokens of one label add up. Labels that are not listed are None. −9999 and less is probability 0.

    Returns:
        A reading of status `ok`, `bad_logprob` (a NaN, or a log-probability clearly above 0, anywhere in the list), or
        `no_label_mass` (no label is listed with a probability).
    """
    listed = [(text, _checked(value)) for text, value in alternatives]
    bad = [text for text, value in listed if math.isnan(value)]
    if bad:
        return Reading(status="bad_logprob", detail=f"the log-probability of {bad[0]!r} is not one")
    found: dict[str, list[float]] = defaultdict(list)
    for text, value in dict.fromkeys(listed):
        label = text if text in label_texts else _without_space(text)
        found[label].append(value if value > _ZERO else -math.inf)
    values = [_log_sum(found[text]) if text in found else None for text in label_texts]
    if all(value is None or value == -math.inf for value in values):
        texts = [text for text, _ in listed]
        return Reading(status="no_label_mass", detail=f"no label has any probability among the listed tokens {texts}")
    return Reading(label_logprobs=values)


def _checked(logprob: float) -> float:
    return logprob if logprob <= _ROUNDING else math.nan


def _log_sum(values: Sequence[float]) -> float:
    """ln Σ exp(x): −inf of nothing, NaN where one is NaN."""
    if len(values) == 1:
        return values[0]
    if any(math.isnan(x) for x in values):
        return math.nan
    top = max(values, default=-math.inf)
    return top if top == -math.inf else top + math.log(math.fsum(math.exp(x - top) for x in values))


def _without_space(text: str) -> str:
    return text[1:] if text[:1] in _SPACE_MARKS else text


def _labels_below(spellings: Sequence[Sequence[Path]]) -> dict[Path, set[int]]:
    """Which labels have a spelling that begins with each path."""
    below: dict[Path, set[int]] = defaultdict(set)
    for label, own in enumerate(spellings):
        for path in own:
            for end in range(len(path) + 1):
                below[path[:end]].add(label)
    return below


def _ends(own: Sequence[Path], below: Mapping[Path, set[int]], least: Mapping[Path, int]) -> tuple[Path, ...]:
    """A label's spellings up to where it alone is left, without those that begin with another of its own."""
    found: list[Path] = []
    for path in own:
        ends = range(least.get(path, 1), len(path) + 1)
        found.append(next(path[:end] for end in ends if len(below[path[:end]]) == 1))
    unique = dict.fromkeys(found)
    return tuple(path for path in unique if not any(path[:end] in unique for end in range(1, len(path))))


def _clash(spellings: Sequence[Sequence[Path]]) -> tuple[int, int, Path] | None:
    """Two labels of which the first's whole spelling begins (or is) a spelling of the second, and that spelling."""
    below = _labels_below(spellings)
    for label, own in enumerate(spellings):
        for path in own:
            others = sorted(below[path] - {label})
            if others:
                return label, others[0], path
    return None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where labels begin: after `opener` (ids `opener_ids`); each label's tokens begin with the text `moved`."""

    opener: str
    opener_ids: Path
    moved: str


def _place(tokenizer: Tokenizer, protocol: Protocol) -> _Place:
    """The place as late in the protocol's opener as a token boundary before every label allows."""
    full = protocol.opener
    for end in range(len(full), 0, -1):
        ids = own_ids(tokenizer, full[:end])
        texts = [full + text + closer for text in protocol.label_texts for closer in {"", protocol.closer}]
        if ids and all(own_ids(tokenizer, text)[: len(ids)] == ids for text in texts):
            return _Place(full[:end], tuple(ids), full[end:])
    raise LabelError(
        f"protocol {protocol.name}: the opener {full!r} joins with the labels into one token from its first character; "
        f"put a word before it, such as 'Score: ['"
    )


def _tokens(tokenizer: Tokenizer, place: _Place, text: str) -> Path | None:
    """The tokens of `text` after the place's opener, or None where there is no token boundary."""
    ids = tuple(own_ids(tokenizer, place.opener + text))
    return ids[len(place.opener_ids) :] if ids[: len(place.opener_ids)] == place.opener_ids else None


def _spellings(tokenizer: Tokenizer, place: _Place, label: str, protocol: Protocol) -> list[Path]:
    """A label's own spellings in place, each with the closer."""
    alone = _tokens(tokenizer, place, place.moved + label)
    closed = _tokens(tokenizer, place, place.moved + label + protocol.closer)
    if not alone or not closed or tokenizer.unk_token_id in closed:
        raise LabelError(
            f"protocol {protocol.name}: this tokenizer cannot write the label {label!r} between {protocol.opener!r} "
            f"and {protocol.closer!r}; choose labels and a closer of characters that it knows"
        )
    if closed[: len(alone)] == alone:
        return [closed]
    return [closed, alone + tuple(own_ids(tokenizer, protocol.closer))]


def _least(
    tokenizer: Tokenizer, place: _Place, spellings: Sequence[Sequence[Path]], protocol: Protocol
) -> dict[Path, int]:
    """How much of a spelling must be read. Where the paths begin with the end of the opener, one label may be left
    before any of its own text is read (`[A` and `[`, `B`): then all tokens of the labels are."""
    if not place.moved:
        return {}
    whole = [len(_tokens(tokenizer, place, place.moved + text) or ()) for text in protocol.label_texts]
    return {path: min(n, len(path)) for own, n in zip(spellings, whole, strict=True) for path in own}


def _spaced(
    tokenizer: Tokenizer, place: _Place, spellings: Sequence[Sequence[Path]], protocol: Protocol
) -> list[list[Path]]:
    """The spelling of each label with a space more (or, where the place already begins with one, a space less), if
    for every label it is one token that no other spelling begins with; otherwise none for any."""
    before = place.moved[:-1] if place.moved.endswith(" ") else place.moved + " "
    paths = [_tokens(tokenizer, place, before + text) for text in protocol.label_texts]
    taken = {path[0] for own in spellings for path in own}
    tokens = [path[0] for path in paths if path is not None and len(path) == 1 and path[0] not in taken]
    if len(set(tokens)) < len(spellings) or tokenizer.unk_token_id in tokens:
        return [[] for _ in spellings]
    return [[(token,)] for token in tokens]
