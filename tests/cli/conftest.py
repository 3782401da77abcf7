"""Fixtures: a tiny model, its data, and the command line as a function."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from featherback.cli import app, is_launched, launcher, stages
from featherback.core import children
from featherback.core.children import ChildFailedError, Children, reported
from featherback.engine import backend
from featherback.runs import account, decoders, memory_watch
from featherback.runs.rehearsal import rehearsed_baseline
from tests.support.tiny_chat import write_messages, write_tiny_chat


class Outcome(NamedTuple):
    """The exit status and output of a command."""

    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `featherback ARGUMENTS...` in this process, together with its children."""
    monkeypatch.setattr(launcher, "Children", InProcess)
    monkeypatch.setattr(stages, "measure_size", _size_here)
    monkeypatch.setattr(stages, "open_streams", lambda lasting: None)
    monkeypatch.setattr(account, "own_peak", lambda: 0)  # that of all tests so far
    for module in (decoders, memory_watch):
        monkeypatch.setattr(module, "tree_unshared_rss", lambda pid: 0)  # unknown, too

    def call(*arguments: object) -> Outcome:
        before, words = dict(os.environ), [str(argument) for argument in arguments]
        with backend.restored():
            code = launcher.launch(words) if is_launched(words) else app.run(words)
        assert isinstance(code, int)
        os.environ.clear()
        os.environ.update(before)
        return Outcome(code, *capsys.readouterr())

    return call


class InProcess(Children):
    """Calls functions in this process."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            found = function(*arguments)
            self.received += children.handed
            children.handed.clear()
            return found
        except Exception as error:
            raise ChildFailedError(reported(error)) from None


@cache
def _size_here(*_: object) -> tuple[int, int]:
    here = rehearsed_baseline()
    return here.footprint, here.rss


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer and a chat template."""
    return write_tiny_chat(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="session")
def messages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve short conversations."""
    return write_messages(tmp_path_factory.mktemp("data") / "sums.jsonl")
