"""Questions, reference answers and answers that lie in files of their own, brought together by question.

A format whose files are so (JOINED) gives a row of RESPONSES for each question and each reference too, marked by
their response_id and model (QUESTION, REQUEST, REFERENCE), and without replies. They lend what they hold, and go:

- A question is asked once. Rows of one id that say the same are one (`duplicate_row` where a file repeats itself); if
  they say different things nobody knows which was answered: all go as `conflicting_question`.
- An answer takes messages and category of its question, and what else the question's row says under `question` in
  meta_json. Its question is nowhere: `unknown_question`; but where no file of the corpus asks any question, it is read
  without one and flagged `no_question`, as a row of the format `flat` is. It brings its own question (Arena-Hard v2):
  that counts where no row asks it, and must be the same where one does (`conflicting_question`). It has not as many
  turns as its question: `turns_differ`, because a judge would read the gap as the model's.
- A reference comes from a reference file if one has it, otherwise from the question's row, otherwise from the answer.
  Reference files that differ on a question: all go as `conflicting_reference`. One for a question that nobody asks or
  answers: `unknown_question`.
- A question without any answer that can be read is `no_answer`: it is not in the run, and is counted.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from trustjudge_ray.corpus.duplicates import put, with_flag
from trustjudge_ray.corpus.objects import RAW_CHARACTERS, compact_json
from trustjudge_ray.schema import PLACED_RESPONSES, QUARANTINE, check, from_rows

QUESTION: Final = "(question)"
REQUEST: Final = "(request)"
REFERENCE: Final = "(reference)"
"""response_id and model of a row that is no answer: a question with a turn of the answer for each of its own, one that
is a whole conversation and has one reply, and a reference."""
JOINED: Final = frozenset({"fastchat", "arena-hard", "alpaca-eval", "openai-batch"})
"""Formats that keep questions or references apart from the answers."""
REFERENCE_FOLDER: Final = "reference_answer"
"""FastChat's name for the folder whose files hold references in the layout of answers; it means that in all of them."""

Row = dict[str, Any]
AskedIn = Callable[[], Sequence[str]]


def question_row(question_id: str, messages: list[dict[str, str]], mark: str = QUESTION, **columns: Any) -> Row:
    """The row that stands for a question, with what else it says of the question."""
    row = {"question_id": question_id, "messages": messages, "response_id": mark, "model": mark, "replies": []}
    return row | {"category": None, "reference": None, "human_score": None, "meta_json": None} | columns


def reference_text(texts: Sequence[str], turns: int = 1) -> str | None:
    """The references of a question's turns as one text, numbered where there are several turns; a blank one is none."""
    if turns == 1 and len(texts) == 1:
        return texts[0] if texts[0].strip() else None
    return "\n\n".join(f"[Turn {i}]\n{text}" for i, text in enumerate(texts, 1) if text.strip()) or None


def is_answer(rows: pa.Table) -> pa.ChunkedArray:
    """Which rows are answers, neither questions nor references: those that have a turn, or another name."""
    marked = pc.is_in(rows["response_id"], value_set=pa.array([QUESTION, REQUEST, REFERENCE]))
    return pc.invert(pc.and_(marked, pc.equal(pc.list_value_length(rows["replies"]), 0)))


def kinds(rows: pa.Table) -> dict[str, int]:
    """How many rows are answers (`rows`), `questions` and `references`."""
    answers = pc.sum(is_answer(rows)).as_py() or 0
    references = pc.sum(pc.equal(rows["response_id"], REFERENCE)).as_py() or 0
    return {"rows": answers, "references": references, "questions": len(rows) - answers - references}


def as_references(rows: pa.Table) -> pa.Table:
    """Answers (PLACED_RESPONSES) as the references that they are in a file of references, their turns in `messages`
    until the question says how many it has; questions stay."""
    answers = is_answer(rows).to_pylist()
    turned = [
        row
        | {
            "messages": [{"role": "assistant", "content": text} for text in row["replies"]],
            "reference": None,
            "response_id": REFERENCE,
            "model": REFERENCE,
            "replies": [],
        }
        if answer
        else row
        for row, answer in zip(rows.to_pylist(), answers, strict=True)
    ]
    return from_rows(turned, PLACED_RESPONSES)


