"""How many examples are there more than once, in little memory however many there are."""

from __future__ import annotations

from zlib import adler32, crc32

MOST = 1 << 15
"""Examples whose hashes are held: 3 MB."""


def marked(part: bytes, before: int = 0) -> int:
    """A hash of an example, or of more of it than `before` is of.

    Python's own hashes of bytes differ from process to process, and with them what is counted and held.
    """
    return hash((before, len(part), crc32(part), adler32(part)))  # of whole numbers: the same everywhere


class Known:
    """How many of some examples are among others, by their hashes: `note` the former, then `see` the latter.

    Beyond MOST different ones only those are followed whose hash ends in some zero bits.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most, self._step = most, 1
        self._noted: dict[int, int] = {}
        self._seen: set[int] = set()

    def note(self, mark: int) -> None:
        """One of the examples that are looked for, by what `marked` makes of it."""
        if mark % self._step:
            return
        self._noted[mark] = self._noted.get(mark, 0) + 1
        while len(self._noted) > self._most:
            self._step *= 2
            self._noted = {mark: count for mark, count in self._noted.items() if mark % self._step == 0}

    def see(self, mark: int) -> None:
        """One of the others."""
        if mark in self._noted:
            self._seen.add(mark)

    @property
    def count(self) -> int:
        """Examples noted that were seen."""
        return self._step * sum(self._noted[mark] for mark in self._seen)

    @property
    def is_exact(self) -> bool:
        return self._step == 1


class Duplicates:
    """Counts copies by their hashes. Up to MOST different examples the count is exact.

    Beyond, only those are followed whose hash ends in some zero bits, all copies of one or none, and their copies
    stand for those of the others.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most, self._step = most, 1
        self._copies: dict[int, int] = {}

    def add(self, mark: int) -> None:
        """Another example, by what `marked` makes of it."""
        if mark % self._step:
            return
        self._copies[mark] = self._copies.get(mark, -1) + 1
        while len(self._copies) > self._most:
            self._step *= 2
            self._copies = {mark: copies for mark, copies in self._copies.items() if mark % self._step == 0}

    @property
    def count(self) -> int:
        """Examples that are copies of earlier ones."""
        return self._step * sum(self._copies.values())

    @property
    def is_exact(self) -> bool:
        return self._step == 1
