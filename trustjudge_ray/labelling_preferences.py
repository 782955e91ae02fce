"""Bulk labelling of preference pairs: an ordinary run, then its judgments as pairs, a side table, a data card, exports.

In the run folder: `preferences/part-NNN.parquet` (pairs that are kept), `preferences-dropped/part-NNN.parquet` (the
others, each with its `drop_reason`), both PREFERENCES; `pairs.html` (the pairs to read first, with texts),
`preferences.html`, and `data_card.json` last.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import yaml

from trustjudge_ray import lease, runs
from trustjudge_ray.config import AnalysisConfig, ConfigError, LoadedConfig, judge_name
from trustjudge_ray.judging import protocols
from trustjudge_ray.judging.base import JUDGE_FAILURES, RunError
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.manifest import counted
from trustjudge_ray.preferences_config import PreferencesConfig
from trustjudge_ray.report import preferences as html
from trustjudge_ray.report.doubtful import pairs_page
from trustjudge_ray.report.excerpts import Excerpt, excerpts
from trustjudge_ray.schema import TASKS, check
from trustjudge_ray.storage import explained, filesystem, is_local
from trustjudge_ray.store import RunFolder
from trustjudge_ray.training import exports
from trustjudge_ray.training.data_card import Source, data_card
from trustjudge_ray.training.data_card_doubtful import listed
from trustjudge_ray.training.preference_filters import FILTERS, marked, refuse_bad_filters, wanted
from trustjudge_ray.training.preferences import PREFERENCES, Labeller, measured, with_cycles, with_texts

KEPT: Final = "preferences"
DROPPED: Final = "preferences-dropped"
CARD: Final = "data_card.json"
PAGE: Final = "preferences.html"
PAIRS: Final = "pairs.html"

_READ: Final = (
    *("task_id", "kind", "protocol", "judge", "question_id", "category", "response_a", "model_a", "response_b"),
    *("model_b", "order", "label_logprobs", "emitted", "cumulative_logprob", "output_tokens", "sample", "repeat"),
    *("truncated", "status"),
)
"""What is read of judgments: not their texts."""
_BYTES_AT_ONCE: Final = 2 * 2**20
"""Buckets whose tasks take no more in storage (some 50,000 of them) are read together, and their pairs are one part:
small ones are not worth a file of their own."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """What labelling came to: the judging, and the data card."""

    judged: runs.Judged
    card: dict[str, Any]


def label(loaded: LoadedConfig, settings: PreferencesConfig, notify: runs.Notify) -> Labelled:
    """Judge the pairs of a corpus and write them as preferences; again, it goes on where it stopped.

    Raises:
        ConfigError: the run compares nothing, or not in both orders; a filter, judge or protocol is none.
        As `runs.judge`.
    """
    asked = [protocols.load(name) for name in loaded.config.protocols]
    names = [judge_name(judge) for judge in loaded.config.all_judges]
    _refuse_one_order(loaded)
    _labeller(settings, {protocol.name: protocol for protocol in asked}, names)
    judged = runs.judge(loaded, notify)
    folder = runs.folder_of(loaded)
    with lease.held(folder):
        card = write(folder, settings, loaded.config.analysis)
    return Labelled(judged, card)


def _refuse_one_order(loaded: LoadedConfig) -> None:
    planned = loaded.config.plan
    if planned.orders != "both":
        raise ConfigError(f"{loaded.source}: plan.orders: got '{planned.orders}'; preferences need `both`")
    if planned.canary:
        raise ConfigError(f"{loaded.source}: plan.canary: a canary's answers are no preference pairs; leave it out")


def _labeller(settings: PreferencesConfig, known: Mapping[str, Protocol], judges: list[str]) -> Labeller:
    """Who labels, as the settings say or by default the first of each.

    Raises:
        ConfigError: there is none, or it is of another kind; a filter is none.
    """
    found: dict[str, str | None] = {}
    for key, kind, asked in (
        ("protocol", "compare", settings.protocol),
        ("score_protocol", "score", settings.score_protocol),
    ):
        names = [name for name, protocol in known.items() if protocol.kind == kind]
        if asked is not None and asked not in names:
            raise ConfigError(f"preferences.{key}: got '{asked}'; the run's protocols of kind {kind} are {names}")
        found[key] = asked or next(iter(names), None)
    if found["protocol"] is None:
        raise ConfigError(f"protocols: {list(known)}: none of kind compare; preferences come from comparisons")
    if settings.judge is not None and settings.judge not in judges:
        raise ConfigError(f"preferences.judge: got '{settings.judge}'; the run's judges are {judges}")
    refuse_bad_filters(settings.filters, found["score_protocol"] is not None)
    return Labeller(settings.judge or judges[0], found["protocol"], found["score_protocol"])


def write(
    folder: RunFolder, settings: PreferencesConfig, analysis: AnalysisConfig, some: bool = False
) -> dict[str, Any]:
    """Write the preferences of a judged run folder, in place of earlier ones, and their card; the card.

    Texts are held a few buckets at a time; what grows with the run are the numbers of each pair.

    Args:
        some: where no pair is kept, leave everything as it is and raise RunError.

    Raises:
        ConfigError: as `label`.
        RunError: the run has no responses (it was imported), or compares nothing.
        StorageError: storage refuses, or the run was never planned.
    """
    groups = _groups(folder)
    known, labeller = _asked_of(folder, groups, settings)
    parts = [_part(folder, number, buckets, known, labeller) for number, buckets in enumerate(groups)]
    if not any(part.pairs.height for part in parts):
        raise RunError(f"{folder.path}: no pair of responses was compared by {labeller.judge}, {labeller.protocol}")
    pairs = marked(with_cycles(pl.concat([part.pairs for part in parts])), settings.filters)
    lines = pl.concat([part.lines for part in parts])
    if some and not pairs["keep"].any():
        raise RunError(_nothing_kept(folder, counted(pairs["drop_reason"])))
    asked = pl.concat([part.asked for part in parts])
    source = _source(folder, lines, asked, labeller)
    card = data_card(pairs, source, labeller, settings.filters, analysis)
    for name in (CARD, PAGE, PAIRS, KEPT, DROPPED):
        folder.remove(name)
    first = pa.array(listed(card), pa.string())
    texts: dict[str, Excerpt] = {}
    for number, buckets in enumerate(groups):
        texts |= _write_part(folder, number, buckets, pairs.filter(pl.col("part") == number), first)
    title = folder.path.rsplit("/", 1)[-1]
    folder.write_bytes(PAIRS, pairs_page(card, title, texts).encode("utf-8"))
    folder.write_bytes(PAGE, html.page(card, title).encode("utf-8"))
    folder.write_json(CARD, card)
    return card


def _groups(folder: RunFolder) -> list[list[int]]:
    """The buckets of the run's own responses, those together that are small."""
    own = set(folder.names("responses"))
    groups: list[list[int]] = []
    room = 0
    for bucket, size in folder.bucket_bytes().items():
        if _responses(bucket) not in own:
            continue
        if not groups or size > room:
            groups.append([])
            room = _BYTES_AT_ONCE
        groups[-1].append(bucket)
        room -= size
    return groups


