"""Preference data to RESPONSES: pairs (chosen, rejected) and sets of answers, one object each.

A pair becomes two responses, `chosen` and `rejected`, of a question of its own, so that nothing needs to be brought
together; a set of N answers becomes N responses. `question_id` is a hash of the conversation, the answers and
the models that are named, unless `corpus.fields` maps it to a field. `meta_json` keeps under `preference` what the
source said: `score` (of a pair 1 and 0, of a set the source's own) and `model` where it named one; where it did not, a
response's model is what it is.

prompt: explicit, or where it is null what both sides begin with (see `conversation_split` and `text_split`).
empty and identical answers are read: the plan knows that no judge need be asked, and the pair is dropped by name later.
what has no pair is quarantined: `prompts_differ`, `not_a_transcript`, `not_an_answer`, `too_few_responses`, and where
    no prompt is told from the sides, `identical_sides` and `empty_side`.
human scores: none, unless `human_chosen` and `human_rejected` (of a set `human_score`) are there or mapped, also to
    constants: a file whose labels are people's is read with {human_chosen: "=1", human_rejected: "=0"}.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from trustjudge_ray.corpus import values
from trustjudge_ray.corpus.objects import Rejection, kind_of, names_of
from trustjudge_ray.corpus.values import UnreadableError
from trustjudge_ray.identity import content_hash

if TYPE_CHECKING:
    from trustjudge_ray.corpus.formats import FieldMap, Parts

SIDES: Final = ("chosen", "rejected")
_TURN: Final = re.compile(r"(?:^|\r?\n\r?\n)(Human|Assistant):")
_ASKED: Final = re.compile(r"\r?\n\r?\nAssistant:\s*\Z")
_ROLES: Final = {"Human": "user", "Assistant": "assistant"}
TO_ANSWER: Final = ("user", "tool", "function")
"""Whose message an answer of several turns may follow: its turns and the user's are told apart by it later."""
_PAIR_FIELDS: Final = ("category", "prompt", "score_chosen", "score_rejected", "human_chosen", "human_rejected")

Messages = list[dict[str, str]]
Answers = Sequence[Sequence[str | None]]
"""Of each answer its turns, after its model where one is named."""


def trl(content: dict[str, Any], fields: "FieldMap", flags: tuple[str, ...] = ()) -> "Parts":
    """TRL's standard preference rows: texts `chosen` and `rejected`, and `prompt` unless it is implicit.

    Transcripts are read as `hh_rlhf` does, also beside a prompt that is within both, and a prompt that is one up to an
    assistant's turn, which both sides may repeat.
    """
    sides = [_text_side(content, fields, side) for side in SIDES]
    prompt = fields.get(content, "prompt")
    whole = [transcript(side) for side in sides]
    if all(whole) and (prompt is None or all(_asks(prompt, turns[:-1]) for turns in whole)):
        return hh_rlhf(content, fields, flags)
    if prompt is None:
        start, sides[0], sides[1] = text_split(*sides)
    else:
        start = _text_prompt(prompt, fields)
    turns = transcript(start) if _ASKED.search(start) else None
    if turns:
        _refuse_no_question(turns[:-1], fields.say("prompt"))
        asked = start.rstrip()
        if all(side.startswith(asked) for side in sides):
            sides = [side[len(asked) :] for side in sides]
        sides = [side.removeprefix(" ") for side in sides]
    messages = turns[:-1] if turns else [{"role": "user", "content": start}]
    return _pair(content, fields, list(flags), messages, [[side] for side in sides])


