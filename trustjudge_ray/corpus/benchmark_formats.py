"""The files of benchmarks and batch services to RESPONSES: FastChat (MT-Bench), Arena-Hard-Auto, AlpacaEval, and the
batches of OpenAI's API, which `vllm run-batch` writes too.

Where questions and answers lie in files of their own (all but AlpacaEval's), one object is one or the other, which its
fields say, and `joining` brings them together.

fastchat: question {question_id, category, turns: [text], reference: [text]?}; answer {question_id, answer_id, model_id,
    choices: [{index, turns: [text]}], tstamp}; references are answers in a folder `reference_answer`. A question's
    turns are its messages, an answer's turns its replies.
arena-hard: v2, question {uid, category, subcategory, prompt} and answer {uid, ans_id, model, messages: [{role,
    content}], tstamp, metadata}, an assistant's content a text or {answer: text}; v0.1 is FastChat's layout with turns
    that are objects {content, token_len}. A system message of an answer is how its model was run, no part of the
    question: it stays in meta_json, and so does what is beside `answer` in an object.
alpaca-eval: {instruction, output, generator, dataset}, one array. The question's id is a hash of its instruction (and
    `input`, where there is one, which stands below it), unless `corpus.fields` maps it.
openai-batch: request {custom_id, method, url, body: {model, messages}}, answer {custom_id, response: {status_code,
    body: {model, choices: [{index, message}]}}, error}; of the endpoint /v1/completions a `prompt` and choices of
    {index, text}. Of a request only custom_id and the conversation are read. A request that failed is quarantined as
    `request_failed`: no file says of which model. A refusal is the answer where there is no content.

Several choices are responses of their own, `model#index` (their place, where two have one index); with one, response_id
is the model. A judgment or annotation
of these systems among the files is `a_judgment`: `trustjudge import` reads it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from trustjudge_ray.corpus import values
from trustjudge_ray.corpus.joining import REQUEST, question_row, reference_text
from trustjudge_ray.corpus.objects import kind_of, names_of
from trustjudge_ray.corpus.values import UnreadableError
from trustjudge_ray.identity import content_hash

if TYPE_CHECKING:
    from trustjudge_ray.corpus.formats import FieldMap, Parts

Content = dict[str, Any]
_OF_ANSWERS: Final = ("question_id", "category", "model", "response", "response_id", "human_score")


def fastchat(content: Content, fields: "FieldMap", flags: tuple[str, ...] = ()) -> "Parts":
    """A question, or the choices of an answer."""
    if fields.get(content, "response") is not None:
        return _choices(content, fields, flags, fields.needed(content, "response"), _of_turns)
    _refuse_judgment(content, ("user_prompt", "judgment", "g1_judgment"), "fastchat")
    turns = fields.get(content, "question")
    if turns is None:
        raise UnreadableError(
            "missing_field",
            f"neither {fields.say('question')}, of a question, nor {fields.say('response')}, of an answer; the row has "
            f"{names_of(content)}",
        )
    listed = turns if isinstance(turns, list) else [turns]
    if not listed:
        raise UnreadableError("missing_field", f"{fields.say('question')} is an empty list; a question has a turn")
    texts = [_turn(turn, f"{fields.say('question')}[{i}]")[0] for i, turn in enumerate(listed)]
    reference = _references(fields.get(content, "reference"), len(texts), fields.say("reference"))
    return _asked(content, fields, flags, texts, reference)


def arena_hard(content: Content, fields: "FieldMap", flags: tuple[str, ...] = ()) -> "Parts":
    """A question or an answer, of v2 or of v0.1."""
    if fields.get(content, "response") is not None:
        return _of_messages(content, fields, flags)
    if "choices" in content or "turns" in content:
        given = {ours: fields.names[ours] for ours in fields.given}
        return fastchat(content, replace(fields, names=BENCHMARK_NAMES["fastchat"] | given), flags)
    _refuse_judgment(content, ("games",), "arena-hard")
    prompt = fields.get(content, "question")
    if prompt is None:
        raise UnreadableError(
            "missing_field",
            f"neither {fields.say('question')} nor turns, of a question, nor {fields.say('response')} nor choices, of "
            f"an answer; the row has {names_of(content)}",
        )
    reference = values.reference(fields.get(content, "reference"), fields.say("reference"))
    return _asked(content, fields, flags, [values.text(prompt, fields.say("question"))], reference)


def alpaca_eval(content: Content, fields: "FieldMap", flags: tuple[str, ...] = ()) -> "Parts":
    """One output of a generator."""
    if fields.get(content, "response") is None:
        _refuse_judgment(content, ("output_1", "output_2"), "alpaca-eval")
    text = values.text(fields.needed(content, "question"), fields.say("question"))
    beside = fields.get(content, "input")
    if beside is not None and (below := values.text(beside, fields.say("input"))).strip():
        text = f"{text}\n\n{below}"
    named = "question_id" in fields.given or "question_id" in fields.constants
    extras = fields.extras(content, set(fields.names) - (set() if named else {"question_id"}))
    row = _answer(content if named else content | {fields.names["question_id"]: content_hash(text)}, fields)
    return [
        row
        | {
            "messages": [{"role": "user", "content": text}],
            "reference": values.reference(fields.get(content, "reference"), fields.say("reference")),
            "replies": [values.text(fields.needed(content, "response"), fields.say("response"))],
            "meta_json": values.meta_json(extras, list(flags)),
        }
    ]


def openai_batch(content: Content, fields: "FieldMap", flags: tuple[str, ...] = ()) -> "Parts":
    """A request, or the choices of its answer."""
    body = content.get("body")
    if body is not None:
        return _requested(content, body, fields, flags)
    error, response = content.get("error"), content.get("response")
    if error is None and response is None:
        what = "the row is neither a request, with body, nor an answer, with response"
        raise UnreadableError("missing_field", f"{what}; it has {names_of(content)}")
    status = response.get("status_code") if isinstance(response, dict) else None
    said = response.get("body") if isinstance(response, dict) else None
    if isinstance(said, dict) and said.get("error") is not None:
        error = said["error"]
    if error is not None or status not in (None, 200, "200"):
        question_id = values.id_text(fields.needed(content, "question_id"), fields.say("question_id"))
        raise UnreadableError("request_failed", f"question '{question_id}': {_failure(status, error)}")
    if not isinstance(said, dict):
        raise UnreadableError("missing_field", f"response.body: {kind_of(said)}; an object with model and choices")
    beside = {name: value for name, value in said.items() if name not in ("choices", "model", "object")}
    flat = {key: value for key, value in content.items() if key not in ("response", "error")}
    flat |= {"body": beside} | {fields.names["model"]: said.get(fields.names["model"])}
    return _choices(flat, fields, flags, said.get("choices"), _of_message)


def _requested(content: Content, body: Any, fields: "FieldMap", flags: tuple[str, ...]) -> "Parts":
    if not isinstance(body, dict):
        raise UnreadableError("wrong_type", f"body: {kind_of(body)}; an object with model and messages")
    marks = list(flags)
    if body.get("messages"):
        messages, ignored = values.messages(body["messages"], "body.messages")
        marks += ["message_fields_ignored"] if ignored else []
    elif body.get("prompt") is not None:
        messages = [{"role": "user", "content": values.text(body["prompt"], "body.prompt")}]
    else:
        raise UnreadableError("missing_field", f"body has neither messages nor a prompt; it has {names_of(body)}")
    question_id = values.id_text(fields.needed(content, "question_id"), fields.say("question_id"))
    columns = {"category": _category(content, fields), "meta_json": values.meta_json({}, marks)}
    return [question_row(question_id, messages, REQUEST, **columns)]


def _asked(
    content: Content, fields: "FieldMap", flags: tuple[str, ...], texts: list[str], reference: str | None
) -> "Parts":
    """The row of a question with these turns of the user."""
    extras = fields.extras(content, ["question_id", "category", "question", "reference"])
    return [
        question_row(
            values.id_text(fields.needed(content, "question_id"), fields.say("question_id")),
            [{"role": "user", "content": text} for text in texts],
            category=_category(content, fields),
            reference=reference,
            meta_json=values.meta_json(extras, list(flags)),
        )
    ]


def _choices(
    content: Content,
    fields: "FieldMap",
    flags: tuple[str, ...],
    choices: Any,
    read: Callable[[Any, str], tuple[list[str], Content]],
) -> "Parts":
    """The rows of an answer's choices, each of which can be unreadable alone; `read` gives its replies and the rest."""
    if not isinstance(choices, list) or not choices:
        raise UnreadableError("wrong_type", f"choices: {kind_of(choices)}; a list with a choice at least")
    shared = _answer(content, fields)
    extras = fields.extras(content, _OF_ANSWERS)
    parts: Parts = []
    numbers = _numbers(choices)
    for place, choice in enumerate(choices):
        where = f"choices[{place}]"
        try:
            if not isinstance(choice, dict):
                raise UnreadableError("wrong_type", f"{where}: {kind_of(choice)}; an object")
            number = values.id_text(numbers[place], f"{where}.index")
            replies, beside = read(choice, where)
            meta = values.meta_json(extras | ({"choice": beside} if beside else {}), list(flags))
            named = shared["response_id"] if len(choices) == 1 else f"{shared['response_id']}#{number}"
            parts.append(shared | {"response_id": named, "replies": replies, "meta_json": meta})
        except UnreadableError as error:
            parts.append(error.rejection)
    return parts


