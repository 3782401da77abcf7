"""Fixtures: a tiny model, its data, and the command line as a function."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
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
    """Run `featherback ARGUMENTS...` in this process, together with its children. `given`: its standard input."""
    monkeypatch.setattr(launcher, "Children", InProcess)
    monkeypatch.setattr(stages, "measure_size", _size_here)
    monkeypatch.setattr(stages, "open_streams", lambda lasting: None)
    monkeypatch.setattr(account, "own_peak", lambda: 0)  # that of all tests so far
    for module in (decoders, memory_watch):
        monkeypatch.setattr(module, "tree_unshared_rss", lambda pid: 0)  # unknown, too

    def call(*arguments: object, given: str | None = None) -> Outcome:
        before, words = dict(os.environ), [str(argument) for argument in arguments]
        with backend.restored(), nullcontext() if given is None else _piped(given, monkeypatch):
            code = launcher.launch(words) if is_launched(words) else app.run(words)
        assert isinstance(code, int)
        os.environ.clear()
        os.environ.update(before)
        return Outcome(code, *capsys.readouterr())

    return call


@contextmanager
def _piped(text: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give this process a pipe with a short text as its standard input."""
    before, (reader, writer) = os.dup(0), os.pipe()
    with open(writer, "w", encoding="utf-8") as pipe:
        pipe.write(text)
    os.dup2(reader, 0)
    os.close(reader)
    try:
        with monkeypatch.context() as patched, open(0, encoding="utf-8", closefd=False) as file:
            patched.setattr(sys, "stdin", file)
            yield
    finally:
        os.dup2(before, 0)
        os.close(before)


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
