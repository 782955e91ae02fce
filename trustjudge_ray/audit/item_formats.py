"""One question of a file, in the shape its data set publishes, as an Item; or why it cannot be one.

The shapes are those of the official files, as their documentation gives them; nothing else is guessed. Each function
here takes JSON that was read already and hands on, for every question, its place and an Item or a `Refusal`.
"""

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from trustjudge_ray.audit.qa import ABSTENTION, Item, abstains, accepting, normalised
from trustjudge_ray.identity import joined_hash

KEYS: Final = ("id", "context", "question", "golds", "answerable", "wrong", "hops", "benchmark", "passage_id")
"""The keys of our own form; the first three must be there, and `golds` where `answerable` is not false."""


class Refusal(ValueError):
    """A question cannot be an item: a word to count by, and a sentence for the person who mends it."""

    def __init__(self, reason: str, detail: str):
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True)
class Found:
    """What stands at a place of a file: an item or why there is none, and what of the item was left out."""

    place: str
    item: Item | Refusal
    remarks: tuple[Refusal, ...] = ()


Reader = Callable[[Any, str], Iterator[Found]]
"""JSON and its place → what was found there."""


def passage_hash(context: str) -> str:
    """What a passage without an id is called: 12 hex digits of its text, the same in every file that has it."""
    return joined_hash("passage", context)[:12]


def from_line(line: Any, place: str) -> Iterator[Found]:
    """Our own form: an object with KEYS. `answerable` is true, `benchmark` `own` and `passage_id` the passage's hash
    where they are not given. Other keys are passed over, but not one that looks like a misspelt key."""

    def read() -> tuple[Item, tuple[Refusal, ...]]:
        known = _object(line, place)
        for key in sorted(set(known) - set(KEYS)):
            if close := difflib.get_close_matches(key, KEYS, n=1, cutoff=0.8):
                raise Refusal(
                    "unknown_key", f"{place}: has {key!r}, which is no key of an item; {close[0]!r} is meant?"
                )
        context, answerable = _text(known, "context", place), _flag(known, "answerable", place, True)
        hops = known.get("hops")
        if hops is not None and (not isinstance(hops, int) or isinstance(hops, bool) or hops < 1):
            raise Refusal("wrong_type", f"{place}.hops: {_said(hops)}; a whole number from 1, or null, is meant")
        passage = _text(known, "passage_id", place) if known.get("passage_id") is not None else passage_hash(context)
        benchmark = _text(known, "benchmark", place) if known.get("benchmark") is not None else "own"
        asked = (_id(known, "id", place), benchmark, passage, context, _text(known, "question", place))
        answers = (_texts(known, "golds", place), answerable, _texts(known, "wrong", place), hops)
        return _item(place, *asked, *answers)

    yield _found(place, read)


def from_article(article: Any, place: str) -> Iterator[Found]:
    """SQuAD 1.1 and 2.0: an element of `data`, {title, paragraphs[{context, qas[{id, question, answers[{text}],
    is_impossible, plausible_answers[{text}]}]}]}. Plausible answers are wrong ones. Hops are not said."""
    for at, paragraph in _elements(article, "paragraphs", place):
        yield from under(at, partial(_from_paragraph, paragraph))


def _from_paragraph(paragraph: Any, place: str) -> Iterator[Found]:
    context = _text(paragraph, "context", place)
    for inner, qa in _elements(paragraph, "qas", place):

        def read(qa: Any = qa, inner: str = inner) -> tuple[Item, tuple[Refusal, ...]]:
            known = _object(qa, inner)
            impossible = _flag(known, "is_impossible", inner, False)
            golds = [_text(a, "text", at) for at, a in _optional(known, "answers", inner)]
            wrong = [_text(a, "text", at) for at, a in _optional(known, "plausible_answers", inner)]
            asked = (_id(known, "id", inner), "squad", passage_hash(context), context, _text(known, "question", inner))
            return _item(inner, *asked, golds, not impossible, wrong)

        yield _found(inner, read)


