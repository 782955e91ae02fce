"""By which fields each corpus format is told from the others: its layouts, one for each role that a file can have.

A layout fits an object that has all the fields that it needs, each of the kind that it needs. What else the object has
makes no difference, but for `without`: fields that make it an object of another layout. A field that is null is not
there. Layouts of different formats exclude each other where one is the other with more in it (a RewardBench row is a
preference pair with a subset and two models); where that cannot be said both fit, and the user decides.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from trustjudge_ray.corpus.preference_formats import transcript


@dataclass(frozen=True, slots=True)
class Kind:
    """What the value of a field is, in words, and whether a value is that."""

    name: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Layout:
    """One role of a format.

    Attributes:
        what: an object of it, in words.
        needs: its fields, by the names that a file of the format has them under.
        without: an object that has all the fields of one of these is of another layout.
    """

    format: str
    what: str
    needs: dict[str, Kind]
    without: tuple[frozenset[str], ...] = field(default=())

    def fits(self, content: dict[str, Any]) -> bool:
        """Whether an object is of this layout."""
        if any(all(content.get(name) is not None for name in names) for names in self.without):
            return False
        return all(self.holds(content, name) for name in self.needs)

    def holds(self, content: dict[str, Any], name: str) -> bool:
        """Whether an object has a field that the layout needs, of the right kind."""
        return content.get(name) is not None and self.needs[name].holds(content[name])


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_id(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(turn is None or isinstance(turn, str) for turn in value)


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(isinstance(element, dict) for element in value)


def _are_messages(value: Any) -> bool:
    return _are_objects(value) and all("role" in turn and "content" in turn for turn in value)


def _are_contents(value: Any) -> bool:
    return _are_objects(value) and all("content" in turn and "role" not in turn for turn in value)


def _is_conversation(value: Any) -> bool:
    return _are_messages(value) or (isinstance(value, str) and value.lstrip().startswith("["))


def _is_transcript(value: Any) -> bool:
    return isinstance(value, str) and bool(transcript(value))


def _choices(turns: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: _are_objects(value) and all(turns(choice.get("turns")) for choice in value)


ID: Final = Kind("a text or a number", _is_id)
TEXT: Final = Kind("a text", _is_text)
TEXTS: Final = Kind("a list of texts", _are_texts)
TURNS: Final = Kind("a text or a list of texts", lambda value: _is_text(value) or _are_texts(value))
OBJECT: Final = Kind("an object", lambda value: isinstance(value, dict))
OBJECTS: Final = Kind("a list of objects", _are_objects)
LIST: Final = Kind("a list", lambda value: isinstance(value, list) and value != [])
ANY_LIST: Final = Kind("a list", lambda value: isinstance(value, list))
MESSAGES: Final = Kind("a list of {role, content}", _are_messages)
CONTENTS: Final = Kind("a list of {content}", _are_contents)
CONVERSATION: Final = Kind("a list of {role, content}, also as text", _is_conversation)
PROMPT: Final = Kind("a text or a list of {role, content}", lambda value: _is_text(value) or _are_messages(value))
ASKED: Final = Kind(
    "a text, a list of texts or of {role, content}",
    lambda value: _is_text(value) or _are_texts(value) or _are_messages(value),
)
TRANSCRIPT: Final = Kind('a text of "Human:" and "Assistant:" turns', _is_transcript)
PLAIN: Final = Kind("a text that is no transcript", lambda value: _is_text(value) and not _is_transcript(value))
TEXT_CHOICES: Final = Kind("a list of {turns: texts}", _choices(_are_texts))
OBJECT_CHOICES: Final = Kind("a list of {turns: objects with content}", _choices(_are_contents))

_UNANSWERED: Final = (frozenset({"response"}), frozenset({"answers"}), frozenset({"model"}))
_LABELLED: Final = frozenset({"subset", "chosen_model", "rejected_model"})
_IMPLICIT: Final = frozenset({"prompt"})
_PAIR_OF_MESSAGES: Final = {"chosen": MESSAGES, "rejected": MESSAGES}

LAYOUTS: Final = (
    Layout("flat", "responses", {"question_id": ID, "model": ID, "response": TURNS}),
    Layout("questions", "questions", {"question_id": ID, "question": ASKED}, _UNANSWERED),
    Layout("questions", "questions", {"question_id": ID, "messages": MESSAGES}, _UNANSWERED),
    Layout(
        "trustjudge",
        "questions with their answers",
        {"question_id": ID, "question": ASKED, "answers": OBJECTS},
    ),
    Layout(
        "trustjudge",
        "questions with their answers",
        {"question_id": ID, "messages": MESSAGES, "answers": OBJECTS},
    ),
    Layout("trl", "preference pairs", {"prompt": TEXT, "chosen": TEXT, "rejected": TEXT}, (_LABELLED,)),
    Layout("trl", "preference pairs", {"chosen": PLAIN, "rejected": PLAIN}, (_IMPLICIT,)),
    Layout("hh-rlhf", "preference pairs", {"chosen": TRANSCRIPT, "rejected": TRANSCRIPT}, (_IMPLICIT,)),
    Layout("trl-conversational", "preference pairs", {"prompt": MESSAGES, **_PAIR_OF_MESSAGES}),
    Layout("trl-conversational", "preference pairs", {**_PAIR_OF_MESSAGES}, (_IMPLICIT,)),
    Layout(
        "trl-conversational",
        "preference pairs",
        {"prompt": TEXT, **_PAIR_OF_MESSAGES},
        (frozenset({"messages"}),),
    ),
    Layout(
        "ultrafeedback-binarized",
        "preference pairs",
        {"prompt": TEXT, "messages": ANY_LIST, **_PAIR_OF_MESSAGES},
    ),
    Layout("ultrafeedback", "prompts with their completions", {"instruction": TEXT, "completions": OBJECTS}),
    Layout("prompt-responses", "prompts with their responses", {"prompt": PROMPT, "responses": LIST}),
    Layout("fastchat", "questions", {"question_id": ID, "turns": TEXTS}),
    Layout("fastchat", "answers", {"question_id": ID, "model_id": ID, "choices": TEXT_CHOICES}),
    Layout("arena-hard", "questions of v0.1", {"question_id": ID, "turns": CONTENTS}),
    Layout("arena-hard", "answers of v0.1", {"question_id": ID, "model_id": ID, "choices": OBJECT_CHOICES}),
    Layout("arena-hard", "questions of v2", {"uid": ID, "prompt": TEXT}),
    Layout("arena-hard", "answers of v2", {"uid": ID, "messages": MESSAGES}),
    Layout("alpaca-eval", "outputs", {"instruction": TEXT, "output": TEXT, "generator": ID}),
    Layout("openai-batch", "requests", {"custom_id": ID, "body": OBJECT}),
    Layout("openai-batch", "answers", {"custom_id": ID, "response": OBJECT}),
    Layout("openai-batch", "failed requests", {"custom_id": ID, "error": OBJECT}),
    Layout(
        "lmarena",
        "battles of the 55k layout",
        {"model_a": ID, "model_b": ID, "prompt": TURNS, "response_a": TURNS, "response_b": TURNS},
        (frozenset({"conversation_a", "conversation_b"}),),
    ),
    Layout(
        "lmarena",
        "battles of the 100k or 140k layout",
        {"model_a": ID, "model_b": ID, "conversation_a": CONVERSATION, "conversation_b": CONVERSATION},
    ),
    Layout(
        "reward-bench",
        "pairs of v1",
        {"id": ID, "subset": TEXT, "prompt": PROMPT, "chosen": TEXT, "rejected": TEXT},
    ),
    Layout(
        "reward-bench",
        "prompts of v2",
        {"id": ID, "subset": TEXT, "prompt": PROMPT, "chosen": TEXTS, "rejected": TEXTS},
    ),
)
"""Every format that `auto` may choose; the first ones are the nearest where two are equally near."""

JUDGMENTS: Final = (
    Layout("fastchat", "FastChat's judgments", {"question_id": ID, "judge": LIST, "user_prompt": TEXT}),
    Layout("fastchat", "FastChat's judgments", {"question_id": ID, "model_1": ID, "model_2": ID}),
    Layout("arena-hard", "Arena-Hard's judgments", {"games": LIST}),
    Layout("alpaca-eval", "AlpacaEval's annotations", {"instruction": TEXT, "output_1": TEXT, "output_2": TEXT}),
    Layout("battles", "battles without their answers", {"model_a": ID, "model_b": ID, "winner": TEXT}),
)
"""What is no corpus but the judgments of other systems, by the importers that read them."""
