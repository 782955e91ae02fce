"""The browser of judgments: `judgments.html` beside a report, and its data in `browse/`, loaded when it is looked at.

The page lists the worst contradictions first (`contradictions`), filters and sorts all judgments, and shows a pair, an
answer or a cycle with everything that is known of it. It works from a disk and from a web server alike: a data file is
a script that calls `trustjudge(name, data)`, because a page on a disk may not read files otherwise. The page's policy
lets its own script run and files from its own place, and nothing else; texts are put into it as text alone.

Links. What is behind `#` in `judgments.html#…` is written like a web address' query, made by `link`:

- nothing: the worst contradictions. `kind=conflicts|cycles|flips`, `lane=N` (the judge and its protocols, in the order
  of the page's list), `type=…` (one type of them), `page=N`.
- `q=…`: the judgments of the question with that id; if there is none (a `*` behind it makes sure), of all whose ids
  hold that text. With it, or `view=all` in its place: `model=…`, `judge=…`, `protocol=…`, `status=…`,
  `sort=gap|-gap|mass|-mass` (`-`: largest first), `page=N`.
- `pair=QUESTION&a=RESPONSE&b=RESPONSE`: two answers side by side. `answer=QUESTION&a=RESPONSE`: one of them.
- `cycle=QUESTION&x=RESPONSE&y=RESPONSE&z=RESPONSE&judge=…&protocol=…`: three answers and their three pairs.
"""

import shlex
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlencode

import polars as pl

from trustjudge_ray.analysis.canary import canary_of, without_canary
from trustjudge_ray.analysis.scoring import SCORING_RULES
from trustjudge_ray.analysis.verdicts import VERDICT_RULES, pairs_of
from trustjudge_ray.report.browse_rows import Names, arrange, groups, index
from trustjudge_ray.report.cells import Inputs
from trustjudge_ray.report.contradictions import LISTED, Contradictions, conflicts, flips
from trustjudge_ray.report.cycles import cycles
from trustjudge_ray.report.rendering import as_json, policy, render, script

LIMIT: Final = 300_000
"""Judgments in a browser. Of a larger run it has the questions with listed contradictions, then others in order."""
PAGE: Final = "judgments.html"
FOLDER: Final = "browse"
_SCRIPTS: Final = ("theme.js", "browse.js", "browse_lists.js", "browse_details.js")
_OWN_FILES: Final = "'self' file:"
"""Where data files may come from: the page's own server, or, where it lies on a disk, that disk (some browsers do not
count files as `'self'`); a page from a server may not load files anyway."""
_POLICY: Final = "; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types browse"


def link(**about: str) -> str:
    """A link from the report to a place in the browser: `link(q="q1")`, `link(pair="q1", a="x", b="y")`."""
    return f"{PAGE}#{urlencode(about)}"


def page(title: str) -> str:
    """The page itself; what it shows comes from the files in `browse/`."""
    scripts = [script(name) for name in _SCRIPTS]
    return render("browse.html.j2", title=title, policy=policy(scripts, also=_OWN_FILES) + _POLICY, scripts=scripts)


def files(inputs: Inputs, responses: pl.DataFrame, run: str, limit: int = LIMIT) -> Iterator[tuple[str, bytes]]:
    """The files in `browse/`, by name.

    Args:
        responses: RESPONSES of the run; none for imports.
        run: the run folder as a command names it.
        limit: judgments at most.
    """
    worst = contradictions(inputs, responses)
    chosen = questions_within(inputs.judgments, worst, limit)
    names = Names.of(inputs.judgments)
    arranged = arrange(inputs.judgments, chosen, names)
    placed: dict[str, list[int]] = {"index": [], "groups": []}
    for number, (first, data) in enumerate(index(arranged, inputs.protocols)):
        placed["index"].append(first)
        yield _file(f"index-{number:04d}", data)
    mine = responses.filter(pl.col("question_id").is_in(chosen))
    tables = (inputs.scores.filter(pl.col("question_id").is_in(chosen)), _at_smallest_tolerance(inputs.verdicts))
    for number, (first, data) in enumerate(groups(arranged, mine, *tables, inputs.protocols)):
        placed["groups"].append(first)
        yield _file(f"group-{number:04d}", data)
    for number, lane in enumerate(worst):
        yield _file(f"worst-{number:04d}", {name: _rounded(lane.rows[name]) for name in lane.rows.columns})
    yield _file("questions", {"ids": arranged.questions, **placed})
    yield _file("start", _start(inputs, names, worst, responses.height > 0, run, arranged.rows.height, len(chosen)))


