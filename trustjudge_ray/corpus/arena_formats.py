"""People's preferences between answers, as two kinds of public data set publish them: answers, and who preferred which.

lmarena: LMArena's battles, one object each, in the layouts of its releases. The vote is about these two answers alone,
    so a battle is a question of its own (`question_id`, or `id`): the winner has human_score 1, the other 0, and 0.5
    both where neither won (`tie`, `tie (bothbad)`, `both_bad`); scores of different battles are on no common scale.
    - 55k: `prompt`, `response_a` and `response_b` are JSON lists as text, one entry a turn; `winner_model_a`,
      `winner_model_b` and `winner_tie` are 1 or 0.
    - 100k: `conversation_a` and `conversation_b` are lists of {role, content}; `winner` is a word.
    - 140k: the same, where a content is a list of {type, text, image, mimeType}. `full_conversation` says all that
      again and is not kept; an `evaluation_order` over 1 says that the battle had earlier turns, which are not in its
      conversations: flagged `earlier_turns_left_out`.
    response_id is the model, as in battles that are imported. The user's turns must be the same on both sides. Of a
    turn only role and content are kept.
reward-bench: prompts with `chosen` and `rejected`, a text each (v1) or lists of texts (v2, where all of `chosen` are
    right; the subset Ties has many). human_score is 1 for chosen and 0 for rejected, so two answers of one list are a
    tie of the labels: nobody compared them. `question_id` is `subset/id`, as ids may begin anew in each subset, and the
    subset is the category. response_id is the list, in v2 with the place in it (`chosen-0`); it is the model too where
    none is named. In v2 `models` are those of chosen, then those of rejected, if there are as many.

Both keep under `preference` in meta_json what the source said: `score` (1, 0 or 0.5) and `model` where it named one.
Flags: `null_turn` (a null in place of a turn is read as an empty one), `unclear_winner` (the vote is no word or number
of the layout: no human_score). A battle with a fault is quarantined as a whole, because a vote on one answer is none:
`prompts_differ`, `same_model`, `turns_differ` (an answer has not as many turns as were asked), `not_text` (an image),
`a_judgment` (a battle without answers).
"""

import json
from typing import TYPE_CHECKING, Any, Final

from trustjudge_ray.corpus import values
from trustjudge_ray.corpus.objects import Rejection, kind_of
from trustjudge_ray.corpus.values import UnreadableError

if TYPE_CHECKING:
    from trustjudge_ray.corpus.formats import FieldMap, Parts

SCORES: Final[dict[str, tuple[float, float]]] = {
    "model_a": (1.0, 0.0),
    "model_b": (0.0, 1.0),
    "tie": (0.5, 0.5),
    "tie (bothbad)": (0.5, 0.5),
    "bothbad": (0.5, 0.5),
    "both_bad": (0.5, 0.5),
}
"""The words that `winner` may hold, and what they make of the two answers."""
_ONE_HOT: Final = {"winner_model_a": "model_a", "winner_model_b": "model_b", "winner_tie": "tie"}
_SIDES: Final = ("a", "b")
_TALKS: Final = ("conversation_a", "conversation_b")
_LISTS: Final = ("prompt", "response_a", "response_b")

Turns = list[dict[str, str]]
"""Messages {role, content}."""


def lmarena(content: dict[str, Any], fields: "FieldMap", flags: tuple[str, ...] = ()) -> "Parts":
    """One battle: two responses of a question of their own."""
    marks = list(flags)
    question_id, key = _battle_id(content, fields)
    models = [values.id_text(fields.needed(content, f"model_{s}"), fields.say(f"model_{s}")) for s in _SIDES]
    if models[0] == models[1]:
        detail = f"model_a and model_b are both {models[0]!r}: nobody preferred one to another"
        raise UnreadableError("same_model", detail)
    talks = any(fields.get(content, name) is not None for name in _TALKS)
    if not talks and all(fields.get(content, name) is None for name in _LISTS):
        raise UnreadableError("a_judgment", "a battle without its answers; `trustjudge import battles` reads it")
    messages, replies = (_of_conversations if talks else _of_lists)(content, fields, marks)
    _mark(content, messages, marks)
    _refuse_other_turns(messages, replies)
    scores = _votes(content, fields, marks)
    extras = fields.extras(content, ["category", "model_a", "model_b", *(_TALKS if talks else _LISTS)])
    extras = {name: value for name, value in extras.items() if name not in ("full_conversation", key)}
    shared = {"question_id": question_id, "category": _category(content, fields), "messages": messages}
    return [
        shared
        | {"reference": None, "response_id": model, "model": model, "replies": turns, "human_score": score}
        | {"meta_json": _meta(extras, marks, score, model)}
        for model, turns, score in zip(models, replies, scores, strict=True)
    ]


