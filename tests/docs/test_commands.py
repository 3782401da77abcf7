"""Every command in README, CONTRIBUTING and docs runs, in the order of its page, beside a tiny model and short data.

Commands of `featherback` run in this process. Those that become other programs, Python, and what needs a shell run in
others.
"""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import featherback as fb
from featherback.cli.app import run as command_line
from tests.docs.pages import PAGES, RUN, SHOWN, Block, blocks, name_of
from tests.docs.stand_ins import furnish, furnish_home
from tests.support import tiers
from tests.support.tiny_chat import write_messages, write_tiny_chat

Walk = Callable[[Path], None]
OF_A_SHELL = set("|<>&;$*~")
BECOME_OTHERS = ("train", "evaluate", "compare")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_chat(tmp_path_factory.mktemp("model") / "model.gguf")


@pytest.fixture(scope="module")
def trained(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("runs")
    data = write_messages(folder / "notes.jsonl")
    return fb.train(model, data, folder / "run", steps=2, progress=False).path


@pytest.fixture
def walk(
    home: Path, model: Path, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Walk:
    """Run what a page says, and fail with the first command that does."""
    furnish_home(home, model)
    monkeypatch.setenv("PATH", f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FEATHERBACK_THREADS", "1")

    def go(page: Path) -> None:
        found = blocks(page)
        folder = home / "page"
        furnish(folder, page, found, model, trained)
        monkeypatch.chdir(folder)
        for block in found:
            if block.runs and block.language == "python":
                _succeed(block, block.content, _in_other(sys.executable, "-c", block.content))
            elif block.runs:
                for command in block.commands():
                    _succeed(block, command, here(command))

    def here(command: str) -> tuple[int, str]:
        words = shlex.split(command, comments=True)
        if words[0] != "featherback" or words[1] in BECOME_OTHERS or OF_A_SHELL & set(" ".join(words)):
            return _in_other("bash", "-c", command)
        monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n\n"))  # for `chat`
        code = command_line(words[1:])
        return code, "".join(capsys.readouterr())

    return go


def _in_other(*command: str) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, input="")
    return done.returncode, done.stdout + done.stderr


def _succeed(block: Block, command: str, outcome: tuple[int, str]) -> None:
    code, said = outcome
    assert code == 0, f"{block.where}: {command}\nended with status {code}:\n{said[-2000:]}"


FIRST_READ = ("README.md", "docs/api.md")  # the default tier runs these; the full tier runs all pages
THAT_RUN = sorted(
    (page for page in PAGES if any(b.runs for b in blocks(page))), key=lambda page: name_of(page) not in FIRST_READ
)


@pytest.mark.parametrize("page", tiers.some(THAT_RUN, len(FIRST_READ)), ids=name_of)
def test_commands(page: Path, walk: Walk) -> None:
    walk(page)


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ("```sh\nfeatherback inspect model.gguf --modle x\n```", "There is no option"),
        ("```sh\nfeatherback inspect notes.json\n```", "status 2"),
        ("```sh\nfeatherback train model.gguf --data notes.jsonl --out run/ --rnak 4\n```", "--rnak"),
        ("```sh\nfeatherback inspect notes.jsonl | grep nothing-like-it\n```", "status 1"),
        ("```python\nimport featherback as fb\nfb.lode('model.gguf')\n```", "lode"),
        ("```csv save: own.csv\nprompt\n1\n```\n\n```sh\nfeatherback inspect own.csv\n```", "completion"),
    ],
)
def test_a_wrong_command_is_noticed(block: str, says: str, tmp_path: Path, walk: Walk) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n{block}\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=says):
        walk(page)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    for block in blocks(page):
        assert block.language in (*RUN, *SHOWN), f"{block.where}: name the language: {', '.join(RUN + SHOWN)}"
        assert block.runs or block.language in SHOWN or block.reason, f"{block.where}: why is it not run?"
        hidden = block.language == "text" and "\nfeatherback " in f"\n{block.content}"
        assert not hidden, f"{block.where}: commands belong into a block `sh`"