def contradictions(inputs: Inputs, responses: pl.DataFrame) -> list[Contradictions]:
    """All contradictions of a run, as `contradictions` and `cycles` find them; the canary's are left out."""
    canary = canary_of(responses)
    scores, verdicts, judged = (
        without_canary(table, canary) for table in (inputs.scores, inputs.verdicts, inputs.judgments)
    )
    return [
        *conflicts(scores, verdicts, inputs.protocols, inputs.settings),
        *cycles(verdicts, inputs.settings),
        *flips(pairs_of(judged)),
    ]


def questions_within(judgments: pl.DataFrame, worst: list[Contradictions], limit: int) -> list[str]:
    """The questions whose judgments are shown: all, if these are not more than the limit; else whole questions as long
    as there is room for them: those of listed contradictions, the first of every list first, then the others by id."""
    sizes = dict(judgments.group_by("question_id").len().sort("question_id").iter_rows())
    if judgments.height <= limit:
        return list(sizes)
    longest = max((lane.rows.height for lane in worst), default=0)
    listed = [lane.rows["question_id"].to_list() for lane in worst]
    first = [ids[place] for place in range(longest) for ids in listed if place < len(ids)]
    chosen, room = [], limit
    for question in dict.fromkeys([*first, *sizes]):
        if sizes.get(question, 0) <= room:
            chosen.append(question)
            room -= sizes.get(question, 0)
    return chosen


def _start(
    inputs: Inputs, names: Names, worst: list[Contradictions], texts: bool, run: str, shown: int, questions: int
) -> dict[str, Any]:
    """What the page needs first: what numbers stand for, which contradictions there are, and what is not there."""
    judged = {name: protocol for name, protocol in inputs.protocols.items() if any(p == name for _, p in names.lanes)}
    counts = dict(inputs.judgments["status"].value_counts().iter_rows())
    every = inputs.judgments["question_id"].n_unique()
    return {
        "title": inputs.title,
        "run": shlex.quote(run),
        "judges": names.judges,
        "lanes": names.lanes,
        "models": names.models,
        "statuses": names.statuses,
        "counts": [counts[status] for status in names.statuses],
        "protocols": {name: {"kind": p.kind, "labels": list(p.emitted_names)} for name, p in judged.items()},
        "score_rules": [inputs.settings.score_rule, *(r for r in SCORING_RULES if r != inputs.settings.score_rule)],
        "verdict_rules": [
            inputs.settings.verdict_rule,
            *(r for r in VERDICT_RULES if r != inputs.settings.verdict_rule),
        ],
        "listed": LISTED,
        "shown": shown,
        "total": inputs.judgments.height,
        "questions": questions,
        "all_questions": every,
        "worst": [_lane(lane) for lane in worst],
        "notes": _notes(inputs, texts, run, shown, questions, every),
    }


def _lane(lane: Contradictions) -> dict[str, Any]:
    about = (
        "kind",
        "judge",
        "protocol",
        "pair_protocol",
        "score_rule",
        "verdict_rule",
        "tolerance",
        "verdict_tolerance",
    )
    counted = ("cases", "total", "too_many")
    return {name: getattr(lane, name) for name in (*about, *counted)} | {
        "by_type": dict(lane.by_type),
        "listed": lane.rows.height,
    }


def _notes(inputs: Inputs, texts: bool, run: str, shown: int, questions: int, every: int) -> list[str]:
    """What is not here, in words."""
    kinds = set(inputs.judgments["kind"].unique())
    found = []
    if not inputs.judgments.height:
        found.append("There is no judgment in this run.")
    elif not kinds & {"score", "compare"}:
        found.append("No scores and no comparisons were asked for, so nothing can contradict itself here.")
    elif "compare" not in kinds:
        found.append("No comparisons were asked for, so there are no conflicts, cycles or order flips.")
    elif "score" not in kinds:
        found.append("No scores were asked for, so nothing can conflict with a comparison.")
    if inputs.judgments.height and not texts:
        found.append("The run folder holds no texts of questions and answers (imported judgments): only their ids.")
    if shown < inputs.judgments.height:
        found.append(
            f"{shown:,} of the run's {inputs.judgments.height:,} judgments are in this browser, those of {questions:,} "
            f"of its {every:,} questions: the ones with the listed contradictions, then others by id. Counts of "
            f"contradictions are of the whole run. For the rest: trustjudge show {shlex.quote(run)} --question ID"
        )
    if inputs.duplicates:
        found.append(f"{inputs.duplicates:,} further rows of the same judgments are left out, as everywhere.")
    return found


def _at_smallest_tolerance(verdicts: pl.DataFrame) -> pl.DataFrame:
    return verdicts.filter(pl.col("tolerance") == pl.col("tolerance").min().over("rule"))


def _rounded(column: pl.Series) -> list[Any]:
    return column.round(4).to_list() if column.dtype == pl.Float64 else column.to_list()


def _file(name: str, data: Any) -> tuple[str, bytes]:
    return f"{FOLDER}/{name}.js", f"trustjudge({as_json(name)}, {as_json(data)});\n".encode()