def from_passage(passage: Any, place: str, passage_id: str) -> Iterator[Found]:
    """DROP: a value of the file's object, {passage, qa_pairs[{question, query_id, answer, validated_answers}]}, its key
    being the passage's id. An answer is {number, date{day, month, year}, spans}, of which one is filled; a date is
    written day month year, several spans "x, y" (shown) or "x and y". Every question has an answer."""
    for inner, pair in _elements(passage, "qa_pairs", place):

        def read(pair: Any = pair, inner: str = inner) -> tuple[Item, tuple[Refusal, ...]]:
            known = _object(pair, inner)
            golds = _drop_answers(known.get("answer"), f"{inner}.answer")
            for at, answer in _optional(known, "validated_answers", inner):
                golds += _drop_answers(answer, at)
            asked = (_id(known, "query_id", inner), "drop", passage_id, _text(passage, "passage", place))
            return _item(inner, *asked, _text(known, "question", inner), golds)

        yield _found(inner, read)


def from_hotpot(question: Any, place: str) -> Iterator[Found]:
    """HotpotQA: an element of the file's list, {_id, question, answer, supporting_facts[[title, sentence]],
    context[[title, [sentences]]]}. Each question has a passage of its own: its paragraphs, each under its title. Hops
    are the distinct titles of the supporting facts; to "yes" the wrong answer is "no" and the other way round."""

    def read() -> tuple[Item, tuple[Refusal, ...]]:
        known = _object(question, place)
        paragraphs = []
        for at, titled in _elements(known, "context", place):
            title, sentences = _pair(titled, at, str, list, "[title, [sentences]]")
            if not all(isinstance(sentence, str) for sentence in sentences):
                raise Refusal("wrong_type", f"{at}[1]: {_said(sentences)}; a list of texts is meant")
            paragraphs.append((title, " ".join(sentence.strip() for sentence in sentences)))
        facts = [
            _pair(fact, at, str, int, "[title, sentence]") for at, fact in _optional(known, "supporting_facts", place)
        ]
        golds = [known["answer"]] if known.get("answer") else []
        wrong = [
            {"yes": "no", "no": "yes"}[said] for said in (normalised(str(g)) for g in golds) if said in ("yes", "no")
        ]
        asked = (_id(known, "_id", place), "hotpotqa", *_titled(paragraphs), _text(known, "question", place))
        return _item(place, *asked, golds, True, wrong, len({title for title, _ in facts}) or None)

    yield _found(place, read)


def from_musique(question: Any, place: str) -> Iterator[Found]:
    """MuSiQue (Ans and Full): a line, {id, paragraphs[{idx, title, paragraph_text, is_supporting}], question, answer,
    answer_aliases, answerable}. Hops are the number that the id begins with (`3hop1__…` is 3).

    In Full a question comes twice under one id, once without a paragraph that its answer needs: that one is called
    id/unanswerable, the answer that it would have had is a wrong one, and both share a passage_id (the id).
    """

    def read() -> tuple[Item, tuple[Refusal, ...]]:
        known = _object(question, place)
        identity, answerable = _id(known, "id", place), _flag(known, "answerable", place, True)
        texts = [
            (_text(p, "title", a), _text(p, "paragraph_text", a)) for a, p in _elements(known, "paragraphs", place)
        ]
        answers = [known["answer"]] if known.get("answer") else []
        answers += _texts(known, "answer_aliases", place)
        golds, wrong = (answers, []) if answerable else ([], answers[:1])
        hops = int(identity[0]) if identity[1:4] == "hop" and identity[0] in "123456789" else None
        name = identity if answerable else f"{identity}/unanswerable"
        asked = (name, "musique", identity, _titled(texts)[1], _text(known, "question", place))
        return _item(place, *asked, golds, answerable, wrong, hops)

    yield _found(place, read)


def under(place: str, read: Callable[[str], Iterator[Found]]) -> Iterator[Found]:
    """What is found below a place; where its own frame is wrong, that."""
    try:
        yield from read(place)
    except Refusal as refusal:
        yield Found(place, refusal)


def _found(place: str, read: Callable[[], tuple[Item, tuple[Refusal, ...]]]) -> Found:
    try:
        return Found(place, *read())
    except Refusal as refusal:
        return Found(place, refusal)


