"""The text of a first configuration: what was found in a corpus, in comments, and keys that fit it."""

import re
import textwrap
from dataclasses import dataclass
from math import comb
from typing import Final

import polars as pl

from trustjudge_ray.config import EMBEDDED_NAME, CorpusConfig
from trustjudge_ray.corpus.formats import FILE
from trustjudge_ray.guessed_fields import Guess

_WIDTH: Final = 100
_PLAIN: Final = re.compile(r"[A-Za-z_./][A-Za-z0-9_./*-]*")
_WORDS: Final = {"null", "true", "false", "yes", "no", "on", "off", "y", "n", "~", ".", ".nan", ".inf"}
_PAIRS: Final = ("trl", "trl-conversational", "hh-rlhf", "ultrafeedback", "ultrafeedback-binarized", "prompt-responses")
_ALL_PAIRS, _BLOCK, _MANY = 6, 5, 20
"""Answers a question up to which all pairs are asked; answers of a block; models from which matching ranks cheaper."""
_SLOW: Final = 2000
"""Judgments from which a first try should be smaller."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known of a corpus.

    Attributes:
        out: the run folder to name.
        corpus: the section to write.
        says: what the format was recognised by.
        rows: RESPONSES, of all files or (not `whole`) of their first rows; `unusable` more rows could not be read.
        questions_only: nobody has answered yet.
    """

    out: str
    corpus: CorpusConfig
    says: list[str]
    guess: Guess
    rows: pl.DataFrame
    unusable: int
    whole: bool
    questions_only: bool


def text(found: Findings) -> str:
    """The configuration of a corpus, as YAML with comments."""
    asked = _protocols(found)
    sections = [_head(found, asked), _corpus(found), _judge(found), _asked(found, asked)]
    if not found.questions_only:
        sections += [_plan(found, asked), *([_FILTERS] if _labels(found) else []), _ANALYSIS]
    return "\n\n".join([*sections, _STORE, _CLUSTER]) + "\n"


# --- what fits -------------------------------------------------------------------------------


def _per_question(found: Findings) -> list[int]:
    """How many answers each question has."""
    return found.rows["question_id"].value_counts()["count"].to_list()


def _is_conversation(found: Findings) -> bool:
    """Whether more than one message comes before an answer, or an answer has several turns."""
    several = (pl.col("messages").list.len() > 1) | (pl.col("replies").list.len() > 1)
    return bool(found.rows.select(several.any()).item())


def _has_references(found: Findings) -> float:
    """The share of questions that have a reference."""
    by_question = found.rows.group_by("question_id").agg(pl.col("reference").is_not_null().any())
    return float(by_question["reference"].mean() or 0.0)  # type: ignore[arg-type]


def _protocols(found: Findings) -> list[str]:
    if found.questions_only:
        return ["answer"]
    if _is_conversation(found):
        asked = ["score-5-conversation", "compare-conversation"]
    else:
        asked = ["score-5-reference" if _has_references(found) == 1.0 else "score-5", "compare"]
    return asked if max(_per_question(found)) > 1 else asked[:1]


def _labels(found: Findings) -> bool:
    """Whether the corpus is one of preference pairs, to be labelled."""
    return found.corpus.format in _PAIRS and max(_per_question(found)) > 1


