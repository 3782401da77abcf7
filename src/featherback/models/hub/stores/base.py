"""The interface of a store of models. Each other module of this folder defines one store as `STORE`."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import ClassVar

_LONGEST = 255  # bytes of a file name, on every system
MOST_ENTRIES = 10_000
"""Entries of a folder that are read at most. Real stores have hundreds."""


class Store(ABC):
    """The models of another program. Names are without the prefix "STORE:"."""

    title: ClassVar[str]
    """The store's name for people, such as "Ollama's store"."""
    get: ClassVar[str]
    """The command that downloads a model into the store."""

    @abstractmethod
    def folders(self) -> list[Path]:
        """The folders in which the store may be, the preferred ones first."""

    @abstractmethod
    def names(self) -> Iterator[str]:
        """Yield the name of every model in the store, whether or not it can be opened."""

    @abstractmethod
    def path(self, name: str) -> Path | None:
        """Return the GGUF file or Hugging Face folder of a model; None if the store does not have it.

        Raises FeatherbackError if the model cannot be used, or if `name` fits several models.
        """


def is_plain(part: str) -> bool:
    """Whether a part of a name is a plain file name, which cannot lead out of a folder."""
    if part in ("", ".", "..") or "\0" in part or PurePath(part).name != part:
        return False
    return len(part.encode("utf-8", "surrogatepass")) <= _LONGEST


def is_closed(folder: Path) -> bool:
    """Whether this user lacks the permission to read the folder."""
    try:
        with os.scandir(folder):
            return False
    except PermissionError:
        return True
    except OSError:
        return False


def subfolders(folder: Path) -> list[Path]:
    """The folders in `folder`, sorted; empty if it cannot be read."""
    return [Path(entry.path) for entry in _entries(folder) if _is(entry, os.DirEntry.is_dir)]


def files(folder: Path) -> list[Path]:
    """The files in `folder` and the links to files, sorted; empty if it cannot be read."""
    return [Path(entry.path) for entry in _entries(folder) if _is(entry, os.DirEntry.is_file)]


def files_below(folder: Path, depth: int) -> list[str]:
    """The files in `folder` and in `depth` levels of subfolders, as paths with "/". At most MOST_ENTRIES."""
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
