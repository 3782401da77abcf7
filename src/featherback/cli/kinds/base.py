"""What a kind of thing that can be inspected says of itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

HEAD = 4096
"""Bytes of a file's beginning that are looked at to tell what it is."""
DATA, OUT, OTHER_OUT = "notes.jsonl", "run", "another-run"
"""What stands for the user's own in a command line to type."""


@dataclass(frozen=True)
class Outlook:
    """What can be done with it."""

    next: list[str]
    """Command lines to type next, the likeliest first."""
    trainable: bool | None = None  # None: that is no question here
    reason: str | None = None
    """Why it cannot be trained."""
    memory: int | None = None
    """The least that training takes with the options as they are, in bytes. Preparing the data may take more."""
    notes: list[str] = field(default_factory=list)


class Kind(ABC):
    """One kind. Each other module of this folder is one and holds it as `KIND`."""

    title: ClassVar[str]
    """What it is, for people: "a GGUF model"."""
    rank: ClassVar[int] = 1
    """The first in this order that recognises something describes it: a run is also an adapter."""

    @abstractmethod
    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether this seems to be at `path`; `head`: the beginning of a file, empty for a folder."""

    @abstractmethod
    def describe(self, path: Path) -> dict[str, Any]:
        """The facts about what is at `path`; FeatherbackError if it is damaged. Its headers are read, or its text."""

    @abstractmethod
    def outlook(self, path: Path, named: str) -> Outlook:
        """What can be done with it; `named`: what the user calls it."""


def in_folder(path: Path, name: str) -> bool:
    """Whether `path` is a folder with this file in it."""
    return path.is_dir() and (path / name).is_file()


def chosen(values: dict[str, Any]) -> dict[str, Any]:
    """Those of some settings that say something."""
    return {name: value for name, value in values.items() if value not in (None, {}, [], "")}
