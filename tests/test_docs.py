"""The documentation: links lead somewhere, commands and keys exist, quoted messages are said, examples run."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path

import click
import polars as pl
import pytest
from reported_runs import inputs

import trustjudge_ray
from trustjudge_ray import config, config_keys, config_values, leaderboard_exports, serving_config
from trustjudge_ray.cli import cli
from trustjudge_ray.imports.text_verdicts import STATES
from trustjudge_ray.judging.base import CORPUS_FAILURES, JUDGE_FAILURES
from trustjudge_ray.judging.protocols import builtin_names, parse
from trustjudge_ray.training.exports import EXPORTS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
pages = pytest.mark.parametrize("page", PAGES, ids=IDS)

_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)\s]+)\)")


def prose(text):
    """A page without its code."""
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text))


def blocks(page, *languages):
    return [body for language, body in _FENCE.findall(page.read_text("utf-8")) if language in languages]


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    found, seen = set(), {}
    for title in re.findall(r"^#{1,6} +(.*?)\s*$", _FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        seen[slug] = seen.get(slug, -1) + 1
        found.add(slug if not seen[slug] else f"{slug}-{seen[slug]}")
    return found


# --- links -----------------------------------------------------------------------------------


def broken_links(page, text):
    """What is wrong with the links of a page, in words."""
    wrong = []
    for _, target in _LINK.findall(prose(text)):
        if target.startswith(("http://", "https://")):
            if not re.fullmatch(r"https?://[\w.-]+\.\w+(:\d+)?(/\S*)?", target):
                wrong.append(f"{target}: no address")
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists():
            wrong.append(f"{target}: no such file")
        elif anchor and anchor not in anchors(file.read_text("utf-8") if name else text):
            wrong.append(f"{target}: no such heading")
    return wrong


@pages
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page):
    assert broken_links(page, page.read_text("utf-8")) == []


def test_a_link_that_leads_nowhere_is_found():
    said = "# A b\n[x](#a-b) [y](#c) [z](none.md) [w](index.md#none) ![p](no.png) [v](https://) `[q](code.md)`"
    assert [text.split(":")[0] for text in broken_links(DOCS / "index.md", said)] == [
        "#c",
        "none.md",
        "index.md#none",
        "no.png",
        "https",
    ]


def test_the_index_names_every_page():
    linked = {target.partition("#")[0] for _, target in _LINK.findall((DOCS / "index.md").read_text("utf-8"))}
    assert linked == {page.name for page in PAGES[1:]} - {"index.md"}


# --- what is generated -----------------------------------------------------------------------


@pytest.mark.parametrize("script", ["configuration_reference.py", "command_reference.py"])
def test_a_generated_page_is_that_of_the_code(script):
    asked = [sys.executable, str(ROOT / "scripts" / script), "--check"]
    done = subprocess.run(
        asked, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr


# --- examples --------------------------------------------------------------------------------

SECTIONS = {f.name for f in fields(config.Config)}


@pages
def test_every_configuration_in_a_page_loads(page):
    for text in blocks(page, "yaml"):
        if re.search(r"^kind: ", text, re.MULTILINE):
            parse(text)
        elif re.search(r"^(rewards|serve):", text, re.MULTILINE):
            serving_config.loads(text)
        else:
            whole = "paths" in text or "audit:" in text
            config.loads(text, overrides=[] if whole else ["corpus.paths=[a.jsonl]"])


def command_lines(text):
    """Lines of shell that call the command or a job: as words, the command first."""
    found = []
    for line in [*text.replace("\\\n", " ").splitlines()]:
        for part in re.split(r"&&|\|\||[|;](?= )", line.split(" #")[0]):
            called = re.search(r"(?:^|[\s/])(trustjudge|python jobs/(\w+)\.py)\s+(.*)", part.strip())
            if called is None:
                continue
            words = shlex.split(re.sub(r"\s>\s*\S+", "", called[3]))
            job = {None: [], "leaderboard": ["run"], "nightly": ["nightly"], "audit": ["audit"]}
            job |= {"preferences": ["preferences"], "benchmark": ["benchmark"]}
            if called[2] in job and (words or called[2]):
                found.append([*job[called[2]], *words])
    return found


def inline_commands(text):
    """Code within sentences that calls the command, and indented lines."""
    return re.findall(r"`((?:trustjudge|python jobs/)[^`\n]+)`|^    (.*)$", _FENCE.sub("", text), re.MULTILINE)


def wrong_command(words):
    """What is wrong with a command line, or None. Only names are looked at, no file is opened."""
    name = words[0]
    if name.startswith("-") or name in ("COMMAND", "…"):
        return None
    if name == "benchmark":
        return None if words[1] == "NAME" or (ROOT / "jobs" / "benchmarks" / f"{words[1]}.py").exists() else words[1]
    command = cli.commands.get(name)
    if command is None:
        return f"no command {name}"
    options = {option: p for p in command.params if isinstance(p, click.Option) for option in p.opts}
    for word in words[1:]:
        if word.startswith("--") and word.split("=")[0] not in (*options, "--help"):
            return f"{name} has no option {word}"
        key, sign, _ = word.partition("=")
        if sign and not word.startswith("-") and re.fullmatch(r"[a-z_.]+", key) and not known_key(key):
            return f"no key {key}"
    return None


@cache
def all_keys():
    roots = (config.Config, serving_config.ServingConfig)
    named = {key for root in roots for key, _ in config_keys.keys(root)}
    parts = {key.rsplit(".", n)[0] for key in named for n in range(1, key.count(".") + 1)}
    return named | parts | SECTIONS


def known_key(key):
    """Whether a key is one of a configuration, or lies within one that is a mapping."""
    return any(".".join(key.split(".")[:n]) in all_keys() for n in (len(key.split(".")), *_mapping_depths(key)))


def _mapping_depths(key):
    kinds = {name: str(kind) for root in (config.Config,) for name, kind in config_keys.keys(root)}
    parts = key.split(".")
    return [n for n in range(1, len(parts)) if kinds.get(".".join(parts[:n]), "").startswith("dict")]


@pages
def test_every_command_line_names_commands_options_and_keys_that_exist(page):
    text = page.read_text("utf-8")
    lines = [line for body in blocks(page, "", "sh", "bash", "shell") for line in command_lines(body)]
    lines += [words for code in inline_commands(text) for part in code for words in command_lines(part)]
    assert [(words, wrong) for words in lines if (wrong := wrong_command(words))] == []


def test_a_command_line_that_cannot_be_typed_is_found():
    typed = "trustjudge rum x.yaml\n.venv/bin/trustjudge run x.yaml --limmit 3\ntrustjudge run x.yaml plan.blok=3 # y\n"
    typed += "ray job submit -- python jobs/nightly.py n.yaml compare.smalest=1\ntrustjudge plan x.yaml plan.only.a=[b]"
    wrong = [wrong_command(words) for words in command_lines(typed)]
    assert wrong == ["no command rum", "run has no option --limmit", "no key plan.blok", "no key compare.smalest", None]


@pages
def test_a_key_that_is_named_in_a_sentence_exists(page):
    named = re.findall(r"`([a-z]+\.[a-z_.]+)(?:[:=][^`]*)?`", _FENCE.sub("", page.read_text("utf-8")))
    sections = {key.partition(".")[0] for key in all_keys()} - {"audit", "store", "out"}
    unknown = [key for key in named if key.partition(".")[0] in sections and not known_key(key)]
    files = (".py", ".md", ".json", ".yaml", ".csv", ".html", ".txt", ".parquet", ".jsonl", ".lock", ".sh")
    assert [key for key in unknown if not key.endswith(files)] == []


# --- troubleshooting -------------------------------------------------------------------------


@cache
def said_in_code():
    """Every text that the package's code can say, … for what is put into it."""
    found = set()
    for path in (ROOT / "trustjudge_ray").rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else "…" for p in node.values]
                found.add("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                found.add(node.value)
    return tuple(found)


def is_said(message):
    """Whether the code has a text with all fixed parts of a message, in order."""
    parts = [re.escape(part) for part in message.split("…") if part.strip()]
    pattern = re.compile(".*".join(parts), re.DOTALL)
    return any(pattern.search(text) for text in said_in_code())


def first_cells(text, heading):
    """The code in the first column of the tables below a heading."""
    part = re.split(r"^## ", text, flags=re.MULTILINE)
    body = next(p for p in part if p.startswith(heading))
    cells = [line.split(" | ")[0].removeprefix("| ") for line in body.splitlines() if line.startswith("| `")]
    return [
        code.strip()
        for cell in cells
        for code in re.findall(r"``\s?(.+?)\s?``(?!`)|`([^`]+)`", cell)
        for code in code
        if code
    ]


TROUBLE = (DOCS / "troubleshooting.md").read_text("utf-8") if (DOCS / "troubleshooting.md").exists() else ""


def test_every_message_that_is_explained_is_one_that_the_code_says():
    headings = ("Configuration", "Corpus", "Judges", "Runs and storage", "What `doctor` checks")
    messages = [message for heading in headings for message in first_cells(TROUBLE, heading)]
    assert len(messages) > 70
    assert [message for message in messages if not is_said(message)] == []


def test_a_message_that_nobody_says_is_found():
    assert is_said("unknown key '…'")
    assert not is_said("unknown key '…'; this is made up")


def test_every_status_of_a_judgment_is_explained():
    explained = set(first_cells(TROUBLE, "Statuses of judgments"))
    assert explained == {"ok", "identical", *JUDGE_FAILURES, *CORPUS_FAILURES}


def test_every_state_of_an_imported_text_is_explained():
    explained = set(first_cells(TROUBLE, "Statuses of imported judgments"))
    assert set(STATES) - {"ok"} <= explained
    assert [status for status in explained if not is_said(status)] == []


def test_every_reason_of_the_quarantine_is_explained():
    explained = set(re.findall(r"`([a-z0-9_]+)`", "\n".join(re.findall(r"^\| (.*?) \|", TROUBLE, re.MULTILINE))))
    reasons = set()
    for path in [p for part in ("corpus", "imports") for p in (ROOT / "trustjudge_ray" / part).glob("*.py")]:
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            made = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.args
            if made and call.func.id in ("UnreadableError", "Rejection", "Unheld", "Unusable"):
                reasons |= {call.args[0].value} if isinstance(call.args[0], ast.Constant) else set()
    assert reasons - explained == set()


# --- other pages that name what there is ------------------------------------------------------


def test_every_metric_and_rating_rule_is_explained():
    text = (DOCS / "metrics.md").read_text("utf-8")
    found = inputs()
    names = {name for name in found.metrics["metric"].unique() if not name.startswith("reliability_")}
    names |= {"covariate_length", "above_canary", *found.ratings["rule"].unique(), "davidson_controlled"}
    for table in (found.scores, found.verdicts):
        names |= set(table["rule"].unique())
    near = {f"{name}_{end}" for name in ("flip_rate", "order_effect") for end in ("close", "middle", "clear")}
    ends = {name for name in names if name.endswith("_highest")}
    assert {name for name in names - near - ends if f"`{name}`" not in text} == set()


def test_every_format_import_export_and_protocol_is_named():
    formats, protocols = ((DOCS / f"{name}.md").read_text("utf-8") for name in ("formats", "protocols"))
    importers = next(p for p in cli.commands["import"].params if p.name == "kind").type.choices
    for name in (*config_values.choices("corpus.format"), *importers, *EXPORTS, *leaderboard_exports.FORMATS):
        assert f"`{name}`" in formats, name
    for name in builtin_names():
        assert f"`{name}`" in protocols or name.startswith("verify-"), name


@pages
def test_python_in_a_page_is_python_and_calls_what_the_package_has(page):
    for code in blocks(page, "python"):
        ast.parse(code.replace(", ...)", ")"))  # three dots for what is the reader's own
        assert set(re.findall(r"\btj\.(\w+)", code)) <= set(trustjudge_ray.__all__)


# --- the paths of a newcomer -----------------------------------------------------------------

_SCRIPTED = 'judge={"engine": "scripted", "scripted": {"quality": {"fern": 0.9, "moss": 0.3}}}, quiet=True, '
_SMALL = 'cluster={"num_cpus": 2, "object_store_gb": 0.1}, '


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.heavy
def test_the_examples_of_the_python_page_run_one_after_the_other(tmp_path):
    code = "\n".join(blocks(DOCS / "python.md", "python"))
    code = code.replace("quiet=True", "").replace(", )", ")")
    code = code.replace("tj.judge(rows, ", f"tj.judge(rows, {_SCRIPTED}{_SMALL}")
    code = code.replace("tj.judge(rows[:-3], ", f"tj.judge(rows[:-3], {_SCRIPTED}{_SMALL}")
    assert code.count("scripted") == 4
    tail = "\nimport json\nprint(json.dumps([board['model'][0], ratios['cases'].max(), changed.changes.height > 0]))"
    command = [sys.executable, "-c", code + tail]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == ["fern", 12, True]


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.heavy
def test_the_quickstart_goes_from_its_ten_lines_to_a_report(tmp_path):
    page = DOCS / "quickstart.md"
    (answers,) = blocks(page, "json")
    (tmp_path / "answers.jsonl").write_text(answers, encoding="utf-8")
    lines = [line for body in blocks(page, "") for line in body.splitlines() if line.startswith("trustjudge ")]
    assert [line.split()[1] for line in lines] == ["init", "validate", "run", "evaluate", "show"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    said = {}
    for line in lines:
        words = [sys.executable, "-m", "trustjudge_ray", *shlex.split(line)[1:]]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=280, check=False)
        assert done.returncode == 0, (line, done.stderr)
        said[words[3]] = done.stdout + done.stderr
    assert "10 rows can be judged, 0 cannot be used" in said["validate"]
    assert "report: runs/my/report.html" in said["run"]
    ratings = pl.read_parquet(tmp_path / "runs" / "my" / "ratings.parquet")
    assert set(ratings["model"]) == {"fern", "moss"}
    judged = pl.read_parquet(str(tmp_path / "runs" / "my" / "judgments" / "**" / "*.parquet"))
    assert (judged.height, judged["status"].unique().to_list()) == (20, ["ok"])
    assert len(said["show"].splitlines()) == 4