def trl_conversational(content: dict[str, Any], fields: "FieldMap", flags: tuple[str, ...] = ()) -> "Parts":
    """TRL's conversational preference rows: lists of messages `chosen` and `rejected`, and `prompt` unless it is
    implicit. A prompt that is a text is the user's message where each side is an answer alone; beside whole
    conversations it is implicit too, and must be one of the common messages."""
    marks = list(flags)
    sides = [_message_side(content, fields, side, marks) for side in SIDES]
    prompt = fields.get(content, "prompt")
    alone = any(sides) and all([message["role"] for message in side] in ([], ["assistant"]) for side in sides)
    if prompt == [] and alone:
        raise UnreadableError("missing_field", f"{fields.say('prompt')} is an empty list; messages, or a text")
    if (isinstance(prompt, list) and prompt) or (isinstance(prompt, str) and alone):
        messages = _messages(prompt, fields.say("prompt"), marks)
        if all(side[: len(messages)] == messages for side in sides):
            sides = [side[len(messages) :] for side in sides]
        messages, answers = _answered(messages, sides)
    else:
        messages, answers = conversation_split(*sides)
        said = "" if prompt in (None, []) else values.text(prompt, fields.say("prompt")).strip()
        if said and said not in [message["content"].strip() for message in messages]:
            raise UnreadableError(
                "prompts_differ", f"{fields.say('prompt')} is none of the messages before the answers"
            )
    return _pair(content, fields, marks, messages, answers)


def hh_rlhf(content: dict[str, Any], fields: "FieldMap", flags: tuple[str, ...] = ()) -> "Parts":
    """Transcripts `chosen` and `rejected` whose turns begin with "\\n\\nHuman:" and "\\n\\nAssistant:", also with
    "\\r\\n" for the line ends. The answers are their last turns; all turns before must be the same, and a `prompt`
    beside them must be these or one of them."""
    sides = [_turns_with_an_answer(_text_side(content, fields, side), fields.say(side)) for side in SIDES]
    before, answers = [turns[:-1] for turns in sides], [[turns[-1]["content"]] for turns in sides]
    _refuse_no_question(max(before, key=len), "chosen and rejected")
    if before[0] != before[1]:
        raise UnreadableError("prompts_differ", f"chosen and rejected differ before their last turn: {_where(*before)}")
    prompt = fields.get(content, "prompt")
    if isinstance(prompt, str) and not _asks(prompt, before[0]):
        raise UnreadableError("prompts_differ", f"{fields.say('prompt')} is none of the turns before the answers")
    return _pair(content, fields, list(flags), before[0], answers)


def prompt_responses(content: dict[str, Any], fields: "FieldMap", flags: tuple[str, ...] = ()) -> "Parts":
    """A prompt (a text or messages) and `responses`, a list of texts or of objects {response, model, score,
    human_score}; UltraFeedback's raw rows are such objects under other names.

    response_id counts the responses from 0, unreadable ones too; without a model it is `response-N`.
    """
    marks = list(flags)
    messages = _messages(fields.needed(content, "prompt"), fields.say("prompt"), marks)
    if not messages:
        raise UnreadableError("missing_field", f"{fields.say('prompt')} is an empty list; messages, or a text")
    given = fields.needed(content, "responses")
    if not isinstance(given, list):
        raise UnreadableError("wrong_type", f"{fields.say('responses')}: {kind_of(given)}; a list of responses")
    parts: Parts = []
    for place, element in enumerate(given):
        try:
            parts.append(_element(element, fields, f"{fields.names['responses']}[{place}]", place))
        except UnreadableError as error:
            parts.append(error.rejection)
    rows = [part for part in parts if isinstance(part, dict)]
    if len(rows) < 2:
        said = "; ".join(part.detail for part in parts if isinstance(part, Rejection))
        detail = f"{fields.say('responses')} has {len(rows)} that can be read; a pair needs two"
        raise UnreadableError("too_few_responses", f"{detail} ({said})" if said else detail)
    shared = _shared(content, fields, marks, messages, [[row["model"], *row["replies"]] for row in rows])
    extras = fields.extras(content, [*_read(fields), "category", "prompt", "responses"])
    for row in rows:
        row |= shared | {"meta_json": _meta(extras | row.pop("beside"), marks, row.pop("said"))}
    return parts


def transcript(text: str) -> Messages:
    """The turns of a transcript; none where it does not begin with one. One space after the mark is not the turn's."""
    pieces = _TURN.split(text)
    if pieces[0].strip():
        return []
    return [
        {"role": _ROLES[name], "content": said.removeprefix(" ")}
        for name, said in zip(pieces[1::2], pieces[2::2], strict=True)
    ]


