"""How the answers of many files are staged by bucket, and meet there."""

import json
from pathlib import Path

import pytest
from corpora import rows, write_corpus

from trustjudge_ray import config, ingest, runs
from trustjudge_ray.config import CorpusConfig
from trustjudge_ray.corpus.reader import CorpusError
from trustjudge_ray.identity import bucket_of
from trustjudge_ray.store import RunFolder

CORPUS = CorpusConfig(paths=["-"])


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(str(tmp_path / "run"))


def files_of_models(folder: Path, models: int, questions: int) -> list[str]:
    """A file for each model."""
    return [str(write_corpus(folder / f"m{m:02d}.jsonl", rows(questions, [f"m{m:02d}"]))) for m in range(models)]


def settled(folder: RunFolder, ledgers: list[dict]) -> int:
    """How many responses there are once every bucket is settled."""
    return sum(len(ingest.settle_bucket(b, folder)) for b in sorted({b for x in ledgers for b in x["buckets"]}))


def test_small_files_share_their_parts_and_each_has_a_ledger_of_its_own(folder: RunFolder, tmp_path: Path):
    paths = files_of_models(tmp_path, 12, 5)
    Path(paths[3]).write_text("no JSON\n" + Path(paths[3]).read_text())
    ledgers = ingest.ingest_files(paths, CORPUS, folder)
    buckets = sorted({bucket_of(str(q)) for q in range(5)})
    assert [(x["source"], x["rows"], x["quarantined"], x["buckets"]) for x in ledgers] == [
        (path, 5, int(path == paths[3]), buckets) for path in paths
    ]
    assert len(folder.names(ingest.STAGING)) == len(buckets), "as many as one file would have"
    assert settled(folder, ledgers) == 60
    bad = folder.quarantine()
    assert bad is not None
    assert bad["source"].to_list() == [paths[3]]


def test_files_read_again_after_a_death_overwrite_what_was_staged(folder: RunFolder, tmp_path: Path):
    paths = files_of_models(tmp_path, 3, 4)
    ingest.ingest_files(paths, CORPUS, folder)
    before = folder.names("")
    ledgers = ingest.ingest_files(paths, CORPUS, folder)
    assert folder.names("") == before
    assert settled(folder, ledgers) == 12


def test_a_large_file_is_staged_part_by_part_good_and_bad_lines_alike(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ingest, "_ROWS_A_PART", 1)
    good = Path(files_of_models(tmp_path, 1, 9000)[0]).read_text().splitlines(keepends=True)
    path = tmp_path / "large.jsonl"
    path.write_text("".join(line + "no JSON\n" for line in good))
    [ledger] = ingest.ingest_files([str(path)], CORPUS, folder)
    assert (ledger["rows"], ledger["quarantined"]) == (9000, 9000)
    largest = max(len(folder.read_table(name)) for name in folder.names("quarantine"))
    assert largest <= 4096, "no more than the reader's batch"
    assert settled(folder, [ledger]) == 9000
    bad = folder.quarantine()
    assert bad is not None
    assert bad.height == 9000


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            '{"a": 1}\n{"b": 2}\n',
            r"no usable row in 1 files: 2 quarantined \(missing_field 2\); the first is .*, line 1",
        ),
        ("", "no usable row in 1 files: nothing is in them; .* is left as it was"),
    ],
)
def test_a_mistyped_corpus_leaves_an_earlier_run_as_it_was(tmp_path, lines, says):
    corpus, run = tmp_path / "new.jsonl", tmp_path / "run"
    corpus.write_text(lines)
    earlier = {"config.yaml": "corpus: {paths: [old.jsonl]}", "report.html": "<p>", "data_card.json": "{}"}
    run.mkdir()
    for name, text in earlier.items():
        (run / name).write_text(text)
    given = {
        "out": str(run),
        "corpus": {"paths": [str(corpus)]},
        "judge": {"engine": "scripted"},
        "protocols": ["score-5"],
    }
    with pytest.raises(CorpusError, match=says):
        runs.judge(config.loads(json.dumps(given | {"protocols": ["score-5"]}), "test"), lambda *_: None)
    assert {path.name: path.read_text() for path in run.iterdir()} == earlier
