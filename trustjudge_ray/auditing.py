"""The audit of a judge, step by step: it answers, its answers are checked, it judges, and a card is made of that.

Answers and verdicts are ordinary runs in folders of their own under `out` (`answers`, `verdicts`, and `oracle` where a
judge is shown the golds), through the same engine, store and pipeline: started again, they go on where they stopped,
and ask again where the judge failed (an endpoint that was down would otherwise cost coverage for ever).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import polars as pl

from trustjudge_ray import __version__, experiments, lease, runs
from trustjudge_ray.audit import candidates as drafting
from trustjudge_ray.audit import item_files, item_reading, qa, reads
from trustjudge_ray.audit.card import Card, card
from trustjudge_ray.audit.item_files import Problem
from trustjudge_ray.audit.qa import Item
from trustjudge_ray.audit_config import AuditConfig
from trustjudge_ray.config import (
    ConfigError,
    CorpusConfig,
    JudgeConfig,
    LoadedConfig,
    PlanConfig,
    judge_name,
    with_sections,
)
from trustjudge_ray.identity import seed_of
from trustjudge_ray.judging import protocols
from trustjudge_ray.judging.base import JUDGE_FAILURES, RunError
from trustjudge_ray.judging.protocols import Protocol, ProtocolError
from trustjudge_ray.manifest import git_commit, versions
from trustjudge_ray.report import audit as page
from trustjudge_ray.runs import Judged, Notify
from trustjudge_ray.store import RunFolder

_SHOWN_GOLD = "verify-shown-gold"
_ITEM_TYPES: dict[str, Any] = {"golds": pl.List(pl.String), "wrong": pl.List(pl.String), "hops": pl.Int32}
_REPEAT_SHARE = 0.1
"""Of the verdicts that are asked again where there are probes."""
_WRITTEN = ("audit.json", "audit.html", "audit.txt")
"""What an audit comes to, in its folder."""


@dataclass(frozen=True)
class Audited:
    """What an audit came to: the card, its text, and where it lies; `failed` says in words why the command fails."""

    card: dict[str, Any]
    text: str
    path: str
    failed: list[str]


def audit(loaded: LoadedConfig, notify: Notify) -> Audited:
    """Audit a judge: answers, candidates, verdicts, card. Always writes a new `audit.json`: the card of an earlier
    audit in the folder is removed before anything is asked, for it may be of other questions or another judge.

    Raises:
        ConfigError, ProtocolError: the `audit` section cannot be meant.
        ItemFileError: a file of questions cannot be used. Otherwise as `runs.judge`.
    """
    settings = loaded.config.audit or AuditConfig()
    judges = _judges(loaded, settings)
    asked = _protocols(settings)
    experiments.refuse_weightless(loaded, judges[0], settings)
    items, source = _items(loaded, settings, notify)
    folder = RunFolder(loaded.config.out, dict(loaded.config.storage_options))
    with lease.held(folder):
        for name in _WRITTEN:
            folder.remove(name)
        _write_items(folder, items, source)
        return _audit(loaded, judges, asked, items, source, folder, notify)


def _audit(
    loaded: LoadedConfig, judges: tuple[JudgeConfig, JudgeConfig | None], asked: "_Asked", items: Sequence[Item],
    source: Mapping[str, Any], folder: RunFolder, notify: Notify,
) -> Audited:  # fmt: skip
    """`audit`, once its items are chosen and written and its folder is held."""
    settings, (judge, oracle) = loaded.config.audit or AuditConfig(), judges
    parts = [_answers(loaded, judge, settings, folder, notify)]
    found, named = parts[0].folder.judgments()[0], parts[0].protocols
    generated = reads.generated(found, named, items)
    shown = oracle or (judge if settings.oracle == qa.SHOWN_GOLD else None)
    if shown is not None:
        parts.append(_shown(loaded, shown, folder, generated, items, notify))
        said = reads.shown_gold(parts[-1].folder.judgments()[0], settings.min_mass)
        generated = reads.generated(found, named, items, said)
    drafts, missing = drafting.build(items, generated, settings.oracle, settings.seed, settings.probes)
    folder.write_table("candidates.parquet", drafts.to_arrow())
    folder.write_table("missing_candidates.parquet", missing.to_arrow())
    verdicts = _verdicts(loaded, judge, settings, asked, folder, items, drafts, notify)
    judged, names = verdicts.folder.judgments()[0], verdicts.protocols
    made = card(
        reads.reads(judged, names, items, drafts), reads.pairs(judged, items), generated,
        qa.agreement(generated).to_dicts(), settings,
    )  # fmt: skip
    parts.append(verdicts)
    looked = experiments.attention(loaded, judge, settings, items, generated, notify)
    trained = experiments.lora(loaded, judge, settings, items, drafts, notify)
    made = replace(
        made,
        attention=looked,
        lora=trained,
        judge=_described(judge, verdicts.judged),
        made=_made(settings, shown, source, parts),
    )
    return _written(folder, made, parts, settings)


# --- what is asked ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asked:
    """The protocols of an audit: those that answer, those that are counterbalanced, and the rest."""

    answers: list[Protocol]
    verify: list[Protocol]
    further: list[Protocol]


def _judges(loaded: LoadedConfig, settings: AuditConfig) -> tuple[JudgeConfig, JudgeConfig | None]:
    """The judge that is audited, and the one that is shown the golds if there is one."""
    named = {judge_name(judge): judge for judge in loaded.config.all_judges}
    oracle = None
    if settings.oracle_judge is not None:
        if settings.oracle_judge not in named:
            raise ConfigError(
                f"{loaded.source}: audit.oracle_judge: no judge '{settings.oracle_judge}' in {list(named)}"
            )
        oracle = named.pop(settings.oracle_judge)
    if len(named) != 1:
        raise ConfigError(
            f"{loaded.source}: an audit is of one judge, and here are {list(named)}: configure one as `judge` (and a "
            "second one in `judges` if audit.oracle_judge names it)"
        )
    return next(iter(named.values())), oracle


def _protocols(settings: AuditConfig) -> _Asked:
    asked = _Asked(
        [protocols.load(name) for name in settings.answer_protocols],
        [protocols.load(name) for name in settings.protocols],
        [protocols.load(name) for name in settings.further_protocols],
    )
    for protocol in asked.answers:
        _refuse(protocol.kind != "answer", "audit.answer_protocols", protocol, "kind answer")
    shown = [p for p in asked.answers if "context" in p.slots]
    if len(shown) != 1 or len(asked.answers) > 2:
        raise ProtocolError(
            f"audit.answer_protocols: got {settings.answer_protocols}; one that shows the passage ({{context}}), and "
            "at most one that does not"
        )
    for protocol in asked.verify:
        wrong = protocol.kind != "verify" or reads.condition_of(protocol) != "full"
        _refuse(wrong, "audit.protocols", protocol, "kind verify with the slot {context}")
    return asked


def _refuse(wrong: bool, key: str, protocol: Protocol, right: str) -> None:
    if wrong:
        raise ProtocolError(f"{key}: '{protocol.name}' is of kind {protocol.kind} with slots {protocol.slots}; {right}")


def _only(asked: _Asked) -> dict[str, list[str]]:
    """Which candidates each protocol is put to: probes to the way of asking that is named first alone."""
    read = ["own", "gold", "swap", "closed_book"]
    first = reads.polarity_of(asked.verify[0])
    only = {p.name: read for p in asked.verify if reads.polarity_of(p) != first}
    only |= {p.name: ["own", "gold", "swap"] for p in asked.further if p.kind == "verify"}
    return only | {p.name: ["gold", "swap"] for p in asked.further if p.kind == "compare"}


# --- items -----------------------------------------------------------------------------------


def _items(loaded: LoadedConfig, settings: AuditConfig, notify: Notify) -> tuple[list[Item], dict[str, Any]]:
    """The items that are asked about, and where they come from: files, formats, and what was left out."""
    if settings.items:
        files = item_reading.read_items(settings.items, settings.format, dict(loaded.config.storage_options))
        items = [item for file in files for item in file.items]
        problems = [problem for file in files for problem in file.problems]
        formats = {path: file.format for path, file in zip(settings.items, files, strict=True)}
    else:
        items, problems = list(item_files.own_items()), []
        formats = {"the project's own set": "items"}
    for path, form in formats.items():
        notify(f"items: {path} is of format {form}", None)
    if problems:
        notify(f"items: {len(problems)} left out, the first: {problems[0].detail}", None)
    if not items:
        raise RunError(f"audit.items: no usable item in {list(formats)}: {_counts(problems)}")
    chosen = limited(items, settings.limit, settings.seed)
    source = {"files": formats, "read": len(items), "asked": len(chosen), "left_out": _counts(problems)}
    return chosen, source | {"problems": [asdict(problem) for problem in problems[:100]]}


def limited(items: Sequence[Item], limit: int | None, seed: int) -> list[Item]:
    """At most so many items: passages in an order drawn by `seed`, whole but for the last, so that most items have the
    others of their passage."""
    if limit is None or len(items) <= limit:
        return list(items)
    drawn = {item.passage_id: seed_of("audit", str(seed), item.passage_id) for item in items}
    kept = sorted(items, key=lambda item: drawn[item.passage_id])[:limit]
    chosen = {item.id for item in kept}
    return [item for item in items if item.id in chosen]


def _counts(problems: Sequence[Problem]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for problem in problems:
        counts[problem.reason] = counts.get(problem.reason, 0) + 1
    return counts


def _write_items(folder: RunFolder, items: Sequence[Item], source: Mapping[str, Any]) -> None:
    rows = [asdict(item) | {"golds": list(item.golds), "wrong": list(item.wrong)} for item in items]
    folder.write_table("items.parquet", pl.DataFrame(rows, schema_overrides=_ITEM_TYPES).to_arrow())
    folder.write_json("items_left_out.json", source["problems"])
    _write_lines(folder, "items.jsonl", [_question(item) for item in items])


def _question(item: Item) -> dict[str, Any]:
    golds = "\n".join(" ".join(gold.split()) for gold in item.golds)
    about = {"question_id": item.id, "category": item.benchmark, "context": item.context, "question": item.question}
    return about | {"reference": golds}


def _write_lines(folder: RunFolder, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    folder.write_bytes(name, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8"))


# --- runs ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """A run of an audit, in a folder of its own."""

    name: str
    folder: RunFolder
    protocols: dict[str, Protocol]
    judged: Judged


def _run(
    loaded: LoadedConfig, name: str, judge: JudgeConfig, asked: Sequence[str], corpus: CorpusConfig, plan: PlanConfig,
    notify: Notify,
) -> _Part:  # fmt: skip
    config = loaded.config
    out = f"{config.out.rstrip('/')}/{name}"
    unaudited = replace(judge, audit=None)  # the card that the configuration names may be the one that is made here
    sections = {
        "out": out, "corpus": corpus, "judge": unaudited, "judges": [], "protocols": list(asked), "plan": plan,
        "run": replace(config.run, limit=None), "audit": None,
    }  # fmt: skip
    given = with_sections(loaded, **sections)
    notify(f"{name}:", None)
    judged = runs.judge(given, notify, again=frozenset(JUDGE_FAILURES))
    if judged.stopped:
        raise RunError(f"{out}: {judged.stopped}")
    folder = runs.folder_of(given)
    return _Part(name, folder, folder.protocols(), judged)


def _answers(
    loaded: LoadedConfig, judge: JudgeConfig, settings: AuditConfig, folder: RunFolder, notify: Notify
) -> _Part:
    corpus = CorpusConfig(paths=[f"{folder.path}/items.jsonl"], format="questions")
    return _run(loaded, "answers", judge, settings.answer_protocols, corpus, PlanConfig(), notify)


def _verdicts(
    loaded: LoadedConfig, judge: JudgeConfig, settings: AuditConfig, asked: _Asked, folder: RunFolder,
    items: Sequence[Item], drafts: pl.DataFrame, notify: Notify,
) -> _Part:  # fmt: skip
    corpus = _candidate_corpus(folder, "candidates.jsonl", items, drafts)
    repeat = {"repeat": 1, "repeat_share": _REPEAT_SHARE} if settings.probes else {}
    plan = PlanConfig(only=_only(asked), seed=settings.seed, **repeat)  # type: ignore[arg-type]
    names = [*settings.protocols, *(protocol.name for protocol in asked.further)]
    return _run(loaded, "verdicts", judge, names, corpus, plan, notify)


def _candidate_corpus(folder: RunFolder, name: str, items: Sequence[Item], drafts: pl.DataFrame) -> CorpusConfig:
    known = {item.id: _question(item) for item in items}
    rows = [
        known[row["item_id"]] | {"model": row["candidate"], "response": row["text"]}
        for row in drafts.select("item_id", "candidate", "text").to_dicts()
    ]
    _write_lines(folder, name, rows)
    return CorpusConfig(paths=[f"{folder.path}/{name}"], fields={"context": "context"}, error_markers=[])


def _shown(
    loaded: LoadedConfig, judge: JudgeConfig, folder: RunFolder, generated: pl.DataFrame, items: Sequence[Item],
    notify: Notify,
) -> _Part:  # fmt: skip
    """A judge that is shown the golds looks at every answer; its condition stands for the model."""
    given = generated.filter(status="ok").select(
        "item_id", pl.col("condition").alias("candidate"), pl.col("output").alias("text")
    )
    if given.is_empty():
        raise RunError(f"{folder.path}/answers: no answer could be read, so there is nothing to show an oracle")
    corpus = _candidate_corpus(folder, "oracle.jsonl", items, given)
    return _run(loaded, "oracle", judge, [_SHOWN_GOLD], corpus, PlanConfig(), notify)


# --- what is written -------------------------------------------------------------------------


def _described(judge: JudgeConfig, judged: Judged) -> dict[str, Any]:
    name = judge_name(judge)
    return {"name": name, "identity": judged.manifest["judges"][name]}


def _made(
    settings: AuditConfig, oracle: JudgeConfig | None, source: Mapping[str, Any], parts: Sequence[_Part]
) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "trustjudge_ray": __version__,
        "versions": versions(),
        "git_commit": git_commit(),
        "settings": asdict(settings),
        "items": {key: value for key, value in source.items() if key != "problems"},
        "oracle_judge": None if oracle is None else judge_name(oracle),
        "protocols": {name: p.hash for part in parts for name, p in part.protocols.items()},
        "runs": {
            part.name: {
                key: part.judged.manifest[key] for key in ("tasks", "judged_now", "counts", "tokens", "seconds")
            }
            for part in parts
        },
    }


def _written(folder: RunFolder, made: Card, parts: Sequence[_Part], settings: AuditConfig) -> Audited:
    shown = made.as_json()
    text = page.audit_text(shown)
    folder.write_bytes("audit.html", page.audit_page(shown).encode("utf-8"))
    folder.write_bytes("audit.txt", text.encode("utf-8"))
    folder.write_json("audit.json", shown)
    failed = [reason for part in parts for reason in part.judged.over_limit]
    if made.verdict in settings.fail_on:
        failed.append(
            f"the gate says {made.verdict}: " + "; ".join(g.text for g in made.gates if g.status == made.verdict)
        )
    return Audited(shown, text, f"{folder.path}/audit.html", failed)