def _numbers(choices: list[Any]) -> list[Any]:
    """What the choices of an answer are called by: their index, or their place where one has none or two have one."""
    indices = [choice.get("index") if isinstance(choice, dict) else None for choice in choices]
    numbers = [place if index is None else index for place, index in enumerate(indices)]
    return list(range(len(choices))) if len({str(number) for number in numbers}) < len(numbers) else numbers


def _answer(content: Content, fields: "FieldMap") -> Content:
    """The columns that all responses of an answer's row share; the question is lent later."""
    model = values.id_text(fields.needed(content, "model"), fields.say("model"))
    response_id = fields.get(content, "response_id")
    return {
        "question_id": values.id_text(fields.needed(content, "question_id"), fields.say("question_id")),
        "category": _category(content, fields),
        "messages": [],
        "reference": None,
        "response_id": model if response_id is None else values.id_text(response_id, fields.say("response_id")),
        "model": model,
        "human_score": values.number(fields.get(content, "human_score"), fields.say("human_score")),
    }


def _category(content: Content, fields: "FieldMap") -> str | None:
    category = fields.get(content, "category")
    return None if category is None else values.text(category, fields.say("category"))


def _of_turns(choice: Content, where: str) -> tuple[list[str], Content]:
    """A choice of FastChat's layout, its turns texts or objects with `content`; one turn may stand without a list."""
    given = choice.get("turns")
    turns = [given] if isinstance(given, str | dict) else given
    if not isinstance(turns, list) or not turns:
        raise UnreadableError("missing_field", f"{where}.turns: {kind_of(turns)}; a list with a text for each turn")
    read = [_turn(turn, f"{where}.turns[{i}]") for i, turn in enumerate(turns)]
    beside = {key: value for key, value in choice.items() if key not in ("index", "turns") and value is not None}
    if any(rest for _, rest in read):
        beside["turns"] = [rest for _, rest in read]
    return [text for text, _ in read], beside