def _asked_of(
    folder: RunFolder, groups: list[list[int]], settings: PreferencesConfig
) -> tuple[dict[str, Protocol], Labeller]:
    """The protocols of a run folder, and who labels in it; raises as `write`."""
    judges = next(filter(None, (_judges(folder, bucket) for buckets in groups for bucket in buckets)), [])
    if not judges:
        raise RunError(f"{folder.path}: no pair of responses is planned; an imported run has none")
    found = folder.protocols()
    known = {name: found[name] for name in _as_configured(folder, "protocols", list(found))}
    return known, _labeller(settings, known, _as_configured(folder, "judges", judges))


def _judges(folder: RunFolder, bucket: int) -> list[str]:
    """The judges of a bucket's tasks: every question is put to every judge."""
    return sorted(folder.tasks(bucket, ["judge"])["judge"].unique().to_list())


@dataclass(frozen=True, slots=True)
class _Part:
    """The measured pairs of some buckets, which tell their `part`, and the lines of their responses: `source`, `line`,
    and whether the line's question has another response (`paired`). `asked`: by `status`, how many judgments (`n`) the
    labeller gave or failed to give, and of how many texts were `cut`."""

    pairs: pl.DataFrame
    lines: pl.DataFrame
    asked: pl.DataFrame


def _part(folder: RunFolder, number: int, buckets: list[int], known: dict[str, Protocol], labeller: Labeller) -> _Part:
    texts = _texts(folder, buckets)
    judgments = _judgments(folder, buckets)
    pairs = measured(judgments, texts, known, labeller)
    rows = pl.DataFrame(texts.select(["source", "line", "question_id"]))
    lines = rows.select("source", "line", paired=pl.len().over("question_id") > 1).unique()
    mine = pl.col("protocol").is_in([labeller.protocol, labeller.score_protocol]) & (pl.col("judge") == labeller.judge)
    asked = (
        judgments.filter(mine, pl.col("status").is_in(["ok", *JUDGE_FAILURES]))
        .group_by("status")
        .agg(n=pl.len().cast(pl.Int64), cut=pl.col("truncated").sum().cast(pl.Int64))
    )
    return _Part(pairs.with_columns(part=pl.lit(number)), lines, asked)