def _item(
    place: str,
    name: str,
    benchmark: str,
    passage: str,
    context: str,
    question: str,
    golds: Sequence[Any],
    answerable: bool = True,
    wrong: Sequence[Any] = (),
    hops: int | None = None,
) -> tuple[Item, tuple[Refusal, ...]]:
    """The item, golds and wrong answers each once in their order; a wrong answer that an oracle takes for right is left
    out with a remark."""
    right, false = _distinct(golds, f"{place}: answers"), _distinct(wrong, f"{place}: wrong answers")
    if answerable and not right:
        raise Refusal("no_gold", f"{place}: {question!r} has no answer and is not marked unanswerable")
    if not answerable and not all(map(abstains, right)):
        raise Refusal("gold_of_unanswerable", f"{place}: marked unanswerable, but has the answer {right[0]!r}")
    item = Item(name, benchmark, passage, context, question, right or (ABSTENTION,), answerable, false, hops)
    odd = {text: found for text in false if (found := accepting(item, text))}
    remarks = (
        Refusal("wrong_is_right", f"{place}: the wrong answer {text!r} is right for {', '.join(found)}; left out")
        for text, found in odd.items()
    )
    kept = tuple(text for text in false if text not in odd)
    return replace(item, wrong=kept), tuple(remarks)


def _distinct(texts: Sequence[Any], what: str) -> tuple[str, ...]:
    for text in texts:
        if not isinstance(text, str) or not normalised(text):
            raise Refusal("wrong_type", f"{what}: {_said(text)}; a text that is not blank is meant")
        _sayable(text, what)
    return tuple(dict.fromkeys(text.strip() for text in texts))


def _drop_answers(answer: Any, place: str) -> list[str]:
    """The ways of writing one answer; none if nothing of it is filled."""
    known = _object(answer, place)
    number, date, spans = known.get("number"), known.get("date") or {}, _texts(known, "spans", place)
    if isinstance(number, str | int | float) and not isinstance(number, bool) and str(number).strip():
        return [str(number)]
    parts = [str(_object(date, f"{place}.date").get(part) or "").strip() for part in ("day", "month", "year")]
    if any(parts):
        return [" ".join(part for part in parts if part)]
    return list(dict.fromkeys((", ".join(spans), " and ".join(spans)))) if spans else []


def _titled(paragraphs: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """The hash and the text of paragraphs, each under its title."""
    context = "\n\n".join(f"{title}\n{text}" for title, text in paragraphs)
    return passage_hash(context), context


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Refusal("wrong_type", f"{place}: {_said(value)}; an object is meant")
    return value


def _text(holder: Any, key: str, place: str) -> str:
    known = _object(holder, place)
    if key not in known:
        raise Refusal("missing_key", f"{place}: no {key!r}; it has {sorted(known)}")
    if not isinstance(known[key], str) or not known[key].strip():
        raise Refusal("wrong_type", f"{place}.{key}: {_said(known[key])}; a text that is not blank is meant")
    _sayable(known[key], f"{place}.{key}")
    return known[key]


def _flag(holder: dict[str, Any], key: str, place: str, default: bool) -> bool:
    value = holder.get(key, default)
    if not isinstance(value, bool):
        raise Refusal("wrong_type", f"{place}.{key}: {_said(value)}; true or false is meant")
    return value


def _id(holder: dict[str, Any], key: str, place: str) -> str:
    """An id, which may be a whole number."""
    value = holder.get(key)
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(holder, key, place)


def _texts(holder: dict[str, Any], key: str, place: str) -> list[str]:
    return [text for _, text in _optional(holder, key, place)]


def _elements(holder: Any, key: str, place: str) -> Iterator[tuple[str, Any]]:
    """Place and value of each element of a list that must be there."""
    if key not in _object(holder, place):
        raise Refusal("missing_key", f"{place}: no {key!r}; it has {sorted(holder)}")
    yield from _optional(holder, key, place)


def _optional(holder: dict[str, Any], key: str, place: str) -> Iterator[tuple[str, Any]]:
    value = holder.get(key)
    if value is not None and not isinstance(value, list):
        raise Refusal("wrong_type", f"{place}.{key}: {_said(value)}; a list is meant")
    yield from ((f"{place}.{key}[{i}]", element) for i, element in enumerate(value or ()))


def _pair(value: Any, place: str, first: type, second: type, meant: str) -> tuple[Any, Any]:
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], first) and isinstance(value[1], second):
        return value[0], value[1]
    raise Refusal("wrong_type", f"{place}: {_said(value)}; {meant} is meant")


def _sayable(text: str, place: str) -> None:
    if any("\ud800" <= ch <= "\udfff" for ch in text):
        raise Refusal("lone_surrogate", f"{place}: half of a surrogate pair, which is no character; save as UTF-8")


def _said(value: Any) -> str:
    shown = repr(value)
    return f"got {shown[:60]}…" if len(shown) > 60 else f"got {shown}"