def reward_bench(content: dict[str, Any], fields: "FieldMap", flags: tuple[str, ...] = ()) -> "Parts":
    """One prompt with its chosen and rejected answers, each a response."""
    marks = list(flags)
    messages, ignored = values.messages(fields.needed(content, "prompt"), fields.say("prompt"))
    if ignored:
        marks.append("message_fields_ignored")
    category = _category(content, fields)
    own_id = values.id_text(fields.needed(content, "question_id"), fields.say("question_id"))
    whole = category is None or _is_mapped(fields, "question_id")
    shared = {
        "question_id": own_id if whole else f"{category}/{own_id}",
        "category": category,
        "messages": messages,
        "reference": None,
    }
    extras = fields.extras(content, set(fields.names) - {"models"})
    parts: Parts = []
    for side, place, text, model in _completions(content, fields, extras):
        response = side if place is None else f"{side}-{place}"
        try:
            where = fields.say(side) if place is None else f"{fields.names[side]}[{place}]"
            if text is None:
                raise UnreadableError("missing_field", f"{where} is null; an answer is a text")
            score = float(side == "chosen")
            row = {"response_id": response, "model": model or response, "replies": [values.text(text, where)]}
            parts.append(shared | row | {"human_score": score, "meta_json": _meta(extras, marks, score, model)})
        except UnreadableError as error:
            parts.append(error.rejection)
    if {part["human_score"] for part in parts if isinstance(part, dict)} != {0.0, 1.0}:
        said = "".join(f"; {part.detail}" for part in parts if isinstance(part, Rejection))
        detail = f"no answer that can be read is chosen, or none is rejected; a label needs both{said}"
        raise UnreadableError("too_few_responses", detail)
    return parts


def _battle_id(content: dict[str, Any], fields: "FieldMap") -> tuple[str, str]:
    """The battle's id, and the field that it is in: the mapped one, or `question_id`, or `id`."""
    mapped = _is_mapped(fields, "question_id")
    if mapped or content.get("question_id") is not None or content.get("id") is None:
        value = fields.needed(content, "question_id")
        return values.id_text(value, fields.say("question_id")), fields.names["question_id"]
    return values.id_text(content["id"], "id"), "id"


def _of_lists(content: dict[str, Any], fields: "FieldMap", marks: list[str]) -> tuple[Turns, list[list[str]]]:
    """The user's turns and both answers', where they are JSON lists as text."""
    asked, *replies = (_texts(fields.needed(content, name), fields.say(name), marks) for name in _LISTS)
    return [{"role": "user", "content": turn} for turn in asked], replies


def _of_conversations(content: dict[str, Any], fields: "FieldMap", marks: list[str]) -> tuple[Turns, list[list[str]]]:
    """The same where each side is a conversation of its own."""
    asked, replies = [], []
    for name in _TALKS:
        turns = _conversation(fields.needed(content, name), fields.say(name), marks)
        asked.append([turn for turn in turns if turn["role"] != "assistant"])
        replies.append([turn["content"] for turn in turns if turn["role"] == "assistant"])
        if not replies[-1]:
            roles = [turn["role"] for turn in turns]
            raise UnreadableError("missing_field", f"{fields.say(name)} has no turn of the assistant; it has {roles}")
    if asked[0] != asked[1]:
        raise UnreadableError("prompts_differ", "the two conversations differ in what the user says")
    return asked[0], replies


def _conversation(value: Any, where: str, marks: list[str]) -> Turns:
    turns = []
    for i, turn in enumerate(_listed(value, where)):
        if not isinstance(turn, dict) or turn.get("role") not in values.ROLES:
            said = kind_of(turn.get("role") if isinstance(turn, dict) else turn)
            raise UnreadableError("wrong_type", f"{where}[{i}]: {said}; a turn is {{role, content}}")
        turns.append({"role": turn["role"], "content": _turn(turn.get("content"), f"{where}[{i}].content", marks)})
    return turns


def _texts(value: Any, where: str, marks: list[str]) -> list[str]:
    """The turns of one side."""
    turns = _listed(value, where)
    if not turns:
        raise UnreadableError("missing_field", f"{where} is an empty list")
    return [_turn(turn, f"{where}[{i}]", marks) for i, turn in enumerate(turns)]