def joined(rows: pa.Table, asked_in: AskedIn = tuple) -> tuple[pa.Table, pa.Table]:
    """The answers among PLACED_RESPONSES rows, each with its question and reference; QUARANTINE rows for the rest.

    All rows of a question must be in the table: it may be the corpus, or one bucket of questions.

    Args:
        asked_in: gives the corpus's files that ask questions.
    """
    rows = check(rows, PLACED_RESPONSES)
    answered = is_answer(rows)
    answers = rows.filter(answered)
    lenders = rows.filter(pc.invert(answered)).sort_by([("source", "ascending"), ("line", "ascending")]).to_pylist()
    bad: list[Row] = []
    questions, doubts = _questions([row for row in lenders if row["response_id"] != REFERENCE], bad)
    unasked = not questions and not doubts and not asked_in()
    own = answers if unasked else answers.filter(pc.greater(pc.list_value_length(answers["messages"]), 0))
    known = {id: _turns_of(row) for id, row in questions.items()}
    for id, turns in zip(own["question_id"].to_pylist(), pc.list_value_length(own["replies"]).to_pylist(), strict=True):
        known[id] = max(turns, known.get(id, 1)) if id not in questions else known[id]
    references = _references([row for row in lenders if row["response_id"] == REFERENCE], known, asked_in, bad)
    kept, out = _lent(answers, questions, doubts, references, None if unasked else asked_in)
    have = {*kept["question_id"].to_pylist(), *(row["question_id"] for row in out)}
    for question_id, row in questions.items():
        if question_id not in have:
            detail = f"question '{question_id}' has no answer that can be read in the corpus"
            bad.append(_quarantined(row, "no_answer", detail))
    bad += [_quarantined(row, row.pop("reason"), row.pop("detail")) for row in out]
    return kept, from_rows(sorted(bad, key=lambda row: (row["source"], row["line"])), QUARANTINE)


