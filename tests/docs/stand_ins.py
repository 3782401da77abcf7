"""What the pages' commands find: a tiny model, short data and a run, under the names that the pages use."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from featherback.core.cache import record
from featherback.models.hub.catalogue import CATALOGUE
from tests.docs.pages import Block, name_of
from tests.models.hub.test_stores import A, layer, pulled
from tests.support.tiny_chat import write_messages

AFTER_A_RUN = ("docs/adapters.md", "docs/everyday.md", "docs/using.md", "docs/watching.md")
"""Pages for somebody who has a `run/`."""


def furnish(folder: Path, page: Path, blocks: list[Block], model: Path, run: Path) -> None:
    """Fill the folder in which a page's commands run."""
    folder.mkdir()
    shutil.copy(model, folder / "model.gguf")
    for name, count in (("notes", 12), ("chats", 6), ("held-out", 2)):
        write_messages(folder / f"{name}.jsonl", count)
    (folder / "question.txt").write_text("What is LoRA?", encoding="utf-8")
    notes = folder / "notes"
    notes.mkdir()
    (notes / "monday.md").write_text("# Monday\n\nMet Ana at the station.\n", encoding="utf-8")
    (notes / "tuesday.txt").write_text("It rained all day.\n", encoding="utf-8")
    for block in blocks:
        if block.saved_as is not None:
            (folder / block.saved_as).write_text(block.content, encoding="utf-8")
    if name_of(page) in AFTER_A_RUN:
        shutil.copytree(run, folder / "run")


def furnish_home(home: Path, model: Path) -> None:
    """Put the tiny model where fetched models and Ollama's are, and `featherback` on a path of programs."""
    for name, known in CATALOGUE.items():
        cached = home / "ours" / name / known.filename
        cached.parent.mkdir(parents=True)
        shutil.copy(model, cached)
        record(cached, known.sha256)
    name, size = "registry.ollama.ai/library/qwen2.5/0.5b", model.stat().st_size
    shutil.copy(model, pulled(home / ".ollama" / "models", name, layer(A, size)))
    program = home / "bin" / "featherback"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m featherback "$@"\n', encoding="utf-8")
    program.chmod(0o755)