def _design(found: Findings) -> tuple[str, int]:
    """A design, and how many pairs of answers it asks about."""
    counts = _per_question(found)
    if found.rows["model"].n_unique() >= _MANY:
        return "matching", sum(4 * (n // 2) for n in counts)
    if max(counts) > _ALL_PAIRS:
        return "blocks", sum(comb(min(n, _BLOCK), 2) for n in counts)
    return "full", sum(comb(n, 2) for n in counts)


def _judgments(found: Findings, asked: list[str]) -> int:
    """About how many judgments a run comes to, of the rows that were read."""
    if found.questions_only:
        return found.rows.height
    return found.rows.height + (2 * _design(found)[1] if len(asked) > 1 else 0)


def _all_judged(found: Findings) -> bool:
    """Whether a judge is asked about every answer and pair: no answer is empty, no two to a question are the same."""
    texts = found.rows.select("question_id", pl.col("replies").list.join("\n").str.strip_chars())
    return texts.is_unique().all() and not (texts["replies"] == "").any()


# --- how it is said --------------------------------------------------------------------------


def _head(found: Findings, asked: list[str]) -> str:
    command = "answer" if found.questions_only else "preferences" if _labels(found) else "run"
    many = _judgments(found, asked)
    count = ("" if found.whole and _all_judged(found) else "at most " if found.whole else "more than ") + f"{many:,}"
    few = max(1, 200 * len(_per_question(found)) // many)
    small = f" --limit {few - few % 10 or few}" if many > _SLOW else ""
    writes = f"{_line(found.out)}/{'preferences' if _labels(found) else 'report'}.html"
    does = "lets the model answer" if found.questions_only else f"judges, and writes {writes}"
    told = _comment(
        "Made by `trustjudge init`. It runs as it is: the model is the small one that comes with the extra `cpu`, good "
        "for trying everything out and too weak for anything else. With this file as my.yaml:"
    )
    steps = [
        "#   trustjudge validate my.yaml    names every line that cannot be used, and why",
        f"#   trustjudge plan my.yaml        what a run comes to: here {count} judgments",
        f"#   trustjudge {command} my.yaml{small}".ljust(33) + f"  {does}",
    ]
    if _labels(found):
        steps.append(f"#   trustjudge export {_line(found.out)} trl-conversational pairs.parquet")
        steps.append("#   trustjudge run my.yaml         from the same judgments a ranking and a report on the judge")
    warned = [_comment(f"LOOK AT THIS: {warning}") for warning in found.guess.warnings]
    return "\n".join([told, *steps, *warned, f"out: {yaml_text(found.out)}"])


def _counts(found: Findings) -> str:
    models = sorted(found.rows["model"].unique())
    names = ", ".join(models[:6]) + (f" and {len(models) - 6} more" if len(models) > 6 else "")
    answers = f"{_number(found.rows.height, 'answer')} of {_number(len(models), 'model')} ({names})"
    where = "In it" if found.whole else "In the first rows of its files"
    said = f"{where}: {_number(len(_per_question(found)), 'question')}" + (
        "" if found.questions_only else f", {answers}"
    )
    if found.unusable:
        said += f"; {_number(found.unusable, 'row')} that cannot be used: `trustjudge validate` says why"
    human = found.rows["human_score"].drop_nulls().len()
    if human:
        said += f". {human:,} answers have people's score, so the report says how far judge and people agree"
    return said + "."


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def _corpus(found: Findings) -> str:
    corpus = found.corpus
    lines = ["corpus:"]
    if len(corpus.paths) > 3:
        lines += ["  paths:", *(f"    - {yaml_text(path)}" for path in corpus.paths)]
    else:
        lines.append(f"  paths: [{', '.join(map(yaml_text, corpus.paths))}]")
    lines.append(f"  format: {corpus.format}")
    lines += [_comment(said, "  ") for said in found.says]
    if corpus.fields:
        constant = any(theirs.startswith("=") for theirs in corpus.fields.values())
        file = any(theirs.startswith("=") and FILE in theirs for theirs in corpus.fields.values())
        means = f"; after `=` is a constant{f', {FILE} in it the name of the file' if file else ''}" if constant else ""
        lines += [f"  fields:  # our names: yours{means}"]
        pairs = [
            (f"    {ours}: {yaml_text(theirs)}", found.guess.why.get(ours)) for ours, theirs in corpus.fields.items()
        ]
        width = max(len(pair) for pair, _ in pairs)
        lines += [f"{pair.ljust(width)}  # {_line(why)}" if why else pair for pair, why in pairs]
    same = [ours for ours, theirs in found.guess.fields.items() if ours == theirs]
    if same:
        lines.append(_comment(f"Under our own names: {', '.join(same)}.", "  "))
    lines.append(_comment(_counts(found), "  "))
    if found.guess.left:
        left = ", ".join(found.guess.left[:20]) + (" …" if len(found.guess.left) > 20 else "")
        lines.append(_comment(f"Kept beside each answer (meta_json), not shown to judges: {left}.", "  "))
    return "\n".join(lines)


def _judge(found: Findings) -> str:
    who = "answers" if found.questions_only else "judges"
    return f"""judge:
  model: embedded  # {EMBEDDED_NAME}, on the CPU
  # What {who} in earnest, instead of the line above: a Hugging Face name or folder, on GPUs (`cluster`, below),
  # model: Qwen/Qwen2.5-32B-Instruct
  # or whatever is behind an OpenAI-compatible endpoint; its key is in the environment variable api_key_env
  # model: gpt-4.1
  # engine: openai_api
  # base_url: https://api.openai.com/v1
  # api_key_env: OPENAI_API_KEY"""


def _asked(found: Findings, asked: list[str]) -> str:
    line = f"protocols: [{', '.join(asked)}]"
    if found.questions_only:
        return line
    said = ["a score of 1 to 5 for each answer" + (", and each pair compared" if len(asked) > 1 else "")]
    if len(asked) == 1:
        said.append("every question has one answer, so there is nothing to compare")
    share = _has_references(found)
    if _is_conversation(found):
        said.append("the whole conversation is shown")
    elif 0 < share < 1:
        said.append(f"{share:.0%} of the questions have a reference; score-5-reference needs one for each")
    elif share == 1.0:
        said.append("score-5-reference shows the reference answer too")
    further = (
        "" if _is_conversation(found) else " score-100 is finer, score-5-rationale and compare-rationale reason first."
    )
    return f"{_comment('; '.join(said).capitalize() + '.' + further)}\n{line}"


def _plan(found: Findings, asked: list[str]) -> str:
    if len(asked) == 1:
        return "# plan: {canary: true}  # adds a model that says nothing and must end last"
    design, pairs = _design(found)
    most = max(_per_question(found))
    why = {
        "full": f"all pairs of the answers to a question ({most} at most), in both orders",
        "blocks": f"{_BLOCK} of the up to {most} answers to a question, all their pairs in both orders (`full`: all)",
        "matching": "four rounds of pairs a question rank many models; for conflict and non-transitivity, `blocks`",
    }[design]
    more = {"full": [], "blocks": [f"  block: {_BLOCK}"], "matching": ["  rounds: 4"]}[design]
    lines = [f"plan:\n  design: {design}", *more, _comment(f"{why}: {pairs:,} pairs.", "  ")]
    if design == "full":
        lines.append("  # design: matching  # with many models, instead of the line above\n  # rounds: 4")
    return "\n".join(lines)


_ANALYSIS = """# Which numbers are computed; `trustjudge evaluate` computes others later, without a judge.
# analysis:
#   tolerances: [0, 0.05, 0.1]   # gaps below which two scores or verdicts count as tied
#   k: [3, 4, 5]                 # sizes of the answer subsets of the non-transitivity ratio
#   covariates: [length]         # also rate at equal length"""

_FILTERS = """# Which pairs are kept for training; the others are in OUT/preferences-dropped, each with its reason.
preferences:
  filters:
    both_orders_agree: true  # the verdict is the same whichever answer is shown first
    min_margin: 0.2          # chance that the one wins, less that the other does
    min_label_mass: 0.5      # less of it, and the judge wanted to say something else
    no_cycle: true           # the answers to a prompt do not beat each other in a circle"""

_STORE = """# Judgments shared by runs: the next one, with another model, judges only what is new.
# store: runs/judgments"""

_CLUSTER = """# GPUs for a real judge. `trustjudge doctor my.yaml` checks all of it before a GPU is paid for.
# cluster:
#   gpus_per_replica: 1
#   tensor_parallel: 1       # GPUs over which the model is split
#   max_replicas: 4"""


def yaml_text(value: str) -> str:
    """A text as YAML reads it back, and OmegaConf after it."""
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    escaped = value.replace("${", "\\${")
    return '"' + "".join(_escaped(letter) for letter in escaped) + '"'


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    return letter if letter.isprintable() else f"\\U{ord(letter):08x}"


def _line(said: str) -> str:
    """A comment's text in one line, whatever came from a corpus."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in " ".join(said.split()))


def _comment(said: str, indent: str = "") -> str:
    start = f"{indent}# "
    return "\n".join(
        textwrap.wrap(_line(said), _WIDTH, initial_indent=start, subsequent_indent=start, break_on_hyphens=False)
    )
