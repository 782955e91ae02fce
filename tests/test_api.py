"""The Python API: what a notebook calls, gets and is told."""

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from corpora import protocol_files, rows
from run_folders import write_run
from test_compare import round_robin, scores_of, side, texts_of

import trustjudge_ray as tj
from trustjudge_ray import api_arguments, config, runs
from trustjudge_ray.corpus.reader import CorpusError, read
from trustjudge_ray.judging.base import RunError
from trustjudge_ray.storage import StorageError

MODELS = {"m1": 0.0, "m2": 1.0, "m3": -1.0}


def run_folder(path, seed=0, worths=MODELS, version=None):
    rng = np.random.default_rng(seed)
    said = scores_of({name: 3 + worth for name, worth in worths.items()}, rng, 12) + round_robin(worths, rng, 12)
    return write_run(path, side(str(path), said, texts_of(worths, 12, version)))


class _Page(HTMLParser):
    """The tags and the visible text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


# --- the import ------------------------------------------------------------------------------


def test_importing_the_package_loads_nothing_that_takes_time():
    probe = (
        "import sys, trustjudge_ray; print(len({'ray', 'polars', 'pyarrow', 'omegaconf', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "0"


def test_a_name_of_the_api_is_no_module_and_every_module_stays_reachable():
    package = Path(tj.__file__).parent
    modules = {path.stem for path in package.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert not modules & set(tj.__all__)
    assert {name for name in tj.__all__ if getattr(tj, name).__module__.startswith("trustjudge_ray")} == set(tj.__all__)
    with pytest.raises(AttributeError, match="no attribute 'jugde'"):
        tj.jugde  # noqa: B018


def test_a_notebook_that_calls_the_api_passes_the_strict_type_checker(tmp_path):
    example = tmp_path / "example.py"
    example.write_text(
        "import polars as pl\n"
        "import trustjudge_ray as tj\n"
        "def ours(answers: pl.DataFrame) -> pl.DataFrame:\n"
        "    run: tj.Run = tj.judge(answers, judge=tj.JudgeConfig(model='m'), limit=3, plan={'block': 4})\n"
        "    also = tj.judge([{'question_id': 1}], judge=['a', {'model': 'b'}])\n"
        "    again = tj.evaluate(run, tolerances=[0, 0.5])\n"
        "    changes: pl.DataFrame = tj.compare(also, again.path).changes\n"
        "    return tj.open_run('runs/x').leaderboard().join(changes, on='model')\n"
        "tj.judge(answers=3)\n"
    )
    asked = [sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml", str(example)]
    done = subprocess.run(asked, capture_output=True, text=True, cwd=Path(__file__).parent.parent, check=False)
    wrong = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(wrong) == 1, done.stdout
    assert 'Missing positional argument "corpus"' in wrong[0]


# --- a run that is there ---------------------------------------------------------------------


def test_frames_are_the_tables_of_the_run_folder(tmp_path):
    folder = run_folder(tmp_path / "run")
    run = tj.open_run(folder.path)
    for name in ("scores", "verdicts", "metrics", "ratings"):
        assert getattr(run, name).equals(pl.read_parquet(tmp_path / "run" / f"{name}.parquet"))
    stored = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert run.metrics.to_dicts() == stored["metrics"]
    assert run.judgments.height == 12 * (3 + 6)
    assert (run.quarantine.height, run.manifest) == (0, {})


def test_the_leaderboard_is_the_reports_and_puts_the_planted_best_model_first(tmp_path):
    run = tj.open_run(run_folder(tmp_path / "run").path)
    board = run.leaderboard()
    assert board["model"].to_list() == ["m2", "m1", "m3"]
    assert board["rule"].unique().to_list() == ["davidson"]
    assert board.columns[:5] == ["rank", "model", "rating", "low", "high"]
    assert "m2" in run.summary[0]
    assert len(run.summary) == 3


def test_evaluate_changes_tables_and_report_and_leaves_no_old_number_in_a_run_that_was_open(tmp_path):
    run = tj.open_run(run_folder(tmp_path / "run").path)
    assert set(run.metrics["tolerance"].drop_nulls()) == {0.0}
    again = tj.evaluate(run, tolerances=[0, 0.25], k=[3])
    assert set(again.metrics["tolerance"].drop_nulls()) == {0.0, 0.25}
    assert run.metrics.equals(again.metrics)
    assert "0.25" in Path(run.report).read_text()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tolerance": [0]}, "did you mean 'tolerances'"),
        ({"k": [2]}, "sizes from 3 to 8"),
        ({"seed": "x"}, "seed"),
        ({"tolerances": np.array([0.5])}, "analysis.tolerances: Object of type ndarray is not JSON serializable"),
    ],
)
def test_a_wrong_setting_is_told_as_the_command_line_tells_it(tmp_path, settings, said):
    run = tj.open_run(run_folder(tmp_path / "run").path)
    before = run.metrics
    with pytest.raises(config.ConfigError, match=said):
        tj.evaluate(run, **settings)
    assert run.metrics.equals(before)


def test_a_wrong_path_and_an_unfinished_run_are_one_message_each(tmp_path):
    with pytest.raises(StorageError, match="not a run folder"):
        tj.open_run(tmp_path)
    rng = np.random.default_rng(0)
    write_run(tmp_path / "run", side("x", scores_of({"m": 3}, rng, 3)), finished=False)
    run = tj.open_run(tmp_path / "run")
    for read_it in (lambda: run.metrics, run.leaderboard, lambda: run.findings):
        with pytest.raises(StorageError, match="not evaluated yet; first trustjudge evaluate"):
            read_it()
    assert "not evaluated yet" in run._repr_html_()


def test_a_model_called_like_markup_stays_text_in_a_notebook(tmp_path):
    evil = "<script>alert(1)</script>"
    run = tj.open_run(run_folder(tmp_path / "run & 'co'", worths={evil: 0.0, '"><img src=x>': 1.0}).path)
    page = _Page(run._repr_html_())
    assert {tag for tag, _ in page.tags} <= {"p", "b", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "a"}
    assert evil in page.text
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    assert links == [Path(run.report).as_uri()]
    assert repr(run) == f"Run({run.path!r})"


def test_comparing_a_run_with_itself_changes_nothing_and_with_a_worse_one_finds_it(tmp_path):
    a = tj.open_run(run_folder(tmp_path / "a").path)
    b = tj.open_run(run_folder(tmp_path / "b", worths=MODELS | {"m2": -0.5}, version={"m2": 1}).path)
    assert set(tj.compare(a, a).changes["difference"].drop_nulls()) == {0.0}
    found = tj.compare(a, b.path, overrides=["compare.fail_on=[regressed]"])
    worse = found.changes.filter(model="m2", measure="win_rate")
    assert worse["verdict"].to_list() == ["regressed"]
    assert found.failed
    assert found.document["passed"] is False
    assert "regressed" in _Page(found._repr_html_()).text
    assert not (tmp_path / "b" / "comparison.json").exists()


# --- a configuration from arguments ----------------------------------------------------------


def asked(monkeypatch, *args, **kwargs):
    """The configuration that `judge` would run; runs nothing."""
    seen = []

    def stop(loaded, notify):
        seen.append(loaded)
        raise RunError("stopped here")

    monkeypatch.setattr(runs, "run", stop)
    with pytest.raises(RunError, match="stopped here"):
        tj.judge(*args, quiet=True, **kwargs)
    return seen[0]


def test_arguments_and_sections_are_the_keys_of_a_configuration(monkeypatch, tmp_path):
    loaded = asked(
        monkeypatch,
        tmp_path / "a.jsonl",
        judge=tj.JudgeConfig(engine="scripted", temperature=0.5),
        protocols="compare",
        design="blocks",
        out=tmp_path / "run",
        limit=7,
        fields={"response": "text", "model": "=007"},
        overrides=["plan.rounds=3"],
        plan={"block": 4},
        analysis={"k": [3]},
    )
    found = loaded.config
    assert found.corpus.paths == [str(tmp_path / "a.jsonl")]
    assert found.corpus.fields == {"response": "text", "model": "=007"}
    assert (found.judge.engine, found.judge.temperature, found.protocols) == ("scripted", 0.5, ["compare"])
    assert (found.plan.design, found.plan.block, found.plan.rounds) == ("blocks", 4, 3)
    assert (found.run.limit, found.analysis.k, found.out) == (7, [3], str(tmp_path / "run"))
    assert config.loads(loaded.unresolved_yaml).config == found
    assert "max_retries" not in loaded.unresolved_yaml


def test_without_further_arguments_it_is_the_default_configuration(monkeypatch):
    found = asked(monkeypatch, "a.jsonl").config
    default = config.loads("corpus: {paths: [a.jsonl]}").config
    assert found.out != default.out
    found.out = default.out
    assert found == default


def test_several_judges_are_a_list_and_each_a_path_or_a_section(monkeypatch, tmp_path):
    found = asked(monkeypatch, "a.jsonl", judge=[tmp_path / "x", {"model": "org/y", "dtype": "float32"}]).config
    assert [(j.model, j.dtype) for j in found.judges] == [(str(tmp_path / "x"), "bfloat16"), ("org/y", "float32")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"plann": {"block": 4}}, r"judge\(\): unknown key 'plann'; did you mean 'plan'\?"),
        ({"plan": {"blok": 4}}, r"judge\(\): plan: unknown key 'blok'; did you mean 'block'\?"),
        ({"limit": 0}, "run.limit: got 0; 1 or more"),
        ({"design": "full", "plan": {"design": "blocks"}}, "plan.design is given twice"),
        ({"protocols": "compare", "overrides": ["block"]}, "write key=value"),
        ({"judge": {"model": object()}}, "not JSON serializable"),
        ({"judge": 5}, r"judge\(\): judge: got 5; a model folder"),
        ({"judge": []}, r"judge\(\): judge: got \[\]; a model folder"),
        ({"judge": ["org/x", None]}, "judge: got .*; a model folder"),
        ({"out": ""}, "out: got an empty text"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_read(arguments, said):
    with pytest.raises(config.ConfigError, match=said):
        tj.judge("there-is-none.jsonl", **arguments)


def test_a_corpus_that_is_not_there_is_told_before_ray_starts(tmp_path):
    with pytest.raises(CorpusError, match="no corpus file there"):
        tj.judge(tmp_path / "none.jsonl", judge={"engine": "scripted"}, out=tmp_path / "run", quiet=True)


# --- rows in memory --------------------------------------------------------------------------

ROWS = [
    {
        "question_id": "007",
        "question": "Why?\u2028So?",
        "model": "m",
        "response": "é \U0001f600 {x}",
        "extra": [1, None],
    },
    {"question_id": 8, "question": None, "model": "n", "response": ["one", "two"], "human_score": 2.5},
]


def read_back(tmp_path, corpus):
    (path,), content = api_arguments.corpus_files(corpus, str(tmp_path))
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_bytes(content)
    good, bad = zip(*read(path, "flat"), strict=True)
    assert sum(map(len, bad)) == 0
    return pa.concat_tables(good).to_pylist()


def test_rows_in_memory_are_read_as_the_same_rows_of_a_file(tmp_path):
    file = tmp_path / "file.jsonl"
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS), encoding="utf-8")
    from_file = [row | {"source": ""} for part, _ in read(str(file), "flat") for row in part.to_pylist()]
    assert [row | {"source": ""} for row in read_back(tmp_path, ROWS)] == from_file
    assert from_file[0]["question_id"] == "007"


@pytest.mark.parametrize("make", [pl.DataFrame, pa.Table.from_pylist], ids=["polars", "arrow"])
def test_a_frame_is_read_as_its_rows(tmp_path, make):
    plain = [{"question_id": f"0{q}", "question": "Q?", "model": "m", "response": f"r{q}"} for q in range(3)]
    expected = [row | {"source": ""} for row in read_back(tmp_path, plain)]
    assert [row | {"source": ""} for row in read_back(tmp_path, make(plain))] == expected


def test_a_polars_frame_keeps_lists_categories_and_whole_numbers(tmp_path):
    frame = pl.DataFrame(
        {"question_id": [1, 2], "question": ["a", "b"], "response": [["x", "y"], ["z"]], "model": ["m", "n"]}
    ).with_columns(pl.col("model").cast(pl.Categorical))
    found = read_back(tmp_path, frame)
    assert [(r["question_id"], r["model"], r["replies"]) for r in found] == [("1", "m", ["x", "y"]), ("2", "n", ["z"])]


@pytest.mark.parametrize(
    ("corpus", "said"),
    [
        ({"question_id": 1}, "corpus: got dict; a path"),
        ([{"question_id": 1}, "a.jsonl"], "corpus: got list of dict, str"),
        (3, "corpus: got int"),
        (pl.LazyFrame({"x": [1]}), "got LazyFrame; .*collect"),
        ([{"question_id": 1}, {"question_id": 2, "response": {1, 2}}], "corpus: row 2: .*set"),
        (pl.DataFrame({"question_id": [object()]}), "column 'question_id' holds Python objects"),
        (pl.DataFrame({"question_id": pl.Series([1], dtype=pl.Int128)}), "not writable as Parquet"),
    ],
    ids=["dict", "mixed", "int", "lazy", "set", "object", "wide"],
)
def test_what_is_no_corpus_says_what_would_be_one(tmp_path, corpus, said):
    with pytest.raises(CorpusError, match=said):
        api_arguments.corpus_files(corpus, str(tmp_path))


# --- with Ray --------------------------------------------------------------------------------

_NOTEBOOK = """
import json, sys
import trustjudge_ray as tj
from trustjudge_ray.judging.base import RunError

