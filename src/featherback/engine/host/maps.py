"""Mapped files that another program cuts short while they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

from featherback.core.files import cut_short
from featherback.engine import kernels


class MapWatch:
    """While entered, a mapped page that has gone reads as zeros instead of ending the process; `check` then says so.

    What was computed since the last `check` is to be thrown away if it raises. An error that leaves the block is
    replaced by what `check` has to say, of which it may be the consequence. Such a page stays zeros, even if the file
    comes back: `spoiled` is called to close what has mapped it.
    """

    def __init__(self, files: Iterable[Path], spoiled: Callable[[], None] = lambda: None) -> None:
        self._spoiled = spoiled
        self._known = {path: path.stat() for path in files}

    def __enter__(self) -> MapWatch:
        kernels.watch_maps()
        self._lost = kernels.lost_pages()
        return self

    def check(self) -> None:
        """FeatherbackError, naming the file, if a page has gone since this was entered, or the end of one."""
        shorter = self._shorter()
        if shorter or kernels.lost_pages() != self._lost:
            self._spoiled()
            raise cut_short(*(shorter or self._known))

    def _shorter(self) -> list[Path]:
        """Files that have lost their end. Where that is within a page, the rest of it reads as zeros, without a fault.

        A file that was replaced or deleted stays as it was for whoever has mapped it.
        """
        found = []
        for path, known in self._known.items():
            try:
                now = path.stat()
            except OSError:
                continue
            if (now.st_dev, now.st_ino) == (known.st_dev, known.st_ino) and now.st_size < known.st_size:
                found.append(path)
        return found

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        kernels.unwatch_maps()
        if kind is not None and issubclass(kind, Exception):
            self.check()
