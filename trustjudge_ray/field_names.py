"""What people call the fields of a corpus, ours and other words for the same."""

from typing import Final

NAMES: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "response": (
        ("response", "responses"),
        (
            *("completion", "generation", "output", "modeloutput", "modelresponse", "modelanswer", "prediction"),
            *("generatedtext", "generatedanswer", "reply", "assistant", "assistantresponse", "modelcompletion"),
        ),
        ("answer",),
        ("text", "content", "result", "candidate"),
        ("r", "a"),
    ),
    "question": (
        ("question", "prompt", "instruction", "query", "problem"),
        ("input", "userinput", "userprompt", "usermessage", "user", "request", "task"),
        ("q", "p"),
    ),
    "messages": (
        ("messages", "conversation", "conversations", "turns", "prompt", "question", "input", "chat", "history"),
    ),
    "context": (("context", "passage", "document", "article", "input"),),
    "model": (
        ("model", "modelname", "modelid", "generator"),
        ("llm", "engine", "checkpoint", "author", "source", "answerer", "agent"),
    ),
    "reference": (
        ("reference", "referenceanswer", "refanswer", "groundtruth", "goldanswer", "gold", "ideal", "expectedoutput"),
        ("expected", "expectedanswer", "correctanswer", "target", "solution"),
    ),
    "human_score": (
        ("humanscore", "humanrating", "humanlabel"),
        ("score", "rating", "grade", "stars", "quality"),
    ),
    "category": (("category", "subject", "topic", "domain"), ("tasktype", "subset", "tag", "type", "dataset")),
    "question_id": (
        ("questionid", "qid"),
        ("promptid", "taskid", "exampleid", "sampleid", "itemid", "instanceid", "uid", "uuid"),
        ("id",),
        ("idx", "index", "key", "number", "no"),
    ),
    "response_id": (
        ("responseid", "answerid", "outputid", "completionid", "generationid"),
        ("sample", "seed", "attempt", "trial", "run"),
        ("id", "uid", "uuid"),
    ),
}
"""Our fields, and what they are called elsewhere, in small letters without punctuation: the surest names first."""


def plain(name: str) -> str:
    """A name in small letters, without punctuation."""
    return "".join(letter for letter in name.lower() if letter.isalnum())