def _turns_with_an_answer(text: str, where: str) -> Messages:
    """The turns of a transcript whose last one is the assistant's."""
    turns = transcript(text)
    if turns and turns[-1]["role"] == "assistant":
        return turns
    if not text.strip():
        raise UnreadableError("empty_side", f"{where} is empty; a transcript")
    got = f"ends with a turn of Human's, {turns[-1]['content'][:60]!r}" if turns else f"begins with {text[:60]!r}"
    detail = f'{where} {got}; turns begin with "\\n\\nHuman:" and "\\n\\nAssistant:", and the last is the assistant\'s'
    raise UnreadableError("not_a_transcript", f"{detail}. Answers without marks are read by corpus.format trl")


def _asks(prompt: Any, before: Messages) -> bool:
    """Whether a prompt beside transcripts is their turns before the answer, or one of these, or blank."""
    said = ["", *(message["content"].strip() for message in before)]
    return isinstance(prompt, str) and (prompt.strip() in said or transcript(_ASKED.sub("", prompt)) == before)


def _refuse_no_question(messages: Messages, where: str) -> None:
    if not messages:
        raise UnreadableError("not_a_transcript", f"{where}: no turn before the answer")


def text_split(chosen: str, rejected: str) -> tuple[str, str, str]:
    """The prompt that two texts share, and the two answers: the longest common beginning, cut back to the end of its
    last white space, so that no word is torn (TRL's `extract_prompt` cuts within words). Two equal texts share all but
    their last line.

    Raises:
        UnreadableError: there is no such beginning; see `_unsplit`.
    """
    places = (i for i, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b)
    shared = chosen[: next(places, min(len(chosen), len(rejected)))]
    if chosen == rejected:
        cut = shared.rstrip().rfind("\n") + 1
    else:
        cut = len(shared) - len(re.split(r"\s", shared)[-1])
    if not chosen[:cut].strip():
        raise UnreadableError(
            _unsplit(chosen, rejected), "where the prompt ends cannot be told from chosen and rejected; map a prompt"
        )
    return chosen[:cut], chosen[cut:], rejected[cut:]


def conversation_split(chosen: Messages, rejected: Messages) -> tuple[Messages, list[list[str]]]:
    """The messages that two conversations share, as TRL's `extract_prompt` cuts them, and the answers' turns.

    Two equal conversations share all but their last message. An answer of several turns is read where the user's turns
    within it are the same on both sides; they then stand at the end of the messages, as RESPONSES has it.

    Raises:
        UnreadableError: `prompts_differ`, `not_an_answer`, or see `_unsplit`.
    """
    common = sum(1 for _ in _common(chosen, rejected))
    if common == len(chosen) == len(rejected):
        common -= 1
    if common < 1:
        differ = f"no first message in common: {_where(chosen, rejected)}"
        said = "no message before the answer" if chosen == rejected else differ
        raise UnreadableError(_unsplit(chosen, rejected), said)
    return _answered(chosen[:common], [chosen[common:], rejected[common:]])


def _unsplit(chosen: str | Messages, rejected: str | Messages) -> str:
    """Why nothing in the sides can be told to be the prompt: one of them is empty, or they are the same, or neither."""
    if not chosen or not rejected:
        return "empty_side"
    return "identical_sides" if chosen == rejected else "prompts_differ"


def _answered(prompt: Messages, rests: list[Messages]) -> tuple[Messages, list[list[str]]]:
    """The conversation and the turns of each answer. A side that says nothing has an empty answer."""
    asked = []
    for side, rest in zip(SIDES, rests, strict=True):
        roles = [message["role"] for message in rest]
        if roles and roles[0] == "user" and rests[0] != rests[1]:
            raise UnreadableError("prompts_differ", f"the user's turns differ: {_where(*rests)}")
        turns = ["assistant" if i % 2 == 0 else "user" for i in range(len(roles))]
        if roles != turns or (roles and roles[-1] == "user"):
            detail = f"{side}: after the common messages come {roles}; assistant, or assistant and user by turns"
            raise UnreadableError("not_an_answer", detail)
        asked.append(rest[1::2])
    if asked[0] != asked[1] and all(rests):
        raise UnreadableError("prompts_differ", f"the user's turns within the answers differ: {_where(*asked)}")
    answers = [[message["content"] for message in rest[::2]] or [""] for rest in rests]
    if max(asked) and prompt[-1]["role"] not in TO_ANSWER:
        detail = f"an answer of several turns follows the role {prompt[-1]['role']}; one of {', '.join(TO_ANSWER)}"
        raise UnreadableError("not_an_answer", detail)
    return [*prompt, *max(asked, key=len)], answers


