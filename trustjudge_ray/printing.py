"""Findings, estimates, single judgments and progress as people read them in a terminal. Lines of text, nothing else."""

import json
import math
import re
import shutil
import threading
from collections.abc import Iterator
from typing import Any, Self, TextIO

from trustjudge_ray.findings import Finding
from trustjudge_ray.progress import Progress

_LABELS_SHOWN = 10
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def finding_lines(found: Finding) -> Iterator[str]:
    """A check as a line, with its label table and notes below."""
    yield f"{found.status:<7} {found.check}: {visible(found.says)}"
    labels = found.details.get("labels", [])
    for row in labels[:_LABELS_SHOWN]:
        paths = zip(row["spellings"], row["token_ids"], strict=True)
        spelled = ", ".join(f"{text!r} = {ids}" for text, ids in paths)
        yield f"          {row['label']!r}: {spelled}"
    if len(labels) > _LABELS_SHOWN:
        yield f"          and {len(labels) - _LABELS_SHOWN} more (all with --json)"
    yield from (f"        note: {visible(note)}" for note in found.notes)


def estimate_lines(found: dict[str, Any]) -> Iterator[str]:
    """A plan: judgments, tokens, hours, cost, what the design can show."""
    yield (
        f"{found['questions']:,} questions, {found['responses']:,} responses, {found['pairs']:,} pairs: "
        f"{found['judgments']:,} judgments"
    )
    for row in found["by_protocol"]:
        known = ", ".join(f"{n:,} {status}" for status, n in row["known"].items())
        without = f"; without a judge {known}" if known else ""
        yield f"  {row['protocol']} ({row['kind']}): {row['judgments']:,} judgments{without}"
    for name, judge in found["judges"].items():
        yield f"{name}: tokens, scaled up from {found['sampled_questions']} sampled questions"
        yield from _token_lines(judge["tokens"])
        if judge["hours"]:
            hours = ", ".join(f"{value:,.2f} {_HOURS[unit]}" for unit, value in judge["hours"].items())
            cost = "" if judge["cost"] is None else f", cost {judge['cost']:,.2f}"
            yield f"  {hours}{cost}"
        yield from (f"  note: {note}" for note in judge["notes"])
    if found["measured"]:
        measured = found["measured"]
        yield (
            f"at {measured['judgments_per_second']:.1f} judgments a second, as measured in {measured['run']}: "
            f"{measured['clock_hours']:.2f} hours on the clock"
        )
    yield "what this can show:"
    yield from (f"  {sentence}" for sentence in found["supports"])


_HOURS = {"replica": "replica-hours", "clock": "hours on the clock", "gpu": "GPU-hours"}


def _token_lines(tokens: dict[str, dict[str, int]]) -> Iterator[str]:
    if not tokens:
        return
    columns = ("protocol", "requests", "prompt", "sent", "with sharing", "written up to")
    rows = [
        (name, *(f"{t[key]:,}" for key in ("requests", "prompt", "sent", "computed", "written")))
        for name, t in tokens.items()
    ]
    total = [
        f"{sum(t[key] for t in tokens.values()):,}" for key in ("requests", "prompt", "sent", "computed", "written")
    ]
    rows.append(("all", *total))
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    for row in [columns, *rows]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield "  " + "  ".join(cells)
    for name, t in tokens.items():
        if t["too_long"] or t["truncated"]:
            yield f"  {name}: {t['too_long']:,} too long, {t['truncated']:,} with cut responses"


def judgment_lines(found: dict[str, Any], tokens: bool = False) -> Iterator[str]:
    """Everything behind one judgment; with `tokens` the ids of each part of the prompt."""
    yield f"task      {found['task_id']}"
    yield f"judged    {found['protocol']} by {found['judge']} (spec {found['spec']})"
    category = f" ({found['category']})" if found["category"] else ""
    yield f"question  {visible(found['question_id'])}{visible(category)}"
    for side in ("a", "b"):
        if found[f"response_{side}"] is not None:
            yield f"answer {side}  {visible(found[f'response_{side}'])} (model {visible(found[f'model_{side}'])})"
    if found["order"]:
        yield f"order     {found['order']}: {found['order'][0].lower()} shown first"
    yield f"sample    {found['sample']}, repeat {found['repeat']}"
    detail = f": {visible(found['detail'])}" if found["detail"] else ""
    yield f"status    {found['status'] or 'not judged yet'}{detail}"
    if found["truncated"]:
        yield "truncated the responses were cut in the middle to fit the context"
    yield f"prompt    {'exact' if found['prompt_exact'] else 'not exact'}: {visible(found['prompt_note'])}"
    yield "-" * 80
    yield from _prompt_lines(found["prompt"], tokens)
    yield "-" * 80
    yield from _label_lines(found)


