"""Fixtures: a tiny chat model with two adapters, and a server of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.tiny_chat import write_tiny_base, write_tiny_talker
from tests.web.serving import Running, serving, write_adapter


class Files(NamedTuple):
    """Paths of a tiny model, of the same without a chat template, and of two adapters."""

    model: Path
    base: Path
    notes: Path
    tone: Path


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("served")
    model = write_tiny_talker(folder / "tiny.gguf")
    base = write_tiny_base(folder / "base.gguf")
    return Files(
        model, base, *(write_adapter(model, folder / name, seed) for seed, name in enumerate(("notes", "tone")))
    )


@pytest.fixture(scope="session")
def server(files: Files) -> Iterator[Running]:
    """A server of the tiny model and both adapters. In fp32, a near tie of two tokens is not decided by rounding."""
    options = ("--adapter", files.notes, "--adapter", files.tone, "--context", 400, "--compute", "fp32")
    with serving(files.model, *options) as running:
        yield running