def _common(a: Sequence[Any], b: Sequence[Any]) -> Iterator[Any]:
    for one, other in zip(a, b, strict=False):
        if one != other:
            return
        yield one


def _where(a: Messages, b: Messages) -> str:
    """The first place where two conversations differ: who speaks there, and what from shortly before the difference.
    Letters that only look the same are told by their codes."""
    place = sum(1 for _ in _common(a, b))
    turns = [side[place] if place < len(side) else None for side in (a, b)]
    texts = [turn["content"] if turn else "" for turn in turns]
    same = sum(1 for _ in _common(*texts))
    say = ascii if len({unicodedata.normalize("NFC", text) for text in texts}) == 1 else repr
    said = [f"{turn['role']} {say(turn['content'][max(same - 20, 0) :][:60])}" if turn else "nothing" for turn in turns]
    return f"turn {place + 1}, character {same + 1}: {said[0]} and {said[1]}"


def _text_prompt(prompt: Any, fields: "FieldMap") -> str:
    if isinstance(prompt, list) and any(isinstance(turn, dict) and "role" in turn for turn in prompt):
        detail = f"{fields.say('prompt')}: messages beside texts; all as texts, or as messages (trl-conversational)"
        raise UnreadableError("wrong_type", detail)
    return values.text(prompt, fields.say("prompt"))


def _text_side(content: dict[str, Any], fields: "FieldMap", side: str) -> str:
    value = fields.needed(content, side)
    if isinstance(value, list):
        detail = (
            f"{fields.say(side)}: a list where text is meant; messages are read by corpus.format trl-conversational"
        )
        raise UnreadableError("wrong_type", detail)
    return values.text(value, fields.say(side))


def _message_side(content: dict[str, Any], fields: "FieldMap", side: str, marks: list[str]) -> Messages:
    value = fields.needed(content, side)
    if not isinstance(value, list):
        detail = f"{fields.say(side)}: {kind_of(value)} where messages are meant; texts are read by corpus.format trl"
        raise UnreadableError("wrong_type", detail)
    for place, turn in enumerate(value):
        if not isinstance(turn, dict) or "role" not in turn:
            detail = f"{fields.say(side)}[{place}]: {kind_of(turn)} where a message is meant, {{role, content}}"
            raise UnreadableError("wrong_type", detail)
    return _messages(value, fields.say(side), marks)


def _messages(value: Any, where: str, marks: list[str]) -> Messages:
    messages, ignored = values.messages(value, where)
    if ignored and "message_fields_ignored" not in marks:
        marks.append("message_fields_ignored")
    return messages


def _read(fields: "FieldMap") -> list[str]:
    return ["question_id"] if "question_id" in fields.given else []


def _shared(
    content: dict[str, Any], fields: "FieldMap", marks: list[str], messages: Messages, answers: Answers
) -> dict[str, Any]:
    """The columns that belong to the question, flagged `no_question` where the user says nothing in it. Their
    `question_id` counts only where it is mapped: most files name prompts by it, which several pairs have."""
    turns = [[message["role"], message["content"]] for message in messages]
    given = "question_id" in fields.given or "question_id" in fields.constants
    if not any(message["content"].strip() for message in messages if message["role"] == "user"):
        marks.append("no_question")
    category = fields.get(content, "category")
    return {
        "question_id": values.id_text(fields.needed(content, "question_id"), fields.say("question_id"))
        if given
        else content_hash([turns, answers]),
        "category": None if category is None else values.text(category, fields.say("category")),
        "messages": messages,
        "reference": None,
    }


