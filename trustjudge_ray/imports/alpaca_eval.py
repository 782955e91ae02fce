"""The annotations of AlpacaEval: `annotations.json`, one JSON array or JSON Lines.

{instruction, output_1, generator_1, output_2, generator_2, dataset, annotator, preference, raw_completion, …}; also
with `input`, and with `preference_raw_completion` as later versions name it. `preference` is 1 where output 1 is
better, 2 where output 2 is, between them 1 + P(output 2 is better), and null where the annotator failed. 1.5 is a tie
(in old files 0 too), unless the annotator is one of probabilities: then it is an even chance.

Annotators of probabilities (weighted ones) are those with a preference that is none of these numbers. Their judgments
are distributions over two labels, a tie not being offered: those of the raw completion, where it lists the tokens
`m` and `M` and they give the preference, otherwise 1 − P and P. All other judgments are certain labels.

Outputs are stored as they were given, not as they were shown. Which was shown first is `is_switched_outputs` if it is
there, otherwise what the raw completion tells (`m` and `model_1` are the first), otherwise the draw of AlpacaEval's
own program, which depends on the instruction alone and with its default seed is known for every row.
"""

import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

from trustjudge_ray.identity import content_hash, id_key, joined_hash
from trustjudge_ray.imports.base import (
    Asked,
    Imported,
    Unusable,
    batches,
    clean_text,
    compare_protocol,
    failed,
    id_text,
    number,
    quarantined,
    read_row,
    usable,
)
from trustjudge_ray.imports.judged_texts import SAMPLED, Ledger, entries
from trustjudge_ray.judging.protocols import Protocol

PROTOCOL: Final = "alpaca-eval"
_FIRST: Final = ("m", "model_1")
_SECOND: Final = ("M", "model_2")
_PLAIN: Final = (0.0, 1.0, 1.5, 2.0)
_UNTOLD: Final = ("time_per_example", "price_per_example", "date", "version")
"""Fields that tell one annotation from another only by when it was made."""
_CLOSE: Final = 1e-6


def read(files: Mapping[str, BinaryIO], judge: str | None = None) -> Imported:
    """Read annotations from open, seekable streams, each twice: once for the annotators, once for the rows.

    - The judge is `judge`, or the annotator. Response ids are the generators. The question is the hash of the
      instruction that the corpus format `alpaca-eval` has, the category the data set. Outputs become responses.
    - Equal outputs were not judged: status `identical`, a tie. A preference that is null is `no_verdict`.
    - A row that is the same as one before it is quarantined as `duplicate_row`; a further annotation of the same
      outputs is a sample. Another output of one generator to one instruction is `conflicting_duplicate`, a generator
      against itself `same_model`.

    Raises (while `judgments` is read):
        ImportFileError: there is no annotation in the files.
    """
    reader = _Reader(judge)
    found = Imported(batches(reader.rows(files), reader.ledger.quarantine), reader.protocols, reader.responses)
    found.quarantine_rows, found.notes = reader.ledger.quarantine, reader.notes
    return found


@dataclass(frozen=True, slots=True)
class _Annotation:
    """One line. `switched` is whether output 2 was shown first, None where the line does not tell; `masses` P(output 1)
    and P(output 2) as the completion lists them; `emitted` the label that was written, as shown."""

    instruction: str
    question: str
    category: str | None
    annotator: str
    models: tuple[str, str]
    outputs: tuple[str, str]
    preference: float | None
    completion: Any
    switched: bool | None
    row: dict[str, Any]

    @property
    def draw(self) -> bool:
        """Whether output 2 is shown first by AlpacaEval's own draw with its default seed, 0."""
        written = str(self.row["instruction"])
        return random.Random(f"is_switched_outputs{written}0").choices([False, True])[0]


