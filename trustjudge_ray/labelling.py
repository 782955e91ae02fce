"""Label sheets of a run folder, the labels that came back, and what they say about its judges.

`label-sheets/NAME.json` says what was drawn and how, `labels/NAME.parquet` what people wrote.
"""

import csv
import io
from collections import Counter
from dataclasses import asdict
from typing import Any, Final

import polars as pl

from trustjudge_ray.analysis import label_sheet, metrics
from trustjudge_ray.analysis.agreement import codes, of_probabilities, probabilities, with_people
from trustjudge_ray.analysis.calibration import Scaling, reliability_diagram, temperature_scaling
from trustjudge_ray.analysis.label_sheet import LABELS, Sheet, Unit
from trustjudge_ray.analysis.people import labelled_metrics
from trustjudge_ray.analysis.powered_tables import NotRandomError, powered_estimates
from trustjudge_ray.analysis.raters import ALPHA_LEVELS, krippendorff_alpha, rating_counts
from trustjudge_ray.analysis.separability import Standings, separation
from trustjudge_ray.analysis.tolerances import parse_tolerances
from trustjudge_ray.analysis.verdicts import verdicts
from trustjudge_ray.config import AnalysisConfig, ConfigError
from trustjudge_ray.imports.base import ImportFileError
from trustjudge_ray.judging.base import RunError
from trustjudge_ray.storage import open_binary
from trustjudge_ray.store import RunFolder

_PAIR: Final = ("question_id", "response_a", "response_b")


def draw_sheet(folder: RunFolder, kind: str, n: int, seed: int, protocol: str | None) -> tuple[Sheet, str]:
    """Draw units of a run at random, write down how, and give the sheet as CSV.

    Args:
        kind: `compare` for pairs, `score` for answers.
        protocol: whose scale people use for scores; needed where score protocols have different ones.

    Raises:
        RunError: the run has no such units or no texts.
        ConfigError: n is more than there is, or the scale is not clear.
    """
    judgments, _ = folder.judgments()
    frame = label_sheet.frame_of(judgments, kind)
    if not frame.height:
        raise RunError(f"{folder.path}: no judgment of kind {kind} to draw from")
    responses = folder.responses()
    if not responses.height:
        raise RunError(f"{folder.path}: holds no texts (an import), so there is nothing to show people")
    try:
        sheet = label_sheet.draw(frame, kind, n, seed, _scale(folder, protocol) if kind == "score" else None)
    except ValueError as error:
        raise ConfigError(f"label-sheet: {error}") from error
    questions, answers = _texts(responses, sheet)
    folder.write_json(f"label-sheets/{sheet.name}.json", asdict(sheet) | {"probability": sheet.probability})
    return sheet, label_sheet.to_csv(sheet, questions, answers)


def _scale(folder: RunFolder, protocol: str | None) -> tuple[float, float]:
    scored = {name: p for name, p in folder.protocols().items() if p.kind == "score"}
    if protocol is not None and protocol not in scored:
        raise ConfigError(f"label-sheet: --protocol: got {protocol!r}; one of {sorted(scored)}")
    chosen = [scored[protocol]] if protocol is not None else list(scored.values())
    scales = {(min(p.values), max(p.values)) for p in chosen}
    if len(scales) != 1:
        raise ConfigError(f"label-sheet: protocols {sorted(scored)} have different scales; name one with --protocol")
    return scales.pop()


def _texts(responses: pl.DataFrame, sheet: Sheet) -> tuple[dict[str, str], dict[tuple[str, str], str]]:
    wanted = {unit.question_id for unit in sheet.units}
    rows = responses.filter(pl.col("question_id").is_in(list(wanted)))
    questions: dict[str, str] = {}
    answers: dict[tuple[str, str], str] = {}
    for row in rows.select("question_id", "response_id", "messages", "replies").iter_rows(named=True):
        turns = [m for m in row["messages"] if m["role"] != "assistant"]
        questions.setdefault(row["question_id"], "\n\n".join(m["content"] for m in turns))
        earlier = [m["content"] for m in row["messages"] if m["role"] == "assistant"]
        answers[row["question_id"], row["response_id"]] = "\n\n".join([*earlier, *row["replies"]])
    return questions, answers


