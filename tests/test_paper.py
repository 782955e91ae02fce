"""The paper's configuration: it loads, its commands do, and what it plans is what the paper counts over."""

import json
import shlex
from pathlib import Path

import pytest

from trustjudge_ray import config, estimate, runs
from trustjudge_ray.analysis.families import family_of
from trustjudge_ray.judging import protocols
from trustjudge_ray.report.judges import billions_of

ROOT = Path(__file__).parent.parent
PAPER = ROOT / "configs" / "paper.yaml"


@pytest.fixture(autouse=True)
def _from_a_checkout(monkeypatch):
    """Paths of protocols are those of a checkout."""
    monkeypatch.chdir(ROOT)


def commands():
    """The words of the commands in the comments; a command goes on while its line ends with a backslash or a quotation
    is open."""
    found, open_lines = [], ""
    for line in PAPER.read_text("utf-8").splitlines():
        text = line.removeprefix("#   ") if line.startswith("#   ") else ""
        if open_lines or text.startswith(("trustjudge ", "OPENAI_API_KEY=")):
            open_lines += text.removesuffix("\\") + " "
            if not text.endswith("\\") and open_lines.count("'") % 2 == 0:
                found.append(shlex.split(open_lines))
                open_lines = ""
    return found


def test_the_judges_are_of_several_families_and_of_known_sizes():
    loaded = config.load(PAPER).config
    assert {family_of(judge.model) for judge in loaded.all_judges} == {"llama", "qwen", "gemini"}
    assert all(billions_of(judge.model) for judge in loaded.all_judges)
    assert {judge.temperature for judge in loaded.all_judges} == {1.0}


def test_the_protocols_write_first_and_differ_only_in_thinking():
    names = config.load(PAPER).config.protocols
    for name in names:
        plain = protocols.load(name)
        thinking = protocols.load(name.replace(".yaml", "-thinking.yaml"))
        assert plain.rationale.max_tokens == 2048
        assert (plain.thinking, thinking.thinking.max_tokens) == (None, 2048)
        assert (plain.user, plain.kind, plain.label_texts, plain.sampling) == (
            *(thinking.user, thinking.kind, thinking.label_texts, thinking.sampling),
        )
    assert [len(protocols.load(name).label_texts) for name in names] == [5, 100, 3]


def test_every_command_of_its_comments_is_one_that_loads():
    overrides = [
        words[words.index("configs/paper.yaml") + 1 :] for words in commands() if "configs/paper.yaml" in words
    ]
    changed = [words for words in overrides if words and "=" in words[0]]
    assert len(changed) == 3
    models = {config.load(PAPER, words).config.all_judges[0].model for words in changed}
    assert models == {
        *("meta-llama/Llama-3.1-70B-Instruct", "gpt-4o-2024-08-06", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B")
    }


def test_a_file_of_the_references_form_is_read_and_planned_without_a_model(tmp_path):
    answers = [{"score": level, "text": [f"{level}, first", f"{level}, second"]} for level in (1, 3, 5)]
    lines = [{"question_id": q, "category": "writing", "question": f"q {q}?", "answers": answers} for q in (81, 92)]
    file = tmp_path / "mt-bench.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    changed = [f"corpus.paths=[{file}]", f"out={tmp_path}/run", "store=null", "judges=[{engine: scripted, model: s}]"]
    loaded = config.load(PAPER, changed)
    found = runs.validate(loaded, tmp_path / "validate")
    assert (found["rows"], found["quarantined"]) == (12, 0)
    planned = estimate.estimate(loaded, tmp_path / "plan", 50)
    assert (planned["pairs"], planned["judgments"]) == (2 * 15, 2 * (2 * 6 + 2 * 15))
