"""Chats on a terminal, prompts from standard input, and shell completion."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Command, Outcome
from tests.support.tiny_chat import N_VOCAB, byte_level_metadata
from tests.support.tiny_models import TINY_LLAMA, tiny, write_tiny

pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")
FEATHERBACK = (sys.executable, "-m", "featherback")
PATIENCE = 120  # seconds that only a hang reaches


class Terminal:
    """A command on a pseudo-terminal."""

    def __init__(self, *words: object) -> None:
        self._pid, self._screen = pty.fork()
        if not self._pid:
            os.environ.update(TERM="dumb", PYTHON_BASIC_REPL="1")
            os.execv(FEATHERBACK[0], [*FEATHERBACK, *map(str, words)])
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def until(self, *wanted: str) -> str:
        """The output from the last match up to the next occurrence of one of these texts."""
        end = time.monotonic() + PATIENCE
        while not any(text in self.seen for text in wanted):
            assert select.select([self._screen], [], [], max(0, end - time.monotonic()))[0], self.seen
            self.seen += os.read(self._screen, 4096).decode(errors="replace")
        text, self.seen = self.seen, ""
        return text

    def status(self, pressed: str = "") -> int:
        """The exit status of the command. `pressed`: a key that is pressed every second until it ends."""
        began = time.monotonic()
        presses = 0
        while not (done := os.waitpid(self._pid, os.WNOHANG))[0]:
            assert time.monotonic() < began + PATIENCE, self.seen
            if pressed and time.monotonic() >= began + presses:
                presses += 1
                self.type(pressed)
            if select.select([self._screen], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self._screen, 4096).decode(errors="replace")
                except OSError:  # Linux: the other end is closed
                    time.sleep(0.05)
        return os.waitstatus_to_exitcode(done[1])

    def close(self) -> None:
        os.close(self._screen)


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that never ends an answer: it has no end token, and a context of a million tokens."""
    metadata = byte_level_metadata()
    del metadata["tokenizer.ggml.eos_token_id"]
    config = tiny(TINY_LLAMA, vocab_size=N_VOCAB, max_position_embeddings=1_000_000)
    return write_tiny(tmp_path_factory.mktemp("model") / "talker.gguf", config, metadata=metadata)


@pytest.fixture
def terminal(talker: Path) -> Iterator[Terminal]:
    endless = ("--context", 1_000_000, "--max-tokens", 1_000_000, "--temperature", 0)
    found = Terminal("chat", talker, *endless)
    yield found
    found.close()


def test_ctrl_c_ends_the_answer_and_then_the_chat(terminal: Terminal) -> None:
    terminal.until("> ")
    for _ in range(2):
        terminal.type("hello\r")
        terminal.until("hello\r\n")
        terminal.until(*map(chr, range(33, 256)), "\ufffd")  # it has begun to answer
        terminal.type("\x03")
        terminal.until("\r\n> ")
    terminal.type("/help\r")
    told = terminal.until("\r\n> ")
    assert "/reset" in told
    assert "Ctrl-C" in told
    terminal.type("/nonsense\r")
    assert "unknown command /nonsense. /help lists" in terminal.until("\r\n> ")
    # Python's input() may miss a Ctrl-C that comes after its prompt is written and before it waits for a key.
    assert terminal.status(pressed="\x03") == 130
    assert "Traceback" not in terminal.seen


def test_a_chat_is_ended_by_what_people_type(terminal: Terminal) -> None:
    terminal.until("> ")
    terminal.type("/quit\r")
    assert terminal.status() == 0


def test_what_was_said_joins_the_conversation(talker: Path) -> None:
    import featherback as fb
    from featherback.engine.host.interrupt import StoppedError

    asked = 0

    def stop() -> None:
        nonlocal asked
        asked += 1
        if asked == 6:
            raise StoppedError

    talk = fb.load(talker).chat(temperature=0)
    said = "".join(talk.answer("hello", check=stop))
    assert said
    assert talk.messages == [{"role": "user", "content": "hello"}, {"role": "assistant", "content": said}]
    asked = 5  # before there is an answer
    assert list(talk.answer("more", check=stop)) == []
    assert len(talk.messages) == 2
    talk.reset()
    assert talk.messages == []


def _generate(model: Path, *words: str, text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [*FEATHERBACK, "generate", str(model), "--max-tokens", "4", *words]
    return subprocess.run(command, input=text, capture_output=True, check=False)


def test_a_prompt_can_be_piped_in(command: Command, chat_model: Path) -> None:
    def answer(*words: str, given: str | None = None) -> Outcome:
        return command("generate", chat_model, "--max-tokens", 4, *words, given=given)

    named = answer("--prompt", "one\ntwo")
    assert named.code == 0, named.err
    assert answer(given="one\ntwo\n").out == named.out
    assert answer("--prompt", "-", given="one\ntwo").out == named.out
    assert _generate(chat_model, text=b"one\ntwo\n").stdout.decode() == named.out
    assert answer("--prompt", "").err == "error: The prompt is empty.\n"
    for words, given in ((("--raw",), ""), ((), ""), ((), " \n\n"), (("--prompt", "-"), "")):
        nothing = answer(*words, given=given)
        assert nothing.code == 2
        assert nothing.err.startswith(_no_prompt(chat_model))
    wrong = _generate(chat_model, text=b"\xff\xfe")
    assert wrong.returncode == 2
    assert b"half a surrogate pair" in wrong.stderr


def _no_prompt(model: Path) -> str:
    return f"error: There is no prompt. Add one: `featherback generate {model} --prompt '"


def test_without_a_prompt_on_a_terminal(chat_model: Path) -> None:
    terminal = Terminal("generate", chat_model)
    assert _no_prompt(chat_model) in terminal.until("too.\r\n")
    assert terminal.status() == 2
    terminal.close()


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_version(flag: str) -> None:
    from featherback.version import __version__

    done = subprocess.run([*FEATHERBACK, flag], capture_output=True, text=True, check=True)
    assert done.stdout == f"featherback {__version__}\n"


_ASK = """
eval "$(featherback --show-completion bash)"
ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _featherback; echo "${COMPREPLY[@]}"; }
ask featherback tr
ask featherback train --optimizer adamw
ask featherback train --log-to t
ask featherback train --targets q,do
ask featherback train --pause-on ""
ask featherback train --steps ""
"""


@pytest.fixture
def on_the_path(tmp_path: Path) -> dict[str, str]:
    """An environment in which `featherback` is a command."""
    script = tmp_path / "featherback"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m featherback "$@"\n')
    script.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_what_bash_completes(on_the_path: dict[str, str]) -> None:
    done = subprocess.run(["bash", "-c", _ASK], env=on_the_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "train",
        "adamw adamw8bit",
        "tensorboard trackio",
        "q,down",
        "battery heat none",
        "",
    ]
    assert not done.stderr


def test_the_scripts_of_shells(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/zsh")
    assert command("--show-completion").out == command("--show-completion", "zsh").out
    assert "compdef _featherback featherback" in command("--show-completion").out
    assert "commandline" in command("--show-completion", "fish").out
    assert "expected one of: bash, zsh, fish" in command("--show-completion", "tcsh").err
    assert "~/.zshrc" in command("--install-completion").out
    for shell, variable in (("bash", "XDG_DATA_HOME"), ("fish", "XDG_CONFIG_HOME")):
        monkeypatch.setenv(variable, str(tmp_path / shell))
        path = command("--install-completion", shell).out.split()[1].rstrip(".")
        assert Path(path).read_text() == command("--show-completion", shell).out