def _prompt_lines(parts: list[dict[str, Any]], tokens: bool) -> Iterator[str]:
    if not tokens:
        yield "".join(_bordered(part) for part in parts)
        return
    for part in parts:
        ids = "no token ids" if part["token_ids"] is None else f"{len(part['token_ids'])} tokens {part['token_ids']}"
        yield f"[{part['what']}] {ids}"
        yield visible(part["text"])


def _bordered(part: dict[str, Any]) -> str:
    if part["what"] == "template":
        return visible(part["text"])
    return f"⟦{part['what']}⟧{visible(part['text'])}⟦/{part['what']}⟧"


def _label_lines(found: dict[str, Any]) -> Iterator[str]:
    for row in found["labels"]:
        name = "" if row["name"] == row["label"] else f" ({row['name']})"
        logprob, probability = _number(row["logprob"], ".4f"), _number(row["probability"], ".6f")
        yield f"{row['label'] + name:<20} {logprob:>12}  P = {probability}"
    if found["emitted"] is not None:
        yield f"emitted {found['emitted']}, label mass {_number(found['label_mass'], '.6f')}"


def list_line(row: dict[str, Any]) -> str:
    """A judgment among others: id, protocol, who, order, status, probabilities."""
    who = visible(row["response_a"]) + (f" : {visible(row['response_b'])} {row['order']}" if row["response_b"] else "")
    known = [f"{x['name']} {_number(x['probability'], '.3f')}" for x in row["labels"] if x["probability"] is not None]
    if len(known) > _LABELS_SHOWN:
        best = sorted(row["labels"], key=lambda x: -(x["probability"] or 0.0))[:_LABELS_SHOWN]
        known = [f"{x['name']} {_number(x['probability'], '.3f')}" for x in best] + ["…"]
    numbers = f" [{row['sample']}.{row['repeat']}]" if row["sample"] or row["repeat"] else ""
    said = f"{row['emitted']}: {', '.join(known)}" if known else ""
    about = f"{row['judge']} {row['protocol']}{numbers}"
    return f"{row['task_id']}  {about}  {who}  {row['status'] or 'not judged'}  {said}".rstrip()


def as_json(value: Any) -> Any:
    """A value for JSON: a number that JSON cannot say as text (`-inf`)."""
    if isinstance(value, dict):
        return {key: as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def visible(text: str) -> str:
    """A text without control characters that a terminal would obey: they are written as \\x1b."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


# --- progress --------------------------------------------------------------------------------


class ProgressLines:
    """Says on a stream how far a run is: on a terminal in one line that is written over each second, elsewhere (the log
    of a job) as one JSON object a minute, whether or not something was judged meanwhile. A last one when judging has
    ended, on both.

    Called with what is being done, and with the progress while judges are asked. To be used as a context: it has a
    thread for the seconds and minutes.
    """

    def __init__(self, stream: TextIO, every: float | None = None) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._every = every or (1.0 if self._terminal else 60.0)
        self._width = 0
        self._progress: Progress | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._now_and_then, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        with self._lock:
            self._end_line()

    def __call__(self, what: str, progress: Progress | None) -> None:
        with self._lock:
            if progress is None:
                self._say(visible(what))
                return
            started = self._progress is None
            self._progress = None if progress.finished else progress
            if progress.finished or (started and self._terminal):
                self._show(progress)

    def _now_and_then(self) -> None:
        while not self._over.wait(self._every):
            with self._lock:
                if self._progress is not None:
                    self._show(self._progress)

    def _show(self, progress: Progress) -> None:
        if not self._terminal:
            self._say(json.dumps(progress.figures()))
        elif progress.total:
            self._write_over(progress_line(progress))
            if progress.finished:
                self._end_line()

    def _say(self, line: str) -> None:
        if self._width:
            print(f"\r{' ' * self._width}\r", end="", file=self._stream)
            self._width = 0
        print(line, file=self._stream, flush=True)

    def _write_over(self, line: str) -> None:
        """Write a line in place of the last one, cut to the terminal so that it stays one."""
        line = line[: max(20, shutil.get_terminal_size().columns - 1)]
        start = "\r" if self._width else ""
        print(f"{start}{line.ljust(self._width)}", end="", file=self._stream, flush=True)
        self._width = len(line)

    def _end_line(self) -> None:
        if self._width:
            print(file=self._stream, flush=True)
            self._width = 0


def progress_line(progress: Progress) -> str:
    """How far judging is, for a person."""
    found = progress.figures()
    rate = "" if progress.rate is None else f", {_rate(progress.rate)}"
    left = "" if found["eta"] is None or progress.finished else f", {_duration(found['eta'])} left"
    share = f" ({progress.judged / progress.total:.0%})" if progress.total else ""
    return f"judged {progress.judged:,} of {progress.total:,}{share}, {progress.failed:,} failed{rate}{left}"


def _rate(per_second: float) -> str:
    """`12.5/s`; a slow one as `7.5/min`."""
    return f"{per_second:,.1f}/s" if per_second >= 1 else f"{60 * per_second:.1f}/min"


def _duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
