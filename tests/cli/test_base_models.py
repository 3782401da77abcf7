"""Base models have no chat template: `chat` says so, and the command that it prints works."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from featherback import models
from featherback.exports import FORMATS
from featherback.models.adapter import LoRA
from tests.cli.conftest import Command
from tests.support.tiny_chat import write_tiny_base


@pytest.mark.parametrize("adapted", [False, True])
def test_chat_with_a_base_model_prints_a_command_that_works(command: Command, tmp_path: Path, adapted: bool) -> None:
    model = write_tiny_base(tmp_path / "base model.gguf")
    options: tuple[object, ...] = ()
    if adapted:
        FORMATS["peft"].save(LoRA(models.load(model), 2), tmp_path / "poet")
        options = ("--adapter", tmp_path / "poet")
    refused = command("chat", model, *options)
    assert refused.code == 2
    start = f"error: {model} has no chat template: it is a base model, which continues text and cannot chat. "
    assert refused.err.startswith(f"{start}To continue a text: featherback generate ")
    program, *words = shlex.split(refused.err.partition("text: ")[2])
    assert program == "featherback"
    assert ("--adapter" in words) == adapted
    assert command(*words, "--max-tokens", 2).code == 0