def sheet_of(folder: RunFolder, name: str) -> Sheet:
    """A sheet that was drawn from this run."""
    saved = folder.read_json(f"label-sheets/{name}.json")
    saved.pop("probability")
    return Sheet(**(saved | {"units": tuple(Unit(**unit) for unit in saved["units"])}))


def import_labels(folder: RunFolder, paths: list[str], annotator: str | None = None) -> dict[str, Any]:
    """Read filled-in sheets. What an annotator says about a unit replaces what the same one said about it before; by
    several people, give each a file or fill the column `annotator`.

    Returns:
        `labels`, `replaced` (that were there and are otherwise now), `sheets`, and `problems`: file, line, unit, reason
        and what it got, of every cell without a usable label.

    Raises:
        ImportFileError: a file is no sheet that was drawn from this run: labels that were not drawn at random are
            refused.
    """
    folder.refuse_absent()
    problems: list[dict[str, Any]] = []
    count, replaced, sheets = 0, 0, set[str]()
    for path in paths:
        with open_binary(path, folder.options) as stream:
            content = stream.read()
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ImportFileError(f"{path}: not UTF-8 ({error}); save it as CSV, UTF-8") from error
        sheet = _drawn(folder, path, text)
        who = annotator or path.rsplit("/", 1)[-1].removesuffix(".csv")
        try:
            labels, bad = label_sheet.read_csv(sheet, text, who)
        except ValueError as error:
            raise ImportFileError(f"{path}: {error}") from error
        everything, other = label_sheet.merged(labels_of(folder, sheet), labels, bad)
        folder.write_table(f"labels/{sheet.name}.parquet", everything.to_arrow())
        replaced += other
        problems += [{"file": path} | asdict(problem) for problem in bad]
        count, sheets = count + labels.height, sheets | {sheet.name}
    about = {"labels": count, "replaced": replaced, "sheets": sorted(sheets)}
    return about | {"problems": problems, "reasons": dict(Counter(problem["reason"] for problem in problems))}


def _drawn(folder: RunFolder, path: str, text: str) -> Sheet:
    """The sheet that a file's units say they are of."""
    known = [name.removeprefix("label-sheets/").removesuffix(".json") for name in folder.names("label-sheets")]
    for name in known:
        if f"{name}-" in text:
            return sheet_of(folder, name)
    raise ImportFileError(
        f"{path}: not a sheet that `trustjudge label-sheet` drew from {folder.path} (which has {known or 'none'}); "
        "labels that were not drawn at random say nothing about the rest, so they are not read"
    )


def labels_of(folder: RunFolder, sheet: Sheet) -> pl.DataFrame:
    """LABELS of a sheet, of all annotators."""
    name = f"labels/{sheet.name}.parquet"
    return pl.DataFrame(folder.read_table(name)) if folder.exists(name) else pl.DataFrame(schema=LABELS)


def agreement_with_labels(folder: RunFolder, settings: AnalysisConfig) -> list[dict[str, Any]]:
    """For every sheet with labels: how far people agree with each other and judges with them, and what people would
    say about the rest."""
    judgments, _ = folder.judgments()
    found = []
    for path in folder.names("label-sheets"):
        sheet = sheet_of(folder, path.removeprefix("label-sheets/").removesuffix(".json"))
        labels = labels_of(folder, sheet)
        if labels.height:
            found.append(_about_sheet(folder, judgments, sheet, labels, settings))
    return found


def _about_sheet(
    folder: RunFolder, judgments: pl.DataFrame, sheet: Sheet, labels: pl.DataFrame, settings: AnalysisConfig
) -> dict[str, Any]:
    about: dict[str, Any] = {"sheet": sheet.name, "kind": sheet.kind, "drawn": len(sheet.units), "frame": sheet.frame}
    about |= {"probability": sheet.probability, "seed": sheet.seed, "labelled": labels["unit"].n_unique()}
    about |= {"annotators": sorted(labels["annotator"].unique()), "alpha": _alpha(labels)}
    try:
        about |= {"powered": powered_estimates(judgments, folder.protocols(), sheet, labels, settings), "refused": None}
    except NotRandomError as error:
        about |= {"powered": [], "refused": str(error)}
    if sheet.kind == "compare":
        said = label_sheet.consensus(labels, "compare").select(*_PAIR, "wanted")
        table = verdicts(judgments, parse_tolerances(settings.tolerances))
        about["metrics"] = labelled_metrics(table, said, settings).to_dicts()
        about["calibration"] = _calibration(table.join(said, on=list(_PAIR), how="left"), settings)
    return about


