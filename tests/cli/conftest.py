"""A tiny model and data for it, and the command line as a function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.tiny_chat import write_messages, write_tiny_chat

from featherback.cli.app import run


class Outcome(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `featherback ARGUMENTS...` in this process."""

    def call(*arguments: object) -> Outcome:
        code = run([str(argument) for argument in arguments])
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer and a chat template."""
    return write_tiny_chat(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="session")
def messages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve short conversations."""
    return write_messages(tmp_path_factory.mktemp("data") / "sums.jsonl")
