"""From a number back to its judgments: the exact prompt, the label table and the probabilities behind one of them."""

import bisect
import difflib
import math
from dataclasses import dataclass
from typing import Any

import polars as pl

from trustjudge_ray.config import ConfigError, JudgeConfig, judge_name, load_judges
from trustjudge_ray.identity import bucket_of
from trustjudge_ray.judging import engines, plan
from trustjudge_ray.judging.base import JudgeError
from trustjudge_ray.judging.preview import preview
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.judging.slots import fill, pieces, task_slots
from trustjudge_ray.judging.vllm_reading import Reader
from trustjudge_ray.schema import JUDGMENTS, PLACED_RESPONSES, TASKS, check
from trustjudge_ray.store import RunFolder

_NEAR = 5


class NotFoundError(LookupError):
    """There is no such judgment: says what is near."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a prompt.

    Attributes:
        what: the slot whose text this is, `template` (text of ours and the chat template's), `rationale` or `thinking`
            (written by the judge), or `opener`, after which the verdict is read.
        token_ids: None where the judge's tokenizer was not at hand.
    """

    what: str
    text: str
    token_ids: list[int] | None = None


def judgment(folder: RunFolder, given: str) -> dict[str, Any]:
    """Everything behind one judgment, as a JSON value but for −inf.

    Args:
        given: a task id, or a beginning that only one task has.

    Returns:
        The JUDGMENTS columns (those that are known, of a task that has no judgment yet; `status` is then None), and
        `labels` (for each label its text, the name that `emitted` uses, logprob, probability, and share of the label
        mass), `prompt` (Parts as mappings), `prompt_exact` (the parts are token for token what the judge was sent),
        `prompt_note` (why not, or what to know).

    Raises:
        NotFoundError: no task has that id, or several begin with it.
        StorageError: the folder cannot be read.
    """
    tasks = folder.tasks()
    task = tasks.row(by_predicate=pl.col("task_id") == _task_id(tasks["task_id"], given), named=True)
    bucket = bucket_of(task["question_id"])
    found, _ = folder.judgments(tasks.filter(task_id=task["task_id"]), bucket)
    row = found.to_dicts()[0] if found.height else {name: task.get(name) for name in JUDGMENTS.names}
    protocol = folder.protocols()[task["protocol"]]
    parts, exact, note = _prompt(folder, task, row, protocol)
    shown = {"labels": _labels(row, protocol), "prompt_exact": exact, "prompt_note": note}
    return row | shown | {"prompt": [{"what": p.what, "text": p.text, "token_ids": p.token_ids} for p in parts]}


def judgments_about(
    folder: RunFolder, question: str, responses: tuple[str, ...] = (), protocol: str | None = None
) -> list[dict[str, Any]]:
    """The judgments of a question: of all its responses, of one, or of a pair; a row each with labels, no prompt.

    Raises:
        NotFoundError: the run has no such question or response, or no judgment of these together.
    """
    tasks = folder.tasks()
    mine = tasks.filter(question_id=question)
    if not mine.height:
        raise NotFoundError(_unknown("question", question, tasks["question_id"].unique().to_list()))
    known = pl.concat([mine["response_a"], mine["response_b"].drop_nulls()]).unique().to_list()
    for response in responses:
        if response not in known:
            raise NotFoundError(_unknown(f"response to {question}", response, known))
        mine = mine.filter((pl.col("response_a") == response) | (pl.col("response_b") == response))
    asked = mine["protocol"].unique().to_list()
    if protocol is not None and mine.height and protocol not in asked:
        raise NotFoundError(_unknown(f"protocol about {question}", protocol, asked))
    mine = mine if protocol is None else mine.filter(protocol=protocol)
    if not mine.height:
        raise NotFoundError(f"no judgment of question '{question}' is about {list(responses)} together")
    found, _ = folder.judgments(mine, bucket_of(question))
    judged = {row["task_id"]: row for row in found.to_dicts()}
    protocols = folder.protocols()
    columns = ["judge", "protocol", "response_a", "response_b", "order", "sample", "repeat"]
    rows = [judged.get(task["task_id"], task) for task in mine.select(TASKS.names).sort(columns).to_dicts()]
    return [row | {"labels": _labels(row, protocols[row["protocol"]])} for row in rows]


def _task_id(ids: pl.Series, given: str) -> str:
    ordered = sorted(ids.to_list())
    at = bisect.bisect_left(ordered, given)
    matching = [i for i in ordered[at : at + _NEAR + 1] if i.startswith(given)]
    if given and len(matching) == 1:
        return matching[0]
    if given and matching:
        several = f"{_NEAR} or more" if len(matching) > _NEAR else str(len(matching))
        raise NotFoundError(
            f"task '{given}': {several} tasks begin so, such as {', '.join(matching[:3])}; give more of it"
        )
    near = ordered[max(0, at - 2) : at + 2]
    raise NotFoundError(f"task '{given}': not in this run; the nearest ids are {', '.join(near)}")


def _unknown(what: str, given: str, known: list[str]) -> str:
    near = difflib.get_close_matches(given, known, n=_NEAR, cutoff=0.5) or sorted(known)[:_NEAR]
    return f"{what}: '{given}' is not in this run; near are {', '.join(near)}"