def _texts(folder: RunFolder, buckets: list[int]) -> pa.Table:
    return pa.concat_tables([folder.read_table(_responses(bucket)) for bucket in buckets])


def _as_configured(folder: RunFolder, what: str, known: list[str]) -> list[str]:
    """The names of a run's protocols or judges in the order of its configuration, as far as the manifest tells."""
    manifest = folder.read_json("manifest.json") if folder.exists("manifest.json") else {}
    told = [name for name in manifest.get(what, {}) if name in known]
    return [*told, *(name for name in known if name not in told)]


def _responses(bucket: int) -> str:
    return f"responses/bucket={bucket:03d}.parquet"


def _judgments(folder: RunFolder, buckets: list[int]) -> pl.DataFrame:
    """The judgments of buckets; a task that has none yet is one of status `not_judged`."""
    tasks = folder.tasks(buckets, [name for name in TASKS.names if name in (*_READ, "spec")])
    judged, _ = folder.judgments(tasks, buckets, list(_READ))
    left = tasks.join(judged, on="task_id", how="anti").drop("spec").with_columns(status=pl.lit("not_judged"))
    return pl.concat([judged, left], how="diagonal")


def _write_part(
    folder: RunFolder, number: int, buckets: list[int], pairs: pl.DataFrame, first: pa.Array
) -> dict[str, Excerpt]:
    """Write the pairs of a part; of those whose ids are `first`, excerpts."""
    table = with_texts(pairs, _texts(folder, buckets))
    for name, some in ((KEPT, table.filter(table["keep"])), (DROPPED, table.filter(pc.invert(table["keep"])))):
        if len(some):
            folder.write_table(f"{name}/part-{number:03d}.parquet", check(some, PREFERENCES))
    return excerpts(table.filter(pc.is_in(table["pair_id"], first)).to_pylist())


def _source(folder: RunFolder, lines: pl.DataFrame, asked: pl.DataFrame, labeller: Labeller) -> Source:
    """How many lines the files had, and which gave no pair: a line is counted once, however many responses it held. A
    response that is alone in its question, since what it stood against was refused, is no pair either: its line counts
    by that reason, or as `too_few_responses`. Of lines that gave pairs all the same the answers are counted that are in
    the quarantine."""
    used = lines.filter("paired").select("source", "line").unique()
    lost = lines.filter(~pl.col("paired")).select("source", "line", reason=pl.lit("too_few_responses"))
    bad = folder.quarantine()
    bad = lost.clear() if bad is None else bad.select(lost.columns)
    among = bad.join(used, on=["source", "line"], how="semi", nulls_equal=True)
    lost = pl.concat([bad, lost])
    lost = lost.unique(["source", "line"], keep="first", maintain_order=True)
    lost = lost.join(used, on=["source", "line"], how="anti", nulls_equal=True)
    rows = None if _limited(folder) else used.height + lost.height
    failed = asked.filter(pl.col("status") != "ok").group_by("status").agg(pl.col("n").sum())
    return Source(
        rows,
        counted(lost["reason"]),
        counted(among["reason"]),
        int(asked["n"].sum()),
        int(asked["cut"].sum()),
        dict(failed.iter_rows()),
        _run(folder, labeller),
    )