def _listed(value: Any, where: str) -> list[Any]:
    """A list, also one that is written as JSON in a text; another text is one turn."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value, parse_constant=lambda _: None, strict=False)
        except ValueError as error:
            detail = f"{where}: begins like a JSON list and is none: {error}"
            raise UnreadableError("invalid_json", detail) from error
    elif isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise UnreadableError("wrong_type", f"{where}: {kind_of(value)}; a list of turns, or its JSON as text")
    return value


def _turn(value: Any, where: str, marks: list[str]) -> str:
    """The text of one turn: lone surrogates, which a JSON text can hide, become U+FFFD."""
    if isinstance(value, list):
        return "".join(_part(part, f"{where}[{i}]", marks) for i, part in enumerate(value))
    if value is None:
        _once(marks, "null_turn")
        return ""
    said = values.text(value, where)
    whole = said.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if whole != said:
        _once(marks, "lone_surrogate")
    return whole


def _part(part: Any, where: str, marks: list[str]) -> str:
    if isinstance(part, dict) and part.get("type", "text") == "text" and part.get("image") is None:
        return _turn(part.get("text"), f"{where}.text", marks)
    said = f"of type {part.get('type')!r}" if isinstance(part, dict) else kind_of(part)
    raise UnreadableError("not_text", f"{where}: {said}; a judge reads text, so this battle cannot be judged")


def _refuse_other_turns(messages: Turns, replies: list[list[str]]) -> None:
    asked = sum(message["role"] == "user" for message in messages)
    for side, turns in zip(_SIDES, replies, strict=True):
        if len(turns) != asked:
            detail = (
                f"{len(turns)} turns of model_{side} to {asked} of the user; a judge would read the gap as the model's"
            )
            raise UnreadableError("turns_differ", detail)


def _mark(content: dict[str, Any], messages: Turns, marks: list[str]) -> None:
    if not any(message["content"].strip() for message in messages if message["role"] == "user"):
        marks.append("no_question")
    if content.get("evaluation_order") not in (None, "", 0, 1, "0", "1"):
        marks.append("earlier_turns_left_out")


def _votes(content: dict[str, Any], fields: "FieldMap", marks: list[str]) -> tuple[float | None, float | None]:
    """What the vote makes of the two answers; nothing where there is none, or none that is clear."""
    winner = fields.get(content, "winner")
    if winner is None:
        given = {name: fields.get(content, name) for name in _ONE_HOT}
        if all(value is None for value in given.values()):
            return None, None
        numbers = {name: _number(value) for name, value in given.items()}
        ones = [_ONE_HOT[name] for name, value in numbers.items() if value == 1]
        clear = len(ones) == 1 and all(value in (0, 1, None) for value in numbers.values())
        winner = ones[0] if clear else None
    if isinstance(winner, str) and winner in SCORES:
        return SCORES[winner]
    marks.append("unclear_winner")
    return None, None


def _number(value: Any) -> float | None:
    """A number, −1 for what is none; true is 1, as some tables have it."""
    try:
        return values.number(int(value) if isinstance(value, bool) else value, "winner")
    except UnreadableError:
        return -1.0


def _completions(
    content: dict[str, Any], fields: "FieldMap", extras: dict[str, Any]
) -> list[tuple[str, int | None, Any, str | None]]:
    """Of each answer its side, its place in the side's list (None where the side is one text), its text and its model.

    `models` of v2 leaves `extras` where it says which model gave which answer.
    """
    found: list[tuple[str, int | None, Any, str | None]] = []
    for side in ("chosen", "rejected"):
        value = fields.needed(content, side)
        named = fields.get(content, f"model_{side}")
        if isinstance(value, list):
            found += [(side, i, text, None) for i, text in enumerate(value)]
        else:
            found.append((side, None, value, _name(named, fields.say(f"model_{side}"))))
    models = fields.get(content, "models")
    if not isinstance(models, list) or len(models) != len(found) or any(place is None for _, place, _, _ in found):
        return found
    extras.pop(fields.names["models"], None)
    where = fields.say("models")
    return [(side, i, text, _name(model, where)) for (side, i, text, _), model in zip(found, models, strict=True)]


def _name(value: Any, where: str) -> str | None:
    """The name of a model; none where it is null or blank."""
    return None if value is None or (isinstance(value, str) and not value.strip()) else values.id_text(value, where)


def _category(content: dict[str, Any], fields: "FieldMap") -> str | None:
    category = fields.get(content, "category")
    return None if category is None else values.text(category, fields.say("category"))


def _is_mapped(fields: "FieldMap", ours: str) -> bool:
    return ours in fields.given or ours in fields.constants


def _once(marks: list[str], mark: str) -> None:
    if mark not in marks:
        marks.append(mark)


def _meta(extras: dict[str, Any], marks: list[str], score: float | None, model: str | None) -> str | None:
    """`meta_json` with what the source said; a field of theirs that is called so is `preference_`."""
    kept = {("preference_" if key == "preference" else key): value for key, value in extras.items()}
    told = {key: value for key, value in (("score", score), ("model", model)) if value is not None}
    return values.meta_json(kept | {"preference": told}, marks)


ARENA_FORMATS: Final = {"lmarena": lmarena, "reward-bench": reward_bench}

_OF_BATTLES: Final = ("question_id", "category", "model_a", "model_b", *_LISTS, *_TALKS, "winner", *_ONE_HOT)
ARENA_NAMES: Final[dict[str, dict[str, str]]] = {
    "lmarena": {ours: ours for ours in _OF_BATTLES},
    "reward-bench": {
        "question_id": "id",
        "category": "subset",
        "model_chosen": "chosen_model",
        "model_rejected": "rejected_model",
        **{ours: ours for ours in ("prompt", "chosen", "rejected", "models")},
    },
}
"""Each format's fields of ours, and what they are called in a file of that format."""
