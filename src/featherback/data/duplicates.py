"""Count duplicate examples in a fixed amount of memory."""

from __future__ import annotations

from zlib import adler32, crc32

MOST = 1 << 15
"""Maximum number of examples whose hashes are kept. The hashes take up to 3 MB."""


def hash_part(part: bytes, before: int = 0) -> int:
    """Return a hash of part of an example. `before` is the hash of the parts before it.

    Python's own hash of bytes differs between processes, and the counts would differ with it.
    """
    return hash((before, len(part), crc32(part), adler32(part)))  # hashes of integers are the same in every process


class OverlapCounter:
    """Count how many examples of one set are in another set, by hash: `note` the first set, then `see` the second.

    With more than MOST different examples, only a sample is tracked: those whose hash ends in a number of zero bits.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most, self._step = most, 1
        self._noted: dict[int, int] = {}
        self._seen: set[int] = set()

    def note(self, mark: int) -> None:
        """Add an example of the first set, given its hash from `marked`."""
        if mark % self._step:
            return
        self._noted[mark] = self._noted.get(mark, 0) + 1
        while len(self._noted) > self._most:
            self._step *= 2
            self._noted = {mark: count for mark, count in self._noted.items() if mark % self._step == 0}

    def see(self, mark: int) -> None:
        """Look up an example of the second set."""
        if mark in self._noted:
            self._seen.add(mark)

    @property
    def count(self) -> int:
        """The number of noted examples that were seen."""
        return self._step * sum(self._noted[mark] for mark in self._seen)

    @property
    def is_exact(self) -> bool:
        return self._step == 1


class DuplicateCounter:
    """Count copies by hash. The count is exact for up to MOST different examples.

    Beyond that, only a sample is tracked: examples whose hash ends in a number of zero bits. The count is scaled up
    from it.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most, self._step = most, 1
        self._copies: dict[int, int] = {}

    def add(self, mark: int) -> None:
        """Add an example, given its hash from `marked`."""
        if mark % self._step:
            return
        self._copies[mark] = self._copies.get(mark, -1) + 1
        while len(self._copies) > self._most:
            self._step *= 2
            self._copies = {mark: copies for mark, copies in self._copies.items() if mark % self._step == 0}

    @property
    def count(self) -> int:
        """The number of examples that are copies of earlier ones."""
        return self._step * sum(self._copies.values())

    @property
    def is_exact(self) -> bool:
        return self._step == 1
