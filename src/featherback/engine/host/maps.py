"""Long operations that read mapped files, which another program may change meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType

from featherback.engine.formats.mapping import MappedFile, check_maps
from featherback.errors import FeatherbackError


class MapWatch:
    """Watches mapped files. `check` raises if one was changed; everything computed since the last `check` is then void.

    An exception that leaves the context is replaced by the one from `check`, because it may be a consequence. A page
    that has vanished stays zero even if the file comes back, so `spoiled` is called to close whatever has mapped it.
    """

    def __init__(self, maps: Iterable[MappedFile], spoiled: Callable[[], None] = lambda: None) -> None:
        self._spoiled = spoiled
        self._maps = list(maps)

    def add(self, maps: Iterable[MappedFile]) -> None:
        """Watch more files."""
        self._maps += maps

    def check(self) -> None:
        """Raise FeatherbackError, naming the file, if one was truncated or written to since it was mapped."""
        try:
            check_maps(self._maps)
        except FeatherbackError:
            self._spoiled()
            raise

    def __enter__(self) -> MapWatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is not None and issubclass(kind, Exception):
            self.check()