def _labels(row: dict[str, Any], protocol: Protocol) -> list[dict[str, Any]]:
    """The label table of a judgment. `label` is the text that the judge could say, `name` what `emitted` calls it."""
    texts = list(protocol.label_texts)
    if protocol.kind == "compare" and row["order"] == "BA":
        texts[0], texts[1] = texts[1], texts[0]
    stored = row.get("label_logprobs") or [None] * len(texts)
    mass = row.get("label_mass") or 0.0
    table = []
    for text, name, logprob in zip(texts, protocol.emitted_names, stored, strict=True):
        probability = None if logprob is None else math.exp(logprob)
        share = None if probability is None or not mass else probability / mass
        table.append({"label": text, "name": name, "logprob": logprob, "probability": probability, "share": share})
    return table


# --- prompts ---------------------------------------------------------------------------------


def _prompt(
    folder: RunFolder, task: dict[str, Any], row: dict[str, Any], protocol: Protocol
) -> tuple[list[Part], bool, str]:
    """The parts of a task's prompt, whether they are exactly what the judge was sent, and what to know about them."""
    texts = _texts(folder, task)
    if texts is None:
        return [], False, "the run folder has no responses (imported judgments): the prompt is not known"
    slots = task_slots(protocol, texts)
    try:
        judge = _judge_of(folder, task["judge"])
        if judge.engine != "vllm":
            why = f"the judge's engine is {judge.engine}: these are the protocol's texts and not its own form of them"
            return _plain_parts(protocol, slots), False, why
        seen = preview(judge)
        reader = seen.reader(protocol)
        now = plan.spec(judge_name(judge), engines.identity(judge, [protocol]), protocol, judge.temperature).hash
    except (JudgeError, ConfigError) as error:
        why = f"the judge's tokenizer is not at hand; these are the protocol's texts without its chat template: {error}"
        return _plain_parts(protocol, slots), False, why
    parts = _exact_parts(reader, seen.tokenizer, slots, row)
    if now != task["spec"]:
        return parts, False, "the judge, its template or its settings are not those of the judgment: the spec differs"
    if row["status"] is None or row["status"] == task["status"] or row["status"] == "too_long":
        why = "it has not been judged yet" if row["status"] is None else f"no judge was asked ({row['status']})"
        return parts, False, f"{why}: this is what would be sent"
    put = sum(len(p.token_ids or []) for p in parts if p.what not in ("rationale", "thinking", "output"))
    if row["prompt_tokens"] not in (None, put):
        return parts, False, f"this is {put} tokens, and the judgment was of {row['prompt_tokens']}: another context"
    return parts, True, f"{put} tokens, rebuilt with the judge's tokenizer; the judgment's spec is the same"


def _judge_of(folder: RunFolder, name: str) -> JudgeConfig:
    manifest = folder.read_json("manifest.json") if folder.exists("manifest.json") else {}
    if "imported" in manifest:
        raise ConfigError("the judgments were imported")
    judges = load_judges(folder.read_bytes("config.yaml").decode("utf-8"), f"{folder.path}/config.yaml")
    for judge in judges:
        if judge_name(judge) == name:
            return judge
    raise ConfigError(f"{folder.path}/config.yaml: no judge '{name}' in it")


def _texts(folder: RunFolder, task: dict[str, Any]) -> dict[str, Any] | None:
    """The task's TASK_TEXTS row; None where the run has no response of it."""
    own = f"responses/bucket={bucket_of(task['question_id']):03d}.parquet"
    table = folder.read_table(own) if folder.exists(own) else folder.responses().to_arrow()
    rows = pl.DataFrame(table).filter(question_id=task["question_id"])
    wanted = set() if task["kind"] == "answer" else {task["response_a"], task["response_b"]} - {None}
    if rows.is_empty() or not wanted <= set(rows["response_id"]):
        return None
    tasks = pl.DataFrame([{name: task[name] for name in TASKS.names}], schema=dict(pl.Schema(TASKS)))
    responses = check(rows.to_arrow(), PLACED_RESPONSES)
    return plan.with_texts(check(tasks.to_arrow(), TASKS), responses).to_pylist()[0]


def _exact_parts(reader: Reader, tokenizer: Any, slots: dict[str, str], row: dict[str, Any]) -> list[Part]:
    """The prompt as it is built for the engine, what the judge wrote, and the opener."""

    def part(what: str, ids: list[int]) -> Part:
        return Part(what, tokenizer.decode(ids, clean_up_tokenization_spaces=False), ids)

    parts = [part(name or "template", ids) for name, ids in reader.prompts.laid_out(slots)]
    for section in reader.sections:
        parts += [part("template", list(section.before))] if section.before else []
        parts.append(Part(section.name, row[section.name] or ""))
        parts += [part("template", list(section.after))] if section.after else []
    return [*parts, *([part("opener", list(reader.table.opener_ids))] if reader.table.opener_ids else [])]


def _plain_parts(protocol: Protocol, slots: dict[str, str]) -> list[Part]:
    """The protocol's texts with the slots filled, without a chat template."""
    said = [f"[system]\n{protocol.system}\n\n"] if protocol.system else []
    for example in protocol.examples:
        said.append(f"[user]\n{fill(protocol.user, example.slots)}\n\n[assistant]\n{protocol.said(example)}\n\n")
    parts = [Part("template", "".join(said) + "[user]\n")]
    parts += [Part(text, slots[text]) if is_slot else Part("template", text) for is_slot, text in pieces(protocol.user)]
    return [*parts, Part("template", "\n\n[assistant]\n"), Part("opener", protocol.opener)]
