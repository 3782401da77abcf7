"""Fixtures: a tiny model, its data, and the command line as a function."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from featherback.cli import begin
from featherback.cli.app import run
from featherback.runs import account
from featherback.runs.rehearsal import rehearsed_baseline
from tests.support.tiny_chat import write_messages, write_tiny_chat


class Outcome(NamedTuple):
    """The exit status and output of a command."""

    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Run `featherback ARGUMENTS...` in this process, together with the program that would replace it."""
    monkeypatch.setattr(begin, "exec_module", _go_on_here)
    monkeypatch.setattr(begin, "worker_baseline", lambda log_to=(), process="worker": rehearsed_baseline())
    monkeypatch.setattr(account, "own_peak", lambda: 0)  # that of all tests so far

    def call(*arguments: object) -> Outcome:
        try:
            code = run([str(argument) for argument in arguments])
        except _Ended as end:
            code = end.code
        return Outcome(code, *capsys.readouterr())

    yield call
    os.environ.pop("FEATHERBACK_DEBUG", None)  # which --debug leaves to the programs that follow


class _Ended(BaseException):
    """The program that replaced the command has ended."""

    def __init__(self, code: int) -> None:
        self.code = code


def _go_on_here(module: str, *arguments: str) -> NoReturn:
    assert module == begin.__name__
    raise _Ended(begin.main(list(arguments)))


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer and a chat template."""
    return write_tiny_chat(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="session")
def messages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve short conversations."""
    return write_messages(tmp_path_factory.mktemp("data") / "sums.jsonl")
