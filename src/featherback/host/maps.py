"""Mapped files that another program cuts short while they are read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from featherback import kernels
from featherback.errors import FeatherbackError


class MapWatch:
    """While entered, a mapped page that has gone reads as zeros instead of ending the process; `check` then says so.

    What was computed since the last `check` is to be thrown away if it raises.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._sizes = {path: path.stat().st_size for path in files}

    def __enter__(self) -> MapWatch:
        kernels.watch_maps()
        self._lost = kernels.lost_pages()
        return self

    def check(self) -> None:
        """FeatherbackError, naming the file, if a page has gone since this was entered."""
        if kernels.lost_pages() == self._lost:
            return
        shorter = [
            path for path, size in self._sizes.items() if not path.exists() or path.stat().st_size < size
        ]
        named = ", ".join(map(str, shorter or self._sizes))
        raise FeatherbackError(
            f"{named} was cut short by another program, or its disk failed, while it was being read: "
            f"bring it back and start again."
        )

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        kernels.unwatch_maps()