@dataclass
class _Reader:
    judge: str | None
    ledger: Ledger = field(default_factory=Ledger)
    protocols: dict[str, Protocol] = field(default_factory=lambda: {PROTOCOL: compare_protocol(PROTOCOL)})
    responses: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    texts: dict[tuple[str, str], str] = field(default_factory=dict)
    weighted: set[str] = field(default_factory=set)

    def rows(self, files: Mapping[str, BinaryIO]) -> Iterator[dict[str, Any]]:
        for name, stream in files.items():
            for _, found in usable(name, entries(stream), _annotation, []):
                if found.preference is not None and found.preference not in _PLAIN:
                    self.weighted.add(found.annotator)
        for name, stream in files.items():
            for line, found in usable(name, entries(stream), _annotation, self.ledger.quarantine):
                if not self.ledger.repeated(name, line, found.row, _UNTOLD) and self._answers(name, line, found):
                    yield self._row(found)
        self.notes += self._told()

    def _row(self, found: _Annotation) -> dict[str, Any]:
        switched, how = self._shown(found)
        shown = found.models[::-1] if switched else found.models
        a, b = sorted(shown, key=id_key(list(shown)))
        order = "AB" if a == shown[0] else "BA"
        judge = self.judge or found.annotator
        asked = self.ledger.sampled(Asked(judge, self.protocols[PROTOCOL], found.question, found.category, a, b, order))
        rationale = {"rationale": _written(found.completion), "detail": how}
        if found.outputs[0] == found.outputs[1]:
            return read_row(asked, {"A": 0.0, "B": 0.0, "C": 1.0}, "C") | rationale | {"status": "identical"}
        if found.preference is None:
            return failed(asked, "no_verdict", "preference: null in the file") | rationale
        if found.annotator not in self.weighted:
            self.ledger.counts["labels"] += 1
            said = _SAID[found.preference]
            label = said if said == "C" or not switched else "BA"["AB".index(said)]
            return read_row(asked, {name: float(name == label) for name in "ABC"}, label) | rationale
        self.ledger.counts["distributions"] += 1
        p = found.preference - 1
        shares = (p, 1 - p) if switched else (1 - p, p)
        masses, emitted = _listed(found.completion)
        fits = masses is not None and abs(masses[0] / sum(masses) - shares[0]) < _CLOSE
        first, second = masses if masses is not None and fits else shares
        return read_row(asked, {"A": first, "B": second, "C": 0.0}, emitted if fits and emitted else "") | rationale

    def _shown(self, found: _Annotation) -> tuple[bool, str | None]:
        """Whether output 2 was shown first, and how that is known where the row does not say it."""
        if found.switched is not None:
            return found.switched, None
        told = _told_by(found)
        if told is not None:
            return told, None
        self.ledger.counts["drawn"] += 1
        return found.draw, "which output was shown first is not in the file: as AlpacaEval draws it with seed 0"

    def _answers(self, source: str, line: int, found: _Annotation) -> bool:
        """Keep the two outputs as responses; False where one is another text than before, and the row is left out."""
        hashes = [joined_hash(output) for output in found.outputs]
        keys = [(found.question, model) for model in found.models]
        for key, text in zip(keys, hashes, strict=True):
            if self.texts.get(key, text) != text:
                detail = f"{key[1]} has another output to this instruction than before; the first one stays"
                self.ledger.quarantine.append(quarantined(source, line, "conflicting_duplicate", detail))
                return False
        for key, text, output in zip(keys, hashes, found.outputs, strict=True):
            if key not in self.texts:
                self.texts[key] = text
                self.responses.append(
                    {
                        "question_id": found.question,
                        "category": found.category,
                        "messages": [{"role": "user", "content": found.instruction}],
                        "response_id": key[1],
                        "model": key[1],
                        "replies": [output],
                        "source": source,
                        "line": line,
                    }
                )
        return True

    def _told(self) -> list[str]:
        counts = self.ledger.counts
        found = [note for note in self.ledger.told() if note != SAMPLED]
        if counts["labels"]:
            found.append(f"{SAMPLED} ({counts['labels']} of {counts['labels'] + counts['distributions']} judgments)")
        if counts["distributions"]:
            names = ", ".join(sorted(self.weighted))
            found.append(
                f"{counts['distributions']} judgments ({names}) are probabilities of two labels: a tie was not offered"
            )
        if counts["drawn"]:
            found.append(
                f"which of two outputs was shown first is not in {counts['drawn']} rows: taken as AlpacaEval draws it "
                "with its default seed; order effects of an annotator with another seed, or without a draw, are not to "
                "be believed"
            )
        found.append("each pair was shown in one order: what needs both (verdicts, conflict ratios) has no case")
        return found


