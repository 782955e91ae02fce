"""Shell completion: what a shell asks of the command, and what bash itself makes of the answer."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from called import trustjudge

from trustjudge_ray import config_keys
from trustjudge_ray.commands import completing
from trustjudge_ray.config import Config
from trustjudge_ray.judging.protocols import builtin_names
from trustjudge_ray.serving_config import ServingConfig


def complete(line: str, shell: str = "bash") -> list[tuple[str, str]]:
    """What a shell is answered about a line with the cursor at its end: kinds and words."""
    words = line.split(" ")
    asked = {
        "bash": {"COMP_LINE": line, "COMP_WORDBREAKS": " \t\n\"'><=;|&(:"},
        "zsh": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        "fish": {"COMP_WORDS": line, "COMP_CWORD": words[-1]},
    }[shell]
    done = trustjudge(**asked, _TRUSTJUDGE_COMPLETE=f"{shell}_complete")
    assert (done.returncode, done.stderr) == (0, "")
    found = [answer.split(",", 1) for answer in done.stdout.splitlines() if answer]
    return [(kind, word) for kind, word in found]


def words(line: str, shell: str = "bash") -> list[str]:
    return [word for _, word in complete(line, shell)]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a configuration, a corpus and a run, as the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").touch()
    (tmp_path / "my answers.jsonl").touch()
    (tmp_path / "runs" / "one").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_options_and_files_of_the_right_kind_are_completed(here, shell):
    assert words("trustjudge ru", shell) == ["run"]
    assert words("trustjudge run --li", shell) == ["--limit"]
    assert "mine.yaml" in words("trustjudge run m", shell)
    assert "my answers.jsonl" not in words("trustjudge run m", shell)
    assert "my answers.jsonl" in words("trustjudge init m", shell)
    assert [word.rstrip("/") for word in words("trustjudge report ru", shell)] == ["runs"]
    assert [word.rstrip("/") for word in words("trustjudge report runs/", shell)] == ["runs/one"]
    assert words("trustjudge completion z", shell) == ["zsh"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_values_come_with_their_key_where_a_word_is_the_whole(here, shell):
    assert words("trustjudge run mine.yaml plan.design=m", shell) == ["plan.design=matching"]
    assert words("trustjudge run mine.yaml protocols=[score-5,compare-r", shell) == [
        "protocols=[score-5,compare-rationale"
    ]


def test_bash_gets_what_comes_after_the_sign_at_which_its_own_words_end(here):
    """Bash would otherwise write the key a second time."""
    assert complete("trustjudge run mine.yaml plan.des") == [("part", "plan.design=")]
    assert words("trustjudge run mine.yaml plan.design=") == ["full", "blocks", "matching", "anchor"]
    assert words("trustjudge run mine.yaml plan.canary=t") == ["true"]
    assert words("trustjudge run mine.yaml corpus.format=fl") == ["flat"]
    assert words("trustjudge run mine.yaml judge.engine=o") == ["openai_api"]
    assert complete("trustjudge run mine.yaml corpus.paths=my") == [("file", "my answers.jsonl")]
    assert words("trustjudge serve-rewards mine.yaml rewards.mode=g") == ["group"]
    assert set(words("trustjudge plan mine.yaml protocols=")) >= set(builtin_names()) | {"mine.yaml"}


def test_a_run_folder_is_offered_only_what_its_command_reads(here):
    assert words("trustjudge evaluate runs/one ") == ["storage_options.", "analysis."]


@pytest.mark.parametrize(("root", "example"), [(Config, "audit.gates.auc.warn"), (ServingConfig, "serve.port")])
def test_every_key_of_a_configuration_can_be_reached(root, example):
    """Walked as somebody does who completes each part; a section that is left out cannot be discovered."""
    ask = completing.overrides(lambda: root, ())
    reached, open_ones = set(), [""]
    while open_ones:
        for item in ask(None, None, open_ones.pop()):
            if item.value.endswith("="):
                reached.add(item.value[:-1])
            else:
                open_ones.append(item.value)
    wanted = {key for key, kind in config_keys.keys(root) if not str(kind).startswith("dict[")}
    assert example in wanted
    assert reached == wanted


def test_an_unknown_command_or_key_completes_to_nothing(here):
    assert words("trustjudge run mine.yaml nosuch.k") == []
    assert words("trustjudge run mine.yaml plan.block=") == []
    assert words("trustjudge run mine.yaml plan.design=full.x") == []


@pytest.mark.parametrize("asked", [["--help"], [], ["completion", "bash"]])
def test_help_and_completion_load_nothing_heavy(asked):
    """A shell waits for them at each press of the key."""
    heavy = ("polars", "numpy", "pyarrow", "scipy", "ray", "torch", "vllm", "fsspec")
    environment = os.environ | ({} if asked else {"_TRUSTJUDGE_COMPLETE": "bash_complete"})
    environment |= {"COMP_LINE": "trustjudge run a.yaml protocols=s"}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "trustjudge_ray", *asked],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout
    loaded = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "trustjudge_ray.cli" in loaded
    assert loaded & set(heavy) == set()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_with_the_script(here):
    """The whole way, in an interactive bash on a terminal of its own: keys without a space behind them, words with one,
    a file's blank escaped."""
    program = here / "bin" / "trustjudge"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m trustjudge_ray "$@"\n')
    program.chmod(0o755)
    script = here / "script"
    script.write_text(trustjudge("completion", "bash").stdout)
    with Bash(here, program.parent) as bash:
        bash.say(f". {script}; echo rea''dy\n", "ready")
        bash.say("trustjudge run mi\t", "mine.yaml ")
        bash.say("plan.des\t", "plan.design=")
        bash.say("ma\t", "matching ")
        bash.say("corpus.paths=my\t", "my\\ answers.jsonl ")
        bash.say("plan.nosuch\t!", "plan.nosuch!")


class Bash:
    """An interactive bash, typed into."""

    def __init__(self, folder: Path, programs: Path) -> None:
        main, side = pty.openpty()
        path = f"{programs}:{os.environ['PATH']}"
        package = str(Path(__file__).parent.parent)
        environment = os.environ | {"PATH": path, "PS1": "> ", "TERM": "dumb", "INPUTRC": "/dev/null", "HISTFILE": ""}
        environment |= {"PYTHONPATH": os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])}
        self._terminal = main
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=side,
            stdout=side,
            stderr=side,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        os.close(side)

    def __enter__(self) -> "Bash":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def say(self, keys: str, until: str) -> None:
        """Type, and wait until the terminal shows a text."""
        os.write(self._terminal, keys.encode())
        shown, deadline = "", time.monotonic() + 60
        while until not in shown:
            assert time.monotonic() < deadline, f"typed {keys!r}: {until!r} is not in {shown!r}"
            if select.select([self._terminal], [], [], 0.1)[0]:
                shown += os.read(self._terminal, 4096).decode("utf-8", "replace").replace("\a", "")
