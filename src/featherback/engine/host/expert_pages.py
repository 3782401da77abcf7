"""Pages of experts: they are read ahead when a router has selected them, and unmapped one expert after the other.

A layer's experts can be far larger than the memory of a run, and a batch may need only some of them. So they are never
mapped or read as a whole, unless all weights stay mapped.
"""

from __future__ import annotations

from pathlib import Path

from featherback.core.system import machine
from featherback.engine import kernels
from featherback.engine.backend.protocol import Backend, Handle
from featherback.engine.formats.mapping import FOLIO
from featherback.engine.formats.matrix import Matrix
from featherback.engine.host.reading import OpenFiles, plain


class ExpertPages:
    """Reads experts ahead, and releases them. `resident`: they stay mapped, so nothing is done."""

    def __init__(self, device: Backend, resident: bool) -> None:
        self._device, self._resident = device, resident
        self._files, self._ahead = OpenFiles(plain), kernels.ReadAhead()
        self._read = set[tuple[Path, int]]()
        self._faults, self._hints = 0, 0  # major faults so far, and how many more experts are read because of them

    def expect(self, part: Matrix) -> None:
        """Start reading rows of a stack, unless they have been read and the page cache still holds what was read."""
        if self._resident or part.file is None:
            return
        place = (part.home, part.offset)
        if place in self._read and not self._cache_is_short():
            return
        self._read.add(place)
        self._ahead.file(self._files[part.home], part.offset, part.nbytes)

    def release(self, matrix: Handle) -> None:
        """Unmap rows of a stack, which have been used."""
        if not self._resident:
            self._device.release(matrix, FOLIO)

    def close(self) -> None:
        """End reading ahead, and close the files."""
        self._ahead.close()
        self._files.close()

    def _cache_is_short(self) -> bool:
        """Return whether a page had to come from the disk again in the last passes over all experts."""
        faults = machine.disk_reads()
        if faults != self._faults:
            self._faults, self._hints = faults, 2 * len(self._read)
        self._hints -= 1
        return self._hints >= 0
