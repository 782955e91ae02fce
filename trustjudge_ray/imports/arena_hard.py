"""The judgments of Arena-Hard-Auto, v0.1 and v2: a line a question and model, which met the baseline in two games.

v0.1: {question_id, model, judge, games: [{user_prompt, judgment, score}, …]}; the baseline is named nowhere.
v2: {uid, category, judge, model, baseline, games: [{score, judgment: {answer}, prompt: [messages]}, …]}.

Game 1 shows the baseline as A, game 2 the model; null in place of a game is a request that failed. `score` is what
Arena-Hard read: `A>>B`, `A>B`, `A=B`, `B>A`, `B>>A`, or null. The text is read again (`text_verdicts`) and counts where
the two differ; what has no text is taken as the file gives it.

Strong verdicts: a comparison here has three outcomes, so `A>>B` is a win like `A>B`, once. What was said stays in the
judgment's `detail` (`said A>>B`, with A and B as shown) and a note counts them. Arena-Hard counts a strong verdict as
three games, so its published scores are not the win rates of an imported run.

The prompts hold question and both answers between marks; where each mark is there once, they become responses.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

from trustjudge_ray.identity import id_key, joined_hash
from trustjudge_ray.imports.base import (
    Asked,
    Imported,
    Unusable,
    batches,
    clean_text,
    compare_protocol,
    failed,
    id_text,
    usable,
)
from trustjudge_ray.imports.judged_texts import Ledger, certain, entries, is_verdict, text_of, unread
from trustjudge_ray.imports.text_verdicts import NO_VERDICT, Verdict
from trustjudge_ray.imports.text_verdicts import read as read_text
from trustjudge_ray.judging.protocols import Protocol

BASELINE: Final = "gpt-4-0314"
"""The baseline of Arena-Hard v0.1."""
PROTOCOL: Final = "arena-hard"
_ANSWER = r"<\|The Start of Assistant {0}'s Answer\|>\n(.*)\n<\|The End of Assistant {0}'s Answer\|>"
_SHOWN = re.compile(
    rf"\s*<\|User Prompt\|>\n(.*)\n\n{_ANSWER.format('A')}\n\n{_ANSWER.format('B')}\s*",
    re.DOTALL,
)
_MARK = re.compile(r"<\|(?:User Prompt|The (?:Start|End) of Assistant [AB]'s Answer)\|>")
_MARKS: Final = 5


def read(files: Mapping[str, BinaryIO], judge: str | None = None, baseline: str | None = None) -> Imported:
    """Read Arena-Hard's judgments from open, seekable streams.

    - The judge is `judge`, or what the line says. Response ids are the model names.
    - The baseline is what the line says, or `baseline`, or `BASELINE`; a note says where it was not the line.
    - A line that is the same as one before it is quarantined as `duplicate_row`; further judgments of the same thing
      are samples, averaged by the analysis. The baseline against itself is quarantined as `same_model`.
    - A text without a verdict is a row with a state of `text_verdicts.STATES` as its status, a failed request one of
      status `missing`.

    Raises (while `judgments` is read):
        ImportFileError: there is no judgment in the files.
    """
    reader = _Reader(judge, baseline)
    found = Imported(batches(reader.rows(files), reader.ledger.quarantine), reader.protocols, reader.responses)
    found.quarantine_rows, found.notes = reader.ledger.quarantine, reader.notes
    return found


@dataclass(frozen=True, slots=True)
class _Game:
    """One text, the file's own reading of it (None where it gives none), and what the judge was shown."""

    text: str | None
    own: str | None
    prompt: str | None


@dataclass(frozen=True, slots=True)
class _Line:
    question: str
    category: str | None
    judge: str
    model: str
    baseline: str | None
    games: tuple[_Game | None, ...]
    row: dict[str, Any]


