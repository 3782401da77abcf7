"""Mapped files that another program truncates while they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

from featherback.core.files import truncated_file_error
from featherback.engine import kernels


class MapWatch:
    """Within the context, a mapped page that has vanished reads as zeros instead of ending the process.

    `check` then raises, and everything computed since the last `check` must be discarded. An exception that leaves the
    context is replaced by the one from `check`, because it may be a consequence. Such a page stays zero even if the
    file comes back, so `spoiled` is called to close whatever has mapped it.
    """

    def __init__(self, files: Iterable[Path], spoiled: Callable[[], None] = lambda: None) -> None:
        self._spoiled = spoiled
        self._known = {path: path.stat() for path in files}

    def __enter__(self) -> MapWatch:
        kernels.watch_maps()
        self._lost = kernels.lost_pages()
        return self

    def check(self) -> None:
        """Raise FeatherbackError, naming the file, if a page or the end of a file has vanished in this context."""
        shorter = self._shorter()
        if shorter or kernels.lost_pages() != self._lost:
            self._spoiled()
            raise truncated_file_error(*(shorter or self._known))

    def _shorter(self) -> list[Path]:
        """Return the files that have become shorter. If the new end is within a page, its rest reads as zeros, without
        a fault.

        A file that was replaced or deleted stays unchanged for the process that has mapped it.
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