def _alpha(labels: pl.DataFrame) -> dict[str, float | None]:
    """Krippendorff's α among annotators, at each level; None where no unit has two labels."""
    counts, values, _ = rating_counts(labels["unit"], labels["value"])
    return {level: metrics.plain(krippendorff_alpha(counts, values, level)) for level in ALPHA_LEVELS}


def calibration_with_scores(folder: RunFolder, settings: AnalysisConfig) -> list[dict[str, Any]]:
    """Reliability diagram and temperature against the corpus's human scores, of every judge and comparison protocol;
    none where there are no such scores."""
    responses = folder.responses()
    human = responses.select("question_id", "response_id", human=pl.col("human_score").fill_nan(None)).drop_nulls()
    if not human.height:
        return []
    judgments, _ = folder.judgments()
    table = verdicts(judgments, parse_tolerances(settings.tolerances))
    return _calibration(with_people(table, human.unique(["question_id", "response_id"])), settings)


def _calibration(told: pl.DataFrame, settings: AnalysisConfig) -> list[dict[str, Any]]:
    """Of VERDICTS with `wanted`, what people said, for every judge and protocol."""
    once = told.unique(["judge", "protocol", *_PAIR], keep="first")
    found = []
    for (judge, protocol), part in sorted(once.partition_by(["judge", "protocol"], as_dict=True).items()):
        used = of_probabilities(part).filter(pl.col("reason").is_null()).sort(*_PAIR)
        p, right = probabilities(used)
        question, _ = codes(used["question_id"])
        bins = [asdict(each) for each in reliability_diagram(p, right, question, settings.confidence)]
        scaling = temperature_scaling(p, right, question, settings.seed)
        about = {"judge": judge, "protocol": protocol, "reliability": bins}
        found.append(about | {"temperature_scaling": _told(scaling) if scaling else None})
    return found


def _told(scaling: Scaling) -> dict[str, Any]:
    """What a document says of a scaling: everything but the fold of each case."""
    return {name: value for name, value in asdict(scaling).items() if name != "fold"}


def against_leaderboard(folder: RunFolder, path: str) -> list[dict[str, Any]]:
    """Every overall ranking of an evaluated run beside a leaderboard of people, a CSV file with the columns model,
    rating, low and high.

    Raises:
        ImportFileError: the file has other columns, or a row is not usable.
        StorageError: the run was not evaluated, or storage refuses.
    """
    theirs = _leaderboard(folder, path)
    ratings = pl.DataFrame(folder.read_table("ratings.parquet")).filter(pl.col("category").is_null())
    found = []
    for key, part in sorted(ratings.partition_by(["judge", "protocol", "rule"], as_dict=True).items()):
        rows = part.filter(pl.col("component") == 1).drop_nulls(["rating", "low", "high"])
        ours = {row["model"]: (row["rating"], row["low"], row["high"]) for row in rows.to_dicts()}
        about = dict(zip(("judge", "protocol", "rule"), key, strict=True))
        left = part.height - rows.height
        found.append(about | {"without_interval": left} | asdict(separation(Standings("ours", ours), theirs)))
    return found


def _leaderboard(folder: RunFolder, path: str) -> Standings:
    with open_binary(path, folder.options) as stream:
        text = stream.read().decode("utf-8-sig", "replace")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    missing = [name for name in ("model", "rating", "low", "high") if name not in (reader.fieldnames or [])]
    if missing:
        raise ImportFileError(f"{path}: no column '{missing[0]}'; a leaderboard has model, rating, low, high")
    models: dict[str, tuple[float, float, float]] = {}
    for row in reader:
        try:
            rating, low, high = (float(row[name]) for name in ("rating", "low", "high"))
        except (TypeError, ValueError) as error:
            raise ImportFileError(
                f"{path}, line {reader.line_num}: {error}; rating, low and high are numbers"
            ) from error
        if not low <= rating <= high or row["model"] in models:
            raise ImportFileError(f"{path}, line {reader.line_num}: {row}: low ≤ rating ≤ high, and each model once")
        models[row["model"]] = (rating, low, high)
    return Standings(path, models)
