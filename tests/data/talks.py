"""What tests of chats, mail and subtitles read and write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from featherback.data.contents import contents
from featherback.data.source import Source
from tests.data.test_readers import read

Turns = list[tuple[str, str]]


def talks(path: Path, *me: str) -> list[Turns]:
    """Return role and content of the messages of each conversation."""
    return [[(m["role"], m["content"]) for m in each.messages] for each in read(path, me=me)]


def notes(path: Path, *me: str) -> str:
    return " ".join(contents(Source.of(path, me=me)).notes)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


def saved(path: Path, value: Any, **how: Any) -> Path:
    return write(path, json.dumps(value, **how))
