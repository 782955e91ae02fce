"""The judgments of FastChat's `llm_judge` (MT-Bench): `JUDGE_single.jsonl` and `JUDGE_pair.jsonl`.

single: {question_id, model, judge: [name, prompt name], user_prompt, judgment, score, turn, tstamp}; a score of −1 is
    one that FastChat could not read.
pair: {question_id, model_1, model_2, g1_winner, g2_winner, judge, g1_user_prompt, g1_judgment, g2_user_prompt,
    g2_judgment, turn, tstamp}; game 1 shows model 1 first, game 2 model 2. A winner is `model_1`, `model_2`, `tie` or
    `error`. With `m1_score` and `m2_score` the two judgments are of single answers, and are read as such.

A judgment's text is read again (`text_verdicts`): FastChat takes the first score that it finds, and `[[A]]` before
`[[B]]` wherever they stand. Where the two differ the text counts. What has no text is taken as the file gives it.

Turns are judgments of different things. They have protocols of their own (`single-turn-1`, `single-turn-2`,
`pair-turn-1`, `pair-turn-2`), and the second turn of question 81 is the question `81-turn-2`: otherwise scores of one
turn would be held against comparisons of the other as contradictions. Another prompt than FastChat's own is named in
between (`pair-mine-turn-1`).

Scores are 1 to 10; where files hold scores between whole numbers, those are labels too. A file of questions among them
({question_id, category, turns}) gives categories. The answers themselves are only within prompts, and are not taken.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

from trustjudge_ray.identity import id_key
from trustjudge_ray.imports.base import (
    Asked,
    Imported,
    Unusable,
    batches,
    clean_text,
    compare_protocol,
    failed,
    id_text,
    labelled_protocol,
    number,
    usable,
)
from trustjudge_ray.imports.judged_texts import Ledger, certain, entries, is_verdict, text_of, unread
from trustjudge_ray.imports.text_verdicts import AMBIGUOUS, NO_VERDICT, NOT_A_LABEL, OK, Kind, Scale, Verdict
from trustjudge_ray.imports.text_verdicts import read as read_text
from trustjudge_ray.judging.protocols import Protocol

SCALE: Final = Scale(1, 10)
TIE_GAP: Final = 0.1
"""Two scores that are no further apart are a tie, as FastChat has it."""
_OWN_PROMPTS: Final[Mapping[str, str]] = {
    f"{name}{turns}": kind
    for kind, names in (("single", ("single-v1", "single-math-v1")), ("pair", ("pair-v2", "pair-math-v1")))
    for name in names
    for turns in ("", "-multi-turn")
}
"""FastChat's own prompts: those for mathematics show a reference, and belong to the same benchmark."""
_WINNERS: Final[Mapping[str, tuple[str, str]]] = {
    "model_1": ("A", "B"),
    "model_2": ("B", "A"),
    "tie": ("C", "C"),
    "error": ("", ""),
}
"""What a winner is as a label, in game 1 and in game 2."""
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")


def read(files: Mapping[str, BinaryIO], judge: str | None = None) -> Imported:
    """Read FastChat's judgments from open, seekable streams, each twice: once for the labels, once for the rows.

    - The judge is `judge`, or the name that the file gives. Response ids are the model names.
    - A row that is the same as one before it in all but the time stamp is quarantined as `duplicate_row`. Further
      judgments of the same thing are samples, averaged by the analysis.
    - A text without a verdict is a row with a state of `text_verdicts.STATES` as its status; `engine_error` where the
      text is `$ERROR$`. A pair of one model is quarantined as `same_model`.

    Raises (while `judgments` is read):
        ImportFileError: there is no judgment in the files.
    """
    reader = _Reader(judge)
    found = Imported(batches(reader.rows(files), reader.ledger.quarantine), reader.protocols)
    found.quarantine_rows, found.notes = reader.ledger.quarantine, reader.notes
    return found


@dataclass(frozen=True, slots=True)
class _Game:
    """One text of a judge: about which models, as shown, and what the file says it means (`own`, a label or a score).

    `second` is None where one answer is graded.
    """

    first: str
    second: str | None
    text: str | None
    own: str | None


@dataclass(frozen=True, slots=True)
class _Judged:
    """One line: who judged which question by which prompt, in how many games."""

    question: str
    judge: str
    prompt: str
    turn: int
    games: tuple[_Game, ...]
    row: dict[str, Any]

    def name(self, game: _Game) -> str:
        """The protocol of a game."""
        kind = "single" if game.second is None else "pair"
        other = _NO_NAME.sub("-", self.prompt).strip("-._")
        own = not other or _OWN_PROMPTS.get(self.prompt) == kind
        return f"{kind}-turn-{self.turn}" if own else f"{kind}-{other}-turn-{self.turn}"


@dataclass(frozen=True, slots=True)
class _Question:
    """A line of a file of questions."""

    question: str
    category: str | None