def _pair(
    content: dict[str, Any], fields: "FieldMap", marks: list[str], messages: Messages, answers: list[list[str]]
) -> "Parts":
    """The two responses of a pair. Where the source scored both sides alike, it preferred neither."""
    given = [fields.get(content, f"model_{side}") for side in SIDES]
    models = [
        None if model is None else values.id_text(model, fields.say(f"model_{side}"))
        for side, model in zip(SIDES, given, strict=True)
    ]
    whose = [[model, *replies] for model, replies in zip(models, answers, strict=True)] if any(models) else answers
    shared = _shared(content, fields, marks, messages, whose)
    scores = [values.number(fields.get(content, f"score_{side}"), fields.say(f"score_{side}")) for side in SIDES]
    tied = scores[0] is not None and scores[0] == scores[1]
    unread = [f"model_{side}" for side in SIDES] + [*SIDES, "messages"]
    extras = fields.extras(content, [*_read(fields), *_PAIR_FIELDS, *(name for name in unread if name in fields.names)])
    parts: Parts = []
    for side, replies, score, named in zip(SIDES, answers, scores, models, strict=True):
        said = {"score": 1.0 if tied or side == "chosen" else 0.0, "rated": score, "model": named}
        human = values.number(fields.get(content, f"human_{side}"), fields.say(f"human_{side}"))
        row = {"response_id": side, "model": named or side, "replies": replies, "human_score": human}
        parts.append(shared | row | {"meta_json": _meta(extras, marks, said)})
    return parts


def _element(element: Any, fields: "FieldMap", where: str, place: int) -> dict[str, Any]:
    """The columns of one response of a set, with `said` for its meta_json, and what else it has `beside`."""
    if not isinstance(element, dict):
        element = {fields.names["response"]: element}
    text = element.get(fields.names["response"])
    if text is None:
        raise UnreadableError("missing_field", f"{where} has no {fields.names['response']}; it has {names_of(element)}")
    model = fields.get(element, "model")
    named = None if model is None else values.id_text(model, f"{where}.{fields.names['model']}")
    score, human = (
        values.number(fields.get(element, name), f"{where}.{fields.names[name]}") for name in ("score", "human_score")
    )
    extras = fields.extras(element, ["response", "model", "score", "human_score"])
    return {
        "response_id": str(place),
        "model": named or f"response-{place}",
        "replies": values.replies(text, f"{where}.{fields.names['response']}"),
        "human_score": human,
        "said": {"score": score, "model": named},
        "beside": {fields.names["responses"]: extras} if extras else {},
    }


def _meta(extras: dict[str, Any], marks: list[str], said: dict[str, Any]) -> str | None:
    """`meta_json` with what the source said; a field of theirs that is called so is `preference_`."""
    kept = {("preference_" if key == "preference" else key): value for key, value in extras.items()}
    told = {key: value for key, value in said.items() if value is not None}
    return values.meta_json(kept | {"preference": told}, marks)


PREFERENCE_FORMATS: Final = {
    "trl": trl,
    "trl-conversational": trl_conversational,
    "ultrafeedback": prompt_responses,
    "ultrafeedback-binarized": trl_conversational,
    "hh-rlhf": hh_rlhf,
    "prompt-responses": prompt_responses,
}

_OF_PAIRS: Final = ("question_id", *_PAIR_FIELDS, *SIDES, "model_chosen", "model_rejected")
_OF_SETS: Final = ("question_id", "category", "prompt", "responses", "response", "model", "score", "human_score")
_OF_ULTRAFEEDBACK: Final = {
    "category": "source",
    "prompt": "instruction",
    "responses": "completions",
    "score": "overall_score",
}
PREFERENCE_NAMES: Final[dict[str, dict[str, str]]] = {
    **{name: {ours: ours for ours in _OF_PAIRS} for name in ("trl", "trl-conversational", "hh-rlhf")},
    "ultrafeedback-binarized": {ours: ours for ours in (*_OF_PAIRS, "messages")},
    "prompt-responses": {ours: ours for ours in _OF_SETS},
    "ultrafeedback": {ours: _OF_ULTRAFEEDBACK.get(ours, ours) for ours in _OF_SETS},
}
"""Each format's fields of ours, and what they are called in a file of that format."""