@dataclass
class _Reader:
    judge: str | None
    baseline: str | None
    ledger: Ledger = field(default_factory=Ledger)
    protocols: dict[str, Protocol] = field(default_factory=lambda: {PROTOCOL: compare_protocol(PROTOCOL)})
    responses: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    texts: dict[tuple[str, str], str] = field(default_factory=dict)

    def rows(self, files: Mapping[str, BinaryIO]) -> Iterator[dict[str, Any]]:
        for name, stream in files.items():
            for number, line in usable(name, entries(stream), self._line, self.ledger.quarantine):
                row = line.row | {"question": line.question}
                if self.ledger.repeated(name, number, row, ("tstamp", "uid", "question_id")):
                    continue
                self.ledger.counts["unnamed"] += line.row.get("baseline") is None
                for at, game in enumerate(line.games):
                    models = (line.baseline or BASELINE, line.model)
                    shown = models if at % 2 == 0 else models[::-1]
                    yield self._row(line, shown, game)
                    self._responses(name, number, line, shown, game)
        self.notes += [*self.ledger.told(), *self._told()]

    def _line(self, row: dict[str, Any]) -> _Line:
        named = row.get("baseline")
        given = self.baseline if named is None else id_text(named, "baseline")
        games = row["games"]
        if not isinstance(games, list) or not games:
            raise Unusable("invalid_value", f"games: got {str(games)[:60]!r}; a list of two games")
        category = row.get("category")
        question = "uid" if "uid" in row else "question_id"
        line = _Line(
            id_text(row[question], question),
            clean_text(category) if isinstance(category, str) and category else None,
            id_text(row["judge"], "judge"),
            id_text(row["model"], "model"),
            given,
            tuple(_game(game) for game in games),
            row,
        )
        if line.model == (given or BASELINE):
            raise Unusable("same_model", f"{line.model} meets itself: it is the baseline")
        return line

    def _row(self, line: _Line, shown: tuple[str, str], game: _Game | None) -> dict[str, Any]:
        a, b = sorted(shown, key=id_key(list(shown)))
        order = "AB" if a == shown[0] else "BA"
        about = Asked(self.judge or line.judge, self.protocols[PROTOCOL], line.question, line.category, a, b, order)
        asked = self.ledger.sampled(about)
        if game is None:
            return failed(asked, "missing", "the judge gave nothing: null in the file")
        verdict = _verdict(game)
        told = []
        if game.text is None:
            self.ledger.counts["unread"] += 1
            if not is_verdict(verdict):
                return failed(asked, verdict.state, f"no text, and the file's own reading is {game.own or 'none'}")
            told.append("no text: as the file gives it")
        else:
            said = verdict.said if is_verdict(verdict) else None
            differs = not _agree(game.own, verdict)
            self.ledger.counts["texts"] += 1
            self.ledger.counts["differs"] += differs
            if said is None:
                return unread(asked, verdict, game.text, game.own)
            if differs:
                told.append(f"the file's own reading is {game.own or 'none'}")
        if verdict.strong:
            self.ledger.counts["strong"] += 1
        self.ledger.counts["verdicts"] += 1
        if verdict.strong or told:
            told.insert(0, f"said {verdict.said}")
        return certain(asked, str(verdict.label), game.text, "; ".join(told) or None)

    def _responses(self, source: str, number: int, line: _Line, shown: tuple[str, str], game: _Game | None) -> None:
        """The answers that a prompt shows, the first time that they are seen."""
        if game is None or game.prompt is None or len(_MARK.findall(game.prompt)) != _MARKS:
            return
        held = _SHOWN.fullmatch(game.prompt)
        if held is None:
            return
        for model, answer in zip(shown, (held[2], held[3]), strict=True):
            key, text = (line.question, model), clean_text(answer)
            if key not in self.texts:
                self.texts[key] = joined_hash(text)
                self._keep(source, number, line, model, clean_text(held[1]), text)
            self.ledger.counts["other_text"] += self.texts[key] != joined_hash(text)

    def _keep(self, source: str, number: int, line: _Line, model: str, question: str, answer: str) -> None:
        self.responses.append(
            {
                "question_id": line.question,
                "category": line.category,
                "messages": [{"role": "user", "content": question}],
                "response_id": model,
                "model": model,
                "replies": [answer],
                "source": source,
                "line": number,
            }
        )

    def _told(self) -> list[str]:
        counts, found = self.ledger.counts, []
        if counts["strong"]:
            found.append(
                f"{counts['strong']} of {counts['verdicts']} verdicts are strong (>>); each is one win here, and three "
                "games in Arena-Hard's own scores, which these win rates are not (`detail` has what was said)"
            )
        if counts["unnamed"]:
            taken = self.baseline or f"{BASELINE}, Arena-Hard v0.1's; --baseline names another"
            found.append(f"{counts['unnamed']} lines name no baseline; it is taken to be {taken}")
        if counts["other_text"]:
            found.append(
                f"{counts['other_text']} times an answer was shown with another text than before under the same "
                "question and model; the first one is kept as the response"
            )
        return found


def _verdict(game: _Game) -> Verdict:
    if game.text is not None:
        return read_text(game.text, "choice")
    return read_text(f"[[{game.own}]]", "choice") if game.own else Verdict(NO_VERDICT)


def _agree(own: str | None, verdict: Verdict) -> bool:
    """Whether the file's own reading is this verdict, and as strong."""
    if own is None:
        return not is_verdict(verdict)
    theirs = read_text(f"[[{own}]]", "choice")
    return theirs.same(verdict) and theirs.strong == verdict.strong


def _game(game: Any) -> _Game | None:
    if game is None:
        return None
    if not isinstance(game, dict):
        raise Unusable("invalid_value", f"games: got {str(game)[:60]!r}; an object with score and judgment, or null")
    own = game.get("score")
    if own is not None and not isinstance(own, str):
        raise Unusable("invalid_value", f"score: got {own!r}; one of A>>B, A>B, A=B, B>A, B>>A, or null")
    if "judgment" not in game and own is None:
        raise KeyError("judgment")
    prompt = game.get("user_prompt", game.get("prompt"))
    if isinstance(prompt, list):
        prompt = next((m.get("content") for m in prompt if isinstance(m, dict) and m.get("role") == "user"), None)
    text = text_of(game.get("judgment"), "judgment")
    return _Game(text, own, prompt if isinstance(prompt, str) else None)