@dataclass
class _Reader:
    judge: str | None
    ledger: Ledger = field(default_factory=Ledger)
    protocols: dict[str, Protocol] = field(default_factory=dict)
    categories: dict[str, str | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def rows(self, files: Mapping[str, BinaryIO]) -> Iterator[dict[str, Any]]:
        self._look(files)
        for name, stream in files.items():
            for line, found in usable(name, entries(stream), _line, self.ledger.quarantine):
                if not isinstance(found, _Judged):
                    continue
                if not self.ledger.repeated(name, line, found.row | {"question_id": found.question}, ("tstamp",)):
                    for game in found.games:
                        yield self._row(found, game)
        self.notes += self.ledger.told()

    def _look(self, files: Mapping[str, BinaryIO]) -> None:
        """Which protocols there are, with which labels, and the categories of questions."""
        scores: dict[str, set[str]] = {}
        for name, stream in files.items():
            for _, found in usable(name, entries(stream), _line, []):
                if isinstance(found, _Question):
                    self.categories[found.question] = found.category
                    continue
                for game in found.games:
                    protocol = found.name(game)
                    if game.second is not None:
                        self.protocols[protocol] = compare_protocol(protocol)
                        continue
                    verdict, seen = _verdict(game), scores.setdefault(protocol, set())
                    seen.update([_label(verdict)] if verdict.state == OK else [])
        for name, seen in scores.items():
            labels = {str(point) for point in range(int(SCALE.low), int(SCALE.high) + 1)} | seen
            self.protocols[name] = labelled_protocol(name, tuple(sorted(labels, key=float)))

    def _row(self, judged: _Judged, game: _Game) -> dict[str, Any]:
        protocol = self.protocols[judged.name(game)]
        category = self.categories.get(judged.question)
        a, b, order = game.first, game.second, None
        if b is not None:
            a, b = sorted((a, b), key=id_key([a, b]))
            order = "AB" if a == game.first else "BA"
        judge, question = self.judge or judged.judge, judged.question + ("-turn-2" if judged.turn == 2 else "")
        asked = self.ledger.sampled(Asked(judge, protocol, question, category, a, b, order))
        verdict = _verdict(game)
        if game.text is None:
            self.ledger.counts["unread"] += 1
            if not is_verdict(verdict):
                return failed(asked, verdict.state, f"no text, and the file's own reading is {game.own or 'none'}")
            return certain(asked, _label(verdict), None, "no text: as the file gives it")
        self.ledger.counts["texts"] += 1
        said = _label(verdict) if is_verdict(verdict) else ""
        differs = game.own is not None and game.own != said
        self.ledger.counts["differs"] += differs
        if not said:
            return unread(asked, verdict, game.text, game.own or None)
        detail = f"read {verdict.said}; the file's own reading is {game.own or 'none'}" if differs else None
        return certain(asked, said, game.text, detail)


def _verdict(game: _Game) -> Verdict:
    """What a game's text says; without one, what the file gives."""
    kind: Kind = "score" if game.second is None else "choice"
    if game.text is None:
        return read_text(f"[[{game.own}]]", kind, SCALE) if game.own else Verdict(NO_VERDICT)
    if game.second is None:
        return read_text(game.text, "score", SCALE)
    choice = read_text(game.text, "choice")
    if choice.state not in (NOT_A_LABEL, NO_VERDICT, AMBIGUOUS):
        return choice
    both = read_text(game.text, "scores", SCALE)
    if both.state != OK:
        return choice
    gap = both.scores[0] - both.scores[1]
    return Verdict(OK, "C" if abs(gap) <= TIE_GAP + 1e-9 else "A" if gap > 0 else "B", both.scores, both.said)


def _label(verdict: Verdict) -> str:
    """The label of a verdict, as the protocol writes it."""
    return verdict.label if verdict.label is not None else _point(verdict.scores[0])


def _point(score: float) -> str:
    return str(int(score)) if score.is_integer() else repr(score)


def _line(row: dict[str, Any]) -> _Judged | _Question:
    """What a line says."""
    if "judge" not in row and "turns" in row:
        category = row.get("category")
        known = clean_text(category) if isinstance(category, str) and category else None
        return _Question(id_text(row["question_id"], "question_id"), known)
    given = row["judge"]
    names = given if isinstance(given, list) else [given]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise Unusable("invalid_value", f"judge: got {given!r}; [name, prompt name]")
    games = _pair(row) if "model_1" in row else _single(row)
    turn = row.get("turn", 1)
    if isinstance(turn, bool) or turn not in (1, 2):
        raise Unusable("invalid_value", f"turn: got {turn!r}; 1 or 2")
    question = id_text(row["question_id"], "question_id")
    return _Judged(question, clean_text(names[0]), clean_text((names + [""])[1]), int(turn), games, row)


def _single(row: dict[str, Any]) -> tuple[_Game, ...]:
    text = text_of(row.get("judgment"), "judgment")
    if text is None and "score" not in row:
        raise KeyError("judgment")
    return (_Game(id_text(row["model"], "model"), None, text, _own_score(row, "score")),)


def _pair(row: dict[str, Any]) -> tuple[_Game, ...]:
    models = id_text(row["model_1"], "model_1"), id_text(row["model_2"], "model_2")
    if models[0] == models[1]:
        raise Unusable("same_model", f"{models[0]} meets itself")
    games = []
    for at, (first, second) in enumerate((models, models[::-1])):
        text = text_of(row.get(f"g{at + 1}_judgment"), f"g{at + 1}_judgment")
        if "m1_score" in row:
            games.append(_Game(models[at], None, text, _own_score(row, f"m{at + 1}_score")))
            continue
        winner = row[f"g{at + 1}_winner"]
        if winner not in _WINNERS:
            raise Unusable("invalid_value", f"g{at + 1}_winner: got {winner!r}; one of {', '.join(_WINNERS)}")
        games.append(_Game(first, second, text, _WINNERS[winner][at]))
    return tuple(games)


def _own_score(row: dict[str, Any], name: str) -> str | None:
    """What the file gives as the score: a number as a label is written, empty for −1, None where it gives none."""
    if row.get(name) is None:
        return None
    score = number(row[name])
    if score is None:
        raise Unusable("invalid_value", f"{name}: got {row[name]!r}; a number, or -1")
    return "" if score == -1 else _point(score)
