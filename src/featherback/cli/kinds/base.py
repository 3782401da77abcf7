"""The interface of a kind of thing that `featherback inspect` describes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

HEAD = 4096
"""Bytes at the start of a file from which its kind is recognised."""
DATA, OUT, OTHER_OUT = "notes.jsonl", "run", "another-run"
"""Placeholders for the user's own names in suggested commands."""


@dataclass(frozen=True)
class Outlook:
    """What the user can do next with the inspected thing."""

    next: list[str]
    """Commands to type next, the most likely first."""
    trainable: bool | None = None  # None: does not apply
    reason: str | None = None
    """Why it cannot be trained."""
    memory: int | None = None
    """Least memory in bytes for training with the default options. Preparing the data may take more."""
    notes: list[str] = field(default_factory=list)


class Kind(ABC):
    """One kind of thing. Every other module of this folder has an instance as `KIND`."""

    title: ClassVar[str]
    """Its name in messages: "a GGUF model"."""
    rank: ClassVar[int] = 1
    """Kinds are tried in this order, because a run, for example, is also an adapter."""

    @abstractmethod
    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether `path` seems to be of this kind. `head`: the first bytes of a file, empty for a folder."""

    @abstractmethod
    def describe(self, path: Path) -> dict[str, Any]:
        """The facts about the thing at `path`, from its headers or text; raises FeatherbackError if it is damaged."""

    @abstractmethod
    def outlook(self, path: Path, named: str) -> Outlook:
        """What the user can do next. `named`: the thing as the user typed it."""


def in_folder(path: Path, name: str) -> bool:
    """Whether `path` is a folder that contains this file."""
    return path.is_dir() and (path / name).is_file()


def chosen(values: dict[str, Any]) -> dict[str, Any]:
    """The settings that are not empty."""
    return {name: value for name, value in values.items() if value not in (None, {}, [], "")}