rows, protocols, out = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
judge = {"engine": "scripted", "scripted": {"quality": {"good": 0.9, "fair": 0.5, "bad": 0.1}}}
small = {"num_cpus": 2, "object_store_gb": 0.1}
run = tj.judge(rows, judge=judge, protocols=protocols, out=out, cluster=small)
import ray
told = {"path": run.path, "board": run.leaderboard()["model"].to_list(), "ray": ray.is_initialized()}
ray.init(address="local", num_cpus=2, object_store_memory=10**8, include_dashboard=False, log_to_driver=False)
again = tj.judge(rows, judge=judge, protocols=protocols, out=out, quiet=True)
told |= {"now": again.manifest["judged_now"], "tasks": again.manifest["tasks"], "ray_stays": ray.is_initialized()}
try:
    tj.judge(rows, judge=judge | {"scripted": {"failure_rate": 0.5}}, protocols=protocols, out=out + "2", quiet=True)
except RunError as error:
    told |= {"error": str(error), "saved": tj.open_run(out + "2").metrics.height > 0}
ray.shutdown()
print(json.dumps(told))
"""


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.heavy
def test_a_notebook_judges_rows_goes_on_where_it_was_and_gets_its_own_ray_back(tmp_path):
    given_rows = rows(6, ["good", "fair", "bad"])
    command = [json.dumps(given_rows), json.dumps(protocol_files(tmp_path)), str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-c", _NOTEBOOK, *command], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["board"] == ["good", "fair", "bad"]
    assert (told["ray"], told["ray_stays"]) == (False, True)
    assert (told["now"], told["tasks"]) == (0, 6 * (3 + 6))
    assert "failed" in told["error"]
    assert "open_run(" in told["error"]
    assert told["saved"]
    assert "planned 54 judgments, 54 of them to judge" in done.stderr
    assert list((tmp_path / "run" / "corpus").iterdir())