def _turn(value: Any, where: str) -> tuple[str, Content]:
    """The text of a turn, and what else an object that holds it says."""
    if not isinstance(value, dict):
        return values.text(value, where), {}
    held = next((name for name in ("content", "answer") if value.get(name) is not None), None)
    if held is None:
        raise UnreadableError("missing_field", f"{where} has no content; it has {names_of(value)}")
    text, beside = (
        _turn(value[held], f"{where}.{held}")
        if held == "content"
        else (values.text(value[held], f"{where}.answer"), {})
    )
    rest = {key: inner for key, inner in value.items() if key not in (held, "role") and inner is not None}
    return text, rest | beside


def _of_message(choice: Content, where: str) -> tuple[list[str], Content]:
    """A choice of a chat's or a completion's answer."""
    message = choice.get("message")
    beside = {
        key: value for key, value in choice.items() if key not in ("index", "message", "text") and value is not None
    }
    if message is None and choice.get("text") is not None:
        return [values.text(choice["text"], f"{where}.text")], beside
    if not isinstance(message, dict):
        raise UnreadableError("missing_field", f"{where} has no message; it has {names_of(choice)}")
    name = "content" if message.get("content") is not None else "refusal"
    if message.get(name) is None:
        why = f", finish_reason {choice['finish_reason']}" if choice.get("finish_reason") is not None else ""
        detail = f"{where}.message.content is null{why}; the message has {names_of(message)}"
        raise UnreadableError("missing_field", detail)
    rest = {key: value for key, value in message.items() if key not in ("role", name) and value not in (None, [], "")}
    if name == "refusal":
        rest["refused"] = True
    return [values.text(message[name], f"{where}.message.{name}")], beside | rest


