"""Files that another program changes while they are read."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from featherback.engine.formats.mapping import MappedFile

PAGE = mmap.PAGESIZE
TRUNCATED = "was truncated by another program, or its disk failed, while Featherback was reading it"
CHANGED = "was changed by another program while Featherback was reading it"


def _overwritten(path: Path, content: Callable[[bytes], bytes]) -> None:
    before = path.read_bytes()
    with open(path, "r+b") as file:
        file.write(content(before))


def _gone_and_back(path: Path) -> None:
    """As an editor or `cp` writes a file: it is empty for a moment."""
    before = path.read_bytes()
    path.write_bytes(before)


def _hole(path: Path) -> None:
    size = path.stat().st_size
    os.truncate(path, 0)
    os.truncate(path, size)


def _longer(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(bytes(PAGE))


def _replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(bytes(path.stat().st_size))
    other.replace(path)


CHANGES: dict[str, Callable[[Path], None]] = {
    "truncated to nothing": lambda path: os.truncate(path, 0),
    "truncated to a page": lambda path: os.truncate(path, min(PAGE, path.stat().st_size - 1)),
    "its last byte truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "overwritten with zeros": lambda path: _overwritten(path, lambda before: bytes(len(before))),
    "overwritten with other bytes": lambda path: _overwritten(path, lambda before: bytes(255 - b for b in before)),
    "one byte overwritten": lambda path: _overwritten(path, lambda before: before[:-1] + bytes([before[-1] ^ 1])),
    "written again": _gone_and_back,
    "a hole": _hole,
    "longer": _longer,
}
UNNOTICED: dict[str, Callable[[Path], None]] = {"replaced": _replaced, "deleted": Path.unlink}
"""Changes that leave a mapped file as it was."""


def settle(path: Path) -> None:
    """Let the file seem older than a tick of the clock."""
    os.utime(path, (1e9, 1e9))


@contextmanager
def changing(
    monkeypatch: pytest.MonkeyPatch, path: Path, change: Callable[[Path], None] | None, at: int
) -> Iterator[list[int]]:
    """Change `path` before its bytes are viewed for the time number `at`; -1, -2...: as soon as it is mapped so often.

    Yields a list that grows by one item for each view, so that a first pass without a change counts them.
    """
    views, opens = list[int](), count(1)
    view, init = MappedFile.view, MappedFile.__init__

    def counted(self: MappedFile, offset: int, nbytes: int):  # type: ignore[no-untyped-def]
        if self.path == path:
            if len(views) == at and change is not None:
                change(path)
            views.append(at)
        return view(self, offset, nbytes)

    def opened(self: MappedFile, place: Path, large: bool = True) -> None:
        init(self, place, large)
        if place == path and next(opens) == -at and change is not None:
            change(path)

    settle(path)
    with monkeypatch.context() as patch:
        patch.setattr(MappedFile, "view", counted)
        patch.setattr(MappedFile, "__init__", opened)
        yield views