_SAID: Final[Mapping[float, str]] = {0.0: "C", 1.0: "A", 1.5: "C", 2.0: "B"}


def _annotation(row: dict[str, Any]) -> _Annotation:
    models = id_text(row["generator_1"], "generator_1"), id_text(row["generator_2"], "generator_2")
    if models[0] == models[1]:
        raise Unusable("same_model", f"{models[0]} meets itself")
    texts = {}
    for name in ("instruction", "output_1", "output_2"):
        if not isinstance(row[name], str):
            raise Unusable("invalid_value", f"{name}: got {str(row[name])[:60]!r}; a text")
        texts[name] = clean_text(row[name])
    beside = row.get("input")
    instruction = texts["instruction"]
    if isinstance(beside, str) and beside.strip():
        instruction = f"{instruction}\n\n{clean_text(beside)}"
    category, switched = row.get("dataset"), row.get("is_switched_outputs", row.get("is_switch_output_1_output_2"))
    return _Annotation(
        instruction,
        content_hash(instruction),
        clean_text(category) if isinstance(category, str) and category else None,
        id_text(row.get("annotator", "alpaca-eval"), "annotator"),
        models,
        (texts["output_1"], texts["output_2"]),
        _preference(row["preference"]),
        row.get("raw_completion", row.get("preference_raw_completion")),
        switched if isinstance(switched, bool) else None,
        row,
    )


def _preference(value: Any) -> float | None:
    found = number(value)
    if value is None or (found is not None and math.isnan(found)):
        return None
    if found is None or not (found == 0 or 1 <= found <= 2):
        raise Unusable("invalid_value", f"preference: got {value!r}; 1 to 2, 0 for a tie, or null")
    return found


def _told_by(found: _Annotation) -> bool | None:
    """What the completion tells of the order: it says which was better as shown, the preference which as given."""
    if found.preference is None or found.preference in (0.0, 1.5):
        return None
    masses, _ = _listed(found.completion)
    if masses is not None:
        share = masses[1] / sum(masses)
        fits = [abs(p - (found.preference - 1)) < _CLOSE for p in (share, 1 - share)]
        return fits[1] if fits[0] != fits[1] else None
    rank = _rank(found.completion)
    return None if rank is None or found.preference not in (1.0, 2.0) else rank != found.preference


def _listed(completion: Any) -> tuple[tuple[float, float] | None, str | None]:
    """P(first shown) and P(second shown) of a completion with log-probabilities, and the label written."""
    try:
        place = completion["logprobs"]["content"][0]
        logs = {entry["token"]: float(entry["logprob"]) for entry in place["top_logprobs"]}
    except (KeyError, IndexError, TypeError, ValueError):
        return None, None
    masses = [math.exp(min(logs.get(tokens[0], -math.inf), 0.0)) for tokens in (_FIRST, _SECOND)]
    written = {_FIRST[0]: "A", _SECOND[0]: "B"}.get(place.get("token"))
    return ((masses[0], masses[1]), written) if sum(masses) > 0 else (None, None)


def _rank(completion: Any) -> int | None:
    """The rank that a completion gives to the output shown first, 1 or 2."""
    if isinstance(completion, str):
        try:
            completion = json.loads(completion.replace("'", '"'))
        except ValueError:
            return None
    if isinstance(completion, dict):
        completion = completion.get("ordered_models")
    if not isinstance(completion, list) or not all(isinstance(entry, dict) for entry in completion):
        return None
    ranks = {entry.get("model"): entry.get("rank") for entry in completion}
    first = next((ranks[name] for name in _FIRST if name in ranks), None)
    return int(first) if first in (1, 2) else None


def _written(completion: Any) -> str | None:
    """What the annotator wrote: its text, or the text in what it sent."""
    if isinstance(completion, dict) and isinstance(completion.get("text"), str):
        completion = completion["text"]
    if completion is None or isinstance(completion, str):
        return None if completion is None else clean_text(completion)
    return clean_text(json.dumps(completion, ensure_ascii=False))