def of_sample(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """`joined` of a few rows of each file: what is missing from a sample is no fault, and is left out."""
    kept, bad = joined(rows)
    missing = pc.is_in(bad["reason"], value_set=pa.array(["unknown_question", "no_answer"]))
    return kept, bad.filter(pc.invert(missing))


def _questions(rows: list[Row], bad: list[Row]) -> tuple[dict[str, Row], dict[str, str]]:
    """The questions by id, and of those that are in doubt why."""
    questions: dict[str, Row] = {}
    doubts: dict[str, str] = {}
    for question_id, group in _grouped(rows):
        first = group[0]
        said = [row["reference"] for row in group if row["reference"]]
        other = next((row for row in group if row["messages"] != first["messages"]), None)
        if other is None and any(reference != said[0] for reference in said):
            other = next(row for row in group if row["reference"] not in (None, said[0]))
        if other is not None:
            doubts[question_id] = f"{_at(first)} and {_at(other)} ask or refer differently under one question id"
            bad += [_quarantined(row, "conflicting_question", doubts[question_id]) for row in group]
            continue
        bad += _repeats(group)
        category = next((row["category"] for row in group if row["category"] is not None), None)
        questions[question_id] = first | {"reference": said[0] if said else None, "category": category}
    return questions, doubts


def _references(rows: list[Row], known: dict[str, int], asked_in: AskedIn, bad: list[Row]) -> dict[str, str]:
    """The reference of each question that files of references have one for; `known` gives the questions' turns."""
    texts = [[turn["content"] for turn in row["messages"]] for row in rows]
    said = [reference_text(turns, known.get(row["question_id"], 1)) for row, turns in zip(rows, texts, strict=True)]
    given = [row | {"messages": [], "reference": text} for row, text in zip(rows, said, strict=True)]
    references: dict[str, str] = {}
    for question_id, group in _grouped([row for row in given if row["reference"] is not None]):
        other = next((row for row in group if row["reference"] != group[0]["reference"]), None)
        if question_id not in known:
            detail = f"a reference for question '{question_id}', {_nowhere(asked_in)}"
            bad += [_quarantined(row, "unknown_question", detail) for row in group]
        elif other is not None:
            detail = f"{_at(group[0])} and {_at(other)} are different references for question '{question_id}'"
            bad += [_quarantined(row, "conflicting_reference", detail) for row in group]
        else:
            bad += _repeats(group)
            references[question_id] = group[0]["reference"]
    return references


def _repeats(group: list[Row]) -> Iterator[Row]:
    """Rows that say again what their own file said. Another file may: each model's batch has the questions in it."""
    first: dict[str, Row] = {}
    for row in group:
        if first.setdefault(row["source"], row) is not row:
            yield _quarantined(row, "duplicate_row", f"repeats {_at(first[row['source']])}")


def _lent(
    answers: pa.Table,
    questions: dict[str, Row],
    doubts: dict[str, str],
    references: dict[str, str],
    asked_in: AskedIn | None,
) -> tuple[pa.Table, list[Row]]:
    """The answers that have a question, with what it lends; and those that do not, each with `reason` and `detail`.

    Args:
        asked_in: None where no file asks a question: then no answer lacks one.
    """
    columns = ("question_id", "category", "reference", "messages", "meta_json")
    new: dict[str, dict[int, Any]] = {name: {} for name in columns[1:]}
    turns = pc.list_value_length(answers["replies"]).to_pylist()
    out: dict[int, tuple[str, str]] = {}
    n = 0
    for batch in answers.select(list(columns) + ["source", "line"]).to_batches(max_chunksize=8192):
        for row in batch.to_pylist():
            question = questions.get(row["question_id"])
            fault = _fault(row, turns[n], question, doubts.get(row["question_id"]), asked_in)
            if fault is not None:
                out[n] = fault
            for name, value in _lends(row, question, references.get(row["question_id"])):
                new[name][n] = value
            n += 1
    for name, values in new.items():
        if values:
            place = answers.schema.get_field_index(name)
            answers = answers.set_column(place, answers.schema.field(name), put(answers, name, values))
    gone = answers.take(pa.array(sorted(out), pa.int64())).to_pylist()
    rejected = [row | {"reason": out[i][0], "detail": out[i][1]} for i, row in zip(sorted(out), gone, strict=True)]
    return answers.filter(pa.array([i not in out for i in range(len(answers))], pa.bool_())), rejected


def _fault(
    row: Row, turns: int, question: Row | None, doubt: str | None, asked_in: AskedIn | None
) -> tuple[str, str] | None:
    """Why an answer cannot be joined, if it cannot."""
    question_id = row["question_id"]
    if doubt is not None:
        return "unknown_question", f"question '{question_id}' is in doubt: {doubt}"
    if question is None and not row["messages"] and asked_in is not None:
        return "unknown_question", f"an answer to question '{question_id}', {_nowhere(asked_in)}"
    if question is not None and row["messages"] and row["messages"] != question["messages"]:
        return "conflicting_question", f"{_at(row)} answers another question than {_at(question)} asks under one id"
    if question is None or question["response_id"] == REQUEST:
        return None
    asked = _turns_of(question)
    if turns != asked:
        detail = f"{turns} turns of an answer to question '{question_id}', which has {asked} ({_at(question)})"
        return "turns_differ", detail
    return None


def _turns_of(question: Row) -> int:
    """How many turns an answer to a question has; what a request holds is a conversation up to one."""
    if question["response_id"] == REQUEST:
        return 1
    return sum(message["role"] == "user" for message in question["messages"])


def _lends(row: Row, question: Row | None, reference: str | None) -> Iterator[tuple[str, Any]]:
    """The columns of an answer that its question and reference change."""
    if reference is not None:
        yield "reference", reference
    elif question is not None and question["reference"] is not None:
        yield "reference", question["reference"]
    if question is None:
        if not row["messages"]:
            yield "meta_json", with_flag(row["meta_json"], "no_question")
        return
    yield "messages", question["messages"]
    if question["category"] is not None:
        yield "category", question["category"]
    if question["meta_json"] is not None:
        said = {("question_" if k == "question" else k): v for k, v in json.loads(row["meta_json"] or "{}").items()}
        yield "meta_json", compact_json(said | {"question": json.loads(question["meta_json"])})


def _nowhere(asked_in: AskedIn) -> str:
    files = asked_in()
    if not files:
        return "and no file of the corpus has questions; add the one that does to corpus.paths"
    shown = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
    return f"which no question file has ({shown})"


def _grouped(rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["question_id"], []).append(row)
    return iter(groups.items())


def _quarantined(row: Row, reason: str, detail: str) -> Row:
    shown = {name: row[name] for name in ("question_id", "response_id", "reference", "replies") if row[name]}
    if row["messages"]:
        shown["messages"] = row["messages"]
    raw = compact_json(shown)[:RAW_CHARACTERS]
    return {"source": row["source"], "line": row["line"], "reason": reason, "detail": detail, "raw": raw}


def _at(row: Row) -> str:
    return f"{row['source']}:{row['line']}"