def _of_messages(content: Content, fields: "FieldMap", flags: tuple[str, ...]) -> "Parts":
    """An answer of Arena-Hard v2: a conversation whose assistant's turns are the replies, with its own question."""
    name = fields.say("response")
    given = fields.needed(content, "response")
    if not isinstance(given, list) or not all(isinstance(message, dict) for message in given):
        raise UnreadableError("wrong_type", f"{name}: {kind_of(given)}; a list of {{role, content}}")
    users: list[str] = []
    replies: list[str] = []
    kept: list[Content] = []
    for i, message in enumerate(given):
        role = message.get("role")
        if role not in ("system", "developer", "user", "assistant"):
            raise UnreadableError("wrong_type", f"{name}[{i}].role: {kind_of(role)}; system, user or assistant")
        text, beside = _turn(message, f"{name}[{i}]")
        if role in ("user", "assistant"):
            (users if role == "user" else replies).append(text)
        kept += [{"role": role, "content": text} | beside] if role in ("system", "developer") else []
        kept += [{"role": role} | beside] if beside and role in ("user", "assistant") else []
    if not replies or len(replies) != len(users) or given[-1]["role"] != "assistant":
        detail = f"{name}: {len(users)} turns of the user and {len(replies)} of the assistant, which ends it"
        raise UnreadableError("not_an_answer", detail)
    shared = _answer(content, fields)
    extras = fields.extras(content, _OF_ANSWERS)
    meta = values.meta_json(extras | ({"messages": kept} if kept else {}), list(flags))
    asked = [{"role": "user", "content": text} for text in users]
    return [shared | {"messages": asked, "replies": replies, "meta_json": meta}]


def _references(value: Any, turns: int, where: str) -> str | None:
    """A question's references as one text: FastChat has a list of them, of which some are empty or missing."""
    if not isinstance(value, list):
        return None if value is None else reference_text([values.text(value, where)])
    texts = ["" if text is None else values.text(text, f"{where}[{i}]") for i, text in enumerate(value)]
    return reference_text(texts, turns)


def _failure(status: Any, error: Any) -> str:
    """What a failed request says of itself."""
    inner = error.get("error", error) if isinstance(error, dict) else error
    said = inner.get("message") if isinstance(inner, dict) else inner
    told = f": {str(said)[:300]}" if said is not None else ""
    return f"the request failed with status {status}{told}" if status is not None else f"the request failed{told}"


def _refuse_judgment(content: Content, names: tuple[str, ...], importer: str) -> None:
    """
    Raises:
        UnreadableError: the row has all that judgments are known by.
    """
    if any(content.get(name) is not None for name in names):
        detail = f"the row is no answer but a judgment of answers; `trustjudge import {importer}` reads it"
        raise UnreadableError("a_judgment", detail)


BENCHMARK_FORMATS: Final = {
    "fastchat": fastchat,
    "arena-hard": arena_hard,
    "alpaca-eval": alpaca_eval,
    "openai-batch": openai_batch,
}

_SAME: Final = {ours: ours for ours in ("category", "response_id", "human_score")}
BENCHMARK_NAMES: Final[dict[str, dict[str, str]]] = {
    "fastchat": _SAME
    | {"question_id": "question_id", "reference": "reference"}
    | {"question": "turns", "model": "model_id", "response": "choices"},
    "arena-hard": _SAME
    | {"question_id": "uid", "reference": "reference"}
    | {"question": "prompt", "model": "model", "response": "messages"},
    "alpaca-eval": _SAME
    | {"question_id": "question_id", "reference": "reference", "input": "input"}
    | {"question": "instruction", "response": "output", "model": "generator", "category": "dataset"},
    "openai-batch": _SAME | {"question_id": "custom_id", "model": "model", "response": "response"},
}
"""Each format's fields of ours, and what they are called in a file of that format."""
