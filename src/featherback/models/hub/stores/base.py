"""What a store of models is. Each other module of this folder is one and holds it as `STORE`."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import ClassVar

_LONGEST = 255  # bytes of an entry's name, on every system
MOST_ENTRIES = 10_000
"""Of one folder, beyond which nobody looks: a store has hundreds."""


class Store(ABC):
    """Where another program keeps models. A name is what follows "STORE:" where a user names one."""

    title: ClassVar[str]
    """For people: "Ollama's store"."""
    get: ClassVar[str]
    """The command that brings a model there."""

    @abstractmethod
    def folders(self) -> list[Path]:
        """Where it may be on this machine. A model in one of the first hides its namesakes."""

    @abstractmethod
    def names(self) -> Iterator[str]:
        """Every model in it, whether it can be opened or not."""

    @abstractmethod
    def path(self, name: str) -> Path | None:
        """The GGUF file or Hugging Face folder of this name, None if it has none.

        FeatherbackError if it is there and cannot be used, or if `name` stands for several.
        """


def is_plain(part: str) -> bool:
    """Whether a part of a name can name an entry of a folder, and nothing elsewhere."""
    if part in ("", ".", "..") or "\0" in part or PurePath(part).name != part:
        return False
    return len(part.encode("utf-8", "surrogatepass")) <= _LONGEST


def is_closed(folder: Path) -> bool:
    """Whether the folder is there, or may be, and this user may not look into it."""
    try:
        with os.scandir(folder):
            return False
    except PermissionError:
        return True
    except OSError:
        return False


def subfolders(folder: Path) -> list[Path]:
    """The folders in `folder`, in order; none where it cannot be read."""
    return [Path(entry.path) for entry in _entries(folder) if _is(entry, os.DirEntry.is_dir)]


def files(folder: Path) -> list[Path]:
    """The files in `folder`, or what links to files, in order; none where it cannot be read."""
    return [Path(entry.path) for entry in _entries(folder) if _is(entry, os.DirEntry.is_file)]


def files_below(folder: Path, depth: int) -> list[str]:
    """The files in `folder` and in `depth` levels of folders, named from there with "/", at most MOST_ENTRIES."""
    found = [path.name for path in files(folder)]
    for inner in subfolders(folder) if depth else ():
        if len(found) >= MOST_ENTRIES:
            break
        found += [f"{inner.name}/{name}" for name in files_below(inner, depth - 1)]
    return found[:MOST_ENTRIES]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            found = [entry for _, entry in zip(range(MOST_ENTRIES), entries, strict=False)]
    except (OSError, ValueError):
        return []
    return sorted(found, key=lambda entry: entry.name)


def _is(entry: os.DirEntry[str], kind: Callable[[os.DirEntry[str]], bool]) -> bool:
    try:
        return not entry.name.startswith(".") and kind(entry)
    except OSError:  # a loop of links
        return False