def _run(folder: RunFolder, labeller: Labeller) -> dict[str, Any] | None:
    """What the manifest says of the run that a reader of its card asks for."""
    if not folder.exists("manifest.json"):
        return None
    manifest = folder.read_json("manifest.json")
    judge = manifest.get("judges", {}).get(labeller.judge, {})
    files = manifest.get("corpus", {}).get("files", [])
    about = {"tool": manifest.get("trustjudge_ray"), "engine": judge.get("engine"), "model": judge.get("model")}
    return about | {"corpus": [file["source"] for file in files]}


def _limited(folder: RunFolder) -> bool:
    """Whether the run took the first questions of its corpus alone: then nothing tells how many lines held others."""
    text = folder.read_bytes("config.yaml") if folder.exists("config.yaml") else b""
    run = (yaml.safe_load(text) or {}).get("run") or {}
    return run.get("limit") is not None


def kept(folder: RunFolder) -> Iterator[pa.Table]:
    """The pairs that are kept, a part at a time."""
    for name in folder.names(KEPT):
        yield check(folder.read_table(name), PREFERENCES)


def _is_of(card: Mapping[str, Any], folder: RunFolder, settings: PreferencesConfig) -> bool:
    """Whether a card is of the labeller and the filters that are asked for. A folder that holds the preferences alone,
    without the run that they are of, has one labeller: the card's."""
    groups, filters = _groups(folder), {f["filter"]: f["value"] for f in card["filters"]}
    if groups:
        same = card["labeller"] == asdict(_asked_of(folder, groups, settings)[1])
    else:
        same = all(getattr(settings, key) in (None, value) for key, value in card["labeller"].items())
    return same and filters == wanted(settings.filters)


def export(
    folder: RunFolder, name: str, path: str, settings: PreferencesConfig, analysis: AnalysisConfig
) -> dict[str, Any]:
    """Write the kept pairs of a run as a file of a trainer's format, whole or not at all: `pairs` and `rows` of it, and
    `counts`, of a format whose rows are no pairs what became of them (`exports.Selection`).

    A run that was judged gets its preferences first, if it has none yet or others than the settings ask for
    (`made_again`).

    Args:
        name: out of `exports.EXPORTS`.
        path: local or s3://, ending in .parquet or .jsonl.

    Raises:
        ConfigError: no such format or kind of file; as `write`.
        RunError, StorageError: as `write`; no pair is kept, or nothing of them is left for the format.
    """
    exports.refuse_bad_export(name, path)
    refuse_bad_filters(settings.filters)
    with lease.held(folder):
        card = folder.read_json(CARD) if folder.exists(CARD) else None
        again = card is not None and not _is_of(card, folder, settings)
        if again and not _groups(folder):
            raise RunError(
                f"{folder.path}: holds preferences alone, without the run that other filters or another labeller need; "
                f"export it with those of its {CARD}"
            )
        if card is None or again:
            card = write(folder, settings, analysis, some=True)
        pairs = card["counts"]["kept"]
        if not pairs:
            raise RunError(_nothing_kept(folder, card["counts"].get("dropped", {})))
        done = _put(folder, name, path, settings.data_source)
    return {"format": name, "path": path, "pairs": pairs, "rows": done.rows, "counts": done.counts, "made_again": again}


def _nothing_kept(folder: RunFolder, dropped: Mapping[str, int]) -> str:
    reasons = ", ".join(f"{name} {count}" for name, count in dropped.items()) or "none was read"
    most = max(FILTERS.keys() & dropped.keys(), key=lambda name: (dropped[name], name), default=None)
    hint = f"; preferences.filters.{most}=null takes that filter out" if most else ""
    return f"{folder.path}: no pair is kept, so there is nothing to export: {reasons}{hint}"


def _put(folder: RunFolder, name: str, path: str, data_source: str) -> exports.Written:
    """The file of the kept pairs, whole or not at all."""
    with explained(path):
        fs, inner = filesystem(path, folder.options)
        near = os.path.dirname(os.path.abspath(inner)) if is_local(path) else None
        if near:
            os.makedirs(near, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".trustjudge-export-", dir=near) as scratch:
            part = Path(scratch, "part")
            with part.open("wb") as sink:
                done = exports.write(lambda: kept(folder), name, path, sink, data_source)
            if not done.rows:
                raise RunError(f"{folder.path}: of the kept pairs nothing is left for {name}: {done.counts}")
            if near:
                os.replace(part, inner)
            else:
                fs.put_file(str(part), inner)
    return done
